//! Claims, leases and what gives a task back.

use redeliver::store::Pause;
use redeliver::task::{Answer, AttemptOutcome, Command, DeadReason, Lane, NewTask, Outstanding, Stamp, Status};

use crate::fixture::{RETRY_1, claim, new_task, submit};

conformance! {
    async fn a_wake_up_with_the_right_stamp_runs_a_waiting_task(f) {
        f.retrying("a", 1_000).await;
        f.clock.advance(1_000);
        let answer = f.one(claim("a", RETRY_1)).await;
        let Answer::Run(task) = answer else { panic!("{answer:?}") };
        assert_eq!((task.state.status, task.state.fence, task.state.stamp), (Status::Running, 2, RETRY_1));
        assert_eq!(task.state.wake_at, Some(f.now() + f.settings.lease_ms));
        assert_eq!(task.state.outstanding, None);
        assert_eq!(f.task("a").await, *task);
    }

    async fn a_wake_up_with_another_stamp_changes_nothing(f) {
        f.retrying("a", 1_000).await;
        f.clock.advance(1_000);
        let before = f.task("a").await;
        for (generation, retry_count) in [(0, 0), (0, 2), (1, 1), (1, 0), (-1, 1)] {
            let answer = f.one(claim("a", Stamp { generation, retry_count })).await;
            assert_eq!(answer, Answer::Stale { stamp: RETRY_1 });
        }
        assert_eq!(f.task("a").await, before);
    }

    async fn a_wake_up_for_an_unknown_task_is_answered_so(f) {
        assert_eq!(f.one(claim("nobody", Stamp::FIRST)).await, Answer::Unknown);
    }

    async fn a_wake_up_for_a_task_that_does_not_wait_changes_nothing(f) {
        f.running("running").await;
        f.succeeded("succeeded").await;
        f.dead("dead").await;
        for id in ["running", "succeeded", "dead"] {
            let before = f.task(id).await;
            assert_eq!(f.one(claim(id, Stamp::FIRST)).await, Answer::NotNow { status: before.state.status });
            assert_eq!(f.task(id).await, before);
        }
    }

    async fn the_second_equal_wake_up_in_a_batch_starts_nothing(f) {
        f.pending("a").await;
        let answers = f.all(vec![claim("a", Stamp::FIRST), claim("a", Stamp::FIRST)]).await;
        assert!(matches!(answers[0], Answer::Run(_)));
        assert_eq!(answers[1], Answer::NotNow { status: Status::Running });
        assert_eq!(f.task("a").await.state.fence, 1);
    }

    async fn an_early_wake_up_is_cleared_and_the_alarm_keeps_the_time(f) {
        let before = f.retrying("a", 1_000).await;
        f.clock.advance(999);
        assert_eq!(f.one(claim("a", RETRY_1)).await, Answer::Early);
        let task = f.task("a").await;
        assert_eq!(task.state.due_at, before.state.due_at);
        assert_eq!(task.state.wake_at, Some(before.state.due_at));
        assert_eq!(task.state.outstanding, None);
    }

    async fn no_attempt_starts_after_the_deadline(f) {
        let deadline = Some(f.now() + 500);
        let Answer::Waiting(_) = f.one(submit(NewTask { deadline, claimant: None, ..new_task("a") })).await else {
            panic!()
        };
        f.clock.advance(501);
        let answer = f.one(claim("a", Stamp::FIRST)).await;
        assert!(matches!(answer, Answer::Dead(_)), "{answer:?}");
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.dead_reason), (Status::Dead, Some(DeadReason::DeadlineExceeded)));
        assert!(f.store.attempts("a").await.unwrap().is_empty());
    }

    async fn a_paused_task_is_held_with_its_stamp(f) {
        f.pending("a").await;
        let key = "pause queue default".to_owned();
        f.store.pause(Pause { key: key.clone(), since: f.now(), reason: None }).await.unwrap();
        assert_eq!(f.one(claim("a", Stamp::FIRST)).await, Answer::Held { by: key.clone() });
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.stamp, state.held_by), (Status::Pending, Stamp::FIRST, Some(key)));
        assert_eq!(state.wake_at, Some(f.now() + 24 * 3_600_000));
        assert_eq!(state.outstanding, None);
    }

    async fn a_held_task_looks_up_at_its_deadline(f) {
        let deadline = f.now() + 5_000;
        let new = NewTask { deadline: Some(deadline), claimant: None, ..new_task("a") };
        let Answer::Waiting(_) = f.one(submit(new)).await else { panic!() };
        f.store.pause(Pause { key: "pause type order.#".into(), since: f.now(), reason: None }).await.unwrap();
        let answer = f.one(claim("a", Stamp::FIRST)).await;
        assert_eq!(answer, Answer::Held { by: "pause type order.#".into() });
        assert_eq!(f.task("a").await.state.wake_at, Some(deadline));
    }

    async fn a_new_task_of_a_paused_queue_is_held(f) {
        f.store.pause(Pause { key: "pause queue default".into(), since: f.now(), reason: None }).await.unwrap();
        let answer = f.one(submit(new_task("a"))).await;
        assert_eq!(answer, Answer::Held { by: "pause queue default".into() });
    }

    async fn a_postponed_task_waits_without_spending_anything(f) {
        f.pending("a").await;
        let until = f.now() + 60_000;
        let postpone = Command::Postpone { id: "a".into(), stamp: Stamp::FIRST, until };
        assert_eq!(f.one(postpone).await, Answer::Rearmed);
        let state = f.task("a").await.state;
        assert_eq!((state.wake_at, state.stamp, state.outstanding), (Some(until), Stamp::FIRST, None));
    }

    async fn a_heartbeat_with_the_newest_fence_renews_the_lease(f) {
        f.running("a").await;
        f.clock.advance(20_000);
        assert_eq!(f.one(Command::Heartbeat { id: "a".into(), fence: 1 }).await, Answer::Done);
        assert_eq!(f.task("a").await.state.wake_at, Some(f.now() + f.settings.lease_ms));
    }

    async fn a_heartbeat_with_another_fence_or_of_a_task_not_running_changes_nothing(f) {
        let running = f.running("a").await;
        let done = f.succeeded("b").await;
        f.clock.advance(20_000);
        let beat = |id: &str, fence| Command::Heartbeat { id: id.into(), fence };
        let answers = f.all(vec![beat("a", 0), beat("a", 2), beat("b", 1), beat("nobody", 1)]).await;
        assert_eq!(answers[..2], [Answer::Changed, Answer::Changed]);
        assert_eq!(answers[2..], [Answer::NotNow { status: Status::Succeeded }, Answer::Unknown]);
        assert_eq!(f.task("a").await, running);
        assert_eq!(f.task("b").await, done);
    }

    async fn a_claim_is_found_again_by_its_worker_and_by_nobody_else(f) {
        let running = f.running("a").await;
        f.pending("b").await;
        f.clock.advance(20_000);
        let reclaim = |id: &str, worker: &str| Command::Reclaim { id: id.into(), worker: worker.into() };
        let worker = running.state.worker.clone().unwrap();
        let asked = vec![reclaim("a", "another"), reclaim("b", &worker), reclaim("nobody", &worker)];
        let pending = Answer::NotNow { status: Status::Pending };
        assert_eq!(f.all(asked).await, [Answer::Changed, pending, Answer::Unknown]);
        assert_eq!(f.task("a").await, running);
        let Answer::Run(found) = f.one(reclaim("a", &worker)).await else { panic!("its own") };
        assert_eq!(found.state.wake_at, Some(f.now() + f.settings.lease_ms));
        assert_eq!(f.task("a").await, *found);
        assert_eq!((found.state.fence, found.state.started_at), (running.state.fence, running.state.started_at));
    }

    async fn a_released_run_goes_back_to_where_it_was(f) {
        f.running("a").await;
        f.clock.advance(1_000);
        let answer = f.one(Command::Release { id: "a".into(), fence: 1, nack: false }).await;
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
        let state = f.task("a").await.state;
        assert_eq!((state.status, state.stamp, state.releases), (Status::Pending, Stamp::FIRST, 1));
        assert_eq!((state.wake_at, state.outstanding, state.worker), (Some(f.now()), None, None));
        let attempts = f.store.attempts("a").await.unwrap();
        assert_eq!(attempts.len(), 1);
        assert_eq!((attempts[0].outcome, attempts[0].fence), (AttemptOutcome::Released, 1));
        let Answer::Run(task) = f.one(claim("a", Stamp::FIRST)).await else { panic!() };
        assert_eq!(task.state.fence, 2);
    }

    async fn a_release_with_a_nack_has_the_returned_delivery_outstanding(f) {
        f.retrying("a", 0).await;
        let Answer::Run(task) = f.one(claim("a", RETRY_1)).await else { panic!() };
        let release = Command::Release { id: "a".into(), fence: task.state.fence, nack: true };
        assert!(matches!(f.one(release).await, Answer::Settled(_)));
        let (state, now) = (f.task("a").await.state, f.now());
        assert_eq!((state.status, state.stamp), (Status::RetryWaiting, RETRY_1));
        let sent = Outstanding { lane: Lane::Retries, rung_ms: 0, sent_at: now, arrives_at: now };
        assert_eq!((state.outstanding, state.wake_at), (Some(sent), Some(now + f.settings.patience_ms)));
    }

    async fn a_release_with_an_old_fence_changes_nothing(f) {
        let before = f.running("a").await;
        let answer = f.one(Command::Release { id: "a".into(), fence: 0, nack: false }).await;
        assert_eq!(answer, Answer::Changed);
        assert_eq!(f.task("a").await, before);
    }

    async fn a_row_of_another_program_runs_like_any_other(f) {
        f.insert_row("a", "order.ship", "{}").await;
        let Answer::Run(task) = f.one(claim("a", Stamp::FIRST)).await else { panic!() };
        assert_eq!((task.spec.task_type.as_str(), task.spec.payload.as_str()), ("order.ship", "{}"));
        assert_eq!(task.queue(), "default");
    }
}
