//! `redeliver task …`

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use redeliver::desk::Act;
use redeliver::desk::task::TaskDetail;
use redeliver::task::{Attachment, AttachmentBody, Status};
use serde_json::{Value, json};

use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::filter::{FilterArgs, PageArgs, read_ids};
use super::output::{Entry, Listing};
use super::pager::{self, Which};
use super::{bulk, view, wait};

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
    match verb {
        Verb::List { filter, page } => {
            pager::print(context, Which::Tasks, &filter, &page, &view::TASK_COLUMNS, view::task_entry).await?;
            Ok(Exit::Done)
        }
        Verb::Show { id, attachments } => {
            let door = context.door().await?;
            context.bound("the store", show(context, &door, &id, attachments.as_deref())).await?
        }
        Verb::Cancel { ids, consent } => {
            let ids = read_ids(ids.iter())?;
            if !consent.dry_run {
                consent.ask(&format!("Cancel {} tasks for good?", ids.len()))?;
            }
            bulk::act(context, Act::Cancel, &ids, &consent).await
        }
        Verb::Retry { ids, consent } => bulk::act(context, Act::RunNow, &read_ids(ids.iter())?, &consent).await,
        Verb::Wait { ids, status } => wait_for(context, &read_ids(ids.iter())?, status).await,
    }
}

/// Prints everything about one task; `redeliver dlq show` is the same with another check.
///
/// # Errors
/// [`Exit::NotFound`] when there is none.
pub async fn show(context: &Context, door: &Door<'_>, id: &str, folder: Option<&Path>) -> anyhow::Result<Exit> {
    let detail = wait::detail(context, door, id).await?;
    context.printer.one(&view::task_document(&detail))?;
    if let Some(folder) = folder {
        let written = write_attachments(folder, door, &detail).await?;
        context.say(format!("{written} attachments written to {}", folder.display()));
    }
    Ok(Exit::Done)
}

/// Writes the stored attachments as `<generation>-<attempt>-<name>`.
async fn write_attachments(folder: &Path, door: &Door<'_>, detail: &TaskDetail) -> anyhow::Result<usize> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let in_store = match door {
        Door::Store(store) => store.attempts(&detail.task.id).await?,
        Door::Api(_) => Vec::new(),
    };
    let mut written = 0;
    for (at, attempt) in detail.attempts.iter().enumerate() {
        for (index, attachment) in attempt.attachments.iter().enumerate().filter(|(_, attachment)| attachment.stored) {
            let bytes = match door {
                Door::Store(_) => match in_store.get(at).and_then(|attempt| attempt.attachments.get(index)) {
                    Some(Attachment { body: AttachmentBody::Bytes(bytes), .. }) => bytes.to_vec(),
                    _ => continue,
                },
                Door::Api(remote) => {
                    let (generation, number) = (attempt.generation.to_string(), attempt.number.to_string());
                    let place = index.to_string();
                    let id = detail.task.id.as_str();
                    let path = ["tasks", id, "attempts", &generation, &number, "attachments", &place];
                    remote.bytes(reqwest::Method::GET, &path, None, None).await?
                }
            };
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

async fn wait_for(context: &Context, ids: &[String], wanted: Option<Status>) -> anyhow::Result<Exit> {
    let door = context.door().await?;
    let waited = wait::until_ended(context, &door, ids).await?;
    let mut listing = Listing::new(&["id", "status", "ended_at"]);
    let mut as_wanted = waited.all_ended;
    for (id, task) in ids.iter().zip(&waited.tasks) {
        let Some(task) = task else {
            let json = json!({ "id": id, "status": Value::Null });
            listing.push(Entry { name: id.clone(), cells: vec![id.clone(), "unknown".into(), String::new()], json });
            continue;
        };
        as_wanted &= wanted.is_none_or(|wanted| task.status == wanted);
        let cells = vec![id.clone(), view::status_for_people(task), task.ended_at.clone().unwrap_or_default()];
        listing.push(Entry { cells, ..view::task_entry(task) });
    }
    context.printer.list(&listing)?;
    if !waited.all_ended {
        return Err(exit::error(Exit::Failed, "--timeout is over and not every task has ended"));
    }
    Ok(if as_wanted { Exit::Done } else { Exit::Failed })
}
