//! Tasks and attempts as documents. The one place that knows their field names.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Mask, time};
use crate::task::{
    Attachment, AttachmentBody, Attempt, AttemptOutcome, DeadReason, DlqCopy, Status, Task, TaskResult, text_or_base64,
};
pub use crate::task::{FailureDocument, ResultDocument};

/// A task. Times are RFC 3339 in UTC.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Task")]
pub struct TaskDocument {
    /// Unique.
    pub id: String,
    /// The task type, a topic.
    #[serde(rename = "type")]
    pub task_type: String,
    /// What policies, filters and reports go by.
    pub labels: BTreeMap<String, String>,
    /// What the handler is given; fields that are not for you are `•••`.
    pub payload: Value,
    /// JSON pointers to the fields that are not for you.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masked: Vec<String>,
    /// Where it stands.
    pub status: Status,
    /// By what it was ended, if not by the real thing: `cache`, `default`, `defaults`.
    pub degraded: Option<String>,
    /// Why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// Failed attempts spent in this generation.
    pub retry_count: i64,
    /// How often it was replayed.
    pub generation: i64,
    /// When it may next run.
    pub due_at: String,
    /// The gate that holds it.
    pub held_by: Option<String>,
    /// Its turn among what that gate holds.
    pub held_turn: Option<String>,
    /// When waiting for a breaker ends it.
    pub park_until: Option<String>,
    /// The variant of its policy that it keeps for life.
    pub variant: Option<String>,
    /// The state of its copy in the DLQ.
    pub dlq_copy: DlqCopy,
    /// Its queue.
    pub queue: String,
    /// The same on every attempt and replay.
    pub idempotency_key: Option<String>,
    /// 0 to 9.
    pub priority: i64,
    /// Names the last good result that a fallback may use.
    pub cache_key: Option<String>,
    /// The AMQP queue to which the result is sent.
    pub reply_to: Option<String>,
    /// When it came.
    pub created_at: String,
    /// When its running attempt began.
    pub started_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// What the last person who acted on it said.
    pub note: Option<String>,
    /// When the store acts by itself.
    pub wake_at: Option<String>,
    /// No attempt starts after.
    pub deadline: Option<String>,
    /// Who runs it.
    pub worker: Option<String>,
    /// The delay before the coming attempt.
    pub delay_ms: Option<i64>,
    /// Why that delay.
    pub delay_reason: Option<String>,
    /// The last failure.
    pub failure: Option<FailureDocument>,
    /// The task whose id or key it has, with another payload.
    pub conflicts_with: Option<String>,
    /// What arrived, of a submission that was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawDocument>,
}

/// The bytes of a refused submission.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Raw")]
pub struct RawDocument {
    /// The bytes, where they are text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The bytes, where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// How many arrived; fewer may be kept.
    pub length: i64,
    /// The routing key.
    pub routing_key: String,
    /// The AMQP `message_id`.
    pub message_id: Option<String>,
}

/// A task with its result and its attempts.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TaskDetail")]
pub struct TaskDetail {
    /// The task.
    #[serde(flatten)]
    pub task: TaskDocument,
    /// The handler's response, once it has succeeded.
    pub result: Option<ResultDocument>,
    /// Every run of the handler, oldest first.
    pub attempts: Vec<AttemptDocument>,
}

/// One run of the handler.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Attempt")]
pub struct AttemptDocument {
    /// Its number within the generation, from 1 on.
    pub number: i64,
    /// The generation.
    pub generation: i64,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// Class of the failure.
    pub class: Option<String>,
    /// The platform's code.
    pub code: Option<String>,
    /// The HTTP status.
    pub http_status: Option<u16>,
    /// For people.
    pub message: Option<String>,
    /// Where in the handler.
    pub stack: Option<String>,
    /// Equal for failures that are the same but for ids and numbers.
    pub fingerprint: Option<String>,
    /// When it began.
    pub started_at: String,
    /// When it ended.
    pub ended_at: String,
    /// How long it took.
    pub duration_ms: i64,
    /// Who ran it.
    pub worker: String,
    /// The policy that decided.
    pub policy: Option<String>,
    /// The policy's variant.
    pub variant: Option<String>,
    /// The delay before it.
    pub delay_before_ms: Option<i64>,
    /// Why that delay.
    pub delay_reason: Option<String>,
    /// What it cost.
    pub cost: Option<f64>,
    /// What it left for people, in order; fetch one by its place.
    pub attachments: Vec<AttachmentDocument>,
}

/// Something that an attempt left for people.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Attachment")]
pub struct AttachmentDocument {
    /// Its name, as the handler gave it.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// How many bytes it has.
    pub bytes: Option<u64>,
    /// Where it is, if it is not here.
    pub link: Option<String>,
    /// Whether its bytes are here.
    pub stored: bool,
}

impl TaskDocument {
    /// The document of a task.
    pub fn of(task: &Task, mask: Mask<'_>) -> TaskDocument {
        let (spec, state) = (&task.spec, &task.state);
        let (payload, masked) = mask.read(&spec.task_type, &spec.payload);
        let raw = spec.raw.as_ref().map(|raw| {
            let (body, body_base64) = if mask.hides_bytes(task) { (None, None) } else { text_or_base64(&raw.bytes) };
            RawDocument {
                body,
                body_base64,
                length: raw.length,
                routing_key: raw.routing_key.clone(),
                message_id: raw.message_id.clone(),
            }
        });
        TaskDocument {
            id: spec.id.clone(),
            task_type: spec.task_type.clone(),
            labels: spec.labels.clone(),
            payload,
            masked,
            status: state.status,
            degraded: state.degraded.clone(),
            dead_reason: state.dead_reason,
            retry_count: state.stamp.retry_count,
            generation: state.stamp.generation,
            due_at: time(state.due_at),
            held_by: state.held_by.clone(),
            held_turn: Some(state.held_turn.clone()).filter(|turn| !turn.is_empty()),
            park_until: state.park_until.map(time),
            variant: state.variant.clone(),
            dlq_copy: state.dlq_copy,
            queue: task.queue().to_owned(),
            idempotency_key: spec.idempotency_key.clone(),
            priority: spec.priority,
            cache_key: spec.cache_key.clone(),
            reply_to: spec.reply_to.clone(),
            created_at: time(spec.created_at),
            started_at: state.started_at.map(time),
            ended_at: state.ended_at.map(time),
            note: state.note.clone(),
            wake_at: state.wake_at.map(time),
            deadline: state.deadline.map(time),
            worker: state.worker.clone(),
            delay_ms: state.delay_ms,
            delay_reason: state.delay_reason.clone(),
            failure: state.failure.as_ref().map(FailureDocument::of),
            conflicts_with: spec.conflicts_with.clone(),
            raw,
        }
    }
}

impl TaskDetail {
    /// Everything about one task.
    pub fn of(task: &Task, attempts: &[Attempt], result: Option<&TaskResult>, mask: Mask<'_>) -> TaskDetail {
        TaskDetail {
            task: TaskDocument::of(task, mask),
            result: result.map(ResultDocument::of),
            attempts: attempts.iter().map(AttemptDocument::of).collect(),
        }
    }
}

impl AttemptDocument {
    /// The document of an attempt.
    pub fn of(attempt: &Attempt) -> AttemptDocument {
        let failure = attempt.failure.as_ref();
        AttemptDocument {
            number: attempt.number,
            generation: attempt.generation,
            outcome: attempt.outcome,
            class: failure.map(|failure| failure.class.clone()),
            code: failure.and_then(|failure| failure.code.clone()),
            http_status: failure.and_then(|failure| failure.http_status),
            message: failure.map(|failure| failure.message.clone()),
            stack: failure.and_then(|failure| failure.stack.clone()),
            fingerprint: failure.map(|failure| failure.fingerprint.clone()),
            started_at: time(attempt.started_at),
            ended_at: time(attempt.ended_at),
            duration_ms: attempt.ended_at.saturating_sub(attempt.started_at),
            worker: attempt.worker.clone(),
            policy: attempt.policy.clone(),
            variant: attempt.variant.clone(),
            delay_before_ms: attempt.delay_before_ms,
            delay_reason: attempt.delay_reason.clone(),
            cost: attempt.cost,
            attachments: attempt.attachments.iter().map(AttachmentDocument::of).collect(),
        }
    }
}

impl AttachmentDocument {
    fn of(attachment: &Attachment) -> AttachmentDocument {
        let (bytes, link) = match &attachment.body {
            AttachmentBody::Bytes(bytes) => (u64::try_from(bytes.len()).ok(), None),
            AttachmentBody::Link(link) => (None, Some(link.clone())),
            AttachmentBody::TooLarge { size } => (Some(*size), None),
        };
        AttachmentDocument {
            name: attachment.name.clone(),
            media_type: attachment.media_type.clone(),
            bytes,
            link,
            stored: matches!(attachment.body, AttachmentBody::Bytes(_)),
        }
    }
}
