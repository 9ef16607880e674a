//! From a file, the environment and flags to a validated configuration. Two types: what was written ([`RawFile`]), and what it
//! means ([`Config`]).
//!
//! Every mistake is found in one go and said with file and line. Nothing here talks to a broker or a store.

mod backoffs;
mod console;
mod events;
mod gates;
mod metrics;
mod policies;
mod problem;
mod raw;
mod read;
mod reader;
mod routes;
mod scenario;
mod shared;
mod source;
mod units;
mod url;
mod validate;
mod value;
mod watch;
mod webhooks;

pub use console::{ConsoleConfig, MaskedFields};
pub use events::EventsConfig;
pub use metrics::MetricsConfig;
pub use problem::{ConfigError, Place, Problem};
pub use raw::RawFile;
pub use scenario::read_scenario;
pub use shared::SharedRules;
pub(crate) use shared::digest;
pub use source::{Effective, Environment, FlagValue, Request, Secrets, process_environment, variable};
pub use units::{parse_duration, parse_rate, parse_size, show_duration, show_rate, show_size};
pub use url::{MASK, check_store as check_store_url, mask};
pub use watch::{FileWatch, Seen};

use std::path::PathBuf;
use std::time::Duration;

use crate::broker::{Tls, Topology};
use crate::gate::Gates;
use crate::handler::{CommandRoute, HttpRoute, Webhook};
use crate::policy::{Policies, TopicPattern};
use crate::task::{Millis, Settings};

use problem::{Problems, Text};
use source::{Layers, find_file};

/// What the configuration means, validated.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[broker]`
    pub broker: BrokerConfig,
    /// `[store]`
    pub store: StoreConfig,
    /// `[worker]`
    pub worker: WorkerConfig,
    /// `[scheduler]`
    pub scheduler: SchedulerConfig,
    /// `[console]`
    pub console: ConsoleConfig,
    /// `[metrics]`
    pub metrics: MetricsConfig,
    /// `[events]`
    pub events: EventsConfig,
    /// Who is told when something is wrong.
    pub webhooks: Vec<Webhook>,
    /// `[[queue]]` in order; `default` is always there (last unless the file places it).
    pub queues: Vec<QueueConfig>,
    /// `[[route]]` in order; first match wins.
    pub routes: Vec<RouteConfig>,
    /// `[[policy]]` in order, the built-in one last.
    pub policies: Policies,
    /// `[[limit]]`, `[[breaker]]` and the caps of routes.
    pub gates: Gates,
}

/// `[broker]`
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Cluster nodes, tried in turn; holds passwords. Empty for the embedded broker.
    pub urls: Vec<String>,
    /// Prefix of every object.
    pub namespace: String,
    /// How long a publish may take.
    pub confirm_timeout: Duration,
    /// AMQP heartbeat.
    pub heartbeat: Duration,
    /// Files for `amqps://`.
    pub tls: Tls,
    /// RabbitMQ's management API, tried in turn; may hold passwords. Empty: beside the nodes.
    pub management_urls: Vec<String>,
}

impl BrokerConfig {
    /// Whether the broker is the one inside the process.
    pub fn is_embedded(&self) -> bool {
        self.urls.is_empty()
    }
}

impl std::fmt::Debug for BrokerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerConfig").field("urls", &self.urls.len()).field("namespace", &self.namespace).finish()
    }
}

/// `[store]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// `sqlite://path` or `postgres://user:password@host:5432/database`.
    pub url: String,
}

/// `[worker]`
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerConfig {
    /// Attempts at once in one process.
    pub concurrency: usize,
    /// Unacked deliveries per lane.
    pub prefetch: u16,
    /// The share of the starts that retries take while new tasks wait; more than 0 and less than 1.
    pub retry_share: f64,
    /// How long a claim holds without a heartbeat.
    pub lease: Duration,
    /// How long running attempts may go on after SIGTERM.
    pub shutdown_grace: Duration,
    /// Bytes of a submission, and of a response that is read.
    pub max_body: usize,
    /// How long a task of a type without route waits for one.
    pub no_route_hold: Duration,
}

/// `[scheduler]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Slack of the alarm behind a rung.
    pub grace: Duration,
    /// First look after a wake-up that did not arrive.
    pub patience: Duration,
    /// Longest pause between looks.
    pub max_patience: Duration,
    /// How far a mark must be past an arrival before it counts as lost.
    pub slack: Duration,
    /// Releases of one stamp that are free; the next counts as a crash.
    pub max_releases: i64,
    /// Wake-ups outstanding per tasks lane.
    pub lane_depth_cap: usize,
}

/// `[[queue]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueConfig {
    /// Its name.
    pub name: String,
    /// Task types that belong to it; empty for `default`, which takes the rest.
    pub types: Vec<TopicPattern>,
    /// Attempts at once in one process; `None`: only the worker's own bound.
    pub concurrency: Option<usize>,
}

/// `[[route]]`
#[derive(Debug, Clone)]
pub struct RouteConfig {
    /// Task types it is for.
    pub task_type: TopicPattern,
    /// Who runs them.
    pub kind: RouteKind,
}

/// Who runs a task. Its debug form leaves out header values and the proxy, which may be secret.
#[derive(Clone)]
pub enum RouteKind {
    /// An HTTP call.
    Http(HttpRoute),
    /// A command.
    Command(CommandRoute),
}

impl std::fmt::Debug for RouteKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RouteKind::Http(http) => write!(f, "http {} {}", http.method, mask(http.url.as_str())),
            RouteKind::Command(command) => write!(f, "command {:?}", command.program),
        }
    }
}

impl BrokerConfig {
    /// RabbitMQ's own default user, host and vhost.
    pub const DEFAULT_URL: &str = "amqp://guest:guest@localhost:5672/%2f";
}

impl StoreConfig {
    /// A file in the working directory.
    pub const DEFAULT_URL: &str = "sqlite://redeliver.db";
}

/// A configuration and where it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What it means.
    pub config: Config,
    /// Every value in force and its source, passwords masked.
    pub effective: Vec<Effective>,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
}

/// Finds the file, puts environment and flags on top, and validates all of it.
///
/// # Errors
/// Every problem at once, or the reason why the file cannot be read.
pub fn load(request: &Request<'_>) -> Result<Loaded, ConfigError> {
    load_found(request, find_file(request)?)
}

/// Validates `text` as the content of `path`, with environment and flags on top: what a reload does with what it has read.
///
/// # Errors
/// Every problem at once.
pub fn load_text(request: &Request<'_>, path: PathBuf, text: String) -> Result<Loaded, ConfigError> {
    load_found(request, Some((path, text)))
}

/// The configuration that these flags alone make: no file, no environment.
///
/// # Errors
/// Every problem at once.
pub fn from_flags(flags: Vec<FlagValue>) -> Result<Config, ConfigError> {
    let request = Request { file: None, environment: &|_| None, flags, secrets: Secrets::Optional };
    load_found(&request, None).map(|loaded| loaded.config)
}

fn load_found(request: &Request<'_>, found: Option<(PathBuf, String)>) -> Result<Loaded, ConfigError> {
    let (path, text) = match &found {
        Some((path, text)) => (path.display().to_string(), text.as_str()),
        None => (String::new(), ""),
    };
    let mut problems = Problems::new(Text { path, text });
    let raw: RawFile = read::read(text, &mut problems);
    let mut layers = Layers::new(request, &mut problems);
    let (routes, caps) = routes::routes(raw.route, &mut layers);
    let gates = Gates {
        limits: gates::limits(raw.limit, &mut layers),
        breakers: gates::breakers(raw.breaker, &mut layers),
        caps,
        routes: routes.iter().map(|route| route.task_type.clone()).collect(),
    };
    let config = Config {
        broker: validate::broker(raw.broker.unwrap_or_default(), &mut layers),
        store: validate::store(raw.store.unwrap_or_default(), &mut layers),
        worker: validate::worker(raw.worker.unwrap_or_default(), &mut layers),
        scheduler: validate::scheduler(raw.scheduler.unwrap_or_default(), &mut layers),
        console: console::console(raw.console.unwrap_or_default(), &mut layers),
        metrics: metrics::metrics(raw.metrics.unwrap_or_default(), &mut layers),
        events: events::events(raw.events.unwrap_or_default(), &mut layers),
        webhooks: webhooks::webhooks(raw.webhook, &mut layers),
        queues: validate::queues(raw.queue, &mut layers),
        routes,
        policies: policies::policies(raw.policy, &mut layers),
        gates,
    };
    let effective = layers.effective;
    problems.into_result()?;
    Ok(Loaded { config, effective, file: found.map(|(path, _)| path) })
}

/// The JSON Schema of the file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(RawFile).to_value()
}

impl Default for Config {
    /// What holds without file, environment and flags.
    fn default() -> Config {
        Config {
            broker: BrokerConfig {
                urls: vec![BrokerConfig::DEFAULT_URL.into()],
                namespace: "redeliver".into(),
                confirm_timeout: Duration::from_secs(10),
                heartbeat: Duration::from_secs(10),
                tls: Tls::default(),
                management_urls: Vec::new(),
            },
            store: StoreConfig { url: StoreConfig::DEFAULT_URL.into() },
            worker: WorkerConfig {
                concurrency: 64,
                prefetch: 256,
                retry_share: 0.30,
                lease: Duration::from_mins(1),
                shutdown_grace: Duration::from_secs(30),
                max_body: 1 << 20,
                no_route_hold: Duration::ZERO,
            },
            scheduler: SchedulerConfig {
                grace: Duration::from_mins(1),
                patience: Duration::from_secs(30),
                max_patience: Duration::from_mins(5),
                slack: Duration::from_secs(30),
                max_releases: 5,
                lane_depth_cap: 10_000,
            },
            console: ConsoleConfig::default(),
            metrics: MetricsConfig::default(),
            events: EventsConfig::default(),
            webhooks: Vec::new(),
            queues: vec![QueueConfig { name: crate::task::DEFAULT_QUEUE.into(), types: Vec::new(), concurrency: None }],
            routes: Vec::new(),
            policies: Policies::default(),
            gates: Gates::default(),
        }
    }
}

impl Config {
    /// The same with these rules instead of its own.
    #[must_use]
    pub fn with_rules(mut self, rules: SharedRules) -> Config {
        self.policies = rules.policies;
        self.gates.limits = rules.limits;
        self.gates.breakers = rules.breakers;
        self
    }

    /// SHA-256 (hex) of what policies, limits and breakers say: equal on all nodes that run the same rules with the same version of the
    /// program.
    pub fn rules_digest(&self) -> String {
        digest(&self.policies, &self.gates.limits, &self.gates.breakers)
    }

    /// The sections in which `other` differs although they hold until the next start.
    pub fn needs_restart(&self, other: &Config) -> Vec<&'static str> {
        let sections = [
            ("[broker]", self.broker != other.broker),
            ("[store]", self.store != other.store),
            ("[worker]", self.worker != other.worker),
            ("[scheduler]", self.scheduler != other.scheduler),
            ("[console]", self.console != other.console),
            ("[metrics]", self.metrics != other.metrics),
            ("[events]", self.events != other.events),
            ("[[queue]]", self.queues != other.queues),
        ];
        sections.into_iter().filter(|(_, differs)| *differs).map(|(section, _)| section).collect()
    }

    /// The queue to which a task type belongs.
    pub fn queue_of(&self, task_type: &str) -> &str {
        queue_of(&self.queues, task_type)
    }

    /// The times that transitions use.
    pub fn settings(&self) -> Settings {
        Settings {
            grace_ms: millis(self.scheduler.grace),
            patience_ms: millis(self.scheduler.patience),
            max_patience_ms: millis(self.scheduler.max_patience),
            slack_ms: millis(self.scheduler.slack),
            confirm_timeout_ms: millis(self.broker.confirm_timeout),
            lease_ms: millis(self.worker.lease),
            announced: self.events.publish,
        }
    }

    /// Every object that the broker must have.
    pub fn topology(&self) -> Topology {
        let queues: Vec<_> = self.queues.iter().map(|queue| (queue.name.clone(), queue.types.clone())).collect();
        let topology = Topology::new(&self.broker.namespace, &queues, &self.policies.rungs());
        if self.events.publish.is_empty() { topology } else { topology.with_events() }
    }

    /// The queue of that name.
    pub fn queue(&self, name: &str) -> Option<&QueueConfig> {
        self.queues.iter().find(|queue| queue.name == name)
    }
}

/// The first of `queues` that takes a task type; `default` takes the rest.
pub fn queue_of<'a>(queues: &'a [QueueConfig], task_type: &str) -> &'a str {
    queues
        .iter()
        .find(|queue| queue.types.iter().any(|pattern| pattern.matches(task_type)))
        .map_or(crate::task::DEFAULT_QUEUE, |queue| &queue.name)
}

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}
