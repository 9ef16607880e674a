//! How times are spread: percentiles of any number of them, in a place of fixed size.
//!
//! A worker that is measured for half an hour must not grow by what it remembers of the measurement. Each value is kept as one of a
//! few thousand steps, so a percentile is at most 1.6 % larger than the value it stands for.

use serde::{Deserialize, Serialize};

/// Steps between a power of two and the next.
const STEPS: usize = 64;
/// Steps up to the largest `u64`.
const BUCKETS: usize = 59 * STEPS;

/// See the module.
#[derive(Debug, Clone)]
pub struct Spread {
    counts: Vec<u64>,
    seen: u64,
    longest_us: u64,
}

/// What is told of a spread; zeros when it is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many values.
    pub seen: u64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Default for Spread {
    fn default() -> Self {
        Spread { counts: vec![0; BUCKETS], seen: 0, longest_us: 0 }
    }
}

impl Spread {
    /// One more, in microseconds.
    pub fn add_us(&mut self, us: u64) {
        self.seen += 1;
        self.longest_us = self.longest_us.max(us);
        if let Some(count) = self.counts.get_mut(bucket(us)) {
            *count += 1;
        }
    }

    /// What is told of it.
    pub fn quantiles(&self) -> Quantiles {
        Quantiles {
            seen: self.seen,
            p50_ms: self.percentile_ms(50),
            p99_ms: self.percentile_ms(99),
            max_ms: as_ms(self.longest_us),
        }
    }

    /// The nearest-rank percentile; 0 when there is nothing.
    fn percentile_ms(&self, percent: u64) -> f64 {
        let rank = (self.seen * percent).div_ceil(100);
        let mut passed = 0;
        for (index, count) in self.counts.iter().enumerate() {
            passed += count;
            if passed >= rank && passed > 0 {
                return as_ms(largest_in(index).min(self.longest_us));
            }
        }
        0.0
    }
}

fn bucket(us: u64) -> usize {
    let bits = u64::BITS - us.leading_zeros();
    let shift = bits.saturating_sub(STEPS.ilog2() + 1);
    let step = usize::try_from(us >> shift).unwrap_or(0);
    shift as usize * STEPS + step
}

fn largest_in(bucket: usize) -> u64 {
    let shift = (bucket / STEPS).saturating_sub(1);
    let step = (bucket - shift * STEPS) as u64;
    ((u128::from(step) + 1) << shift).saturating_sub(1).try_into().unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a measurement are far below 2^52")]
fn as_ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_are_nearest_ranks_and_an_empty_spread_is_all_zeros() {
        let mut spread = Spread::default();
        assert_eq!(spread.quantiles(), Quantiles::default());
        for us in 1..=100 {
            spread.add_us(us);
        }
        let told = spread.quantiles();
        assert_eq!((told.seen, told.p50_ms, told.p99_ms, told.max_ms), (100, 0.05, 0.099, 0.1));
    }

    proptest! {
        #[test]
        fn a_percentile_is_never_too_small_and_at_most_a_64th_too_large(us in any::<u64>()) {
            let largest = largest_in(bucket(us));
            prop_assert!(largest >= us);
            prop_assert!(largest - us <= us / 64);
        }
    }
}
