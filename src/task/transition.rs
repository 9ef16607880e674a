//! Every transition of a task: how each [`Command`] changes [`Rows`].

use std::sync::Arc;

use crate::gate::{Breaker, GateState};

use super::gates::outcome_of;
use super::notice::{Telling, told_again};
use super::{
    Answer::{self, *},
    Attempt, AttemptOutcome, Change, Command, DeadReason, Decision, DlqCopy, Ending, Failure, Lane, Millis, NewTask,
    Outstanding, Refusal, Rows, Settings, Settlement, Spec, Stamp, State, Status, Task, WakeUp,
};

/// The longest a held row goes unlooked-at.
const HELD_LOOK_MS: Millis = 24 * 3_600_000;

impl Rows {
    /// Applies one command at `now`.
    pub fn apply(&mut self, command: &Command, now: Millis, settings: &Settings) -> Answer {
        self.telling = Telling { now, announced: settings.announced };
        match command {
            Command::Submit(new) => self.submit(new, now, settings),
            Command::Refuse(refusal) => self.refuse((**refusal).clone(), None, now, settings),
            Command::Claim { id, stamp, claimant } => match self.waiting(id, *stamp) {
                Ok(task) => self.start(task, claimant.as_ref(), false, now, settings),
                Err(answer) => answer,
            },
            Command::Admit { id, stamp, claimant } => match self.waiting(id, *stamp) {
                Ok(task) if task.state.held_by.is_some() => self.start(task, Some(claimant), true, now, settings),
                Ok(_) => Changed,
                Err(answer) => answer,
            },
            Command::Breaker { key, word } => {
                let known = self.gates.get(key);
                let mut breaker = match known {
                    Some(GateState::Breaker(breaker)) => breaker.clone(),
                    _ => Breaker::default(),
                };
                breaker.obey(word.clone());
                self.set_gate(key, GateState::Breaker(breaker));
                Done
            }
            Command::Route { id, from, queue } => self.route(id, from.as_deref(), queue.clone(), now),
            Command::Postpone { id, stamp, until } => match self.waiting(id, *stamp) {
                Ok(task) => self.postpone(task, *until),
                Err(answer) => answer,
            },
            Command::Heartbeat { id, fence } => match self.running(id, *fence) {
                Ok(mut task) => {
                    task.state.wake_at = Some(now.saturating_add(settings.lease_ms));
                    self.put(task);
                    Done
                }
                Err(answer) => answer,
            },
            Command::Reclaim { id, worker } => match self.get(id).cloned() {
                None => Unknown,
                Some(task) if task.state.status != Status::Running => NotNow { status: task.state.status },
                Some(task) if task.state.worker.as_deref() != Some(worker) => Changed,
                Some(mut task) => {
                    task.state.wake_at = Some(now.saturating_add(settings.lease_ms));
                    self.put(task.clone());
                    Run(Box::new(task))
                }
            },
            Command::Settle { id, fence, settlement } => match self.running(id, *fence) {
                Ok(task) => self.settle(task, settlement, now, settings),
                Err(answer) => answer,
            },
            Command::Lost { id, fence, wake_at, settlement } => match self.running(id, *fence) {
                Ok(task) if task.state.wake_at == Some(*wake_at) && *wake_at <= now => {
                    self.settle(task, settlement, now, settings)
                }
                Ok(_) => Changed,
                Err(answer) => answer,
            },
            Command::Release { id, fence, nack } => match self.running(id, *fence) {
                Ok(task) => self.release(task, *nack, now, settings),
                Err(answer) => answer,
            },
            Command::Intercept { id, stamp, ending } => match self.waiting(id, *stamp) {
                Ok(task) => match ending {
                    Ending::Dead { reason, failure } => self.bury(task, *reason, Some(failure.clone()), now, settings),
                    Ending::Degraded { degraded, failure } => {
                        self.degrade(task, degraded.clone(), failure.clone(), now)
                    }
                },
                Err(answer) => answer,
            },
            Command::Wake { id, stamp, wake_at } => match self.waiting(id, *stamp) {
                Ok(task) if task.state.wake_at == Some(*wake_at) => self.wake(task, now, settings),
                Ok(_) => Changed,
                Err(answer) => answer,
            },
            Command::PublishFailed { id, stamp, sent_at } => match self.waiting(id, *stamp) {
                Ok(task) => self.publish_failed(task, *sent_at, now),
                Err(answer) => answer,
            },
            Command::RunNow { id } => match self.any_waiting(id) {
                Ok(mut task) => {
                    task.state.due_at = task.state.due_at.min(now);
                    task.state.release_hold();
                    self.publish_now(task, now, settings)
                }
                Err(answer) => answer,
            },
            Command::Cancel { id, note } => match self.any_waiting(id) {
                Ok(mut task) => {
                    task.state.end(Status::Cancelled, now);
                    task.state.note.clone_from(note);
                    self.put(task);
                    Done
                }
                Err(answer) => answer,
            },
            Command::Replay { id, generation, note } => match self.dead(id, *generation) {
                Ok(task) => self.replay(task, note.clone(), now, settings),
                Err(answer) => answer,
            },
            Command::Edit { id, generation, edit, note } => match self.dead(id, *generation) {
                Ok(task) => self.edit(task, edit, note.clone(), now, settings),
                Err(answer) => answer,
            },
            Command::Adopt { task, attempts } => self.adopt((**task).clone(), attempts.clone(), now),
            Command::Discard { id, generation, note } => match self.dead(id, *generation) {
                Ok(mut task) => {
                    let queue = task.queue().to_owned();
                    task.state.end(Status::Discarded, now);
                    task.state.note.clone_from(note);
                    self.put(task);
                    self.dlq_mut(&queue).dirty += 1;
                    Done
                }
                Err(answer) => answer,
            },
            Command::CopyConfirmed { id, generation } => self.copy_confirmed(id, *generation),
            Command::CopyMissing { id, generation } => self.copy_missing(id, *generation, now),
            Command::SendCopy { id, generation } => self.send_copy(id, *generation, now, settings),
            Command::Mark { lane, arrives_at } => self.mark(lane, *arrives_at, now, settings),
            Command::Missing { spot } => {
                self.set_missing(spot.clone(), now);
                Done
            }
            Command::DirtyDlq { queue } => {
                self.dlq_mut(queue).dirty += 1;
                Done
            }
            Command::BeginPass { queue, hold_ms, every_ms, force } => {
                self.begin_pass(queue, *hold_ms, *every_ms, *force, now)
            }
            Command::EndPass { queue, pass, dirty, strangers } => {
                let ledger = self.dlq_mut(queue);
                if ledger.pass != *pass {
                    return Changed;
                }
                ledger.cleaned = ledger.cleaned.max(*dirty);
                ledger.pass_until = 0;
                ledger.strangers = *strangers;
                Done
            }
            Command::Poison { id, message } => match self.get(id).cloned() {
                None => Unknown,
                Some(task) if task.state.status.is_ended() => NotNow { status: task.state.status },
                Some(task) => {
                    let failure = Failure::new("poison", message.clone());
                    self.bury(task, DeadReason::Poison, Some(failure), now, settings)
                }
            },
        }
    }

    fn submit(&mut self, new: &NewTask, now: Millis, settings: &Settings) -> Answer {
        if let Some(known) = self.known(new).cloned() {
            return self.submit_again(known, new, now, settings);
        }
        let due_at = new.not_before.unwrap_or(now).max(now);
        let mut state = State::pending(due_at);
        state.queue = Some(new.queue.clone());
        state.deadline = new.deadline;
        state.wake_at = Some(if due_at > now { due_at } else { now.saturating_add(settings.patience_ms) });
        let task = Task { spec: Arc::clone(&new.spec), state };
        self.create(task.clone());
        if new.rejected {
            let failure =
                Failure::new("poison", "the broker gave up delivering this submission before it was ever committed");
            return self.bury(task, DeadReason::Poison, Some(failure), now, settings);
        }
        if new.publish && due_at <= now {
            return self.publish_now(task, now, settings);
        }
        if due_at > now && task.state.deadline.is_none_or(|deadline| deadline >= due_at) {
            return Waiting(Box::new(task));
        }
        self.start(task, new.claimant.as_ref(), false, now, settings)
    }

    /// The id, key or hash is known. The same payload is the same task; another one is a conflict, and the first is untouched.
    fn submit_again(&mut self, known: Task, new: &NewTask, now: Millis, settings: &Settings) -> Answer {
        if known.spec.raw.is_some() && known.spec.id == new.refusal.id() {
            return Refused(Box::new(known));
        }
        let known_hash = known.spec.hash_of_payload();
        if known_hash != new.spec.payload_hash {
            let mut refusal = new.refusal.refusal(&new.spec, &new.queue);
            refusal.reason = DeadReason::DuplicateConflict;
            refusal.failure = Failure::new(
                "duplicate_conflict",
                format!("task {:?} has this id or idempotency key and another payload", known.spec.id),
            );
            return self.refuse(refusal, Some(known.spec.id.clone()), now, settings);
        }
        if known.state.status.is_waiting() && known.stamp() == Stamp::FIRST && !new.publish {
            return self.start(known, new.claimant.as_ref(), false, now, settings);
        }
        let reply = new.spec.reply_to.as_deref().and_then(|queue| told_again(&known, queue, self.telling));
        self.notices.extend(reply);
        Duplicate { id: known.spec.id.clone(), status: known.state.status }
    }

    fn refuse(&mut self, refusal: Refusal, conflicts_with: Option<String>, now: Millis, settings: &Settings) -> Answer {
        if let Some(known) = self.get(&refusal.spec.id) {
            return Refused(Box::new(known.clone()));
        }
        let mut state = State::pending(now);
        state.queue = Some(refusal.queue);
        let mut spec = refusal.spec;
        spec.conflicts_with = conflicts_with;
        let mut task = Task { spec: Arc::new(spec), state };
        task.state.die(refusal.reason, Some(refusal.failure), now, settings);
        self.create(task.clone());
        Refused(Box::new(task))
    }

    fn route(&mut self, id: &str, from: Option<&str>, queue: String, now: Millis) -> Answer {
        let mut task = match self.any_waiting(id) {
            Ok(task) if task.state.queue.as_deref() == from => task,
            Ok(_) => return Changed,
            Err(answer) => return answer,
        };
        let state = &mut task.state;
        state.queue = Some(queue);
        // What was sent to the queue it had is not waited for.
        if from.is_some() && state.held_by.is_none() {
            state.outstanding = None;
            state.wake_at = Some(state.due_at.max(now));
        }
        self.put(task);
        Done
    }

    fn postpone(&mut self, mut task: Task, until: Millis) -> Answer {
        // Nobody may wait past the deadline without being told that it has passed.
        let too_late = task.state.deadline.map_or(Millis::MAX, |deadline| deadline.saturating_add(1));
        task.state.outstanding = None;
        task.state.wake_at = Some(until.min(too_late));
        self.put(task);
        Rearmed
    }

    fn settle(&mut self, mut task: Task, settlement: &Settlement, now: Millis, settings: &Settings) -> Answer {
        let (outcome, failure) = outcome_of(&settlement.decision);
        let turns = self.tell_gates(&mut task, settlement, now);
        if task.state.variant.is_none() {
            task.state.variant.clone_from(&settlement.variant);
        }
        let attempt = Arc::new(Attempt {
            task_id: task.spec.id.clone(),
            fence: task.state.fence,
            number: task.state.stamp.retry_count + 1,
            generation: task.state.stamp.generation,
            outcome,
            failure,
            started_at: task.state.started_at.unwrap_or(now),
            ended_at: now,
            worker: settlement.worker.clone(),
            policy: settlement.policy.clone(),
            variant: settlement.variant.clone(),
            delay_before_ms: task.state.delay_ms,
            delay_reason: task.state.delay_reason.clone(),
            cost: settlement.cost,
            attachments: settlement.attachments.clone(),
        });
        let mut wake_up = None;
        match &settlement.decision {
            Decision::Succeed => {
                task.state.end(Status::Succeeded, now);
                task.state.failure = None;
                task.state.degraded.clone_from(&settlement.degraded);
                if let Some(result) = &settlement.result {
                    if let Some(key) = settlement.remember.as_ref().filter(|_| task.state.degraded.is_none()) {
                        self.remember(&task.spec.task_type, key.clone(), result.clone(), now);
                    }
                    self.set_result(&task.spec.id, result.clone());
                }
            }
            Decision::Retry { delay_ms, reason, on_rung, by_handler, failure } => {
                task.state.retry_by_handler = *by_handler;
                wake_up = retry(&mut task, *delay_ms, reason.clone(), *on_rung, failure.clone(), now, settings);
            }
            Decision::Die { reason, failure } => match &settlement.fallback {
                Some(degraded) => {
                    task.state.end(Status::Succeeded, now);
                    task.state.degraded = Some(degraded.by.clone());
                    task.state.failure = Some(failure.clone());
                    self.set_result(&task.spec.id, degraded.result.clone());
                }
                None => task.state.die(*reason, Some(failure.clone()), now, settings),
            },
        }
        self.put(task.clone());
        self.add_attempt(Arc::clone(&attempt));
        Settled(Box::new(Change { task, attempt, wake_up, turns }))
    }

    fn release(&mut self, mut task: Task, nack: bool, now: Millis, settings: &Settings) -> Answer {
        let attempt = Arc::new(Attempt {
            task_id: task.spec.id.clone(),
            fence: task.state.fence,
            number: task.state.stamp.retry_count + 1,
            generation: task.state.stamp.generation,
            outcome: AttemptOutcome::Released,
            failure: None,
            started_at: task.state.started_at.unwrap_or(now),
            ended_at: now,
            worker: task.state.worker.clone().unwrap_or_default(),
            policy: None,
            variant: None,
            delay_before_ms: task.state.delay_ms,
            delay_reason: task.state.delay_reason.clone(),
            cost: None,
            attachments: Vec::new(),
        });
        self.leave_gates(&mut task);
        let state = &mut task.state;
        state.status = if state.stamp.retry_count == 0 { Status::Pending } else { Status::RetryWaiting };
        state.worker = None;
        state.started_at = None;
        state.releases += 1;
        // A delivery that goes back to the broker is this row's wake-up: publishing another would only make a stale one.
        if nack {
            let lane = state.stamp.lane();
            state.outstanding = Some(Outstanding { lane, rung_ms: 0, sent_at: now, arrives_at: now });
            state.wake_at = Some(now.saturating_add(settings.patience_ms));
        } else {
            state.outstanding = None;
            state.wake_at = Some(now);
        }
        self.put(task.clone());
        self.add_attempt(Arc::clone(&attempt));
        Settled(Box::new(Change { task, attempt, wake_up: None, turns: Vec::new() }))
    }

    pub(super) fn replay(&mut self, mut task: Task, note: Option<String>, now: Millis, settings: &Settings) -> Answer {
        if let Some(reason) = task.state.dead_reason.filter(|reason| !reason.is_replayable()) {
            return NotReplayable { reason };
        }
        let queue = task.queue().to_owned();
        let old = task.state;
        let mut state = State::pending(now);
        state.stamp = Stamp { generation: old.stamp.generation + 1, retry_count: 0 };
        state.queue = old.queue;
        state.fence = old.fence;
        state.deadline = old.deadline.filter(|deadline| *deadline > now);
        state.failure = old.failure;
        state.variant = old.variant;
        state.note = note;
        task.state = state;
        self.dlq_mut(&queue).dirty += 1;
        self.publish_now(task, now, settings)
    }

    pub(super) fn bury(
        &mut self,
        mut task: Task,
        reason: DeadReason,
        failure: Option<Failure>,
        now: Millis,
        settings: &Settings,
    ) -> Answer {
        self.leave_gates(&mut task);
        task.state.die(reason, failure, now, settings);
        self.put(task.clone());
        Dead(Box::new(task))
    }

    fn waiting(&self, id: &str, stamp: Stamp) -> Result<Task, Answer> {
        let task = self.any_waiting(id)?;
        if task.stamp() != stamp {
            return Err(Stale { stamp: task.stamp() });
        }
        Ok(task)
    }

    fn any_waiting(&self, id: &str) -> Result<Task, Answer> {
        let task = self.get(id).ok_or(Unknown)?;
        if !task.state.status.is_waiting() {
            return Err(NotNow { status: task.state.status });
        }
        Ok(task.clone())
    }

    fn running(&self, id: &str, fence: i64) -> Result<Task, Answer> {
        let task = self.get(id).ok_or(Unknown)?;
        if task.state.status != Status::Running {
            return Err(NotNow { status: task.state.status });
        }
        if task.state.fence != fence {
            return Err(Changed);
        }
        Ok(task.clone())
    }

    pub(super) fn dead(&self, id: &str, generation: i64) -> Result<Task, Answer> {
        let task = self.get(id).ok_or(Unknown)?;
        if task.state.status != Status::Dead {
            return Err(NotNow { status: task.state.status });
        }
        if task.stamp().generation != generation {
            return Err(Stale { stamp: task.stamp() });
        }
        Ok(task.clone())
    }
}

impl State {
    /// A pending row that is due at `due_at`, with its alarm there.
    pub fn pending(due_at: Millis) -> State {
        State {
            status: Status::Pending,
            dead_reason: None,
            degraded: None,
            stamp: Stamp::FIRST,
            due_at,
            wake_at: Some(due_at),
            deadline: None,
            queue: None,
            fence: 0,
            worker: None,
            started_at: None,
            releases: 0,
            wakes: 0,
            outstanding: None,
            held_by: None,
            held_turn: String::new(),
            park_until: None,
            passes: Vec::new(),
            variant: None,
            dlq_copy: DlqCopy::None,
            dlq_at: None,
            delay_ms: None,
            delay_reason: None,
            retry_by_handler: false,
            failure: None,
            ended_at: None,
            note: None,
        }
    }

    /// When a held row is looked at again: at its deadline, at the latest in a day.
    pub(super) fn held_look(&self, now: Millis) -> Millis {
        let ends = [self.deadline, self.park_until].into_iter().flatten().min();
        ends.unwrap_or(Millis::MAX).min(now.saturating_add(HELD_LOOK_MS))
    }

    /// No gate holds it any more.
    pub(super) fn release_hold(&mut self) {
        self.held_by = None;
        self.held_turn = String::new();
        self.park_until = None;
    }

    /// To a status in which nothing is waited for.
    pub(super) fn end(&mut self, status: Status, now: Millis) {
        self.status = status;
        self.dead_reason = None;
        self.wake_at = None;
        self.worker = None;
        self.started_at = None;
        self.outstanding = None;
        self.release_hold();
        self.dlq_copy = DlqCopy::None;
        self.dlq_at = None;
        self.ended_at = Some(now);
    }

    /// To `dead`, its copy wanted. The committing worker publishes it; the sweeper does if it has not by then.
    fn die(&mut self, reason: DeadReason, failure: Option<Failure>, now: Millis, settings: &Settings) {
        self.end(Status::Dead, now);
        self.dead_reason = Some(reason);
        self.dlq_copy = DlqCopy::Wanted;
        self.dlq_at = Some(now.saturating_add(settings.confirm_timeout_ms));
        self.wakes = 0;
        if failure.is_some() {
            self.failure = failure;
        }
    }
}

impl Task {
    /// Records that a wake-up goes straight to the lane now.
    pub(super) fn send(&mut self, now: Millis, wake_at: Millis) -> WakeUp {
        let route = Outstanding { lane: self.stamp().lane(), rung_ms: 0, sent_at: now, arrives_at: now };
        self.state.outstanding = Some(route);
        self.state.wake_at = Some(wake_at);
        self.wake_up(route)
    }

    /// The wake-up that is on its way for this row by `route`.
    pub(crate) fn wake_up(&self, route: Outstanding) -> WakeUp {
        let (spec, queue) = (&self.spec, self.queue().to_owned());
        WakeUp { id: spec.id.clone(), stamp: self.stamp(), priority: spec.priority, queue, route }
    }
}

/// To `retry_waiting`, the wait held by a rung or by the store (§4.1).
fn retry(
    task: &mut Task,
    delay_ms: Millis,
    reason: String,
    on_rung: bool,
    failure: Failure,
    now: Millis,
    settings: &Settings,
) -> Option<WakeUp> {
    let due_at = now.saturating_add(delay_ms);
    let state = &mut task.state;
    state.status = Status::RetryWaiting;
    state.stamp.retry_count += 1;
    state.due_at = due_at;
    state.worker = None;
    state.started_at = None;
    state.releases = 0;
    state.wakes = 0;
    state.delay_ms = Some(delay_ms);
    state.delay_reason = Some(reason);
    state.failure = Some(failure);
    if !on_rung {
        state.outstanding = None;
        state.wake_at = Some(due_at);
        return None;
    }
    let route = Outstanding { lane: Lane::Retries, rung_ms: delay_ms, sent_at: now, arrives_at: due_at };
    state.outstanding = Some(route);
    state.wake_at = Some(due_at.saturating_add(settings.grace_ms));
    Some(task.wake_up(route))
}

impl Spec {
    /// The key of its cached result: the producer's, else one that equal tasks have in common.
    pub fn cached_as(&self) -> String {
        self.cache_key.clone().unwrap_or_else(|| self.hash_of_payload())
    }

    /// The stored hash, or the hash of the stored payload for rows that others inserted.
    fn hash_of_payload(&self) -> String {
        if self.payload_hash.is_empty() {
            super::canonical_payload_hash(&self.task_type, &self.payload)
        } else {
            self.payload_hash.clone()
        }
    }
}
