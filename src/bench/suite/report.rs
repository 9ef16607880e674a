//! What a run of the suite comes to: the figures of each run, their medians, and what was promised of them. Pure.
//!
//! A promise about a figure that was not measured is missed, never met: silence is no success.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Scenario, Settings};

/// Named numbers of one run, in the order in which they were set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(Map<String, Value>);

impl Figures {
    /// Sets a figure, rounded to three places. What is no number (nothing was there to divide by) is left out.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        if value.is_finite() {
            self.0.insert(name.into(), ((value * 1000.0).round() / 1000.0).into());
        }
    }

    /// A figure.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Which side of a number a figure must be on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Not less.
    AtLeast(f64),
    /// Not more.
    AtMost(f64),
}

/// What is promised of a figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Promise {
    /// For people.
    pub says: String,
    /// Which.
    pub figure: String,
    /// Where it must lie.
    pub bound: Bound,
}

impl Promise {
    /// A promise.
    pub fn new(figure: impl Into<String>, bound: Bound, says: impl Into<String>) -> Promise {
        Promise { says: says.into(), figure: figure.into(), bound }
    }

    /// What became of it.
    pub fn judge(&self, medians: &Figures) -> Judged {
        let value = medians.get(&self.figure);
        let met = value.is_some_and(|value| match self.bound {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        });
        Judged { says: self.says.clone(), figure: self.figure.clone(), bound: self.bound, value, met }
    }
}

/// A promise and what was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// For people.
    pub says: String,
    /// Which figure it is about.
    pub figure: String,
    /// Where it must lie.
    pub bound: Bound,
    /// The median of its runs; `None`: it was not measured.
    pub value: Option<f64>,
    /// Whether it is kept.
    pub met: bool,
}

/// A scenario's runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Which.
    pub scenario: Scenario,
    /// What was done, for people.
    pub about: String,
    /// The figures of each run.
    pub runs: Vec<Figures>,
    /// The median of each figure.
    pub medians: Figures,
    /// What was promised.
    pub promises: Vec<Judged>,
}

impl Measured {
    /// Takes the medians and judges the promises.
    pub fn of(scenario: Scenario, about: String, runs: Vec<Figures>, promises: &[Promise]) -> Measured {
        let medians = medians(&runs);
        let promises = promises.iter().map(|promise| promise.judge(&medians)).collect();
        Measured { scenario, about, runs, medians, promises }
    }
}

/// Where it was measured. Nothing that names a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors that the program may use.
    pub cores: usize,
    /// Operating system and processor family.
    pub system: String,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// This program.
    pub redeliver: String,
    /// The broker, with its version.
    pub broker: String,
    /// The store's engine, with its version.
    pub store: String,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When it was begun, RFC 3339.
    pub began_at: String,
    /// Where.
    pub machine: Machine,
    /// What.
    pub versions: Versions,
    /// How.
    pub settings: Settings,
    /// The scenarios, in the order in which they were run.
    pub scenarios: Vec<Measured>,
}

/// The median of each figure over the runs that have it; of an even number the mean of the two in the middle.
pub fn medians(runs: &[Figures]) -> Figures {
    let mut medians = Figures::default();
    for name in runs.iter().flat_map(Figures::names) {
        let mut values: Vec<f64> = runs.iter().filter_map(|run| run.get(name)).collect();
        values.sort_by(f64::total_cmp);
        let upper = values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
        let lower = values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN);
        medians.set(name, f64::midpoint(lower, upper));
    }
    medians
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(named: &[(&str, f64)]) -> Figures {
        let mut figures = Figures::default();
        named.iter().for_each(|(name, value)| figures.set(*name, *value));
        figures
    }

    #[test]
    fn a_median_is_the_middle_value_or_the_mean_of_the_two_in_the_middle() {
        let runs = [figures(&[("a", 9.0), ("b", 1.0)]), figures(&[("a", 1.0), ("b", 2.0)]), figures(&[("a", 5.0)])];
        assert_eq!(medians(&runs), figures(&[("a", 5.0), ("b", 1.5)]));
        assert_eq!(medians(&[]), Figures::default());
    }

    #[test]
    fn a_figure_that_is_no_number_is_left_out() {
        assert_eq!(figures(&[("a", f64::NAN), ("b", f64::INFINITY), ("c", 0.12345)]), figures(&[("c", 0.123)]));
    }

    #[test]
    fn a_promise_holds_at_its_bound_and_is_missed_beyond_it_or_without_a_figure() {
        let found = figures(&[("ratio", 0.7), ("p99_ms", 500.0)]);
        for (figure, bound, met) in [
            ("ratio", Bound::AtLeast(0.7), true),
            ("ratio", Bound::AtLeast(0.701), false),
            ("p99_ms", Bound::AtMost(500.0), true),
            ("p99_ms", Bound::AtMost(499.0), false),
            ("unknown", Bound::AtMost(1.0), false),
        ] {
            assert_eq!(Promise::new(figure, bound, "").judge(&found).met, met, "{figure} {bound:?}");
        }
    }

    #[test]
    fn a_report_reads_back_as_it_was_written() {
        let promise = Promise::new("ratio", Bound::AtLeast(0.7), "fast enough");
        let runs = vec![figures(&[("ratio", 0.8)])];
        let report = Report {
            began_at: "2026-01-01T00:00:00Z".into(),
            machine: Machine { cores: 2, system: "linux x86_64".into() },
            versions: Versions { redeliver: "0".into(), broker: "RabbitMQ 4".into(), store: "SQLite 3".into() },
            settings: Settings::default(),
            scenarios: vec![Measured::of(Scenario::FirstTry, "what".into(), runs, &[promise])],
        };
        let text = serde_json::to_string(&report).expect("it can be written");
        assert_eq!(serde_json::from_str::<Report>(&text).expect("it can be read"), report);
        assert!(report.scenarios[0].promises[0].met);
    }
}
