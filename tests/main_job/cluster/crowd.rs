//! The promise at its full size: three workers, three nodes, and both a worker and the queue leader's node killed in the middle.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rig::{Rig, full, report, sized};
use crate::support::cluster::with_cluster;
use crate::support::until_within;
use crate::third_party::{Reply, ThirdParty};

/// Long enough for a machine that is busy with the crowd itself.
const LEASE: Duration = Duration::from_secs(30);
/// Tasks that one command publishes.
const BATCH: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_and_a_killed_leader_lose_no_task_and_run_no_stamp_twice() {
    with_cluster(async |cluster, vhost| {
        let n = sized(50_000, 600);
        let limit = Duration::from_secs(if full() { 3600 } else { 240 });
        // One in five fails once.
        let party = ThirdParty::start(|arrival| {
            let number: usize = arrival.task.rsplit_once('-').map_or(0, |(_, n)| n.parse().expect("a number"));
            let fails = arrival.retry_count == 0 && number.is_multiple_of(5);
            let reply = if fails { Reply::refusal() } else { Reply::good() };
            reply.after(Duration::from_millis(20))
        })
        .await;
        let settings = format!(
            "[worker]\nconcurrency = 8\nprefetch = 64\nlease = \"{}s\"\n[scheduler]\ngrace = \"5s\"\npatience = \"5s\"\nslack = \"5s\"\n{}\
             [[policy]]\nname = \"p\"\nbackoff = {{ fixed = \"2s\" }}\n",
            LEASE.as_secs(),
            party.route("30s")
        );
        let store = std::env::var("REDELIVER_TEST_STORE").ok();
        let rig = Rig::at(&vhost, &cluster.urls(&vhost), store.as_deref(), &settings).await;
        let mut workers = vec![rig.worker(), rig.worker(), rig.worker()];
        for worker in &workers {
            worker.until_says(Duration::from_secs(60), "broker session up").await;
        }
        let began = Instant::now();
        let publishing = async {
            for from in (0..n).step_by(BATCH) {
                let line =
                    |i| format!("{}\n", json!({"id": format!("crowd-{i}"), "type": "test.call", "payload": {"n": i}}));
                let lines: String = (from..n.min(from + BATCH)).map(line).collect();
                std::fs::write(rig.folder().join("crowd.jsonl"), lines).expect("a file");
                // The broker is hurt meanwhile: what was not accepted is sent again, by the same ids.
                until_within(limit, "a batch is accepted", async || {
                    rig.run(&["publish", "--batch", "crowd.jsonl"]).await.code == Some(0)
                })
                .await;
            }
        };
        let hurting = async {
            until_within(limit, "a third has been called", async || party.calls() >= n / 3).await;
            workers.swap_remove(0).kill();
            let leader = cluster.leader(&vhost, "redeliver.default.tasks").await;
            until_within(limit, "more has been called", async || party.calls() >= n / 2).await;
            cluster.node(leader).ctl(&["kill"]).await;
            leader
        };
        let ((), leader) = tokio::join!(publishing, hurting);

        let mut stats = Value::Null;
        until_within(limit, "every task has ended", async || {
            stats = rig.json(&["stats", "--limit", "1000"]).await;
            stats["total"]["tasks"] == json!(n)
        })
        .await;
        let took = began.elapsed();
        assert_eq!(stats["total"]["succeeded"], json!(n), "{stats}");
        let left = rig.json(&["task", "list", "--status", "pending,running,retry_waiting", "--limit", "1"]).await;
        assert_eq!(left["items"], json!([]), "more tasks than were published");

        let mut runs: HashMap<(String, i64), usize> = HashMap::new();
        for arrival in party.arrivals() {
            *runs.entry((arrival.task, arrival.retry_count)).or_default() += 1;
        }
        let twice: Vec<_> = runs.iter().filter(|(_, runs)| **runs > 1).collect();
        assert!(twice.is_empty(), "a stamp ran twice: {twice:?}");
        let failures = stats["failures"].as_array().expect("a list");
        let lost: i64 = failures
            .iter()
            .filter(|failure| failure["class"] == "worker_lost")
            .filter_map(|failure| failure["attempts"].as_i64())
            .sum();
        // Each task once, one in five once more; a killed worker's attempts once more, as another stamp.
        let expected = n + n.div_ceil(5);
        let extra = i64::try_from(runs.len()).expect("few") - i64::try_from(expected).expect("few");
        report(&format!(
            "cluster crowd: {n} tasks on {} in {took:?}; {} calls, {lost} attempts lost with their worker",
            store.as_deref().map_or("sqlite", |url| url.split(':').next().unwrap_or_default()),
            runs.len(),
        ));
        assert!((-lost..=lost).contains(&extra), "{} calls for {n} tasks, {lost} lost with a worker", runs.len());
        assert!(lost <= 8, "only the killed worker's eight attempts may be lost, not {lost}");
        cluster.node(leader).ctl(&["start"]).await;
    })
    .await;
}
