//! The rules in force: versions in the store, what each node runs, and what would happen to a task and why (X2, X3).

mod explain;

pub use explain::{
    BackoffDocument, Ends as EndsDocument, Explained, GateDocument, RetryAfterDocument, RetryDocument, Schedule,
    explain,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time;
use crate::config::{Config, ConfigError, SharedRules};
use crate::store::{NewPolicies, Node, PolicyVersion, Store, StoreError};

/// The versions that are shown.
pub const SHOWN: usize = 100;

/// Versions of the rules, and which of them each node runs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PolicyHistory")]
pub struct History {
    /// Newest first.
    pub items: Vec<VersionDocument>,
    /// Always null: the newest hundred are shown.
    pub next: Option<String>,
    /// What each worker runs.
    pub nodes: Vec<NodeDocument>,
}

/// A version of the rules.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PolicyVersion")]
pub struct VersionDocument {
    /// From 1 on.
    pub version: i64,
    /// When.
    pub applied_at: String,
    /// By whom.
    pub applied_by: String,
    /// Why.
    pub reason: Option<String>,
    /// The digest of what it says.
    pub hash: String,
    /// `[[policy]]`, `[[limit]]` and `[[breaker]]` in TOML; null: each node follows its own file.
    pub text: Option<String>,
}

/// What a worker says that it runs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Worker")]
pub struct NodeDocument {
    /// The worker.
    pub worker: String,
    /// The digest of its rules.
    pub hash: String,
    /// The version they come from; null: its own file.
    pub version: Option<i64>,
    /// When it last said so.
    pub seen_at: String,
    /// Whether it runs what is in force.
    pub current: bool,
}

/// The versions and the nodes.
///
/// # Errors
/// When the store does not answer.
pub async fn history(store: &dyn Store) -> Result<History, StoreError> {
    let versions = store.policies(SHOWN).await?;
    let nodes = nodes_of(versions.first(), store.nodes().await?);
    let document = |version: PolicyVersion| VersionDocument {
        version: version.version,
        applied_at: time(version.applied_at),
        applied_by: version.rules.applied_by,
        reason: version.rules.reason,
        hash: version.rules.hash,
        text: version.rules.text,
    };
    Ok(History { items: versions.into_iter().map(document).collect(), next: None, nodes })
}

/// The workers that have said lately what they run.
///
/// # Errors
/// When the store does not answer.
pub async fn nodes(store: &dyn Store) -> Result<Vec<NodeDocument>, StoreError> {
    let newest = store.policies(1).await?;
    Ok(nodes_of(newest.first(), store.nodes().await?))
}

fn nodes_of(newest: Option<&PolicyVersion>, nodes: Vec<Node>) -> Vec<NodeDocument> {
    let in_force = newest.filter(|newest| newest.rules.text.is_some());
    let document = |node: Node| NodeDocument {
        current: match in_force {
            Some(newest) => node.version == Some(newest.version) && node.hash == newest.rules.hash,
            None => node.version.is_none(),
        },
        worker: node.worker,
        hash: node.hash,
        version: node.version,
        seen_at: time(node.seen_at),
    };
    nodes.into_iter().map(document).collect()
}

/// What applying rules did, or would do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The version in force now; null before there is one.
    pub version: Option<i64>,
    /// Whether it says something else than the one before.
    pub changed: bool,
    /// Whether nothing was written because only a look was asked for.
    pub dry_run: bool,
    /// The digest of the rules.
    pub hash: String,
    /// How many policies they have.
    pub policies: usize,
    /// How many limits.
    pub limits: usize,
    /// How many breakers.
    pub breakers: usize,
}

/// Why rules were not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// They cannot be meant.
    #[error(transparent)]
    Rules(#[from] ConfigError),
    /// The sections cannot be cut out of the text.
    #[error("{0}")]
    Sections(String),
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What rules mean that were read.
#[derive(Debug, Clone)]
pub struct Rules {
    text: Option<String>,
    hash: String,
    counts: (usize, usize, usize),
}

impl Rules {
    /// Every node's own file.
    pub fn own_files() -> Rules {
        Rules { text: None, hash: String::new(), counts: (0, 0, 0) }
    }

    /// Reads rules; other sections in the text are passed over. `source` names it in error texts.
    ///
    /// # Errors
    /// Every mistake.
    pub fn read(source: &str, text: &str) -> Result<Rules, ApplyError> {
        let rules = SharedRules::read(source, text)?;
        // The built-in policy closes every list and is nobody's work.
        let counts = (rules.policies.rules().len() - 1, rules.limits.len(), rules.breakers.len());
        let kept = SharedRules::sections_of(text).map_err(|error| ApplyError::Sections(error.to_string()))?;
        Ok(Rules { text: Some(kept), hash: rules.digest(), counts })
    }
}

/// Puts rules in the store as the newest version, unless they are in force already or only a look is asked for.
///
/// # Errors
/// When the store does not answer.
pub async fn apply(
    store: &dyn Store,
    rules: Rules,
    by: &str,
    reason: Option<String>,
    dry_run: bool,
) -> Result<Applied, StoreError> {
    let Rules { text, hash, counts: (policies, limits, breakers) } = rules;
    let newest = store.policies(1).await?.pop();
    let same = match &newest {
        Some(newest) => newest.rules.hash == hash && newest.rules.text.is_some() == text.is_some(),
        None => text.is_none(),
    };
    let before = newest.map(|newest| newest.version);
    let version = if same || dry_run {
        before
    } else {
        let new = NewPolicies { applied_by: by.to_owned(), reason, text, hash: hash.clone() };
        Some(store.apply_policies(new).await?)
    };
    Ok(Applied { version, changed: !same, dry_run, hash, policies, limits, breakers })
}

/// The configuration with the rules in force, and where they come from: the newest version in the store if there is one, else `own`, which
/// came from `own_source`.
///
/// # Errors
/// When the store does not answer, or holds rules that cannot be used.
pub async fn in_force(store: &dyn Store, own: &Config, own_source: &str) -> Result<(Config, String), ApplyError> {
    if let Some(newest) = store.policies(1).await?.pop()
        && let Some(text) = newest.rules.text
    {
        let name = format!("policies version {}", newest.version);
        let rules = SharedRules::read(&name, &text)?;
        return Ok((own.clone().with_rules(rules), name));
    }
    Ok((own.clone(), own_source.to_owned()))
}
