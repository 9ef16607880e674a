//! Notices as messages: an event as CloudEvents 1.0 in the binary mode of its AMQP binding, a reply to the queue that asked for it.

use bytes::Bytes;

use super::{HeaderValue, Headers, Message, Target};
use crate::task::{Notice, TaskEvent, rfc_3339};

/// AMQP `type` of a reply.
pub const REPLY_TYPE: &str = "redeliver.reply";
/// Before a happening's topic, the CloudEvents `type`: `redeliver.task.dead`.
const EVENT_TYPE_PREFIX: &str = "redeliver.";
const JSON: &str = "application/json";

/// The message that says `event`, which is the document of the notice with that number, with what belongs in it.
pub fn notice_message(number: i64, notice: &Notice, event: &TaskEvent, body: Bytes, namespace: &str) -> Message {
    match &notice.reply_to {
        Some(queue) => Message {
            target: Target::Reply { queue: queue.clone() },
            message_id: format!("{}:reply:{}", notice.task_id, number),
            message_type: Some(REPLY_TYPE),
            correlation_id: Some(notice.task_id.clone()),
            content_type: JSON,
            body,
            headers: Vec::new(),
        },
        None => Message {
            target: Target::Event { topic: notice.happening.topic() },
            message_id: notice.event_id(),
            message_type: None,
            correlation_id: None,
            content_type: JSON,
            body,
            headers: attributes(notice, event, namespace),
        },
    }
}

/// The attributes of the event. `cloudEvents_` and not `cloudEvents:`, which JMS clients cannot select by; the content type is an AMQP
/// property of its own. Task type, generation and retry count are extensions, so that consumers can sort events unread.
fn attributes(notice: &Notice, event: &TaskEvent, namespace: &str) -> Headers {
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    vec![
        ("cloudEvents_specversion", text("1.0")),
        ("cloudEvents_id", HeaderValue::Text(notice.event_id())),
        ("cloudEvents_source", HeaderValue::Text(format!("urn:redeliver:{namespace}"))),
        ("cloudEvents_type", HeaderValue::Text(format!("{EVENT_TYPE_PREFIX}{}", notice.happening.topic()))),
        ("cloudEvents_subject", text(&notice.task_id)),
        ("cloudEvents_time", HeaderValue::Text(rfc_3339(notice.at))),
        ("cloudEvents_tasktype", text(&event.task_type)),
        ("cloudEvents_generation", HeaderValue::Number(notice.stamp.generation)),
        ("cloudEvents_retrycount", HeaderValue::Number(notice.stamp.retry_count)),
    ]
}
