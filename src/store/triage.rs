//! What the store keeps for people who look after dead letters: groups, replay jobs, edits, retention.
//!
//! A store answers and writes down; what a job does next is decided in [`crate::dead_letter::replay`], what a letter becomes in
//! [`crate::task`]. Groups are counted from the letters themselves, never from counters that could be wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Filter, StoreError};
use crate::task::{Answer, Command, DeadReason, EditRecord, Millis, PayloadEdit, Status, Task};

/// By what dead letters are grouped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LetterGroupBy {
    /// Failures that are the same but for ids and numbers (C6).
    Fingerprint,
    /// The class of the last failure.
    Class,
    /// The task type.
    Type,
    /// Why they are dead.
    Reason,
    /// The value of this label; those without it are a group too.
    Label(String),
}

impl LetterGroupBy {
    /// Reads `fingerprint`, `class`, `type`, `reason` or `label.NAME`; `None` for anything else.
    pub fn parse(text: &str) -> Option<LetterGroupBy> {
        match text {
            "fingerprint" => Some(LetterGroupBy::Fingerprint),
            "class" => Some(LetterGroupBy::Class),
            "type" => Some(LetterGroupBy::Type),
            "reason" => Some(LetterGroupBy::Reason),
            _ => {
                let name = text.strip_prefix("label.").filter(|name| !name.is_empty())?;
                Some(LetterGroupBy::Label(name.to_owned()))
            }
        }
    }
}

impl std::fmt::Display for LetterGroupBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LetterGroupBy::Fingerprint => f.write_str("fingerprint"),
            LetterGroupBy::Class => f.write_str("class"),
            LetterGroupBy::Type => f.write_str("type"),
            LetterGroupBy::Reason => f.write_str("reason"),
            LetterGroupBy::Label(name) => write!(f, "label.{name}"),
        }
    }
}

/// Hours that a group's sparkline shows.
pub const GROUP_HOURS: usize = 24;
/// Samples of a group.
pub const GROUP_SAMPLES: usize = 3;
pub(super) const HOUR_MS: Millis = 3_600_000;

/// Dead letters that have something in common, as they are now: what was replayed or discarded is not counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LetterGroup {
    /// What they have in common; `None`: they have no such thing (no failure, no such label).
    pub key: Option<String>,
    /// How many.
    pub count: i64,
    /// When the first of them died.
    pub first_died_at: Millis,
    /// When the last of them died.
    pub last_died_at: Millis,
    /// How many died in each of the last [`GROUP_HOURS`] hours of the clock, oldest first; the last hour is the running one.
    pub hourly: [i64; GROUP_HOURS],
    /// How many of each type.
    pub types: BTreeMap<String, i64>,
    /// How many of each class of the last failure.
    pub classes: BTreeMap<String, i64>,
    /// How many of each platform code of the last failure.
    pub codes: BTreeMap<String, i64>,
    /// How many for each reason.
    pub reasons: BTreeMap<DeadReason, i64>,
    /// The fingerprints in it.
    pub fingerprints: BTreeSet<String>,
    /// The newest of them, newest first; at most [`GROUP_SAMPLES`].
    pub samples: Vec<LetterSample>,
    /// When the next of them replays itself.
    pub next_replay_at: Option<Millis>,
}

/// One letter of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterSample {
    /// The task.
    pub id: String,
    /// Its type.
    #[serde(rename = "type")]
    pub task_type: String,
    /// When it died.
    pub died_at: Millis,
    /// Class of the last failure.
    pub class: Option<String>,
    /// Platform code of the last failure.
    pub code: Option<String>,
    /// HTTP status of the last failure.
    pub http_status: Option<u16>,
    /// Message of the last failure.
    pub message: Option<String>,
}

/// What people have written at a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupNote {
    /// The group's key.
    pub key: String,
    /// Who looks after it.
    pub owner: Option<String>,
    /// What is known about it.
    pub note: Option<String>,
    /// Who wrote that.
    pub noted_by: Option<String>,
    /// When; set by the store.
    pub noted_at: Millis,
}

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

/// A letter's attempts in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LetterHistory {
    /// Attempts over all generations; runs that were given back are none.
    pub attempts: i64,
    /// When the first of them failed.
    pub first_failed_at: Option<Millis>,
    /// When the last of them failed.
    pub last_failed_at: Option<Millis>,
}

/// What retention may remove. Never dead letters, nor anything unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prunable {
    /// Tasks that have succeeded, were discarded or cancelled, with their attempts, attachments, results and edits.
    Tasks,
    /// What attempts of tasks that are not dead have left: it is large, and the attempt keeps its message and stack.
    Attachments,
    /// Results remembered for fallbacks.
    Cached,
    /// States of gates that hold nothing and that no attempt has touched.
    Gates,
    /// Replay jobs in a final state, with their items.
    Replays,
}

impl Prunable {
    /// Every kind, in the order in which they are removed.
    pub const ALL: [Prunable; 5] =
        [Prunable::Tasks, Prunable::Attachments, Prunable::Cached, Prunable::Gates, Prunable::Replays];

    /// The word used in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Prunable::Tasks => "tasks",
            Prunable::Attachments => "attachments",
            Prunable::Cached => "cached",
            Prunable::Gates => "gates",
            Prunable::Replays => "replays",
        }
    }
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

/// The part of the port that is about dead letters.
#[async_trait]
pub trait TriageStore: Send + Sync {
    /// The dead letters that match, by group, largest first; at most `limit` groups.
    async fn letter_groups(
        &self,
        by: &LetterGroupBy,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<LetterGroup>, StoreError>;

    /// What people have written at groups of that kind, by key.
    async fn group_notes(&self, by: &LetterGroupBy) -> Result<Vec<GroupNote>, StoreError>;

    /// Writes at a group, in place of what was there; without owner and note nothing is left. `noted_at` is set by the store.
    async fn note_group(&self, by: &LetterGroupBy, note: GroupNote) -> Result<(), StoreError>;

    /// What a job over `selection` would find, without making it: letters to replay are counted as `waiting`.
    async fn preview_replay(&self, selection: &Selection) -> Result<ItemCounts, StoreError>;

    /// Makes a job of the letters that match at one moment. Ids that are asked for by name and are no such letters become skipped
    /// items: `not_found`, `not_dead`, `not_matched`. A job without anything to replay is done at once.
    async fn create_replay(&self, new: NewReplay) -> Result<ReplayJob, StoreError>;

    /// Jobs in any of `states` (none: all), newest first, those before `before`.
    async fn replays(
        &self,
        states: &[ReplayState],
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<ReplayJob>, StoreError>;

    /// A job.
    async fn replay(&self, id: i64) -> Result<Option<ReplayJob>, StoreError>;

    /// Letters of a job with any of `outcomes` (none: all), in the job's order, those after position `after`.
    async fn replay_items(
        &self,
        id: i64,
        outcomes: &[ItemOutcome],
        after: i64,
        limit: usize,
    ) -> Result<Vec<ReplayItem>, StoreError>;

    /// The jobs that a task was in, newest first, as their items.
    async fn replays_of(&self, task_id: &str, limit: usize) -> Result<Vec<ReplayItem>, StoreError>;

    /// Halts, resumes or ends a job.
    async fn steer_replay(
        &self,
        id: i64,
        word: Steer,
        by: Option<&str>,
        why: Option<&str>,
    ) -> Result<Steered, StoreError>;

    /// Takes a running job that nobody drives (this one, or the oldest) for `worker`; the job's new fence is the lease's. `None` when
    /// there is none.
    async fn lease_replay(
        &self,
        id: Option<i64>,
        worker: &str,
        hold_ms: Millis,
    ) -> Result<Option<ReplayJob>, StoreError>;

    /// Puts the next letters of a job to run again, up to `most`, and notes what each came to, in one transaction with their
    /// transitions. `None`, and nothing done, when the job does not run any more or another drives it.
    async fn release_items(
        &self,
        lease: &ReplayLease,
        most: usize,
        paced_to_us: i64,
    ) -> Result<Option<Released>, StoreError>;

    /// Writes down which of the job's running letters have ended, looking at no more than `most` after position `after`. Returns
    /// what ended and the last position looked at; `None` for the position when all were looked at.
    async fn judge_items(
        &self,
        lease: &ReplayLease,
        after: i64,
        most: usize,
    ) -> Result<(ItemCounts, Option<i64>), StoreError>;

    /// A driver's step; `false`, and nothing done, when the job does not run any more or another drives it.
    async fn step_replay(&self, lease: &ReplayLease, step: ReplayStep) -> Result<bool, StoreError>;

    /// Dead letters that nobody has looked at for an automatic replay: those that died since the last look, oldest first, at most
    /// `limit`, each with how often it was replayed automatically, and whether a person has replayed it. The first look finds none.
    async fn unappointed(&self, limit: usize) -> Result<Vec<(Task, usize, bool)>, StoreError>;

    /// Sets when dead letters replay themselves, unless they have moved on, and remembers that those up to `looked_to` were looked at;
    /// `None` forgets it, for nobody looks any more.
    async fn appoint(&self, looked_to: Option<Millis>, letters: &[(String, i64, Millis)]) -> Result<(), StoreError>;

    /// Makes a job of up to `most` letters whose appointed time has come; `None` when there are none.
    async fn create_automatic_replay(&self, pace: Pace, most: usize) -> Result<Option<ReplayJob>, StoreError>;

    /// The edit that made a task, and those that were made of it.
    async fn edits_of(&self, task_id: &str) -> Result<Vec<EditRecord>, StoreError>;

    /// The attempts of tasks in short, by input index.
    async fn letter_histories(&self, ids: &[String]) -> Result<Vec<LetterHistory>, StoreError>;

    /// Removes up to `most` of what was last used before `before`, in one small transaction; with `dry_run` only counts, all of it.
    async fn prune(&self, what: Prunable, before: Millis, most: usize, dry_run: bool) -> Result<i64, StoreError>;
}
