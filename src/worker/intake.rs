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

use crate::broker::{Delivery, Parsed, Source, parse};
use crate::gate::LaneTurn;
use crate::store::Urgency;
use crate::task::{
    Answer, Claimant, Command, DeadReason, Failure, Lane, LaneKey, NewTask, Origin, ReadSubmission, Refusal, Stamp,
    Status, own_queue, read_submission, refusal,
};
use crate::telemetry::alert::ALERT_TYPE;

use super::attempt::{LONGEST_HOLD, Places};
use super::doubt::own_claims;
use super::follow::follow;
use super::lanes::{Buffer, Lanes, Next, Offer, Waiting};
use super::{Persisted, Shared, after_you};

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
pub(super) struct Entry {
    /// What woke it; a held row has none.
    pub(super) delivery: Option<Delivery>,
    pub(super) what: What,
}

pub(super) enum What {
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

pub(super) fn refusal_of(shared: &Shared, delivery: &Delivery, reason: DeadReason, failure: Failure) -> Refusal {
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
