//! What people look at, in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::MemoryStore;
use crate::store::StoreError;
use crate::store::look::{self, AttachmentHead, AttemptHead, LookStore, WaitScale, Waiting};
use crate::task::{Attachment, AttachmentBody, Lane, Millis, Status, Task};

#[async_trait]
impl LookStore for MemoryStore {
    async fn waiting(&self, scale: &WaitScale) -> Result<Waiting, StoreError> {
        let now = self.clock.now();
        let inner = self.inner();
        let mut waiting = Waiting::default();
        let mut retries: Vec<&Task> = Vec::new();
        for task in inner.rows.tasks() {
            let state = &task.state;
            let add = |counts: &mut BTreeMap<String, i64>, key: &str| *counts.entry(key.to_owned()).or_default() += 1;
            if state.outstanding.is_some_and(|outstanding| outstanding.lane == Lane::Tasks) {
                add(&mut waiting.sent, task.queue());
            } else if state.status == Status::Pending && state.held_by.is_none() && state.outstanding.is_none() {
                add(&mut waiting.unsent, task.queue());
            }
            if state.held_by.is_some() {
                add(&mut waiting.held, task.queue());
            } else if state.status == Status::RetryWaiting {
                retries.push(task);
            }
            if let (Status::Running, Some(worker)) = (state.status, &state.worker) {
                add(&mut waiting.running, worker);
            }
        }
        retries.sort_by_key(|task| task.state.wake_at);
        waiting.is_part = retries.len() > scale.most;
        let mut waits = BTreeMap::new();
        for task in retries.into_iter().take(scale.most) {
            let delay_ms = task.state.delay_ms.filter(|delay| scale.delays_ms.contains(delay));
            let part = look::part(task.state.due_at, now, delay_ms.unwrap_or(scale.other_ms));
            look::add(&mut waits, (task.queue().to_owned(), delay_ms), part, 1, task.state.due_at);
        }
        waiting.retries = waits.into_values().collect();
        Ok(waiting)
    }

    async fn newest_ended(&self, since: Millis, until: Millis, most: usize) -> Result<Option<Millis>, StoreError> {
        let inner = self.inner();
        let ended = inner.rows.tasks().filter_map(|task| task.state.ended_at);
        let mut ended: Vec<Millis> = ended.filter(|at| (since..until).contains(at)).collect();
        ended.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
        Ok(ended.get(most).copied())
    }

    async fn attempt_heads(&self, id: &str) -> Result<Vec<AttemptHead>, StoreError> {
        let inner = self.inner();
        let of_task = inner.attempts.range((id.to_owned(), i64::MIN)..=(id.to_owned(), i64::MAX));
        Ok(of_task
            .map(|(_, attempt)| {
                let mut attempt = attempt.clone();
                let attachments = std::mem::take(&mut attempt.attachments).iter().map(head).collect();
                AttemptHead { attempt, attachments }
            })
            .collect())
    }

    async fn attachment(&self, id: &str, fence: i64, position: usize) -> Result<Option<Attachment>, StoreError> {
        let inner = self.inner();
        let attempt = inner.attempts.get(&(id.to_owned(), fence));
        Ok(attempt.and_then(|attempt| attempt.attachments.get(position)).cloned())
    }
}

fn head(attachment: &Attachment) -> AttachmentHead {
    let (size, is_kept, link) = match &attachment.body {
        AttachmentBody::Bytes(bytes) => (u64::try_from(bytes.len()).unwrap_or(u64::MAX), true, None),
        AttachmentBody::Link(link) => (0, false, Some(link.clone())),
        AttachmentBody::TooLarge { size } => (*size, false, None),
    };
    AttachmentHead { name: attachment.name.clone(), media_type: attachment.media_type.clone(), size, is_kept, link }
}
