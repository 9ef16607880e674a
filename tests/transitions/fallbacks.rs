//! Ends by something that is not the real thing (F1), and what is remembered for them.

use std::sync::Arc;

use redeliver::policy::{Backoff, Fallback, Policies, Policy};
use redeliver::task::{
    Answer, Cached, Changes, Claimant, Command, DeadReason, Decision, Degraded, DlqCopy, Ending, Settlement, Spec,
    Status, TaskResult, canonical_payload_hash,
};

use crate::desk::{Desk, ID, SECOND, anybody, check_row, die, failure, retry_in_store, spec, stamp};

fn result(text: &str) -> TaskResult {
    TaskResult { media_type: "text/plain".into(), body: text.into(), truncated: false }
}

fn by_cache() -> Degraded {
    Degraded { by: "cache".into(), result: result("old") }
}

/// Settles the running task of the desk, and tells what a store would have to write.
fn settle(desk: &mut Desk, settlement: Settlement) -> Changes {
    let fence = desk.row().fence;
    let command = Command::Settle { id: ID.into(), fence, settlement: Box::new(settlement) };
    let answer = desk.rows.apply(&command, desk.now, &desk.settings);
    assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
    desk.rows.take_changes()
}

#[test]
fn a_death_with_a_fallback_is_a_degraded_success_that_keeps_its_last_failure() {
    let mut desk = Desk::with_running();
    let settlement =
        Settlement { fallback: Some(by_cache()), ..Settlement::new("w", die(DeadReason::RetriesExhausted)) };
    let changes = settle(&mut desk, settlement);
    let row = desk.row();
    check_row(row).expect("a whole row");
    assert_eq!((row.status, row.dead_reason, row.dlq_copy), (Status::Succeeded, None, DlqCopy::None));
    assert_eq!((row.degraded.as_deref(), row.failure.as_ref()), (Some("cache"), Some(&failure())));
    assert_eq!(changes.results, [(ID.to_owned(), result("old"))]);
    assert_eq!(changes.cached, [], "what came from the cache does not go back as new");
    assert_eq!(changes.attempts.len(), 1);
}

#[test]
fn a_fallback_stands_by_and_ends_nothing_that_goes_on_or_succeeds() {
    for decision in [Decision::Succeed, retry_in_store(SECOND)] {
        let mut desk = Desk::with_running();
        settle(&mut desk, Settlement { fallback: Some(by_cache()), ..Settlement::new("w", decision) });
        assert_eq!(desk.row().degraded, None);
    }
}

#[test]
fn only_a_success_that_is_the_real_thing_is_remembered() {
    let remembered = |decision: Decision, degraded: Option<&str>, brought: Option<TaskResult>| {
        let mut desk = Desk::with_running();
        let settlement = Settlement {
            remember: Some("key".into()),
            degraded: degraded.map(str::to_owned),
            result: brought,
            ..Settlement::new("w", decision)
        };
        let cached = settle(&mut desk, settlement).cached;
        (cached, desk.row().degraded.clone(), desk.now)
    };
    let (cached, degraded, now) = remembered(Decision::Succeed, None, Some(result("good")));
    let wanted = Cached { task_type: "order.ship".into(), key: "key".into(), result: result("good"), stored_at: now };
    assert_eq!((cached, degraded), (vec![wanted], None));
    let (cached, degraded, _) = remembered(Decision::Succeed, Some("defaults"), Some(result("filled in")));
    assert_eq!((cached, degraded.as_deref()), (vec![], Some("defaults")));
    assert_eq!(remembered(Decision::Succeed, None, None).0, [], "there is nothing to remember");
    assert_eq!(remembered(die(DeadReason::RetriesExhausted), None, None).0, []);
    assert_eq!(remembered(retry_in_store(SECOND), None, None).0, []);
}

#[test]
fn equal_payloads_share_a_cache_key_however_they_came_in_and_the_producers_own_key_wins() {
    let spec = |payload: &str| Spec { payload_hash: String::new(), ..spec("a", "a", payload) };
    let (one, other) = (spec(r#"{"a":1,"b":[2]}"#), spec(r#"{ "b": [2], "a": 1 }"#));
    assert_eq!(one.cached_as(), other.cached_as(), "rows that others inserted have no stored hash");
    let submitted = Spec { payload_hash: canonical_payload_hash(&one.task_type, &one.payload), ..one.clone() };
    assert_eq!(submitted.cached_as(), one.cached_as());
    assert_ne!(spec("2").cached_as(), one.cached_as());
    assert_eq!(Spec { cache_key: Some("sku 7".into()), ..one }.cached_as(), "sku 7");
}

#[test]
fn a_retry_that_the_policies_in_force_no_longer_allow_is_left_to_their_fallbacks() {
    let answer_under = |fallback: Vec<Fallback>, critical: bool| {
        let mut desk = Desk::with_running();
        let fence = desk.row().fence;
        let _: Answer = desk.settle(fence, retry_in_store(SECOND));
        desk.pass_time(SECOND);
        let policy = Policy {
            max_retries: 0,
            backoff: Backoff::Fixed(SECOND),
            default_result: Some(serde_json::json!("instead")),
            fallback,
            critical,
            ..Policy::built_in()
        };
        let policies = Some(Arc::new(Policies::new(vec![policy])));
        let claimant = Claimant { policies, ..anybody() };
        let answer = desk.apply(Command::Claim { id: ID.into(), stamp: stamp(0, 1), claimant: Some(claimant) });
        (answer, desk)
    };
    let (answer, mut desk) = answer_under(vec![Fallback::Cache, Fallback::Default], false);
    let Answer::Spent { task, failure } = answer else { panic!("{answer:?}") };
    assert_eq!((task.state.status, failure.class.as_str()), (Status::RetryWaiting, "timeout"));
    assert!(desk.row().wake_at.is_some_and(|at| at > desk.now), "an alarm, should the worker die now");
    let ending = Ending::Degraded { degraded: by_cache(), failure: *failure };
    let answer = desk.apply(Command::Intercept { id: ID.into(), stamp: stamp(0, 1), ending });
    assert!(matches!(answer, Answer::Degraded(_)), "{answer:?}");
    check_row(desk.row()).expect("a whole row");

    for (fallback, critical) in [(vec![], false), (vec![Fallback::Queue], false), (vec![Fallback::Default], true)] {
        let (answer, desk) = answer_under(fallback.clone(), critical);
        assert!(matches!(answer, Answer::Dead(_)), "{fallback:?}, critical {critical}: {answer:?}");
        assert_eq!(desk.row().dead_reason, Some(DeadReason::RetriesExhausted));
    }
}
