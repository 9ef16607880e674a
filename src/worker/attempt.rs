//! One attempt from claim to ack.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::broker::Token;
use crate::handler::{AttemptContext, Handler, Report, run_caught};
use crate::store::{StoreError, Urgency};
use crate::task::{Answer, Change, Command, Decision, Outcome, Settlement, Task, decide_lost};
use crate::telemetry::{AttemptSpan, Event};

use super::Shared;
use super::doubt::{Earlier, own_settlement};
use super::fallback;
use super::outbox::Letter;
use super::patience::Patience;
use super::settle;

/// No delivery is held longer than this: RabbitMQ's `consumer_timeout` (30 min by default) would close the channel and requeue
/// everything on it. A running attempt is carried by its lease instead.
pub(super) const LONGEST_HOLD: Duration = Duration::from_secs(600);

/// How long a cancelled handler may take to end what it has started; then its future is dropped.
const WIND_UP: Duration = Duration::from_secs(5);

/// The places an attempt occupies; dropping frees them.
pub(super) struct Places {
    pub _slot: OwnedSemaphorePermit,
    pub _queue_slot: Option<OwnedSemaphorePermit>,
}

#[expect(clippy::large_enum_variant, reason = "one for each attempt, on its stack")]
enum Ended {
    Reported(Report),
    /// The lease was lost: nothing that the handler brings back counts.
    LeaseLost,
    /// The worker stops and the handler has ended: give the run back.
    Stopped,
    /// The worker stops and the handler has not ended: what it does may go on, so the lease keeps others away.
    Stuck,
}

/// Runs a claimed task to its settlement. `token` is the delivery that woke it, if one did.
pub(super) async fn run(
    shared: Arc<Shared>,
    task: Box<Task>,
    handler: Arc<dyn Handler>,
    mut token: Option<Token>,
    places: Places,
    lease_lost: CancellationToken,
) {
    let (id, fence) = (task.id().to_owned(), task.state.fence);
    let cancel = CancellationToken::new();
    if shared.stop_attempts.is_cancelled() {
        // Claimed while the worker was told to stop: nothing has started, and nothing starts now.
        Box::pin(give_back(&shared, &task, token)).await;
        shared.leases.remove(&id, fence);
        return;
    }
    shared.observers.emit(&Event::Started { task: &task });
    let span = AttemptSpan::start(&task);
    let context = AttemptContext {
        task: Arc::clone(&task.spec),
        retry_count: task.stamp().retry_count,
        generation: task.stamp().generation,
        fence,
        trace: span.context(),
        cancel: cancel.clone(),
    };
    let ended = {
        let mut running = std::pin::pin!(run_caught(handler.as_ref(), context, shared.plan.caps));
        let mut hold_over = std::pin::pin!(tokio::time::sleep(LONGEST_HOLD));
        loop {
            tokio::select! {
                biased;
                report = &mut running => break Ended::Reported(report),
                () = lease_lost.cancelled() => {
                    cancel.cancel();
                    // Whatever it brings back, the claim is not ours any more.
                    let _late: Option<Report> = wind_up(running.as_mut()).await;
                    break Ended::LeaseLost;
                }
                () = shared.stop_attempts.cancelled() => {
                    cancel.cancel();
                    break match wind_up(running.as_mut()).await {
                        // What was done all the same must not be done again.
                        Some(report) if matches!(report.outcome, Outcome::Success { .. }) => Ended::Reported(report),
                        Some(_) => Ended::Stopped,
                        None => Ended::Stuck,
                    };
                }
                () = &mut hold_over, if token.is_some() => {
                    if let Some(token) = token.take() {
                        token.ack().await;
                    }
                }
            }
        }
    };
    match ended {
        // Gives up lease and places when it is settled, which another task may do for it.
        Ended::Reported(report) => {
            span.end(&report.outcome);
            return settle::settle(&shared, task, report, token, places).await;
        }
        Ended::LeaseLost => {
            shared.observers.emit(&Event::SettleRefused { id: &id, fence });
            ack(token).await;
        }
        // In a box, as what most attempts never do: each is one allocation, and the smaller for it.
        Ended::Stopped => Box::pin(give_back(&shared, &task, token)).await,
        Ended::Stuck => tracing::warn!(task = id, "a handler did not end; its lease has to"),
    }
    shared.leases.remove(&id, fence);
    drop(places);
}

/// Waits for a cancelled handler to end; `None` when it did not.
async fn wind_up(running: std::pin::Pin<&mut impl Future<Output = Report>>) -> Option<Report> {
    tokio::time::timeout(WIND_UP, running).await.ok()
}

/// A run that was cancelled because the worker stops. The sixth time for one stamp counts as a crash: a task that outlives every
/// worker's shutdown must not go round for ever.
pub(super) async fn give_back(shared: &Shared, task: &Task, token: Option<Token>) {
    if task.state.releases >= shared.plan.scheduler.max_releases {
        let mut patience = Patience::new(shared);
        let settlement = loop {
            match lost_settlement(shared, task).await {
                Ok(settlement) => break settlement,
                Err(error) if patience.again(shared, &error).await => {}
                Err(_) => return shared.leases.remove(task.id(), task.state.fence),
            }
        };
        let task = Box::new(task.clone());
        let finished = settle::Finished { task, settlement: Box::new(settlement), token, places: None };
        return settle::commit(shared, vec![finished]).await;
    }
    let mut nack = token.as_ref().is_some_and(Token::usable);
    let release = Command::Release { id: task.id().to_owned(), fence: task.state.fence, nack };
    let Some(persisted) = shared.persist(Urgency::Normal, vec![release]).await else { return };
    shared.leases.remove(task.id(), task.state.fence);
    let change = match persisted.answers.into_iter().next() {
        Some(Answer::Settled(change)) => Some(change),
        // An earlier try may have been committed, and then this delivery is what the row waits for.
        _ if persisted.doubt.is_some() => match own_settlement(shared, task.id(), task.state.fence).await {
            Earlier::Change(change) => Some(change),
            Earlier::Untold | Earlier::None => None,
        },
        _ => {
            nack = false;
            None
        }
    };
    if let Some(change) = change {
        shared.observers.emit(&Event::Settled { task: &change.task, attempt: &change.attempt });
    }
    match token {
        Some(token) if nack => _ = token.nack().await,
        token => ack(token).await,
    }
}

/// What a lease that ended means for its task.
///
/// # Errors
/// When the store does not tell what a fallback needs to know.
pub(super) async fn lost_settlement(shared: &Shared, task: &Task) -> Result<Settlement, StoreError> {
    let (rules, now) = (shared.rules(), shared.store.now());
    let policy = rules.policy_of(&task.spec, now);
    let decision: Decision = decide_lost(task, &policy, &rules.rungs, now, shared.random());
    let fallback = fallback::for_decision(shared, &task.spec, &policy, &decision).await?;
    Ok(Settlement {
        policy: Some(policy.name.clone()),
        variant: policy.variant_for(task.id(), task.state.variant.as_deref()).map(|variant| variant.name.clone()),
        fallback,
        gates: Arc::clone(&rules.claimant.gates),
        ..Settlement::new(task.state.worker.clone().unwrap_or_default(), decision)
    })
}

/// Tells, publishes, and wakes the scheduler where the store holds the wait.
pub(super) fn after_settled(shared: &Shared, change: Change) {
    shared.observers.emit(&Event::Settled { task: &change.task, attempt: &change.attempt });
    tell_degraded(shared, &change.task);
    for (breaker, turn) in &change.turns {
        shared.observers.emit(&Event::BreakerTurned { breaker, turn: *turn });
    }
    if !shared.rules().claimant.gates.is_empty() {
        shared.gate_moved.notify_one();
    }
    if let Some(wake) = change.wake_up {
        shared.outbox.send(Letter::WakeUp(wake));
    } else if change.task.state.status.is_waiting() {
        shared.nudge.notify_one();
    }
    if change.task.state.dead_reason.is_some() {
        shared.outbox.send(Letter::Copy(Box::new(change.task)));
    }
}

/// Tells and publishes for rows that ended without an attempt.
pub(super) fn after_buried(shared: &Shared, answers: Vec<Answer>) {
    for answer in answers {
        match answer {
            Answer::Dead(task) | Answer::Refused(task) => {
                let reason = task.state.dead_reason.unwrap_or(crate::task::DeadReason::Poison);
                shared.observers.emit(&Event::Died { task: &task, reason });
                shared.outbox.send(Letter::Copy(task));
            }
            Answer::Degraded(task) => tell_degraded(shared, &task),
            _ => {}
        }
    }
}

fn tell_degraded(shared: &Shared, task: &Task) {
    if let Some(by) = &task.state.degraded {
        shared.observers.emit(&Event::Degraded { task, by });
    }
}

pub(super) async fn ack(token: Option<Token>) {
    if let Some(token) = token
        && !token.ack().await
    {
        tracing::debug!("ack after the session was lost; the message comes again and will be stale");
    }
}
