//! Measures what is promised, one scenario after the other, and judges the promises.
//!
//! Every run has a store, a namespace on the broker and workers of its own, which are gone afterwards. Workers are processes that are
//! nothing but workers, so that neither the benchmark's bodies nor its producer count as theirs. Beside each run stands what the same
//! broker gives, just before and on the very same lane, to a producer and a consumer that do nothing.

mod crew;
mod flow;
mod ground;
mod hand;
mod marks;
mod render;
mod report;
mod rows;
mod seed;
mod sustained;
mod tally;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::config::Config;

pub use hand::work;
pub use render::markdown;
pub use report::{Bound, Figures, Judged, Machine, Measured, Promise, Report, Versions};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Tasks that succeed at their first attempt.
    FirstTry,
    /// Every task fails once and waits in a delay queue.
    FailOnce,
    /// All tasks fail together for a while; a limit bounds what comes back.
    Storm,
    /// Many tasks wait: what they cost a worker, and how fast those that are due are found.
    Waiting,
    /// Dead letters are replayed at a rate.
    Replay,
    /// What a task costs beside ever more rows in the store.
    Rows,
    /// Several processes on one store.
    Processes,
    /// A steady rate for a long time.
    Sustained,
}

impl Scenario {
    /// All of them, in the order in which they are run.
    pub const ALL: [Scenario; 8] = [
        Scenario::FirstTry,
        Scenario::FailOnce,
        Scenario::Storm,
        Scenario::Waiting,
        Scenario::Replay,
        Scenario::Rows,
        Scenario::Processes,
        Scenario::Sustained,
    ];

    /// The word on the command line and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Scenario::FirstTry => "first-try",
            Scenario::FailOnce => "fail-once",
            Scenario::Storm => "storm",
            Scenario::Waiting => "waiting",
            Scenario::Replay => "replay",
            Scenario::Rows => "rows",
            Scenario::Processes => "processes",
            Scenario::Sustained => "sustained",
        }
    }

    /// The scenario of that word.
    pub fn parse(word: &str) -> Option<Scenario> {
        Scenario::ALL.into_iter().find(|scenario| scenario.as_str() == word)
    }
}

/// A steady rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Tasks per second.
    pub per_s: u32,
    /// For so long.
    pub for_ms: u64,
}

/// How it is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Runs of each scenario; their medians are judged.
    pub runs: usize,
    /// Tasks of each run; `None`: what the scenario's promise speaks of.
    pub tasks: Option<usize>,
    /// Bytes of each payload.
    pub payload: usize,
    /// Attempts at once in one worker.
    pub concurrency: usize,
    /// Unacked deliveries per lane.
    pub prefetch: u16,
    /// How long a failed task waits.
    pub delay_ms: u64,
    /// How long the third party of the storm is dead.
    pub outage_ms: u64,
    /// Retries per second that the storm's limit lets through.
    pub limit_per_s: u32,
    /// Tasks that wait.
    pub waiting: usize,
    /// Letters per second that are replayed.
    pub replay_per_s: u32,
    /// Rows in the store, ascending.
    pub rows: Vec<usize>,
    /// Ids without order, of the rows and of the tasks beside them; otherwise ascending ones, as ours are.
    pub random_ids: bool,
    /// Numbers of processes.
    pub processes: Vec<usize>,
    /// The sustained rates.
    pub sustained: Vec<Load>,
}

impl Default for Settings {
    /// What the promises speak of.
    fn default() -> Self {
        Settings {
            runs: 3,
            tasks: None,
            payload: 100,
            concurrency: 64,
            prefetch: 256,
            delay_ms: 10_000,
            outage_ms: 30_000,
            limit_per_s: 1_000,
            waiting: 1_000_000,
            replay_per_s: 200,
            rows: vec![10_000, 100_000, 1_000_000, 5_000_000],
            random_ids: false,
            processes: vec![1, 2, 4],
            sustained: vec![Load { per_s: 2_000, for_ms: 600_000 }, Load { per_s: 500, for_ms: 1_800_000 }],
        }
    }
}

impl Settings {
    fn tasks_or(&self, usual: usize) -> usize {
        self.tasks.unwrap_or(usual)
    }
}

/// Where it is measured.
pub struct Site<'a> {
    /// Whose `[broker]` is used.
    pub base: &'a Config,
    /// Makes the client of a broker.
    pub open_broker: &'a (dyn Fn(&Config) -> anyhow::Result<Arc<dyn Broker>> + Sync),
    /// Where stores are put.
    pub folder: PathBuf,
    /// Starts a process that calls [`work`] with what it reads; its stdin and stdout are ours.
    pub worker: &'a (dyn Fn() -> tokio::process::Command + Sync),
    /// Where a worker of the last run leaves a record of each call of its handler: see `benches/compare`.
    pub marks: Option<PathBuf>,
    /// Gets a line now and then.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

/// Runs the scenarios. `keep` gets the report after each of them, so that a long night that breaks off has not been for nothing.
///
/// # Errors
/// When something cannot be started, a run stands still, or `keep` fails.
pub async fn run(
    site: &Site<'_>,
    scenarios: &[Scenario],
    settings: &Settings,
    keep: &mut (dyn FnMut(&Report) -> anyhow::Result<()> + Send),
) -> anyhow::Result<Report> {
    let mut report = Report {
        began_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        machine: Machine {
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        },
        versions: ground::versions(site).await?,
        settings: settings.clone(),
        scenarios: Vec::new(),
    };
    for scenario in scenarios {
        let name = scenario.as_str();
        let mut runs = Vec::new();
        for n in 1..=settings.runs.max(1) {
            (site.progress)(&format!("{name}: run {n} of {}", settings.runs.max(1)));
            let figures = measure(site, *scenario, settings).await.with_context(|| format!("{name}, run {n}"))?;
            (site.progress)(&format!("{name}: {}", serde_json::to_string(&figures)?));
            runs.push(figures);
        }
        let (about, promises) = promised(*scenario, settings);
        report.scenarios.push(Measured::of(*scenario, about, runs, &promises));
        keep(&report)?;
    }
    Ok(report)
}

async fn measure(site: &Site<'_>, scenario: Scenario, settings: &Settings) -> anyhow::Result<Figures> {
    match scenario {
        Scenario::FirstTry => flow::first_try(site, settings).await,
        Scenario::FailOnce => flow::fail_once(site, settings).await,
        Scenario::Storm => flow::storm(site, settings).await,
        Scenario::Waiting => waiting::run(site, settings).await,
        Scenario::Replay => flow::replay(site, settings).await,
        Scenario::Rows => rows::run(site, settings).await,
        Scenario::Processes => flow::processes(site, settings).await,
        Scenario::Sustained => sustained::run(site, settings).await,
    }
}

/// What a scenario does, for people, and what is promised of it.
fn promised(scenario: Scenario, settings: &Settings) -> (String, Vec<Promise>) {
    match scenario {
        Scenario::FirstTry => flow::first_try_promises(settings),
        Scenario::FailOnce => flow::fail_once_promises(settings),
        Scenario::Storm => flow::storm_promises(settings),
        Scenario::Waiting => waiting::promises(settings),
        Scenario::Replay => flow::replay_promises(settings),
        Scenario::Rows => rows::promises(settings),
        Scenario::Processes => flow::processes_promises(settings),
        Scenario::Sustained => sustained::promises(settings),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_known_by_the_word_that_its_report_has() {
        for scenario in Scenario::ALL {
            assert_eq!(Scenario::parse(scenario.as_str()), Some(scenario));
            assert_eq!(serde_json::to_value(scenario).expect("a word"), scenario.as_str());
        }
        assert_eq!(Scenario::parse("first_try"), None);
    }

    #[test]
    fn every_scenario_says_what_it_does() {
        for scenario in Scenario::ALL {
            let (about, promises) = promised(scenario, &Settings::default());
            assert!(about.ends_with('.'), "{about}");
            assert!(scenario == Scenario::Processes || !promises.is_empty(), "{scenario:?} promises nothing");
        }
    }
}
