use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::policy::{Backoff, Lists, Override, RetryAfterRule, Variant};
use crate::task::{Spec, Stamp, State};

const NOW: Millis = 1_000_000;

/// A task that runs its attempt `retry_count + 1`.
fn task(retry_count: i64) -> Task {
    let spec = Spec {
        id: "a".into(),
        task_type: "order.ship".into(),
        payload: "null".into(),
        labels: BTreeMap::new(),
        idempotency_key: None,
        priority: 0,
        cache_key: None,
        reply_to: None,
        trace: None,
        payload_hash: String::new(),
        submission_hash: None,
        created_at: NOW - 1000,
        raw: None,
        conflicts_with: None,
    };
    let mut state = State::pending(NOW);
    state.stamp = Stamp { generation: 0, retry_count };
    Task { spec: Arc::new(spec), state }
}

fn policy() -> Policy {
    Policy { backoff: Backoff::Steps(vec![100, 200]), max_retries: 2, ..Policy::built_in() }
}

fn with_rule(mode: RetryAfterMode, cap_ms: Millis, over_cap: OverCap) -> Policy {
    Policy { retry_after: RetryAfterRule { mode, cap_ms, over_cap }, ..policy() }
}

fn asked(delay_ms: Millis) -> Outcome {
    Outcome::Failure {
        failure: Failure::new(class::RATE_LIMITED, "slow down"),
        verdict: Verdict::ByPolicy,
        retry_after: Some(RetryAfter { delay_ms }),
        cost: None,
    }
}

/// The delay of a retry, or why it died.
fn of(task: &Task, outcome: &Outcome, policy: &Policy) -> Result<Millis, DeadReason> {
    match decide(task, outcome, policy, &BTreeSet::new(), NOW, 0.5) {
        Decision::Succeed => panic!("no success"),
        Decision::Retry { delay_ms, .. } => Ok(delay_ms),
        Decision::Die { reason, .. } => Err(reason),
    }
}

#[test]
fn a_success_is_a_success_even_at_the_last_attempt_and_past_the_deadline() {
    let mut task = task(99);
    task.state.deadline = Some(0);
    assert_eq!(decide(&task, &Outcome::success(), &policy(), &BTreeSet::new(), NOW, 0.5), Decision::Succeed);
}

#[test]
fn there_are_as_many_retries_as_the_budget_says_and_not_one_more() {
    let failure = Outcome::failure(class::NETWORK, "m");
    let all = |policy: &Policy| (0..5).map(|n| of(&task(n), &failure, policy)).collect::<Vec<_>>();
    let spent = Err(DeadReason::RetriesExhausted);
    assert_eq!(all(&policy()), [Ok(100), Ok(200), spent, spent, spent]);
    assert_eq!(all(&Policy { max_retries: 4, ..policy() }), [Ok(100), Ok(200), Ok(200), Ok(200), spent]);
    assert_eq!(all(&Policy { max_retries: 0, ..policy() })[0], spent);
    assert_eq!(all(&Policy { max_retries: -1, ..policy() })[0], spent);
    // A handler's word for another try spends from the same budget.
    assert_eq!(of(&task(2), &Outcome::retry("m"), &policy()), spent);
}

#[test]
fn the_default_waits_15_30_and_45_minutes() {
    let failure = Outcome::failure(class::TIMEOUT, "m");
    let built_in = Policy::built_in();
    let minutes: Vec<_> = (0..3).map(|n| of(&task(n), &failure, &built_in).unwrap() / 60_000).collect();
    assert_eq!(minutes, [15, 30, 45]);
    assert_eq!(of(&task(3), &failure, &built_in), Err(DeadReason::RetriesExhausted));
}

#[test]
fn a_permanent_failure_dies_at_once_with_budget_left() {
    assert_eq!(of(&task(0), &Outcome::failure(class::BAD_PAYLOAD, "m"), &policy()), Err(DeadReason::PermanentError));
    assert_eq!(of(&task(0), &Outcome::dead("m"), &policy()), Err(DeadReason::PermanentError));
    assert_eq!(of(&task(9), &Outcome::dead("m"), &policy()), Err(DeadReason::PermanentError));
}

#[test]
fn the_next_attempt_may_be_due_at_the_deadline_and_not_later() {
    let failure = Outcome::failure(class::NETWORK, "m");
    let with_deadline = |deadline| {
        let mut task = task(0);
        task.state.deadline = deadline;
        task
    };
    assert_eq!(of(&with_deadline(Some(NOW + 100)), &failure, &policy()), Ok(100));
    assert_eq!(of(&with_deadline(Some(NOW + 99)), &failure, &policy()), Err(DeadReason::DeadlineExceeded));
    assert_eq!(of(&with_deadline(Some(Millis::MIN)), &failure, &policy()), Err(DeadReason::DeadlineExceeded));
    assert_eq!(of(&with_deadline(Some(NOW + 119_999)), &asked(120_000), &policy()), Err(DeadReason::DeadlineExceeded));
    // The policy's runs from the task's creation, a second ago; the earlier one counts.
    let of_policy = |length| Policy { deadline_ms: Some(length), ..policy() };
    assert_eq!(of(&task(0), &failure, &of_policy(1100)), Ok(100));
    assert_eq!(of(&task(0), &failure, &of_policy(1099)), Err(DeadReason::DeadlineExceeded));
    assert_eq!(of(&with_deadline(Some(NOW + 99)), &failure, &of_policy(5000)), Err(DeadReason::DeadlineExceeded));
    assert_eq!(of(&with_deadline(Some(NOW + 5000)), &failure, &of_policy(1099)), Err(DeadReason::DeadlineExceeded));
    assert_eq!(of(&task(0), &failure, &of_policy(Millis::MAX)), Ok(100));
    // A person who replays an old task wants it run.
    let mut replayed = task(0);
    replayed.state.stamp.generation = 1;
    assert_eq!(of(&replayed, &failure, &of_policy(1)), Ok(100));
    // Spent budget is the better reason.
    assert_eq!(of(&task(2), &failure, &of_policy(1)), Err(DeadReason::RetriesExhausted));
}

#[test]
fn retry_after_does_what_the_policy_says() {
    use OverCap::{Cap, DeadLetter, Honour};
    use RetryAfterMode::{Exact, Floor, Ignore};
    let dead = Err(DeadReason::RetriesExhausted);
    let table = [
        // mode, cap, over the cap, asked for → waits (the computed delay is 100)
        (Exact, 500, Cap, 0, Ok(0)),
        (Exact, 500, Cap, 50, Ok(50)),
        (Exact, 500, Cap, 500, Ok(500)),
        (Exact, 500, Cap, 501, Ok(500)),
        (Exact, 500, Cap, Millis::MAX, Ok(500)),
        (Exact, 500, Cap, -5, Ok(0)),
        (Exact, 50, Cap, 70, Ok(50)),
        (Exact, 500, Honour, 501, Ok(501)),
        (Exact, 500, Honour, Millis::MAX, Ok(LONGEST_DELAY_MS)),
        (Exact, Millis::MAX, Cap, Millis::MAX, Ok(LONGEST_DELAY_MS)),
        (Exact, 500, DeadLetter, 500, Ok(500)),
        (Exact, 500, DeadLetter, 501, dead),
        (Floor, 500, Cap, 50, Ok(100)),
        (Floor, 500, Cap, 100, Ok(100)),
        (Floor, 500, Cap, 101, Ok(101)),
        (Floor, 500, Cap, 501, Ok(500)),
        (Floor, 50, Cap, 501, Ok(100)),
        (Floor, 50, Honour, 501, Ok(501)),
        (Floor, 50, DeadLetter, 100, Ok(100)),
        (Floor, 50, DeadLetter, 101, dead),
        (Ignore, 500, Cap, 400, Ok(100)),
        (Ignore, 500, DeadLetter, 501, Ok(100)),
    ];
    for (mode, cap_ms, over_cap, ms, expected) in table {
        let found = of(&task(0), &asked(ms), &with_rule(mode, cap_ms, over_cap));
        assert_eq!(found, expected, "{mode:?} {cap_ms} {over_cap:?} {ms}");
    }
}

#[test]
fn what_was_asked_and_why_it_waits_is_recorded() {
    let why = |policy: &Policy, ms| match decide(&task(0), &asked(ms), policy, &BTreeSet::new(), NOW, 0.5) {
        Decision::Retry { reason, .. } => reason,
        Decision::Die { failure, .. } => failure.message,
        Decision::Succeed => panic!("no success"),
    };
    assert_eq!(why(&policy(), 1500), "Retry-After 1500 ms");
    assert_eq!(why(&policy(), 120_001), "Retry-After 120001 ms, capped at 120000 ms");
    let floor = with_rule(RetryAfterMode::Floor, 500, OverCap::Cap);
    assert_eq!(why(&floor, 50), "policy \"default\": step 1 of 2; Retry-After 50 ms is shorter");
    let ignore = with_rule(RetryAfterMode::Ignore, 500, OverCap::Cap);
    assert_eq!(why(&ignore, 50), "policy \"default\": step 1 of 2; Retry-After 50 ms ignored");
    let strict = with_rule(RetryAfterMode::Exact, 500, OverCap::DeadLetter);
    assert_eq!(why(&strict, 3_600_000), "slow down; asked to wait 3600000 ms, the policy's cap is 500 ms");
}

#[test]
fn jitter_never_leads_below_a_floor_that_was_asked_for() {
    let backoff = Backoff::Exponential { base_ms: 1_000, max_ms: 60_000, multiplier: 2.0, jitter: 0.2 };
    let floor = Policy { backoff, ..with_rule(RetryAfterMode::Floor, 120_000, OverCap::Cap) };
    let waits = |random| match decide(&task(0), &asked(10_000), &floor, &BTreeSet::new(), NOW, random) {
        Decision::Retry { delay_ms, reason, .. } => (delay_ms, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(waits(0.0), (10_000, "Retry-After 10000 ms".into()));
    assert_eq!(waits(0.5), (11_000, "Retry-After 10000 ms, jitter + 1000 ms".into()));
}

#[test]
fn an_override_changes_delay_and_budget_for_its_failures_only() {
    let over = Override {
        class: Some(class::RATE_LIMITED.into()),
        code: None,
        http_status: None,
        backoff: Some(Backoff::Fixed(60_000)),
        max_retries: Some(1),
    };
    let rate_limited = Lists { codes: vec!["slow".into()], ..Lists::default() };
    let policy = Policy { overrides: vec![over], rate_limited, ..policy() };
    let network = Outcome::failure(class::NETWORK, "m");
    assert_eq!(
        [0, 1, 2].map(|n| of(&task(n), &network, &policy)),
        [Ok(100), Ok(200), Err(DeadReason::RetriesExhausted)]
    );
    // The class counts as ruled: a code that a list calls a rate limit is one.
    let limited = Outcome::failure(class::PLATFORM_CODE, "m").with_code("slow");
    assert_eq!([0, 1].map(|n| of(&task(n), &limited, &policy)), [Ok(60_000), Err(DeadReason::RetriesExhausted)]);
    let Decision::Retry { reason, .. } = decide(&task(0), &limited, &policy, &BTreeSet::new(), NOW, 0.5) else {
        panic!("a retry")
    };
    assert_eq!(reason, "policy \"default\", on class rate_limited: fixed delay");
}

#[test]
fn a_variant_has_its_own_delay_and_budget() {
    let variant = Variant { name: "fast".into(), weight: 1, backoff: Backoff::Fixed(7), max_retries: 1 };
    let policy = Policy { variants: vec![variant], ..policy() };
    let failure = Outcome::failure(class::NETWORK, "m");
    assert_eq!([0, 1].map(|n| of(&task(n), &failure, &policy)), [Ok(7), Err(DeadReason::RetriesExhausted)]);
}

#[test]
fn a_rate_limited_answer_holds_its_siblings_for_as_long_as_asked_within_the_cap() {
    let with = |mode, over_cap| with_rule(mode, 500, over_cap);
    let exact = with(RetryAfterMode::Exact, OverCap::Cap);
    let hold = |ms, policy: &Policy| hold_for(&asked(ms), policy);
    assert_eq!([0, -5, 499, 501].map(|ms| hold(ms, &exact)), [None, None, Some(499), Some(500)]);
    assert_eq!(hold(501, &with(RetryAfterMode::Floor, OverCap::DeadLetter)), Some(500));
    assert_eq!(hold(501, &with(RetryAfterMode::Exact, OverCap::Honour)), Some(501));
    assert_eq!(hold(Millis::MAX, &with(RetryAfterMode::Exact, OverCap::Honour)), Some(LONGEST_DELAY_MS));
    assert_eq!(hold(501, &with(RetryAfterMode::Ignore, OverCap::Honour)), None);
    // Only a rate limit speaks for the others too, and only one that says how long.
    let busy = Outcome::failure(class::SERVER_ERROR, "m").after(std::time::Duration::from_millis(100));
    assert_eq!(hold_for(&busy, &exact), None);
    assert_eq!(hold_for(&Outcome::failure(class::RATE_LIMITED, "m"), &exact), None);
    assert_eq!(hold_for(&Outcome::success(), &exact), None);
    let listed = Lists { classes: vec![class::SERVER_ERROR.into()], ..Lists::default() };
    assert_eq!(hold_for(&busy, &Policy { rate_limited: listed, ..exact }), Some(100));
}

#[test]
fn a_delay_that_is_a_rung_is_held_by_the_broker() {
    let rungs = BTreeSet::from([100, 200]);
    let on_rung = |outcome: &Outcome| match decide(&task(0), outcome, &policy(), &rungs, NOW, 0.5) {
        Decision::Retry { on_rung, .. } => on_rung,
        other => panic!("{other:?}"),
    };
    assert!(on_rung(&Outcome::failure(class::NETWORK, "m")));
    assert!(!on_rung(&asked(101)));
}

#[test]
fn the_failure_is_recorded_as_ruled() {
    let decision = decide(&task(0), &asked(1), &policy(), &BTreeSet::new(), NOW, 0.5);
    let Decision::Retry { failure, .. } = decision else { panic!("a retry") };
    assert!(failure.fingerprint.starts_with("v1-"));
    // A message that tells what was asked groups with those that do not.
    let strict = with_rule(RetryAfterMode::Exact, 0, OverCap::DeadLetter);
    let Decision::Die { failure: dead, .. } = decide(&task(0), &asked(1), &strict, &BTreeSet::new(), NOW, 0.5) else {
        panic!("dead")
    };
    assert_eq!(dead.fingerprint, failure.fingerprint);
}

#[test]
fn a_lost_worker_spends_a_retry_and_names_itself() {
    let mut lost = task(0);
    lost.state.worker = Some("w1".into());
    let Decision::Retry { failure, delay_ms, .. } = decide_lost(&lost, &policy(), &BTreeSet::new(), NOW, 0.5) else {
        panic!("a retry")
    };
    assert_eq!((failure.class.as_str(), delay_ms), ("worker_lost", 100));
    assert!(failure.message.contains("w1"));
    assert!(matches!(
        decide_lost(&task(2), &policy(), &BTreeSet::new(), NOW, 0.5),
        Decision::Die { reason: DeadReason::RetriesExhausted, .. }
    ));
}

proptest! {
    #[test]
    fn whatever_comes_nothing_overflows_and_no_budget_is_exceeded(
        retry_count in 0_i64..10,
        max_retries in any::<i64>(),
        backoff in prop_oneof![
            any::<i64>().prop_map(|step| Backoff::Steps(vec![step])),
            (any::<i64>(), any::<i64>(), any::<f64>(), any::<f64>()).prop_map(|(base_ms, max_ms, multiplier, jitter)| {
                Backoff::Exponential { base_ms, max_ms, multiplier, jitter }
            }),
        ],
        random in 0.0_f64..1.0,
        delay_ms in any::<i64>(),
        cap_ms in any::<i64>(),
        deadline in proptest::option::of(any::<i64>()),
        deadline_ms in proptest::option::of(any::<i64>()),
        now in any::<i64>(),
        mode in prop_oneof![Just(RetryAfterMode::Exact), Just(RetryAfterMode::Floor), Just(RetryAfterMode::Ignore)],
        over_cap in prop_oneof![Just(OverCap::Cap), Just(OverCap::Honour), Just(OverCap::DeadLetter)],
    ) {
        let policy = Policy {
            max_retries,
            deadline_ms,
            backoff,
            ..with_rule(mode, cap_ms, over_cap)
        };
        let mut task = task(retry_count);
        task.state.deadline = deadline;
        let asked_ms = delay_ms;
        match decide(&task, &asked(asked_ms), &policy, &BTreeSet::new(), now, random) {
            Decision::Retry { delay_ms, .. } => {
                prop_assert!(retry_count < max_retries);
                let kept = mode != RetryAfterMode::Ignore && asked_ms <= cap_ms.clamp(0, LONGEST_DELAY_MS);
                prop_assert!(!kept || delay_ms >= asked_ms, "never earlier than asked within the cap");
                prop_assert!((0..=LONGEST_DELAY_MS).contains(&delay_ms));
                prop_assert!(deadline.is_none_or(|deadline| now.saturating_add(delay_ms) <= deadline));
            }
            Decision::Die { .. } => {}
            Decision::Succeed => prop_assert!(false),
        }
    }
}

/// A task that waits for retry `retry_count` after `failure`.
fn waiting(retry_count: i64, failure: Failure) -> Task {
    let mut waiting = task(retry_count);
    waiting.state.failure = Some(failure);
    waiting
}

#[test]
fn a_waiting_task_whose_failure_is_permanent_now_is_not_called_again() {
    let coded = Failure { code: Some("closed".into()), ..Failure::new(class::RATE_LIMITED, "no") };
    let strict = Policy { permanent: Lists { codes: vec!["closed".into()], ..Lists::default() }, ..policy() };
    assert_eq!(rejudge(&waiting(1, coded.clone()), &policy()), None);
    let (reason, failure) = rejudge(&waiting(1, coded.clone()), &strict).unwrap();
    assert_eq!(reason, DeadReason::PermanentError);
    let message = "no; not called again: policy \"default\" now says code closed is listed as permanent";
    assert_eq!((failure.message.as_str(), failure.class.as_str()), (message, class::RATE_LIMITED));
    // A class that no list makes retryable any more.
    let platform = Failure::new(class::PLATFORM_CODE, "m");
    assert_eq!(rejudge(&waiting(1, platform.clone()), &policy()).unwrap().0, DeadReason::PermanentError);
    let lenient =
        Policy { retryable: Lists { classes: vec![class::PLATFORM_CODE.into()], ..Lists::default() }, ..policy() };
    assert_eq!(rejudge(&waiting(1, platform), &lenient), None);
    // First attempts and first attempts of a replay have nothing to be judged by.
    assert_eq!(rejudge(&waiting(0, coded), &strict), None);
    assert_eq!(rejudge(&task(1), &strict), None);
}

#[test]
fn a_retry_that_the_handler_asked_for_is_taken_away_by_the_budget_only() {
    let Decision::Retry { by_handler, failure, .. } =
        decide(&task(0), &Outcome::retry("m").with_class(class::BAD_PAYLOAD), &policy(), &BTreeSet::new(), NOW, 0.5)
    else {
        panic!("a retry")
    };
    assert!(by_handler);
    let mut asked_for = waiting(1, failure);
    asked_for.state.retry_by_handler = true;
    assert_eq!(rejudge(&asked_for, &policy()), None);
    let none_left = Policy { max_retries: 0, ..policy() };
    assert_eq!(rejudge(&asked_for, &none_left).unwrap().0, DeadReason::RetriesExhausted);
}

#[test]
fn a_waiting_task_whose_budget_is_spent_now_is_not_called_again() {
    let network = || Failure::new(class::NETWORK, "m");
    let with = |max_retries| Policy { max_retries, ..policy() };
    assert_eq!(rejudge(&waiting(2, network()), &with(2)), None, "the last retry that is left");
    let (reason, failure) = rejudge(&waiting(2, network()), &with(1)).unwrap();
    assert_eq!(reason, DeadReason::RetriesExhausted);
    assert_eq!(failure.message, "m; not called again: policy \"default\" now allows 1 retries");
}
