//! `decide`: budget, deadline, Retry-After.

use std::collections::BTreeSet;
use std::sync::Arc;

use redeliver::policy::{Backoff, OverCap, Policy, RetryAfterMode, RetryAfterRule};
use redeliver::task::{
    DeadReason, Decision, Millis, Outcome, RetryAfter, Stamp, State, Task, Verdict, decide, decide_lost,
};

use crate::desk::{MINUTE, MORNING, SECOND, failure, spec, stamp};

fn task(stamp: Stamp, deadline: Option<Millis>) -> Task {
    let mut state = State::pending(MORNING);
    (state.stamp, state.deadline) = (stamp, deadline);
    Task { spec: Arc::new(spec("task", "task", "1")), state }
}

fn failed(asked_ms: Option<Millis>) -> Outcome {
    Outcome::Failure {
        failure: failure(),
        verdict: Verdict::ByPolicy,
        retry_after: asked_ms.map(|delay_ms| RetryAfter { delay_ms }),
        cost: None,
    }
}

fn rule(mode: RetryAfterMode, over_cap: OverCap) -> Policy {
    Policy { retry_after: RetryAfterRule { mode, cap_ms: 2 * MINUTE, over_cap }, ..Policy::built_in() }
}

fn delay(policy: &Policy, asked_ms: Millis) -> Option<Millis> {
    match decide(&task(Stamp::FIRST, None), &failed(Some(asked_ms)), policy, &policy_rungs(policy), MORNING, 0.5) {
        Decision::Retry { delay_ms, .. } => Some(delay_ms),
        Decision::Die { .. } | Decision::Succeed => None,
    }
}

fn policy_rungs(policy: &Policy) -> BTreeSet<Millis> {
    policy.backoff.rungs().into_iter().collect()
}

fn reason(decision: Decision) -> Option<DeadReason> {
    if let Decision::Die { reason, .. } = decision { Some(reason) } else { None }
}

#[test]
fn the_default_waits_15_30_and_45_minutes_on_rungs_and_then_gives_up() {
    let policy = Policy::built_in();
    let waits: Vec<_> = (0..4)
        .map(|spent| decide(&task(stamp(0, spent), None), &failed(None), &policy, &policy_rungs(&policy), MORNING, 0.5))
        .map(|decision| match decision {
            Decision::Retry { delay_ms, on_rung: true, .. } => delay_ms / MINUTE,
            Decision::Die { reason: DeadReason::RetriesExhausted, .. } => -1,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(waits, [15, 30, 45, -1]);
}

#[test]
fn a_retry_count_beyond_the_budget_dies_whatever_it_is() {
    let policy = Policy::built_in();
    for spent in [3, 4, i64::MAX] {
        let decision = decide(&task(stamp(0, spent), None), &failed(None), &policy, &BTreeSet::new(), MORNING, 0.5);
        assert_eq!(reason(decision), Some(DeadReason::RetriesExhausted));
    }
}

#[test]
fn a_lost_worker_spends_the_attempt() {
    let policy = Policy { max_retries: 0, ..Policy::built_in() };
    let decision = decide_lost(&task(Stamp::FIRST, None), &policy, &BTreeSet::new(), MORNING, 0.5);
    assert_eq!(reason(decision), Some(DeadReason::RetriesExhausted));
}

#[test]
fn a_delay_that_is_no_rung_is_held_by_the_store() {
    let policy = Policy { backoff: Backoff::Fixed(7 * SECOND), ..Policy::built_in() };
    let decision = decide(&task(Stamp::FIRST, None), &failed(None), &policy, &[8 * SECOND].into(), MORNING, 0.5);
    assert!(matches!(decision, Decision::Retry { on_rung: false, .. }));
}

#[test]
fn a_due_time_beyond_the_deadline_kills_now_and_one_on_it_does_not() {
    let policy = Policy { backoff: Backoff::Fixed(MINUTE), ..Policy::built_in() };
    let at =
        |deadline| decide(&task(Stamp::FIRST, Some(deadline)), &failed(None), &policy, &BTreeSet::new(), MORNING, 0.5);
    assert_eq!(reason(at(MORNING + MINUTE)), None);
    assert_eq!(reason(at(MORNING + MINUTE - 1)), Some(DeadReason::DeadlineExceeded));
    assert_eq!(reason(at(i64::MIN)), Some(DeadReason::DeadlineExceeded));
    assert_eq!(reason(at(i64::MAX)), None);
}

#[test]
fn a_policys_deadline_holds_for_the_first_generation_only() {
    let policy = Policy { deadline_ms: Some(SECOND), ..Policy::built_in() };
    let of =
        |generation| decide(&task(stamp(generation, 0), None), &failed(None), &policy, &BTreeSet::new(), MORNING, 0.5);
    assert_eq!(reason(of(0)), Some(DeadReason::DeadlineExceeded));
    assert_eq!(reason(of(1)), None);
}

#[test]
fn retry_after_within_the_cap_is_never_earlier_than_asked() {
    for asked in [0, 1, SECOND, 2 * MINUTE] {
        assert_eq!(delay(&rule(RetryAfterMode::Exact, OverCap::Cap), asked), Some(asked));
        let floored = delay(&rule(RetryAfterMode::Floor, OverCap::Cap), asked).expect("a retry");
        assert_eq!(floored, asked.max(15 * MINUTE));
    }
}

#[test]
fn retry_after_beyond_the_cap_is_capped_honoured_or_fatal() {
    let asked = 3 * MINUTE;
    assert_eq!(delay(&rule(RetryAfterMode::Exact, OverCap::Cap), asked), Some(2 * MINUTE));
    assert_eq!(delay(&rule(RetryAfterMode::Exact, OverCap::Honour), asked), Some(asked));
    assert_eq!(delay(&rule(RetryAfterMode::Exact, OverCap::DeadLetter), asked), None);
    assert_eq!(
        delay(&rule(RetryAfterMode::Exact, OverCap::Honour), i64::MAX),
        Some(3650 * 24 * 60 * MINUTE),
        "ten years are for ever"
    );
    assert_eq!(delay(&rule(RetryAfterMode::Floor, OverCap::Cap), 20 * MINUTE), Some(15 * MINUTE));
    assert_eq!(delay(&rule(RetryAfterMode::Ignore, OverCap::DeadLetter), asked), Some(15 * MINUTE));
}

/// Found here: the field is public, and a negative wait went through as it was.
#[test]
fn a_negative_retry_after_is_none_at_all() {
    for mode in [RetryAfterMode::Exact, RetryAfterMode::Floor, RetryAfterMode::Ignore] {
        for asked in [-1, i64::MIN] {
            assert!(delay(&rule(mode, OverCap::Cap), asked).is_some_and(|delay| delay >= 0));
        }
    }
}
