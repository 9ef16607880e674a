//! What an action does: the worker, the broker and the people around the real rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redeliver::task::{
    Answer, Claimant, Command, DEFAULT_QUEUE, DeadReason, Decision, Failure, NewTask, Outcome, Refusal, Settlement,
    Stamp, Status, Task, Verdict, WakeUp, decide, decide_lost,
};

use crate::action::{Action, Crash, Deed, Ending};
use crate::model::{MAX_RELEASES, RUNG, Redeliver};
use crate::parts::Sight;
use crate::store::{mark, spots};
use crate::world::{Broken, Message, Run, TaskNo, World};

/// Notes what was seen; a fair run, which is only a thought, notes nothing.
pub struct Witness<'a>(Option<&'a AtomicU64>);

impl Witness<'_> {
    /// It happened.
    pub fn saw(&self, sight: Sight) {
        if let Some(seen) = self.0 {
            seen.fetch_or(1 << sight as u64, Ordering::Relaxed);
        }
    }

    /// It happened if `condition` holds.
    pub fn saw_if(&self, condition: bool, sight: Sight) {
        if condition {
            self.saw(sight);
        }
    }
}

impl Redeliver {
    /// The world after `action`; `None` when it would change nothing.
    pub fn step(&self, old: &World, action: Action, seen: Option<&AtomicU64>) -> Option<World> {
        let mut world = old.clone();
        let witness = Witness(seen);
        let w = &mut world;
        match action {
            Action::Deliver(worker, message) => self.deliver(w, worker, message, true, &witness),
            Action::DeliverEarly(worker, message) => {
                w.faults -= 1;
                self.deliver(w, worker, message, true, &witness);
            }
            Action::DeliverUnacked(worker, message) => {
                w.faults -= 1;
                self.deliver(w, worker, message, false, &witness);
                if w.workers[worker].is_some() {
                    // A claim that dies is `Die`.
                    return None;
                }
            }
            Action::AckUncommitted(message) => {
                w.faults -= 1;
                w.take(message);
                self.acked(w, message.task());
            }
            Action::Finish(worker, ending, crash) => self.finish(w, worker, ending, crash, &witness),
            Action::Heartbeat(worker) => {
                let run = w.workers[worker]?;
                let id = self.specs[run.task].id.clone();
                // A refused one cancels the handler; the model lets it run on, which is worse.
                let answer = self.apply(w, Command::Heartbeat { id, fence: run.fence });
                if answer != Answer::Done {
                    return None;
                }
            }
            Action::Die(worker) => {
                w.faults -= 1;
                let run = w.workers[worker].take()?;
                if let Some(message) = run.holds {
                    w.send(message);
                }
            }
            Action::Alarm(task) => self.alarm(w, task, &witness),
            Action::SendCopy(task) => {
                let (id, generation) = self.name(w, task);
                let answer = self.apply(w, Command::SendCopy { id, generation });
                self.publish_copy(w, &answer);
                let rings = w.rows[task].as_ref().and_then(|row| row.dlq_at).is_some_and(|at| at <= w.now);
                if rings {
                    w.breaks(Broken::Storm);
                }
            }
            Action::CopyArrives(copy) => {
                w.take(Message::Copy(copy));
                w.dlq.push(copy);
                w.send(Message::Confirm(copy));
            }
            Action::Confirmed(copy) => {
                w.take(Message::Confirm(copy));
                let id = self.specs[copy.task].id.clone();
                let _: Answer = self.apply(w, Command::CopyConfirmed { id, generation: copy.generation });
            }
            Action::Lose(message) => {
                w.faults -= 1;
                w.take(message);
            }
            Action::Duplicate(message) => {
                w.faults -= 1;
                w.send(message);
            }
            Action::Return(message) => {
                w.faults -= 1;
                w.take(message);
                let Message::WakeUp { task, stamp, sent_at, .. } = message else { return None };
                let id = self.specs[task].id.clone();
                let answer = self.apply(w, Command::PublishFailed { id, stamp, sent_at });
                witness.saw_if(answer == Answer::Done, Sight::Returned);
            }
            Action::Wipe => self.wipe(w),
            Action::PassBegins | Action::PassTakes | Action::PassEnds | Action::PassDies | Action::LookAtDepth => {
                self.pass(w, action, &witness)?;
            }
            Action::Traffic(lane) => {
                let _: Answer = self.apply(w, mark(lane, w.now));
            }
            Action::Person(deed, task) => self.person(w, deed, task),
            Action::Tick => w.now += 1,
        }
        w.canonical(&self.settings, self.mirror);
        (world != *old).then_some(world)
    }

    /// `world` after its only submission has failed and its worker has published the copy.
    pub fn dead(&self, mut world: World) -> World {
        let witness = Witness(None);
        self.deliver(&mut world, 0, Message::Submission { task: 0 }, true, &witness);
        self.finish(&mut world, 0, Ending::Fails, Crash::No, &witness);
        world.canonical(&self.settings, self.mirror);
        world
    }

    fn name(&self, world: &World, task: TaskNo) -> (String, i64) {
        let generation = world.rows[task].as_ref().map_or(0, |row| row.stamp.generation);
        (self.specs[task].id.clone(), generation)
    }

    fn deliver(&self, w: &mut World, worker: usize, message: Message, acked: bool, witness: &Witness) {
        w.take(message);
        let claimant = Some(Claimant { worker: String::new(), serves: None, gates: Arc::default(), policies: None });
        let command = match message {
            Message::Submission { task } => Command::Submit(Box::new(self.new_task(task, claimant))),
            Message::WakeUp { task, stamp, arrives_at, .. } => {
                let _: Answer = self.apply(w, mark(stamp.lane(), arrives_at));
                Command::Claim { id: self.specs[task].id.clone(), stamp, claimant }
            }
            Message::Copy(_) | Message::Confirm(_) => return,
        };
        let answer = self.apply(w, command);
        witness.saw_if(matches!(answer, Answer::Early), Sight::Early);
        witness.saw_if(matches!(answer, Answer::Stale { .. }), Sight::StaleDropped);
        witness.saw_if(matches!(answer, Answer::NotNow { .. }), Sight::NotWaitingDropped);
        witness.saw_if(matches!(answer, Answer::Duplicate { .. }), Sight::Duplicate);
        if let Answer::Run(task) = &answer {
            let carried = if let Message::WakeUp { stamp, .. } = message { stamp } else { Stamp::FIRST };
            if task.stamp() != carried {
                w.breaks(Broken::WrongStamp);
            }
            w.workers[worker] = Some(Run {
                task: message.task(),
                fence: task.state.fence,
                stamp: task.stamp(),
                releases: task.state.releases,
                holds: Some(message),
            });
            return;
        }
        if let Answer::Refused(task) | Answer::Dead(task) = &answer {
            let reason = task.state.dead_reason;
            witness.saw_if(reason == Some(DeadReason::DuplicateConflict), Sight::Conflict);
            witness.saw_if(reason == Some(DeadReason::DeadlineExceeded), Sight::Deadline);
        }
        if acked {
            self.publish_copy(w, &answer);
            self.acked(w, message.task());
        } else {
            w.send(message);
        }
    }

    fn finish(&self, w: &mut World, worker: usize, ending: Ending, crash: Crash, witness: &Witness) {
        let Some(run) = w.workers[worker].take() else { return };
        let id = self.specs[run.task].id.clone();
        // What the worker knows is the row as it was when it claimed it.
        let Some(mut claimed) = self.task(w, run.task) else { return };
        claimed.state.stamp = run.stamp;
        let settle = |decision| Command::Settle { id: id.clone(), fence: run.fence, settlement: settlement(decision) };
        let fail = |class: &str, verdict| Outcome::failure(class, "").with_verdict(verdict);
        let command = match ending {
            Ending::Succeeds => settle(self.decide(w, &claimed, &Outcome::success())),
            Ending::Fails => settle(self.decide(w, &claimed, &fail("timeout", Verdict::Retry))),
            Ending::FailsForGood => settle(self.decide(w, &claimed, &fail("bad_payload", Verdict::Dead))),
            Ending::GivenBack if run.releases >= MAX_RELEASES => {
                witness.saw(Sight::ReleasedTooOften);
                settle(decide_lost(&claimed, &self.policy, &self.rungs(), w.now, 0.5))
            }
            Ending::GivenBack => Command::Release { id: id.clone(), fence: run.fence, nack: run.holds.is_some() },
        };
        let nack = matches!(command, Command::Release { nack: true, .. });
        if crash != Crash::No {
            w.faults -= 1;
        }
        let answer = self.apply(w, command);
        let settled = matches!(answer, Answer::Settled(_));
        witness.saw_if(!settled, Sight::SettleRefused);
        witness.saw_if(settled && nack, Sight::Released);
        if let Answer::Settled(change) = &answer {
            let (status, stamp) = (change.task.state.status, change.task.stamp());
            witness.saw_if(status == Status::Succeeded && stamp.retry_count > 0, Sight::SuccessAfterRetry);
            witness.saw_if(status == Status::Succeeded && stamp.generation > 0, Sight::ReplayedSuccess);
            let reason = change.task.state.dead_reason;
            witness.saw_if(reason == Some(DeadReason::RetriesExhausted), Sight::Exhausted);
            witness.saw_if(reason == Some(DeadReason::PermanentError), Sight::Permanent);
            witness.saw_if(reason == Some(DeadReason::DeadlineExceeded), Sight::Deadline);
        }
        if crash != Crash::BeforePublish {
            self.publish_settled(w, &answer);
        }
        match run.holds {
            Some(message) if crash != Crash::No || (settled && nack) => w.send(message),
            Some(_) => self.acked(w, run.task),
            None => {}
        }
    }

    fn alarm(&self, w: &mut World, task: TaskNo, witness: &Witness) {
        let Some(row) = self.task(w, task) else { return };
        let (id, stamp, Some(wake_at)) = (row.id().to_owned(), row.stamp(), row.state.wake_at) else { return };
        if row.state.status == Status::Running {
            witness.saw(Sight::LeaseLost);
            let decision = decide_lost(&row, &self.policy, &self.rungs(), w.now, 0.5);
            let settlement = settlement(decision);
            let answer = self.apply(w, Command::Lost { id, fence: row.state.fence, wake_at, settlement });
            self.publish_settled(w, &answer);
        } else {
            let probes = w.lanes.map(|lane| lane.probed_at);
            let answer = self.apply(w, Command::Wake { id, stamp, wake_at });
            if let (Answer::Publish(_), Some(sent)) = (&answer, row.state.outstanding) {
                let probed = probes != w.lanes.map(|lane| lane.probed_at);
                let missing = w.missing_at.is_some_and(|at| at >= sent.sent_at);
                witness.saw_if(probed, Sight::Probe);
                witness.saw_if(!probed && missing, Sight::LostByMissing);
                witness.saw_if(!probed && !missing, Sight::LostByMark);
            }
            witness.saw_if(answer == Answer::Late, Sight::Late);
            witness.saw_if(matches!(answer, Answer::Dead(_)), Sight::Deadline);
            self.publish(w, &answer);
            self.publish_copy(w, &answer);
        }
        // The same alarm must not be found ringing again in the same round.
        if w.rows[task].as_ref().and_then(|row| row.wake_at).is_some_and(|at| at <= w.now) {
            w.breaks(Broken::Storm);
        }
    }

    fn person(&self, w: &mut World, deed: Deed, task: TaskNo) {
        w.people -= 1;
        let (id, generation) = self.name(w, task);
        let answer = self.apply(
            w,
            match deed {
                Deed::Cancel => Command::Cancel { id, note: None },
                Deed::RunNow => Command::RunNow { id },
                Deed::Replay => Command::Replay { id, generation, note: None },
                Deed::Discard => Command::Discard { id, generation, note: None },
            },
        );
        self.publish(w, &answer);
    }

    /// The vhost is gone with everything in it. Sessions end, so nobody holds a delivery, and no pass goes on.
    fn wipe(&self, w: &mut World) {
        w.faults -= 1;
        w.in_flight.clear();
        w.dlq.clear();
        w.pass = None;
        for run in w.workers.iter_mut().flatten() {
            run.holds = None;
        }
        for spot in spots() {
            let _: Answer = self.apply(w, Command::Missing { spot });
        }
    }

    fn decide(&self, w: &World, task: &Task, outcome: &Outcome) -> Decision {
        decide(task, outcome, &self.policy, &self.rungs(), w.now, 0.5)
    }

    fn rungs(&self) -> std::collections::BTreeSet<i64> {
        if self.on_rung { [RUNG].into() } else { [].into() }
    }

    fn publish(&self, w: &mut World, answer: &Answer) {
        if let Answer::Publish(wake_up) = answer {
            self.publish_wake_up(w, wake_up);
        }
    }

    fn publish_wake_up(&self, w: &mut World, wake_up: &WakeUp) {
        let Some(task) = self.task_no(&wake_up.id) else { return };
        let route = wake_up.route;
        w.send(Message::WakeUp {
            task,
            stamp: wake_up.stamp,
            rung_ms: route.rung_ms,
            sent_at: route.sent_at,
            arrives_at: route.arrives_at,
        });
    }

    fn publish_settled(&self, w: &mut World, answer: &Answer) {
        let Answer::Settled(change) = answer else { return };
        if let Some(wake_up) = &change.wake_up {
            self.publish_wake_up(w, wake_up);
        }
        self.publish_copy_of(w, &change.task);
    }

    fn new_task(&self, task: TaskNo, claimant: Option<Claimant>) -> NewTask {
        let spec = (*self.specs[task]).clone();
        let refused = self.refusal_of(task).map_or_else(|| spec.clone(), |refusal| (*self.specs[refusal]).clone());
        NewTask {
            spec: std::sync::Arc::new(spec),
            queue: DEFAULT_QUEUE.into(),
            not_before: None,
            deadline: self.deadline,
            redelivered: false,
            refusal: Refusal {
                spec: refused,
                queue: DEFAULT_QUEUE.into(),
                reason: DeadReason::DuplicateConflict,
                failure: Failure::new("duplicate_conflict", ""),
            }
            .into(),
            claimant,
            publish: false,
            rejected: false,
        }
    }
}

fn settlement(decision: Decision) -> Box<Settlement> {
    Box::new(Settlement::new("", decision))
}
