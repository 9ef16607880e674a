//! `redeliver dlq …`: dead letters, as the store has them.

use clap::Subcommand;
use redeliver::desk::Skips;
use redeliver::desk::filter::FilterText;
use redeliver::store::Store;
use redeliver::task::Status;
use redeliver::{dead_letter, desk};
use serde_json::json;

use super::audit::tell;
use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::filter::{FilterArgs, PageArgs, now};
use super::letters::{Choice, Tally};
use super::output::{Entry, Listing};
use super::pager::{self, Which};
use super::{groups, order, task, transfer, view, wait};

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
    /// Count dead letters by what they have in common, largest group first
    #[command(after_help = "Examples:
  redeliver dlq groups
  redeliver dlq groups --by label.shop --type order.ship --since 1d
  redeliver dlq groups -o json | jq '.items[] | select(.trend == \"growing\") | .key'

The trend is by the last 24 hours: new (the oldest letter died within a day), growing (more than twice the pace), steady, or
quiet (none for two to three hours).")]
    Groups(Box<groups::Args>),
    /// Write an owner and a note at a group, for those who come after
    #[command(after_help = "Examples:
  redeliver dlq note v1-0123456789abcdef --owner ana --note 'the carrier mends it, ticket 4711'
  redeliver dlq note shop-7 --by label.shop --clear")]
    Note(groups::NoteArgs),
    /// Run dead letters again: retries start anew, history is kept
    #[command(after_help = "Examples:
  redeliver dlq replay --all --dry-run
  redeliver dlq replay --type order.ship --class timeout --rate 50/s --yes --reason 'carrier is back'
  redeliver dlq replay --fingerprint v1-0123456789abcdef --ramp --detach --yes
  redeliver dlq replay order-4711 --edit-payload '[{\"op\":\"replace\",\"path\":\"/zip\",\"value\":\"8001\"}]' --dry-run
  redeliver dlq list --text 'proxy' --all -o name | redeliver dlq replay - --yes

Makes a replay job of the letters that match at the start, never more, and puts them to run; see `redeliver replay`. Prints
{matched, replayed, skipped: {reason: n}}. malformed and duplicate_conflict letters cannot run as they are and are skipped as
not_replayable, unless --edit-payload makes something of them: there it is about the whole submission.
Exits 0 when all were replayed, 3 when some were skipped or the job stopped itself.")]
    Replay(Box<order::Args>),
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
    /// List copies in the DLQ that belong to no dead letter of this store, and adopt them
    #[command(after_help = "Examples:
  redeliver dlq strangers
  redeliver dlq strangers --adopt --yes --reason 'the store was restored from yesterday'

They are there when a store was lost or restored, or when another program put them there. An adopted copy becomes a dead letter; it
leaves the DLQ once that is written, and a copy of the new letter takes its place. One that is no letter of ours is kept with its
bytes, as malformed.")]
    Strangers(transfer::StrangersArgs),
    /// Write dead letters with their attempts to stdout, one JSON document a line
    #[command(after_help = "Examples:
  redeliver dlq export --all > letters.jsonl
  redeliver dlq export --type order.ship --since 1d | ssh other redeliver dlq import - --yes

What attempts left (screenshots) is not among them; its names are.")]
    Export(Box<transfer::ExportArgs>),
    /// Take in dead letters that another installation has exported
    #[command(after_help = "Examples:
  redeliver dlq import letters.jsonl --dry-run
  redeliver dlq import letters.jsonl --yes --reason 'moved from the old host'

Prints {matched, imported, skipped: {known, unreadable, …}}. Letters whose id or idempotency key is known here are left as they are;
lines that are no letters are named by number. Exits 3 when some were skipped.")]
    Import(transfer::ImportArgs),
}

impl Verb {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Refused`] without consent, [`Exit::Usage`] without a choice or a reason.
    pub fn can_run(&self) -> anyhow::Result<()> {
        match self {
            Verb::Replay(args) => args.can_run(),
            Verb::Discard { choice, consent } => {
                choice.is_made()?;
                consent.needed_reason()?;
                consent.can_be_had()
            }
            Verb::Export(args) => args.can_run(),
            Verb::Import(args) => args.can_run(),
            Verb::Strangers(args) => args.can_run(),
            Verb::List { .. } | Verb::Groups(_) | Verb::Note(_) | Verb::Show { .. } | Verb::Sync { .. } => Ok(()),
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
            Ok(Exit::Done)
        }
        Verb::Show { id, attachments } => {
            let door = context.door().await?;
            let found = wait::detail(context, &door, &id).await?.task;
            if found.status != Status::Dead {
                let text = format!("task {id:?} is {}, not dead; see `redeliver task show`", found.status);
                return Err(exit::error(Exit::Conflict, text));
            }
            context.bound("the store", task::show(context, &door, &id, attachments.as_deref())).await?
        }
        Verb::Groups(args) => context.bound("the store", groups::list(&args, context)).await?,
        Verb::Note(args) => context.bound("the store", groups::note(args, context)).await?,
        Verb::Replay(args) => order::run(&args, context).await,
        Verb::Discard { choice, consent } => discard(context, &choice, &consent).await,
        Verb::Strangers(args) => transfer::strangers(&args, context).await,
        Verb::Export(args) => transfer::export(&args, context).await,
        Verb::Import(args) => transfer::import(&args, context).await,
        Verb::Sync { queues, consent } => sync(context, &*context.store().await?, &queues, &consent).await,
    }
}

async fn discard(context: &Context, choice: &Choice, consent: &Consent) -> anyhow::Result<Exit> {
    let reason = consent.needed_reason()?;
    let door = context.door().await?;
    let now = match &door {
        Door::Store(store) => store.now(),
        Door::Api(_) => now(),
    };
    let mut filter = choice.to_filter(now)?;
    // What dies while a person thinks it over is not meant.
    filter.until = Some(filter.until.map_or(now + 1, |until| until.min(now + 1)));
    let throw = async |dry_run: bool| -> anyhow::Result<Skips> {
        match &door {
            Door::Store(store) => {
                let found = desk::discard_chosen(&**store, &filter, choice.limit(), reason, dry_run).await?;
                if !dry_run {
                    let target = desk::to_json(&FilterText::of(&filter)).to_string();
                    let count = i64::try_from(found.discarded).ok();
                    tell(&**store, "dlq.discard", target, Some(reason.to_owned()), count).await?;
                }
                Ok(found)
            }
            Door::Api(remote) => {
                let body = json!({
                    "filter": FilterText::of(&filter), "limit": choice.limit(), "reason": reason, "dry_run": dry_run,
                });
                remote.post(&["discards"], &body).await
            }
        }
    };
    let mut found = context.bound("the store", throw(true)).await??;
    if !consent.dry_run && found.discarded > 0 {
        consent.ask(&format!("Throw {} dead letters away?", found.discarded))?;
        tracing::info!(tasks = found.discarded, reason, "discarding");
        found = throw(false).await?;
    }
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let tally = Tally {
        verb: "discarded",
        done: count(found.discarded),
        skipped: found.skipped.into_iter().map(|(why, n)| (why, count(n))).collect(),
        by_id: !filter.ids.is_empty(),
        dry_run: consent.dry_run,
        ..Tally::default()
    };
    tally.print(context)
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
