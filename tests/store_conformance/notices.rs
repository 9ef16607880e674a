//! What other services are told is written by the transition that it tells of, and leaves the store when it is out and not before.

use redeliver::store::notice::{MOST_DOUBLINGS, NoticeBacklog, TakenNotice};
use redeliver::task::{Answer, Command, DeadReason, Decision, Happening, NewTask, Spec, Stamp, Status, TaskEvent};

use crate::fixture::{Fixture, claim, die, new_task, refusal, result, retry_after, settle, settlement, spec, submit};

const HOLD_MS: i64 = 20_000;

async fn take(f: &Fixture) -> Vec<TakenNotice> {
    f.store.take_notices(100, HOLD_MS).await.unwrap()
}

/// Task, topic and whether it is a reply, in the order in which they were made.
fn told(taken: &[TakenNotice]) -> Vec<(&str, &str, bool)> {
    let of = taken.iter().map(|taken| &taken.notice);
    of.map(|notice| (notice.task_id.as_str(), notice.happening.topic(), notice.reply_to.is_some())).collect()
}

fn event(taken: &TakenNotice) -> TaskEvent {
    serde_json::from_str(&taken.notice.document).unwrap()
}

/// A submission whose producer wants to be told.
fn asking(id: &str, queue: &str) -> NewTask {
    NewTask { spec: Spec { reply_to: Some(queue.into()), ..spec(id) }.into(), ..new_task(id) }
}

conformance! {
    async fn every_happening_of_a_task_is_told_once(f) {
        f.succeeded("good").await;
        let retry = f.retrying("bad", 1_000).await;
        f.clock.advance(1_000);
        let Answer::Run(again) = f.one(claim("bad", retry.stamp())).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("bad", again.state.fence, die(DeadReason::PermanentError))).await else { panic!() };
        let Answer::Publish(_) = f.one(Command::Replay { id: "bad".into(), generation: 0, note: Some("fixed".into()) }).await else { panic!() };
        f.pending("stopped").await;
        assert_eq!(f.one(Command::Cancel { id: "stopped".into(), note: None }).await, Answer::Done);
        f.dead("gone").await;
        assert_eq!(f.one(Command::Discard { id: "gone".into(), generation: 0, note: Some("no more".into()) }).await, Answer::Done);
        let taken = take(&f).await;
        let expected = [
            ("good", "task.succeeded", false),
            ("bad", "task.retry_waiting", false),
            ("bad", "task.dead", false),
            ("bad", "task.replayed", false),
            ("stopped", "task.cancelled", false),
            ("gone", "task.dead", false),
            ("gone", "task.discarded", false),
        ];
        assert_eq!(told(&taken), expected);
        let ids: Vec<String> = taken.iter().map(|taken| taken.notice.event_id()).collect();
        assert_eq!(ids[1..4], ["bad:0:1:task.retry_waiting", "bad:0:1:task.dead", "bad:1:0:task.replayed"]);
    }

    async fn a_death_is_told_with_all_that_a_compensating_service_needs(f) {
        let labels = std::collections::BTreeMap::from([("shop".to_owned(), "berlin".to_owned())]);
        let new = NewTask { spec: Spec { labels, idempotency_key: Some("key".into()), ..spec("a") }.into(), ..new_task("a") };
        let Answer::Run(_) = f.one(submit(new)).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("a", 1, die(DeadReason::RetriesExhausted))).await else { panic!() };
        let taken = take(&f).await;
        let event = event(&taken[0]);
        assert_eq!((event.event.as_str(), event.id.as_str(), event.task_type.as_str()), ("task.dead", "a", "order.ship"));
        assert_eq!((event.status, event.dead_reason), (Status::Dead, Some(DeadReason::RetriesExhausted)));
        assert_eq!((event.idempotency_key.as_deref(), event.labels["shop"].as_str()), (Some("key"), "berlin"));
        assert_eq!((event.generation, event.retry_count, event.attempts), (0, 0, Some(1)));
        let failure = event.failure.unwrap();
        assert_eq!((failure.class.as_str(), failure.code.as_deref(), failure.http_status), ("server_error", Some("E7"), Some(503)));
        assert_eq!((failure.message.as_str(), failure.fingerprint.as_str()), ("down for good", "print"));
        assert!(event.payload.is_none() && event.result.is_none(), "they are added when it is published");
    }

    async fn who_asked_for_a_reply_gets_one_at_each_end_and_none_before(f) {
        let Answer::Run(_) = f.one(submit(asking("a", "replies"))).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("a", 1, retry_after(0, false))).await else { panic!() };
        let Answer::Run(_) = f.one(claim("a", Stamp { generation: 0, retry_count: 1 })).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("a", 2, Decision::Succeed)).await else { panic!() };
        let taken = take(&f).await;
        let expected = [
            ("a", "task.retry_waiting", false),
            ("a", "task.succeeded", false),
            ("a", "task.succeeded", true),
        ];
        assert_eq!(told(&taken), expected);
        assert_eq!(taken[2].notice.reply_to.as_deref(), Some("replies"));
        assert_eq!(event(&taken[2]).attempts, Some(2));
        assert!(!event(&taken[2]).already_done);
    }

    async fn who_submits_a_finished_task_again_is_told_at_once_that_it_is_done(f) {
        let mut with_result = settlement(Decision::Succeed);
        with_result.result = Some(result("done"));
        f.running("a").await;
        assert_eq!(f.one(submit(asking("a", "early"))).await, Answer::Duplicate { id: "a".into(), status: Status::Running });
        let Answer::Settled(_) = f.one(Command::Settle { id: "a".into(), fence: 1, settlement: with_result }).await else { panic!() };
        let again = f.one(submit(asking("a", "late"))).await;
        assert_eq!(again, Answer::Duplicate { id: "a".into(), status: Status::Succeeded });
        let taken = take(&f).await;
        assert_eq!(told(&taken), [("a", "task.succeeded", false), ("a", "task.succeeded", true)]);
        assert_eq!(taken[1].notice.reply_to.as_deref(), Some("late"));
        assert!(event(&taken[1]).already_done);
    }

    async fn a_refused_message_is_told_once_however_often_it_comes(f) {
        for _ in 0..2 {
            let Answer::Refused(_) = f.one(Command::Refuse(Box::new(refusal("a")))).await else { panic!() };
        }
        assert_eq!(told(&take(&f).await), [("refused a", "task.dead", false)]);
    }

    async fn a_letter_that_is_taken_in_from_elsewhere_did_not_die_here(f) {
        let mut task = f.dead("a").await;
        let spec = Spec { id: "b".into(), idempotency_key: Some("b".into()), ..(*task.spec).clone() };
        task.spec = std::sync::Arc::new(spec);
        let Answer::Dead(_) = f.one(Command::Adopt { task: Box::new(task), attempts: Vec::new() }).await else { panic!() };
        assert_eq!(told(&take(&f).await), [("a", "task.dead", false)]);
    }

    async fn what_changes_nothing_is_not_told(f) {
        f.dead("a").await;
        let answers = f.all(vec![
            settle("a", 1, Decision::Succeed),
            Command::Replay { id: "a".into(), generation: 7, note: None },
            Command::CopyConfirmed { id: "a".into(), generation: 0 },
            Command::Cancel { id: "nobody".into(), note: None },
        ]).await;
        assert_eq!(answers.len(), 4);
        assert_eq!(told(&take(&f).await), [("a", "task.dead", false)]);
    }

    async fn what_is_taken_is_nobody_elses_until_it_was_held_long_enough(f) {
        assert_eq!(f.store.next_notice().await.unwrap(), None);
        f.succeeded("a").await;
        f.succeeded("b").await;
        let made = f.now();
        assert_eq!(f.store.next_notice().await.unwrap(), Some(made));
        assert_eq!(f.store.take_notices(1, HOLD_MS).await.unwrap().len(), 1);
        assert_eq!(told(&take(&f).await), [("b", "task.succeeded", false)], "the other one is left");
        assert_eq!(take(&f).await, []);
        assert_eq!(f.store.next_notice().await.unwrap(), Some(made + HOLD_MS));
        f.clock.advance(HOLD_MS);
        assert_eq!(told(&take(&f).await), [("a", "task.succeeded", false), ("b", "task.succeeded", false)]);
        f.clock.advance(HOLD_MS);
        assert_eq!(take(&f).await, [], "held twice as long each time");
        f.clock.advance(HOLD_MS);
        let taken = take(&f).await;
        assert_eq!(taken.len(), 2);
        for _ in 0..MOST_DOUBLINGS {
            f.clock.advance(HOLD_MS << MOST_DOUBLINGS);
            assert_eq!(take(&f).await, taken, "and not longer than that");
        }
    }

    async fn what_is_out_is_forgotten_and_the_rest_waits_for_ever(f) {
        for id in ["a", "b", "c"] {
            f.clock.advance(1);
            f.succeeded(id).await;
        }
        let first = f.now() - 2;
        let taken = take(&f).await;
        assert!(taken.is_sorted_by(|a, b| a.number < b.number));
        f.store.drop_notices(vec![taken[1].number, 999_999]).await.unwrap();
        f.clock.advance(365 * 24 * 3_600_000);
        assert_eq!(f.store.notice_backlog().await.unwrap(), NoticeBacklog { waiting: 2, oldest_at: Some(first) });
        let left = take(&f).await;
        assert_eq!(told(&left), [("a", "task.succeeded", false), ("c", "task.succeeded", false)]);
        f.store.drop_notices(left.iter().map(|left| left.number).collect()).await.unwrap();
        assert_eq!(f.store.notice_backlog().await.unwrap(), NoticeBacklog::default());
        f.succeeded("d").await;
        let later = take(&f).await;
        assert!(later[0].number > taken[2].number, "a number is never given twice");
    }
}

#[test]
fn every_topic_names_its_happening() {
    for happening in Happening::ALL {
        assert_eq!(Happening::parse(happening.topic()), Some(happening));
        assert_eq!(happening.topic().split('.').count(), 2);
    }
    assert_eq!(Happening::parse("task.running"), None);
}
