//! A task, its status and what moves it from one status to the next.
//!
//! This module exists so that the rules can be read, tested and model-checked in one place: production, simulation and
//! the model checker all call [`Rows::apply`]. It never does I/O, never reads a clock and never draws a random number;
//! time and randomness are arguments.

mod attempt;
mod command;
mod decide;
mod document;
mod edit;
mod fingerprint;
mod gates;
mod mirror;
mod notice;
mod outcome;
mod rows;
mod start;
mod submission;
mod trace;
mod transition;
mod wake;

pub use attempt::{Attempt, AttemptOutcome};
pub use command::{
    Answer, Change, Claimant, Command, Degraded, Ending, NewTask, Refusal, Settings, Settlement, WakeUp,
};
pub use decide::{Decision, LONGEST_DELAY_MS, decide, decide_lost, hold_for, rejudge};
pub(crate) use document::text_or_base64;
pub use document::{FailureDocument, ResultDocument};
pub use edit::{Difference, EditError, EditPreview, EditRecord, PayloadEdit};
pub use fingerprint::fingerprint;
pub use notice::{Announced, Happening, Notice, TaskEvent};
pub use outcome::{Attachment, AttachmentBody, Failure, Outcome, RetryAfter, TaskResult, Verdict, class};
pub use rows::{Cached, Changes, DlqLedger, LaneKey, LaneLedger, Rows, Spot, Updated};
pub use submission::{
    ALERT_TYPE, Arrived, Envelope, IfTaken, MAX_DEPTH, MAX_LABEL_NAME, MAX_LABEL_VALUE, MAX_LABELS, MAX_NAME,
    MAX_PRIORITY, Origin, ReadSubmission, SubmissionError, canonical_payload_hash, glance_at_priority, own_queue,
    read_submission, refusal, refusal_id, rfc_3339,
};
pub use trace::TraceContext;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gate::Pass;

/// Milliseconds since the Unix epoch by the store's clock, or a length in milliseconds where a name ends in `_ms`.
pub type Millis = i64;

/// Where a task stands. Each variant says who moves it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits for its first attempt of this generation. A claim moves it to `running`; a person may cancel it.
    Pending,
    /// A worker holds its lease. That worker settles or releases it; when the lease ends the scheduler does.
    Running,
    /// Waits for its next attempt after a failed one. A claim moves it to `running`; a person may cancel it.
    RetryWaiting,
    /// Done. Final.
    Succeeded,
    /// Given up, with a [`DeadReason`]. Only a person (or an automatic replay) moves it: replay or discard.
    Dead,
    /// A dead letter that a person threw away with a reason. Final.
    Discarded,
    /// Stopped by a person before it ran. Final.
    Cancelled,
}

impl Status {
    /// Every status, in the order of a task's life.
    pub const ALL: [Status; 7] = [
        Status::Pending,
        Status::Running,
        Status::RetryWaiting,
        Status::Succeeded,
        Status::Dead,
        Status::Discarded,
        Status::Cancelled,
    ];

    /// The word used in the store, in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Running => "running",
            Status::RetryWaiting => "retry_waiting",
            Status::Succeeded => "succeeded",
            Status::Dead => "dead",
            Status::Discarded => "discarded",
            Status::Cancelled => "cancelled",
        }
    }

    /// The status that `word` names, or `None`.
    pub fn parse(word: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|s| s.as_str() == word)
    }

    /// Waiting for an attempt: `pending` or `retry_waiting`.
    pub fn is_waiting(self) -> bool {
        matches!(self, Status::Pending | Status::RetryWaiting)
    }

    /// No attempt will start unless a person acts.
    pub fn is_ended(self) -> bool {
        !self.is_waiting() && self != Status::Running
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a task is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// The last allowed attempt failed.
    RetriesExhausted,
    /// The failure does not deserve a retry.
    PermanentError,
    /// An open breaker sent it straight to the people.
    CircuitOpen,
    /// Its deadline passed, or the next due time lay beyond it.
    DeadlineExceeded,
    /// The submission or wake-up could not be read.
    Malformed,
    /// Its id or idempotency key belongs to another task with another payload.
    DuplicateConflict,
    /// The broker gave up delivering it, or its row cannot be processed.
    Poison,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [DeadReason; 7] = [
        DeadReason::RetriesExhausted,
        DeadReason::PermanentError,
        DeadReason::CircuitOpen,
        DeadReason::DeadlineExceeded,
        DeadReason::Malformed,
        DeadReason::DuplicateConflict,
        DeadReason::Poison,
    ];

    /// The word used in the store, in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            DeadReason::RetriesExhausted => "retries_exhausted",
            DeadReason::PermanentError => "permanent_error",
            DeadReason::CircuitOpen => "circuit_open",
            DeadReason::DeadlineExceeded => "deadline_exceeded",
            DeadReason::Malformed => "malformed",
            DeadReason::DuplicateConflict => "duplicate_conflict",
            DeadReason::Poison => "poison",
        }
    }

    /// The reason that `word` names, or `None`.
    pub fn parse(word: &str) -> Option<DeadReason> {
        DeadReason::ALL.into_iter().find(|r| r.as_str() == word)
    }

    /// Whether the task can be replayed as it is. What could not be read, or contradicts another task, cannot; editing it
    /// makes a new task instead.
    pub fn is_replayable(self) -> bool {
        !matches!(self, DeadReason::Malformed | DeadReason::DuplicateConflict)
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a message must match to start an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// 0, then + 1 at each replay.
    pub generation: i64,
    /// Failed attempts spent in this generation.
    pub retry_count: i64,
}

impl Stamp {
    /// The stamp of a first attempt: generation 0, no retry spent.
    pub const FIRST: Stamp = Stamp { generation: 0, retry_count: 0 };

    /// The lane on which a wake-up with this stamp travels.
    pub fn lane(self) -> Lane {
        if self == Stamp::FIRST { Lane::Tasks } else { Lane::Retries }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.generation, self.retry_count)
    }
}

/// One of the two work queues of a `[[queue]]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// First attempts: submissions, and wake-ups with stamp (0, 0).
    Tasks,
    /// Every other stamp, replays included.
    Retries,
}

impl Lane {
    /// The word used in the store and in queue names.
    pub fn as_str(self) -> &'static str {
        match self {
            Lane::Tasks => "tasks",
            Lane::Retries => "retries",
        }
    }

    /// The lane that `word` names, or `None`.
    pub fn parse(word: &str) -> Option<Lane> {
        match word {
            "tasks" => Some(Lane::Tasks),
            "retries" => Some(Lane::Retries),
            _ => None,
        }
    }
}

/// A row's last published wake-up that nothing has answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Outstanding {
    /// The lane it reaches.
    pub lane: Lane,
    /// The rung it waits on first, named by its delay; 0 when it was published straight to the lane.
    pub rung_ms: Millis,
    /// When it was handed to the publisher.
    pub sent_at: Millis,
    /// When it should reach the lane.
    pub arrives_at: Millis,
}

/// The state of a dead task's copy in the broker's DLQ. Speaks of the current generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DlqCopy {
    /// There should be none.
    None,
    /// One should be there and is not known to be.
    Wanted,
    /// One was confirmed.
    Present,
}

impl DlqCopy {
    /// The word used in the store and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DlqCopy::None => "none",
            DlqCopy::Wanted => "wanted",
            DlqCopy::Present => "present",
        }
    }

    /// The state that `word` names, or `None`.
    pub fn parse(word: &str) -> Option<DlqCopy> {
        [DlqCopy::None, DlqCopy::Wanted, DlqCopy::Present].into_iter().find(|c| c.as_str() == word)
    }
}

/// What a producer asked for. Never changes after the first commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Unique; 1 to 200 bytes.
    pub id: String,
    /// Dot-separated words, an AMQP topic.
    pub task_type: String,
    /// JSON text as submitted; `null` when the producer sent none.
    pub payload: String,
    /// Names and values that policies, filters and reports use.
    pub labels: BTreeMap<String, String>,
    /// The same on every attempt and replay. `None` only for refused rows, which own no key.
    pub idempotency_key: Option<String>,
    /// 0 (default) to 9, higher first within a worker's buffer.
    pub priority: i64,
    /// Names the cached result a fallback may use.
    pub cache_key: Option<String>,
    /// The broker queue that is told how it ends.
    pub reply_to: Option<String>,
    /// The span that asked for it.
    pub trace: Option<TraceContext>,
    /// SHA-256 (hex) of type and canonical payload. Empty for a row inserted by others until it is compared.
    pub payload_hash: String,
    /// Hash of routing key and body of a submission without an id; how its redelivery is recognised.
    pub submission_hash: Option<String>,
    /// When the row was made.
    pub created_at: Millis,
    /// What arrived, for rows that were refused.
    pub raw: Option<Arc<RawSubmission>>,
    /// The task whose id or key a `duplicate_conflict` row collided with.
    pub conflicts_with: Option<String>,
}

/// The bytes of a submission that could not become a runnable task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RawSubmission {
    /// The body, cut at `max_body`.
    pub bytes: Vec<u8>,
    /// Its full length before the cut.
    pub length: i64,
    /// The AMQP routing key it came with.
    pub routing_key: String,
    /// The AMQP `message_id` it came with.
    pub message_id: Option<String>,
}

/// Everything about a task that transitions change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Where it stands.
    pub status: Status,
    /// Set exactly when `status` is `dead`.
    pub dead_reason: Option<DeadReason>,
    /// What it was finished by when it was not the real thing: `cache`, `default`, or `defaults` for fields that were filled in.
    pub degraded: Option<String>,
    /// Generation and retry count.
    pub stamp: Stamp,
    /// When it may next run.
    pub due_at: Millis,
    /// When the store acts by itself. Never `None` for an unfinished task.
    pub wake_at: Option<Millis>,
    /// No attempt starts after it.
    pub deadline: Option<Millis>,
    /// The `[[queue]]` it belongs to; `None` for a row inserted by others that no dispatcher has seen.
    pub queue: Option<String>,
    /// The number of its last claim. Only that claim may settle.
    pub fence: i64,
    /// Who claimed it, while running.
    pub worker: Option<String>,
    /// When the running attempt started.
    pub started_at: Option<Millis>,
    /// Runs of this stamp that were given back unfinished.
    pub releases: i64,
    /// Wakes and lates of this stamp: the exponent of `patience`. Of a dead row: how often its copy was sent again.
    pub wakes: i64,
    /// The last published wake-up that nothing has answered.
    pub outstanding: Option<Outstanding>,
    /// The gate it waits for.
    pub held_by: Option<String>,
    /// Its turn among what is held: the narrowest key of its gates; empty while nothing holds it.
    pub held_turn: String,
    /// When waiting for a breaker ends it.
    pub park_until: Option<Millis>,
    /// What its running claim keeps of the gates it went through; empty while it does not run.
    pub passes: Vec<Pass>,
    /// The variant of its policy that it keeps for life, once decided.
    pub variant: Option<String>,
    /// Its copy in the DLQ.
    pub dlq_copy: DlqCopy,
    /// When the sweeper may publish the wanted copy.
    pub dlq_at: Option<Millis>,
    /// The delay before the coming attempt.
    pub delay_ms: Option<Millis>,
    /// Why that delay.
    pub delay_reason: Option<String>,
    /// The coming attempt is a retry that the handler itself asked for.
    pub retry_by_handler: bool,
    /// The last failure (its stack is in the attempt).
    pub failure: Option<Failure>,
    /// When it reached a final or dead status.
    pub ended_at: Option<Millis>,
    /// What the last person who acted on it gave as the reason.
    pub note: Option<String>,
}

/// One unit of work.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Task {
    /// What was asked for.
    pub spec: Arc<Spec>,
    /// Where it stands.
    pub state: State,
}

impl Task {
    /// The task's id.
    pub fn id(&self) -> &str {
        &self.spec.id
    }

    /// The task's current stamp.
    pub fn stamp(&self) -> Stamp {
        self.state.stamp
    }

    /// The task's queue; `default` for a row that no dispatcher has routed yet.
    pub fn queue(&self) -> &str {
        self.state.queue.as_deref().unwrap_or(DEFAULT_QUEUE)
    }
}

/// The queue that exists without configuration.
pub const DEFAULT_QUEUE: &str = "default";
