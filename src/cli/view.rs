//! Tasks and attempts as table rows and lines for people; the desk knows their documents.

use redeliver::desk::task::{AttemptDocument, FailureDocument, TaskDetail, TaskDocument};
use redeliver::desk::to_json;

use super::output::{Document, Entry, Listing, cut, length};

/// The longest error text in a table.
const LONGEST_MESSAGE: usize = 80;

/// Columns of a list of tasks.
pub const TASK_COLUMNS: [&str; 7] = ["id", "type", "status", "retry_count", "due_at", "queue", "error"];
/// Columns of a list of dead letters.
pub const DEAD_COLUMNS: [&str; 7] = ["id", "type", "reason", "retry_count", "died_at", "dlq_copy", "error"];
const ATTEMPT_COLUMNS: [&str; 8] =
    ["attempt", "outcome", "class", "code", "started_at", "duration", "delay_before", "message"];

/// A task in a list.
pub fn task_entry(task: &TaskDocument) -> Entry {
    let due = if task.status.is_ended() { String::new() } else { task.due_at.clone() };
    let cells = vec![
        task.id.clone(),
        task.task_type.clone(),
        status_for_people(task),
        task.retry_count.to_string(),
        due,
        task.queue.clone(),
        error_for_people(task.failure.as_ref()),
    ];
    Entry { name: task.id.clone(), cells, json: to_json(task) }
}

/// A dead task in a list.
pub fn dead_entry(task: &TaskDocument) -> Entry {
    let cells = vec![
        task.id.clone(),
        task.task_type.clone(),
        task.dead_reason.map_or_else(String::new, |reason| reason.to_string()),
        task.retry_count.to_string(),
        task.ended_at.clone().unwrap_or_default(),
        task.dlq_copy.as_str().to_owned(),
        error_for_people(task.failure.as_ref()),
    ];
    Entry { name: task.id.clone(), cells, json: to_json(task) }
}

/// Everything about one task.
pub fn task_document(detail: &TaskDetail) -> Document {
    let mut tables = Vec::new();
    if !detail.attempts.is_empty() {
        let mut listing = Listing::new(&ATTEMPT_COLUMNS);
        detail.attempts.iter().for_each(|attempt| listing.push(attempt_entry(attempt)));
        tables.push(("ATTEMPTS", listing));
    }
    Document { name: detail.task.id.clone(), lines: task_lines(detail), tables, json: to_json(detail) }
}

fn task_lines(detail: &TaskDetail) -> Vec<(&'static str, String)> {
    let TaskDetail { task, result, attempts } = detail;
    let mut lines = vec![
        ("id", task.id.clone()),
        ("type", task.task_type.clone()),
        ("status", status_for_people(task)),
        ("queue", task.queue.clone()),
        ("retry_count", task.retry_count.to_string()),
        ("generation", task.generation.to_string()),
        ("created_at", task.created_at.clone()),
    ];
    let mut add = |label, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            lines.push((label, value));
        }
    };
    let labels = task.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    add("labels", Some(labels.join(" ")));
    add("idempotency_key", task.idempotency_key.clone().filter(|key| *key != task.id));
    add("due_at", (!task.status.is_ended()).then(|| task.due_at.clone()));
    add("delay", task.delay_ms.map(|ms| format!("{} ({})", length(ms), task.delay_reason.as_deref().unwrap_or(""))));
    add("replays_itself_at", task.wake_at.clone().filter(|_| task.dead_reason.is_some()));
    add("deadline", task.deadline.clone());
    add("held_by", task.held_by.clone());
    add("held_turn", task.held_turn.clone());
    add("park_until", task.park_until.clone());
    add("variant", task.variant.clone());
    add("worker", task.worker.clone());
    add("ended_at", task.ended_at.clone());
    add("note", task.note.clone());
    add("degraded", task.degraded.clone());
    add("dlq_copy", task.dead_reason.map(|_| task.dlq_copy.as_str().to_owned()));
    add("conflicts_with", task.conflicts_with.clone());
    add("error", task.failure.as_ref().map(|failure| error_for_people(Some(failure))));
    add("stack", attempts.iter().rev().find_map(|attempt| attempt.stack.clone()));
    match &task.raw {
        Some(raw) => {
            let text = raw.body.clone().or_else(|| raw.body_base64.clone()).unwrap_or_default();
            add("raw", Some(format!("{} bytes: {}", raw.length, cut(&text, 2000))));
        }
        None => add("payload", Some(task.payload.to_string())),
    }
    add("masked", Some(task.masked.join(", ")));
    add(
        "result",
        result.as_ref().map(|result| {
            let body = match (&result.body, &result.body_base64) {
                (Some(serde_json::Value::String(text)), _) => text.clone(),
                (Some(json), _) => json.to_string(),
                (None, Some(base64)) => format!("{} bytes", base64.len() / 4 * 3),
                (None, None) => String::new(),
            };
            format!("{} {body}", result.media_type)
        }),
    );
    lines
}

fn attempt_entry(attempt: &AttemptDocument) -> Entry {
    let delay = attempt.delay_before_ms.map(length).unwrap_or_default();
    let number = if attempt.generation == 0 {
        attempt.number.to_string()
    } else {
        format!("{} of replay {}", attempt.number, attempt.generation)
    };
    let cells = vec![
        number,
        attempt.outcome.as_str().to_owned(),
        attempt.class.clone().unwrap_or_default(),
        code_for_people(attempt.code.as_ref(), attempt.http_status),
        attempt.started_at.clone(),
        length(attempt.duration_ms),
        delay,
        attempt.message.as_ref().map(|message| cut(message, LONGEST_MESSAGE)).unwrap_or_default(),
    ];
    Entry { name: attempt.number.to_string(), cells, json: to_json(attempt) }
}

/// `dead/retries_exhausted`, `succeeded (degraded: cache)`
pub fn status_for_people(task: &TaskDocument) -> String {
    match (&task.dead_reason, &task.degraded, &task.held_by) {
        (Some(reason), ..) if !task.status.is_waiting() => format!("{}/{reason}", task.status),
        (_, Some(by), _) => format!("{} (degraded: {by})", task.status),
        // Which key of it is long, and stands in the details.
        (_, _, Some(gate)) => {
            let name = gate.match_indices('/').nth(1).map_or(gate.as_str(), |(end, _)| &gate[..end]);
            format!("{} (held: {name})", task.status)
        }
        _ => task.status.to_string(),
    }
}

fn error_for_people(failure: Option<&FailureDocument>) -> String {
    failure.map_or_else(String::new, |failure| {
        let code = code_for_people(failure.code.as_ref(), failure.http_status);
        let code = if code.is_empty() { code } else { format!(" {code}") };
        cut(&format!("{}{code}: {}", failure.class, failure.message), LONGEST_MESSAGE)
    })
}

fn code_for_people(code: Option<&String>, http_status: Option<u16>) -> String {
    match (code, http_status) {
        (Some(code), _) => code.clone(),
        (None, Some(status)) => status.to_string(),
        (None, None) => String::new(),
    }
}
