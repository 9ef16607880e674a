//! Replay jobs as a store keeps them: which letters, how fast, by whom, and what became of each.
//!
//! What a job does next is decided in [`crate::dead_letter::replay`]; here are only the words in which it is written down, and the two
//! functions that every store uses to release a letter and to say what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Filter;
use crate::task::{Answer, Command, Millis, PayloadEdit, Status};

/// Which letters a job is about.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Which.
    pub filter: Filter,
    /// At most so many, newest first.
    pub limit: Option<usize>,
}

/// Who makes a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayOrigin {
    /// A person.
    Person,
    /// A policy's `replay_after`.
    Automatic,
}

impl ReplayOrigin {
    /// The word used in the store and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ReplayOrigin::Person => "person",
            ReplayOrigin::Automatic => "automatic",
        }
    }

    /// The origin that `word` names, or `None`.
    pub fn parse(word: &str) -> Option<ReplayOrigin> {
        [ReplayOrigin::Person, ReplayOrigin::Automatic].into_iter().find(|origin| origin.as_str() == word)
    }
}

/// How fast a job goes, and what stops it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Pace {
    /// Letters a second; `None`: as fast as they can be written.
    pub rate_per_s: Option<f64>,
    /// A few first, the rest only when those have ended well; see [`crate::dead_letter::replay::STAGES`].
    pub ramp: bool,
    /// Stop when more than this part of the ended ones has failed again.
    pub max_failure_ratio: Option<f64>,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayState {
    /// Its letters are being written down; none has moved.
    Selecting,
    /// Whoever holds its lease goes on with it.
    Running,
    /// A person has halted it.
    Paused,
    /// It has stopped itself; final. What waits in it stays dead.
    Stopped,
    /// A person has ended it; final. What waits in it stays dead.
    Cancelled,
    /// Nothing waits in it and everything it ran has ended; final.
    Done,
}

impl ReplayState {
    /// Every state, in the order of a job's life.
    pub const ALL: [ReplayState; 6] = [
        ReplayState::Selecting,
        ReplayState::Running,
        ReplayState::Paused,
        ReplayState::Stopped,
        ReplayState::Cancelled,
        ReplayState::Done,
    ];

    /// The word used in the store and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ReplayState::Selecting => "selecting",
            ReplayState::Running => "running",
            ReplayState::Paused => "paused",
            ReplayState::Stopped => "stopped",
            ReplayState::Cancelled => "cancelled",
            ReplayState::Done => "done",
        }
    }

    /// The state that `word` names, or `None`.
    pub fn parse(word: &str) -> Option<ReplayState> {
        ReplayState::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether it never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, ReplayState::Stopped | ReplayState::Cancelled | ReplayState::Done)
    }
}

/// What became of a letter of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemOutcome {
    /// Not yet its turn.
    Waiting,
    /// It runs again and has not ended; its retries count as not ended.
    Replayed,
    /// Not replayed, and why.
    Skipped,
    /// It ran and is dead again.
    FailedAgain,
    /// It ran and succeeded.
    Succeeded,
    /// A person cancelled it while it waited to run.
    Cancelled,
}

impl ItemOutcome {
    /// Every outcome.
    pub const ALL: [ItemOutcome; 6] = [
        ItemOutcome::Waiting,
        ItemOutcome::Replayed,
        ItemOutcome::Skipped,
        ItemOutcome::FailedAgain,
        ItemOutcome::Succeeded,
        ItemOutcome::Cancelled,
    ];

    /// The word used in the store and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ItemOutcome::Waiting => "waiting",
            ItemOutcome::Replayed => "replayed",
            ItemOutcome::Skipped => "skipped",
            ItemOutcome::FailedAgain => "failed_again",
            ItemOutcome::Succeeded => "succeeded",
            ItemOutcome::Cancelled => "cancelled",
        }
    }

    /// The outcome that `word` names, or `None`.
    pub fn parse(word: &str) -> Option<ItemOutcome> {
        ItemOutcome::ALL.into_iter().find(|outcome| outcome.as_str() == word)
    }

    /// What a task that runs as `(status, generation)` means for an item that runs in `generation`; `None`: nothing yet.
    pub(super) fn of(status: Status, generation: i64, runs_in: i64) -> Option<ItemOutcome> {
        match status {
            // It died in that generation, and somebody has replayed it since.
            _ if generation > runs_in => Some(ItemOutcome::FailedAgain),
            Status::Succeeded => Some(ItemOutcome::Succeeded),
            Status::Dead | Status::Discarded => Some(ItemOutcome::FailedAgain),
            Status::Cancelled => Some(ItemOutcome::Cancelled),
            Status::Pending | Status::Running | Status::RetryWaiting => None,
        }
    }
}

/// How many letters of a job came to what. They are told as they are now, whether or not anybody has written it down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ItemCounts {
    /// Not yet their turn.
    pub waiting: i64,
    /// Run again and have not ended.
    pub replayed: i64,
    /// Succeeded.
    pub succeeded: i64,
    /// Dead again.
    pub failed_again: i64,
    /// Cancelled by a person while they waited to run.
    pub cancelled: i64,
    /// Not replayed, by why.
    pub skipped: BTreeMap<String, i64>,
}

impl ItemCounts {
    /// Adds `n` of an outcome.
    pub fn add(&mut self, outcome: ItemOutcome, why: Option<&str>, n: i64) {
        match outcome {
            ItemOutcome::Waiting => self.waiting += n,
            ItemOutcome::Replayed => self.replayed += n,
            ItemOutcome::Succeeded => self.succeeded += n,
            ItemOutcome::FailedAgain => self.failed_again += n,
            ItemOutcome::Cancelled => self.cancelled += n,
            ItemOutcome::Skipped => *self.skipped.entry(why.unwrap_or("unknown").to_owned()).or_insert(0) += n,
        }
    }

    /// All letters of the job.
    pub fn matched(&self) -> i64 {
        self.waiting + self.released() + self.skipped()
    }

    /// Letters that were put to run again, whatever came of it.
    pub fn released(&self) -> i64 {
        self.replayed + self.succeeded + self.failed_again + self.cancelled
    }

    /// Letters that were not replayed.
    pub fn skipped(&self) -> i64 {
        self.skipped.values().sum()
    }
}

/// A job to make.
#[derive(Debug, Clone)]
pub struct NewReplay {
    /// Which letters.
    pub selection: Selection,
    /// What was asked for, as JSON for people.
    pub about: serde_json::Value,
    /// Who.
    pub created_by: Option<String>,
    /// Why, in that person's words.
    pub reason: Option<String>,
    /// How fast.
    pub pace: Pace,
    /// A JSON Patch for each payload; see [`crate::task::PayloadEdit`].
    pub edit: Option<String>,
    /// Who drives it from the start, and for how long without a sign of life; `None`: whichever worker comes first.
    pub driver: Option<(String, Millis)>,
}

/// A replay job.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayJob {
    /// Its number.
    pub id: i64,
    /// Who made it.
    pub origin: ReplayOrigin,
    /// When.
    pub created_at: Millis,
    /// Who.
    pub created_by: Option<String>,
    /// Why, in that person's words.
    pub reason: Option<String>,
    /// What was asked for.
    pub about: serde_json::Value,
    /// How fast.
    pub pace: Pace,
    /// A JSON Patch for each payload.
    pub edit: Option<String>,
    /// Where it stands.
    pub state: ReplayState,
    /// Why it stands there: what stopped it, what a person said.
    pub why: Option<String>,
    /// Who paused, resumed or cancelled it last.
    pub changed_by: Option<String>,
    /// When its state last changed.
    pub changed_at: Millis,
    /// Its stage, from 0.
    pub stage: usize,
    /// Up to which moment (epoch microseconds) its rate is used up.
    pub paced_to_us: i64,
    /// Who drives it, or drove it last.
    pub worker: Option<String>,
    /// The number of that driver.
    pub fence: i64,
    /// Until when that driver need not show a sign of life.
    pub lease_until: Millis,
    /// When it reached a final state.
    pub ended_at: Option<Millis>,
    /// Its letters.
    pub counts: ItemCounts,
}

/// The right to drive a job, until somebody with a newer fence has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayLease {
    /// The job.
    pub job: i64,
    /// The driver's number.
    pub fence: i64,
    /// How long it holds from each sign of life on.
    pub hold_ms: Millis,
}

/// What a driver writes down besides letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayStep {
    /// Only a sign of life.
    Alive,
    /// The next stage begins.
    Stage(usize),
    /// It stops itself, and why.
    Stop(String),
    /// It is done.
    Finish,
    /// Somebody else may go on with it at once.
    LeaveToOthers,
}

/// A person's word on a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Steer {
    /// Halt it; what runs runs on.
    Pause,
    /// Go on.
    Resume,
    /// End it; what waits in it stays dead, what runs runs on.
    Cancel,
}

/// What came of a person's word.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub enum Steered {
    /// As asked; the job as it stands now.
    Done(Box<ReplayJob>),
    /// Not possible in its state; the job as it stands.
    Conflict(Box<ReplayJob>),
    /// There is no such job.
    Unknown,
}

/// What a driver released.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Released {
    /// An answer for each letter, in the job's order; those to publish are [`Answer::Publish`].
    pub answers: Vec<Answer>,
    /// What they came to.
    pub counts: ItemCounts,
}

/// A letter of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayItem {
    /// The job.
    pub job: i64,
    /// Its place in the job, from 1.
    pub position: i64,
    /// The task.
    pub task_id: String,
    /// The generation in which it was dead.
    pub generation: i64,
    /// What became of it.
    pub outcome: ItemOutcome,
    /// Why it was skipped.
    pub why: Option<String>,
    /// The task that runs, when an edit made another one.
    pub runs_as: Option<String>,
    /// When that was written down.
    pub at: Millis,
}
/// What becomes of an item by the answer to its command.
pub(super) struct Fate {
    pub outcome: ItemOutcome,
    pub why: Option<String>,
    pub runs_as: Option<String>,
    pub runs_generation: Option<i64>,
}

/// The command that releases an item.
pub(super) fn command_for(
    id: String,
    generation: i64,
    edit: Option<&Arc<PayloadEdit>>,
    note: Option<String>,
) -> Command {
    match edit {
        Some(edit) => Command::Edit { id, generation, edit: Arc::clone(edit), note },
        None => Command::Replay { id, generation, note },
    }
}

/// What the answer to that command makes of the item.
pub(super) fn became(answer: &Answer) -> Fate {
    let runs = |id: &str, generation: i64| Fate {
        outcome: ItemOutcome::Replayed,
        why: None,
        runs_as: Some(id.to_owned()),
        runs_generation: Some(generation),
    };
    match answer {
        Answer::Publish(wake_up) => runs(&wake_up.id, wake_up.stamp.generation),
        Answer::Waiting(task) => runs(task.id(), task.stamp().generation),
        other => {
            let why = Some(why_skipped(other).to_owned());
            Fate { outcome: ItemOutcome::Skipped, why, runs_as: None, runs_generation: None }
        }
    }
}

/// The word for why a letter was not replayed or discarded, by the answer to its command.
pub fn why_skipped(answer: &Answer) -> &'static str {
    match answer {
        Answer::NotReplayable { .. } => "not_replayable",
        Answer::NotEditable { .. } => "not_editable",
        Answer::Unknown => "not_found",
        Answer::NotNow { .. } => "not_dead",
        Answer::Unprocessable { .. } => "unprocessable",
        _ => "changed",
    }
}
