//! From the bytes of a submission to a task, or to the reason why it cannot be one.
//!
//! Nothing that a producer sent is lost here: what cannot be run becomes a [`Refusal`], a dead row with the bytes and the
//! reason. Pure: the time and a fresh id are arguments.

mod canonical;
mod envelope;

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

use super::{DeadReason, Failure, Millis, NewTask, RawSubmission, Refusal, Spec, TraceContext};
use crate::policy::check_topic;

pub use canonical::{MAX_DEPTH, canonical_payload_hash};
pub use envelope::{
    Envelope, MAX_LABEL_NAME, MAX_LABEL_VALUE, MAX_LABELS, MAX_NAME, MAX_PRIORITY, own_queue, rfc_3339,
};

/// The type of tasks that carry alerts. No submission from outside may have it: what it says is sent to people in our name.
pub const ALERT_TYPE: &str = "redeliver.alert";

/// Where a submission came from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The AMQP routing key.
    pub routing_key: String,
    /// The AMQP `message_id`.
    pub message_id: Option<String>,
    /// The broker's redelivered flag.
    pub redelivered: bool,
    /// The span that asked for it, if its headers name one.
    pub trace: Option<TraceContext>,
}

/// A submission, read.
#[derive(Debug, Clone)]
pub enum ReadSubmission {
    /// It can become a runnable task.
    New(NewTask),
    /// It cannot.
    Refused(Box<Refusal>),
}

/// The dead row of a submission whose id or key turns out to be taken by another payload. Making it hashes the body and copies
/// it, and hardly any submission comes to that, so it is made when it is needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IfTaken {
    /// To be made from what arrived.
    Arrived(Arc<Arrived>),
    /// This one.
    Row(Box<Refusal>),
}

/// A submission as it arrived.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Arrived {
    /// All of the body.
    pub body: Box<[u8]>,
    /// Where it came from.
    pub origin: Origin,
}

impl From<Refusal> for IfTaken {
    fn from(refusal: Refusal) -> IfTaken {
        IfTaken::Row(Box::new(refusal))
    }
}

impl IfTaken {
    /// The row's id.
    pub fn id(&self) -> String {
        match self {
            IfTaken::Arrived(arrived) => refusal_id(&arrived.body, &arrived.origin).to_string(),
            IfTaken::Row(refusal) => refusal.spec.id.clone(),
        }
    }

    /// The row for the submission that was read as `spec` and would have gone to `queue`.
    pub fn refusal(&self, spec: &Spec, queue: &str) -> Refusal {
        let arrived = match self {
            IfTaken::Arrived(arrived) => arrived,
            IfTaken::Row(refusal) => return (**refusal).clone(),
        };
        let (body, now) = (&arrived.body, spec.created_at);
        let mut refusal = refusal(body, &arrived.origin, body.len(), now, |_| queue.to_owned());
        // Known here, and what people look for it by.
        refusal.spec.task_type.clone_from(&spec.task_type);
        refusal.spec.payload_hash = canonical_payload_hash(&spec.task_type, &refusal.spec.payload);
        refusal.spec.labels.clone_from(&spec.labels);
        refusal
    }
}

/// Why a submission cannot be a task. The texts go to people, in the row's failure.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubmissionError {
    /// No bytes, or white space only.
    #[error("the body is empty")]
    Empty,
    /// Over `max_body`.
    #[error("the body is {length} bytes long, at most {max} are accepted")]
    TooLong {
        /// What arrived.
        length: usize,
        /// `max_body`.
        max: usize,
    },
    /// Bytes that are no UTF-8.
    #[error("the body is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// The first byte that is wrong.
        at: usize,
    },
    /// Not a JSON object.
    #[error("the body is no JSON submission: {reason}")]
    NotJson {
        /// What the reader said.
        reason: String,
    },
    /// A field that no submission has.
    #[error("the field {name:?} is unknown")]
    UnknownField {
        /// Its name, cut.
        name: String,
    },
    /// A field that is there twice.
    #[error("the field {name:?} is there twice")]
    DoubledField {
        /// Its name.
        name: String,
    },
    /// A value that is refused.
    #[error("`{field}` {problem}")]
    Field {
        /// Which.
        field: String,
        /// What is wrong with it; follows the name in a sentence.
        problem: String,
    },
}

impl SubmissionError {
    fn field(field: &str, problem: impl Into<String>) -> SubmissionError {
        SubmissionError::Field { field: field.into(), problem: problem.into() }
    }
}

/// Reads a submission. `claimant` is `None` and `publish` is false: they are the caller's to set.
///
/// `new_id` is asked for a fresh UUIDv7 only when neither the envelope nor the message names an id; such a task
/// remembers the hash of routing key and body instead, by which a redelivery is known again.
pub fn read_submission(
    body: &[u8],
    origin: &Origin,
    max_body: usize,
    now: Millis,
    queue_of: impl Fn(&str) -> String,
    new_id: impl FnOnce() -> String,
) -> ReadSubmission {
    let read = if body.len() > max_body {
        Err(SubmissionError::TooLong { length: body.len(), max: max_body })
    } else {
        Envelope::read(body).and_then(|envelope| to_task(envelope, body, origin, now, new_id))
    };
    match read {
        Ok(Accepted { spec, times }) => {
            let queue = queue_of(&spec.task_type);
            ReadSubmission::New(NewTask {
                spec: Arc::new(spec),
                queue,
                not_before: times.not_before,
                deadline: times.deadline,
                redelivered: origin.redelivered,
                refusal: IfTaken::Arrived(Arc::new(Arrived { body: body.into(), origin: origin.clone() })),
                claimant: None,
                publish: false,
                rejected: false,
            })
        }
        Err(error) => {
            let mut refusal = refusal(body, origin, max_body, now, queue_of);
            refusal.failure = Failure::new(DeadReason::Malformed.as_str(), storable(&error.to_string()));
            ReadSubmission::Refused(Box::new(refusal))
        }
    }
}

/// The priority that a submission asks for, without reading the rest of it; 0 when it names none or cannot be read.
///
/// For the order in which submissions wait to be read, and not worth more: most name no priority and are searched for the word
/// only, and none is kept in memory twice, as it would be if it were read when it arrives.
pub fn glance_at_priority(body: &[u8]) -> i64 {
    #[derive(serde::Deserialize)]
    struct Glance {
        priority: Option<i64>,
    }
    const NAME: &[u8] = b"\"priority\"";
    if !body.windows(NAME.len()).any(|part| part == NAME) {
        return 0;
    }
    serde_json::from_slice::<Glance>(body).ok().and_then(|glance| glance.priority).unwrap_or(0)
}

/// The dead row for a message that cannot become a runnable task: reason `malformed`, raw bytes cut at `max_body`. The caller
/// sets another reason and the failure that says what happened.
pub fn refusal(
    body: &[u8],
    origin: &Origin,
    max_body: usize,
    now: Millis,
    queue_of: impl Fn(&str) -> String,
) -> Refusal {
    let task_type = match check_topic(&origin.routing_key) {
        Ok(()) => origin.routing_key.clone(),
        Err(_) => "unknown".to_owned(),
    };
    let payload = "null".to_owned();
    let raw = RawSubmission {
        bytes: body[..body.len().min(max_body)].to_vec(),
        length: i64::try_from(body.len()).unwrap_or(i64::MAX),
        routing_key: storable(&origin.routing_key),
        message_id: origin.message_id.as_deref().map(storable),
    };
    Refusal {
        queue: queue_of(&task_type),
        spec: Spec {
            id: refusal_id(body, origin).to_string(),
            payload_hash: canonical_payload_hash(&task_type, &payload),
            task_type,
            payload,
            labels: BTreeMap::new(),
            idempotency_key: None,
            priority: 0,
            cache_key: None,
            reply_to: None,
            trace: None,
            submission_hash: None,
            created_at: now,
            raw: Some(Arc::new(raw)),
            conflicts_with: None,
        },
        reason: DeadReason::Malformed,
        failure: Failure::new(DeadReason::Malformed.as_str(), "it cannot be read"),
    }
}

/// The id of the dead row for a refused message: UUIDv5 of routing key, message id and bytes, so that a redelivery finds the row
/// that the first delivery left.
pub fn refusal_id(body: &[u8], origin: &Origin) -> Uuid {
    /// Our own name space; drawn once at random.
    const NAME_SPACE: Uuid = Uuid::from_u128(0x6e1d_2f0a_5b0c_4c1e_9a63_0c7d_f1b2_48e5);
    Uuid::new_v5(&NAME_SPACE, &framed(&[origin.routing_key.as_bytes(), message_id_bytes(origin), body]))
}

/// A task that passed every check.
struct Accepted {
    spec: Spec,
    times: envelope::Times,
}

fn to_task(
    envelope: Envelope,
    body: &[u8],
    origin: &Origin,
    now: Millis,
    new_id: impl FnOnce() -> String,
) -> Result<Accepted, SubmissionError> {
    let times = envelope.times()?;
    let task_type = match envelope.task_type {
        Some(task_type) => task_type,
        None => {
            check_topic(&origin.routing_key)
                .map_err(|error| SubmissionError::field("type", format!("is missing and the routing key {error}")))?;
            origin.routing_key.clone()
        }
    };
    let mut submission_hash = None;
    let id = match (envelope.id, &origin.message_id) {
        (Some(id), _) => id,
        (None, Some(id)) => {
            envelope::check_name(id, MAX_NAME)
                .map_err(|problem| SubmissionError::field("id", format!("is missing and the message_id {problem}")))?;
            id.clone()
        }
        (None, None) => {
            submission_hash = Some(hex::encode(Sha256::digest(framed(&[origin.routing_key.as_bytes(), body]))));
            new_id()
        }
    };
    let payload = envelope.payload.map_or_else(|| "null".to_owned(), |raw| String::from(Box::<str>::from(raw)));
    let spec = Spec {
        payload_hash: canonical_payload_hash(&task_type, &payload),
        idempotency_key: Some(envelope.idempotency_key.unwrap_or_else(|| id.clone())),
        id,
        task_type,
        payload,
        labels: envelope.labels,
        priority: envelope.priority.unwrap_or(0),
        cache_key: envelope.cache_key,
        reply_to: envelope.reply_to,
        trace: origin.trace.clone(),
        submission_hash,
        created_at: now,
        raw: None,
        conflicts_with: None,
    };
    Ok(Accepted { spec, times })
}

fn message_id_bytes(origin: &Origin) -> &[u8] {
    origin.message_id.as_deref().unwrap_or_default().as_bytes()
}

/// The parts one after the other, each behind its length, so that no two lists of parts read the same.
fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// `text` without the NUL that SQL tools cut at and PostgreSQL refuses, and short enough to show.
fn storable(text: &str) -> String {
    const LONGEST: usize = 1000;
    text[..text.floor_char_boundary(LONGEST)].replace('\0', "\u{FFFD}")
}
