//! Held tasks by gate and turn: what a store's indexes are to the admission of a worker.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::gate::{Chance, GateState, HeldGate};
use crate::task::{DEFAULT_QUEUE, Millis, Stamp, Task};

/// A held task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeldTask {
    pub(super) due_at: Millis,
    pub(super) id: String,
    pub(super) stamp: Stamp,
    pub(super) turn: String,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Held {
    by_gate: BTreeMap<String, BTreeMap<String, BTreeSet<HeldTask>>>,
    gate_of: HashMap<String, (String, HeldTask)>,
}

impl Held {
    /// Takes note of where a row stands now.
    pub(super) fn note(&mut self, task: &Task) {
        self.forget(task.id());
        let Some(gate) = task.state.held_by.clone() else { return };
        let turn = task.state.held_turn.clone();
        let held = HeldTask { due_at: task.state.due_at, id: task.id().to_owned(), stamp: task.stamp(), turn };
        self.by_gate.entry(gate.clone()).or_default().entry(held.turn.clone()).or_default().insert(held.clone());
        self.gate_of.insert(held.id.clone(), (gate, held));
    }

    /// It is not held any more.
    pub(super) fn forget(&mut self, id: &str) {
        let Some((gate, held)) = self.gate_of.remove(id) else { return };
        let Some(turns) = self.by_gate.get_mut(&gate) else { return };
        if let Some(tasks) = turns.get_mut(&held.turn) {
            tasks.remove(&held);
            if tasks.is_empty() {
                turns.remove(&held.turn);
            }
        }
        if turns.is_empty() {
            self.by_gate.remove(&gate);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gate_of.is_empty()
    }

    /// The gates that hold somebody, with their states.
    pub(super) fn gates(&self, states: &BTreeMap<String, GateState>) -> Vec<HeldGate> {
        let with_state = |gate: &String| HeldGate {
            gate: gate.clone(),
            queue: DEFAULT_QUEUE.to_owned(),
            state: states.get(gate).cloned(),
        };
        self.by_gate.keys().map(with_state).collect()
    }

    /// The oldest of each turn that a gate holds: enough of each that its chance can be used, as a store's `held_heads` gives them.
    pub(super) fn heads(&self, chance: &Chance) -> Vec<HeldTask> {
        let Some(turns) = self.by_gate.get(&chance.gate) else { return Vec::new() };
        let of_each = (chance.most / turns.len().clamp(1, chance.most.max(1))).max(1);
        turns.values().flat_map(|tasks| tasks.iter().take(of_each)).cloned().collect()
    }
}
