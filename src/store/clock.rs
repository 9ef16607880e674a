//! The store's clock: the system's, or one that tests and the simulator move by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::task::Millis;

/// Where a store takes `now` from. Clones of a manual clock show the same time.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The machine's wall clock.
    #[default]
    System,
    /// Stands still until it is moved.
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// A clock that stands at `now`.
    pub fn manual(now: Millis) -> Clock {
        Clock::Manual(Arc::new(AtomicI64::new(now)))
    }

    /// The time. A machine whose clock stands before 1970 gets 0.
    pub fn now(&self) -> Millis {
        match self {
            Clock::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX)),
            Clock::Manual(time) => time.load(Ordering::SeqCst),
        }
    }

    /// Moves a manual clock to `now`, backwards too; the system's clock stays as it is.
    pub fn set(&self, now: Millis) {
        if let Clock::Manual(time) = self {
            time.store(now, Ordering::SeqCst);
        }
    }

    /// Moves a manual clock on by `ms`; the system's clock stays as it is.
    pub fn advance(&self, ms: Millis) {
        if let Clock::Manual(time) = self {
            time.fetch_add(ms, Ordering::SeqCst);
        }
    }
}
