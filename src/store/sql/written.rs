//! How what a batch changed lies in the columns of its tables.

use super::columns::{bind_spec, bind_state};
use super::ledgers::spot_columns;
use super::value::Bind;
use crate::gate::GateState;
use crate::task::{
    Attachment, AttachmentBody, Attempt, Cached, DlqLedger, EditRecord, LaneKey, LaneLedger, Millis, Spot, Task,
    TaskResult,
};

/// The columns of each table, in the order in which the functions here bind them.
pub(crate) mod columns {
    pub(crate) const ATTEMPT: &str = "task_id, fence, number, generation, outcome, class, code, http_status, message, stack, fingerprint, \
         started_at, ended_at, worker, policy, variant, delay_before_ms, delay_reason, cost";
    pub(crate) const ATTACHMENT: &str = "task_id, fence, position, name, media_type, bytes, link, size";
    pub(crate) const RESULT: &str = "task_id, media_type, truncated, body";
    pub(crate) const CACHED: &str = "type, cache_key, stored_at, media_type, truncated, body";
    pub(crate) const EDIT: &str = "task_id, edited_from, edited_at, edited_by, reason, patch";
    pub(crate) const LANE: &str = "queue, lane, mark, probed_at, probe_gap_ms, probe_mark";
    pub(crate) const MISSING: &str = "queue, spot, delay_ms, at";
    pub(crate) const DLQ: &str = "queue, dirty, cleaned, pass, pass_until, pass_began, strangers";
    pub(crate) const GATE: &str = "key, state";
}

/// The columns that hold whole numbers. A name means the same in every table.
const INTEGERS: &str = "seq send_at tries generation retry_count due_at wake_at deadline fence started_at releases wakes sent_rung_ms sent_at arrives_at \
    park_until dlq_at delay_ms retry_by_handler failure_http_status ended_at priority created_at raw_length number \
    http_status delay_before_ms position size truncated stored_at edited_at mark probed_at probe_gap_ms probe_mark at \
    dirty cleaned pass pass_until version applied_at seen_at since ramp changed_at stage paced_to_us lease_until job \
    runs_generation noted_at last_used_at expires_at revoked_at count pass_began strangers";

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Integer,
    Real,
    Bytes,
}

impl Kind {
    /// What the column of that name holds.
    pub(crate) fn of(column: &str) -> Kind {
        match column {
            "cost" | "rate_per_s" | "max_failure_ratio" => Kind::Real,
            "raw_bytes" | "bytes" | "body" => Kind::Bytes,
            _ if INTEGERS.split(' ').any(|name| name == column) => Kind::Integer,
            _ => Kind::Text,
        }
    }
}

/// A new task.
pub(crate) fn bind_created(binds: &mut impl Bind, task: &Task) {
    bind_state(binds, &task.state);
    bind_spec(binds, &task.spec);
}

pub(crate) fn bind_missing(binds: &mut impl Bind, (spot, at): &(Spot, Millis)) {
    let (queue, word, delay_ms) = spot_columns(spot);
    binds.word(queue).word(word).integer(delay_ms).integer(*at);
}

pub(crate) fn bind_gate(binds: &mut impl Bind, (key, state): &(String, GateState)) {
    binds.word(key).word(&serde_json::json!(state).to_string());
}

pub(crate) fn bind_attempt(binds: &mut impl Bind, attempt: &Attempt) {
    let failure = attempt.failure.as_ref();
    binds
        .word(attempt.task_id.as_str())
        .integer(attempt.fence)
        .integer(attempt.number)
        .integer(attempt.generation)
        .word(attempt.outcome.as_str())
        .optional_text(failure.map(|failure| failure.class.as_str()))
        .optional_text(failure.and_then(|failure| failure.code.as_deref()))
        .number(failure.and_then(|failure| failure.http_status).map(i64::from))
        .optional_text(failure.map(|failure| failure.message.as_str()))
        .optional_text(failure.and_then(|failure| failure.stack.as_deref()))
        .optional_text(failure.map(|failure| failure.fingerprint.as_str()))
        .integer(attempt.started_at)
        .integer(attempt.ended_at)
        .text(&attempt.worker)
        .optional_text(attempt.policy.as_deref())
        .optional_text(attempt.variant.as_deref())
        .number(attempt.delay_before_ms)
        .optional_text(attempt.delay_reason.as_deref())
        .real(attempt.cost);
}

/// An attachment with its attempt and its place among the attempt's attachments.
pub(crate) type Placed<'a> = (&'a Attempt, i64, &'a Attachment);

pub(crate) fn attachments_of(attempt: &Attempt) -> impl Iterator<Item = Placed<'_>> {
    (0..).zip(&attempt.attachments).map(move |(position, attachment)| (attempt, position, attachment))
}

pub(crate) fn bind_attachment(binds: &mut impl Bind, (attempt, position, attachment): &Placed<'_>) {
    let (bytes, link, size) = match &attachment.body {
        AttachmentBody::Bytes(bytes) => (Some(&**bytes), None, None),
        AttachmentBody::Link(link) => (None, Some(link.as_str()), None),
        AttachmentBody::TooLarge { size } => (None, None, Some(i64::try_from(*size).unwrap_or(i64::MAX))),
    };
    binds
        .word(attempt.task_id.as_str())
        .integer(attempt.fence)
        .integer(*position)
        .text(&attachment.name)
        .text(&attachment.media_type)
        .bytes(bytes)
        .optional_text(link)
        .number(size);
}

pub(crate) fn bind_result(binds: &mut impl Bind, (id, result): &(String, TaskResult)) {
    binds.word(id.as_str()).text(&result.media_type).integer(i64::from(result.truncated)).bytes(Some(&result.body));
}

pub(crate) fn bind_cached(binds: &mut impl Bind, cached: &Cached) {
    let result = &cached.result;
    binds
        .word(cached.task_type.as_str())
        .text(&cached.key)
        .integer(cached.stored_at)
        .text(&result.media_type)
        .integer(i64::from(result.truncated))
        .bytes(Some(&result.body));
}

pub(crate) fn bind_edit(binds: &mut impl Bind, edit: &EditRecord) {
    binds
        .word(&edit.task_id)
        .word(&edit.edited_from)
        .integer(edit.edited_at)
        .optional_text(edit.edited_by.as_deref())
        .optional_text(edit.reason.as_deref())
        .word(&edit.patch);
}

pub(crate) fn bind_lane(binds: &mut impl Bind, (key, ledger): &(LaneKey, LaneLedger)) {
    binds
        .word(key.queue.as_str())
        .word(key.lane.as_str())
        .integer(ledger.mark)
        .integer(ledger.probed_at)
        .integer(ledger.probe_gap_ms)
        .integer(ledger.probe_mark);
}

pub(crate) fn bind_dlq(binds: &mut impl Bind, (queue, ledger): &(String, DlqLedger)) {
    binds
        .word(queue.as_str())
        .integer(ledger.dirty)
        .integer(ledger.cleaned)
        .integer(ledger.pass)
        .integer(ledger.pass_until)
        .integer(ledger.pass_began)
        .integer(ledger.strangers);
}
