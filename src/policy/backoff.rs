//! How long to wait before retry n.

use crate::task::Millis;

/// The most delay queues one configuration may ask the broker for. RabbitMQ holds thousands of queues; a ladder of more
/// than 16 rungs is a sign that a formula was meant.
pub const MAX_RUNGS: usize = 16;

/// The shape of the delays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backoff {
    /// Retry n waits step n; retries beyond the last step wait the last step. Never empty, each at least 1 ms.
    Steps(Vec<Millis>),
    /// Every retry waits the same, at least 1 ms.
    Fixed(Millis),
}

impl Backoff {
    /// The delay before retry `n` (1 for the first retry), and why it is that long.
    ///
    /// `n` below 1 counts as 1. Never negative; no `n` overflows.
    pub fn delay(&self, n: i64) -> (Millis, String) {
        match self {
            Backoff::Steps(steps) => {
                let last = steps.len().saturating_sub(1);
                let index = usize::try_from(n.max(1) - 1).unwrap_or(last).min(last);
                let delay = steps.get(index).copied().unwrap_or(0).max(0);
                (delay, format!("step {} of {}", index + 1, steps.len()))
            }
            Backoff::Fixed(delay) => ((*delay).max(0), "fixed delay".into()),
        }
    }

    /// How many delays it names: the default of `max_retries`.
    pub fn natural_retries(&self) -> i64 {
        match self {
            Backoff::Steps(steps) => i64::try_from(steps.len()).unwrap_or(i64::MAX),
            Backoff::Fixed(_) => 3,
        }
    }

    /// The delays that a broker queue can hold.
    pub fn rungs(&self) -> Vec<Millis> {
        match self {
            Backoff::Steps(steps) => steps.clone(),
            Backoff::Fixed(delay) => vec![*delay],
        }
    }
}

#[cfg(test)]
mod tests;
