//! From a file, the environment and flags to a validated configuration. Two types: what was written, and what it means.

use std::time::Duration;

use crate::handler::{CommandRoute, HttpRoute};
use crate::policy::{Policies, TopicPattern};

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
    /// `[[queue]]` in order; `default` is always there (last unless the file places it).
    pub queues: Vec<QueueConfig>,
    /// `[[route]]` in order; first match wins.
    pub routes: Vec<RouteConfig>,
    /// `[[policy]]` in order, the built-in one last.
    pub policies: Policies,
}

/// `[broker]`
#[derive(Clone)]
pub struct BrokerConfig {
    /// Cluster nodes, tried in turn; holds passwords. Empty for the embedded broker.
    pub urls: Vec<String>,
    /// Prefix of every object.
    pub namespace: String,
    /// How long a publish may take.
    pub confirm_timeout: Duration,
    /// AMQP heartbeat.
    pub heartbeat: Duration,
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
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `sqlite://path`.
    pub url: String,
}

/// `[worker]`
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Attempts at once in one process.
    pub concurrency: usize,
    /// Unacked deliveries per lane.
    pub prefetch: u16,
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
#[derive(Debug, Clone)]
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
#[derive(Debug, Clone)]
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

/// Who runs a task.
#[derive(Debug, Clone)]
pub enum RouteKind {
    /// An HTTP call.
    Http(HttpRoute),
    /// A command.
    Command(CommandRoute),
}

impl Config {
    /// The queue to which a task type belongs.
    pub fn queue_of(&self, task_type: &str) -> &str {
        self.queues
            .iter()
            .find(|queue| queue.types.iter().any(|pattern| pattern.matches(task_type)))
            .map_or(crate::task::DEFAULT_QUEUE, |queue| &queue.name)
    }
}
