//! `redeliver queue …`: what the broker holds and what the store knows, side by side; pauses.

use std::collections::BTreeMap;

use clap::Subcommand;
use redeliver::broker::{QueueDepth, QueueRole, QueueSpec};
use redeliver::gate::{queue_pause, type_pause};
use redeliver::policy::TopicPattern;
use redeliver::store::{Filter, Pause, Store};
use redeliver::task::{Lane, Millis, Status};
use serde_json::{Value, json};

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
    let store = context.store().await?;
    match verb {
        Verb::List => list(context, &*store).await,
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
}

async fn list(context: &Context, store: &dyn Store) -> anyhow::Result<Exit> {
    let config = context.config();
    let topology = config.topology();
    let depths = match depths(context).await {
        Ok(depths) => Ok(depths),
        Err(error) if exit::of(&error) == Exit::Unreachable => Err(error),
        Err(error) => return Err(error),
    };
    let pauses = store.pauses().await?;
    let mut known = BTreeMap::new();
    for queue in &config.queues {
        known.insert(queue.name.as_str(), look(store, &queue.name, config.scheduler.lane_depth_cap, &pauses).await?);
    }
    let mut listing = Listing::new(&COLUMNS);
    for spec in &topology.queues {
        let depth = depths.as_ref().ok().and_then(|depths| depths.get(&spec.name));
        if let Some(known) = known.get(spec.queue.as_str()) {
            listing.push(entry(spec, depth, known, store.now()));
        }
    }
    context.printer.list(&listing)?;
    for pause in pauses.iter().filter(|pause| pause.key.starts_with("pause type ")) {
        context.say(format!("{} since {}", pause.key, super::output::time(pause.since)));
    }
    match depths {
        Ok(_) => Ok(Exit::Done),
        Err(error) => Err(error),
    }
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

fn entry(spec: &QueueSpec, depth: Option<&QueueDepth>, known: &Known, now: Millis) -> Entry {
    let count = |status: Status| known.counts.get(&status).copied().unwrap_or(0);
    let (role, in_store, oldest) = match &spec.role {
        QueueRole::Lane(Lane::Tasks) => ("tasks", Some(count(Status::Pending)), known.oldest_pending),
        QueueRole::Lane(Lane::Retries) => ("retries", Some(count(Status::RetryWaiting)), None),
        QueueRole::Rung(_) => ("delay", None, None),
        QueueRole::Rejected => ("rejected", None, None),
        QueueRole::Dead => ("dead", Some(count(Status::Dead)), known.oldest_dead),
    };
    let delay_ms = match spec.role {
        QueueRole::Rung(delay_ms) => Some(delay_ms),
        _ => None,
    };
    let outstanding = (spec.role == QueueRole::Lane(Lane::Tasks)).then_some(known.outstanding);
    let oldest_ms = oldest.map(|at| now.saturating_sub(at).max(0));
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
        known.paused.as_ref().map_or_else(
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
        "running": (spec.role == QueueRole::Lane(Lane::Tasks)).then(|| count(Status::Running)),
        "paused": known.paused.is_some(),
        "pause_reason": known.paused.as_ref().and_then(|pause| pause.reason.clone()).map_or(Value::Null, Value::from),
    });
    Entry { name: spec.name.clone(), cells, json }
}
