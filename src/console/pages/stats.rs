//! What the history says: which succeed on which attempt, by type, label, queue or policy (A2).

use maud::{Markup, html};

use crate::console::chart;
use crate::console::i18n::Lang;
use crate::console::link;
use crate::console::page::{Place, Ui, page};
use crate::console::parts::{cli, empty, field, figure, heading, nothing, panel};
use crate::console::query::Query;
use crate::console::show::{count, length, percent, ratio, time};
use crate::console::text::said;
use crate::policy::least_attempts;
use crate::store::{AttemptTally, FailureTally, Tally};
use crate::task::Millis;

/// What the page shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatsView {
    pub by: String,
    pub since: String,
    pub query: Query,
    pub problems: Vec<(String, String)>,
    pub groups: Vec<Tally>,
    pub more_groups: usize,
    /// Only what has ended since then is counted, because it would take too long to count all that was asked for.
    pub shortened: Option<Millis>,
    pub total: Tally,
    pub attempts: Vec<AttemptTally>,
    pub failures: Vec<FailureTally>,
}

/// The page.
pub(crate) fn render(view: &StatsView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let mut words = vec!["redeliver", "stats", "--by", &view.by];
    let flags = view.query.flags();
    words.extend(flags.iter().copied());
    if !flags.contains(&"--since") {
        words.extend(["--since", &view.since]);
    }
    let body = html! {
        (heading(l.stats(), html! { span.muted { (l.ended_since()) " " (view.since) } }))
        (form(view, l))
        @for (name, why) in &view.problems { p.notice.bad { code { (name) } ": " (said(why, 300)) } }
        @if let Some(since) = view.shortened { (shortened(since, "/stats", view.query.with("by", &view.by), ui)) }
        (figures(&view.total, l))
        (panel("groups", l.by_group(), nothing(), false, groups(view, l)))
        div.two {
            (panel("by-attempt", l.by_attempt(), nothing(), false, by_attempt(view, l)))
            (panel("failures", l.failure_reasons(), nothing(), false, failures(view, l)))
        }
        (cli(&words, l))
    };
    page(ui, Place::Stats, l.stats(), &body)
}

/// Says that not all was counted, and leads to where it is.
pub(crate) fn shortened(since: Millis, page: &str, query: Query, ui: &Ui) -> Markup {
    let l = ui.lang;
    html! {
        p.narrowed.muted {
            (l.newest_only()) " " (time(since, ui.now, l)) ". "
            a href=(link::to(page, query.with("all", "1").pairs())) { (l.count_all()) }
        }
    }
}

fn form(view: &StatsView, l: Lang) -> Markup {
    let value = |name: &str| view.query.get(name).unwrap_or_default().to_owned();
    html! {
        form.search method="get" action="/stats" role="search" {
            div.fields {
                (field(l.group_by(), html! { input type="text" name="by" value=(view.by) list="stats-by" autocomplete="off" spellcheck="false"; }, ""))
                datalist id="stats-by" { @for way in ["type", "label.shop", "policy", "variant", "queue"] { option value=(way) {} } }
                (field(l.since(), html! { input type="text" name="since" value=(view.since) autocomplete="off"; }, ""))
                (field(l.type_(), html! { input type="text" name="type" value=(value("type")) placeholder="order.#" data-search autocomplete="off" spellcheck="false"; }, ""))
                (field(l.label(), html! { input type="text" name="label" value=(value("label")) placeholder="shop=s-17" autocomplete="off" spellcheck="false"; }, ""))
                button.primary { (l.show()) }
            }
        }
    }
}

fn figures(total: &Tally, l: Lang) -> Markup {
    let first_try = ratio(total.succeeded_on[0], total.attempted);
    let permanent = ratio(total.permanent, total.attempted).unwrap_or(0.0);
    let least = first_try.map(|first_try| least_attempts(first_try, permanent, total.most_attempts - 1) - 1.0);
    let extra = ratio(total.attempts, total.attempted).map(|tries| tries - 1.0);
    html! {
        section.figures aria-label=(l.stats()) {
            (figure(l.tasks(), count(total.tasks), "", html! { (count(total.dead)) " " (l.dead()) }))
            (figure(l.final_success(), percent(ratio(total.succeeded, total.tasks)), "ok", html! { (percent(first_try)) " " (l.first_try()) }))
            (figure(l.attempts_per_success(), ratio(total.attempts, total.succeeded).map_or_else(|| "–".into(), |tries| format!("{tries:.2}")), "", html! { (count(total.attempts)) " " (l.attempts()) }))
            (figure(l.extra_requests(), percent(extra), "", html! { (l.least_possible()) " " (percent(least)) }))
            (figure(l.handler_time(), length(total.handler_ms), "", html! { @if total.cost > 0.0 { (l.cost()) " " (format!("{:.2}", total.cost)) } }))
            (figure(l.degraded(), count(total.degraded), "", html! { (count(total.fell_back)) " " (l.fell_back()) }))
        }
    }
}

fn groups(view: &StatsView, l: Lang) -> Markup {
    if view.groups.is_empty() {
        return empty(l.nothing_ended());
    }
    html! {
        div.scroll { table.list.keys-list {
            thead { tr {
                th.wide { (view.by) } th.num { (l.tasks()) } th { (l.on_which_attempt()) }
                th.num { "1." } th.num { "2." } th.num { "3." } th.num { "4.+" } th.num { (l.final_success()) } th.num { (l.attempts_per_success()) } th.num { (l.extra()) } th.num { (l.dead()) }
            } }
            tbody { @for tally in &view.groups { (row(view, tally, l)) } }
        } }
        @if view.more_groups > 0 { p.muted { "+" (view.more_groups) " " (l.more_groups()) } }
    }
}

fn row(view: &StatsView, tally: &Tally, l: Lang) -> Markup {
    let [first, second, third, later] = tally.succeeded_on;
    let parts = [
        ("ok", first),
        ("retry", second),
        ("retry2", third),
        ("retry3", later),
        ("warn", tally.fell_back),
        ("bad", tally.dead),
    ];
    let name = tally.group.as_deref();
    let filter = match view.by.as_str() {
        "type" => name.map(|name| ("type".to_owned(), name.to_owned())),
        "queue" => name.map(|name| ("queue".to_owned(), name.to_owned())),
        by => {
            by.strip_prefix("label.").zip(name).map(|(label, value)| ("label".to_owned(), format!("{label}={value}")))
        }
    };
    html! {
        tr data-row=(name.unwrap_or_default()) {
            td.wide {
                @match (name, filter) {
                    (Some(name), Some(filter)) => a href=(link::to("/tasks", [filter])) { (said(name, 80)) },
                    (Some(name), None) => (said(name, 80)),
                    (None, _) => span.muted { (l.without()) },
                }
                @if let Some(variant) = &tally.variant { " " strong { (said(variant, 40)) } }
            }
            td.num { (count(tally.tasks)) }
            td.bar { (chart::shares(&parts, &format!("1.: {first}, 2.: {second}, 3.: {third}, 4.+: {later}, {}: {}", l.dead(), tally.dead))) }
            @for n in tally.succeeded_on { td.num { (percent(ratio(n, tally.tasks))) } }
            td.num { strong { (percent(ratio(tally.succeeded, tally.tasks))) } }
            td.num { (ratio(tally.attempts, tally.succeeded).map_or_else(|| "–".into(), |tries| format!("{tries:.2}"))) }
            td.num { (percent(ratio(tally.attempts, tally.attempted).map(|tries| tries - 1.0))) }
            td.num { (count(tally.dead)) }
        }
    }
}

fn by_attempt(view: &StatsView, l: Lang) -> Markup {
    if view.attempts.is_empty() {
        return empty(l.nothing_ended());
    }
    html! {
        div.scroll { table.list {
            thead { tr { th.num { (l.attempt()) } th.num { (l.attempts()) } th.num { (l.succeeded()) } th.bar { } th.num { (l.success_rate()) } th.num { (l.handler_time()) } } }
            tbody {
                @for tally in &view.attempts {
                    tr {
                        td.num { (tally.number) }
                        td.num { (count(tally.attempts)) }
                        td.num { (count(tally.succeeded)) }
                        td.bar { (chart::shares(&[("ok", tally.succeeded), ("bad", tally.attempts - tally.succeeded)], &percent(ratio(tally.succeeded, tally.attempts)))) }
                        td.num { (percent(ratio(tally.succeeded, tally.attempts))) }
                        td.num { (length(tally.handler_ms)) }
                    }
                }
            }
        } }
    }
}

fn failures(view: &StatsView, l: Lang) -> Markup {
    if view.failures.is_empty() {
        return empty(l.nothing_failed());
    }
    html! {
        div.scroll { table.list {
            thead { tr { th.wide { (l.class()) } th.num { (l.attempts()) } th.num { (l.tasks()) } } }
            tbody {
                @for failure in &view.failures {
                    tr {
                        td.wide {
                            span.class { (said(&failure.class, 40)) }
                            @if let Some(code) = &failure.code { " " span.code { (said(code, 40)) } }
                            @if let Some(status) = failure.http_status { " " span.code { "HTTP " (status) } }
                        }
                        td.num { (count(failure.attempts)) }
                        td.num { (count(failure.tasks)) }
                    }
                }
            }
        } }
    }
}
