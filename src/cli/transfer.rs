//! `redeliver dlq export`, `import` and `strangers`: letters between installations, and those that have lost theirs.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use redeliver::dead_letter::{self, Imported, LineError, Stranger, export_line, import_line};
use redeliver::desk::time;
use redeliver::store::Store;
use serde_json::json;

use super::audit::tell;
use super::confirm::Consent;
use super::context::Context;
use super::exit::{self, Exit};
use super::letters::Choice;
use super::output::{Document, Entry, Listing, cut};

/// Letters read at once; each may hold a payload of up to `worker.max_body`.
const PAGE: usize = 200;
/// Lines read before they are written.
const BATCH: usize = 1_000;
/// Lines that are named one by one.
const MOST_NAMED: usize = 20;

/// Which letters to export.
#[derive(Debug, Clone, clap::Args)]
pub struct ExportArgs {
    #[command(flatten)]
    choice: Choice,
}

/// What to import.
#[derive(Debug, Clone, clap::Args)]
pub struct ImportArgs {
    /// What `dlq export` has written; `-` reads stdin
    file: PathBuf,
    #[command(flatten)]
    consent: Consent,
}

/// Where to look for strangers.
#[derive(Debug, Clone, clap::Args)]
pub struct StrangersArgs {
    /// Only these queues
    #[arg(long = "queue", value_name = "Q", value_delimiter = ',')]
    queues: Vec<String>,
    /// Make dead letters of them
    #[arg(long)]
    adopt: bool,
    #[command(flatten)]
    consent: Consent,
}

impl ExportArgs {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Usage`] without a choice.
    pub fn can_run(&self) -> anyhow::Result<()> {
        self.choice.is_made()
    }
}

impl ImportArgs {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Refused`] without consent.
    pub fn can_run(&self) -> anyhow::Result<()> {
        self.consent.can_be_had()
    }
}

impl StrangersArgs {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Refused`] without consent to adopt.
    pub fn can_run(&self) -> anyhow::Result<()> {
        if self.adopt { self.consent.can_be_had() } else { Ok(()) }
    }
}

/// `redeliver dlq export`
///
/// # Errors
/// When the store does not answer or stdout cannot be written.
pub async fn export(args: &ExportArgs, context: &Context) -> anyhow::Result<Exit> {
    let store = context.store().await?;
    let filter = args.choice.to_filter(store.now())?;
    let mut left = args.choice.limit().unwrap_or(usize::MAX);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let (mut written, mut refused) = (0_usize, 0_usize);
    let mut cursor: Option<String> = None;
    loop {
        let page = context.bound("the store", store.list(&filter, cursor.as_deref(), PAGE.min(left))).await??;
        for task in &page.items {
            let attempts = context.bound("the store", store.attempts(task.id())).await??;
            match export_line(task, &attempts) {
                Ok(line) => {
                    writeln!(out, "{line}")?;
                    written += 1;
                }
                Err(error) => {
                    refused += 1;
                    context.say(format!("{}: its payload is no JSON: {error}", task.id()));
                }
            }
        }
        left = left.saturating_sub(page.items.len());
        cursor = page.next.filter(|_| left > 0);
        if cursor.is_none() {
            break;
        }
    }
    out.flush()?;
    context.say(format!("{written} letters exported"));
    Ok(if refused > 0 { Exit::Partly } else { Exit::Done })
}

/// `redeliver dlq import`
///
/// # Errors
/// When the file cannot be read or the store does not answer. What was taken in until then stays, and importing again skips it.
pub async fn import(args: &ImportArgs, context: &Context) -> anyhow::Result<Exit> {
    let ImportArgs { file, consent } = args;
    let stdin = file.as_os_str() == "-";
    let place = if stdin { "stdin".to_owned() } else { file.display().to_string() };
    let unreadable = |error: std::io::Error| exit::error(Exit::Usage, format!("{place}: {error}"));
    let input: Box<dyn BufRead> = if stdin {
        Box::new(std::io::BufReader::new(std::io::stdin()))
    } else {
        Box::new(std::io::BufReader::new(std::fs::File::open(file).map_err(unreadable)?))
    };
    if !consent.dry_run {
        consent.ask(&format!("Take in the letters of {place}?"))?;
    }
    let store = context.store().await?;
    let config = context.config();
    let queue_of = |queue: Option<&str>, task_type: &str| match queue.filter(|name| config.queue(name).is_some()) {
        Some(known) => known.to_owned(),
        None => redeliver::config::queue_of(&config.queues, task_type).to_owned(),
    };
    let mut total = Imported::default();
    let mut strange: Vec<LineError> = Vec::new();
    let mut strange_lines = 0_usize;
    let mut letters = Vec::new();
    for (line, number) in input.lines().zip(1..) {
        let line = line.map_err(unreadable)?;
        if line.trim().is_empty() {
            continue;
        }
        match import_line(&line, number, queue_of) {
            Ok(letter) => letters.push(letter),
            Err(error) => {
                strange_lines += 1;
                if strange.len() < MOST_NAMED {
                    strange.push(error);
                }
            }
        }
        if letters.len() == BATCH {
            add(&mut total, take_in(context, &*store, std::mem::take(&mut letters), consent.dry_run).await?);
        }
    }
    add(&mut total, take_in(context, &*store, letters, consent.dry_run).await?);
    if !consent.dry_run {
        let count = i64::try_from(total.imported).ok();
        tell(&*store, "dlq.import", place, consent.reason.clone(), count).await?;
    }
    store.close().await;
    for error in &strange {
        eprintln!("{}", super::output::clean(&error.to_string()));
    }
    if strange_lines > 0 {
        total.skipped.insert("unreadable", strange_lines);
    }
    let skipped: Vec<String> = total.skipped.iter().map(|(why, n)| format!("{why}={n}")).collect();
    let matched = total.read + strange_lines;
    let mut json = json!({ "matched": matched, "imported": total.imported, "skipped": total.skipped });
    json["unreadable"] = strange.iter().map(|error| json!({ "line": error.line, "problem": error.problem })).collect();
    if consent.dry_run {
        json["dry_run"] = true.into();
    }
    let lines = vec![
        ("matched", matched.to_string()),
        (if consent.dry_run { "would be" } else { "done" }, format!("{} imported", total.imported)),
        ("skipped", if skipped.is_empty() { "0".into() } else { skipped.join(" ") }),
    ];
    context.printer.one(&Document { name: total.imported.to_string(), lines, tables: Vec::new(), json })?;
    Ok(if total.skipped.is_empty() { Exit::Done } else { Exit::Partly })
}

async fn take_in(
    context: &Context,
    store: &dyn Store,
    letters: Vec<(redeliver::task::Task, Vec<redeliver::task::Attempt>)>,
    dry_run: bool,
) -> anyhow::Result<Imported> {
    Ok(context.bound("the store", dead_letter::import(store, letters, dry_run)).await??)
}

fn add(total: &mut Imported, more: Imported) {
    total.read += more.read;
    total.imported += more.imported;
    for (why, number) in more.skipped {
        *total.skipped.entry(why).or_insert(0) += number;
    }
}

const STRANGER_COLUMNS: [&str; 7] = ["queue", "message_id", "type", "reason", "died_at", "adopted_as", "error"];

/// `redeliver dlq strangers`
///
/// # Errors
/// When store or broker do not answer.
pub async fn strangers(args: &StrangersArgs, context: &Context) -> anyhow::Result<Exit> {
    let StrangersArgs { queues, adopt, consent } = args;
    let store = context.store().await?;
    let config = context.config();
    if let Some(unknown) = queues.iter().find(|name| config.queue(name).is_none()) {
        return Err(exit::error(Exit::NotFound, format!("queue {unknown:?} is not configured")));
    }
    let mut listing = Listing::new(&STRANGER_COLUMNS);
    if config.broker.is_embedded() {
        context.say("the embedded broker's DLQ lives inside the worker and holds nothing of others");
        context.printer.list(&listing)?;
        return Ok(Exit::Done);
    }
    let adopt = *adopt && !consent.dry_run;
    if adopt {
        consent.ask("Make dead letters of the copies that belong to none?")?;
    }
    let broker = context.broker().await?;
    let (mut busy, mut refused, mut adopted) = (0, 0, 0);
    for queue in config.queues.iter().filter(|queue| queues.is_empty() || queues.contains(&queue.name)) {
        let Some(found) = dead_letter::strangers(&*store, &*broker, &queue.name, adopt).await? else {
            busy += 1;
            context.say(format!("{}: another pass is at work; try again in a minute", queue.name));
            continue;
        };
        adopted += found.iter().filter(|stranger| stranger.adopted_as.is_some()).count();
        refused += found.iter().filter(|stranger| stranger.refused.is_some()).count();
        found.iter().for_each(|stranger| listing.push(entry(&queue.name, stranger)));
    }
    broker.close().await;
    if adopt && adopted > 0 {
        tell(&*store, "dlq.adopt", queues.join(","), consent.reason.clone(), i64::try_from(adopted).ok()).await?;
    }
    store.close().await;
    context.printer.list(&listing)?;
    Ok(if busy > 0 || refused > 0 { Exit::Partly } else { Exit::Done })
}

fn entry(queue: &str, stranger: &Stranger) -> Entry {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let cells = vec![
        queue.to_owned(),
        text(&stranger.message_id),
        text(&stranger.task_type),
        text(&stranger.reason),
        stranger.died_at.map(time).unwrap_or_default(),
        text(&stranger.adopted_as),
        cut(stranger.refused.as_ref().or(stranger.error.as_ref()).map_or("", String::as_str), 60),
    ];
    let mut json = json!(stranger);
    json["queue"] = queue.into();
    json["died_at"] = stranger.died_at.map(time).into();
    Entry { name: text(&stranger.message_id), cells, json }
}
