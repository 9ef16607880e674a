//! From the bytes of a submission to a task, or to the reason why it cannot be one.

use super::{NewTask, Refusal};

/// Where a submission came from.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// The AMQP routing key.
    pub routing_key: String,
    /// The AMQP `message_id`.
    pub message_id: Option<String>,
    /// The broker's redelivered flag.
    pub redelivered: bool,
}

/// A submission, read.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "short-lived, one per delivery")]
pub enum ReadSubmission {
    /// It can become a runnable task.
    New(NewTask),
    /// It cannot.
    Refused(Refusal),
}

/// Why a submission cannot be a task.
#[derive(Debug, thiserror::Error)]
pub enum SubmissionError {}

/// Placeholder until the envelope lands.
pub fn read_submission() {}

/// Placeholder until the envelope lands.
pub fn refusal_id() {}

/// Placeholder until the envelope lands.
pub fn canonical_payload_hash(_task_type: &str, _payload: &str) -> String {
    String::new()
}
