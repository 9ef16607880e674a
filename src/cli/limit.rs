//! `redeliver limit …`: how much room limits, caps and Retry-After holds have.

use std::collections::BTreeMap;

use clap::Subcommand;
use redeliver::gate::{GateState, Gates, LimitKind, Look, Rate, RuleOf, look};
use redeliver::task::Millis;
use serde_json::json;

use super::context::Context;
use super::exit::Exit;
use super::output::{Entry, Listing, length, time_or_null};

/// Look at limits
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List limits, concurrency caps and Retry-After holds by key: rule, room, next chance, how many tasks wait
    #[command(after_help = "Examples:
  redeliver limit list
  redeliver limit list -o json | jq '.items[] | select(.waiting > 0)'

A key appears once something has gone through it; one that was never used has all its room.")]
    List,
}

const COLUMNS: [&str; 6] = ["limit", "state", "room", "next_chance", "waiting", "rule"];

/// Runs the verb.
///
/// # Errors
/// When the store does not answer.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    match verb {
        Verb::List => context.bound("the store", list(context)).await?,
    }
}

async fn list(context: &Context) -> anyhow::Result<Exit> {
    let store = context.store().await?;
    let gates = &context.config().gates;
    let waiting = store.held_counts().await?;
    let now = store.now();
    let mut states: BTreeMap<String, Option<GateState>> =
        gates.alone().into_iter().map(|gate| (gate.key, None)).collect();
    states.extend(waiting.keys().map(|key| (key.clone(), None)));
    states.extend(store.gates().await?.into_iter().map(|(key, state)| (key, Some(state))));
    states.retain(|key, _| ["limit/", "cap/", "hold/"].iter().any(|kind| key.starts_with(kind)));
    let mut listing = Listing::new(&COLUMNS);
    for (key, state) in &states {
        listing.push(entry(gates, key, state.as_ref(), waiting.get(key).copied().unwrap_or(0), now));
    }
    if listing.is_empty() {
        context.say(match gates.limits.is_empty() && gates.caps.is_empty() {
            true => {
                "no [[limit]] and no concurrency of a [[route]] is configured, and nobody has asked to be left alone"
            }
            false => "nothing has gone through a limit yet",
        });
    }
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

fn entry(gates: &Gates, key: &str, state: Option<&GateState>, waiting: i64, now: Millis) -> Entry {
    let rule = gates.rule(key);
    let seen = rule.map(|rule| look(rule, key, state, true, now));
    let (word, room, next) = match seen {
        // What the configuration does not know stops nothing.
        None => ("not configured", None, None),
        Some(Look::Open { room }) => ("open", room, Some(now)),
        Some(Look::Shut { opens_at } | Look::Tripped { opens_at, .. }) => ("shut", Some(0), opens_at),
    };
    let in_use = match state {
        Some(GateState::Cap { places }) => Some(places.len()),
        _ => None,
    };
    let until = match state {
        Some(GateState::Hold { until, .. }) if *until > now => Some(*until),
        _ => None,
    };
    let cells = vec![
        key.to_owned(),
        word.to_owned(),
        match seen {
            None => String::new(),
            Some(_) => room.map_or_else(|| "any".into(), |room| room.to_string()),
        },
        match next {
            Some(at) if at <= now => "now".into(),
            Some(at) => format!("in {}", length(at - now)),
            None if seen.is_some() => "when one ends".into(),
            None => String::new(),
        },
        waiting.to_string(),
        rule.map(rule_for_people).unwrap_or_default(),
    ];
    let json = json!({
        "key": key,
        "kind": key.split('/').next(),
        "state": word,
        "room": room,
        "next_chance_at": time_or_null(next),
        "in_use": in_use,
        "until": time_or_null(until),
        "waiting": waiting,
        "rule": rule.map(rule_for_people),
        "configured": rule.is_some(),
    });
    Entry { name: key.to_owned(), cells, json }
}

/// `5 retries a 1m, burst 1`
fn rule_for_people(rule: RuleOf<'_>) -> String {
    match rule {
        RuleOf::Limit(rule) => {
            let what = if rule.calls { "calls" } else { "retries" };
            match &rule.kind {
                LimitKind::Rate { rate, burst } => format!("{}, burst {burst}", rate_for_people(*rate, what)),
                LimitKind::Ratio { permille, window_ms, floor } => format!(
                    "{}.{} % retries within {}, at least {}",
                    permille / 10,
                    permille % 10,
                    length(*window_ms),
                    rate_for_people(*floor, "")
                ),
            }
        }
        RuleOf::Cap(rule) => format!("{} at a time", rule.max),
        RuleOf::Hold => "Retry-After".into(),
        RuleOf::Breaker(_) => String::new(),
    }
}

fn rate_for_people(rate: Rate, what: &str) -> String {
    let per = match rate.per_ms {
        1_000 => "s".to_owned(),
        60_000 => "min".to_owned(),
        3_600_000 => "h".to_owned(),
        86_400_000 => "day".to_owned(),
        other => length(other),
    };
    let space = if what.is_empty() { "" } else { " " };
    format!("{}{space}{what}/{per}", rate.count)
}
