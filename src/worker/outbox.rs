//! Publishes what commits have asked for: wake-ups and DLQ copies, many in flight.
//!
//! Nothing waits for it. A message that does not get out is covered by its row's alarm, so the outbox may lose everything.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::broker::{CopyHistory, Published, dead_copy, wake_up};
use crate::store::LetterHistory;
use crate::task::{Command, Task, WakeUp};
use crate::telemetry::Event;

use super::Shared;

/// One message to publish.
#[derive(Debug)]
pub enum Letter {
    /// A wake-up.
    WakeUp(WakeUp),
    /// The copy of a dead task.
    Copy(Box<Task>),
}

/// The sending side.
#[derive(Debug, Clone)]
pub struct Outbox {
    sender: mpsc::UnboundedSender<Letter>,
    waiting: Arc<AtomicUsize>,
}

/// The most messages of one publish call.
const BATCH: usize = 256;

impl Outbox {
    /// An outbox and its feed.
    pub fn new() -> (Outbox, mpsc::UnboundedReceiver<Letter>) {
        let (sender, feed) = mpsc::unbounded_channel();
        (Outbox { sender, waiting: Arc::default() }, feed)
    }

    /// Hands a message over; it goes out soon.
    pub fn send(&self, letter: Letter) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.send(letter).is_err() {
            // The worker is ending; the row's alarm takes over.
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Messages that are not yet confirmed, refused or given up.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits until everything is out, at most `timeout`.
    pub async fn drained(&self, timeout: Duration) {
        let empty = async {
            while self.waiting() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(timeout, empty).await.is_err() {
            tracing::warn!(unconfirmed = self.waiting(), "messages left unconfirmed; their alarms stand");
        }
    }
}

/// Publishes until the worker ends.
pub async fn run(shared: Arc<Shared>, mut feed: mpsc::UnboundedReceiver<Letter>, tracker: TaskTracker) {
    let mut letters = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            biased;
            () = shared.stop_all.cancelled() => return,
            n = feed.recv_many(&mut letters, BATCH) => if n == 0 { return },
        }
        let batch = std::mem::take(&mut letters);
        tracker.spawn(publish(Arc::clone(&shared), batch));
    }
}

async fn publish(shared: Arc<Shared>, batch: Vec<Letter>) {
    let count = batch.len();
    let histories = histories(&shared, &batch).await;
    let messages = batch
        .iter()
        .map(|letter| match letter {
            Letter::WakeUp(wake) => wake_up(wake),
            Letter::Copy(task) => dead_copy(task, task.queue(), histories.get(task.id()).copied()),
        })
        .collect();
    let fates = shared.broker.publish(messages).await;
    let commands: Vec<Command> =
        batch.iter().zip(fates).filter_map(|(letter, fate)| after(&shared, letter, &fate)).collect();
    if !commands.is_empty() {
        // One try: both commands only bring forward what alarms and sweeper do anyway.
        shared.try_apply(commands).await;
    }
    shared.outbox.waiting.fetch_sub(count, Ordering::Relaxed);
}

/// What copies tell of their tasks' attempts. A store that does not answer now keeps no copy from going out.
async fn histories(shared: &Shared, batch: &[Letter]) -> HashMap<String, CopyHistory> {
    let copies = batch.iter().filter_map(|letter| match letter {
        Letter::Copy(task) => Some(task.id().to_owned()),
        Letter::WakeUp(_) => None,
    });
    let ids: Vec<String> = copies.collect();
    if ids.is_empty() {
        return HashMap::new();
    }
    match shared.store.letter_histories(&ids).await {
        Ok(histories) => {
            let known = |history: LetterHistory| CopyHistory {
                attempts: history.attempts,
                first_failed_at: history.first_failed_at,
                last_failed_at: history.last_failed_at,
            };
            ids.into_iter().zip(histories.into_iter().map(known)).collect()
        }
        Err(error) => {
            tracing::debug!(%error, "copies go out without their history");
            HashMap::new()
        }
    }
}

/// What the store has to know of a message's fate.
fn after(shared: &Shared, letter: &Letter, fate: &Published) -> Option<Command> {
    match letter {
        Letter::WakeUp(wake) => {
            let confirmed = matches!(fate, Published::Confirmed);
            shared.observers.emit(&Event::WakeUpSent { wake_up: wake, confirmed });
            let failed = matches!(fate, Published::Returned | Published::Nacked | Published::NotSent { .. });
            failed.then(|| Command::PublishFailed {
                id: wake.id.clone(),
                stamp: wake.stamp,
                sent_at: wake.route.sent_at,
            })
        }
        Letter::Copy(task) => match fate {
            Published::Confirmed => {
                Some(Command::CopyConfirmed { id: task.id().to_owned(), generation: task.stamp().generation })
            }
            other => {
                tracing::warn!(task = task.id(), fate = ?other, "DLQ copy not confirmed; the sweeper will send it again");
                None
            }
        },
    }
}
