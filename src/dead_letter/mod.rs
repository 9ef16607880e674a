//! The DLQ in the broker, kept equal to the dead rows in the store.
//!
//! The rows are the truth; the DLQ is a copy for people and tools that look at the broker. This module never decides that a task is
//! dead or alive.

mod mirror;

pub use mirror::{MirrorError, PassReport, odd_dlqs, pass};
