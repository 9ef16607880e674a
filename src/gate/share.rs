//! Which lane the next start belongs to, and who goes first within a lane.
//!
//! Retries go before new tasks, because they have waited and succeed more often, but only up to a share of the starts, or an
//! outage would shut new tasks out for as long as its retries last. The share is counted in starts, one at a time, so it holds at
//! concurrency 1 as it does at 1,000, and a lane takes all the starts that the other has no use for.

use std::collections::VecDeque;

use crate::task::{Lane, MAX_PRIORITY};

/// One start, in the unit of the credit.
const START: i64 = 1000;
/// The most that turns which were taken back can leave to the retries' credit.
const MOST_OWED: i64 = 8 * START;
/// What failed attempts add to a priority at most.
const MAX_BOOST: i64 = 3;
/// Priorities with the highest boost.
const LEVELS: usize = 13;

/// Divides starts between the lanes by a credit that retries earn while new tasks wait.
///
/// Every start while new tasks wait earns the retries their share of one, and a retry's start costs one. Of any `n` such starts in
/// a row, at most `share * n`, rounded up, are retries; and if retries wait as well, at least as many, rounded down. What is
/// earned while no retry waits is kept until it is enough for one start: the first retry to come goes first, and no crowd of
/// them does. A retry that starts while no new task waits ends what was earned: the next new task goes first.
///
/// Turns that led to no start are given back, and are made up for without ever shutting new tasks out: see [`Share::undo`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// What a start earns, in thousandths of one.
    earns: i64,
    /// From 0 to below one start, beyond that only by turns that were taken back.
    credit: i64,
    /// Turns that retries have had one after the other while new tasks waited.
    in_a_row: i64,
}

/// A decision for one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a turn that leads to no start is taken back"]
pub struct LaneTurn {
    /// The lane that starts.
    pub lane: Lane,
    /// Whether the other lane waited too, so that there was something to decide.
    contested: bool,
}

impl Share {
    /// For retries at most this part of the starts while new tasks wait. Below a thousandth it is one, above 999 it is 999:
    /// neither lane starves.
    pub fn new(share: f64) -> Share {
        // A float becomes the nearest integer there is, NaN 0.
        let earns = ((share * 1000.0).round() as i64).clamp(1, START - 1);
        // Enough for the very first start: retries go before new tasks.
        Share { earns, credit: START - earns, in_a_row: 0 }
    }

    /// Whose turn it is when there is a place and tasks wait in these lanes; `None` when none does.
    pub fn next(&mut self, tasks: bool, retries: bool) -> Option<LaneTurn> {
        let contested = tasks && retries;
        if !contested {
            self.in_a_row = 0;
        }
        let lane = match (tasks, retries) {
            (false, false) => return None,
            (true, true) => {
                self.credit = (self.credit + self.earns).min(MOST_OWED);
                if self.credit >= START && self.in_a_row < self.most_in_a_row() {
                    self.credit -= START;
                    self.in_a_row += 1;
                    Lane::Retries
                } else {
                    self.in_a_row = 0;
                    Lane::Tasks
                }
            }
            (true, false) => {
                let enough = START - self.earns;
                self.credit = self.credit.max(enough.min(self.credit + self.earns));
                Lane::Tasks
            }
            // They have just had their start: a new task that comes now is next.
            (false, true) => {
                self.credit = 0;
                Lane::Retries
            }
        };
        Some(LaneTurn { lane, contested })
    }

    /// Takes back a turn that led to no start: the message was stale, or a gate was shut. Else a lane full of such messages would
    /// spend on them what its tasks could start by.
    ///
    /// Only retries get theirs back, and have no more turns in a row for it than their share has anyway (one, up to a half): ten
    /// thousand wake-ups that are held one after the other do not stand before a new task. And what a new task's turn has earned
    /// them stays, or a flood of doubled submissions would stand before every retry.
    pub fn undo(&mut self, turn: LaneTurn) {
        if turn.contested && turn.lane == Lane::Retries {
            self.credit = (self.credit + START - self.earns).min(MOST_OWED);
        }
    }

    /// The longest run of retries that the share makes by itself: share / (1 - share), rounded up.
    fn most_in_a_row(&self) -> i64 {
        let others = START - self.earns;
        (self.earns + others - 1) / others
    }
}

/// Tasks of one lane that wait for a place: by priority with its boost, then by arrival.
///
/// The order is strict, without aging. It holds within one worker's buffer only, and there the prefetch bounds it: tasks of low
/// priority that are passed over fill the buffer until nothing else is left to go first.
#[derive(Debug)]
pub struct Line<T> {
    levels: [VecDeque<T>; LEVELS],
}

impl<T> Default for Line<T> {
    fn default() -> Line<T> {
        Line { levels: std::array::from_fn(|_| VecDeque::new()) }
    }
}

impl<T> Line<T> {
    /// To the end of its level: priority 0 to 9, and one more for each failed attempt up to three. Values out of range, which only
    /// a forged message has, count as the nearest.
    pub fn push(&mut self, priority: i64, retry_count: i64, item: T) {
        let level = priority.clamp(0, MAX_PRIORITY) + retry_count.clamp(0, MAX_BOOST);
        let level = usize::try_from(level).unwrap_or(0).min(LEVELS - 1);
        self.levels[level].push_back(item);
    }

    /// The first of the highest level.
    pub fn pop(&mut self) -> Option<T> {
        self.levels.iter_mut().rev().find_map(VecDeque::pop_front)
    }

    /// Takes out, from the front of each level, what has waited too long.
    pub fn drain_old(&mut self, is_old: impl Fn(&T) -> bool) -> Vec<T> {
        let mut old = Vec::new();
        for level in self.levels.iter_mut().rev() {
            let count = level.iter().take_while(|item| is_old(item)).count();
            old.extend(level.drain(..count));
        }
        old
    }

    /// Drops what is not kept; the order stays.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for level in &mut self.levels {
            level.retain(&keep);
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.levels.iter().map(VecDeque::len).sum()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(VecDeque::is_empty)
    }
}

/// What waits in one lane: messages in line, and held rows whose gates have room, in the order in which they were offered, which is
/// fair to their keys.
#[derive(Debug)]
pub struct LaneBuffer<M, H> {
    /// Messages.
    pub line: Line<M>,
    /// Held rows.
    pub held: VecDeque<H>,
    /// Who went last.
    held_went: bool,
}

/// The next start of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum First<M, H> {
    /// By a message.
    Message(M),
    /// Of a held row.
    Held(H),
}

impl<M, H> Default for LaneBuffer<M, H> {
    fn default() -> LaneBuffer<M, H> {
        LaneBuffer { line: Line::default(), held: VecDeque::new(), held_went: false }
    }
}

impl<M, H> LaneBuffer<M, H> {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.line.is_empty() && self.held.is_empty()
    }

    /// Held rows and messages take turns: held ones have waited for longer, but thousands of one key that come back after an outage
    /// must not stand before everybody else's.
    pub fn pop(&mut self) -> Option<First<M, H>> {
        self.held_went = self.line.is_empty() || !self.held_went && !self.held.is_empty();
        if self.held_went { self.held.pop_front().map(First::Held) } else { self.line.pop().map(First::Message) }
    }
}

#[cfg(test)]
mod tests;
