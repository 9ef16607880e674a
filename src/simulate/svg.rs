//! The chart as a picture for pages and reports: one file, no script, no font of its own, readable on light and on dark.

use std::fmt::Write as _;

use super::Report;
use super::chart::{columns, minutes, number, seconds};

const WIDTH: f64 = 800.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 784.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 300.0;
const PARTS: usize = 240;
/// Of the lines, in order: told apart in light, in dark and by most colour-blind people (Okabe and Ito, 2008), and by their dashes.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];
const DASHES: [&str; 4] = ["none", "none", "6 3", "2 3"];

/// The chart as SVG text.
#[expect(clippy::cast_precision_loss, reason = "seconds of a run are far below 2^53")]
pub fn svg(report: &Report) -> String {
    let seconds = seconds(report);
    let series: Vec<Vec<f64>> = report.runs.iter().map(|run| columns(run, seconds, PARTS.min(seconds))).collect();
    let peak = series.iter().flatten().fold(0.0_f64, |peak, value| peak.max(*value));
    let capacity = report.runs.first().map_or(0.0, |run| run.capacity_per_s);
    let shown = capacity <= peak * 4.0;
    let top = if shown { peak.max(capacity) } else { peak }.max(0.001) * 1.05;
    let x = |second: f64| LEFT + (RIGHT - LEFT) * second / seconds as f64;
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / top;

    let mut out = String::from(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 340" role="img" font-family="system-ui, sans-serif" font-size="12">
<style>
  .ground { fill: #fff } .text { fill: #24292f } .faint { fill: #57606a } .axis { stroke: #57606a } .outage { fill: #afb8c1 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .text { fill: #e6edf3 } .faint { fill: #9198a1 } .axis { stroke: #9198a1 } .outage { fill: #3d444d }
  }
</style>
"##,
    );
    let title = escape(&format!("{}: calls per second", report.scenario));
    let _ok = write!(
        out,
        "<title>{title}</title>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"340\"/>\n\
         <text class=\"text\" x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>\n"
    );
    if let Some((from, until)) = report.outage_ms {
        let (from, until) = (x(from as f64 / 1000.0), x(until as f64 / 1000.0));
        let _ok = writeln!(
            out,
            "<rect class=\"outage\" opacity=\"0.4\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"/>\n\
             <text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\">outage</text>",
            until - from,
            BOTTOM - TOP,
            from + 4.0,
            TOP + 14.0
        );
    }
    for (index, (run, values)) in report.runs.iter().zip(&series).enumerate() {
        let (colour, dashes) = (COLOURS[index % COLOURS.len()], DASHES[index % DASHES.len()]);
        let step = seconds as f64 / values.len().max(1) as f64;
        let ended = run.attempts_by_s.len() as f64;
        let mut path = format!("M{:.1} {:.1}", x(0.0), y(0.0));
        for (part, value) in values.iter().enumerate().take_while(|(part, _)| *part as f64 * step < ended) {
            let _ok = write!(path, "V{:.1}H{:.1}", y(*value), x((part + 1) as f64 * step));
        }
        let _ok = write!(path, "V{:.1}", y(0.0));
        let _ok = writeln!(
            out,
            "<path d=\"{path}\" fill=\"{colour}\" fill-opacity=\"0.12\" stroke=\"{colour}\" stroke-width=\"1.5\" stroke-dasharray=\"{dashes}\"/>"
        );
        let at = LEFT + 150.0 * index as f64;
        let _ok = writeln!(
            out,
            "<path d=\"M{at:.1} 40h18\" stroke=\"{colour}\" stroke-width=\"3\" stroke-dasharray=\"{dashes}\"/>\
             <text class=\"text\" x=\"{:.1}\" y=\"44\">{}</text>",
            at + 24.0,
            escape(&run.name)
        );
    }
    if shown {
        let line = y(capacity);
        let _ok = writeln!(
            out,
            "<path class=\"axis\" d=\"M{LEFT} {line:.1}H{RIGHT}\" stroke-dasharray=\"5 4\"/>\
             <text class=\"faint\" x=\"{RIGHT}\" y=\"{:.1}\" text-anchor=\"end\">capacity {}/s</text>",
            line - 5.0,
            number(capacity)
        );
    }
    let _ok = writeln!(out, "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>");
    for quarter in 0..=4_u32 {
        let (second, value) = (seconds * quarter as usize / 4, top * f64::from(quarter) / 4.0);
        let anchor = if quarter == 4 { "end" } else { "middle" };
        let _ok = writeln!(
            out,
            "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>\
             <text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            x(second as f64),
            BOTTOM + 18.0,
            minutes(second),
            LEFT - 6.0,
            y(value) + 4.0,
            number(value)
        );
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
