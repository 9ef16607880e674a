//! What would our policies do to a third party that fails? Answered in virtual time, in seconds, before anybody finds out in production.
//!
//! The rules are production's own: `task`, `policy` and `gate` are pure functions over explicit time, so the simulator runs the same ones
//! and reimplements no decision about a retry. What is modelled is the third party ([`ThirdParty`]) and the arrivals; what is left out are
//! broker and store, which are taken to work. It opens no socket and no file, reads no clock, and the same seed gives the same run.

mod chart;
mod engine;
mod held;
mod random;
mod record;
mod scenario;
mod service;
mod svg;

pub use chart::{Paint, chart};
pub use record::{LimitSeen, Run, VariantSeen};
pub use scenario::{
    Arrivals, BUILT_IN, BuiltIn, Contender, Hiccups, LabelValues, Phase, RateLimit, Scenario, Stretch, ThirdParty,
    Trouble, class_of,
};
pub use svg::svg;

use serde::Serialize;

use crate::config::show_duration;
use crate::task::Millis;

/// All runs of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// What it is about.
    pub title: String,
    /// The seed: with it the runs can be had again.
    pub seed: u64,
    /// When the outage began and ended, from the beginning of the run.
    pub outage_ms: Option<(Millis, Millis)>,
    /// One for each contender; the first is ours.
    pub runs: Vec<Run>,
    /// Ours beside each other one.
    pub beside: Vec<Beside>,
    /// What the figures say, for people.
    pub says: Vec<String>,
}

/// Ours beside another contender.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Beside {
    /// The other one.
    pub name: String,
    /// Calls that it made and ours did not.
    pub calls_saved: i64,
    /// How many times faster ours recovered. Of one that never recovered it is at least that, counted to the end of its run.
    pub recovery_times_faster: Option<f64>,
    /// By how many points more of our tasks succeeded.
    pub success_points: f64,
}

/// Runs every contender of the scenario, one after the other.
pub fn run(scenario: &Scenario, seed: u64) -> Report {
    let runs: Vec<Run> = scenario.contenders.iter().map(|contender| engine::run(scenario, contender, seed)).collect();
    let outage_ms = scenario.third_party.outage();
    let beside: Vec<Beside> = match runs.split_first() {
        Some((ours, others)) => others.iter().map(|other| beside(ours, other, outage_ms)).collect(),
        None => Vec::new(),
    };
    let says = says(&runs, &beside);
    Report { scenario: scenario.name.clone(), title: scenario.title.clone(), seed, outage_ms, runs, beside, says }
}

#[expect(clippy::cast_precision_loss, reason = "counts and times of a run are far below 2^53")]
fn beside(ours: &Run, other: &Run, outage_ms: Option<(Millis, Millis)>) -> Beside {
    let ended = outage_ms.map(|(_, until)| other.attempts_by_s.len() as f64 * 1000.0 - until as f64);
    let recovery = ours.recovery_ms.zip(other.recovery_ms.map(|ms| ms as f64).or(ended));
    let calls = |run: &Run| i64::try_from(run.attempts).unwrap_or(i64::MAX);
    Beside {
        name: other.name.clone(),
        calls_saved: calls(other) - calls(ours),
        recovery_times_faster: recovery.map(|(ours, other)| other / ours.max(1) as f64),
        success_points: 100.0 * (ours.final_success - other.final_success),
    }
}

/// A few plain sentences.
fn says(runs: &[Run], beside: &[Beside]) -> Vec<String> {
    let mut says = Vec::new();
    let Some((ours, others)) = runs.split_first() else { return says };
    for (other, beside) in others.iter().zip(beside) {
        if let (Some(ms), Some(times)) = (ours.recovery_ms, beside.recovery_times_faster) {
            let theirs = other.recovery_ms.map_or_else(|| "never in this run".to_owned(), length);
            let at_least = if other.recovery_ms.is_none() { "at least " } else { "" };
            says.push(format!(
                "{} recovers in {}, {} {theirs}: {at_least}{times:.1} times faster",
                ours.name,
                length(ms),
                other.name
            ));
        }
        let calls = beside.calls_saved;
        let (more, who) = if calls >= 0 { ("fewer", calls) } else { ("more", -calls) };
        says.push(format!(
            "{} makes {who} {more} calls than {}; success {:+.1} points",
            ours.name, other.name, beside.success_points
        ));
    }
    for run in runs {
        says.extend(run.comparison.as_ref().map(|comparison| format!("{}: {comparison}", run.name)));
    }
    says
}

/// `3m12s`; whole seconds from ten seconds on.
pub fn length(ms: Millis) -> String {
    let ms = ms.max(0).unsigned_abs();
    let ms = if ms >= 10_000 { ms / 1000 * 1000 } else { ms };
    show_duration(std::time::Duration::from_millis(ms))
}
