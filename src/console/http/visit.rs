//! Who looks, in which language and light; and errors as pages.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{FromRequestParts, Query as UrlQuery, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::Console;
use crate::api::{App, Principal, Problem};
use crate::console::i18n::Lang;
use crate::console::link::is_local;
use crate::console::page::{Badges, HOME, Notice, Theme, Ui, Viewer};
use crate::console::pages::problem::{self, Problem as ProblemView};
use crate::console::query::Query;
use crate::store::access::Role;

const LANG: &str = "redeliver_lang";
const THEME: &str = "redeliver_theme";
/// How long a browser remembers what it was set to.
const YEAR_S: u32 = 365 * 24 * 3_600;
/// A problem is a few words.
const LARGEST_PROBLEM: usize = 64 << 10;

/// A request as a page needs it.
pub(super) struct Visit {
    pub ui: Ui,
    pub query: Query,
    pub console: Arc<Console>,
}

impl FromRequestParts<Arc<App>> for Visit {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Visit, Problem> {
        let console = parts.extensions.get::<Arc<Console>>().cloned().ok_or_else(Problem::internal)?;
        let principal = parts.extensions.get::<Principal>().cloned();
        let badges = match principal {
            // A store that does not answer says so to whoever asks it next.
            Some(_) => console.badges(app).await.unwrap_or_default(),
            None => Badges::default(),
        };
        let pairs = serde_html_form::from_str::<Vec<(String, String)>>(parts.uri.query().unwrap_or_default())
            .map_err(|error| Problem::bad_request("query", error.to_string()))?;
        let ui = ui(app, &parts.headers, &parts.uri, principal.as_ref(), badges, &pairs);
        Ok(Visit { ui, query: Query::new(pairs), console })
    }
}

fn ui(
    app: &App,
    headers: &HeaderMap,
    uri: &Uri,
    principal: Option<&Principal>,
    badges: Badges,
    pairs: &[(String, String)],
) -> Ui {
    let spoken = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok()).map(Lang::accepted);
    let lang = cookie(headers, LANG).and_then(Lang::parse).or(spoken).unwrap_or_default();
    let said = |name: &str| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let notice = said("done").and_then(|word| {
        let text = lang.done(word, said("n").and_then(|n| n.parse().ok()).unwrap_or(0))?;
        Some(Notice { good: word != "skipped", text })
    });
    Ui {
        lang,
        theme: cookie(headers, THEME).and_then(Theme::parse).unwrap_or_default(),
        now: app.store.now(),
        viewer: principal.map(|principal| Viewer {
            name: principal.who.clone(),
            role: principal.role.to_string(),
            can_operate: principal.may(Role::Operator) && !app.console.read_only,
            can_edit: principal.may(Role::Editor) && !app.console.read_only,
            is_admin: principal.may(Role::Admin),
            csrf: principal.csrf.clone().unwrap_or_default(),
        }),
        here: uri.path_and_query().map_or(HOME, |here| here.as_str()).to_owned(),
        notice,
        badges,
    }
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
}

#[derive(Deserialize)]
pub(super) struct Set {
    lang: Option<String>,
    theme: Option<String>,
    back: Option<String>,
}

/// Remembers a language or a theme in the browser, and goes back.
pub(super) async fn set(UrlQuery(set): UrlQuery<Set>) -> Response {
    let back = set.back.as_deref().filter(|back| is_local(back)).unwrap_or(HOME);
    let mut response = Redirect::to(back).into_response();
    let lang = set.lang.as_deref().and_then(Lang::parse).map(|lang| (LANG, lang.as_str()));
    let theme = set.theme.as_deref().and_then(Theme::parse).map(|theme| (THEME, theme.as_str()));
    for (name, value) in lang.into_iter().chain(theme) {
        let cookie = format!("{name}={value}; Path=/; Max-Age={YEAR_S}; HttpOnly; SameSite=Lax");
        // Words of ours only.
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
    }
    response
}

/// Turns problems into pages for browsers; programs keep their JSON.
pub(super) async fn dress(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let principal = parts.extensions.get::<Principal>().cloned();
    let (headers, uri) = (parts.headers.clone(), parts.uri.clone());
    let response = next.run(Request::from_parts(parts, body)).await;
    let wants_html = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"));
    let is_api = uri.path() == "/v1" || uri.path().starts_with("/v1/");
    let is_problem =
        response.headers().get(header::CONTENT_TYPE).is_some_and(|media| media == "application/problem+json");
    if is_api || !wants_html || !is_problem {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let said = to_bytes(body, LARGEST_PROBLEM)
        .await
        .ok()
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    let ui = ui(&app, &headers, &uri, principal.as_ref(), Badges::default(), &[]);
    let l = ui.lang;
    let title = match parts.status {
        StatusCode::NOT_FOUND => l.not_found_title(),
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => l.forbidden_title(),
        _ => l.failed_title(),
    };
    let view = ProblemView {
        status: parts.status.as_u16(),
        title: title.to_owned(),
        detail: said.and_then(|said| said["detail"].as_str().map(str::to_owned)).unwrap_or_default(),
        back: back(&headers),
    };
    parts.headers.remove(header::CONTENT_TYPE);
    parts.headers.remove(header::CONTENT_LENGTH);
    let page = Html(problem::render(&view, &ui).into_string());
    (parts.status, parts.headers, page).into_response()
}

/// The page that led here, if it was one of ours.
fn back(headers: &HeaderMap) -> Option<String> {
    let from = headers.get(header::REFERER)?.to_str().ok()?;
    let uri: Uri = from.parse().ok()?;
    let host = headers.get(header::HOST)?.to_str().ok()?;
    let path = uri.path_and_query()?.as_str();
    (uri.authority()?.as_str() == host && is_local(path)).then(|| path.to_owned())
}
