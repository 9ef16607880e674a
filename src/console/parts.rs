//! Pieces that several pages are made of: panels, badges, tables of facts, text of others, forms and the equal command line.

use maud::{Markup, PreEscaped, Render, html};

use super::i18n::Lang;
use super::text::{head, line, pretty_json, quoted, said};
use super::{link, show};
use crate::task::{AttemptOutcome, DeadReason, Failure, Status, Task};

/// The title of a page with what stands beside it.
pub(crate) fn heading(title: impl Render, aside: impl Render) -> Markup {
    html! { div.heading { h1 { (title) } div.aside { (aside) } } }
}

/// A framed part of a page. With `live`, the script keeps it fresh.
pub(crate) fn panel(id: &str, title: impl Render, aside: impl Render, live: bool, body: impl Render) -> Markup {
    html! {
        section.panel id=(id) data-live[live] aria-labelledby=(format!("{id}-title")) {
            div.panel-head { h2 id=(format!("{id}-title")) { (title) } div.aside { (aside) } }
            (body)
        }
    }
}

/// Nothing, as markup.
pub(crate) fn nothing() -> Markup {
    PreEscaped(String::new())
}

/// What stands where there is nothing to show.
pub(crate) fn empty(text: &str) -> Markup {
    html! { p.empty { (text) } }
}

/// A number with its name: the label, the number, and what it means.
pub(crate) fn figure(label: &str, number: impl Render, tone: &str, below: impl Render) -> Markup {
    html! { div.figure { div.label { (label) } div.number.(tone) { (number) } div.below { (below) } } }
}

/// Names and values.
pub(crate) fn facts(facts: Vec<(&str, Markup)>) -> Markup {
    html! { dl.facts { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } } }
}

/// A word in a coloured frame; the word says it, the colour helps.
pub(crate) fn badge(tone: &str, text: &str) -> Markup {
    html! { span.badge.(tone) { (text) } }
}

/// Where a task stands.
pub(crate) fn status_badge(task: &Task, l: Lang) -> Markup {
    let state = &task.state;
    let tone = tone_of(state.status);
    html! {
        span.badge.(tone) title=(state.status.as_str()) { (l.status(state.status)) }
        @if let Some(reason) = state.dead_reason { " " span.muted title=(reason.as_str()) { (l.reason(reason)) } }
        @if let Some(by) = &state.degraded { " " span.badge.warn { (l.degraded()) ": " (said(by, 20)) } }
        @if let Some(gate) = state.held_by.as_deref().filter(|_| state.status.is_waiting()) {
            " " span.badge.wait title=(line(gate, 200)) { (l.held_by()) " " (said(&gate_name(gate), 40)) }
        }
    }
}

/// The class that colours a status.
pub(crate) fn tone_of(status: Status) -> &'static str {
    match status {
        Status::Succeeded => "ok",
        Status::Dead => "bad",
        Status::RetryWaiting => "warn",
        Status::Running => "run",
        Status::Pending => "wait",
        Status::Discarded | Status::Cancelled => "dim",
    }
}

/// The class that colours an outcome.
pub(crate) fn tone_of_outcome(outcome: AttemptOutcome) -> &'static str {
    match outcome {
        AttemptOutcome::Succeeded => "ok",
        AttemptOutcome::Retried => "warn",
        AttemptOutcome::Died => "bad",
        AttemptOutcome::Released => "dim",
    }
}

/// Kind and name of a gate, without which key of it.
pub(crate) fn gate_name(key: &str) -> String {
    key.match_indices('/').nth(1).map_or(key, |(end, _)| &key[..end]).to_owned()
}

/// Class, code or HTTP status, and message on one line.
pub(crate) fn error_line(failure: Option<&Failure>, longest: usize) -> Markup {
    let Some(failure) = failure else { return html! { span.muted { "–" } } };
    html! {
        span.class { (said(&failure.class, 40)) }
        @if let Some(code) = code_of(failure) { " " span.code { (said(&code, 40)) } }
        " " span.message { (said(&failure.message, longest)) }
    }
}

/// The platform's code, else the HTTP status.
pub(crate) fn code_of(failure: &Failure) -> Option<String> {
    failure.code.clone().or_else(|| failure.http_status.map(|status| format!("HTTP {status}")))
}

/// Labels as links to the tasks that have them.
pub(crate) fn labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Markup {
    html! {
        span.labels {
            @for (name, value) in labels {
                @let pair = format!("{name}={value}");
                a.label-of href=(link::to("/tasks", [("label", pair.as_str())])) {
                    span.muted { (said(name, 40)) "=" } (said(value, 60))
                }
            }
        }
    }
}

/// The line that does the same on a terminal, and a button that copies it where scripts run.
pub(crate) fn cli(words: &[&str], l: Lang) -> Markup {
    let line = cli_line(words);
    html! {
        div.cli {
            span.sr { (l.same_command()) }
            code { (super::text::visible(&line)) }
            button.copy type="button" data-copy=(line) hidden { (l.copy()) }
        }
    }
}

/// Words as one line for a shell.
pub(crate) fn cli_line(words: &[&str]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// The same for a form: the script keeps it equal to what the fields with `data-flag` say.
pub(crate) fn live_cli(base: &[&str], now: &[&str], l: Lang) -> Markup {
    let base = cli_line(base);
    let whole = [base.clone(), cli_line(now)].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    html! {
        div.cli data-cli=(base) {
            span.sr { (l.same_command()) }
            code { (super::text::visible(&whole)) }
            button.copy type="button" data-copy=(whole) hidden { (l.copy()) }
        }
    }
}

/// A long text of others: its beginning here, all of it as a download.
pub(crate) fn block(text: &str, is_json: bool, download: Option<&str>, l: Lang) -> Markup {
    let (pretty, pretty_cut) = if is_json { pretty_json(text) } else { (String::new(), false) };
    let source = if is_json { pretty.as_str() } else { text };
    let (shown, cut) = head(source);
    html! {
        div.block {
            pre tabindex="0" dir="auto" { code { (shown) } }
            @if let Some(download) = download {
                div.more {
                    @if cut || pretty_cut { span.muted { (l.cut_here()) " · " } }
                    a href=(download) download { (l.show_all()) " (" (show::bytes(u64::try_from(text.len()).unwrap_or(u64::MAX))) ")" }
                }
            }
        }
    }
}

/// A link to the next page of a list.
pub(crate) fn pager(first: Option<&str>, next: Option<&str>, l: Lang) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.pager aria-label=(l.pages()) {
                @if let Some(first) = first { a href=(first) { "⟸ " (l.first_page()) } }
                @if let Some(next) = next { a.next rel="next" href=(next) { (l.next_page()) " ⟹" } }
            }
        }
    }
}

/// A field with its name.
pub(crate) fn field(label: &str, input: impl Render, hint: &str) -> Markup {
    html! {
        label.field { span.name { (label) } (input) @if !hint.is_empty() { span.hint { (hint) } } }
    }
}

/// The reason that every change is asked for.
pub(crate) fn reason_field(l: Lang, required: bool, placeholder: &str) -> Markup {
    field(
        l.reason_why(),
        html! { input type="text" name="reason" data-flag="--reason" maxlength="500" required[required] placeholder=(placeholder) autocomplete="off"; },
        "",
    )
}

impl Lang {
    /// A status in words.
    pub(crate) fn status(self, status: Status) -> &'static str {
        match status {
            Status::Pending => self.pending(),
            Status::Running => self.running(),
            Status::RetryWaiting => self.retry_waiting(),
            Status::Succeeded => self.succeeded(),
            Status::Dead => self.dead(),
            Status::Discarded => self.discarded(),
            Status::Cancelled => self.cancelled(),
        }
    }

    /// Why a task is dead, in words.
    pub(crate) fn reason(self, reason: DeadReason) -> &'static str {
        match reason {
            DeadReason::RetriesExhausted => self.retries_exhausted(),
            DeadReason::PermanentError => self.permanent_error(),
            DeadReason::CircuitOpen => self.circuit_open(),
            DeadReason::DeadlineExceeded => self.deadline_exceeded(),
            DeadReason::Malformed => self.malformed(),
            DeadReason::DuplicateConflict => self.duplicate_conflict(),
            DeadReason::Poison => self.poison(),
        }
    }

    /// How an attempt ended, in words.
    pub(crate) fn outcome(self, outcome: AttemptOutcome) -> &'static str {
        match outcome {
            AttemptOutcome::Succeeded => self.succeeded(),
            AttemptOutcome::Retried => self.outcome_retried(),
            AttemptOutcome::Died => self.outcome_died(),
            AttemptOutcome::Released => self.outcome_released(),
        }
    }
}
