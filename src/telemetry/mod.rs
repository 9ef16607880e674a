//! What happened, told after it was committed.
//!
//! [`Event`] is the spine: logs, metrics, alerts and the demo's live lines consume it. An event never carries a payload, and
//! nothing in the product waits for an observer.

pub mod alert;
mod metrics;
#[cfg(feature = "otel")]
mod otel;
mod scrape;
mod span;
mod vitals;

use std::sync::Arc;

use crate::dead_letter::replay::ReplayNews;
pub use metrics::{MOST_TYPES, Metrics, OTHER};
#[cfg(feature = "otel")]
pub use otel::Exporting;
pub use scrape::{FRESH, LATEST, ScrapeServer, Watched, unready};
pub use span::AttemptSpan;
pub use vitals::{Organ, STUCK, Vitals};

use crate::gate::Turn;
use crate::task::{Attempt, DeadReason, Millis, Notice, Stamp, Status, Task, WakeUp};

/// One fact. Every variant is emitted after its commit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A submission became a task.
    Accepted {
        /// The task.
        task: &'a Task,
    },
    /// An attempt starts.
    Started {
        /// The task, running.
        task: &'a Task,
    },
    /// An attempt was recorded: succeeded, to be retried, dead, or released.
    Settled {
        /// The task as it stands now.
        task: &'a Task,
        /// The attempt.
        attempt: &'a Attempt,
    },
    /// A worker outlived its lease, and what it brought back was refused.
    SettleRefused {
        /// The task.
        id: &'a str,
        /// Its claim.
        fence: i64,
    },
    /// A task died without an attempt (deadline, no route, refused message).
    Died {
        /// The task.
        task: &'a Task,
        /// Why.
        reason: DeadReason,
    },
    /// A task was ended by something that is not the real thing (F1): a fallback, or a response with fields filled in.
    Degraded {
        /// The task, succeeded.
        task: &'a Task,
        /// By what: `cache`, `default`, `defaults`.
        by: &'a str,
    },
    /// The same task was submitted again.
    Duplicate {
        /// The task.
        id: &'a str,
        /// Where it stands.
        status: Status,
    },
    /// A wake-up started nothing because its stamp is not the row's, or the row is not waiting.
    StaleDropped {
        /// The task it named.
        id: &'a str,
        /// What it carried.
        stamp: Stamp,
        /// What the row was, or that there is none.
        why: &'a str,
    },
    /// A due task waits for a gate.
    Held {
        /// The task.
        id: &'a str,
        /// The gate.
        by: &'a str,
    },
    /// Waiting tasks of a queue that is not configured any more and that nobody consumes were routed anew.
    Rerouted {
        /// The queue they had.
        queue: &'a str,
        /// How many.
        tasks: usize,
    },
    /// A breaker opened, opened again or closed.
    BreakerTurned {
        /// Its key.
        breaker: &'a str,
        /// Which way.
        turn: Turn,
    },
    /// A wake-up was handed to the broker.
    WakeUpSent {
        /// Which.
        wake_up: &'a WakeUp,
        /// Whether the broker has confirmed it; if not, the alarm takes care.
        confirmed: bool,
    },
    /// Another service was told of a task, or could not be.
    NoticeSent {
        /// What.
        notice: &'a Notice,
        /// What became of it.
        fate: NoticeFate,
    },
    /// A wake-up is late; the next look is set.
    WakeUpLate {
        /// The task.
        id: &'a str,
    },
    /// Lanes or rungs were found missing in the broker.
    SpotsMissing {
        /// How many.
        count: usize,
    },
    /// A pass over a DLQ is done.
    DlqPassed {
        /// The queue.
        queue: &'a str,
        /// What it found and did.
        report: &'a crate::dead_letter::PassReport,
    },
    /// A replay job has moved on.
    Replay {
        /// Its number.
        job: i64,
        /// How.
        what: crate::dead_letter::replay::ReplayNews<'a>,
    },
    /// Other rules are in force.
    RulesChanged {
        /// What they say, as a digest.
        digest: &'a str,
        /// Where they come from: the file, or a version in the store.
        source: &'a str,
    },
    /// A configuration that was changed cannot be meant; the rules that were in force stay. Told once for each change.
    ConfigRefused {
        /// Every problem, a line each: file, line, field, what was expected.
        problems: &'a str,
    },
    /// The store did not answer; deliveries stay unacked until it does.
    StoreDown {
        /// What it said.
        reason: &'a str,
    },
    /// The store answers again.
    StoreUp {
        /// For how long it did not.
        down_ms: Millis,
    },
}

/// What became of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeFate {
    /// The broker has it.
    Taken,
    /// No queue took it: nobody listens to such events, or who asked for the reply has gone away. It is not told again.
    NoQueue,
    /// The broker did not take it; it is told again later.
    Again,
    /// It cannot be told.
    Refused,
}

impl NoticeFate {
    /// The word used in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            NoticeFate::Taken => "taken",
            NoticeFate::NoQueue => "no_queue",
            NoticeFate::Again => "again",
            NoticeFate::Refused => "refused",
        }
    }
}

/// Told of every event, in the emitting task: an observer must be quick and must not block.
pub trait Observer: Send + Sync + 'static {
    /// Takes note.
    fn observe(&self, event: &Event<'_>);
}

/// The observers of a worker.
#[derive(Clone, Default)]
pub struct Observers(Arc<Vec<Arc<dyn Observer>>>);

impl Observers {
    /// These observers, told in this order.
    pub fn new(observers: Vec<Arc<dyn Observer>>) -> Observers {
        Observers(Arc::new(observers))
    }

    /// These and one more, told last.
    #[must_use]
    pub fn and(self, observer: Arc<dyn Observer>) -> Observers {
        let mut all = Arc::unwrap_or_clone(self.0);
        all.push(observer);
        Observers(Arc::new(all))
    }

    /// Tells all of them.
    pub fn emit(&self, event: &Event<'_>) {
        for observer in self.0.iter() {
            observer.observe(event);
        }
    }
}

/// Writes events as log lines: one line a fact, never payloads.
#[derive(Debug, Default, Clone, Copy)]
pub struct LogObserver;

impl Observer for LogObserver {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Accepted { task } => tracing::debug!(task = task.id(), kind = task.spec.task_type, "task accepted"),
            Event::Started { task } => {
                tracing::debug!(task = task.id(), stamp = %task.stamp(), fence = task.state.fence, "attempt started");
            }
            Event::Settled { task, attempt } => log_settled(task, attempt),
            Event::SettleRefused { id, fence } => {
                tracing::warn!(task = id, fence, "attempt outlived its lease; its outcome was refused");
            }
            Event::Died { task, reason } => {
                let (id, kind, reason) = (task.id(), &task.spec.task_type, reason.as_str());
                // What we say of a message that cannot be run; another failure may quote what the third party has answered.
                let error = task.spec.raw.as_ref().and(task.state.failure.as_ref()).map(|failure| &failure.message);
                tracing::warn!(task = id, kind, reason, error, "task died");
            }
            Event::Degraded { task, by } => {
                tracing::info!(task = task.id(), kind = task.spec.task_type, by, "task ended degraded");
            }
            Event::Duplicate { id, status } => {
                tracing::info!(task = id, status = status.as_str(), "duplicate submission ignored");
            }
            Event::StaleDropped { id, stamp, why } => {
                tracing::debug!(task = id, stamp = %stamp, why, "stale wake-up dropped");
            }
            Event::Held { id, by } => tracing::debug!(task = id, gate = by, "task held"),
            Event::Rerouted { queue, tasks } => {
                tracing::warn!(
                    queue,
                    tasks,
                    "tasks waited in a queue that is not configured any more; they were routed anew"
                );
            }
            Event::BreakerTurned { breaker, turn: Turn::Closed } => tracing::info!(breaker, "breaker closed"),
            Event::BreakerTurned { breaker, turn } => tracing::warn!(breaker, ?turn, "breaker open"),
            Event::WakeUpSent { wake_up, confirmed } => {
                let (id, stamp) = (&wake_up.id, wake_up.stamp);
                if *confirmed {
                    tracing::debug!(task = id, stamp = %stamp, rung_ms = wake_up.route.rung_ms, "wake-up sent");
                } else {
                    tracing::warn!(task = id, stamp = %stamp, rung_ms = wake_up.route.rung_ms, "wake-up not confirmed; its alarm stands");
                }
            }
            Event::NoticeSent { notice, fate } => log_notice(notice, *fate),
            Event::WakeUpLate { id } => tracing::info!(task = id, "wake-up is late"),
            Event::SpotsMissing { count } => {
                tracing::info!(
                    count,
                    "broker queues were not there: new, or deleted; wake-ups that were in them are published again when due"
                );
            }
            Event::DlqPassed { queue, report } => tracing::info!(queue, %report, "DLQ compared with the store"),
            Event::Replay { job, what } => log_replay(*job, *what),
            Event::RulesChanged { digest, source } => tracing::info!(digest, source, "new rules in force"),
            Event::ConfigRefused { problems } => {
                for problem in problems.lines() {
                    tracing::error!(problem, "configuration refused; the old one stays");
                }
            }
            Event::StoreDown { reason } => {
                tracing::error!(reason, "store unavailable; nothing is acked until it answers")
            }
            Event::StoreUp { down_ms } => tracing::info!(down_ms, "store available again"),
        }
    }
}

fn log_notice(notice: &Notice, fate: NoticeFate) {
    let (task, event, reply_to) = (&notice.task_id, notice.happening.topic(), notice.reply_to.as_deref());
    match (fate, reply_to) {
        (NoticeFate::NoQueue, Some(queue)) => {
            tracing::warn!(task, event, queue, "there is no such queue to reply to; the reply is dropped");
        }
        (NoticeFate::Again, _) => {
            tracing::warn!(task, event, reply_to, "the broker did not take a notice; it is told again later");
        }
        (_, _) => tracing::debug!(task, event, reply_to, fate = fate.as_str(), "others told"),
    }
}

fn log_replay(job: i64, what: ReplayNews<'_>) {
    match what {
        ReplayNews::Taken => tracing::info!(job, "replay job taken"),
        ReplayNews::Released { replayed, skipped } => tracing::debug!(job, replayed, skipped, "letters released"),
        ReplayNews::Stage(stage) => tracing::info!(job, stage, "replay job goes on to its next stage"),
        ReplayNews::Stopped(why) => tracing::warn!(job, why, "replay job stopped itself"),
        ReplayNews::Finished => tracing::info!(job, "replay job done"),
    }
}

fn log_settled(task: &Task, attempt: &Attempt) {
    let (id, number) = (task.id(), attempt.number);
    let duration_ms = attempt.ended_at - attempt.started_at;
    match (&attempt.failure, task.state.dead_reason) {
        (None, _) => {
            tracing::debug!(task = id, number, duration_ms, outcome = attempt.outcome.as_str(), "attempt settled")
        }
        (Some(failure), Some(reason)) => {
            let class = &failure.class;
            tracing::warn!(task = id, number, duration_ms, class, reason = reason.as_str(), "task died");
        }
        (Some(failure), None) if task.state.degraded.is_some() => {
            let class = &failure.class;
            tracing::info!(task = id, number, duration_ms, class, "last attempt failed");
        }
        (Some(failure), None) => {
            let class = &failure.class;
            tracing::info!(
                task = id,
                number,
                duration_ms,
                class,
                delay_ms = task.state.delay_ms,
                "attempt failed; will retry"
            );
        }
    }
}
