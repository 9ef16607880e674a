//! How work comes back after it was stopped: in groups, each twice as large as the one before, so that what has just healed is
//! not knocked over by all that waited for it.

use serde::{Deserialize, Serialize};

use crate::task::Millis;

/// After so many groups (4,095 starts) the way is free.
const GROUPS: u32 = 12;

/// A return under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ramp {
    /// When it began.
    pub since: Millis,
    /// How many have started since.
    pub started: i64,
}

impl Ramp {
    /// A return that begins now.
    pub fn new(now: Millis) -> Ramp {
        Ramp { since: now, started: 0 }
    }

    /// When group `k` may start: `k` steps after the beginning and up to half a step more, by its own jitter, so that keys which
    /// were stopped together do not come back in step.
    fn group_at(self, k: u32, step_ms: Millis, seed: u64) -> Millis {
        let half = u64::try_from(step_ms / 2).unwrap_or(0);
        let jitter = if k == 0 || half == 0 { 0 } else { mix(seed ^ u64::from(k)) % half };
        let jitter = Millis::try_from(jitter).unwrap_or(0);
        self.since.saturating_add(step_ms.saturating_mul(i64::from(k))).saturating_add(jitter)
    }

    /// How many may start at `now`; `None` when the return is over.
    pub fn room(self, step_ms: Millis, seed: u64, now: Millis) -> Option<i64> {
        // A return that begins in the future began before the clock was set back.
        let groups = (0..GROUPS).take_while(|k| self.since <= now && self.group_at(*k, step_ms, seed) <= now).count();
        if self.since > now || groups >= GROUPS as usize {
            return None;
        }
        Some(((1_i64 << groups) - 1 - self.started).max(0))
    }

    /// When the next group may start.
    pub fn opens_at(self, step_ms: Millis, seed: u64, now: Millis) -> Millis {
        let more = |k: &u32| (1_i64 << (k + 1)) - 1 > self.started;
        (0..GROUPS).find(more).map_or(now, |k| self.group_at(k, step_ms, seed))
    }
}

/// A number that depends on a gate's key alone, for its jitter.
pub fn seed(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Spreads a number over all its bits (the finalizer of `SplitMix64`).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
