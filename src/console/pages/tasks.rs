//! Lists of tasks and of dead letters: the same filters as on the command line, all of them in the address.

use maud::{Markup, html};

use crate::console::i18n::Lang;
use crate::console::link;
use crate::console::page::{Place, Ui, page};
use crate::console::parts::{cli, empty, error_line, field, heading, labels, nothing, pager, panel, status_badge};
use crate::console::query::Query;
use crate::console::show::{count, time, time_or_dash};
use crate::console::text::said;
use crate::task::{DeadReason, Status, Task};

/// What the page shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct TasksView {
    /// Dead letters only.
    pub is_dead: bool,
    /// What was asked for, as it was typed.
    pub query: Query,
    /// What is wrong with it: field and why.
    pub problems: Vec<(String, String)>,
    pub items: Vec<Task>,
    pub next: Option<String>,
    /// How many there are in all, where that is known at no cost.
    pub total: Option<i64>,
}

/// The page.
pub(crate) fn render(view: &TasksView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let path = if view.is_dead { "/dead/list" } else { "/tasks" };
    let title = if view.is_dead { l.dead_letters() } else { l.tasks() };
    let next = view.next.as_deref().map(|cursor| link::to(path, view.query.with("cursor", cursor).pairs()));
    let first = view.query.get("cursor").map(|_| link::to(path, view.query.without("cursor").pairs()));
    let aside = html! {
        @if let Some(total) = view.total { span.muted { (count(total)) } }
        @if view.is_dead { " " a href=(link::to("/dead", [] as [(&str, &str); 0])) { (l.groups()) } }
    };
    let body = html! {
        (heading(title, aside))
        (search(view, path, l))
        @for (name, why) in &view.problems { p.notice.bad { code { (name) } ": " (said(why, 300)) } }
        (panel("list", title, nothing(), view.query.get("cursor").is_none(), list(view, ui)))
        (pager(first.as_deref(), next.as_deref(), l))
        (cli(&command(view), l))
    };
    page(ui, if view.is_dead { Place::Dead } else { Place::Tasks }, title, &body)
}

fn command(view: &TasksView) -> Vec<&str> {
    let mut words = vec!["redeliver", if view.is_dead { "dlq" } else { "task" }, "list"];
    words.extend(view.query.flags());
    words
}

/// The form: what people look for first stands open, the rest unfolds, and unfolded it stays when something of it is set.
fn search(view: &TasksView, path: &str, l: Lang) -> Markup {
    let value = |name: &str| view.query.get(name).unwrap_or_default().to_owned();
    let text = |name: &str, placeholder: &str| html! { input type="text" name=(name) value=(value(name)) placeholder=(placeholder) autocomplete="off" spellcheck="false" data-flag=(format!("--{name}")); };
    let more = ["class", "code", "http-status", "fingerprint", "queue", "since", "until", "attempts", "id"];
    let more_set = more.iter().any(|name| view.query.get(name).is_some());
    html! {
        form.search method="get" action=(path) role="search" {
            div.fields {
                (field(l.error_text(), html! { input type="search" name="text" value=(value("text")) data-search placeholder=(l.search_hint()) autocomplete="off"; }, ""))
                (field(l.type_(), text("type", "order.#"), ""))
                (field(l.label(), html! { @for pair in view.query.all("label").chain(std::iter::once("")).take(view.query.all("label").count().max(1)) {
                    input type="text" name="label" value=(pair) placeholder="shop=s-17" autocomplete="off" spellcheck="false";
                } }, ""))
                @if view.is_dead {
                    (field(l.reason_is(), select("reason-is", &value("reason-is"), DeadReason::ALL.map(|reason| (reason.as_str(), l.reason(reason))).as_slice(), l), ""))
                } @else {
                    (field(l.status_word(), select("status", &value("status"), Status::ALL.map(|status| (status.as_str(), l.status(status))).as_slice(), l), ""))
                }
                button.primary { (l.search()) }
                @if !view.query.is_empty() { a.button href=(path) { (l.clear()) } }
            }
            details open[more_set] {
                summary { (l.more_filters()) }
                div.fields {
                    (field(l.class(), text("class", "timeout"), ""))
                    (field(l.code(), text("code", "rate_limit"), ""))
                    (field("HTTP", text("http-status", "503"), ""))
                    (field(l.fingerprint(), text("fingerprint", ""), ""))
                    (field(l.queue(), text("queue", "default"), ""))
                    (field(l.since(), text("since", "2h"), ""))
                    (field(l.until(), text("until", "2026-01-31"), ""))
                    (field(l.attempts(), text("attempts", ">=3"), ""))
                    (field("id", text("id", ""), ""))
                }
            }
        }
    }
}

fn select(name: &str, chosen: &str, options: &[(&str, &str)], l: Lang) -> Markup {
    html! {
        select name=(name) {
            option value="" { (l.any()) }
            @for (value, words) in options { option value=(value) selected[*value == chosen] { (words) } }
        }
    }
}

fn list(view: &TasksView, ui: &Ui) -> Markup {
    let l = ui.lang;
    if view.items.is_empty() {
        return empty(if view.query.is_empty() && !view.is_dead { l.no_tasks() } else { l.nothing_matches() });
    }
    let selects = view.is_dead && ui.can_operate();
    let all = link::to("/dead/replay", view.query.without("cursor").pairs());
    html! {
        form method="get" action="/dead/replay" {
            @if selects {
                input type="hidden" name="chosen" value="1";
                div.selection {
                    label { input type="checkbox" data-select-all hidden; span.sr { (l.select_all()) } }
                    button.primary data-key="r" { (l.replay_selected()) span data-selected {} "…" }
                    a.button href=(all) { (l.replay_all_matching()) "…" }
                    button.danger formaction="/dead/discard" { (l.discard_selected()) "…" }
                }
            }
            div.scroll { table.list.keys-list {
                thead { tr {
                    @if selects { th.tick { span.sr { (l.select()) } } }
                    th { "id" } th { (l.type_()) } th { (l.status_word()) } th.wide { (l.error()) } th.num { (l.retries()) } th { (if view.is_dead { l.died() } else { l.when() }) }
                } }
                tbody { @for task in &view.items { (row(task, selects, ui)) } }
            } }
        }
    }
}

fn row(task: &Task, selects: bool, ui: &Ui) -> Markup {
    let l = ui.lang;
    let state = &task.state;
    html! {
        tr data-row=(task.id()) {
            @if selects { td.tick { input type="checkbox" name="id" value=(task.id()) aria-label=(crate::console::text::line(task.id(), 80)); } }
            td.id { a href=(link::task(task.id())) { (said(task.id(), 48)) } }
            td.type { (said(&task.spec.task_type, 48)) @if !task.spec.labels.is_empty() { " " (labels(task.spec.labels.iter().take(3))) } }
            td.status { (status_badge(task, l)) }
            td.wide { (error_line(state.failure.as_ref(), 140)) }
            td.num { (state.stamp.retry_count) }
            td.when {
                @if state.status.is_ended() { (time_or_dash(state.ended_at, ui.now, l)) } @else { (l.due()) " " (time(state.due_at, ui.now, l)) }
            }
        }
    }
}
