//! Which rules are in force, what they would do to a task and why, and which variant of one does better.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::console::chart;
use crate::console::i18n::Lang;
use crate::console::link;
use crate::console::page::{Place, Ui, page};
use crate::console::pages::stats::shortened;
use crate::console::parts::{badge, cli, empty, facts, field, heading, nothing, panel};
use crate::console::query::Query;
use crate::console::show::{count, length, moment, percent, ratio, time};
use crate::console::text::{line, said};
use crate::policy::{Arm, Backoff, Ends, Explanation, OverCap, Policy, RetryAfterMode, Timetable, sentence};
use crate::store::{PolicyVersion, Tally};
use crate::task::Millis;

/// What the page shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct PoliciesView {
    /// In the order in which they are tried; the built-in last one too.
    pub rules: Vec<std::sync::Arc<Policy>>,
    /// Where they come from; `None`: this server's own file.
    pub version: Option<i64>,
    pub digest: String,
    pub versions: Vec<PolicyVersion>,
    pub question: Question,
    pub answer: Option<Result<Answer, String>>,
    /// Variants, by policy.
    pub variants: Vec<Tally>,
    /// Only what has ended since then is counted.
    pub shortened: Option<Millis>,
}

/// What was asked, as it was typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Question {
    pub task_type: String,
    pub labels: String,
    pub at: String,
}

/// What would happen.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub at: Millis,
    pub queue: String,
    pub labels: BTreeMap<String, String>,
    pub explained: Explanation,
    /// Keys of the gates that a retry passes.
    pub gates: Vec<String>,
}

/// Fewer tasks than this in a variant say too little, whatever the interval.
const FEW: i64 = 30;

/// The page.
pub(crate) fn render(view: &PoliciesView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let body = html! {
        (heading(l.policies(), html! {
            @match view.version { Some(version) => { (l.version()) " " (version) }, None => (l.own_file_rules()) }
            " " code title=(view.digest) { (view.digest.get(..12).unwrap_or_default()) }
        }))
        (panel("explain", l.explain(), nothing(), false, explain(view, ui)))
        (panel("in-force", l.in_force(), nothing(), false, rules(view, l)))
        (panel("report", l.ab_report(), nothing(), true, html! {
            @if let Some(since) = view.shortened.filter(|_| !view.variants.is_empty()) { (shortened(since, "/policies", Query::default(), ui)) }
            (report(view, l))
        }))
        (panel("versions", l.versions(), nothing(), false, versions(view, ui)))
    };
    page(ui, Place::Policies, l.policies(), &body)
}

fn explain(view: &PoliciesView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let question = &view.question;
    html! {
        form.search method="get" action="/policies" {
            div.fields {
                (field(l.type_(), html! { input type="text" name="type" value=(question.task_type) placeholder="order.ship" required autocomplete="off" spellcheck="false" data-search; }, ""))
                (field(l.labels(), html! { input type="text" name="labels" value=(question.labels) placeholder="shop_tier=vip shop=s-17" autocomplete="off" spellcheck="false"; }, ""))
                (field(l.at(), html! { input type="text" name="at" value=(question.at) placeholder="2026-07-01T03:00[Asia/Shanghai]" autocomplete="off" spellcheck="false"; }, ""))
                button.primary { (l.explain()) }
            }
        }
        @match &view.answer {
            None => (empty(l.explain_hint())),
            Some(Err(why)) => p.notice.bad { (said(why, 400)) },
            Some(Ok(answer)) => (answered(question, answer, ui)),
        }
    }
}

fn answered(question: &Question, answer: &Answer, ui: &Ui) -> Markup {
    let l = ui.lang;
    let explained = &answer.explained;
    let policy = &explained.policy;
    let pairs: Vec<String> = answer.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut words = vec!["redeliver", "policy", "explain", "--type", &question.task_type];
    for pair in &pairs {
        words.extend(["--label", pair.as_str()]);
    }
    if !question.at.trim().is_empty() {
        words.extend(["--at", question.at.trim()]);
    }
    html! {
        div.answer {
            p.verdict { (l.decides()) " " strong { (said(&policy.name, 80)) } " " span.muted { (l.at()) " " (moment(answer.at)) " · " (l.queue()) " " (said(&answer.queue, 60)) } }
            @if !explained.passed_over.is_empty() {
                h3 { (l.why_not_earlier()) }
                ul.passed { @for (name, why) in &explained.passed_over { li { strong { (said(name, 80)) } " " span.muted { (said(why, 200)) } } } }
            }
            @for table in &explained.schedules { (timetable(table, answer.at, l)) }
            (facts(vec![
                ("Retry-After", html! { (retry_after(policy, l)) }),
                (l.deadline(), html! { @match policy.deadline_ms { Some(ms) => (length(ms)), None => "–" } }),
                (l.fallbacks(), html! { @if policy.fallbacks().next().is_none() { "–" } @for fallback in policy.fallbacks() { (fallback.as_str()) " " } }),
                (l.automatic_replays(), html! { @if policy.replay_after_ms.is_empty() { "–" } @for ms in &policy.replay_after_ms { (length(*ms)) " " } }),
                (l.gates(), html! { @if answer.gates.is_empty() { "–" } @for key in &answer.gates { div { code { (line(key, 160)) } } } }),
            ]))
            (cli(&words, l))
        }
    }
}

/// When retries would come, drawn to scale with what jitter may do.
fn timetable(table: &Timetable, at: Millis, l: Lang) -> Markup {
    let last = table.retries.last().map_or(1, |due| due.latest_at.saturating_sub(at)).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a drawing")]
    let share = |moment: Millis| moment.saturating_sub(at) as f64 / last as f64;
    html! {
        h3 { (said(&table.source, 160)) }
        p.muted { (backoff(&table.backoff)) " · " (table.retries.len()) " " (l.retries()) " · " (ends(&table.ends, l)) }
        div.scroll { table.list.timetable {
            thead { tr { th.num { "#" } th { (l.delay()) } th.wide { (l.when()) } th { (l.earliest()) } th { (l.latest()) } } }
            tbody {
                @for due in &table.retries {
                    tr {
                        td.num { (due.retry) }
                        td { @if due.least_ms == due.most_ms { (length(due.least_ms)) } @else { (length(due.least_ms)) " – " (length(due.most_ms)) } }
                        td.wide { (chart::interval((share(due.earliest_at) + share(due.latest_at)) / 2.0, share(due.earliest_at), share(due.latest_at), (0.0, 1.0), false, &format!("+{} – +{}", length(due.earliest_at - at), length(due.latest_at - at)))) }
                        td { "+" (length(due.earliest_at.saturating_sub(at))) }
                        td { "+" (length(due.latest_at.saturating_sub(at))) }
                    }
                }
            }
        } }
    }
}

fn backoff(backoff: &Backoff) -> String {
    match backoff {
        Backoff::Steps(steps) => steps.iter().map(|step| length(*step)).collect::<Vec<_>>().join(" / "),
        Backoff::Fixed(delay) => length(*delay),
        Backoff::Exponential { base_ms, max_ms, multiplier, jitter } => {
            format!("{} × {multiplier}ⁿ ≤ {}, ± {:.0} %", length(*base_ms), length(*max_ms), jitter * 100.0)
        }
    }
}

fn ends(ends: &Ends, l: Lang) -> String {
    match ends {
        Ends::Exhausted => format!("→ {}", l.retries_exhausted()),
        Ends::Deadline { at } => format!("→ {} ({})", l.deadline_exceeded(), moment(*at)),
        Ends::OtherRule { policy, at } => format!("→ {} {} ({})", l.policy(), line(policy, 60), moment(*at)),
    }
}

fn retry_after(policy: &Policy, l: Lang) -> String {
    let rule = policy.retry_after;
    let beyond = match rule.over_cap {
        OverCap::Cap => format!("≤ {}", length(rule.cap_ms)),
        OverCap::Honour => l.retry_after_honour().to_owned(),
        OverCap::DeadLetter => format!("> {} → {}", length(rule.cap_ms), l.dead()),
    };
    match rule.mode {
        RetryAfterMode::Ignore => l.retry_after_ignored().to_owned(),
        RetryAfterMode::Exact => format!("{}, {beyond}", l.retry_after_exact()),
        RetryAfterMode::Floor => format!("{}, {beyond}", l.retry_after_floor()),
    }
}

fn rules(view: &PoliciesView, l: Lang) -> Markup {
    html! {
        div.scroll { table.list {
            thead { tr { th.num { "#" } th { (l.policy()) } th { (l.type_()) } th { (l.labels()) } th { (l.hours()) } th.num { (l.retries()) } th.wide { (l.backoff()) } } }
            tbody {
                @for (index, rule) in view.rules.iter().enumerate() {
                    tr {
                        td.num.muted { (index + 1) }
                        td { a href=(link::to("/tasks", [("type", rule.task_type.as_str())])) { (said(&rule.name, 60)) } @if rule.critical { " " (badge("warn", l.critical())) } }
                        td { code { (line(rule.task_type.as_str(), 60)) } }
                        td { @for (name, value) in &rule.labels { code { (line(&format!("{name}={value}"), 60)) } " " } }
                        td { @if let Some(hours) = &rule.hours { (hours) } }
                        td.num { (rule.max_retries) }
                        td.wide {
                            @if rule.variants.is_empty() { (backoff(&rule.backoff)) }
                            @for variant in &rule.variants { div { strong { (said(&variant.name, 40)) } " " span.muted { (variant.weight) " · " } (backoff(&variant.backoff)) } }
                        }
                    }
                }
            }
        } }
    }
}

fn report(view: &PoliciesView, l: Lang) -> Markup {
    if view.variants.is_empty() {
        return empty(l.no_variants());
    }
    let count_of = |n: i64| u64::try_from(n).unwrap_or(0);
    let arm = |tally: &Tally| Arm {
        name: tally.variant.clone().unwrap_or_default(),
        n: count_of(tally.tasks),
        succeeded: count_of(tally.succeeded),
    };
    html! {
        @for policy in view.variants.chunk_by(|a, b| a.group == b.group) {
            @let arms: Vec<Arm> = policy.iter().map(arm).collect();
            @let lowest = arms.iter().map(|arm| arm.interval().0).fold(1.0_f64, f64::min);
            @let scale = ((lowest - 0.02).max(0.0), 1.0);
            @let best = arms.iter().max_by(|a, b| a.rate().total_cmp(&b.rate())).map(|arm| arm.name.clone());
            h3 { (said(policy.first().and_then(|tally| tally.group.as_deref()).unwrap_or("–"), 80)) }
            p { (said(&sentence(&arms), 400)) @if policy.iter().any(|tally| tally.tasks < FEW) { " · " span.warn { (l.too_few()) } } }
            div.scroll { table.list {
                thead { tr { th { (l.variant()) } th.num { (l.tasks()) } th.num { (l.success_rate()) } th.wide { (l.interval_95()) " " span.muted { (percent(Some(scale.0))) " – 100 %" } } th.num { (l.attempts()) } th.num { "p50" } th.num { "p95" } th.num { (l.cost()) } } }
                tbody {
                    @for (tally, arm) in policy.iter().zip(&arms) {
                        @let (low, high) = arm.interval();
                        tr {
                            td { strong { (said(&arm.name, 40)) } }
                            td.num { (count(tally.tasks)) }
                            td.num { (percent(Some(arm.rate()))) }
                            td.wide { (chart::interval(arm.rate(), low, high, scale, best.as_ref() == Some(&arm.name), &format!("{}: {} – {}", line(&arm.name, 40), percent(Some(low)), percent(Some(high))))) }
                            td.num { (ratio(tally.attempts, tally.tasks).map_or_else(|| "–".into(), |tries| format!("{tries:.2}"))) }
                            td.num { (tally.p50_ms.map_or_else(|| "–".into(), length)) }
                            td.num { (tally.p95_ms.map_or_else(|| "–".into(), length)) }
                            td.num { (ratio(1, tally.tasks).map_or_else(|| "–".into(), |share| format!("{:.3}", share * tally.cost))) }
                        }
                    }
                }
            } }
        }
        (cli(&["redeliver", "policy", "report"], l))
    }
}

fn versions(view: &PoliciesView, ui: &Ui) -> Markup {
    let l = ui.lang;
    if view.versions.is_empty() {
        return empty(l.no_versions());
    }
    html! {
        div.scroll { table.list {
            thead { tr { th.num { (l.version()) } th { (l.when()) } th { (l.by()) } th.wide { (l.reason_why()) } th { } } }
            tbody {
                @for version in &view.versions {
                    tr {
                        td.num { (version.version) }
                        td.when { (time(version.applied_at, ui.now, l)) }
                        td { (said(&version.rules.applied_by, 60)) }
                        td.wide { (said(version.rules.reason.as_deref().unwrap_or("–"), 200)) }
                        td { @match &version.rules.text {
                            Some(text) => details { summary { (l.text()) } pre tabindex="0" dir="auto" { code { (crate::console::text::head(text).0) } } },
                            None => span.muted { (l.own_files_again()) },
                        } }
                    }
                }
            }
        } }
    }
}
