//! Notices: written by the batch that makes them, taken and forgotten by whoever publishes.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

use super::SqliteStore;
use super::columns::{Bind, Binds, Columns, Slots};
use super::fault::Fault;
use super::ladder::Ladder;
use super::read::limit;
use crate::store::StoreError;
use crate::store::notice::{MOST_DOUBLINGS, NoticeBacklog, NoticeStore, TakenNotice};
use crate::task::{Happening, Millis, Notice, Stamp};

pub(super) const NEXT: &str = "SELECT min(send_at) FROM notices INDEXED BY notices_send";
const BACKLOG: &str = "SELECT count(*), min(at) FROM notices";
/// ?1: now, ?2: at most so many, ?3: how long they are held, ?4: the most doublings of that.
pub(super) const TAKE: &str = "UPDATE notices SET send_at = ?1 + ?3 * (1 << min(tries, ?4)), tries = tries + 1 \
     WHERE number IN (SELECT number FROM notices INDEXED BY notices_send WHERE send_at <= ?1 ORDER BY send_at, number LIMIT ?2) \
     RETURNING number, topic, reply_to, task_id, generation, retry_count, at, document";
const DROP: &str = "DELETE FROM notices WHERE number IN (SELECT value FROM json_each(?))";

/// The statement that writes notices.
pub(super) fn insert() -> Ladder {
    Ladder::insert("INSERT INTO", "notices", "topic, reply_to, task_id, generation, retry_count, at, document, send_at")
}

pub(super) fn bind(binds: &mut Slots<'_, '_>, notice: &Notice) {
    binds
        .word(notice.happening.topic())
        .optional_text(notice.reply_to.as_deref())
        .word(&notice.task_id)
        .add(notice.stamp.generation)
        .add(notice.stamp.retry_count)
        .add(notice.at)
        .word(&notice.document)
        .add(notice.at);
}

fn taken(row: &Row<'_>) -> Result<TakenNotice, String> {
    let mut columns = Columns::of(row);
    Ok(TakenNotice {
        number: columns.next()?,
        notice: Notice {
            happening: columns.word(Happening::parse)?,
            reply_to: columns.next()?,
            task_id: columns.next()?,
            stamp: Stamp { generation: columns.next()?, retry_count: columns.next()? },
            at: columns.next()?,
            document: columns.next()?,
        },
    })
}

fn take(conn: &Connection, now: Millis, most: i64, hold_ms: Millis) -> Result<Vec<TakenNotice>, Fault> {
    let mut statement = conn.prepare_cached(TAKE)?;
    let mut rows = statement.query(params![now, most, hold_ms, MOST_DOUBLINGS])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        match taken(row) {
            Ok(notice) => found.push(notice),
            // It stays, and is seen again when its time comes: only another program can have written it.
            Err(reason) => tracing::warn!(%reason, "a row of the table notices cannot be read; delete it"),
        }
    }
    // RETURNING gives them in no order that is promised.
    found.sort_by_key(|notice| notice.number);
    Ok(found)
}

#[async_trait]
impl NoticeStore for SqliteStore {
    async fn next_notice(&self) -> Result<Option<Millis>, StoreError> {
        let rows = self.rows(NEXT, Binds::default()).await?;
        rows.first().map_or(Ok(None), |row| self.read(row, |columns| columns.next()))
    }

    async fn take_notices(&self, most: usize, hold_ms: Millis) -> Result<Vec<TakenNotice>, StoreError> {
        let most = limit(most);
        self.write(move |conn, _, now| take(conn, now, most, hold_ms)).await
    }

    async fn drop_notices(&self, numbers: Vec<i64>) -> Result<(), StoreError> {
        let numbers = serde_json::json!(numbers).to_string();
        self.write(move |conn, _, _| Ok(conn.prepare_cached(DROP)?.execute([numbers]).map(drop)?)).await
    }

    async fn notice_backlog(&self) -> Result<NoticeBacklog, StoreError> {
        let rows = self.rows(BACKLOG, Binds::default()).await?;
        let read =
            |columns: &mut Columns<'_>| Ok(NoticeBacklog { waiting: columns.next()?, oldest_at: columns.next()? });
        rows.first().map_or(Ok(NoticeBacklog::default()), |row| self.read(row, read))
    }
}
