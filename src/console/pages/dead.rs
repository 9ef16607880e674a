//! Dead letters by what they have in common: four thousand of three kinds are three lines.

use maud::{Markup, html};

use crate::console::chart;
use crate::console::i18n::Lang;
use crate::console::link;
use crate::console::page::{Place, Ui, page};
use crate::console::parts::{badge, cli, empty, facts, field, heading, live_cli, nothing, panel};
use crate::console::query::Query;
use crate::console::show::{brief, count, time};
use crate::console::text::{line, said};
use crate::dead_letter::{Group, Trend};
use crate::gate::Phase;
use crate::store::{LetterGroupBy, LetterSample};
use crate::task::Task;

/// What the page shows.
#[derive(Debug, Clone)]
pub(crate) struct DeadView {
    pub by: LetterGroupBy,
    /// Filters that narrow the letters before they are grouped.
    pub query: Query,
    pub groups: Vec<Group>,
    /// Label names worth grouping by.
    pub label_names: Vec<String>,
}

/// The page.
pub(crate) fn render(view: &DeadView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let total: i64 = view.groups.iter().map(|group| group.letters.count).sum();
    let by = view.by.to_string();
    let body = html! {
        (heading(l.dead_letters(), html! {
            span.muted { (count(total)) " " (l.in_n_groups(view.groups.len())) } " "
            a.button href=(link::to("/dead/list", view.query.pairs())) { (l.list_all()) }
        }))
        (switch(view, &by, l))
        @if !view.query.is_empty() { (narrowed(view, l)) }
        (panel("groups", l.groups(), nothing(), true, html! {
            @if view.groups.is_empty() { div.calm-panel { (empty(l.no_dead_letters())) } } @else {
                div.scroll { table.list.groups.keys-list {
                    thead { tr {
                        th.num { (l.count()) } th { (l.last_24_hours()) } th.wide { (l.what_they_share()) } th { (l.last_seen()) } th { (l.first_seen()) } th { }
                    } }
                    tbody { @for group in &view.groups { (row(group, view, ui)) } }
                } }
            }
        }))
        (cli(&command(view, &by), l))
    };
    page(ui, Place::Dead, l.dead_letters(), &body)
}

fn command<'a>(view: &'a DeadView, by: &'a str) -> Vec<&'a str> {
    let mut words = vec!["redeliver", "dlq", "groups", "--by", by];
    words.extend(view.query.flags());
    words
}

fn switch(view: &DeadView, by: &str, l: Lang) -> Markup {
    let mut ways: Vec<(String, String)> = vec![
        ("fingerprint".into(), l.by_error().into()),
        ("class".into(), l.class().into()),
        ("type".into(), l.type_().into()),
        ("reason".into(), l.reason_is().into()),
    ];
    ways.extend(view.label_names.iter().map(|name| (format!("label.{name}"), name.clone())));
    html! {
        nav.tabs aria-label=(l.group_by()) {
            span.muted { (l.group_by()) }
            @for (way, name) in &ways {
                a href=(link::to("/dead", view.query.with("by", way).pairs())) aria-current=[(way == by).then_some("true")] { (said(name, 40)) }
            }
        }
    }
}

fn narrowed(view: &DeadView, l: Lang) -> Markup {
    html! {
        p.narrowed {
            (l.only()) " "
            @for (name, value) in view.query.pairs().iter().filter(|(name, _)| name != "by") { code { (name) "=" (line(value, 80)) } " " }
            a href="/dead" { (l.clear()) }
        }
    }
}

/// The filter that finds the letters of a group; `None`: they lack what the others share.
pub(crate) fn filter_of(by: &LetterGroupBy, key: Option<&str>) -> Option<(String, String)> {
    let key = key?;
    Some(match by {
        LetterGroupBy::Fingerprint => ("fingerprint".into(), key.into()),
        LetterGroupBy::Class => ("class".into(), key.into()),
        LetterGroupBy::Type => ("type".into(), key.into()),
        LetterGroupBy::Reason => ("reason-is".into(), key.into()),
        LetterGroupBy::Label(name) => ("label".into(), format!("{name}={key}")),
    })
}

pub(crate) fn page_of(group: &Group, by: &LetterGroupBy) -> String {
    let by = by.to_string();
    let key = group.letters.key.as_deref().map(|key| ("key", key));
    link::to("/dead/group", std::iter::once(("by", by.as_str())).chain(key))
}

/// The headline of a group: for a group of equal failures the failure, else the key.
pub(crate) fn headline(group: &Group, by: &LetterGroupBy, longest: usize, l: Lang) -> Markup {
    let sample = group.letters.samples.first();
    match (by, &group.letters.key) {
        (LetterGroupBy::Fingerprint, _) => html! { (failure(sample, longest, l)) },
        (_, Some(key)) => html! { strong { (said(key, 80)) } " " span.sample { (failure(sample, longest, l)) } },
        (_, None) => html! { strong { (l.without()) } " " span.sample { (failure(sample, longest, l)) } },
    }
}

fn failure(sample: Option<&LetterSample>, longest: usize, l: Lang) -> Markup {
    let Some(sample) = sample else { return nothing() };
    let code = sample.code.clone().or_else(|| sample.http_status.map(|status| format!("HTTP {status}")));
    html! {
        span.class { @match &sample.class { Some(class) => (said(class, 40)), None => (l.no_failure()) } }
        @if let Some(code) = code { " " span.code { (said(&code, 40)) } }
        @if let Some(message) = &sample.message { " " span.message { (said(message, longest)) } }
    }
}

pub(crate) fn trend(trend: Trend, l: Lang) -> Markup {
    match trend {
        Trend::New => badge("bad", l.trend_new()),
        Trend::Growing => badge("warn", l.trend_growing()),
        Trend::Quiet => badge("dim", l.trend_quiet()),
        Trend::Steady => nothing(),
    }
}

fn row(group: &Group, view: &DeadView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let letters = &group.letters;
    let filter = filter_of(&view.by, letters.key.as_deref());
    let hours: i64 = letters.hourly.iter().sum();
    html! {
        tr data-row=(letters.key.as_deref().unwrap_or_default()) {
            td.num.big { (brief(letters.count)) }
            td { (chart::spark(&letters.hourly, &format!("{}: {}", l.last_24_hours(), count(hours)))) }
            td.wide {
                a.headline href=(page_of(group, &view.by)) { (headline(group, &view.by, 160, l)) }
                div.small {
                    (trend(group.trend, l)) " "
                    @for (task_type, n) in letters.types.iter().take(3) { span.type { (said(task_type, 40)) } span.muted { " ×" (brief(*n)) " " } }
                    @if letters.types.len() > 3 { span.muted { "+" (letters.types.len() - 3) " " } }
                    @for reason in letters.reasons.keys().take(2) { span.muted { (l.reason(*reason)) " " } }
                    @if let Some(note) = &group.note {
                        @if let Some(owner) = &note.owner { span.owner { "@" (said(owner, 40)) " " } }
                        @if let Some(text) = &note.note { span.muted { (said(text, 80)) } }
                    }
                }
            }
            td.when data-name=(l.last_seen()) { (time(letters.last_died_at, ui.now, l)) }
            td.when data-name=(l.first_seen()) { (time(letters.first_died_at, ui.now, l)) }
            td.act { @if let (true, Some(filter)) = (ui.can_operate(), filter) { a.button href=(link::to("/dead/replay", [filter])) data-key="r" { (l.replay()) "…" } } }
        }
    }
}

/// One group.
#[derive(Debug, Clone)]
pub(crate) struct GroupView {
    pub by: LetterGroupBy,
    pub group: Group,
    /// The newest letters.
    pub samples: Vec<Task>,
}

/// The page.
pub(crate) fn render_group(view: &GroupView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let letters = &view.group.letters;
    let filter = filter_of(&view.by, letters.key.as_deref());
    let flag = filter.as_ref().map(|(name, value)| (format!("--{name}"), value.clone()));
    let list = filter.clone().map(|filter| link::to("/dead/list", [filter]));
    let body = html! {
        (heading(html! { (headline(&view.group, &view.by, 120, l)) }, html! { (trend(view.group.trend, l)) " " a href=(link::to("/dead", [("by", view.by.to_string())])) { (l.groups()) } }))
        @if let (true, Some(filter)) = (ui.can_operate(), &filter) {
            div.actions {
                a.button.primary href=(link::to("/dead/replay", [filter.clone()])) data-key="r" { (l.replay_n(&count(letters.count))) "…" }
                a.button.danger href=(link::to("/dead/discard", [filter.clone()])) { (l.discard()) "…" }
            }
        }
        div.two.wide-left {
            (panel("hours", l.last_24_hours(), html! { span.muted { (count(letters.count)) " " (l.now_dead()) } }, true, hours(view, ui)))
            (panel("facts", l.details(), nothing(), true, details(view, ui)))
        }
        (panel("samples", l.newest_letters(), html! { @if let Some(list) = &list { a href=(list) { (l.list_all()) } } }, true, samples(view, ui)))
        (note(view, ui))
        @if let Some((flag, value)) = &flag { (cli(&["redeliver", "dlq", "list", flag, value], l)) }
    };
    page(ui, Place::Dead, l.dead_letters(), &body)
}

fn hours(view: &GroupView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let hourly = &view.group.letters.hourly;
    let columns: Vec<_> = hourly
        .iter()
        .zip((0..hourly.len()).rev())
        .map(|(n, ago)| (vec![("bad", *n)], format!("−{ago} h: {n}")))
        .collect();
    html! {
        div.chart { (chart::columns(&columns, l.last_24_hours())) }
        div.axis { span { "−24 h" } span { (l.now()) } }
    }
}

fn details(view: &GroupView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let letters = &view.group.letters;
    let tally = |entries: Vec<(String, i64)>| html! { @for (name, n) in entries.iter().take(6) { div { (said(name, 60)) span.muted { " ×" (count(*n)) } } } };
    let mut rows = vec![
        (l.first_seen(), time(letters.first_died_at, ui.now, l)),
        (l.last_seen(), time(letters.last_died_at, ui.now, l)),
        (l.type_(), tally(letters.types.iter().map(|(name, n)| (name.clone(), *n)).collect())),
        (l.reason_is(), tally(letters.reasons.iter().map(|(reason, n)| (l.reason(*reason).to_owned(), *n)).collect())),
        (l.class(), tally(letters.classes.iter().map(|(name, n)| (name.clone(), *n)).collect())),
    ];
    if !letters.codes.is_empty() {
        rows.push((l.code(), tally(letters.codes.iter().map(|(name, n)| (name.clone(), *n)).collect())));
    }
    if let Some(at) = letters.next_replay_at {
        rows.push((l.next_automatic_replay(), time(at, ui.now, l)));
    }
    for (key, phase) in &view.group.breakers {
        let words = if *phase == Phase::HalfOpen { l.half_open() } else { l.open() };
        rows.push((l.breaker(), html! { a href=(link::to("/gates", [("key", key.as_str())])) { (said(key, 80)) } " " (badge("bad", words)) }));
    }
    if let (LetterGroupBy::Fingerprint, Some(key)) = (&view.by, &letters.key) {
        rows.push((l.fingerprint(), html! { code { (line(key, 64)) } }));
    }
    facts(rows)
}

fn samples(view: &GroupView, ui: &Ui) -> Markup {
    let l = ui.lang;
    html! {
        div.scroll { table.list.keys-list {
            thead { tr { th { "id" } th { (l.type_()) } th.wide { (l.error()) } th { (l.died()) } } }
            tbody {
                @for task in &view.samples {
                    tr data-row=(task.id()) {
                        td.id { a href=(link::task(task.id())) { (said(task.id(), 48)) } }
                        td.type { (said(&task.spec.task_type, 40)) " " (crate::console::parts::labels(task.spec.labels.iter().take(3))) }
                        td.wide { (crate::console::parts::error_line(task.state.failure.as_ref(), 140)) }
                        td.when { (crate::console::show::time_or_dash(task.state.ended_at, ui.now, l)) }
                    }
                }
            }
        } }
    }
}

fn note(view: &GroupView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let note = view.group.note.as_ref();
    let value = |text: Option<&String>| text.cloned().unwrap_or_default();
    let by = view.by.to_string();
    let Some(key) = &view.group.letters.key else { return nothing() };
    panel(
        "note",
        l.note_and_owner(),
        html! {
            @if let Some(note) = note { span.muted { (said(note.noted_by.as_deref().unwrap_or("–"), 40)) " · " (time(note.noted_at, ui.now, l)) } }
        },
        false,
        html! {
            @if ui.can_operate() {
                form.card.row method="post" action="/dead/note" {
                    (ui.csrf())
                    input type="hidden" name="by" value=(by);
                    input type="hidden" name="key" value=(key);
                    (field(l.owner(), html! { input type="text" name="owner" data-flag="--owner" maxlength="100" value=(value(note.and_then(|note| note.owner.as_ref()))); }, ""))
                    (field(l.note(), html! { input type="text" name="note" data-flag="--note" maxlength="1000" value=(value(note.and_then(|note| note.note.as_ref()))); }, ""))
                    button { (l.save()) }
                (live_cli(&["redeliver", "dlq", "note", key, "--by", &by], &[], l))
                }
            } @else if let Some(note) = note {
                p { @if let Some(owner) = &note.owner { span.owner { "@" (said(owner, 60)) } " " } @if let Some(text) = &note.note { (said(text, 1_000)) } }
            } @else { (empty(l.no_note())) }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_of_the_page_narrows_as_the_page_does() {
        let pairs = [("by", "class"), ("type", "order.#"), ("label", "shop=s-17")];
        let query = Query::new(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let view = DeadView { by: LetterGroupBy::Class, query, groups: Vec::new(), label_names: Vec::new() };
        let words = ["redeliver", "dlq", "groups", "--by", "class", "--type", "order.#", "--label", "shop=s-17"];
        assert_eq!(command(&view, "class"), words);
    }
}
