//! `redeliver dlq groups` and `dlq note`: dead letters by what they have in common.

use redeliver::desk::filter::FilterText;
use redeliver::desk::letters::{GroupDocument, group_by, groups, sparkline};
use redeliver::desk::{List, to_json};
use redeliver::store::{GroupNote, LetterGroupBy};
use serde::Serialize;
use serde_json::{Value, json};

use super::audit::{tell, whoami};
use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::filter::{FilterArgs, now};
use super::output::{Entry, Listing, ago, cut};

/// Which groups.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// fingerprint, class, type, reason or label.NAME
    #[arg(long, value_name = "WHAT", default_value = "fingerprint", value_parser = group_by)]
    by: LetterGroupBy,
    #[command(flatten)]
    filter: FilterArgs,
    /// At most so many groups, largest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

/// What to write at a group.
#[derive(Debug, Clone, clap::Args)]
pub struct NoteArgs {
    /// The group's key
    key: String,
    /// What it is a group by
    #[arg(long, value_name = "WHAT", default_value = "fingerprint", value_parser = group_by)]
    by: LetterGroupBy,
    /// Who looks after it
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// What is known about it
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Take away what is written there
    #[arg(long, conflicts_with_all = ["owner", "note"])]
    clear: bool,
    #[command(flatten)]
    consent: Consent,
}

const COLUMNS: [&str; 6] = ["group", "count", "trend", "last", "24h", "error"];
/// So that a line fits a hundred columns.
const LONGEST_ERROR: usize = 75;

/// `redeliver dlq groups`
///
/// # Errors
/// When store or server do not answer or a filter cannot be meant.
pub async fn list(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let (now, found) = match context.door().await? {
        Door::Store(store) => {
            let filter = args.filter.to_dead_filter(&[], store.now())?;
            let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
            (store.now(), groups(&*store, &args.by, &filter, limit).await?)
        }
        Door::Api(remote) => {
            let filter = FilterText::of(&args.filter.to_dead_filter(&[], now())?);
            let query = Query { filter: &filter, by: args.by.to_string(), limit: args.limit };
            (now(), remote.get::<List<GroupDocument>>(&["groups"], &query).await?.items)
        }
    };
    let mut listing = Listing::new(&COLUMNS);
    for group in &found {
        listing.push(entry(group, now));
    }
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

/// What a server is asked.
#[derive(Serialize)]
struct Query<'q> {
    #[serde(flatten)]
    filter: &'q FilterText,
    by: String,
    limit: u32,
}

fn entry(group: &GroupDocument, now: i64) -> Entry {
    let last = group.last_died_at.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_millisecond);
    let types = match group.types.keys().next() {
        Some(only) if group.types.len() == 1 => only.clone(),
        _ => format!("{} types", group.types.len()),
    };
    let newest = group.samples.first();
    let class = newest.and_then(|sample| sample.class.as_deref()).unwrap_or("-");
    let code = newest.and_then(|sample| sample.code.as_deref()).map(|code| format!(" {code}")).unwrap_or_default();
    let message = newest.and_then(|sample| sample.message.as_deref()).unwrap_or_default();
    let owner = group.owner.as_deref().map(|owner| format!("[{owner}] ")).unwrap_or_default();
    let cells = vec![
        group.key.clone().unwrap_or_else(|| "-".into()),
        group.count.to_string(),
        group.trend.as_str().to_owned(),
        ago(last, now),
        sparkline(&group.hourly),
        cut(&format!("{owner}{types} {class}{code}: {message}"), LONGEST_ERROR),
    ];
    Entry { name: group.key.clone().unwrap_or_default(), cells, json: to_json(group) }
}

/// `redeliver dlq note`
///
/// # Errors
/// When the store does not answer, or nothing is to be written.
pub async fn note(args: NoteArgs, context: &Context) -> anyhow::Result<Exit> {
    let NoteArgs { key, by, owner, note, clear, consent } = args;
    if !clear && owner.is_none() && note.is_none() {
        return Err(exit::error(Exit::Usage, "say what to write: --owner, --note, or --clear"));
    }
    if consent.dry_run {
        context.say(format!("would write at the group {key:?} by {by}"));
        return Ok(Exit::Done);
    }
    match context.door().await? {
        Door::Store(store) => {
            // What is not given stays.
            let known = store.group_notes(&by).await?.into_iter().find(|known| known.key == key && !clear);
            let (known_owner, known_note) = known.map_or((None, None), |known| (known.owner, known.note));
            let filled = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
            let (owner, note) = (filled(owner.or(known_owner)), filled(note.or(known_note)));
            let target = format!("{by} {key}");
            store.note_group(&by, GroupNote { key, owner, note, noted_by: Some(whoami()), noted_at: 0 }).await?;
            tell(&*store, "group.note", target, consent.reason, None).await?;
        }
        Door::Api(remote) => {
            let body = json!({
                "by": by.to_string(), "key": key, "owner": owner, "note": note, "clear": clear, "reason": consent.reason,
            });
            let _: Value = remote.post(&["groups", "note"], &body).await?;
        }
    }
    context.say(if clear { "cleared" } else { "written" });
    Ok(Exit::Done)
}
