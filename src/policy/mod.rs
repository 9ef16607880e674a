//! Which failures deserve a retry, and after how long.
//!
//! Pure: no I/O, no clock, no random source of its own. `explain`, the simulator and production ask the same functions.

mod backoff;
mod classify;
mod retry_after;
mod topic;

pub use backoff::{Backoff, MAX_RUNGS};
pub use classify::{Disposition, Lists, Ruling, classify};
pub use retry_after::{OverCap, RetryAfterMode, RetryAfterRule, parse_retry_after};
pub use topic::{TopicError, TopicPattern, check_topic};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::task::Millis;

/// The rules for a kind of task.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Unique among the policies; `default` is the built-in last one.
    pub name: String,
    /// Task types it is for.
    pub task_type: TopicPattern,
    /// Labels a task must have, with these values.
    pub labels: BTreeMap<String, String>,
    /// Failed attempts that are followed by another; attempts are at most one more.
    pub max_retries: i64,
    /// The delays.
    pub backoff: Backoff,
    /// What a `Retry-After` does to them.
    pub retry_after: RetryAfterRule,
    /// From the task's creation; no attempt starts after it. `None`: no deadline of the policy's own.
    pub deadline_ms: Option<Millis>,
    /// Failures that deserve a retry although the defaults say otherwise.
    pub retryable: Lists,
    /// Failures that do not although the defaults say otherwise.
    pub permanent: Lists,
    /// Failures that mean "too fast".
    pub rate_limited: Lists,
}

impl Policy {
    /// The built-in last rule: 15, 30, 45 minutes, three retries.
    pub fn built_in() -> Policy {
        const MINUTE_MS: Millis = 60_000;
        Policy {
            name: "default".into(),
            task_type: TopicPattern::any(),
            labels: BTreeMap::new(),
            max_retries: 3,
            backoff: Backoff::Steps(vec![15 * MINUTE_MS, 30 * MINUTE_MS, 45 * MINUTE_MS]),
            retry_after: RetryAfterRule::default(),
            deadline_ms: None,
            retryable: Lists::default(),
            permanent: Lists::default(),
            rate_limited: Lists::default(),
        }
    }

    fn matches(&self, task_type: &str, labels: &BTreeMap<String, String>) -> bool {
        self.task_type.matches(task_type) && self.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
    }
}

/// All rules in order; the built-in one closes the list.
#[derive(Debug, Clone)]
pub struct Policies {
    rules: Vec<Arc<Policy>>,
}

impl Policies {
    /// `rules` in order, then the built-in rule.
    pub fn new(rules: Vec<Policy>) -> Policies {
        let mut rules: Vec<Arc<Policy>> = rules.into_iter().map(Arc::new).collect();
        rules.push(Arc::new(Policy::built_in()));
        Policies { rules }
    }

    /// The first rule that matches. There always is one.
    pub fn pick(&self, task_type: &str, labels: &BTreeMap<String, String>) -> &Arc<Policy> {
        self.rules
            .iter()
            .find(|rule| rule.matches(task_type, labels))
            .unwrap_or_else(|| self.rules.last().unwrap_or_else(|| unreachable!("new() adds the built-in rule")))
    }

    /// Every rule in order, the built-in one last.
    pub fn rules(&self) -> &[Arc<Policy>] {
        &self.rules
    }

    /// The distinct delays that the broker can hold: steps and fixed delays of every rule that can be reached.
    pub fn rungs(&self) -> BTreeSet<Millis> {
        let catch_all = self.rules.iter().position(|rule| rule.task_type.is_any() && rule.labels.is_empty());
        let reachable = catch_all.map_or(self.rules.len(), |last| last + 1);
        self.rules[..reachable].iter().flat_map(|rule| rule.backoff.rungs()).collect()
    }
}

impl Default for Policies {
    fn default() -> Policies {
        Policies::new(Vec::new())
    }
}
