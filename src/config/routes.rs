//! `[[route]]`: who runs a task type.

use std::ops::Range;
use std::time::Duration;

use crate::gate::CapRule;
use crate::handler::{CommandRoute, HttpRoute};
use crate::policy::TopicPattern;

use super::problem::Origin;
use super::raw::{RawCommand, RawHttp, RawRoute};
use super::read::subject;
use super::reader::Reader;
use super::source::{Layers, Secrets};
use super::units::show_duration;
use super::url::{MASK, check_proxy, mask, parse_http};
use super::validate::at_least;
use super::value::{DurationText, Spanned};
use super::{RouteConfig, RouteKind};

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// Headers that the product itself or the HTTP client sets.
const OUR_HEADERS: [&str; 4] = ["idempotency-key", "x-retry-count", "content-length", "transfer-encoding"];

/// The routes in order, and the caps of those that have one.
pub(super) fn routes(raw: Vec<Spanned<RawRoute>>, layers: &mut Layers<'_, '_, '_>) -> (Vec<RouteConfig>, Vec<CapRule>) {
    let mut routes = Vec::new();
    let mut caps = Vec::new();
    for (index, route) in raw.into_iter().enumerate() {
        if let Some((route, cap)) = one(index, route, layers) {
            routes.push(route);
            caps.extend(cap);
        }
    }
    (routes, caps)
}

fn one(
    index: usize,
    route: Spanned<RawRoute>,
    layers: &mut Layers<'_, '_, '_>,
) -> Option<(RouteConfig, Option<CapRule>)> {
    let Spanned { span, value: raw } = route;
    let called = subject("route", index, raw.task_type.as_ref().map(|text| text.value.as_str()));
    let task_type = match raw.task_type {
        Some(text) => match TopicPattern::new(&text.value) {
            Ok(pattern) => Some((pattern, text.span)),
            Err(error) => {
                layers.problems.at(&text.span, &called, format!("type: {error}"));
                None
            }
        },
        None => {
            let text = r##"expected a type, such as type = "order.#" ("#" is every type)"##.into();
            layers.problems.missing(&span, &called, text);
            None
        }
    };
    let mut reader = Reader { called: &called, key: format!("route[{index}]"), layers };
    let kind = match (raw.http, raw.command) {
        (Some(http), None) => reader.http(http).map(RouteKind::Http),
        (None, Some(command)) => reader.command(command).map(RouteKind::Command),
        (Some(_), Some(command)) => {
            reader.refuse(&command.span, "expected either http or command, found both; make it two routes".into());
            None
        }
        (None, None) => {
            reader.missing(&span, r#"expected who runs it: http = { url = "…" } or command = { program = "…" }"#);
            None
        }
    };
    let cap = match (raw.concurrency, &task_type) {
        (Some(concurrency), Some((pattern, _))) => reader.cap(concurrency, pattern),
        _ => None,
    };
    let (task_type, type_span) = task_type?;
    layers.note(format!("route[{index}].type"), task_type.to_string(), &Origin::File(type_span));
    Some((RouteConfig { task_type, kind: kind? }, cap))
}

impl Reader<'_, '_, '_, '_, '_> {
    fn http(&mut self, http: Spanned<RawHttp>) -> Option<HttpRoute> {
        let Spanned { span, value: raw } = http;
        let url = match &raw.url {
            Some(text) => match parse_http(&text.value) {
                Ok(url) => {
                    self.note("http.url", mask(&text.value), &text.span);
                    Some(url)
                }
                Err(error) => {
                    self.refuse(&text.span, format!("http.url: {error}"));
                    None
                }
            },
            None => {
                let text = r#"http: expected a url, such as url = "https://third.party/orders""#.into();
                self.layers.problems.missing(&span, self.called, text);
                None
            }
        };
        let method = match raw.method {
            Some(text) if METHODS.contains(&text.value.as_str()) => {
                self.note("http.method", text.value.clone(), &text.span);
                text.value
            }
            Some(text) => {
                self.refuse(
                    &text.span,
                    format!("http.method: expected one of {}, found {:?}", METHODS.join(", "), text.value),
                );
                "POST".into()
            }
            None => "POST".into(),
        };
        let timeout = self.timeout("http.timeout", raw.timeout, Duration::from_secs(10));
        let mut headers = Vec::new();
        for (name, value) in raw.headers.unwrap_or_default() {
            headers.extend(self.header(name, value));
        }
        let proxy = raw.proxy.and_then(|proxy| self.proxy(proxy));
        let ca_file = raw.ca_file.map(|path| {
            if self.layers.request.secrets == Secrets::Required
                && let Err(error) = std::fs::File::open(&path.value)
            {
                self.refuse(&path.span, format!("http.ca_file: cannot read {:?}: {error}", path.value));
            }
            self.note("http.ca_file", path.value.clone(), &path.span);
            path.value.into()
        });
        let code = raw.code.and_then(|text| self.pointer("http.code", &text.value, &text.span));
        let expect =
            raw.expect.iter().filter_map(|text| self.pointer("http.expect", &text.value, &text.span)).collect();
        let mut defaults = Vec::new();
        for (text, value) in raw.defaults.unwrap_or_default() {
            if let Some(pointer) = self.pointer("http.defaults", &text, &value.span) {
                defaults.push((pointer, value.value.0));
            }
        }
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap_or(reqwest::Method::POST);
        Some(HttpRoute { url: url?, method, timeout, headers, proxy, ca_file, code, expect, defaults })
    }

    fn header(&mut self, name: String, value: Spanned<String>) -> Option<(String, String)> {
        let field = format!("http.headers.{name}");
        let lower = name.to_ascii_lowercase();
        if reqwest::header::HeaderName::from_bytes(name.as_bytes()).is_err() {
            self.refuse(&value.span, format!("{field}: is not a header name"));
            return None;
        }
        if OUR_HEADERS.contains(&lower.as_str()) || lower.starts_with("redeliver-") {
            self.refuse(&value.span, format!("{field}: is set by redeliver itself; leave it out"));
            return None;
        }
        let text = self.resolve(&field, value.clone())?;
        if reqwest::header::HeaderValue::from_str(&text).is_err() {
            self.refuse(&value.span, format!("{field}: its value has characters that a header cannot carry"));
            return None;
        }
        let shown = if value.value.starts_with("env:") { value.value } else { MASK.into() };
        self.note(&field, shown, &value.span);
        Some((name, text))
    }

    fn proxy(&mut self, proxy: Spanned<String>) -> Option<String> {
        let span = proxy.span.clone();
        let from_environment = proxy.value.starts_with("env:");
        let shown = proxy.value.clone();
        let text = self.resolve("http.proxy", proxy)?;
        if let Err(error) = check_proxy(&text) {
            self.refuse(&span, format!("http.proxy: {error}"));
            return None;
        }
        self.note("http.proxy", if from_environment { shown } else { mask(&text) }, &span);
        Some(text)
    }

    /// `env:NAME` → the value of `NAME`, or of the file that `NAME_FILE` names. `None` when it is not there.
    pub(super) fn resolve(&mut self, field: &str, value: Spanned<String>) -> Option<String> {
        let Some(name) = value.value.strip_prefix("env:") else {
            return Some(value.value);
        };
        match self.layers.secret(name) {
            Ok(Some((secret, _))) => Some(secret),
            Ok(None) => {
                if self.layers.request.secrets == Secrets::Required {
                    self.refuse(
                        &value.span,
                        format!("{field}: the environment variable {name} is not set (nor {name}_FILE)"),
                    );
                }
                None
            }
            Err((variable, text)) => {
                self.refuse(&value.span, format!("{field}: {variable}: {text}"));
                None
            }
        }
    }

    fn pointer(&mut self, field: &str, text: &str, span: &Range<usize>) -> Option<String> {
        match check_pointer(text) {
            Ok(()) => {
                self.note(field, text.to_owned(), span);
                Some(text.to_owned())
            }
            Err(error) => {
                self.refuse(span, format!("{field}: {error}"));
                None
            }
        }
    }

    fn timeout(&mut self, field: &str, raw: Option<Spanned<DurationText>>, default: Duration) -> Duration {
        let Some(Spanned { span, value }) = raw else {
            return default;
        };
        if let Err(text) = at_least(Duration::from_millis(1))(&value) {
            self.refuse(&span, format!("{field}: {text}"));
            return default;
        }
        self.note(field, show_duration(value.0), &span);
        value.0
    }

    fn command(&mut self, command: Spanned<RawCommand>) -> Option<CommandRoute> {
        let Spanned { span, value: raw } = command;
        let program = match raw.program {
            Some(text) if text.value.trim().is_empty() || text.value.contains('\0') => {
                self.refuse(
                    &text.span,
                    "command.program: expected the name or path of a program, found nothing".into(),
                );
                None
            }
            Some(text) => {
                self.note("command.program", text.value.clone(), &text.span);
                Some(text.value)
            }
            None => {
                let text = r#"command: expected a program, such as program = "./render""#.into();
                self.layers.problems.missing(&span, self.called, text);
                None
            }
        };
        let timeout = self.timeout("command.timeout", raw.timeout, Duration::from_mins(5));
        for argument in raw.args.iter().filter(|argument| argument.value.contains('\0')) {
            self.refuse(&argument.span, "command.args: an argument cannot hold a NUL character".into());
        }
        for entry in &raw.env {
            let name = entry.value.split('=').next().unwrap_or_default();
            let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
            if !first || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') || entry.value.contains('\0') {
                self.refuse(&entry.span, "command.env: expected NAME (inherited) or NAME=value".into());
            }
        }
        let texts = |list: Vec<Spanned<String>>| list.into_iter().map(|text| text.value).collect();
        Some(CommandRoute { program: program?, args: texts(raw.args), timeout, env: texts(raw.env) })
    }
}

/// A JSON pointer (RFC 6901): empty, or parts that each begin with `/`, in which `~` is written `~0` and `/` is written `~1`.
pub(super) fn check_pointer(text: &str) -> Result<(), String> {
    let escapes_hold = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if (text.is_empty() || text.starts_with('/')) && escapes_hold {
        return Ok(());
    }
    Err(format!(r#"expected a JSON pointer such as "/error/code" (a ~ is written ~0), found {text:?}"#))
}
