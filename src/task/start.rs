//! From waiting to running, or to waiting for a gate: the one door, and what becomes of a task that is sent away from it.

use crate::gate::{WhenOpen, is_pause};

use super::gates::Gated;
use super::{
    Answer::{self, *},
    Claimant, DeadReason, Degraded, Failure, Millis, Rows, Settings, Status, Task,
};

impl Rows {
    /// The one door to `running`: a waiting task whose stamp has been checked runs if it is due, in time and all its gates are open.
    /// Without a claimant it stays pending with its alarm. `admitted`: it was held and its turn has come.
    pub(super) fn start(
        &mut self,
        mut task: Task,
        claimant: Option<&Claimant>,
        admitted: bool,
        now: Millis,
        settings: &Settings,
    ) -> Answer {
        if task.state.deadline.is_some_and(|deadline| deadline < now.max(task.state.due_at)) {
            let failure = task.state.failure.clone();
            return self.bury(task, DeadReason::DeadlineExceeded, failure, now, settings);
        }
        task.state.outstanding = None;
        if task.state.due_at > now {
            // Whatever held it: its alarm brings it back, and its gates are asked then.
            task.state.release_hold();
            task.state.wake_at = Some(task.state.due_at);
            self.put(task);
            return Early;
        }
        if let Some(pause) = self.pause_of(&task) {
            return self.hold(task, pause, String::new(), None, now);
        }
        let Some(claimant) = claimant.filter(|claimant| claimant.can_run(&task.spec.task_type)) else {
            // It was runnable when a gate held it, so somebody else can run it. (A pause holds whatever comes.)
            if let Some(by) = task.state.held_by.as_ref().filter(|by| admitted && !is_pause(by)) {
                return Held { by: by.clone() };
            }
            task.state.release_hold();
            task.state.wake_at = Some(now.saturating_add(settings.patience_ms));
            self.put(task.clone());
            return Waiting(Box::new(task));
        };
        match claimant.rejudge(&task, now) {
            None => {}
            Some((_, failure, true)) => {
                let task = self.left_to_the_caller(task, now, settings);
                return Spent { task, failure: Box::new(failure) };
            }
            Some((reason, failure, false)) => return self.bury(task, reason, Some(failure), now, settings),
        }
        match self.through_gates(&mut task, claimant, admitted, now) {
            Gated::Through => {}
            Gated::Held { by, turn, park_until } => return self.hold(task, by, turn, park_until, now),
            Gated::Tripped { by, when_open: WhenOpen::Fallback } => {
                let task = self.left_to_the_caller(task, now, settings);
                return Tripped { task, by };
            }
            Gated::Tripped { by, .. } => {
                let failure = task.state.failure.take().unwrap_or_else(|| circuit_open(&by));
                return self.bury(task, DeadReason::CircuitOpen, Some(failure), now, settings);
            }
        }
        let state = &mut task.state;
        if let Some(gate) = &state.held_by {
            let held = format!("held by {gate} until {} ms after due", now - state.due_at);
            state.delay_reason = Some(match state.delay_reason.take() {
                Some(reason) => format!("{reason}; {held}"),
                None => held,
            });
        }
        state.status = Status::Running;
        state.release_hold();
        state.wakes = 0;
        state.fence += 1;
        state.worker = Some(claimant.worker.clone());
        state.started_at = Some(now);
        state.wake_at = Some(now.saturating_add(settings.lease_ms));
        self.put(task.clone());
        Run(Box::new(task))
    }

    fn hold(&mut self, mut task: Task, by: String, turn: String, park_until: Option<Millis>, now: Millis) -> Answer {
        let queue = task.queue().to_owned();
        let state = &mut task.state;
        // One that is passed over keeps its place and its alarm, and costs no write.
        let same = state.held_by.as_ref() == Some(&by) && state.held_turn == turn && state.park_until == park_until;
        if !same || state.outstanding.is_some() {
            state.outstanding = None;
            state.queue = Some(queue);
            state.held_by = Some(by.clone());
            state.held_turn = turn;
            state.park_until = park_until;
            state.wake_at = Some(state.held_look(now));
            self.put(task);
        }
        Held { by }
    }

    /// A due task that does not run and that the caller is about to end by an intercept. Should the caller die, its alarm brings it
    /// back.
    fn left_to_the_caller(&mut self, mut task: Task, now: Millis, settings: &Settings) -> Box<Task> {
        task.state.release_hold();
        task.state.wake_at = Some(now.saturating_add(settings.patience_ms));
        self.put(task.clone());
        Box::new(task)
    }

    /// Ends a waiting task by something that is not the real thing.
    pub(super) fn degrade(&mut self, mut task: Task, degraded: Degraded, failure: Failure, now: Millis) -> Answer {
        task.state.end(Status::Succeeded, now);
        task.state.failure = Some(failure);
        task.state.degraded = Some(degraded.by);
        self.set_result(&task.spec.id, degraded.result);
        self.put(task.clone());
        Answer::Degraded(Box::new(task))
    }
}

/// What a task dies of that an open breaker sends away before its first attempt.
pub(super) fn circuit_open(breaker: &str) -> Failure {
    Failure::new("circuit_open", format!("{breaker} is open"))
}
