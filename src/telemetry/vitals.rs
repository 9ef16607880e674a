//! Signs of life of the parts that nothing may stop: what `/livez` and a service manager's watchdog go by.
//!
//! They say that this process goes round, not that anything outside answers: a store or a broker that is away is no reason to kill
//! a worker that waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A part that has not come round for so long is stuck. Longer than every time-out within a round, one after another.
pub const STUCK: Duration = Duration::from_secs(120);

/// A part that shows signs of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Organ {
    /// Acts when alarms ring.
    Scheduler,
    /// Renews leases, on a thread of its own.
    Heartbeat,
}

/// When each part last came round.
#[derive(Debug)]
pub struct Vitals {
    started: Instant,
    /// Milliseconds after the start.
    rounds: [AtomicU64; 2],
}

impl Default for Vitals {
    fn default() -> Vitals {
        Vitals { started: Instant::now(), rounds: Default::default() }
    }
}

impl Vitals {
    /// A part begins a round.
    pub fn note(&self, organ: Organ) {
        self.rounds[organ as usize].store(self.now_ms(), Ordering::Relaxed);
    }

    /// Which part is stuck, and for how long; `None` when all go round.
    pub fn stuck(&self) -> Option<String> {
        self.stuck_at(self.now_ms())
    }

    fn stuck_at(&self, now_ms: u64) -> Option<String> {
        let longest = u64::try_from(STUCK.as_millis()).unwrap_or(u64::MAX);
        [(Organ::Scheduler, "scheduler"), (Organ::Heartbeat, "heartbeat thread")].into_iter().find_map(
            |(organ, name)| {
                let still_ms = now_ms.saturating_sub(self.rounds[organ as usize].load(Ordering::Relaxed));
                (still_ms > longest).then(|| format!("the {name} has not come round for {} s", still_ms / 1000))
            },
        )
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_does_not_come_round_is_named_and_the_others_do_not_hide_it() {
        let vitals = Vitals::default();
        assert_eq!(vitals.stuck_at(120_000), None, "from the start on there is as much time as ever");
        vitals.rounds[Organ::Scheduler as usize].store(200_000, Ordering::Relaxed);
        let stuck = vitals.stuck_at(200_000).unwrap();
        assert_eq!(stuck, "the heartbeat thread has not come round for 200 s");
        vitals.rounds[Organ::Heartbeat as usize].store(300_000, Ordering::Relaxed);
        assert!(vitals.stuck_at(330_000).unwrap().contains("scheduler"));
        assert_eq!(vitals.stuck_at(320_000), None);
    }
}
