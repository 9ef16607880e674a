//! `redeliver bench`, each scenario in small on a real RabbitMQ: that it measures what it says and leaves nothing behind.
//!
//! How fast anything is is not asked here: the machine is shared, and tests must not depend on it.

mod support;

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{Vhost, until, until_within, with_vhost};

/// The longest that one run may take on a busy machine.
const LONGEST: Duration = Duration::from_secs(180);

/// A folder with a config file for the vhost.
fn folder(vhost: &Vhost) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("[broker]\nurl = \"{}\"\n", vhost.url());
    std::fs::write(folder.path().join("redeliver.toml"), text).expect("a config file");
    folder
}

/// Runs `bench` in that folder to its end, which must be a good one; what it printed.
async fn bench(folder: &Path, arguments: &[&str]) -> String {
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_redeliver"))
        .args(["-o", "json", "bench"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = tokio::time::timeout(LONGEST, run).await.unwrap_or_else(|_| panic!("bench {arguments:?} hangs"));
    let Output { status, stdout, stderr } = ended.expect("the program runs");
    assert!(status.success(), "bench {arguments:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text")
}

/// Runs one scenario once and returns its figures; looks that it has left nothing on the broker and in its folder.
async fn figures(vhost: &Vhost, scenario: &str, more: &[&str]) -> Value {
    let folder = folder(vhost);
    let mut arguments = vec!["--scenario", scenario, "--runs", "1", "--dir", ".", "--report", "report.json"];
    arguments.extend(more);
    let report: Value = serde_json::from_str(&bench(folder.path(), &arguments).await).expect("JSON");
    let kept: Value = serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).expect("a report"))
        .expect("JSON in the report");
    assert_eq!(kept, report, "what is printed and what is kept are the same");
    until("no queue is left", async || vhost.queues().await.is_empty()).await;
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 2, "only config and report: {left:?}");

    let rendered = bench(folder.path(), &["--render", "report.json"]).await;
    assert!(rendered.contains(&format!("### {scenario}\n")), "{rendered}");
    let measured = &report["scenarios"][0];
    assert_eq!(measured["scenario"], scenario);
    for promise in measured["promises"].as_array().expect("promises") {
        assert!(promise["value"].is_number(), "promised and not measured: {promise}");
    }
    let figures = measured["medians"].clone();
    for (name, value) in figures.as_object().expect("figures") {
        assert!(value.as_f64().is_some_and(|value| value >= 0.0) || name == "extra_mb", "{name}: {value}");
    }
    figures
}

fn number(figures: &Value, name: &str) -> f64 {
    figures[name].as_f64().unwrap_or_else(|| panic!("{name} is not among {figures}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn first_try_is_measured_beside_the_bare_broker() {
    with_vhost(async |vhost| {
        let found = figures(&vhost, "first-try", &["--tasks", "300"]).await;
        let ratio = number(&found, "tasks_per_s") / number(&found, "bare_consume_per_s");
        assert!((ratio - number(&found, "ratio")).abs() < 0.01, "{found}");
        assert!(number(&found, "worker_peak_mb") > 1.0, "{found}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_once_waits_in_a_delay_queue() {
    with_vhost(async |vhost| {
        let found = figures(&vhost, "fail-once", &["--tasks", "200", "--delay", "1s"]).await;
        let (all, first) = (number(&found, "beyond_delay_ms"), number(&found, "first_round_ms"));
        assert!(all > 0.0 && first > 0.0, "{found}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_the_handler_leaves_a_record_for_those_who_compare() {
    with_vhost(async |vhost| {
        let folder = folder(&vhost);
        let marks = ["--marks", "marks", "--tasks", "100", "--delay", "1s", "--runs", "1", "--dir", "."];
        bench(folder.path(), &[&["--scenario", "fail-once"][..], &marks].concat()).await;
        let records = std::fs::read(folder.path().join("marks")).expect("the marks");
        let number = |record: &[u8], at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
        let mut calls: Vec<_> = records.chunks(16).map(|record| (number(record, 0), number(record, 4))).collect();
        calls.sort_unstable();
        let expected: Vec<_> = (0..100).flat_map(|task| [(task, 1), (task, 2)]).collect();
        assert_eq!(calls, expected);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_is_over_after_the_third_party_has_healed_and_kills_nobody() {
    with_vhost(async |vhost| {
        let arguments = ["--tasks", "200", "--delay", "1s", "--outage", "2s", "--limit", "200/s"];
        let found = figures(&vhost, "storm", &arguments).await;
        assert!(number(&found, "attempts_per_task") > 1.0, "{found}");
        assert!(found["dead"] == 0.0, "{found}");
        assert!(number(&found, "recovery_ms") > 0.0, "{found}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_tasks_are_found_when_they_are_due() {
    with_vhost(async |vhost| {
        let found = figures(&vhost, "waiting", &["--waiting", "2000"]).await;
        for name in ["idle_mb", "worker_mb", "find_due_p99_ms", "round_p99_ms", "queue_list_p50_ms", "late_p99_ms"] {
            assert!(number(&found, name) > 0.0, "{name}: {found}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_no_faster_than_it_was_asked_to_be() {
    with_vhost(async |vhost| {
        let found = figures(&vhost, "replay", &["--tasks", "100", "--replay-rate", "50/s"]).await;
        // 100 letters at 50/s take 1.98 s from the first release to the last; half a second may be caught up with.
        assert!(number(&found, "replayed_per_s") <= 100.0 / 1.4, "{found}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_measured_beside_few_and_many_rows() {
    with_vhost(async |vhost| {
        let found = figures(&vhost, "rows", &["--tasks", "200", "--rows", "4000,500"]).await;
        assert!(number(&found, "store_mb_at_4000") > number(&found, "store_mb_at_500"), "{found}");
        let ratio = number(&found, "cpu_ms_per_1k_at_4000") / number(&found, "cpu_ms_per_1k_at_500");
        assert!((ratio / number(&found, "cpu_ratio") - 1.0).abs() < 0.02, "the most by the fewest: {found}");
        figures(&vhost, "rows", &["--tasks", "200", "--rows", "500", "--random-ids"]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_share_one_store() {
    with_vhost(async |vhost| {
        let found = figures(&vhost, "processes", &["--tasks", "3000", "--processes", "1,2"]).await;
        assert!(found["share_with_1"] == 1.0, "{found}");
        assert!(number(&found, "tasks_per_s_with_2") > 0.0, "{found}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steady_rate_is_published_and_everything_of_it_settled() {
    with_vhost(async |vhost| {
        let found = figures(&vhost, "sustained", &["--sustained", "50/s:6s"]).await;
        assert!(number(&found, "published_per_s_at_50") <= 50.5, "{found}");
        assert!(number(&found, "start_p99_ms_at_50") > 0.0, "{found}");
        assert!(number(&found, "memory_level_at_50") > 0.0, "{found}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plain_run_has_its_documented_keys_also_when_every_task_fails_once_for_a_while() {
    with_vhost(async |vhost| {
        let folder = folder(&vhost);
        for more in [&[][..], &["--fail-once", "--delay", "1s"]] {
            let arguments: Vec<&str> = ["--tasks", "200"].iter().chain(more).copied().collect();
            let found: Value = serde_json::from_str(&bench(folder.path(), &arguments).await).expect("JSON");
            for key in ["tasks", "tasks_per_s", "ceiling_per_s", "ratio", "p50_ms", "p99_ms", "rss_mb", "cpu_ms_per_1k"]
            {
                assert!(found[key].is_number(), "{key}: {found}");
            }
            if more.contains(&"--delay") {
                assert!(number(&found, "tasks_per_s") <= 200.0, "200 tasks that wait a second take a second: {found}");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_measured_ends_with_whoever_measures_it() {
    with_vhost(async |vhost| {
        let folder = folder(&vhost);
        let mut measuring = std::process::Command::new(env!("CARGO_BIN_EXE_redeliver"))
            .args(["bench", "--scenario", "storm", "--tasks", "100", "--runs", "1", "--dir", "."])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let pid = measuring.id();
        let mut workers = Vec::new();
        until_within(Duration::from_secs(60), "a worker runs", async || {
            workers = children_of(pid);
            !workers.is_empty()
        })
        .await;
        measuring.kill().expect("it can be killed");
        measuring.wait().expect("it ends");
        until_within(Duration::from_secs(60), "its worker has ended", async || {
            workers.iter().all(|worker| !Path::new(&format!("/proc/{worker}")).exists())
        })
        .await;
    })
    .await;
}

/// Processes whose parent that is.
fn children_of(parent: u32) -> Vec<u32> {
    let line = format!("PPid:\t{parent}");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    pids.filter(|pid| status(pid).lines().any(|found| found == line)).collect()
}
