//! `redeliver audit …`, and the command line's own entries in the audit.

use clap::Subcommand;
use redeliver::api::MOST_ITEMS;
use redeliver::desk::List;
use redeliver::desk::people::AuditDocument;
use redeliver::desk::to_json;
use redeliver::store::access::{AuditEntry, AuditFilter, Door as Way};
use redeliver::store::{Store, StoreError};
use serde::Serialize;

use super::context::{Context, Door};
use super::exit::Exit;
use super::output::{Entry, Listing, cut};

/// Look at who changed what
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List changes, newest first
    #[command(after_help = "Examples:
  redeliver audit list
  redeliver audit list --action dlq.discard -o json
  redeliver audit list --who li@laptop --limit 10

Holds every change made by the API, the console and the command line: who, what, to what, why, how many, when, from where. It only
grows: the database refuses to change or delete an entry.")]
    List(Args),
}

/// `audit list`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// By this one
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// This action: task.cancel, dlq.replay, policy.apply, …
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// With exactly this target
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    limit: u32,
    /// Go on where the previous page ended
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(i64))]
    cursor: Option<i64>,
}

const COLUMNS: [&str; 6] = ["at", "who", "action", "target", "count", "reason"];

#[derive(Serialize)]
struct Query<'q> {
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<&'q str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'q str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'q str>,
    limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<i64>,
}

/// Runs the verb.
///
/// # Errors
/// When store or server do not answer.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    let Verb::List(args) = verb;
    let page: List<AuditDocument> = match context.door().await? {
        Door::Store(store) => {
            let filter = AuditFilter { who: args.who, action: args.action, target: args.target };
            let limit = usize::try_from(args.limit).unwrap_or(50);
            let cursor = args.cursor.map(|cursor| cursor.to_string());
            let page = context.bound("the store", store.audit(&filter, cursor.as_deref(), limit)).await??;
            List { items: page.items.into_iter().map(AuditDocument::of).collect(), next: page.next }
        }
        Door::Api(remote) => {
            let query = Query {
                who: args.who.as_deref(),
                action: args.action.as_deref(),
                target: args.target.as_deref(),
                limit: args.limit.min(u32::try_from(MOST_ITEMS).unwrap_or(u32::MAX)),
                cursor: args.cursor,
            };
            context.bound("the server", remote.get(&["audit"], &query)).await??
        }
    };
    let mut listing = Listing::new(&COLUMNS);
    for change in &page.items {
        let cells = vec![
            change.at.clone(),
            change.who.clone(),
            change.action.clone(),
            cut(&change.target, 60),
            change.count.map(|count| count.to_string()).unwrap_or_default(),
            cut(change.reason.as_deref().unwrap_or_default(), 60),
        ];
        listing.push(Entry { name: change.seq.to_string(), cells, json: to_json(change) });
    }
    listing.next = page.next;
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

/// Who acts at the command line, as far as the system says: `user@host`.
pub fn whoami() -> String {
    let look = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let user = look("USER").or_else(|| look("LOGNAME")).unwrap_or_else(|| {
        // SAFETY: getuid takes nothing, touches no memory and cannot fail.
        let uid = unsafe { libc::getuid() };
        format!("uid {uid}")
    });
    match host() {
        Some(host) => format!("{user}@{host}"),
        None => user,
    }
}

fn host() -> Option<String> {
    let look = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    look.or_else(|| std::fs::read_to_string("/etc/hostname").ok().map(|name| name.trim().to_owned()))
        .filter(|name| !name.is_empty())
}

/// Tells the audit what the command line has done on the store.
///
/// # Errors
/// When the store does not take it; what was done is done all the same.
pub async fn tell(
    store: &dyn Store,
    action: &str,
    target: impl Into<String>,
    reason: Option<String>,
    count: Option<i64>,
) -> Result<(), StoreError> {
    let entry = AuditEntry {
        who: whoami(),
        role: None,
        door: Way::Cli,
        origin: host(),
        action: action.to_owned(),
        target: target.into(),
        reason,
        count,
    };
    store.record(entry).await.map(drop)
}

/// The same about named tasks: one is named, several are counted.
///
/// # Errors
/// When the store does not take it.
pub async fn of_ids(
    context: &Context,
    store: &dyn Store,
    action: &str,
    ids: &[String],
    reason: Option<String>,
) -> anyhow::Result<()> {
    const NAMED: usize = 20;
    if ids.is_empty() {
        return Ok(());
    }
    let more = ids.len().saturating_sub(NAMED);
    let mut target = ids.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 {
        target.push_str(&format!(" and {more} more"));
    }
    let told = tell(store, action, target, reason, i64::try_from(ids.len()).ok());
    Ok(context.bound("the store", told).await??)
}
