//! Lists, counts and filters.

use std::collections::BTreeMap;

use redeliver::policy::TopicPattern;
use redeliver::store::{Comparison, Filter};
use redeliver::task::{Answer, Command, DeadReason, Decision, Failure, NewTask, Status};

use crate::fixture::{Fixture, RETRY_1, claim, new_task, retry_after, settle, submit};

/// One task of nearly every fate, with different types, labels, queues and failures.
async fn town(f: &Fixture) {
    let submit_as = |id: &str, task_type: &str, shop: &str, queue: &str| {
        let mut new = NewTask { queue: queue.into(), ..new_task(id) };
        new.spec_mut().task_type = task_type.into();
        new.spec_mut().created_at = f.now();
        new.spec_mut().labels = BTreeMap::from([("shop".into(), shop.into()), ("tier \"x\"".into(), "vip".into())]);
        submit(new)
    };
    let rows = [
        ("done", "order.ship", "s1", "default"),
        ("failed", "order.ship.fast", "s1", "shipping"),
        ("gone", "order.pay", "s2", "default"),
        ("thrown", "report.daily", "s2", "default"),
        ("running", "report.daily", "s1", "shipping"),
        ("retrying", "order.ship", "s3", "default"),
        ("stopped", "order.ship", "s1", "default"),
    ];
    for (id, task_type, shop, queue) in rows {
        assert!(matches!(f.one(submit_as(id, task_type, shop, queue)).await, Answer::Run(_)));
        f.clock.advance(1_000);
    }
    f.pending("waiting").await;
    let fails = |class: &str, code: Option<&str>, http_status, message: &str, fingerprint: &str| Failure {
        code: code.map(str::to_owned),
        http_status,
        fingerprint: fingerprint.into(),
        ..Failure::new(class, message)
    };
    let die = |reason, failure| Decision::Die { reason, failure };
    let answers = f
        .all(vec![
            settle("done", 1, Decision::Succeed),
            settle(
                "failed",
                1,
                die(DeadReason::PermanentError, fails("http_status", None, Some(404), "No Such Order 100%", "p1")),
            ),
            settle("gone", 1, die(DeadReason::RetriesExhausted, fails("timeout", None, None, "too slow", "p2"))),
            settle(
                "thrown",
                1,
                die(DeadReason::PermanentError, fails("platform_code", Some("E9"), Some(200), "code", "p3")),
            ),
            Command::Discard { id: "thrown".into(), generation: 0, note: None },
            settle("retrying", 1, retry_after(1_000, false)),
            settle("stopped", 1, retry_after(1_000, false)),
            Command::Cancel { id: "stopped".into(), note: None },
        ])
        .await;
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Settled(_) | Answer::Done)), "{answers:?}");
}

async fn found(f: &Fixture, filter: Filter) -> Vec<String> {
    let page = f.store.list(&filter, None, 100).await.unwrap();
    assert_eq!(page.next, None);
    let counts = f.store.count(&filter).await.unwrap();
    let mut by_status = BTreeMap::new();
    for task in &page.items {
        *by_status.entry(task.state.status).or_insert(0) += 1;
    }
    assert_eq!(counts, by_status, "count and list agree for {filter:?}");
    page.items.iter().map(|task| task.id().to_owned()).collect()
}

fn patterns(texts: &[&str]) -> Vec<TopicPattern> {
    texts.iter().map(|text| TopicPattern::new(text).unwrap()).collect()
}

fn words(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

conformance! {
    async fn a_list_has_everything_newest_first(f) {
        town(&f).await;
        let all = ["waiting", "stopped", "retrying", "running", "thrown", "gone", "failed", "done"];
        assert_eq!(found(&f, Filter::default()).await, all);
    }

    async fn an_empty_store_has_an_empty_list(f) {
        assert!(found(&f, Filter::default()).await.is_empty());
        assert!(f.store.count(&Filter::default()).await.unwrap().is_empty());
    }

    async fn each_filter_restricts_by_its_own_field(f) {
        town(&f).await;
        let none = Filter::default;
        let label = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let moment = f.task("running").await.spec.created_at;
        let cases: Vec<(Filter, &[&str])> = vec![
            (Filter { types: patterns(&["order.ship"]), ..none() }, &["waiting", "stopped", "retrying", "done"]),
            (Filter { types: patterns(&["order.*"]), ..none() }, &["waiting", "stopped", "retrying", "gone", "done"]),
            (Filter { types: patterns(&["order.ship.#", "report.daily"]), ..none() },
                &["waiting", "stopped", "retrying", "running", "thrown", "failed", "done"]),
            (Filter { types: patterns(&["#"]), statuses: vec![Status::Dead], ..none() }, &["gone", "failed"]),
            (Filter { labels: label("shop", "s2"), ..none() }, &["thrown", "gone"]),
            (Filter { labels: label("tier \"x\"", "vip"), statuses: vec![Status::Running], ..none() }, &["running"]),
            (Filter { labels: label("shop", "nowhere"), ..none() }, &[]),
            (Filter { labels: label("city", "s2"), ..none() }, &[]),
            (Filter { statuses: vec![Status::Dead], ..none() }, &["gone", "failed"]),
            (Filter { statuses: vec![Status::Succeeded, Status::Pending], ..none() }, &["waiting", "done"]),
            (Filter { statuses: vec![Status::Cancelled, Status::Discarded, Status::RetryWaiting], ..none() },
                &["stopped", "retrying", "thrown"]),
            (Filter { reasons: vec![DeadReason::PermanentError], ..none() }, &["failed"]),
            (Filter { reasons: vec![DeadReason::PermanentError, DeadReason::RetriesExhausted], ..none() }, &["gone", "failed"]),
            (Filter { classes: words(&["timeout", "http_status"]), ..none() }, &["gone", "failed"]),
            (Filter { codes: words(&["E9"]), ..none() }, &["thrown"]),
            (Filter { http_statuses: vec![404, 503], ..none() }, &["stopped", "retrying", "failed"]),
            (Filter { fingerprints: words(&["p2"]), ..none() }, &["gone"]),
            (Filter { fingerprints: words(&["p2", "-"]), statuses: vec![Status::Dead, Status::Running], ..none() },
                &["running", "gone"]),
            (Filter { queues: words(&["shipping"]), ..none() }, &["running", "failed"]),
            (Filter { ids: words(&["done", "gone", "nobody"]), ..none() }, &["gone", "done"]),
            (Filter { ids: words(&["done", "gone"]), statuses: vec![Status::Dead], ..none() }, &["gone"]),
            (Filter { text: Some("no such order 100%".into()), ..none() }, &["failed"]),
            (Filter { text: Some("SLOW".into()), ..none() }, &["gone"]),
            (Filter { text: Some("_".into()), ..none() }, &[]),
            (Filter { since: Some(moment), statuses: vec![Status::Running, Status::RetryWaiting], ..none() },
                &["retrying", "running"]),
            (Filter { until: Some(moment), statuses: vec![Status::Running, Status::RetryWaiting], ..none() }, &[]),
            (Filter { since: Some(f.now()), statuses: vec![Status::Dead, Status::Running], ..none() }, &["gone", "failed"]),
            (Filter { attempts: Some((Comparison::AtLeast, 1)), statuses: vec![Status::Dead, Status::Running], ..none() },
                &["gone", "failed"]),
            (Filter { attempts: Some((Comparison::Equal, 0)), ..none() }, &["waiting", "running"]),
            (Filter { statuses: vec![Status::Dead], queues: words(&["default"]), labels: label("shop", "s2"), ..none() }, &["gone"]),
            (Filter { statuses: vec![Status::Succeeded], classes: words(&["timeout"]), ..none() }, &[]),
        ];
        for (filter, expected) in cases {
            let told = format!("{filter:?}");
            assert_eq!(found(&f, filter).await, expected, "{told}");
        }
    }

    async fn attempts_are_counted_in_the_current_generation_and_without_releases(f) {
        f.retrying("a", 0).await;
        let Answer::Run(_) = f.one(claim("a", RETRY_1)).await else { panic!() };
        let Answer::Settled(_) = f.one(Command::Release { id: "a".into(), fence: 2, nack: false }).await else { panic!() };
        let with = |how, number| Filter { attempts: Some((how, number)), ..Filter::default() };
        assert_eq!(found(&f, with(Comparison::Equal, 1)).await, ["a"]);
        assert_eq!(found(&f, with(Comparison::AtMost, 1)).await, ["a"]);
        assert!(found(&f, with(Comparison::More, 1)).await.is_empty());
        assert!(found(&f, with(Comparison::Less, 1)).await.is_empty());
        let Answer::Run(_) = f.one(claim("a", RETRY_1)).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("a", 3, crate::fixture::die(DeadReason::RetriesExhausted))).await else {
            panic!()
        };
        assert_eq!(found(&f, with(Comparison::Equal, 2)).await, ["a"]);
        let Answer::Publish(_) = f.one(Command::Replay { id: "a".into(), generation: 0, note: None }).await else { panic!() };
        assert_eq!(found(&f, with(Comparison::Equal, 0)).await, ["a"]);
    }

    async fn pages_follow_each_other_without_gap_or_double_while_rows_arrive(f) {
        for n in 0..7 {
            f.pending(&format!("t{n}")).await;
        }
        let filter = Filter::default();
        let mut seen = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = f.store.list(&filter, cursor.as_deref(), 3).await.unwrap();
            assert!(page.items.len() <= 3);
            seen.extend(page.items.iter().map(|task| task.id().to_owned()));
            f.pending(&format!("later {}", seen.len())).await;
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, ["t6", "t5", "t4", "t3", "t2", "t1", "t0"]);
    }

    async fn a_page_that_ends_with_the_list_has_no_next(f) {
        for n in 0..4 {
            f.pending(&format!("t{n}")).await;
        }
        let page = f.store.list(&Filter::default(), None, 4).await.unwrap();
        assert_eq!((page.items.len(), page.next), (4, None));
    }

    async fn pages_work_over_several_statuses_and_patterns(f) {
        for n in 0..20 {
            let mut new = new_task(&format!("t{n:02}"));
            new.spec_mut().task_type = if n % 2 == 0 { "order.ship.fast" } else { "report.daily" }.into();
            new.claimant = new.claimant.filter(|_| n % 4 == 0);
            let _ = f.one(submit(new)).await;
        }
        let filter = Filter {
            types: patterns(&["order.#"]),
            statuses: vec![Status::Running, Status::Pending],
            ..Filter::default()
        };
        let mut seen = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = f.store.list(&filter, cursor.as_deref(), 3).await.unwrap();
            seen.extend(page.items.iter().map(|task| task.id().to_owned()));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let expected: Vec<String> = (0..10).rev().map(|n| format!("t{:02}", 2 * n)).collect();
        assert_eq!(seen, expected);
    }

    async fn a_cursor_from_elsewhere_is_an_error(f) {
        assert!(f.store.list(&Filter::default(), Some("not a cursor"), 3).await.is_err());
    }
}
