//! PostgreSQL goes away under two busy workers and comes back, in every way it can: no task is lost, no attempt of a worker that lives
//! is called lost, and tasks start again soon.

use std::time::{Duration, Instant};

use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgPool};

use crate::postgres::{LOST, SUCCEEDED, fails_first, number, pool, settings, until_number};
use crate::rig::{Rig, WorkerProcess, as_i64, full, report, sized};
use crate::server::PrivateServer;
use crate::support::proxy::Proxy;
use crate::support::{until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

const SOON: Duration = Duration::from_secs(10);

/// Longer than the lease, which is 6 s.
fn away() -> Duration {
    Duration::from_secs(if full() { 20 } else { 9 })
}

/// What is hurt, and who else is there.
struct Scene {
    server: PrivateServer,
    /// Between the workers and the server.
    proxy: Proxy,
    rig: Rig,
}

impl Scene {
    /// From now on commits are made and nobody hears of it.
    async fn lose_answers(&self) {
        self.proxy.mute();
        // Long enough for a commit that is on its way to be on the disk.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }

    /// The connections end, and new ones pass as ever.
    fn cut(&self) {
        self.proxy.cut();
        self.proxy.thaw();
    }
}

/// Two busy workers, then `hurt`, which returns when the server is there again. Tasks have to start again `within` that.
async fn survive(kind: &str, within: Duration, hurt: impl AsyncFnOnce(&Scene)) {
    with_vhost(async |vhost| {
        let Some(server) = PrivateServer::start() else { return };
        let n = sized(4_000, 600);
        let party = ThirdParty::start(|arrival| {
            let reply = if fails_first(&arrival.task, arrival.retry_count) { Reply::refusal() } else { Reply::good() };
            reply.after(Duration::from_millis(200))
        })
        .await;
        let proxy = Proxy::raw(server.address()).await;
        let url = server.url_at(&proxy.address);
        let rig = Rig::at(&vhost, &vhost.url(), Some(&url), &settings(&party, "2s")).await;
        let rows = pool(&server.url);
        let mut workers: Vec<WorkerProcess> = (0..2).map(|_| rig.worker()).collect();
        rig.publish_many("outage", n).await;
        until_within(Duration::from_secs(60), "a fifth has begun", async || party.calls() > n / 5).await;
        let scene = Scene { server, proxy, rig };
        hurt(&scene).await;
        let (back, calls) = (Instant::now(), party.calls());
        assert!(workers.iter_mut().all(WorkerProcess::is_running), "the workers keep trying");
        assert!(calls + 100 < n, "{calls} of {n}: too little was left to see whether it goes on");
        until_within(Duration::from_secs(40), "tasks start again", async || party.calls() > calls + 20).await;
        let resumed = back.elapsed();
        until_number(&rows, Duration::from_secs(180), SUCCEEDED, as_i64(n)).await;
        assert_eq!(number(&rows, "SELECT count(*) FROM tasks").await, as_i64(n));
        let lost = number(&rows, LOST).await;
        report(&format!("postgres {kind}: {n} tasks, {lost} worker_lost, starts again after {resumed:?}"));
        assert_eq!(lost, 0, "called lost though both workers live: {:?}", who_was_lost(&rows).await);
        assert!(resumed <= within, "{resumed:?}");
        let twice = "SELECT count(*) FROM (SELECT 1 FROM attempts WHERE outcome = 'succeeded' GROUP BY task_id HAVING count(*) > 1) AS t";
        assert_eq!(number(&rows, twice).await, 0, "settled as a success twice");
        let failed = as_i64((0..n).filter(|i| fails_first(&i.to_string(), 0)).count());
        assert_eq!(number(&rows, "SELECT count(*) FROM attempts").await, as_i64(n) + failed, "attempts");
        drop(workers);
    })
    .await;
}

async fn who_was_lost(rows: &PgPool) -> Vec<(String, String, i64, i64)> {
    let sql = "SELECT task_id, worker, started_at, ended_at FROM attempts WHERE class = 'worker_lost' ORDER BY 3";
    sqlx::query_as(sql).fetch_all(rows).await.expect("attempts")
}

#[tokio::test]
async fn postgresql_stopped_for_a_while_loses_no_task_calls_no_worker_lost_and_intake_resumes_within_ten_seconds() {
    survive("stopped", SOON, async |scene| {
        scene.lose_answers().await;
        scene.server.ctl("stop").await;
        scene.cut();
        let stopped = Instant::now();
        let said = scene.rig.run(&["task", "list", "--timeout", "3s"]).await;
        assert_eq!(said.code, Some(7), "{said:?}");
        tokio::time::sleep(away().saturating_sub(stopped.elapsed())).await;
        scene.server.ctl("start").await;
    })
    .await;
}

#[tokio::test]
async fn postgresql_killed_with_signal_9_and_started_again_loses_no_attempt() {
    survive("killed", SOON, async |scene| {
        scene.lose_answers().await;
        scene.server.ctl("kill").await;
        scene.cut();
        tokio::time::sleep(away()).await;
        scene.server.ctl("start").await;
    })
    .await;
}

/// Between a commit and its answer, now and then.
#[tokio::test]
async fn connections_that_an_administrator_ends_again_and_again_lose_no_attempt() {
    survive("ends connections", SOON, async |scene| {
        let mut administrator = PgConnection::connect(&scene.server.url).await.expect("a connection");
        for _ in 0..20 {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'redeliver'";
            sqlx::query(end).execute(&mut administrator).await.expect("they end");
            tokio::time::sleep(Duration::from_millis(70)).await;
        }
        administrator.close().await.expect("it closes");
    })
    .await;
}

#[tokio::test]
async fn postgresql_frozen_for_longer_than_a_lease_loses_no_attempt() {
    survive("frozen", SOON, async |scene| {
        scene.server.ctl("pause").await;
        tokio::time::sleep(away()).await;
        scene.server.ctl("resume").await;
    })
    .await;
}

#[tokio::test]
async fn a_black_hole_before_postgresql_for_longer_than_a_lease_loses_no_attempt() {
    survive("black hole", SOON, async |scene| {
        scene.proxy.freeze();
        tokio::time::sleep(away()).await;
        scene.proxy.thaw();
    })
    .await;
}

#[tokio::test]
async fn connections_that_die_without_a_word_lose_no_attempt() {
    // A statement may take fifteen seconds, and only after twenty is a connection known to be dead.
    survive("forgotten connections", Duration::from_secs(30), async |scene| scene.proxy.forget()).await;
}
