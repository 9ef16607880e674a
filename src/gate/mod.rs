//! What can stop a due task: retry limits, concurrency caps, breakers, Retry-After holds, pauses (§4.3).
//!
//! The law is at claim, in its transaction: all gates of the task or none. Each gate is a state machine over explicit time;
//! what it remembers lies in the store under the gate's key, so all workers share it and a restart forgets nothing. Pure: no
//! I/O, no clock, no random source.

mod admission;
mod breaker;
mod key;
mod limit;
mod pause;
mod ramp;
mod rules;
mod share;
mod state;

#[cfg(test)]
mod tests;

pub use admission::{Chance, HeldGate, chances, in_turns};
pub use breaker::{Breaker, Evidence, PersonsWord, Phase, Return, Turn};
pub use key::{BreakerKeyError, GateOf, RuleOf, Way, gate_value};
pub use limit::{Cell, Window};
pub use pause::{is_pause, pause_stops, queue_pause, type_pause};
pub use ramp::Ramp;
pub use rules::{BreakerRule, CapRule, FailureRate, Gates, LimitKind, LimitRule, Per, Rate, Subject, WhenOpen, Word};
pub use share::{First, LaneBuffer, LaneTurn, Line, Share};
pub use state::{GateState, Look, Pass, Place, hold, leave, look, settle, take};
