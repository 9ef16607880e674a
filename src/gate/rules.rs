//! The gates that a configuration asks for. Limits, caps and breakers are off unless configured.

use std::collections::BTreeMap;
use std::fmt;

use crate::policy::TopicPattern;
use crate::task::Millis;

/// What a gate looks at in a task to find its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Subject<'a> {
    /// The task's type.
    pub task_type: &'a str,
    /// The `[[queue]]` it belongs to.
    pub queue: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

/// One dimension of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Word {
    /// `type`: the task type.
    Type,
    /// `queue`: the `[[queue]]`.
    Queue,
    /// `route`: the pattern of the first `[[route]]` that matches.
    Route,
    /// `label.<name>`: the value of that label.
    Label(String),
}

impl Word {
    /// Reads `type`, `queue`, `route` or `label.<name>`.
    pub fn parse(text: &str) -> Option<Word> {
        match text {
            "type" => Some(Word::Type),
            "queue" => Some(Word::Queue),
            "route" => Some(Word::Route),
            _ => text.strip_prefix("label.").filter(|name| !name.is_empty()).map(|name| Word::Label(name.into())),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Type => f.write_str("type"),
            Word::Queue => f.write_str("queue"),
            Word::Route => f.write_str("route"),
            Word::Label(name) => write!(f, "label.{name}"),
        }
    }
}

/// The dimensions of a gate; none of them: one key for everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Per(pub Vec<Word>);

/// So many in such a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// At least 1.
    pub count: i64,
    /// At least 1 ms.
    pub per_ms: Millis,
}

/// `[[limit]]`
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LimitRule {
    /// Unique among the limits.
    pub name: String,
    /// Its dimensions. A task without one of the labels is not limited by it.
    pub per: Per,
    /// Count every claim, not only retries.
    pub calls: bool,
    /// How it counts.
    pub kind: LimitKind,
}

/// How a limit counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// At most this rate, with `burst` (at least 1) at once after a rest.
    Rate {
        /// The rate.
        rate: Rate,
        /// How many may start together.
        burst: i64,
    },
    /// Retries are at most a share of the first attempts in a window, and always at least `floor`. Never with `calls`.
    Ratio {
        /// In thousandths; 200 is one retry for five first attempts.
        permille: i64,
        /// The window that is looked at.
        window_ms: Millis,
        /// Retries that are allowed in any case.
        floor: Rate,
    },
}

/// The `concurrency` of a `[[route]]`: at most `max` running attempts per key over all workers of the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CapRule {
    /// The route's type pattern; it is for the tasks whose first matching route this is.
    pub route: TopicPattern,
    /// Its dimensions within the route.
    pub per: Per,
    /// At least 1.
    pub max: i64,
}

/// When a window of attempts has failed too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FailureRate {
    /// In thousandths of the window's attempts; 500 is half.
    pub permille: i64,
    /// The window.
    pub window_ms: Millis,
    /// With fewer attempts in the window it never trips.
    pub min: i64,
}

/// What an open breaker does with a task that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WhenOpen {
    /// It waits, no retry spent.
    Park,
    /// It dies with `circuit_open`.
    DeadLetter,
    /// Its policy's fallbacks end it; without one that can, it dies with `circuit_open`.
    Fallback,
}

/// `[[breaker]]`
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BreakerRule {
    /// Unique among the breakers.
    pub name: String,
    /// Its dimensions. A task without one of the labels is not stopped by it.
    pub per: Per,
    /// Trips after so many failures in a row with the same fingerprint.
    pub consecutive_same: Option<i64>,
    /// Trips after so many failures in a row.
    pub consecutive: Option<i64>,
    /// Trips when a window has failed too often.
    pub failure_rate: Option<FailureRate>,
    /// Failure classes that neither trip nor reset it, besides `rate_limited` and `worker_lost`.
    pub ignore: Vec<String>,
    /// The first cool-down.
    pub open_for_ms: Millis,
    /// The longest cool-down: each failed probe doubles it up to here.
    pub open_for_max_ms: Millis,
    /// How many attempts may run while it is half open.
    pub probes: i64,
    /// What happens to due tasks meanwhile.
    pub when_open: WhenOpen,
    /// How long a task waits for it at most before it dies with `circuit_open`.
    pub park_max_ms: Millis,
}

/// Every gate of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Gates {
    /// `[[limit]]` in order.
    pub limits: Vec<LimitRule>,
    /// `[[breaker]]` in order.
    pub breakers: Vec<BreakerRule>,
    /// Caps of routes, in the order of the routes.
    pub caps: Vec<CapRule>,
    /// The patterns of all routes in order, to find a task's route.
    pub routes: Vec<TopicPattern>,
}
