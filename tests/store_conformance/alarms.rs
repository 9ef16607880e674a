//! The scheduler's questions: which alarms ring, what to feed, how much is outstanding.

use redeliver::store::{Alarm, Pause};
use redeliver::task::{Answer, Command, NewTask, Stamp, Task};

use crate::fixture::{Fixture, RETRY_1, claim, ids, new_task, submit};

const KINDS: [Alarm; 5] = [Alarm::Lease, Alarm::Sent, Alarm::Retry, Alarm::Held, Alarm::Copy];

async fn publish(f: &Fixture, id: &str, queue: &str) {
    let new = NewTask { publish: true, claimant: None, queue: queue.into(), ..new_task(id) };
    let answer = f.one(submit(new)).await;
    assert!(matches!(answer, Answer::Publish(_)), "{answer:?}");
}

fn alarm_at(task: &Task) -> i64 {
    task.state.wake_at.or(task.state.dlq_at).unwrap()
}

conformance! {
    async fn each_kind_of_alarm_rings_for_its_own_rows(f) {
        f.running("lease").await;
        publish(&f, "sent", "default").await;
        f.retrying("retry", 1_000).await;
        f.pending("held").await;
        f.retrying("held in retry", 0).await;
        f.store.pause(Pause { key: "pause queue default".into(), since: f.now(), reason: None }).await.unwrap();
        let Answer::Held { .. } = f.one(claim("held", Stamp::FIRST)).await else { panic!() };
        let Answer::Held { .. } = f.one(claim("held in retry", RETRY_1)).await else { panic!() };
        f.store.resume("pause queue default").await.unwrap();
        f.dead("copy").await;
        f.pending("fed").await;
        f.succeeded("done").await;
        f.insert_row("unrouted", "order.ship", "{}").await;
        let far = f.now() + 1_000_000_000;
        let expected: [&[&str]; 5] = [&["lease"], &["sent"], &["retry"], &["held", "held in retry"], &["copy"]];
        for (kind, expected) in KINDS.into_iter().zip(expected) {
            assert_eq!(ids(&f.store.alarms(kind, far, 10).await.unwrap()), expected, "{kind:?}");
        }
    }

    async fn no_alarm_rings_early(f) {
        f.running("a").await;
        publish(&f, "b", "default").await;
        f.retrying("c", 1_000).await;
        f.dead("d").await;
        for (kind, id) in [(Alarm::Lease, "a"), (Alarm::Sent, "b"), (Alarm::Retry, "c"), (Alarm::Copy, "d")] {
            let task = f.task(id).await;
            let at = alarm_at(&task);
            assert!(f.store.alarms(kind, at - 1, 10).await.unwrap().is_empty(), "{kind:?}");
            assert_eq!(f.store.alarms(kind, at, 10).await.unwrap(), vec![task], "{kind:?}");
        }
    }

    async fn a_deadline_that_has_passed_rings_whatever_the_alarm_says(f) {
        let deadline = f.now() + 500;
        let later = Some(f.now() + 400);
        let new = NewTask { deadline: Some(deadline), not_before: later, claimant: None, ..new_task("waiting") };
        let _ = f.one(submit(new)).await;
        f.running("running").await;
        assert!(f.store.alarms(Alarm::Deadline, deadline, 10).await.unwrap().is_empty(), "not on the deadline");
        let rung = f.store.alarms(Alarm::Deadline, deadline + 1, 10).await.unwrap();
        assert_eq!(ids(&rung), ["waiting"], "but right after it");
    }

    async fn alarms_come_earliest_first_and_no_more_than_asked_for(f) {
        for (id, delay) in [("late", 3_000), ("early", 1_000), ("middle", 2_000)] {
            f.retrying(id, delay).await;
        }
        let far = f.now() + 10_000;
        assert_eq!(ids(&f.store.alarms(Alarm::Retry, far, 10).await.unwrap()), ["early", "middle", "late"]);
        assert_eq!(ids(&f.store.alarms(Alarm::Retry, far, 2).await.unwrap()), ["early", "middle"]);
        assert!(f.store.alarms(Alarm::Retry, far, 0).await.unwrap().is_empty());
    }

    async fn the_next_alarm_is_the_earliest_of_all_kinds(f) {
        assert_eq!(f.store.next_alarm().await.unwrap(), None);
        f.succeeded("done").await;
        f.pending("fed").await;
        assert_eq!(f.store.next_alarm().await.unwrap(), None, "fed rows are no alarms");
        let lease = f.running("lease").await.state.wake_at;
        assert_eq!(f.store.next_alarm().await.unwrap(), lease);
        publish(&f, "sent", "default").await;
        assert_eq!(f.store.next_alarm().await.unwrap(), f.task("sent").await.state.wake_at);
        let retry = f.retrying("retry", 2_000).await.state.wake_at;
        assert_eq!(f.store.next_alarm().await.unwrap(), retry);
    }

    async fn the_next_alarm_may_be_a_copy_that_is_wanted(f) {
        let dead = f.dead("a").await;
        assert_eq!(f.store.next_alarm().await.unwrap(), dead.state.dlq_at);
    }

    async fn pending_rows_with_nothing_outstanding_are_fed_oldest_alarm_first(f) {
        f.pending("second").await;
        let later = f.now() + 60_000;
        let new = NewTask { not_before: Some(later), ..new_task("third") };
        let Answer::Waiting(_) = f.one(submit(new)).await else { panic!() };
        f.retrying("not pending", 0).await;
        publish(&f, "sent", "default").await;
        let elsewhere = NewTask { queue: "shipping".into(), claimant: None, ..new_task("elsewhere") };
        let Answer::Waiting(_) = f.one(submit(elsewhere)).await else { panic!() };
        f.insert_row("unrouted", "order.ship", "{}").await;
        f.running("first").await;
        let Answer::Settled(_) = f.one(Command::Release { id: "first".into(), fence: 1, nack: false }).await else {
            panic!()
        };
        assert_eq!(ids(&f.store.feed("default", f.now(), 10).await.unwrap()), ["first"]);
        let far = later + 1;
        assert_eq!(ids(&f.store.feed("default", far, 10).await.unwrap()), ["first", "second", "third"]);
        assert_eq!(ids(&f.store.feed("default", far, 2).await.unwrap()), ["first", "second"]);
        assert_eq!(ids(&f.store.feed("shipping", far, 10).await.unwrap()), ["elsewhere"]);
        assert!(f.store.feed("nowhere", far, 10).await.unwrap().is_empty());
    }

    async fn a_held_row_is_not_fed(f) {
        f.pending("a").await;
        f.store.pause(Pause { key: "pause queue default".into(), since: f.now(), reason: None }).await.unwrap();
        let Answer::Held { .. } = f.one(claim("a", Stamp::FIRST)).await else { panic!() };
        assert!(f.store.feed("default", f.now() + 1_000_000_000, 10).await.unwrap().is_empty());
    }

    async fn a_row_of_another_program_is_unrouted_until_it_gets_its_queue(f) {
        f.insert_row("b", "order.ship", "{}").await;
        f.insert_row("a", "order.pay", "{}").await;
        f.pending("routed").await;
        let expected = [("b".to_owned(), "order.ship".to_owned()), ("a".to_owned(), "order.pay".to_owned())];
        assert_eq!(f.store.unrouted(10).await.unwrap(), expected, "oldest first");
        assert_eq!(f.store.unrouted(1).await.unwrap(), expected[..1]);
        let route = |id: &str| Command::Route { id: id.into(), from: None, queue: "shipping".into() };
        let answers = f.all(vec![route("b"), route("b"), route("nobody"), route("routed")]).await;
        assert_eq!(answers, [Answer::Done, Answer::Changed, Answer::Unknown, Answer::Changed]);
        assert_eq!(f.store.unrouted(10).await.unwrap(), expected[1..]);
        assert_eq!(ids(&f.store.feed("shipping", f.now(), 10).await.unwrap()), ["b"]);
    }

    async fn outstanding_wake_ups_are_counted_per_queue_up_to_a_limit(f) {
        for id in ["a", "b", "c"] {
            publish(&f, id, "default").await;
        }
        publish(&f, "d", "shipping").await;
        f.pending("fed").await;
        f.retrying("retry", 0).await;
        let Answer::Publish(_) = f.one(Command::RunNow { id: "retry".into() }).await else { panic!() };
        assert_eq!(f.store.outstanding("default", 100).await.unwrap(), 3, "the tasks lane only");
        assert_eq!(f.store.outstanding("default", 2).await.unwrap(), 2);
        assert_eq!(f.store.outstanding("shipping", 100).await.unwrap(), 1);
        assert_eq!(f.store.outstanding("nowhere", 100).await.unwrap(), 0);
        let Answer::Run(_) = f.one(claim("a", Stamp::FIRST)).await else { panic!() };
        assert_eq!(f.store.outstanding("default", 100).await.unwrap(), 2);
    }

    async fn tasks_come_by_the_index_of_their_id(f) {
        let a = f.pending("a").await;
        let b = f.running("b").await;
        let asked = ["b", "nobody", "a", "b"].map(str::to_owned);
        assert_eq!(f.store.get(&asked).await.unwrap(), [Some(b.clone()), None, Some(a), Some(b)]);
        assert!(f.store.get(&[]).await.unwrap().is_empty());
    }
}
