//! The rules that are kept for all nodes, and what each node runs.

use rusqlite::{Connection, params};
use sqlx::SqliteConnection;

use super::columns::Columns;
use super::fault::Fault;
use super::ledgers::all;
use crate::store::{NODE_FORGOTTEN_MS, NewPolicies, Node, PolicyVersion};
use crate::task::Millis;

pub(super) fn apply(conn: &Connection, new: &NewPolicies, now: Millis) -> Result<i64, Fault> {
    let sql = "INSERT INTO policies (version, applied_at, applied_by, reason, text, hash)
               SELECT 1 + coalesce(max(version), 0), ?, ?, ?, ?, ? FROM policies RETURNING version";
    let values = params![now, new.applied_by, new.reason, new.text, new.hash];
    Ok(conn.query_row(sql, values, |row| row.get(0))?)
}

pub(super) fn report(
    conn: &Connection,
    worker: &str,
    hash: &str,
    version: Option<i64>,
    now: Millis,
) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO nodes (worker, hash, version, seen_at) VALUES (?, ?, ?, ?)";
    conn.execute(sql, params![worker, hash, version, now])?;
    conn.execute("DELETE FROM nodes WHERE seen_at < ?", [now.saturating_sub(NODE_FORGOTTEN_MS)])?;
    Ok(())
}

pub(super) async fn versions(conn: &mut SqliteConnection, limit: i64) -> Result<Vec<PolicyVersion>, Fault> {
    let sql = "SELECT version, applied_at, applied_by, reason, text, hash FROM policies ORDER BY version DESC LIMIT ?";
    let rows = sqlx::query(sql).bind(limit).fetch_all(conn).await?;
    let read = |mut row: Columns<'_>| {
        Ok(PolicyVersion {
            version: row.next()?,
            applied_at: row.next()?,
            rules: NewPolicies { applied_by: row.next()?, reason: row.next()?, text: row.next()?, hash: row.next()? },
        })
    };
    rows.iter().map(|row| read(Columns::of(row)).map_err(Fault::Unusable)).collect()
}

pub(super) async fn nodes(conn: &mut SqliteConnection) -> Result<Vec<Node>, Fault> {
    all(conn, "SELECT worker, hash, version, seen_at FROM nodes ORDER BY worker", |row| {
        Ok(Node { worker: row.next()?, hash: row.next()?, version: row.next()?, seen_at: row.next()? })
    })
    .await
}
