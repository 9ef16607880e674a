//! `redeliver task …`

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use redeliver::store::{Store, Urgency};
use redeliver::task::{Answer, AttachmentBody, Attempt, Command, Status, WakeUp};
use serde_json::{Value, json};

use super::bulk::{Fate, Fates};
use super::confirm::Consent;
use super::context::Context;
use super::exit::{self, Exit};
use super::filter::{FilterArgs, PageArgs, read_ids};
use super::output::{Entry, Listing};
use super::pager;
use super::view;
use super::wait;
use super::wake::Waker;

/// Look at tasks, stop them, run them now, wait for them
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List tasks, newest first
    #[command(after_help = "Examples:
  redeliver task list --status retry_waiting --type 'order.#'
  redeliver task list --label shop=s-17 --since 2h -o json
  redeliver task list --status pending --all -o name | redeliver task cancel - --yes")]
    List {
        #[command(flatten)]
        filter: Box<FilterArgs>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show everything about one task: payload, result, every attempt
    #[command(after_help = "Examples:
  redeliver task show 0192f0c1-7a31-7000-8000-3f1b6c1d2e4f
  redeliver task show order-4711 -o json
  redeliver task show order-4711 --attachments ./shots")]
    Show {
        /// The task
        id: String,
        /// Write what its attempts left (screenshots, logs) into this folder
        #[arg(long, value_name = "DIR")]
        attachments: Option<PathBuf>,
    },
    /// Stop waiting tasks for good
    #[command(after_help = "Examples:
  redeliver task cancel order-4711 --reason 'customer cancelled' --yes
  redeliver task list --type 'report.#' --all -o name | redeliver task cancel - --yes")]
    Cancel {
        /// The tasks; `-` reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        consent: Consent,
    },
    /// Run waiting tasks now instead of when they are due
    #[command(after_help = "Examples:
  redeliver task retry order-4711
  redeliver task list --class timeout --all -o name | redeliver task retry -")]
    Retry {
        /// The tasks; `-` reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        consent: Consent,
    },
    /// Block until tasks have ended
    #[command(after_help = "Examples:
  redeliver task wait order-4711 order-4712 --timeout 10m
  redeliver task wait order-4711 --status succeeded   # exits 1 if it ends otherwise

Exits 0 when all have ended (in that status), 1 otherwise or at --timeout.")]
    Wait {
        /// The tasks; `-` reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
        /// The status in which they must end
        #[arg(long, value_name = "S", value_parser = ended_status)]
        status: Option<Status>,
    },
}

impl Verb {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Refused`] without consent.
    pub fn can_run(&self) -> anyhow::Result<()> {
        match self {
            Verb::Cancel { consent, .. } => consent.can_be_had(),
            Verb::List { .. } | Verb::Show { .. } | Verb::Retry { .. } | Verb::Wait { .. } => Ok(()),
        }
    }
}

fn ended_status(text: &str) -> Result<Status, String> {
    let ended = || Status::ALL.into_iter().filter(|status| status.is_ended());
    ended().find(|status| status.as_str() == text).ok_or_else(|| {
        format!(
            "expected a status in which a task ends: {}",
            ended().map(Status::as_str).collect::<Vec<_>>().join(", ")
        )
    })
}

/// Runs the verb.
///
/// # Errors
/// With an exit code in the chain where one fits.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    let store = context.store().await?;
    let store_ref = &*store;
    match verb {
        Verb::List { filter, page } => context.bound("the store", list(context, store_ref, &filter, &page)).await?,
        Verb::Show { id, attachments } => {
            context.bound("the store", show(context, store_ref, &id, attachments.as_deref())).await?
        }
        Verb::Cancel { ids, consent } => {
            let ids = read_ids(ids.iter())?;
            context.bound("the store", cancel(context, store_ref, &ids, &consent)).await?
        }
        Verb::Retry { ids, consent } => {
            let ids = read_ids(ids.iter())?;
            let waker = Waker::connect(context, store.clone()).await?;
            let exit =
                context.bound("the store or the broker", retry(context, store_ref, &waker, &ids, &consent)).await?;
            waker.close().await;
            exit
        }
        Verb::Wait { ids, status } => wait_for(context, store_ref, &read_ids(ids.iter())?, status).await,
    }
}

async fn list(context: &Context, store: &dyn Store, filter: &FilterArgs, page: &PageArgs) -> anyhow::Result<Exit> {
    let filter = filter.to_filter(&[], store.now())?;
    pager::print(&context.printer, store, &filter, page, &view::TASK_COLUMNS, view::task_entry).await?;
    Ok(Exit::Done)
}

/// Prints everything about one task; `redeliver dlq show` is the same with another check.
///
/// # Errors
/// [`Exit::NotFound`] when there is none.
pub async fn show(context: &Context, store: &dyn Store, id: &str, folder: Option<&Path>) -> anyhow::Result<Exit> {
    let task = wait::one(context, store, id).await?;
    let attempts = store.attempts(id).await?;
    let result = store.result(id).await?;
    context.printer.one(&view::task_document(&task, &attempts, result.as_ref()))?;
    if let Some(folder) = folder {
        let written = write_attachments(folder, &attempts)?;
        context.say(format!("{written} attachments written to {}", folder.display()));
    }
    Ok(Exit::Done)
}

/// Writes the stored attachments as `<generation>-<attempt>-<name>`.
fn write_attachments(folder: &Path, attempts: &[Attempt]) -> anyhow::Result<usize> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut written = 0;
    for attempt in attempts {
        for (index, attachment) in attempt.attachments.iter().enumerate() {
            let AttachmentBody::Bytes(bytes) = &attachment.body else { continue };
            // The name came from a handler: only its plain characters become part of a path.
            let plain = |c: char| if c.is_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
            let name: String = attachment.name.chars().take(100).map(plain).collect();
            let path = folder.join(format!("{}-{}-{index}-{name}", attempt.generation, attempt.number));
            std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
            written += 1;
        }
    }
    Ok(written)
}

async fn cancel(context: &Context, store: &dyn Store, ids: &[String], consent: &Consent) -> anyhow::Result<Exit> {
    if consent.dry_run {
        return dry_run(context, store, ids, "would be cancelled").await;
    }
    consent.ask(&format!("Cancel {} tasks for good?", ids.len()))?;
    tracing::info!(tasks = ids.len(), reason = consent.reason.as_deref().unwrap_or(""), "cancelling");
    let commands = ids.iter().map(|id| Command::Cancel { id: id.clone(), note: consent.reason.clone() }).collect();
    let answers = store.apply(Urgency::Normal, commands).await?;
    let mut fates = Fates::default();
    for (id, answer) in ids.iter().zip(answers) {
        match answer {
            Answer::Done => fates.push(id, Fate::Done, "cancelled"),
            other => push_refusal(&mut fates, id, &other),
        }
    }
    fates.print(context)
}

async fn retry(
    context: &Context,
    store: &dyn Store,
    waker: &Waker,
    ids: &[String],
    consent: &Consent,
) -> anyhow::Result<Exit> {
    if consent.dry_run {
        return dry_run(context, store, ids, "would run now").await;
    }
    let commands = ids.iter().map(|id| Command::RunNow { id: id.clone() }).collect();
    let answers = store.apply(Urgency::Normal, commands).await?;
    let mut fates = Fates::default();
    let mut wake_ups: Vec<WakeUp> = Vec::new();
    for (id, answer) in ids.iter().zip(answers) {
        match answer {
            Answer::Publish(wake_up) => {
                fates.push(id, Fate::Done, "runs now");
                wake_ups.push(wake_up);
            }
            other => push_refusal(&mut fates, id, &other),
        }
    }
    let sent = waker.send(&wake_ups).await?;
    if sent.left_to_alarms > 0 && waker.has_broker() {
        context.say(format!("{} wake-ups were not confirmed; the store's alarms cover them", sent.left_to_alarms));
    }
    fates.print(context)
}

/// What the store's other answers mean for a person.
fn push_refusal(fates: &mut Fates, id: &str, answer: &Answer) {
    match answer {
        Answer::Unknown => fates.push(id, Fate::NotFound, "there is no such task"),
        Answer::NotNow { status } => fates.push(id, Fate::Conflict, format!("it is {status}, not waiting")),
        Answer::Unprocessable { message } => fates.push(id, Fate::Failed, message.clone()),
        other => fates.push(id, Fate::Conflict, format!("it has just changed ({other:?})")),
    }
}

async fn dry_run(context: &Context, store: &dyn Store, ids: &[String], would: &str) -> anyhow::Result<Exit> {
    let mut fates = Fates::default();
    for (id, task) in ids.iter().zip(store.get(ids).await?) {
        match task.map(|task| task.state.status) {
            None => fates.push(id, Fate::NotFound, "there is no such task"),
            Some(status) if status.is_waiting() => fates.push(id, Fate::Done, would),
            Some(status) => fates.push(id, Fate::Conflict, format!("it is {status}, not waiting")),
        }
    }
    fates.print(context)
}

async fn wait_for(
    context: &Context,
    store: &dyn Store,
    ids: &[String],
    wanted: Option<Status>,
) -> anyhow::Result<Exit> {
    let waited = wait::until_ended(context, store, ids).await?;
    let mut listing = Listing::new(&["id", "status", "ended_at"]);
    let mut as_wanted = waited.all_ended;
    for (id, task) in ids.iter().zip(&waited.tasks) {
        let Some(task) = task else {
            let json = json!({ "id": id, "status": Value::Null });
            listing.push(Entry { name: id.clone(), cells: vec![id.clone(), "unknown".into(), String::new()], json });
            continue;
        };
        as_wanted &= wanted.is_none_or(|wanted| task.state.status == wanted);
        let entry = view::task_entry(task);
        let cells = vec![id.clone(), entry.cells[2].clone(), super::output::time_or_empty(task.state.ended_at)];
        listing.push(Entry { cells, ..entry });
    }
    context.printer.list(&listing)?;
    if !waited.all_ended {
        return Err(exit::error(Exit::Failed, "--timeout is over and not every task has ended"));
    }
    Ok(if as_wanted { Exit::Done } else { Exit::Failed })
}
