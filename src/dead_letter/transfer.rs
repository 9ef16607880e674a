//! Dead letters between installations: one JSON document a line, with the task and its attempts.
//!
//! What attempts left for people (screenshots) stays where it is: it is large, and the letter tells its names. A letter that is known at its
//! new place, by its id or its idempotency key, is left as it is there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use jiff::Timestamp;
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::policy::check_topic;
use crate::store::{Store, StoreError, Urgency};
use crate::task::{
    Answer, Attempt, AttemptOutcome, Command, DeadReason, Failure, MAX_NAME, Millis, RawSubmission, Spec, Stamp, State,
    Status, Task, TraceContext, canonical_payload_hash,
};

/// Which documents these are. Another number is another meaning.
const FORMAT: &str = "redeliver.letter/1";
/// Letters in one transaction.
const BATCH: usize = 200;

/// A dead letter as a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    format: String,
    id: String,
    #[serde(rename = "type")]
    task_type: String,
    payload: Box<RawValue>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    idempotency_key: Option<String>,
    #[serde(default)]
    priority: i64,
    cache_key: Option<String>,
    reply_to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
    created_at: Moment,
    conflicts_with: Option<String>,
    raw: Option<RawLine>,
    queue: Option<String>,
    reason: DeadReason,
    generation: i64,
    retry_count: i64,
    died_at: Moment,
    deadline: Option<Moment>,
    variant: Option<String>,
    note: Option<String>,
    failure: Option<FailureLine>,
    #[serde(default)]
    attempts: Vec<AttemptLine>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
    bytes_base64: String,
    length: i64,
    routing_key: String,
    message_id: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FailureLine {
    class: String,
    code: Option<String>,
    http_status: Option<u16>,
    message: String,
    stack: Option<String>,
    #[serde(default)]
    fingerprint: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttemptLine {
    fence: i64,
    number: i64,
    generation: i64,
    outcome: AttemptOutcome,
    failure: Option<FailureLine>,
    started_at: Moment,
    ended_at: Moment,
    #[serde(default)]
    worker: String,
    policy: Option<String>,
    variant: Option<String>,
    delay_before_ms: Option<Millis>,
    delay_reason: Option<String>,
    cost: Option<f64>,
    /// The names of what it left, which is not here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<String>,
}

/// A time. Written as RFC 3339 in UTC, read also as milliseconds since the epoch.
#[derive(Debug, Clone, Copy)]
struct Moment(Millis);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match Timestamp::from_millisecond(self.0) {
            Ok(at) => serializer.collect_str(&format_args!("{at:.3}")),
            // Beyond the year 9999, as somebody's deadline may be.
            Err(_) => serializer.serialize_i64(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        deserializer.deserialize_any(MomentVisitor).map(Moment)
    }
}

struct MomentVisitor;

impl Visitor<'_> for MomentVisitor {
    type Value = Millis;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a time as in 2026-01-31T08:00:00Z")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Millis, E> {
        let timestamp: Result<Timestamp, _> = text.parse();
        timestamp.map(Timestamp::as_millisecond).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: serde::de::Error>(self, at: i64) -> Result<Millis, E> {
        Ok(at)
    }

    fn visit_u64<E: serde::de::Error>(self, at: u64) -> Result<Millis, E> {
        i64::try_from(at).map_err(|_| E::invalid_value(Unexpected::Unsigned(at), &self))
    }
}

/// A line that is no letter. The texts are fragments for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct LineError {
    /// Which, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// What came of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// Letters in the lines that could be read.
    pub read: usize,
    /// Taken in (or would be).
    pub imported: usize,
    /// Not, by why: `known`, `refused`.
    pub skipped: BTreeMap<&'static str, usize>,
}

impl FailureLine {
    fn of(failure: &Failure) -> FailureLine {
        FailureLine {
            class: failure.class.clone(),
            code: failure.code.clone(),
            http_status: failure.http_status,
            message: failure.message.clone(),
            stack: failure.stack.clone(),
            fingerprint: failure.fingerprint.clone(),
        }
    }

    fn into_failure(self) -> Failure {
        let FailureLine { class, code, http_status, message, stack, fingerprint } = self;
        Failure { class, code, http_status, message, stack, fingerprint }
    }
}

/// A dead task and its attempts as one line, without the line's end.
///
/// # Errors
/// When its payload is no JSON: a row that others have forced into the store.
pub fn export_line(task: &Task, attempts: &[Attempt]) -> Result<String, serde_json::Error> {
    let (spec, state) = (&task.spec, &task.state);
    let attempt = |attempt: &Attempt| AttemptLine {
        fence: attempt.fence,
        number: attempt.number,
        generation: attempt.generation,
        outcome: attempt.outcome,
        failure: attempt.failure.as_ref().map(FailureLine::of),
        started_at: Moment(attempt.started_at),
        ended_at: Moment(attempt.ended_at),
        worker: attempt.worker.clone(),
        policy: attempt.policy.clone(),
        variant: attempt.variant.clone(),
        delay_before_ms: attempt.delay_before_ms,
        delay_reason: attempt.delay_reason.clone(),
        cost: attempt.cost,
        attachments: attempt.attachments.iter().map(|attachment| attachment.name.clone()).collect(),
    };
    let line = Line {
        format: FORMAT.to_owned(),
        id: spec.id.clone(),
        task_type: spec.task_type.clone(),
        payload: RawValue::from_string(spec.payload.clone())?,
        labels: spec.labels.clone(),
        idempotency_key: spec.idempotency_key.clone(),
        priority: spec.priority,
        cache_key: spec.cache_key.clone(),
        reply_to: spec.reply_to.clone(),
        traceparent: spec.trace.as_ref().map(|trace| trace.traceparent().to_owned()),
        tracestate: spec.trace.as_ref().and_then(|trace| trace.tracestate().map(str::to_owned)),
        created_at: Moment(spec.created_at),
        conflicts_with: spec.conflicts_with.clone(),
        raw: spec.raw.as_ref().map(|raw| RawLine {
            bytes_base64: base64::engine::general_purpose::STANDARD.encode(&raw.bytes),
            length: raw.length,
            routing_key: raw.routing_key.clone(),
            message_id: raw.message_id.clone(),
        }),
        queue: state.queue.clone(),
        reason: state.dead_reason.unwrap_or(DeadReason::Poison),
        generation: state.stamp.generation,
        retry_count: state.stamp.retry_count,
        died_at: Moment(state.ended_at.unwrap_or(spec.created_at)),
        deadline: state.deadline.map(Moment),
        variant: state.variant.clone(),
        note: state.note.clone(),
        failure: state.failure.as_ref().map(FailureLine::of),
        attempts: attempts.iter().map(attempt).collect(),
    };
    serde_json::to_string(&line)
}

/// Reads line number `number`. `queue_of` routes letters whose queue is not known here.
///
/// # Errors
/// What is wrong with it.
pub fn import_line(
    text: &str,
    number: usize,
    queue_of: impl Fn(Option<&str>, &str) -> String,
) -> Result<(Task, Vec<Attempt>), LineError> {
    let refused = |problem: String| LineError { line: number, problem };
    let line: Line = serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
    if line.format != FORMAT {
        return Err(refused(format!("`format` is {:?}, expected {FORMAT:?}", line.format)));
    }
    if line.id.is_empty() || line.id.len() > MAX_NAME || line.id.contains('\0') {
        return Err(refused(format!("`id` has to have 1 to {MAX_NAME} bytes and no NUL")));
    }
    check_topic(&line.task_type).map_err(|error| refused(format!("`type` {error}")))?;
    if line.generation < 0 || line.retry_count < 0 {
        return Err(refused("`generation` and `retry_count` must not be negative".into()));
    }
    let raw = match line.raw {
        None => None,
        Some(raw) => {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(&raw.bytes_base64)
                .map_err(|error| refused(format!("`raw.bytes_base64`: {error}")))?;
            let RawLine { length, routing_key, message_id, .. } = raw;
            Some(Arc::new(RawSubmission { bytes, length, routing_key, message_id }))
        }
    };
    let payload = line.payload.get().to_owned();
    let spec = Spec {
        payload_hash: canonical_payload_hash(&line.task_type, &payload),
        // A refused row owns no key; every other one owns its id if nothing else.
        idempotency_key: if raw.is_some() { None } else { line.idempotency_key.or_else(|| Some(line.id.clone())) },
        id: line.id,
        payload,
        labels: line.labels,
        priority: line.priority.clamp(0, crate::task::MAX_PRIORITY),
        cache_key: line.cache_key,
        reply_to: line.reply_to,
        trace: line.traceparent.and_then(|parent| TraceContext::read(&parent, line.tracestate.as_deref())),
        submission_hash: None,
        created_at: line.created_at.0,
        raw,
        conflicts_with: line.conflicts_with,
        task_type: line.task_type,
    };
    let state = State {
        status: Status::Dead,
        dead_reason: Some(line.reason),
        stamp: Stamp { generation: line.generation, retry_count: line.retry_count },
        queue: Some(queue_of(line.queue.as_deref(), &spec.task_type)),
        deadline: line.deadline.map(|at| at.0),
        variant: line.variant,
        note: line.note,
        // The stack stays with the attempt.
        failure: line.failure.map(|failure| Failure { stack: None, ..failure.into_failure() }),
        ended_at: Some(line.died_at.0),
        ..State::pending(line.died_at.0)
    };
    let attempts = line.attempts.into_iter().map(|attempt| Attempt {
        task_id: spec.id.clone(),
        fence: attempt.fence,
        number: attempt.number,
        generation: attempt.generation,
        outcome: attempt.outcome,
        failure: attempt.failure.map(FailureLine::into_failure),
        started_at: attempt.started_at.0,
        ended_at: attempt.ended_at.0,
        worker: attempt.worker,
        policy: attempt.policy,
        variant: attempt.variant,
        delay_before_ms: attempt.delay_before_ms,
        delay_reason: attempt.delay_reason,
        cost: attempt.cost,
        attachments: Vec::new(),
    });
    let attempts = attempts.collect();
    Ok((Task { spec: Arc::new(spec), state }, attempts))
}

/// Takes letters in. With `dry_run` only looks which ids are known.
///
/// # Errors
/// When the store does not answer; what was taken in until then stays.
pub async fn import(
    store: &dyn Store,
    letters: Vec<(Task, Vec<Attempt>)>,
    dry_run: bool,
) -> Result<Imported, StoreError> {
    let mut imported = Imported { read: letters.len(), ..Imported::default() };
    let mut letters = letters.into_iter().peekable();
    while letters.peek().is_some() {
        let part: Vec<_> = letters.by_ref().take(BATCH).collect();
        if dry_run {
            let ids: Vec<String> = part.iter().map(|(task, _)| task.id().to_owned()).collect();
            let known = store.get(&ids).await?.iter().filter(|task| task.is_some()).count();
            imported.imported += part.len() - known;
            if known > 0 {
                *imported.skipped.entry("known").or_insert(0) += known;
            }
            continue;
        }
        let adopt = |(task, attempts): (Task, Vec<Attempt>)| Command::Adopt { task: Box::new(task), attempts };
        for answer in store.apply(Urgency::Normal, part.into_iter().map(adopt).collect()).await? {
            match answer {
                Answer::Dead(_) => imported.imported += 1,
                Answer::Duplicate { .. } => *imported.skipped.entry("known").or_insert(0) += 1,
                other => {
                    tracing::warn!(answer = ?other, "a letter was not taken in");
                    *imported.skipped.entry("refused").or_insert(0) += 1;
                }
            }
        }
    }
    Ok(imported)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(change: impl Fn(&mut serde_json::Value)) -> Result<(Task, Vec<Attempt>), LineError> {
        let mut value = serde_json::json!({
            "format": FORMAT, "id": "a", "type": "order.ship", "payload": {"order": 7}, "created_at": 5, "queue": "gone",
            "reason": "retries_exhausted", "generation": 1, "retry_count": 3, "died_at": 9,
            "failure": {"class": "timeout", "message": "too slow", "stack": "at x"},
            "attempts": [{"fence": 1, "number": 1, "generation": 0, "outcome": "died", "started_at": 6, "ended_at": 9,
                          "failure": {"class": "timeout", "message": "too slow", "stack": "at x"}}],
        });
        change(&mut value);
        import_line(&value.to_string(), 3, |queue, task_type| format!("{queue:?} of {task_type}"))
    }

    #[test]
    fn a_letter_comes_back_as_it_went() {
        let (mut task, attempts) = line(|_| {}).unwrap();
        assert_eq!(task.queue(), "Some(\"gone\") of order.ship");
        assert_eq!(task.state.failure.as_ref().unwrap().stack, None, "the attempt has it");
        assert_eq!(attempts[0].failure.as_ref().unwrap().stack.as_deref(), Some("at x"));
        task.state.queue = Some("q".into());
        let again = import_line(&export_line(&task, &attempts).unwrap(), 1, |queue, _| queue.unwrap().into()).unwrap();
        assert_eq!(again, (task, attempts));
    }

    #[test]
    fn times_are_written_for_people_and_read_as_numbers_too() {
        let (mut task, attempts) = line(|value| value["died_at"] = "2026-01-31T09:00:00.5+01:00".into()).unwrap();
        assert_eq!(task.state.ended_at, Some(1_769_846_400_500));
        let written = export_line(&task, &attempts).unwrap();
        assert!(written.contains(r#""created_at":"1970-01-01T00:00:00.005Z""#), "{written}");
        assert!(written.contains(r#""died_at":"2026-01-31T08:00:00.500Z""#), "{written}");
        task.state.deadline = Some(i64::MAX);
        let (again, _) = import_line(&export_line(&task, &attempts).unwrap(), 1, |_, _| "q".into()).unwrap();
        assert_eq!(again.state.deadline, Some(i64::MAX));
        let problem = line(|value| value["created_at"] = "soon".into()).unwrap_err().to_string();
        assert!(problem.contains("\"soon\", expected a time as in"), "{problem}");
    }

    #[test]
    fn numbers_in_a_payload_keep_their_digits() {
        let text = r#"{"n":12345678901234567890123,"x":0.10}"#;
        let (mut task, attempts) = line(|_| {}).unwrap();
        task.spec = Arc::new(Spec { payload: text.into(), ..(*task.spec).clone() });
        let (again, _) = import_line(&export_line(&task, &attempts).unwrap(), 1, |_, _| "q".into()).unwrap();
        assert_eq!(again.spec.payload, text);
    }

    #[test]
    fn what_is_no_letter_is_named_by_its_line_and_field() {
        let problem = |change: fn(&mut serde_json::Value)| line(change).unwrap_err().to_string();
        assert!(problem(|v| v["format"] = "x/9".into()).starts_with("line 3: `format`"));
        assert!(problem(|v| v["id"] = "".into()).contains("`id`"));
        assert!(problem(|v| v["type"] = "a..b".into()).contains("`type`"));
        assert!(problem(|v| v["reason"] = "bored".into()).contains("bored"));
        assert!(problem(|v| v["surprise"] = 1.into()).contains("surprise"));
        assert!(problem(|v| v["generation"] = (-1).into()).contains("negative"));
        assert!(
            problem(|v| v["raw"] = serde_json::json!({"bytes_base64": "%", "length": 1, "routing_key": "a"}))
                .contains("base64")
        );
        assert!(import_line("{", 8, |_, _| String::new()).unwrap_err().to_string().starts_with("line 8: "));
    }
}
