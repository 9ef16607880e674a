//! Queues: what the broker holds and what the store knows, side by side; pauses; workers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time;
use crate::broker::{Broker, BrokerError, QueueDepth, QueueRole, QueueSpec};
use crate::config::Config;
use crate::gate::{queue_pause, type_pause};
use crate::policy::TopicPattern;
use crate::store::{Filter, Pause, Store, StoreError};
use crate::task::{Lane, Millis, Status};

/// A queue of the broker, with what the store knows of it. What nobody could say is null.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Queue")]
pub struct QueueDocument {
    /// Its name in the broker.
    pub name: String,
    /// The `[[queue]]` it belongs to.
    pub queue: String,
    /// `tasks`, `retries`, `delay`, `rejected` or `dead`.
    pub role: String,
    /// How long a delay queue holds.
    pub delay_ms: Option<i64>,
    /// Messages ready, in the broker.
    pub ready: Option<u64>,
    /// Consumers, in the broker.
    pub consumers: Option<u64>,
    /// The age of the oldest task.
    pub oldest_age_ms: Option<i64>,
    /// Wake-ups under way, by the store.
    pub outstanding: Option<usize>,
    /// Tasks of this role, by the store.
    pub in_store: Option<i64>,
    /// Tasks that run.
    pub running: Option<i64>,
    /// Whether it is paused.
    pub paused: bool,
    /// Why.
    pub pause_reason: Option<String>,
}

/// A pause.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Pause")]
pub struct PauseDocument {
    /// `pause queue NAME` or `pause type PATTERN`.
    pub key: String,
    /// Since when.
    pub since: String,
    /// Why.
    pub reason: Option<String>,
}

impl PauseDocument {
    /// The document of a pause.
    pub fn of(pause: &Pause) -> PauseDocument {
        PauseDocument { key: pause.key.clone(), since: time(pause.since), reason: pause.reason.clone() }
    }
}

/// What is paused: a configured queue, or types.
///
/// # Errors
/// What was expected.
pub fn pause_key(config: &Config, queue: Option<&str>, task_type: Option<&str>) -> Result<String, String> {
    match (queue, task_type) {
        (Some(name), None) if config.queue(name).is_some() => Ok(queue_pause(name)),
        (Some(name), None) => {
            let known: Vec<&str> = config.queues.iter().map(|queue| queue.name.as_str()).collect();
            Err(format!("queue {name:?} is not configured; there are: {}", known.join(", ")))
        }
        (None, Some(pattern)) => {
            let pattern = TopicPattern::new(pattern).map_err(|error| error.to_string())?;
            Ok(type_pause(&pattern))
        }
        _ => Err("expected either a queue or a type".to_owned()),
    }
}

/// What the store knows of a queue.
struct Known {
    counts: BTreeMap<Status, i64>,
    outstanding: usize,
    oldest_pending: Option<Millis>,
    oldest_dead: Option<Millis>,
    paused: Option<Pause>,
    now: Millis,
}

/// The broker's depths by full name.
pub type Depths = BTreeMap<String, QueueDepth>;

/// Asks the broker how deep its queues are.
///
/// # Errors
/// When it does not answer.
pub async fn depths(broker: &dyn Broker, config: &Config) -> Result<Depths, BrokerError> {
    let depths = broker.depths(&config.topology()).await?;
    Ok(depths.into_iter().map(|depth| (depth.name.clone(), depth)).collect())
}

/// Every queue of the installation. One half is worth showing without the other: on a new installation there is no store yet, in an outage
/// no broker.
///
/// # Errors
/// When the store does not answer.
pub async fn queues(
    store: Option<&dyn Store>,
    depths: Option<&Depths>,
    config: &Config,
) -> Result<Vec<QueueDocument>, StoreError> {
    let mut known = BTreeMap::new();
    if let Some(store) = store {
        let pauses = store.pauses().await?;
        for queue in &config.queues {
            let cap = config.scheduler.lane_depth_cap;
            known.insert(queue.name.as_str(), know(store, &queue.name, cap, &pauses).await?);
        }
    }
    let document = |spec: &QueueSpec| {
        let depth = depths.and_then(|depths| depths.get(&spec.name));
        QueueDocument::of(spec, depth, known.get(spec.queue.as_str()))
    };
    Ok(config.topology().queues.iter().map(document).collect())
}

async fn know(store: &dyn Store, queue: &str, cap: usize, pauses: &[Pause]) -> Result<Known, StoreError> {
    // Dead ones are counted in an index that holds all of it, ended ones not at all: they are nearly all rows.
    let statuses = vec![Status::Pending, Status::Running, Status::RetryWaiting];
    let filter = Filter { queues: vec![queue.to_owned()], statuses, ..Filter::default() };
    let key = queue_pause(queue);
    let mut counts = store.count(&filter).await?;
    let (present, wanted) = store.dead_copies(queue).await?;
    counts.insert(Status::Dead, present + wanted);
    Ok(Known {
        counts,
        outstanding: store.outstanding(queue, cap.saturating_add(1)).await?,
        oldest_pending: store.feed(queue, store.now(), 1).await?.first().map(|task| task.spec.created_at),
        oldest_dead: oldest_dead(store, queue).await?,
        paused: pauses.iter().find(|pause| pause.key == key).cloned(),
        now: store.now(),
    })
}

/// The time of the oldest death, if the DLQ is small enough to look through.
async fn oldest_dead(store: &dyn Store, queue: &str) -> Result<Option<Millis>, StoreError> {
    const PAGE: usize = 5_000;
    const PAGES: usize = 20;
    let (mut after, mut oldest) = (String::new(), None);
    for _ in 0..PAGES {
        let rows = store.dead_rows(queue, &after, PAGE).await?;
        oldest = rows.iter().map(|row| row.died_at).chain(oldest).min();
        match rows.last() {
            Some(last) if rows.len() == PAGE => after.clone_from(&last.id),
            _ => return Ok(oldest),
        }
    }
    Ok(None)
}

impl QueueDocument {
    fn of(spec: &QueueSpec, depth: Option<&QueueDepth>, known: Option<&Known>) -> QueueDocument {
        let count = |status: Status| known.map(|known| known.counts.get(&status).copied().unwrap_or(0));
        let (role, in_store, oldest) = match &spec.role {
            QueueRole::Lane(Lane::Tasks) => {
                ("tasks", count(Status::Pending), known.and_then(|known| known.oldest_pending))
            }
            QueueRole::Lane(Lane::Retries) => ("retries", count(Status::RetryWaiting), None),
            QueueRole::Rung(_) => ("delay", None, None),
            QueueRole::Rejected => ("rejected", None, None),
            QueueRole::Dead => ("dead", count(Status::Dead), known.and_then(|known| known.oldest_dead)),
        };
        let is_tasks_lane = spec.role == QueueRole::Lane(Lane::Tasks);
        let pause = known.and_then(|known| known.paused.as_ref());
        QueueDocument {
            name: spec.name.clone(),
            queue: spec.queue.clone(),
            role: role.to_owned(),
            delay_ms: match spec.role {
                QueueRole::Rung(delay_ms) => Some(delay_ms),
                _ => None,
            },
            ready: depth.and_then(|depth| depth.ready),
            consumers: depth.and_then(|depth| depth.consumers),
            oldest_age_ms: known.zip(oldest).map(|(known, at)| known.now.saturating_sub(at).max(0)),
            outstanding: known.filter(|_| is_tasks_lane).map(|known| known.outstanding),
            in_store,
            running: count(Status::Running).filter(|_| is_tasks_lane),
            paused: pause.is_some(),
            pause_reason: pause.and_then(|pause| pause.reason.clone()),
        }
    }
}
