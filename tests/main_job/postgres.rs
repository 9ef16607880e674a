//! Several workers on one PostgreSQL: one is killed, and every task ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection};

use crate::rig::{Rig, WorkerProcess, as_i64, report, sized};
use crate::server::Schema;
use crate::support::{until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

pub(crate) const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";
pub(crate) const LOST: &str = "SELECT count(*) FROM attempts WHERE class = 'worker_lost'";

pub(crate) fn settings(party: &ThirdParty, step: &str) -> String {
    format!(
        "[worker]\nlease = \"6s\"\nconcurrency = 16\n[scheduler]\ngrace = \"3s\"\npatience = \"3s\"\nslack = \"3s\"\n{}\
         [[policy]]\nname = \"p\"\nmax_retries = 5\nbackoff = {{ fixed = \"{step}\" }}\n",
        party.route("30s")
    )
}

pub(crate) fn pool(url: &str) -> PgPool {
    let options = PgPoolOptions::new().max_connections(2).acquire_timeout(Duration::from_secs(30));
    options.connect_lazy(url).expect("a URL")
}

pub(crate) async fn number(pool: &PgPool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

pub(crate) async fn until_number(pool: &PgPool, limit: Duration, sql: &str, wanted: i64) {
    let what = format!("{sql} = {wanted}");
    let reached = until_within(limit, &what, async || number(pool, sql).await == wanted);
    let reached = std::panic::AssertUnwindSafe(reached);
    if futures_util::FutureExt::catch_unwind(reached).await.is_err() {
        let rows: Vec<(String, i64)> =
            sqlx::query_as("SELECT status, count(*) FROM tasks GROUP BY 1").fetch_all(pool).await.expect("statuses");
        panic!("not within {limit:?}: {sql} = {wanted}; tasks by status: {rows:?}");
    }
}

/// One in five fails at its first attempt.
pub(crate) fn fails_first(task: &str, retry_count: i64) -> bool {
    retry_count == 0 && task.ends_with(['3', '7'])
}

#[tokio::test]
async fn three_workers_on_one_postgresql_end_every_task_and_run_no_stamp_twice_though_one_is_killed() {
    with_vhost(async |vhost| {
        let Some(schema) = Schema::new().await else { return };
        let n = sized(5_000, 400);
        let party = ThirdParty::start(|arrival| {
            let reply = if fails_first(&arrival.task, arrival.retry_count) { Reply::refusal() } else { Reply::good() };
            reply.after(Duration::from_millis(20))
        })
        .await;
        let rig = Rig::at(&vhost, &vhost.url(), Some(&schema.url()), &settings(&party, "1s")).await;
        let rows = pool(&schema.url());
        let began = Instant::now();
        let mut workers: Vec<WorkerProcess> = (0..3).map(|_| rig.worker()).collect();
        rig.publish_many("shared", n).await;
        // Some by the other door, where every worker's dispatcher sees them.
        let mut theirs = schema.connect().await;
        for i in 0..n / 10 {
            let sql = "INSERT INTO tasks (id, type, payload) VALUES ($1, 'test.call', '{}')";
            sqlx::query(sql).bind(format!("row-{i}")).execute(&mut theirs).await.expect("a row");
        }
        theirs.close().await.expect("the connection closes");
        let n = n + n / 10;
        until_within(Duration::from_secs(120), "half has run", async || party.calls() > n / 2).await;
        workers.remove(0).kill();
        let ended = "SELECT count(*) FROM tasks WHERE status NOT IN ('pending', 'running', 'retry_waiting')";
        until_number(&rows, Duration::from_secs(180), ended, as_i64(n)).await;
        let took = began.elapsed();
        assert_eq!(number(&rows, "SELECT count(*) FROM tasks").await, as_i64(n));
        assert_eq!(number(&rows, SUCCEEDED).await, as_i64(n));
        let mut stamps: BTreeMap<(String, i64), usize> = BTreeMap::new();
        for arrival in party.arrivals() {
            *stamps.entry((arrival.task, arrival.retry_count)).or_default() += 1;
        }
        let twice: Vec<_> = stamps.iter().filter(|(_, calls)| **calls > 1).collect();
        assert!(twice.is_empty(), "stamps that ran twice: {twice:?}");
        let by_worker: Vec<(String, i64)> =
            sqlx::query_as("SELECT worker, count(*) FROM attempts GROUP BY 1 ORDER BY 1")
                .fetch_all(&rows)
                .await
                .expect("attempts");
        assert_eq!(by_worker.len(), 3, "every worker had its share: {by_worker:?}");
        let lost = number(&rows, LOST).await;
        report(&format!(
            "three workers on PostgreSQL: {n} tasks in {took:?}, {lost} worker_lost, attempts {by_worker:?}"
        ));
        drop((rows, workers));
    })
    .await;
}
