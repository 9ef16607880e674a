//! Rows that other programs insert: fed and run however many there are, once each, and never in the way of an alarm.

use std::time::Duration;

use serde_json::json;

use crate::rig::{Rig, as_i64, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";

#[tokio::test]
async fn a_crowd_of_inserted_rows_behind_a_crowd_of_submissions_delays_no_alarm() {
    with_vhost(async |vhost| {
        let (rows, submissions) = (sized(100_000, 2_000), sized(20_000, 500));
        // The lease and the third party's own wish end at about the same time, in the middle of the crowd.
        let (lease_s, asked) = if crate::rig::full() { (30, "30") } else { (8, "8") };
        let limited = 10;
        let party = ThirdParty::start(move |arrival| match (arrival.task.as_str(), arrival.retry_count) {
            ("hung-0", 0) => Reply::silence(),
            (task, 0) if task.starts_with("limited") => Reply::slow_down(asked),
            _ => Reply::good(),
        })
        .await;
        let settings = format!(
            "[worker]\nlease = \"{lease_s}s\"\nprefetch = 64\nconcurrency = 16\n{}[[policy]]\nname = \"p\"\nbackoff = {{ steps = [\"1s\"] }}\n",
            party.route("120s")
        );
        let rig = Rig::new(&vhost, &settings).await;
        let first = rig.worker();
        rig.publish_many("limited", limited).await;
        let waiting = "SELECT count(*) FROM tasks WHERE status = 'retry_waiting'";
        rig.until_number(Duration::from_secs(30), waiting, as_i64(limited)).await;
        rig.publish_many("hung", 1).await;
        until_within(Duration::from_secs(30), "the hung call arrives", async || !party.arrivals_of("hung-0").is_empty())
            .await;
        first.kill();
        // Early enough to be past the interval in which a new process ends nobody's lease.
        let second = rig.worker();

        rig.publish_many("submitted", submissions).await;
        rig.insert_many("inserted", rows).await;
        // A fast machine is through with them before the alarms ring: more come until they have.
        let (extra, wave) = (1_000, std::cell::Cell::new(0));
        until_within(Duration::from_secs(if crate::rig::full() { 3000 } else { 120 }), "the lease alarm rings", async || {
            if rig.number("SELECT count(*) FROM tasks WHERE status = 'pending'").await < 1_000 {
                wave.set(wave.get() + 1);
                rig.insert_many(&format!("inserted-{}", wave.get()), extra).await;
            }
            rig.number("SELECT count(*) FROM attempts WHERE class = 'worker_lost'").await > 0
        })
        .await;
        let rows = rows + extra * wave.get();
        let all = as_i64(rows + submissions + limited + 1);
        rig.until_number(Duration::from_secs(if crate::rig::full() { 3000 } else { 120 }), SUCCEEDED, all).await;

        let lost: Vec<(i64, i64)> =
            rig.rows("SELECT ended_at - started_at, ended_at FROM attempts WHERE class = 'worker_lost'").await;
        let [(held_ms, ended_at)] = lost[..] else { panic!("one attempt was lost, not {lost:?}") };
        // Killed as soon as its call arrived, before a heartbeat could renew the lease.
        let late = held_ms - lease_s * 1000;
        let after_due = "SELECT max(b.started_at - a.ended_at - b.delay_before_ms) FROM attempts a JOIN attempts b USING (task_id)
                         WHERE b.number = 2 AND a.number = 1 AND task_id LIKE 'limited-%'";
        let retry_late = rig.number(after_due).await;
        let behind = "SELECT count(*) FROM attempts WHERE task_id LIKE 'inserted-%' AND started_at > ";
        let behind = rig.number(&format!("{behind}{ended_at}")).await;
        let took = "SELECT max(ended_at) - min(started_at) FROM attempts WHERE task_id LIKE 'inserted-%' OR task_id LIKE 'submitted-%'";
        let took = rig.number(took).await;
        report(&format!(
            "crowd: {rows} rows and {submissions} submissions in {took} ms; lease served {late} ms after its end, retries \
             started at most {retry_late} ms after due; {behind} rows still came after; peak {} MiB",
            second.peak_mib()
        ));
        assert!(behind > 0, "the crowd was gone before the alarms rang: make it larger");
        assert!(late < 2000, "the lease alarm was served {late} ms late");
        // Served in 2 s, then behind what is in the worker's own buffer: prefetch is 64.
        assert!(retry_late < 4000, "a retry started {retry_late} ms late");
        let once = "SELECT count(*) FROM attempts WHERE task_id LIKE 'inserted-%' OR task_id LIKE 'submitted-%'";
        assert_eq!(rig.number(once).await, as_i64(rows + submissions));
    })
    .await;
}

#[tokio::test]
async fn two_dispatchers_and_two_workers_run_each_inserted_row_once() {
    with_vhost(async |vhost| {
        let n = sized(1_000, 300);
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &format!("[worker]\nconcurrency = 16\n{}", party.route("30s"))).await;
        let workers = [rig.worker(), rig.worker()];
        rig.publish_many("warm", 2).await;
        rig.until_number(Duration::from_secs(30), SUCCEEDED, 2).await;

        // Nothing else to do: one row is picked up within a second of its insertion.
        rig.insert_many("lone", 1).await;
        rig.until_number(Duration::from_secs(10), SUCCEEDED, 3).await;
        let picked_up = "SELECT a.started_at - t.created_at FROM tasks t JOIN attempts a ON a.task_id = t.id WHERE t.id = 'lone-0'";
        let picked_up = rig.number(picked_up).await;

        let row = |i: usize| format!("('many-{i}', 'test.call', '{}')", json!({"n": i}));
        let values: Vec<String> = (0..n).map(row).collect();
        let insert = format!("INSERT INTO tasks (id, type, payload) VALUES {}", values.join(","));
        let (one, two, ()) = tokio::join!(rig.run(&["dispatch"]), rig.run(&["dispatch"]), rig.execute(&insert));
        assert_eq!((one.code, two.code), (Some(0), Some(0)), "{one:?} {two:?}");
        rig.until_number(Duration::from_secs(60), SUCCEEDED, as_i64(n + 3)).await;
        let slowest = "SELECT max(a.started_at - t.created_at) FROM tasks t JOIN attempts a ON a.task_id = t.id WHERE t.id LIKE 'many-%'";
        let slowest = rig.number(slowest).await;
        report(&format!("dispatch: a lone row was picked up after {picked_up} ms, the last of {n} after {slowest} ms"));
        assert!(picked_up < 1000, "{picked_up} ms");
        rig.until_ready(Duration::from_secs(10), "redeliver.default.tasks", 0).await;
        assert_eq!(party.calls(), n + 3);
        assert_eq!(rig.number("SELECT count(*) FROM attempts").await, as_i64(n + 3));
        for worker in &workers {
            assert!(!worker.log().contains("ERROR"), "{}", worker.log());
        }
    })
    .await;
}
