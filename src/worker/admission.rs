//! Starts held tasks when their gates have room (§4.3).
//!
//! A loop of its own beside the scheduler, because a gate's chance comes to the millisecond and alarms do not: it sleeps to the
//! next chance that a gate's state tells, and is nudged when an event may have opened one. Nothing is published and nothing
//! is reserved: what it starts, it claims, and the claim asks all gates again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::gate::{HeldGate, chances, in_turns};
use crate::store::{StoreError, Urgency};
use crate::task::{Answer, Command, Millis};

use super::attempt::after_buried;
use super::{Shared, fallback, intake};

/// The shortest time between two looks. Limits give what fell due since the last look, up to 50 ms of it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// The longest sleep while something is held: other processes' events open gates too.
const HELD_PAUSE: Duration = Duration::from_millis(250);
/// The longest sleep while nothing is.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// How long it stands in line for a place.
const PLACE_WAIT: Duration = Duration::from_millis(50);
/// The most starts of one look.
const MOST: usize = 128;

/// Runs until no attempt may start any more.
pub(super) async fn run(shared: Arc<Shared>, served: Vec<String>, tracker: TaskTracker) {
    let mut admission = Admission { shared, served, tracker, cursors: BTreeMap::new() };
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
            tokio::time::sleep(SHORTEST_PAUSE).await;
            tokio::select! {
                () = tokio::time::sleep(pause.saturating_sub(SHORTEST_PAUSE)) => {}
                () = admission.shared.gate_moved.notified() => {}
            }
        };
        tokio::select! {
            () = nudged => {}
            () = admission.shared.stop_intake.cancelled() => return,
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
    tracker: TaskTracker,
    /// Whose turn it was last, by queue.
    cursors: BTreeMap<String, String>,
}

impl Admission {
    async fn look(&mut self) -> Result<Seen, StoreError> {
        let held = self.shared.store.held_gates(&self.served).await?;
        let mut seen = Seen { held: !held.is_empty(), next: None };
        let mut by_queue: BTreeMap<String, Vec<HeldGate>> = BTreeMap::new();
        for gate in held {
            by_queue.entry(gate.queue.clone()).or_default().push(gate);
        }
        for (queue, held) in by_queue {
            let next = self.admit_from(queue, &held).await?;
            seen.next = [seen.next, next].into_iter().flatten().min();
        }
        Ok(seen)
    }

    /// Starts what has its turn in one queue. The next chance that is known.
    async fn admit_from(&mut self, queue: String, held: &[HeldGate]) -> Result<Option<Millis>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let queue_slots = shared.queue_slots.get(&queue);
        let cursor = self.cursors.get(&queue).cloned().unwrap_or_default();
        // One that has to be waited for, or as many as are free.
        let free =
            shared.slots.available_permits().min(queue_slots.map_or(usize::MAX, |slots| slots.available_permits()));
        let most = free.clamp(1, MOST);
        let (open, next) = chances(held, &shared.claimant.gates, most, shared.store.now());
        let mut rows = Vec::new();
        for chance in &open {
            rows.extend(shared.store.held_heads(chance, &cursor).await?);
        }
        let mut rows = in_turns(rows, &cursor, |task| (&task.state.held_turn, task.state.due_at));
        rows.truncate(most);
        let Some(last_turn) = rows.last().map(|task| task.state.held_turn.clone()) else { return Ok(next) };
        let mut places = Vec::new();
        while places.len() < rows.len() {
            let place = match intake::more_places(&shared, queue_slots) {
                Some(place) => place,
                // Newcomers wait in line for every place that comes free; stand in that line too, but not for long.
                None if places.is_empty() => {
                    match tokio::time::timeout(PLACE_WAIT, intake::first_places(&shared, queue_slots)).await {
                        Ok(Some(place)) => place,
                        _ => break,
                    }
                }
                None => break,
            };
            places.push(place);
        }
        let admits = rows.iter().take(places.len()).map(|task| Command::Admit {
            id: task.id().to_owned(),
            stamp: task.stamp(),
            claimant: shared.claimant.clone(),
        });
        let admits: Vec<Command> = admits.collect();
        if admits.is_empty() {
            return Ok(next);
        }
        let answers = shared.store.apply(Urgency::Normal, admits).await?;
        let mut turn = None;
        for ((answer, place), row) in answers.into_iter().zip(places).zip(&rows) {
            match answer {
                Answer::Run(task) => {
                    turn = Some(row.state.held_turn.clone());
                    intake::launch(&shared, &self.tracker, *task, None, place);
                }
                Answer::Waiting(task) => intake::judge_no_route(&shared, &task).await,
                Answer::Tripped { task, by } => fallback::tripped(&shared, &task, &by).await,
                Answer::Unprocessable { message } => {
                    tracing::error!(
                        task = row.id(),
                        message,
                        "the store cannot process this row; it is set aside as poison"
                    );
                    let poison = Command::Poison { id: row.id().to_owned(), message };
                    after_buried(&shared, shared.store.apply(Urgency::Normal, vec![poison]).await?);
                }
                other => after_buried(&shared, vec![other]),
            }
        }
        // Those whose turn it was and who were stopped by another gate have had their chance when nobody else started.
        self.cursors.insert(queue, turn.unwrap_or(last_turn));
        Ok(next)
    }
}
