//! Retention: what has ended long ago is removed, a few rows a transaction, so that nobody waits long for the writer.
//!
//! What may go is looked for by readers and looked at once more by the writer. Dead letters and whatever is unfinished never match.

use rusqlite::{Connection, params};

use super::SqliteStore;
use super::columns::Binds;
use super::fault::Fault;
use super::ledgers::gate_state;
use super::read::limit;
use crate::store::{Prunable, StoreError};
use crate::task::Millis;

/// Rows removed in one transaction.
const PART: usize = 500;

/// A task that may go: it has ended otherwise than by death, and no replay job waits to hear of it.
macro_rules! ended_tasks {
    () => {
        "(status = 'succeeded' OR status = 'discarded' OR status = 'cancelled') AND ended_at < ?1 \
         AND NOT EXISTS (SELECT 1 FROM replay_items AS item INDEXED BY replay_items_task \
         WHERE item.task_id = tasks.id AND item.outcome = 'replayed') \
         AND NOT EXISTS (SELECT 1 FROM edits JOIN replay_items AS item INDEXED BY replay_items_task ON item.task_id = edits.edited_from \
         WHERE edits.task_id = tasks.id AND item.outcome = 'replayed')"
    };
}

macro_rules! old_attachments {
    () => {
        "EXISTS (SELECT 1 FROM attempts WHERE attempts.task_id = attachments.task_id AND attempts.fence = attachments.fence \
         AND attempts.ended_at < ?1) \
         AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = attachments.task_id AND tasks.status = 'dead')"
    };
}

const OLD_JOBS: &str = "(state = 'stopped' OR state = 'cancelled' OR state = 'done') AND ended_at < ?1";

/// `SELECT` of what may go.
fn candidates(what: Prunable) -> String {
    match what {
        Prunable::Tasks => concat!(
            "SELECT seq AS row FROM tasks INDEXED BY tasks_ended WHERE ended_at IS NOT NULL AND ",
            ended_tasks!()
        )
        .into(),
        Prunable::Attachments => concat!("SELECT rowid AS row FROM attachments WHERE ", old_attachments!()).into(),
        Prunable::Cached => "SELECT rowid AS row FROM cached WHERE stored_at < ?1".into(),
        Prunable::Replays => format!("SELECT id AS row FROM replay_jobs WHERE {OLD_JOBS}"),
        // Looked for elsewhere.
        Prunable::Gates => String::new(),
    }
}

pub(super) async fn prune(
    store: &SqliteStore,
    what: Prunable,
    before: Millis,
    most: usize,
    dry_run: bool,
) -> Result<i64, StoreError> {
    if what == Prunable::Gates {
        return gates(store, before, most, dry_run).await;
    }
    let candidates = candidates(what);
    if dry_run {
        let sql = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM ({candidates})"));
        let count = sqlx::query_scalar::<_, i64>(sql).bind(before).fetch_one(&store.readers).await;
        return count.map_err(|error| store.fault(error));
    }
    let sql = sqlx::AssertSqlSafe(format!("SELECT json_group_array(row) FROM ({candidates} LIMIT ?2)"));
    let found = sqlx::query_scalar::<_, String>(sql).bind(before).bind(limit(most)).fetch_one(&store.readers).await;
    let found: Vec<i64> = serde_json::from_str(&found.map_err(|error| store.fault(error))?)
        .map_err(|error| store.fault(Fault::Unusable(error.to_string())))?;
    let mut removed = 0;
    for part in found.chunks(PART) {
        let part = serde_json::json!(part).to_string();
        removed += store.write(move |conn, _, _| remove(conn, what, before, &part)).await?;
    }
    Ok(removed)
}

/// Removes what still may go of the rows with these numbers.
fn remove(conn: &Connection, what: Prunable, before: Millis, rows: &str) -> Result<i64, Fault> {
    // Both arguments are bound in each, so each names them.
    let run = |sql: &str| Ok::<i64, Fault>(limit(conn.prepare_cached(sql)?.execute(params![before, rows])?));
    match what {
        Prunable::Tasks => {
            for sql in [
                concat!(
                    "DELETE FROM attachments WHERE task_id IN (SELECT id FROM tasks WHERE seq IN (SELECT value FROM json_each(?2)) AND ",
                    ended_tasks!(),
                    ")"
                ),
                concat!(
                    "DELETE FROM attempts WHERE task_id IN (SELECT id FROM tasks WHERE seq IN (SELECT value FROM json_each(?2)) AND ",
                    ended_tasks!(),
                    ")"
                ),
                concat!(
                    "DELETE FROM results WHERE task_id IN (SELECT id FROM tasks WHERE seq IN (SELECT value FROM json_each(?2)) AND ",
                    ended_tasks!(),
                    ")"
                ),
            ] {
                run(sql)?;
            }
            let sql =
                concat!("DELETE FROM tasks WHERE seq IN (SELECT value FROM json_each(?2)) AND ", ended_tasks!(), "");
            let removed = run(sql)?;
            // An edit is told as long as one of its two tasks is there.
            let sql = "DELETE FROM edits WHERE ?1 = ?1 AND ?2 = ?2 AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = edits.task_id) \
                       AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = edits.edited_from)";
            run(sql)?;
            Ok(removed)
        }
        Prunable::Attachments => {
            let sql = concat!(
                "DELETE FROM attachments WHERE rowid IN (SELECT value FROM json_each(?2)) AND ",
                old_attachments!(),
                ""
            );
            run(sql)
        }
        Prunable::Cached => {
            let sql = "DELETE FROM cached WHERE rowid IN (SELECT value FROM json_each(?2)) AND stored_at < ?1";
            run(sql)
        }
        Prunable::Replays => {
            let sql = "DELETE FROM replay_items WHERE job IN (SELECT id FROM replay_jobs WHERE id IN (SELECT value FROM json_each(?2)) \
                       AND ended_at < ?1)";
            run(sql)?;
            let sql = "DELETE FROM replay_jobs WHERE id IN (SELECT value FROM json_each(?2)) AND ended_at < ?1";
            run(sql)
        }
        Prunable::Gates => Ok(0),
    }
}

/// A gate that is as good as never used goes, unless it has changed since it was read.
async fn gates(store: &SqliteStore, before: Millis, most: usize, dry_run: bool) -> Result<i64, StoreError> {
    let mut idle = Vec::new();
    for row in &store.rows("SELECT key, state FROM gates ORDER BY key", Binds::default()).await? {
        let (key, text): (String, String) = store.read(row, |columns| Ok((columns.next()?, columns.next()?)))?;
        if gate_state(&key, &text).is_some_and(|state| state.is_idle_since(before)) {
            idle.push((key, text));
        }
    }
    if dry_run {
        return Ok(limit(idle.len()));
    }
    idle.truncate(most);
    let mut removed = 0;
    for part in idle.chunks(PART) {
        let part = serde_json::json!(part).to_string();
        removed += store
            .write(move |conn, _, _| {
                let sql = "DELETE FROM gates WHERE (key, state) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))";
                Ok(limit(conn.execute(sql, [part])?))
            })
            .await?;
    }
    Ok(removed)
}
