//! The last good results, for fallbacks.

use redeliver::store::Filter;
use redeliver::task::{Answer, Command, DeadReason, Decision, Degraded, NewTask, Settlement, Status};

use crate::fixture::{Fixture, die, ids, new_task, result, settlement, submit};

/// Runs a task to an end that is settled so.
async fn end(f: &Fixture, id: &str, task_type: &str, decision: Decision, change: impl FnOnce(&mut Settlement)) {
    let mut new = NewTask { ..new_task(id) };
    new.spec_mut().task_type = task_type.into();
    let Answer::Run(task) = f.one(submit(new)).await else { panic!() };
    let mut settlement = settlement(decision);
    change(&mut settlement);
    let answer = f.one(Command::Settle { id: id.into(), fence: task.state.fence, settlement }).await;
    assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
}

async fn succeed(f: &Fixture, id: &str, task_type: &str, key: Option<&str>, text: &str) {
    end(f, id, task_type, Decision::Succeed, |settlement| {
        settlement.result = Some(result(text));
        settlement.remember = key.map(str::to_owned);
    })
    .await;
}

conformance! {
    async fn a_remembered_result_is_found_by_type_and_key_and_a_newer_one_replaces_it(f) {
        assert_eq!(f.store.cached("order.ship", "k").await.unwrap(), None);
        succeed(&f, "first", "order.ship", Some("k"), "one").await;
        let first_at = f.now();
        assert_eq!(f.store.cached("order.ship", "k").await.unwrap(), Some((result("one"), first_at)));
        f.clock.advance(5_000);
        succeed(&f, "second", "order.ship", Some("k"), "two").await;
        succeed(&f, "other key", "order.ship", Some("l"), "three").await;
        succeed(&f, "other type", "order.list", Some("k"), "four").await;
        succeed(&f, "not remembered", "order.ship", None, "five").await;
        assert_eq!(f.store.cached("order.ship", "k").await.unwrap(), Some((result("two"), first_at + 5_000)));
        assert_eq!(f.store.cached("order.ship", "l").await.unwrap(), Some((result("three"), f.now())));
        assert_eq!(f.store.cached("order.list", "k").await.unwrap(), Some((result("four"), f.now())));
    }

    async fn a_degraded_end_stores_its_result_and_is_not_remembered(f) {
        succeed(&f, "good", "order.ship", Some("k"), "good").await;
        let fallback = Degraded { by: "cache".into(), result: result("good") };
        f.clock.advance(1);
        end(&f, "spent", "order.ship", die(DeadReason::RetriesExhausted), |settlement| {
            settlement.fallback = Some(fallback);
            settlement.remember = Some("k".into());
        })
        .await;
        let task = f.task("spent").await;
        assert_eq!((task.state.status, task.state.degraded.as_deref()), (Status::Succeeded, Some("cache")));
        assert_eq!(f.store.result("spent").await.unwrap(), Some(result("good")));
        assert_eq!(f.store.cached("order.ship", "k").await.unwrap(), Some((result("good"), f.now() - 1)));
        end(&f, "filled", "order.ship", Decision::Succeed, |settlement| {
            settlement.result = Some(result("filled in"));
            settlement.degraded = Some("defaults".into());
            settlement.remember = Some("k".into());
        })
        .await;
        assert_eq!(f.task("filled").await.state.degraded.as_deref(), Some("defaults"));
        assert_eq!(f.store.result("filled").await.unwrap(), Some(result("filled in")));
        assert_eq!(f.store.cached("order.ship", "k").await.unwrap(), Some((result("good"), f.now() - 1)));
    }

    async fn a_degraded_end_is_found_by_the_failure_that_it_keeps(f) {
        f.succeeded("good").await;
        f.dead("dead").await;
        let fallback = Degraded { by: "default".into(), result: result("x") };
        end(&f, "spent", "order.ship", die(DeadReason::RetriesExhausted), |settlement| settlement.fallback = Some(fallback)).await;
        let filter = Filter { classes: vec!["server_error".into()], ..Filter::default() };
        assert_eq!(ids(&f.store.list(&filter, None, 10).await.unwrap().items), ["spent", "dead"]);
        let counts = f.store.count(&filter).await.unwrap();
        assert_eq!((counts[&Status::Dead], counts[&Status::Succeeded]), (1, 1));
        let only = Filter { statuses: vec![Status::Succeeded], ..filter };
        assert_eq!(ids(&f.store.list(&only, None, 10).await.unwrap().items), ["spent"]);
    }
}
