//! The small tables that all workers share: lane ledgers, spots found missing, DLQ ledgers, gates, pauses.

use super::columns::Columns;
use super::value::Source;
use crate::gate::GateState;
use crate::store::Pause;
use crate::task::{DlqLedger, Lane, LaneKey, LaneLedger, Millis, Rows, Spot};

pub(crate) const LANES: &str = "SELECT queue, lane, mark, probed_at, probe_gap_ms, probe_mark FROM lanes";

pub(crate) fn lane<R: Source>(row: &mut Columns<'_, R>) -> Result<(LaneKey, LaneLedger), String> {
    let key = LaneKey { queue: row.next()?, lane: row.word(Lane::parse)? };
    let ledger =
        LaneLedger { mark: row.next()?, probed_at: row.next()?, probe_gap_ms: row.next()?, probe_mark: row.next()? };
    Ok((key, ledger))
}

pub(crate) const MISSING: &str = "SELECT queue, spot, delay_ms, at FROM missing";

pub(crate) fn missing<R: Source>(row: &mut Columns<'_, R>) -> Result<(Spot, Millis), String> {
    let (queue, spot): (String, &str) = (row.next()?, row.next()?);
    let (delay_ms, at) = (row.next()?, row.next()?);
    let spot = match Lane::parse(spot) {
        Some(lane) => Spot::Lane(LaneKey { queue, lane }),
        None => Spot::Rung { queue, delay_ms },
    };
    Ok((spot, at))
}

/// The columns of `missing` that name a spot: queue, spot, delay.
pub(crate) fn spot_columns(spot: &Spot) -> (&str, &'static str, Millis) {
    match spot {
        Spot::Lane(key) => (&key.queue, key.lane.as_str(), 0),
        Spot::Rung { queue, delay_ms } => (queue, "rung", *delay_ms),
    }
}

pub(crate) const DLQS: &str = "SELECT queue, dirty, cleaned, pass, pass_until, pass_began, strangers FROM dlqs";

pub(crate) fn dlq<R: Source>(row: &mut Columns<'_, R>) -> Result<(String, DlqLedger), String> {
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

/// Gives the rules a gate from its key, its state and whether it holds somebody.
pub(crate) fn load_gate<R: Source>(row: &mut Columns<'_, R>, rows: &mut Rows) -> Result<(), String> {
    let (key, state, crowded): (String, Option<String>, bool) = (row.next()?, row.next()?, row.next()?);
    if crowded {
        rows.crowded.insert(key.clone());
    }
    if let Some(state) = state.and_then(|text| gate_state(&key, &text)) {
        rows.gates.insert(key, state);
    }
    Ok(())
}

/// A state that cannot be read is as good as none: a gate that forgets is better than tasks that never run.
pub(crate) fn gate_state(key: &str, text: &str) -> Option<GateState> {
    serde_json::from_str(text)
        .inspect_err(|error| tracing::error!(gate = key, %error, "the state of a gate cannot be read; it begins anew"))
        .ok()
}

pub(crate) const PAUSES: &str = "SELECT key, since, reason FROM pauses ORDER BY key";

pub(crate) fn pause<R: Source>(row: &mut Columns<'_, R>) -> Result<Pause, String> {
    Ok(Pause { key: row.next()?, since: row.next()?, reason: row.next()? })
}
