//! `redeliver policy …`

use std::path::PathBuf;

use clap::Subcommand;
use redeliver::config::{self, Secrets, SharedRules};
use redeliver::store::{NewPolicies, Node, PolicyVersion};
use serde_json::json;

use super::Globals;
use super::config::{report, request};
use super::confirm::Consent;
use super::context::Context;
use super::exit::{self, Exit};
use super::explain;
use super::output::{Document, Entry, Listing, Printer, cut, time};
use super::variants;

/// The versions that `history` shows.
const SHOWN: usize = 100;
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
    let (text, hash, counts) = match &args.file {
        None => (None, String::new(), (0, 0, 0)),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| exit::error(Exit::Usage, format!("{}: {error}", path.display())))?;
            let rules = SharedRules::read(&path.display().to_string(), &text)?;
            // The built-in policy closes every list and is nobody's work.
            let counts = (rules.policies.rules().len() - 1, rules.limits.len(), rules.breakers.len());
            let kept = SharedRules::sections_of(&text).map_err(|error| exit::error(Exit::Usage, error))?;
            (Some(kept), rules.digest(), counts)
        }
    };
    let store = context.store().await?;
    let newest = store.policies(1).await?.pop();
    let same = match &newest {
        Some(newest) => newest.rules.hash == hash && newest.rules.text.is_some() == text.is_some(),
        None => text.is_none(),
    };
    let before = newest.map(|newest| newest.version);
    let version = if same || args.consent.dry_run {
        before
    } else {
        let new = NewPolicies { applied_by: whoami(), reason: args.consent.reason.clone(), text, hash: hash.clone() };
        Some(store.apply_policies(new).await?)
    };
    store.close().await;
    let (policies, limits, breakers) = counts;
    let what = match (same, args.consent.dry_run) {
        (true, _) => "nothing: it is in force already",
        (false, true) => "nothing: --dry-run",
        (false, false) => "a new version",
    };
    let shown = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
    let lines = vec![
        ("version", shown.clone()),
        ("applied", what.to_owned()),
        ("hash", hash.clone()),
        ("policies", policies.to_string()),
        ("limits", limits.to_string()),
        ("breakers", breakers.to_string()),
    ];
    let json = json!({
        "version": version, "changed": !same, "dry_run": args.consent.dry_run, "hash": hash,
        "policies": policies, "limits": limits, "breakers": breakers,
    });
    context.printer.one(&Document { name: shown, lines, tables: Vec::new(), json })?;
    Ok(Exit::Done)
}

async fn history(context: &Context) -> anyhow::Result<Exit> {
    let store = context.store().await?;
    let (versions, nodes) = (store.policies(SHOWN).await?, store.nodes().await?);
    store.close().await;
    let in_force = versions.first().filter(|newest| newest.rules.text.is_some());
    let current = |node: &Node| match in_force {
        Some(newest) => node.version == Some(newest.version) && node.hash == newest.rules.hash,
        None => node.version.is_none(),
    };
    let mut listing = Listing::new(&["version", "applied_at", "applied_by", "hash", "reason"]);
    for version in &versions {
        listing.push(version_entry(version));
    }
    let mut running = Listing::new(&["node", "version", "hash", "seen_at", "current"]);
    for node in &nodes {
        let version = node.version.map_or_else(|| "own file".to_owned(), |version| version.to_string());
        let cells = vec![
            node.worker.clone(),
            version,
            short(&node.hash),
            time(node.seen_at),
            if current(node) { "yes" } else { "no" }.into(),
        ];
        running.push(Entry { name: node.worker.clone(), cells, json: json!(null) });
    }
    let json = json!({
        "items": versions.iter().map(|version| version_entry(version).json).collect::<Vec<_>>(),
        "next": null,
        "nodes": nodes.iter().map(|node| json!({
            "worker": node.worker, "hash": node.hash, "version": node.version, "seen_at": time(node.seen_at),
            "current": current(node),
        })).collect::<Vec<_>>(),
    });
    let lines = vec![
        ("in_force", in_force.map_or_else(|| "each node's own file".to_owned(), |newest| newest.version.to_string())),
        ("nodes", format!("{}, {} current", nodes.len(), nodes.iter().filter(|node| current(node)).count())),
    ];
    let name = in_force.map_or_else(String::new, |newest| newest.version.to_string());
    context.printer.one(&Document { name, lines, tables: vec![("versions", listing), ("nodes", running)], json })?;
    Ok(Exit::Done)
}

fn version_entry(version: &PolicyVersion) -> Entry {
    let rules = &version.rules;
    let reason = rules.reason.clone().unwrap_or_default();
    let hash = if rules.text.is_some() { short(&rules.hash) } else { "own files".into() };
    Entry {
        name: version.version.to_string(),
        cells: vec![
            version.version.to_string(),
            time(version.applied_at),
            rules.applied_by.clone(),
            hash,
            cut(&reason, 60),
        ],
        json: json!({
            "version": version.version, "applied_at": time(version.applied_at), "applied_by": rules.applied_by,
            "reason": rules.reason, "hash": rules.hash, "text": rules.text,
        }),
    }
}

fn short(hash: &str) -> String {
    hash.chars().take(SHORT).collect()
}

/// Who acts, as far as the system says.
fn whoami() -> String {
    let look = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = look("USER").or_else(|| look("LOGNAME")).unwrap_or_else(|| "unknown".into());
    match look("HOSTNAME") {
        Some(host) => format!("{user}@{host}"),
        None => user,
    }
}
