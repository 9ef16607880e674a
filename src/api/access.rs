//! Who asks, and what they may: on by default, before every handler.
//!
//! A program shows a bearer token, a browser its session's cookie. With a cookie everything that changes something must also come from
//! a page of ours and bring the session's CSRF token: in the header `x-csrf-token`, or as field `csrf` of a form. A handler never sees a
//! request that fails here.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use super::{App, Problem, headers, secret};
use crate::store::StoreError;
use crate::store::access::{AuditEntry, Door, LAST_USED_EVERY_MS, Role};

/// The session's cookie.
pub const COOKIE: &str = "redeliver_session";
/// The form field that holds the CSRF token.
pub const CSRF_FIELD: &str = "csrf";
/// The header that holds it.
pub const CSRF_HEADER: &str = "x-csrf-token";
/// The largest form that is read to find it.
const LARGEST_FORM: usize = 4 << 20;

/// Whoever asks, recognised. Handlers take it as an argument.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The name in the audit.
    pub who: String,
    /// What they may do.
    pub role: Role,
    /// How they came.
    pub door: Door,
    /// The address they came from.
    pub origin: Option<String>,
    /// What forms must bring back; `None` for a bearer token, which needs none.
    pub csrf: Option<String>,
}

impl Principal {
    /// Whether they may do what needs `role`.
    pub fn may(&self, role: Role) -> bool {
        self.role >= role
    }

    /// The same as an answer.
    ///
    /// # Errors
    /// 403 when they may not.
    pub fn need(&self, role: Role) -> Result<(), Problem> {
        if self.may(role) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("this needs the role {role}; {:?} is {}", self.who, self.role)))
    }

    /// An entry for the audit about something they did.
    pub fn entry(&self, action: &str, target: impl Into<String>) -> AuditEntry {
        AuditEntry {
            who: self.who.clone(),
            role: Some(self.role),
            door: self.door,
            origin: self.origin.clone(),
            action: action.to_owned(),
            target: target.into(),
            reason: None,
            count: None,
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Principal {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Principal, Problem> {
        parts.extensions.get::<Principal>().cloned().ok_or_else(|| Problem::unauthorized("sign in, or show a token"))
    }
}

/// The address a request came from; `None` in tests that open no socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub Option<IpAddr>);

impl<S: Sync> FromRequestParts<S> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Peer, Infallible> {
        Ok(Peer::of(&parts.extensions))
    }
}

impl Peer {
    fn of(extensions: &axum::http::Extensions) -> Peer {
        Peer(extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip().to_canonical()))
    }
}

/// What works without being recognised: probes, signing in, assets, and the description of the API.
fn is_open(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/sign-in" | "/v1/openapi.json" | "/favicon.ico")
        || path.starts_with("/sign-in/")
        || path.starts_with("/assets/")
}

/// Whether a request of this method only looks.
fn only_looks(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Lets a request through to its handler with a [`Principal`], or answers it.
pub(super) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let principal = match recognise(&app, request.headers(), Peer::of(request.extensions())).await {
        Ok(principal) => principal,
        Err(_) if is_open(&path) => None,
        Err(problem) => return problem.into_response(),
    };
    if is_open(&path) {
        if !only_looks(request.method()) && !headers::is_from_us(request.headers()) {
            return Problem::forbidden("this must come from a page of this server").into_response();
        }
        if let Some(principal) = principal {
            request.extensions_mut().insert(principal);
        }
        return to_its_end(request, next).await;
    }
    let is_api = path == "/v1" || path.starts_with("/v1/");
    let Some(principal) = principal else {
        if !is_api && only_looks(request.method()) {
            let to = request.uri().path_and_query().map_or("/", |to| to.as_str());
            let query: String = url_encode(to);
            return Redirect::to(&format!("/sign-in?next={query}")).into_response();
        }
        return Problem::unauthorized("sign in, or show a token as `Authorization: Bearer …`").into_response();
    };
    if !only_looks(request.method()) {
        if let Some(csrf) = &principal.csrf {
            request = match with_csrf(request, csrf).await {
                Ok(request) => request,
                Err(problem) => return problem.into_response(),
            };
        }
        // What needs which role of the API stands in its table; pages have no such table, so nobody slips through there.
        let is_sign_out = path == "/sign-out";
        if !is_api && !is_sign_out {
            if app.console.read_only {
                return Problem::forbidden("this server is read-only").into_response();
            }
            if let Err(problem) = principal.need(Role::Operator) {
                return problem.into_response();
            }
        }
    }
    request.extensions_mut().insert(principal);
    to_its_end(request, next).await
}

/// Answers a request. A change goes on when the client hangs up: the server would drop its handler, perhaps between
/// the commit and the audit.
async fn to_its_end(request: Request, next: Next) -> Response {
    if only_looks(request.method()) {
        return next.run(request).await;
    }
    tokio::spawn(next.run(request)).await.unwrap_or_else(|error| {
        tracing::error!(%error, "a request broke");
        Problem::internal().into_response()
    })
}

/// Who asks; `None`: nobody says. What is said and wrong is an error.
async fn recognise(app: &App, headers: &HeaderMap, peer: Peer) -> Result<Option<Principal>, Problem> {
    let origin = peer.0.map(|address| address.to_string());
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let shown = value.to_str().ok().and_then(|value| value.split_once(' '));
        let Some((_, token)) = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
            return Err(Problem::unauthorized("expected `Authorization: Bearer TOKEN`"));
        };
        return by_token(app, token.trim(), origin).await.map(Some);
    }
    let Some(cookie) = cookie(headers) else { return Ok(None) };
    let session = app.store.session(&secret::hash(cookie)).await?;
    Ok(session.map(|session| Principal {
        who: session.who,
        role: session.role,
        door: Door::Console,
        origin,
        csrf: Some(secret::csrf_of(cookie)),
    }))
}

async fn by_token(app: &App, token: &str, origin: Option<String>) -> Result<Principal, Problem> {
    let now = app.store.now();
    let found = app.store.token_by_hash(&secret::hash(token)).await?;
    let Some(token) = found.filter(|token| token.is_good(now)) else {
        return Err(Problem::unauthorized("this token is unknown, over or revoked"));
    };
    if token.last_used_at.is_none_or(|last| now - last >= LAST_USED_EVERY_MS)
        && let Err(error) = app.store.touch_token(&token.name).await
    {
        tracing::debug!(%error, "when a token was last used is not noted");
    }
    Ok(Principal { who: token.name, role: token.role, door: Door::Api, origin, csrf: None })
}

/// The session's cookie, if the request has one.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// Checks that a change comes from a page of ours and brings the session's CSRF token.
async fn with_csrf(request: Request, csrf: &str) -> Result<Request, Problem> {
    let refused = || Problem::forbidden("the page is too old or not of this server; load it again");
    if !headers::is_from_us(request.headers()) {
        return Err(refused());
    }
    if let Some(brought) = request.headers().get(CSRF_HEADER) {
        let is_right = brought.to_str().is_ok_and(|brought| secret::same(brought, csrf));
        return if is_right { Ok(request) } else { Err(refused()) };
    }
    let media = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if media.split(';').next().map(str::trim) != Some("application/x-www-form-urlencoded") {
        return Err(refused());
    }
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, LARGEST_FORM).await.map_err(|_| Problem::too_large(LARGEST_FORM))?;
    let fields: Vec<(String, String)> =
        serde_html_form::from_bytes(&bytes).map_err(|_| Problem::bad_request("", "this is no form"))?;
    let brought = fields.iter().find(|(name, _)| name == CSRF_FIELD);
    if brought.is_some_and(|(_, brought)| secret::same(brought, csrf)) {
        return Ok(Request::from_parts(parts, Body::from(bytes)));
    }
    Err(refused())
}

/// Everything that could mean something in a query becomes `%XX`.
fn url_encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            write!(encoded, "%{byte:02X}").ok();
        }
    }
    encoded
}

/// Whether anybody could sign in: without a token, a link is the only way.
///
/// # Errors
/// When the store does not answer.
pub async fn has_tokens(app: &App) -> Result<bool, StoreError> {
    let now = app.store.now();
    Ok(app.store.tokens().await?.iter().any(|token| token.is_good(now)))
}
