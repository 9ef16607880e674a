//! `redeliver store …`

use clap::Subcommand;
use redeliver::config::parse_duration;
use redeliver::store::Prunable;
use redeliver::task::Millis;
use serde_json::json;

use super::audit::tell;
use super::confirm::Consent;
use super::context::Context;
use super::exit::{self, Exit};
use super::output::Document;

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

/// Runs the verb.
///
/// # Errors
/// When the store cannot be made or used.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    let consent = match verb {
        Verb::Migrate { consent } => consent,
        Verb::Prune { ages, consent } => return prune(context, &ages, &consent).await,
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
