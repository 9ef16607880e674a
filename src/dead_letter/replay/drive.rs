//! Carries a replay job out for whoever holds its lease.
//!
//! Each round asks [`next`] and does what it says. Letters are released by the store in one transaction with the note of what each came
//! to, so a driver that dies in between has released them all or none, and the next one goes on from there. Wake-ups are published after
//! the commit; those that get lost are covered by their rows' alarms.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Next, next};
use crate::store::{ReplayJob, ReplayLease, ReplayState, ReplayStep, Store, StoreError};
use crate::task::{Answer, Millis, WakeUp};
use crate::telemetry::{Event, Observers};

/// How long a lease holds without a sign of life: after that another driver goes on.
pub const HOLD_MS: Millis = 15_000;
/// The least time between two releases, so that a fast rate is a few letters ten times a second and not a transaction for each.
const TICK: Duration = Duration::from_millis(100);
/// How often what runs is looked at, at most.
const LOOK: Duration = Duration::from_secs(1);
/// How much longer than a look takes to wait for the next one, so that looking at a large job never takes more than a small share.
const LOOK_SHARE: u32 = 20;
/// Running letters that one look writes down.
const JUDGED: usize = 2_000;

/// Who sends wake-ups out.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Whether it makes sense to release letters now. Their alarms would wake them anyway, but later and not at the job's rate.
    fn is_ready(&self) -> bool;

    /// Publishes, or leaves it to the alarms.
    async fn publish(&self, wake_ups: Vec<WakeUp>);
}

/// When a driver is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When the job has ended.
    Ended,
    /// When its last letter is released; what becomes of the letters is for others to watch.
    Released,
}

/// Why a driver came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Driven {
    /// Done as asked.
    Done,
    /// The job does not run any more (a person has paused or cancelled it), or another drives it.
    NotOurs,
    /// The driver was told to stop; another may go on at once.
    GivenUp,
}

/// What happened to a job, for telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayNews<'a> {
    /// Somebody drives it.
    Taken,
    /// Letters were put to run, and some were skipped.
    Released {
        /// To run.
        replayed: i64,
        /// Not, for their reasons.
        skipped: i64,
    },
    /// A stage of its ramp begins.
    Stage(usize),
    /// It has stopped itself, and why.
    Stopped(&'a str),
    /// It is done.
    Finished,
}

/// Drives `job`, whose lease the caller holds, as far as `until` says.
///
/// # Errors
/// When the store does not answer. The lease stands for a while: call again with the same job.
pub async fn drive(
    store: &dyn Store,
    publisher: &dyn Publisher,
    observers: &Observers,
    job: &ReplayJob,
    until: Until,
    stop: &CancellationToken,
) -> Result<Driven, StoreError> {
    let lease = ReplayLease { job: job.id, fence: job.fence, hold_ms: HOLD_MS };
    let news = |what: ReplayNews<'_>| observers.emit(&Event::Replay { job: lease.job, what });
    let mut known = look(store, &lease).await?;
    let mut looked = Instant::now();
    let mut look_every = LOOK;
    let mut judged_to = 0;
    loop {
        let Some(job) = &mut known else { return Ok(Driven::NotOurs) };
        if until == Until::Released && job.counts.waiting == 0 {
            let _: bool = store.step_replay(&lease, ReplayStep::LeaveToOthers).await?;
            return Ok(Driven::Done);
        }
        if stop.is_cancelled() {
            let _: bool = store.step_replay(&lease, ReplayStep::LeaveToOthers).await?;
            return Ok(Driven::GivenUp);
        }
        let now = store.now();
        let pause = match next(&job.pace, job.stage, job.paced_to_us, &job.counts, now) {
            Next::Release { .. } if !publisher.is_ready() => LOOK,
            Next::Release { most, paced_to_us } => {
                let Some(released) = store.release_items(&lease, most, paced_to_us).await? else {
                    return Ok(Driven::NotOurs);
                };
                job.paced_to_us = paced_to_us;
                job.counts.waiting -= released.counts.matched();
                job.counts.replayed += released.counts.replayed;
                for (why, number) in &released.counts.skipped {
                    *job.counts.skipped.entry(why.clone()).or_insert(0) += number;
                }
                let (replayed, skipped) = (released.counts.replayed, released.counts.skipped());
                let wake_ups = released.answers.into_iter().filter_map(|answer| match answer {
                    Answer::Publish(wake_up) => Some(wake_up),
                    _ => None,
                });
                publisher.publish(wake_ups.collect()).await;
                news(ReplayNews::Released { replayed, skipped });
                if job.pace.rate_per_s.is_some() { TICK } else { Duration::ZERO }
            }
            Next::Wait { until } => {
                Duration::from_millis(u64::try_from(until.saturating_sub(now)).unwrap_or(0)).min(LOOK)
            }
            Next::Stage(stage) => {
                if !store.step_replay(&lease, ReplayStep::Stage(stage)).await? {
                    return Ok(Driven::NotOurs);
                }
                job.stage = stage;
                news(ReplayNews::Stage(stage));
                Duration::ZERO
            }
            Next::Stop(why) => {
                if !store.step_replay(&lease, ReplayStep::Stop(why.clone())).await? {
                    return Ok(Driven::NotOurs);
                }
                news(ReplayNews::Stopped(&why));
                return Ok(Driven::Done);
            }
            Next::Finish => {
                if !store.step_replay(&lease, ReplayStep::Finish).await? {
                    return Ok(Driven::NotOurs);
                }
                news(ReplayNews::Finished);
                return Ok(Driven::Done);
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
        if looked.elapsed() >= look_every {
            let began = Instant::now();
            let (_, more) = store.judge_items(&lease, judged_to, JUDGED).await?;
            judged_to = more.unwrap_or(0);
            known = look(store, &lease).await?;
            looked = Instant::now();
            look_every = LOOK.max(began.elapsed() * LOOK_SHARE);
        }
    }
}

/// The job as it stands, with a sign of life; `None` when it does not run any more or another drives it.
async fn look(store: &dyn Store, lease: &ReplayLease) -> Result<Option<ReplayJob>, StoreError> {
    if !store.step_replay(lease, ReplayStep::Alive).await? {
        return Ok(None);
    }
    let job = store.replay(lease.job).await?;
    Ok(job.filter(|job| job.fence == lease.fence && job.state == ReplayState::Running))
}
