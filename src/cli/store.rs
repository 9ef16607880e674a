//! `redeliver store …`

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Subcommand;
use redeliver::config::{self, parse_duration};
use redeliver::store::Prunable;
use redeliver::store::copy::{self, CopyError, CopyOptions};
use redeliver::task::Millis;
use serde_json::json;

use super::audit::tell;
use super::confirm::Consent;
use super::context::{Context, file_exists as store_is_there};
use super::exit::{self, Exit};
use super::output::{Document, Entry, Listing};

/// Look after the store
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make the store, or bring its schema up to this version (a worker does the same when it starts)
    #[command(after_help = "Examples:
  redeliver store migrate
  REDELIVER_STORE_URL=sqlite:///var/lib/redeliver/redeliver.db redeliver store migrate")]
    Migrate {
        #[command(flatten)]
        consent: Consent,
    },
    /// Remove what ended long ago; never dead letters, nor anything unfinished
    #[command(after_help = "Examples:
  redeliver store prune --tasks 90d --attachments 14d --dry-run
  redeliver store prune --tasks 90d --attachments 14d --cached 30d --gates 7d --replays 90d --yes

Nothing is removed that is not named, and nothing is removed by itself: run it from a timer. A finished task takes its attempts and
its result along; its id and idempotency key may be used again then, for another task.")]
    Prune {
        #[command(flatten)]
        ages: Ages,
        #[command(flatten)]
        consent: Consent,
    },
    /// Copy a whole store into an empty one, of another kind too, and compare every row
    #[command(after_help = "Examples:
  redeliver store copy --from sqlite:///var/lib/redeliver/redeliver.db --to postgres://redeliver@db/redeliver
  redeliver store copy --from postgres://redeliver@db/redeliver --to sqlite://copy.db

Stop the workers first. The source is not changed; the target is made if it is not there, and refused if it holds anything (exit 6).
Prints each table with its rows and the SHA-256 of their content, which were read back and compared.")]
    Copy {
        /// The store to read
        #[arg(long, value_name = "URL")]
        from: String,
        /// The store to fill
        #[arg(long, value_name = "URL")]
        to: String,
        /// Although workers run on the source (otherwise exit 6)
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        consent: Consent,
    },
}

/// How long things are kept after they were last used.
#[derive(Debug, Clone, clap::Args)]
pub struct Ages {
    /// Tasks that succeeded, were discarded or cancelled so long ago
    #[arg(long, value_name = "AGE", value_parser = age)]
    tasks: Option<Millis>,
    /// What attempts of so long ago have left, unless their task is dead
    #[arg(long, value_name = "AGE", value_parser = age)]
    attachments: Option<Millis>,
    /// Results remembered for fallbacks
    #[arg(long, value_name = "AGE", value_parser = age)]
    cached: Option<Millis>,
    /// States of limits and breakers whose key was not used since
    #[arg(long, value_name = "AGE", value_parser = age)]
    gates: Option<Millis>,
    /// Replay jobs that ended so long ago
    #[arg(long, value_name = "AGE", value_parser = age)]
    replays: Option<Millis>,
}

fn age(text: &str) -> Result<Millis, String> {
    let age = parse_duration(text)?;
    Ok(Millis::try_from(age.as_millis()).unwrap_or(Millis::MAX))
}

impl Ages {
    fn of(&self, what: Prunable) -> Option<Millis> {
        match what {
            Prunable::Tasks => self.tasks,
            Prunable::Attachments => self.attachments,
            Prunable::Cached => self.cached,
            Prunable::Gates => self.gates,
            Prunable::Replays => self.replays,
        }
    }
}

/// Rows looked for at once.
const LOOKED_FOR: usize = 20_000;

impl Verb {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Refused`] without consent to remove, [`Exit::Usage`] when nothing is named.
    pub fn can_run(&self) -> anyhow::Result<()> {
        let Verb::Prune { ages, consent } = self else { return Ok(()) };
        if Prunable::ALL.into_iter().all(|what| ages.of(what).is_none()) {
            let text = "say what to remove and how old it has to be, for example --tasks 90d";
            return Err(exit::error(Exit::Usage, text));
        }
        consent.can_be_had()
    }
}

async fn prune(context: &Context, ages: &Ages, consent: &Consent) -> anyhow::Result<Exit> {
    let store = context.store().await?;
    let now = store.now();
    let chosen = Prunable::ALL.into_iter().filter_map(|what| Some((what, now.saturating_sub(ages.of(what)?))));
    let chosen: Vec<(Prunable, Millis)> = chosen.collect();
    let mut counts = Vec::new();
    for (what, before) in &chosen {
        let count = context.bound("the store", store.prune(*what, *before, usize::MAX, true)).await??;
        counts.push((*what, count));
    }
    let all: i64 = counts.iter().map(|(_, count)| count).sum();
    if !consent.dry_run && all > 0 {
        let listed: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {}", what.as_str())).collect();
        consent.ask(&format!("Remove {}?", listed.join(", ")))?;
        for ((what, before), (_, count)) in chosen.iter().zip(&mut counts) {
            *count = 0;
            loop {
                let removed = store.prune(*what, *before, LOOKED_FOR, false).await?;
                *count += removed;
                if removed == 0 {
                    break;
                }
            }
        }
        let target: Vec<&str> = chosen.iter().map(|(what, _)| what.as_str()).collect();
        let count = Some(counts.iter().map(|(_, count)| count).sum());
        tell(&*store, "store.prune", target.join(","), consent.reason.clone(), count).await?;
    }
    store.close().await;
    let mut json = serde_json::Map::new();
    counts.iter().for_each(|(what, count)| _ = json.insert(what.as_str().into(), (*count).into()));
    if consent.dry_run {
        json.insert("dry_run".into(), true.into());
    }
    let lines = counts.iter().map(|(what, count)| (what.as_str(), count.to_string())).collect();
    context.printer.one(&Document { name: all.to_string(), lines, tables: Vec::new(), json: json.into() })?;
    Ok(Exit::Done)
}

/// Tells of progress on stderr, a line every ten seconds.
const TOLD_EVERY: Duration = Duration::from_secs(10);

async fn copy(context: &Context, from: &str, to: &str, force: bool, consent: &Consent) -> anyhow::Result<Exit> {
    context.needs_store()?;
    for url in [from, to] {
        config::check_store_url(url).map_err(|problem| exit::error(Exit::Usage, problem))?;
    }
    if from == to {
        return Err(exit::error(Exit::Usage, "--from and --to name the same store"));
    }
    if !store_is_there(from) {
        return Err(exit::error(Exit::NotFound, format!("there is no store at {}", config::mask(from))));
    }
    let told = Mutex::new(Instant::now());
    let progress = |table: &str, done: i64, all: i64| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= TOLD_EVERY {
            *told = Instant::now();
            context.say(format!("{table}: {done} of {all} rows"));
        }
    };
    let options = CopyOptions { force, dry_run: consent.dry_run };
    let settings = context.config().settings();
    let copied = copy::copy(from, to, settings, options, &progress).await.map_err(|error| match error {
        CopyError::Store(error) => error.into(),
        CopyError::NotEmpty { .. } | CopyError::Busy { .. } => exit::error(Exit::Conflict, error.to_string()),
        CopyError::Differs { .. } => exit::error(Exit::Failed, error.to_string()),
    })?;
    let mut listing = Listing::new(&["table", "rows", "sha256"]);
    for table in &copied {
        listing.push(Entry {
            name: table.table.into(),
            cells: vec![table.table.into(), table.rows.to_string(), table.sha256.clone()],
            json: json!(table),
        });
    }
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

/// Runs the verb.
///
/// # Errors
/// When the store cannot be made or used.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    let consent = match verb {
        Verb::Migrate { consent } => consent,
        Verb::Prune { ages, consent } => return prune(context, &ages, &consent).await,
        Verb::Copy { from, to, force, consent } => return copy(context, &from, &to, force, &consent).await,
    };
    if consent.dry_run {
        context.say(format!("would make or migrate {}", redeliver::config::mask(&context.config().store.url)));
        return Ok(Exit::Done);
    }
    let store = context.store_or_new().await?;
    let report = context.bound("the store", store.report(false)).await??;
    store.close().await;
    let lines = vec![
        ("store", report.place.clone()),
        ("engine", report.engine.clone()),
        ("schema_version", report.schema_version.to_string()),
        ("bytes", report.bytes.to_string()),
    ];
    context.printer.one(&Document { name: report.place.clone(), lines, tables: Vec::new(), json: json!(report) })?;
    Ok(Exit::Done)
}
