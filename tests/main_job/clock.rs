//! The wall clock is stepped an hour back and forth while tasks wait and run: none is lost, none starts before its time by the store's
//! clock, and no lease is called over. The worker is the real one under `libfaketime`; its monotonic clock goes on as it is.

use std::path::PathBuf;
use std::time::Duration;

use crate::rig::{Rig, as_i64, report, sized};
use crate::support::{skip, until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

/// Where Debian puts the library, whatever the machine.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    folders.flatten().map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|path| path.exists())
}

const WAITING: &str = "SELECT count(*) FROM tasks WHERE status = 'retry_waiting'";
const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_wall_clock_that_steps_an_hour_loses_no_task_and_starts_none_early() {
    let Some(library) = library() else { return skip("libfaketime is not installed") };
    with_vhost(async |vhost| {
        let n = sized(200, 40);
        let party = ThirdParty::start(|arrival| {
            let slow = arrival.task.starts_with("slow");
            let reply = if arrival.retry_count == 0 && !slow { Reply::refusal() } else { Reply::good() };
            reply.after(Duration::from_millis(if slow { 2_500 } else { 5 }))
        })
        .await;
        // Half of the waits are held by the broker, half by the store; long enough for a command and a step of the clock on a busy machine.
        let policies = "[[policy]]\nname = \"rung\"\ntype = \"test.rung\"\nbackoff = { fixed = \"9s\" }\n\
                        [[policy]]\nname = \"store\"\nbackoff = { exponential = { base = \"9s\", multiplier = 1, jitter = 0 } }\n";
        let times = "[worker]\nlease = \"6s\"\nconcurrency = 200\n[scheduler]\ngrace = \"3s\"\npatience = \"3s\"\nslack = \"3s\"\n";
        let rig = Rig::new(&vhost, &format!("{times}{}{policies}", party.route("20s"))).await;
        let offset = rig.folder().join("offset");
        let step = |by: &str| {
            // Whole or not at all: the worker may read at any moment.
            let new = rig.folder().join("offset.new");
            std::fs::write(&new, by).expect("written");
            std::fs::rename(&new, &offset).expect("renamed");
        };
        step("+0");
        let worker = rig.worker_with(&[
            ("LD_PRELOAD", library.to_str().expect("a path")),
            ("FAKETIME_TIMESTAMP_FILE", offset.to_str().expect("a path")),
            ("FAKETIME_NO_CACHE", "1"),
            ("DONT_FAKE_MONOTONIC", "1"),
        ]);
        let publish = async |name: &str, n: usize| {
            let task = |i: usize| {
                let task_type = if i.is_multiple_of(2) { "test.rung" } else { "test.store" };
                serde_json::json!({"id": format!("{name}-{i}"), "type": task_type})
            };
            rig.publish((0..n).map(task)).await;
        };

        // Back, while some wait and some run: what waits is not due any more and stays where it is, what comes new runs.
        publish("back", n).await;
        rig.until_number(LIMIT, WAITING, as_i64(n)).await;
        publish("slow", 10).await;
        until_within(LIMIT, "the slow ones run", async || party.arrivals().iter().filter(|a| a.task.starts_with("slow")).count() == 10).await;
        step("-1h");
        // Those that the broker held arrive and are early.
        rig.until_number(LIMIT, &format!("{WAITING} AND sent_at IS NULL"), as_i64(n)).await;
        publish("meanwhile", n).await;
        rig.until_number(LIMIT, SUCCEEDED, as_i64(n + 10)).await;
        rig.until_number(LIMIT, WAITING, as_i64(n)).await;
        let of_back = |arrivals: &[crate::third_party::Arrival]| arrivals.iter().filter(|a| a.task.starts_with("back")).count();
        assert_eq!(of_back(&party.arrivals()), n, "one started before its time");

        // Forth again: all are due, at once.
        step("+0");
        rig.until_number(LIMIT, SUCCEEDED, as_i64(2 * n + 10)).await;

        // Forth while tasks wait: the store's clock says that they are due, so they run. And back to the truth.
        publish("forth", n).await;
        rig.until_number(LIMIT, WAITING, as_i64(n)).await;
        step("+1h");
        rig.until_number(LIMIT, SUCCEEDED, as_i64(3 * n + 10)).await;
        step("+0");
        publish("after", n).await;
        rig.until_all_ended(LIMIT, 4 * n + 10).await;
        rig.until_number(LIMIT, SUCCEEDED, as_i64(4 * n + 10)).await;

        let early = "SELECT count(*) FROM attempts AS a JOIN attempts AS b ON b.task_id = a.task_id AND b.fence = a.fence + 1 \
                     WHERE b.started_at < a.ended_at + b.delay_before_ms";
        assert_eq!(rig.number(early).await, 0, "started before its time by the store's clock");
        let lost = rig.number("SELECT count(*) FROM attempts WHERE class = 'worker_lost'").await;
        assert_eq!(lost, 0, "a step of the clock is no death");
        report(&format!("clock: {} tasks over four steps of an hour, none lost, none early, no lease called over", 4 * n + 10));
        drop(worker);
    })
    .await;
}
