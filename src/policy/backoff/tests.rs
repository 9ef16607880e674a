use proptest::prelude::*;

use super::*;

fn exponential(base_ms: Millis, max_ms: Millis, multiplier: f64, jitter: f64) -> Backoff {
    Backoff::Exponential { base_ms, max_ms, multiplier, jitter }
}

#[test]
fn steps_are_taken_in_order_and_the_last_one_stays() {
    let steps = Backoff::Steps(vec![10, 20, 30]);
    let delays: Vec<Millis> = [1, 2, 3, 4, 1000, i64::MAX].into_iter().map(|n| steps.delay(n, 0.9).0).collect();
    assert_eq!(delays, [10, 20, 30, 30, 30, 30]);
    assert_eq!(steps.delay(2, 0.0).1, "step 2 of 3");
    assert_eq!(steps.delay(9, 0.0).1, "step 3 of 3");
    assert_eq!(steps.bounds(2), (20, 20));
    assert_eq!(steps.natural_retries(), 3);
    assert_eq!(steps.rungs(), [10, 20, 30]);
}

#[test]
fn a_fixed_delay_is_always_the_same() {
    let fixed = Backoff::Fixed(5);
    let expected = (5, "fixed delay".to_owned());
    assert_eq!((fixed.delay(1, 0.0), fixed.delay(i64::MAX, 0.99)), (expected.clone(), expected));
    assert_eq!((fixed.bounds(7), fixed.natural_retries(), fixed.rungs()), ((5, 5), 3, vec![5]));
}

#[test]
fn an_exponential_backoff_grows_by_its_multiplier_up_to_its_maximum() {
    let shipping = exponential(2_000, 30_000, 1.5, 0.0);
    let delays: Vec<Millis> = (1..=9).map(|n| shipping.delay(n, 0.5).0).collect();
    assert_eq!(delays, [2_000, 3_000, 4_500, 6_750, 10_125, 15_188, 22_781, 30_000, 30_000]);
    assert_eq!(shipping.delay(3, 0.5).1, "exponential, retry 3 of 4500 ms");
    assert_eq!((shipping.natural_retries(), shipping.rungs()), (3, Vec::new()));
    // ×1 is a fixed delay, also where a power would be slow or infinite.
    assert_eq!(exponential(10_000, 120_000, 1.0, 0.0).delay(i64::MAX, 0.5).0, 10_000);
    assert_eq!(exponential(0, 120_000, 2.0, 0.0).delay(i64::MAX, 0.5).0, 120_000);
}

#[test]
fn jitter_spreads_evenly_over_twenty_percent_and_never_beyond_the_maximum() {
    let backoff = exponential(1_000, 60_000, 2.0, 0.2);
    assert_eq!([0.0, 0.5, 0.999_999].map(|random| backoff.delay(1, random).0), [800, 1_000, 1_200]);
    assert_eq!(backoff.delay(1, 0.25), (900, "exponential, retry 1 of 1000 ms, jitter 800 to 1200 ms".into()));
    assert_eq!(backoff.bounds(1_000_000), (48_000, 60_000));
    // At the maximum the tasks are spread over what is left, instead of half of them meeting there.
    assert_eq!([0.0, 0.5, 0.999_999].map(|random| backoff.delay(99, random).0), [48_000, 54_000, 60_000]);
}

#[test]
fn where_a_floor_must_hold_jitter_goes_upward_only() {
    let backoff = exponential(1_000, 60_000, 2.0, 0.2);
    assert_eq!([0.0, 0.5, 0.999_999].map(|random| backoff.at_least(10_000, 120_000, random)), [10_000, 11_000, 12_000]);
    // Not beyond the given most, nor the backoff's own maximum, and not below the floor because of either.
    assert_eq!(backoff.at_least(10_000, 10_500, 0.999_999), 10_500);
    assert_eq!(backoff.at_least(58_000, 120_000, 0.999_999), 60_000);
    assert_eq!(backoff.at_least(90_000, 120_000, 0.999_999), 90_000);
    assert_eq!(backoff.at_least(90_000, 0, 0.999_999), 90_000);
    assert_eq!(backoff.at_least(-1, 100, 0.5), 0);
    assert_eq!(Backoff::Fixed(5).at_least(70, 100, 0.9), 70);
}

fn any_backoff() -> impl Strategy<Value = Backoff> {
    prop_oneof![
        proptest::collection::vec(any::<i64>(), 0..5).prop_map(Backoff::Steps),
        any::<i64>().prop_map(Backoff::Fixed),
        (any::<i64>(), any::<i64>(), any::<f64>(), any::<f64>())
            .prop_map(|(base, max, by, jitter)| exponential(base, max, by, jitter)),
        (1_i64..1_000_000, 0_i64..10_000_000, 1.0_f64..10.0, 0.0_f64..=1.0)
            .prop_map(|(base, more, by, jitter)| exponential(base, base + more, by, jitter)),
    ]
}

proptest! {
    #[test]
    fn every_delay_is_within_its_bounds_and_no_n_overflows(
        backoff in any_backoff(),
        n in prop_oneof![0_i64..=1_000_000, any::<i64>()],
        random in 0.0_f64..1.0,
        floor in any::<i64>(),
        most in any::<i64>(),
    ) {
        let (least, longest) = backoff.bounds(n);
        let (delay, _) = backoff.delay(n, random);
        prop_assert!(0 <= least && least <= delay && delay <= longest);
        let ceiling = match &backoff {
            Backoff::Steps(steps) => steps.iter().copied().max().unwrap_or(0),
            Backoff::Fixed(delay) => *delay,
            Backoff::Exponential { max_ms, .. } => *max_ms,
        };
        prop_assert!(longest <= ceiling.max(0));
        let floored = backoff.at_least(floor, most, random);
        prop_assert!(floored >= floor.max(0) && floored <= floor.max(0).max(most.min(ceiling)));
    }

    #[test]
    fn without_jitter_no_later_retry_waits_less(
        base in 1_i64..1_000_000, more in 0_i64..100_000_000, by in 1.0_f64..5.0, n in 1_i64..1_000_000
    ) {
        let backoff = exponential(base, base + more, by, 0.0);
        prop_assert!(backoff.delay(n, 0.3).0 <= backoff.delay(n + 1, 0.7).0);
    }
}
