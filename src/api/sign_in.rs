//! Signing in and out: a token, or a link that works once, becomes a session.
//!
//! The page with the form is the console's; here is what it posts to. Who fails too often waits, but what is right
//! always works: behind a proxy everybody has the same address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde::Deserialize;

use super::access::{COOKIE, Peer, Principal, cookie};
use super::{App, Problem, headers, secret};
use crate::store::StoreError;
use crate::store::access::{AuditEntry, Door, Role, Session, SignInLink};
use crate::task::Millis;

/// Failed tries of one address in a window.
const MOST_FAILURES: u32 = 10;
const WINDOW_MS: Millis = 60_000;
/// Addresses that are remembered; beyond that all are forgotten, which only helps those that wait.
const MOST_ADDRESSES: usize = 10_000;
/// How long a link works.
const LINK_MS: Millis = 15 * 60_000;

/// Who has failed to sign in, and how often.
#[derive(Default)]
pub(super) struct SignIns(Mutex<HashMap<Option<IpAddr>, (Millis, u32)>>);

impl SignIns {
    /// `Err`: how long that address has to wait.
    fn check(&self, peer: Option<IpAddr>, now: Millis) -> Result<(), Millis> {
        let failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match failures.get(&peer) {
            Some((since, count)) if *count >= MOST_FAILURES && now - since < WINDOW_MS => Err(since + WINDOW_MS - now),
            _ => Ok(()),
        }
    }

    fn failed(&self, peer: Option<IpAddr>, now: Millis) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= MOST_ADDRESSES {
            failures.clear();
        }
        let (since, count) = failures.entry(peer).or_insert((now, 0));
        if now - *since >= WINDOW_MS {
            (*since, *count) = (now, 0);
        }
        *count += 1;
    }
}

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sign-in", post(by_token))
        // Programs that look at links before people do ask for the head; that must not use one up.
        .route("/sign-in/{secret}", get(by_link).head(async || Problem::method_not_allowed()))
        .route("/sign-out", post(sign_out))
}

#[derive(Deserialize)]
struct SignIn {
    token: String,
    next: Option<String>,
}

/// A person pastes their token into the form.
async fn by_token(
    State(app): State<Arc<App>>,
    peer: Peer,
    headers: HeaderMap,
    Form(form): Form<SignIn>,
) -> Result<Response, Problem> {
    let now = app.store.now();
    let next = local(form.next.as_deref());
    let found = app.store.token_by_hash(&secret::hash(form.token.trim())).await?;
    let Some(token) = found.filter(|token| token.is_good(now)) else {
        failed(&app, peer, now)?;
        tracing::warn!(peer = ?peer.0, "somebody failed to sign in");
        return Ok(Redirect::to("/sign-in?failed=1").into_response());
    };
    let expires_at = token.expires_at.unwrap_or(Millis::MAX);
    begin(&app, peer, &headers, token.name.clone(), Some(token.name), token.role, expires_at, next).await
}

/// A person opens the link of a first start.
async fn by_link(
    State(app): State<Arc<App>>,
    peer: Peer,
    headers: HeaderMap,
    Path(link): Path<String>,
) -> Result<Response, Problem> {
    match app.store.use_link(&secret::hash(&link)).await? {
        Some(link) => begin(&app, peer, &headers, link.who, None, link.role, Millis::MAX, "/").await,
        None => {
            failed(&app, peer, app.store.now())?;
            Ok(Redirect::to("/sign-in?failed=link").into_response())
        }
    }
}

/// Notes a failure, unless there were too many already.
fn failed(app: &App, peer: Peer, now: Millis) -> Result<(), Problem> {
    app.sign_ins.check(peer.0, now).map_err(|wait_ms| {
        let seconds = u64::try_from(wait_ms / 1000 + 1).unwrap_or(1);
        Problem::too_many(seconds, "too many failed sign-ins from this address; wait a moment")
    })?;
    app.sign_ins.failed(peer.0, now);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "a session is all of these")]
async fn begin(
    app: &App,
    peer: Peer,
    headers: &HeaderMap,
    who: String,
    token: Option<String>,
    role: Role,
    at_most_until: Millis,
    next: &str,
) -> Result<Response, Problem> {
    let cookie = secret::random();
    let now = app.store.now();
    let length_ms = Millis::try_from(app.console.session.as_millis()).unwrap_or(Millis::MAX);
    let expires_at = now.saturating_add(length_ms).min(at_most_until);
    let session = Session { hash: secret::hash(&cookie), who: who.clone(), token, role, created_at: now, expires_at };
    app.store.create_session(session).await?;
    let entry = AuditEntry {
        who,
        role: Some(role),
        door: Door::Console,
        origin: peer.0.map(|address| address.to_string()),
        action: "sign_in".into(),
        target: "console".into(),
        reason: None,
        count: None,
    };
    app.store.record(entry).await?;
    let mut response = Redirect::to(next).into_response();
    set_cookie(&mut response, headers, &cookie, (expires_at - now) / 1000);
    Ok(response)
}

async fn sign_out(State(app): State<Arc<App>>, principal: Principal, headers: HeaderMap) -> Result<Response, Problem> {
    if let Some(cookie) = cookie(&headers)
        && app.store.end_session(&secret::hash(cookie)).await?
    {
        app.store.record(principal.entry("sign_out", "console")).await?;
    }
    let mut response = Redirect::to("/sign-in").into_response();
    set_cookie(&mut response, &headers, "", 0);
    Ok(response)
}

fn set_cookie(response: &mut Response, headers: &HeaderMap, value: &str, max_age_s: i64) {
    let secure = if headers::is_https(headers) { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}");
    // Made of our own characters only.
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

/// A path of this server, whatever was asked for: a sign-in must not lead elsewhere.
fn local(next: Option<&str>) -> &str {
    let is_path = |next: &&str| {
        next.starts_with('/')
            && !next.starts_with("//")
            && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    next.filter(is_path).unwrap_or("/")
}

/// Makes a link that signs somebody in once, as `who`, and returns its path. It works for a quarter of an hour.
///
/// # Errors
/// When the store does not take it.
pub async fn make_link(app: &App, who: &str, role: Role) -> Result<String, StoreError> {
    let link = secret::random();
    let expires_at = app.store.now() + LINK_MS;
    app.store.create_link(SignInLink { hash: secret::hash(&link), who: who.to_owned(), role, expires_at }).await?;
    Ok(format!("/sign-in/{link}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_this_server_only() {
        for (next, to) in [
            (Some("/tasks?type=a"), "/tasks?type=a"),
            (Some("//evil.example"), "/"),
            (Some("https://evil.example"), "/"),
            (Some("/\\evil.example"), "/"),
            (Some("/a\nb"), "/"),
            (None, "/"),
        ] {
            assert_eq!(local(next), to, "{next:?}");
        }
    }

    #[test]
    fn who_fails_too_often_waits_and_others_do_not() {
        let (sign_ins, peer) = (SignIns::default(), |n| Some(IpAddr::from([10, 0, 0, n])));
        for _ in 0..MOST_FAILURES {
            assert_eq!(sign_ins.check(peer(1), 1_000), Ok(()));
            sign_ins.failed(peer(1), 1_000);
        }
        assert_eq!(sign_ins.check(peer(1), 2_000), Err(59_000));
        assert_eq!(sign_ins.check(peer(2), 2_000), Ok(()));
        assert_eq!(sign_ins.check(peer(1), 61_000), Ok(()));
    }
}
