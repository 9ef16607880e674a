//! The small tables that all workers share: lane ledgers, spots found missing, DLQ ledgers, gates, pauses.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::columns::{Columns, Slots, Source};
use super::fault::Fault;
use crate::gate::GateState;
use crate::store::Pause;
use crate::task::{DlqLedger, Lane, LaneKey, LaneLedger, Millis, Rows, Spot};

/// Reads all rows of a small table for a question; one that cannot be read is an error, for only we write them.
pub(super) async fn all<T>(
    conn: &mut SqliteConnection,
    sql: &'static str,
    read: impl Fn(&mut Columns<'_>) -> Result<T, String>,
) -> Result<Vec<T>, Fault> {
    let rows: Vec<SqliteRow> = sqlx::query(sql).fetch_all(conn).await?;
    rows.iter().map(|row| read(&mut Columns::of(row)).map_err(Fault::Unusable)).collect()
}

/// The same for the writer.
pub(super) fn all_now<T>(
    conn: &Connection,
    sql: &'static str,
    read: impl Fn(&mut Columns<'_, rusqlite::Row<'_>>) -> Result<T, String>,
) -> Result<Vec<T>, Fault> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.raw_query();
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read(&mut Columns::of(row)).map_err(Fault::Unusable)?);
    }
    Ok(all)
}

pub(super) const LANES: &str = "SELECT queue, lane, mark, probed_at, probe_gap_ms, probe_mark FROM lanes";

pub(super) fn lane<R: Source>(row: &mut Columns<'_, R>) -> Result<(LaneKey, LaneLedger), String> {
    let key = LaneKey { queue: row.next()?, lane: row.word(Lane::parse)? };
    let ledger =
        LaneLedger { mark: row.next()?, probed_at: row.next()?, probe_gap_ms: row.next()?, probe_mark: row.next()? };
    Ok((key, ledger))
}

pub(super) fn missing(conn: &Connection) -> Result<BTreeMap<Spot, Millis>, Fault> {
    let rows = all_now(conn, "SELECT queue, spot, delay_ms, at FROM missing", |row| {
        let (queue, spot): (String, &str) = (row.next()?, row.next()?);
        let (delay_ms, at) = (row.next()?, row.next()?);
        let spot = match Lane::parse(spot) {
            Some(lane) => Spot::Lane(LaneKey { queue, lane }),
            None => Spot::Rung { queue, delay_ms },
        };
        Ok((spot, at))
    });
    Ok(rows?.into_iter().collect())
}

/// The columns of `missing` that name a spot: queue, spot, delay.
pub(super) fn spot_columns(spot: &Spot) -> (&str, &'static str, Millis) {
    match spot {
        Spot::Lane(key) => (&key.queue, key.lane.as_str(), 0),
        Spot::Rung { queue, delay_ms } => (queue, "rung", *delay_ms),
    }
}

pub(super) const DLQS: &str = "SELECT queue, dirty, cleaned, pass, pass_until, pass_began, strangers FROM dlqs";

pub(super) fn dlq<R: Source>(row: &mut Columns<'_, R>) -> Result<(String, DlqLedger), String> {
    let queue = row.next()?;
    let ledger = DlqLedger {
        dirty: row.next()?,
        cleaned: row.next()?,
        pass: row.next()?,
        pass_until: row.next()?,
        pass_began: row.next()?,
        strangers: row.next()?,
    };
    Ok((queue, ledger))
}

/// The gates that have a state or hold something, of those with these keys.
pub(super) const GATES: &str = "SELECT wanted.value, gates.state, \
     EXISTS (SELECT 1 FROM tasks INDEXED BY tasks_held WHERE held_by IS NOT NULL AND held_by = wanted.value) AS crowded \
     FROM json_each(?) AS wanted LEFT JOIN gates ON gates.key = wanted.value WHERE gates.key IS NOT NULL OR crowded";

/// Loads what the rules need to know of gates.
pub(super) fn gates(conn: &Connection, keys: &BTreeSet<String>, rows: &mut Rows) -> Result<(), Fault> {
    let mut statement = conn.prepare_cached(GATES)?;
    let mut slots = Slots::of(&mut statement);
    slots.add(serde_json::json!(keys).to_string());
    slots.done()?;
    let mut found = statement.raw_query();
    while let Some(row) = found.next()? {
        let mut columns = Columns::of(row);
        let mut read = || Ok((columns.next::<String>()?, columns.next::<Option<String>>()?, columns.next::<bool>()?));
        let (key, state, crowded) = read().map_err(Fault::Unusable)?;
        if crowded {
            rows.crowded.insert(key.clone());
        }
        if let Some(state) = state.and_then(|text| gate_state(&key, &text)) {
            rows.gates.insert(key, state);
        }
    }
    Ok(())
}

/// A state that cannot be read is as good as none: a gate that forgets is better than tasks that never run.
pub(super) fn gate_state(key: &str, text: &str) -> Option<GateState> {
    serde_json::from_str(text)
        .inspect_err(|error| tracing::error!(gate = key, %error, "the state of a gate cannot be read; it begins anew"))
        .ok()
}

pub(super) const PAUSES: &str = "SELECT key, since, reason FROM pauses ORDER BY key";

pub(super) fn pause<R: Source>(row: &mut Columns<'_, R>) -> Result<Pause, String> {
    Ok(Pause { key: row.next()?, since: row.next()?, reason: row.next()? })
}
