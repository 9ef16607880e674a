//! How a task lies in the columns of `tasks`, there and back.
//!
//! Reading is strict about what the rules rely on and lenient about what they do not: a label whose value is a number is
//! taken as its text. What cannot be read at all comes back as [`Unreadable`] and goes to quarantine.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::value::{Bind, Cell, Source, without_nul};
use crate::gate::Pass;
use crate::task::{
    DeadReason, DlqCopy, Failure, Lane, Outstanding, RawSubmission, Spec, Stamp, State, Status, Task, TraceContext,
};

/// The columns that transitions change, in the order of [`Binds::state`] and [`Columns::state`].
macro_rules! state {
    () => {
        "status, dead_reason, degraded, generation, retry_count, due_at, wake_at, deadline, queue, fence, worker, \
         started_at, releases, wakes, sent_lane, sent_rung_ms, sent_at, arrives_at, held_by, held_turn, \
         park_until, passes, variant, dlq_copy, dlq_at, delay_ms, delay_reason, retry_by_handler, failure_class, failure_code, failure_http_status, failure_message, failure_fingerprint, ended_at, \
         note"
    };
}

/// The columns that never change after the first commit, in the order of [`Binds::spec`] and [`Columns::spec`].
macro_rules! spec {
    () => {
        "id, type, priority, idempotency_key, cache_key, reply_to, payload_hash, submission_hash, created_at, \
         conflicts_with, traceparent, tracestate, labels, payload, raw_length, raw_routing_key, raw_message_id, raw_bytes"
    };
}

/// A query for whole tasks, as [`task`] reads them: what follows `FROM tasks`.
macro_rules! select_tasks {
    ($rest:expr) => {
        concat!("SELECT seq, ", state!(), ", ", spec!(), " FROM tasks ", $rest)
    };
}

pub(crate) use {select_tasks, spec, state};

/// What makes a dead letter of a row that does not decode, besides its raw bytes, its times and what is said of it.
pub(crate) const SET_ASIDE: &str = "payload = 'null', idempotency_key = NULL, labels = '{}', raw_routing_key = '', \
     raw_message_id = NULL, status = 'dead', dead_reason = 'poison', degraded = NULL, wake_at = NULL, worker = NULL, \
     started_at = NULL, sent_lane = NULL, sent_rung_ms = NULL, sent_at = NULL, arrives_at = NULL, held_by = NULL, passes = NULL, \
     dlq_copy = 'wanted', delay_reason = NULL, cache_key = NULL, reply_to = NULL, payload_hash = '', submission_hash = NULL, \
     conflicts_with = NULL, traceparent = NULL, tracestate = NULL, failure_class = 'poison', failure_code = NULL, failure_http_status = NULL, failure_fingerprint = ''";

/// A row that does not decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Its `seq`.
    pub(crate) seq: i64,
    /// Which column, and what is wrong.
    pub(crate) reason: String,
}

/// Binds the columns of [`state!`].
pub(crate) fn bind_state(binds: &mut impl Bind, state: &State) {
    let failure = state.failure.as_ref();
    let sent = state.outstanding.as_ref();
    binds
        .word(state.status.as_str())
        .optional_word(state.dead_reason.map(DeadReason::as_str))
        .optional_text(state.degraded.as_deref())
        .integer(state.stamp.generation)
        .integer(state.stamp.retry_count)
        .integer(state.due_at)
        .number(state.wake_at)
        .number(state.deadline)
        .optional_text(state.queue.as_deref())
        .integer(state.fence)
        .optional_text(state.worker.as_deref())
        .number(state.started_at)
        .integer(state.releases)
        .integer(state.wakes)
        .optional_word(sent.map(|sent| sent.lane.as_str()))
        .number(sent.map(|sent| sent.rung_ms))
        .number(sent.map(|sent| sent.sent_at))
        .number(sent.map(|sent| sent.arrives_at))
        .optional_text(state.held_by.as_deref())
        .text(&state.held_turn)
        .number(state.park_until)
        .optional_word(passes_to_json(&state.passes).as_deref())
        .optional_text(state.variant.as_deref())
        .word(state.dlq_copy.as_str())
        .number(state.dlq_at)
        .number(state.delay_ms)
        .optional_text(state.delay_reason.as_deref())
        .integer(i64::from(state.retry_by_handler))
        .optional_text(failure.map(|failure| failure.class.as_str()))
        .optional_text(failure.and_then(|failure| failure.code.as_deref()))
        .number(failure.and_then(|failure| failure.http_status).map(i64::from))
        .optional_text(failure.map(|failure| failure.message.as_str()))
        .optional_text(failure.map(|failure| failure.fingerprint.as_str()))
        .number(state.ended_at)
        .optional_text(state.note.as_deref());
}

/// Binds the columns of [`spec!`].
pub(crate) fn bind_spec(binds: &mut impl Bind, spec: &Spec) {
    let raw = spec.raw.as_deref();
    // Ids and keys go in as they are: replacing a character would make two of them one. The schema refuses NUL there.
    binds
        .word(&spec.id)
        .word(&spec.task_type)
        .integer(spec.priority)
        .optional_word(spec.idempotency_key.as_deref())
        .optional_text(spec.cache_key.as_deref())
        .optional_text(spec.reply_to.as_deref())
        .word(&spec.payload_hash)
        .optional_word(spec.submission_hash.as_deref())
        .integer(spec.created_at)
        .optional_word(spec.conflicts_with.as_deref())
        .optional_word(spec.trace.as_ref().map(TraceContext::traceparent))
        .optional_word(spec.trace.as_ref().and_then(TraceContext::tracestate))
        .word(&labels_to_json(&spec.labels))
        .word(&spec.payload)
        .number(raw.map(|raw| raw.length))
        .optional_text(raw.map(|raw| raw.routing_key.as_str()))
        .optional_text(raw.and_then(|raw| raw.message_id.as_deref()))
        .bytes(raw.map(|raw| raw.bytes.as_slice()));
}
/// How many columns a comma-separated list names.
pub(crate) fn count(columns: &str) -> usize {
    columns.split(',').count()
}

fn passes_to_json(passes: &[Pass]) -> Option<String> {
    if passes.is_empty() {
        return None;
    }
    Some(serde_json::json!(passes).to_string())
}

fn passes_from_json(text: Option<&str>) -> Result<Vec<Pass>, String> {
    text.map_or(Ok(Vec::new()), |text| serde_json::from_str(text).map_err(|error| format!("passes: {error}")))
}

fn labels_to_json(labels: &BTreeMap<String, String>) -> Cow<'static, str> {
    if labels.is_empty() {
        return Cow::Borrowed("{}");
    }
    let object =
        labels.iter().map(|(name, value)| (without_nul(name).into_owned(), without_nul(value).into_owned().into()));
    Cow::Owned(serde_json::Value::Object(object.collect()).to_string())
}

fn labels_from_json(text: &str) -> Result<BTreeMap<String, String>, String> {
    if text == "{}" {
        return Ok(BTreeMap::new());
    }
    let object: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| format!("labels: {error}"))?;
    let as_text = |value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(object.into_iter().map(|(name, value)| (name, as_text(value))).collect())
}

/// Reads the columns of a row from left to right.
pub(crate) struct Columns<'r, R> {
    row: &'r R,
    at: usize,
}

impl<'r, R: Source> Columns<'r, R> {
    pub(crate) fn of(row: &'r R) -> Columns<'r, R> {
        Columns { row, at: 0 }
    }

    pub(crate) fn next<T: Cell<'r>>(&mut self) -> Result<T, String> {
        let at = self.at;
        self.at += 1;
        self.row.value(at).and_then(T::of).map_err(|error| format!("column {at}: {error}"))
    }

    /// A word that `parse` knows.
    pub(crate) fn word<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let word: &str = self.next()?;
        parse(word).ok_or_else(|| format!("unknown word {word:?}"))
    }

    pub(crate) fn optional_word<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, String> {
        let word: Option<&str> = self.next()?;
        word.map(|word| parse(word).ok_or_else(|| format!("unknown word {word:?}"))).transpose()
    }

    /// A failure from class, code, HTTP status, message, stack (if it is among the columns) and fingerprint.
    pub(crate) fn failure(&mut self, with_stack: bool) -> Result<Option<Failure>, String> {
        let class: Option<String> = self.next()?;
        let code = self.next()?;
        let http_status: Option<i64> = self.next()?;
        let message: Option<String> = self.next()?;
        let stack = if with_stack { self.next()? } else { None };
        let fingerprint: Option<String> = self.next()?;
        let http_status =
            http_status.map(u16::try_from).transpose().map_err(|_| "HTTP status out of range".to_owned())?;
        Ok(class.map(|class| Failure {
            class,
            code,
            http_status,
            message: message.unwrap_or_default(),
            stack,
            fingerprint: fingerprint.unwrap_or_default(),
        }))
    }

    /// The columns of [`state!`].
    pub(crate) fn state(&mut self) -> Result<State, String> {
        Ok(State {
            status: self.word(Status::parse)?,
            dead_reason: self.optional_word(DeadReason::parse)?,
            degraded: self.next()?,
            stamp: Stamp { generation: self.next()?, retry_count: self.next()? },
            due_at: self.next()?,
            wake_at: self.next()?,
            deadline: self.next()?,
            queue: self.next()?,
            fence: self.next()?,
            worker: self.next()?,
            started_at: self.next()?,
            releases: self.next()?,
            wakes: self.next()?,
            outstanding: self.outstanding()?,
            held_by: self.next()?,
            held_turn: self.next()?,
            park_until: self.next()?,
            passes: passes_from_json(self.next()?)?,
            variant: self.next()?,
            dlq_copy: self.word(DlqCopy::parse)?,
            dlq_at: self.next()?,
            delay_ms: self.next()?,
            delay_reason: self.next()?,
            retry_by_handler: self.next::<i64>()? != 0,
            failure: self.failure(false)?,
            ended_at: self.next()?,
            note: self.next()?,
        })
    }

    fn outstanding(&mut self) -> Result<Option<Outstanding>, String> {
        let lane = self.optional_word(Lane::parse)?;
        let (rung_ms, sent_at, arrives_at): (Option<i64>, Option<i64>, Option<i64>) =
            (self.next()?, self.next()?, self.next()?);
        Ok(lane.map(|lane| Outstanding {
            lane,
            rung_ms: rung_ms.unwrap_or(0),
            sent_at: sent_at.unwrap_or(0),
            arrives_at: arrives_at.unwrap_or(0),
        }))
    }

    fn trace(&mut self) -> Result<Option<TraceContext>, String> {
        let (parent, state): (Option<&str>, Option<&str>) = (self.next()?, self.next()?);
        Ok(parent.and_then(|parent| TraceContext::read(parent, state)))
    }

    /// The columns of [`spec!`].
    pub(crate) fn spec(&mut self) -> Result<Spec, String> {
        let id: String = self.next()?;
        let mut spec = Spec {
            task_type: self.next()?,
            priority: self.next()?,
            idempotency_key: self.next()?,
            cache_key: self.next()?,
            reply_to: self.next()?,
            payload_hash: self.next()?,
            submission_hash: self.next()?,
            created_at: self.next()?,
            conflicts_with: self.next()?,
            trace: self.trace()?,
            labels: labels_from_json(self.next()?)?,
            payload: self.next()?,
            raw: None,
            id,
        };
        let length: Option<i64> = self.next()?;
        let routing_key: Option<String> = self.next()?;
        let message_id = self.next()?;
        let bytes: Option<Vec<u8>> = self.next()?;
        spec.raw = length.map(|length| {
            Arc::new(RawSubmission {
                bytes: bytes.unwrap_or_default(),
                length,
                routing_key: routing_key.unwrap_or_default(),
                message_id,
            })
        });
        if spec.raw.is_none() && spec.idempotency_key.is_none() {
            spec.idempotency_key = Some(spec.id.clone());
        }
        Ok(spec)
    }

    /// A task from `seq`, [`state!`] and [`spec!`].
    pub(crate) fn task(mut self) -> Result<(i64, Task), Unreadable> {
        let seq = self.next().unwrap_or(0);
        let mut read = || {
            let state = self.state()?;
            let spec = Arc::new(self.spec()?);
            Ok(Task { spec, state })
        };
        match read() {
            Ok(task) => Ok((seq, task)),
            Err(reason) => Err(Unreadable { seq, reason }),
        }
    }
}
