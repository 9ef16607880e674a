//! One task: what went wrong, every attempt and why it came when it came, what the attempts left, what was asked for.

use maud::{Markup, html};

use crate::console::i18n::Lang;
use crate::console::link;
use crate::console::page::{Place, Ui, page};
use crate::console::parts::{
    badge, block, cli, code_of, error_line, facts, field, heading, labels, live_cli, nothing, panel, reason_field,
    status_badge, tone_of_outcome,
};
use crate::console::show::{bytes, length, moment, time};
use crate::console::text::{line, said};
use crate::store::look::{AttachmentHead, AttemptHead};
use crate::store::{GroupNote, ReplayItem};
use crate::task::{AttemptOutcome, EditPreview, EditRecord, Failure, Millis, Status, Task, TaskResult};

/// What the page shows.
#[derive(Debug, Clone)]
pub(crate) struct TaskView {
    pub task: Task,
    /// Oldest first.
    pub attempts: Vec<AttemptHead>,
    pub result: Option<TaskResult>,
    /// As this viewer may see it.
    pub payload: String,
    /// Fields of the payload are hidden from this viewer.
    pub is_masked: bool,
    /// The bytes of a refused submission are hidden from this viewer.
    pub hides_raw: bool,
    /// What people have written at the letters with the same failure.
    pub note: Option<GroupNote>,
    /// The replay jobs it was in, newest first.
    pub replays: Vec<ReplayItem>,
    /// Edits that made it, or were made of it.
    pub edits: Vec<EditRecord>,
}

/// Media types that are shown in place: pictures without scripts.
pub(crate) const SHOWN_IN_PLACE: [&str; 5] = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];

/// The page.
pub(crate) fn render(view: &TaskView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let task = &view.task;
    let is_dead = task.state.status == Status::Dead;
    let noun = if is_dead { "dlq" } else { "task" };
    let body = html! {
        (heading(html! { (said(task.id(), 120)) }, html! { (status_badge(task, l)) }))
        p.lead { span.type { (said(&task.spec.task_type, 120)) } " " (labels(&task.spec.labels)) }
        (actions(view, ui))
        @if let Some(failure) = task.state.failure.as_ref().filter(|_| task.state.status != Status::Succeeded) {
            (error(view, failure, ui))
        }
        div.two.wide-left {
            (panel("timeline", l.timeline(), html! { span.muted { "UTC" } }, true, timeline(view, ui)))
            (panel("facts", l.details(), nothing(), true, details(view, ui)))
        }
        @match &task.spec.raw {
            Some(raw) => (panel("raw", l.as_it_arrived(), html! { (bytes(u64::try_from(raw.length).unwrap_or(0))) }, false, html! {
                (facts(vec![("routing key", said(&raw.routing_key, 200)), ("message_id", said(raw.message_id.as_deref().unwrap_or("–"), 200))]))
                @if view.hides_raw { p.muted { (l.masked()) } } @else { (block(&String::from_utf8_lossy(&raw.bytes), false, Some(&part(task.id(), "raw")), l)) }
            })),
            None => (panel("payload", l.payload(), html! { @if view.is_masked { (badge("dim", l.masked())) } }, false,
                block(&view.payload, true, Some(&part(task.id(), "payload")), l))),
        }
        @if let Some(result) = &view.result {
            (panel("result", l.result(), html! { span.muted { (said(&result.media_type, 60)) @if result.truncated { " · " (l.truncated()) } } }, false, result_block(task.id(), result, l)))
        }
        (cli(&["redeliver", noun, "show", task.id()], l))
    };
    page(ui, if is_dead { Place::Dead } else { Place::Tasks }, &line(task.id(), 60), &body)
}

fn part(id: &str, what: &str) -> String {
    format!("{}/{what}", link::task(id))
}

fn result_block(id: &str, result: &TaskResult, l: Lang) -> Markup {
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&result.body).is_ok();
    block(&String::from_utf8_lossy(&result.body), is_json, Some(&part(id, "result")), l)
}

fn error(view: &TaskView, failure: &Failure, ui: &Ui) -> Markup {
    let l = ui.lang;
    let same = link::to("/dead/group", [("by", "fingerprint"), ("key", failure.fingerprint.as_str())]);
    panel(
        "error",
        l.last_error(),
        html! { @if !failure.fingerprint.is_empty() { a href=(same) { (l.same_failures()) } } },
        true,
        html! {
            div.error {
                p { span.class { (said(&failure.class, 60)) } @if let Some(code) = code_of(failure) { " " span.code { (said(&code, 60)) } } }
                (block(&failure.message, false, None, l))
                @if let Some(note) = &view.note {
                    p { @if let Some(owner) = &note.owner { span.owner { "@" (said(owner, 80)) } " " } @if let Some(text) = &note.note { (said(text, 500)) } }
                }
            }
        },
    )
}

fn actions(view: &TaskView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let task = &view.task;
    if !ui.can_operate() {
        return nothing();
    }
    let id = task.id();
    let post = |what: &str| part(id, what);
    html! {
        div.actions data-actions {
            @if task.state.status == Status::Dead {
                @let replayable = task.state.dead_reason.is_some_and(|reason| reason.is_replayable());
                @if replayable {
                    a.button.primary href=(link::to("/dead/replay", [("id", id)])) data-key="r" { (l.replay()) "…" }
                } @else { span.muted { (l.not_replayable()) } }
                @if ui.can_edit() { a.button href=(part(id, "edit")) { (l.edit_payload()) "…" } }
                (confirmed(l.discard(), &post("discard"), ui, "danger", html! {
                    (reason_field(l, true, l.reason_example()))
                    (live_cli(&["redeliver", "dlq", "discard", id], &["--yes"], l))
                }))
            } @else if task.state.status.is_waiting() {
                form method="post" action=(post("run-now")) { (ui.csrf()) button.primary { (l.run_now()) } } (cli(&["redeliver", "task", "retry", id, "--yes"], l))
                (confirmed(l.cancel_task(), &post("cancel"), ui, "danger", html! {
                    (reason_field(l, true, l.reason_example()))
                    (live_cli(&["redeliver", "task", "cancel", id], &["--yes"], l))
                }))
            }
        }
    }
}

/// A button that first shows what it will ask.
pub(crate) fn confirmed(label: &str, action: &str, ui: &Ui, tone: &str, fields: Markup) -> Markup {
    html! {
        details.ask {
            summary.button.(tone) { (label) "…" }
            form.card method="post" action=(action) data-tail="--yes" {
                (ui.csrf())
                (fields)
                button class=(tone) { (label) }
            }
        }
    }
}

fn timeline(view: &TaskView, ui: &Ui) -> Markup {
    let (l, task) = (ui.lang, &view.task);
    let state = &task.state;
    let mut generation = 0;
    let is_new = |attempt: &AttemptHead, generation: &mut i64| {
        std::mem::replace(generation, attempt.attempt.generation) != attempt.attempt.generation
    };
    html! {
        ol.timeline {
            li.point { (when(task.spec.created_at, ui)) div { (l.created()) } }
            @for head in &view.attempts {
                @if is_new(head, &mut generation) {
                    li.point.replayed { span.when {} div { (l.replayed_generation()) " " (head.attempt.generation) } }
                }
                (attempt(head, ui))
            }
            @match state.status {
                Status::Running => li.point.run {
                    @if let Some(at) = state.started_at { (when(at, ui)) }
                    div { (badge("run", l.running())) " " (said(state.worker.as_deref().unwrap_or_default(), 80)) }
                },
                Status::Pending | Status::RetryWaiting => li.point.wait {
                    (when(state.due_at, ui))
                    div {
                        @if state.held_by.is_some() { (l.held_until_gate()) } @else { (l.next_attempt()) }
                        @if let Some(delay) = state.delay_ms { div.muted { (l.delay()) " " (length(delay)) (because(state.delay_reason.as_deref(), l)) } }
                        @if let Some(gate) = &state.held_by { div.muted { (l.held_by()) " " a href=(link::to("/gates", [("key", gate.as_str())])) { (said(gate, 120)) } } }
                    }
                },
                _ => @if let Some(at) = state.ended_at {
                    li.point.(crate::console::parts::tone_of(state.status)) {
                        (when(at, ui))
                        div { (status_badge(task, l)) @if let Some(note) = &state.note { div.muted { (l.note()) ": " (said(note, 300)) } } }
                    }
                },
            }
        }
    }
}

/// The clock beside what is relative: this is what people look up in other logs.
fn when(at: Millis, ui: &Ui) -> Markup {
    html! { span.when { (time(at, ui.now, ui.lang)) span.clock { (moment(at).get(5..19).unwrap_or_default()) } } }
}

fn because(reason: Option<&str>, l: Lang) -> Markup {
    html! { @if let Some(reason) = reason.filter(|reason| !reason.is_empty()) { " – " (l.because()) " " (said(reason, 300)) } }
}

fn attempt(head: &AttemptHead, ui: &Ui) -> Markup {
    let (l, attempt) = (ui.lang, &head.attempt);
    let took = length(attempt.ended_at.saturating_sub(attempt.started_at));
    html! {
        @if let Some(delay) = attempt.delay_before_ms.filter(|delay| *delay > 0) {
            li.gap { span.when {} div.muted { (l.waited()) " " strong { (length(delay)) } (because(attempt.delay_reason.as_deref(), l)) } }
        }
        li.point.(tone_of_outcome(attempt.outcome)) id=(format!("attempt-{}", attempt.fence)) {
            (when(attempt.started_at, ui))
            div {
                div.attempt-head {
                    strong { (l.attempt()) " " (attempt.number) }
                    " " (badge(tone_of_outcome(attempt.outcome), l.outcome(attempt.outcome)))
                    " " span.muted title=(l.took()) { (took) }
                    @if let Some(cost) = attempt.cost { " " span.muted { (l.cost()) " " (format!("{cost:.4}").trim_end_matches('0').trim_end_matches('.')) } }
                }
                @if attempt.outcome != AttemptOutcome::Succeeded || attempt.failure.is_some() {
                    @if let Some(failure) = &attempt.failure {
                        p.error-line { (error_line(Some(failure), 400)) }
                        @if let Some(stack) = &failure.stack {
                            details id=(format!("stack-{}", attempt.fence)) { summary { (l.stack()) } (block(stack, false, Some(&part(&attempt.task_id, &format!("attempts/{}/stack", attempt.fence))), l)) }
                        }
                    }
                }
                @if !head.attachments.is_empty() { (attachments(head, l)) }
                p.small.muted {
                    (said(&attempt.worker, 80))
                    @if let Some(policy) = &attempt.policy { " · " (l.policy()) " " (said(policy, 60)) }
                    @if let Some(variant) = &attempt.variant { " · " (l.variant()) " " (said(variant, 40)) }
                }
            }
        }
    }
}

fn attachments(head: &AttemptHead, l: Lang) -> Markup {
    html! {
        div.attachments {
            @for (position, attachment) in head.attachments.iter().enumerate() {
                @let href = part(&head.attempt.task_id, &format!("attempts/{}/attachments/{position}", head.attempt.fence));
                (shown(attachment, &href, l))
            }
        }
    }
}

fn shown(attachment: &AttachmentHead, href: &str, l: Lang) -> Markup {
    let name = said(&attachment.name, 80);
    let is_picture = SHOWN_IN_PLACE.contains(&attachment.media_type.as_str());
    html! {
        @match (&attachment.link, attachment.is_kept) {
            (Some(link), _) => figure.file { figcaption { (name) " " span.muted { (l.kept_elsewhere()) " " } code { (line(link, 300)) } } },
            (None, false) => figure.file { figcaption { (name) " " span.muted { (bytes(attachment.size)) " · " (l.too_large()) } } },
            (None, true) if is_picture => figure.picture {
                a href=(href) { img src=(href) alt=(line(&attachment.name, 80)) loading="lazy"; }
                figcaption { (name) " " span.muted { (bytes(attachment.size)) } }
            },
            (None, true) => figure.file { figcaption { a href=(href) download { (name) } " " span.muted { (said(&attachment.media_type, 60)) " · " (bytes(attachment.size)) } } },
        }
    }
}

fn details(view: &TaskView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let task = &view.task;
    let replays = html! {
        @for item in &view.replays { a href=(format!("/replays/{}", item.job)) { "#" (item.job) } " " }
    };
    let made_of = view.edits.iter().find(|edit| edit.task_id == task.id()).map(|edit| &edit.edited_from);
    let made = view.edits.iter().find(|edit| edit.edited_from == task.id()).map(|edit| &edit.task_id);
    let other = |id: &String| html! { a href=(link::task(id)) { (said(id, 80)) } };
    let (spec, state) = (&task.spec, &task.state);
    let at = |at: Option<i64>| at.map(|at| time(at, ui.now, l));
    let words = |text: Option<&String>| text.filter(|text| !text.is_empty()).map(|text| said(text, 200));
    let number = |n: i64| Some(html! { (n) });
    let rows: Vec<(&str, Option<Markup>)> = vec![
        (l.queue(), Some(said(task.queue(), 80))),
        (l.retry_count(), number(state.stamp.retry_count)),
        (l.generation(), number(state.stamp.generation).filter(|_| state.stamp.generation > 0)),
        (l.priority(), number(spec.priority).filter(|_| spec.priority != 0)),
        (l.created(), at(Some(spec.created_at))),
        (l.ended(), at(state.ended_at)),
        (l.due(), at((!state.status.is_ended()).then_some(state.due_at))),
        (l.deadline(), at(state.deadline)),
        (l.held_by(), words(state.held_by.as_ref())),
        (l.parked_until(), at(state.park_until)),
        (l.variant(), words(state.variant.as_ref())),
        (l.worker(), words(state.worker.as_ref())),
        (l.dlq_copy(), state.dead_reason.map(|_| html! { (state.dlq_copy.as_str()) })),
        (l.idempotency_key(), words(spec.idempotency_key.as_ref().filter(|key| **key != spec.id))),
        (l.cache_key(), words(spec.cache_key.as_ref())),
        (l.reply_to(), words(spec.reply_to.as_ref())),
        (
            l.conflicts_with(),
            spec.conflicts_with.as_ref().map(|id| html! { a href=(link::task(id)) { (said(id, 80)) } }),
        ),
        (l.note(), words(state.note.as_ref())),
        (l.replay_jobs(), Some(replays).filter(|_| !view.replays.is_empty())),
        (l.edited_from(), made_of.map(other)),
        (l.edited_to(), made.map(other)),
        (l.fingerprint(), state.failure.as_ref().map(|failure| html! { code { (line(&failure.fingerprint, 64)) } })),
    ];
    facts(rows.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// The form that changes a payload by a JSON Patch, with the difference once one was tried.
#[derive(Debug, Clone)]
pub(crate) struct EditView {
    pub task: Task,
    pub payload: String,
    pub patch: String,
    /// What the patch would change, or why it cannot be applied.
    pub outcome: Option<Result<EditPreview, String>>,
}

/// The page.
pub(crate) fn render_edit(view: &EditView, ui: &Ui) -> Markup {
    let l = ui.lang;
    let id = view.task.id();
    let example = r#"[{"op": "replace", "path": "/order", "value": 7}]"#;
    let body = html! {
        (heading(html! { (l.edit_payload()) }, html! { a href=(link::task(id)) { (said(id, 80)) } }))
        p.lead { (l.edit_hint()) }
        div.two {
            (panel("payload", l.payload(), nothing(), false, block(&view.payload, true, None, l)))
            (panel("patch", l.json_patch(), nothing(), false, html! {
                form.card method="post" action=(part(id, "edit")) data-tail="--yes" {
                    (ui.csrf())
                    (field(l.json_patch(), html! { textarea name="patch" data-flag="--edit-payload" rows="6" required spellcheck="false" placeholder=(example) { (view.patch) } }, ""))
                    (reason_field(l, true, l.reason_example()))
                    div.actions {
                        button name="look" value="1" formnovalidate { (l.show_difference()) }
                        button.primary { (l.edit_and_replay()) }
                    }
                    (live_cli(&["redeliver", "dlq", "replay", id], &["--edit-payload", if view.patch.is_empty() { example } else { view.patch.as_str() }, "--yes"], l))
                }
            }))
        }
        @match &view.outcome {
            Some(Ok(after)) => (panel("difference", l.difference(), nothing(), false, difference(after))),
            Some(Err(why)) => p.notice.bad { (said(why, 500)) },
            None => {},
        }
    };
    page(ui, Place::Dead, l.edit_payload(), &body)
}

/// What goes and what comes, value by value.
fn difference(preview: &EditPreview) -> Markup {
    let shown = |value: &serde_json::Value| line(&value.to_string(), 400);
    html! {
        pre.diff tabindex="0" dir="auto" {
            @for difference in &preview.differences {
                span.muted { (line(&difference.path, 200)) "\n" }
                @if let Some(before) = &difference.before { span.gone { "− " (shown(before)) "\n" } }
                @if let Some(after) = &difference.after { span.come { "+ " (shown(after)) "\n" } }
            }
        }
        p.muted { (crate::console::text::said(&preview.becomes, 120)) }
    }
}
