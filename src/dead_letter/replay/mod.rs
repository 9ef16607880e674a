//! Replay jobs: many dead letters put to run again, as fast as asked, and no further than they end well.
//!
//! The selection is frozen in the store when the job is made. What to do next is a pure function of the job, its counts and the time
//! ([`next`]); [`drive`] asks it and carries it out. Whoever holds a job's lease drives it: a worker, or the command that made it. A job
//! never decides what becomes of a task; it only puts dead ones to run, each by the same transition as a single replay.

mod drive;
mod plan;

pub use drive::{Driven, HOLD_MS, Publisher, ReplayNews, Until, drive};
pub use plan::{DEFAULT_MAX_FAILURE_RATIO, LEAST_ENDED, MOST_AT_ONCE, Next, STAGES, next, time_left_ms};
