//! What people do: run now, cancel, replay, discard.

use redeliver::task::{Answer, Command, DeadReason, Decision, DlqCopy, Lane, NewTask, Outstanding, Stamp, Status};

use crate::fixture::{RETRY_1, claim, die, new_task, refusal, result, settle, settlement, submit};

fn replay(id: &str, generation: i64) -> Command {
    Command::Replay { id: id.into(), generation, note: None }
}

fn discard(id: &str, generation: i64) -> Command {
    Command::Discard { id: id.into(), generation, note: None }
}

conformance! {
    async fn a_waiting_task_can_be_run_now(f) {
        f.retrying("a", 900_000).await;
        let answer = f.one(Command::RunNow { id: "a".into() }).await;
        let Answer::Publish(wake_up) = answer else { panic!("{answer:?}") };
        assert_eq!((wake_up.stamp, wake_up.route.lane, wake_up.route.rung_ms), (RETRY_1, Lane::Retries, 0));
        let state = f.task("a").await.state;
        assert_eq!((state.due_at, state.wake_at), (f.now(), Some(f.now() + f.settings.confirm_timeout_ms)));
        assert!(matches!(f.one(claim("a", RETRY_1)).await, Answer::Run(_)));
        assert_eq!(f.one(Command::RunNow { id: "a".into() }).await, Answer::NotNow { status: Status::Running });
    }

    async fn a_waiting_task_can_be_cancelled(f) {
        f.retrying("a", 900_000).await;
        assert_eq!(f.one(Command::Cancel { id: "a".into(), note: None }).await, Answer::Done);
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.wake_at, state.ended_at), (Status::Cancelled, None, Some(f.now())));
        assert_eq!(f.one(Command::Cancel { id: "a".into(), note: None }).await, Answer::NotNow { status: Status::Cancelled });
        assert_eq!(f.one(claim("a", RETRY_1)).await, Answer::NotNow { status: Status::Cancelled });
    }

    async fn a_running_task_cannot_be_cancelled(f) {
        f.running("a").await;
        assert_eq!(f.one(Command::Cancel { id: "a".into(), note: None }).await, Answer::NotNow { status: Status::Running });
    }

    async fn a_replayed_task_starts_a_new_generation(f) {
        f.dead("a").await;
        f.clock.advance(1_000);
        let answer = f.one(replay("a", 0)).await;
        let Answer::Publish(wake_up) = answer else { panic!("{answer:?}") };
        let stamp = Stamp { generation: 1, retry_count: 0 };
        let now = f.now();
        let sent = Outstanding { lane: Lane::Retries, rung_ms: 0, sent_at: now, arrives_at: now };
        assert_eq!((wake_up.stamp, wake_up.route, wake_up.queue.as_str()), (stamp, sent, "default"));
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.dead_reason, state.stamp), (Status::Pending, None, stamp));
        assert_eq!((state.due_at, state.wake_at), (now, Some(now + f.settings.confirm_timeout_ms)));
        assert_eq!((state.dlq_copy, state.dlq_at, state.ended_at), (DlqCopy::None, None, None));
        assert_eq!(state.outstanding, Some(sent));
        assert_eq!(state.fence, 1, "fences grow over generations");
        assert_eq!(f.store.dlqs().await.unwrap()[0].1.dirty, 1, "its copy has to go");
    }

    async fn a_replay_clears_a_deadline_that_has_passed_and_keeps_one_ahead(f) {
        for (id, ahead, kept) in [("past", 500, false), ("ahead", 5_000, true)] {
            let deadline = Some(f.now() + ahead);
            let Answer::Run(_) = f.one(submit(NewTask { deadline, ..new_task(id) })).await else { panic!() };
            let Answer::Settled(_) = f.one(settle(id, 1, die(DeadReason::RetriesExhausted))).await else { panic!() };
            f.clock.advance(1_000);
            let Answer::Publish(_) = f.one(replay(id, 0)).await else { panic!() };
            assert_eq!(f.task(id).await.state.deadline, deadline.filter(|_| kept));
        }
    }

    async fn a_replay_of_another_generation_changes_nothing(f) {
        let before = f.dead("a").await;
        assert_eq!(f.one(replay("a", 1)).await, Answer::Stale { stamp: Stamp::FIRST });
        assert_eq!(f.task("a").await, before);
        let answers = f.all(vec![replay("a", 0), replay("a", 0)]).await;
        assert!(matches!(answers[0], Answer::Publish(_)));
        assert_eq!(answers[1], Answer::NotNow { status: Status::Pending });
        assert_eq!(f.one(replay("nobody", 0)).await, Answer::Unknown);
    }

    async fn what_could_not_be_read_or_conflicts_is_not_replayed(f) {
        let Answer::Refused(malformed) = f.one(Command::Refuse(Box::new(refusal("a")))).await else { panic!() };
        assert_eq!(f.one(replay(malformed.id(), 0)).await, Answer::NotReplayable { reason: DeadReason::Malformed });
        assert_eq!(f.task(malformed.id()).await, *malformed);
    }

    async fn a_later_result_replaces_an_earlier_one(f) {
        f.running("a").await;
        let with = |text: &str, decision| {
            let mut settlement = settlement(decision);
            settlement.result = Some(result(text));
            settlement
        };
        let first = with("first", Decision::Succeed);
        let Answer::Settled(_) = f.one(Command::Settle { id: "a".into(), fence: 1, settlement: first }).await else {
            panic!()
        };
        assert_eq!(f.store.result("a").await.unwrap(), Some(result("first")));
        f.dead("b").await;
        let Answer::Publish(wake_up) = f.one(replay("b", 0)).await else { panic!() };
        let Answer::Run(_) = f.one(claim("b", wake_up.stamp)).await else { panic!() };
        let second = with("second", Decision::Succeed);
        let Answer::Settled(_) = f.one(Command::Settle { id: "b".into(), fence: 2, settlement: second }).await else {
            panic!()
        };
        assert_eq!(f.store.result("b").await.unwrap(), Some(result("second")));
        assert_eq!(f.store.result("a").await.unwrap(), Some(result("first")));
    }

    async fn a_discarded_task_is_final(f) {
        f.dead("a").await;
        assert_eq!(f.one(discard("a", 1)).await, Answer::Stale { stamp: Stamp::FIRST });
        assert_eq!(f.one(discard("a", 0)).await, Answer::Done);
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.dead_reason, state.dlq_copy), (Status::Discarded, None, DlqCopy::None));
        assert_eq!(f.store.dlqs().await.unwrap()[0].1.dirty, 1);
        assert_eq!(f.one(replay("a", 0)).await, Answer::NotNow { status: Status::Discarded });
    }
}
