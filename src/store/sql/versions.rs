//! The rules that are kept for all nodes, and what each node runs.

use super::columns::Columns;
use super::engine::{Ask, Engine, read_records};
use super::value::{Source, plain, values};
use crate::store::{NODE_FORGOTTEN_MS, NewPolicies, Node, PolicyVersion, StoreError};

pub(super) const VERSIONS: &str =
    "SELECT version, applied_at, applied_by, reason, text, hash FROM policies ORDER BY version DESC LIMIT ?";

pub(super) fn version<R: Source>(row: &mut Columns<'_, R>) -> Result<PolicyVersion, String> {
    Ok(PolicyVersion {
        version: row.next()?,
        applied_at: row.next()?,
        rules: NewPolicies { applied_by: row.next()?, reason: row.next()?, text: row.next()?, hash: row.next()? },
    })
}

pub(super) const NODES: &str = "SELECT worker, hash, version, seen_at FROM nodes ORDER BY worker";

pub(super) fn node<R: Source>(row: &mut Columns<'_, R>) -> Result<Node, String> {
    Ok(Node { worker: row.next()?, hash: row.next()?, version: row.next()?, seen_at: row.next()? })
}

pub(super) async fn apply<E: Engine>(store: &E, new: NewPolicies) -> Result<i64, StoreError> {
    let number = store
        .write(move |tx, now| {
            Box::pin(async move {
                let sql = "INSERT INTO policies (version, applied_at, applied_by, reason, text, hash) \
                           SELECT 1 + coalesce(max(version), 0), ?1, ?2, ?3, ?4, ?5 FROM policies RETURNING version";
                let values = values![now, new.applied_by, plain(new.reason), new.text, new.hash];
                read_records(&tx.rows(sql, values).await?, |row| row.next::<i64>())
            })
        })
        .await?;
    Ok(number.first().copied().unwrap_or(0))
}

pub(super) async fn report<E: Engine>(
    store: &E,
    worker: &str,
    hash: &str,
    version: Option<i64>,
) -> Result<(), StoreError> {
    let (worker, hash) = (worker.to_owned(), hash.to_owned());
    store
        .write(move |tx, now| {
            Box::pin(async move {
                let sql = "INSERT INTO nodes (worker, hash, version, seen_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (worker) \
                           DO UPDATE SET hash = excluded.hash, version = excluded.version, seen_at = excluded.seen_at";
                tx.run(sql, values![worker, hash, version, now]).await?;
                let sql = "DELETE FROM nodes WHERE seen_at < ?";
                tx.run(sql, values![now.saturating_sub(NODE_FORGOTTEN_MS)]).await?;
                Ok(())
            })
        })
        .await
}

pub(super) async fn forget<E: Engine>(store: &E, worker: &str) -> Result<(), StoreError> {
    let worker = worker.to_owned();
    store
        .write(move |tx, _| {
            Box::pin(async move {
                tx.run("DELETE FROM nodes WHERE worker = ?", values![worker]).await?;
                Ok(())
            })
        })
        .await
}
