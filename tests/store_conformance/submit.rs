//! Submissions and refusals.

use std::collections::BTreeMap;
use std::sync::Arc;

use redeliver::task::{
    Answer, Command, DeadReason, DlqCopy, Lane, NewTask, Outstanding, RawSubmission, Spec, Stamp, Status, TraceContext,
    canonical_payload_hash,
};

use crate::fixture::{new_task, refusal, spec, submit};

conformance! {
    async fn a_due_submission_with_a_claimant_runs_at_once(f) {
        let task = f.running("a").await;
        assert_eq!(task.state.status, Status::Running);
        assert_eq!(task.state.fence, 1);
        assert_eq!(task.state.stamp, Stamp::FIRST);
        assert_eq!(task.state.worker.as_deref(), Some("worker 1"));
        assert_eq!(task.state.started_at, Some(f.now()));
        assert_eq!(task.state.wake_at, Some(f.now() + f.settings.lease_ms));
        assert_eq!(f.task("a").await, task, "what was answered is what is stored");
    }

    async fn a_submission_without_a_claimant_waits_with_an_alarm_after_patience(f) {
        let task = f.pending("a").await;
        assert_eq!(task.state.status, Status::Pending);
        assert_eq!(task.state.due_at, f.now());
        assert_eq!(task.state.wake_at, Some(f.now() + f.settings.patience_ms));
        assert_eq!(task.state.outstanding, None);
    }

    async fn a_submission_for_later_waits_until_it_is_due(f) {
        let later = f.now() + 5_000;
        let answer = f.one(submit(NewTask { not_before: Some(later), ..new_task("a") })).await;
        assert!(matches!(answer, Answer::Waiting(_)), "{answer:?}");
        let task = f.task("a").await;
        assert_eq!((task.state.status, task.state.due_at, task.state.wake_at), (Status::Pending, later, Some(later)));
    }

    async fn a_submission_that_is_published_has_its_wake_up_outstanding(f) {
        let answer = f.one(submit(NewTask { publish: true, claimant: None, ..new_task("a") })).await;
        let Answer::Publish(wake_up) = answer else { panic!("{answer:?}") };
        let task = f.task("a").await;
        let now = f.now();
        assert_eq!(wake_up.stamp, Stamp::FIRST);
        assert_eq!(
            task.state.outstanding,
            Some(Outstanding { lane: Lane::Tasks, rung_ms: 0, sent_at: now, arrives_at: now })
        );
        assert_eq!(task.state.outstanding, Some(wake_up.route));
        assert_eq!(task.state.wake_at, Some(now + f.settings.confirm_timeout_ms));
    }

    async fn a_submission_past_its_deadline_dies_unrun(f) {
        let answer = f.one(submit(NewTask { deadline: Some(f.now() - 1), ..new_task("a") })).await;
        assert!(matches!(answer, Answer::Dead(_)), "{answer:?}");
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.dead_reason), (Status::Dead, Some(DeadReason::DeadlineExceeded)));
        assert_eq!((state.wake_at, state.dlq_copy), (None, DlqCopy::Wanted));
        assert_eq!(state.dlq_at, Some(f.now() + f.settings.confirm_timeout_ms));
    }

    async fn a_submission_due_after_its_deadline_dies_unrun(f) {
        let new = NewTask { not_before: Some(f.now() + 10), deadline: Some(f.now() + 5), ..new_task("a") };
        let answer = f.one(submit(new)).await;
        assert!(matches!(answer, Answer::Dead(_)), "{answer:?}");
    }

    async fn everything_a_producer_asked_for_comes_back(f) {
        let full = Spec {
            payload: r#"{"名":"träume","nested":[1,2.5,null,"\u0000"]}"#.into(),
            labels: BTreeMap::from([("shop".into(), "s-1 \"quoted\"".into()), ("店".into(), "東京".into())]),
            idempotency_key: Some("key of a".into()),
            priority: 9,
            cache_key: Some("cache".into()),
            reply_to: Some("replies".into()),
            trace: TraceContext::read("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("congo=t61r")),
            submission_hash: Some("bytes".into()),
            ..spec("a")
        };
        let deadline = Some(f.now() + 60_000);
        let new = NewTask { spec: Arc::new(full.clone()), deadline, queue: "shipping".into(), ..new_task("a") };
        let Answer::Run(_) = f.one(submit(new)).await else { panic!() };
        let task = f.task("a").await;
        assert_eq!(*task.spec, full);
        assert_eq!((task.state.deadline, task.state.queue.as_deref()), (deadline, Some("shipping")));
    }

    async fn the_same_submission_again_is_the_same_task(f) {
        f.running("a").await;
        let again = f.one(submit(new_task("a"))).await;
        assert_eq!(again, Answer::Duplicate { id: "a".into(), status: Status::Running });
        let Answer::Settled(_) = f.one(crate::fixture::settle("a", 1, redeliver::task::Decision::Succeed)).await else {
            panic!()
        };
        let again = f.one(submit(new_task("a"))).await;
        assert_eq!(again, Answer::Duplicate { id: "a".into(), status: Status::Succeeded });
        assert_eq!(f.store.count(&Default::default()).await.unwrap(), BTreeMap::from([(Status::Succeeded, 1)]));
    }

    async fn the_same_key_under_another_id_is_the_same_task(f) {
        f.running("a").await;
        let mut other = new_task("b");
        other.spec_mut().idempotency_key = Some("a".into());
        assert_eq!(f.one(submit(other)).await, Answer::Duplicate { id: "a".into(), status: Status::Running });
        assert_eq!(f.store.get(&["b".into()]).await.unwrap(), vec![None]);
    }

    async fn a_repeated_submission_of_a_waiting_task_acts_as_its_wake_up(f) {
        f.pending("a").await;
        let answer = f.one(submit(new_task("a"))).await;
        assert!(matches!(answer, Answer::Run(_)), "{answer:?}");
        assert_eq!(f.task("a").await.state.fence, 1);
    }

    async fn a_repeated_submission_of_a_task_in_retry_starts_nothing(f) {
        let before = f.retrying("a", 1_000).await;
        let answer = f.one(submit(new_task("a"))).await;
        assert_eq!(answer, Answer::Duplicate { id: "a".into(), status: Status::RetryWaiting });
        assert_eq!(f.task("a").await, before);
    }

    async fn another_payload_under_a_known_id_is_kept_as_a_conflict(f) {
        let first = f.running("a").await;
        let mut other = new_task("a");
        other.spec_mut().payload_hash = "hash of another order".into();
        let answer = f.one(submit(other.clone())).await;
        let Answer::Refused(refused) = answer else { panic!("{answer:?}") };
        assert_eq!(refused.state.dead_reason, Some(DeadReason::DuplicateConflict));
        assert_eq!(refused.spec.conflicts_with.as_deref(), Some("a"));
        assert_eq!(f.task("refused a").await, *refused);
        assert_eq!(f.task("a").await, first, "the first is untouched");

        let answer = f.one(submit(other)).await;
        assert_eq!(answer, Answer::Refused(refused), "the same conflict again is the same row");
        assert_eq!(f.store.count(&Default::default()).await.unwrap().values().sum::<i64>(), 2);
    }

    async fn another_payload_under_a_known_key_is_kept_as_a_conflict(f) {
        f.running("a").await;
        let mut other = new_task("b");
        other.spec_mut().idempotency_key = Some("a".into());
        other.spec_mut().payload_hash = "hash of another order".into();
        let answer = f.one(submit(other)).await;
        let Answer::Refused(refused) = answer else { panic!("{answer:?}") };
        assert_eq!(refused.spec.conflicts_with.as_deref(), Some("a"));
        assert_eq!(refused.id(), "refused b");
    }

    async fn equal_and_conflicting_submissions_in_one_batch_are_told_apart(f) {
        let mut other = new_task("a");
        other.spec_mut().payload_hash = "hash of another order".into();
        let batch = vec![submit(new_task("a")), submit(new_task("a")), submit(other.clone()), submit(other)];
        let answers = f.all(batch).await;
        assert!(matches!(answers[0], Answer::Run(_)), "{:?}", answers[0]);
        assert_eq!(answers[1], Answer::Duplicate { id: "a".into(), status: Status::Running });
        let Answer::Refused(refused) = &answers[2] else { panic!("{:?}", answers[2]) };
        assert_eq!(answers[3], Answer::Refused(refused.clone()));
        assert_eq!(f.store.count(&Default::default()).await.unwrap().values().sum::<i64>(), 2);
    }

    async fn a_conflict_known_from_an_earlier_batch_meets_its_row_again(f) {
        f.running("a").await;
        let mut other = new_task("b");
        other.spec_mut().idempotency_key = Some("a".into());
        other.spec_mut().payload_hash = "hash of another order".into();
        let first = f.one(submit(other.clone())).await;
        // This time the owner of the key is written in the same batch as the conflict is met.
        let answers = f.all(vec![submit(new_task("c")), submit(new_task("c")), submit(other)]).await;
        assert_eq!(answers[2], first);
    }

    async fn a_redelivered_submission_without_id_is_recognised_by_its_bytes(f) {
        let nameless = |id: &str, redelivered| {
            let mut new = NewTask { redelivered, ..new_task(id) };
            new.spec_mut().submission_hash = Some("bytes".into());
            submit(new)
        };
        assert!(matches!(f.one(nameless("generated-1", false)).await, Answer::Run(_)));
        let again = f.one(nameless("generated-2", true)).await;
        assert_eq!(again, Answer::Duplicate { id: "generated-1".into(), status: Status::Running });
        let unflagged = f.one(nameless("generated-3", false)).await;
        assert!(matches!(unflagged, Answer::Run(_)), "an unflagged one is a new task: {unflagged:?}");
    }

    async fn a_flagged_submission_with_unknown_bytes_is_a_new_task(f) {
        let mut new = NewTask { redelivered: true, ..new_task("a") };
        new.spec_mut().submission_hash = Some("bytes".into());
        assert!(matches!(f.one(submit(new)).await, Answer::Run(_)));
    }

    async fn a_refused_message_is_a_dead_row_with_its_bytes(f) {
        let answer = f.one(Command::Refuse(Box::new(refusal("a")))).await;
        let Answer::Refused(task) = answer else { panic!("{answer:?}") };
        assert_eq!((task.state.status, task.state.dead_reason), (Status::Dead, Some(DeadReason::Malformed)));
        assert_eq!((task.state.dlq_copy, task.state.wake_at), (DlqCopy::Wanted, None));
        assert_eq!(task.state.ended_at, Some(f.now()));
        let stored = f.task("refused a").await;
        assert_eq!(stored, *task);
        assert_eq!(stored.spec.idempotency_key, None, "it owns no key");
        assert_eq!(stored.spec.raw, refusal("a").spec.raw);
        let again = f.one(Command::Refuse(Box::new(refusal("a")))).await;
        assert_eq!(again, Answer::Refused(task));
    }

    async fn a_refused_message_may_hold_any_bytes(f) {
        let mut refused = refusal("a");
        let raw = RawSubmission { bytes: vec![0, 0xff, 0xfe, 0], length: 9_000_000_000, routing_key: String::new(), message_id: None };
        refused.spec.raw = Some(Arc::new(raw.clone()));
        let Answer::Refused(_) = f.one(Command::Refuse(Box::new(refused))).await else { panic!() };
        assert_eq!(f.task("refused a").await.spec.raw.as_deref(), Some(&raw));
    }

    async fn a_refused_row_does_not_take_the_key_that_equals_its_id(f) {
        let Answer::Refused(_) = f.one(Command::Refuse(Box::new(refusal("a")))).await else { panic!() };
        let mut new = new_task("b");
        new.spec_mut().idempotency_key = Some("refused a".into());
        assert!(matches!(f.one(submit(new)).await, Answer::Run(_)));
    }

    async fn a_submission_of_a_row_that_another_program_inserted_is_the_same_task(f) {
        f.insert_row("a", "order.ship", r#"{"order":7}"#).await;
        let mut new = new_task("a");
        new.spec_mut().payload_hash = canonical_payload_hash("order.ship", r#"{"order":7}"#);
        let answer = f.one(submit(new)).await;
        assert!(matches!(answer, Answer::Run(_)), "it acts as its wake-up: {answer:?}");
    }

    async fn a_row_that_another_program_inserted_owns_its_id_as_key(f) {
        f.insert_row("a", "order.ship", r#"{"order":7}"#).await;
        assert_eq!(f.task("a").await.spec.idempotency_key.as_deref(), Some("a"));
        let mut new = new_task("b");
        new.spec_mut().idempotency_key = Some("a".into());
        new.spec_mut().payload_hash = "hash of another order".into();
        let answer = f.one(submit(new)).await;
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    }

    async fn answers_come_by_the_index_of_their_command(f) {
        f.running("c").await;
        let batch = vec![
            submit(new_task("b")),
            Command::Cancel { id: "nobody".into(), note: None },
            submit(new_task("a")),
            Command::Heartbeat { id: "c".into(), fence: 1 },
            submit(new_task("c")),
        ];
        let answers = f.all(batch).await;
        let Answer::Run(b) = &answers[0] else { panic!("{:?}", answers[0]) };
        assert_eq!(b.id(), "b");
        assert_eq!(answers[1], Answer::Unknown);
        let Answer::Run(a) = &answers[2] else { panic!("{:?}", answers[2]) };
        assert_eq!(a.id(), "a");
        assert_eq!(answers[3], Answer::Done);
        assert_eq!(answers[4], Answer::Duplicate { id: "c".into(), status: Status::Running });
    }

    async fn a_large_batch_is_applied_whole(f) {
        let commands = (0..700).map(|n| submit(new_task(&format!("t{n:04}")))).collect();
        let answers = f.all(commands).await;
        assert!(answers.iter().all(|answer| matches!(answer, Answer::Run(_))));
        let ids: Vec<String> = answers.iter().filter_map(|answer| match answer {
            Answer::Run(task) => Some(task.id().to_owned()),
            _ => None,
        }).collect();
        assert!(ids.is_sorted(), "answers by input index");
        assert_eq!(f.store.count(&Default::default()).await.unwrap(), BTreeMap::from([(Status::Running, 700)]));
    }
}
