//! `redeliver simulate`: policies against a third party that fails, in virtual time.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use redeliver::config::{ConfigError, read_scenario};
use redeliver::simulate::{self, BUILT_IN, BuiltIn, Paint, Report, Run, Scenario, length};
use serde_json::json;

use super::Globals;
use super::exit::{self, Exit};
use super::output::{Document, Entry, Format, Listing, Printer, clean};

/// Try policies against an outage in virtual time: success, calls, time to recover, chart
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver simulate storm
  redeliver simulate storm --svg storm.svg
  redeliver simulate day -o json | jq '.runs[] | {name, attempts_per_task, final_success}'
  redeliver simulate storm --print > mine.toml && redeliver simulate mine.toml

Scenarios: storm, day, rate-limited, dead-platform, ab-shipping, ab-listing, or a file. Nothing is called and nothing is stored.")]
pub struct Args {
    /// A scenario that comes with the program, or a TOML file
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Other luck: the same seed gives the same run [default: the scenario's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the chart as a picture too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the scenario's file instead of running it, to be changed
    #[arg(long, conflicts_with = "svg")]
    print: bool,
}

/// Simulates.
///
/// # Errors
/// [`Exit::Usage`] for a scenario that is not there or says what cannot be meant.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<Exit> {
    let (text, path) = find(&args.scenario)?;
    if args.print {
        write!(std::io::stdout().lock(), "{text}")?;
        return Ok(Exit::Done);
    }
    let name = Path::new(&args.scenario).file_stem().map_or_else(|| "scenario".into(), |stem| stem.to_string_lossy());
    let scenario: Scenario = read_scenario(&name, &path, &text)?;
    let report = simulate::run(&scenario, args.seed.unwrap_or(scenario.seed));
    if let Some(file) = &args.svg {
        std::fs::write(file, simulate::svg(&report))
            .map_err(|error| exit::error(Exit::Failed, format!("--svg {}: {error}", file.display())))?;
    }
    let printer = Printer::new(globals.output, globals.color);
    match printer.format() {
        Format::Json | Format::Jsonl => {
            let json = json!(report);
            printer.one(&Document { name: report.scenario.clone(), lines: Vec::new(), tables: Vec::new(), json })?;
        }
        Format::Table => {
            let paint = if printer.color() { Paint::Colours } else { Paint::Plain };
            write!(std::io::stdout().lock(), "{}", for_people(&report, paint))?;
        }
        Format::Csv | Format::Name | Format::Tsv => printer.list(&listing(&report))?,
    }
    Ok(Exit::Done)
}

/// The text of a scenario, and how error texts name it. A file of the name of a built-in one is reached as `./storm`.
fn find(scenario: &str) -> anyhow::Result<(String, String)> {
    if let Some(built_in) = BuiltIn::find(scenario) {
        return Ok((built_in.text.to_owned(), format!("{}.toml", built_in.name)));
    }
    let path = Path::new(scenario);
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((text, scenario.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let known = BUILT_IN.map(|built_in| built_in.name).join(", ");
            let text = format!("there is no scenario and no file {scenario:?}; scenarios: {known}");
            Err(exit::error(Exit::Usage, text))
        }
        Err(error) => Err(ConfigError::Unreadable { path: path.to_owned(), reason: error.to_string() }.into()),
    }
}

/// What is shown of a run: a figure's name and how to say it.
type Figure = (&'static str, fn(&Run) -> String);

const FIGURES: [Figure; 13] = [
    ("tasks", |run| run.tasks.to_string()),
    ("succeeded", |run| percent(run.final_success)),
    ("at the first try", |run| percent(run.first_try_success)),
    ("unfinished", |run| run.unfinished.to_string()),
    ("calls", |run| run.attempts.to_string()),
    ("calls per task", |run| format!("{:.3}", run.attempts_per_task)),
    ("arithmetic minimum", |run| format!("{:.3}", run.minimum_per_task)),
    ("most calls in 1 s", |run| run.peak_per_s.to_string()),
    ("most retries in 1 min", |run| run.peak_retries_per_min.to_string()),
    ("served for nobody", |run| run.thrown_away.to_string()),
    ("recovered after", |run| run.recovery_ms.map_or_else(|| "–".into(), length)),
    ("all done after", |run| run.done_at_ms.map_or_else(|| "–".into(), length)),
    ("mean time to success", |run| run.mean_time_to_success_ms.map_or_else(|| "–".into(), length)),
];

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Figures line by line, a column for each contender; then the chart, then sentences.
fn for_people(report: &Report, paint: Paint) -> String {
    let mut out = format!("{}: {}\n\n", clean(&report.scenario), clean(&report.title));
    let header = std::iter::once(String::new()).chain(report.runs.iter().map(|run| clean(&run.name))).collect();
    let mut table: Vec<Vec<String>> = vec![header];
    for (name, say) in FIGURES {
        table.push(std::iter::once(name.to_owned()).chain(report.runs.iter().map(|run| clean(&say(run)))).collect());
    }
    let reasons: BTreeSet<&str> = report.runs.iter().flat_map(|run| run.dead.keys().copied()).collect();
    for reason in reasons {
        let of = |run: &Run| run.dead.get(reason).copied().unwrap_or(0).to_string();
        table.push(std::iter::once(format!("dead: {reason}")).chain(report.runs.iter().map(of)).collect());
    }
    for row in &table {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let widest = table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            line.push_str(&format!("{cell:<widest$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.push('\n');
    out.push_str(&simulate::chart(report, paint));
    for run in &report.runs {
        for limit in &run.limits {
            let kept = if limit.most > limit.allowed { "EXCEEDED" } else { "kept" };
            let (run, name) = (clean(&run.name), clean(&limit.name));
            out.push_str(&format!(
                "\n{run}: limit {name:?}, {}: {kept}, at most {} in a window",
                limit.rate, limit.most
            ));
        }
    }
    for sentence in &report.says {
        out.push_str(&format!("\n{}", clean(sentence)));
    }
    out.push('\n');
    out
}

/// One line for each contender.
fn listing(report: &Report) -> Listing {
    let columns = [
        "contender",
        "tasks",
        "succeeded",
        "dead",
        "unfinished",
        "attempts",
        "attempts_per_task",
        "minimum_per_task",
        "first_try_success",
        "final_success",
        "peak_per_s",
        "recovery_ms",
        "limit_exceeded",
    ];
    let mut listing = Listing::new(&columns);
    for run in &report.runs {
        let cells = vec![
            run.name.clone(),
            run.tasks.to_string(),
            run.succeeded.to_string(),
            run.dead.values().sum::<u64>().to_string(),
            run.unfinished.to_string(),
            run.attempts.to_string(),
            format!("{:.4}", run.attempts_per_task),
            format!("{:.4}", run.minimum_per_task),
            format!("{:.4}", run.first_try_success),
            format!("{:.4}", run.final_success),
            run.peak_per_s.to_string(),
            run.recovery_ms.map(|ms| ms.to_string()).unwrap_or_default(),
            run.limit_exceeded.to_string(),
        ];
        listing.push(Entry { name: run.name.clone(), cells, json: json!(run) });
    }
    listing
}
