//! Things that stop for a while and come back: the broker, the store, a worker. Nothing is lost, and a stall is no death.

use std::time::{Duration, Instant};

use sqlx::{Connection, SqliteConnection};

use crate::rig::{Rig, as_i64, report, sized};
use crate::support::proxy::Proxy;
use crate::support::{PrivateBroker, until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";
const LOST: &str = "SELECT count(*) FROM attempts WHERE class = 'worker_lost'";

/// A lease of 6 s, so that a stall of two leases is short; the steps are given by each test.
fn settings(party: &ThirdParty, concurrency: usize, step: &str) -> String {
    format!(
        "[worker]\nlease = \"6s\"\nconcurrency = {concurrency}\n[scheduler]\ngrace = \"3s\"\npatience = \"3s\"\nslack = \"3s\"\n{}\
         [[policy]]\nname = \"p\"\nmax_retries = 3\nbackoff = {{ fixed = \"{step}\" }}\n",
        party.route("30s")
    )
}

async fn assert_all_succeeded_once(rig: &Rig, limit: Duration, n: usize) {
    rig.until_number(limit, SUCCEEDED, as_i64(n)).await;
    rig.until_all_ended(Duration::from_secs(5), n).await;
    let successes = "SELECT count(*) FROM attempts WHERE outcome = 'succeeded'";
    assert_eq!(rig.number(successes).await, as_i64(n), "a task was settled as a success twice");
}

#[tokio::test]
async fn a_broker_that_is_away_for_a_while_costs_time_and_no_task() {
    let Some(private) = PrivateBroker::start() else { return };
    let broker = private.broker.clone();
    broker
        .with_vhost(async |vhost| {
            let (n, away) = (sized(500, 150), Duration::from_secs(if crate::rig::full() { 30 } else { 4 }));
            let party = ThirdParty::start(|arrival| {
                let fails = arrival.retry_count == 0 && arrival.task.ends_with('3');
                (if fails { Reply::refusal() } else { Reply::good() }).after(Duration::from_millis(100))
            })
            .await;
            let rig = Rig::new(&vhost, &settings(&party, 8, "3s")).await;
            let mut worker = rig.worker();
            rig.publish_many("outage", n).await;
            until_within(Duration::from_secs(30), "half has begun", async || party.calls() > n / 3).await;
            private.ctl(&["stop"]).await;
            let stopped = Instant::now();

            let said = rig.run(&["publish", "test.call", "--id", "while-down", "--timeout", "3s"]).await;
            assert_eq!(said.code, Some(7), "{said:?}");
            assert!(said.stdout.is_empty() || said.stdout.contains("no"), "{said:?}");
            assert!(stopped.elapsed() < Duration::from_secs(3 + 2 + 5), "a command outlived its --timeout");
            tokio::time::sleep(away.saturating_sub(stopped.elapsed())).await;
            assert!(worker.is_running(), "the worker keeps trying");
            private.ctl(&["start"]).await;
            let began = Instant::now();
            rig.publish_many("after", 1).await;
            let after = format!("{SUCCEEDED} AND id = 'after-0'");
            rig.until_number(Duration::from_secs(60), &after, 1).await;
            let resumed = began.elapsed();
            assert_all_succeeded_once(&rig, Duration::from_secs(90), n + 1).await;
            report(&format!(
                "outage: intake resumed {resumed:?} after the broker was back; {} attempts lost",
                rig.number(LOST).await
            ));
            assert_eq!(rig.number(LOST).await, 0);
            assert!(worker.stop(Duration::from_secs(20)).await.success());
        })
        .await;
}

#[tokio::test]
async fn a_store_that_another_program_locks_for_longer_than_a_lease_costs_no_attempt() {
    with_vhost(async |vhost| {
        let (n, locked) = (sized(1_000, 300), Duration::from_secs(if crate::rig::full() { 20 } else { 14 }));
        let party = ThirdParty::start(|_| Reply::good().after(Duration::from_millis(200))).await;
        let rig = Rig::new(&vhost, &settings(&party, 8, "1s")).await;
        let workers = [rig.worker(), rig.worker()];
        rig.publish_many("locked", n).await;
        until_within(Duration::from_secs(30), "the load is on", async || party.calls() > n / 4).await;
        let url = format!("sqlite://{}", rig.folder().join("store.db").display());
        let mut other = SqliteConnection::connect(&url).await.expect("another program");
        sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.expect("the lock");
        tokio::time::sleep(locked).await;
        let during = rig.number(SUCCEEDED).await;
        sqlx::query("ROLLBACK").execute(&mut other).await.expect("unlocked");
        assert!(during < as_i64(n), "all was done before the lock");
        let began = Instant::now();
        assert_all_succeeded_once(&rig, Duration::from_secs(90), n).await;
        let attempts = rig.number("SELECT count(*) FROM attempts").await;
        report(&format!(
            "locked for {locked:?}: {during} of {n} before, the rest {:?} after; {attempts} attempts, {} lost, {} calls",
            began.elapsed(),
            rig.number(LOST).await,
            party.calls()
        ));
        assert_eq!(rig.number(LOST).await, 0, "a locked store is no dead worker");
        assert_eq!(attempts, as_i64(n));
        for worker in workers {
            assert!(worker.log().contains("store"), "nothing was said of the store: {}", worker.log());
        }
    })
    .await;
}

#[tokio::test]
async fn a_worker_stopped_for_two_leases_loses_its_own_attempts_and_nobody_elses() {
    with_vhost(async |vhost| {
        let n = sized(1_000, 200);
        let party = ThirdParty::start(|_| Reply::good().after(Duration::from_millis(400))).await;
        let rig = Rig::new(&vhost, &settings(&party, 4, "1s")).await;
        let (stopped, other) = (rig.worker(), rig.worker());
        for worker in [&stopped, &other] {
            worker.until_says(Duration::from_secs(20), "working").await;
        }
        rig.publish_many("stopped", n).await;
        let running =
            format!("SELECT count(*) FROM tasks WHERE status = 'running' AND worker LIKE '%-{}-%'", stopped.id());
        until_within(Duration::from_secs(30), "it is busy", async || rig.number(&running).await == 4).await;
        stopped.signal("STOP");
        tokio::time::sleep(Duration::from_secs(12)).await;
        stopped.signal("CONT");
        assert_all_succeeded_once(&rig, Duration::from_secs(120), n).await;
        let by_worker: Vec<(String, i64)> =
            rig.rows("SELECT worker, count(*) FROM attempts WHERE class = 'worker_lost' GROUP BY 1").await;
        report(&format!("stopped for two leases: lost {by_worker:?}"));
        for (worker, lost) in by_worker {
            assert!(worker.contains(&format!("-{}-", stopped.id())), "{worker} was alive all the time");
            assert!(lost <= 4, "{lost} attempts lost, and it had four places");
        }
        drop(other);
    })
    .await;
}

#[tokio::test]
async fn a_worker_told_to_stop_finishes_what_runs_and_gives_its_buffer_back() {
    with_vhost(async |vhost| {
        let n = sized(1_000, 200);
        let party = ThirdParty::start(|_| Reply::good().after(Duration::from_millis(500))).await;
        let rig = Rig::new(&vhost, &settings(&party, 4, "1s")).await;
        let mut worker = rig.worker();
        rig.publish_many("buffered", n).await;
        until_within(Duration::from_secs(30), "some have begun", async || party.calls() >= 8).await;
        let began = Instant::now();
        let status = worker.stop(Duration::from_secs(30)).await;
        let took = began.elapsed();
        assert!(status.success(), "{status:?}");
        let rows = rig.number("SELECT count(*) FROM tasks").await;
        assert_eq!(rig.number(SUCCEEDED).await, rows, "what was begun was finished");
        assert_eq!(party.calls(), usize::try_from(rows).expect("small"));
        let left = u32::try_from(n).expect("small") - u32::try_from(rows).expect("small");
        rig.until_ready(Duration::from_secs(10), "redeliver.default.tasks", left).await;
        report(&format!("told to stop: {took:?}, {rows} of {n} done, {left} back in the lane"));
        party.now(|_| Reply::good());
        let _next = rig.worker();
        assert_all_succeeded_once(&rig, Duration::from_secs(60), n).await;
        assert_eq!(rig.number("SELECT count(*) FROM attempts").await, as_i64(n));
    })
    .await;
}

#[tokio::test]
async fn a_worker_told_to_stop_gives_back_what_outlives_its_grace_and_no_attempt_is_spent() {
    with_vhost(async |vhost| {
        let n = 20;
        let party = ThirdParty::start(|_| Reply::silence()).await;
        let settings = settings(&party, 4, "1s").replace("[worker]\n", "[worker]\nshutdown_grace = \"1s\"\n");
        let rig = Rig::new(&vhost, &settings).await;
        let mut worker = rig.worker();
        rig.publish_many("endless", n).await;
        until_within(Duration::from_secs(30), "all places are taken", async || party.calls() == 4).await;
        let began = Instant::now();
        assert!(worker.stop(Duration::from_secs(20)).await.success());
        report(&format!("grace of 1 s: stopped after {:?}", began.elapsed()));
        let released = "SELECT count(*) FROM attempts WHERE outcome = 'released'";
        assert_eq!(rig.number(released).await, 4);
        rig.until_ready(Duration::from_secs(10), "redeliver.default.tasks", 20).await;
        party.heal();
        let began = Instant::now();
        let _next = rig.worker();
        assert_all_succeeded_once(&rig, Duration::from_secs(30), n).await;
        report(&format!("grace of 1 s: all done {:?} after the next worker's start", began.elapsed()));
        assert_eq!(rig.number("SELECT max(retry_count) FROM tasks").await, 0, "a released run is no attempt");
    })
    .await;
}

#[tokio::test]
async fn intake_resumes_after_a_cut_a_black_hole_and_a_channel_that_the_broker_closed() {
    with_vhost(async |vhost| {
        let n = 40;
        let party = ThirdParty::start(|_| Reply::good().after(Duration::from_millis(150))).await;
        let settings = settings(&party, 4, "1s");
        let rig = Rig::new(&vhost, &settings).await;
        let proxy = Proxy::start(vhost.address()).await;
        rig.rewrite_broker(&vhost.url_at(&proxy.address), &settings);
        let mut worker = rig.worker();
        let black_hole = Duration::from_secs(if crate::rig::full() { 40 } else { 5 });
        for (round, hurt) in ["cut", "closed-channel", "black-hole"].into_iter().enumerate() {
            for i in 0..n {
                rig.send_task(&format!("{hurt}-{i}")).await;
            }
            let before = round * (n + 1);
            until_within(Duration::from_secs(30), "it is busy", async || party.calls() > before + 8).await;
            match hurt {
                "cut" => proxy.cut(),
                "closed-channel" => proxy.ack_the_unknown(),
                _ => {
                    proxy.freeze();
                    tokio::time::sleep(black_hole).await;
                    proxy.thaw();
                }
            }
            let began = Instant::now();
            let after = format!("{hurt}-after");
            rig.send_task(&after).await;
            let resumes = async || !party.arrivals_of(&after).is_empty();
            until_within(Duration::from_secs(15), "what was sent after it runs", resumes).await;
            let resumed = began.elapsed();
            rig.until_number(Duration::from_secs(60), SUCCEEDED, as_i64(before + n + 1)).await;
            report(&format!("{hurt}: intake resumed after {resumed:?}"));
        }
        assert_all_succeeded_once(&rig, Duration::from_secs(5), 3 * (n + 1)).await;
        assert_eq!(rig.number(LOST).await, 0);
        assert!(worker.stop(Duration::from_secs(20)).await.success());
    })
    .await;
}
