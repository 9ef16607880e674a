//! `redeliver replay …`: replay jobs, which survive restarts.

use clap::Subcommand;
use redeliver::api::MOST_ITEMS;
use redeliver::desk::replays::{ItemDocument, ReplayDocument, steered};
use redeliver::desk::{List, to_json};
use redeliver::store::{ItemOutcome, ReplayState, Steer, Steered};
use serde::Serialize;
use serde_json::json;

use super::audit::{tell, whoami};
use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::output::{Document, Entry, Listing, length};

/// Follow and steer replay jobs
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List replay jobs, newest first
    #[command(after_help = "Examples:
  redeliver replay list
  redeliver replay list --state running,paused -o json")]
    List {
        /// selecting, running, paused, stopped, cancelled, done
        #[arg(long = "state", value_name = "S", value_delimiter = ',', value_parser = state)]
        states: Vec<ReplayState>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
        /// Go on where the previous page ended
        #[arg(long, value_name = "C", value_parser = clap::value_parser!(i64).range(1..))]
        cursor: Option<i64>,
    },
    /// Show one job: how far it is, and what became of its letters
    #[command(after_help = "Examples:
  redeliver replay show 7
  redeliver replay show 7 --items --outcome failed_again -o name | redeliver dlq list --id -
  redeliver replay show 7 -o json | jq '.failed_again'")]
    Show {
        /// Its number
        id: i64,
        /// Each letter and what became of it
        #[arg(long)]
        items: bool,
        /// Only letters that came to this: waiting, replayed, skipped, failed_again, succeeded, cancelled
        #[arg(long = "outcome", value_name = "O", value_delimiter = ',', value_parser = outcome, requires = "items")]
        outcomes: Vec<ItemOutcome>,
        /// At most so many letters
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "items")]
        limit: u32,
        /// Go on with the letters where the previous page ended
        #[arg(long, value_name = "C", value_parser = clap::value_parser!(i64).range(1..), requires = "items")]
        cursor: Option<i64>,
    },
    /// Halt a job; what runs runs on
    #[command(after_help = "Examples:
  redeliver replay pause 7 --reason 'the carrier asked for it'")]
    Pause(Steering),
    /// Go on with a halted job
    #[command(after_help = "Examples:
  redeliver replay resume 7")]
    Resume(Steering),
    /// End a job; what waits in it stays dead, what runs runs on
    #[command(after_help = "Examples:
  redeliver replay cancel 7 --reason 'wrong letters'")]
    Cancel(Steering),
}

/// Which job, and why.
#[derive(Debug, Clone, clap::Args)]
pub struct Steering {
    /// Its number
    id: i64,
    #[command(flatten)]
    consent: Consent,
}

const COLUMNS: [&str; 9] = ["job", "state", "replayed", "succeeded", "failed", "skipped", "created_at", "by", "why"];
const ITEM_COLUMNS: [&str; 5] = ["id", "outcome", "why", "runs_as", "at"];

fn state(text: &str) -> Result<ReplayState, String> {
    let known = || ReplayState::ALL.map(ReplayState::as_str).join(", ");
    ReplayState::parse(text).ok_or_else(|| format!("expected one of {}", known()))
}

fn outcome(text: &str) -> Result<ItemOutcome, String> {
    let known = || ItemOutcome::ALL.map(ItemOutcome::as_str).join(", ");
    ItemOutcome::parse(text).ok_or_else(|| format!("expected one of {}", known()))
}

/// Runs the verb.
///
/// # Errors
/// With an exit code in the chain where one fits.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    let done = async {
        match verb {
            Verb::List { states, limit, cursor } => list(context, &states, limit, cursor).await,
            Verb::Show { id, items, outcomes, limit, cursor } => {
                show(context, id, items.then_some((outcomes, limit, cursor))).await
            }
            Verb::Pause(steering) => steer(context, steering, Steer::Pause).await,
            Verb::Resume(steering) => steer(context, steering, Steer::Resume).await,
            Verb::Cancel(steering) => steer(context, steering, Steer::Cancel).await,
        }
    };
    context.bound("the store", done).await?
}

fn unknown(id: i64) -> anyhow::Error {
    exit::error(Exit::NotFound, format!("there is no replay job {id}; see `redeliver replay list`"))
}

/// What a server is asked.
#[derive(Serialize)]
struct Query {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    state: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outcome: Vec<&'static str>,
    limit: usize,
    cursor: Option<i64>,
}

async fn list(context: &Context, states: &[ReplayState], limit: u32, cursor: Option<i64>) -> anyhow::Result<Exit> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let page: List<ReplayDocument> = match context.door().await? {
        Door::Store(store) => {
            let mut jobs = store.replays(states, cursor, limit + 1).await?;
            let more = jobs.len() > limit;
            jobs.truncate(limit);
            let next = jobs.last().filter(|_| more).map(|job| job.id.to_string());
            List { items: jobs.iter().map(ReplayDocument::of).collect(), next }
        }
        Door::Api(remote) => {
            let state = states.iter().map(|state| state.as_str()).collect();
            let query = Query { state, outcome: Vec::new(), limit: limit.min(MOST_ITEMS), cursor };
            remote.get(&["replays"], &query).await?
        }
    };
    let mut listing = Listing::new(&COLUMNS);
    for job in &page.items {
        let counts = &job.counts;
        let why = job.why.as_ref().or(job.reason.as_ref());
        let cells = vec![
            job.id.to_string(),
            job.state.as_str().to_owned(),
            format!("{} of {}", counts.replayed, counts.matched),
            counts.succeeded.to_string(),
            counts.failed_again.to_string(),
            counts.skipped.values().sum::<i64>().to_string(),
            job.created_at.clone(),
            job.created_by.clone().unwrap_or_else(|| job.origin.as_str().to_owned()),
            why.cloned().unwrap_or_default(),
        ];
        listing.push(Entry { name: job.id.to_string(), cells, json: to_json(job) });
    }
    listing.next = page.next;
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

type Items = (Vec<ItemOutcome>, u32, Option<i64>);

/// The job; through a server, one that is not there is its answer.
async fn look(door: &Door<'_>, id: i64) -> anyhow::Result<ReplayDocument> {
    match door {
        Door::Store(store) => {
            let job = store.replay(id).await?.ok_or_else(|| unknown(id))?;
            Ok(ReplayDocument::of(&job))
        }
        Door::Api(remote) => remote.get(&["replays", &id.to_string()], &()).await,
    }
}

async fn show(context: &Context, id: i64, items: Option<Items>) -> anyhow::Result<Exit> {
    let door = context.door().await?;
    let job = look(&door, id).await?;
    let Some((outcomes, limit, cursor)) = items else {
        context.printer.one(&document(&job))?;
        return Ok(Exit::Done);
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let page: List<ItemDocument> = match &door {
        Door::Store(store) => {
            let mut found = store.replay_items(id, &outcomes, cursor.unwrap_or(0), limit + 1).await?;
            let more = found.len() > limit;
            found.truncate(limit);
            let next = found.last().filter(|_| more).map(|item| item.position.to_string());
            List { items: found.iter().map(ItemDocument::of).collect(), next }
        }
        Door::Api(remote) => {
            let outcome = outcomes.iter().map(|outcome| outcome.as_str()).collect();
            let query = Query { state: Vec::new(), outcome, limit: limit.min(MOST_ITEMS), cursor };
            remote.get(&["replays", &id.to_string(), "items"], &query).await?
        }
    };
    let mut listing = Listing::new(&ITEM_COLUMNS);
    page.items.iter().for_each(|item| listing.push(item_entry(item)));
    listing.next = page.next;
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

fn item_entry(item: &ItemDocument) -> Entry {
    let cells = vec![
        item.id.clone(),
        item.outcome.as_str().to_owned(),
        item.why.clone().unwrap_or_default(),
        item.runs_as.clone().unwrap_or_default(),
        item.at.clone(),
    ];
    Entry { name: item.id.clone(), cells, json: to_json(item) }
}

fn document(job: &ReplayDocument) -> Document {
    let counts = &job.counts;
    let skipped: Vec<String> = counts.skipped.iter().map(|(why, n)| format!("{why}={n}")).collect();
    let mut lines = vec![
        ("job", job.id.to_string()),
        ("state", job.state.as_str().to_owned()),
        ("matched", counts.matched.to_string()),
        ("replayed", format!("{} of {}", counts.replayed, counts.replayed + counts.waiting)),
        ("running", counts.running.to_string()),
        ("succeeded", counts.succeeded.to_string()),
        ("failed_again", counts.failed_again.to_string()),
    ];
    let mut add = |label, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            lines.push((label, value));
        }
    };
    add("cancelled", Some(counts.cancelled).filter(|n| *n > 0).map(|n| n.to_string()));
    add("skipped", Some(skipped.join(" ")));
    add("why", job.why.clone());
    add("time_left", job.time_left_ms.map(length));
    add("rate", job.rate_per_s.map(|rate| format!("{rate}/s")));
    add("ramp", job.ramp.then(|| format!("up to {} %", job.stage_percent)));
    add("max_failure_ratio", job.max_failure_ratio.map(|ratio| ratio.to_string()));
    add("edit_payload", job.edit_payload.as_ref().map(ToString::to_string));
    add("created_at", Some(job.created_at.clone()));
    add("created_by", job.created_by.clone().or_else(|| Some(job.origin.as_str().to_owned())));
    add("reason", job.reason.clone());
    add("about", Some(job.about.to_string()).filter(|about| about != "{}"));
    add("worker", job.worker.clone());
    add("changed_by", job.changed_by.clone());
    add("ended_at", job.ended_at.clone());
    Document { name: job.id.to_string(), lines, tables: Vec::new(), json: to_json(job) }
}

async fn steer(context: &Context, steering: Steering, word: Steer) -> anyhow::Result<Exit> {
    let Steering { id, consent } = steering;
    let door = context.door().await?;
    if consent.dry_run {
        let job = look(&door, id).await?;
        context.say(format!("replay job {id} is {}; would be {}", job.state.as_str(), steered(word)));
        return Ok(Exit::Done);
    }
    let job = match &door {
        Door::Store(store) => match store.steer_replay(id, word, Some(&whoami()), consent.reason.as_deref()).await? {
            Steered::Done(job) => {
                let (action, count) = (format!("replay.{}", verb(word)), Some(job.counts.waiting));
                tell(&**store, &action, format!("job {id}"), consent.reason, count).await?;
                ReplayDocument::of(&job)
            }
            Steered::Conflict(job) => {
                let text = format!("replay job {id} is {}; it cannot be {}", job.state.as_str(), steered(word));
                return Err(exit::error(Exit::Conflict, text));
            }
            Steered::Unknown => return Err(unknown(id)),
        },
        Door::Api(remote) => {
            let body = json!({ "reason": consent.reason });
            remote.post(&["replays", &id.to_string(), verb(word)], &body).await?
        }
    };
    context.printer.one(&document(&job))?;
    Ok(Exit::Done)
}

fn verb(word: Steer) -> &'static str {
    match word {
        Steer::Pause => "pause",
        Steer::Resume => "resume",
        Steer::Cancel => "cancel",
    }
}
