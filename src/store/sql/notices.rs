//! Notices: written by the batch that makes them, taken and forgotten by whoever publishes.

use async_trait::async_trait;

use super::columns::Columns;
use super::engine::{Ask, Engine, limit};
use super::value::{Bind, Source, values};
use crate::store::StoreError;
use crate::store::notice::{MOST_DOUBLINGS, NoticeBacklog, NoticeStore, TakenNotice};
use crate::task::{Happening, Millis, Notice, Stamp};

pub(crate) const NEXT: &str = "SELECT min(send_at) FROM notices INDEXED BY notices_send";
const BACKLOG: &str = "SELECT count(*), min(at) FROM notices";
/// ?1: now, ?2: at most so many, ?3: how long they are held, ?4: the most doublings of that. Asked again in the update itself: of two
/// workers that find the same notice, the second finds it taken.
pub(crate) const TAKE: &str = "UPDATE notices SET send_at = ?1 + ?3 * (1 << CAST(CASE WHEN tries < ?4 THEN tries ELSE ?4 END AS INTEGER)), \
     tries = tries + 1 \
     WHERE number IN (SELECT number FROM notices INDEXED BY notices_send WHERE send_at <= ?1 ORDER BY send_at, number LIMIT ?2) \
     AND send_at <= ?1 RETURNING number, topic, reply_to, task_id, generation, retry_count, at, document";

/// The columns of a new notice, in the order of [`bind`].
pub(crate) const COLUMNS: &str = "topic, reply_to, task_id, generation, retry_count, at, document, send_at";

pub(crate) fn bind(binds: &mut impl Bind, notice: &Notice) {
    binds
        .word(notice.happening.topic())
        .optional_text(notice.reply_to.as_deref())
        .word(&notice.task_id)
        .integer(notice.stamp.generation)
        .integer(notice.stamp.retry_count)
        .integer(notice.at)
        .word(&notice.document)
        .integer(notice.at);
}

fn taken<R: Source>(columns: &mut Columns<'_, R>) -> Result<TakenNotice, String> {
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

#[async_trait]
impl<E: Engine> NoticeStore for E {
    async fn next_notice(&self) -> Result<Option<Millis>, StoreError> {
        Ok(self.first(NEXT, values![], |columns| columns.next()).await?.flatten())
    }

    async fn take_notices(&self, most: usize, hold_ms: Millis) -> Result<Vec<TakenNotice>, StoreError> {
        let most = limit(most);
        self.write(move |tx, now| {
            Box::pin(async move {
                let mut found = Vec::new();
                for row in tx.rows(TAKE, values![now, most, hold_ms, MOST_DOUBLINGS]).await? {
                    match taken(&mut Columns::of(&row)) {
                        Ok(notice) => found.push(notice),
                        // It stays, and is seen again when its time comes: only another program can have written it.
                        Err(reason) => tracing::warn!(%reason, "a row of the table notices cannot be read; delete it"),
                    }
                }
                // RETURNING gives them in no order that is promised.
                found.sort_by_key(|notice: &TakenNotice| notice.number);
                Ok(found)
            })
        })
        .await
    }

    async fn drop_notices(&self, numbers: Vec<i64>) -> Result<(), StoreError> {
        let mut arguments = values![];
        arguments.list(&numbers);
        self.change("DELETE FROM notices WHERE number IN ({numbers:?})", arguments).await.map(drop)
    }

    async fn notice_backlog(&self) -> Result<NoticeBacklog, StoreError> {
        let read = |columns: &mut Columns<'_, E::Row>| {
            Ok(NoticeBacklog { waiting: columns.next()?, oldest_at: columns.next()? })
        };
        Ok(self.first(BACKLOG, values![], read).await?.unwrap_or_default())
    }
}
