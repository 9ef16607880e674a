//! Worlds that no rule can tell apart are one, and so time needs no bound.
//!
//! Rules compare times with each other and with `now`, never with the calendar, and no constant is longer than [`GAP`]. So a world may be
//! moved in time, a silence longer than `GAP` may be cut to it, and a time that can never again be compared to anything may be
//! forgotten. All of this is exact: whatever one world can do, its canonical form can do too.

use redeliver::task::{DlqLedger, Lane, LaneLedger, Millis, Settings, Stamp, State, Status};

use crate::world::{Message, PASS_EVERY, START, World};

/// Longer than any constant that rules compare with.
pub const GAP: Millis = 5;
/// Times below this are words: 0 says "never" or "long ago".
const WORDS: Millis = 10;

impl World {
    /// The one world that stands for all that are equal to this one.
    pub fn canonical(&mut self, settings: &Settings, mirror: bool) {
        self.forget_fences();
        for row in self.rows.iter_mut().flatten() {
            forget_in_row(row, self.now);
        }
        self.forget_missing();
        self.forget_lanes();
        self.forget_in_messages();
        for lane in [Lane::Tasks, Lane::Retries] {
            self.forget_in_lane(lane, settings);
        }
        if mirror {
            self.forget_passes();
        } else {
            self.ledger = DlqLedger::default();
            self.rows.iter_mut().flatten().filter_map(|row| row.dlq_at.as_mut()).for_each(|at| *at = 0);
        }
        self.move_in_time();
        self.in_flight.sort_unstable();
        self.workers.sort_unstable();
        self.dlq.sort_unstable();
    }

    /// A fence is the newest one of a running row, or it is old.
    fn forget_fences(&mut self) {
        for run in self.workers.iter_mut().flatten() {
            let row = self.rows[run.task].as_ref();
            let lives = row.is_some_and(|row| row.status == Status::Running && row.fence == run.fence);
            run.fence = i64::from(lives);
            if !lives {
                // Whatever it remembers, it will be refused.
                (run.stamp, run.releases) = (Stamp::FIRST, 0);
            }
        }
        for row in self.rows.iter_mut().flatten() {
            row.fence = 1;
        }
    }

    /// Only wake-ups sent before are judged by it.
    fn forget_missing(&mut self) {
        let sent = self.rows.iter().flatten().filter_map(|row| row.outstanding.map(|outstanding| outstanding.sent_at));
        if self.missing_at.is_some_and(|at| sent.min().is_none_or(|sent_at| sent_at > at)) {
            self.missing_at = None;
        }
    }

    /// A lane that no row will ever publish to again needs no ledger.
    fn forget_lanes(&mut self) {
        let people = self.people;
        let over = |row: &State| row.status.is_ended() && (people == 0 || row.status != Status::Dead);
        let rows = || self.rows.iter().flatten();
        let started = rows().next().is_some();
        let past_first = started && rows().all(|row| over(row) || row.status.is_ended() || row.stamp != Stamp::FIRST);
        if past_first {
            self.lanes[0] = LaneLedger::default();
        }
        if started && rows().all(over) {
            self.lanes[1] = LaneLedger::default();
        }
    }

    fn forget_in_messages(&mut self) {
        let mut messages = std::mem::take(&mut self.in_flight);
        let held = self.workers.iter_mut().flatten().filter_map(|run| run.holds.as_mut());
        for message in messages.iter_mut().chain(held) {
            let Message::WakeUp { task, stamp, rung_ms, sent_at, arrives_at } = message else { continue };
            if *arrives_at <= self.now {
                *rung_ms = 0;
            }
            let row = self.rows[*task].as_ref().filter(|row| !row.status.is_ended());
            if row.is_none_or(|row| *stamp < row.stamp) && *stamp != Stamp::FIRST {
                // It will never match again; all it has left to say is that its lane delivers.
                *stamp = Stamp { generation: 0, retry_count: i64::MAX };
            }
            let row = row.filter(|row| row.status.is_waiting() && row.stamp == *stamp);
            if row.and_then(|row| row.outstanding).is_none_or(|outstanding| outstanding.sent_at != *sent_at) {
                *sent_at = 0;
            }
            let mark = self.lanes[usize::from(stamp.lane() == Lane::Retries)].mark;
            if *arrives_at <= mark && mark <= self.now {
                *arrives_at = 0;
            }
        }
        self.in_flight = messages;
    }

    fn forget_in_lane(&mut self, lane: Lane, settings: &Settings) {
        let outstanding = self.rows.iter().flatten().filter_map(|row| row.outstanding);
        let sent =
            outstanding.filter(|outstanding| outstanding.lane == lane).map(|outstanding| outstanding.sent_at).min();
        let ledger = &mut self.lanes[usize::from(lane == Lane::Retries)];
        // A mark from before everything that is out says only whether the lane has moved since the last probe.
        if ledger.mark <= self.now && sent.is_none_or(|sent_at| ledger.mark <= sent_at) {
            (ledger.mark, ledger.probe_mark) = (i64::from(ledger.mark > ledger.probe_mark), 0);
        }
        if self.now >= ledger.probed_at + ledger.probe_gap_ms.max(settings.patience_ms) {
            ledger.probed_at = 0;
        }
    }

    /// It counts only whether the DLQ is dirty, and whether it became so again since the pass began. A pass that is over and rested from
    /// is as if it had never been.
    fn forget_passes(&mut self) {
        let dirty = self.ledger.dirty > self.ledger.cleaned;
        self.ledger.strangers = 0;
        match &mut self.pass {
            Some(pass) => {
                self.ledger.dirty = if self.ledger.dirty > pass.dirty { 2 } else { 1 };
                pass.dirty = 1;
                self.ledger.pass -= pass.number - 1;
                pass.number = 1;
            }
            None => (self.ledger.dirty, self.ledger.pass) = (i64::from(dirty), 0),
        }
        self.ledger.cleaned = 0;
        if self.now >= self.ledger.pass_until {
            self.ledger.pass_until = 0;
        }
        if self.ledger.pass_until == 0 && self.now >= self.ledger.pass_began + PASS_EVERY {
            self.ledger.pass_began = 0;
        }
    }

    fn move_in_time(&mut self) {
        let mut times = Vec::with_capacity(16);
        self.times(|time| times.push(*time));
        times.retain(|time| *time >= WORDS);
        times.push(self.now);
        times.sort_unstable();
        times.dedup();
        let at = times.partition_point(|time| *time < self.now);
        // Old and new times side by side: `now` becomes START, the rest keeps its distance from its neighbour, at most GAP.
        let mut moved = vec![START; times.len()];
        for i in (0..at).rev() {
            moved[i] = moved[i + 1] - (times[i + 1] - times[i]).min(GAP);
        }
        for i in at + 1..times.len() {
            assert!(times[i] - times[i - 1] <= GAP, "a wait longer than GAP would be cut short");
            moved[i] = moved[i - 1] + times[i] - times[i - 1];
        }
        self.times(|time| {
            if let Ok(i) = times.binary_search(time) {
                *time = moved[i];
            }
        });
        self.now = START;
    }

    /// Every time in this world.
    fn times(&mut self, mut visit: impl FnMut(&mut Millis)) {
        for row in self.rows.iter_mut().flatten() {
            visit(&mut row.due_at);
            [&mut row.wake_at, &mut row.dlq_at, &mut row.deadline].into_iter().flatten().for_each(&mut visit);
            if let Some(outstanding) = &mut row.outstanding {
                visit(&mut outstanding.sent_at);
                visit(&mut outstanding.arrives_at);
            }
        }
        for lane in &mut self.lanes {
            visit(&mut lane.mark);
            visit(&mut lane.probed_at);
            visit(&mut lane.probe_mark);
        }
        self.missing_at.iter_mut().for_each(&mut visit);
        visit(&mut self.ledger.pass_began);
        visit(&mut self.ledger.pass_until);
        let held = self.workers.iter_mut().flatten().filter_map(|run| run.holds.as_mut());
        for message in self.in_flight.iter_mut().chain(held) {
            if let Message::WakeUp { sent_at, arrives_at, .. } = message {
                visit(sent_at);
                visit(arrives_at);
            }
        }
    }
}

/// A time that has passed has passed; texts are read by no rule.
fn forget_in_row(row: &mut State, now: Millis) {
    row.queue = None;
    row.worker = None;
    row.started_at = None;
    row.ended_at = None;
    row.delay_ms = None;
    row.delay_reason = None;
    row.failure = None;
    if row.status.is_ended() {
        (row.due_at, row.releases) = (0, 0);
    }
    if row.dlq_copy != redeliver::task::DlqCopy::Wanted && row.status.is_ended() {
        row.wakes = 0;
    }
    // Patience has reached its longest by then.
    row.wakes = row.wakes.min(2);
    if row.due_at <= now {
        row.due_at = 0;
    }
    for past in [&mut row.wake_at, &mut row.dlq_at].into_iter().flatten().filter(|at| **at <= now) {
        *past = 0;
    }
    if let Some(deadline) = row.deadline.as_mut().filter(|deadline| **deadline < now) {
        *deadline = 0;
    }
}
