//! Reports as Markdown, for the documentation. Pure.
//!
//! Scenarios are often measured one by one, each with the machine to itself, so several reports become one page.

use std::fmt::Write as _;

use super::report::{Bound, Figures, Judged, Measured, Report};

/// One page of these reports: what was promised first, then every figure.
pub fn markdown(reports: &[Report]) -> String {
    let mut page = String::new();
    let mut places: Vec<String> = Vec::new();
    for report in reports {
        let (machine, versions) = (&report.machine, &report.versions);
        let place = format!(
            "redeliver {}, {}, {}, on {} cores ({}), which broker, workers and the producer share.",
            versions.redeliver, versions.broker, versions.store, machine.cores, machine.system
        );
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let scenarios = || reports.iter().flat_map(|report| &report.scenarios);
    _ = writeln!(page, "{}\n", places.join("\n"));
    if scenarios().any(|measured| !measured.promises.is_empty()) {
        page.push_str("| scenario | promise | found | |\n|---|---|---|---|\n");
        for measured in scenarios() {
            measured.promises.iter().for_each(|judged| promise(&mut page, measured, judged));
        }
        page.push('\n');
    }
    scenarios().for_each(|measured| table(&mut page, measured));
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn promise(page: &mut String, measured: &Measured, judged: &Judged) {
    let bound = match judged.bound {
        Bound::AtLeast(least) => format!("at least {}", number(least)),
        Bound::AtMost(most) => format!("at most {}", number(most)),
    };
    let found = judged.value.map_or_else(|| "not measured".into(), number);
    let kept = if judged.met { "kept" } else { "**missed**" };
    _ = writeln!(
        page,
        "| {} | {}: `{}` {bound} | {found} | {kept} |",
        measured.scenario.as_str(),
        judged.says,
        judged.figure
    );
}

fn table(page: &mut String, measured: &Measured) {
    _ = writeln!(page, "### {}\n\n{}\n", measured.scenario.as_str(), measured.about);
    let many = measured.runs.len() > 1;
    page.push_str(if many { "| figure | median | runs |\n|---|---|---|\n" } else { "| figure | |\n|---|---|\n" });
    for name in measured.medians.names() {
        let found = |figures: &Figures| figures.get(name).map_or_else(|| "–".into(), number);
        _ = write!(page, "| `{name}` | {} |", found(&measured.medians));
        if many {
            let runs: Vec<String> = measured.runs.iter().map(found).collect();
            _ = write!(page, " {} |", runs.join(" · "));
        }
        page.push('\n');
    }
    page.push('\n');
}

/// As many places as say something, and thousands apart.
fn number(value: f64) -> String {
    let places = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    let text = if places > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    let mut grouped = String::from(sign);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::super::report::{Machine, Promise, Versions};
    use super::super::{Scenario, Settings};
    use super::*;

    #[test]
    fn numbers_are_grouped_and_have_no_more_places_than_say_something() {
        for (value, text) in [
            (23_456.7, "23,457"),
            (1_000_000.0, "1,000,000"),
            (123.4, "123"),
            (12.34, "12.3"),
            (40.0, "40"),
            (1.5, "1.5"),
            (0.705, "0.705"),
            (0.0, "0"),
            (-1234.0, "-1,234"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    fn report(scenario: Scenario, rates: &[f64]) -> Report {
        let runs = rates.iter().map(|rate| {
            let mut figures = Figures::default();
            figures.set("tasks_per_s", *rate);
            figures
        });
        let promise = Promise::new("tasks_per_s", Bound::AtLeast(1_000.0), "fast");
        Report {
            began_at: String::new(),
            machine: Machine { cores: 2, system: "linux x86_64".into() },
            versions: Versions { redeliver: "1.0.0".into(), broker: "RabbitMQ 4.0.5".into(), store: "SQLite 3".into() },
            settings: Settings::default(),
            scenarios: vec![Measured::of(scenario, "What was done.".into(), runs.collect(), &[promise])],
        }
    }

    #[test]
    fn reports_of_one_place_become_one_page_that_says_what_was_missed() {
        let reports = [report(Scenario::FirstTry, &[2_000.0, 3_000.0, 2_500.0]), report(Scenario::Storm, &[900.0])];
        let expected = "\
redeliver 1.0.0, RabbitMQ 4.0.5, SQLite 3, on 2 cores (linux x86_64), which broker, workers and the producer share.

| scenario | promise | found | |
|---|---|---|---|
| first-try | fast: `tasks_per_s` at least 1,000 | 2,500 | kept |
| storm | fast: `tasks_per_s` at least 1,000 | 900 | **missed** |

### first-try

What was done.

| figure | median | runs |
|---|---|---|
| `tasks_per_s` | 2,500 | 2,000 · 3,000 · 2,500 |

### storm

What was done.

| figure | |
|---|---|
| `tasks_per_s` | 900 |
";
        assert_eq!(markdown(&reports), expected);
    }
}
