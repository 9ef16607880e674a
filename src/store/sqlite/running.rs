//! What a batch would read again and again: the rows that this process runs, and the gates that hold nobody.
//!
//! A task that succeeds is claimed, maybe renewed, and settled by the same process within moments. Reading its row again each
//! time would cost as much as writing it. What is remembered here holds as long as nobody else has committed to the file,
//! which SQLite's data version tells exactly, inside the transaction; when somebody has, all of it is forgotten and read
//! again. Only running rows are remembered: a task that waits is always read. A gate that holds somebody is always read too.

use std::collections::{BTreeSet, HashMap};

use crate::gate::GateState;
use crate::task::{Changes, Rows, Status, Task};

/// As many gates; beyond that all are forgotten, so that a million shops cost no memory.
const MOST_GATES: usize = 20_000;

#[derive(Default)]
pub(super) struct Running {
    rows: HashMap<String, Box<Task>>,
    /// Gates that hold no row, with their state if they have one.
    gates: HashMap<String, Option<GateState>>,
}

impl Running {
    /// Hands out a row. Once it is written it is remembered again; one that is not changed has to be read the next time.
    pub(super) fn take(&mut self, id: &str) -> Option<Box<Task>> {
        self.rows.remove(id)
    }

    fn written(&mut self, task: Box<Task>) {
        if task.state.status == Status::Running {
            self.rows.insert(task.spec.id.clone(), task);
        } else {
            self.rows.remove(task.id());
        }
    }

    /// Gives the rules the gates that are remembered. Returns those that have to be read.
    pub(super) fn load_gates(&self, mut keys: BTreeSet<String>, rows: &mut Rows) -> BTreeSet<String> {
        keys.retain(|key| match self.gates.get(key) {
            Some(Some(state)) => {
                rows.gates.insert(key.clone(), state.clone());
                false
            }
            Some(None) => false,
            None => true,
        });
        keys
    }

    /// Takes in gates as they were just read.
    pub(super) fn read_gates(&mut self, keys: BTreeSet<String>, rows: &Rows) {
        if self.gates.len() + keys.len() > MOST_GATES {
            self.gates.clear();
        }
        for key in keys.into_iter().filter(|key| !rows.crowded.contains(key)) {
            let state = rows.gates.get(&key).cloned();
            self.gates.insert(key, state);
        }
    }

    /// Takes in what was just written. If that is not committed in the end, [`Running::forget_all`] has to follow.
    pub(super) fn wrote(&mut self, changes: Changes) {
        for (key, state) in changes.gates {
            self.gates.entry(key).and_modify(|known| *known = Some(state));
        }
        for task in changes.created.into_iter().chain(changes.updated.into_iter().map(|updated| updated.task)) {
            if let Some(gate) = &task.state.held_by {
                self.gates.remove(gate);
            }
            self.written(task);
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.rows.clear();
        self.gates.clear();
    }
}
