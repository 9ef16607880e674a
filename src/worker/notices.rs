//! Publishes what other services are told: events to whoever listens, replies to who asked for one.
//!
//! What there is to tell lies in the store, put there by the transitions themselves; this only carries it to the broker and forgets
//! what has arrived. It never holds a task up, and a notice that nobody can be told now waits.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::broker::{Message, Published, notice_message};
use crate::config::EventsConfig;
use crate::store::StoreError;
use crate::store::notice::TakenNotice;
use crate::task::{ResultDocument, Status, Task, TaskEvent, own_queue};
use crate::telemetry::{Event, NoticeFate, Observer};

use super::Shared;

/// Notices of one round.
const BATCH: usize = 256;
/// How often the store is asked although nothing happened here: what other processes do is told too.
const LOOK: Duration = Duration::from_secs(1);

/// Wakes the carrier when something has happened in this process that may have to be told.
pub(super) struct NoticeObserver {
    wake: Arc<Notify>,
    events: EventsConfig,
}

impl NoticeObserver {
    /// An observer that wakes `wake`.
    pub fn new(wake: Arc<Notify>, events: EventsConfig) -> NoticeObserver {
        NoticeObserver { wake, events }
    }

    fn may_be_told(&self, task: &Task) -> bool {
        !self.events.publish.is_empty() || task.spec.reply_to.is_some()
    }
}

impl Observer for NoticeObserver {
    fn observe(&self, event: &Event<'_>) {
        let told = match event {
            Event::Settled { task, .. } | Event::Died { task, .. } | Event::Degraded { task, .. } => {
                self.may_be_told(task)
            }
            Event::Duplicate { .. } => true,
            _ => false,
        };
        if told {
            self.wake.notify_one();
        }
    }
}

/// Runs until the worker ends.
pub(super) async fn run(shared: Arc<Shared>, wake: Arc<Notify>) {
    loop {
        tokio::select! {
            biased;
            () = shared.stop_all.cancelled() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        // Without a session nothing would go out, and what is taken waits longer each time.
        while shared.broker.is_up() && !shared.stop_all.is_cancelled() {
            match carry(&shared).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    shared.store_is_down(&error);
                    break;
                }
            }
        }
    }
}

/// Carries one batch out. Returns whether more may be due.
async fn carry(shared: &Shared) -> Result<bool, StoreError> {
    if shared.store.next_notice().await?.is_none_or(|at| at > shared.store.now()) {
        return Ok(false);
    }
    // Longer than the publish may take, so that nobody repeats it meanwhile.
    let hold_ms = shared.plan.settings.confirm_timeout_ms.saturating_mul(2);
    let taken = shared.store.take_notices(BATCH, hold_ms).await?;
    let mut out = Vec::new();
    let mut sent: Vec<&TakenNotice> = Vec::new();
    let mut messages: Vec<Message> = Vec::new();
    for notice in &taken {
        match message(shared, notice).await? {
            Ok(message) => {
                sent.push(notice);
                messages.push(message);
            }
            Err(reason) => {
                tracing::error!(task = notice.notice.task_id, reason, "a notice that cannot be told is dropped");
                shared.observers.emit(&Event::NoticeSent { notice: &notice.notice, fate: NoticeFate::Refused });
                out.push(notice.number);
            }
        }
    }
    for (notice, fate) in sent.into_iter().zip(shared.broker.publish(messages).await) {
        let fate = match fate {
            Published::Confirmed => NoticeFate::Taken,
            Published::Returned => NoticeFate::NoQueue,
            Published::Nacked | Published::Unconfirmed { .. } | Published::NotSent { .. } => NoticeFate::Again,
        };
        shared.observers.emit(&Event::NoticeSent { notice: &notice.notice, fate });
        // An event to which nobody listens has been told; so has a reply to somebody who has gone away.
        if fate != NoticeFate::Again {
            out.push(notice.number);
        }
    }
    let more = taken.len() == BATCH && !out.is_empty();
    if !out.is_empty() {
        shared.store.drop_notices(out).await?;
    }
    Ok(more)
}

/// The message of a notice, with payload and result where they belong in it; the inner error says why there can be none.
async fn message(shared: &Shared, taken: &TakenNotice) -> Result<Result<Message, String>, StoreError> {
    let (notice, namespace) = (&taken.notice, &shared.plan.topology.namespace);
    // Submissions that name such a queue are refused; a row that another program inserted comes this far.
    if let Some(problem) = notice.reply_to.as_deref().and_then(|queue| own_queue(queue, namespace)) {
        return Ok(Err(format!("reply_to {problem}")));
    }
    let mut event: TaskEvent = match serde_json::from_str(&notice.document) {
        Ok(event) => event,
        Err(error) => return Ok(Err(format!("its document: {error}"))),
    };
    let (is_reply, events) = (notice.reply_to.is_some(), shared.plan.events);
    if event.status == Status::Succeeded && (is_reply || events.result) {
        event.result = shared.store.result(&notice.task_id).await?.as_ref().map(ResultDocument::of);
    }
    if !is_reply && events.payload {
        let ids = [notice.task_id.clone()];
        let task = shared.store.get(&ids).await?.pop().flatten();
        event.payload = task.and_then(|task| RawValue::from_string(task.spec.payload.clone()).ok());
    }
    Ok(match serde_json::to_vec(&event) {
        Ok(body) => Ok(notice_message(taken.number, notice, &event, body.into(), namespace)),
        Err(error) => Err(format!("its document: {error}")),
    })
}
