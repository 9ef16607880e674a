//! From deliveries to claims.
//!
//! One loop per queue: deliveries wait here, unacked, for a free place, and so do held rows that the scheduler offers; then as many
//! as there are places go to the store in one batch. Nothing is claimed before it can run, so a lease never ticks for a task that
//! only waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::broker::{Delivery, Parsed, Source, Token, parse};
use crate::gate::LaneTurn;
use crate::store::Urgency;
use crate::task::{
    Answer, Claimant, Command, DeadReason, Ending, Failure, Lane, LaneKey, NewTask, Origin, ReadSubmission, Refusal,
    Stamp, Status, Task, class, own_queue, read_submission, refusal,
};
use crate::telemetry::Event;
use crate::telemetry::alert::ALERT_TYPE;

use super::attempt::{self, LONGEST_HOLD, Places, ack, after_buried};
use super::doubt::own_claims;
use super::lanes::{Buffer, Lanes, Next, Offer, Waiting};
use super::outbox::Letter;
use super::{Persisted, Shared, after_you, fallback};

/// The most deliveries of one claim batch.
const BATCH: usize = 128;
/// How often waiting deliveries are checked for their age.
const AGE_CHECK: Duration = Duration::from_secs(15);
/// Unstarted deliveries are committed and acked before they are as old as [`LONGEST_HOLD`].
const OLD: Duration = Duration::from_secs(540);

/// A submission that came back so often is written down before it waits again: a quarter of the broker's delivery limit, beyond
/// which it would be dead without ever having had a place.
const TIRED: i64 = 5;

/// So long after a worker's first delivery its first start is decided: the broker hands over one lane after the other, and before
/// both are here all places would go to whichever came first.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// One entry of a claim batch. Without a place it is only put down.
struct Candidate {
    who: Next,
    place: Option<(Places, LaneTurn)>,
}

impl Candidate {
    fn put_down(waiting: Waiting) -> Candidate {
        Candidate { who: Next::Message(waiting), place: None }
    }
}

/// What is known of a batch's entry besides its command.
struct Entry {
    /// What woke it; a held row has none.
    delivery: Option<Delivery>,
    what: What,
}

enum What {
    /// With the id of what it asks for, if it could be read.
    Submission {
        id: Option<String>,
    },
    WakeUp {
        id: String,
        stamp: Stamp,
    },
}

/// Starts one intake loop per served queue and the one that hands deliveries to them.
pub(super) fn spawn(
    shared: &Arc<Shared>,
    tracker: &TaskTracker,
    mut deliveries: mpsc::Receiver<Delivery>,
    served: &[String],
) {
    let mut doors = std::collections::BTreeMap::new();
    for queue in served {
        let Some(lanes) = shared.lanes.get(queue).cloned() else { continue };
        // Unbounded is bounded here: the broker delivers at most `prefetch` unacked messages per consumer.
        let (door, waiting) = mpsc::unbounded_channel();
        doors.insert(queue.clone(), door);
        let queue_slots = shared.queue_slots.get(queue).cloned();
        let (shared, buffer) = (Arc::clone(shared), Buffer::default());
        let intake = Intake { shared, tracker: tracker.clone(), lanes, queue_slots, buffer };
        tracker.spawn(intake.run(waiting));
    }
    let shared = Arc::clone(shared);
    tracker.spawn(async move {
        loop {
            let delivery = tokio::select! {
                biased;
                () = shared.stop_all.cancelled() => return,
                delivery = deliveries.recv() => delivery,
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

/// The intake of one queue.
struct Intake {
    shared: Arc<Shared>,
    tracker: TaskTracker,
    lanes: Arc<Lanes>,
    queue_slots: Option<Arc<Semaphore>>,
    buffer: Buffer,
}

impl Intake {
    async fn run(mut self, mut door: mpsc::UnboundedReceiver<Delivery>) {
        let shared = Arc::clone(&self.shared);
        let (lanes, queue_slots) = (Arc::clone(&self.lanes), self.queue_slots.clone());
        let mut age_check = tokio::time::interval(AGE_CHECK);
        let mut opens_at: Option<Instant> = None;
        loop {
            // What came in since the last batch, so that a batch is as large as there are places.
            while let Ok(delivery) = door.try_recv() {
                self.line_up(delivery);
            }
            for offer in lanes.take_offers() {
                self.buffer.push_held(offer);
            }
            let waits = !self.buffer.is_empty();
            if waits && opens_at.is_none() {
                opens_at = Some(Instant::now() + FIRST_LOOK);
            }
            let open = opens_at.is_some_and(|at| at <= Instant::now());
            tokio::select! {
                biased;
                () = shared.stop_intake.cancelled() => break,
                places = first_places(&shared, queue_slots.as_ref()), if waits && open => {
                    let Some(places) = places else { break };
                    // Attempts that end together free their places one by one: let them, so that one batch takes all of these.
                    after_you().await;
                    self.start_some(places);
                }
                () = tokio::time::sleep_until(opens_at.unwrap_or_else(Instant::now)), if waits && !open => {}
                delivery = door.recv() => match delivery {
                    Some(delivery) => self.line_up(delivery),
                    None => break,
                },
                () = lanes.offered.notified() => {}
                _ = age_check.tick() => self.put_down_old(),
            }
        }
        // Nothing of this was started: it goes back as it is.
        door.close();
        while let Ok(delivery) = door.try_recv() {
            delivery.token.nack().await;
        }
        for waiting in self.buffer.drain_old(|_| true) {
            waiting.delivery.token.nack().await;
        }
    }

    /// Into the line, unless it has stood there too often: workers that are killed or restarted again and again give back what they
    /// have not started, and each time counts towards the broker's delivery limit. Only a submission has no row to be safe in.
    fn line_up(&mut self, delivery: Delivery) {
        let parsed = parse(&delivery);
        if delivery.returns >= TIRED && delivery.source == Source::Tasks && parsed == Parsed::Submission {
            // One batch each: if reading it is what ends the process, it takes no other with it.
            self.start(vec![Candidate::put_down(Waiting { delivery, parsed, since: Instant::now() })]);
            return;
        }
        self.buffer.push(delivery, parsed);
    }

    /// As many as there are places, one turn each.
    fn start_some(&mut self, first: Places) {
        let mut batch = Vec::new();
        let mut places = Some(first);
        while batch.len() < BATCH && !self.buffer.is_empty() {
            let Some(place) = places.take().or_else(|| more_places(&self.shared, self.queue_slots.as_ref())) else {
                break;
            };
            let Some((who, turn)) = self.buffer.next(&self.lanes) else { break };
            batch.push(Candidate { who, place: Some((place, turn)) });
        }
        self.start(batch);
    }

    /// Commits and acks what has waited too long for a place. The row's alarm brings it back.
    fn put_down_old(&mut self) {
        debug_assert!(OLD < LONGEST_HOLD);
        let old = self.buffer.drain_old(|waiting| waiting.since.elapsed() >= OLD);
        self.start(old.into_iter().map(Candidate::put_down).collect());
    }

    fn start(&self, batch: Vec<Candidate>) {
        if !batch.is_empty() {
            self.tracker.spawn(start(Arc::clone(&self.shared), self.tracker.clone(), Arc::clone(&self.lanes), batch));
        }
    }
}

async fn first_places(shared: &Shared, queue_slots: Option<&Arc<Semaphore>>) -> Option<Places> {
    let queue_slot = match queue_slots {
        Some(slots) => Some(Arc::clone(slots).acquire_owned().await.ok()?),
        None => None,
    };
    let slot = Arc::clone(&shared.slots).acquire_owned().await.ok()?;
    Some(Places { _slot: slot, _queue_slot: queue_slot })
}

fn more_places(shared: &Shared, queue_slots: Option<&Arc<Semaphore>>) -> Option<Places> {
    let queue_slot: Option<OwnedSemaphorePermit> = match queue_slots {
        Some(slots) => Some(Arc::clone(slots).try_acquire_owned().ok()?),
        None => None,
    };
    let slot = Arc::clone(&shared.slots).try_acquire_owned().ok()?;
    Some(Places { _slot: slot, _queue_slot: queue_slot })
}

/// Claims a batch and starts what the store lets run.
async fn start(shared: Arc<Shared>, tracker: TaskTracker, lanes: Arc<Lanes>, batch: Vec<Candidate>) {
    let rules = shared.rules();
    let mut commands = Vec::with_capacity(batch.len());
    let mut entries = Vec::with_capacity(batch.len());
    let mut places = Vec::with_capacity(batch.len());
    for Candidate { who, place } in batch {
        let claimant = place.is_some().then(|| rules.claimant.clone());
        let (command, entry) = match who {
            Next::Message(Waiting { delivery, parsed, .. }) => {
                let (command, what) = command_for(&shared, &delivery, parsed, claimant);
                (command, Entry { delivery: Some(delivery), what })
            }
            Next::Held(Offer { id, stamp }) => {
                let command = match claimant {
                    Some(claimant) => Command::Admit { id: id.clone(), stamp, claimant },
                    // Cannot be: an offer is taken from the line only with a place.
                    None => Command::Claim { id: id.clone(), stamp, claimant },
                };
                (command, Entry { delivery: None, what: What::WakeUp { id, stamp } })
            }
        };
        commands.push(command);
        entries.push(entry);
        places.push(place);
    }
    let Some(persisted) = shared.persist(Urgency::Normal, commands).await else {
        for delivery in entries.into_iter().filter_map(|entry| entry.delivery) {
            delivery.token.nack().await;
        }
        return;
    };
    let Persisted { mut answers, doubt } = persisted;
    if doubt.is_some() {
        adopt_own_claims(&shared, &entries, &mut answers).await;
    }
    let mut look_again = false;
    for ((entry, place), answer) in entries.into_iter().zip(places).zip(answers) {
        let place = place.and_then(|(place, turn)| {
            if matches!(answer, Answer::Run(_)) {
                return Some(place);
            }
            lanes.undo(turn);
            None
        });
        if let Entry { delivery: None, what: What::WakeUp { id, .. } } = &entry {
            lanes.closed(id);
            // A row that is held as before would only be offered as before, again and again.
            look_again |= !matches!(answer, Answer::Held { .. } | Answer::Waiting(_));
        }
        follow(&shared, &tracker, entry, place, answer).await;
    }
    if look_again {
        shared.gate_moved.notify_one();
        if lanes.wants_more() {
            shared.offers_used.notify_one();
        }
    }
}

fn command_for(shared: &Shared, delivery: &Delivery, parsed: Parsed, claimant: Option<Claimant>) -> (Command, What) {
    match parsed {
        Parsed::WakeUp { id, stamp } => {
            (Command::Claim { id: id.clone(), stamp, claimant }, What::WakeUp { id, stamp })
        }
        Parsed::BadWakeUp { reason } => {
            let failure = Failure::new("malformed", format!("a wake-up that cannot be read: {reason}"));
            let refusal = refusal_of(shared, delivery, DeadReason::Malformed, failure);
            (Command::Refuse(Box::new(refusal)), What::Submission { id: None })
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
            let mut id = None;
            let command = match read {
                ReadSubmission::New(new) if new.spec.task_type == ALERT_TYPE => {
                    let text = format!("type: {:?} belongs to redeliver itself", new.spec.task_type);
                    let failure = Failure::new("malformed", text);
                    Command::Refuse(Box::new(refusal_of(shared, delivery, DeadReason::Malformed, failure)))
                }
                ReadSubmission::New(new) if own_reply(shared, &new).is_some() => {
                    let problem = own_reply(shared, &new).unwrap_or_default();
                    let failure = Failure::new("malformed", format!("`reply_to` {problem}"));
                    Command::Refuse(Box::new(refusal_of(shared, delivery, DeadReason::Malformed, failure)))
                }
                ReadSubmission::New(mut new) => {
                    id = Some(new.spec.id.clone());
                    let policy = shared.rules().policy_of(&new.spec, shared.store.now());
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
                ReadSubmission::Refused(refusal) => Command::Refuse(refusal),
            };
            (command, What::Submission { id })
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

/// What is wrong with where it wants its reply, if that is one of our own queues.
fn own_reply(shared: &Shared, new: &NewTask) -> Option<String> {
    own_queue(new.spec.reply_to.as_deref()?, &shared.plan.topology.namespace)
}

fn origin(delivery: &Delivery) -> Origin {
    Origin {
        routing_key: delivery.routing_key.clone(),
        message_id: delivery.message_id.clone(),
        redelivered: delivery.redelivered,
        trace: delivery.trace.clone(),
    }
}

/// After a commit without an answer some of these may be claimed already, by ourselves.
async fn adopt_own_claims(shared: &Shared, entries: &[Entry], answers: &mut [Answer]) {
    let claimed = |(at, (answer, entry)): (usize, (&Answer, &Entry))| match (answer, &entry.what) {
        (Answer::NotNow { status: Status::Running }, What::WakeUp { id, .. })
        | (Answer::Duplicate { id, status: Status::Running }, What::Submission { .. }) => Some((at, id.clone())),
        _ => None,
    };
    let claimed = answers.iter().zip(entries).enumerate().filter_map(claimed);
    let (places, ids): (Vec<usize>, Vec<String>) = claimed.unzip();
    for (at, task) in places.into_iter().zip(own_claims(shared, ids).await) {
        if let (Some(answer), Some(task)) = (answers.get_mut(at), task) {
            *answer = Answer::Run(Box::new(task));
        }
    }
}

async fn follow(shared: &Arc<Shared>, tracker: &TaskTracker, entry: Entry, place: Option<Places>, answer: Answer) {
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
pub(super) fn launch(
    shared: &Arc<Shared>,
    tracker: &TaskTracker,
    task: Box<Task>,
    token: Option<Token>,
    place: Places,
) {
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
