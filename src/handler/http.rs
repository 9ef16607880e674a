//! Calls a third party over HTTP.
//!
//! One attempt is one request: redirects are not followed and nothing is sent twice behind the task's back. The response is
//! read through a cap, so that an endless body costs no more than an honest one. What the response means is said by `judge`,
//! which does no I/O.

mod judge;
mod pointer;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Client, Method, Proxy, Url, redirect, retry};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use crate::task::{Millis, Outcome, class};

use super::{AttemptContext, Caps, Handler, HttpRoute, Report};
pub(crate) use judge::class_of;
use judge::{Answer, BodyEnd, Wanted};
use pointer::Pointer;

/// Response headers that are read at most; a response with more is a network failure.
const MAX_HEADERS: usize = 512;

/// Why an `http` table cannot be used. The texts follow the name of the table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HttpRouteError {
    /// Not `http://` or `https://`.
    #[error("url has the scheme {0:?}, wanted http or https")]
    Scheme(String),
    /// A header that cannot be sent. Its value may be secret and is not shown.
    #[error("headers: {name:?} {problem}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A text that is no JSON pointer.
    #[error("{field}: {text:?} is no JSON pointer, wanted one like \"/error/code\"")]
    Pointer {
        /// `code`, `expect` or `defaults`.
        field: &'static str,
        /// As written.
        text: String,
    },
    /// A proxy URL that cannot be used; it may hold a password and is not shown.
    #[error("proxy is no usable proxy URL")]
    Proxy,
    /// A file of certificates that cannot be read.
    #[error("ca_file {}: {reason}", path.display())]
    CaFile {
        /// Which.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The client cannot be built.
    #[error("no HTTP client: {0}")]
    Client(String),
}

/// Makes ring the TLS library of this process. Harmless when one has been chosen before.
pub fn install_crypto() {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::trace!("a TLS library has been installed before");
    }
}

/// Runs attempts as HTTP calls.
#[derive(Debug)]
pub struct HttpHandler {
    client: Client,
    url: Url,
    method: Method,
    headers: HeaderMap,
    timeout: Duration,
    wanted: Wanted,
    caps: Caps,
}

impl HttpHandler {
    /// A handler for one route, with a connection pool of its own.
    ///
    /// # Errors
    /// What in the route cannot be used.
    pub fn new(route: HttpRoute, caps: Caps) -> Result<HttpHandler, HttpRouteError> {
        install_crypto();
        if !matches!(route.url.scheme(), "http" | "https") {
            return Err(HttpRouteError::Scheme(route.url.scheme().into()));
        }
        let pointer = |field: &'static str, text: &str| {
            Pointer::new(text).ok_or_else(|| HttpRouteError::Pointer { field, text: text.into() })
        };
        let wanted = Wanted {
            code: route.code.as_deref().map(|text| pointer("code", text)).transpose()?,
            expect: route.expect.iter().map(|text| pointer("expect", text)).collect::<Result<_, _>>()?,
            defaults: (route.defaults.iter())
                .map(|(text, value)| Ok((pointer("defaults", text)?, value.clone())))
                .collect::<Result<_, _>>()?,
        };
        Ok(HttpHandler {
            client: client(&route)?,
            headers: headers(&route.headers)?,
            url: route.url,
            method: route.method,
            timeout: route.timeout,
            wanted,
            caps,
        })
    }

    /// Whether a payload travels as the body; for the others a body has no meaning (RFC 9110 §9.3).
    fn sends_payload(&self) -> bool {
        !matches!(self.method, Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS | Method::TRACE)
    }

    async fn call(&self, attempt: &AttemptContext) -> Report {
        let headers = match self.headers_for(attempt) {
            Ok(headers) => headers,
            Err(name) => {
                let message = format!("the task's value for the header {name} has characters that no header can carry");
                return Outcome::failure(class::BAD_PAYLOAD, message).into();
            }
        };
        let mut request = self.client.request(self.method.clone(), self.url.clone()).headers(headers);
        if self.sends_payload() {
            request = request.body(attempt.task.payload.clone());
        }
        let until = Instant::now() + self.timeout;
        let mut response = match timeout_at(until, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return transport_failure(error).into(),
            Err(_) => {
                let message = format!("no answer within {} ms", self.timeout.as_millis());
                return Outcome::failure(class::TIMEOUT, message).into();
            }
        };
        let mut body = Vec::new();
        let end = loop {
            match timeout_at(until, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    let room = self.caps.body - body.len();
                    body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                    if chunk.len() > room {
                        break BodyEnd::Capped;
                    }
                }
                Ok(Ok(None)) => break BodyEnd::Whole,
                Ok(Err(error)) if error.is_timeout() => break BodyEnd::TimedOut,
                Ok(Err(error)) => break BodyEnd::Cut(causes(error)),
                Err(_) => break BodyEnd::TimedOut,
            }
        };
        let answer = Answer {
            status: response.status(),
            headers: std::mem::take(response.headers_mut()),
            body,
            end,
            timeout: self.timeout,
            to_head: self.method == Method::HEAD,
        };
        judge::judge(answer, &self.wanted, self.caps, now())
    }

    /// The route's headers, then ours, which win. `Err` names the header for which the task's value does not do.
    fn headers_for(&self, attempt: &AttemptContext) -> Result<HeaderMap, &'static str> {
        let mut headers = self.headers.clone();
        if self.sends_payload() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let mut set = |name: &'static str, value: &str| {
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| name)?;
            headers.insert(HeaderName::from_static(name), value);
            Ok::<(), &'static str>(())
        };
        set("idempotency-key", attempt.idempotency_key())?;
        set("x-retry-count", &attempt.retry_count.to_string())?;
        set("redeliver-task-id", &attempt.task.id)?;
        set("redeliver-task-type", &attempt.task.task_type)?;
        set("redeliver-attempt", &attempt.number().to_string())?;
        if let Some(trace) = &attempt.trace {
            set("traceparent", trace.traceparent())?;
            trace.tracestate().map_or(Ok(()), |state| set("tracestate", state))?;
        }
        Ok(headers)
    }
}

#[async_trait]
impl Handler for HttpHandler {
    async fn run(&self, attempt: AttemptContext) -> Report {
        tokio::select! {
            biased;
            () = attempt.cancel.cancelled() => super::cancelled(),
            report = self.call(&attempt) => report,
        }
    }
}

/// The client of one route.
fn client(route: &HttpRoute) -> Result<Client, HttpRouteError> {
    let mut builder = Client::builder()
        .user_agent(concat!("redeliver/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        // The policy counts attempts; a client that repeats a call by itself would be one more nobody sees.
        .retry(retry::never())
        .http1_max_headers(MAX_HEADERS)
        .http2_max_header_list_size(400 * 1024)
        .no_proxy();
    let mut certificates = Vec::new();
    if let Some(path) = &route.ca_file {
        let refused = |reason: String| HttpRouteError::CaFile { path: path.clone(), reason };
        let pem = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
        certificates = Certificate::from_pem_bundle(&pem).map_err(|error| refused(causes(error)))?;
        if certificates.is_empty() {
            return Err(refused("holds no PEM certificate".into()));
        }
    }
    let proxy_is_tls = route.proxy.as_deref().is_some_and(|proxy| proxy.starts_with("https:"));
    builder = if route.url.scheme() == "https" || proxy_is_tls {
        builder.tls_certs_merge(certificates)
    } else {
        // Plain HTTP must work in a container that ships no certificates; looking for the system's would fail there.
        builder.tls_certs_only(certificates)
    };
    if let Some(proxy) = &route.proxy {
        builder = builder.proxy(Proxy::all(proxy).map_err(|_| HttpRouteError::Proxy)?);
    }
    builder.build().map_err(|error| HttpRouteError::Client(causes(error)))
}

/// The route's own headers.
fn headers(wanted: &[(String, String)]) -> Result<HeaderMap, HttpRouteError> {
    let mut headers = HeaderMap::new();
    for (name, value) in wanted {
        let refused = |problem| HttpRouteError::Header { name: name.clone(), problem };
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused("is no header name"))?;
        if matches!(name.as_str(), "content-length" | "transfer-encoding" | "connection") {
            return Err(refused("is set by the client itself"));
        }
        let mut value =
            HeaderValue::from_bytes(value.as_bytes()).map_err(|_| refused("has a value that no header can carry"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// What an answer means to whoever asks for no more than its status.
pub(super) fn judge_plain(
    status: reqwest::StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    caps: Caps,
    now: Millis,
) -> Report {
    let answer = Answer { status, headers, body, end: BodyEnd::Whole, timeout: Duration::ZERO, to_head: false };
    judge::judge(answer, &Wanted { code: None, expect: Vec::new(), defaults: Vec::new() }, caps, now)
}

/// What it means that no response came.
pub(super) fn transport_failure(error: reqwest::Error) -> Outcome {
    let name = if error.is_timeout() { class::TIMEOUT } else { class::NETWORK };
    Outcome::failure(name, causes(error))
}

/// What happened, without the URL: it may hold secrets. The outermost texts ("error sending request") say nothing and are left
/// out where there is a cause.
fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut texts: Vec<String> = Vec::new();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        let text = cause.to_string();
        if texts.last().is_none_or(|last| !last.contains(&text)) {
            texts.push(text);
        }
        source = cause.source();
    }
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}

/// The wall clock: for `Retry-After` dates of responses without a `Date` of their own, and for the time in a signature.
pub(super) fn now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX)
}
