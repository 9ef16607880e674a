//! `redeliver queue …`: what the broker holds and what the store knows, side by side; pauses.

use std::collections::BTreeMap;

use clap::Subcommand;
use redeliver::broker::{QueueDepth, QueueRole, QueueSpec};
use redeliver::gate::{queue_pause, type_pause};
use redeliver::policy::TopicPattern;
use redeliver::store::{Filter, Pause, Store};
use redeliver::task::{Lane, Millis, Status};
use serde_json::json;

use super::confirm::Consent;
use super::context::{Context, open_broker};
use super::exit::{self, Exit};
use super::output::{Entry, Listing, length};

/// Look at queues, pause and resume them
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List lanes, delay queues, rejected and DLQ, with depth, oldest age and consumers
    #[command(after_help = "Examples:
  redeliver queue list
  redeliver queue list -o json | jq '.items[] | select(.role == \"delay\")'

While the broker is down its columns show `-` and the exit code is 7.")]
    List,
    /// Start no more attempts of a queue or of a task type, until resumed
    #[command(after_help = "Examples:
  redeliver queue pause shipping --reason 'carrier maintenance until 14:00'
  redeliver queue pause --type 'order.ship.#'")]
    Pause {
        #[command(flatten)]
        what: What,
        #[command(flatten)]
        consent: Consent,
    },
    /// End a pause
    #[command(after_help = "Examples:
  redeliver queue resume shipping
  redeliver queue resume --type 'order.ship.#'")]
    Resume {
        #[command(flatten)]
        what: What,
        #[command(flatten)]
        consent: Consent,
    },
}

/// A queue or a type.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct What {
    /// The [[queue]]
    #[arg(value_name = "QUEUE")]
    name: Option<String>,
    /// Task types instead of a queue: an AMQP topic pattern
    #[arg(long = "type", value_name = "PATTERN", value_parser = |text: &str| TopicPattern::new(text).map_err(|e| e.to_string()))]
    task_type: Option<TopicPattern>,
}

/// The columns of the list.
const COLUMNS: [&str; 8] = ["queue", "role", "ready", "consumers", "oldest", "outstanding", "in_store", "paused"];

/// Runs the verb.
///
/// # Errors
/// With an exit code in the chain where one fits.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    if let Verb::List = verb {
        return list(context).await;
    }
    let store = context.store().await?;
    match verb {
        Verb::List => Ok(Exit::Done),
        Verb::Pause { what, consent } => {
            let key = key_of(&what, context)?;
            if consent.dry_run {
                context.say(format!("would set: {key}"));
                return Ok(Exit::Done);
            }
            store.pause(Pause { key: key.clone(), since: store.now(), reason: consent.reason }).await?;
            context.say(format!("set: {key}"));
            Ok(Exit::Done)
        }
        Verb::Resume { what, consent } => {
            let key = key_of(&what, context)?;
            if consent.dry_run {
                context.say(format!("would end: {key}"));
                return Ok(Exit::Done);
            }
            if !store.resume(&key).await? {
                return Err(exit::error(Exit::NotFound, format!("there is no {key}")));
            }
            context.say(format!("ended: {key}"));
            Ok(Exit::Done)
        }
    }
}

fn key_of(what: &What, context: &Context) -> anyhow::Result<String> {
    if let Some(pattern) = &what.task_type {
        return Ok(type_pause(pattern));
    }
    let name = what.name.as_deref().unwrap_or_default();
    if context.config().queue(name).is_none() {
        let known: Vec<&str> = context.config().queues.iter().map(|queue| queue.name.as_str()).collect();
        let text = format!("queue {name:?} is not configured; there are: {}", known.join(", "));
        return Err(exit::error(Exit::NotFound, text));
    }
    Ok(queue_pause(name))
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

async fn list(context: &Context) -> anyhow::Result<Exit> {
    let config = context.config();
    // One half is worth showing without the other: on a new installation there is no store yet, in an outage no broker.
    let store = match context.store().await {
        Ok(store) => Some(store),
        Err(error) if exit::of(&error) == Exit::NotFound => {
            context.say(format!("{error:#}"));
            None
        }
        Err(error) => return Err(error),
    };
    let depths = match depths(context).await {
        Ok(depths) => Ok(depths),
        Err(error) if exit::of(&error) == Exit::Unreachable => Err(error),
        Err(error) => return Err(error),
    };
    let mut known = BTreeMap::new();
    if let Some(store) = &store {
        let pauses = store.pauses().await?;
        for queue in &config.queues {
            let cap = config.scheduler.lane_depth_cap;
            known.insert(queue.name.as_str(), look(&**store, &queue.name, cap, &pauses).await?);
        }
        for pause in pauses.iter().filter(|pause| pause.key.starts_with("pause type ")) {
            context.say(format!("{} since {}", pause.key, super::output::time(pause.since)));
        }
    }
    let mut listing = Listing::new(&COLUMNS);
    for spec in &config.topology().queues {
        let depth = depths.as_ref().ok().and_then(|depths| depths.get(&spec.name));
        listing.push(entry(spec, depth, known.get(spec.queue.as_str())));
    }
    context.printer.list(&listing)?;
    depths.map(|_| Exit::Done)
}

/// The broker's depths by full name; empty for the embedded broker, whose messages live inside the worker.
async fn depths(context: &Context) -> anyhow::Result<BTreeMap<String, QueueDepth>> {
    if context.config().broker.is_embedded() {
        return Ok(BTreeMap::new());
    }
    let broker = open_broker(context.config())?;
    let topology = context.config().topology();
    // Half of the patience: a broker that is down must leave time to say what the store knows.
    let asked = tokio::time::timeout(context.patience() / 2, broker.depths(&topology)).await;
    broker.close().await;
    let depths = asked.map_err(|_| exit::error(Exit::Unreachable, "the broker did not answer in time"))??;
    Ok(depths.into_iter().map(|depth| (depth.name.clone(), depth)).collect())
}

async fn look(store: &dyn Store, queue: &str, cap: usize, pauses: &[Pause]) -> anyhow::Result<Known> {
    let filter = Filter { queues: vec![queue.to_owned()], ..Filter::default() };
    let key = queue_pause(queue);
    Ok(Known {
        counts: store.count(&filter).await?,
        outstanding: store.outstanding(queue, cap.saturating_add(1)).await?,
        oldest_pending: store.feed(queue, store.now(), 1).await?.first().map(|task| task.spec.created_at),
        oldest_dead: oldest_dead(store, queue).await?,
        paused: pauses.iter().find(|pause| pause.key == key).cloned(),
        now: store.now(),
    })
}

/// The time of the oldest death, if the DLQ is small enough to look through.
async fn oldest_dead(store: &dyn Store, queue: &str) -> anyhow::Result<Option<Millis>> {
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

fn entry(spec: &QueueSpec, depth: Option<&QueueDepth>, known: Option<&Known>) -> Entry {
    let count = |status: Status| known.map(|known| known.counts.get(&status).copied().unwrap_or(0));
    let (role, in_store, oldest) = match &spec.role {
        QueueRole::Lane(Lane::Tasks) => ("tasks", count(Status::Pending), known.and_then(|known| known.oldest_pending)),
        QueueRole::Lane(Lane::Retries) => ("retries", count(Status::RetryWaiting), None),
        QueueRole::Rung(_) => ("delay", None, None),
        QueueRole::Rejected => ("rejected", None, None),
        QueueRole::Dead => ("dead", count(Status::Dead), known.and_then(|known| known.oldest_dead)),
    };
    let is_tasks_lane = spec.role == QueueRole::Lane(Lane::Tasks);
    let delay_ms = match spec.role {
        QueueRole::Rung(delay_ms) => Some(delay_ms),
        _ => None,
    };
    let outstanding = known.filter(|_| is_tasks_lane).map(|known| known.outstanding);
    let oldest_ms = known.zip(oldest).map(|(known, at)| known.now.saturating_sub(at).max(0));
    let pause = known.and_then(|known| known.paused.as_ref());
    let ready = depth.and_then(|depth| depth.ready);
    let consumers = depth.and_then(|depth| depth.consumers);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let cells = vec![
        spec.queue.clone(),
        delay_ms.map_or_else(|| role.to_owned(), |delay_ms| format!("delay {}", length(delay_ms))),
        or_dash(ready.map(|n| n.to_string())),
        or_dash(consumers.map(|n| n.to_string())),
        or_dash(oldest_ms.map(length)),
        or_dash(outstanding.map(|n| n.to_string())),
        or_dash(in_store.map(|n| n.to_string())),
        pause.map_or_else(
            || "no".to_owned(),
            |pause| match &pause.reason {
                Some(reason) => format!("yes: {reason}"),
                None => "yes".to_owned(),
            },
        ),
    ];
    let json = json!({
        "name": spec.name,
        "queue": spec.queue,
        "role": role,
        "delay_ms": delay_ms,
        "ready": ready,
        "consumers": consumers,
        "oldest_age_ms": oldest_ms,
        "outstanding": outstanding,
        "in_store": in_store,
        "running": count(Status::Running).filter(|_| is_tasks_lane),
        "paused": pause.is_some(),
        "pause_reason": pause.and_then(|pause| pause.reason.clone()),
    });
    Entry { name: spec.name.clone(), cells, json }
}
