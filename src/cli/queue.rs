//! `redeliver queue …`: what the broker holds and what the store knows, side by side; pauses.

use clap::Subcommand;
use redeliver::config::Config;
use redeliver::desk::queues::{Depths, PauseDocument, QueueDocument, depths, pause_key, queues};
use redeliver::desk::{List, to_json};
use redeliver::policy::TopicPattern;
use redeliver::store::Pause;
use serde_json::json;

use super::audit::tell;
use super::confirm::Consent;
use super::context::{Context, Door, open_broker};
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
    match verb {
        Verb::List => list(context).await,
        Verb::Pause { what, consent } => set(context, &what, consent, true).await,
        Verb::Resume { what, consent } => set(context, &what, consent, false).await,
    }
}

async fn set(context: &Context, what: &What, consent: Consent, pause: bool) -> anyhow::Result<Exit> {
    let task_type = what.task_type.as_ref().map(ToString::to_string);
    let key = match context.door().await? {
        Door::Store(store) => {
            let key = pause_key(context.config(), what.name.as_deref(), task_type.as_deref())
                .map_err(|text| exit::error(Exit::NotFound, text))?;
            if !consent.dry_run {
                if pause {
                    let reason = consent.reason.clone();
                    store.pause(Pause { key: key.clone(), since: store.now(), reason }).await?;
                } else if !store.resume(&key).await? {
                    return Err(exit::error(Exit::NotFound, format!("there is no {key}")));
                }
                let action = if pause { "queue.pause" } else { "queue.resume" };
                tell(&*store, action, &key, consent.reason, None).await?;
            }
            key
        }
        Door::Api(remote) => {
            let body = json!({
                "queue": what.name, "type": task_type, "reason": consent.reason, "dry_run": consent.dry_run,
            });
            let path = ["queues", if pause { "pause" } else { "resume" }];
            remote.post::<PauseDocument>(&path, &body).await?.key
        }
    };
    context.say(match (consent.dry_run, pause) {
        (true, true) => format!("would set: {key}"),
        (true, false) => format!("would end: {key}"),
        (false, true) => format!("set: {key}"),
        (false, false) => format!("ended: {key}"),
    });
    Ok(Exit::Done)
}

async fn list(context: &Context) -> anyhow::Result<Exit> {
    if let Some(remote) = context.remote() {
        let found: List<QueueDocument> = remote.get(&["queues"], &()).await?;
        print(context, &found.items)?;
        return Ok(Exit::Done);
    }
    // One half is worth showing without the other: on a new installation there is no store yet, in an outage no broker.
    let store = match context.store().await {
        Ok(store) => Some(store),
        Err(error) if exit::of(&error) == Exit::NotFound => {
            context.say(format!("{error:#}"));
            None
        }
        Err(error) => return Err(error),
    };
    // Workers have the delay queues of the rules in force, which the store may know better than the file.
    let config = match &store {
        Some(store) => context.in_force_in(&**store).await?.0,
        None => context.config().clone(),
    };
    let depths = match ask(context, &config).await {
        Ok(depths) => Ok(depths),
        Err(error) if exit::of(&error) == Exit::Unreachable => Err(error),
        Err(error) => return Err(error),
    };
    if let Some(store) = &store {
        for pause in store.pauses().await?.iter().filter(|pause| pause.key.starts_with("pause type ")) {
            context.say(format!("{} since {}", pause.key, super::output::time(pause.since)));
        }
    }
    let found = queues(store.as_deref(), depths.as_ref().ok(), &config).await?;
    print(context, &found)?;
    depths.map(|_| Exit::Done)
}

/// The broker's depths; empty for the embedded broker, whose messages live inside the worker.
async fn ask(context: &Context, config: &Config) -> anyhow::Result<Depths> {
    if config.broker.is_embedded() {
        return Ok(Depths::new());
    }
    let broker = open_broker(config)?;
    // Half of the patience: a broker that is down must leave time to say what the store knows.
    let asked = tokio::time::timeout(context.patience() / 2, depths(&*broker, config)).await;
    broker.close().await;
    Ok(asked.map_err(|_| exit::error(Exit::Unreachable, "the broker did not answer in time"))??)
}

fn print(context: &Context, queues: &[QueueDocument]) -> anyhow::Result<()> {
    let mut listing = Listing::new(&COLUMNS);
    queues.iter().for_each(|queue| listing.push(entry(queue)));
    Ok(context.printer.list(&listing)?)
}

fn entry(queue: &QueueDocument) -> Entry {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let cells = vec![
        queue.queue.clone(),
        queue.delay_ms.map_or_else(|| queue.role.clone(), |delay_ms| format!("delay {}", length(delay_ms))),
        or_dash(queue.ready.map(|n| n.to_string())),
        or_dash(queue.consumers.map(|n| n.to_string())),
        or_dash(queue.oldest_age_ms.map(length)),
        or_dash(queue.outstanding.map(|n| n.to_string())),
        or_dash(queue.in_store.map(|n| n.to_string())),
        match (queue.paused, &queue.pause_reason) {
            (false, _) => "no".to_owned(),
            (true, Some(reason)) => format!("yes: {reason}"),
            (true, None) => "yes".to_owned(),
        },
    ];
    Entry { name: queue.name.clone(), cells, json: to_json(queue) }
}
