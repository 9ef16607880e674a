//! Is it well? Rates, what waits and for how long, the ladder, what is shut, who works.

use maud::{Markup, html};

use crate::console::chart;
use crate::console::i18n::Lang;
use crate::console::link;
use crate::console::page::{Place, Ui, page};
use crate::console::pages::dead::{headline, page_of, trend};
use crate::console::parts::{empty, figure, heading, nothing, panel};
use crate::console::pulse::{Failing, Minute, sum};
use crate::console::show::{brief, count, length, percent, ratio, time, time_or_dash};
use crate::console::text::said;
use crate::dead_letter::Group;
use crate::store::{LetterGroupBy, Node};
use crate::task::Millis;

/// What the page shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overview {
    /// The last minutes, oldest first.
    pub minutes: Vec<Minute>,
    /// Failures of the same minutes, most frequent first.
    pub failures: Vec<Failing>,
    pub pending: i64,
    pub running: i64,
    pub retry_waiting: i64,
    pub held: i64,
    pub dead: i64,
    /// Since when the task that is longest due waits; `None`: none is due.
    pub oldest_due: Option<Millis>,
    pub ladders: Vec<Ladder>,
    pub lanes: Vec<Lane>,
    pub open_breakers: Vec<OpenBreaker>,
    pub nodes: Vec<Node>,
    /// The rules digest that most nodes run.
    pub rules_differ: bool,
    /// Copies without a row, by queue.
    pub strangers: Vec<(String, i64)>,
    /// The largest groups of dead letters, by fingerprint.
    pub groups: Vec<Group>,
}

/// The rungs of one queue.
#[derive(Debug, Clone)]
pub(crate) struct Ladder {
    pub queue: String,
    pub rungs: Vec<Waits>,
    /// Only the soonest of very many were looked at.
    pub is_part: bool,
}

/// What waits on one rung.
#[derive(Debug, Clone)]
pub(crate) struct Waits {
    /// The delay; `None`: delays that are no rung, held by the store.
    pub delay_ms: Option<Millis>,
    /// How far the drawing reaches.
    pub span_ms: Millis,
    pub waiting: i64,
    pub next_due: Option<Millis>,
    /// Due already.
    pub due: i64,
    pub parts: Vec<i64>,
}

/// One lane of a queue.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub queue: String,
    pub is_retries: bool,
    /// Messages ready in the broker; `None`: it was not asked or did not say.
    pub ready: Option<u64>,
    pub consumers: Option<u64>,
    /// Tasks of the lane in the store.
    pub in_store: i64,
    pub oldest: Option<Millis>,
    pub paused: Option<String>,
}

/// A breaker that is not closed.
#[derive(Debug, Clone)]
pub(crate) struct OpenBreaker {
    pub key: String,
    pub half_open: bool,
    pub why: String,
    pub waiting: i64,
    pub next_probe: Option<Millis>,
}

/// The page.
pub(crate) fn render(view: &Overview, ui: &Ui) -> Markup {
    let l = ui.lang;
    let body = html! {
        (heading(l.overview(), html! { span.muted { (l.as_of()) " " (time(ui.now, ui.now, l)) } }))
        (figures(view, ui))
        div.two {
            (panel("rates", l.ended_per_minute(), legend(l), true, rates(view, l)))
            (panel("attention", l.attention(), nothing(), true, attention(view, ui)))
        }
        (panel("ladder", l.ladder(), html! { span.muted { (l.ladder_hint()) } }, true, ladders(view, ui)))
        div.two {
            (panel("reasons", l.failure_reasons(), html! { span.muted { (l.last_minutes(view.minutes.len())) } }, true, reasons(view, l)))
            (panel("lanes", l.lanes(), nothing(), true, lanes(view, ui)))
        }
    };
    page(ui, Place::Overview, l.overview(), &body)
}

fn figures(view: &Overview, ui: &Ui) -> Markup {
    let l = ui.lang;
    let all = sum(&view.minutes);
    let minutes = i64::try_from(view.minutes.len()).unwrap_or(1).max(1);
    let ended = all.first + all.retried + all.fell_back + all.dead;
    let success = ratio(all.first + all.retried, ended);
    let late = view.oldest_due.map(|due| ui.now.saturating_sub(due).max(0));
    let waiting = view.pending + view.retry_waiting;
    html! {
        section.figures id="figures" data-live aria-label=(l.overview()) {
            (figure(l.success_rate(), percent(success), tone(success), html! {
                (percent(ratio(all.first, ended))) " " (l.first_try()) " · " (percent(ratio(all.retried, ended))) " " (l.by_retry())
            }))
            (figure(l.per_minute(), brief(ended / minutes), "", html! { (count(ended)) " " (l.in_last_minutes(view.minutes.len())) }))
            (figure(l.waiting(), count(waiting), "", html! {
                (count(view.pending)) " " (l.new_ones()) " · " (count(view.retry_waiting)) " " (l.retries())
                @if view.held > 0 { " · " a href=(link::to("/gates", [] as [(&str, &str); 0])) { (count(view.held)) " " (l.held()) } }
            }))
            (figure(l.lateness(), late.map_or_else(|| l.on_time().to_owned(), length), late.map_or("ok", |ms| if ms > 60_000 { "bad" } else { "" }), html! {
                @match view.oldest_due { Some(_) => (l.oldest_due()), None => (l.nothing_due()) }
            }))
            (figure(l.running_now(), count(view.running), "", html! { (l.n_workers(view.nodes.len())) }))
            (figure(l.dead_letters(), count(view.dead), if view.dead > 0 { "bad" } else { "ok" }, html! {
                @if all.dead > 0 { "+" (count(all.dead)) " " (l.in_last_minutes(view.minutes.len())) }
                @else { (l.none_new()) }
            }))
        }
    }
}

fn tone(success: Option<f64>) -> &'static str {
    match success {
        Some(share) if share < 0.9 => "bad",
        Some(share) if share < 0.97 => "warn",
        Some(_) => "ok",
        None => "",
    }
}

fn legend(l: Lang) -> Markup {
    html! {
        span.legend {
            span.key.ok { (l.first_try()) } span.key.retry { (l.by_retry()) } span.key.warn { (l.fell_back()) } span.key.bad { (l.dead()) }
        }
    }
}

fn rates(view: &Overview, l: Lang) -> Markup {
    let columns: Vec<_> = view
        .minutes
        .iter()
        .map(|minute| {
            let parts =
                vec![("ok", minute.first), ("retry", minute.retried), ("warn", minute.fell_back), ("bad", minute.dead)];
            let words = format!(
                "{}: {} {}, {} {}, {} {}, {} {}",
                clock(minute.at),
                minute.first,
                l.first_try(),
                minute.retried,
                l.by_retry(),
                minute.fell_back,
                l.fell_back(),
                minute.dead,
                l.dead()
            );
            (parts, words)
        })
        .collect();
    let all = sum(&view.minutes);
    let ended = all.first + all.retried + all.fell_back + all.dead;
    html! {
        @if ended == 0 { (empty(l.nothing_ended())) } @else {
            div.chart { (chart::columns(&columns, l.ended_per_minute())) }
            div.axis {
                span { (view.minutes.first().map(|minute| clock(minute.at)).unwrap_or_default()) }
                span { (view.minutes.last().map(|minute| clock(minute.at)).unwrap_or_default()) " UTC" }
            }
            div.split {
                (chart::shares(&[("ok", all.first), ("retry", all.retried), ("warn", all.fell_back), ("bad", all.dead)], l.success_rate()))
                span.muted { (l.retry_share_of_success()) " " (percent(ratio(all.retried, all.first + all.retried))) }
            }
        }
    }
}

/// `09:15`
fn clock(at: Millis) -> String {
    crate::console::show::absolute(at).get(11..16).unwrap_or_default().to_owned()
}

fn reasons(view: &Overview, l: Lang) -> Markup {
    let most = view.failures.iter().map(|failing| failing.attempts).max().unwrap_or(1);
    html! {
        @if view.failures.is_empty() { (empty(l.nothing_failed())) } @else {
            table.bars {
                thead.sr { tr { th { (l.class()) } th { (l.share()) } th { (l.attempts()) } } }
                tbody {
                    @for failing in view.failures.iter().take(8) {
                        tr {
                            td {
                                a href=(link::to("/tasks", failing.filter())) {
                                    span.class { (said(&failing.class, 30)) }
                                    @if let Some(code) = failing.code() { " " span.code { (said(&code, 24)) } }
                                }
                            }
                            td.bar { (chart::shares(&[("bad", failing.attempts), ("none", most - failing.attempts)], &count(failing.attempts))) }
                            td.num { (count(failing.attempts)) }
                        }
                    }
                }
            }
        }
    }
}

fn ladders(view: &Overview, ui: &Ui) -> Markup {
    let l = ui.lang;
    let most = view
        .ladders
        .iter()
        .flat_map(|ladder| &ladder.rungs)
        .flat_map(|rung| rung.parts.iter().copied())
        .max()
        .unwrap_or(0);
    let longest = view.ladders.iter().flat_map(|ladder| &ladder.rungs).map(|rung| rung.span_ms).max().unwrap_or(1);
    html! {
        @for ladder in &view.ladders {
            @if view.ladders.len() > 1 { h3 { (l.queue()) " " (said(&ladder.queue, 60)) } }
            div.ladder {
                @for rung in &ladder.rungs { (rung_row(rung, most, longest, ui)) }
                @if ladder.rungs.is_empty() { (empty(l.no_rungs())) }
            }
            @if ladder.is_part { p.muted { (l.ladder_is_part()) } }
        }
        @if view.ladders.is_empty() { (empty(l.nobody_waits())) }
    }
}

fn rung_row(rung: &Waits, most: i64, longest: Millis, ui: &Ui) -> Markup {
    let l = ui.lang;
    let name = rung.delay_ms.map_or_else(|| l.other_delays().to_owned(), length);
    let words = format!("{name}: {} {}", count(rung.waiting), l.waiting());
    let drawn = chart::Rung {
        end: length(rung.span_ms),
        reach: reach(rung.span_ms, longest),
        parts: rung.parts.clone(),
        label: words,
    };
    html! {
        div.rung-row.idle[rung.waiting == 0] {
            div.rung-name { strong { (name) } span.muted { (count(rung.waiting)) " " (l.waiting()) } }
            div.rung-track { (chart::rung(&drawn, most, l.now())) }
            div.rung-next {
                @if rung.due > 0 { span.badge.warn { (count(rung.due)) " " (l.due_now()) } }
                @else if let Some(next) = rung.next_due { span.muted { (l.next()) } " " (time(next, ui.now, l)) }
            }
        }
    }
}

/// How wide a rung is drawn beside the longest: by the logarithm, so that 2 s can be seen beside 45 min.
fn reach(span_ms: Millis, longest_ms: Millis) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a drawing")]
    let log = |ms: Millis| ((ms.max(1) as f64) / 250.0 + 1.0).ln();
    log(span_ms) / log(longest_ms).max(1e-9)
}

fn lanes(view: &Overview, ui: &Ui) -> Markup {
    let l = ui.lang;
    html! {
        div.scroll { table {
            thead { tr { th { (l.queue()) } th.num { (l.in_store()) } th.num { (l.in_broker()) } th.num { (l.consumers()) } th { (l.oldest()) } th { } } }
            tbody {
                @for lane in &view.lanes {
                    tr {
                        td { (said(&lane.queue, 40)) span.muted { " " (if lane.is_retries { l.retries() } else { l.new_ones() }) } }
                        td.num { (count(lane.in_store)) }
                        td.num { (lane.ready.map_or_else(|| "–".to_owned(), |n| n.to_string())) }
                        td.num { (lane.consumers.map_or_else(|| "–".to_owned(), |n| n.to_string())) }
                        td { (time_or_dash(lane.oldest, ui.now, l)) }
                        td { @if let Some(reason) = &lane.paused { span.badge.warn title=(reason) { (l.paused()) } } }
                    }
                }
            }
        } }
    }
}

fn attention(view: &Overview, ui: &Ui) -> Markup {
    let l = ui.lang;
    let strangers: i64 = view.strangers.iter().map(|(_, n)| n).sum();
    let calm = view.open_breakers.is_empty()
        && view.groups.is_empty()
        && strangers == 0
        && !view.rules_differ
        && !view.nodes.is_empty();
    html! {
        ul.attention {
            @for breaker in &view.open_breakers {
                li {
                    span.badge.bad[!breaker.half_open].warn[breaker.half_open] { (if breaker.half_open { l.half_open() } else { l.open() }) }
                    " " a href=(link::to("/gates", [("key", breaker.key.as_str())])) { (said(&breaker.key, 80)) }
                    div.muted { (said(&breaker.why, 140)) " · " (count(breaker.waiting)) " " (l.waiting())
                        @if let Some(at) = breaker.next_probe { " · " (l.next_probe()) " " (time(at, ui.now, l)) } }
                }
            }
            @for group in &view.groups {
                @let by = LetterGroupBy::Fingerprint;
                li {
                    span.badge.bad { (count(group.letters.count)) } " " (trend(group.trend, l)) " "
                    a.headline href=(page_of(group, &by)) { (headline(group, &by, 90, l)) }
                }
            }
            @for (queue, n) in view.strangers.iter().filter(|(_, n)| *n > 0) {
                li { span.badge.warn { (count(*n)) } " " (l.strangers()) " · " (said(queue, 40)) div.muted { (l.strangers_hint()) } }
            }
            @if view.rules_differ { li { span.badge.warn { (l.policies()) } " " (l.rules_differ()) } }
            @if view.nodes.is_empty() { li { span.badge.bad { (l.workers()) } " " (l.no_workers()) } }
            @if calm { li.calm { (l.all_calm()) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_rung_is_seen_beside_a_long_one() {
        let (short, long) = (2_000, 45 * 60_000);
        assert!(reach(short, long) > 0.15 && (reach(long, long) - 1.0).abs() < 1e-9);
    }
}
