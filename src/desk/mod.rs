//! What people and programs ask and do, whichever door they come through: command line, HTTP API and console call the same functions
//! and show the same documents.
//!
//! Nothing here decides about a task: it asks the store, gives commands to it and publishes what it answers. Nothing here prints,
//! knows HTTP, or judges who may.

pub mod filter;
pub mod gates;
pub mod letters;
mod mask;
pub mod people;
pub mod queues;
pub mod replays;
pub mod rules;
pub mod secret;
pub mod stats;
pub mod submit;
pub mod task;
mod tasks;
mod wake;

pub use mask::Mask;
pub use tasks::{Act, Fate, FateOf, Skips, act, discard_chosen};
pub use wake::{Sent, Waker};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::task::Millis;

/// A page of a list, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page starts, for `cursor`; null at the end.
    pub next: Option<String>,
}

impl<T> List<T> {
    /// A list that is not paged.
    pub fn whole(items: Vec<T>) -> List<T> {
        List { items, next: None }
    }
}

/// RFC 3339 in UTC with milliseconds. A number that is no time of ours comes back as the number.
pub fn time(at: Millis) -> String {
    match jiff::Timestamp::from_millisecond(at) {
        Ok(timestamp) => format!("{timestamp:.3}"),
        Err(_) => at.to_string(),
    }
}

/// Like [`time`], for what may be absent: null.
pub fn time_or_null(at: Option<Millis>) -> Value {
    at.map_or(Value::Null, |at| time(at).into())
}

/// A document as JSON. Documents are made of text, numbers and lists, so this cannot fail; were it to, null says so.
pub fn to_json(document: &impl Serialize) -> Value {
    serde_json::to_value(document).unwrap_or_default()
}
