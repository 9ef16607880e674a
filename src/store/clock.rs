//! The store's clock: the system's, or one that tests and the simulator move by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::task::Millis;

/// Where a store takes `now` from. Clones of a manual clock show the same time.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The machine's wall clock.
    #[default]
    System,
    /// Stands still until it is moved.
    Manual(Arc<AtomicI64>),
    /// A database server's, so that all its users go by one clock.
    Server(Arc<ServerClock>),
}

/// The clock of a server that is asked for its time now and then. In between this machine's monotonic clock goes on from there, so that
/// nobody who sets this machine's wall clock moves a task.
#[derive(Debug)]
pub struct ServerClock {
    started: Instant,
    /// The server's time when `started` was.
    offset: AtomicI64,
    /// The latest time that was told.
    last: AtomicI64,
}

/// As far as the clock stands still rather than go back. More than that, and the server's clock was set: then it follows.
const STANDS_STILL_MS: Millis = 10_000;
/// An answer that took longer says too little.
const SLOWEST_ANSWER_MS: Millis = 2_000;

impl Default for ServerClock {
    /// Until it has learned more: this machine's clock.
    fn default() -> Self {
        let now = Clock::System.now();
        ServerClock { started: Instant::now(), offset: AtomicI64::new(now), last: AtomicI64::new(0) }
    }
}

impl ServerClock {
    fn elapsed(&self, at: Instant) -> Millis {
        Millis::try_from(at.saturating_duration_since(self.started).as_millis()).unwrap_or(Millis::MAX)
    }

    fn now(&self) -> Millis {
        self.at(Instant::now())
    }

    fn at(&self, at: Instant) -> Millis {
        let time = self.offset.load(Ordering::SeqCst).saturating_add(self.elapsed(at));
        let last = self.last.fetch_max(time, Ordering::SeqCst);
        if last.saturating_sub(time) > STANDS_STILL_MS {
            self.last.store(time, Ordering::SeqCst);
            return time;
        }
        time.max(last)
    }

    /// Takes in what the server has told to somebody who asked at `asked`, now. The server's time lies between what it told and that
    /// plus the time the answer took; the clock moves no further than into that span.
    pub fn learn(&self, told: Millis, asked: Instant) {
        self.learn_at(told, asked, Instant::now());
    }

    fn learn_at(&self, told: Millis, asked: Instant, answered: Instant) {
        let took = self.elapsed(answered).saturating_sub(self.elapsed(asked)).saturating_add(1);
        if took > SLOWEST_ANSWER_MS {
            return;
        }
        let elapsed = self.elapsed(answered);
        let ours = self.offset.load(Ordering::SeqCst).saturating_add(elapsed);
        let right = ours.clamp(told, told.saturating_add(took));
        self.offset.store(right.saturating_sub(elapsed), Ordering::SeqCst);
    }
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
            Clock::Server(clock) => clock.now(),
        }
    }

    /// Moves a manual clock to `now`, backwards too; other clocks stay as they are.
    pub fn set(&self, now: Millis) {
        if let Clock::Manual(time) = self {
            time.store(now, Ordering::SeqCst);
        }
    }

    /// Moves a manual clock on by `ms`; other clocks stay as they are.
    pub fn advance(&self, ms: Millis) {
        if let Clock::Manual(time) = self {
            time.fetch_add(ms, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ServerClock;
    use std::time::Duration;

    #[test]
    fn a_servers_clock_goes_on_from_what_was_told_and_moves_only_as_far_as_the_answer_is_exact() {
        let clock = ServerClock::default();
        let t0 = clock.started;
        let at = |ms: u64| t0 + Duration::from_millis(ms);
        clock.learn_at(1_000_000, at(0), at(0));
        clock.last.store(0, super::Ordering::SeqCst);
        assert_eq!(clock.at(at(500)), 1_000_500 + 1);
        clock.learn_at(1_000_900, at(900), at(920));
        assert_eq!(clock.at(at(1_000)), 1_001_001, "what was told agrees");
        clock.learn_at(1_000_900, at(1_000), at(3_500));
        assert_eq!(clock.at(at(4_000)), 1_004_001, "that answer took too long to say anything");
    }

    #[test]
    fn a_servers_clock_stands_still_for_small_steps_back_and_follows_a_clock_that_was_set() {
        let clock = ServerClock::default();
        let at = |ms: u64| clock.started + Duration::from_millis(ms);
        clock.learn_at(5_000_000, at(0), at(0));
        clock.last.store(0, super::Ordering::SeqCst);
        let before = clock.at(at(1_000));
        clock.learn_at(5_000_000, at(1_000), at(1_000));
        assert_eq!(clock.at(at(1_100)), before, "100 ms after a step of a second back it stands still");
        assert!(clock.at(at(2_100)) > before);
        clock.learn_at(1_400_000, at(2_200), at(2_200));
        assert!(clock.at(at(2_300)) < 1_500_000, "an hour back is followed");
    }
}
