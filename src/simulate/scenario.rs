//! What is simulated: who sends what, how the third party behaves, and which policies are compared. Read by
//! [`config::read_scenario`](crate::config::read_scenario); nothing here knows the file.

use std::collections::BTreeMap;

use crate::config::{ConfigError, read_scenario};
use crate::gate::{Gates, Rate};
use crate::policy::{Policies, TopicPattern};
use crate::task::{Millis, class};

/// A scenario that comes with the program.
#[derive(Debug, Clone, Copy)]
pub struct BuiltIn {
    /// `storm`
    pub name: &'static str,
    /// The file, to be copied and changed.
    pub text: &'static str,
}

macro_rules! built_in {
    ($($name:literal),+) => {
        [$(BuiltIn { name: $name, text: include_str!(concat!("scenarios/", $name, ".toml")) }),+]
    };
}

/// Every scenario that comes with the program.
pub const BUILT_IN: [BuiltIn; 6] =
    built_in!["storm", "day", "rate-limited", "dead-platform", "ab-shipping", "ab-listing"];

impl BuiltIn {
    /// The one of that name.
    pub fn find(name: &str) -> Option<BuiltIn> {
        BUILT_IN.into_iter().find(|scenario| scenario.name == name)
    }

    /// What it means.
    ///
    /// # Errors
    /// Never for one that is tested.
    pub fn read(self) -> Result<Scenario, ConfigError> {
        read_scenario(self.name, &format!("{}.toml", self.name), self.text)
    }
}

/// Everything that a run is made of, besides its seed.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What its results are called.
    pub name: String,
    /// What it is about, in one line.
    pub title: String,
    /// A run ends when all tasks have, and at the latest now.
    pub duration_ms: Millis,
    /// When no other is asked for.
    pub seed: u64,
    /// Who sends what.
    pub arrivals: Vec<Arrivals>,
    /// Who is called.
    pub third_party: ThirdParty,
    /// What is compared; the first one is ours.
    pub contenders: Vec<Contender>,
}

/// From one time to another, perhaps again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stretch {
    /// From the beginning of the run.
    pub from_ms: Millis,
    /// `None`: to the end of the run.
    pub until_ms: Option<Millis>,
    /// The time from one beginning to the next; `None`: once.
    pub every_ms: Option<Millis>,
}

impl Stretch {
    /// Whether `at`, counted from the beginning of the run, is in it.
    pub fn holds(&self, at: Millis) -> bool {
        let since = at - self.from_ms;
        let since = self.every_ms.filter(|_| since >= 0).map_or(since, |every| since % every.max(1));
        since >= 0 && self.until_ms.is_none_or(|until| since < until - self.from_ms)
    }

    /// `at` itself when it is in the stretch, else the beginning of the next one; `None` when there is none.
    pub(super) fn next(&self, at: Millis) -> Option<Millis> {
        if self.holds(at) || at < self.from_ms {
            return Some(at.max(self.from_ms));
        }
        let every = self.every_ms?.max(1);
        Some(self.from_ms + ((at - self.from_ms) / every + 1) * every)
    }
}

/// Tasks of one kind that arrive.
#[derive(Debug, Clone)]
pub struct Arrivals {
    /// Their type.
    pub task_type: String,
    /// So many in such a time.
    pub rate: Rate,
    /// When.
    pub stretch: Stretch,
    /// In equal steps; otherwise at random, as from many senders (a Poisson process).
    pub even: bool,
    /// Their labels.
    pub labels: Vec<(String, LabelValues)>,
}

/// The values of one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelValues {
    /// All tasks have this one.
    Fixed(String),
    /// So many, one as likely as another: `<label>-1`, `<label>-2`, …
    Numbered(u64),
}

/// The model of whom the tasks call.
///
/// It serves `places` calls at once, each for as long as its latency says; further ones wait in a backlog. A call whose sender has given
/// up stays where it is and is served all the same: that work is done and thrown away, and it is how an overload feeds itself. A call
/// that finds the backlog full is never answered (the kernel drops its connection), so its sender waits for its time-out.
#[derive(Debug, Clone)]
pub struct ThirdParty {
    /// Calls it serves at once.
    pub places: usize,
    /// The median of the time it takes for one.
    pub latency_ms: Millis,
    /// The deviation of the logarithm of that time: 0.3 is a service in good health, 1 has a long tail.
    pub latency_spread: f64,
    /// How long the sender waits, in all.
    pub timeout_ms: Millis,
    /// Calls that wait to be served at most.
    pub backlog: usize,
    /// Waiting calls are served in no order, as threads that compete for one database are; otherwise first come, first served.
    pub random_order: bool,
    /// Its own protection.
    pub rate_limit: Option<RateLimit>,
    /// When which calls fail.
    pub phases: Vec<Phase>,
}

impl Default for ThirdParty {
    fn default() -> ThirdParty {
        ThirdParty {
            places: 1,
            latency_ms: 200,
            latency_spread: 0.3,
            timeout_ms: 10_000,
            backlog: 128,
            random_order: false,
            rate_limit: None,
            phases: Vec::new(),
        }
    }
}

impl ThirdParty {
    /// Calls it can answer in a second: its places by its mean latency, or its rate limit if that is lower.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub fn capacity_per_s(&self) -> f64 {
        // The mean of a log-normal is its median times e^(spread² / 2).
        let mean_ms = self.latency_ms.max(1) as f64 * (self.latency_spread.powi(2) / 2.0).exp();
        let served = 1000.0 * self.places as f64 / mean_ms;
        let allowed = self.rate_limit.map(|limit| 1000.0 * limit.rate.count as f64 / limit.rate.per_ms.max(1) as f64);
        allowed.map_or(served, |allowed| served.min(allowed))
    }

    /// When the last outage ends: a stretch of time in which at least half of all calls fail, whoever makes them.
    pub fn outage(&self) -> Option<(Millis, Millis)> {
        let is_outage = |phase: &&Phase| {
            phase.failures >= 0.5
                && phase.task_type.is_none()
                && phase.labels.is_empty()
                && phase.hiccups.is_none()
                && phase.stretch.every_ms.is_none()
                && !phase.same_tasks
        };
        let ends = self
            .phases
            .iter()
            .filter(is_outage)
            .filter_map(|phase| Some((phase.stretch.from_ms, phase.stretch.until_ms?)));
        ends.max_by_key(|(_, until)| *until)
    }
}

/// So many calls in such a time; the others are answered 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// The rate.
    pub rate: Rate,
    /// A token bucket of this size; `None`: fixed windows, as most platforms count.
    pub bucket: Option<i64>,
    /// Whether a 429 says when to come again (`Retry-After`, in whole seconds).
    pub says_when: bool,
}

/// Failures during a stretch of time. The first phase that makes a call fail decides how.
#[derive(Debug, Clone)]
pub struct Phase {
    /// When.
    pub stretch: Stretch,
    /// Only these types.
    pub task_type: Option<TopicPattern>,
    /// Only tasks with these labels.
    pub labels: BTreeMap<String, String>,
    /// The share that fails, each by itself.
    pub failures: f64,
    /// Of tasks, not of calls: a task that fails fails at every call.
    pub same_tasks: bool,
    /// Only in short bad moments.
    pub hiccups: Option<Hiccups>,
    /// What a call gets that fails.
    pub trouble: Trouble,
}

/// Bad moments that come at random; their lengths and the times between them are exponential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hiccups {
    /// From one to the next, on average.
    pub every_ms: Millis,
    /// How long one is, on average.
    pub last_ms: Millis,
    /// Each value of this label has its own; `None`: all have them together.
    pub per: Option<String>,
}

/// What a call gets that fails. It takes no place at the third party.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The failure's class.
    pub class: String,
    /// The HTTP status.
    pub http_status: Option<u16>,
    /// The platform's code.
    pub code: Option<String>,
    /// When it comes; `None`: for a time-out when the sender's patience is over, else after the latency of any call.
    pub after_ms: Option<Millis>,
    /// When to come again, as the third party says.
    pub retry_after_ms: Option<Millis>,
}

/// The class that the HTTP handler would give a status; nothing is a time-out.
pub fn class_of(http_status: Option<u16>) -> &'static str {
    match http_status.map(reqwest::StatusCode::from_u16) {
        None => class::TIMEOUT,
        Some(Ok(status)) => crate::handler::http::class_of(status),
        Some(Err(_)) => class::HTTP_STATUS,
    }
}

/// One way to retry, and who runs it.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Unique in the scenario.
    pub name: String,
    /// Attempts that it runs at once, over all its workers.
    pub places: usize,
    /// `[worker] retry_share`
    pub retry_share: f64,
    /// `[[policy]]`
    pub policies: Policies,
    /// `[[limit]]` and `[[breaker]]`
    pub gates: Gates,
}
