//! Finds held tasks whose gates have room and offers them for a start (§4.3).
//!
//! A loop of its own beside the scheduler, because a gate's chance comes to the millisecond and alarms do not: it sleeps to the
//! next chance that a gate's state tells, and is nudged when an event may have opened one. Nothing is published and nothing
//! is reserved: what it offers stands in line for a place beside the messages, and the claim asks all gates again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::gate::{HeldGate, chances, in_turns, is_pause};
use crate::store::{HELD_GATES_PAGE, StoreError};
use crate::task::{Millis, Task};

use super::Shared;
use super::lanes::Lanes;

/// The shortest time between two looks. Limits give what fell due since the last look, up to 50 ms of it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// The longest sleep while something is held: other processes' events open gates too.
const HELD_PAUSE: Duration = Duration::from_millis(250);
/// The longest sleep while nothing is.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// The most offers of one look.
const MOST: usize = 128;

/// Runs until no attempt may start any more.
pub(super) async fn run(shared: Arc<Shared>) {
    let served = shared.lanes.keys().cloned().collect();
    let mut admission =
        Admission { shared, served, cursors: BTreeMap::new(), asked: BTreeMap::new(), page: String::new() };
    loop {
        let pause = match admission.look().await {
            Ok(Seen { held: false, .. }) => IDLE_PAUSE,
            Ok(Seen { next, .. }) => {
                let ahead = next.map(|at| at.saturating_sub(admission.shared.store.now()).max(0));
                ahead.map_or(HELD_PAUSE, |ms| Duration::from_millis(ms.unsigned_abs())).min(HELD_PAUSE)
            }
            Err(error) => {
                admission.shared.store_is_down(&error);
                IDLE_PAUSE
            }
        };
        let nudged = async {
            tokio::select! {
                biased;
                () = admission.shared.offers_used.notified() => return,
                () = tokio::time::sleep(SHORTEST_PAUSE) => {}
            }
            tokio::select! {
                biased;
                () = admission.shared.offers_used.notified() => {}
                () = admission.shared.gate_moved.notified() => {}
                () = tokio::time::sleep(pause.saturating_sub(SHORTEST_PAUSE)) => {}
            }
        };
        tokio::select! {
            biased;
            () = admission.shared.stop_intake.cancelled() => return,
            () = nudged => {}
        }
    }
}

/// What a look found.
struct Seen {
    /// Something is held.
    held: bool,
    /// The next chance that is known.
    next: Option<Millis>,
}

struct Admission {
    shared: Arc<Shared>,
    served: Vec<String>,
    /// Whose turn was offered last, by queue.
    cursors: BTreeMap<String, String>,
    /// The gate that was asked last, by queue: with more open gates than places they take turns too.
    asked: BTreeMap<String, String>,
    /// Where the next page of holding gates begins.
    page: String,
}

impl Admission {
    async fn look(&mut self) -> Result<Seen, StoreError> {
        let held = self.shared.store.held_gates(&self.served, &self.page).await?;
        let mut seen = Seen { held: !held.is_empty() || !self.page.is_empty(), next: None };
        self.page = match held.last() {
            Some(last) if held.len() >= HELD_GATES_PAGE => last.gate.clone(),
            _ => String::new(),
        };
        let mut by_queue: BTreeMap<String, Vec<HeldGate>> = BTreeMap::new();
        for gate in held {
            by_queue.entry(gate.queue.clone()).or_default().push(gate);
        }
        for (queue, held) in by_queue {
            let next = self.offer_from(queue, &held).await?;
            seen.next = [seen.next, next].into_iter().flatten().min();
        }
        Ok(seen)
    }

    /// Offers what has its turn in one queue. The next chance that is known.
    async fn offer_from(&mut self, queue: String, held: &[HeldGate]) -> Result<Option<Millis>, StoreError> {
        let shared = &self.shared;
        let Some(lanes) = shared.lanes.get(&queue) else { return Ok(None) };
        let cursor = self.cursors.get(&queue).cloned().unwrap_or_default();
        let most = Lanes::most_offers(shared.free_places(&queue)).min(MOST);
        let rules = shared.rules();
        let (mut open, next) = chances(held, &rules.claimant.gates, most, shared.store.now());
        // Rows are read whole, so not many more than may start; each gate is asked for its part.
        let part = (2 * most / open.len().max(1)).max(1);
        let first = open.partition_point(|chance| Some(&chance.gate) <= self.asked.get(&queue));
        open.rotate_left(first);
        let mut rows = Vec::new();
        for mut chance in open {
            chance.most = chance.most.min(part);
            rows.extend(shared.store.held_heads(&chance, &cursor).await?);
            let enough = rows.len() >= 2 * most;
            self.asked.insert(queue.clone(), chance.gate);
            if enough {
                break;
            }
        }
        let runs = |task: &Task| rules.claimant.can_run(&task.spec.task_type);
        rows.retain(|task| runs(task) || task.state.held_by.as_deref().is_some_and(is_pause));
        let mut rows = in_turns(rows, &cursor, |task| (&task.state.held_turn, task.state.due_at));
        rows.truncate(most);
        if let Some(last) = rows.last() {
            self.cursors.insert(queue, last.state.held_turn.clone());
            lanes.offer(&rows, most);
        }
        Ok(next)
    }
}
