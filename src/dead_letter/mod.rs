//! What people do with dead letters: look at them by group, replay them by jobs, and see them as copies in the broker's DLQ.
//!
//! The rows in the store are the truth; the DLQ is a copy for people and tools that look at the broker. This module never decides that
//! a task is dead or alive.

mod groups;
mod mirror;
pub mod replay;
mod strangers;
mod transfer;

pub use groups::{Group, Trend, groups, trend};
pub use mirror::{MirrorError, PassReport, odd_dlqs, pass};
pub use strangers::{Stranger, strangers};
pub use transfer::{Imported, LineError, export_line, import, import_line};
