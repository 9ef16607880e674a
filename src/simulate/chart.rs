//! Calls per second over time as text: one strip per contender, all on one scale, so that they are compared at a glance. Fits 80 columns
//! and says with its lines what it says with colours.

use super::{Report, Run};

/// Columns of the plot, and rows of each strip.
const WIDTH: usize = 66;
const HEIGHT: usize = 6;
const LABEL: usize = 8;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Whether to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// Nothing but characters.
    Plain,
    /// ANSI colours: what the third party can serve in green, what is beyond in red.
    Colours,
}

/// The means of calls per second in `columns` equal parts of the first `seconds`, as far as the run went.
#[expect(clippy::cast_precision_loss, reason = "seconds of a run are far below 2^53")]
pub(super) fn columns(run: &Run, seconds: usize, columns: usize) -> Vec<f64> {
    let part = |column: usize| {
        let (from, to) =
            (column * seconds / columns, ((column + 1) * seconds / columns).max(column * seconds / columns + 1));
        let calls = run.attempts_by_s.get(from..to.min(run.attempts_by_s.len())).unwrap_or_default();
        calls.iter().map(|calls| f64::from(*calls)).sum::<f64>() / (to - from) as f64
    };
    (0..columns).map(part).collect()
}

/// The longest run in seconds.
pub(super) fn seconds(report: &Report) -> usize {
    report.runs.iter().map(|run| run.attempts_by_s.len()).max().unwrap_or(0).max(1)
}

/// The chart.
pub fn chart(report: &Report, paint: Paint) -> String {
    let seconds = seconds(report);
    let strips: Vec<(&Run, Vec<f64>)> = report.runs.iter().map(|run| (run, columns(run, seconds, WIDTH))).collect();
    let peak = strips.iter().flat_map(|(_, values)| values).fold(0.0_f64, |peak, value| peak.max(*value));
    // A capacity far above everything would leave nothing to be seen.
    let capacity = report.runs.first().map_or(0.0, |run| run.capacity_per_s);
    let shown = capacity <= peak * 4.0;
    let top = if shown { peak.max(capacity) } else { peak }.max(0.001);
    let mut out = String::new();
    for (run, values) in &strips {
        // Names are the user's and may be long.
        let name: String = run.name.chars().filter(|c| !c.is_control()).take(60).collect();
        out.push_str(&format!("{name}: calls/s\n"));
        for row in (0..HEIGHT).rev() {
            let line = shown && row_of(capacity, top) == row;
            let label = match row {
                _ if line => format!("{} ┤", number(capacity)),
                0 => "0 ┤".to_owned(),
                row if row == HEIGHT - 1 => format!("{} ┤", number(top)),
                _ => "│".to_owned(),
            };
            out.push_str(&format!("{label:>LABEL$}"));
            out.push_str(&cells(values, row, top, line, shown.then_some(capacity), paint));
            out.push('\n');
        }
    }
    out.push_str(&axis(report, seconds));
    let line = if shown {
        format!("─ what the third party can serve: {}/s", number(capacity))
    } else {
        format!("the third party can serve {}/s, far above this chart", number(capacity))
    };
    let outage = if report.outage_ms.is_some() { "   ▒ outage" } else { "" };
    out.push_str(&format!("{:LABEL$}{line}{outage}\n", ""));
    out
}

/// One row of a strip.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to 8 eighths"
)]
fn cells(values: &[f64], row: usize, top: f64, line: bool, capacity: Option<f64>, paint: Paint) -> String {
    let mut out = String::new();
    for value in values {
        let height = value / top * HEIGHT as f64 - row as f64;
        // What is there at all is seen, on the lowest row.
        let least = if row == 0 && *value > 0.0 { 1 } else { 0 };
        let eighths = ((height * 8.0).round().clamp(0.0, 8.0) as usize).max(least);
        let mark = if eighths == 0 && line { '─' } else { EIGHTHS[eighths] };
        let beyond = capacity.is_some_and(|capacity| row > row_of(capacity, top));
        match paint {
            Paint::Colours if eighths > 0 => {
                let colour = if beyond { 31 } else { 32 };
                out.push_str(&format!("\u{1b}[{colour}m{mark}\u{1b}[0m"));
            }
            _ => out.push(mark),
        }
    }
    out.trim_end().to_owned()
}

/// The row in which a value lies.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a row of the chart"
)]
fn row_of(value: f64, top: f64) -> usize {
    ((value / top * HEIGHT as f64).ceil() as usize).saturating_sub(1).min(HEIGHT - 1)
}

/// The time axis with the outage on it.
fn axis(report: &Report, seconds: usize) -> String {
    let column = |ms: i64| {
        let second = usize::try_from(ms / 1000).unwrap_or(0);
        (second * WIDTH / seconds).min(WIDTH)
    };
    let mut line: Vec<char> = vec!['─'; WIDTH];
    if let Some((from, until)) = report.outage_ms {
        line[column(from)..column(until).max(column(from))].fill('▒');
    }
    let mut marks = vec![' '; WIDTH];
    for quarter in 0..4 {
        let text = minutes(seconds * quarter / 4);
        for (place, c) in marks[WIDTH * quarter / 4..].iter_mut().zip(text.chars()) {
            *place = c;
        }
    }
    let end = minutes(seconds);
    let at = WIDTH - end.chars().count();
    marks.splice(at.., end.chars());
    let text = |chars: Vec<char>| chars.into_iter().collect::<String>();
    format!("{:>LABEL$}{}\n{:LABEL$}{}\n", "└", text(line), "", text(marks).trim_end())
}

/// `12m30s`, `3h`
pub(super) fn minutes(seconds: usize) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes, rest) {
        (0, 0, rest) => format!("{rest}s"),
        (0, minutes, 0) => format!("{minutes}m"),
        (0, minutes, rest) => format!("{minutes}m{rest}s"),
        (hours, 0, _) => format!("{hours}h"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}

/// At most five characters.
pub(super) fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}
