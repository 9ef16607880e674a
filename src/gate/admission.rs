//! Which held tasks start next.
//!
//! A held task has a turn, which is the narrowest key of its gates. Tasks whose gate has room take turns, one start each, so that
//! one shop's thousand never stand before another's one. Nothing is reserved: the claim takes the tokens, and a task that
//! another gate stops is passed over.

use std::collections::BTreeMap;

use crate::task::Millis;

use super::{GateState, Gates, Look, WhenOpen, look};

/// A gate that holds tasks of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldGate {
    /// Its key.
    pub gate: String,
    /// The queue.
    pub queue: String,
    /// Its state.
    pub state: Option<GateState>,
}

/// So many that a gate holds may try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chance {
    /// The gate.
    pub gate: String,
    /// The queue.
    pub queue: String,
    /// How many; at least one.
    pub most: usize,
}

/// The gates of `held` that have room, for at most `places` starts, and when to look again: the earliest moment at which one that is
/// shut has a chance by itself.
pub fn chances(held: &[HeldGate], gates: &Gates, places: usize, now: Millis) -> (Vec<Chance>, Option<Millis>) {
    let mut open = Vec::new();
    let mut next: Option<Millis> = None;
    for HeldGate { gate, queue, state } in held {
        // A gate that the configuration does not know is open.
        let free = Look::Open { room: None };
        let room = match gates.rule(gate).map_or(free, |rule| look(rule, gate, state.as_ref(), true, now)) {
            Look::Open { room } => room.and_then(|room| usize::try_from(room).ok()).unwrap_or(places),
            // The claim ends them, whether they are dead letters or fall back.
            Look::Tripped { when_open: WhenOpen::DeadLetter | WhenOpen::Fallback, .. } => places,
            Look::Shut { opens_at } | Look::Tripped { opens_at, .. } => {
                next = [next, opens_at].into_iter().flatten().min();
                continue;
            }
        };
        let most = room.min(places);
        if most > 0 {
            open.push(Chance { gate: gate.clone(), queue: queue.clone(), most });
        }
    }
    (open, next)
}

/// Orders candidates by turns: first the oldest of each turn, beginning with the turn after `cursor`, then the second of each, …
/// `of` tells a candidate's turn and since when it is due.
pub fn in_turns<T>(mut candidates: Vec<T>, cursor: &str, of: impl Fn(&T) -> (&str, Millis)) -> Vec<T> {
    candidates.sort_by_key(|candidate| of(candidate).1);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut placed: Vec<((usize, bool, String), T)> = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let turn = of(&candidate).0.to_owned();
        let round = seen.entry(turn.clone()).or_insert(0);
        placed.push(((*round, turn.as_str() <= cursor, turn), candidate));
        *round += 1;
    }
    placed.sort_by(|(a, _), (b, _)| a.cmp(b));
    placed.into_iter().map(|(_, candidate)| candidate).collect()
}
