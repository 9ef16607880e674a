use proptest::prelude::*;

use super::*;

const SHARES: [f64; 6] = [0.001, 0.10, 0.30, 0.5, 0.75, 0.999];

fn choose(share: &mut Share, tasks: bool, retries: bool) -> Option<Lane> {
    share.next(tasks, retries).map(|turn| turn.lane)
}

/// The lanes of `n` starts with both waiting.
fn both_waiting(share: &mut Share, n: usize) -> Vec<Lane> {
    (0..n).filter_map(|_| choose(share, true, true)).collect()
}

fn retries_in(lanes: &[Lane]) -> usize {
    lanes.iter().filter(|lane| **lane == Lane::Retries).count()
}

#[test]
fn of_the_first_hundred_starts_thirty_are_retries_and_a_retry_is_the_first() {
    let starts = both_waiting(&mut Share::new(0.30), 100);
    assert_eq!(retries_in(&starts), 30);
    assert_eq!(starts[0], Lane::Retries);
}

#[test]
fn the_share_holds_from_wherever_one_begins_to_count() {
    for share in SHARES {
        let starts = both_waiting(&mut Share::new(share), 5_000);
        for n in [1, 2, 3, 10, 100, 1_000] {
            let (least, most) = ((share * n as f64).floor() as usize, (share * n as f64).ceil() as usize);
            for window in starts.windows(n) {
                let retries = retries_in(window);
                assert!((least..=most).contains(&retries), "{retries} of {n} at share {share}");
            }
        }
    }
}

#[test]
fn a_lane_alone_takes_every_start() {
    let mut share = Share::new(0.30);
    assert!((0..1_000).all(|_| choose(&mut share, false, true) == Some(Lane::Retries)));
    assert!((0..1_000).all(|_| choose(&mut share, true, false) == Some(Lane::Tasks)));
    assert_eq!(choose(&mut share, false, false), None);
}

#[test]
fn a_lane_that_was_empty_for_long_has_saved_up_one_start_and_no_more() {
    let mut share = Share::new(0.30);
    for _ in 0..10_000 {
        let _ = share.next(true, false);
    }
    let after = both_waiting(&mut share, 100);
    assert_eq!((after[0], retries_in(&after)), (Lane::Retries, 30));

    for _ in 0..10_000 {
        let _ = share.next(false, true);
    }
    let after = both_waiting(&mut share, 100);
    assert_eq!((after[0], retries_in(&after)), (Lane::Tasks, 30));
}

#[test]
fn no_configured_share_starves_a_lane() {
    for share in [0.0, 1.0, -5.0, 7.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let retries = retries_in(&both_waiting(&mut Share::new(share), 2_000));
        assert!((2..=1_998).contains(&retries), "{retries} of 2000 at {share}");
    }
}

/// `n` starts with both waiting, when the lanes' turns lead to a start only where `starts` says so.
fn starts_of(share: &mut Share, n: usize, mut starts: impl FnMut(Lane) -> bool) -> Vec<Lane> {
    let mut started = Vec::new();
    while started.len() < n {
        let turn = share.next(true, true).expect("both wait");
        if starts(turn.lane) {
            started.push(turn.lane);
        } else {
            share.undo(turn);
        }
    }
    started
}

#[test]
fn turns_without_a_start_cost_the_retries_nothing() {
    // Every second message in their lane is stale.
    let mut stale = false;
    let starts = starts_of(&mut Share::new(0.30), 1_000, |lane| {
        stale ^= lane == Lane::Retries;
        lane == Lane::Tasks || !stale
    });
    assert!((299..=300).contains(&retries_in(&starts)), "{}", retries_in(&starts));
}

#[test]
fn wake_ups_that_all_find_a_gate_shut_take_at_most_every_second_turn_from_new_tasks() {
    let mut turns = 0;
    starts_of(&mut Share::new(0.30), 1_000, |lane| {
        turns += 1;
        lane == Lane::Tasks
    });
    assert!(turns <= 2_001, "{turns} turns for 1,000 starts");
}

#[test]
fn a_flood_of_doubled_submissions_leaves_the_retries_their_turns() {
    let mut turns = 0;
    starts_of(&mut Share::new(0.30), 300, |lane| {
        turns += 1;
        lane == Lane::Retries
    });
    assert!(turns <= 1_000, "{turns} turns for 300 starts");
}

proptest! {
    #[test]
    fn it_never_leaves_a_place_empty_and_never_names_an_empty_lane(
        share in 0.0..1.0_f64, waiting in proptest::collection::vec(any::<(bool, bool)>(), 1..300)
    ) {
        let mut share = Share::new(share);
        for (tasks, retries) in waiting {
            match choose(&mut share, tasks, retries) {
                Some(Lane::Tasks) => prop_assert!(tasks),
                Some(Lane::Retries) => prop_assert!(retries),
                None => prop_assert!(!tasks && !retries),
            }
            prop_assert!((0..START).contains(&share.credit));
        }
    }

    /// Also when retries come one at a time, each finding their lane empty.
    #[test]
    fn while_new_tasks_wait_retries_take_their_share_and_no_more(
        permille in 1..1000_usize,
        before in proptest::collection::vec(any::<(bool, bool)>(), 0..100),
        retries in proptest::collection::vec(any::<bool>(), 1..300),
    ) {
        let mut share = Share::new(permille as f64 / 1000.0);
        for (tasks, retries) in before {
            let _ = share.next(tasks, retries);
        }
        let all_along = retries.iter().all(|waits| *waits);
        let taken: Vec<Lane> = retries.iter().filter_map(|waits| choose(&mut share, true, *waits)).collect();
        let (taken, earned) = (retries_in(&taken), permille * retries.len());
        prop_assert!(taken <= earned.div_ceil(1000), "{taken} of {}", retries.len());
        prop_assert!(!all_along || taken >= earned / 1000, "{taken} of {}", retries.len());
    }

    #[test]
    fn a_turn_taken_back_gives_back_what_it_cost_the_retries(
        share in 0.0..1.0_f64, waiting in proptest::collection::vec(any::<(bool, bool)>(), 0..100)
    ) {
        let mut share = Share::new(share);
        for (tasks, retries) in waiting {
            let _ = share.next(tasks, retries);
        }
        let turn = share.next(true, true).expect("both wait");
        let (lane, credit) = (turn.lane, share.credit);
        share.undo(turn);
        prop_assert_eq!(share.credit - credit, if lane == Lane::Retries { START - share.earns } else { 0 });
    }

    #[test]
    fn however_many_turns_are_taken_back_no_lane_is_shut_out_for_long(
        share in 0.01..0.99_f64, kept in proptest::collection::vec(any::<bool>(), 0..300)
    ) {
        let mut share = Share::new(share);
        let mut turns = Vec::new();
        for keep in kept {
            let turn = share.next(true, true).expect("both wait");
            if !keep {
                turns.push(turn);
            }
        }
        for turn in turns {
            share.undo(turn);
        }
        prop_assert!((0..=MOST_OWED).contains(&share.credit));
        let next = both_waiting(&mut share, 1_000);
        prop_assert!((1..1_000).contains(&retries_in(&next)));
    }

    #[test]
    fn a_line_is_by_boosted_priority_and_then_by_arrival(
        items in proptest::collection::vec((-2..12_i64, -1..6_i64), 0..100)
    ) {
        let mut line = Line::default();
        for (at, (priority, retry_count)) in items.iter().enumerate() {
            line.push(*priority, *retry_count, at);
        }
        prop_assert_eq!(line.len(), items.len());
        let mut wanted: Vec<usize> = (0..items.len()).collect();
        let level = |at: &usize| items[*at].0.clamp(0, 9) + items[*at].1.clamp(0, 3);
        wanted.sort_by_key(|at| -level(at));
        let came: Vec<usize> = std::iter::from_fn(|| line.pop()).collect();
        prop_assert_eq!(came, wanted);
        prop_assert!(line.is_empty());
    }

    #[test]
    fn what_is_old_leaves_every_level_and_the_rest_keeps_its_order(
        priorities in proptest::collection::vec(0..10_i64, 0..100), limit in 0..100_usize
    ) {
        let mut line = Line::default();
        for (at, priority) in priorities.iter().enumerate() {
            line.push(*priority, 0, at);
        }
        let mut old = line.drain_old(|at| *at < limit);
        old.sort_unstable();
        prop_assert_eq!(old, (0..priorities.len().min(limit)).collect::<Vec<_>>());
        line.retain(|at| at % 2 == 0);
        let rest: Vec<usize> = std::iter::from_fn(|| line.pop()).collect();
        let mut wanted: Vec<usize> = (limit..priorities.len()).filter(|at| at % 2 == 0).collect();
        wanted.sort_by_key(|at| -priorities[*at]);
        prop_assert_eq!(rest, wanted);
    }
}

/// What a run in virtual time showed.
#[derive(Debug)]
struct Seen {
    longest_wait_of_new_ms: f64,
    retries_started: usize,
    starts: usize,
    retries_left: usize,
}

/// New tasks and retries arrive at random, each at `load` of the capacity; `places` attempts at once, each `attempt_ms` long.
fn run(load: f64, places: usize, attempt_ms: f64, seconds: f64, seed: u64) -> Seen {
    let mut random = seed;
    let mut uniform = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 11) as f64 / (1_u64 << 53) as f64
    };
    let gap_ms = attempt_ms / places as f64 / load;
    let mut arrive = |at: f64| at - gap_ms * (1.0 - uniform()).ln();
    let mut next = [arrive(0.0), arrive(0.0)];
    let mut lines = [Line::default(), Line::default()];
    let mut free_at = vec![0.0_f64; places];
    let mut share = Share::new(0.30);
    let mut seen = Seen { longest_wait_of_new_ms: 0.0, retries_started: 0, starts: 0, retries_left: 0 };
    let end = seconds * 1000.0;
    loop {
        let (place, free) = free_at.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).expect("a place");
        // A place that nobody waits for is empty until somebody comes.
        let now = if lines.iter().all(Line::is_empty) { free.max(next[0].min(next[1])) } else { free };
        if now >= end {
            seen.retries_left = lines[1].len();
            return seen;
        }
        for lane in [0, 1] {
            while next[lane] <= now {
                lines[lane].push(0, 0, next[lane]);
                next[lane] = arrive(next[lane]);
            }
        }
        let lane = choose(&mut share, !lines[0].is_empty(), !lines[1].is_empty()).expect("somebody waits");
        let came = lines[usize::from(lane == Lane::Retries)].pop().expect("the lane that was named");
        match lane {
            Lane::Tasks => seen.longest_wait_of_new_ms = seen.longest_wait_of_new_ms.max(now - came),
            Lane::Retries => seen.retries_started += 1,
        }
        seen.starts += 1;
        free_at[place] = now + attempt_ms;
    }
}

/// Together they are 20 % more than there is room for. The retries' backlog grows by that; new tasks do not feel it. They wait for
/// some tens of starts at worst, when chance sends many at once, so the figure is for a worker of fifty starts a second or more.
#[test]
fn with_both_lanes_at_sixty_percent_of_capacity_new_tasks_wait_less_than_two_seconds() {
    for (places, attempt_ms) in [(1, 5.0), (1, 20.0), (16, 250.0), (64, 1_000.0)] {
        for seed in 0..5 {
            let seen = run(0.6, places, attempt_ms, 600.0, seed);
            let what = format!("{places} places, {attempt_ms} ms, seed {seed}: {seen:?}");
            assert!(seen.longest_wait_of_new_ms < 2_000.0, "{what}");
            let share = seen.retries_started as f64 / seen.starts as f64;
            assert!((0.37..0.43).contains(&share), "retries have all that new tasks leave: {what}");
            assert!(seen.retries_left > seen.starts / 10, "their backlog grows: {what}");
        }
    }
}
