//! What the store keeps for people who look after dead letters: groups, notes, retention, and the port through which they also reach
//! replay jobs and edits.
//!
//! A store answers and writes down; what a job does next is decided in [`crate::dead_letter::replay`], what a letter becomes in
//! [`crate::task`]. Groups are counted from the letters themselves, never from counters that could be wrong.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use serde::Serialize;

use super::{
    Filter, ItemCounts, ItemOutcome, NewReplay, Pace, Released, ReplayItem, ReplayJob, ReplayLease, ReplayState,
    ReplayStep, Selection, Steer, Steered, StoreError,
};
use crate::task::{DeadReason, EditRecord, Millis, Task};

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
