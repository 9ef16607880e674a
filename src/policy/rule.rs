//! One rule: whom it is for and what it says.

use std::collections::BTreeMap;
use std::fmt;

use crate::task::{Failure, Millis};

use super::{Backoff, Hours, Lists, RetryAfterRule, TopicPattern, Variant};

/// The rules for a kind of task.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Unique among the policies; `default` is the built-in last one.
    pub name: String,
    /// Task types it is for.
    pub task_type: TopicPattern,
    /// Labels a task must have, with these values.
    pub labels: BTreeMap<String, String>,
    /// When it holds; `None`: at any hour.
    pub hours: Option<Hours>,
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
    /// Other delays or another budget for some failures; the first match wins.
    pub overrides: Vec<Override>,
    /// What ends a task that cannot be done now, in this order; see [`Policy::fallbacks`].
    pub fallback: Vec<Fallback>,
    /// The age beyond which a cached result is too old for a fallback.
    pub cache_max_age_ms: Millis,
    /// The result of [`Fallback::Default`].
    pub default_result: Option<serde_json::Value>,
    /// It never ends by cache or default, whatever `fallback` says.
    pub critical: bool,
    /// Waits before the automatic replays of a dead task: the first one after it died, the next after it died again. Empty: none.
    pub replay_after_ms: Vec<Millis>,
    /// Ways to retry that are compared; each task has one of them for life. Empty: all tasks follow the policy itself.
    pub variants: Vec<Variant>,
}

/// Other delays or another budget for some failures.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// The class as ruled, so that what a list calls a rate limit is `rate_limited` here.
    pub class: Option<String>,
    /// The platform's code.
    pub code: Option<String>,
    /// The HTTP status.
    pub http_status: Option<u16>,
    /// Its delays; `None`: those of the task's variant or policy. Retry n is the task's n-th, whatever failed before.
    pub backoff: Option<Backoff>,
    /// Its budget; `None`: that of the task's variant or policy.
    pub max_retries: Option<i64>,
}

impl Override {
    /// Whether everything it names is so. One that names nothing matches nothing.
    fn matches(&self, failure: &Failure) -> bool {
        let class = self.class.as_ref().map(|class| *class == failure.class);
        let code = self.code.as_ref().map(|code| Some(code) == failure.code.as_ref());
        let status = self.http_status.map(|status| Some(status) == failure.http_status);
        let mut said = [class, code, status].into_iter().flatten().peekable();
        said.peek().is_some() && said.all(|so| so)
    }
}

impl fmt::Display for Override {
    /// `class rate_limited, code 4001`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.class.as_ref().map(|class| format!("class {class}"));
        let code = self.code.as_ref().map(|code| format!("code {code}"));
        let status = self.http_status.map(|status| format!("HTTP {status}"));
        f.write_str(&[class, code, status].into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// How a task ends that cannot be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// By the last good result with the same cache key.
    Cache,
    /// By the policy's `default_result`.
    Default,
    /// Not: it goes to the DLQ, and its automatic replays if there are any.
    Queue,
}

impl Fallback {
    /// The word in the file, and in `degraded`.
    pub fn as_str(self) -> &'static str {
        match self {
            Fallback::Cache => "cache",
            Fallback::Default => "default",
            Fallback::Queue => "queue",
        }
    }
}

/// Delays and budget for one failure of one task.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule<'a> {
    /// The delays.
    pub backoff: &'a Backoff,
    /// Failed attempts that are followed by another.
    pub max_retries: i64,
    /// Who says so, for people: `policy "vip", variant "fast", on class rate_limited`.
    pub source: String,
}

/// Why a rule is not for a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch<'a> {
    /// The type is another.
    Type(&'a TopicPattern),
    /// A label is missing or has another value.
    Label {
        /// The label.
        name: &'a str,
        /// What the rule asks for.
        expected: &'a str,
        /// What the task has.
        found: Option<&'a str>,
    },
    /// It is another hour.
    Hours {
        /// When the rule holds.
        hours: &'a Hours,
        /// What the clocks there show.
        clock: String,
    },
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Type(pattern) => write!(f, "is for type {pattern}"),
            Mismatch::Label { name, expected, found: Some(found) } => {
                write!(f, "is for label {name} = {expected:?}, this is {found:?}")
            }
            Mismatch::Label { name, expected, found: None } => {
                write!(f, "is for label {name} = {expected:?}, which this has not")
            }
            Mismatch::Hours { hours, clock } => write!(f, "holds {hours}, where it is {clock}"),
        }
    }
}

impl Policy {
    /// The age of a cached result that is still good when the policy names none: a day.
    pub const DEFAULT_CACHE_MAX_AGE_MS: Millis = 24 * 3_600_000;

    /// The rule for alerts: again and again for a day, first soon and then every half hour.
    pub fn for_alerts() -> Policy {
        let backoff = Backoff::Exponential { base_ms: 5_000, max_ms: 1_800_000, multiplier: 2.0, jitter: 0.2 };
        Policy { name: "alerts".into(), max_retries: 50, deadline_ms: Some(86_400_000), backoff, ..Policy::built_in() }
    }

    /// The built-in last rule: 15, 30, 45 minutes, three retries.
    pub fn built_in() -> Policy {
        const MINUTE_MS: Millis = 60_000;
        Policy {
            name: "default".into(),
            task_type: TopicPattern::any(),
            labels: BTreeMap::new(),
            hours: None,
            max_retries: 3,
            backoff: Backoff::Steps(vec![15 * MINUTE_MS, 30 * MINUTE_MS, 45 * MINUTE_MS]),
            retry_after: RetryAfterRule::default(),
            deadline_ms: None,
            retryable: Lists::default(),
            permanent: Lists::default(),
            rate_limited: Lists::default(),
            overrides: Vec::new(),
            fallback: Vec::new(),
            cache_max_age_ms: Policy::DEFAULT_CACHE_MAX_AGE_MS,
            default_result: None,
            critical: false,
            replay_after_ms: Vec::new(),
            variants: Vec::new(),
        }
    }

    /// The first reason why it is not for such a task at `now`; `None`: it is. Type before labels before hours.
    pub fn mismatch<'a>(
        &'a self,
        task_type: &str,
        labels: &'a BTreeMap<String, String>,
        now: Millis,
    ) -> Option<Mismatch<'a>> {
        if !self.task_type.matches(task_type) {
            return Some(Mismatch::Type(&self.task_type));
        }
        for (name, expected) in &self.labels {
            let found = labels.get(name).map(String::as_str);
            if found != Some(expected) {
                return Some(Mismatch::Label { name, expected, found });
            }
        }
        let hours = self.hours.as_ref().filter(|hours| !hours.contain(now))?;
        Some(Mismatch::Hours { hours, clock: hours.clock(now) })
    }

    /// Whether no task ever comes to the rules behind it.
    pub fn is_for_everything(&self) -> bool {
        self.task_type.is_any() && self.labels.is_empty() && self.hours.is_none()
    }

    /// Delays and budget for a task of `variant` after `failure` (its class as ruled): the first override that matches wins over the variant,
    /// the variant over the policy.
    pub fn schedule<'a>(&'a self, variant: Option<&'a Variant>, failure: Option<&Failure>) -> Schedule<'a> {
        let mut schedule = Schedule {
            backoff: &self.backoff,
            max_retries: self.max_retries,
            source: format!("policy {:?}", self.name),
        };
        if let Some(variant) = variant {
            schedule.backoff = &variant.backoff;
            schedule.max_retries = variant.max_retries;
            schedule.source.push_str(&format!(", variant {:?}", variant.name));
        }
        let over = failure.and_then(|failure| self.overrides.iter().find(|over| over.matches(failure)));
        if let Some(over) = over {
            schedule.backoff = over.backoff.as_ref().unwrap_or(schedule.backoff);
            schedule.max_retries = over.max_retries.unwrap_or(schedule.max_retries);
            schedule.source.push_str(&format!(", on {over}"));
        }
        schedule
    }

    /// The fallbacks that may end a task, in order: those of `fallback` without what `critical` forbids.
    pub fn fallbacks(&self) -> impl Iterator<Item = Fallback> + '_ {
        self.fallback.iter().copied().filter(|fallback| !self.critical || *fallback == Fallback::Queue)
    }

    /// Whether anything but death may end its tasks that cannot be done now.
    pub fn falls_back(&self) -> bool {
        self.fallbacks().next().is_some_and(|first| first != Fallback::Queue)
    }

    /// Whether its successes are remembered for the fallback `cache`.
    pub fn caches(&self) -> bool {
        self.fallbacks().any(|fallback| fallback == Fallback::Cache)
    }

    /// Every backoff it may use: its own, its variants' and its overrides'.
    pub fn backoffs(&self) -> impl Iterator<Item = &Backoff> {
        let variants = self.variants.iter().map(|variant| &variant.backoff);
        let overrides = self.overrides.iter().filter_map(|over| over.backoff.as_ref());
        // With variants nobody follows the policy's own delays.
        let own = self.variants.is_empty().then_some(&self.backoff);
        own.into_iter().chain(variants).chain(overrides)
    }
}

#[cfg(test)]
mod tests;
