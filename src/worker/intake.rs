//! From deliveries to claims.
//!
//! One loop per queue: deliveries wait here, unacked, for a free place; then as many as there are places go to the store in one
//! batch. Nothing is claimed before it can run, so a lease never ticks for a task that only waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::broker::{Delivery, Parsed, Source, Token, parse};
use crate::store::Urgency;
use crate::task::{
    Answer, Claimant, Command, DeadReason, Ending, Failure, Lane, LaneKey, Origin, ReadSubmission, Refusal, Stamp,
    Status, Task, class, read_submission, refusal,
};
use crate::telemetry::Event;

use super::attempt::{self, LONGEST_HOLD, Places, ack, after_buried};
use super::outbox::Letter;
use super::{Shared, fallback};

/// The most deliveries of one claim batch.
const BATCH: usize = 128;
/// How often waiting deliveries are checked for their age.
const AGE_CHECK: Duration = Duration::from_secs(15);
/// Unstarted deliveries are committed and acked before they are as old as [`LONGEST_HOLD`].
const OLD: Duration = Duration::from_secs(540);

/// A submission that came back so often is written down before it waits again: a quarter of the broker's delivery limit, beyond
/// which it would be dead without ever having had a place.
const TIRED: i64 = 5;

/// A delivery that waits for a place.
struct Waiting {
    delivery: Delivery,
    since: Instant,
}

/// What is known of a batch's entry besides its command.
struct Entry {
    delivery: Delivery,
    what: What,
}

enum What {
    Submission,
    WakeUp { id: String, stamp: Stamp },
}

/// Starts one intake loop per served queue and the one that hands deliveries to them.
pub(super) fn spawn(
    shared: &Arc<Shared>,
    tracker: &TaskTracker,
    mut deliveries: mpsc::Receiver<Delivery>,
    served: &[String],
) {
    let mut doors = std::collections::HashMap::new();
    for queue in served {
        // Unbounded is bounded here: the broker delivers at most `prefetch` unacked messages per consumer.
        let (door, waiting) = mpsc::unbounded_channel();
        doors.insert(queue.clone(), door);
        let queue_slots = shared.queue_slots.get(queue).cloned();
        tracker.spawn(take_in(Arc::clone(shared), tracker.clone(), waiting, queue_slots));
    }
    let shared = Arc::clone(shared);
    tracker.spawn(async move {
        loop {
            let delivery = tokio::select! {
                delivery = deliveries.recv() => delivery,
                () = shared.stop_all.cancelled() => return,
            };
            let Some(delivery) = delivery else { return };
            note_mark(&shared, &delivery);
            if let Some(door) = doors.get(&delivery.queue)
                && let Err(back) = door.send(delivery)
            {
                back.0.token.nack().await;
            }
        }
    });
}

/// Remembers the arrival for the lane's mark. At delivery, not at decision: a lane that delivers is alive, whatever its workers do.
fn note_mark(shared: &Shared, delivery: &Delivery) {
    let lane = match delivery.source {
        Source::Tasks => Lane::Tasks,
        Source::Retries => Lane::Retries,
        Source::Rejected => return,
    };
    if let Some(arrives_at) = delivery.arrives_at {
        let key = LaneKey { queue: delivery.queue.clone(), lane };
        let mut marks = shared.marks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mark = marks.entry(key).or_insert(arrives_at);
        *mark = (*mark).max(arrives_at);
    }
}

async fn take_in(
    shared: Arc<Shared>,
    tracker: TaskTracker,
    mut door: mpsc::UnboundedReceiver<Delivery>,
    queue_slots: Option<Arc<Semaphore>>,
) {
    let mut waiting: VecDeque<Waiting> = VecDeque::new();
    let mut age_check = tokio::time::interval(AGE_CHECK);
    loop {
        // What came in since the last batch, so that a batch is as large as there are places.
        while let Ok(delivery) = door.try_recv() {
            line_up(&shared, &tracker, &mut waiting, delivery);
        }
        tokio::select! {
            biased;
            () = shared.stop_intake.cancelled() => break,
            places = first_places(&shared, queue_slots.as_ref()), if !waiting.is_empty() => {
                let Some(places) = places else { break };
                let batch = gather(&shared, queue_slots.as_ref(), places, &mut waiting);
                if !batch.is_empty() {
                    tracker.spawn(start(Arc::clone(&shared), tracker.clone(), batch));
                }
            }
            delivery = door.recv() => match delivery {
                Some(delivery) => line_up(&shared, &tracker, &mut waiting, delivery),
                None => break,
            },
            _ = age_check.tick() => put_down_old(&shared, &tracker, &mut waiting),
        }
    }
    // Nothing of this was started: it goes back as it is.
    door.close();
    while let Ok(delivery) = door.try_recv() {
        waiting.push_back(Waiting { delivery, since: Instant::now() });
    }
    for Waiting { delivery, .. } in waiting {
        delivery.token.nack().await;
    }
}

/// To the end of the line, unless it has stood there too often: workers that are killed or restarted again and again give back what
/// they have not started, and each time counts towards the broker's delivery limit. Only a submission has no row to be safe in.
fn line_up(shared: &Arc<Shared>, tracker: &TaskTracker, waiting: &mut VecDeque<Waiting>, delivery: Delivery) {
    if delivery.returns >= TIRED && delivery.source == Source::Tasks && matches!(parse(&delivery), Parsed::Submission) {
        // One batch each: if reading it is what ends the process, it takes no other with it.
        tracker.spawn(start(Arc::clone(shared), tracker.clone(), vec![(delivery, None)]));
        return;
    }
    waiting.push_back(Waiting { delivery, since: Instant::now() });
}

pub(super) async fn first_places(shared: &Shared, queue_slots: Option<&Arc<Semaphore>>) -> Option<Places> {
    let queue_slot = match queue_slots {
        Some(slots) => Some(Arc::clone(slots).acquire_owned().await.ok()?),
        None => None,
    };
    let slot = Arc::clone(&shared.slots).acquire_owned().await.ok()?;
    Some(Places { _slot: slot, _queue_slot: queue_slot })
}

pub(super) fn more_places(shared: &Shared, queue_slots: Option<&Arc<Semaphore>>) -> Option<Places> {
    let queue_slot: Option<OwnedSemaphorePermit> = match queue_slots {
        Some(slots) => Some(Arc::clone(slots).try_acquire_owned().ok()?),
        None => None,
    };
    let slot = Arc::clone(&shared.slots).try_acquire_owned().ok()?;
    Some(Places { _slot: slot, _queue_slot: queue_slot })
}

fn gather(
    shared: &Shared,
    queue_slots: Option<&Arc<Semaphore>>,
    first: Places,
    waiting: &mut VecDeque<Waiting>,
) -> Vec<(Delivery, Option<Places>)> {
    let mut batch = Vec::new();
    let mut places = Some(first);
    while batch.len() < BATCH {
        let Some(next) = waiting.pop_front() else { break };
        if !next.delivery.token.usable() {
            // Its session is gone: the broker delivers it again.
            continue;
        }
        let place = match places.take() {
            Some(place) => place,
            None => match more_places(shared, queue_slots) {
                Some(place) => place,
                None => {
                    waiting.push_front(next);
                    break;
                }
            },
        };
        batch.push((next.delivery, Some(place)));
    }
    batch
}

/// Commits and acks what has waited too long for a place. The row's alarm brings it back.
fn put_down_old(shared: &Arc<Shared>, tracker: &TaskTracker, waiting: &mut VecDeque<Waiting>) {
    debug_assert!(OLD < LONGEST_HOLD);
    // What a lost session left here comes again on the next one.
    waiting.retain(|next| next.delivery.token.usable());
    let old = waiting.iter().take_while(|next| next.since.elapsed() >= OLD).count();
    if old > 0 {
        let batch = waiting.drain(..old).map(|next| (next.delivery, None)).collect();
        tracker.spawn(start(Arc::clone(shared), tracker.clone(), batch));
    }
}

/// Claims a batch and starts what the store lets run. An entry without places is only put down.
async fn start(shared: Arc<Shared>, tracker: TaskTracker, batch: Vec<(Delivery, Option<Places>)>) {
    let mut commands = Vec::with_capacity(batch.len());
    let mut entries = Vec::with_capacity(batch.len());
    let mut places = Vec::with_capacity(batch.len());
    for (delivery, place) in batch {
        let claimant = place.is_some().then(|| shared.claimant.clone());
        let (command, what) = command_for(&shared, &delivery, claimant);
        commands.push(command);
        entries.push(Entry { delivery, what });
        places.push(place);
    }
    let Some(persisted) = shared.persist(Urgency::Normal, commands).await else {
        for entry in entries {
            entry.delivery.token.nack().await;
        }
        return;
    };
    let uncertain = persisted.uncertain;
    for ((entry, place), answer) in entries.into_iter().zip(places).zip(persisted.answers) {
        let answer = if uncertain { own_claim(&shared, answer, &entry.what).await } else { answer };
        follow(&shared, &tracker, entry, place, answer).await;
    }
}

fn command_for(shared: &Shared, delivery: &Delivery, claimant: Option<Claimant>) -> (Command, What) {
    match parse(delivery) {
        Parsed::WakeUp { id, stamp } => {
            (Command::Claim { id: id.clone(), stamp, claimant }, What::WakeUp { id, stamp })
        }
        Parsed::BadWakeUp { reason } => {
            let failure = Failure::new("malformed", format!("a wake-up that cannot be read: {reason}"));
            let refusal = refusal_of(shared, delivery, DeadReason::Malformed, failure);
            (Command::Refuse(Box::new(refusal)), What::Submission)
        }
        Parsed::Submission => {
            let read = read_submission(
                &delivery.body,
                &origin(delivery),
                shared.plan.worker.max_body,
                shared.store.now(),
                |task_type: &str| shared.queue_of(task_type).to_owned(),
                || uuid::Uuid::now_v7().to_string(),
            );
            let command = match read {
                ReadSubmission::New(mut new) => {
                    let policy = shared.policy_of(&new.spec);
                    let by_policy = policy.deadline_ms.map(|length| new.spec.created_at.saturating_add(length));
                    new.deadline = match (new.deadline, by_policy) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    };
                    new.rejected = delivery.source == Source::Rejected;
                    new.redelivered |= new.rejected;
                    new.claimant = claimant;
                    Command::Submit(Box::new(new))
                }
                ReadSubmission::Refused(refusal) => Command::Refuse(Box::new(refusal)),
            };
            (command, What::Submission)
        }
    }
}

fn refusal_of(shared: &Shared, delivery: &Delivery, reason: DeadReason, failure: Failure) -> Refusal {
    let (now, cap) = (shared.store.now(), shared.plan.worker.max_body);
    let mut refused = refusal(&delivery.body, &origin(delivery), cap, now, |_| delivery.queue.clone());
    refused.reason = reason;
    refused.failure = failure;
    refused
}

fn origin(delivery: &Delivery) -> Origin {
    Origin {
        routing_key: delivery.routing_key.clone(),
        message_id: delivery.message_id.clone(),
        redelivered: delivery.redelivered,
    }
}

/// After a commit without an answer: a row that says it is running for us, and that we do not run, is our own lost claim.
async fn own_claim(shared: &Shared, answer: Answer, what: &What) -> Answer {
    let id = match (&answer, what) {
        (Answer::NotNow { status: Status::Running }, What::WakeUp { id, .. })
        | (Answer::Duplicate { id, status: Status::Running }, What::Submission) => id.clone(),
        _ => return answer,
    };
    match shared.store.get(&[id]).await.map(|mut found| found.pop().flatten()) {
        Ok(Some(task))
            if task.state.status == Status::Running
                && task.state.worker.as_deref() == Some(&shared.name)
                && !shared.leases.holds(task.id(), task.state.fence) =>
        {
            Answer::Run(Box::new(task))
        }
        _ => answer,
    }
}

async fn follow(shared: &Arc<Shared>, tracker: &TaskTracker, entry: Entry, place: Option<Places>, answer: Answer) {
    let Entry { delivery, what } = entry;
    if let Answer::Unprocessable { message } = answer {
        return set_aside(shared, what, delivery, message).await;
    }
    let token = delivery.token;
    match answer {
        Answer::Run(task) => {
            if matches!(what, What::Submission) && task.stamp() == Stamp::FIRST {
                shared.observers.emit(&Event::Accepted { task: &task });
            }
            match place {
                Some(place) => launch(shared, tracker, *task, Some(token), place),
                // Cannot be: without a place there was no claimant. The lease covers even this.
                None => ack(Some(token)).await,
            }
        }
        Answer::Waiting(task) => {
            shared.observers.emit(&Event::Accepted { task: &task });
            if shared.handler_of(&task.spec.task_type).is_none() {
                judge_no_route(shared, &task).await;
            } else {
                shared.nudge.notify_one();
            }
            ack(Some(token)).await;
        }
        Answer::Tripped { task, by } => {
            ack(Some(token)).await;
            fallback::tripped(shared, &task, &by).await;
        }
        Answer::Dead(_) => {
            ack(Some(token)).await;
            after_buried(shared, vec![answer]);
        }
        Answer::Refused(task) => {
            ack(Some(token)).await;
            let reason = task.state.dead_reason.unwrap_or(DeadReason::Malformed);
            shared.observers.emit(&Event::Died { task: &task, reason });
            if task.state.dlq_copy == crate::task::DlqCopy::Wanted {
                shared.outbox.send(Letter::Copy(task));
            }
        }
        Answer::Duplicate { id, status } => {
            shared.observers.emit(&Event::Duplicate { id: &id, status });
            ack(Some(token)).await;
        }
        Answer::Held { by } => {
            if let What::WakeUp { id, .. } = &what {
                shared.observers.emit(&Event::Held { id, by: &by });
            }
            shared.gate_moved.notify_one();
            ack(Some(token)).await;
        }
        other => {
            if let What::WakeUp { id, stamp } = &what {
                let why = match other {
                    Answer::Early => "not due yet".to_owned(),
                    Answer::Stale { stamp } => format!("row has stamp {stamp}"),
                    Answer::NotNow { status } => format!("row is {status}"),
                    Answer::Unknown => "no such task".to_owned(),
                    other => format!("{other:?}"),
                };
                shared.observers.emit(&Event::StaleDropped { id, stamp: *stamp, why: &why });
            }
            ack(Some(token)).await;
        }
    }
}

/// Starts a claimed task.
pub(super) fn launch(shared: &Arc<Shared>, tracker: &TaskTracker, task: Task, token: Option<Token>, place: Places) {
    match shared.handler_of(&task.spec.task_type) {
        Some(handler) => {
            let Some(lease_lost) = shared.leases.add(task.id(), task.state.fence) else {
                tracker.spawn(ack(token));
                return;
            };
            tracker.spawn(attempt::run(Arc::clone(shared), task, handler, token, place, lease_lost));
        }
        // The claimant names the routes' types, so this cannot be; the lease covers even this.
        None => tracing::error!(task = task.id(), kind = task.spec.task_type, "claimed a task without a route"),
    }
}

/// A waiting task whose type has no route: wait for one while `no_route_hold` lasts, then dead.
pub(super) async fn judge_no_route(shared: &Shared, task: &Task) {
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

pub(super) fn no_route_failure(task_type: &str) -> Failure {
    let message = format!("no [[route]] matches type {task_type:?}");
    let mut failure = Failure::new(class::NO_ROUTE, message);
    failure.fingerprint = crate::task::fingerprint(task_type, &failure);
    failure
}

/// The store can process every row of the batch but this one. A known row is poisoned, a submission is kept as its raw bytes.
async fn set_aside(shared: &Shared, what: What, delivery: Delivery, message: String) {
    let command = match what {
        What::WakeUp { id, .. } => {
            tracing::error!(task = id, message, "the store cannot process this row; it is set aside as poison");
            Command::Poison { id, message }
        }
        What::Submission => {
            tracing::error!(message, "the store cannot process this submission; its bytes are set aside as poison");
            let failure = Failure::new("poison", message);
            Command::Refuse(Box::new(refusal_of(shared, &delivery, DeadReason::Poison, failure)))
        }
    };
    match shared.try_apply(vec![command]).await {
        Some(answers) if !answers.iter().any(|answer| matches!(answer, Answer::Unprocessable { .. })) => {
            after_buried(shared, answers);
            ack(Some(delivery.token)).await;
        }
        // Still nothing is written down, so nothing may be acked: the broker keeps it.
        _ => {
            delivery.token.nack().await;
        }
    }
}
