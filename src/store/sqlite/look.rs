//! What people look at, in SQLite. Every query names the index that answers it.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::SqliteStore;
use super::columns::{Binds, Columns};
use super::read::{attachment, attempt, limit, sql};
use crate::store::StoreError;
use crate::store::look::{self, AttachmentHead, AttemptHead, LookStore, WAIT_PARTS, WaitScale, Waiting};
use crate::task::{Attachment, Millis};

const UNSENT: &str = "SELECT queue, count(*) FROM tasks INDEXED BY tasks_feed WHERE status = 'pending' AND sent_at IS NULL \
     AND held_by IS NULL AND queue IS NOT NULL GROUP BY queue \
     UNION ALL SELECT 'default', count(*) FROM tasks INDEXED BY tasks_unrouted WHERE status = 'pending' AND queue IS NULL";
const SENT: &str = "SELECT coalesce(queue, 'default'), count(*) FROM tasks INDEXED BY tasks_outstanding \
     WHERE sent_lane = 'tasks' GROUP BY 1";
const HELD: &str = "SELECT queue, count(*) FROM tasks INDEXED BY tasks_held WHERE held_by IS NOT NULL GROUP BY queue";
const RUNNING: &str =
    "SELECT coalesce(worker, ''), count(*) FROM tasks INDEXED BY tasks_lease WHERE status = 'running' GROUP BY 1";
const RETRIES: &str =
    "SELECT count(*) FROM tasks INDEXED BY tasks_retry WHERE status = 'retry_waiting' AND held_by IS NULL";
/// ?1: now, ?2: delays, ?3: the length of the others, ?4: parts, ?5: at most so many. The part is `store::look::part`.
const RETRY_WAITS: &str = "SELECT queue, rung, part, count(*), min(due_at) FROM ( \
     SELECT queue, rung, due_at, CASE WHEN due_at <= ?1 THEN -1 ELSE min((due_at - ?1) * ?4 / coalesce(rung, ?3), ?4 - 1) END AS part FROM ( \
     SELECT coalesce(queue, 'default') AS queue, due_at, CASE WHEN delay_ms IN (SELECT value FROM json_each(?2)) THEN delay_ms END AS rung \
     FROM tasks INDEXED BY tasks_retry WHERE status = 'retry_waiting' AND held_by IS NULL ORDER BY wake_at LIMIT ?5)) GROUP BY 1, 2, 3";
pub(super) const NEWEST_ENDED: &str = "SELECT ended_at FROM tasks INDEXED BY tasks_ended WHERE ended_at IS NOT NULL AND ended_at >= ? \
     AND ended_at < ? ORDER BY ended_at DESC LIMIT 1 OFFSET ?";
pub(super) const ATTACHMENT_HEADS: &str = "SELECT fence, name, media_type, coalesce(size, length(bytes), 0), bytes IS NOT NULL, link \
     FROM attachments WHERE task_id = ? ORDER BY fence, position";
pub(super) const ATTACHMENT: &str = "SELECT fence, name, media_type, bytes, link, size FROM attachments \
     WHERE task_id = ? AND fence = ? ORDER BY position LIMIT 1 OFFSET ?";

impl SqliteStore {
    async fn counted(&self, sql: &'static str) -> Result<BTreeMap<String, i64>, StoreError> {
        let mut counts = BTreeMap::new();
        for row in self.rows(sql, Binds::default()).await? {
            let (name, n): (String, i64) = self.read(&row, |columns| Ok((columns.next()?, columns.next()?)))?;
            if n > 0 {
                *counts.entry(name).or_default() += n;
            }
        }
        Ok(counts)
    }
}

#[async_trait]
impl LookStore for SqliteStore {
    async fn waiting(&self, scale: &WaitScale) -> Result<Waiting, StoreError> {
        let rows = self.rows(RETRIES, Binds::default()).await?;
        let all: i64 = rows.first().map_or(Ok(0), |row| self.read(row, |columns| columns.next()))?;
        let mut binds = Binds::default();
        binds.add(self.clock.now()).add(serde_json::json!(scale.delays_ms).to_string()).add(scale.other_ms.max(1));
        binds.add(limit(WAIT_PARTS)).add(limit(scale.most));
        let mut waits = BTreeMap::new();
        for row in self.rows(RETRY_WAITS, binds).await? {
            let (queue, rung, part, n, due_at): (String, Option<Millis>, i64, i64, Millis) = self
                .read(&row, |columns| {
                    Ok((columns.next()?, columns.next()?, columns.next()?, columns.next()?, columns.next()?))
                })?;
            look::add(&mut waits, (queue, rung), usize::try_from(part).ok(), n, due_at);
        }
        Ok(Waiting {
            unsent: self.counted(UNSENT).await?,
            sent: self.counted(SENT).await?,
            held: self.counted(HELD).await?,
            running: self.counted(RUNNING).await?,
            retries: waits.into_values().collect(),
            is_part: all > limit(scale.most),
        })
    }

    async fn newest_ended(&self, since: Millis, until: Millis, most: usize) -> Result<Option<Millis>, StoreError> {
        let mut binds = Binds::default();
        binds.add(since).add(until).add(limit(most));
        let rows = self.rows(NEWEST_ENDED, binds).await?;
        rows.first().map(|row| self.read(row, |columns| columns.next())).transpose()
    }

    async fn attempt_heads(&self, id: &str) -> Result<Vec<AttemptHead>, StoreError> {
        let of_task = || {
            let mut binds = Binds::default();
            binds.add(id);
            binds
        };
        let mut heads = Vec::new();
        for row in self.rows(sql::ATTEMPTS, of_task()).await? {
            heads.push(AttemptHead { attempt: self.read(&row, attempt)?, attachments: Vec::new() });
        }
        for row in self.rows(ATTACHMENT_HEADS, of_task()).await? {
            let (fence, attachment) = self.read(&row, attachment_head)?;
            if let Some(head) = heads.iter_mut().find(|head| head.attempt.fence == fence) {
                head.attachments.push(attachment);
            }
        }
        Ok(heads)
    }

    async fn attachment(&self, id: &str, fence: i64, position: usize) -> Result<Option<Attachment>, StoreError> {
        let mut binds = Binds::default();
        binds.add(id).add(fence).add(limit(position));
        let rows = self.rows(ATTACHMENT, binds).await?;
        Ok(rows.first().map(|row| self.read(row, attachment)).transpose()?.map(|(_, attachment)| attachment))
    }
}

fn attachment_head(columns: &mut Columns<'_>) -> Result<(i64, AttachmentHead), String> {
    let fence = columns.next()?;
    let (name, media_type) = (columns.next()?, columns.next()?);
    let size: i64 = columns.next()?;
    let size = u64::try_from(size).map_err(|_| "size below zero".to_owned())?;
    let (is_kept, link) = (columns.next()?, columns.next()?);
    Ok((fence, AttachmentHead { name, media_type, size, is_kept, link }))
}
