//! `redeliver policy report`: variants of a policy, compared (X4).

use redeliver::desk::filter::FilterText;
use redeliver::desk::stats::{Report, VariantDocument, Verdict, report};
use redeliver::desk::to_json;
use serde::Serialize;

use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::filter::{FilterArgs, now};
use super::output::{Document, Entry, Format, Listing, length};
use super::stats::percent;

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
    let found: Report = match context.door().await? {
        Door::Store(store) => {
            let filter = args.filter.to_filter(&[], store.now())?;
            context.bound("the store", report(&*store, args.policy.as_deref(), &filter)).await??
        }
        Door::Api(remote) => {
            let filter = FilterText::of(&args.filter.to_filter(&[], now())?);
            let query = Query { policy: args.policy.clone(), filter };
            context.bound("the server", remote.get(&["policies", "report"], &query)).await??
        }
    };
    if let Some(name) = args.policy.as_ref().filter(|_| found.items.is_empty() && context.remote().is_none()) {
        let rules = context.config().policies.rules();
        if !rules.iter().any(|rule| rule.name == *name) {
            let known: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
            let text =
                format!("policy {name:?} is not configured and no task has had it; there are: {}", known.join(", "));
            return Err(exit::error(Exit::NotFound, text));
        }
    }
    let mut listing = Listing::new(&COLUMNS);
    found.items.iter().for_each(|variant| listing.push(entry(variant)));
    if !matches!(context.printer.format(), Format::Table | Format::Json) {
        context.printer.list(&listing)?;
        return Ok(Exit::Done);
    }
    let said = |verdict: &Verdict| {
        let policy = verdict.policy.as_deref().unwrap_or("(none)");
        ("verdict", format!("{policy}: {}", verdict.sentence))
    };
    let mut lines: Vec<(&'static str, String)> = found.verdicts.iter().map(said).collect();
    if lines.is_empty() {
        lines.push(("verdict", "nothing to compare: no task of a policy with variants has ended".into()));
    }
    let tables = if found.items.is_empty() { Vec::new() } else { vec![("VARIANTS (success in %, per task)", listing)] };
    context.printer.one(&Document { name: "report".into(), lines, tables, json: to_json(&found) })?;
    Ok(Exit::Done)
}

/// What a server is asked.
#[derive(Serialize)]
struct Query {
    #[serde(flatten)]
    filter: FilterText,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
}

fn entry(variant: &VariantDocument) -> Entry {
    #[expect(clippy::cast_possible_truncation, reason = "a length of time for people")]
    let handler = variant.handler_ms_per_task.map_or_else(|| "-".into(), |ms| length(ms.round() as i64));
    let took = |ms: Option<i64>| ms.map_or_else(|| "-".into(), length);
    let cells = vec![
        variant.policy.clone().unwrap_or_else(|| "(none)".into()),
        variant.variant.clone().unwrap_or_default(),
        variant.n.to_string(),
        percent(Some(variant.success_rate)),
        format!("{}–{}", percent(Some(variant.success_low)), percent(Some(variant.success_high))),
        variant.attempts_per_task.map_or_else(|| "-".into(), |tries| format!("{tries:.2}")),
        handler,
        variant.cost_per_task.map_or_else(|| "-".into(), |cost| format!("{cost:.3}")),
        took(variant.time_to_success_p50_ms),
        took(variant.time_to_success_p95_ms),
    ];
    let (policy, name) =
        (variant.policy.as_deref().unwrap_or_default(), variant.variant.as_deref().unwrap_or_default());
    Entry { name: format!("{policy} {name}"), cells, json: to_json(variant) }
}
