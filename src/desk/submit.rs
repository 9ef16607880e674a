//! Submitting a task at a door that has the store: committed when it is accepted.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::task::ResultDocument;
use crate::broker::{Broker, EmbeddedBroker};
use crate::config::Config;
use crate::producer::{Accepted, ProduceError, Producer};
use crate::store::{Store, StoreError};
use crate::task::{DeadReason, Envelope, Status, SubmissionError, Task, own_queue};

/// Our name space for ids made of idempotency keys; drawn once at random.
const KEY_SPACE: Uuid = Uuid::from_u128(0x6f1b_0f5e_8a57_4c0f_9d0c_3c2b_7a61_e9d4);

/// What became of a submission.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Submission {
    /// The task.
    pub id: String,
    /// Always true: what is not accepted is a problem.
    pub accepted: bool,
    /// Whether this task had ended before.
    pub already_done: bool,
    /// Where it stands; null where nobody has looked.
    pub status: Option<Status>,
    /// Why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// By what it was ended, if not by the real thing.
    pub degraded: Option<String>,
    /// The handler's response, once it has succeeded.
    pub result: Option<ResultDocument>,
}

/// Gives an id to what has none. One made of the idempotency key, where there is one, so that the same submission made twice names the
/// same task.
pub fn complete(envelope: &mut Envelope) {
    if envelope.id.is_none() {
        let id = match &envelope.idempotency_key {
            Some(key) => Uuid::new_v5(&KEY_SPACE, key.as_bytes()),
            None => Uuid::now_v7(),
        };
        envelope.id = Some(id.to_string());
    }
}

/// Commits the task and wakes a worker: over `broker`, or where that lives in another process, by the row's alarm.
///
/// # Errors
/// See [`ProduceError`].
pub async fn submit(
    store: Arc<dyn Store>,
    broker: Option<Arc<dyn Broker>>,
    config: Arc<Config>,
    envelope: Envelope,
) -> Result<Accepted, ProduceError> {
    if let Some(problem) = envelope.reply_to.as_deref().and_then(|queue| own_queue(queue, &config.broker.namespace)) {
        return Err(SubmissionError::Field { field: "reply_to".into(), problem }.into());
    }
    // One without a worker behind it takes no wake-up, and says so; the row is found by the scheduler's next look.
    let broker = broker.unwrap_or_else(|| Arc::new(EmbeddedBroker::new(&config.broker.namespace)));
    Producer::embedded(broker, store, move |task_type| config.queue_of(task_type).to_owned()).publish(envelope).await
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Waits until the task has ended; gives up, with the last look, when `enough` is ready. `None`: there is no such task.
///
/// # Errors
/// When the store does not answer.
pub async fn until_ended(
    store: &dyn Store,
    id: &str,
    enough: impl Future<Output = ()>,
) -> Result<Option<Task>, StoreError> {
    let mut enough = std::pin::pin!(enough);
    let mut pause = FIRST_PAUSE;
    loop {
        let task = store.get(&[id.to_owned()]).await?.pop().flatten();
        if task.as_ref().is_none_or(|task| task.state.status.is_ended()) {
            return Ok(task);
        }
        tokio::select! {
            () = &mut enough => return Ok(task),
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
