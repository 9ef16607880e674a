//! What a worker tells of itself while it is measured. Pure.

use serde::{Deserialize, Serialize};

use super::super::spread::Quantiles;

/// See the module. Moments are microseconds since the epoch, by the wall clock that all processes of the machine share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Starts of first attempts.
    pub first: u64,
    /// Starts of retries and replays.
    pub again: u64,
    /// Attempts that succeeded, and with each of them its task.
    pub succeeded: u64,
    /// Attempts that failed and are followed by another.
    pub retried: u64,
    /// Tasks that died.
    pub died: u64,
    /// The first start.
    pub began_us: Option<i64>,
    /// When the last first attempt was settled.
    pub first_settled_us: Option<i64>,
    /// The first start of a retry or replay.
    pub again_began_us: Option<i64>,
    /// The last end of a task.
    pub ended_us: Option<i64>,
    /// The most starts of retries and replays in any second of the clock.
    pub most_again_per_s: u64,
    /// How long after it was due a retry started.
    pub lateness: Quantiles,
    /// How long after it was to be sent a task started, where its payload says so.
    pub start_delay: Quantiles,
    /// Resident memory now.
    pub rss_mb: f64,
    /// The most resident memory so far.
    pub peak_mb: f64,
    /// Processor time since the first start.
    pub cpu_ms: f64,
    /// Processor time since the process was started.
    pub cpu_all_ms: f64,
}

impl Tally {
    /// What several workers tell together: sums, the widest span, and the worst of what cannot be summed.
    pub fn together(tallies: &[Tally]) -> Tally {
        tallies.iter().copied().reduce(Tally::and).unwrap_or_default()
    }

    fn and(self, other: Tally) -> Tally {
        let earlier = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
        Tally {
            first: self.first + other.first,
            again: self.again + other.again,
            succeeded: self.succeeded + other.succeeded,
            retried: self.retried + other.retried,
            died: self.died + other.died,
            began_us: earlier(self.began_us, other.began_us),
            first_settled_us: self.first_settled_us.max(other.first_settled_us),
            again_began_us: earlier(self.again_began_us, other.again_began_us),
            ended_us: self.ended_us.max(other.ended_us),
            most_again_per_s: self.most_again_per_s + other.most_again_per_s,
            lateness: worse(self.lateness, other.lateness),
            start_delay: worse(self.start_delay, other.start_delay),
            rss_mb: self.rss_mb + other.rss_mb,
            peak_mb: self.peak_mb + other.peak_mb,
            cpu_ms: self.cpu_ms + other.cpu_ms,
            cpu_all_ms: self.cpu_all_ms + other.cpu_all_ms,
        }
    }

    /// Tasks that have ended.
    pub fn ended(&self) -> u64 {
        self.succeeded + self.died
    }

    /// Attempts so far.
    pub fn attempts(&self) -> u64 {
        self.first + self.again
    }

    /// Whatever grows while something happens.
    pub fn movement(&self) -> u64 {
        self.attempts() + self.ended() + self.retried
    }
}

fn worse(a: Quantiles, b: Quantiles) -> Quantiles {
    Quantiles {
        seen: a.seen + b.seen,
        p50_ms: a.p50_ms.max(b.p50_ms),
        p99_ms: a.p99_ms.max(b.p99_ms),
        max_ms: a.max_ms.max(b.max_ms),
    }
}

/// From one moment to another in milliseconds; not a number when one of them has not been.
pub(super) fn span_ms(from_us: Option<i64>, to_us: Option<i64>) -> f64 {
    match (from_us, to_us) {
        (Some(from), Some(to)) => float(to - from) / 1000.0,
        _ => f64::NAN,
    }
}

#[expect(clippy::cast_precision_loss, reason = "times of a measurement in microseconds are far below 2^52")]
fn float(us: i64) -> f64 {
    us as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_workers_together_span_from_the_first_start_to_the_last_end() {
        let one = Tally { succeeded: 2, began_us: Some(10), ended_us: Some(50), rss_mb: 20.0, ..Tally::default() };
        let idle = Tally { rss_mb: 15.0, ..Tally::default() };
        let late = Tally { succeeded: 3, began_us: Some(30), ended_us: Some(1_010), rss_mb: 20.0, ..Tally::default() };
        let all = Tally::together(&[one, idle, late]);
        assert_eq!((all.succeeded, all.rss_mb), (5, 55.0));
        assert!((span_ms(all.began_us, all.ended_us) - 1.0).abs() < 1e-9);
        assert!(span_ms(all.again_began_us, all.ended_us).is_nan());
        assert_eq!(Tally::together(&[]), Tally::default());
    }
}
