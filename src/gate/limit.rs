//! Limits: how many may start in a time.

use serde::{Deserialize, Serialize};

use crate::task::Millis;

use super::Rate;

/// A look that comes this late still takes the starts that fell due meanwhile; otherwise workers that look now and then would
/// stay below the rate.
const LATE_US: i64 = 50_000;

/// A window is looked at in so many parts.
const PARTS: i64 = 10;

/// The state of a rate limit: the generic cell rate algorithm (ITU-T I.371), which needs one number per key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// When the next start would be due if starts came evenly, in microseconds of the store's clock.
    tat_us: i64,
}

impl Rate {
    /// From one start to the next; rounded up, so that rounding never exceeds the rate. At least a microsecond.
    fn interval_us(self) -> i64 {
        let per_us = self.per_ms.max(1).saturating_mul(1000);
        let count = self.count.max(1);
        (per_us / count + i64::from(per_us % count != 0)).max(1)
    }
}

impl Cell {
    /// Never used, or long ago.
    pub const RESTED: Cell = Cell { tat_us: 0 };

    /// Until when its starts are spoken for.
    pub fn used_up_to(self) -> Millis {
        self.tat_us.div_euclid(1000)
    }

    /// How many may start at `now`.
    pub fn room(self, rate: Rate, burst: i64, now: Millis) -> i64 {
        let (now_us, interval) = (now.saturating_mul(1000), rate.interval_us());
        let first_us = self.known(rate, burst, now_us).saturating_sub((burst.max(1) - 1).saturating_mul(interval));
        if first_us > now_us { 0 } else { (now_us - first_us) / interval + 1 }
    }

    /// When the next one may start; not after `now` when one may start now.
    pub fn opens_at(self, rate: Rate, burst: i64, now: Millis) -> Millis {
        let (now_us, interval) = (now.saturating_mul(1000), rate.interval_us());
        let first_us = self.known(rate, burst, now_us).saturating_sub((burst.max(1) - 1).saturating_mul(interval));
        first_us.div_euclid(1000) + i64::from(first_us.rem_euclid(1000) != 0)
    }

    /// One starts. Only after [`Cell::room`] said that it may.
    pub fn take(&mut self, rate: Rate, burst: i64, now: Millis) {
        let now_us = now.saturating_mul(1000);
        self.tat_us = self.known(rate, burst, now_us).saturating_add(rate.interval_us());
    }

    /// The arrival time as it can be meant. It is never further behind than a late look may be. One that is further ahead than a full
    /// burst was written under another rate or before the clock was set back: all but one start count as spoken for, so that the gate
    /// is neither shut for as long nor open for all who wait. (To take it for a full burst from now on would shut it as long: nobody
    /// writes it down before somebody starts, and `now` moves on.)
    fn known(self, rate: Rate, burst: i64, now_us: i64) -> i64 {
        let interval = rate.interval_us();
        let ahead = now_us.saturating_add(interval.saturating_mul(burst.max(1)));
        if self.tat_us > ahead { ahead - interval } else { self.tat_us.max(now_us.saturating_sub(LATE_US)) }
    }
}

/// Counts of two kinds over a sliding window, kept in a few parts: what is older than the window by less than a tenth of it may
/// still be counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Window {
    /// Number of the part, and how often the first and the second kind happened in it; oldest first.
    parts: Vec<(i64, i64, i64)>,
}

impl Window {
    fn part(window_ms: Millis, now: Millis) -> i64 {
        now.div_euclid((window_ms / PARTS).max(1))
    }

    /// One more of the first kind, or of the second.
    pub fn add(&mut self, second: bool, window_ms: Millis, now: Millis) {
        let number = Window::part(window_ms, now);
        // Parts of another window length, or from before the clock was set back, mean nothing.
        self.parts.retain(|(part, _, _)| (number - PARTS..=number).contains(part));
        if self.parts.last().is_none_or(|(part, _, _)| *part != number) {
            self.parts.push((number, 0, 0));
        }
        if let Some((_, first, other)) = self.parts.last_mut() {
            if second { *other += 1 } else { *first += 1 }
        }
    }

    /// How often each kind happened within the window.
    pub fn counts(&self, window_ms: Millis, now: Millis) -> (i64, i64) {
        let number = Window::part(window_ms, now);
        let within = self.parts.iter().filter(|(part, _, _)| (number - PARTS..=number).contains(part));
        within.fold((0, 0), |(a, b), (_, first, second)| (a + first, b + second))
    }

    /// When the present part ends and an old one falls out.
    pub fn next_part_at(window_ms: Millis, now: Millis) -> Millis {
        (Window::part(window_ms, now) + 1).saturating_mul((window_ms / PARTS).max(1))
    }
}

/// How many retries a ratio allows at `now`: the greater of its share of the first attempts and its floor, less those that were.
pub fn ratio_room(window: &Window, permille: i64, window_ms: Millis, floor: Rate, now: Millis) -> i64 {
    let (firsts, retries) = window.counts(window_ms, now);
    let by_share = firsts.saturating_mul(permille) / 1000;
    let by_floor = floor.count.saturating_mul(window_ms) / floor.per_ms.max(1);
    (by_share.max(by_floor) - retries).max(0)
}
