//! What would happen to a task, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, show_duration, show_rate};
use crate::desk::time;
use crate::gate::{BreakerRule, LimitKind, Per, RuleOf, Subject, WhenOpen, Word};
use crate::policy::{self, Backoff, OverCap, Policy, RetryAfterMode, Timetable};
use crate::task::Millis;

/// Which rule is for a task at a moment, why the earlier ones are not, and when its retries would come.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Explained {
    /// The task's type.
    #[serde(rename = "type")]
    pub task_type: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The moment.
    pub at: String,
    /// Its queue.
    pub queue: String,
    /// Its route's pattern; null: none in the file.
    pub route: Option<String>,
    /// Where the rules come from.
    pub rules: String,
    /// The policy.
    pub policy: String,
    /// Why that one.
    pub because: String,
    /// The policies before it, and why they are not for it.
    pub passed_over: Vec<PassedOver>,
    /// Retries after the first attempt.
    pub max_retries: i64,
    /// Its variants.
    pub variants: Vec<VariantOf>,
    /// When retries would come, by variant or outcome.
    pub schedules: Vec<Schedule>,
    /// What a Retry-After means.
    pub retry_after: RetryAfterDocument,
    /// How long after its creation no attempt starts any more.
    pub deadline_ms: Option<i64>,
    /// What ends it when it cannot be done now, in order.
    pub fallback: Vec<String>,
    /// How old a cached result may be.
    pub cache_max_age_ms: i64,
    /// Whether it never ends by cache or default.
    pub critical: bool,
    /// When a dead one replays itself.
    pub replay_after_ms: Vec<i64>,
    /// The gates of the configuration, and its keys in them.
    pub gates: Vec<GateDocument>,
}

/// A policy that is not for the task.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PassedOver {
    /// The policy.
    pub policy: String,
    /// Why not.
    pub why: String,
}

/// A variant of the policy.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct VariantOf {
    /// Its name.
    pub name: String,
    /// Its share among the variants' weights.
    pub weight: u32,
    /// Retries after the first attempt.
    pub max_retries: i64,
}

/// When retries would come, if every attempt failed at once.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    /// The variant or outcome that it is for.
    pub source: String,
    /// Retries after the first attempt.
    pub max_retries: i64,
    /// The shape of the delays.
    pub backoff: BackoffDocument,
    /// Each retry.
    pub retries: Vec<RetryDocument>,
    /// How it ends.
    pub ends: Ends,
}

/// The shape of delays.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BackoffDocument {
    /// One after the other.
    Steps {
        /// The delays.
        steps_ms: Vec<i64>,
    },
    /// Always the same.
    Fixed {
        /// The delay.
        fixed_ms: i64,
    },
    /// Growing.
    Exponential {
        /// How.
        exponential: ExponentialDocument,
    },
}

/// `min(max, base · multiplierⁿ⁻¹)`
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ExponentialDocument {
    /// The first delay.
    pub base_ms: i64,
    /// The longest.
    pub max_ms: i64,
    /// By how much each is longer.
    pub multiplier: f64,
    /// By how much a delay may differ, as a share.
    pub jitter: f64,
}

/// A retry to come.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RetryDocument {
    /// Its number.
    pub retry: i64,
    /// The shortest delay.
    pub delay_least_ms: i64,
    /// The longest.
    pub delay_most_ms: i64,
    /// The earliest moment.
    pub earliest_at: String,
    /// The latest.
    pub latest_at: String,
}

/// How a schedule ends.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Ends {
    /// `retries_exhausted`, `deadline_exceeded`, or `other_policy`: from a moment on another rule is for it.
    pub reason: String,
    /// That rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// That moment, or the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// What a Retry-After means.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RetryAfterDocument {
    /// `exact`, `floor`, `ignore`.
    pub mode: String,
    /// The longest that is honoured.
    pub cap_ms: i64,
    /// What happens to longer ones: `cap`, `honour`, `dead_letter`.
    pub over_cap: String,
}

/// A gate of the configuration, and the task's key in it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct GateDocument {
    /// `limit`, `breaker`, `concurrency`, `hold`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// What a key is made of.
    pub per: String,
    /// Whether it is on the task's way.
    pub applies: bool,
    /// Its key in the store, as `held_by` names it.
    pub key: Option<String>,
    /// Why the task has none.
    pub why_not: Option<String>,
    /// What it does.
    pub says: String,
}

/// Explains what `config` means for a task of that type and labels at a moment. `source` says where its rules come from.
pub fn explain(
    config: &Config,
    source: &str,
    task_type: &str,
    labels: &BTreeMap<String, String>,
    at: Millis,
) -> Explained {
    let explained = config.policies.explain(task_type, labels, at);
    let policy = &explained.policy;
    let queue = config.queue_of(task_type);
    let route = config.gates.routes.iter().find(|route| route.matches(task_type)).map(|route| route.as_str());
    let variants = policy.variants.iter().map(|variant| VariantOf {
        name: variant.name.clone(),
        weight: variant.weight,
        max_retries: variant.max_retries,
    });
    Explained {
        task_type: task_type.to_owned(),
        labels: labels.clone(),
        at: time(at),
        queue: queue.to_owned(),
        route: route.map(str::to_owned),
        rules: source.to_owned(),
        policy: policy.name.clone(),
        because: because(policy),
        max_retries: policy.max_retries,
        variants: variants.collect(),
        schedules: explained.schedules.iter().map(Schedule::of).collect(),
        retry_after: RetryAfterDocument {
            mode: mode(policy.retry_after.mode).to_owned(),
            cap_ms: policy.retry_after.cap_ms,
            over_cap: over_cap(policy.retry_after.over_cap).to_owned(),
        },
        deadline_ms: policy.deadline_ms,
        fallback: policy.fallbacks().map(|fallback| fallback.as_str().to_owned()).collect(),
        cache_max_age_ms: policy.cache_max_age_ms,
        critical: policy.critical,
        replay_after_ms: policy.replay_after_ms.clone(),
        gates: gates(config, &Task { task_type, queue, route, labels }),
        passed_over: explained.passed_over.into_iter().map(|(policy, why)| PassedOver { policy, why }).collect(),
    }
}

fn because(policy: &Policy) -> String {
    let mut reasons = vec![format!("type {}", policy.task_type)];
    reasons.extend(policy.labels.iter().map(|(name, value)| format!("{name} = {value:?}")));
    reasons.extend(policy.hours.iter().map(ToString::to_string));
    format!("the first rule of which all is so: {}", reasons.join(", "))
}

fn mode(mode: RetryAfterMode) -> &'static str {
    match mode {
        RetryAfterMode::Exact => "exact",
        RetryAfterMode::Floor => "floor",
        RetryAfterMode::Ignore => "ignore",
    }
}

fn over_cap(over_cap: OverCap) -> &'static str {
    match over_cap {
        OverCap::Cap => "cap",
        OverCap::Honour => "honour",
        OverCap::DeadLetter => "dead_letter",
    }
}

fn length(ms: Millis) -> String {
    show_duration(Duration::from_millis(ms.unsigned_abs()))
}

impl Schedule {
    fn of(table: &Timetable) -> Schedule {
        let retries = table.retries.iter().map(|due| RetryDocument {
            retry: due.retry,
            delay_least_ms: due.least_ms,
            delay_most_ms: due.most_ms,
            earliest_at: time(due.earliest_at),
            latest_at: time(due.latest_at),
        });
        let ends = |reason: &str, policy: Option<&String>, at: Option<Millis>| Ends {
            reason: reason.to_owned(),
            policy: policy.cloned(),
            at: at.map(time),
        };
        Schedule {
            source: table.source.clone(),
            max_retries: table.max_retries,
            backoff: match table.backoff.clone() {
                Backoff::Steps(steps_ms) => BackoffDocument::Steps { steps_ms },
                Backoff::Fixed(fixed_ms) => BackoffDocument::Fixed { fixed_ms },
                Backoff::Exponential { base_ms, max_ms, multiplier, jitter } => BackoffDocument::Exponential {
                    exponential: ExponentialDocument { base_ms, max_ms, multiplier, jitter },
                },
            },
            retries: retries.collect(),
            ends: match &table.ends {
                policy::Ends::Exhausted => ends("retries_exhausted", None, None),
                policy::Ends::Deadline { at } => ends("deadline_exceeded", None, Some(*at)),
                policy::Ends::OtherRule { policy, at } => ends("other_policy", Some(policy), Some(*at)),
            },
        }
    }
}

/// What a gate sees of a task.
struct Task<'a> {
    task_type: &'a str,
    queue: &'a str,
    route: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
}

impl GateDocument {
    fn new(kind: &'static str, name: &str, per: &Per, key: Result<String, String>, says: String) -> GateDocument {
        let words = per.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (key, why_not) = match key {
            Ok(key) => (Some(key), None),
            Err(why_not) => (None, Some(why_not)),
        };
        GateDocument { kind: kind.into(), name: name.into(), per: words, applies: key.is_some(), key, why_not, says }
    }
}

/// Every gate of the configuration, those that a retry of the task passes with its key in the store.
fn gates(config: &Config, task: &Task<'_>) -> Vec<GateDocument> {
    let subject = Subject { task_type: task.task_type, queue: task.queue, labels: task.labels };
    let way = config.gates.way(subject, true);
    let key = |per: &Per, is_it: &dyn Fn(RuleOf<'_>) -> bool| {
        let found = way.gates.iter().find(|gate| is_it(gate.rule));
        found.map(|gate| gate.key.clone()).ok_or_else(|| lacks(per, task))
    };
    let mut gates = Vec::new();
    for limit in &config.gates.limits {
        let counted = if limit.calls { "calls" } else { "retries" };
        let says = match &limit.kind {
            LimitKind::Rate { rate, burst } => format!("{} {counted}, {burst} at once", show_rate(*rate)),
            LimitKind::Ratio { permille, window_ms, floor } => format!(
                "retries at most {permille} ‰ of the first attempts in {}, {} in any case",
                length(*window_ms),
                show_rate(*floor)
            ),
        };
        let key = key(&limit.per, &|rule| matches!(rule, RuleOf::Limit(found) if found.name == limit.name));
        gates.push(GateDocument::new("limit", &limit.name, &limit.per, key, says));
    }
    for breaker in &config.gates.breakers {
        let key = key(&breaker.per, &|rule| matches!(rule, RuleOf::Breaker(found) if found.name == breaker.name));
        gates.push(GateDocument::new("breaker", &breaker.name, &breaker.per, key, breaker_says(breaker)));
    }
    for cap in config.gates.caps.iter().filter(|cap| task.route == Some(cap.route.as_str())) {
        let key = key(&cap.per, &|rule| matches!(rule, RuleOf::Cap(found) if found == cap));
        gates.push(GateDocument::new("concurrency", cap.route.as_str(), &cap.per, key, format!("{} at once", cap.max)));
    }
    if let Some(hold) = &way.hold {
        let says = "after an answer that says slow down and for how long, nothing of this key starts so long".into();
        gates.push(GateDocument::new("hold", "retry_after", &Per::default(), Ok(hold.clone()), says));
    }
    gates
}

/// Why a gate is not on the task's way.
fn lacks(per: &Per, task: &Task<'_>) -> String {
    let missing = per.0.iter().find_map(|word| match word {
        Word::Label(name) if !task.labels.contains_key(name) => Some(format!("no label {name}")),
        Word::Route if task.route.is_none() => Some("no route".into()),
        _ => None,
    });
    missing.unwrap_or_else(|| "not for it".into())
}

fn breaker_says(breaker: &BreakerRule) -> String {
    let same = breaker.consecutive_same.map(|n| format!("{n} equal failures in a row"));
    let any = breaker.consecutive.map(|n| format!("{n} failures in a row"));
    let rate = breaker.failure_rate.map(|rate| {
        format!("{} ‰ of at least {} attempts in {} failed", rate.permille, rate.min, length(rate.window_ms))
    });
    let trips = [same, any, rate].into_iter().flatten().collect::<Vec<_>>().join(" or ");
    let then = match breaker.when_open {
        WhenOpen::Park => "due tasks wait",
        WhenOpen::DeadLetter => "due tasks die",
        WhenOpen::Fallback => "due tasks end by their fallbacks",
    };
    format!("opens for {} after {trips}; {then}", length(breaker.open_for_ms))
}
