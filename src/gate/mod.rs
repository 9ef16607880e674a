//! What can stop a due task: retry limits, concurrency caps, breakers, Retry-After holds, pauses (§4.3).
//!
//! The law is at claim, in its transaction: all gates of the task or none. Each gate is a state machine over explicit time;
//! what it remembers lies in the store under the gate's key, so all workers share it and a restart forgets nothing. Pure: no
//! I/O, no clock, no random source.

mod pause;
mod rules;
mod share;

pub use pause::{pause_stops, queue_pause, type_pause};
pub use rules::{BreakerRule, CapRule, FailureRate, Gates, LimitKind, LimitRule, Per, Rate, Subject, WhenOpen, Word};
pub use share::{LaneTurn, Line, Share};
