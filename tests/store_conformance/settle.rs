//! How attempts end.

use redeliver::task::{
    Answer, AttemptOutcome, Command, DeadReason, Decision, DlqCopy, Ending, Failure, Lane, Outstanding, Stamp, Status,
};

use crate::fixture::{RETRY_1, claim, die, failure, result, retry_after, settle, settlement};

conformance! {
    async fn a_success_ends_the_task_and_stores_its_result(f) {
        f.running("a").await;
        f.clock.advance(40);
        let mut success = settlement(Decision::Succeed);
        success.result = Some(result("shipped"));
        let answer = f.one(Command::Settle { id: "a".into(), fence: 1, settlement: success }).await;
        let Answer::Settled(change) = answer else { panic!("{answer:?}") };
        assert_eq!(change.wake_up, None);
        let task = f.task("a").await;
        assert_eq!(task, change.task);
        assert_eq!((task.state.status, task.state.wake_at, task.state.ended_at), (Status::Succeeded, None, Some(f.now())));
        assert_eq!((task.state.worker, task.state.dlq_copy), (None, DlqCopy::None));
        assert_eq!(f.store.result("a").await.unwrap(), Some(result("shipped")));
    }

    async fn a_result_may_hold_any_bytes(f) {
        f.running("a").await;
        let mut success = settlement(Decision::Succeed);
        let bytes = redeliver::task::TaskResult { media_type: "image/png".into(), body: vec![0, 159, 146, 150], truncated: true };
        success.result = Some(bytes.clone());
        let Answer::Settled(_) = f.one(Command::Settle { id: "a".into(), fence: 1, settlement: success }).await else {
            panic!()
        };
        assert_eq!(f.store.result("a").await.unwrap(), Some(bytes));
    }

    async fn a_task_without_a_result_has_none(f) {
        f.succeeded("a").await;
        assert_eq!(f.store.result("a").await.unwrap(), None);
        assert_eq!(f.store.result("nobody").await.unwrap(), None);
    }

    async fn a_retry_that_the_store_holds_wakes_when_it_is_due(f) {
        f.running("a").await;
        let answer = f.one(settle("a", 1, retry_after(5_000, false))).await;
        let Answer::Settled(change) = answer else { panic!("{answer:?}") };
        assert_eq!(change.wake_up, None);
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.stamp), (Status::RetryWaiting, RETRY_1));
        assert_eq!((state.due_at, state.wake_at), (f.now() + 5_000, Some(f.now() + 5_000)));
        assert_eq!((state.outstanding, state.worker, state.started_at), (None, None, None));
        assert_eq!((state.delay_ms, state.delay_reason.as_deref()), (Some(5_000), Some("policy \"default\"")));
        assert_eq!(state.failure, Some(failure("down")));
    }

    async fn a_retry_on_a_rung_is_published_and_wakes_after_grace(f) {
        f.running("a").await;
        let answer = f.one(settle("a", 1, retry_after(900_000, true))).await;
        let Answer::Settled(change) = answer else { panic!("{answer:?}") };
        let wake_up = change.wake_up.expect("a rung needs a message");
        let due_at = f.now() + 900_000;
        let sent = Outstanding { lane: Lane::Retries, rung_ms: 900_000, sent_at: f.now(), arrives_at: due_at };
        assert_eq!((wake_up.stamp, wake_up.route), (RETRY_1, sent));
        let state = f.task("a").await.state;
        assert_eq!((state.outstanding, state.due_at), (Some(sent), due_at));
        assert_eq!(state.wake_at, Some(due_at + f.settings.grace_ms));
    }

    async fn a_task_that_dies_wants_its_copy(f) {
        f.running("a").await;
        let answer = f.one(settle("a", 1, die(DeadReason::PermanentError))).await;
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.dead_reason), (Status::Dead, Some(DeadReason::PermanentError)));
        assert_eq!((state.wake_at, state.ended_at), (None, Some(f.now())));
        assert_eq!((state.dlq_copy, state.dlq_at), (DlqCopy::Wanted, Some(f.now() + f.settings.confirm_timeout_ms)));
        assert_eq!(state.failure, Some(failure("down for good")));
        assert_eq!(state.stamp, Stamp::FIRST, "the attempt is recorded, the stamp stays");
    }

    async fn the_payload_of_a_task_that_dies_is_at_hand_for_its_copy(f) {
        f.running("a").await;
        let Answer::Settled(change) = f.one(settle("a", 1, die(DeadReason::PermanentError))).await else { panic!() };
        assert_eq!(change.task.spec.payload, r#"{"order":7}"#);
    }

    async fn a_settle_with_an_old_fence_changes_nothing(f) {
        f.retrying("a", 0).await;
        let Answer::Run(before) = f.one(claim("a", RETRY_1)).await else { panic!() };
        let attempts = f.store.attempts("a").await.unwrap();
        assert_eq!(f.one(settle("a", 1, Decision::Succeed)).await, Answer::Changed);
        assert_eq!(f.one(settle("a", 3, Decision::Succeed)).await, Answer::Changed);
        assert_eq!(f.task("a").await, *before);
        assert_eq!(f.store.attempts("a").await.unwrap(), attempts);
    }

    async fn the_second_settle_of_a_fence_changes_nothing(f) {
        f.running("a").await;
        let answers = f.all(vec![settle("a", 1, Decision::Succeed), settle("a", 1, die(DeadReason::PermanentError))]).await;
        assert!(matches!(answers[0], Answer::Settled(_)));
        assert_eq!(answers[1], Answer::NotNow { status: Status::Succeeded });
        let again = f.one(settle("a", 1, die(DeadReason::PermanentError))).await;
        assert_eq!(again, Answer::NotNow { status: Status::Succeeded });
        assert_eq!(f.store.attempts("a").await.unwrap().len(), 1);
        assert_eq!(f.task("a").await.state.status, Status::Succeeded);
    }

    async fn a_settle_of_an_unknown_task_is_answered_so(f) {
        assert_eq!(f.one(settle("nobody", 1, Decision::Succeed)).await, Answer::Unknown);
    }

    async fn a_task_can_be_claimed_and_settled_in_one_batch(f) {
        f.pending("a").await;
        let answers = f.all(vec![claim("a", Stamp::FIRST), settle("a", 1, Decision::Succeed)]).await;
        assert!(matches!(answers[1], Answer::Settled(_)), "{:?}", answers[1]);
        assert_eq!(f.task("a").await.state.status, Status::Succeeded);
    }

    async fn a_lost_lease_counts_only_once_it_is_over_and_as_it_was_read(f) {
        let task = f.running("a").await;
        let lease_end = task.state.wake_at.unwrap();
        let lost = |wake_at| Command::Lost {
            id: "a".into(), fence: 1, wake_at, settlement: settlement(retry_after(1_000, false)),
        };
        assert_eq!(f.one(lost(lease_end)).await, Answer::Changed, "not over yet");
        f.clock.advance(20_000);
        assert_eq!(f.one(Command::Heartbeat { id: "a".into(), fence: 1 }).await, Answer::Done);
        f.clock.set(lease_end);
        assert_eq!(f.one(lost(lease_end)).await, Answer::Changed, "renewed since it was read");
        f.clock.advance(20_000);
        let answer = f.one(lost(lease_end + 20_000)).await;
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.stamp), (Status::RetryWaiting, RETRY_1));
        assert_eq!(f.store.attempts("a").await.unwrap()[0].outcome, AttemptOutcome::Retried);
        assert_eq!(f.one(lost(lease_end + 20_000)).await, Answer::NotNow { status: Status::RetryWaiting });
    }

    async fn an_intercepted_task_dies_without_an_attempt(f) {
        f.pending("a").await;
        let intercept = |stamp| Command::Intercept {
            id: "a".into(), stamp, ending: Ending::Dead { reason: DeadReason::PermanentError, failure: Failure::new("no_route", "nobody runs it") },
        };
        assert_eq!(f.one(intercept(RETRY_1)).await, Answer::Stale { stamp: Stamp::FIRST });
        let answer = f.one(intercept(Stamp::FIRST)).await;
        assert!(matches!(answer, Answer::Dead(_)), "{answer:?}");
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.dead_reason), (Status::Dead, Some(DeadReason::PermanentError)));
        assert_eq!((state.dlq_copy, state.failure), (DlqCopy::Wanted, Some(Failure::new("no_route", "nobody runs it"))));
        assert!(f.store.attempts("a").await.unwrap().is_empty());
    }

    async fn a_row_set_aside_as_poison_is_dead(f) {
        f.pending("a").await;
        let poison = |id: &str| Command::Poison { id: id.into(), message: "cannot be processed".into() };
        assert!(matches!(f.one(poison("a")).await, Answer::Dead(_)));
        assert_eq!(f.task("a").await.state.dead_reason, Some(DeadReason::Poison));
        assert_eq!(f.one(poison("a")).await, Answer::NotNow { status: Status::Dead });
        assert_eq!(f.one(poison("nobody")).await, Answer::Unknown);
    }
}
