//! The file as it is written: what serde reads and what `config schema` describes.
//!
//! Every field is optional here, so that one missing key never hides the other mistakes; what must be there is decided when the
//! file is validated. Doc comments of fields are the descriptions in the schema.

mod gate;
mod policy;

pub use gate::{RawBreaker, RawCap, RawConcurrency, RawFailureRate, RawLimit, RawMaxRatio, RawWhenOpen};
pub use policy::{
    RawBackoff, RawExponential, RawFallback, RawHours, RawLists, RawOn, RawOverCap, RawPermanent, RawPolicy,
    RawRetryAfter, RawRetryAfterMode, RawVariant,
};

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::value::{AnyValue, DurationText, SizeText, Spanned, Topics, Urls};

/// The config file of `redeliver`.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "redeliver.toml")]
pub struct RawFile {
    /// RabbitMQ, or the broker inside the process.
    pub broker: Option<RawBroker>,
    /// Where tasks are kept.
    pub store: Option<RawStore>,
    /// The worker process.
    pub worker: Option<RawWorker>,
    /// The times of the alarms behind messages.
    pub scheduler: Option<RawScheduler>,
    /// API and console.
    pub console: Option<RawConsole>,
    /// Prometheus and probes.
    pub metrics: Option<RawMetrics>,
    /// What other services are told of tasks.
    pub events: Option<RawEvents>,
    /// Who is told when something is wrong.
    #[serde(default)]
    pub webhook: Vec<Spanned<RawWebhook>>,
    /// Bulkheads: task types with queues of their own. `default` always exists and takes the rest.
    #[serde(default)]
    pub queue: Vec<Spanned<RawQueue>>,
    /// Who runs a task type; the first match wins.
    #[serde(default)]
    pub route: Vec<Spanned<RawRoute>>,
    /// When and how often a failed task is tried again; the first match wins, a built-in last one is steps 15m, 30m, 45m.
    #[serde(default)]
    pub policy: Vec<Spanned<RawPolicy>>,
    /// How many retries (or calls) may start, per shop, type or whatever a key is made of. What is over the limit waits; nothing is lost.
    #[serde(default)]
    pub limit: Vec<Spanned<RawLimit>>,
    /// Stops all attempts of a key that keeps failing, until probes show that it works again.
    #[serde(default)]
    pub breaker: Vec<Spanned<RawBreaker>>,
}

/// `[broker]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawBroker {
    /// `amqp://` or `amqps://`, a list of them for a cluster, or `embedded`. Default: `amqp://guest:guest@localhost:5672/%2f`.
    pub url: Option<Spanned<Urls>>,
    /// Prefix of every exchange and queue. Default: `redeliver`.
    pub namespace: Option<Spanned<String>>,
    /// How long a publish may wait for its confirm. Default: `10s`.
    pub confirm_timeout: Option<Spanned<DurationText>>,
    /// AMQP heartbeat, in whole seconds. Default: `10s`.
    pub heartbeat: Option<Spanned<DurationText>>,
    /// PEM file of certificate authorities that `amqps://` trusts besides the system's.
    pub ca_file: Option<Spanned<String>>,
    /// PEM file of our own certificate for `amqps://`, with `key_file`.
    pub cert_file: Option<Spanned<String>>,
    /// PEM file of its private key.
    pub key_file: Option<Spanned<String>>,
    /// RabbitMQ's management API, for `redeliver doctor`: an `http://` or `https://` URL or a list of them; the broker's user holds
    /// where it names none. Default: the hosts of `url`, port 15672, or 15671 with `amqps://`.
    pub management_url: Option<Spanned<Urls>>,
}

/// `[store]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawStore {
    /// `sqlite://path`, relative to the working directory, or for several hosts `postgres://user:password@host:5432/database`.
    /// Default: `sqlite://redeliver.db`.
    pub url: Option<Spanned<String>>,
}

/// `[worker]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawWorker {
    /// Attempts at once in one process. Default: 64.
    #[schemars(range(min = 1))]
    pub concurrency: Option<Spanned<i64>>,
    /// Unacked deliveries per lane; 0 would mean unlimited to RabbitMQ and is refused. Default: 256.
    #[schemars(range(min = 1, max = 65535))]
    pub prefetch: Option<Spanned<i64>>,
    /// The share of the starts that retries take while new tasks wait, more than 0 and less than 1. Default: 0.30.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub retry_share: Option<Spanned<f64>>,
    /// How long a claim holds without a heartbeat; one is sent every third of it. Default: `60s`.
    pub lease: Option<Spanned<DurationText>>,
    /// How long running attempts may go on after SIGTERM. Default: `30s`.
    pub shutdown_grace: Option<Spanned<DurationText>>,
    /// Bytes of a submission, and of a response that is read. Default: `1MiB`.
    pub max_body: Option<Spanned<SizeText>>,
    /// How long a task of a type without a route waits for one. Default: `0s`.
    pub no_route_hold: Option<Spanned<DurationText>>,
}

/// `[scheduler]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawScheduler {
    /// Slack of the alarm behind a rung. Default: `60s`.
    pub grace: Option<Spanned<DurationText>>,
    /// First look after a wake-up that did not arrive. Default: `30s`.
    pub patience: Option<Spanned<DurationText>>,
    /// Longest pause between looks. Default: `5m`.
    pub max_patience: Option<Spanned<DurationText>>,
    /// How far later wake-ups must have arrived before a missing one counts as lost. Default: `30s`.
    pub slack: Option<Spanned<DurationText>>,
    /// Releases of one attempt that are free; the next one counts as a crash. Default: 5.
    #[schemars(range(min = 0))]
    pub max_releases: Option<Spanned<i64>>,
    /// Wake-ups outstanding per tasks lane. Default: 10000.
    #[schemars(range(min = 1))]
    pub lane_depth_cap: Option<Spanned<i64>>,
}

/// `[console]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawConsole {
    /// Where API and console listen: an address and a port. Default: `127.0.0.1:8780`.
    pub address: Option<Spanned<String>>,
    /// Must be true for an address that other machines can reach. Default: false.
    pub public: Option<Spanned<bool>>,
    /// Names, besides `localhost` and addresses, under which browsers reach it, such as a proxy's.
    pub hosts: Option<Vec<Spanned<String>>>,
    /// Refuse every change. Default: false.
    pub read_only: Option<Spanned<bool>>,
    /// How long a browser stays signed in. Default: `12h`.
    pub session: Option<Spanned<DurationText>>,
    /// Payload fields that only editors and admins see.
    pub masked: Option<Vec<Spanned<RawMasked>>>,
}

/// `[metrics]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawMetrics {
    /// Where `/metrics`, `/livez` and `/readyz` are served, without sign-in: an address and a port, or `off`. Default: `off`.
    pub address: Option<Spanned<String>>,
}

/// `[events]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawEvents {
    /// What is published to the exchange `<namespace>.events`: some of `task.succeeded`, `task.degraded`, `task.dead`,
    /// `task.retry_waiting`, `task.replayed`, `task.discarded`, `task.cancelled`, or AMQP topic patterns of them. Default: nothing.
    pub publish: Option<Spanned<Topics>>,
    /// Whether events carry the task's payload. Default: false.
    pub payload: Option<Spanned<bool>>,
    /// Whether the event of a success carries its result. Default: false.
    pub result: Option<Spanned<bool>>,
}

/// `[[webhook]]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawWebhook {
    /// Unique among the webhooks.
    pub name: Option<Spanned<String>>,
    /// Where to call, or `env:NAME`.
    pub url: Option<Spanned<String>>,
    /// `standard` (Standard Webhooks), `slack`, `feishu` or `dingtalk`. Default: `standard`.
    pub format: Option<Spanned<String>>,
    /// Signs standard webhooks: `whsec_…`, or `env:NAME`; several, separated by spaces, while the receiver changes from one to the next.
    pub secret: Option<Spanned<String>>,
    /// What it is told. Default: everything.
    pub alerts: Option<Vec<Spanned<String>>>,
    /// Whether addresses of this machine and its link may be called. Default: false.
    pub allow_local: Option<Spanned<bool>>,
}

/// An entry of `masked`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawMasked {
    /// Task types it is about, as an AMQP topic pattern.
    #[serde(rename = "type")]
    pub task_type: Option<Spanned<String>>,
    /// JSON pointers into the payload.
    pub fields: Option<Vec<Spanned<String>>>,
}

/// `[[queue]]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawQueue {
    /// Letters `a-z`, digits, `_` and `-`; part of the names of its queues in RabbitMQ.
    pub name: Option<Spanned<String>>,
    /// Task types that belong to it, as AMQP topic patterns: `*` is one word, `#` any number.
    pub types: Option<Spanned<Vec<Spanned<String>>>>,
    /// Attempts at once in one process. Default: only the worker's own bound.
    #[schemars(range(min = 1))]
    pub concurrency: Option<Spanned<i64>>,
}

/// `[[route]]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRoute {
    /// Task types it is for, as an AMQP topic pattern.
    #[serde(rename = "type")]
    pub task_type: Option<Spanned<String>>,
    /// Calls a third party over HTTP. Either this or `command`.
    pub http: Option<Spanned<RawHttp>>,
    /// Runs a program. Either this or `http`.
    pub command: Option<Spanned<RawCommand>>,
    /// Attempts at once over all workers of the store: a number, or a number per label as in `{ per = "label.shop", max = 2 }`.
    pub concurrency: Option<Spanned<RawConcurrency>>,
}

/// `http = { … }` of a `[[route]]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawHttp {
    /// `http://` or `https://`.
    pub url: Option<Spanned<String>>,
    /// GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS. Default: `POST`.
    pub method: Option<Spanned<String>>,
    /// For the whole call, body included; each attempt gets it in full. Default: `10s`.
    pub timeout: Option<Spanned<DurationText>>,
    /// Header names and values. `env:NAME` takes the value from the environment, or from the file that `NAME_FILE` names.
    pub headers: Option<BTreeMap<String, Spanned<String>>>,
    /// `http://`, `https://` or `socks5://`, or `env:NAME`. Default: none; proxies in the environment are not used.
    pub proxy: Option<Spanned<String>>,
    /// A PEM file of further certificate authorities.
    pub ca_file: Option<Spanned<String>>,
    /// JSON pointer to the platform's code in the response.
    pub code: Option<Spanned<String>>,
    /// JSON pointers that must lead to something that is not null and not empty.
    #[serde(default)]
    pub expect: Vec<Spanned<String>>,
    /// Values filled in for fields that a response lacks: JSON pointer and value.
    pub defaults: Option<BTreeMap<String, Spanned<AnyValue>>>,
}

/// `command = { … }` of a `[[route]]`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawCommand {
    /// The program; looked up in PATH when it has no slash.
    pub program: Option<Spanned<String>>,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<Spanned<String>>,
    /// For the whole run; then its process group is ended. Default: `5m`.
    pub timeout: Option<Spanned<DurationText>>,
    /// Variables of a clean environment: `NAME` is inherited, `NAME=value` is set.
    #[serde(default)]
    pub env: Vec<Spanned<String>>,
}
