//! What a replay job does next: pure, no I/O, `now` is an argument.

use crate::store::{ItemCounts, Pace};
use crate::task::Millis;

/// The stages of a ramp, in parts per thousand of the letters that can run: the canary first, then the rest once what was put to run
/// before has ended well. A canary is at least one letter.
pub const STAGES: [i64; 4] = [10, 50, 250, 1_000];
/// What a ramp tolerates when nothing else is said: one in ten. Of a fault that is mended hardly any letter fails again; of one that is
/// not, nearly all do; and between them there is room for what was dead for another reason.
pub const DEFAULT_MAX_FAILURE_RATIO: f64 = 0.1;
/// Ended letters below which a ratio says nothing, unless a stage is over.
pub const LEAST_ENDED: i64 = 10;
/// The most letters in one transaction.
pub const MOST_AT_ONCE: i64 = 500;
/// What a driver that was held up may catch up with: over any time T no more than `rate · (T + this) + 1` letters are released.
const CATCH_UP_US: i64 = 500_000;
/// How often a job that waits for what runs is looked at.
const LOOK_MS: Millis = 1_000;

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Put so many letters to run; the rate is used up to then (epoch microseconds).
    Release {
        /// At most so many, at least one.
        most: usize,
        /// Where the rate stands afterwards.
        paced_to_us: i64,
    },
    /// Nothing before then: the rate's next letter, or a look at what runs.
    Wait {
        /// When to ask again.
        until: Millis,
    },
    /// This stage is over and has ended well; that one begins.
    Stage(usize),
    /// Too many have failed again: release nothing more, and why.
    Stop(String),
    /// All is released and has ended.
    Finish,
}

/// What a job at `stage`, its rate used up to `paced_to_us` (0: it has just begun, or begins anew), does next.
///
/// Letters that run and have not ended, those that wait for a retry among them, count as undecided: a stage is not over before they have
/// ended. A job stops only while letters wait: once all are out there is nothing left to stop.
pub fn next(pace: &Pace, stage: usize, paced_to_us: i64, counts: &ItemCounts, now: Millis) -> Next {
    if counts.waiting == 0 {
        return if counts.replayed == 0 { Next::Finish } else { Next::Wait { until: now.saturating_add(LOOK_MS) } };
    }
    let released = counts.released();
    let target = if pace.ramp { stage_target(stage, counts) } else { i64::MAX };
    let stage_over = released >= target && counts.replayed == 0;
    if let Some(why) = too_many_failed(pace, counts, stage_over) {
        return Next::Stop(why);
    }
    if stage_over {
        return Next::Stage(stage + 1);
    }
    if released >= target {
        return Next::Wait { until: now.saturating_add(LOOK_MS) };
    }
    let wanted = counts.waiting.min(target - released).min(MOST_AT_ONCE);
    let Some(rate) = pace.rate_per_s.filter(|rate| rate.is_finite() && *rate > 0.0) else {
        return Next::Release { most: usize::try_from(wanted).unwrap_or(1), paced_to_us };
    };
    let interval_us = interval_us(rate);
    let now_us = now.saturating_mul(1_000);
    let first_us = if paced_to_us == 0 { now_us } else { paced_to_us.max(now_us.saturating_sub(CATCH_UP_US)) };
    // One that lies further ahead than one interval was written before the clock was set back. It is nobody's turn: cut to an interval
    // from now it would be ahead of every `now` that asks, until the clock is where it was.
    let first_us = if first_us > now_us.saturating_add(interval_us) { now_us } else { first_us };
    if first_us > now_us {
        return Next::Wait { until: first_us.div_euclid(1_000) + i64::from(first_us.rem_euclid(1_000) != 0) };
    }
    let due = ((now_us - first_us) / interval_us).saturating_add(1).min(wanted);
    let paced_to_us = first_us.saturating_add(due.saturating_mul(interval_us));
    Next::Release { most: usize::try_from(due).unwrap_or(1), paced_to_us }
}

/// From one letter to the next; rounded up, so that rounding never exceeds the rate.
fn interval_us(rate_per_s: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "clamped first; a float to integer cast saturates")]
    let interval = (1_000_000.0 / rate_per_s).ceil().clamp(1.0, 1e15) as i64;
    interval
}

/// How many letters may have been released by the end of a stage. What was skipped never ran and is no part of it.
fn stage_target(stage: usize, counts: &ItemCounts) -> i64 {
    let permille = STAGES.get(stage).copied().unwrap_or(1_000);
    if permille >= 1_000 {
        return i64::MAX;
    }
    let can_run = counts.waiting + counts.released();
    (can_run.saturating_mul(permille) + 999).div_euclid(1_000).max(1)
}

fn too_many_failed(pace: &Pace, counts: &ItemCounts, stage_over: bool) -> Option<String> {
    let bound = pace.max_failure_ratio?;
    let ended = counts.succeeded + counts.failed_again;
    if ended == 0 || (ended < LEAST_ENDED && !stage_over) {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of letters are far below 2^52")]
    let ratio = counts.failed_again as f64 / ended as f64;
    (ratio > bound).then(|| {
        let (failed, percent, bound) = (counts.failed_again, ratio * 100.0, bound * 100.0);
        format!("{failed} of {ended} failed again ({percent:.0} %), more than {bound:.0} %")
    })
}

/// How long the letters that wait will take to release; `None` where only those that run can tell, or no rate bounds them.
pub fn time_left_ms(pace: &Pace, stage: usize, counts: &ItemCounts) -> Option<Millis> {
    let rate = pace.rate_per_s?;
    if pace.ramp && STAGES.get(stage).is_some_and(|permille| *permille < 1_000) {
        return None;
    }
    Some(interval_us(rate).saturating_mul(counts.waiting) / 1_000)
}

#[cfg(test)]
mod tests;
