use proptest::prelude::*;

use super::*;

#[test]
fn steps_are_taken_in_order_and_the_last_one_stays() {
    let steps = Backoff::Steps(vec![10, 20, 30]);
    let delays: Vec<Millis> = [1, 2, 3, 4, 1000, i64::MAX].into_iter().map(|n| steps.delay(n).0).collect();
    assert_eq!(delays, [10, 20, 30, 30, 30, 30]);
    assert_eq!(steps.delay(2).1, "step 2 of 3");
    assert_eq!(steps.delay(9).1, "step 3 of 3");
    assert_eq!(steps.natural_retries(), 3);
    assert_eq!(steps.rungs(), [10, 20, 30]);
}

#[test]
fn a_fixed_delay_is_always_the_same() {
    let fixed = Backoff::Fixed(5);
    assert_eq!((fixed.delay(1), fixed.delay(i64::MAX)), ((5, "fixed delay".into()), (5, "fixed delay".into())));
    assert_eq!((fixed.natural_retries(), fixed.rungs()), (3, vec![5]));
}

proptest! {
    #[test]
    fn no_delay_is_negative_and_no_n_overflows(
        steps in proptest::collection::vec(any::<i64>(), 0..5), fixed in any::<i64>(), n in any::<i64>()
    ) {
        let longest = steps.iter().copied().max().unwrap_or(0).max(0);
        let (delay, _) = Backoff::Steps(steps).delay(n);
        prop_assert!((0..=longest).contains(&delay));
        prop_assert_eq!(Backoff::Fixed(fixed).delay(n).0, fixed.max(0));
    }
}
