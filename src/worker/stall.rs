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
    /// The same for having just started, which others can vouch against.
    new_until_mono: Millis,
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
        let new_until_mono = mono.saturating_add(lease_ms / 3);
        StallGuard { lease_ms, last: None, quiet_until_mono: mono, new_until_mono }
    }

    /// Shortens the quiet of a new process by what others have seen of the store: `committed` is this process's own first commit,
    /// `seen` the last commit of each process that says so, those that are dead by now among them; all on the store's clock. `mono`
    /// is the monotonic time of that first commit.
    ///
    /// A new process is quiet because all may have stood still together, and leases that look over then are not. Commits that follow
    /// each other by at most lease/3 back to lease/3 ago say that they did not: whoever lives has had its heartbeat interval, as it
    /// would have had under a process that has run all the time. Where the chain breaks somebody may have stood still, so the
    /// interval counts from there; what lies in the future comes from another clock and vouches for nothing.
    pub fn vouched(&mut self, committed: Millis, mono: Millis, seen: impl IntoIterator<Item = Millis>) {
        let third = self.lease_ms / 3;
        let mut before: Vec<Millis> = seen.into_iter().filter(|at| *at <= committed).collect();
        before.sort_unstable_by(|a, b| b.cmp(a));
        let mut since = committed;
        for at in before {
            if since - at > third {
                break;
            }
            since = at;
        }
        let quiet = (third - (committed - since)).max(0);
        self.new_until_mono = self.new_until_mono.min(mono.saturating_add(quiet));
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
        mono >= self.quiet_until_mono.max(self.new_until_mono)
    }

    /// Ending leases was refused: a disk that is full takes a commit that changes nothing and no other, so a process that runs nothing
    /// takes the store for sound while the others' heartbeats fail. They get an interval for them.
    pub fn refused(&mut self, mono: Millis) {
        self.quiet(mono, self.lease_ms / 3);
    }

    fn quiet(&mut self, mono: Millis, length: Millis) {
        self.quiet_until_mono = self.quiet_until_mono.max(mono.saturating_add(length));
    }
}

#[cfg(test)]
mod tests {
    use super::StallGuard;
    use crate::task::Millis;

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
    fn a_store_that_refused_to_end_leases_and_takes_them_again_keeps_them_for_one_interval() {
        let mut guard = StallGuard::new(LEASE, 0);
        assert!(guard.may_expire(30_000, 30_000, 30_000));
        guard.refused(30_100);
        for t in (31_000..50_100).step_by(1000) {
            assert!(!guard.may_expire(t, t, t), "at {t}");
        }
        assert!(guard.may_expire(50_100, 50_100, 50_100));
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

    #[test]
    fn commits_of_others_without_a_gap_stand_for_the_interval_of_a_new_process() {
        // Its own first commit at 1,000,000, half a second after its start; the lease is a minute.
        let may_at = |seen: &[Millis]| {
            let mut guard = StallGuard::new(LEASE, 0);
            guard.vouched(1_000_000, 500, seen.iter().copied());
            (500..=20_001)
                .find(|mono| guard.may_expire(1_000_000 + mono, *mono, *mono))
                .expect("at the latest after 20 s")
        };
        let ago = |seconds: &[Millis]| -> Vec<Millis> { seconds.iter().map(|s| 1_000_000 - s * 1000).collect() };
        assert_eq!(may_at(&[]), 20_000, "alone it waits as ever");
        assert_eq!(
            may_at(&ago(&[7, 14, 21])),
            500,
            "others have died one after the other, and the store was there all the time"
        );
        assert_eq!(may_at(&ago(&[21, 7, 14])), 500, "in any order");
        assert_eq!(may_at(&ago(&[5])), 15_500, "one that lived five seconds ago vouches for five");
        assert_eq!(may_at(&ago(&[5, 26, 33])), 15_500, "before that everybody may have stood still");
        assert_eq!(may_at(&ago(&[21])), 20_000, "a gap of more than an interval vouches for nothing");
        assert_eq!(may_at(&ago(&[-3, -9])), 20_000, "nor does a clock that was ahead");
    }

    #[test]
    fn a_stall_of_its_own_is_not_vouched_against() {
        let mut guard = StallGuard::new(LEASE, 0);
        guard.may_expire(1_000_000, 100, 100);
        guard.may_expire(1_030_000, 30_100, 30_100);
        guard.vouched(1_030_000, 30_100, [1_010_000, 1_020_000, 1_029_000]);
        assert!(!guard.may_expire(1_031_000, 31_100, 31_100));
    }

    proptest::proptest! {
        /// Everything may stand still together, for any time and as often as it likes; processes that run commit at least every
        /// third of a lease, new ones as they start. None of them is ever called dead by a new one.
        #[test]
        fn who_heartbeats_whenever_the_world_moves_is_never_called_dead_by_a_new_process(
            // How long the world moves, then stands still.
            spells in proptest::collection::vec((20_000_i64..90_000, 0_i64..300_000), 1..6),
            starts in proptest::collection::vec(0_i64..60_000, 0..12),
            phase in 0_i64..20_000,
        ) {
            // In the time of moving, a heartbeat falls on phase + n · 20 s. Wall time has the still spells in between.
            let wall = |moving: Millis| {
                let (mut left, mut wall) = (moving, 0);
                for (moves, still) in &spells {
                    if left <= *moves { return wall + left; }
                    left -= moves;
                    wall += moves + still;
                }
                wall + left
            };
            let mut seen = Vec::new();
            let mut start = 0;
            for pause in starts {
                start += pause;
                let mut guard = StallGuard::new(LEASE, 0);
                guard.vouched(wall(start), 0, seen.iter().copied());
                seen.push(wall(start));
                for after in (0..=20_000).step_by(500) {
                    // A still spell shows as a gap between two readings.
                    let (now, mono) = (wall(start + after), wall(start + after) - wall(start));
                    if !guard.may_expire(now, mono, mono) { continue; }
                    let beats = (start + after - phase).div_euclid(LEASE / 3);
                    if beats < 0 { continue; }
                    let lease_end = wall(phase + beats * (LEASE / 3)) + LEASE;
                    proptest::prop_assert!(lease_end >= now, "called dead at {now}, its lease ends at {lease_end}");
                }
            }
        }
    }
}
