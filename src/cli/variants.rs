//! `redeliver policy report`: variants of a policy, compared (X4).

use redeliver::policy::{Arm, difference, sentence};
use redeliver::store::{GroupBy, Tally};
use serde_json::{Value, json};

use super::context::Context;
use super::exit::{self, Exit};
use super::filter::FilterArgs;
use super::output::{Document, Entry, Format, Listing, length, time_or_null};
use super::stats::{percent, ratio};

/// Fewer tasks than this in a variant say too little, whatever the interval.
const FEW: i64 = 30;

/// What is compared.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this policy
    #[arg(value_name = "POLICY")]
    policy: Option<String>,
    #[command(flatten)]
    filter: FilterArgs,
}

const COLUMNS: [&str; 10] = ["policy", "variant", "n", "success", "interval", "tries", "handler", "cost", "p50", "p95"];

/// Prints.
///
/// # Errors
/// [`Exit::NotFound`] when the named policy has no task with a variant and is not configured either.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let store = context.store().await?;
    let filter = args.filter.to_filter(&[], store.now())?;
    let mut tallies = context.bound("the store", store.tallies(&GroupBy::Variant, &filter)).await??;
    if let Some(name) = &args.policy {
        tallies.retain(|tally| tally.group.as_deref() == Some(name));
        let rules = context.config().policies.rules();
        if tallies.is_empty() && !rules.iter().any(|rule| rule.name == *name) {
            let known: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
            let text =
                format!("policy {name:?} is not configured and no task has had it; there are: {}", known.join(", "));
            return Err(exit::error(Exit::NotFound, text));
        }
    }
    tallies.sort_by(|a, b| (&a.group, &a.variant).cmp(&(&b.group, &b.variant)));
    let mut listing = Listing::new(&COLUMNS);
    tallies.iter().for_each(|tally| listing.push(entry(tally)));
    if !matches!(context.printer.format(), Format::Table | Format::Json) {
        context.printer.list(&listing)?;
        return Ok(Exit::Done);
    }
    let verdicts: Vec<Verdict> = tallies.chunk_by(|a, b| a.group == b.group).map(Verdict::of).collect();
    let json = json!({
        "since": time_or_null(filter.since),
        "until": time_or_null(filter.until),
        "items": listing.json(),
        "next": Value::Null,
        "verdicts": verdicts.iter().map(|verdict| verdict.json.clone()).collect::<Vec<_>>(),
    });
    let mut lines: Vec<(&'static str, String)> =
        verdicts.into_iter().map(|verdict| ("verdict", verdict.text)).collect();
    if lines.is_empty() {
        lines.push(("verdict", "nothing to compare: no task of a policy with variants has ended".into()));
    }
    let tables = if tallies.is_empty() { Vec::new() } else { vec![("VARIANTS (success in %, per task)", listing)] };
    context.printer.one(&Document { name: "report".into(), lines, tables, json })?;
    Ok(Exit::Done)
}

/// What the numbers of one policy say.
struct Verdict {
    text: String,
    json: Value,
}

impl Verdict {
    fn of(variants: &[Tally]) -> Verdict {
        let arms: Vec<Arm> = variants.iter().map(arm).collect();
        let policy = variants.first().and_then(|tally| tally.group.clone());
        let mut said = sentence(&arms);
        let few = variants.iter().find(|tally| tally.tasks < FEW).filter(|_| arms.len() > 1);
        if let Some(few) = few {
            said.push_str(&format!("; {} tasks of {} are too few to tell", few.tasks, variant(few)));
        }
        let best = arms.iter().max_by(|a, b| a.rate().total_cmp(&b.rate()));
        let against: Vec<Value> = best
            .into_iter()
            .flat_map(|best| arms.iter().filter(move |arm| arm.name != best.name).map(move |other| (best, other)))
            .map(|(best, other)| {
                let difference = difference(best, other);
                json!({
                    "better": best.name,
                    "than": other.name,
                    "points": difference.points,
                    "low": difference.low,
                    "high": difference.high,
                    "p_value": difference.p_value,
                })
            })
            .collect();
        let name = policy.as_deref().unwrap_or("(none)");
        Verdict {
            text: format!("{name}: {said}"),
            json: json!({ "policy": policy, "sentence": said, "too_few": few.is_some(), "differences": against }),
        }
    }
}

fn variant(tally: &Tally) -> String {
    tally.variant.clone().unwrap_or_default()
}

fn arm(tally: &Tally) -> Arm {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Arm { name: variant(tally), n: count(tally.tasks), succeeded: count(tally.succeeded) }
}

fn entry(tally: &Tally) -> Entry {
    let arm = arm(tally);
    let (low, high) = arm.interval();
    let handler_ms = ratio(tally.handler_ms, tally.tasks);
    #[expect(clippy::cast_possible_truncation, reason = "a length of time for people")]
    let handler = handler_ms.map_or_else(|| "-".into(), |ms| length(ms.round() as i64));
    let tries = ratio(tally.attempts, tally.tasks);
    let cost = ratio(1, tally.tasks).map(|share| share * tally.cost);
    let took = |ms: Option<i64>| ms.map_or_else(|| "-".into(), length);
    let cells = vec![
        tally.group.clone().unwrap_or_else(|| "(none)".into()),
        variant(tally),
        tally.tasks.to_string(),
        percent(Some(arm.rate())),
        format!("{}–{}", percent(Some(low)), percent(Some(high))),
        tries.map_or_else(|| "-".into(), |tries| format!("{tries:.2}")),
        handler,
        cost.map_or_else(|| "-".into(), |cost| format!("{cost:.3}")),
        took(tally.p50_ms),
        took(tally.p95_ms),
    ];
    let json = json!({
        "policy": tally.group,
        "variant": tally.variant,
        "n": tally.tasks,
        "succeeded": tally.succeeded,
        "success_rate": arm.rate(),
        "success_low": low,
        "success_high": high,
        "dead": tally.dead,
        "fell_back": tally.fell_back,
        "attempts_per_task": tries,
        "handler_ms_per_task": handler_ms,
        "handler_ms": tally.handler_ms,
        "cost_per_task": cost,
        "cost": tally.cost,
        "time_to_success_p50_ms": tally.p50_ms,
        "time_to_success_p95_ms": tally.p95_ms,
    });
    Entry { name: format!("{} {}", tally.group.as_deref().unwrap_or_default(), variant(tally)), cells, json }
}
