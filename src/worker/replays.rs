//! Drives replay jobs, and makes those of letters that replay themselves (D4).
//!
//! Every worker looks for jobs that nobody drives; the lease in the store gives each to one of them. A job goes on while the broker is
//! away as far as it can be watched, but releases nothing: its wake-ups would wait for their alarms and come all at once.
//!
//! When a letter replays itself is decided here and not in its last settlement: letters die in many ways (an attempt, a lost lease, an
//! open breaker, a budget that a new policy has cut), and one look at all newly dead ones, by the policy in force, misses none of them.
//! A worker that dies before it has looked leaves them to the next look.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::dead_letter::replay::{self, Driven, HOLD_MS, Publisher, ReplayNews, Until};
use crate::store::{Pace, ReplayJob, StoreError};
use crate::task::{Millis, Task, WakeUp};
use crate::telemetry::Event;

use super::Shared;
use super::outbox::Letter;

/// Between two looks for jobs.
const LOOK: Duration = Duration::from_secs(1);
/// Jobs that one worker drives at once. One that only waits for its letters to end costs a look now and then.
const MOST_JOBS: usize = 16;
/// Newly dead letters of one look.
const MOST_DEAD: usize = 1_000;
/// A letter that died so recently may not be visible to a look yet, so the next look begins there.
const OVERLAP_MS: Millis = 5_000;
/// How often the store is told how far looks have come that found nothing.
const TELL_MS: Millis = 30_000;
/// The most letters of one automatic job.
const MOST_AUTOMATIC: usize = 10_000;
/// How fast letters replay themselves: slow enough to do no harm to a platform that is still broken, since nobody watches.
const AUTOMATIC_PER_S: f64 = 20.0;

/// Runs until the worker ends.
pub(super) async fn run(shared: Arc<Shared>, tracker: TaskTracker) {
    let mut jobs: BTreeMap<i64, JoinHandle<()>> = BTreeMap::new();
    let mut appointing = Appointing::default();
    loop {
        jobs.retain(|_, driver| !driver.is_finished());
        if let Err(error) = look(&shared, &tracker, &mut jobs, &mut appointing).await {
            shared.store_is_down(&error);
        }
        tokio::select! {
            biased;
            () = shared.stop_all.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

async fn look(
    shared: &Arc<Shared>,
    tracker: &TaskTracker,
    jobs: &mut BTreeMap<i64, JoinHandle<()>>,
    appointing: &mut Appointing,
) -> Result<(), StoreError> {
    appointing.look(shared).await?;
    while jobs.len() < MOST_JOBS {
        let Some(job) = shared.store.lease_replay(None, &shared.name, HOLD_MS).await? else { return Ok(()) };
        shared.observers.emit(&Event::Replay { job: job.id, what: ReplayNews::Taken });
        let id = job.id;
        jobs.insert(id, tracker.spawn(drive(Arc::clone(shared), job)));
    }
    Ok(())
}

/// Drives a job until it ends or is taken from this worker, through outages of the store as long as the lease stands.
async fn drive(shared: Arc<Shared>, job: ReplayJob) {
    let outbox = Outbox(&shared);
    loop {
        let driven =
            replay::drive(&*shared.store, &outbox, &shared.observers, &job, Until::Ended, &shared.stop_all).await;
        match driven {
            Ok(Driven::Done | Driven::NotOurs | Driven::GivenUp) => return,
            Err(error) => shared.store_is_down(&error),
        }
        tokio::select! {
            biased;
            () = shared.stop_all.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

struct Outbox<'a>(&'a Shared);

#[async_trait]
impl Publisher for Outbox<'_> {
    fn is_ready(&self) -> bool {
        self.0.broker.is_up()
    }

    async fn publish(&self, wake_ups: Vec<WakeUp>) {
        wake_ups.into_iter().for_each(|wake_up| self.0.outbox.send(Letter::WakeUp(wake_up)));
    }
}

/// Says when newly dead letters replay themselves.
#[derive(Default)]
struct Appointing {
    /// Whether a policy asked for it at the last look.
    wanted: Option<bool>,
    /// When the store was last told how far the looks have come.
    told_at: Millis,
}

impl Appointing {
    /// Looks at letters that died since the last look, and makes jobs of those whose time has come. When no policy asks for it any more,
    /// what has not been looked at is forgotten.
    async fn look(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let rules = shared.rules();
        let wanted = rules.replay_letters();
        if !wanted {
            if self.wanted != Some(false) {
                shared.store.appoint(None, &[]).await?;
                *self = Appointing { wanted: Some(false), told_at: 0 };
            }
            return Ok(());
        }
        self.wanted = Some(true);
        let now = shared.store.now();
        let dead = shared.store.unappointed(MOST_DEAD).await?;
        let times: Vec<(String, i64, Millis)> = dead
            .iter()
            .filter_map(|(task, times, by_person)| {
                let policy = rules.policy_of(&task.spec, now);
                let wait_ms = wait_before_replay(task, *times, *by_person, &policy.replay_after_ms)?;
                let at = task.state.ended_at.unwrap_or(now).saturating_add(wait_ms);
                Some((task.id().to_owned(), task.stamp().generation, at))
            })
            .collect();
        let last = dead.last().filter(|_| dead.len() == MOST_DEAD).and_then(|(task, ..)| task.state.ended_at);
        if !times.is_empty() || last.is_some() || now.saturating_sub(self.told_at) >= TELL_MS {
            // Where more died than one look takes, the next one begins with the last of these.
            let looked_to = last.map_or(now.saturating_sub(OVERLAP_MS), |last| last.saturating_sub(1));
            shared.store.appoint(Some(looked_to), &times).await?;
            self.told_at = now;
        }
        // Driven by whoever comes first, as every other job.
        let pace = Pace { rate_per_s: Some(AUTOMATIC_PER_S), ..Pace::default() };
        shared.store.create_automatic_replay(pace, MOST_AUTOMATIC).await?;
        Ok(())
    }
}

/// How long after its death a letter replays itself; `None`: never, or not any more.
///
/// Only what may heal by itself does: its retries were spent, or a breaker sent it away. What is permanent, malformed or conflicting needs a
/// person; so does poison; and a deadline that has passed says that nobody waits for it any more. A person who has replayed it is looking
/// after it. The last wait of the policy holds for all that follow.
fn wait_before_replay(task: &Task, times: usize, by_person: bool, waits_ms: &[Millis]) -> Option<Millis> {
    use crate::task::DeadReason::{CircuitOpen, RetriesExhausted};
    let may_heal = matches!(task.state.dead_reason, Some(RetriesExhausted | CircuitOpen));
    if by_person || !may_heal {
        return None;
    }
    waits_ms.get(times).or(waits_ms.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{DeadReason, Spec, State, Status};

    fn dead(reason: DeadReason) -> Task {
        let spec = Spec {
            id: "a".into(),
            task_type: "a".into(),
            payload: "null".into(),
            labels: std::collections::BTreeMap::new(),
            idempotency_key: None,
            priority: 0,
            cache_key: None,
            reply_to: None,
            trace: None,
            payload_hash: String::new(),
            submission_hash: None,
            created_at: 0,
            raw: None,
            conflicts_with: None,
        };
        let state = State { status: Status::Dead, dead_reason: Some(reason), ..State::pending(0) };
        Task { spec: Arc::new(spec), state }
    }

    #[test]
    fn only_what_may_heal_by_itself_replays_itself_and_not_once_a_person_has_acted() {
        let waits = [3_600_000, 7_200_000];
        for reason in DeadReason::ALL {
            let heals = matches!(reason, DeadReason::RetriesExhausted | DeadReason::CircuitOpen);
            let wait = wait_before_replay(&dead(reason), 0, false, &waits);
            assert_eq!(wait, heals.then_some(3_600_000), "{reason}");
            assert_eq!(wait_before_replay(&dead(reason), 0, true, &waits), None);
        }
        let exhausted = dead(DeadReason::RetriesExhausted);
        assert_eq!(wait_before_replay(&exhausted, 1, false, &waits), Some(7_200_000));
        assert_eq!(wait_before_replay(&exhausted, 9, false, &waits), Some(7_200_000), "the last wait goes on");
        assert_eq!(wait_before_replay(&exhausted, 0, false, &[]), None);
    }
}
