//! Alarms of waiting rows: published, late or lost (design §4.2).

use redeliver::store::Pause;
use redeliver::task::{Answer, Command, Lane, LaneKey, Millis, NewTask, Settings, Spot, Stamp, Status};

use crate::fixture::{Fixture, RETRY_1, claim, new_task, retry_after, settle, submit};

fn lane(lane: Lane) -> LaneKey {
    LaneKey { queue: "default".into(), lane }
}

fn mark(on: Lane, arrives_at: Millis) -> Command {
    Command::Mark { lane: lane(on), arrives_at }
}

/// Wakes a task as a scheduler would that has just read it.
async fn wake(f: &Fixture, id: &str) -> Answer {
    let task = f.task(id).await;
    f.one(Command::Wake { id: id.into(), stamp: task.stamp(), wake_at: task.state.wake_at.unwrap() }).await
}

/// A published task whose alarm has come.
async fn unanswered(f: &Fixture, id: &str) {
    let answer = f.one(submit(NewTask { publish: true, claimant: None, ..new_task(id) })).await;
    assert!(matches!(answer, Answer::Publish(_)), "{answer:?}");
    f.clock.set(f.task(id).await.state.wake_at.unwrap());
}

/// Uses up the lane's probe, so that the next unanswered row is late.
async fn probed(f: &Fixture) {
    unanswered(f, "probe").await;
    let answer = wake(f, "probe").await;
    assert!(matches!(answer, Answer::Publish(_)), "{answer:?}");
}

async fn mark_of(f: &Fixture, on: Lane) -> Millis {
    let lanes = f.store.lanes().await.unwrap();
    lanes.into_iter().find(|(key, _)| *key == lane(on)).map_or(0, |(_, ledger)| ledger.mark)
}

conformance! {
    async fn a_row_with_nothing_outstanding_is_published_with_growing_patience(f) {
        f.pending("a").await;
        let Settings { patience_ms, max_patience_ms, .. } = f.settings;
        let mut patience = patience_ms;
        for _ in 0..6 {
            f.clock.set(f.task("a").await.state.wake_at.unwrap());
            let answer = wake(&f, "a").await;
            let Answer::Publish(wake_up) = answer else { panic!("{answer:?}") };
            assert_eq!((wake_up.stamp, wake_up.route.lane, wake_up.route.sent_at), (Stamp::FIRST, Lane::Tasks, f.now()));
            let state = f.task("a").await.state;
            assert_eq!((state.status, state.outstanding), (Status::Pending, Some(wake_up.route)));
            assert_eq!(state.wake_at, Some(f.now() + patience));
            patience = (patience * 2).min(max_patience_ms);
            let failed = Command::PublishFailed { id: "a".into(), stamp: Stamp::FIRST, sent_at: f.now() };
            assert_eq!(f.one(failed).await, Answer::Done);
        }
    }

    async fn an_alarm_that_was_moved_since_it_was_read_rings_in_vain(f) {
        let read = f.pending("a").await.state.wake_at.unwrap();
        f.clock.set(read);
        let stale = |wake_at| Command::Wake { id: "a".into(), stamp: Stamp::FIRST, wake_at };
        let answers = f.all(vec![stale(read), stale(read)]).await;
        assert!(matches!(answers[0], Answer::Publish(_)));
        assert_eq!(answers[1], Answer::Changed, "two schedulers publish once");
        assert_eq!(f.one(Command::Wake { id: "a".into(), stamp: RETRY_1, wake_at: read }).await, Answer::Stale { stamp: Stamp::FIRST });
        assert_eq!(f.one(Command::Wake { id: "nobody".into(), stamp: RETRY_1, wake_at: read }).await, Answer::Unknown);
    }

    async fn an_alarm_before_the_due_time_is_moved_there(f) {
        f.running("a").await;
        let Answer::Settled(_) = f.one(settle("a", 1, retry_after(900_000, true))).await else { panic!() };
        let due_at = f.task("a").await.state.due_at;
        assert_eq!(wake(&f, "a").await, Answer::Rearmed);
        assert_eq!(f.task("a").await.state.wake_at, Some(due_at));
    }

    async fn a_waiting_row_past_its_deadline_dies_at_its_alarm(f) {
        let deadline = Some(f.now() + 1_000);
        let Answer::Waiting(_) = f.one(submit(NewTask { deadline, claimant: None, ..new_task("a") })).await else { panic!() };
        f.clock.advance(1_001);
        let answer = wake(&f, "a").await;
        assert!(matches!(answer, Answer::Dead(_)), "{answer:?}");
    }

    async fn a_held_row_is_only_looked_at(f) {
        f.pending("a").await;
        f.store.pause(Pause { key: "pause queue default".into(), since: f.now(), reason: None }).await.unwrap();
        let Answer::Held { .. } = f.one(claim("a", Stamp::FIRST)).await else { panic!() };
        f.clock.set(f.task("a").await.state.wake_at.unwrap());
        assert_eq!(wake(&f, "a").await, Answer::Rearmed);
        assert!(f.task("a").await.state.held_by.is_some());
    }

    async fn a_wake_up_behind_the_lane_s_mark_is_lost_and_published_again(f) {
        probed(&f).await;
        unanswered(&f, "a").await;
        let arrives_at = f.task("a").await.state.outstanding.unwrap().arrives_at;
        f.clock.set(arrives_at + f.settings.slack_ms);
        assert_eq!(f.one(mark(Lane::Tasks, arrives_at + f.settings.slack_ms)).await, Answer::Done);
        let answer = wake(&f, "a").await;
        assert!(matches!(answer, Answer::Publish(_)), "{answer:?}");
    }

    async fn a_wake_up_ahead_of_the_lane_s_mark_is_late_and_stays_outstanding(f) {
        probed(&f).await;
        unanswered(&f, "a").await;
        let sent = f.task("a").await.state.outstanding;
        let _ = f.one(mark(Lane::Tasks, sent.unwrap().arrives_at)).await;
        assert_eq!(wake(&f, "a").await, Answer::Late);
        let state = f.task("a").await.state;
        assert_eq!((state.outstanding, state.wakes), (sent, 1));
        assert_eq!(state.wake_at, Some(f.now() + f.settings.patience_ms));
    }

    async fn a_mark_of_the_other_lane_proves_nothing(f) {
        probed(&f).await;
        unanswered(&f, "a").await;
        f.clock.advance(f.settings.slack_ms);
        let _ = f.one(mark(Lane::Retries, f.now())).await;
        assert_eq!(wake(&f, "a").await, Answer::Late);
    }

    async fn a_wake_up_whose_lane_went_missing_is_lost(f) {
        probed(&f).await;
        unanswered(&f, "a").await;
        assert_eq!(f.one(Command::Missing { spot: Spot::Lane(lane(Lane::Tasks)) }).await, Answer::Done);
        assert!(matches!(wake(&f, "a").await, Answer::Publish(_)));
    }

    async fn a_lane_that_went_missing_before_the_sending_proves_nothing(f) {
        probed(&f).await;
        let _ = f.one(Command::Missing { spot: Spot::Lane(lane(Lane::Tasks)) }).await;
        f.clock.advance(1);
        unanswered(&f, "a").await;
        assert_eq!(wake(&f, "a").await, Answer::Late);
    }

    async fn a_wake_up_whose_rung_went_missing_is_lost(f) {
        f.running("a").await;
        let Answer::Settled(_) = f.one(settle("a", 1, retry_after(900_000, true))).await else { panic!() };
        for delay_ms in [1_800_000, 900_000] {
            let _ = f.one(Command::Missing { spot: Spot::Rung { queue: "default".into(), delay_ms } }).await;
        }
        f.clock.set(f.task("a").await.state.wake_at.unwrap());
        let answer = wake(&f, "a").await;
        let Answer::Publish(wake_up) = answer else { panic!("{answer:?}") };
        assert_eq!((wake_up.stamp, wake_up.route.rung_ms), (RETRY_1, 0), "straight to the lane");
    }

    async fn a_silent_lane_is_probed_once_per_patience_and_then_more_rarely(f) {
        probed(&f).await;
        let probed_at = f.now();
        let (_, ledger) = f.store.lanes().await.unwrap().remove(0);
        assert_eq!((ledger.probed_at, ledger.probe_gap_ms), (probed_at, 2 * f.settings.patience_ms));
        unanswered(&f, "a").await;
        f.clock.set(probed_at + 2 * f.settings.patience_ms - 1);
        assert_eq!(wake(&f, "a").await, Answer::Late);
        f.clock.set(probed_at + 2 * f.settings.patience_ms);
        assert!(matches!(wake(&f, "a").await, Answer::Publish(_)));
        unanswered(&f, "b").await;
        assert_eq!(wake(&f, "b").await, Answer::Late, "one probe for all");
    }

    async fn a_mark_only_moves_forward(f) {
        let now = f.now();
        let _ = f.one(mark(Lane::Retries, now - 10)).await;
        let _ = f.one(mark(Lane::Retries, now - 500)).await;
        assert_eq!(mark_of(&f, Lane::Retries).await, now - 10);
        assert_eq!(mark_of(&f, Lane::Tasks).await, 0);
    }

    async fn an_arrival_too_far_ahead_moves_no_mark(f) {
        let _ = f.one(mark(Lane::Tasks, f.now() + f.settings.slack_ms + 1)).await;
        assert_eq!(mark_of(&f, Lane::Tasks).await, 0);
    }

    async fn a_mark_found_in_the_future_is_set_to_now(f) {
        let now = f.now();
        let _ = f.one(mark(Lane::Tasks, now + f.settings.slack_ms)).await;
        f.clock.set(now - 3_600_000);
        let _ = f.one(mark(Lane::Tasks, now - 3_700_000)).await;
        assert_eq!(mark_of(&f, Lane::Tasks).await, now - 3_600_000);
    }

    async fn a_publish_that_came_back_leaves_nothing_outstanding(f) {
        f.running("a").await;
        let Answer::Settled(change) = f.one(settle("a", 1, retry_after(900_000, true))).await else { panic!() };
        let sent_at = change.wake_up.unwrap().route.sent_at;
        let failed = |sent_at| Command::PublishFailed { id: "a".into(), stamp: RETRY_1, sent_at };
        assert_eq!(f.one(failed(sent_at - 1)).await, Answer::Changed);
        assert_eq!(f.one(failed(sent_at)).await, Answer::Done);
        let state = f.task("a").await.state;
        assert_eq!((state.outstanding, state.wake_at), (None, Some(state.due_at)));
        assert_eq!(f.one(failed(sent_at)).await, Answer::Changed);
    }

    async fn a_publish_of_a_due_row_that_came_back_does_not_bring_its_alarm_forward(f) {
        let answer = f.one(submit(NewTask { publish: true, claimant: None, ..new_task("a") })).await;
        let Answer::Publish(wake_up) = answer else { panic!("{answer:?}") };
        let before = f.task("a").await.state.wake_at;
        let failed = Command::PublishFailed { id: "a".into(), stamp: Stamp::FIRST, sent_at: wake_up.route.sent_at };
        assert_eq!(f.one(failed).await, Answer::Done);
        let state = f.task("a").await.state;
        assert_eq!((state.outstanding, state.wake_at), (None, before));
    }
}
