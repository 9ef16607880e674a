//! What went wrong with a request, and the way in.

use maud::{Markup, html};

use crate::console::page::{HOME, Place, Ui, page};
use crate::console::text::said;

/// A request that was not answered as it was meant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Problem {
    pub status: u16,
    /// In a few words.
    pub title: String,
    /// What to do, or what is there instead.
    pub detail: String,
    /// Where to go on.
    pub back: Option<String>,
}

/// The page.
pub(crate) fn render(problem: &Problem, ui: &Ui) -> Markup {
    let l = ui.lang;
    let body = html! {
        div.centre {
            p.status-code { (problem.status) }
            h1 { (problem.title) }
            p { (said(&problem.detail, 1_000)) }
            p {
                @if let Some(back) = &problem.back { a.button href=(back) { (l.back()) } " " }
                @if ui.viewer.is_some() { a.button.primary href=(HOME) { (l.overview()) } } @else { a.button.primary href="/sign-in" { (l.sign_in()) } }
            }
        }
    };
    page(ui, Place::Elsewhere, &problem.title, &body)
}

/// The sign-in page. `failed` says why the last try was not taken; `next` is where to go afterwards.
pub(crate) fn sign_in(failed: Option<&str>, next: &str, ui: &Ui) -> Markup {
    let l = ui.lang;
    let body = html! {
        div.centre {
            h1 { "redeliver" }
            p.muted { (l.sign_in_hint()) }
            @if let Some(failed) = failed { p.notice.bad role="alert" { (failed) } }
            form.card method="post" action="/sign-in" {
                input type="hidden" name="next" value=(next);
                label.field { span.name { (l.token()) } input type="password" name="token" required autocomplete="current-password" autofocus; }
                button.primary { (l.sign_in()) }
            }
            p.small.muted { (l.sign_in_link_hint()) " " code { "redeliver token create" } }
        }
    };
    page(ui, Place::Elsewhere, l.sign_in(), &body)
}
