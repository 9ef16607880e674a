//! The frame of every page: head, navigation, notice, footer; and who looks at it in which language.
//!
//! A page is a pure function from what it shows to markup. It never reads a clock or a store.

use maud::{DOCTYPE, Markup, html};

use super::assets::{SCRIPT, STYLE};
use super::i18n::Lang;
use super::show::brief;
use crate::task::Millis;

/// The first page.
pub(crate) const HOME: &str = "/";

/// Light, dark, or as the system says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Theme {
    #[default]
    System,
    Light,
    Dark,
}

impl Theme {
    pub(crate) fn parse(word: &str) -> Option<Theme> {
        [Theme::System, Theme::Light, Theme::Dark].into_iter().find(|theme| theme.as_str() == word)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Theme::System => "system",
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }
}

/// Who looks, and what they may do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Viewer {
    pub name: String,
    pub role: String,
    /// Replay, discard, cancel, pause, force breakers.
    pub can_operate: bool,
    /// Change payloads.
    pub can_edit: bool,
    /// See the audit and tokens.
    pub is_admin: bool,
    /// Goes into every form.
    pub csrf: String,
}

/// What an action has done, said on the page it led to.
#[derive(Debug, Clone)]
pub(crate) struct Notice {
    pub good: bool,
    pub text: String,
}

/// Numbers beside the navigation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Badges {
    pub dead: i64,
    pub open_breakers: i64,
    pub running_jobs: i64,
}

/// Everything about a request that is not the page's subject.
#[derive(Debug, Clone)]
pub(crate) struct Ui {
    pub lang: Lang,
    pub theme: Theme,
    pub now: Millis,
    /// `None` on the sign-in page.
    pub viewer: Option<Viewer>,
    /// Path and query of this page, for the switches to come back to.
    pub here: String,
    pub notice: Option<Notice>,
    pub badges: Badges,
}

impl Ui {
    pub(crate) fn can_operate(&self) -> bool {
        self.viewer.as_ref().is_some_and(|viewer| viewer.can_operate)
    }

    pub(crate) fn can_edit(&self) -> bool {
        self.viewer.as_ref().is_some_and(|viewer| viewer.can_edit)
    }

    fn is_admin(&self) -> bool {
        self.viewer.as_ref().is_some_and(|viewer| viewer.is_admin)
    }

    /// The hidden field that proves that a form is ours.
    pub(crate) fn csrf(&self) -> Markup {
        let token = self.viewer.as_ref().map_or("", |viewer| viewer.csrf.as_str());
        html! { input type="hidden" name="csrf" value=(token); }
    }
}

/// The places of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Overview,
    Dead,
    Replays,
    Tasks,
    Gates,
    Policies,
    Stats,
    Workers,
    Audit,
    Elsewhere,
}

impl Place {
    const ALL: [Place; 9] = [
        Place::Overview,
        Place::Dead,
        Place::Replays,
        Place::Tasks,
        Place::Gates,
        Place::Policies,
        Place::Stats,
        Place::Workers,
        Place::Audit,
    ];

    fn path(self) -> &'static str {
        match self {
            Place::Overview | Place::Elsewhere => HOME,
            Place::Dead => "/dead",
            Place::Replays => "/replays",
            Place::Tasks => "/tasks",
            Place::Gates => "/gates",
            Place::Policies => "/policies",
            Place::Stats => "/stats",
            Place::Workers => "/workers",
            Place::Audit => "/audit",
        }
    }

    pub(crate) fn name(self, l: Lang) -> &'static str {
        match self {
            Place::Overview | Place::Elsewhere => l.overview(),
            Place::Dead => l.dead_letters(),
            Place::Replays => l.replay_jobs(),
            Place::Tasks => l.tasks(),
            Place::Gates => l.gates(),
            Place::Policies => l.policies(),
            Place::Stats => l.stats(),
            Place::Workers => l.workers(),
            Place::Audit => l.audit(),
        }
    }
}

/// A whole page.
pub(crate) fn page(ui: &Ui, place: Place, title: &str, body: &Markup) -> Markup {
    let l = ui.lang;
    html! {
        (DOCTYPE)
        html lang=(l.tag()) data-theme=(ui.theme.as_str()) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="same-origin";
                title { (title) " · redeliver" }
                link rel="icon" href=(super::assets::ICON.path()) type="image/svg+xml";
                link rel="stylesheet" href=(STYLE.path());
                script src=(SCRIPT.path()) defer {}
            }
            body data-events=[ui.viewer.as_ref().map(|_| "/events")] data-copied=(l.copied()) data-now=(l.just_now()) {
                a.skip href="#main" { (l.skip()) }
                @if ui.viewer.is_some() { (navigation(ui, place)) }
                main id="main" tabindex="-1" {
                    @if let Some(notice) = &ui.notice {
                        p.notice.good[notice.good].bad[!notice.good] role="status" { bdi { (notice.text) } }
                    }
                    (body)
                    (footer(ui))
                }
                @if ui.viewer.is_some() { (keys(l)) }
            }
        }
    }
}

fn navigation(ui: &Ui, place: Place) -> Markup {
    let l = ui.lang;
    html! {
        header.side {
            a.brand href=(HOME) { (mark()) span { "redeliver" } }
            nav aria-label=(l.navigation()) {
                @for item in Place::ALL.into_iter().filter(|place| *place != Place::Audit || ui.is_admin()) {
                    @let badge = match item {
                        Place::Dead => ui.badges.dead,
                        Place::Gates => ui.badges.open_breakers,
                        Place::Replays => ui.badges.running_jobs,
                        _ => 0,
                    };
                    a href=(item.path()) aria-current=[(item == place).then_some("page")] {
                        span { (item.name(l)) }
                        @if badge > 0 { span.count.hot[item != Place::Replays] { (brief(badge)) } }
                    }
                }
            }
        }
    }
}

/// A letter that comes round again.
fn mark() -> Markup {
    html! {
        svg.mark viewBox="0 0 24 24" width="22" height="22" aria-hidden="true" {
            path d="M20 12a8 8 0 1 1-2.6-5.9" {}
            path d="M20.4 2.6v4.2h-4.2" {}
            path d="M8 9.8h8v5H8z M8 10l4 2.8L16 10" {}
        }
    }
}

fn footer(ui: &Ui) -> Markup {
    let l = ui.lang;
    let set = |name: &str, value: &str| format!("/set?{name}={value}&back={}", super::link::encode(&ui.here));
    html! {
        footer {
            div.switches {
                span aria-label=(l.language()) role="group" {
                    @for other in Lang::ALL {
                        a href=(set("lang", other.as_str())) lang=(other.tag()) hreflang=(other.tag()) aria-current=[(other == l).then_some("true")] { (other.own_name()) }
                    }
                }
                span aria-label=(l.theme()) role="group" {
                    @for (theme, name) in [(Theme::System, l.theme_system()), (Theme::Light, l.theme_light()), (Theme::Dark, l.theme_dark())] {
                        a href=(set("theme", theme.as_str())) aria-current=[(theme == ui.theme).then_some("true")] { (name) }
                    }
                }
            }
            @if let Some(viewer) = &ui.viewer {
                div.who {
                    span { (super::text::said(&viewer.name, 60)) " · " (viewer.role) }
                    form method="post" action=("/sign-out") { (ui.csrf()) button.link { (l.sign_out()) } }
                }
            }
            div.who { button.link type="button" data-keys hidden { (l.keyboard()) " " kbd { "?" } } }
        }
    }
}

/// What the keys do; the script opens it.
fn keys(l: Lang) -> Markup {
    html! {
        dialog id="keys" aria-labelledby="keys-title" {
            h2 id="keys-title" { (l.keyboard()) }
            dl.keys {
                @for (key, what) in [
                    ("/", l.key_search()), ("j", l.key_down()), ("k", l.key_up()), ("x", l.key_select()), ("Enter", l.key_open()),
                    ("r", l.key_replay()), ("?", l.key_help()),
                ] {
                    dt { kbd { (key) } } dd { (what) }
                }
            }
            form method="dialog" { button { (l.close()) } }
        }
    }
}
