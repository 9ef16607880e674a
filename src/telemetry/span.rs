//! A span for each attempt, where the program is built with the feature `otel` and spans are collected.
//!
//! It links to the span that asked for the task and is no child of it: an attempt may come hours later, and a trace is read as one
//! thing that happens. What is sent on with the attempt is the attempt's own context; where nothing is recorded, the context that the
//! task came with, unchanged, as W3C Trace Context asks of those who take no part.

use crate::task::{Outcome, Task, TraceContext};

/// The span of one attempt. Dropped without an end, it ends as one of which nothing is known.
#[derive(Debug)]
pub struct AttemptSpan {
    #[cfg(feature = "otel")]
    span: super::otel::Span,
    context: Option<TraceContext>,
}

impl AttemptSpan {
    /// Starts the span of a task's running attempt.
    #[cfg(feature = "otel")]
    pub fn start(task: &Task) -> AttemptSpan {
        let span = super::otel::Span::start(task);
        let context = span.context().or_else(|| task.spec.trace.clone());
        AttemptSpan { span, context }
    }

    /// Starts the span of a task's running attempt.
    #[cfg(not(feature = "otel"))]
    pub fn start(task: &Task) -> AttemptSpan {
        AttemptSpan { context: task.spec.trace.clone() }
    }

    /// What the handler sends on.
    pub fn context(&self) -> Option<TraceContext> {
        self.context.clone()
    }

    /// The handler has said how it ended.
    #[cfg_attr(not(feature = "otel"), expect(unused_variables, reason = "nobody is told"))]
    pub fn end(self, outcome: &Outcome) {
        #[cfg(feature = "otel")]
        self.span.end(outcome);
    }
}
