//! `redeliver policy explain`: what would happen to a task, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use redeliver::config::{Config, SharedRules, show_duration, show_rate};
use redeliver::gate::{BreakerRule, LimitKind, Per, RuleOf, Subject, WhenOpen, Word};
use redeliver::policy::{Backoff, Ends, OverCap, Policy, RetryAfterMode, Timetable, check_topic};
use redeliver::task::Millis;
use serde_json::{Value, json};

use super::context::{Context, store_exists};
use super::exit::{self, Exit};
use super::filter::{Moment, label, moment};
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
    #[arg(long, value_name = "TIME", value_parser = at)]
    at: Option<Moment>,
}

/// What is meant by `--at`.
fn at(text: &str) -> Result<Moment, String> {
    if let Ok(zoned) = text.parse::<jiff::ZonedDateTime>() {
        return Ok(Moment::At(zoned.timestamp().as_millisecond()));
    }
    moment(text).map_err(|_| {
        "expected RFC 3339 with a zone, a local time such as 2026-07-01T03:00[Asia/Shanghai], or a length such as 2h".into()
    })
}

/// Explains.
///
/// # Errors
/// [`Exit::Usage`] for a type that is none, or two values for one label; when the store is there and cannot be asked.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    check_topic(&args.task_type).map_err(|error| exit::error(Exit::Usage, format!("--type: {error}")))?;
    let mut labels = BTreeMap::new();
    for (name, value) in &args.labels {
        if labels.insert(name.clone(), value.clone()).is_some_and(|other| other != *value) {
            return Err(exit::error(Exit::Usage, format!("--label {name} is given twice with different values")));
        }
    }
    let now = jiff::Timestamp::now().as_millisecond();
    let at = args.at.map_or(now, |moment| moment.resolve_ahead(now));
    let (config, source) = in_force(args, context).await?;
    context.printer.one(&document(&config, &source, &args.task_type, &labels, at))?;
    Ok(Exit::Done)
}

/// The rules in force, and where they come from: the newest version in the store if there is one, else the file.
async fn in_force(args: &Args, context: &Context) -> anyhow::Result<(Config, String)> {
    let config = context.config().clone();
    if !args.own_file && store_exists(&config) {
        let store = context.store().await?;
        let newest = store.policies(1).await?.pop();
        store.close().await;
        if let Some(newest) = newest
            && let Some(text) = newest.rules.text
        {
            let name = format!("policies version {}", newest.version);
            let rules = SharedRules::read(&name, &text)?;
            return Ok((config.with_rules(rules), name));
        }
    }
    let file = context.loaded.file.as_ref().map(|file| file.display().to_string());
    Ok((config, file.unwrap_or_else(|| "no file, defaults hold".into())))
}

fn document(config: &Config, source: &str, task_type: &str, labels: &BTreeMap<String, String>, at: Millis) -> Document {
    let explained = config.policies.explain(task_type, labels, at);
    let policy = &explained.policy;
    let queue = config.queue_of(task_type);
    let route = config.gates.routes.iter().find(|route| route.matches(task_type)).map(|route| route.as_str());
    let gates = gates(config, &Task { task_type, queue, route, labels });

    let shown_labels = |labels: &BTreeMap<String, String>| {
        labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![
        ("type", task_type.to_owned()),
        ("labels", shown_labels(labels)),
        ("at", time(at)),
        ("queue", queue.to_owned()),
        ("route", route.unwrap_or("none in the file").to_owned()),
        ("rules", source.to_owned()),
        ("policy", policy.name.clone()),
        ("because", because(policy)),
        ("retry_after", retry_after(policy)),
        ("deadline", policy.deadline_ms.map_or_else(|| "none".to_owned(), length)),
        ("fallback", fallback(policy)),
        ("replay_after", list(policy.replay_after_ms.iter().map(|wait| length(*wait)))),
    ];
    for table in &explained.schedules {
        lines.push(("retries", format!("{}: {}, {}", table.source, backoff(&table.backoff), ends(table))));
    }
    let passed_over: Vec<Value> =
        explained.passed_over.iter().map(|(name, why)| json!({ "policy": name, "why": why })).collect();
    let variants: Vec<Value> = policy
        .variants
        .iter()
        .map(|variant| json!({ "name": variant.name, "weight": variant.weight, "max_retries": variant.max_retries }))
        .collect();
    let json = json!({
        "type": task_type,
        "labels": labels,
        "at": time(at),
        "queue": queue,
        "route": route,
        "rules": source,
        "policy": policy.name,
        "because": because(policy),
        "passed_over": &passed_over,
        "max_retries": policy.max_retries,
        "variants": variants,
        "schedules": explained.schedules.iter().map(timetable_json).collect::<Vec<_>>(),
        "retry_after": {
            "mode": mode(policy.retry_after.mode),
            "cap_ms": policy.retry_after.cap_ms,
            "over_cap": over_cap(policy.retry_after.over_cap),
        },
        "deadline_ms": policy.deadline_ms,
        "fallback": policy.fallbacks().map(|fallback| fallback.as_str()).collect::<Vec<_>>(),
        "cache_max_age_ms": policy.cache_max_age_ms,
        "critical": policy.critical,
        "replay_after_ms": policy.replay_after_ms,
        "gates": gates.iter().map(Gate::json).collect::<Vec<_>>(),
    });

    let mut passed = Listing::new(&["policy", "why_not"]);
    for (name, why) in explained.passed_over {
        passed.push(Entry { name: name.clone(), cells: vec![name, why], json: Value::Null });
    }
    let mut tables = if passed_over.is_empty() { Vec::new() } else { vec![("earlier policies", passed)] };
    for table in &explained.schedules {
        tables.push(("retries, if every attempt failed at once", timetable_listing(table)));
    }
    let mut listing = Listing::new(&["gate", "name", "key", "says"]);
    for gate in gates {
        listing.push(gate.entry());
    }
    if !listing.is_empty() {
        tables.push(("gates", listing));
    }
    Document { name: policy.name.clone(), lines, tables, json }
}

fn because(policy: &Policy) -> String {
    let mut reasons = vec![format!("type {}", policy.task_type)];
    reasons.extend(policy.labels.iter().map(|(name, value)| format!("{name} = {value:?}")));
    reasons.extend(policy.hours.iter().map(ToString::to_string));
    format!("the first rule of which all is so: {}", reasons.join(", "))
}

fn mode(mode: RetryAfterMode) -> &'static str {
    match mode {
        RetryAfterMode::Exact => "exact",
        RetryAfterMode::Floor => "floor",
        RetryAfterMode::Ignore => "ignore",
    }
}

fn over_cap(over_cap: OverCap) -> &'static str {
    match over_cap {
        OverCap::Cap => "cap",
        OverCap::Honour => "honour",
        OverCap::DeadLetter => "dead_letter",
    }
}

fn retry_after(policy: &Policy) -> String {
    let rule = policy.retry_after;
    let cap = length(rule.cap_ms);
    let beyond = match rule.over_cap {
        OverCap::Cap => format!("longer ones wait {cap}"),
        OverCap::Honour => format!("also beyond {cap}"),
        OverCap::DeadLetter => format!("beyond {cap} the task dies"),
    };
    match rule.mode {
        RetryAfterMode::Ignore => "is ignored".into(),
        RetryAfterMode::Exact => format!("replaces the delay; {beyond}"),
        RetryAfterMode::Floor => format!("never earlier than asked; {beyond}"),
    }
}

fn fallback(policy: &Policy) -> String {
    let shown = list(policy.fallbacks().map(|fallback| match fallback {
        redeliver::policy::Fallback::Cache => format!("cache (at most {} old)", length(policy.cache_max_age_ms)),
        other => other.as_str().to_owned(),
    }));
    if policy.critical { format!("{shown} (critical: never cache or default)") } else { shown }
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".into() } else { items.join(", ") }
}

fn length(ms: Millis) -> String {
    show_duration(Duration::from_millis(ms.unsigned_abs()))
}

fn backoff(backoff: &Backoff) -> String {
    match backoff {
        Backoff::Steps(steps) => format!("steps {}", list(steps.iter().map(|step| length(*step)))),
        Backoff::Fixed(delay) => format!("fixed {}", length(*delay)),
        Backoff::Exponential { base_ms, max_ms, multiplier, jitter } => {
            let (base, max, percent) = (length(*base_ms), length(*max_ms), jitter * 100.0);
            format!("exponential {base} ×{multiplier}, at most {max}, jitter ± {percent:.0} %")
        }
    }
}

fn ends(table: &Timetable) -> String {
    let retries = table.retries.len();
    match &table.ends {
        Ends::Exhausted => format!("{retries} retries, then retries_exhausted"),
        Ends::Deadline { at } => format!("{retries} retries, then deadline_exceeded ({})", time(*at)),
        Ends::OtherRule { policy, at } => format!("{retries} retries, then policy {policy:?} decides ({})", time(*at)),
    }
}

fn timetable_json(table: &Timetable) -> Value {
    let retries: Vec<Value> = table
        .retries
        .iter()
        .map(|due| {
            json!({
                "retry": due.retry,
                "delay_least_ms": due.least_ms,
                "delay_most_ms": due.most_ms,
                "earliest_at": time(due.earliest_at),
                "latest_at": time(due.latest_at),
            })
        })
        .collect();
    let ends = match &table.ends {
        Ends::Exhausted => json!({ "reason": "retries_exhausted" }),
        Ends::Deadline { at } => json!({ "reason": "deadline_exceeded", "at": time(*at) }),
        Ends::OtherRule { policy, at } => json!({ "reason": "other_policy", "policy": policy, "at": time(*at) }),
    };
    let shape = match &table.backoff {
        Backoff::Steps(steps) => json!({ "steps_ms": steps }),
        Backoff::Fixed(delay) => json!({ "fixed_ms": delay }),
        Backoff::Exponential { base_ms, max_ms, multiplier, jitter } => json!({
            "exponential": { "base_ms": base_ms, "max_ms": max_ms, "multiplier": multiplier, "jitter": jitter }
        }),
    };
    json!({
        "source": table.source,
        "max_retries": table.max_retries,
        "backoff": shape,
        "retries": retries,
        "ends": ends,
    })
}

fn timetable_listing(table: &Timetable) -> Listing {
    let mut listing = Listing::new(&["retry", "delay", "earliest", "latest", "says"]);
    for due in &table.retries {
        let delay = match due.least_ms == due.most_ms {
            true => length(due.least_ms),
            false => format!("{} – {}", length(due.least_ms), length(due.most_ms)),
        };
        let cells =
            vec![due.retry.to_string(), delay, time(due.earliest_at), time(due.latest_at), table.source.clone()];
        listing.push(Entry { name: due.retry.to_string(), cells, json: Value::Null });
    }
    listing
}

/// What a gate sees of a task.
struct Task<'a> {
    task_type: &'a str,
    queue: &'a str,
    route: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
}

/// A gate of the configuration, and the task's key in it.
struct Gate {
    kind: &'static str,
    name: String,
    per: String,
    /// Its key in the store, as `held_by` names it, or why the task has none.
    key: Result<String, String>,
    says: String,
}

impl Gate {
    fn new(kind: &'static str, name: &str, per: &Per, key: Result<String, String>, says: String) -> Gate {
        let words = per.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Gate { kind, name: name.into(), per: words, key, says }
    }

    fn entry(self) -> Entry {
        let key = match self.key {
            Ok(key) => key,
            Err(why) => format!("– ({why})"),
        };
        Entry { name: self.name.clone(), cells: vec![self.kind.into(), self.name, key, self.says], json: Value::Null }
    }

    fn json(&self) -> Value {
        json!({
            "kind": self.kind,
            "name": self.name,
            "per": self.per,
            "applies": self.key.is_ok(),
            "key": self.key.as_ref().ok(),
            "why_not": self.key.as_ref().err(),
            "says": self.says,
        })
    }
}

/// Every gate of the configuration, those that a retry of the task passes with its key in the store.
fn gates(config: &Config, task: &Task<'_>) -> Vec<Gate> {
    let subject = Subject { task_type: task.task_type, queue: task.queue, labels: task.labels };
    let way = config.gates.way(subject, true);
    let key = |per: &Per, is_it: &dyn Fn(RuleOf<'_>) -> bool| {
        let found = way.gates.iter().find(|gate| is_it(gate.rule));
        found.map(|gate| gate.key.clone()).ok_or_else(|| lacks(per, task))
    };
    let mut gates = Vec::new();
    for limit in &config.gates.limits {
        let counted = if limit.calls { "calls" } else { "retries" };
        let says = match &limit.kind {
            LimitKind::Rate { rate, burst } => format!("{} {counted}, {burst} at once", show_rate(*rate)),
            LimitKind::Ratio { permille, window_ms, floor } => format!(
                "retries at most {permille} ‰ of the first attempts in {}, {} in any case",
                length(*window_ms),
                show_rate(*floor)
            ),
        };
        let key = key(&limit.per, &|rule| matches!(rule, RuleOf::Limit(found) if found.name == limit.name));
        gates.push(Gate::new("limit", &limit.name, &limit.per, key, says));
    }
    for breaker in &config.gates.breakers {
        let key = key(&breaker.per, &|rule| matches!(rule, RuleOf::Breaker(found) if found.name == breaker.name));
        gates.push(Gate::new("breaker", &breaker.name, &breaker.per, key, breaker_says(breaker)));
    }
    for cap in config.gates.caps.iter().filter(|cap| task.route == Some(cap.route.as_str())) {
        let key = key(&cap.per, &|rule| matches!(rule, RuleOf::Cap(found) if found == cap));
        gates.push(Gate::new("concurrency", cap.route.as_str(), &cap.per, key, format!("{} at once", cap.max)));
    }
    if let Some(hold) = &way.hold {
        let says = "after an answer that says slow down and for how long, nothing of this key starts so long".into();
        gates.push(Gate::new("hold", "retry_after", &Per::default(), Ok(hold.clone()), says));
    }
    gates
}

/// Why a gate is not on the task's way.
fn lacks(per: &Per, task: &Task<'_>) -> String {
    let missing = per.0.iter().find_map(|word| match word {
        Word::Label(name) if !task.labels.contains_key(name) => Some(format!("no label {name}")),
        Word::Route if task.route.is_none() => Some("no route".into()),
        _ => None,
    });
    missing.unwrap_or_else(|| "not for it".into())
}

fn breaker_says(breaker: &BreakerRule) -> String {
    let same = breaker.consecutive_same.map(|n| format!("{n} equal failures in a row"));
    let any = breaker.consecutive.map(|n| format!("{n} failures in a row"));
    let rate = breaker.failure_rate.map(|rate| {
        format!("{} ‰ of at least {} attempts in {} failed", rate.permille, rate.min, length(rate.window_ms))
    });
    let trips = [same, any, rate].into_iter().flatten().collect::<Vec<_>>().join(" or ");
    let then = match breaker.when_open {
        WhenOpen::Park => "due tasks wait",
        WhenOpen::DeadLetter => "due tasks die",
        WhenOpen::Fallback => "due tasks end by their fallbacks",
    };
    format!("opens for {} after {trips}; {then}", length(breaker.open_for_ms))
}
