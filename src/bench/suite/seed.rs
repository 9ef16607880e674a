//! Rows that are in the store before a measurement, written by SQL as another program would: through a worker a million of them would
//! take longer than what is measured.
//!
//! Only here is the disk not waited for while it goes on; what is measured afterwards finds everything in the file and the disk at rest.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use rusqlite::{Connection, params};

use super::super::as_f64;
use super::ground::TASK_TYPE;

/// Rows of one transaction.
const AT_ONCE: usize = 100_000;

/// Which rows.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rows {
    /// Succeeded at the first attempt, each with that attempt, as workers leave them.
    Succeeded { random_ids: bool },
    /// Waiting for a retry that is due at that moment, in epoch milliseconds; each next one so much later.
    RetryWaiting { due_ms: i64, apart_ms: i64 },
    /// Inserted by another program through the public door, to run at that moment or later.
    Pending { due_ms: i64 },
}

/// Rows `from` to `to` (exclusive) of that kind, whose ids begin with `name`. Returns rows per second.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn seed(file: &Path, name: &str, rows: Rows, from: usize, to: usize, payload: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut conn = open(file)?;
    let payload = format!("\"{}\"", "x".repeat(payload.saturating_sub(2)));
    let now_ms = super::hand::epoch_us() / 1_000;
    for first in (from..to).step_by(AT_ONCE) {
        let last = (first + AT_ONCE).min(to);
        let (first, last) = (i64::try_from(first)?, i64::try_from(last)?);
        let tx = conn.transaction()?;
        match rows {
            Rows::Succeeded { random_ids } => {
                let id = if random_ids { "lower(hex(randomblob(16)))" } else { "?3 || printf('-%08d', i)" };
                // Through a table of its own, so that a task and its attempt have the same id.
                tx.execute_batch(
                    "CREATE TEMP TABLE IF NOT EXISTS ids (i INTEGER PRIMARY KEY, id TEXT); DELETE FROM ids",
                )?;
                let ids = format!(
                    "WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2) INSERT INTO ids SELECT i, {id} FROM n \
                     WHERE ?3 IS NOT NULL"
                );
                tx.execute(&ids, params![first, last, name])?;
                tx.execute(
                    "INSERT INTO tasks (id, type, status, due_at, wake_at, queue, fence, ended_at, idempotency_key, payload_hash, created_at, \
                     payload) SELECT id, ?1, 'succeeded', ?2, NULL, 'default', 1, ?2, id, lower(hex(randomblob(32))), ?2, ?3 FROM ids ORDER BY i",
                    params![TASK_TYPE, now_ms, payload],
                )?;
                tx.execute(
                    "INSERT INTO attempts (task_id, fence, number, generation, outcome, started_at, ended_at, worker, policy) \
                     SELECT id, 1, 1, 0, 'succeeded', ?1, ?1, 'host-1-0000', 'default' FROM ids ORDER BY i",
                    params![now_ms],
                )?;
            }
            Rows::RetryWaiting { due_ms, apart_ms } => {
                tx.execute(
                    "WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2) \
                     INSERT INTO tasks (id, type, status, retry_count, due_at, wake_at, queue, fence, idempotency_key, payload_hash, created_at, \
                     delay_ms, failure_class, failure_message, failure_fingerprint, payload) \
                     SELECT ?3 || printf('-%08d', i), ?4, 'retry_waiting', 1, ?5 + ?6 * (i - ?7), ?5 + ?6 * (i - ?7), 'default', 1, \
                     ?3 || printf('-%08d', i), lower(hex(randomblob(32))), ?8, 900000, 'timeout', 'no answer within 10s', '0123456789abcdef', ?9 FROM n",
                    params![first, last, name, TASK_TYPE, due_ms, apart_ms, i64::try_from(from)?, now_ms, payload],
                )?;
            }
            Rows::Pending { due_ms } => {
                tx.execute(
                    "WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2) \
                     INSERT INTO tasks (id, type, payload, due_at) SELECT ?3 || printf('-%08d', i), ?4, ?5, ?6 + i FROM n",
                    params![first, last, name, TASK_TYPE, payload, due_ms],
                )?;
            }
        }
        tx.commit()?;
    }
    if to - from > AT_ONCE {
        // Nobody who is measured has to move all this from the log into the file.
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    let per_s = as_f64(to - from) / began.elapsed().as_secs_f64();
    // Nor has anybody to share the disk with what the system has not written yet: a worker beside 5 M fresh rows did half as much.
    std::fs::File::open(file).and_then(|written| written.sync_all()).context("cannot write to the disk")?;
    Ok(per_s)
}

/// How many rows no dispatcher has seen yet.
pub(super) fn unrouted(file: &Path) -> anyhow::Result<i64> {
    let sql = "SELECT count(*) FROM tasks INDEXED BY tasks_unrouted WHERE status = 'pending' AND queue IS NULL";
    Ok(open(file)?.query_row(sql, [], |row| row.get(0))?)
}

/// How many rows there are.
pub(super) fn count(file: &Path) -> anyhow::Result<usize> {
    let rows: i64 = open(file)?.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0))?;
    Ok(usize::try_from(rows)?)
}

fn open(file: &Path) -> anyhow::Result<Connection> {
    let conn = Connection::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    conn.busy_timeout(std::time::Duration::from_secs(60))?;
    conn.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144; PRAGMA temp_store = MEMORY")?;
    Ok(conn)
}
