//! Messages as bytes and properties: what we publish, and what a delivery says it is.

use bytes::Bytes;
use serde::Deserialize;

use crate::task::{LaneKey, Millis, Stamp, Task, TraceContext, WakeUp};

use super::{Delivery, Source};

/// AMQP `type` of a wake-up.
pub const WAKE_UP_TYPE: &str = "redeliver.wake-up";
/// AMQP `type` of a copy in the DLQ.
pub const DEAD_LETTER_TYPE: &str = "redeliver.dead-letter";
/// When a wake-up should reach its lane, epoch milliseconds. No `x-` prefix and a scalar, so it survives AMQP 1.0 conversion.
pub const ARRIVES_AT_HEADER: &str = "redeliver-arrives-at";
/// The priority of a wake-up's task, when it is not 0. Orders a worker's buffer and nothing else, so a wrong one does no harm.
pub const PRIORITY_HEADER: &str = "redeliver-priority";

/// The span that sent a submission, by W3C Trace Context.
pub const TRACEPARENT_HEADER: &str = "traceparent";
/// What tracing systems keep beside it.
pub const TRACESTATE_HEADER: &str = "tracestate";

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The submit exchange, routed by type.
    Submit {
        /// The routing key.
        task_type: String,
    },
    /// Straight to a lane.
    Lane(LaneKey),
    /// To a rung, from which it falls to the retries lane.
    Rung {
        /// The `[[queue]]`.
        queue: String,
        /// The rung.
        delay_ms: Millis,
    },
    /// To the DLQ.
    Dead {
        /// The `[[queue]]`.
        queue: String,
    },
    /// To whoever listens at the exchange of events; nobody need.
    Event {
        /// The routing key.
        topic: &'static str,
    },
    /// To a queue of somebody else, who may have gone away.
    Reply {
        /// Its name.
        queue: String,
    },
}

impl Target {
    /// Whether it is one of ours: a message for it that comes back means that something of ours is missing.
    pub fn is_ours(&self) -> bool {
        !matches!(self, Target::Event { .. } | Target::Reply { .. })
    }
}

/// The value of one of our headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValue {
    /// A long string.
    Text(String),
    /// A 64-bit integer.
    Number(i64),
}

/// Our headers, in order; at most 16 KiB in all, because headers do not span frames.
pub type Headers = Vec<(&'static str, HeaderValue)>;

/// A message to publish. Always mandatory and persistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where to.
    pub target: Target,
    /// AMQP `message_id`; returns are matched by it.
    pub message_id: String,
    /// AMQP `type`.
    pub message_type: Option<&'static str>,
    /// AMQP `correlation_id`.
    pub correlation_id: Option<String>,
    /// AMQP `content_type`.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
    /// Our headers.
    pub headers: Headers,
}

/// What a delivery says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// A wake-up.
    WakeUp {
        /// The task.
        id: String,
        /// What it carries.
        stamp: Stamp,
    },
    /// A wake-up by its `type` that cannot be read; kept as malformed.
    BadWakeUp {
        /// What is wrong with it.
        reason: String,
    },
    /// A submission.
    Submission,
}

/// The message for a wake-up.
pub fn wake_up(wake: &WakeUp) -> Message {
    let body = serde_json::json!({
        "task_id": wake.id,
        "generation": wake.stamp.generation,
        "retry_count": wake.stamp.retry_count,
    });
    let target = if wake.route.rung_ms > 0 {
        Target::Rung { queue: wake.queue.clone(), delay_ms: wake.route.rung_ms }
    } else {
        Target::Lane(LaneKey { queue: wake.queue.clone(), lane: wake.route.lane })
    };
    let mut headers = vec![(ARRIVES_AT_HEADER, HeaderValue::Number(wake.route.arrives_at))];
    if wake.priority != 0 {
        headers.push((PRIORITY_HEADER, HeaderValue::Number(wake.priority)));
    }
    Message {
        target,
        message_id: format!("{}:{}", wake.id, wake.stamp),
        message_type: Some(WAKE_UP_TYPE),
        correlation_id: None,
        content_type: "application/json",
        body: body.to_string().into(),
        headers,
    }
}

/// The message for a submission; `body` is the envelope.
pub fn submission(task_type: &str, message_id: &str, body: Bytes) -> Message {
    Message {
        target: Target::Submit { task_type: task_type.into() },
        message_id: message_id.into(),
        message_type: None,
        correlation_id: None,
        content_type: "application/json",
        body,
        headers: Vec::new(),
    }
}

/// The headers that name the span that sent a submission.
pub fn trace_headers(trace: &TraceContext) -> impl Iterator<Item = (&'static str, HeaderValue)> {
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    let state = trace.tracestate().map(|state| (TRACESTATE_HEADER, text(state)));
    std::iter::once((TRACEPARENT_HEADER, text(trace.traceparent()))).chain(state)
}

/// A dead task's attempts in short, for its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyHistory {
    /// Attempts over all generations.
    pub attempts: i64,
    /// When the first of them failed.
    pub first_failed_at: Option<Millis>,
    /// When the last of them failed.
    pub last_failed_at: Option<Millis>,
}

/// The copy of a dead task for the DLQ: enough for a person at the broker's own console, and for a store that has lost the row to take
/// the letter in again. What does not fit into a header is left to the store. `history`: unknown while the store does not tell.
pub fn dead_copy(task: &Task, queue: &str, history: Option<CopyHistory>) -> Message {
    /// Texts and labels may have so many bytes each, so that all headers stay below their frame.
    const LONGEST_TEXT: usize = 2000;
    let state = &task.state;
    let failure = state.failure.as_ref();
    let text = |s: &str| HeaderValue::Text(cut(s, LONGEST_TEXT).to_owned());
    let mut headers: Headers = vec![
        ("redeliver-task-id", text(task.id())),
        ("redeliver-task-type", text(&task.spec.task_type)),
        ("redeliver-generation", HeaderValue::Number(state.stamp.generation)),
        ("redeliver-retry-count", HeaderValue::Number(state.stamp.retry_count)),
        ("redeliver-reason", text(state.dead_reason.map_or("", |reason| reason.as_str()))),
    ];
    if let Some(failure) = failure {
        headers.push(("redeliver-class", text(&failure.class)));
        headers.push(("redeliver-error", text(&failure.message)));
        if let Some(code) = &failure.code {
            headers.push(("redeliver-code", text(code)));
        }
        if let Some(status) = failure.http_status {
            headers.push(("redeliver-http-status", HeaderValue::Number(status.into())));
        }
        if !failure.fingerprint.is_empty() {
            headers.push(("redeliver-fingerprint", text(&failure.fingerprint)));
        }
    }
    if let Some(history) = history {
        headers.push(("redeliver-attempts", HeaderValue::Number(history.attempts)));
        headers.extend(history.first_failed_at.map(|at| ("redeliver-first-failed-at", HeaderValue::Number(at))));
        headers.extend(history.last_failed_at.map(|at| ("redeliver-last-failed-at", HeaderValue::Number(at))));
    }
    if let Some(key) = task.spec.idempotency_key.as_ref().filter(|key| **key != task.spec.id) {
        headers.push(("redeliver-idempotency-key", text(key)));
    }
    let labels = serde_json::json!(task.spec.labels).to_string();
    if !task.spec.labels.is_empty() && labels.len() <= LONGEST_TEXT {
        headers.push(("redeliver-labels", HeaderValue::Text(labels)));
    }
    if let Some(at) = state.ended_at {
        headers.push(("redeliver-died-at", HeaderValue::Number(at)));
    }
    let body = match &task.spec.raw {
        Some(raw) => Bytes::copy_from_slice(&raw.bytes),
        None => Bytes::copy_from_slice(task.spec.payload.as_bytes()),
    };
    Message {
        target: Target::Dead { queue: queue.into() },
        message_id: format!("{}:{}", task.id(), state.stamp.generation),
        message_type: Some(DEAD_LETTER_TYPE),
        correlation_id: None,
        content_type: if task.spec.raw.is_some() { "application/octet-stream" } else { "application/json" },
        body,
        headers,
    }
}

/// The task and generation that a DLQ copy's `message_id` names. The generation is what follows the last colon: ids may
/// hold colons themselves.
pub fn copy_of(message_id: &str) -> Option<(String, i64)> {
    let (id, generation) = message_id.rsplit_once(':')?;
    Some((id.to_owned(), generation.parse().ok()?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WakeUpBody {
    task_id: String,
    generation: i64,
    retry_count: i64,
}

/// What `delivery` says it is. On the tasks lane everything that is not typed as a wake-up is a submission; elsewhere, where
/// only we publish, so is everything that is not a wake-up, so that nothing is thrown away unseen.
pub fn parse(delivery: &Delivery) -> Parsed {
    let typed = delivery.message_type.as_deref() == Some(WAKE_UP_TYPE);
    if !typed {
        if delivery.source == Source::Retries {
            return Parsed::BadWakeUp { reason: format!("its AMQP type is not {WAKE_UP_TYPE:?}") };
        }
        return Parsed::Submission;
    }
    match serde_json::from_slice::<WakeUpBody>(&delivery.body) {
        Ok(body) if body.generation >= 0 && body.retry_count >= 0 => Parsed::WakeUp {
            id: body.task_id,
            stamp: Stamp { generation: body.generation, retry_count: body.retry_count },
        },
        Ok(_) => Parsed::BadWakeUp { reason: "generation and retry_count must not be negative".into() },
        Err(error) => Parsed::BadWakeUp { reason: error.to_string() },
    }
}

/// At most `longest` bytes of `text`, ending on a character boundary.
fn cut(text: &str, longest: usize) -> &str {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
