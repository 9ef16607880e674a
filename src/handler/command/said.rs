//! What a command said about its outcome (C5).
//!
//! Its word wins: `result.json` in the attempt folder, else the last line of standard output if that is a JSON object with a
//! `verdict`. Both look like `{verdict, class, code, retry_after_ms, message, stack, result, cost, attachments}`, every field
//! optional in the file; `attachments` are links, `[{name, media_type, url}]`. A file with none of these fields is the result
//! itself. Without a verdict the exit code speaks: 0 done, 75 again, 64–74 and 76–78 never again (the codes of BSD's sysexits.h),
//! 126 and 127 not runnable, others and signals as policy says. A verdict that was written before a time-out counts: the work is
//! done, or is known to be futile.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::handler::media::{media_type_of_bytes, media_type_of_name};
use crate::handler::tidy::one_line;
use crate::handler::{Caps, Report};
use crate::task::{Attachment, AttachmentBody, Failure, Millis, Outcome, RetryAfter, TaskResult, Verdict, class};

use super::Kept;
use super::folder::{Folder, RESULT_FILE};

/// What a result file may be longer than a result: its other fields.
const BESIDE_RESULT: usize = 256 * 1024;
/// Bytes of standard error's last line in a message.
const LAST_LINE: usize = 500;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// With this code.
    Exit(i32),
    /// Killed by this signal.
    Signal(i32),
    /// Ended by us when its time was over.
    TimedOut(Duration),
    /// The system did not tell.
    Unknown(String),
}

/// All that is left of a run, but its folder.
#[derive(Debug)]
pub(super) struct Leavings {
    pub ending: Ending,
    pub stdout: Kept,
    pub stderr: Kept,
}

/// The fields of [`Said`].
const WORDS: [&str; 9] =
    ["verdict", "class", "code", "retry_after_ms", "message", "stack", "result", "cost", "attachments"];

/// The object of the result file or last line. Fields we do not know are left alone: they may be for somebody else.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    verdict: Option<Word>,
    class: Option<String>,
    code: Option<Value>,
    retry_after_ms: Option<f64>,
    message: Option<String>,
    stack: Option<String>,
    result: Option<Box<RawValue>>,
    cost: Option<f64>,
    attachments: Vec<Link>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Success,
    Retry,
    Dead,
}

#[derive(Debug, Deserialize)]
struct Link {
    name: String,
    media_type: Option<String>,
    url: String,
}

/// What it all means.
pub(super) fn judge(leavings: &Leavings, folder: &Folder, caps: Caps) -> Report {
    let said = match from_file(folder, caps) {
        Ok(None) => from_last_line(&leavings.stdout.bytes),
        said => said,
    };
    let mut attachments = folder.attachments(caps);
    let outcome = match said {
        Ok(Some(said)) => {
            attachments.extend(said.links());
            said.outcome(leavings)
        }
        Ok(None) => match by_ending(leavings) {
            None => Outcome::Success { result: output_as_result(&leavings.stdout), cost: None },
            Some((failure, verdict)) => Outcome::Failure { failure, verdict, retry_after: None, cost: None },
        },
        Err(problem) => match by_ending(leavings) {
            None => Outcome::failure(class::INVALID_RESPONSE, problem),
            // Half a file is what a crash leaves: then the crash is the failure.
            Some((mut failure, verdict)) => {
                failure.message = format!("{}; {problem}", failure.message);
                Outcome::Failure { failure, verdict, retry_after: None, cost: None }
            }
        },
    };
    Report { outcome, attachments, degraded: None }
}

fn from_file(folder: &Folder, caps: Caps) -> Result<Option<Said>, String> {
    let refused = |problem: String| format!("{RESULT_FILE} {problem}");
    let Some(bytes) = folder.result_file(caps.body.saturating_add(BESIDE_RESULT)).map_err(refused)? else {
        return Ok(None);
    };
    // serde would take an array's items for the fields in their order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(refused("cannot be used: an array, wanted an object".into()));
    }
    let unusable = |error: serde_json::Error| refused(format!("cannot be used: {error}"));
    let said: Said = serde_json::from_slice(&bytes).map_err(unusable)?;
    let fields: BTreeMap<String, IgnoredAny> = serde_json::from_slice(&bytes).map_err(unusable)?;
    // A file with no word of ours in it is the result itself.
    if !fields.is_empty() && !fields.keys().any(|field| WORDS.contains(&field.as_str())) {
        let result = Some(serde_json::from_slice(&bytes).map_err(unusable)?);
        return Ok(Some(Said { result, ..said }));
    }
    Ok(Some(said))
}

/// The last line's word; most outputs end with something else, and that is no error.
fn from_last_line(stdout: &[u8]) -> Result<Option<Said>, String> {
    let (_, line) = split_last_line(stdout);
    if !line.starts_with(b"{") {
        return Ok(None);
    }
    match serde_json::from_slice::<Value>(line) {
        Ok(Value::Object(fields)) if fields.contains_key("verdict") => {}
        _ => return Ok(None),
    }
    serde_json::from_slice(line).map(Some).map_err(|error| format!("the last line cannot be used: {error}"))
}

/// The last line that is not blank, trimmed, and what stands before it.
fn split_last_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    let text = bytes.trim_ascii_end();
    let start = text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    (&text[..start], text[start..].trim_ascii_start())
}

impl Said {
    fn links(&self) -> Vec<Attachment> {
        let attachment = |link: &Link| {
            let media_type = link.media_type.as_deref().or_else(|| media_type_of_name(&link.name));
            Attachment {
                name: link.name.clone(),
                media_type: media_type.unwrap_or("application/octet-stream").to_owned(),
                body: AttachmentBody::Link(link.url.clone()),
            }
        };
        self.attachments.iter().map(attachment).collect()
    }

    fn outcome(self, leavings: &Leavings) -> Outcome {
        let done = match self.verdict {
            Some(word) => word == Word::Success,
            None => leavings.ending == Ending::Exit(0),
        };
        if done {
            let result = self.result.map(|json| TaskResult {
                media_type: "application/json".into(),
                body: json.get().as_bytes().to_vec(),
                truncated: false,
            });
            return Outcome::Success { result, cost: self.cost };
        }
        let (mut failure, by_ending) = by_ending(leavings).unwrap_or_else(|| {
            let text = message("the command says that it has not succeeded", &leavings.stderr.bytes);
            (failure(class::FAILED, None, text, leavings), Verdict::ByPolicy)
        });
        if let Some(name) = self.class {
            failure.class = name;
        }
        match self.code {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => failure.code = Some(text),
            Some(other) => failure.code = Some(other.to_string()),
        }
        if let Some(text) = self.message {
            failure.message = text;
        }
        failure.stack = match (self.stack, failure.stack) {
            // Patterns over stderr must still find it.
            (Some(stack), Some(stderr)) => Some(format!("{stack}\n--- stderr ---\n{stderr}")),
            (stack, stderr) => stack.or(stderr),
        };
        let verdict = match self.verdict {
            Some(Word::Retry) => Verdict::Retry,
            Some(Word::Dead) => Verdict::Dead,
            Some(Word::Success) | None => by_ending,
        };
        let retry_after = self.retry_after_ms.filter(|ms| *ms >= 0.0).map(|ms| {
            #[expect(clippy::cast_possible_truncation, reason = "float-to-int casts saturate, which is what is wanted")]
            RetryAfter { delay_ms: ms.ceil() as Millis }
        });
        Outcome::Failure { failure, verdict, retry_after, cost: self.cost }
    }
}

/// What the way it ended means by itself; `None` for a success.
fn by_ending(leavings: &Leavings) -> Option<(Failure, Verdict)> {
    let (name, verdict, code, what) = match &leavings.ending {
        Ending::Exit(0) => return None,
        Ending::Exit(code) => {
            let (name, verdict) = match code {
                75 => (class::TRANSIENT, Verdict::Retry),
                64..=74 | 76..=78 => (class::FAILED, Verdict::Dead),
                126 | 127 => (class::NOT_RUNNABLE, Verdict::ByPolicy),
                _ => (class::FAILED, Verdict::ByPolicy),
            };
            (name, verdict, Some(format!("exit {code}")), format!("exit code {code}"))
        }
        Ending::Signal(signal) => {
            let what = format!("killed by signal {signal}");
            (class::FAILED, Verdict::ByPolicy, Some(format!("signal {signal}")), what)
        }
        Ending::TimedOut(after) => {
            let what = format!("not done within {} ms; its process group was ended", after.as_millis());
            (class::TIMEOUT, Verdict::ByPolicy, None, what)
        }
        Ending::Unknown(problem) => (class::FAILED, Verdict::ByPolicy, None, format!("its end is unknown: {problem}")),
    };
    let text = message(&what, &leavings.stderr.bytes);
    Some((failure(name, code, text, leavings), verdict))
}

fn failure(name: &str, code: Option<String>, message: String, leavings: &Leavings) -> Failure {
    let stderr = String::from_utf8_lossy(&leavings.stderr.bytes);
    let stack = (!stderr.trim().is_empty()).then(|| stderr.into_owned());
    Failure { code, stack, ..Failure::new(name, message) }
}

/// What happened and the last line of standard error, which says why in most languages.
fn message(what: &str, stderr: &[u8]) -> String {
    let (_, line) = split_last_line(stderr);
    if line.is_empty() { what.to_owned() } else { format!("{what}: {}", one_line(line, LAST_LINE)) }
}

/// Standard output as the result of a command that said nothing else.
fn output_as_result(stdout: &Kept) -> Option<TaskResult> {
    if stdout.bytes.trim_ascii().is_empty() {
        return None;
    }
    let is_json = !stdout.cut && serde_json::from_slice::<&RawValue>(&stdout.bytes).is_ok();
    let media_type = if is_json { "application/json" } else { media_type_of_bytes(&stdout.bytes) };
    Some(TaskResult { media_type: media_type.into(), body: stdout.bytes.clone(), truncated: stdout.cut })
}
