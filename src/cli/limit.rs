//! `redeliver limit …`: how much room limits, caps and Retry-After holds have.

use clap::Subcommand;
use redeliver::desk::gates::{LimitDocument, limits};
use redeliver::desk::{List, to_json};
use redeliver::task::Millis;

use super::context::{Context, Door};
use super::exit::Exit;
use super::filter::now;
use super::output::{Entry, Listing, ahead, moment};

/// Look at limits
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List limits, concurrency caps and Retry-After holds by key: rule, room, next chance, how many tasks wait
    #[command(after_help = "Examples:
  redeliver limit list
  redeliver limit list -o json | jq '.items[] | select(.waiting > 0)'

A key appears once something has gone through it; one that was never used has all its room.")]
    List,
}

const COLUMNS: [&str; 6] = ["limit", "state", "room", "next_chance", "waiting", "rule"];

/// Runs the verb.
///
/// # Errors
/// When the store does not answer.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    match verb {
        Verb::List => context.bound("the store", list(context)).await?,
    }
}

async fn list(context: &Context) -> anyhow::Result<Exit> {
    let limits = match context.door().await? {
        Door::Store(store) => limits(&*store, &context.config().gates).await?,
        Door::Api(remote) => remote.get::<List<LimitDocument>>(&["limits"], &()).await?.items,
    };
    let now = now();
    let mut listing = Listing::new(&COLUMNS);
    limits.iter().for_each(|limit| listing.push(entry(limit, now)));
    if listing.is_empty() {
        let gates = &context.config().gates;
        context.say(match context.remote().is_none() && gates.limits.is_empty() && gates.caps.is_empty() {
            true => {
                "no [[limit]] and no concurrency of a [[route]] is configured, and nobody has asked to be left alone"
            }
            false => "nothing has gone through a limit yet",
        });
    }
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

fn entry(limit: &LimitDocument, now: Millis) -> Entry {
    let cells = vec![
        limit.key.clone(),
        limit.state.clone(),
        match limit.configured {
            false => String::new(),
            true => limit.room.map_or_else(|| "any".into(), |room| room.to_string()),
        },
        match limit.next_chance_at.as_deref().and_then(moment) {
            Some(at) => ahead(at, now),
            None if limit.configured => "when one ends".into(),
            None => String::new(),
        },
        limit.waiting.to_string(),
        limit.rule.clone().unwrap_or_default(),
    ];
    Entry { name: limit.key.clone(), cells, json: to_json(limit) }
}
