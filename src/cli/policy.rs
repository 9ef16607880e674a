//! `redeliver policy …`

use std::path::PathBuf;

use clap::Subcommand;
use redeliver::config::{self, Secrets};
use redeliver::desk::rules::{self, Applied, ApplyError, History, Rules};
use redeliver::desk::to_json;
use serde_json::json;

use super::Globals;
use super::audit::{tell, whoami};
use super::config::{report, request};
use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::explain;
use super::output::{Document, Entry, Listing, Printer, cut};
use super::variants;

/// A hash for people; JSON has all of it.
const SHORT: usize = 12;

/// Look at the rules that decide about retries, and put them in force on all nodes
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Check the rules of a file: every mistake with file, line and way out
    #[command(after_help = "Examples:
  redeliver policy check policies.toml
  redeliver policy check                # the file that would be used

Exits 2 when something is wrong.")]
    Check {
        /// The file; by default the one that would be used
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Which rule is for a task at a moment, why the earlier ones are not, and when its retries would come
    #[command(after_help = "Examples:
  redeliver policy explain --type order.ship --label shop_tier=vip
  redeliver policy explain --type item.upload --at '2026-07-01T03:00[Asia/Shanghai]' -o json
  redeliver policy explain --config policies.toml --own-file --type report.render --at 2h")]
    Explain(explain::Args),
    /// Put a file's [[policy]], [[limit]] and [[breaker]] in the store: in force on all nodes within two seconds
    #[command(after_help = "Examples:
  redeliver policy apply policies.toml --reason 'slower retries for bulk uploads'
  redeliver policy apply --own-files --reason 'back to what each node has'

What is in the store stands in for these sections of every node's own file, until another version does. Nothing else of the file is kept.")]
    Apply(ApplyArgs),
    /// The versions in the store, and which rules each node runs
    #[command(after_help = "Examples:
  redeliver policy history
  redeliver policy history -o json | jq '.nodes[] | select(.current | not)'")]
    History,
    /// Compare the variants of policies by how their tasks ended
    #[command(after_help = "Examples:
  redeliver policy report
  redeliver policy report shipping --since 7d
  redeliver policy report shipping --label shop_tier=vip -o json | jq '.verdicts[0].sentence'

Counted are tasks that ended (in the window, if --since or --until give one), by the policy of their last attempt. SUCCESS has its
95 % interval (Wilson); an end by cache or default is no success. TRIES, HANDLER (time) and COST are per task; P50 and P95 are the
times from creation to success. The verdict's interval is Newcombe's; -o json has the p-value of the two-proportion z-test.")]
    Report(Box<variants::Args>),
}

/// `policy apply`
#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    /// The file; other sections in it are passed over
    #[arg(value_name = "FILE", required_unless_present = "own_files", conflicts_with = "own_files")]
    file: Option<PathBuf>,
    /// Instead of a file: every node follows its own file again
    #[arg(long)]
    own_files: bool,
    #[command(flatten)]
    consent: Consent,
}

/// Runs the verb.
///
/// # Errors
/// [`Exit::Usage`] with every problem of the configuration or file; when the store cannot be asked.
pub async fn run(verb: Verb, globals: &Globals) -> anyhow::Result<Exit> {
    let context = || Context::load(globals, Vec::new(), Secrets::Optional);
    match verb {
        // Rules name no secrets, so that a file is checked where its routes' tokens are not set.
        Verb::Check { file } => {
            let file = file.or_else(|| globals.config.clone());
            let checked = config::load(&request(globals, file, Secrets::Optional));
            report(&Printer::new(globals.output, globals.color), checked)
        }
        Verb::Report(args) => variants::run(&args, &context()?).await,
        Verb::Explain(args) => {
            let context = context()?;
            context.bound("the store", explain::run(&args, &context)).await?
        }
        Verb::Apply(args) => {
            let context = context()?;
            context.bound("the store", apply(&args, &context)).await?
        }
        Verb::History => {
            let context = context()?;
            context.bound("the store", history(&context)).await?
        }
    }
}

async fn apply(args: &ApplyArgs, context: &Context) -> anyhow::Result<Exit> {
    let text = match &args.file {
        None => None,
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.map_err(|error| exit::error(Exit::Usage, format!("{}: {error}", path.display())))?)
        }
    };
    let reason = args.consent.reason.clone();
    // Read here, whichever door: mistakes are then told with the file's name.
    let rules = match (&text, &args.file) {
        (Some(text), Some(path)) => Rules::read(&path.display().to_string(), text).map_err(|error| match error {
            ApplyError::Rules(error) => error.into(),
            other => exit::error(Exit::Usage, other.to_string()),
        })?,
        _ => Rules::own_files(),
    };
    let applied: Applied = match context.door().await? {
        Door::Store(store) => {
            let applied = rules::apply(&*store, rules, &whoami(), reason.clone(), args.consent.dry_run).await?;
            if applied.changed && !applied.dry_run {
                let version = applied.version.map_or_else(String::new, |version| version.to_string());
                tell(&*store, "policy.apply", format!("version {version}"), reason, None).await?;
            }
            store.close().await;
            applied
        }
        Door::Api(remote) => {
            let body = json!({
                "text": text, "own_files": args.own_files, "reason": reason, "dry_run": args.consent.dry_run,
            });
            remote.post(&["policies", "apply"], &body).await?
        }
    };
    let what = match (applied.changed, applied.dry_run) {
        (false, _) => "nothing: it is in force already",
        (true, true) => "nothing: --dry-run",
        (true, false) => "a new version",
    };
    let shown = applied.version.map_or_else(|| "none".to_owned(), |version| version.to_string());
    let lines = vec![
        ("version", shown.clone()),
        ("applied", what.to_owned()),
        ("hash", applied.hash.clone()),
        ("policies", applied.policies.to_string()),
        ("limits", applied.limits.to_string()),
        ("breakers", applied.breakers.to_string()),
    ];
    context.printer.one(&Document { name: shown, lines, tables: Vec::new(), json: to_json(&applied) })?;
    Ok(Exit::Done)
}

async fn history(context: &Context) -> anyhow::Result<Exit> {
    let found: History = match context.door().await? {
        Door::Store(store) => {
            let found = rules::history(&*store).await?;
            store.close().await;
            found
        }
        Door::Api(remote) => remote.get(&["policies", "history"], &()).await?,
    };
    let in_force = found.items.first().filter(|newest| newest.text.is_some()).map(|newest| newest.version.to_string());
    let mut listing = Listing::new(&["version", "applied_at", "applied_by", "hash", "reason"]);
    for version in &found.items {
        let hash = if version.text.is_some() { short(&version.hash) } else { "own files".into() };
        let cells = vec![
            version.version.to_string(),
            version.applied_at.clone(),
            version.applied_by.clone(),
            hash,
            cut(version.reason.as_deref().unwrap_or_default(), 60),
        ];
        listing.push(Entry { name: version.version.to_string(), cells, json: to_json(version) });
    }
    let mut running = Listing::new(&["node", "version", "hash", "seen_at", "current"]);
    for node in &found.nodes {
        let version = node.version.map_or_else(|| "own file".to_owned(), |version| version.to_string());
        let cells = vec![
            node.worker.clone(),
            version,
            short(&node.hash),
            node.seen_at.clone(),
            if node.current { "yes" } else { "no" }.into(),
        ];
        running.push(Entry { name: node.worker.clone(), cells, json: to_json(node) });
    }
    let lines = vec![
        ("in_force", in_force.clone().unwrap_or_else(|| "each node's own file".to_owned())),
        ("nodes", format!("{}, {} current", found.nodes.len(), found.nodes.iter().filter(|node| node.current).count())),
    ];
    let (name, json) = (in_force.unwrap_or_default(), to_json(&found));
    context.printer.one(&Document { name, lines, tables: vec![("versions", listing), ("nodes", running)], json })?;
    Ok(Exit::Done)
}

fn short(hash: &str) -> String {
    hash.chars().take(SHORT).collect()
}
