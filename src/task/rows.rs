//! The rows that a batch of transitions works on.
//!
//! A store loads the rows that a batch names, lets [`Rows::apply`](super::transition) change them, and writes back what
//! changed, all in one transaction; the memory store keeps everything in one `Rows`. So every store runs the same rules,
//! and the second of two equal commands in a batch sees what the first one did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::gate::GateState;

use super::notice::{self, Telling};
use super::{Attempt, EditRecord, Lane, Millis, NewTask, Notice, Outstanding, Task, TaskResult};

/// A lane of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKey {
    /// The `[[queue]]`.
    pub queue: String,
    /// Which of its lanes.
    pub lane: Lane,
}

/// A broker queue in which a wake-up can wait.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spot {
    /// A lane.
    Lane(LaneKey),
    /// A rung, by its delay.
    Rung {
        /// The `[[queue]]`.
        queue: String,
        /// The delay.
        delay_ms: Millis,
    },
}

/// What all workers know of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LaneLedger {
    /// The latest `arrives_at` delivered there; 0 when nothing ever was.
    pub mark: Millis,
    /// When a late row was last published again as a probe; 0 when none was.
    pub probed_at: Millis,
    /// How long to wait until the next probe.
    pub probe_gap_ms: Millis,
    /// The mark at the last probe.
    pub probe_mark: Millis,
}

/// What all workers know of a queue's DLQ.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct DlqLedger {
    /// Grows with every reason to look: the DLQ may hold copies that it should not, or miss some.
    pub dirty: i64,
    /// The value of `dirty` up to which passes have cleaned.
    pub cleaned: i64,
    /// The number of the newest pass.
    pub pass: i64,
    /// Until when that pass holds the DLQ.
    pub pass_until: Millis,
    /// When the newest pass began.
    pub pass_began: Millis,
    /// Copies without a row that the last finished pass saw.
    pub strangers: i64,
}

/// What became of a row since the last [`Rows::take_changes`].
#[derive(Debug, Clone)]
enum Touched {
    /// It was made, and what became of it since is part of its making.
    Made,
    /// It changed, and this is what it was; `None` if it was not loaded.
    Changed(Option<Box<Task>>),
}

/// Rows by key, with a note of what changed.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// Boxed, for a tree moves its entries about.
    tasks: BTreeMap<String, Box<Task>>,
    by_key: BTreeMap<String, String>,
    by_submission_hash: BTreeMap<String, String>,
    /// Ledgers of the lanes; a missing entry is the default.
    pub lanes: BTreeMap<LaneKey, LaneLedger>,
    /// When each spot was last found missing in the broker.
    pub missing: BTreeMap<Spot, Millis>,
    /// Keys of the pauses in force.
    pub pauses: BTreeSet<String>,
    /// States of the gates; one that is missing was never used.
    pub gates: BTreeMap<String, GateState>,
    /// Gates that hold rows which are not loaded.
    pub crowded: BTreeSet<String>,
    /// How many of the loaded rows each gate holds.
    held: BTreeMap<String, usize>,
    /// Ledgers of the DLQs; a missing entry is the default.
    pub dlqs: BTreeMap<String, DlqLedger>,
    /// Attempts written since the last [`Rows::take_changes`].
    attempts: Vec<Arc<Attempt>>,
    results: Vec<(String, TaskResult)>,
    cached: Vec<Cached>,
    edits: Vec<EditRecord>,
    pub(super) notices: Vec<Notice>,
    /// The time of the command that is being applied, and what is announced.
    pub(super) telling: Telling,
    touched: BTreeMap<String, Touched>,
    /// In the order in which they were made: of several with one submission hash the newest counts, in every store.
    created: Vec<String>,
    changed_lanes: BTreeSet<LaneKey>,
    changed_missing: BTreeSet<Spot>,
    changed_dlqs: BTreeSet<String>,
    changed_gates: BTreeSet<String>,
}

/// A good result that fallbacks may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// The type of the task that brought it.
    pub task_type: String,
    /// Its cache key.
    pub key: String,
    /// The result.
    pub result: TaskResult,
    /// When it was settled.
    pub stored_at: Millis,
}

/// A known task whose state changed.
#[derive(Debug)]
pub struct Updated {
    /// The task as it is now.
    pub task: Box<Task>,
    /// The task as it was loaded, as far as that is known.
    pub before: Option<Box<Task>>,
}

/// What a store has to write.
#[derive(Debug, Default)]
pub struct Changes {
    /// New tasks.
    pub created: Vec<Box<Task>>,
    /// Known tasks whose state changed.
    pub updated: Vec<Updated>,
    /// New attempts.
    pub attempts: Vec<Arc<Attempt>>,
    /// New results, by task id; a later one replaces an earlier one.
    pub results: Vec<(String, TaskResult)>,
    /// Results to remember; a later one replaces an earlier one with its type and key.
    pub cached: Vec<Cached>,
    /// Tasks that were made of dead ones.
    pub edits: Vec<EditRecord>,
    /// What others are to be told.
    pub notices: Vec<Notice>,
    /// Lane ledgers.
    pub lanes: Vec<(LaneKey, LaneLedger)>,
    /// Spots found missing.
    pub missing: Vec<(Spot, Millis)>,
    /// DLQ ledgers.
    pub dlqs: Vec<(String, DlqLedger)>,
    /// Gates.
    pub gates: Vec<(String, GateState)>,
}

impl Rows {
    /// Adds a row as the store has it.
    pub fn load(&mut self, task: impl Into<Box<Task>>) {
        let task = task.into();
        self.index(&task);
        self.keep(task);
    }

    /// The task with that id.
    pub fn get(&self, id: &str) -> Option<&Task> {
        self.tasks.get(id).map(AsRef::as_ref)
    }

    /// Every loaded task, by id.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values().map(AsRef::as_ref)
    }

    /// The id of the task that owns an idempotency key.
    pub fn id_by_key(&self, key: &str) -> Option<&str> {
        self.by_key.get(key).map(String::as_str)
    }

    /// The id of the task that an id-less submission became.
    pub fn id_by_submission_hash(&self, hash: &str) -> Option<&str> {
        self.by_submission_hash.get(hash).map(String::as_str)
    }

    /// What changed since the last call: what was created in the order of creation, the rest by key.
    pub fn take_changes(&mut self) -> Changes {
        self.changes(|tasks, id| tasks.get(id).cloned())
    }

    /// What [`Rows::take_changes`] gives, for somebody who has no more use for the rows.
    pub fn into_changes(mut self) -> Changes {
        self.changes(BTreeMap::remove)
    }

    fn changes(&mut self, now: impl Fn(&mut BTreeMap<String, Box<Task>>, &String) -> Option<Box<Task>>) -> Changes {
        let created = std::mem::take(&mut self.created);
        let touched = std::mem::take(&mut self.touched);
        let updated = touched.into_iter().filter_map(|(id, touched)| match touched {
            Touched::Made => None,
            Touched::Changed(before) => Some(Updated { task: now(&mut self.tasks, &id)?, before }),
        });
        let updated = updated.collect();
        Changes {
            created: created.iter().filter_map(|id| now(&mut self.tasks, id)).collect(),
            updated,
            attempts: std::mem::take(&mut self.attempts),
            results: std::mem::take(&mut self.results),
            cached: std::mem::take(&mut self.cached),
            edits: std::mem::take(&mut self.edits),
            notices: std::mem::take(&mut self.notices),
            lanes: std::mem::take(&mut self.changed_lanes)
                .into_iter()
                .map(|key| (key.clone(), self.lanes.get(&key).copied().unwrap_or_default()))
                .collect(),
            missing: std::mem::take(&mut self.changed_missing)
                .into_iter()
                .filter_map(|spot| self.missing.get(&spot).map(|at| (spot.clone(), *at)))
                .collect(),
            dlqs: std::mem::take(&mut self.changed_dlqs)
                .into_iter()
                .map(|queue| (queue.clone(), self.dlqs.get(&queue).cloned().unwrap_or_default()))
                .collect(),
            gates: std::mem::take(&mut self.changed_gates)
                .into_iter()
                .filter_map(|key| self.gates.get(&key).map(|state| (key.clone(), state.clone())))
                .collect(),
        }
    }

    /// Drops what [`Rows::take_changes`] would give, for somebody who writes nothing down.
    pub fn forget_changes(&mut self) {
        self.attempts.clear();
        self.results.clear();
        self.edits.clear();
        self.notices.clear();
        self.touched.clear();
        self.created.clear();
        self.changed_lanes.clear();
        self.changed_missing.clear();
        self.changed_dlqs.clear();
        self.changed_gates.clear();
    }

    /// Drops a row, as a store does by not loading it: for somebody to whom a task that has ended is of no more use.
    pub fn forget(&mut self, id: &str) {
        let Some(task) = self.tasks.remove(id) else { return };
        if let Some(key) = &task.spec.idempotency_key {
            self.by_key.remove(key);
        }
        if let Some(hash) = &task.spec.submission_hash {
            self.by_submission_hash.remove(hash);
        }
        if let Some(gate) = &task.state.held_by {
            self.let_go(gate);
        }
    }

    pub(super) fn create(&mut self, task: Task) {
        self.notices.extend(notice::told(None, &task, self.telling));
        self.take_in(task);
    }

    /// A new row of which nobody is told anything: what there is to tell of it has been told elsewhere.
    pub(super) fn take_in(&mut self, task: Task) {
        self.created.push(task.spec.id.clone());
        self.touched.insert(task.spec.id.clone(), Touched::Made);
        self.load(task);
    }

    pub(super) fn put(&mut self, task: Task) {
        let before = self.tasks.get(task.id()).map(|task| &task.state);
        self.notices.extend(notice::told(before, &task, self.telling));
        let first = (!self.touched.contains_key(task.id())).then(|| task.spec.id.clone());
        let before = self.keep(Box::new(task));
        if let Some(id) = first {
            self.touched.insert(id, Touched::Changed(before));
        }
    }

    /// Keeps a row and the count of what its gate holds. Returns the row as it was.
    fn keep(&mut self, task: Box<Task>) -> Option<Box<Task>> {
        if let Some(gate) = &task.state.held_by {
            *self.held.entry(gate.clone()).or_insert(0) += 1;
        }
        let Some(known) = self.tasks.get_mut(&task.spec.id) else {
            self.tasks.insert(task.spec.id.clone(), task);
            return None;
        };
        let old = std::mem::replace(known, task);
        if let Some(gate) = &old.state.held_by {
            self.let_go(gate);
        }
        Some(old)
    }

    /// A gate holds one row less.
    fn let_go(&mut self, gate: &str) {
        if let Some(count) = self.held.get_mut(gate) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.held.remove(gate);
            }
        }
    }

    /// Whether somebody waits for a gate.
    pub(super) fn is_crowded(&self, gate: &str) -> bool {
        self.held.contains_key(gate) || self.crowded.contains(gate)
    }

    pub(super) fn set_gate(&mut self, key: &str, state: GateState) {
        // A batch changes the same few gates again and again.
        if !self.changed_gates.contains(key) {
            self.changed_gates.insert(key.to_owned());
        }
        match self.gates.get_mut(key) {
            Some(known) => *known = state,
            None => _ = self.gates.insert(key.to_owned(), state),
        }
    }

    /// The task that a submission already is, by its hash, its id or its key.
    pub(super) fn known(&self, new: &NewTask) -> Option<&Task> {
        let remembered = new
            .spec
            .submission_hash
            .as_deref()
            .filter(|_| new.redelivered)
            .and_then(|hash| self.id_by_submission_hash(hash));
        let by_key = || new.spec.idempotency_key.as_deref().and_then(|key| self.id_by_key(key));
        let id = remembered.or_else(|| self.get(&new.spec.id).map(Task::id)).or_else(by_key)?;
        self.get(id)
    }

    pub(super) fn add_attempt(&mut self, attempt: Arc<Attempt>) {
        self.attempts.push(attempt);
    }

    pub(super) fn set_result(&mut self, id: &str, result: TaskResult) {
        self.results.push((id.to_owned(), result));
    }

    pub(super) fn add_edit(&mut self, edit: EditRecord) {
        self.edits.push(edit);
    }

    pub(super) fn remember(&mut self, task_type: &str, key: String, result: TaskResult, stored_at: Millis) {
        self.cached.push(Cached { task_type: task_type.to_owned(), key, result, stored_at });
    }

    pub(super) fn lane_mut(&mut self, key: &LaneKey) -> &mut LaneLedger {
        self.changed_lanes.insert(key.clone());
        self.lanes.entry(key.clone()).or_default()
    }

    pub(super) fn lane(&self, key: &LaneKey) -> LaneLedger {
        self.lanes.get(key).copied().unwrap_or_default()
    }

    pub(super) fn set_missing(&mut self, spot: Spot, at: Millis) {
        let known = self.missing.entry(spot.clone()).or_insert(at);
        *known = (*known).max(at);
        self.changed_missing.insert(spot);
    }

    /// Whether the lane or rung of `outstanding` was found missing at or after it was sent.
    pub(super) fn went_missing(&self, queue: &str, outstanding: &Outstanding) -> bool {
        let after_sending = |spot: &Spot| self.missing.get(spot).is_some_and(|at| *at >= outstanding.sent_at);
        after_sending(&Spot::Lane(LaneKey { queue: queue.into(), lane: outstanding.lane }))
            || (outstanding.rung_ms > 0
                && after_sending(&Spot::Rung { queue: queue.into(), delay_ms: outstanding.rung_ms }))
    }

    pub(super) fn dlq_mut(&mut self, queue: &str) -> &mut DlqLedger {
        self.changed_dlqs.insert(queue.to_owned());
        self.dlqs.entry(queue.to_owned()).or_default()
    }

    fn index(&mut self, task: &Task) {
        if let Some(key) = &task.spec.idempotency_key {
            self.by_key.insert(key.clone(), task.spec.id.clone());
        }
        if let Some(hash) = &task.spec.submission_hash {
            self.by_submission_hash.insert(hash.clone(), task.spec.id.clone());
        }
    }
}
