//! A batch inside its transaction: load the rows that the commands name, let the rules change them, write what changed.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::quarantine;
use super::rows::{Slots, all_now};
use super::running::Running;
use super::write::Writes;
use crate::store::sql::columns::{Columns, select_tasks, spec, state};
use crate::store::sql::fault::Fault;
use crate::store::sql::ledgers;
use crate::store::sql::needs::{Needs, refusals_in_play};
use crate::task::{Answer, Command, Millis, Rows, Settings};

/// Rows with certain ids, idempotency keys or submission hashes, in the order of arrival.
pub(super) const LOAD: &str = select_tasks!(
    "WHERE seq IN ( \
     SELECT seq FROM tasks WHERE id IN (SELECT value FROM json_each(?)) \
     UNION ALL SELECT seq FROM tasks WHERE coalesce(idempotency_key, id) IN (SELECT value FROM json_each(?)) \
     AND raw_length IS NULL \
     UNION ALL SELECT seq FROM tasks WHERE submission_hash IN (SELECT value FROM json_each(?)) \
     AND submission_hash IS NOT NULL) ORDER BY seq"
);

/// What outlives a transaction.
pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) writes: Writes,
    pub(super) running: Running,
    /// Keys of the pauses in force.
    pub(super) pauses: BTreeSet<String>,
}

/// Applies the commands at `now`. Nothing is committed here, and on a fault the transaction is of no further use.
pub(super) fn apply(
    conn: &Connection,
    context: &mut Context,
    commands: &[Command],
    now: Millis,
) -> Result<Vec<Answer>, Fault> {
    let mut rows = load(conn, context, commands, now)?;
    let answers = commands.iter().map(|command| rows.apply(command, now, &context.settings)).collect();
    let changes = rows.into_changes();
    context.writes.save(conn, &changes)?;
    context.running.wrote(changes);
    Ok(answers)
}

#[expect(clippy::redundant_closure, reason = "the functions themselves are not general enough over a row's lifetime")]
fn load(conn: &Connection, context: &mut Context, commands: &[Command], now: Millis) -> Result<Rows, Fault> {
    let mut needs = Needs::of(commands);
    let mut rows = Rows::default();
    rows.pauses.clone_from(&context.pauses);
    if needs.lanes {
        rows.lanes = all_now(conn, ledgers::LANES, |row| ledgers::lane(row))?.into_iter().collect();
        rows.missing = all_now(conn, ledgers::MISSING, |row| ledgers::missing(row))?.into_iter().collect();
    }
    if needs.dlqs {
        rows.dlqs = all_now(conn, ledgers::DLQS, |row| ledgers::dlq(row))?.into_iter().collect();
    }
    for id in &needs.running {
        match context.running.take(id) {
            Some(task) => rows.load(task),
            None => _ = needs.ids.insert(id),
        }
    }
    load_rows(conn, context, &needs, &mut rows, now)?;
    let refusals = refusals_in_play(commands, &rows);
    load_rows(conn, context, &Needs::ids(&refusals), &mut rows, now)?;
    let made = rows.made_by_edits(commands, now);
    load_rows(conn, context, &Needs::in_the_way_of(&made), &mut rows, now)?;
    let gates = context.running.load_gates(rows.gate_keys(commands), &mut rows);
    if !gates.is_empty() {
        load_gates(conn, &gates, &mut rows)?;
        context.running.read_gates(gates, &rows);
    }
    Ok(rows)
}

/// Loads the rows that the ids, keys and hashes of `needs` name, in the order of arrival, so that of several with one hash
/// the newest counts. A row that cannot be read is made a dead one, so that the batch sees it as what it is now.
fn load_rows(
    conn: &Connection,
    context: &Context,
    needs: &Needs<'_>,
    rows: &mut Rows,
    now: Millis,
) -> Result<(), Fault> {
    if needs.no_rows() {
        return Ok(());
    }
    let mut unreadable = Vec::new();
    let mut statement = conn.prepare_cached(LOAD)?;
    let mut slots = Slots::of(&mut statement);
    slots.add(json_array(&needs.ids)).add(json_array(&needs.keys)).add(json_array(&needs.hashes));
    slots.done()?;
    let mut found = statement.raw_query();
    while let Some(row) = found.next()? {
        match Columns::of(row).task() {
            Ok((_, task)) => rows.load(task),
            Err(row) => unreadable.push(row.seq),
        }
    }
    for seq in unreadable {
        if let Some(task) = quarantine::set_aside(conn, seq, now, context)? {
            rows.load(task);
        }
    }
    Ok(())
}

fn json_array<'a>(words: impl IntoIterator<Item = &'a &'a str>) -> String {
    let words: Vec<&str> = words.into_iter().copied().collect();
    serde_json::json!(words).to_string()
}

/// The gates that have a state or hold something, of those with these keys.
const GATES: &str = "SELECT wanted.value, gates.state, \
     EXISTS (SELECT 1 FROM tasks INDEXED BY tasks_held WHERE held_by IS NOT NULL AND held_by = wanted.value) AS crowded \
     FROM json_each(?) AS wanted LEFT JOIN gates ON gates.key = wanted.value WHERE gates.key IS NOT NULL OR crowded";

/// Loads what the rules need to know of gates.
fn load_gates(conn: &Connection, keys: &BTreeSet<String>, rows: &mut Rows) -> Result<(), Fault> {
    let mut statement = conn.prepare_cached(GATES)?;
    let mut slots = Slots::of(&mut statement);
    slots.add(serde_json::json!(keys).to_string());
    slots.done()?;
    let mut found = statement.raw_query();
    while let Some(row) = found.next()? {
        ledgers::load_gate(&mut Columns::of(row), rows).map_err(Fault::Unusable)?;
    }
    Ok(())
}
