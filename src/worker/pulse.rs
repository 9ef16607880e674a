//! When this process last committed to its store, on the monotonic clock; shared by heartbeats, scheduler and attempts.
//!
//! Only commits count. Reads go on while another program locks the store, and whoever took them for a sign of life would call the
//! others dead whose heartbeats wait behind that lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::task::Millis;
use crate::telemetry::Vitals;

/// Readings of the monotonic clock, in milliseconds since the worker started.
#[derive(Debug)]
pub struct Pulse {
    started: Instant,
    last_success: AtomicI64,
    beat_wanted: Notify,
    /// How often the heartbeats have found the store again.
    returns: AtomicU64,
    /// Woken in the order in which they began to wait, as those of a watch channel are not.
    returned: Notify,
    /// Who is asked whether this process goes round.
    pub vitals: Arc<Vitals>,
}

impl Pulse {
    /// Starts at 0.
    pub fn new() -> Pulse {
        Pulse {
            started: Instant::now(),
            last_success: AtomicI64::new(0),
            beat_wanted: Notify::new(),
            returns: AtomicU64::new(0),
            returned: Notify::new(),
            vitals: Arc::default(),
        }
    }

    /// Milliseconds since the start.
    pub fn now(&self) -> Millis {
        Millis::try_from(self.started.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// A commit succeeded.
    pub fn note_success(&self) {
        self.last_success.fetch_max(self.now(), Ordering::Relaxed);
    }

    /// When a commit last succeeded.
    pub fn last_success(&self) -> Millis {
        self.last_success.load(Ordering::Relaxed)
    }

    /// The heartbeats have found the store again.
    pub fn note_return(&self) {
        self.returns.fetch_add(1, Ordering::SeqCst);
        self.returned.notify_waiters();
    }

    /// How often the heartbeats have found the store again.
    pub fn returns(&self) -> u64 {
        self.returns.load(Ordering::SeqCst)
    }

    /// Resolves once they have found it more often than `seen`, which follows.
    pub async fn returned_since(&self, seen: &mut u64) {
        let mut returned = std::pin::pin!(self.returned.notified());
        // Before the look: what is told between look and wait counts.
        returned.as_mut().enable();
        if self.returns() == *seen {
            returned.await;
        }
        *seen = self.returns();
    }

    /// Asks the heartbeat thread for a round now.
    pub fn ask_for_beat(&self) {
        self.beat_wanted.notify_one();
    }

    /// Resolves when a round was asked for.
    pub async fn beat_asked(&self) {
        self.beat_wanted.notified().await;
    }
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse::new()
    }
}
