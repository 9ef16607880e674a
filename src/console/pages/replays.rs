//! Replay jobs: what a replay would do, what it does, and what became of each letter.

use maud::{Markup, html};

use crate::console::chart;
use crate::console::i18n::Lang;
use crate::console::link;
use crate::console::page::{Place, Ui, page};
use crate::console::parts::{
    badge, cli, empty, facts, field, figure, heading, live_cli, nothing, pager, panel, reason_field,
};
use crate::console::query::Query;
use crate::console::show::{count, length, percent, ratio, time, time_or_dash};
use crate::console::text::{line, said};
use crate::dead_letter::replay::{STAGES, time_left_ms};
use crate::store::{ItemCounts, ItemOutcome, ReplayItem, ReplayJob, ReplayState};
use crate::task::{Millis, Task};

/// What a person is about to do with letters: the form, after a look at what it would find.
#[derive(Debug, Clone)]
pub(crate) struct AskView {
    /// Discard them instead.
    pub discards: bool,
    pub query: Query,
    /// What is wrong with the query: field and why.
    pub problems: Vec<(String, String)>,
    pub found: ItemCounts,
    pub samples: Vec<Task>,
}

/// What the form proposes.
const RATE: &str = "20/s";
const FAILURE_RATIO: &str = "0.2";

/// The page.
pub(crate) fn render_ask(view: &AskView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let title = if view.discards { l.discard() } else { l.replay() };
    let willing = view.found.waiting;
    let body = html! {
        (heading(title, html! { a href=(link::to("/dead/list", view.query.pairs())) { (l.dead_letters()) } }))
        @for (name, why) in &view.problems { p.notice.bad { code { (name) } ": " (said(why, 300)) } }
        section.figures aria-label=(l.looked_at_first()) {
            (figure(l.matching(), count(view.found.matched()), "", l.frozen_selection()))
            (figure(if view.discards { l.will_be_discarded() } else { l.will_run_again() }, count(willing), if willing > 0 { "ok" } else { "" }, ""))
            (figure(l.skipped(), count(view.found.skipped()), "", html! { @for (why, n) in &view.found.skipped { div { (why_skipped(why, l)) " ×" (count(*n)) } } }))
        }
        @if willing == 0 { (empty(l.nothing_to_do())) } @else if ui.can_operate() { (form(view, willing, ui)) }
        (panel("samples", l.newest_letters(), nothing(), false, samples(view, ui)))
    };
    page(ui, Place::Dead, title, &body)
}

fn form(view: &AskView, willing: i64, ui: &Ui) -> Markup {
    let l = ui.lang;
    let verb = if view.discards { "discard" } else { "replay" };
    let mut base = vec!["redeliver", "dlq", verb];
    let flags = view.query.flags();
    if flags.is_empty() {
        base.push("--all")
    } else {
        base.extend(flags)
    }
    let now: &[&str] = if view.discards {
        &["--yes"]
    } else if willing > 1 {
        &["--rate", RATE, "--ramp", "--max-failure-ratio", FAILURE_RATIO, "--yes"]
    } else {
        &["--yes"]
    };
    html! {
        form.card.ask-form method="post" action=(if view.discards { "/dead/discard" } else { "/dead/replay" }) data-tail="--yes" {
            (ui.csrf())
            @for (name, value) in view.query.filters().without("cursor").pairs() { input type="hidden" name=(name) value=(value); }
            @if !view.discards && willing > 1 {
                div.fields {
                    (field(l.rate(), html! { input type="text" name="rate" value=(RATE) data-flag="--rate" autocomplete="off" size="8"; }, l.rate_hint()))
                    (field(l.max_failure_ratio(), html! { input type="text" name="max_failure_ratio" value=(FAILURE_RATIO) data-flag="--max-failure-ratio" inputmode="decimal" autocomplete="off" size="6"; }, l.max_failure_ratio_hint()))
                    label.field.check { input type="checkbox" name="ramp" value="true" checked data-flag="--ramp"; span.name { (l.ramp()) } span.hint { (l.ramp_hint()) } }
                }
            }
            (reason_field(l, view.discards, l.reason_example()))
            (live_cli(&base, now, l))
            div.actions {
                button.primary[!view.discards].danger[view.discards] {
                    @if view.discards { (l.discard_n(&count(willing))) } @else { (l.replay_n(&count(willing))) }
                }
                a.button href=(link::to("/dead/list", view.query.pairs())) { (l.back()) }
            }
        }
    }
}

fn samples(view: &AskView, ui: &Ui) -> Markup {
    let l = ui.lang;
    html! {
        div.scroll { table.list { tbody {
            @for task in &view.samples {
                tr {
                    td.id { a href=(link::task(task.id())) { (said(task.id(), 48)) } }
                    td.type { (said(&task.spec.task_type, 40)) }
                    td.wide { (crate::console::parts::error_line(task.state.failure.as_ref(), 120)) }
                    td.when { (time_or_dash(task.state.ended_at, ui.now, l)) }
                }
            }
        } } }
    }
}

/// Why a letter was skipped, in words; a word that is not known here stays as it is.
fn why_skipped(why: &str, l: Lang) -> String {
    match why {
        "not_replayable" => l.skip_not_replayable().to_owned(),
        "not_dead" | "state_changed" => l.skip_not_dead().to_owned(),
        "not_found" => l.skip_not_found().to_owned(),
        "not_matched" => l.skip_not_matched().to_owned(),
        other => other.replace('_', " "),
    }
}

/// All jobs.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobsView {
    pub jobs: Vec<ReplayJob>,
    pub next: Option<i64>,
}

/// The page.
pub(crate) fn render_jobs(view: &JobsView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let next = view.next.map(|before| link::to("/replays", [("before", before.to_string())]));
    let body = html! {
        (heading(l.replay_jobs(), nothing()))
        (panel("jobs", l.replay_jobs(), nothing(), true, html! {
            @if view.jobs.is_empty() { (empty(l.no_jobs())) } @else {
                div.scroll { table.list.keys-list {
                    thead { tr { th { "#" } th { (l.state()) } th.wide { (l.progress()) } th.num { (l.letters()) } th { (l.reason_why()) } th { (l.started()) } th { (l.time_left()) } } }
                    tbody { @for job in &view.jobs { (job_row(job, ui)) } }
                } }
            }
        }))
        (pager(None, next.as_deref(), l))
        (cli(&["redeliver", "replay", "list"], l))
    };
    page(ui, Place::Replays, l.replay_jobs(), &body)
}

fn job_row(job: &ReplayJob, ui: &Ui) -> Markup {
    let l = ui.lang;
    html! {
        tr data-row=(job.id) {
            td.id { a href=(link::to(&format!("/replays/{}", job.id), [] as [(&str, &str); 0])) { "#" (job.id) } }
            td { (state_badge(job.state, l)) }
            td.wide { (progress(&job.counts, l)) }
            td.num { (count(job.counts.matched())) }
            td { (said(job.reason.as_deref().unwrap_or("–"), 60)) div.small.muted { (said(job.created_by.as_deref().unwrap_or(l.automatic()), 40)) } }
            td.when { (time(job.created_at, ui.now, l)) }
            td.when { (time_left(job, ui.now, l)) }
        }
    }
}

fn state_badge(state: ReplayState, l: Lang) -> Markup {
    let (tone, words) = match state {
        ReplayState::Selecting => ("wait", l.job_selecting()),
        ReplayState::Running => ("run", l.running()),
        ReplayState::Paused => ("warn", l.paused()),
        ReplayState::Stopped => ("bad", l.job_stopped()),
        ReplayState::Cancelled => ("dim", l.cancelled()),
        ReplayState::Done => ("ok", l.job_done()),
    };
    badge(tone, words)
}

fn progress(counts: &ItemCounts, l: Lang) -> Markup {
    let words = format!(
        "{} {}, {} {}, {} {}, {} {}, {} {}",
        counts.succeeded,
        l.succeeded(),
        counts.failed_again,
        l.failed_again(),
        counts.replayed,
        l.running(),
        counts.waiting,
        l.waiting(),
        counts.skipped(),
        l.skipped()
    );
    let parts = [
        ("ok", counts.succeeded),
        ("bad", counts.failed_again),
        ("run", counts.replayed),
        ("dim", counts.skipped() + counts.cancelled),
        ("none", counts.waiting),
    ];
    html! {
        (chart::shares(&parts, &words))
        div.small.muted {
            (percent(ratio(counts.matched() - counts.waiting - counts.replayed, counts.matched())))
            " · " (count(counts.succeeded)) " " (l.succeeded())
            @if counts.failed_again > 0 { " · " span.bad { (count(counts.failed_again)) " " (l.failed_again()) } }
        }
    }
}

/// How long until the last letter is released, by the job's rate; while a ramp goes on, by its own pace so far.
pub(crate) fn left_ms(job: &ReplayJob, now: Millis) -> Option<Millis> {
    if job.state != ReplayState::Running || job.counts.waiting == 0 {
        return None;
    }
    time_left_ms(&job.pace, job.stage, &job.counts).or_else(|| {
        let so_far = now.saturating_sub(job.created_at).max(1);
        let released = Some(job.counts.released()).filter(|released| *released > 0)?;
        Some(so_far.saturating_mul(job.counts.waiting) / released)
    })
}

fn time_left(job: &ReplayJob, now: Millis, l: Lang) -> Markup {
    match (left_ms(job, now), job.ended_at) {
        (Some(ms), _) => html! { (l.about()) " " (length(ms)) },
        (None, Some(ended)) => html! { span.muted { (l.took()) " " (length(ended.saturating_sub(job.created_at))) } },
        _ => html! { span.muted { "–" } },
    }
}

/// One job.
#[derive(Debug, Clone)]
pub(crate) struct JobView {
    pub job: ReplayJob,
    /// Only these outcomes are listed; `None`: all.
    pub outcome: Option<ItemOutcome>,
    pub items: Vec<ReplayItem>,
    /// The position after which the next page begins.
    pub next: Option<i64>,
    /// Whether this is not the first page.
    pub is_later: bool,
}

/// The page.
pub(crate) fn render_job(view: &JobView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let job = &view.job;
    let here = format!("/replays/{}", job.id);
    let id = job.id.to_string();
    let body = html! {
        (heading(html! { (l.replay_job()) " #" (job.id) }, html! { span data-live id="job-state" { (state_badge(job.state, l)) } }))
        @if job.reason.is_some() { p.lead { (said(job.reason.as_deref().unwrap_or_default(), 300)) } }
        (job_figures(job, ui))
        section.job-actions id="job-actions" data-live { (job_actions(job, &here, ui)) }
        div.two.wide-left {
            (panel("stages", l.progress(), nothing(), true, html! { (progress(&job.counts, l)) (stages(job, l)) @if let Some(why) = &job.why { p.notice.bad[job.state == ReplayState::Stopped] { (said(why, 500)) } } }))
            (panel("facts", l.details(), nothing(), false, job_facts(job, ui)))
        }
        (panel("items", l.each_letter(), nothing(), !view.is_later, items(view, &here, ui)))
        (pager(
            view.is_later.then(|| link::to(&here, view.outcome.map(|outcome| ("outcome", outcome.as_str())))).as_deref(),
            view.next.map(|after| link::to(&here, view.outcome.map(|outcome| ("outcome", outcome.as_str().to_owned())).into_iter().chain([("after", after.to_string())]))).as_deref(),
            l,
        ))
        (cli(&["redeliver", "replay", "show", &id], l))
    };
    page(ui, Place::Replays, &format!("{} #{}", l.replay_job(), job.id), &body)
}

fn job_figures(job: &ReplayJob, ui: &Ui) -> Markup {
    let l = ui.lang;
    let counts = &job.counts;
    let ended = counts.succeeded + counts.failed_again;
    html! {
        section.figures id="job-figures" data-live aria-label=(l.progress()) {
            (figure(l.letters(), count(counts.matched()), "", html! { (count(counts.waiting)) " " (l.waiting()) }))
            (figure(l.succeeded(), count(counts.succeeded), if counts.succeeded > 0 { "ok" } else { "" }, percent(ratio(counts.succeeded, ended))))
            (figure(l.failed_again(), count(counts.failed_again), if counts.failed_again > 0 { "bad" } else { "" }, html! { @if let Some(most) = job.pace.max_failure_ratio { (l.stops_above()) " " (percent(Some(most))) } }))
            (figure(l.running(), count(counts.replayed), "", l.replayed_and_running()))
            (figure(l.skipped(), count(counts.skipped()), "", html! { @for (why, n) in &counts.skipped { div { (why_skipped(why, l)) " ×" (count(*n)) } } }))
            (figure(if job.ended_at.is_some() { l.took() } else { l.time_left() }, left_ms(job, ui.now).or(job.ended_at.map(|ended| ended.saturating_sub(job.created_at))).map_or_else(|| "–".to_owned(), length), "", html! { @if let Some(rate) = job.pace.rate_per_s { (rate) "/s" } }))
        }
    }
}

fn job_actions(job: &ReplayJob, here: &str, ui: &Ui) -> Markup {
    let l = ui.lang;
    if !ui.can_operate() || job.state.is_final() {
        return nothing();
    }
    let id = job.id.to_string();
    let button = |what: &str, label: &str, tone: &str| {
        html! { form method="post" action=(format!("{here}/{what}")) { (ui.csrf()) button class=(tone) { (label) } } }
    };
    html! {
        div.actions {
            @if job.state == ReplayState::Paused { (button("resume", l.resume(), "primary")) } @else { (button("pause", l.pause(), "")) }
            (button("cancel", l.cancel_job(), "danger"))
        }
        (cli(&["redeliver", "replay", if job.state == ReplayState::Paused { "resume" } else { "pause" }, &id], l))
    }
}

/// The stages of a ramp, those that are past, the present one, those to come.
fn stages(job: &ReplayJob, l: Lang) -> Markup {
    if !job.pace.ramp {
        return nothing();
    }
    let is_over = matches!(job.state, ReplayState::Done);
    html! {
        ol.stages {
            @for (index, stage) in STAGES.iter().enumerate() {
                li.past[index < job.stage || is_over].present[index == job.stage && !is_over] aria-current=[(index == job.stage && !is_over).then_some("step")] {
                    (stage / 10) " %" @if index == 0 { span.muted { " " (l.canary()) } }
                }
            }
        }
    }
}

fn job_facts(job: &ReplayJob, ui: &Ui) -> Markup {
    let l = ui.lang;
    let about = job.about.as_object().map(|about| {
        about
            .iter()
            .map(|(name, value)| format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
            .collect::<Vec<_>>()
            .join(" ")
    });
    let mut rows = vec![
        (l.selection(), html! { code { (line(&about.unwrap_or_else(|| job.about.to_string()), 400)) } }),
        (l.by(), said(job.created_by.as_deref().unwrap_or(l.automatic()), 60)),
        (l.started(), time(job.created_at, ui.now, l)),
        (l.ended(), time_or_dash(job.ended_at, ui.now, l)),
        (l.rate(), html! { @match job.pace.rate_per_s { Some(rate) => { (rate) "/s" }, None => (l.no_limit()) } }),
        (l.worker(), said(job.worker.as_deref().unwrap_or("–"), 80)),
    ];
    if let Some(by) = &job.changed_by {
        rows.push((l.changed(), html! { (said(by, 60)) " " (time(job.changed_at, ui.now, l)) }));
    }
    if let Some(edit) = &job.edit {
        rows.push((l.json_patch(), html! { code { (line(edit, 300)) } }));
    }
    facts(rows)
}

fn items(view: &JobView, here: &str, ui: &Ui) -> Markup {
    let l = ui.lang;
    html! {
        nav.tabs aria-label=(l.outcome_word()) {
            a href=(here) aria-current=[view.outcome.is_none().then_some("true")] { (l.all()) }
            @for outcome in ItemOutcome::ALL {
                a href=(link::to(here, [("outcome", outcome.as_str())])) aria-current=[(view.outcome == Some(outcome)).then_some("true")] { (outcome_words(outcome, l)) }
            }
        }
        @if view.items.is_empty() { (empty(l.nothing_here())) } @else {
            div.scroll { table.list.keys-list {
                thead { tr { th.num { "#" } th { "id" } th { (l.outcome_word()) } th.wide { } th { (l.when()) } } }
                tbody {
                    @for item in &view.items {
                        tr data-row=(item.position) {
                            td.num.muted { (item.position) }
                            td.id { a href=(link::task(&item.task_id)) { (said(&item.task_id, 60)) } @if let Some(other) = &item.runs_as { " → " a href=(link::task(other)) { (said(other, 60)) } } }
                            td { (badge(outcome_tone(item.outcome), outcome_words(item.outcome, l))) }
                            td.wide { @if let Some(why) = &item.why { (why_skipped(why, l)) } }
                            td.when { (time(item.at, ui.now, l)) }
                        }
                    }
                }
            } }
        }
    }
}

fn outcome_words(outcome: ItemOutcome, l: Lang) -> &'static str {
    match outcome {
        ItemOutcome::Waiting => l.waiting(),
        ItemOutcome::Replayed => l.running(),
        ItemOutcome::Skipped => l.skipped(),
        ItemOutcome::FailedAgain => l.failed_again(),
        ItemOutcome::Succeeded => l.succeeded(),
        ItemOutcome::Cancelled => l.cancelled(),
    }
}

fn outcome_tone(outcome: ItemOutcome) -> &'static str {
    match outcome {
        ItemOutcome::Waiting => "wait",
        ItemOutcome::Replayed => "run",
        ItemOutcome::Skipped | ItemOutcome::Cancelled => "dim",
        ItemOutcome::FailedAgain => "bad",
        ItemOutcome::Succeeded => "ok",
    }
}
