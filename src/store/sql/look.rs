//! What people look at. Every query names the index that answers it.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::columns::Columns;
use super::engine::{Ask, Engine, limit};
use super::read::{attachment, attempt, sql};
use super::value::{Source, values};
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
     SELECT queue, rung, due_at, CASE WHEN due_at <= ?1 THEN -1 WHEN (due_at - ?1) * ?4 / coalesce(rung, ?3) >= ?4 THEN ?4 - 1 \
     ELSE (due_at - ?1) * ?4 / coalesce(rung, ?3) END AS part FROM ( \
     SELECT coalesce(queue, 'default') AS queue, due_at, CASE WHEN delay_ms IN ({numbers:?2}) THEN delay_ms END AS rung \
     FROM tasks INDEXED BY tasks_retry WHERE status = 'retry_waiting' AND held_by IS NULL ORDER BY wake_at LIMIT ?5) AS waiting) \
     AS parted GROUP BY 1, 2, 3";
pub(crate) const NEWEST_ENDED: &str = "SELECT ended_at FROM tasks INDEXED BY tasks_ended WHERE ended_at IS NOT NULL AND ended_at >= ? \
     AND ended_at < ? ORDER BY ended_at DESC LIMIT 1 OFFSET ?";
pub(crate) const ATTACHMENT_HEADS: &str = "SELECT fence, name, media_type, coalesce(size, length(bytes), 0), bytes IS NOT NULL, link \
     FROM attachments WHERE task_id = ? ORDER BY fence, position";
pub(crate) const ATTACHMENT: &str = "SELECT fence, name, media_type, bytes, link, size FROM attachments \
     WHERE task_id = ? AND fence = ? ORDER BY position LIMIT 1 OFFSET ?";

async fn counted<E: Engine>(store: &E, sql: &'static str) -> Result<BTreeMap<String, i64>, StoreError> {
    let mut counts = BTreeMap::new();
    let found = store.all(sql, values![], |columns| Ok((columns.next::<String>()?, columns.next::<i64>()?))).await?;
    for (name, n) in found.into_iter().filter(|(_, n)| *n > 0) {
        *counts.entry(name).or_default() += n;
    }
    Ok(counts)
}

#[async_trait]
impl<E: Engine> LookStore for E {
    async fn waiting(&self, scale: &WaitScale) -> Result<Waiting, StoreError> {
        let all: i64 = self.first(RETRIES, values![], |columns| columns.next()).await?.unwrap_or(0);
        let mut arguments = values![self.clock().now()];
        arguments.list(&scale.delays_ms).add(scale.other_ms.max(1)).add(limit(WAIT_PARTS)).add(limit(scale.most));
        let found = self
            .all(RETRY_WAITS, arguments, |columns| {
                let key: (String, Option<Millis>) = (columns.next()?, columns.next()?);
                Ok((key, columns.next::<i64>()?, columns.next::<i64>()?, columns.next::<Millis>()?))
            })
            .await?;
        let mut waits = BTreeMap::new();
        for (key, part, n, due_at) in found {
            look::add(&mut waits, key, usize::try_from(part).ok(), n, due_at);
        }
        Ok(Waiting {
            unsent: counted(self, UNSENT).await?,
            sent: counted(self, SENT).await?,
            held: counted(self, HELD).await?,
            running: counted(self, RUNNING).await?,
            retries: waits.into_values().collect(),
            is_part: all > limit(scale.most),
        })
    }

    async fn newest_ended(&self, since: Millis, until: Millis, most: usize) -> Result<Option<Millis>, StoreError> {
        self.first(NEWEST_ENDED, values![since, until, limit(most)], |columns| columns.next()).await
    }

    async fn attempt_heads(&self, id: &str) -> Result<Vec<AttemptHead>, StoreError> {
        let attempts = self.all(sql::ATTEMPTS, values![id], attempt).await?;
        let mut heads: Vec<AttemptHead> =
            attempts.into_iter().map(|attempt| AttemptHead { attempt, attachments: Vec::new() }).collect();
        for (fence, attachment) in self.all(ATTACHMENT_HEADS, values![id], attachment_head).await? {
            if let Some(head) = heads.iter_mut().find(|head| head.attempt.fence == fence) {
                head.attachments.push(attachment);
            }
        }
        Ok(heads)
    }

    async fn attachment(&self, id: &str, fence: i64, position: usize) -> Result<Option<Attachment>, StoreError> {
        let found = self.first(ATTACHMENT, values![id, fence, limit(position)], attachment).await?;
        Ok(found.map(|(_, attachment)| attachment))
    }
}

fn attachment_head<R: Source>(columns: &mut Columns<'_, R>) -> Result<(i64, AttachmentHead), String> {
    let fence = columns.next()?;
    let (name, media_type) = (columns.next()?, columns.next()?);
    let size: i64 = columns.next()?;
    let size = u64::try_from(size).map_err(|_| "size below zero".to_owned())?;
    let (is_kept, link) = (columns.next()?, columns.next()?);
    Ok((fence, AttachmentHead { name, media_type, size, is_kept, link }))
}
