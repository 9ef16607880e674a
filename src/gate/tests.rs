//! Properties of the gates: whatever happens, in whatever order.

use proptest::prelude::*;

use crate::task::Millis;

use super::ramp::{Ramp, seed};
use super::*;

const MORNING: Millis = 1_700_000_000_000;

fn breaker() -> BreakerRule {
    BreakerRule {
        name: "shop".into(),
        per: Per::default(),
        consecutive_same: Some(3),
        consecutive: Some(5),
        failure_rate: Some(FailureRate { permille: 500, window_ms: 60_000, min: 20 }),
        ignore: Vec::new(),
        open_for_ms: 60_000,
        open_for_max_ms: 600_000,
        probes: 2,
        when_open: WhenOpen::Park,
        park_max_ms: 86_400_000,
    }
}

proptest! {
    #[test]
    fn no_window_sees_more_starts_than_its_rate_burst_and_one_late_look_allow(
        count in 1_i64..500,
        per_ms in prop::sample::select(vec![1_000_i64, 60_000, 3_600_000]),
        burst in 1_i64..6,
        steps in prop::collection::vec((0_i64..400, 1_usize..8), 1..200),
    ) {
        let rate = Rate { count, per_ms };
        let interval = per_ms as f64 / count as f64;
        let (mut cell, mut now, mut starts) = (Cell::RESTED, MORNING, Vec::new());
        for (pause, wanted) in steps {
            now += pause;
            for _ in 0..wanted {
                if cell.room(rate, burst, now) == 0 {
                    prop_assert!(cell.opens_at(rate, burst, now) > now);
                    break;
                }
                cell.take(rate, burst, now);
                starts.push(now);
            }
        }
        for (i, from) in starts.iter().enumerate() {
            for (j, to) in starts.iter().enumerate().skip(i) {
                let most = burst as f64 + ((to - from) as f64 + 50.0) / interval;
                prop_assert!((j - i + 1) as f64 <= most + 0.001, "{} starts in {} ms", j - i + 1, to - from);
            }
        }
    }

    #[test]
    fn a_limit_is_never_shut_for_longer_than_a_full_burst_takes_whatever_clock_and_config_do(
        written in (1_i64..500, 1_i64..6, 0_i64..10),
        read in (1_i64..500, 1_i64..6),
        set_back in -10_000_000_i64..10_000_000,
    ) {
        let (old, new) = (Rate { count: written.0, per_ms: 60_000 }, Rate { count: read.0, per_ms: 60_000 });
        let mut cell = Cell::RESTED;
        for _ in 0..written.2 {
            cell.take(old, written.1, MORNING);
        }
        let now = MORNING - set_back;
        let longest = 60_000 / new.count + 1;
        let opens_at = cell.opens_at(new, read.1, now);
        prop_assert!(opens_at <= now + longest, "{} ms", opens_at - now);
        prop_assert!(cell.room(new, read.1, opens_at) >= 1, "open when it said so, not a full burst after whenever one looks");
    }

    #[test]
    fn what_says_that_it_opens_is_open_then(count in 1_i64..5_000, burst in 1_i64..20, taken in 0_i64..40) {
        let rate = Rate { count, per_ms: 60_000 };
        let mut cell = Cell::RESTED;
        for _ in 0..taken {
            if cell.room(rate, burst, MORNING) > 0 {
                cell.take(rate, burst, MORNING);
            }
        }
        let opens_at = cell.opens_at(rate, burst, MORNING);
        prop_assert!(cell.room(rate, burst, opens_at) >= 1);
        prop_assert!(opens_at <= MORNING || cell.room(rate, burst, opens_at - 1) == 0);
    }

    #[test]
    fn a_return_lets_no_group_start_before_its_time_and_ends(key in "[a-z]{1,8}", step in 1_i64..5_000, looks in prop::collection::vec(1_i64..700, 1..400)) {
        let (mut ramp, mut now) = (Ramp::new(MORNING), MORNING);
        for pause in looks {
            now += pause;
            let Some(room) = ramp.room(step, seed(&key), now) else {
                prop_assert!(now - MORNING >= 11 * step, "over too early");
                break;
            };
            ramp.started += room;
            let groups = (now - MORNING) / step + 1;
            prop_assert!(ramp.started < 1 << groups.min(40), "{} after {} ms", ramp.started, now - MORNING);
            let opens_at = ramp.opens_at(step, seed(&key), now);
            prop_assert!(opens_at > now && ramp.room(step, seed(&key), opens_at) != Some(0));
        }
        prop_assert_eq!(ramp.room(step, seed(&key), MORNING + 12 * step), None);
    }

    #[test]
    fn a_breaker_keeps_its_bounds_whatever_the_order_of_events(
        events in prop::collection::vec((0_u8..6, 0_i64..40_000, 0_usize..8), 1..400),
    ) {
        let rule = breaker();
        let mut breaker = Breaker::default();
        let (mut now, mut fence) = (MORNING, 0);
        // What runs: place and epoch.
        let mut running: Vec<(Place, i64)> = Vec::new();
        for (kind, pause, which) in events {
            now += pause;
            let before = breaker.clone();
            if kind < 2 {
                if let Look::Open { .. } = breaker.look(&rule, now) {
                    if let Phase::Open { until, .. } = breaker.phase {
                        prop_assert!(now >= until, "ran in the cool-down");
                    }
                    fence += 1;
                    let place = ("task".to_owned(), fence);
                    let probe = breaker.take(place.clone(), which % 2 == 0);
                    prop_assert_eq!(probe, breaker.phase == Phase::HalfOpen);
                    running.push((place, breaker.epoch));
                }
            } else if !running.is_empty() {
                let (place, epoch) = running.swap_remove(which % running.len());
                let evidence = match kind {
                    2 => Evidence::Success,
                    3 => Evidence::Nothing,
                    _ => Evidence::Failure { fingerprint: if which % 2 == 0 { "a" } else { "b" } },
                };
                let turn = breaker.settle(&rule, epoch, &place, evidence, now);
                prop_assert!(!breaker.holds(&place), "an ended claim keeps a place");
                if epoch != before.epoch || evidence == Evidence::Nothing {
                    prop_assert_eq!(turn, None, "it says nothing");
                    prop_assert_eq!(breaker.phase, before.phase);
                }
            }
            prop_assert!(breaker.epoch >= before.epoch);
            prop_assert!(breaker.probes.len() <= 2);
            prop_assert!(breaker.probes.iter().all(|place| running.iter().any(|(held, _)| held == place)));
            if let Phase::Open { since, until } = breaker.phase {
                prop_assert!((60_000..=600_000).contains(&(until - since)));
            }
            prop_assert!(breaker.phase != Phase::Closed || breaker.back.is_some() || breaker.same < 3 && breaker.in_a_row < 5);
            if let Some(back) = &breaker.back {
                prop_assert!((1..=1024).contains(&back.window));
            }
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written(tat in 0_i64..5, probes in 0_i64..3) {
        let mut cell = Cell::RESTED;
        for _ in 0..tat {
            cell.take(Rate { count: 1, per_ms: 1_000 }, 10, MORNING);
        }
        let mut open = Breaker::default();
        open.obey(PersonsWord { open: true, by: "me".into(), reason: None, at: MORNING });
        for fence in 0..probes {
            open.probes.insert(("a/b".into(), fence));
        }
        for state in [GateState::Limit(cell), GateState::Breaker(open), hold(None, MORNING + 5, MORNING)] {
            let text = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(serde_json::from_str::<GateState>(&text).unwrap(), state, "{}", text);
        }
    }
}

#[test]
fn one_of_a_kind_starts_before_the_second_of_a_thousand() {
    let mut held: Vec<(&str, Millis)> = (0..1000).map(|i| ("label.shop=big", i)).collect();
    held.push(("label.shop=small", 5_000));
    let order = in_turns(held.clone(), "", |held| *held);
    assert_eq!(order[..3], [("label.shop=big", 0), ("label.shop=small", 5_000), ("label.shop=big", 1)]);
    let order = in_turns(held, "label.shop=big", |held| *held);
    assert_eq!(order[0], ("label.shop=small", 5_000), "it was big's turn last");
}

#[test]
fn a_key_says_exactly_one_thing() {
    let labels = [("shop".to_owned(), "a/b=c,d%".to_owned())].into();
    let subject = Subject { task_type: "order.ship", queue: "default", labels: &labels };
    let per = |words: &[&str]| Per(words.iter().map(|word| Word::parse(word).unwrap()).collect());
    let gates = Gates {
        limits: vec![
            LimitRule {
                name: "global".into(),
                per: per(&[]),
                calls: false,
                kind: LimitKind::Rate { rate: Rate { count: 1, per_ms: 1 }, burst: 1 },
            },
            LimitRule {
                name: "per/shop".into(),
                per: per(&["label.shop"]),
                calls: false,
                kind: LimitKind::Rate { rate: Rate { count: 1, per_ms: 1 }, burst: 1 },
            },
        ],
        breakers: vec![BreakerRule { per: per(&["type"]), ..breaker() }],
        ..Gates::default()
    };
    let way = gates.way(subject, true);
    let keys: Vec<&str> = way.gates.iter().map(|gate| gate.key.as_str()).collect();
    let shop = "label.shop=a%2Fb%3Dc%2Cd%25";
    assert_eq!(
        keys,
        [
            "limit/global",
            &format!("limit/per%2Fshop/{shop}"),
            "breaker/shop/type=order.ship",
            &format!("hold/retry-after/{shop}"),
        ]
    );
    assert_eq!(way.turn, shop, "labels before types");
    for key in keys {
        assert!(gates.knows(key) && gates.rule(key).is_some(), "{key}");
    }
    assert!(!gates.knows("limit/gone") && !gates.knows("pause queue default") && !gates.knows("breaker/shop2/x"));
    let first = gates.way(subject, false);
    assert!(first.gates.iter().all(|gate| !gate.key.starts_with("limit/")), "retry limits see retries only");
    let nowhere = Subject { labels: &std::collections::BTreeMap::new(), ..subject };
    assert!(gates.way(nowhere, true).gates.iter().all(|gate| !gate.key.contains("label.shop")));
}
