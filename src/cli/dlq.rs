//! `redeliver dlq …`: dead letters, as the store has them.

use clap::Subcommand;
use redeliver::dead_letter;
use redeliver::store::{Store, Urgency};
use redeliver::task::{Answer, Command, Status};
use serde_json::json;

use super::confirm::Consent;
use super::context::Context;
use super::exit::{self, Exit};
use super::filter::{FilterArgs, PageArgs};
use super::output::{Entry, Listing};
use super::pager::{self, Which};
use super::replay::{self, Choice, Rate};
use super::{task, view, wait};

/// Look at dead letters and decide what becomes of them
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List dead letters, newest first
    #[command(after_help = "Examples:
  redeliver dlq list
  redeliver dlq list --type 'order.#' --class timeout --since 1d
  redeliver dlq list --reason-is permanent_error --all -o csv > dead.csv")]
    List {
        #[command(flatten)]
        filter: Box<FilterArgs>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one dead letter: error, every attempt, stack, screenshots
    #[command(after_help = "Examples:
  redeliver dlq show order-4711
  redeliver dlq show order-4711 -o json | jq '.attempts[-1].message'")]
    Show {
        /// The task
        id: String,
        /// Write what its attempts left (screenshots, logs) into this folder
        #[arg(long, value_name = "DIR")]
        attachments: Option<std::path::PathBuf>,
    },
    /// Run dead letters again: retries start anew, history is kept
    #[command(after_help = "Examples:
  redeliver dlq replay --all --dry-run
  redeliver dlq replay --type order.ship --class timeout --rate 50/s --yes --reason 'carrier is back'
  redeliver dlq replay order-4711 order-4712 --yes
  redeliver dlq list --text 'proxy' --all -o name | redeliver dlq replay - --yes

Prints {matched, replayed, skipped: {reason: n}}. What it is about is decided once, at the start. malformed and
duplicate_conflict letters cannot run as they are and are skipped as not_replayable.
Exits 0 when all were replayed, 3 when some were skipped.")]
    Replay {
        #[command(flatten)]
        choice: Box<Choice>,
        /// At most so many a second, minute or hour: `50/s`, `300/min`
        #[arg(long, value_name = "N/s")]
        rate: Option<Rate>,
        #[command(flatten)]
        consent: Consent,
    },
    /// Throw dead letters away, with a reason
    #[command(after_help = "Examples:
  redeliver dlq discard --type report.render --reason 'reports of 2024 are not needed' --yes
  redeliver dlq discard order-4711 --reason 'test order' --yes")]
    Discard {
        #[command(flatten)]
        choice: Box<Choice>,
        #[command(flatten)]
        consent: Consent,
    },
    /// Make the DLQ in the broker equal to the dead letters in the store, now
    #[command(after_help = "Examples:
  redeliver dlq sync
  redeliver dlq sync --queue shipping

Copies of no current dead letter are removed, missing ones are published again by the workers. Workers do this by
themselves when they see a difference.")]
    Sync {
        /// Only these queues
        #[arg(long = "queue", value_name = "Q", value_delimiter = ',')]
        queues: Vec<String>,
        #[command(flatten)]
        consent: Consent,
    },
}

impl Verb {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Refused`] without consent, [`Exit::Usage`] without a choice or a reason.
    pub fn can_run(&self) -> anyhow::Result<()> {
        match self {
            Verb::Replay { choice, consent, .. } => {
                choice.is_made()?;
                consent.can_be_had()
            }
            Verb::Discard { choice, consent } => {
                choice.is_made()?;
                consent.needed_reason()?;
                consent.can_be_had()
            }
            Verb::List { .. } | Verb::Show { .. } | Verb::Sync { .. } => Ok(()),
        }
    }
}

/// Runs the verb.
///
/// # Errors
/// With an exit code in the chain where one fits.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    match verb {
        Verb::List { filter, page } => {
            pager::print(context, Which::DeadLetters, &filter, &page, &view::DEAD_COLUMNS, view::dead_entry).await?;
            return Ok(Exit::Done);
        }
        Verb::Show { id, attachments } => {
            let door = context.door().await?;
            let found = wait::detail(context, &door, &id).await?.task;
            if found.status != Status::Dead {
                let text = format!("task {id:?} is {}, not dead; see `redeliver task show`", found.status);
                return Err(exit::error(Exit::Conflict, text));
            }
            return context.bound("the store", task::show(context, &door, &id, attachments.as_deref())).await?;
        }
        _ => {}
    }
    let store = context.store().await?;
    match verb {
        Verb::List { .. } | Verb::Show { .. } => Ok(Exit::Done),
        Verb::Replay { choice, rate, consent } => replay::replay(context, store, &choice, rate, &consent).await,
        Verb::Discard { choice, consent } => discard(context, &*store, &choice, &consent).await,
        Verb::Sync { queues, consent } => sync(context, &*store, &queues, &consent).await,
    }
}

async fn discard(context: &Context, store: &dyn Store, choice: &Choice, consent: &Consent) -> anyhow::Result<Exit> {
    let reason = consent.needed_reason()?;
    let mut tally = replay::Tally::new("discarded");
    let chosen = replay::choose(context, store, choice, &mut tally).await?;
    if consent.dry_run {
        tally.done = chosen.len();
        return tally.print(context, true);
    }
    if chosen.is_empty() {
        return tally.print(context, false);
    }
    consent.ask(&format!("Throw {} dead letters away?", chosen.len()))?;
    tracing::info!(tasks = chosen.len(), reason, "discarding");
    for chunk in chosen.chunks(replay::BATCH) {
        let commands = chunk
            .iter()
            .map(|letter| Command::Discard {
                id: letter.id.clone(),
                generation: letter.generation,
                note: Some(reason.to_owned()),
            })
            .collect();
        for answer in context.bound("the store", store.apply(Urgency::Normal, commands)).await?? {
            match answer {
                Answer::Done => tally.done += 1,
                other => tally.skip(replay::why_skipped(&other)),
            }
        }
    }
    tally.print(context, false)
}

async fn sync(context: &Context, store: &dyn Store, queues: &[String], consent: &Consent) -> anyhow::Result<Exit> {
    let config = context.config();
    if let Some(unknown) = queues.iter().find(|name| config.queue(name).is_none()) {
        return Err(exit::error(Exit::NotFound, format!("queue {unknown:?} is not configured")));
    }
    if config.broker.is_embedded() {
        context.say("the embedded broker's DLQ lives inside the worker, which compares it by itself");
        context.printer.list(&Listing::new(&SYNC_COLUMNS))?;
        return Ok(Exit::Done);
    }
    let chosen = config.queues.iter().filter(|queue| queues.is_empty() || queues.contains(&queue.name));
    let broker = context.broker().await?;
    let mut listing = Listing::new(&SYNC_COLUMNS);
    let mut busy = 0;
    for queue in chosen {
        let name = &queue.name;
        if consent.dry_run {
            let (present, wanted) = store.dead_copies(name).await?;
            context.say(format!("{name}: would compare the DLQ with {} dead letters", present + wanted));
            continue;
        }
        let Some(report) = dead_letter::pass(store, &*broker, name, true).await? else {
            busy += 1;
            context.say(format!("{name}: another pass is at work; try again in a minute"));
            continue;
        };
        let cells = [report.copies, report.removed, report.missing, report.found, report.strangers];
        listing.push(Entry {
            name: name.clone(),
            cells: std::iter::once(name.clone()).chain(cells.iter().map(ToString::to_string)).collect(),
            json: json!({ "queue": name, "copies": report.copies, "removed": report.removed, "missing": report.missing,
                "found": report.found, "strangers": report.strangers }),
        });
    }
    broker.close().await;
    context.printer.list(&listing)?;
    Ok(if busy > 0 { Exit::Partly } else { Exit::Done })
}

const SYNC_COLUMNS: [&str; 6] = ["queue", "copies", "removed", "missing", "found", "strangers"];
