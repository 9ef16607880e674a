//! What follows from the store's answer to a claim: the attempt starts, or the delivery is acked and whoever waits is told.
//!
//! Nothing is decided here: the answer says what was committed, and each answer has one consequence.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use crate::broker::{Delivery, Token};
use crate::task::{Answer, Command, DeadReason, Ending, Failure, Stamp, Task, class};
use crate::telemetry::Event;

use super::attempt::{self, Places, ack, after_buried};
use super::intake::{Entry, What, refusal_of};
use super::outbox::Letter;
use super::{Shared, fallback};

/// Does what the answer to an entry of a claim batch asks for.
pub(super) async fn follow(
    shared: &Arc<Shared>,
    tracker: &TaskTracker,
    entry: Entry,
    place: Option<Places>,
    answer: Answer,
) {
    let Entry { delivery, what } = entry;
    if let Answer::Unprocessable { message } = answer {
        return set_aside(shared, what, delivery, message).await;
    }
    let by_message = delivery.is_some();
    let token = delivery.map(|delivery| delivery.token);
    match answer {
        Answer::Run(task) => {
            if matches!(what, What::Submission { .. }) && task.stamp() == Stamp::FIRST {
                shared.observers.emit(&Event::Accepted { task: &task });
            }
            match place {
                Some(place) => launch(shared, tracker, task, token, place),
                // Cannot be: without a place there was no claimant. The lease covers even this.
                None => ack(token).await,
            }
        }
        Answer::Waiting(task) => {
            if matches!(what, What::Submission { .. }) {
                shared.observers.emit(&Event::Accepted { task: &task });
            }
            if shared.rules().handler_of(&task.spec.task_type).is_none() {
                judge_no_route(shared, &task).await;
            } else {
                shared.nudge.notify_one();
            }
            ack(token).await;
        }
        Answer::Tripped { task, by } => {
            ack(token).await;
            fallback::tripped(shared, &task, &by).await;
        }
        Answer::Spent { task, failure } => {
            ack(token).await;
            fallback::end(shared, &task, DeadReason::RetriesExhausted, *failure).await;
        }
        Answer::Dead(_) => {
            ack(token).await;
            after_buried(shared, vec![answer]);
        }
        Answer::Refused(task) => {
            ack(token).await;
            let reason = task.state.dead_reason.unwrap_or(DeadReason::Malformed);
            shared.observers.emit(&Event::Died { task: &task, reason });
            if task.state.dlq_copy == crate::task::DlqCopy::Wanted {
                shared.outbox.send(Letter::Copy(task));
            }
        }
        Answer::Duplicate { id, status } => {
            shared.observers.emit(&Event::Duplicate { id: &id, status });
            ack(token).await;
        }
        Answer::Held { by } => {
            match &what {
                What::Submission { id: Some(id) } => tell_held_submission(shared, id, &by).await,
                What::WakeUp { id, .. } if by_message => shared.observers.emit(&Event::Held { id, by: &by }),
                // Held as before, by an offer that came too early.
                _ => {}
            }
            shared.gate_moved.notify_one();
            ack(token).await;
        }
        other => {
            if let What::WakeUp { id, stamp } = &what
                && by_message
            {
                let why = match other {
                    Answer::Early => "not due yet".to_owned(),
                    Answer::Stale { stamp } => format!("row has stamp {stamp}"),
                    Answer::NotNow { status } => format!("row is {status}"),
                    Answer::Unknown => "no such task".to_owned(),
                    other => format!("{other:?}"),
                };
                shared.observers.emit(&Event::StaleDropped { id, stamp: *stamp, why: &why });
            }
            ack(token).await;
        }
    }
}

/// A submission that a gate holds is a task all the same.
async fn tell_held_submission(shared: &Shared, id: &str, by: &str) {
    match shared.store.get(&[id.to_owned()]).await {
        Ok(found) => {
            if let Some(task) = found.into_iter().next().flatten() {
                shared.observers.emit(&Event::Accepted { task: &task });
            }
        }
        Err(error) => tracing::debug!(task = id, %error, "accepted, but nobody can be told what"),
    }
    shared.observers.emit(&Event::Held { id, by });
}

/// Starts a claimed task.
fn launch(shared: &Arc<Shared>, tracker: &TaskTracker, task: Box<Task>, token: Option<Token>, place: Places) {
    match shared.rules().handler_of(&task.spec.task_type) {
        Some(handler) => {
            let Some(lease_lost) = shared.leases.add(task.id(), task.state.fence) else {
                tracker.spawn(ack(token));
                return;
            };
            // In a box, for the runtime moves what it runs about.
            tracker.spawn(Box::pin(attempt::run(Arc::clone(shared), task, handler, token, place, lease_lost)));
        }
        // Claimed by rules that had a route for it, and replaced since: back it goes, to whoever has one.
        None => {
            let shared = Arc::clone(shared);
            tracker.spawn(async move {
                attempt::give_back(&shared, &task, token).await;
                drop(place);
            });
        }
    }
}

/// A waiting task whose type has no route: wait for one while `no_route_hold` lasts, then dead.
async fn judge_no_route(shared: &Shared, task: &Task) {
    let hold_ms = i64::try_from(shared.plan.worker.no_route_hold.as_millis()).unwrap_or(i64::MAX);
    let until = task.spec.created_at.saturating_add(hold_ms);
    let (id, stamp) = (task.id().to_owned(), task.stamp());
    let now = shared.store.now();
    let command = if now < until {
        // Another worker may have the route already: look again soon, there or here.
        let look_again = until.min(now + shared.plan.settings.patience_ms);
        Command::Postpone { id, stamp, until: look_again }
    } else {
        Command::Intercept {
            id,
            stamp,
            ending: Ending::Dead {
                reason: DeadReason::PermanentError,
                failure: no_route_failure(&task.spec.task_type),
            },
        }
    };
    if let Some(answers) = shared.try_apply(vec![command]).await {
        after_buried(shared, answers);
    }
}

fn no_route_failure(task_type: &str) -> Failure {
    let message = format!("no [[route]] matches type {task_type:?}");
    let mut failure = Failure::new(class::NO_ROUTE, message);
    failure.fingerprint = crate::task::fingerprint(task_type, &failure);
    failure
}

/// The store can process every row of the batch but this one. A known row is poisoned, a submission is kept as its raw bytes.
async fn set_aside(shared: &Shared, what: What, delivery: Option<Delivery>, message: String) {
    let command = match (what, &delivery) {
        (What::WakeUp { id, .. }, _) => {
            tracing::error!(task = id, message, "the store cannot process this row; it is set aside as poison");
            Command::Poison { id, message }
        }
        (What::Submission { .. }, Some(delivery)) => {
            tracing::error!(message, "the store cannot process this submission; its bytes are set aside as poison");
            let failure = Failure::new("poison", message);
            Command::Refuse(Box::new(refusal_of(shared, delivery, DeadReason::Poison, failure)))
        }
        // Cannot be: a submission is a message.
        (What::Submission { .. }, None) => return,
    };
    match shared.try_apply(vec![command]).await {
        Some(answers) if !answers.iter().any(|answer| matches!(answer, Answer::Unprocessable { .. })) => {
            after_buried(shared, answers);
            ack(delivery.map(|delivery| delivery.token)).await;
        }
        // Still nothing is written down, so nothing may be acked: the broker keeps it.
        _ => {
            if let Some(delivery) = delivery {
                delivery.token.nack().await;
            }
        }
    }
}
