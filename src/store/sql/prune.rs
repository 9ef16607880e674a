//! Retention: what has ended long ago is removed, a few rows a transaction, so that nobody waits long for a writer.
//!
//! What may go is looked for by readers and looked at once more by the writer. Dead letters and whatever is unfinished never match.

use super::engine::{Ask, Engine, Tx, limit};
use super::fault::Fault;
use super::ledgers::gate_state;
use super::value::values;
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

macro_rules! old_jobs {
    () => {
        "(state = 'stopped' OR state = 'cancelled' OR state = 'done') AND ended_at < ?1"
    };
}

/// What may go: its number, and how it is found.
fn candidates(what: Prunable) -> (&'static str, &'static str) {
    match what {
        Prunable::Tasks => {
            ("seq", concat!("FROM tasks INDEXED BY tasks_ended WHERE ended_at IS NOT NULL AND ", ended_tasks!()))
        }
        Prunable::Attachments => ("rowid", concat!("FROM attachments WHERE ", old_attachments!())),
        Prunable::Cached => ("rowid", "FROM cached WHERE stored_at < ?1"),
        Prunable::Replays => ("id", concat!("FROM replay_jobs WHERE ", old_jobs!())),
        // Looked for elsewhere.
        Prunable::Gates => ("key", ""),
    }
}

pub(super) async fn prune<E: Engine>(
    store: &E,
    what: Prunable,
    before: Millis,
    most: usize,
    dry_run: bool,
) -> Result<i64, StoreError> {
    if what == Prunable::Gates {
        return gates(store, before, most, dry_run).await;
    }
    let (number, from) = candidates(what);
    if dry_run {
        let count = store.first(&format!("SELECT count(*) {from}"), values![before], |row| row.next::<i64>()).await?;
        return Ok(count.unwrap_or(0));
    }
    let sql = format!("SELECT {number} {from} LIMIT ?2");
    let found = store.all(&sql, values![before, limit(most)], |row| row.next::<i64>()).await?;
    let mut removed = 0;
    for part in found.chunks(PART) {
        let part = serde_json::json!(part).to_string();
        removed += store.write(move |tx, _| Box::pin(remove(tx, what, before, part))).await?;
    }
    Ok(removed)
}

/// Removes what still may go of the rows with these numbers.
async fn remove(tx: &mut dyn Tx, what: Prunable, before: Millis, rows: String) -> Result<i64, Fault> {
    const OURS: &str = concat!("(SELECT id FROM tasks WHERE seq IN ({numbers:?2}) AND ", ended_tasks!(), ")");
    match what {
        Prunable::Tasks => {
            for table in ["attachments", "attempts", "results"] {
                let sql = format!("DELETE FROM {table} WHERE task_id IN {OURS}");
                tx.run(&sql, values![before, rows.as_str()]).await?;
            }
            let sql = concat!("DELETE FROM tasks WHERE seq IN ({numbers:?2}) AND ", ended_tasks!());
            let removed = tx.run(sql, values![before, rows]).await?;
            // An edit is told as long as one of its two tasks is there.
            let sql = "DELETE FROM edits WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE id = edits.task_id) \
                       AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = edits.edited_from)";
            tx.run(sql, values![]).await?;
            Ok(removed)
        }
        Prunable::Attachments => {
            let sql = concat!("DELETE FROM attachments WHERE rowid IN ({numbers:?2}) AND ", old_attachments!());
            tx.run(sql, values![before, rows]).await
        }
        Prunable::Cached => {
            tx.run("DELETE FROM cached WHERE rowid IN ({numbers:?2}) AND stored_at < ?1", values![before, rows]).await
        }
        Prunable::Replays => {
            let sql = "DELETE FROM replay_items WHERE job IN (SELECT id FROM replay_jobs WHERE id IN ({numbers:?2}) \
                       AND ended_at < ?1)";
            tx.run(sql, values![before, rows.as_str()]).await?;
            tx.run("DELETE FROM replay_jobs WHERE id IN ({numbers:?2}) AND ended_at < ?1", values![before, rows]).await
        }
        Prunable::Gates => Ok(0),
    }
}

/// A gate that is as good as never used goes, unless it has changed since it was read.
async fn gates<E: Engine>(store: &E, before: Millis, most: usize, dry_run: bool) -> Result<i64, StoreError> {
    let sql = "SELECT key, state FROM gates WHERE state IS NOT NULL ORDER BY key";
    let known = store.all(sql, values![], |row| Ok((row.next::<String>()?, row.next::<String>()?))).await?;
    let is_idle =
        |(key, text): &(String, String)| gate_state(key, text).is_some_and(|state| state.is_idle_since(before));
    let mut idle: Vec<_> = known.into_iter().filter(is_idle).collect();
    if dry_run {
        return Ok(limit(idle.len()));
    }
    idle.truncate(most);
    let mut removed = 0;
    for part in idle.chunks(PART) {
        let (keys, states): (Vec<&String>, Vec<&String>) = part.iter().map(|(key, state)| (key, state)).unzip();
        let mut values = values![];
        values.list(&keys).list(&states);
        let sql = "DELETE FROM gates WHERE (key, state) IN (SELECT wanted.value, was.value FROM {listed:?1} AS wanted \
                   JOIN {listed:?2} AS was ON was.key = wanted.key)";
        removed += store.change(sql, values).await?;
    }
    Ok(removed)
}
