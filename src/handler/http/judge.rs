//! What a response means (C1–C5). No I/O: a response in, a report out.

use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use crate::handler::media::media_type_of_name;
use crate::handler::tidy::one_line;
use crate::handler::{Caps, DEFAULTS, Report};
use crate::policy::parse_retry_after;
use crate::task::{Attachment, AttachmentBody, Failure, Millis, Outcome, RetryAfter, TaskResult, Verdict, class};

use super::pointer::Pointer;

/// Bytes of a failed call's body that a message shows.
const EXCERPT: usize = 300;
/// Bytes of a failed call's body that are attached when the excerpt does not hold it all.
const ATTACHED: usize = 16 * 1024;
/// The header by which the other side decides itself (C5).
const VERDICT: &str = "redeliver-verdict";
/// The header by which it names a screenshot or the like that it keeps: a URL, may be repeated (A3).
const ATTACHMENT: &str = "redeliver-attachment";

/// What a route asks of a body.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    /// Where the platform's code is.
    pub code: Option<Pointer>,
    /// What must be there, not null and not empty.
    pub expect: Vec<Pointer>,
    /// What is filled in where it is missing, before `expect` looks.
    pub defaults: Vec<(Pointer, Value)>,
}

/// Where reading the body ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BodyEnd {
    /// At its end.
    Whole,
    /// At the cap.
    Capped,
    /// The connection broke, for this reason.
    Cut(String),
    /// The attempt's time was over.
    TimedOut,
}

/// A response as far as it was read.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub end: BodyEnd,
    /// The attempt's time.
    pub timeout: Duration,
    /// Whether the question was HEAD: no body is due.
    pub to_head: bool,
}

/// What `answer` means.
pub(super) fn judge(answer: Answer, wanted: &Wanted, caps: Caps, now: Millis) -> Report {
    let examined = examine(&answer, wanted, caps);
    let (failure, verdict) = match (answer.verdict(), examined) {
        (Ok(Some(Word::Success)), Err(_)) => return success(answer, None),
        (Ok(Some(Word::Success) | None), Ok(filled)) => return success(answer, filled),
        (Ok(None), Err(failure)) => (*failure, Verdict::ByPolicy),
        (Ok(Some(Word::Failure(verdict))), Err(failure)) => (*failure, verdict),
        (Ok(Some(Word::Failure(verdict))), Ok(_)) => {
            let word = if verdict == Verdict::Dead { "dead" } else { "retry" };
            (answer.failure(class::FAILED, &format!("Redeliver-Verdict: {word}")), verdict)
        }
        (Err(word), _) => {
            let problem = format!("Redeliver-Verdict is {word:?}, wanted success, retry or dead");
            (answer.failure(class::INVALID_RESPONSE, &problem), Verdict::ByPolicy)
        }
    };
    let retry_after = answer.retry_after(now);
    let mut attachments = answer.links();
    attachments.extend(answer.attached());
    let outcome = Outcome::Failure { failure, verdict, retry_after, cost: None };
    Report { outcome, attachments, degraded: None }
}

/// A success with what is to be stored: the document with its defaults filled in, which is degraded by them (F1), else the body as
/// it came.
fn success(answer: Answer, filled: Option<Value>) -> Report {
    let attachments = answer.links();
    let degraded = filled.is_some().then(|| DEFAULTS.to_owned());
    let result = match filled {
        Some(document) => Some(TaskResult {
            media_type: "application/json".into(),
            body: document.to_string().into_bytes(),
            truncated: false,
        }),
        None if answer.body.is_empty() => None,
        None => Some(TaskResult {
            media_type: answer.media_type(),
            truncated: answer.end != BodyEnd::Whole,
            body: answer.body,
        }),
    };
    Report { outcome: Outcome::Success { result, cost: None }, attachments, degraded }
}

/// Looks at everything but the verdict header. `Ok` holds the document if defaults were filled in.
fn examine(answer: &Answer, wanted: &Wanted, caps: Caps) -> Result<Option<Value>, Box<Failure>> {
    // The status of an error says enough, unless a code in its body may say more.
    if answer.status.is_success() || wanted.code.is_some() {
        answer.check_end()?;
    }
    let refused = |problem: &str| Box::new(answer.failure(class::INVALID_RESPONSE, problem));
    let document = answer.document();
    if !answer.status.is_success() {
        let mut failure = answer.failure(class_of(answer.status), redirect_note(answer.status));
        failure.code = document.ok().as_ref().and_then(|document| code_in(document, wanted, answer.status));
        return Err(Box::new(failure));
    }
    if answer.has_no_body() {
        return match wanted.expect.first() {
            Some(pointer) => Err(refused(&format!("no body, wanted {:?}", pointer.as_str()))),
            None => Ok(None),
        };
    }
    let needed = wanted.code.is_some() || !wanted.expect.is_empty();
    if needed && answer.end == BodyEnd::Capped {
        return Err(refused(&format!("body over {} bytes", caps.body)));
    }
    let mut document = match document {
        Ok(document) => document,
        Err(problem) if needed => return Err(refused(&format!("body is not JSON: {problem}"))),
        Err(_) => return Ok(None),
    };
    if let Some(code) = code_in(&document, wanted, answer.status) {
        let mut failure = answer.failure(class::PLATFORM_CODE, &format!("platform code {code}"));
        failure.code = Some(code);
        return Err(Box::new(failure));
    }
    let mut filled = false;
    for (pointer, value) in &wanted.defaults {
        filled |= pointer.fill(&mut document, value);
    }
    for pointer in &wanted.expect {
        if let Some(problem) = missing(pointer, &document) {
            return Err(refused(&format!("{:?} is {problem}", pointer.as_str())));
        }
    }
    Ok(filled.then_some(document))
}

/// The class of a status that is no success (C1, C2).
pub(crate) fn class_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        429 => class::RATE_LIMITED,
        408 | 425 | 500 | 502 | 503 | 504 => class::SERVER_ERROR,
        _ => class::HTTP_STATUS,
    }
}

fn redirect_note(status: StatusCode) -> &'static str {
    if status.is_redirection() { "redirects are not followed" } else { "" }
}

/// The platform's code, if it says that something is wrong. Nothing is wrong where it is absent, null, false, empty, 0, "0",
/// "ok" or "success" in any case, or only repeats the status, as `{"code": 200}` does.
fn code_in(document: &Value, wanted: &Wanted, status: StatusCode) -> Option<String> {
    let text = match wanted.code.as_ref()?.find(document)? {
        Value::Bool(false) => return None,
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => match number.as_f64() {
            // 1000001.0 and 1000001 are one code; beyond 2^53 a float is no longer sure of its last digit.
            #[expect(clippy::cast_possible_truncation, reason = "whole and under 2^53")]
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0 => {
                (float as i64).to_string()
            }
            _ => number.to_string(),
        },
        Value::Array(items) if items.is_empty() => return None,
        Value::Object(fields) if fields.is_empty() => return None,
        other => other.to_string(),
    };
    let fine = matches!(text.to_ascii_lowercase().as_str(), "" | "0" | "ok" | "success")
        || status.is_success() && text == status.as_str();
    (!fine).then_some(text)
}

/// What is wrong with the place that must not be empty.
fn missing(pointer: &Pointer, document: &Value) -> Option<&'static str> {
    let empty = match document.pointer(pointer.as_str()) {
        None => return Some("missing"),
        Some(Value::Null) => return Some("null"),
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Bool(_) | Value::Number(_)) => false,
    };
    empty.then_some("empty")
}

/// What the other side decided itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Success,
    Failure(Verdict),
}

impl Answer {
    /// The verdict header; `Err` is a word we do not know.
    fn verdict(&self) -> Result<Option<Word>, String> {
        let Some(value) = self.headers.get(VERDICT) else { return Ok(None) };
        let text = String::from_utf8_lossy(value.as_bytes());
        match text.trim().to_ascii_lowercase().as_str() {
            "success" => Ok(Some(Word::Success)),
            "retry" => Ok(Some(Word::Failure(Verdict::Retry))),
            "dead" => Ok(Some(Word::Failure(Verdict::Dead))),
            _ => Err(one_line(text.as_bytes(), 50)),
        }
    }

    /// A body cut short is a network failure, not a format error (C4).
    fn check_end(&self) -> Result<(), Box<Failure>> {
        match &self.end {
            BodyEnd::Whole | BodyEnd::Capped => Ok(()),
            BodyEnd::Cut(reason) => {
                let text = format!("HTTP {}, body cut short after {} bytes: {reason}", self.status, self.body.len());
                Err(Box::new(self.with_status(class::NETWORK, text)))
            }
            BodyEnd::TimedOut => {
                let (got, ms) = (self.body.len(), self.timeout.as_millis());
                let text = format!("HTTP {}, body not complete within {ms} ms ({got} bytes)", self.status);
                Err(Box::new(self.with_status(class::TIMEOUT, text)))
            }
        }
    }

    /// Status, what is wrong, and the beginning of the body, on one line.
    fn failure(&self, class_name: &str, problem: &str) -> Failure {
        let mut message = format!("HTTP {}", self.status);
        for part in [problem, &one_line(&self.body, EXCERPT)] {
            if !part.is_empty() {
                message.push_str(": ");
                message.push_str(part);
            }
        }
        self.with_status(class_name, message)
    }

    fn with_status(&self, class_name: &str, message: String) -> Failure {
        Failure { http_status: Some(self.status.as_u16()), ..Failure::new(class_name, message) }
    }

    /// The body as JSON; some write a byte order mark before it.
    fn document(&self) -> Result<Value, String> {
        let body = self.body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.body);
        serde_json::from_slice(body).map_err(|error| error.to_string())
    }

    fn has_no_body(&self) -> bool {
        let none_due = self.to_head || matches!(self.status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT);
        none_due && self.body.is_empty()
    }

    fn retry_after(&self, now: Millis) -> Option<RetryAfter> {
        let text = |name| self.headers.get(name).and_then(|value| value.to_str().ok());
        let delay_ms = parse_retry_after(text(RETRY_AFTER)?, text(DATE), now)?;
        Some(RetryAfter { delay_ms })
    }

    fn media_type(&self) -> String {
        let named = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::trim);
        named.filter(|text| !text.is_empty() && text.len() <= 200).unwrap_or("application/octet-stream").to_owned()
    }

    /// The body for the person who triages, where the message does not show all of it.
    fn attached(&self) -> Option<Attachment> {
        if self.body.len() <= EXCERPT {
            return None;
        }
        let media_type = self.media_type();
        let extension = match media_type.split(';').next().unwrap_or_default().trim() {
            "text/html" => "html",
            "text/plain" => "txt",
            kind if kind.ends_with("json") => "json",
            _ => "bin",
        };
        let body = AttachmentBody::Bytes(Arc::from(&self.body[..self.body.len().min(ATTACHED)]));
        Some(Attachment { name: format!("response.{extension}"), media_type, body })
    }

    /// What the other side keeps for the person who triages.
    fn links(&self) -> Vec<Attachment> {
        let urls = self.headers.get_all(ATTACHMENT).iter().filter_map(|value| value.to_str().ok());
        urls.map(|url| {
            let path = url.split(['?', '#']).next().unwrap_or_default();
            let name = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("link").to_owned();
            let media_type = media_type_of_name(&name).unwrap_or("application/octet-stream").to_owned();
            Attachment { name, media_type, body: AttachmentBody::Link(url.to_owned()) }
        })
        .collect()
    }
}
