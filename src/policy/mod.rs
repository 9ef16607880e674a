//! Which failures deserve a retry, and after how long.
//!
//! Pure: no I/O, no clock, no random source of its own. `explain`, the simulator and production ask the same functions.

mod backoff;
mod classify;
mod compare;
mod explain;
mod hours;
mod retry_after;
mod rule;
mod topic;
mod variant;

pub use backoff::{Backoff, MAX_RUNGS};
pub use classify::{Disposition, Lists, Ruling, classify};
pub use compare::{Arm, Difference, difference, least_attempts, sentence, wilson};
pub use explain::{Due, Ends, Explanation, Timetable};
pub use hours::{Hours, find_zone, parse_time_of_day};
pub use retry_after::{OverCap, RetryAfterMode, RetryAfterRule, parse_retry_after};
pub use rule::{Fallback, Mismatch, Override, Policy, Schedule};
pub use topic::{TopicError, TopicPattern, check_topic};
pub use variant::Variant;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::task::{ALERT_TYPE, Millis};

/// All rules in order; the built-in one closes the list. Two are equal when their rules say the same.
#[derive(Debug, Clone)]
pub struct Policies {
    rules: Vec<Arc<Policy>>,
    /// For alerts, whatever the rules say: one for everything with no retries must not silence them.
    alerts: Arc<Policy>,
    digest: String,
}

impl PartialEq for Policies {
    fn eq(&self, other: &Policies) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Policies {}

impl std::hash::Hash for Policies {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl Policies {
    /// `rules` in order, then the built-in rule.
    pub fn new(rules: Vec<Policy>) -> Policies {
        let mut rules: Vec<Arc<Policy>> = rules.into_iter().map(Arc::new).collect();
        rules.push(Arc::new(Policy::built_in()));
        // Their debug form names every field, so rules that say the same have the same one, however the file is laid out.
        let digest = hex::encode(Sha256::digest(format!("{rules:?}")));
        Policies { rules, alerts: Arc::new(Policy::for_alerts()), digest }
    }

    /// SHA-256 (hex) of what the rules say. The same for all nodes that run the same rules with the same version of the program.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The first rule that matches at `now`. There always is one.
    pub fn pick(&self, task_type: &str, labels: &BTreeMap<String, String>, now: Millis) -> &Arc<Policy> {
        if task_type == ALERT_TYPE {
            return &self.alerts;
        }
        self.rules
            .iter()
            .find(|rule| rule.mismatch(task_type, labels, now).is_none())
            .unwrap_or_else(|| self.rules.last().unwrap_or_else(|| unreachable!("new() adds the built-in rule")))
    }

    /// Every rule in order, the built-in one last.
    pub fn rules(&self) -> &[Arc<Policy>] {
        &self.rules
    }

    /// The rules that some task can reach: those up to the first one for everything.
    pub fn reachable(&self) -> &[Arc<Policy>] {
        let last = self.rules.iter().position(|rule| rule.is_for_everything());
        &self.rules[..last.map_or(self.rules.len(), |last| last + 1)]
    }

    /// The distinct delays that the broker can hold: steps and fixed delays of every rule that can be reached, its variants and its
    /// overrides.
    pub fn rungs(&self) -> BTreeSet<Millis> {
        self.reachable().iter().flat_map(|rule| rule.backoffs().flat_map(Backoff::rungs)).collect()
    }
}

impl Default for Policies {
    fn default() -> Policies {
        Policies::new(Vec::new())
    }
}
