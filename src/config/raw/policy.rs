//! `[[policy]]` as it is written.

use std::collections::BTreeMap;

use schemars::JsonSchema;

use crate::config::value::{AnyValue, Code, DurationText, Spanned};

/// `[[policy]]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawPolicy {
    /// Unique; `default` is the built-in last one's.
    pub name: Option<Spanned<String>>,
    /// Task types it is for, as an AMQP topic pattern. Default: `#`, every type.
    #[serde(rename = "type")]
    pub task_type: Option<Spanned<String>>,
    /// Labels a task must have, with these values.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When it holds, across midnight if `to` is before `from`. Default: at any hour.
    pub hours: Option<Spanned<RawHours>>,
    /// Failed attempts that are followed by another. Default: the number of steps, else 3.
    #[schemars(range(min = 0, max = 1000))]
    pub max_retries: Option<Spanned<i64>>,
    /// The delays. Default: steps 15m, 30m, 45m.
    pub backoff: Option<Spanned<RawBackoff>>,
    /// What a `Retry-After` does to them.
    pub retry_after: Option<Spanned<RawRetryAfter>>,
    /// From the task's creation; no attempt starts after it. Default: none.
    pub deadline: Option<Spanned<DurationText>>,
    /// Failures that deserve a retry although the defaults say otherwise.
    pub retryable: Option<RawLists>,
    /// Failures that do not although the defaults say otherwise.
    pub permanent: Option<RawPermanent>,
    /// Failures that mean "too fast".
    pub rate_limited: Option<RawLists>,
    /// Other delays or another budget for some failures; the first match wins.
    #[serde(default)]
    pub on: Vec<Spanned<RawOn>>,
    /// What ends a task whose retries are exhausted, or that a breaker with `when_open = "fallback"` stops, in this order. Never one with a
    /// permanent failure or past its deadline. Default: nothing, it goes to the DLQ.
    #[serde(default)]
    pub fallback: Vec<Spanned<RawFallback>>,
    /// The age beyond which a cached result is too old. Default: `24h`.
    pub cache_max_age: Option<Spanned<DurationText>>,
    /// The result of the fallback `default`, any value.
    pub default_result: Option<Spanned<AnyValue>>,
    /// It never ends by `cache` or `default`, whatever `fallback` says. Default: false.
    pub critical: Option<Spanned<bool>>,
    /// Waits before the automatic replays of a dead task; never for permanent failures. Default: none.
    #[serde(default)]
    pub replay_after: Vec<Spanned<DurationText>>,
    /// A/B: ways to retry that are compared. Each task has one of them for life.
    pub variants: Option<Spanned<Vec<Spanned<RawVariant>>>>,
}

/// `hours = { … }`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawHours {
    /// The first minute, `00:00` to `23:59`.
    pub from: Option<Spanned<String>>,
    /// The minute at which it ends, `00:00` to `24:00`.
    pub to: Option<Spanned<String>>,
    /// An IANA time zone, such as `Asia/Shanghai`. Default: `UTC`.
    pub tz: Option<Spanned<String>>,
}

/// An element of `on = [{ … }]`: at least one of `class`, `code` and `http_status`, all of which must be so.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawOn {
    /// The failure's class; what a list calls a rate limit is `rate_limited`.
    pub class: Option<Spanned<String>>,
    /// The platform's code, as text or number.
    pub code: Option<Spanned<Code>>,
    /// The HTTP status.
    pub http_status: Option<Spanned<i64>>,
    /// Its delays. Default: as without it.
    pub backoff: Option<Spanned<RawBackoff>>,
    /// Its budget. Default: as without it.
    #[schemars(range(min = 0, max = 1000))]
    pub max_retries: Option<Spanned<i64>>,
}

/// See [`RawPolicy::fallback`].
#[derive(Debug, Clone, Copy, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RawFallback {
    /// The last good result with the same cache key.
    Cache,
    /// `default_result`.
    Default,
    /// The DLQ, and automatic replays if there are any.
    Queue,
}

/// An element of `variants = [{ … }]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawVariant {
    /// Unique within the policy.
    pub name: Option<Spanned<String>>,
    /// How many tasks it gets, in relation to the other weights; 0 takes no new tasks. Default: 1.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: Option<Spanned<i64>>,
    /// Its delays. Default: the policy's.
    pub backoff: Option<Spanned<RawBackoff>>,
    /// Its budget. Default: the policy's if that is given, else the number of steps, else 3.
    #[schemars(range(min = 0, max = 1000))]
    pub max_retries: Option<Spanned<i64>>,
}

/// `backoff = { … }`: exactly one shape.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawBackoff {
    /// Retry n waits step n; retries beyond the last step wait the last one.
    pub steps: Option<Spanned<Vec<Spanned<DurationText>>>>,
    /// Every retry waits the same.
    pub fixed: Option<Spanned<DurationText>>,
    /// Retry n waits `min(max, base · multiplier^(n−1))`, spread by `jitter`.
    pub exponential: Option<Spanned<RawExponential>>,
}

/// `exponential = { … }`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawExponential {
    /// The first delay. Default: `1s`.
    pub base: Option<Spanned<DurationText>>,
    /// No delay is longer. Default: `60s`.
    pub max: Option<Spanned<DurationText>>,
    /// By how much each delay is longer than the one before, 1 to 1000. Default: 2.
    #[schemars(range(min = 1, max = 1000))]
    pub multiplier: Option<Spanned<f64>>,
    /// The share by which a delay is made shorter or longer at random, 0 to 1. Default: 0.2.
    #[schemars(range(min = 0, max = 1))]
    pub jitter: Option<Spanned<f64>>,
}

/// `retry_after = { … }`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRetryAfter {
    /// `exact` (default): replaces the computed delay; `floor`: never earlier than asked; `ignore`.
    pub mode: Option<RawRetryAfterMode>,
    /// The longest wait that is accepted as asked. Default: `120s`.
    pub cap: Option<Spanned<DurationText>>,
    /// Beyond the cap: `cap` (default) waits the cap, `honour` waits as asked, `dead_letter` gives up.
    pub over_cap: Option<RawOverCap>,
}

/// See [`RawRetryAfter::mode`].
#[derive(Debug, Clone, Copy, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RawRetryAfterMode {
    /// Replaces the computed delay.
    Exact,
    /// Never earlier than asked.
    Floor,
    /// Changes nothing.
    Ignore,
}

/// See [`RawRetryAfter::over_cap`].
#[derive(Debug, Clone, Copy, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RawOverCap {
    /// Waits the cap.
    Cap,
    /// Waits as long as asked.
    Honour,
    /// Gives up at once.
    DeadLetter,
}

/// `retryable = { … }`, `rate_limited = { … }`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawLists {
    /// Platform codes, as text or numbers.
    #[serde(default)]
    pub codes: Vec<Code>,
    /// HTTP statuses.
    #[serde(default)]
    pub http_status: Vec<Spanned<i64>>,
    /// Failure classes.
    #[serde(default)]
    pub classes: Vec<Spanned<String>>,
}

/// `permanent = { … }`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawPermanent {
    /// Platform codes, as text or numbers.
    #[serde(default)]
    pub codes: Vec<Code>,
    /// HTTP statuses.
    #[serde(default)]
    pub http_status: Vec<Spanned<i64>>,
    /// Failure classes.
    #[serde(default)]
    pub classes: Vec<Spanned<String>>,
    /// Regular expressions over the stderr of a command.
    #[serde(default)]
    pub stderr: Vec<Spanned<String>>,
}
