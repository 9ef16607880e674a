//! `redeliver stats`: what the history says about types, shops, attempts and policies.

use redeliver::policy::least_attempts;
use redeliver::store::{AttemptTally, FailureTally, Filter, GroupBy, Store, Tally};
use redeliver::task::Millis;
use serde_json::{Value, json};

use super::context::Context;
use super::exit::Exit;
use super::filter::FilterArgs;
use super::output::{Document, Entry, Format, Listing, length, time, time_or_null};

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

/// What a line is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum By {
    Group(GroupBy, String),
    Attempt,
}

fn by(text: &str) -> Result<By, String> {
    let group = match text {
        "attempt" => return Ok(By::Attempt),
        "type" => GroupBy::Type,
        "policy" => GroupBy::Policy,
        "variant" => GroupBy::Variant,
        "queue" => GroupBy::Queue,
        _ => match text.strip_prefix("label.").filter(|name| !name.is_empty()) {
            Some(name) => GroupBy::Label(name.to_owned()),
            None => return Err("expected type, label.NAME, attempt, policy, variant or queue".into()),
        },
    };
    Ok(By::Group(group, text.to_owned()))
}

/// As many as fit beside a type on 80 columns; the least attempts stand in the summary and, for each group, in JSON.
const COLUMNS: [&str; 10] = ["group", "tasks", "1st", "2nd", "3rd", "4th+", "final", "tries", "extra", "dead"];
const ATTEMPT_COLUMNS: [&str; 6] = ["attempt", "attempts", "succeeded", "rate", "handler", "cost"];
const FAILURE_COLUMNS: [&str; 5] = ["attempts", "tasks", "class", "code", "http_status"];

/// The window when none is asked for.
const DAY_MS: Millis = 24 * 3_600_000;

/// Prints.
///
/// # Errors
/// When the store does not answer.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let store = context.store().await?;
    let mut filter = args.filter.to_filter(&[], store.now())?;
    filter.since = filter.since.or(Some(store.now().saturating_sub(DAY_MS)));
    context.bound("the store", print(args, context, &*store, &filter)).await?
}

async fn print(args: &Args, context: &Context, store: &dyn Store, filter: &Filter) -> anyhow::Result<Exit> {
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let group_by = match &args.by {
        By::Group(group_by, _) => group_by.clone(),
        By::Attempt => GroupBy::Type,
    };
    let tallies = store.tallies(&group_by, filter).await?;
    let total = sum(&tallies);
    if total.tasks == 0 {
        context.say("no such task has ended in this window; --since makes it longer");
    }
    let (title, listing) = match &args.by {
        By::Group(..) => {
            let mut listing = Listing::new(&COLUMNS);
            tallies.iter().take(most).for_each(|tally| listing.push(entry(tally)));
            if tallies.len() > most {
                context.say(format!("{} more groups; --limit shows them", tallies.len() - most));
            }
            ("GROUPS (1st to final: % of tasks that succeeded so; tries: attempts per success)", listing)
        }
        By::Attempt => {
            let mut listing = Listing::new(&ATTEMPT_COLUMNS);
            store.attempt_tallies(filter).await?.iter().for_each(|tally| listing.push(attempt_entry(tally)));
            ("ATTEMPTS", listing)
        }
    };
    // Lines for programs are those of one kind.
    if !matches!(context.printer.format(), Format::Table | Format::Json) {
        context.printer.list(&listing)?;
        return Ok(Exit::Done);
    }
    let failures = store.failure_tallies(filter, most).await?;
    let mut reasons = Listing::new(&FAILURE_COLUMNS);
    failures.iter().for_each(|failure| reasons.push(failure_entry(failure)));
    let by = match &args.by {
        By::Group(_, by) => by.as_str(),
        By::Attempt => "attempt",
    };
    let json = json!({
        "by": by,
        "since": time_or_null(filter.since),
        "until": time_or_null(filter.until),
        "items": listing.json(),
        "next": Value::Null,
        "total": tally_json(&total),
        "failures": reasons.json(),
    });
    let mut tables = vec![(title, listing)];
    if !failures.is_empty() {
        tables.push(("FAILURES", reasons));
    }
    context.printer.one(&Document { name: by.to_owned(), lines: lines(filter, &total), tables, json })?;
    Ok(Exit::Done)
}

fn lines(filter: &Filter, total: &Tally) -> Vec<(&'static str, String)> {
    let figures = Figures::of(total);
    let until = filter.until.map_or_else(|| "now".into(), time);
    let mut lines = vec![
        ("ended", format!("{} to {until}", filter.since.map(time).unwrap_or_default())),
        ("tasks", format!("{}, {} % succeeded, {} dead", total.tasks, percent(figures.success), total.dead)),
        ("attempts", format!("{}, {} % succeeded", total.attempts, percent(figures.attempt_success))),
        (
            "extra",
            format!(
                "{} % requests; {} % is the least at {} % first-try success",
                percent(figures.extra),
                percent(figures.least.map(|least| least - 1.0)),
                percent(figures.first_try)
            ),
        ),
        ("handlers", length(total.handler_ms)),
    ];
    if total.cost > 0.0 {
        lines.push(("cost", format!("{:.2}", total.cost)));
    }
    if total.degraded > 0 {
        let share = percent(figures.degraded);
        lines.push(("degraded", format!("{} ({share} %), {} by cache or default", total.degraded, total.fell_back)));
    }
    lines
}

/// Shares and ratios of a tally; `None` where there is nothing to divide by.
#[derive(Debug, Clone, Copy)]
struct Figures {
    success: Option<f64>,
    attempt_success: Option<f64>,
    first_try: Option<f64>,
    per_success: Option<f64>,
    extra: Option<f64>,
    least: Option<f64>,
    degraded: Option<f64>,
}

impl Figures {
    fn of(tally: &Tally) -> Figures {
        let first_try = ratio(tally.succeeded_on[0], tally.attempted);
        let permanent = ratio(tally.permanent, tally.attempted).unwrap_or(0.0);
        Figures {
            success: ratio(tally.succeeded, tally.tasks),
            attempt_success: ratio(tally.succeeded, tally.attempts),
            first_try,
            per_success: ratio(tally.attempts, tally.succeeded),
            extra: ratio(tally.attempts, tally.attempted).map(|attempts| attempts - 1.0),
            least: first_try.map(|first_try| least_attempts(first_try, permanent, tally.most_attempts - 1)),
            degraded: ratio(tally.degraded, tally.tasks),
        }
    }
}

/// `a / b`; `None` when there is nothing of `b`.
#[expect(clippy::cast_precision_loss, reason = "counts of tasks stay far below 2^53")]
pub fn ratio(a: i64, b: i64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

/// `98.5`, `100`; `-` where there is nothing.
pub fn percent(share: Option<f64>) -> String {
    match share.map(|share| format!("{:.1}", share * 100.0)) {
        None => "-".into(),
        Some(text) if text == "100.0" => "100".into(),
        Some(text) => text,
    }
}

fn sum(tallies: &[Tally]) -> Tally {
    let mut total = Tally::default();
    for tally in tallies {
        total.tasks += tally.tasks;
        total.attempted += tally.attempted;
        for (all, some) in total.succeeded_on.iter_mut().zip(tally.succeeded_on) {
            *all += some;
        }
        total.succeeded += tally.succeeded;
        total.fell_back += tally.fell_back;
        total.degraded += tally.degraded;
        total.dead += tally.dead;
        total.permanent += tally.permanent;
        total.attempts += tally.attempts;
        total.most_attempts = total.most_attempts.max(tally.most_attempts);
        total.cost += tally.cost;
        total.handler_ms += tally.handler_ms;
    }
    total
}

/// The group as people write it.
fn name_of(tally: &Tally) -> String {
    let group = tally.group.as_deref().unwrap_or("(none)");
    tally.variant.as_ref().map_or_else(|| group.to_owned(), |variant| format!("{group} {variant}"))
}

fn entry(tally: &Tally) -> Entry {
    let figures = Figures::of(tally);
    let mut cells = vec![name_of(tally), tally.tasks.to_string()];
    cells.extend(tally.succeeded_on.map(|number| percent(ratio(number, tally.tasks))));
    cells.extend([
        percent(figures.success),
        figures.per_success.map_or_else(|| "-".into(), |tries| format!("{tries:.2}")),
        percent(figures.extra),
        tally.dead.to_string(),
    ]);
    Entry { name: name_of(tally), cells, json: tally_json(tally) }
}

fn tally_json(tally: &Tally) -> Value {
    let figures = Figures::of(tally);
    json!({
        "group": tally.group,
        "variant": tally.variant,
        "tasks": tally.tasks,
        "attempted": tally.attempted,
        "succeeded": tally.succeeded,
        "succeeded_on_attempt": { "1": tally.succeeded_on[0], "2": tally.succeeded_on[1], "3": tally.succeeded_on[2], "4+": tally.succeeded_on[3] },
        "success_rate": figures.success,
        "first_try_rate": figures.first_try,
        "dead": tally.dead,
        "permanent": tally.permanent,
        "degraded": tally.degraded,
        "degraded_rate": figures.degraded,
        "fell_back": tally.fell_back,
        "attempts": tally.attempts,
        "attempt_success_rate": figures.attempt_success,
        "attempts_per_success": figures.per_success,
        "extra_request_rate": figures.extra,
        "attempts_per_task": figures.extra.map(|extra| extra + 1.0),
        "least_attempts_per_task": figures.least,
        "cost": tally.cost,
        "handler_ms": tally.handler_ms,
    })
}

fn attempt_entry(tally: &AttemptTally) -> Entry {
    let rate = ratio(tally.succeeded, tally.attempts);
    let cells = vec![
        tally.number.to_string(),
        tally.attempts.to_string(),
        tally.succeeded.to_string(),
        percent(rate),
        length(tally.handler_ms),
        format!("{:.2}", tally.cost),
    ];
    let json = json!({
        "attempt": tally.number,
        "attempts": tally.attempts,
        "succeeded": tally.succeeded,
        "success_rate": rate,
        "handler_ms": tally.handler_ms,
        "cost": tally.cost,
    });
    Entry { name: tally.number.to_string(), cells, json }
}

fn failure_entry(failure: &FailureTally) -> Entry {
    let status = failure.http_status.map(|status| status.to_string()).unwrap_or_default();
    let cells = vec![
        failure.attempts.to_string(),
        failure.tasks.to_string(),
        failure.class.clone(),
        failure.code.clone().unwrap_or_default(),
        status,
    ];
    let json = json!({
        "class": failure.class,
        "code": failure.code,
        "http_status": failure.http_status,
        "attempts": failure.attempts,
        "tasks": failure.tasks,
    });
    Entry { name: failure.class.clone(), cells, json }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_the_command_line_names_them() {
        assert_eq!(by("label.shop"), Ok(By::Group(GroupBy::Label("shop".into()), "label.shop".into())));
        assert_eq!(by("attempt"), Ok(By::Attempt));
        for bad in ["", "label.", "shop", "types"] {
            assert!(by(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_group_without_tasks_divides_by_nothing() {
        let cells = entry(&Tally::default()).cells;
        assert_eq!(cells[2..], ["-", "-", "-", "-", "-", "-", "-", "0"]);
        assert_eq!(
            (percent(Some(0.0)), percent(Some(1.0)), percent(Some(0.985))),
            ("0.0".into(), "100".into(), "98.5".into())
        );
    }
}
