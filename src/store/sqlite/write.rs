//! Writes what a batch changed: a few statements, whatever the number of rows.

use rusqlite::Connection;

use super::ladder::Ladder;
use crate::store::sql::columns::{spec, state};
use crate::store::sql::fault::Fault;
use crate::store::sql::notices;
use crate::store::sql::written::{self, columns};
use crate::task::{Changes, Notice};

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
            attempt: insert("attempts", columns::ATTEMPT),
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

    /// The statement that writes states.
    #[cfg(test)]
    pub(super) fn update_states(&self) -> &str {
        self.update.largest()
    }

    /// Writes `changes`.
    pub(super) fn save(&self, conn: &Connection, changes: &Changes) -> Result<(), Fault> {
        self.create.run(conn, &changes.created, |binds, row| written::bind_created(binds, row))?;
        self.update.run(conn, &changes.updated, |binds, row| written::bind_updated(binds, row))?;
        self.attempt.run(conn, &changes.attempts, |binds, row| written::bind_attempt(binds, row))?;
        let attachments: Vec<_> = changes.attempts.iter().flat_map(written::attachments_of).collect();
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

    /// Writes notices.
    pub(super) fn save_notices(&self, conn: &Connection, notices: &[Notice]) -> Result<(), Fault> {
        self.notice.run(conn, notices, |binds, row| notices::bind(binds, row))
    }
}
