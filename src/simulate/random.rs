//! Randomness that is the same for a seed on every machine and in every version, and the same for every contender: what happens to a
//! task's n-th call depends on the seed, the task and n alone, so that contenders are compared under the same luck.

/// A stream of numbers: `SplitMix64` (Steele, Lea, Flood, Fast splittable pseudorandom number generators, OOPSLA 2014).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// The stream of these words: equal words, equal stream.
    pub(super) fn of(words: &[u64]) -> Random {
        Random(words.iter().fold(0, |state, word| mix(state ^ mix(*word))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform below `n`, which is at least 1.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Exponential with this mean: the gaps of events that know nothing of each other.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Log-normal with this median; `spread` is the deviation of its logarithm. Latencies are shaped so. Box and Muller's method.
    pub(super) fn log_normal(&mut self, median: f64, spread: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        median * (spread * radius * (std::f64::consts::TAU * self.unit()).cos()).exp()
    }
}

/// The finalizer of `SplitMix64`; one more multiplication than an addition needs, so that word 0 does not stay 0.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A length in whole milliseconds, at least one.
#[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest integer there is")]
pub(super) fn millis(length: f64) -> crate::task::Millis {
    (length.round() as i64).max(1)
}
