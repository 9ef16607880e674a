//! Rows that cannot be read.
//!
//! The schema's checks keep out what SQL can tell, but not, for example, text that is no UTF-8. Such a row must neither stop
//! the batch that meets it nor be handed out again and again: it becomes dead/poison, readable, with what it held as
//! payload kept as its raw bytes.

use rusqlite::{Connection, OptionalExtension};

use super::batch::Context;
use super::rows::Slots;
use crate::store::sql::columns::{Columns, SET_ASIDE, select_tasks, spec, state};
use crate::store::sql::fault::Fault;
use crate::store::sql::value::Bind;
use crate::task::{Millis, Notice, Task};

/// The longest id the schema takes, less room for a suffix.
const LONGEST_ID: usize = 170;

/// Rewrites the row as a readable dead one and returns it. `None` when it is gone. A row that has become readable in the
/// meantime is returned as it is.
pub(super) fn set_aside(conn: &Connection, seq: i64, now: Millis, context: &Context) -> Result<Option<Task>, Fault> {
    let reason = match read(conn, seq)? {
        None => return Ok(None),
        Some(Ok(task)) => return Ok(Some(task)),
        Some(Err(reason)) => reason,
    };
    let sql = "SELECT CAST(id AS BLOB), CAST(type AS BLOB), CAST(queue AS BLOB), CAST(payload AS BLOB) \
               FROM tasks WHERE seq = ?";
    let [id, task_type, queue, payload]: [Option<Vec<u8>>; 4] =
        conn.query_row(sql, [seq], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))?;
    let id = match String::from_utf8(id.unwrap_or_default()) {
        Ok(id) => id,
        // Two such ids may look alike, hence the suffix.
        Err(error) => format!("{}-{seq}", cut(&String::from_utf8_lossy(error.as_bytes()), LONGEST_ID)),
    };
    let task_type = String::from_utf8(task_type.unwrap_or_default()).unwrap_or_else(|_| "unreadable".into());
    let queue = queue.and_then(|queue| String::from_utf8(queue).ok());
    let payload = payload.unwrap_or_default();
    tracing::warn!(task_id = %id, seq, %reason, "a row of the table tasks cannot be read, it is dead now");

    let sql = format!(
        "UPDATE tasks SET {SET_ASIDE}, id = ?, type = ?, queue = ?, raw_bytes = ?, raw_length = ?, dlq_at = ?, \
         failure_message = ?, ended_at = ? WHERE seq = ?"
    );
    let mut statement = conn.prepare(&sql)?;
    let mut slots = Slots::of(&mut statement);
    slots
        .add(id)
        .add(task_type)
        .add(queue)
        .add(payload.as_slice())
        .add(i64::try_from(payload.len()).unwrap_or(i64::MAX))
        .add(now.saturating_add(context.settings.confirm_timeout_ms))
        .text(&format!("the row cannot be read: {reason}"))
        .add(now)
        .add(seq);
    slots.done()?;
    statement.raw_execute()?;
    match read(conn, seq)? {
        Some(Err(reason)) => Err(Fault::Row(format!("row {seq} of tasks cannot be read: {reason}"))),
        Some(Ok(task)) => {
            let notice = Notice::of_set_aside(&task, context.settings.announced, now);
            context.writes.save_notices(conn, notice.as_slice())?;
            Ok(Some(task))
        }
        None => Ok(None),
    }
}

fn read(conn: &Connection, seq: i64) -> Result<Option<Result<Task, String>>, Fault> {
    let sql = select_tasks!("WHERE seq = ?");
    let read = conn.query_row(sql, [seq], |row| Ok(Columns::of(row).task()));
    Ok(read.optional()?.map(|row| row.map(|(_, task)| task).map_err(|row| row.reason)))
}

fn cut(text: &str, longest: usize) -> &str {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
