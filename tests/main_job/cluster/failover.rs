//! One node at a time, then two.

use std::time::Duration;

use serde_json::Value;

use crate::rig::{Rig, WorkerProcess, as_i64, report};
use crate::support::Vhost;
use crate::support::cluster::{Cluster, with_cluster};
use crate::support::until_within;
use crate::third_party::{Reply, ThirdParty};

const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";
/// Elections, heartbeats and lookouts, on a busy machine.
const LONG: Duration = Duration::from_secs(120);

fn settings(party: &ThirdParty) -> String {
    format!(
        "[worker]\nconcurrency = 4\nprefetch = 16\nlease = \"20s\"\n[scheduler]\ngrace = \"3s\"\npatience = \"3s\"\nmax_patience = \"10s\"\nslack = \"3s\"\n{}\
         [[policy]]\nname = \"p\"\nbackoff = {{ fixed = \"1s\" }}\n",
        party.route("30s")
    )
}

/// A third party that refuses each first attempt of every fifth task.
async fn fussy() -> ThirdParty {
    ThirdParty::start(|arrival| {
        let fails = arrival.retry_count == 0 && arrival.task.ends_with(['0', '5']);
        if fails { Reply::refusal() } else { Reply::good().after(Duration::from_millis(50)) }
    })
    .await
}

async fn rig(cluster: &Cluster, vhost: &Vhost, party: &ThirdParty) -> Rig {
    Rig::at(vhost, &cluster.urls(vhost), None, &settings(party)).await
}

/// Publishes tasks as a patient producer does: what is not accepted is sent again, by the same ids.
async fn publish_patiently(rig: &Rig, name: &str, n: usize) {
    let lines: String = (0..n).map(|i| format!("{{\"id\": \"{name}-{i}\", \"type\": \"test.call\"}}\n")).collect();
    std::fs::write(rig.folder().join("patient.jsonl"), lines).expect("a file");
    until_within(LONG, "every task is accepted", async || {
        rig.run(&["publish", "--batch", "patient.jsonl"]).await.code == Some(0)
    })
    .await;
}

async fn at_node(cluster: &Cluster, worker: &WorkerProcess) -> usize {
    worker.until_says(LONG, "broker session up").await;
    cluster.node_in_use(&worker.log()).expect("it says where")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_commands_go_on_while_the_leaders_node_is_down() {
    with_cluster(async |cluster, vhost| {
        let party = fussy().await;
        let rig = rig(cluster, &vhost, &party).await;
        let workers = [rig.worker(), rig.worker()];
        for worker in &workers {
            at_node(cluster, worker).await;
        }
        publish_patiently(&rig, "before", 100).await;
        until_within(LONG, "work is under way", async || party.calls() >= 30).await;
        let victim = cluster.leader(&vhost, "redeliver.default.tasks").await;
        cluster.node(victim).ctl(&["kill"]).await;
        publish_patiently(&rig, "meanwhile", 50).await;
        rig.until_number(LONG, SUCCEEDED, 150).await;

        for command in [
            ["topology", "plan"].as_slice(),
            &["topology", "apply", "--yes"],
            &["queue", "list"],
            &["dlq", "sync", "--yes"],
            &["doctor"],
        ] {
            let said = rig.run(command).await;
            assert_eq!(said.code, Some(0), "{command:?} with one node down: {said:?}");
        }
        cluster.node(victim).ctl(&["start"]).await;
        publish_patiently(&rig, "after", 20).await;
        rig.until_number(LONG, SUCCEEDED, 170).await;
        assert_eq!(rig.number("SELECT count(*) FROM tasks").await, 170, "a task has two rows");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_is_left_for_another() {
    with_cluster(async |cluster, vhost| {
        let party = fussy().await;
        let rig = rig(cluster, &vhost, &party).await;
        let worker = rig.worker();
        publish_patiently(&rig, "before", 20).await;
        rig.until_number(LONG, SUCCEEDED, 20).await;
        let victim = at_node(cluster, &worker).await;
        cluster.node(victim).ctl(&["pause"]).await;
        let began = std::time::Instant::now();
        publish_patiently(&rig, "meanwhile", 20).await;
        rig.until_number(LONG, SUCCEEDED, 40).await;
        report(&format!("cluster: a node that stood still was left after {:?}", began.elapsed()));
        assert_ne!(at_node(cluster, &worker).await, victim);
        cluster.node(victim).ctl(&["resume"]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_up_and_has_lost_the_others_is_left_for_one_of_them() {
    with_cluster(async |cluster, vhost| {
        let party = fussy().await;
        let rig = rig(cluster, &vhost, &party).await;
        let worker = rig.worker();
        publish_patiently(&rig, "before", 20).await;
        rig.until_number(LONG, SUCCEEDED, 20).await;
        let victim = at_node(cluster, &worker).await;
        let others: Vec<String> = (0..3).filter(|index| *index != victim).map(|index| cluster.name(index)).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        cluster.node(victim).ctl(&[&["isolate"], others.as_slice()].concat()).await;
        let began = std::time::Instant::now();
        publish_patiently(&rig, "meanwhile", 20).await;
        rig.until_number(LONG, SUCCEEDED, 40).await;
        let log = worker.log();
        let why = log.lines().rfind(|line| line.contains("broker session ended")).unwrap_or_default();
        report(&format!("cluster: a node without a majority was left after {:?}: {why}", began.elapsed()));
        assert_ne!(at_node(cluster, &worker).await, victim);
        // Commands begin at any node, in an order of their own.
        for _ in 0..4 {
            let said = rig.run(&["--timeout", "60s", "topology", "plan"]).await;
            assert_eq!(said.code, Some(0), "{said:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_tasks_wait_and_none_is_lost() {
    with_cluster(async |cluster, vhost| {
        let party = fussy().await;
        let rig = rig(cluster, &vhost, &party).await;
        let mut workers = [rig.worker(), rig.worker()];
        publish_patiently(&rig, "before", 60).await;
        until_within(LONG, "work is under way", async || party.calls() >= 20).await;
        let left = cluster.leader(&vhost, "redeliver.default.retries").await;
        for index in (0..3).filter(|index| *index != left) {
            cluster.node(index).ctl(&["kill"]).await;
        }
        // Rows need no broker to be accepted, and none to be admitted when their alarms ring.
        rig.insert_many("inserted", 20).await;
        let said = rig.run(&["--timeout", "30s", "publish", "test.call", "--id", "too-early"]).await;
        assert_ne!(said.code, Some(0), "nobody can have taken it: {said:?}");
        for worker in &mut workers {
            assert!(worker.is_running(), "{}", worker.log());
        }
        for index in (0..3).filter(|index| *index != left) {
            cluster.node(index).ctl(&["start"]).await;
        }
        publish_patiently(&rig, "after", 20).await;
        let wanted = "SELECT count(*) FROM tasks WHERE status = 'succeeded' AND id <> 'too-early'";
        rig.until_number(LONG, wanted, as_i64(100)).await;
        let listed: Value = rig.json(&["task", "list", "--status", "dead"]).await;
        assert_eq!(listed["items"], serde_json::json!([]), "nothing died of it");
    })
    .await;
}
