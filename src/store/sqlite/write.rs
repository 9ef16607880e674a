//! Writes what a batch changed: a few statements, whatever the number of rows.

use std::sync::Arc;

use rusqlite::Connection;

use super::ladder::Ladder;
use super::shape::{Image, Mask, Shape};
use crate::store::sql::columns::{bind_state, spec, state};
use crate::store::sql::fault::Fault;
use crate::store::sql::notices;
use crate::store::sql::value::Bind;
use crate::store::sql::written::{self, columns};
use crate::task::{Attempt, Changes, Notice, Task, Updated};

const STATE: &str = state!();
pub(super) const ROW: &str = concat!(state!(), ", ", spec!());

/// What a submission brings that waits for nothing but its attempt. The columns whose default is a time are all among these.
pub(super) const SUBMITTED: &str = "status, due_at, wake_at, deadline, queue, fence, worker, started_at, passes, id, type, priority, \
     idempotency_key, cache_key, payload_hash, submission_hash, created_at, traceparent, labels, payload";
const RENEWED: &str = "wake_at";
/// A success, or the end of one that nothing held.
const ENDED: &str = "status, wake_at, worker, started_at, passes, variant, ended_at";
/// A wake-up that leads to an attempt.
const STARTED: &str =
    "status, wake_at, fence, worker, started_at, wakes, sent_lane, sent_rung_ms, sent_at, arrives_at, passes";

/// An attempt that succeeded without a delay before it.
const WORKED: &str = "task_id, fence, number, generation, outcome, started_at, ended_at, worker, policy, variant";

#[cfg(test)]
pub(super) const SHAPES: [&str; 4] = [SUBMITTED, RENEWED, ENDED, STARTED];

/// The prepared statements of the writer.
pub(super) struct Writes {
    /// For a new row as few columns as it needs: of several statements the first that fits.
    create: [Shape; 2],
    /// A row of which nothing is given.
    blank: Image,
    /// For a known row as few columns as it needs.
    update: [Shape; 4],
    /// For an attempt as few columns as it needs.
    attempt: [Shape; 2],
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
        let create = |names| Shape::new(ROW, names, |columns| Ladder::insert("INSERT INTO", "tasks", columns));
        let record =
            |names| Shape::new(columns::ATTEMPT, names, |columns| Ladder::insert("INSERT INTO", "attempts", columns));
        let update = |names| Shape::new(STATE, names, |columns| Ladder::update("tasks", "id", columns));
        Writes {
            create: [SUBMITTED, ROW].map(create),
            blank: blank(),
            update: [RENEWED, ENDED, STARTED, STATE].map(update),
            attempt: [WORKED, columns::ATTEMPT].map(record),
            attachment: insert("attachments", columns::ATTACHMENT),
            result: replace("results", columns::RESULT),
            cached: replace("cached", columns::CACHED),
            edit: replace("edits", columns::EDIT),
            notice: Ladder::insert("INSERT INTO", "notices", notices::COLUMNS),
            lane: replace("lanes", columns::LANE),
            missing: replace("missing", columns::MISSING),
            dlq: replace("dlqs", columns::DLQ),
            gate: replace("gates", columns::GATE),
        }
    }

    /// The statements that write states.
    #[cfg(test)]
    pub(super) fn update_states(&self) -> impl Iterator<Item = &str> {
        self.update.iter().map(|shape| shape.ladder.largest())
    }

    /// Writes `changes`.
    pub(super) fn save(&self, conn: &Connection, changes: &Changes) -> Result<(), Fault> {
        self.create(conn, &changes.created)?;
        self.update(conn, &changes.updated)?;
        self.record(conn, &changes.attempts)?;
        let attachments: Vec<_> =
            changes.attempts.iter().flat_map(|attempt| written::attachments_of(attempt)).collect();
        self.attachment.run(conn, &attachments, |binds, row| written::bind_attachment(binds, row))?;
        self.result.run(conn, &changes.results, |binds, row| written::bind_result(binds, row))?;
        self.cached.run(conn, &changes.cached, |binds, row| written::bind_cached(binds, row))?;
        self.edit.run(conn, &changes.edits, |binds, row| written::bind_edit(binds, row))?;
        self.save_notices(conn, &changes.notices)?;
        self.lane.run(conn, &changes.lanes, |binds, row| written::bind_lane(binds, row))?;
        self.missing.run(conn, &changes.missing, |binds, row| written::bind_missing(binds, row))?;
        self.dlq.run(conn, &changes.dlqs, |binds, row| written::bind_dlq(binds, row))?;
        self.gate.run(conn, &changes.gates, |binds, row| written::bind_gate(binds, row))
    }

    /// New rows, by one statement, for their order is the order of arrival.
    fn create(&self, conn: &Connection, tasks: &[Box<Task>]) -> Result<(), Fault> {
        let mut image = Image::default();
        let given = tasks.iter().fold(Mask::NONE, |given, task| {
            image.clear();
            written::bind_created(&mut image, task);
            given.with(image.differs_from(&self.blank))
        });
        match self.create.iter().find(|shape| shape.fits(given)) {
            Some(shape) => {
                shape.ladder.run(conn, tasks, |binds, task| written::bind_created(&mut shape.sieve(binds), task))
            }
            None => Err(Fault::Unusable("no statement writes a whole row".into())),
        }
    }

    fn update(&self, conn: &Connection, rows: &[Updated]) -> Result<(), Fault> {
        let (mut before, mut after) = (Image::default(), Image::default());
        let sorted = by_shape(&self.update, rows, |row| {
            before.clear();
            after.clear();
            // Nothing is known of one that was not loaded, so all its columns differ.
            if let Some(task) = &row.before {
                bind_state(&mut before, &task.state);
            }
            bind_state(&mut after, &row.task.state);
            after.differs_from(&before)
        })?;
        for (shape, rows) in self.update.iter().zip(&sorted) {
            shape.ladder.run(conn, rows, |binds, row| {
                binds.word(row.task.id());
                bind_state(&mut shape.sieve(binds), &row.task.state);
            })?;
        }
        Ok(())
    }

    fn record(&self, conn: &Connection, attempts: &[Arc<Attempt>]) -> Result<(), Fault> {
        let mut image = Image::default();
        let sorted = by_shape(&self.attempt, attempts, |attempt| {
            image.clear();
            written::bind_attempt(&mut image, attempt);
            image.given()
        })?;
        for (shape, attempts) in self.attempt.iter().zip(&sorted) {
            shape.ladder.run(conn, attempts, |binds, attempt| {
                written::bind_attempt(&mut shape.sieve(binds), attempt);
            })?;
        }
        Ok(())
    }

    /// Writes notices.
    pub(super) fn save_notices(&self, conn: &Connection, notices: &[Notice]) -> Result<(), Fault> {
        self.notice.run(conn, notices, |binds, row| notices::bind(binds, row))
    }
}

/// The rows of each statement: of several the first that writes all columns which `needed` says of a row.
fn by_shape<'r, R, const N: usize>(
    shapes: &[Shape; N],
    rows: &'r [R],
    mut needed: impl FnMut(&R) -> Mask,
) -> Result<[Vec<&'r R>; N], Fault> {
    let mut fitting = [const { Vec::new() }; N];
    for row in rows {
        let needed = needed(row);
        match shapes.iter().zip(&mut fitting).find(|(shape, _)| shape.fits(needed)) {
            Some((_, rows)) => rows.push(row),
            None => return Err(Fault::Unusable("no statement writes a whole row".into())),
        }
    }
    Ok(fitting)
}

/// What stands in a column that is not given.
pub(super) enum Unset {
    Null,
    Zero,
    Word(&'static str),
}

/// The schema's default of a column; where that is a time, NULL, which no row may rely on.
pub(super) fn default_of(column: &str) -> Unset {
    match column {
        "status" => Unset::Word("pending"),
        "generation" | "retry_count" | "fence" | "releases" | "wakes" | "retry_by_handler" | "priority" => Unset::Zero,
        "held_turn" | "payload_hash" => Unset::Word(""),
        "dlq_copy" => Unset::Word("none"),
        "labels" => Unset::Word("{}"),
        "payload" => Unset::Word("null"),
        _ => Unset::Null,
    }
}

fn blank() -> Image {
    let mut image = Image::default();
    for column in ROW.split(',') {
        match default_of(column.trim()) {
            Unset::Null => image.null(),
            Unset::Zero => image.integer(0),
            Unset::Word(word) => image.word(word),
        };
    }
    image
}
