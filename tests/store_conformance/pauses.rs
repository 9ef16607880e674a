//! Pauses, held rows and who may be admitted.

use redeliver::gate::{Gates, chances};
use redeliver::store::Pause;
use redeliver::task::{Answer, NewTask, Stamp};

use crate::fixture::{Fixture, RETRY_1, claim, ids, new_task, submit};

async fn pause(f: &Fixture, key: &str) {
    f.store.pause(Pause { key: key.into(), since: f.now(), reason: None }).await.unwrap();
}

/// A held task of a queue and type.
async fn held(f: &Fixture, id: &str, queue: &str, task_type: &str) {
    let mut new = NewTask { queue: queue.into(), ..new_task(id) };
    new.spec_mut().task_type = task_type.into();
    let answer = f.one(submit(new)).await;
    assert!(matches!(answer, Answer::Held { .. }), "{answer:?}");
}

async fn admissible(f: &Fixture, queues: &[&str], limit: usize) -> Vec<String> {
    let queues: Vec<String> = queues.iter().map(|queue| (*queue).to_owned()).collect();
    let held = f.store.held_gates(&queues, "").await.unwrap();
    let mut tasks = Vec::new();
    for chance in chances(&held, &Gates::default(), limit, f.now()).0 {
        tasks.extend(f.store.held_heads(&chance, "").await.unwrap());
    }
    tasks.sort_by_key(|task| task.state.due_at);
    ids(&tasks).into_iter().map(str::to_owned).collect()
}

conformance! {
    async fn pauses_are_kept_until_they_are_ended(f) {
        assert!(f.store.pauses().await.unwrap().is_empty());
        let first = Pause { key: "pause queue default".into(), since: 7, reason: Some("upgrade".into()) };
        f.store.pause(first.clone()).await.unwrap();
        assert_eq!(f.store.pauses().await.unwrap(), [first]);
        let again = Pause { key: "pause queue default".into(), since: 8, reason: None };
        f.store.pause(again.clone()).await.unwrap();
        let kept = Pause { reason: Some("upgrade".into()), ..again };
        assert_eq!(f.store.pauses().await.unwrap(), [kept], "a second one without a reason does not take the first one's away");
        assert!(f.store.resume("pause queue default").await.unwrap());
        assert!(!f.store.resume("pause queue default").await.unwrap(), "there was none");
        assert!(f.store.pauses().await.unwrap().is_empty());
    }

    async fn a_pause_stops_its_queue_and_type_only(f) {
        pause(&f, "pause queue shipping").await;
        pause(&f, "pause type report.#").await;
        f.running("free").await;
        held(&f, "by queue", "shipping", "order.ship").await;
        held(&f, "by type", "default", "report.daily.pdf").await;
        assert_eq!(f.task("by queue").await.state.held_by.as_deref(), Some("pause queue shipping"));
        assert_eq!(f.task("by type").await.state.held_by.as_deref(), Some("pause type report.#"));
    }

    async fn held_rows_are_admissible_once_their_gate_is_open_oldest_first(f) {
        pause(&f, "pause queue default").await;
        pause(&f, "pause type report.#").await;
        held(&f, "first", "default", "order.ship").await;
        f.clock.advance(10);
        held(&f, "other gate", "shipping", "report.daily").await;
        f.clock.advance(10);
        held(&f, "second", "default", "order.ship").await;
        assert!(admissible(&f, &["default", "shipping"], 10).await.is_empty());
        assert!(f.store.resume("pause queue default").await.unwrap());
        assert_eq!(admissible(&f, &["default", "shipping"], 10).await, ["first", "second"]);
        assert_eq!(admissible(&f, &["default", "shipping"], 1).await, ["first"]);
        assert!(admissible(&f, &["shipping"], 10).await.is_empty(), "only for the queues it serves");
        assert!(f.store.resume("pause type report.#").await.unwrap());
        assert_eq!(admissible(&f, &["default", "shipping"], 10).await, ["first", "other gate", "second"]);
        assert!(admissible(&f, &[], 10).await.is_empty());
    }

    async fn an_admitted_row_runs_with_its_stamp(f) {
        f.retrying("a", 0).await;
        pause(&f, "pause queue default").await;
        assert_eq!(f.one(claim("a", RETRY_1)).await, Answer::Held { by: "pause queue default".into() });
        assert!(f.store.resume("pause queue default").await.unwrap());
        let Answer::Run(task) = f.one(claim("a", RETRY_1)).await else { panic!() };
        assert_eq!((task.state.stamp, task.state.held_by), (RETRY_1, None));
        assert!(admissible(&f, &["default"], 10).await.is_empty());
    }

    async fn a_row_that_another_gate_stops_is_held_by_that_one_then(f) {
        pause(&f, "pause queue default").await;
        held(&f, "a", "default", "order.ship").await;
        pause(&f, "pause type order.#").await;
        assert!(f.store.resume("pause queue default").await.unwrap());
        assert_eq!(admissible(&f, &["default"], 10).await, ["a"]);
        assert_eq!(f.one(claim("a", Stamp::FIRST)).await, Answer::Held { by: "pause type order.#".into() });
        assert!(admissible(&f, &["default"], 10).await.is_empty());
    }
}
