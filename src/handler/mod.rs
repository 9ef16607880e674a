//! What runs a task: an HTTP call, a command, or a library user's own code.
//!
//! A handler turns one attempt into one [`Report`]. It never decides about retries (it may say its word, C5), never touches
//! store or broker, and ends when its cancellation token fires.

pub mod command;
mod function;
pub mod http;
mod media;
mod tidy;
mod webhook;

pub use function::{IntoReport, handler_fn, run_caught};
pub use webhook::{Webhook, WebhookHandler, is_local};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::policy::TopicPattern;
use crate::task::{Attachment, Outcome, Spec, TraceContext, class};

/// One run that is about to start.
#[derive(Debug, Clone)]
pub struct AttemptContext {
    /// The task.
    pub task: Arc<Spec>,
    /// Failed attempts spent in this generation: 0 at the first.
    pub retry_count: i64,
    /// 0, then + 1 at each replay.
    pub generation: i64,
    /// The claim's number: unique among the attempts of this task.
    pub fence: i64,
    /// Where this attempt stands in a distributed trace, to be sent on to whoever is called; `None` when the task came without one and
    /// nobody collects spans.
    pub trace: Option<TraceContext>,
    /// Fires when the lease is lost or the process must stop now. What the handler returns after that is not recorded.
    pub cancel: CancellationToken,
}

impl AttemptContext {
    /// 1 for the first attempt of a generation.
    pub fn number(&self) -> i64 {
        self.retry_count + 1
    }

    /// What the other side should use to recognise a repeated call: the same on every attempt and replay.
    pub fn idempotency_key(&self) -> &str {
        self.task.idempotency_key.as_deref().unwrap_or(&self.task.id)
    }

    /// The payload, read as `P`.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P, serde_json::Error> {
        serde_json::from_str(&self.task.payload)
    }
}

/// What an attempt came to and left behind.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Screenshots and the like, within [`Caps`].
    pub attachments: Vec<Attachment>,
    /// What of a success is not the real thing: [`DEFAULTS`], or the handler's own word. It ends the task all the same, marked
    /// as degraded by this, and no fallback takes its result for a good one.
    pub degraded: Option<String>,
}

/// What a success is degraded by when fields that the response lacked were filled in with a route's `defaults`.
pub const DEFAULTS: &str = "defaults";

impl From<Outcome> for Report {
    fn from(outcome: Outcome) -> Report {
        Report { outcome, attachments: Vec::new(), degraded: None }
    }
}

/// What is kept of an attempt at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Bytes of a response that are read and stored as result.
    pub body: usize,
    /// Bytes of one attachment.
    pub attachment: u64,
    /// Attachments of one attempt.
    pub attachments: usize,
}

impl Default for Caps {
    /// 1 MiB of body, 16 attachments of 4 MiB.
    fn default() -> Self {
        Caps { body: 1 << 20, attachment: 4 << 20, attachments: 16 }
    }
}

/// What an attempt that was cancelled returns; nobody records it.
fn cancelled() -> Report {
    Outcome::failure(class::FAILED, "the attempt was cancelled").into()
}

/// Runs attempts.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs one attempt to its end.
    async fn run(&self, attempt: AttemptContext) -> Report;
}

/// Who runs a type.
#[derive(Clone)]
pub struct Route {
    /// Task types it is for.
    pub task_type: TopicPattern,
    /// Who runs them.
    pub handler: Arc<dyn Handler>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("task_type", &self.task_type).finish_non_exhaustive()
    }
}

/// The `http` table of a `[[route]]`, validated.
#[derive(Clone)]
pub struct HttpRoute {
    /// Where to call.
    pub url: reqwest::Url,
    /// How.
    pub method: reqwest::Method,
    /// For the whole call, body included.
    pub timeout: Duration,
    /// Header names and values; `env:NAME` in the file has been resolved. Values may be secret.
    pub headers: Vec<(String, String)>,
    /// Proxy URL; `None` uses none (the environment's proxies are not used).
    pub proxy: Option<String>,
    /// A PEM file of further certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// JSON pointer to the platform's code.
    pub code: Option<String>,
    /// JSON pointers that must lead to something that is not null and not empty.
    pub expect: Vec<String>,
    /// Values filled in for fields that a response lacks: JSON pointer and value.
    pub defaults: Vec<(String, serde_json::Value)>,
}

impl std::fmt::Debug for HttpRoute {
    /// Without header values, proxy and URL: each may hold a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("HttpRoute")
            .field("method", &self.method)
            .field("host", &self.url.host_str())
            .field("headers", &headers)
            .finish_non_exhaustive()
    }
}

/// The `command` table of a `[[route]]`, validated.
#[derive(Debug, Clone)]
pub struct CommandRoute {
    /// The program; looked up in PATH when it has no slash.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// For the whole run; then its process group is ended.
    pub timeout: Duration,
    /// Names of variables it inherits, or `NAME=value`.
    pub env: Vec<String>,
}
