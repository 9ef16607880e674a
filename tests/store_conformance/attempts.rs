//! The record of attempts.

use std::sync::Arc;

use redeliver::task::{Answer, Attachment, AttachmentBody, Attempt, AttemptOutcome, Command, DeadReason, Decision};

use crate::fixture::{RETRY_1, claim, die, failure, retry_after, settle, settlement};

conformance! {
    async fn every_attempt_is_kept_with_all_it_left(f) {
        f.running("a").await;
        let started_at = f.now();
        f.clock.advance(250);
        let mut first = settlement(retry_after(1_000, false));
        if let Decision::Retry { failure, .. } = &mut first.decision {
            failure.stack = Some("at line 7\nat line 9".into());
        }
        first.variant = Some("fast".into());
        first.cost = Some(0.25);
        first.attachments = vec![
            Attachment { name: "page.png".into(), media_type: "image/png".into(), body: AttachmentBody::Bytes(Arc::from([0, 255, 7])) },
            Attachment { name: "log".into(), media_type: "text/plain".into(), body: AttachmentBody::Link("https://logs/7".into()) },
            Attachment { name: "video".into(), media_type: "video/mp4".into(), body: AttachmentBody::TooLarge { size: 5_000_000_000 } },
            Attachment { name: "empty".into(), media_type: "text/plain".into(), body: AttachmentBody::Bytes(Arc::from([])) },
        ];
        let attachments = first.attachments.clone();
        let answer = f.one(Command::Settle { id: "a".into(), fence: 1, settlement: first }).await;
        let Answer::Settled(change) = answer else { panic!("{answer:?}") };

        f.clock.advance(1_000);
        let Answer::Run(_) = f.one(claim("a", RETRY_1)).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("a", 2, Decision::Succeed)).await else { panic!() };

        let attempts = f.store.attempts("a").await.unwrap();
        let mut failed = failure("down");
        failed.stack = Some("at line 7\nat line 9".into());
        let expected = Attempt {
            task_id: "a".into(),
            fence: 1,
            number: 1,
            generation: 0,
            outcome: AttemptOutcome::Retried,
            failure: Some(failed),
            started_at,
            ended_at: started_at + 250,
            worker: "worker 1".into(),
            policy: Some("default".into()),
            variant: Some("fast".into()),
            delay_before_ms: None,
            delay_reason: None,
            cost: Some(0.25),
            attachments,
        };
        assert_eq!(attempts[0], expected);
        assert_eq!(*change.attempt, expected);
        let second = &attempts[1];
        assert_eq!((second.number, second.fence, second.outcome), (2, 2, AttemptOutcome::Succeeded));
        assert_eq!((second.delay_before_ms, second.delay_reason.as_deref()), (Some(1_000), Some("policy \"default\"")));
        assert_eq!(second.failure, None);
        assert_eq!(attempts.len(), 2);
    }

    async fn a_task_itself_keeps_no_stack(f) {
        f.running("a").await;
        let mut dead = settlement(die(DeadReason::PermanentError));
        if let Decision::Die { failure, .. } = &mut dead.decision {
            failure.stack = Some("at line 7".into());
        }
        let Answer::Settled(_) = f.one(Command::Settle { id: "a".into(), fence: 1, settlement: dead }).await else {
            panic!()
        };
        assert_eq!(f.task("a").await.state.failure.unwrap().stack, None);
        let attempts = f.store.attempts("a").await.unwrap();
        assert_eq!(attempts[0].failure.as_ref().unwrap().stack.as_deref(), Some("at line 7"));
    }

    async fn the_history_outlives_a_replay(f) {
        f.dead("a").await;
        let Answer::Publish(_) = f.one(Command::Replay { id: "a".into(), generation: 0, note: None }).await else { panic!() };
        let stamp = f.task("a").await.state.stamp;
        let Answer::Run(_) = f.one(claim("a", stamp)).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("a", 2, Decision::Succeed)).await else { panic!() };
        let attempts = f.store.attempts("a").await.unwrap();
        let told: Vec<_> = attempts.iter().map(|a| (a.generation, a.number, a.fence, a.outcome)).collect();
        assert_eq!(told, [(0, 1, 1, AttemptOutcome::Died), (1, 1, 2, AttemptOutcome::Succeeded)]);
    }

    async fn a_task_never_run_has_no_attempts(f) {
        f.pending("a").await;
        f.running("ab").await;
        let Answer::Settled(_) = f.one(settle("ab", 1, Decision::Succeed)).await else { panic!() };
        assert!(f.store.attempts("a").await.unwrap().is_empty());
        assert!(f.store.attempts("nobody").await.unwrap().is_empty());
    }
}
