//! Rows that cannot be read. The schema's checks leave next to nothing here; such a row must neither stop the batch that meets it nor
//! be handed out again and again.

use sqlx::postgres::PgConnection;

use super::batch::Context;
use crate::store::sql::columns::{Columns, SET_ASIDE, select_tasks, spec, state};
use crate::store::sql::fault::Fault;
use crate::task::{Millis, Notice, Task};

/// Rewrites the row as a readable dead one, with what was its payload as raw bytes, and returns it. `None` when it is gone. A row that
/// has become readable in the meantime is returned as it is.
pub(super) async fn set_aside(
    conn: &mut PgConnection,
    seq: i64,
    now: Millis,
    context: &Context,
) -> Result<Option<Task>, Fault> {
    let reason = match read(conn, seq).await? {
        None => return Ok(None),
        Some(Ok(task)) => return Ok(Some(task)),
        Some(Err(reason)) => reason,
    };
    tracing::warn!(seq, %reason, "a row of the table tasks cannot be read, it is dead now");
    let sql = format!(
        "UPDATE tasks SET {SET_ASIDE}, raw_bytes = convert_to(payload, 'UTF8'), raw_length = octet_length(payload), \
         dlq_at = $1, failure_message = $2, ended_at = $3 WHERE seq = $4"
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now.saturating_add(context.settings.confirm_timeout_ms))
        .bind(format!("the row cannot be read: {reason}").replace('\0', "\u{fffd}"))
        .bind(now)
        .bind(seq)
        .execute(&mut *conn)
        .await?;
    match read(conn, seq).await? {
        Some(Err(reason)) => Err(Fault::Row(format!("row {seq} of tasks cannot be read: {reason}"))),
        Some(Ok(task)) => {
            let notice = Notice::of_set_aside(&task, context.settings.announced, now);
            context.writes.save_notices(conn, notice.as_slice()).await?;
            Ok(Some(task))
        }
        None => Ok(None),
    }
}

async fn read(conn: &mut PgConnection, seq: i64) -> Result<Option<Result<Task, String>>, Fault> {
    let row = sqlx::query(select_tasks!("WHERE seq = $1 FOR NO KEY UPDATE")).bind(seq).fetch_optional(conn).await?;
    Ok(row.map(|row| Columns::of(&row).task().map(|(_, task)| task).map_err(|row| row.reason)))
}
