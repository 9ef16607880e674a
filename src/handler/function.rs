//! Handlers that library users write as an async function with a typed payload.

use std::error::Error;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use serde::de::DeserializeOwned;

use crate::task::{Attachment, AttachmentBody, Failure, Outcome, Verdict, class};

use super::{AttemptContext, Caps, Handler, Report};

/// A handler from an async function.
///
/// The payload is read as `P`; one that does not fit is dead at once, class `bad_payload`, and the function is not called. The
/// function returns an [`Outcome`], a [`Report`] (an outcome with attachments), `()` for success, or a `Result` of one of them;
/// an `Err` is a retryable failure, class `failed`, with its causes as stack.
///
/// ```
/// use redeliver::handler::{AttemptContext, handler_fn};
/// use redeliver::task::Outcome;
///
/// #[derive(serde::Deserialize)]
/// struct Order {
///     id: u64,
/// }
///
/// let handler = handler_fn(|attempt: AttemptContext, order: Order| async move {
///     if order.id == 0 {
///         return Ok(Outcome::dead("there is no order 0"));
///     }
///     if attempt.retry_count == 0 {
///         return Err("not yet");
///     }
///     Ok(Outcome::success_json(&serde_json::json!({ "shipped": order.id })))
/// });
/// # fn is_handler(_: impl redeliver::handler::Handler) {}
/// # is_handler(handler);
/// ```
pub fn handler_fn<P, F, Fut, R>(run: F) -> impl Handler
where
    P: DeserializeOwned + Send + 'static,
    F: Fn(AttemptContext, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoReport,
{
    FunctionHandler { run, payload: PhantomData::<fn(P)> }
}

struct FunctionHandler<F, P> {
    run: F,
    payload: PhantomData<P>,
}

#[async_trait]
impl<P, F, Fut, R> Handler for FunctionHandler<F, fn(P)>
where
    P: DeserializeOwned + Send + 'static,
    F: Fn(AttemptContext, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoReport,
{
    async fn run(&self, attempt: AttemptContext) -> Report {
        match attempt.payload() {
            Ok(payload) => (self.run)(attempt, payload).await.into_report(),
            Err(error) => Outcome::failure(class::BAD_PAYLOAD, format!("the payload does not fit: {error}"))
                .with_verdict(Verdict::Dead)
                .into(),
        }
    }
}

/// What a handler function may return.
pub trait IntoReport {
    /// As a report.
    fn into_report(self) -> Report;
}

impl IntoReport for Report {
    fn into_report(self) -> Report {
        self
    }
}

impl IntoReport for Outcome {
    fn into_report(self) -> Report {
        self.into()
    }
}

impl IntoReport for () {
    fn into_report(self) -> Report {
        Outcome::success().into()
    }
}

impl<R: IntoReport, E: Into<Box<dyn Error + Send + Sync>>> IntoReport for Result<R, E> {
    fn into_report(self) -> Report {
        let error: Box<dyn Error + Send + Sync> = match self {
            Ok(report) => return report.into_report(),
            Err(error) => error.into(),
        };
        let mut causes = String::new();
        let mut source = error.source();
        while let Some(cause) = source {
            causes.push_str(&format!("caused by: {cause}\n"));
            source = cause.source();
        }
        let stack = (!causes.is_empty()).then_some(causes);
        let failure = Failure { stack, ..Failure::new(class::FAILED, error.to_string()) };
        Outcome::Failure { failure, verdict: Verdict::ByPolicy, retry_after: None, cost: None }.into()
    }
}

impl Report {
    /// With an attachment more: a screenshot, a page, a log.
    #[must_use]
    pub fn attach(
        mut self,
        name: impl Into<String>,
        media_type: impl Into<String>,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Report {
        let body = AttachmentBody::Bytes(bytes.into());
        self.attachments.push(Attachment { name: name.into(), media_type: media_type.into(), body });
        self
    }

    /// With a link to something that is kept elsewhere.
    #[must_use]
    pub fn attach_link(
        mut self,
        name: impl Into<String>,
        media_type: impl Into<String>,
        url: impl Into<String>,
    ) -> Report {
        let body = AttachmentBody::Link(url.into());
        self.attachments.push(Attachment { name: name.into(), media_type: media_type.into(), body });
        self
    }
}

/// Runs one attempt so that whatever the handler does becomes a report within `caps`: a panic is a retryable failure, class
/// `panic`, and costs neither the worker nor its other tasks.
pub async fn run_caught(handler: &dyn Handler, attempt: AttemptContext, caps: Caps) -> Report {
    // The handler is not looked into after a panic; what it keeps to itself is its own to mend, as with a poisoned lock.
    let report = match AssertUnwindSafe(async { handler.run(attempt).await }).catch_unwind().await {
        Ok(report) => report,
        Err(panic) => {
            let said =
                panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Outcome::failure(class::PANIC, format!("the handler panicked: {}", said.unwrap_or("no message"))).into()
        }
    };
    report.within(caps)
}
