//! The Store port: the truth about every task.
//!
//! A store keeps rows, applies batches of [`Command`]s through [`crate::task::Rows`] in one transaction each, and answers
//! questions over indexes. It decides nothing by itself: the rules are in `task/`. One conformance suite
//! (`tests/store_conformance`) holds every store to the same behaviour.

pub mod access;
mod clock;
pub mod copy;
pub mod look;
pub mod memory;
pub mod notice;
#[cfg(feature = "postgres")]
pub mod postgres;
mod replay;
mod sql;
pub mod sqlite;
mod tally;
mod triage;
mod versions;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

pub use clock::{Clock, ServerClock};
pub use replay::{
    ItemCounts, ItemOutcome, NewReplay, Pace, Released, ReplayItem, ReplayJob, ReplayLease, ReplayOrigin, ReplayState,
    ReplayStep, Selection, Steer, Steered, why_skipped,
};
pub use tally::{AttemptTally, FailureTally, GroupBy, Tally};
pub use triage::{
    GROUP_HOURS, GROUP_SAMPLES, GroupNote, LetterGroup, LetterGroupBy, LetterHistory, LetterSample, Prunable,
    TriageStore,
};
pub use versions::{NODE_FORGOTTEN_MS, NewPolicies, Node, PolicyVersion};

use access::AccessStore;
use look::LookStore;
use notice::NoticeStore;

use crate::gate::{Chance, GateState, HeldGate};
use crate::policy::TopicPattern;
use crate::task::{
    Answer, Attempt, Command, DeadReason, DlqCopy, DlqLedger, LaneKey, LaneLedger, Millis, Settings, Stamp, Status,
    Task, TaskResult,
};

/// Why a store call failed. Nothing it was asked to change is known to have changed, except for
/// [`StoreError::Unknown`].
#[derive(Debug, Error, Clone)]
pub enum StoreError {
    /// Locked, busy, disk full, connection refused: the same call may work later.
    #[error("store {place} is unavailable: {reason}")]
    Unavailable {
        /// File or server.
        place: String,
        /// What it said.
        reason: String,
    },
    /// The commit's fate is not known; read before repeating.
    #[error("store {place}: a commit did not answer in time, its outcome is unknown")]
    Unknown {
        /// File or server.
        place: String,
    },
    /// Read-only, corrupt, newer schema, not a database: a person has to act.
    #[error("store {place} cannot be used: {reason}")]
    Unusable {
        /// File or server.
        place: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A cursor that did not come from a list of a store.
    #[error("{cursor:?} is no cursor of this list: it is the `next` of the page before")]
    Cursor {
        /// What was given.
        cursor: String,
    },
}

/// How many holding gates one question answers at most.
pub const HELD_GATES_PAGE: usize = 2_000;

/// Who goes first when several callers wait for the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Heartbeats: a late one costs a lease.
    First,
    /// Everything else.
    Normal,
}

/// One kind of alarm; each has its own index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alarm {
    /// Running rows whose lease is over.
    Lease,
    /// Pending rows with a wake-up outstanding.
    Sent,
    /// Rows in `retry_waiting`.
    Retry,
    /// Held rows (deadlines, and a look now and then).
    Held,
    /// Waiting rows whose deadline has passed, whatever their alarm says. Not in [`Store::next_alarm`].
    Deadline,
    /// Dead rows whose wanted copy may be published.
    Copy,
}

/// In a filter, what the last failure of a task without a fingerprint has for one, as lists show it.
pub const NO_FINGERPRINT: &str = "-";

/// Which tasks a list, a count or a bulk action is about. Empty fields do not restrict.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Any of these types.
    pub types: Vec<TopicPattern>,
    /// All of these labels.
    pub labels: BTreeMap<String, String>,
    /// Any of these statuses.
    pub statuses: Vec<Status>,
    /// Any of these dead reasons.
    pub reasons: Vec<DeadReason>,
    /// Any of these classes of the last failure.
    pub classes: Vec<String>,
    /// Any of these codes of the last failure.
    pub codes: Vec<String>,
    /// Any of these HTTP statuses of the last failure.
    pub http_statuses: Vec<u16>,
    /// Any of these fingerprints of the last failure; [`NO_FINGERPRINT`] for none.
    pub fingerprints: Vec<String>,
    /// Any of these queues.
    pub queues: Vec<String>,
    /// Any of these ids.
    pub ids: Vec<String>,
    /// Ended (or, while unfinished, created) at or after.
    pub since: Option<Millis>,
    /// Ended (or, while unfinished, created) before.
    pub until: Option<Millis>,
    /// Attempts of the current generation: comparison and number.
    pub attempts: Option<(Comparison, i64)>,
    /// The last failure's message contains this (ASCII case ignored).
    pub text: Option<String>,
}

/// How a number is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `=`
    Equal,
    /// `>=`
    AtLeast,
    /// `>`
    More,
}

/// A page of a list, newest first.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<String>,
}

/// A pause, as a person set it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// See [`crate::gate`].
    pub key: String,
    /// When.
    pub since: Millis,
    /// Why, in that person's words.
    pub reason: Option<String>,
}

/// What the DLQ pass needs to know of a dead row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadRow {
    /// The task.
    pub id: String,
    /// Its generation.
    pub stamp: Stamp,
    /// The state of its copy.
    pub dlq_copy: DlqCopy,
    /// When it died.
    pub died_at: Millis,
}

/// What a look at the store found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoreReport {
    /// File or server, without password.
    pub place: String,
    /// The engine and its version.
    pub engine: String,
    /// Schema version found, and the one this program knows.
    pub schema_version: i64,
    /// The version this program writes.
    pub schema_known: i64,
    /// Bytes on disk, journal included.
    pub bytes: u64,
    /// What the integrity check said; `None` when it was not asked for.
    pub integrity: Option<String>,
}

/// The port. Every method may be called from any task; dropping the future of [`Store::apply`] does not undo it.
#[async_trait]
pub trait Store: AccessStore + LookStore + NoticeStore + TriageStore + Send + Sync + 'static {
    /// The store's clock.
    fn now(&self) -> Millis;

    /// Applies commands in order, in one transaction, possibly together with other callers'. Answers come by input index. A command that
    /// makes the transaction fail by itself is answered [`Answer::Unprocessable`], the others are applied.
    ///
    /// # Errors
    /// When nothing could be committed.
    async fn apply(&self, urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError>;

    /// Due alarms of one kind, earliest first.
    async fn alarms(&self, kind: Alarm, now: Millis, limit: usize) -> Result<Vec<Task>, StoreError>;

    /// The earliest alarm of any kind, whether due or not; rows that wait in [`Store::feed`] are not alarms.
    async fn next_alarm(&self) -> Result<Option<Millis>, StoreError>;

    /// Pending rows of `queue` with nothing outstanding and their alarm due, oldest alarm first.
    async fn feed(&self, queue: &str, now: Millis, limit: usize) -> Result<Vec<Task>, StoreError>;

    /// Rows that others inserted and no dispatcher has routed: id and type, oldest first.
    async fn unrouted(&self, limit: usize) -> Result<Vec<(String, String)>, StoreError>;

    /// The queues of waiting rows that have one, and how many there are.
    async fn waiting_queues(&self) -> Result<BTreeMap<String, i64>, StoreError>;

    /// How many wake-ups of the queue's tasks lane are outstanding, counted up to `limit`.
    async fn outstanding(&self, queue: &str, limit: usize) -> Result<usize, StoreError>;

    /// The gates that hold rows of `queues`, without pauses in force, by key from `from` on; at most [`HELD_GATES_PAGE`] of them.
    async fn held_gates(&self, queues: &[String], from: &str) -> Result<Vec<HeldGate>, StoreError>;

    /// Rows that a gate holds, up to `most` in any order: the oldest of each turn, for as many turns as there is room for, those after
    /// the turn `after` first; more of each while there are fewer turns.
    async fn held_heads(&self, chance: &Chance, after: &str) -> Result<Vec<Task>, StoreError>;

    /// How many rows each gate holds.
    async fn held_counts(&self) -> Result<BTreeMap<String, i64>, StoreError>;

    /// The gates that have a state, by key.
    async fn gates(&self) -> Result<Vec<(String, GateState)>, StoreError>;

    /// A number that changes when another process has committed. Equal numbers mean nothing new from outside.
    async fn outside_changes(&self) -> Result<i64, StoreError>;

    /// Resolves when another program has called for a look: it has put in a row past the commands. A store that is not told of it
    /// never resolves; then [`Store::outside_changes`] has to do.
    async fn called(&self) {
        std::future::pending().await
    }

    /// Tasks by id, by input index.
    async fn get(&self, ids: &[String]) -> Result<Vec<Option<Task>>, StoreError>;

    /// The attempts of a task, oldest first, with their attachments.
    async fn attempts(&self, id: &str) -> Result<Vec<Attempt>, StoreError>;

    /// The stored result of a task.
    async fn result(&self, id: &str) -> Result<Option<TaskResult>, StoreError>;

    /// The last good result of that type and cache key that was remembered, and when it was settled.
    async fn cached(&self, task_type: &str, key: &str) -> Result<Option<(TaskResult, Millis)>, StoreError>;

    /// A page of tasks, newest first. `cursor` comes from the previous page.
    async fn list(&self, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page<Task>, StoreError>;

    /// How many tasks match, by status.
    async fn count(&self, filter: &Filter) -> Result<BTreeMap<Status, i64>, StoreError>;

    /// How the tasks ended that match, by group, largest first. `since` and `until` of the filter are about when they ended.
    async fn tallies(&self, by: &GroupBy, filter: &Filter) -> Result<Vec<Tally>, StoreError>;

    /// The same tasks' attempts, by their number.
    async fn attempt_tallies(&self, filter: &Filter) -> Result<Vec<AttemptTally>, StoreError>;

    /// The same tasks' failures, most frequent first.
    async fn failure_tallies(&self, filter: &Filter, limit: usize) -> Result<Vec<FailureTally>, StoreError>;

    /// The dead rows of a queue whose id is greater than `after`, by id.
    async fn dead_rows(&self, queue: &str, after: &str, limit: usize) -> Result<Vec<DeadRow>, StoreError>;

    /// How many dead rows of a queue have their copy present, and wanted.
    async fn dead_copies(&self, queue: &str) -> Result<(i64, i64), StoreError>;

    /// Every lane's ledger.
    async fn lanes(&self) -> Result<Vec<(LaneKey, LaneLedger)>, StoreError>;

    /// Every DLQ's ledger.
    async fn dlqs(&self) -> Result<Vec<(String, DlqLedger)>, StoreError>;

    /// The pauses in force.
    async fn pauses(&self) -> Result<Vec<Pause>, StoreError>;

    /// Sets or replaces a pause; without a reason the one that was given before stays.
    async fn pause(&self, pause: Pause) -> Result<(), StoreError>;

    /// Ends a pause; `false` when there was none.
    async fn resume(&self, key: &str) -> Result<bool, StoreError>;

    /// The versions of the rules, newest first, at most `limit`.
    async fn policies(&self, limit: usize) -> Result<Vec<PolicyVersion>, StoreError>;

    /// Puts rules in the store as the newest version. Returns its number.
    async fn apply_policies(&self, new: NewPolicies) -> Result<i64, StoreError>;

    /// Notes what a worker runs, now, and forgets those that have not said so for [`NODE_FORGOTTEN_MS`].
    async fn report_node(&self, worker: &str, hash: &str, version: Option<i64>) -> Result<(), StoreError>;

    /// Forgets a worker that stops; no complaint about one that is not known.
    async fn forget_node(&self, worker: &str) -> Result<(), StoreError>;

    /// What each worker runs, by name.
    async fn nodes(&self) -> Result<Vec<Node>, StoreError>;

    /// Looks at the store itself; `deep` runs the integrity check.
    async fn report(&self, deep: bool) -> Result<StoreReport, StoreError>;

    /// Waits for the queued commands and closes.
    async fn close(&self);
}

/// Whether a store URL names a PostgreSQL database.
pub fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

/// What a program without the feature `postgres` says of such a URL.
pub const WITHOUT_POSTGRES: &str =
    "this program was built without PostgreSQL; build it with `cargo build --release --features postgres`";

/// Opens the store that a URL names, `sqlite://…` or `postgres://…`, with the defaults of its kind. `create`: one that is not there is
/// made.
///
/// # Errors
/// See [`SqliteStore::open`](sqlite::SqliteStore::open) and `PostgresStore::open`.
pub async fn open(url: &str, settings: Settings, create: bool) -> Result<Arc<dyn Store>, StoreError> {
    #[cfg(feature = "postgres")]
    if is_postgres(url) {
        let options = postgres::PostgresOptions { create, ..postgres::PostgresOptions::default() };
        return Ok(Arc::new(postgres::PostgresStore::open(url, settings, options).await?));
    }
    if is_postgres(url) {
        return Err(StoreError::Unusable { place: crate::config::mask(url), reason: WITHOUT_POSTGRES.into() });
    }
    let options = sqlite::SqliteOptions { create, ..sqlite::SqliteOptions::default() };
    Ok(Arc::new(sqlite::SqliteStore::open(url, settings, options).await?))
}
