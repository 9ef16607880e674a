//! `redeliver policy explain`: what would happen to a task, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use redeliver::config::show_duration;
use redeliver::desk::filter::zoned_moment;
use redeliver::desk::rules::{BackoffDocument, Explained, RetryAfterDocument, Schedule, explain};
use redeliver::desk::to_json;
use redeliver::policy::check_topic;
use redeliver::task::Millis;
use serde::Serialize;

use super::context::Context;
use super::exit::{self, Exit};
use super::filter::{Moment, label, now};
use super::output::{Document, Entry, Listing, time};

/// See the module.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The task's type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: String,
    /// A label of the task; may be repeated
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<(String, String)>,
    /// By the rules of the config file, also where the store holds others
    #[arg(long)]
    own_file: bool,
    /// When: RFC 3339, with a zone as in 2026-07-01T03:00[Asia/Shanghai], or from now on as in 2h [default: now]
    #[arg(long, value_name = "TIME", value_parser = zoned_moment)]
    at: Option<Moment>,
}

/// Explains.
///
/// # Errors
/// [`Exit::Usage`] for a type that is none, or two values for one label; when store or server are there and cannot be asked.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    check_topic(&args.task_type).map_err(|error| exit::error(Exit::Usage, format!("--type: {error}")))?;
    let mut labels = BTreeMap::new();
    for (name, value) in &args.labels {
        if labels.insert(name.clone(), value.clone()).is_some_and(|other| other != *value) {
            return Err(exit::error(Exit::Usage, format!("--label {name} is given twice with different values")));
        }
    }
    let now = now();
    let at = args.at.map_or(now, |moment| moment.resolve_ahead(now));
    let explained: Explained = match context.remote() {
        Some(remote) if !args.own_file => {
            let label = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let query = Query { task_type: &args.task_type, label, at: time(at) };
            remote.get(&["policies", "explain"], &query).await?
        }
        _ => {
            let (config, source) = match args.own_file {
                true => (context.config().clone(), context.own_source()),
                false => context.in_force().await?,
            };
            explain(&config, &source, &args.task_type, &labels, at)
        }
    };
    context.printer.one(&document(&explained))?;
    Ok(Exit::Done)
}

/// What a server is asked.
#[derive(Serialize)]
struct Query<'q> {
    #[serde(rename = "type")]
    task_type: &'q str,
    label: Vec<String>,
    at: String,
}

fn document(found: &Explained) -> Document {
    let labels = found.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    let mut lines = vec![
        ("type", found.task_type.clone()),
        ("labels", labels.join(", ")),
        ("at", found.at.clone()),
        ("queue", found.queue.clone()),
        ("route", found.route.clone().unwrap_or_else(|| "none in the file".into())),
        ("rules", found.rules.clone()),
        ("policy", found.policy.clone()),
        ("because", found.because.clone()),
        ("retry_after", retry_after(&found.retry_after)),
        ("deadline", found.deadline_ms.map_or_else(|| "none".to_owned(), length)),
        ("fallback", fallback(found)),
        ("replay_after", list(found.replay_after_ms.iter().map(|wait| length(*wait)))),
    ];
    for table in &found.schedules {
        lines.push(("retries", format!("{}: {}, {}", table.source, backoff(&table.backoff), ends(table))));
    }
    let mut tables = Vec::new();
    if !found.passed_over.is_empty() {
        let mut passed = Listing::new(&["policy", "why_not"]);
        for over in &found.passed_over {
            let cells = vec![over.policy.clone(), over.why.clone()];
            passed.push(Entry { name: over.policy.clone(), cells, json: to_json(over) });
        }
        tables.push(("earlier policies", passed));
    }
    for table in &found.schedules {
        tables.push(("retries, if every attempt failed at once", timetable(table)));
    }
    if !found.gates.is_empty() {
        let mut listing = Listing::new(&["gate", "name", "key", "says"]);
        for gate in &found.gates {
            let key =
                gate.key.clone().unwrap_or_else(|| format!("– ({})", gate.why_not.as_deref().unwrap_or_default()));
            let cells = vec![gate.kind.clone(), gate.name.clone(), key, gate.says.clone()];
            listing.push(Entry { name: gate.name.clone(), cells, json: to_json(gate) });
        }
        tables.push(("gates", listing));
    }
    Document { name: found.policy.clone(), lines, tables, json: to_json(found) }
}

fn retry_after(rule: &RetryAfterDocument) -> String {
    let cap = length(rule.cap_ms);
    let beyond = match rule.over_cap.as_str() {
        "cap" => format!("longer ones wait {cap}"),
        "honour" => format!("also beyond {cap}"),
        _ => format!("beyond {cap} the task dies"),
    };
    match rule.mode.as_str() {
        "ignore" => "is ignored".into(),
        "exact" => format!("replaces the delay; {beyond}"),
        _ => format!("never earlier than asked; {beyond}"),
    }
}

fn fallback(found: &Explained) -> String {
    let shown = list(found.fallback.iter().map(|fallback| match fallback.as_str() {
        "cache" => format!("cache (at most {} old)", length(found.cache_max_age_ms)),
        other => other.to_owned(),
    }));
    if found.critical { format!("{shown} (critical: never cache or default)") } else { shown }
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".into() } else { items.join(", ") }
}

fn length(ms: Millis) -> String {
    show_duration(Duration::from_millis(ms.unsigned_abs()))
}

fn backoff(backoff: &BackoffDocument) -> String {
    match backoff {
        BackoffDocument::Steps { steps_ms } => format!("steps {}", list(steps_ms.iter().map(|step| length(*step)))),
        BackoffDocument::Fixed { fixed_ms } => format!("fixed {}", length(*fixed_ms)),
        BackoffDocument::Exponential { exponential } => {
            let (base, max) = (length(exponential.base_ms), length(exponential.max_ms));
            let percent = exponential.jitter * 100.0;
            format!("exponential {base} ×{}, at most {max}, jitter ± {percent:.0} %", exponential.multiplier)
        }
    }
}

fn ends(table: &Schedule) -> String {
    let retries = table.retries.len();
    let at = table.ends.at.as_deref().unwrap_or_default();
    match table.ends.reason.as_str() {
        "deadline_exceeded" => format!("{retries} retries, then deadline_exceeded ({at})"),
        "other_policy" => {
            let policy = table.ends.policy.as_deref().unwrap_or_default();
            format!("{retries} retries, then policy {policy:?} decides ({at})")
        }
        reason => format!("{retries} retries, then {reason}"),
    }
}

fn timetable(table: &Schedule) -> Listing {
    let mut listing = Listing::new(&["retry", "delay", "earliest", "latest", "says"]);
    for due in &table.retries {
        let delay = match due.delay_least_ms == due.delay_most_ms {
            true => length(due.delay_least_ms),
            false => format!("{} – {}", length(due.delay_least_ms), length(due.delay_most_ms)),
        };
        let (earliest, latest) = (due.earliest_at.clone(), due.latest_at.clone());
        let cells = vec![due.retry.to_string(), delay, earliest, latest, table.source.clone()];
        listing.push(Entry { name: due.retry.to_string(), cells, json: to_json(due) });
    }
    listing
}
