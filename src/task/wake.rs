//! Alarms of waiting rows: what is published, judged late or lost, and how a lane is probed (§4.2).

use super::{
    Answer::{self, *},
    DeadReason, LaneKey, LaneLedger, Millis, Rows, Settings, Task,
};

impl Rows {
    /// An alarm of a waiting row (§4.2).
    pub(super) fn wake(&mut self, mut task: Task, now: Millis, settings: &Settings) -> Answer {
        // A held row is looked at on its deadline: one that let it wait further would set the same alarm again and again.
        let last = if task.state.held_by.is_some() { now } else { now.saturating_sub(1) };
        if task.state.deadline.is_some_and(|deadline| deadline <= last) {
            let failure = task.state.failure.clone();
            return self.bury(task, DeadReason::DeadlineExceeded, failure, now, settings);
        }
        if let Some(by) = &task.state.held_by
            && task.state.park_until.is_some_and(|end| end <= now)
        {
            let failure = task.state.failure.clone().unwrap_or_else(|| super::start::circuit_open(by));
            return self.bury(task, DeadReason::CircuitOpen, Some(failure), now, settings);
        }
        if task.state.held_by.is_some() {
            task.state.wake_at = Some(task.state.held_look(now));
            self.put(task);
            return Rearmed;
        }
        if task.state.due_at > now {
            task.state.wake_at = Some(task.state.due_at);
            self.put(task);
            return Rearmed;
        }
        let Some(outstanding) = task.state.outstanding else {
            return self.publish_again(task, now, settings);
        };
        let key = LaneKey { queue: task.queue().to_owned(), lane: outstanding.lane };
        let ledger = self.lane(&key);
        // A mark from before the clock was set back lies ahead; believed, it would call everything lost.
        let mark = if ledger.mark > now.saturating_add(settings.slack_ms) { 0 } else { ledger.mark };
        let lost = mark >= outstanding.arrives_at.saturating_add(settings.slack_ms)
            || self.went_missing(task.queue(), &outstanding);
        if lost {
            return self.publish_again(task, now, settings);
        }
        if self.may_probe(&key, now, settings) {
            return self.publish_again(task, now, settings);
        }
        // A lane that has delivered since is alive and will soon tell; looking again is cheap. One that stands still is left alone
        // for longer and longer. But while a probe is under way, its verdict comes within one patience; such a look costs no message, so
        // it does not count as one of those that grow apart.
        let alive = mark > outstanding.sent_at;
        let probing = now < self.lane(&key).probed_at.saturating_add(settings.patience_ms);
        let grown_ms = settings.patience(task.state.wakes);
        let wait_ms = if alive || probing { settings.patience_ms } else { grown_ms };
        if alive || wait_ms == grown_ms {
            task.state.wakes += 1;
        }
        task.state.wake_at = Some(now.saturating_add(wait_ms));
        self.put(task);
        Late
    }

    /// Whether the lane may be probed now, and if so counts the probe. At most one per patience, doubling to max_patience
    /// while the mark stands still.
    fn may_probe(&mut self, key: &LaneKey, now: Millis, settings: &Settings) -> bool {
        let ledger = self.lane(key);
        let moved = ledger.mark > ledger.probe_mark;
        let gap = if moved || ledger.probe_gap_ms == 0 { settings.patience_ms } else { ledger.probe_gap_ms };
        if ledger.probed_at <= now && now < ledger.probed_at.saturating_add(gap) {
            return false;
        }
        *self.lane_mut(key) = LaneLedger {
            mark: ledger.mark,
            probed_at: now,
            probe_gap_ms: gap.saturating_mul(2).min(settings.max_patience_ms),
            probe_mark: ledger.mark,
        };
        true
    }

    /// Publishes a waiting, due row's wake-up straight to its lane; the next look comes after a growing patience.
    fn publish_again(&mut self, mut task: Task, now: Millis, settings: &Settings) -> Answer {
        let patience = settings.patience(task.state.wakes);
        task.state.wakes += 1;
        let wake_up = task.send(now, now.saturating_add(patience));
        self.put(task);
        Publish(wake_up)
    }

    /// Publishes a row that has just become due; nobody else repeats it before the confirm's time is over.
    pub(super) fn publish_now(&mut self, mut task: Task, now: Millis, settings: &Settings) -> Answer {
        let wake_up = task.send(now, now.saturating_add(settings.confirm_timeout_ms));
        self.put(task);
        Publish(wake_up)
    }

    pub(super) fn publish_failed(&mut self, mut task: Task, sent_at: Millis, now: Millis) -> Answer {
        if task.state.outstanding.is_none_or(|outstanding| outstanding.sent_at != sent_at) {
            return Changed;
        }
        task.state.outstanding = None;
        if task.state.due_at > now {
            task.state.wake_at = Some(task.state.due_at);
        }
        self.put(task);
        Done
    }

    pub(super) fn mark(&mut self, key: &LaneKey, arrives_at: Millis, now: Millis, settings: &Settings) -> Answer {
        let known = self.lane(key).mark;
        // A mark from a clock that ran ahead would call everything lost; so would believing an arrival that lies ahead.
        let believed = if arrives_at > now.saturating_add(settings.slack_ms) { 0 } else { arrives_at };
        let mark = known.min(now).max(believed);
        if mark != known {
            self.lane_mut(key).mark = mark;
        }
        Done
    }
}

impl Settings {
    /// patience · 2ⁿ, at most max_patience.
    fn patience(&self, n: i64) -> Millis {
        doubled(self.patience_ms, n).min(self.max_patience_ms)
    }

    /// confirm_timeout · 2ⁿ, at most max_patience (or one confirm_timeout, if that is longer).
    pub(super) fn copy_patience(&self, n: i64) -> Millis {
        doubled(self.confirm_timeout_ms, n).min(self.max_patience_ms.max(self.confirm_timeout_ms))
    }
}

/// length · 2ⁿ without overflow.
fn doubled(length: Millis, n: i64) -> Millis {
    let doublings = u32::try_from(n.clamp(0, 40)).unwrap_or(40);
    length.saturating_mul(1_i64 << doublings)
}
