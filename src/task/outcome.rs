//! What an attempt came to, before any policy has looked at it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Millis;

/// Failure classes that the product itself assigns. A handler may name others.
pub mod class {
    /// Connect, read or total time-out.
    pub const TIMEOUT: &str = "timeout";
    /// DNS, refused, reset, TLS, proxy, truncated body.
    pub const NETWORK: &str = "network";
    /// 429, or a platform code listed as a rate limit.
    pub const RATE_LIMITED: &str = "rate_limited";
    /// 408, 425, 500, 502, 503, 504.
    pub const SERVER_ERROR: &str = "server_error";
    /// The command says the world is not ready yet.
    pub const TRANSIENT: &str = "transient";
    /// Any other HTTP status that is not success.
    pub const HTTP_STATUS: &str = "http_status";
    /// HTTP, but not what was asked for.
    pub const INVALID_RESPONSE: &str = "invalid_response";
    /// The handler cannot use the payload.
    pub const BAD_PAYLOAD: &str = "bad_payload";
    /// The program cannot be started.
    pub const NOT_RUNNABLE: &str = "not_runnable";
    /// No route for the type.
    pub const NO_ROUTE: &str = "no_route";
    /// The worker died or stalled beyond its lease.
    pub const WORKER_LOST: &str = "worker_lost";
    /// A command or library handler failed without naming a class.
    pub const FAILED: &str = "failed";
    /// A library handler panicked.
    pub const PANIC: &str = "panic";
    /// A platform code that no list knows.
    pub const PLATFORM_CODE: &str = "platform_code";
}

/// A stored response.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TaskResult {
    /// As the handler named it, e.g. `application/json`.
    pub media_type: String,
    /// The body, cut at the cap.
    pub body: Vec<u8>,
    /// Whether it was cut.
    pub truncated: bool,
}

/// What the handler says about retrying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Policy decides from class, code and status.
    ByPolicy,
    /// The handler says: again, whatever the policy's lists say. The budget still holds.
    Retry,
    /// The handler says: never again.
    Dead,
}

/// How long the other side asked us to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RetryAfter {
    /// From the moment the answer arrived; never negative.
    pub delay_ms: Millis,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    /// One of [`class`], or the handler's own word.
    pub class: String,
    /// The platform's business code.
    pub code: Option<String>,
    /// The HTTP status, when there was one.
    pub http_status: Option<u16>,
    /// For people; at most 4 KiB, cut on a character boundary.
    pub message: String,
    /// Stack trace or tail of stderr.
    pub stack: Option<String>,
    /// Groups equal failures; see [`super::fingerprint`].
    pub fingerprint: String,
}

/// What an attempt came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The work is done.
    Success {
        /// What to store as the task's result.
        result: Option<TaskResult>,
        /// What the attempt cost, in the user's unit.
        cost: Option<f64>,
    },
    /// The work is not done.
    Failure {
        /// Why. `fingerprint` may be left empty: it is filled when the outcome is recorded.
        failure: Failure,
        /// Whether the handler itself has decided.
        verdict: Verdict,
        /// What the other side asked for.
        retry_after: Option<RetryAfter>,
        /// What the attempt cost, in the user's unit.
        cost: Option<f64>,
    },
}

impl Outcome {
    /// Success without a stored result.
    pub fn success() -> Outcome {
        Outcome::Success { result: None, cost: None }
    }

    /// Success with a JSON result.
    pub fn success_json(value: &serde_json::Value) -> Outcome {
        let body = value.to_string().into_bytes();
        Outcome::Success {
            result: Some(TaskResult { media_type: "application/json".into(), body, truncated: false }),
            cost: None,
        }
    }

    /// A failure of `class` that policy decides about.
    pub fn failure(class: impl Into<String>, message: impl Into<String>) -> Outcome {
        Outcome::Failure {
            failure: Failure::new(class, message),
            verdict: Verdict::ByPolicy,
            retry_after: None,
            cost: None,
        }
    }

    /// A failure that deserves another try, whatever the policy's lists say.
    pub fn retry(message: impl Into<String>) -> Outcome {
        Outcome::failure(class::FAILED, message).with_verdict(Verdict::Retry)
    }

    /// A failure that no retry will mend.
    pub fn dead(message: impl Into<String>) -> Outcome {
        Outcome::failure(class::FAILED, message).with_verdict(Verdict::Dead)
    }

    /// The same failure with the handler's own word on retrying. No effect on a success.
    #[must_use]
    pub fn with_verdict(mut self, word: Verdict) -> Outcome {
        if let Outcome::Failure { verdict, .. } = &mut self {
            *verdict = word;
        }
        self
    }

    /// The same failure with the wait that the other side asked for. No effect on a success.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Outcome {
        if let Outcome::Failure { retry_after, .. } = &mut self {
            *retry_after = Some(RetryAfter { delay_ms: Millis::try_from(delay.as_millis()).unwrap_or(Millis::MAX) });
        }
        self
    }

    /// The same failure with a platform code. No effect on a success.
    #[must_use]
    pub fn with_code(mut self, word: impl Into<String>) -> Outcome {
        if let Outcome::Failure { failure, .. } = &mut self {
            failure.code = Some(word.into());
        }
        self
    }

    /// The same failure with another class. No effect on a success.
    #[must_use]
    pub fn with_class(mut self, word: impl Into<String>) -> Outcome {
        if let Outcome::Failure { failure, .. } = &mut self {
            failure.class = word.into();
        }
        self
    }

    /// The same outcome with its cost, in the user's unit.
    #[must_use]
    pub fn with_cost(mut self, amount: f64) -> Outcome {
        match &mut self {
            Outcome::Success { cost, .. } | Outcome::Failure { cost, .. } => *cost = Some(amount),
        }
        self
    }
}

impl Failure {
    /// A failure with class and message; the fingerprint is filled when it is recorded.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Failure {
        Failure {
            class: class.into(),
            code: None,
            http_status: None,
            message: message.into(),
            stack: None,
            fingerprint: String::new(),
        }
    }
}

/// Something an attempt left for the person who triages: a screenshot, a page, a log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attachment {
    /// A file name without folders.
    pub name: String,
    /// e.g. `image/png`.
    pub media_type: String,
    /// The bytes, or where they are.
    pub body: AttachmentBody,
}

/// The bytes of an attachment, or a link to them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AttachmentBody {
    /// Stored with the attempt.
    Bytes(Arc<[u8]>),
    /// Kept elsewhere by the handler.
    Link(String),
    /// Over the cap; only its size is kept.
    TooLarge {
        /// Size in bytes.
        size: u64,
    },
}
