//! Stalls are not deaths (§4.2).
//!
//! A process that was stopped, starved or cut off from its store sees leases that look over although their owners may only have
//! been as stuck as itself. Pure: readings of both clocks are arguments.

use crate::task::Millis;

/// Decides when this process may end other workers' leases.
#[derive(Debug)]
pub struct StallGuard {
    lease_ms: Millis,
    last: Option<Reading>,
    quiet_until_mono: Millis,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    wall: Millis,
    mono: Millis,
    last_success_mono: Millis,
}

impl StallGuard {
    /// A guard at process start: quiet for one heartbeat interval.
    pub fn new(lease_ms: Millis, mono: Millis) -> StallGuard {
        StallGuard { lease_ms, last: None, quiet_until_mono: mono.saturating_add(lease_ms / 3) }
    }

    /// Takes a reading: wall clock, monotonic clock, and the monotonic time of the last commit.
    /// Returns whether leases may be ended now.
    ///
    /// More than lease/3 without a commit, or between two readings, makes it quiet for one heartbeat interval (lease/3);
    /// a jump of the wall clock against the monotonic one by more than lease/3 for a whole lease.
    pub fn may_expire(&mut self, wall: Millis, mono: Millis, last_success_mono: Millis) -> bool {
        let third = self.lease_ms / 3;
        if let Some(last) = self.last {
            let jump = (wall - last.wall) - (mono - last.mono);
            if jump.abs() > third {
                self.quiet(mono, self.lease_ms);
            }
            let gap_between_calls = last_success_mono - last.last_success_mono;
            if mono - last.mono > third || gap_between_calls > third {
                self.quiet(mono, third);
            }
        }
        if mono - last_success_mono > third {
            self.quiet(mono, third);
        }
        self.last = Some(Reading { wall, mono, last_success_mono });
        mono >= self.quiet_until_mono
    }

    fn quiet(&mut self, mono: Millis, length: Millis) {
        self.quiet_until_mono = self.quiet_until_mono.max(mono.saturating_add(length));
    }
}

#[cfg(test)]
mod tests {
    use super::StallGuard;

    const LEASE: i64 = 60_000;

    #[test]
    fn a_new_process_ends_no_lease_for_one_heartbeat_interval() {
        let mut guard = StallGuard::new(LEASE, 0);
        assert!(!guard.may_expire(1_000_000, 1, 1));
        assert!(!guard.may_expire(1_010_000, 10_000, 10_000));
        assert!(guard.may_expire(1_020_000, 20_000, 20_000));
    }

    #[test]
    fn a_stop_of_more_than_a_third_of_the_lease_is_followed_by_a_quiet_interval() {
        let mut guard = StallGuard::new(LEASE, 0);
        for t in (0..=30_000).step_by(1000) {
            guard.may_expire(t, t, t);
        }
        assert!(guard.may_expire(31_000, 31_000, 31_000));
        assert!(!guard.may_expire(131_000, 131_000, 131_000), "just woken");
        assert!(!guard.may_expire(141_000, 141_000, 141_000));
        assert!(guard.may_expire(151_000, 151_000, 151_000));
    }

    #[test]
    fn a_store_that_did_not_answer_for_a_third_of_the_lease_keeps_leases_alive() {
        let mut guard = StallGuard::new(LEASE, 0);
        for t in (0..=40_000).step_by(1000) {
            guard.may_expire(t, t, t.min(30_000));
        }
        assert!(guard.may_expire(45_000, 45_000, 30_000));
        assert!(!guard.may_expire(51_000, 51_000, 30_000));
        assert!(!guard.may_expire(52_000, 52_000, 52_000), "one interval after it answers again");
        assert!(!guard.may_expire(62_000, 62_000, 62_000));
        assert!(guard.may_expire(72_001, 72_001, 72_001));
    }

    #[test]
    fn a_clock_jump_keeps_leases_alive_for_a_whole_lease() {
        for jump in [3_600_000, -3_600_000] {
            let mut guard = StallGuard::new(LEASE, 0);
            for t in (0..=30_000).step_by(1000) {
                guard.may_expire(t, t, t);
            }
            let wall = |mono: i64| mono + jump;
            assert!(!guard.may_expire(wall(31_000), 31_000, 31_000));
            for t in (32_000..91_000).step_by(1000) {
                assert!(!guard.may_expire(wall(t), t, t), "at {t}");
            }
            assert!(guard.may_expire(wall(91_000), 91_000, 91_000));
        }
    }
}
