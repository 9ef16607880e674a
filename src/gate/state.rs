//! What a gate remembers, whatever its kind.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::task::Millis;

use super::breaker::{Breaker, Evidence, Turn};
use super::limit::{Cell, Window, ratio_room};
use super::ramp::{Ramp, seed};
use super::{LimitKind, RuleOf, WhenOpen};

/// A claim that holds a place: task and fence.
pub type Place = (String, i64);

/// How fast a key comes back after a Retry-After has ended.
const HOLD_STEP_MS: Millis = 1_000;
/// The longest that a Retry-After holds others than the task that got it.
const LONGEST_HOLD_MS: Millis = 24 * 3_600_000;

/// The state of one gate; a gate that was never used has none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "gate", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a batch has a handful of them")]
pub enum GateState {
    /// A rate limit.
    Limit(Cell),
    /// A limit by ratio: first attempts and retries.
    Ratio(Window),
    /// A concurrency cap.
    Cap {
        /// Who is inside.
        places: BTreeSet<Place>,
    },
    /// A breaker.
    Breaker(Breaker),
    /// A Retry-After.
    Hold {
        /// When it was asked for.
        since: Millis,
        /// Until when nothing starts.
        until: Millis,
        /// The return after it.
        ramp: Option<Ramp>,
    },
}

impl GateState {
    /// Whether nothing would change if it were forgotten, by what it was used for before that time. What keeps no time (failures in a
    /// row, a ratio's window) is never idle while it remembers anything.
    pub fn is_idle_since(&self, before: Millis) -> bool {
        match self {
            GateState::Limit(cell) => cell.used_up_to() < before,
            GateState::Ratio(window) => *window == Window::default(),
            GateState::Cap { places } => places.is_empty(),
            GateState::Breaker(breaker) => {
                let epoch = breaker.epoch;
                *breaker == Breaker { epoch, ..Breaker::default() }
            }
            GateState::Hold { until, ramp, .. } => {
                *until < before.saturating_sub(LONGEST_HOLD_MS) || ramp.is_none() && *until < before
            }
        }
    }
}

/// What a look at a gate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// An attempt may start.
    Open {
        /// How many may; `None`: any number.
        room: Option<i64>,
    },
    /// None may.
    Shut {
        /// When the next one may; `None` when only an event can tell.
        opens_at: Option<Millis>,
    },
    /// None may, because a breaker has tripped.
    Tripped {
        /// What happens to due tasks.
        when_open: WhenOpen,
        /// As in [`Look::Shut`].
        opens_at: Option<Millis>,
    },
}

/// What a claim keeps of a gate it went through, so that its end is counted where it belongs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pass {
    /// The gate.
    pub gate: String,
    /// The breaker's epoch; 0 for other gates.
    pub epoch: i64,
}

/// Whether an attempt may start, by the state that the gate `key` has.
pub fn look(rule: RuleOf<'_>, key: &str, state: Option<&GateState>, retry: bool, now: Millis) -> Look {
    let free = Look::Open { room: None };
    match (rule, state) {
        (RuleOf::Limit(rule), state) => match &rule.kind {
            LimitKind::Rate { rate, burst } => {
                let cell = if let Some(GateState::Limit(cell)) = state { *cell } else { Cell::RESTED };
                match cell.room(*rate, *burst, now) {
                    0 => Look::Shut { opens_at: Some(cell.opens_at(*rate, *burst, now)) },
                    room => Look::Open { room: Some(room) },
                }
            }
            LimitKind::Ratio { .. } if !retry => free,
            LimitKind::Ratio { permille, window_ms, floor } => {
                let empty = Window::default();
                let window = if let Some(GateState::Ratio(window)) = state { window } else { &empty };
                match ratio_room(window, *permille, *window_ms, *floor, now) {
                    0 => Look::Shut { opens_at: Some(Window::next_part_at(*window_ms, now)) },
                    room => Look::Open { room: Some(room) },
                }
            }
        },
        (RuleOf::Cap(rule), Some(GateState::Cap { places })) => {
            match rule.max.saturating_sub(i64::try_from(places.len()).unwrap_or(i64::MAX)) {
                room if room > 0 => Look::Open { room: Some(room) },
                _ => Look::Shut { opens_at: None },
            }
        }
        (RuleOf::Cap(rule), _) => Look::Open { room: Some(rule.max) },
        (RuleOf::Breaker(rule), Some(GateState::Breaker(breaker))) => breaker.look(rule, now),
        // One from the future was written before the clock was set back.
        (RuleOf::Hold, Some(GateState::Hold { since, until, .. })) if *since <= now && now < *until => {
            Look::Shut { opens_at: Some(*until) }
        }
        (RuleOf::Hold, Some(GateState::Hold { ramp: Some(ramp), .. })) => match ramp.room(HOLD_STEP_MS, seed(key), now)
        {
            None => free,
            Some(0) => Look::Shut { opens_at: Some(ramp.opens_at(HOLD_STEP_MS, seed(key), now)) },
            room => Look::Open { room },
        },
        (RuleOf::Breaker(_) | RuleOf::Hold, _) => free,
    }
}

/// An attempt starts through a gate that is open; `waited`: something held it before. The state afterwards, when it changed, and what the claim has to keep.
pub fn take(
    rule: RuleOf<'_>,
    key: &str,
    state: Option<&GateState>,
    place: &Place,
    retry: bool,
    waited: bool,
    now: Millis,
) -> (Option<GateState>, Option<Pass>) {
    let pass = |epoch| Some(Pass { gate: key.to_owned(), epoch });
    match rule {
        RuleOf::Limit(rule) => match &rule.kind {
            LimitKind::Rate { rate, burst } => {
                let mut cell = if let Some(GateState::Limit(cell)) = state { *cell } else { Cell::RESTED };
                cell.take(*rate, *burst, now);
                (Some(GateState::Limit(cell)), None)
            }
            LimitKind::Ratio { window_ms, .. } => {
                let mut window =
                    if let Some(GateState::Ratio(window)) = state { window.clone() } else { Window::default() };
                window.add(retry, *window_ms, now);
                (Some(GateState::Ratio(window)), None)
            }
        },
        RuleOf::Cap(_) => {
            let mut places = if let Some(GateState::Cap { places }) = state { places.clone() } else { BTreeSet::new() };
            places.insert(place.clone());
            (Some(GateState::Cap { places }), pass(0))
        }
        RuleOf::Breaker(_) => {
            // A breaker that was never touched is in epoch 0, and so is a claim that keeps nothing: the common way costs nothing.
            let Some(GateState::Breaker(breaker)) = state else { return (None, None) };
            let mut breaker = breaker.clone();
            let probe = breaker.take(place.clone(), waited);
            let epoch = breaker.epoch;
            let changed = state != Some(&GateState::Breaker(breaker.clone()));
            (changed.then_some(GateState::Breaker(breaker)), if probe || epoch > 0 { pass(epoch) } else { None })
        }
        RuleOf::Hold => match state {
            Some(GateState::Hold { since, until, ramp: Some(ramp) }) => {
                let mut ramp = *ramp;
                ramp.started += 1;
                let ramp = ramp.room(HOLD_STEP_MS, seed(key), now).is_some().then_some(ramp);
                (Some(GateState::Hold { since: *since, until: *until, ramp }), None)
            }
            _ => (None, None),
        },
    }
}

/// A claim that went through a breaker has ended. The state afterwards, when it changed, and whether the breaker turned.
pub fn settle(
    rule: RuleOf<'_>,
    state: Option<&GateState>,
    epoch: i64,
    place: &Place,
    evidence: Evidence<'_>,
    now: Millis,
) -> (Option<GateState>, Option<Turn>) {
    let RuleOf::Breaker(rule) = rule else { return (None, None) };
    let known = if let Some(GateState::Breaker(breaker)) = state { Some(breaker) } else { None };
    let moves = match evidence {
        Evidence::Nothing => known.is_some_and(|breaker| breaker.holds(place)),
        Evidence::Success => match known {
            Some(breaker) => breaker.minds_success(rule),
            None => rule.failure_rate.is_some(),
        },
        Evidence::Failure { .. } => true,
    };
    if !moves {
        return (None, None);
    }
    let mut breaker = known.cloned().unwrap_or_default();
    let turn = breaker.settle(rule, epoch, place, evidence, now);
    (Some(GateState::Breaker(breaker)), turn)
}

/// A claim is over: its place, if it holds one here, is free. The state afterwards, when it changed.
pub fn leave(state: Option<&GateState>, place: &Place) -> Option<GateState> {
    match state {
        Some(GateState::Cap { places }) if places.contains(place) => {
            let mut places = places.clone();
            places.remove(place);
            Some(GateState::Cap { places })
        }
        Some(GateState::Breaker(breaker)) if breaker.holds(place) => {
            let mut breaker = breaker.clone();
            breaker.leave(place);
            Some(GateState::Breaker(breaker))
        }
        _ => None,
    }
}

/// The other side asked at `now` to be left alone until then. The longest such wish counts, for at most a day: one answer must not
/// silence everybody of its key for longer than people look away.
pub fn hold(state: Option<&GateState>, until: Millis, now: Millis) -> GateState {
    let known = match state {
        Some(GateState::Hold { since, until, .. }) if *since <= now => *until,
        _ => until,
    };
    let until = known.max(until).min(now.saturating_add(LONGEST_HOLD_MS));
    GateState::Hold { since: now, until, ramp: Some(Ramp::new(until)) }
}
