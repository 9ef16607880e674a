//! Does this failure deserve a retry?

use regex::Regex;

use crate::task::{Failure, Verdict, class};

use super::Policy;

/// Codes, statuses and classes that a policy names.
#[derive(Debug, Clone, Default)]
pub struct Lists {
    /// Platform codes. A number in the config or in a response compares as its decimal text.
    pub codes: Vec<String>,
    /// HTTP statuses.
    pub http_status: Vec<u16>,
    /// Failure classes.
    pub classes: Vec<String>,
    /// Patterns over a command's stderr (only for `permanent`).
    pub stderr: Vec<Regex>,
}

/// What the failure deserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// Another attempt, while the budget lasts.
    Retry,
    /// None: dead at once.
    Permanent,
}

/// The ruling on one failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// What it deserves.
    pub disposition: Disposition,
    /// Its class: the handler's, or `rate_limited` where a list says so.
    pub class: String,
    /// Which rule said so, for people.
    pub because: String,
}

/// Rules on `failure` (C1–C5). The handler's own word on retrying wins, but "too fast" stays "too fast": what a list calls a rate
/// limit has that class under a verdict of retry too, because gates go by it. Without a word the policy's lists, the most specific first (code, HTTP
/// status, class, stderr), and within one kind permanent before rate limit before retryable; then the default of its class.
pub fn classify(policy: &Policy, failure: &Failure, verdict: Verdict) -> Ruling {
    let ruling = |disposition, class: &str, because: String| Ruling { disposition, class: class.into(), because };
    let kinds = [Kind::Code, Kind::HttpStatus, Kind::Class];
    match verdict {
        Verdict::Retry => {
            let limited = kinds.iter().any(|kind| kind.found_in(&policy.rate_limited, failure).is_some());
            let class_name = if limited { class::RATE_LIMITED } else { &failure.class };
            return ruling(Disposition::Retry, class_name, "the handler said retry".into());
        }
        Verdict::Dead => return ruling(Disposition::Permanent, &failure.class, "the handler said dead".into()),
        Verdict::ByPolicy => {}
    }
    let named = |list: &Lists, kind: Kind| kind.found_in(list, failure);
    for kind in kinds {
        if let Some(what) = named(&policy.permanent, kind) {
            return ruling(Disposition::Permanent, &failure.class, format!("{what} is listed as permanent"));
        }
        if let Some(what) = named(&policy.rate_limited, kind) {
            return ruling(Disposition::Retry, class::RATE_LIMITED, format!("{what} is listed as a rate limit"));
        }
        if let Some(what) = named(&policy.retryable, kind) {
            return ruling(Disposition::Retry, &failure.class, format!("{what} is listed as retryable"));
        }
    }
    if let Some(stderr) = &failure.stack
        && let Some(pattern) = policy.permanent.stderr.iter().find(|p| p.is_match(stderr))
    {
        let because = format!("stderr matches {pattern}, listed as permanent");
        return ruling(Disposition::Permanent, &failure.class, because);
    }
    let disposition = by_default(&failure.class);
    let word = match disposition {
        Disposition::Retry => "retryable",
        Disposition::Permanent => "permanent",
    };
    ruling(disposition, &failure.class, format!("{} is {word} by default", failure.class))
}

/// The default of a class. A class that only the handler knows is retryable: its author can say `dead`.
fn by_default(class_name: &str) -> Disposition {
    match class_name {
        class::HTTP_STATUS
        | class::INVALID_RESPONSE
        | class::BAD_PAYLOAD
        | class::NOT_RUNNABLE
        | class::NO_ROUTE
        | class::PLATFORM_CODE => Disposition::Permanent,
        _ => Disposition::Retry,
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Code,
    HttpStatus,
    Class,
}

impl Kind {
    fn found_in(self, list: &Lists, failure: &Failure) -> Option<String> {
        match self {
            Kind::Code => {
                let code = failure.code.as_deref()?;
                list.codes.iter().any(|c| c == code).then(|| format!("code {code}"))
            }
            Kind::HttpStatus => {
                let status = failure.http_status?;
                list.http_status.contains(&status).then(|| format!("HTTP {status}"))
            }
            Kind::Class => {
                let class_name = &failure.class;
                list.classes.contains(class_name).then(|| format!("class {class_name}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
