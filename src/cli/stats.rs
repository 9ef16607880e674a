//! `redeliver stats`: what the history says about types, shops, attempts and policies.

use redeliver::desk::filter::FilterText;
use redeliver::desk::stats::{
    AttemptTallyDocument, By, FailureTallyDocument, Stats, StatsItem, TallyDocument, by, ratio, stats,
};
use redeliver::desk::to_json;
use serde::Serialize;

use super::context::{Context, Door};
use super::exit::Exit;
use super::filter::{FilterArgs, now};
use super::output::{Document, Entry, Format, Listing, length};

/// Success per attempt and per task, failure reasons, attempts and cost, by group
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver stats                                        # the last day, by type
  redeliver stats --by label.shop --type 'order.#' --since 7d
  redeliver stats --by attempt --label shop=s-17
  redeliver stats --by variant --since 2026-01-01 -o json

Counted are tasks that ended in the window, which is the last day unless --since says otherwise; cancelled and refused ones are
not. 1ST to 4TH+ are the shares (%) of tasks that succeeded on that attempt: a shop with most of its tasks under 3RD has a platform
that hiccups. FINAL is the share that succeeded at all; an end by cache or default is none. TRIES are attempts per success, EXTRA
the requests (%) beyond one per attempted task. The least extra is what independent failures cost at the same first-try rate: a task
needs 1 + f + f² + … + fⁿ attempts, f being the share that fails, n the most retries that a task has had (the geometric series); one
that is dead by a permanent error needs one.")]
pub struct Args {
    /// type, label.NAME, attempt, policy, variant or queue
    #[arg(long, value_name = "WHAT", default_value = "type", value_parser = by)]
    by: By,
    /// Show the largest groups and the most frequent failures only
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    filter: FilterArgs,
}

/// As many as fit beside a type on 80 columns; the least attempts stand in the summary and, for each group, in JSON.
const COLUMNS: [&str; 10] = ["group", "tasks", "1st", "2nd", "3rd", "4th+", "final", "tries", "extra", "dead"];
const ATTEMPT_COLUMNS: [&str; 6] = ["attempt", "attempts", "succeeded", "rate", "handler", "cost"];
const FAILURE_COLUMNS: [&str; 5] = ["attempts", "tasks", "class", "code", "http_status"];

/// Prints.
///
/// # Errors
/// When store or server do not answer.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let found = match context.door().await? {
        Door::Store(store) => {
            let filter = args.filter.to_filter(&[], store.now())?;
            context.bound("the store", stats(&*store, &args.by, &filter, limit)).await??
        }
        Door::Api(remote) => {
            let filter = FilterText::of(&args.filter.to_filter(&[], now())?);
            let query = Query { by: args.by.to_string(), limit: args.limit.min(1000), filter };
            context.bound("the server", remote.get(&["stats"], &query)).await??
        }
    };
    print(args, context, &found)
}

/// What a server is asked.
#[derive(Serialize)]
struct Query {
    #[serde(flatten)]
    filter: FilterText,
    by: String,
    limit: u32,
}

fn print(args: &Args, context: &Context, found: &Stats) -> anyhow::Result<Exit> {
    if found.total.tasks == 0 {
        context.say("no such task has ended in this window; --since makes it longer");
    }
    let (title, columns): (_, &[&'static str]) = match args.by {
        By::Group(_) => ("GROUPS (1st to final: % of tasks that succeeded so; tries: attempts per success)", &COLUMNS),
        By::Attempt => ("ATTEMPTS", &ATTEMPT_COLUMNS),
    };
    let mut listing = Listing::new(columns);
    for item in &found.items {
        listing.push(match item {
            StatsItem::Group(tally) => entry(tally),
            StatsItem::Attempts(tally) => attempt_entry(tally),
        });
    }
    if found.groups > found.items.len() {
        context.say(format!("{} more groups; --limit shows them", found.groups - found.items.len()));
    }
    // Lines for programs are those of one kind.
    if !matches!(context.printer.format(), Format::Table | Format::Json) {
        context.printer.list(&listing)?;
        return Ok(Exit::Done);
    }
    let mut tables = vec![(title, listing)];
    if !found.failures.is_empty() {
        let mut reasons = Listing::new(&FAILURE_COLUMNS);
        found.failures.iter().for_each(|failure| reasons.push(failure_entry(failure)));
        tables.push(("FAILURES", reasons));
    }
    context.printer.one(&Document { name: found.by.clone(), lines: lines(found), tables, json: to_json(found) })?;
    Ok(Exit::Done)
}

fn lines(found: &Stats) -> Vec<(&'static str, String)> {
    let total = &found.total;
    let until = found.until.clone().unwrap_or_else(|| "now".into());
    let mut lines = vec![
        ("ended", format!("{} to {until}", found.since.clone().unwrap_or_default())),
        ("tasks", format!("{}, {} % succeeded, {} dead", total.tasks, percent(total.success_rate), total.dead)),
        ("attempts", format!("{}, {} % succeeded", total.attempts, percent(total.attempt_success_rate))),
        (
            "extra",
            format!(
                "{} % requests; {} % is the least at {} % first-try success",
                percent(total.extra_request_rate),
                percent(total.least_attempts_per_task.map(|least| least - 1.0)),
                percent(total.first_try_rate)
            ),
        ),
        ("handlers", length(total.handler_ms)),
    ];
    if total.cost > 0.0 {
        lines.push(("cost", format!("{:.2}", total.cost)));
    }
    if total.degraded > 0 {
        let share = percent(total.degraded_rate);
        lines.push(("degraded", format!("{} ({share} %), {} by cache or default", total.degraded, total.fell_back)));
    }
    lines
}

/// `98.5`, `100`; `-` where there is nothing.
pub fn percent(share: Option<f64>) -> String {
    match share.map(|share| format!("{:.1}", share * 100.0)) {
        None => "-".into(),
        Some(text) if text == "100.0" => "100".into(),
        Some(text) => text,
    }
}

/// The group as people write it.
fn name_of(tally: &TallyDocument) -> String {
    let group = tally.group.as_deref().unwrap_or("(none)");
    tally.variant.as_ref().map_or_else(|| group.to_owned(), |variant| format!("{group} {variant}"))
}

fn entry(tally: &TallyDocument) -> Entry {
    let mut cells = vec![name_of(tally), tally.tasks.to_string()];
    // The keys are in this order: 1, 2, 3, 4+.
    cells.extend(tally.succeeded_on_attempt.values().map(|number| percent(ratio(*number, tally.tasks))));
    cells.extend([
        percent(tally.success_rate),
        tally.attempts_per_success.map_or_else(|| "-".into(), |tries| format!("{tries:.2}")),
        percent(tally.extra_request_rate),
        tally.dead.to_string(),
    ]);
    Entry { name: name_of(tally), cells, json: to_json(tally) }
}

fn attempt_entry(tally: &AttemptTallyDocument) -> Entry {
    let cells = vec![
        tally.attempt.to_string(),
        tally.attempts.to_string(),
        tally.succeeded.to_string(),
        percent(tally.success_rate),
        length(tally.handler_ms),
        format!("{:.2}", tally.cost),
    ];
    Entry { name: tally.attempt.to_string(), cells, json: to_json(tally) }
}

fn failure_entry(failure: &FailureTallyDocument) -> Entry {
    let status = failure.http_status.map(|status| status.to_string()).unwrap_or_default();
    let cells = vec![
        failure.attempts.to_string(),
        failure.tasks.to_string(),
        failure.class.clone(),
        failure.code.clone().unwrap_or_default(),
        status,
    ];
    Entry { name: failure.class.clone(), cells, json: to_json(failure) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redeliver::store::Tally;

    #[test]
    fn a_group_without_tasks_divides_by_nothing() {
        let cells = entry(&TallyDocument::of(&Tally::default())).cells;
        assert_eq!(cells[2..], ["-", "-", "-", "-", "-", "-", "-", "0"]);
        assert_eq!(
            (percent(Some(0.0)), percent(Some(1.0)), percent(Some(0.985))),
            ("0.0".into(), "100".into(), "98.5".into())
        );
    }
}
