//! The drawings of the console, as SVG made here: sparklines, columns over time, shares, intervals and the ladder.
//!
//! Colours come from classes of the stylesheet, never from style attributes, which the content security policy forbids. Every drawing
//! has a text that says the same.

use maud::{Markup, html};

/// Counts over time as small bars, oldest first. `label` says it in words.
pub(crate) fn spark(counts: &[i64], label: &str) -> Markup {
    const HEIGHT: f64 = 20.0;
    const STEP: f64 = 4.0;
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let width = STEP * float(i64::try_from(counts.len()).unwrap_or(0));
    html! {
        svg.spark role="img" aria-label=(label) viewBox=(format!("0 0 {width} {HEIGHT}")) width=(width) height=(HEIGHT) {
            title { (label) }
            @for (index, count) in counts.iter().enumerate() {
                // Nothing is a hair, so that one sees time passing; something is never that small.
                @let height = if *count <= 0 { 1.0 } else { (float(*count) / float(most) * HEIGHT).max(2.5) };
                @let x = STEP * float(i64::try_from(index).unwrap_or(0));
                rect.none[*count <= 0] x=(x) y=(short(HEIGHT - height)) width=(STEP - 1.0) height=(short(height)) {}
            }
        }
    }
}

/// One part of a column: the class that colours it, and how much.
pub(crate) type Part = (&'static str, i64);

/// Stacked columns over time, oldest first, each with its own words.
pub(crate) fn columns(columns: &[(Vec<Part>, String)], label: &str) -> Markup {
    const HEIGHT: f64 = 72.0;
    const STEP: f64 = 10.0;
    let sum = |parts: &[Part]| parts.iter().map(|(_, n)| *n).sum::<i64>();
    let most = columns.iter().map(|(parts, _)| sum(parts)).max().unwrap_or(0).max(1);
    let width = STEP * float(i64::try_from(columns.len()).unwrap_or(0)).max(1.0);
    html! {
        svg.columns role="img" aria-label=(label) viewBox=(format!("0 0 {width} {HEIGHT}")) preserveAspectRatio="none" {
            title { (label) }
            @for (index, (parts, words)) in columns.iter().enumerate() {
                @let x = STEP * float(i64::try_from(index).unwrap_or(0));
                g {
                    title { (words) }
                    rect.hover x=(x) y="0" width=(STEP) height=(HEIGHT) {}
                    @if sum(parts) == 0 { rect.none x=(x + 1.0) y=(HEIGHT - 1.0) width=(STEP - 2.0) height="1" {} }
                    @for (class, y, height) in stacked(parts, float(most), HEIGHT) {
                        rect class=(class) x=(x + 1.0) y=(short(y)) width=(STEP - 2.0) height=(short(height)) {}
                    }
                }
            }
        }
    }
}

/// The parts from the bottom up: class, top and height.
fn stacked(parts: &[Part], most: f64, height: f64) -> Vec<(&'static str, f64, f64)> {
    let mut top = height;
    let mut boxes = Vec::new();
    for (class, n) in parts.iter().filter(|(_, n)| *n > 0) {
        let tall = (float(*n) / most * height).max(1.5);
        top = (top - tall).max(0.0);
        boxes.push((*class, top, tall));
    }
    boxes
}

/// Shares of a whole side by side.
pub(crate) fn shares(parts: &[Part], label: &str) -> Markup {
    const WIDTH: f64 = 200.0;
    let whole = float(parts.iter().map(|(_, n)| *n).sum::<i64>().max(1));
    let mut x = 0.0;
    let mut boxes = Vec::new();
    for (class, n) in parts.iter().filter(|(_, n)| *n > 0) {
        let wide = float(*n) / whole * WIDTH;
        boxes.push((*class, x, wide));
        x += wide;
    }
    html! {
        svg.shares role="img" aria-label=(label) viewBox=(format!("0 0 {WIDTH} 8")) preserveAspectRatio="none" {
            title { (label) }
            rect.none x="0" y="0" width=(WIDTH) height="8" {}
            @for (class, x, wide) in boxes { rect class=(class) x=(short(x)) y="0" width=(short(wide)) height="8" {} }
        }
    }
}

/// A share with its interval on a scale from `from` to `to`, all between 0 and 1.
pub(crate) fn interval(rate: f64, low: f64, high: f64, (from, to): (f64, f64), best: bool, label: &str) -> Markup {
    const WIDTH: f64 = 240.0;
    let at = |share: f64| ((share - from) / (to - from).max(1e-9)).clamp(0.0, 1.0) * (WIDTH - 8.0) + 4.0;
    html! {
        svg.interval.best[best] role="img" aria-label=(label) viewBox=(format!("0 0 {WIDTH} 20")) width=(WIDTH) height="20" {
            title { (label) }
            line.axis x1="0" y1="10" x2=(WIDTH) y2="10" {}
            line.range x1=(short(at(low))) y1="10" x2=(short(at(high))) y2="10" {}
            line.range x1=(short(at(low))) y1="6" x2=(short(at(low))) y2="14" {}
            line.range x1=(short(at(high))) y1="6" x2=(short(at(high))) y2="14" {}
            circle cx=(short(at(rate))) cy="10" r="4" {}
        }
    }
}

/// One rung of the ladder: how many fall due in each part of its length, the soonest first.
pub(crate) struct Rung {
    /// What stands at its far end.
    pub end: String,
    /// How long it is beside the longest, 0 to 1.
    pub reach: f64,
    /// How many fall due in each part, the soonest first.
    pub parts: Vec<i64>,
    /// What stands in it, in words.
    pub label: String,
}

/// A rung as a track that tasks slide along towards now, at its left end. `most` is the fullest part of all rungs.
pub(crate) fn rung(rung: &Rung, most: i64, now: &str) -> Markup {
    const WIDTH: f64 = 900.0;
    const HEIGHT: f64 = 30.0;
    let width = (WIDTH - 64.0) * rung.reach.clamp(0.08, 1.0);
    let step = width / float(i64::try_from(rung.parts.len().max(1)).unwrap_or(1));
    html! {
        svg.rung role="img" aria-label=(rung.label) viewBox=(format!("0 0 {WIDTH} 48")) {
            title { (rung.label) }
            line.rail x1="0" y1=(HEIGHT + 2.5) x2=(short(width)) y2=(HEIGHT + 2.5) {}
            line.rail x1="0.5" y1="4" x2="0.5" y2=(HEIGHT + 2.0) {}
            line.rail x1=(short(width)) y1="4" x2=(short(width)) y2=(HEIGHT + 2.0) {}
            @for (index, count) in rung.parts.iter().enumerate() {
                @if *count > 0 {
                    // By the square root: one task must be seen beside a thousand.
                    @let height = ((float(*count) / float(most.max(1))).sqrt() * (HEIGHT - 6.0)).max(3.0);
                    @let x = step * float(i64::try_from(index).unwrap_or(0));
                    rect.due x=(short(x + 1.0)) y=(short(HEIGHT - height)) width=(short((step - 1.5).max(1.0))) height=(short(height)) {}
                }
            }
            text x="0" y="46" { (now) }
            text x=(short(width)) y="46" text-anchor="middle" { (rung.end) }
        }
    }
}

/// A number with as many digits as a screen has.
fn short(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[expect(clippy::cast_precision_loss, reason = "counts of tasks stay far below 2^53")]
fn float(n: i64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_of_nothing_and_of_anything_are_well_formed() {
        for counts in [&[][..], &[0, 0][..], &[1, i64::MAX / 4, -3][..]] {
            let drawn = spark(counts, "a <b>").into_string();
            assert!(drawn.starts_with("<svg") && drawn.contains("a &lt;b&gt;") && !drawn.contains("NaN"), "{drawn}");
        }
        for drawn in [
            columns(&[(vec![("ok", 0)], "none".into())], "x"),
            columns(&[], "x"),
            shares(&[("ok", 0), ("bad", 0)], "x"),
            interval(f64::NAN, 0.0, 1.0, (0.5, 0.5), true, "x"),
            rung(&Rung { end: "1h".into(), reach: 2.0, parts: vec![], label: "x".into() }, 0, "now"),
        ] {
            let drawn = drawn.into_string();
            assert!(!drawn.contains("inf"), "{drawn}");
            assert!(!drawn.contains("style="), "the policy forbids it");
        }
    }

    #[test]
    fn the_parts_of_a_column_stand_on_each_other() {
        let boxes = stacked(&[("ok", 3), ("none", 0), ("bad", 1)], 4.0, 40.0);
        assert_eq!(boxes, [("ok", 10.0, 30.0), ("bad", 0.0, 10.0)]);
    }
}
