//! What the history adds up to.

use redeliver::policy::TopicPattern;
use redeliver::store::{AttemptTally, FailureTally, Filter, GroupBy, Tally};
use redeliver::task::{Answer, Command, DeadReason, Decision, Degraded, Settlement};

use crate::fixture::{Fixture, claim, die, new_task, refusal, result, retry_after, settlement, submit};

/// A task and how each of its attempts ends; every attempt takes 100 ms and costs 0.5, and the next one follows at once.
struct Life<'a> {
    id: &'a str,
    task_type: &'a str,
    shop: Option<&'a str>,
    variant: Option<&'a str>,
    attempts: Vec<Decision>,
    fallback: Option<&'a str>,
}

fn life<'a>(id: &'a str, task_type: &'a str, shop: &'a str, attempts: Vec<Decision>) -> Life<'a> {
    Life { id, task_type, shop: Some(shop), variant: None, attempts, fallback: None }
}

fn succeed_on(n: usize) -> Vec<Decision> {
    let mut attempts = vec![retry_after(0, false); n - 1];
    attempts.push(Decision::Succeed);
    attempts
}

async fn live(f: &Fixture, life: Life<'_>) {
    let mut new = new_task(life.id);
    new.spec_mut().task_type = life.task_type.into();
    new.spec_mut().created_at = f.now();
    if let Some(shop) = life.shop {
        new.spec_mut().labels.insert("shop".into(), shop.into());
    }
    let mut running = f.one(submit(new)).await;
    for decision in life.attempts {
        let Answer::Run(task) = running else { panic!("{running:?}") };
        f.clock.advance(100);
        let fallback = life.fallback.map(|by| Degraded { by: by.into(), result: result("x") });
        let settlement = Settlement {
            cost: Some(0.5),
            variant: life.variant.map(str::to_owned),
            policy: Some(if task.stamp().retry_count == 0 { "early" } else { "late" }.into()),
            fallback,
            ..*settlement(decision)
        };
        let settle = Command::Settle { id: life.id.into(), fence: task.state.fence, settlement: Box::new(settlement) };
        let Answer::Settled(change) = f.one(settle).await else { panic!() };
        if change.task.state.status.is_ended() {
            return;
        }
        running = f.one(claim(life.id, change.task.stamp())).await;
    }
}

fn count(tasks: i64, attempts: i64, most: i64) -> Tally {
    let cost = (0..attempts).map(|_| 0.5).sum();
    Tally {
        tasks,
        attempted: tasks,
        attempts,
        most_attempts: most,
        cost,
        handler_ms: attempts * 100,
        ..Tally::default()
    }
}

fn named(group: &str, tally: Tally) -> Tally {
    Tally { group: Some(group.into()), ..tally }
}

/// Six tasks of two types and two shops.
async fn history(f: &Fixture) {
    live(f, life("a", "order.ship", "s1", succeed_on(1))).await;
    live(f, life("b", "order.ship", "s1", succeed_on(3))).await;
    live(f, life("c", "order.ship", "s2", succeed_on(5))).await;
    live(f, life("d", "order.list", "s2", vec![retry_after(0, false), die(DeadReason::RetriesExhausted)])).await;
    live(f, life("e", "order.list", "s2", vec![die(DeadReason::PermanentError)])).await;
    let spent = vec![die(DeadReason::RetriesExhausted)];
    live(f, Life { shop: None, fallback: Some("cache"), ..life("f", "report.daily", "", spent) }).await;
}

conformance! {
    async fn tasks_are_counted_by_type_with_the_attempt_on_which_they_succeeded(f) {
        assert_eq!(f.store.tallies(&GroupBy::Type, &Filter::default()).await.unwrap(), []);
        history(&f).await;
        let found = f.store.tallies(&GroupBy::Type, &Filter::default()).await.unwrap();
        let ship = Tally { succeeded_on: [1, 0, 1, 1], succeeded: 3, ..count(3, 9, 5) };
        let list = Tally { dead: 2, permanent: 1, ..count(2, 3, 2) };
        let report = Tally { fell_back: 1, degraded: 1, ..count(1, 1, 1) };
        assert_eq!(found, [named("order.ship", ship), named("order.list", list), named("report.daily", report)]);
    }

    async fn tasks_are_counted_by_label_policy_and_queue(f) {
        history(&f).await;
        let all = Filter::default();
        let groups = |found: Vec<Tally>| -> Vec<(Option<String>, i64, i64)> {
            found.into_iter().map(|tally| (tally.group, tally.tasks, tally.attempts)).collect()
        };
        let shop = f.store.tallies(&GroupBy::Label("shop".into()), &all).await.unwrap();
        assert_eq!(groups(shop), [(Some("s2".into()), 3, 8), (Some("s1".into()), 2, 4), (None, 1, 1)]);
        let policy = f.store.tallies(&GroupBy::Policy, &all).await.unwrap();
        assert_eq!(groups(policy), [(Some("early".into()), 3, 3), (Some("late".into()), 3, 10)], "the last one decided");
        let queue = f.store.tallies(&GroupBy::Queue, &all).await.unwrap();
        assert_eq!(groups(queue), [(Some("default".into()), 6, 13)]);
    }

    async fn attempts_are_counted_by_number_and_failures_by_class_and_code(f) {
        history(&f).await;
        let all = Filter::default();
        let numbers = f.store.attempt_tallies(&all).await.unwrap();
        let found: Vec<(i64, i64, i64)> = numbers.iter().map(|n| (n.number, n.attempts, n.succeeded)).collect();
        assert_eq!(found, [(1, 6, 1), (2, 3, 0), (3, 2, 1), (4, 1, 0), (5, 1, 1)]);
        assert_eq!(numbers[1], AttemptTally { number: 2, attempts: 3, succeeded: 0, cost: 1.5, handler_ms: 300 });
        let failures = f.store.failure_tallies(&all, 10).await.unwrap();
        let wanted = FailureTally {
            class: "server_error".into(),
            code: Some("E7".into()),
            http_status: Some(503),
            attempts: 10,
            tasks: 5,
        };
        assert_eq!(failures, [wanted]);
        assert_eq!(f.store.failure_tallies(&all, 0).await.unwrap(), []);
    }

    async fn a_tally_is_about_what_ended_in_its_window_and_matches_its_filter(f) {
        let began = f.now();
        history(&f).await;
        let tasks = async |filter: Filter| -> i64 {
            f.store.tallies(&GroupBy::Queue, &filter).await.unwrap().iter().map(|tally| tally.tasks).sum()
        };
        // a ended at 100 ms, b at 400 ms, c at 900 ms.
        assert_eq!(tasks(Filter { until: Some(began + 100), ..Filter::default() }).await, 0);
        assert_eq!(tasks(Filter { until: Some(began + 401), ..Filter::default() }).await, 2);
        assert_eq!(tasks(Filter { since: Some(began + 400), until: Some(began + 901), ..Filter::default() }).await, 2);
        let pattern = |text: &str| vec![TopicPattern::new(text).unwrap()];
        assert_eq!(tasks(Filter { types: pattern("order.#"), ..Filter::default() }).await, 5);
        assert_eq!(tasks(Filter { types: pattern("order.ship"), ..Filter::default() }).await, 3);
        assert_eq!(tasks(Filter { types: pattern("nothing.*"), ..Filter::default() }).await, 0);
        let shop = [("shop".to_owned(), "s2".to_owned())].into();
        assert_eq!(tasks(Filter { labels: shop, types: pattern("*.list"), ..Filter::default() }).await, 2);
        assert_eq!(tasks(Filter { ids: vec!["a".into(), "f".into()], ..Filter::default() }).await, 2);
    }

    async fn what_has_not_ended_by_itself_is_not_counted_and_neither_is_a_run_that_was_given_back(f) {
        f.pending("waits").await;
        f.running("runs").await;
        f.pending("cancelled").await;
        assert_eq!(f.one(Command::Cancel { id: "cancelled".into(), note: None }).await, Answer::Done);
        let Answer::Refused(_) = f.one(Command::Refuse(Box::new(refusal("refused")))).await else { panic!() };
        assert_eq!(f.store.tallies(&GroupBy::Type, &Filter::default()).await.unwrap(), []);

        let fence = f.running("given back").await.state.fence;
        let Answer::Settled(_) = f.one(Command::Release { id: "given back".into(), fence, nack: false }).await else { panic!() };
        let Answer::Run(task) = f.one(claim("given back", redeliver::task::Stamp::FIRST)).await else { panic!() };
        let settle = Command::Settle { id: "given back".into(), fence: task.state.fence, settlement: settlement(Decision::Succeed) };
        let Answer::Settled(_) = f.one(settle).await else { panic!() };
        let found = f.store.tallies(&GroupBy::Type, &Filter::default()).await.unwrap();
        assert_eq!((found.len(), found[0].attempts, found[0].succeeded_on), (1, 1, [1, 0, 0, 0]));
    }

    async fn a_replayed_task_is_counted_with_the_attempts_of_all_its_generations(f) {
        f.dead("a").await;
        let Answer::Publish(wake_up) = f.one(Command::Replay { id: "a".into(), generation: 0, note: None }).await else { panic!() };
        let Answer::Run(task) = f.one(claim("a", wake_up.stamp)).await else { panic!() };
        let settle = Command::Settle { id: "a".into(), fence: task.state.fence, settlement: settlement(Decision::Succeed) };
        let Answer::Settled(_) = f.one(settle).await else { panic!() };
        let found = f.store.tallies(&GroupBy::Type, &Filter::default()).await.unwrap();
        assert_eq!((found[0].succeeded_on, found[0].attempts), ([0, 1, 0, 0], 2));
    }

    async fn variants_are_counted_with_their_times_to_success(f) {
        for n in 1..=4_usize {
            let id = format!("fast {n}");
            live(&f, Life { variant: Some("fast"), ..life(&id, "order.ship", "s1", succeed_on(n)) }).await;
        }
        let dead = vec![die(DeadReason::RetriesExhausted)];
        live(&f, Life { variant: Some("slow"), ..life("slow 1", "order.ship", "s1", dead) }).await;
        live(&f, life("no variant", "order.ship", "s1", succeed_on(1))).await;
        let found = f.store.tallies(&GroupBy::Variant, &Filter::default()).await.unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|t| (t.group.as_deref(), t.variant.as_deref(), t.tasks, t.succeeded, t.p50_ms, t.p95_ms))
            .collect();
        // The policy of the last attempt: the first attempts' is another one.
        assert_eq!(found, [
            (Some("late"), Some("fast"), 3, 3, Some(300), Some(400)),
            (Some("early"), Some("fast"), 1, 1, Some(100), Some(100)),
            (Some("early"), Some("slow"), 1, 0, None, None),
        ]);
    }
}
