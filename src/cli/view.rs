//! Tasks and attempts as JSON documents, table rows and lines for people. The one place that knows the field names of the contract.

use base64::Engine as _;
use redeliver::task::{Attachment, AttachmentBody, Attempt, Failure, Task, TaskResult};
use serde_json::{Map, Value, json};

use super::output::{Document, Entry, Listing, cut, length, time, time_or_empty, time_or_null};

/// The longest error text in a table.
const LONGEST_MESSAGE: usize = 80;

/// Columns of a list of tasks.
pub const TASK_COLUMNS: [&str; 7] = ["id", "type", "status", "retry_count", "due_at", "queue", "error"];
/// Columns of a list of dead letters.
pub const DEAD_COLUMNS: [&str; 7] = ["id", "type", "reason", "retry_count", "died_at", "dlq_copy", "error"];
const ATTEMPT_COLUMNS: [&str; 8] =
    ["attempt", "outcome", "class", "code", "started_at", "duration", "delay_before", "message"];

/// A task in a list.
pub fn task_entry(task: &Task) -> Entry {
    let state = &task.state;
    let due = if state.status.is_ended() { String::new() } else { time(state.due_at) };
    let cells = vec![
        task.id().to_owned(),
        task.spec.task_type.clone(),
        status_for_people(task),
        state.stamp.retry_count.to_string(),
        due,
        task.queue().to_owned(),
        error_for_people(state.failure.as_ref()),
    ];
    Entry { name: task.id().to_owned(), cells, json: Value::Object(task_json(task)) }
}

/// A dead task in a list.
pub fn dead_entry(task: &Task) -> Entry {
    let state = &task.state;
    let cells = vec![
        task.id().to_owned(),
        task.spec.task_type.clone(),
        state.dead_reason.map_or_else(String::new, |reason| reason.to_string()),
        state.stamp.retry_count.to_string(),
        time_or_empty(state.ended_at),
        state.dlq_copy.as_str().to_owned(),
        error_for_people(state.failure.as_ref()),
    ];
    Entry { name: task.id().to_owned(), cells, json: Value::Object(task_json(task)) }
}

/// Everything about one task.
pub fn task_document(task: &Task, attempts: &[Attempt], result: Option<&TaskResult>) -> Document {
    let mut json = task_json(task);
    json.insert("result".into(), result.map_or(Value::Null, result_json));
    json.insert("attempts".into(), attempts.iter().map(attempt_json).collect());
    let mut tables = Vec::new();
    if !attempts.is_empty() {
        let mut listing = Listing::new(&ATTEMPT_COLUMNS);
        attempts.iter().for_each(|attempt| listing.push(attempt_entry(attempt)));
        tables.push(("ATTEMPTS", listing));
    }
    Document {
        name: task.id().to_owned(),
        lines: task_lines(task, attempts, result),
        tables,
        json: Value::Object(json),
    }
}

fn task_lines(task: &Task, attempts: &[Attempt], result: Option<&TaskResult>) -> Vec<(&'static str, String)> {
    let (spec, state) = (&task.spec, &task.state);
    let mut lines = vec![
        ("id", spec.id.clone()),
        ("type", spec.task_type.clone()),
        ("status", status_for_people(task)),
        ("queue", task.queue().to_owned()),
        ("retry_count", state.stamp.retry_count.to_string()),
        ("generation", state.stamp.generation.to_string()),
        ("created_at", time(spec.created_at)),
    ];
    let mut add = |label, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            lines.push((label, value));
        }
    };
    let labels = spec.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    add("labels", Some(labels.join(" ")));
    add("idempotency_key", spec.idempotency_key.clone().filter(|key| *key != spec.id));
    add("due_at", (!state.status.is_ended()).then(|| time(state.due_at)));
    add("delay", state.delay_ms.map(|ms| format!("{} ({})", length(ms), state.delay_reason.as_deref().unwrap_or(""))));
    add("deadline", state.deadline.map(time));
    add("held_by", state.held_by.clone());
    add("held_turn", Some(state.held_turn.clone()));
    add("park_until", state.park_until.map(time));
    add("variant", state.variant.clone());
    add("worker", state.worker.clone());
    add("ended_at", state.ended_at.map(time));
    add("note", state.note.clone());
    add("degraded", state.degraded.clone());
    add("dlq_copy", Some(state.dlq_copy.as_str().to_owned()).filter(|_| state.dead_reason.is_some()));
    add("conflicts_with", spec.conflicts_with.clone());
    add("error", state.failure.as_ref().map(|failure| error_for_people(Some(failure))));
    add("stack", attempts.iter().rev().find_map(|attempt| attempt.failure.as_ref()?.stack.clone()));
    match &spec.raw {
        Some(raw) => {
            let text = String::from_utf8_lossy(&raw.bytes);
            add("raw", Some(format!("{} bytes: {}", raw.length, cut(&text, 2000))));
        }
        None => add("payload", Some(spec.payload.clone())),
    }
    add(
        "result",
        result.map(|result| match std::str::from_utf8(&result.body) {
            Ok(text) => format!("{} {}", result.media_type, text),
            Err(_) => format!("{} {} bytes", result.media_type, result.body.len()),
        }),
    );
    lines
}

/// A task without result and attempts.
pub fn task_json(task: &Task) -> Map<String, Value> {
    let (spec, state) = (&task.spec, &task.state);
    let Value::Object(mut json) = json!({
        "id": spec.id,
        "type": spec.task_type,
        "labels": spec.labels,
        "payload": payload_json(task),
        "status": state.status,
        "degraded": state.degraded,
        "dead_reason": state.dead_reason,
        "retry_count": state.stamp.retry_count,
        "generation": state.stamp.generation,
        "due_at": time(state.due_at),
        "held_by": state.held_by,
        "held_turn": Some(&state.held_turn).filter(|turn| !turn.is_empty()),
        "park_until": time_or_null(state.park_until),
        "variant": state.variant,
        "dlq_copy": state.dlq_copy,
        "queue": task.queue(),
        "idempotency_key": spec.idempotency_key,
        "priority": spec.priority,
        "cache_key": spec.cache_key,
        "reply_to": spec.reply_to,
        "created_at": time(spec.created_at),
        "started_at": time_or_null(state.started_at),
        "ended_at": time_or_null(state.ended_at),
        "note": state.note,
        "wake_at": time_or_null(state.wake_at),
        "deadline": time_or_null(state.deadline),
        "worker": state.worker,
        "delay_ms": state.delay_ms,
        "delay_reason": state.delay_reason,
        "failure": state.failure.as_ref().map(failure_json),
        "conflicts_with": spec.conflicts_with,
    }) else {
        unreachable!("the literal above is an object")
    };
    if let Some(raw) = &spec.raw {
        let mut raw_json = bytes_json(&raw.bytes);
        raw_json.insert("length".into(), raw.length.into());
        raw_json.insert("routing_key".into(), raw.routing_key.clone().into());
        raw_json.insert("message_id".into(), raw.message_id.clone().into());
        json.insert("raw".into(), Value::Object(raw_json));
    }
    json
}

/// The payload as JSON; one that is not JSON (a row that others inserted by force) as text.
fn payload_json(task: &Task) -> Value {
    serde_json::from_str(&task.spec.payload).unwrap_or_else(|_| Value::String(task.spec.payload.clone()))
}

fn failure_json(failure: &Failure) -> Value {
    json!({
        "class": failure.class,
        "code": failure.code,
        "http_status": failure.http_status,
        "message": failure.message,
        "fingerprint": failure.fingerprint,
    })
}

fn attempt_json(attempt: &Attempt) -> Value {
    let failure = attempt.failure.as_ref();
    json!({
        "number": attempt.number,
        "generation": attempt.generation,
        "outcome": attempt.outcome,
        "class": failure.map(|failure| &failure.class),
        "code": failure.and_then(|failure| failure.code.as_ref()),
        "http_status": failure.and_then(|failure| failure.http_status),
        "message": failure.map(|failure| &failure.message),
        "stack": failure.and_then(|failure| failure.stack.as_ref()),
        "fingerprint": failure.map(|failure| &failure.fingerprint),
        "started_at": time(attempt.started_at),
        "ended_at": time(attempt.ended_at),
        "duration_ms": attempt.ended_at.saturating_sub(attempt.started_at),
        "worker": attempt.worker,
        "policy": attempt.policy,
        "variant": attempt.variant,
        "delay_before_ms": attempt.delay_before_ms,
        "delay_reason": attempt.delay_reason,
        "cost": attempt.cost,
        "attachments": attempt.attachments.iter().map(attachment_json).collect::<Vec<_>>(),
    })
}

fn attachment_json(attachment: &Attachment) -> Value {
    let (bytes, link) = match &attachment.body {
        AttachmentBody::Bytes(bytes) => (u64::try_from(bytes.len()).ok(), None),
        AttachmentBody::Link(link) => (None, Some(link)),
        AttachmentBody::TooLarge { size } => (Some(*size), None),
    };
    json!({
        "name": attachment.name,
        "media_type": attachment.media_type,
        "bytes": bytes,
        "link": link,
        "stored": matches!(attachment.body, AttachmentBody::Bytes(_)),
    })
}

fn attempt_entry(attempt: &Attempt) -> Entry {
    let failure = attempt.failure.as_ref();
    let delay = attempt.delay_before_ms.map(length).unwrap_or_default();
    let number = if attempt.generation == 0 {
        attempt.number.to_string()
    } else {
        format!("{} of replay {}", attempt.number, attempt.generation)
    };
    let cells = vec![
        number,
        attempt.outcome.as_str().to_owned(),
        failure.map(|failure| failure.class.clone()).unwrap_or_default(),
        failure.map(code_for_people).unwrap_or_default(),
        time(attempt.started_at),
        length(attempt.ended_at.saturating_sub(attempt.started_at)),
        delay,
        failure.map(|failure| cut(&failure.message, LONGEST_MESSAGE)).unwrap_or_default(),
    ];
    Entry { name: attempt.number.to_string(), cells, json: attempt_json(attempt) }
}

/// A stored response: a JSON body as JSON, other text as text, anything else as base64.
pub fn result_json(result: &TaskResult) -> Value {
    let is_json = result.media_type.split(';').next().is_some_and(|media| {
        let media = media.trim().to_ascii_lowercase();
        media == "application/json" || media.ends_with("+json")
    });
    let mut json = Map::new();
    json.insert("media_type".into(), result.media_type.clone().into());
    json.insert("truncated".into(), result.truncated.into());
    match serde_json::from_slice::<Value>(&result.body) {
        Ok(body) if is_json => {
            json.insert("body".into(), body);
        }
        _ => json.extend(bytes_json(&result.body)),
    }
    Value::Object(json)
}

/// `{"body": text}`, or `{"body_base64": …}` for what is no text.
fn bytes_json(bytes: &[u8]) -> Map<String, Value> {
    let mut json = Map::new();
    match std::str::from_utf8(bytes) {
        Ok(text) => json.insert("body".into(), text.into()),
        Err(_) => json.insert("body_base64".into(), base64::engine::general_purpose::STANDARD.encode(bytes).into()),
    };
    json
}

/// `dead/retries_exhausted`, `succeeded (degraded: cache)`
fn status_for_people(task: &Task) -> String {
    let state = &task.state;
    match (&state.dead_reason, &state.degraded, &state.held_by) {
        (Some(reason), ..) if !state.status.is_waiting() => format!("{}/{reason}", state.status),
        (_, Some(by), _) => format!("{} (degraded: {by})", state.status),
        (_, _, Some(gate)) => format!("{} (held: {gate})", state.status),
        _ => state.status.to_string(),
    }
}

fn error_for_people(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |failure| {
        let code = code_for_people(failure);
        let code = if code.is_empty() { code } else { format!(" {code}") };
        cut(&format!("{}{code}: {}", failure.class, failure.message), LONGEST_MESSAGE)
    })
}

fn code_for_people(failure: &Failure) -> String {
    match (&failure.code, failure.http_status) {
        (Some(code), _) => code.clone(),
        (None, Some(status)) => status.to_string(),
        (None, None) => String::new(),
    }
}
