//! The rules of DESIGN §4, one sentence at a time, on `Rows` alone: no store, no broker, no clock.
//!
//! `random` throws everything at the rows and looks only at invariants; the other modules keep single promises.

mod claims;
mod dead;
mod deciding;
mod desk;
mod fallbacks;
mod gates;
mod lanes;
mod late_or_lost;
mod random;
mod same_task;
