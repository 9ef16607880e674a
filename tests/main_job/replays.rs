//! A replay of many at a rate: how long it takes, measured at the third party, and what a kill in the middle leaves.

use std::collections::HashMap;
use std::time::Duration;

use crate::rig::{Rig, as_i64, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::ThirdParty;

const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded' AND generation = 1";

fn settings(party: &ThirdParty) -> String {
    format!(
        "[worker]\nlease = \"5s\"\n[scheduler]\ngrace = \"2s\"\npatience = \"3s\"\nslack = \"3s\"\n{}\
         [[policy]]\nname = \"p\"\nmax_retries = 5\nbackoff = {{ fixed = \"1s\" }}\n",
        party.route("60s")
    )
}

/// Dead letters, as if a worker had left them yesterday. Their copies are not wanted: the DLQ is not what is looked at here.
async fn letters(rig: &Rig, n: usize) {
    rig.execute(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {n})
         INSERT INTO tasks (id, type, payload, status, dead_reason, queue, wake_at, failure_class, failure_message,
                            failure_fingerprint, ended_at)
         SELECT 'letter-' || i, 'test.call', json_object('n', i), 'dead', 'retries_exhausted', 'default', NULL, 'timeout',
                'too slow', 'v1-slow', due_at - 86400000 FROM
         (SELECT i, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) AS due_at FROM n)"
    ))
    .await;
}

#[tokio::test]
async fn a_replay_at_a_rate_takes_as_long_as_that_rate_says_within_five_percent() {
    with_vhost(async |vhost| {
        let (n, rate) = (sized(20_000, 300), sized(200, 50));
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party)).await;
        letters(&rig, n).await;
        let mut worker = rig.worker();
        let rate_text = format!("{rate}/s");
        let done = rig.json(&["dlq", "replay", "--fingerprint", "v1-slow", "--rate", &rate_text, "--yes"]).await;
        assert_eq!(done, serde_json::json!({"matched": n, "replayed": n, "skipped": {}}));
        rig.until_number(Duration::from_secs(60), SUCCEEDED, as_i64(n)).await;
        let at: Vec<i64> = party.arrivals().iter().map(|arrival| arrival.at).collect();
        let took = at.iter().max().expect("calls") - at.iter().min().expect("calls");
        let wanted = as_i64(n) * 1_000 / as_i64(rate);
        report(&format!("replay: {n} at {rate}/s took {took} ms at the third party, wanted {wanted} ms"));
        assert!((wanted * 95 / 100..=wanted * 105 / 100).contains(&took), "{took} ms instead of {wanted}");
        assert_eq!(party.calls(), n);
        rig.until_number(Duration::from_secs(60), "SELECT count(*) FROM replay_jobs WHERE state = 'done'", 1).await;
        assert!(worker.stop(Duration::from_secs(20)).await.success());
    })
    .await;
}

#[tokio::test]
async fn a_replay_that_is_killed_in_the_middle_goes_on_and_every_task_is_replayed_once() {
    with_vhost(async |vhost| {
        let (n, rate) = (sized(20_000, 600), sized(200, 60));
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party)).await;
        letters(&rig, n).await;
        let worker = rig.worker();
        let rate_text = format!("{rate}/s");
        let made = rig.json(&["dlq", "replay", "--all", "--rate", &rate_text, "--detach", "--yes"]).await;
        assert_eq!((made["matched"].as_u64(), made["replayed"].as_u64()), (u64::try_from(n).ok(), Some(0)), "{made}");
        until_within(Duration::from_secs(120), "the middle", async || party.calls() >= n / 3).await;
        worker.kill();
        let waiting = rig.number("SELECT count(*) FROM replay_items WHERE outcome = 'waiting'").await;
        assert!(waiting > 0, "it was killed in the middle");
        let _worker = rig.worker();
        rig.until_number(Duration::from_secs(240), SUCCEEDED, as_i64(n)).await;
        assert_eq!(rig.number("SELECT count(*) FROM tasks WHERE generation <> 1").await, 0, "each replayed once");
        let mut calls: HashMap<String, usize> = HashMap::new();
        for arrival in party.arrivals() {
            *calls.entry(arrival.task).or_insert(0) += 1;
        }
        let twice = calls.values().filter(|calls| **calls > 1).count();
        let lost = rig.number("SELECT count(*) FROM attempts WHERE class = 'worker_lost'").await;
        report(&format!("replay: killed with {waiting} of {n} waiting; {twice} called twice, {lost} leases lost"));
        // Only what ran when the worker died may have been called twice.
        assert!(as_i64(twice) <= lost, "{twice} called twice, {lost} leases lost");
        let job = rig.json(&["replay", "show", "1"]).await;
        assert_eq!((job["succeeded"].as_u64(), job["waiting"].as_u64()), (u64::try_from(n).ok(), Some(0)), "{job}");
    })
    .await;
}
