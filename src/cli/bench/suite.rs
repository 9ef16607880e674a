//! `redeliver bench --scenario …`: what is promised, measured and judged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use redeliver::bench::suite::{self, Load, Report, Scenario, Settings, Site};
use redeliver::config::{parse_duration, parse_rate};

use super::super::Globals;
use super::super::context::{Context, open_broker};
use super::super::exit::{self, Exit};
use super::super::output::{Entry, Listing};
use super::super::positive_duration;
use super::super::scratch::Scratch;

/// What only scenarios understand.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Scenarios")]
pub struct SuiteArgs {
    /// Measure these instead, one after the other; `all` of them
    #[arg(long = "scenario", value_name = "NAME", value_delimiter = ',', value_parser = scenarios, conflicts_with_all = ["store", "gates", "fail_once", "observed"])]
    scenarios: Vec<Chosen>,
    /// Runs of each; medians are judged
    #[arg(long, value_name = "N", default_value_t = 3, requires = "scenarios", value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Write everything that was found to this file, as JSON, after each scenario
    #[arg(long, value_name = "FILE", requires = "scenarios")]
    report: Option<PathBuf>,
    /// Where every call of the last run's handler leaves 16 bytes, for benches/compare: u32 task, u32 attempt, f64 seconds of the monotonic
    /// clock, all little-endian
    #[arg(long, value_name = "FILE", requires = "scenarios")]
    marks: Option<PathBuf>,
    /// storm: how long the third party is dead
    #[arg(long, value_name = "DURATION", default_value = "30s", requires = "scenarios", value_parser = positive_duration)]
    outage: Duration,
    /// storm: retries that its limit lets through
    #[arg(long, value_name = "RATE", default_value = "1000/s", requires = "scenarios", value_parser = per_second)]
    limit: u32,
    /// waiting: tasks that wait
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "scenarios", value_parser = clap::value_parser!(u32).range(1_000..))]
    waiting: u32,
    /// replay: how fast
    #[arg(long, value_name = "RATE", default_value = "200/s", requires = "scenarios", value_parser = per_second)]
    replay_rate: u32,
    /// rows: so many in the store, from few to many
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "10000,100000,1000000,5000000",
        requires = "scenarios"
    )]
    rows: Vec<usize>,
    /// rows: ids without order, which every index dislikes
    #[arg(long, requires = "scenarios")]
    random_ids: bool,
    /// processes: so many on one store
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4", requires = "scenarios", value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: Vec<u16>,
    /// sustained: rates, and for how long each
    #[arg(
        long,
        value_name = "RATE:DURATION",
        value_delimiter = ',',
        default_value = "2000/s:10m,500/s:30m",
        requires = "scenarios",
        value_parser = load
    )]
    sustained: Vec<Load>,
    /// Print these reports as one page of Markdown, and measure nothing
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "scenarios")]
    render: Vec<PathBuf>,
    /// Be a worker that is measured; what to do comes on stdin
    #[arg(long, hide = true, conflicts_with_all = ["scenarios", "render"])]
    worker: bool,
}

/// A word of `--scenario`.
#[derive(Debug, Clone)]
enum Chosen {
    All,
    One(Scenario),
}

fn scenarios(word: &str) -> Result<Chosen, String> {
    if word == "all" {
        return Ok(Chosen::All);
    }
    let known = || Scenario::ALL.map(Scenario::as_str).join(", ");
    Scenario::parse(word).map(Chosen::One).ok_or_else(|| format!("expected all or one of: {}", known()))
}

fn per_second(text: &str) -> Result<u32, String> {
    let refused = || format!("expected a rate per second such as 200/s, found {text:?}");
    let rate = parse_rate(text).map_err(|_| refused())?;
    let per_s = Some(rate.count).filter(|_| rate.per_ms == 1_000).ok_or_else(refused)?;
    u32::try_from(per_s).ok().filter(|per_s| *per_s <= 1_000_000).ok_or_else(refused)
}

fn load(text: &str) -> Result<Load, String> {
    let (rate, length) =
        text.split_once(':').ok_or_else(|| format!("expected a rate and a time such as 500/s:30m, found {text:?}"))?;
    let for_ms = u64::try_from(parse_duration(length)?.as_millis()).map_err(|_| "that is too long".to_owned())?;
    // Memory and file are compared by thirds of the time, with a sample a second.
    if for_ms < 6_000 {
        return Err(format!("expected at least 6s, found {length:?}"));
    }
    Ok(Load { per_s: per_second(rate)?, for_ms })
}

impl SuiteArgs {
    /// Whether anything but the plain run is asked for.
    pub fn is_wanted(&self) -> bool {
        self.worker || !self.scenarios.is_empty() || !self.render.is_empty()
    }

    /// The scenarios, each once, in the suite's order.
    fn chosen(&self) -> Vec<Scenario> {
        let wanted = |scenario: &Scenario| {
            self.scenarios.iter().any(|chosen| match chosen {
                Chosen::All => true,
                Chosen::One(one) => one == scenario,
            })
        };
        Scenario::ALL.into_iter().filter(wanted).collect()
    }
}

fn settings(args: &super::Args) -> anyhow::Result<Settings> {
    let (suite, usual) = (&args.suite, Settings::default());
    let mut rows = suite.rows.clone();
    rows.sort_unstable();
    Ok(Settings {
        runs: suite.runs.into(),
        tasks: args.tasks.map(usize::try_from).transpose()?,
        concurrency: args.concurrency.into(),
        delay_ms: args.delay.map_or(Ok(usual.delay_ms), |delay| u64::try_from(delay.as_millis()))?,
        outage_ms: u64::try_from(suite.outage.as_millis())?,
        limit_per_s: suite.limit,
        waiting: usize::try_from(suite.waiting)?,
        replay_per_s: suite.replay_rate,
        rows,
        random_ids: suite.random_ids,
        processes: suite.processes.iter().copied().map(usize::from).collect(),
        sustained: suite.sustained.clone(),
        ..usual
    })
}

/// Measures, renders, or works for another process that measures.
///
/// # Errors
/// When the broker does not answer, a run stands still, or a file cannot be read or written.
pub async fn run(args: &super::Args, globals: &Globals, context: &Context) -> anyhow::Result<Exit> {
    let suite = &args.suite;
    if suite.worker {
        suite::work(context.config(), &open_broker).await?;
        return Ok(Exit::Done);
    }
    if !suite.render.is_empty() {
        let reports = suite.render.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<Report>>>()?;
        print!("{}", suite::markdown(&reports));
        return Ok(Exit::Done);
    }
    if context.config().broker.is_embedded() {
        return Err(exit::error(Exit::Usage, "bench measures RabbitMQ; set broker.url to an amqp:// URL"));
    }
    let settings = settings(args)?;
    let folder = Scratch::new("bench", args.dir.as_deref())?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let worker = || {
        let mut command = tokio::process::Command::new(&program);
        command.args(["bench", "--worker"]);
        command.envs(globals.config.iter().map(|file| ("REDELIVER_CONFIG", file)));
        command
    };
    let site = Site {
        base: context.config(),
        open_broker: &open_broker,
        folder: folder.path.clone(),
        worker: &worker,
        marks: suite.marks.clone(),
        progress: &|text| context.say(text),
    };
    let mut keep = |report: &Report| suite.report.as_deref().map_or(Ok(()), |file| write(file, report));
    let report = suite::run(&site, &suite.chosen(), &settings, &mut keep).await?;
    print(context, &report)?;
    Ok(Exit::Done)
}

fn read(file: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report of bench", file.display()))
}

fn write(file: &Path, report: &Report) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// A promise a line; as JSON the whole report.
fn print(context: &Context, report: &Report) -> anyhow::Result<()> {
    use super::super::output::{Document, Format};
    if context.printer.format() == Format::Json {
        let json = serde_json::to_value(report)?;
        let document = Document { name: report.began_at.clone(), lines: Vec::new(), tables: Vec::new(), json };
        return Ok(context.printer.one(&document)?);
    }
    let mut listing = Listing::new(&["scenario", "figure", "found", "promised", ""]);
    for measured in &report.scenarios {
        for judged in &measured.promises {
            let cells = vec![
                measured.scenario.as_str().to_owned(),
                judged.figure.clone(),
                judged.value.map_or_else(|| "-".to_owned(), |value| value.to_string()),
                match judged.bound {
                    suite::Bound::AtLeast(least) => format!("at least {least}"),
                    suite::Bound::AtMost(most) => format!("at most {most}"),
                },
                if judged.met { "kept" } else { "missed" }.to_owned(),
            ];
            listing.push(Entry { name: judged.figure.clone(), cells, json: serde_json::to_value(judged)? });
        }
    }
    Ok(context.printer.list(&listing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_rate_per_second_and_a_time() {
        assert_eq!(load("500/s:30m"), Ok(Load { per_s: 500, for_ms: 1_800_000 }));
        for bad in ["500/s", "500:30m", "500/min:30m", "500/s:5s", "0/s:1m", "500/s:", "2000000/s:1m"] {
            assert!(load(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_scenario_that_is_not_known_is_answered_with_those_that_are() {
        let refused = scenarios("sustain").expect_err("no such scenario");
        assert!(refused.contains("sustained") && refused.contains("first-try"), "{refused}");
    }
}
