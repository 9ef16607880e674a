//! Rules that are kept in the store for all nodes, and which rules each node runs.

use serde::Serialize;

use crate::task::Millis;

/// How long a node is remembered after it was last seen.
pub const NODE_FORGOTTEN_MS: Millis = 10 * 60_000;

/// A version of the rules. The newest holds on every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyVersion {
    /// From 1 on.
    pub version: i64,
    /// When it was applied, by the store's clock.
    pub applied_at: Millis,
    /// What it says.
    #[serde(flatten)]
    pub rules: NewPolicies,
}

/// A version of the rules that is to be applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewPolicies {
    /// Who.
    pub applied_by: String,
    /// Why, in that person's words.
    pub reason: Option<String>,
    /// `[[policy]]`, `[[limit]]` and `[[breaker]]` as in a config file; they stand in for those of each node's own file. `None`: every node
    /// follows its own file again.
    pub text: Option<String>,
    /// The digest of what it says; empty without text.
    pub hash: String,
}

/// What a worker says that it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The worker.
    pub worker: String,
    /// The digest of its rules.
    pub hash: String,
    /// The version in the store that they come from; `None`: its own file.
    pub version: Option<i64>,
    /// When it last said so, by the store's clock.
    pub seen_at: Millis,
}
