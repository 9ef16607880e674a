//! Writes what a batch changed: a few statements, whatever the number of rows.

use rusqlite::Connection;

use super::columns::{Bind, Slots, spec, state};
use super::fault::Fault;
use super::ladder::Ladder;
use super::ledgers::spot_columns;
use super::notices;
use crate::gate::GateState;
use crate::task::{
    Attachment, AttachmentBody, Attempt, Cached, Changes, DlqLedger, EditRecord, LaneKey, LaneLedger, Millis, Notice,
    Spot, Task, TaskResult,
};

const ATTEMPT: &str = "task_id, fence, number, generation, outcome, class, code, http_status, message, stack, fingerprint, \
     started_at, ended_at, worker, policy, variant, delay_before_ms, delay_reason, cost";

/// The prepared statements of the writer.
pub(super) struct Writes {
    create: Ladder,
    update: Ladder,
    attempt: Ladder,
    attachment: Ladder,
    result: Ladder,
    cached: Ladder,
    edit: Ladder,
    notice: Ladder,
    lane: Ladder,
    missing: Ladder,
    dlq: Ladder,
    gate: Ladder,
}

impl Writes {
    pub(super) fn new() -> Writes {
        let insert = |table, columns| Ladder::insert("INSERT INTO", table, columns);
        let replace = |table, columns| Ladder::insert("INSERT OR REPLACE INTO", table, columns);
        Writes {
            create: insert("tasks", concat!(state!(), ", ", spec!())),
            update: Ladder::update("tasks", "id", state!()),
            attempt: insert("attempts", ATTEMPT),
            attachment: insert("attachments", "task_id, fence, position, name, media_type, bytes, link, size"),
            result: replace("results", "task_id, media_type, truncated, body"),
            cached: replace("cached", "type, cache_key, stored_at, media_type, truncated, body"),
            edit: replace("edits", "task_id, edited_from, edited_at, edited_by, reason, patch"),
            notice: notices::insert(),
            lane: replace("lanes", "queue, lane, mark, probed_at, probe_gap_ms, probe_mark"),
            missing: replace("missing", "queue, spot, delay_ms, at"),
            dlq: replace("dlqs", "queue, dirty, cleaned, pass, pass_until, pass_began, strangers"),
            gate: replace("gates", "key, state"),
        }
    }

    /// The statement that writes states.
    #[cfg(test)]
    pub(super) fn update_states(&self) -> &str {
        self.update.largest()
    }

    /// Writes `changes`.
    pub(super) fn save(&self, conn: &Connection, changes: &Changes) -> Result<(), Fault> {
        let insert = |binds: &mut Slots<'_, '_>, task: &Task| {
            binds.state(&task.state);
            binds.spec(&task.spec);
        };
        self.create.run(conn, &changes.created, insert)?;
        let update = |binds: &mut Slots<'_, '_>, task: &Task| {
            binds.word(task.id());
            binds.state(&task.state);
        };
        self.update.run(conn, &changes.updated, update)?;
        self.attempt.run(conn, &changes.attempts, bind_attempt)?;
        let attachments: Vec<_> = changes.attempts.iter().flat_map(attachments_of).collect();
        self.attachment.run(conn, &attachments, bind_attachment)?;
        self.result.run(conn, &changes.results, bind_result)?;
        self.cached.run(conn, &changes.cached, bind_cached)?;
        self.edit.run(conn, &changes.edits, bind_edit)?;
        self.save_notices(conn, &changes.notices)?;
        self.lane.run(conn, &changes.lanes, bind_lane)?;
        let missing = |binds: &mut Slots<'_, '_>, (spot, at): &(Spot, Millis)| {
            let (queue, word, delay_ms) = spot_columns(spot);
            binds.word(queue).word(word).add(delay_ms).add(*at);
        };
        self.missing.run(conn, &changes.missing, missing)?;
        self.dlq.run(conn, &changes.dlqs, bind_dlq)?;
        let gate = |binds: &mut Slots<'_, '_>, (key, state): &(String, GateState)| {
            binds.word(key).word(&serde_json::json!(state).to_string());
        };
        self.gate.run(conn, &changes.gates, gate)
    }

    /// Writes notices.
    pub(super) fn save_notices(&self, conn: &Connection, notices: &[Notice]) -> Result<(), Fault> {
        self.notice.run(conn, notices, notices::bind)
    }
}

fn bind_attempt(binds: &mut Slots<'_, '_>, attempt: &Attempt) {
    let failure = attempt.failure.as_ref();
    binds
        .word(attempt.task_id.as_str())
        .add(attempt.fence)
        .add(attempt.number)
        .add(attempt.generation)
        .word(attempt.outcome.as_str())
        .optional_text(failure.map(|failure| failure.class.as_str()))
        .optional_text(failure.and_then(|failure| failure.code.as_deref()))
        .add(failure.and_then(|failure| failure.http_status).map(i64::from))
        .optional_text(failure.map(|failure| failure.message.as_str()))
        .optional_text(failure.and_then(|failure| failure.stack.as_deref()))
        .optional_text(failure.map(|failure| failure.fingerprint.as_str()))
        .add(attempt.started_at)
        .add(attempt.ended_at)
        .text(&attempt.worker)
        .optional_text(attempt.policy.as_deref())
        .optional_text(attempt.variant.as_deref())
        .add(attempt.delay_before_ms)
        .optional_text(attempt.delay_reason.as_deref())
        .add(attempt.cost);
}

/// An attachment with its attempt and its place among the attempt's attachments.
type Placed<'a> = (&'a Attempt, i64, &'a Attachment);

fn attachments_of(attempt: &Attempt) -> impl Iterator<Item = Placed<'_>> {
    (0..).zip(&attempt.attachments).map(move |(position, attachment)| (attempt, position, attachment))
}

fn bind_attachment(binds: &mut Slots<'_, '_>, (attempt, position, attachment): &Placed<'_>) {
    let (bytes, link, size) = match &attachment.body {
        AttachmentBody::Bytes(bytes) => (Some(&**bytes), None, None),
        AttachmentBody::Link(link) => (None, Some(link.as_str()), None),
        AttachmentBody::TooLarge { size } => (None, None, Some(i64::try_from(*size).unwrap_or(i64::MAX))),
    };
    binds
        .word(attempt.task_id.as_str())
        .add(attempt.fence)
        .add(*position)
        .text(&attachment.name)
        .text(&attachment.media_type)
        .add(bytes)
        .optional_text(link)
        .add(size);
}

fn bind_result(binds: &mut Slots<'_, '_>, (id, result): &(String, TaskResult)) {
    binds.word(id.as_str()).text(&result.media_type).add(i64::from(result.truncated)).add(result.body.as_slice());
}

fn bind_cached(binds: &mut Slots<'_, '_>, cached: &Cached) {
    let result = &cached.result;
    binds
        .word(cached.task_type.as_str())
        .text(&cached.key)
        .add(cached.stored_at)
        .text(&result.media_type)
        .add(i64::from(result.truncated))
        .add(result.body.as_slice());
}

fn bind_edit(binds: &mut Slots<'_, '_>, edit: &EditRecord) {
    binds
        .word(&edit.task_id)
        .word(&edit.edited_from)
        .add(edit.edited_at)
        .optional_text(edit.edited_by.as_deref())
        .optional_text(edit.reason.as_deref())
        .word(&edit.patch);
}

fn bind_lane(binds: &mut Slots<'_, '_>, (key, ledger): &(LaneKey, LaneLedger)) {
    binds
        .word(key.queue.as_str())
        .word(key.lane.as_str())
        .add(ledger.mark)
        .add(ledger.probed_at)
        .add(ledger.probe_gap_ms)
        .add(ledger.probe_mark);
}

fn bind_dlq(binds: &mut Slots<'_, '_>, (queue, ledger): &(String, DlqLedger)) {
    binds
        .word(queue.as_str())
        .add(ledger.dirty)
        .add(ledger.cleaned)
        .add(ledger.pass)
        .add(ledger.pass_until)
        .add(ledger.pass_began)
        .add(ledger.strangers);
}
