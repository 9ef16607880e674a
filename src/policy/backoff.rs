//! How long to wait before retry n.

use crate::task::Millis;

/// The most delay queues one configuration may ask the broker for. RabbitMQ holds thousands of queues; a ladder of more
/// than 16 rungs is a sign that a formula was meant.
pub const MAX_RUNGS: usize = 16;

/// The shape of the delays.
#[derive(Debug, Clone, PartialEq)]
pub enum Backoff {
    /// Retry n waits step n; retries beyond the last step wait the last step. Never empty, each at least 1 ms. No jitter.
    Steps(Vec<Millis>),
    /// Every retry waits the same, at least 1 ms. No jitter.
    Fixed(Millis),
    /// Retry n waits `min(max_ms, base_ms · multiplier^(n−1))`, give or take `jitter`.
    Exponential {
        /// The first delay, at least 1 ms.
        base_ms: Millis,
        /// No delay is longer, jitter included. At least `base_ms`.
        max_ms: Millis,
        /// At least 1.
        multiplier: f64,
        /// The share of the delay by which it is made shorter or longer, 0 to 1; 0.2 is ± 20 %.
        jitter: f64,
    },
}

impl Backoff {
    /// The first delay of an exponential backoff that names none.
    pub const DEFAULT_BASE_MS: Millis = 1_000;
    /// The longest delay of an exponential backoff that names none.
    pub const DEFAULT_MAX_MS: Millis = 60_000;
    /// The growth of an exponential backoff that names none.
    pub const DEFAULT_MULTIPLIER: f64 = 2.0;
    /// The jitter of an exponential backoff that names none.
    pub const DEFAULT_JITTER: f64 = 0.2;

    /// The delay before retry `n` (1 for the first retry), and why it is that long. `random` is uniform in [0, 1).
    ///
    /// `n` below 1 counts as 1. Always within [`Backoff::bounds`]: never negative; no `n` overflows.
    pub fn delay(&self, n: i64, random: f64) -> (Millis, String) {
        match self {
            Backoff::Steps(steps) => {
                let index = step_index(steps, n);
                (step(steps, n), format!("step {} of {}", index + 1, steps.len()))
            }
            Backoff::Fixed(delay) => ((*delay).max(0), "fixed delay".into()),
            Backoff::Exponential { .. } => {
                let (middle, (least, most)) = (self.middle(n), self.bounds(n));
                let delay = least.saturating_add(share(most - least, random)).min(most);
                let why = format!("exponential, retry {} of {middle} ms", n.max(1));
                if least == most {
                    return (delay, why);
                }
                // Where ± would lead over the maximum the spread is cut, not the result: else half of all tasks would meet at the maximum.
                (delay, format!("{why}, jitter {least} to {most} ms"))
            }
        }
    }

    /// The shortest and the longest delay before retry `n`.
    pub fn bounds(&self, n: i64) -> (Millis, Millis) {
        match self {
            Backoff::Steps(steps) => (step(steps, n), step(steps, n)),
            Backoff::Fixed(delay) => ((*delay).max(0), (*delay).max(0)),
            Backoff::Exponential { max_ms, .. } => {
                let middle = self.middle(n);
                let spread = share(middle, self.jitter());
                (middle - spread, middle.saturating_add(spread).min((*max_ms).max(0)))
            }
        }
    }

    /// A delay that must not be shorter than `floor_ms` (0 if that is negative), spread upward only, and never longer than `most_ms` or the
    /// backoff's own maximum, where these are above the floor.
    pub fn at_least(&self, floor_ms: Millis, most_ms: Millis, random: f64) -> Millis {
        let floor = floor_ms.max(0);
        let Backoff::Exponential { max_ms, .. } = self else {
            return floor;
        };
        let most = floor.saturating_add(share(floor, self.jitter())).min((*max_ms).min(most_ms).max(floor));
        floor.saturating_add(share(most - floor, random)).min(most)
    }

    /// How many delays it names: the default of `max_retries`.
    pub fn natural_retries(&self) -> i64 {
        match self {
            Backoff::Steps(steps) => i64::try_from(steps.len()).unwrap_or(i64::MAX),
            Backoff::Fixed(_) | Backoff::Exponential { .. } => 3,
        }
    }

    /// The delays that a broker queue can hold: a queue's delay is one length, so a formula and jitter have none.
    pub fn rungs(&self) -> Vec<Millis> {
        match self {
            Backoff::Steps(steps) => steps.clone(),
            Backoff::Fixed(delay) => vec![*delay],
            Backoff::Exponential { .. } => Vec::new(),
        }
    }

    /// The delay of retry `n` before jitter.
    fn middle(&self, n: i64) -> Millis {
        let Backoff::Exponential { base_ms, max_ms, multiplier, .. } = self else {
            return self.bounds(n).0;
        };
        let max_ms = (*max_ms).max(0);
        #[expect(
            clippy::cast_precision_loss,
            reason = "delays are far below 2^53 ms; beyond it a millisecond is nothing"
        )]
        let (base, exponent) = ((*base_ms).max(0) as f64, (n.max(1) - 1) as f64);
        let grown = base * multiplier.max(1.0).powf(exponent);
        // A power that has left the range of floats is infinite, and 0 times it no number: both are beyond the maximum.
        #[expect(clippy::cast_possible_truncation, reason = "float-to-int casts saturate, which is what is wanted")]
        if grown.is_finite() { (grown.round() as Millis).min(max_ms) } else { max_ms }
    }

    fn jitter(&self) -> f64 {
        match self {
            Backoff::Exponential { jitter, .. } if jitter.is_finite() => jitter.clamp(0.0, 1.0),
            _ => 0.0,
        }
    }
}

fn step_index(steps: &[Millis], n: i64) -> usize {
    let last = steps.len().saturating_sub(1);
    usize::try_from(n.max(1) - 1).unwrap_or(last).min(last)
}

fn step(steps: &[Millis], n: i64) -> Millis {
    steps.get(step_index(steps, n)).copied().unwrap_or(0).max(0)
}

/// `part` (0 to 1) of a length that is not negative, never more than all of it.
fn share(whole: Millis, part: f64) -> Millis {
    #[expect(clippy::cast_precision_loss, reason = "delays are far below 2^53 ms; beyond it a millisecond is nothing")]
    let product = whole as f64 * part.clamp(0.0, 1.0);
    #[expect(clippy::cast_possible_truncation, reason = "float-to-int casts saturate, which is what is wanted")]
    (product.round() as Millis).clamp(0, whole.max(0))
}

#[cfg(test)]
mod tests;
