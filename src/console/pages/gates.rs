//! What stops tasks: breakers, limits, holds and pauses, the evidence, and a person's word.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::console::i18n::Lang;
use crate::console::page::{Place, Ui, page};
use crate::console::pages::task::confirmed;
use crate::console::parts::{badge, cli, empty, field, heading, live_cli, nothing, panel, reason_field};
use crate::console::show::{count, length, time, time_or_dash};
use crate::console::text::said;
use crate::gate::{Breaker, BreakerRule, GateState, Gates, LimitKind, Look, Phase, Rate, RuleOf, WhenOpen, look};
use crate::store::Pause;
use crate::task::Millis;

/// What the page shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct GatesView {
    pub breakers: Vec<BreakerRow>,
    pub limits: Vec<LimitRow>,
    pub pauses: Vec<Pause>,
    /// Queues that can be paused.
    pub queues: Vec<String>,
    /// The key that a link has asked for.
    pub wanted: Option<String>,
}

/// A breaker of one key.
#[derive(Debug, Clone)]
pub(crate) struct BreakerRow {
    pub key: String,
    pub phase: BreakerPhase,
    pub since: Option<Millis>,
    pub next_probe: Option<Millis>,
    pub is_forced: bool,
    pub probes: (usize, i64),
    pub waiting: i64,
    /// What tripped it, or how near it is.
    pub because: Option<String>,
    pub failed_probes: u32,
    pub in_a_row: i64,
    /// Who last said what, when, and why.
    pub word: Option<(bool, String, Millis, Option<String>)>,
    /// `None`: not configured any more, so that it stops nothing.
    pub when_open: Option<WhenOpen>,
    /// How many may run at once while work returns.
    pub return_window: Option<i64>,
}

/// Where a breaker stands for people: one whose cool-down is over counts as half open, whether or not a probe has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BreakerPhase {
    Open,
    HalfOpen,
    Closed,
}

impl BreakerRow {
    pub(crate) fn new(
        key: String,
        breaker: &Breaker,
        rule: Option<&BreakerRule>,
        waiting: i64,
        now: Millis,
    ) -> BreakerRow {
        let phase = match breaker.phase {
            Phase::Closed => BreakerPhase::Closed,
            Phase::Open { until, .. } if breaker.is_forced_open() || now < until => BreakerPhase::Open,
            Phase::Open { .. } | Phase::HalfOpen => BreakerPhase::HalfOpen,
        };
        let next_probe =
            rule.filter(|_| phase != BreakerPhase::Closed).and_then(|rule| match breaker.look(rule, now) {
                Look::Open { .. } => Some(now),
                Look::Shut { opens_at } | Look::Tripped { opens_at, .. } => opens_at,
            });
        BreakerRow {
            key,
            phase,
            since: if let Phase::Open { since, .. } = breaker.phase { Some(since) } else { None },
            next_probe,
            is_forced: breaker.is_forced_open(),
            probes: (breaker.probes.len(), rule.map_or(0, |rule| rule.probes)),
            waiting,
            because: breaker.because.clone(),
            failed_probes: breaker.failed_probes,
            in_a_row: breaker.in_a_row,
            word: breaker.word.as_ref().map(|word| (word.open, word.by.clone(), word.at, word.reason.clone())),
            when_open: rule.map(|rule| rule.when_open),
            return_window: breaker.back.as_ref().map(|back| back.window),
        }
    }

    /// Why it stands there, in a few words.
    pub(crate) fn why(&self, l: Lang) -> String {
        let mut parts = Vec::new();
        match (&self.because, &self.word) {
            (Some(because), _) if !self.is_forced => parts.push(because.clone()),
            (_, Some((open, by, _, reason))) => {
                let verb = if *open { l.opened_by() } else { l.closed_by() };
                let reason = reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
                parts.push(format!("{verb} {by}{reason}"));
            }
            _ => {}
        }
        if self.failed_probes > 0 {
            parts.push(format!("{} {}", self.failed_probes, l.probes_failed()));
        }
        if self.phase == BreakerPhase::Closed && self.in_a_row > 0 {
            parts.push(format!("{} {}", self.in_a_row, l.failures_in_a_row()));
        }
        if self.when_open.is_none() {
            parts.push(l.not_configured().to_owned());
        }
        parts.join("; ")
    }
}

/// A limit, a cap or a hold of one key.
#[derive(Debug, Clone)]
pub(crate) struct LimitRow {
    pub key: String,
    pub kind: LimitKindOf,
    pub is_configured: bool,
    pub is_open: bool,
    /// `None`: any number.
    pub room: Option<i64>,
    pub next: Option<Millis>,
    pub waiting: i64,
    pub rule: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitKindOf {
    Limit,
    Cap,
    Hold,
}

impl LimitRow {
    pub(crate) fn new(
        gates: &Gates,
        key: &str,
        state: Option<&GateState>,
        waiting: i64,
        now: Millis,
        l: Lang,
    ) -> LimitRow {
        let rule = gates.rule(key);
        let seen = rule.map(|rule| look(rule, key, state, true, now));
        let (is_open, room, next) = match seen {
            None => (true, None, None),
            Some(Look::Open { room }) => (true, room, None),
            Some(Look::Shut { opens_at } | Look::Tripped { opens_at, .. }) => (false, Some(0), opens_at),
        };
        let kind = match key.split('/').next() {
            Some("cap") => LimitKindOf::Cap,
            Some("hold") => LimitKindOf::Hold,
            _ => LimitKindOf::Limit,
        };
        let rule = rule.map(|rule| rule_words(rule, l)).unwrap_or_default();
        LimitRow { key: key.to_owned(), kind, is_configured: seen.is_some(), is_open, room, next, waiting, rule }
    }
}

/// Every breaker that has a key: those that stand alone from the start, the others once they have failed.
pub(crate) fn breaker_rows(
    gates: &Gates,
    states: &[(String, GateState)],
    waiting: &BTreeMap<String, i64>,
    now: Millis,
) -> Vec<BreakerRow> {
    let alone = gates.alone().into_iter().filter(|gate| matches!(gate.rule, RuleOf::Breaker(_)));
    let mut known: BTreeMap<String, Breaker> = alone.map(|gate| (gate.key, Breaker::default())).collect();
    known.extend(states.iter().filter_map(|(key, state)| match state {
        GateState::Breaker(breaker) => Some((key.clone(), breaker.clone())),
        _ => None,
    }));
    let row = |(key, breaker): (String, Breaker)| {
        let rule = if let Some(RuleOf::Breaker(rule)) = gates.rule(&key) { Some(rule) } else { None };
        let waiting = waiting.get(&key).copied().unwrap_or(0);
        BreakerRow::new(key, &breaker, rule, waiting, now)
    };
    let mut rows: Vec<BreakerRow> = known.into_iter().map(row).collect();
    rows.sort_by_key(|row| (row.phase, std::cmp::Reverse(row.waiting)));
    rows
}

/// Limits, caps and holds that were used or are waited for; those that nothing waits for last.
pub(crate) fn limit_rows(
    gates: &Gates,
    states: &[(String, GateState)],
    waiting: &BTreeMap<String, i64>,
    now: Millis,
    l: Lang,
) -> Vec<LimitRow> {
    let mut known: BTreeMap<&str, Option<&GateState>> = BTreeMap::new();
    let alone = gates.alone();
    known.extend(alone.iter().map(|gate| (gate.key.as_str(), None)));
    known.extend(waiting.keys().map(|key| (key.as_str(), None)));
    known.extend(states.iter().map(|(key, state)| (key.as_str(), Some(state))));
    known.retain(|key, _| ["limit/", "cap/", "hold/"].iter().any(|kind| key.starts_with(kind)));
    let row = |(key, state): (&str, Option<&GateState>)| {
        LimitRow::new(gates, key, state, waiting.get(key).copied().unwrap_or(0), now, l)
    };
    let mut rows: Vec<LimitRow> = known.into_iter().map(row).collect();
    // A hold that is over says nothing.
    rows.retain(|row| row.kind != LimitKindOf::Hold || !row.is_open || row.waiting > 0);
    rows.sort_by_key(|row| (row.is_open, std::cmp::Reverse(row.waiting)));
    rows
}

/// `5 retries/min, burst 1`
fn rule_words(rule: RuleOf<'_>, l: Lang) -> String {
    match rule {
        RuleOf::Limit(rule) => match &rule.kind {
            LimitKind::Rate { rate, burst } => {
                format!(
                    "{} {}, {} {burst}",
                    rate_words(*rate),
                    if rule.calls { l.calls() } else { l.retries() },
                    l.burst()
                )
            }
            LimitKind::Ratio { permille, window_ms, floor } => {
                format!(
                    "{}.{} % {} / {}, ≥ {}",
                    permille / 10,
                    permille % 10,
                    l.retries(),
                    length(*window_ms),
                    rate_words(*floor)
                )
            }
        },
        RuleOf::Cap(rule) => format!("{} {}", rule.max, l.at_a_time()),
        RuleOf::Hold => "Retry-After".into(),
        RuleOf::Breaker(_) => String::new(),
    }
}

fn rate_words(rate: Rate) -> String {
    let per = match rate.per_ms {
        1_000 => "s".to_owned(),
        60_000 => "min".to_owned(),
        3_600_000 => "h".to_owned(),
        86_400_000 => "d".to_owned(),
        other => length(other),
    };
    format!("{}/{per}", rate.count)
}

/// The page.
pub(crate) fn render(view: &GatesView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let body = html! {
        (heading(l.gates(), nothing()))
        (panel("breakers", l.breakers(), nothing(), false, breakers(view, ui)))
        (panel("limits", l.limits_and_holds(), nothing(), true, limits(view, ui)))
        (panel("pauses", l.pauses(), nothing(), false, pauses(view, ui)))
        (cli(&["redeliver", "breaker", "list"], l))
    };
    page(ui, Place::Gates, l.gates(), &body)
}

/// The badge of a phase.
fn phase_badge(phase: BreakerPhase, l: Lang) -> Markup {
    match phase {
        BreakerPhase::Open => badge("bad", l.open()),
        BreakerPhase::HalfOpen => badge("warn", l.half_open()),
        BreakerPhase::Closed => badge("ok", l.closed()),
    }
}

fn breakers(view: &GatesView, ui: &Ui) -> Markup {
    let l = ui.lang;
    if view.breakers.is_empty() {
        return empty(l.no_breakers());
    }
    html! {
        div.cards { @for row in &view.breakers { (breaker(row, view.wanted.as_deref() == Some(row.key.as_str()), ui)) } }
    }
}

fn breaker(row: &BreakerRow, is_wanted: bool, ui: &Ui) -> Markup {
    let l = ui.lang;
    let state_id = format!("breaker-{}", crate::console::link::encode(&row.key));
    html! {
        article.gate.wanted[is_wanted] data-row=(row.key) {
            div id=(state_id) data-live {
                div.gate-head { (phase_badge(row.phase, l)) " " strong.key { (said(&row.key, 160)) } @if row.is_forced { " " (badge("dim", l.by_hand())) } }
                p { (said(&row.why(l), 300)) }
                p.small.muted {
                    @if let Some(since) = row.since { (l.since()) " " (time(since, ui.now, l)) " · " }
                    @if row.phase != BreakerPhase::Closed {
                        (l.next_probe()) " " @match row.next_probe { Some(at) => (time(at, ui.now, l)), None => (l.none_by_itself()) } " · "
                        (l.probes()) " " (row.probes.0) "/" (row.probes.1) " · "
                    }
                    @if let Some(window) = row.return_window { (l.returning()) " " (window) " " (l.at_a_time()) " · " }
                    strong { (count(row.waiting)) } " " (l.waiting())
                    @if let Some(when_open) = row.when_open { " · " (match when_open {
                        WhenOpen::Park => l.when_open_park(),
                        WhenOpen::DeadLetter => l.when_open_dead_letter(),
                        WhenOpen::Fallback => l.when_open_fallback(),
                    }) }
                }
            }
            @if ui.can_operate() && row.when_open.is_some() { (force(row, ui)) }
        }
    }
}

fn force(row: &BreakerRow, ui: &Ui) -> Markup {
    let l = ui.lang;
    let ask = |label: &str, verb: &str, tone: &str| {
        confirmed(
            label,
            &format!("/gates/{verb}"),
            ui,
            tone,
            html! {
                input type="hidden" name="key" value=(row.key);
                (reason_field(l, true, l.reason_example()))
                (live_cli(&["redeliver", "breaker", verb, &row.key], &["--yes"], l))
            },
        )
    };
    html! {
        div.actions {
            @if row.phase != BreakerPhase::Open || !row.is_forced { (ask(l.force_open(), "open", "danger")) }
            @if row.phase != BreakerPhase::Closed { (ask(l.force_close(), "close", "")) }
        }
    }
}

fn limits(view: &GatesView, ui: &Ui) -> Markup {
    let l = ui.lang;
    if view.limits.is_empty() {
        return empty(l.no_limits());
    }
    html! {
        div.scroll { table.list {
            thead { tr { th { (l.state()) } th.wide { (l.key()) } th.num { (l.room()) } th { (l.next_chance()) } th.num { (l.waiting()) } th { (l.rule()) } } }
            tbody {
                @for row in &view.limits {
                    tr.wanted[view.wanted.as_deref() == Some(row.key.as_str())] {
                        td {
                            @if !row.is_configured { (badge("dim", l.not_configured())) }
                            @else if row.is_open { (badge("ok", l.has_room())) } @else { (badge("warn", l.shut())) }
                        }
                        td.wide { (said(&row.key, 160)) }
                        td.num { @match row.room { Some(room) => (room), None => (l.any()) } }
                        td { @if row.is_open { span.muted { (l.now()) } } @else { @match row.next { Some(at) => (time(at, ui.now, l)), None => (l.when_one_ends()) } } }
                        td.num { (count(row.waiting)) }
                        td { (row.rule) }
                    }
                }
            }
        } }
    }
}

fn pauses(view: &GatesView, ui: &Ui) -> Markup {
    let l = ui.lang;
    html! {
        @if view.pauses.is_empty() { (empty(l.no_pauses())) } @else {
            table.list { tbody {
                @for pause in &view.pauses {
                    tr {
                        td { (badge("warn", l.paused())) }
                        td.wide { (said(&pause.key, 160)) div.muted { (said(pause.reason.as_deref().unwrap_or_default(), 200)) } }
                        td.when { (time_or_dash(Some(pause.since), ui.now, l)) }
                        td.act { @if ui.can_operate() { form method="post" action="/gates/resume" { (ui.csrf()) input type="hidden" name="key" value=(pause.key); button { (l.resume()) } } } }
                    }
                }
            } }
        }
        @if ui.can_operate() {
            form.card.row method="post" action="/gates/pause" data-tail="--yes" {
                (ui.csrf())
                (field(l.queue(), html! { select name="queue" data-flag="" { option value="" { "–" } @for queue in &view.queues { option value=(queue) { (queue) } } } }, ""))
                (field(l.or_type(), html! { input type="text" name="type" data-flag="--type" placeholder="order.ship.#" autocomplete="off" spellcheck="false"; }, ""))
                (reason_field(l, true, l.reason_example()))
                button { (l.pause()) }
                (live_cli(&["redeliver", "queue", "pause"], &["--yes"], l))
            }
        }
    }
}
