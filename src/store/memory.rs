//! The store in memory, for the simulator and tests: the same rules and answers as every other store, and no disk.
//!
//! It is small and plain on purpose: one lock, and questions are answered by looking at every row. What it holds is gone
//! with the process.

mod access;
mod jobs;
mod look;
mod notices;
mod prune;
mod triage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::tally::{self, Ended};
use super::{
    Alarm, AttemptTally, Clock, Comparison, DeadRow, FailureTally, Filter, GroupBy, HELD_GATES_PAGE, NO_FINGERPRINT,
    NODE_FORGOTTEN_MS, NewPolicies, Node, Page, Pause, PolicyVersion, Store, StoreError, StoreReport, Tally, Urgency,
};
use crate::gate::{Chance, GateState, HeldGate, in_turns};
use crate::task::{
    Answer, Attempt, AttemptOutcome, Command, DlqCopy, DlqLedger, Lane, LaneKey, LaneLedger, Millis, Rows, Settings,
    Spec, State, Status, Task, TaskResult,
};

/// See the module.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    settings: Settings,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    rows: Rows,
    /// Ids in the order of arrival, and each id's place in it.
    order: BTreeMap<i64, String>,
    places: HashMap<String, i64>,
    attempts: BTreeMap<(String, i64), Attempt>,
    results: HashMap<String, TaskResult>,
    cached: HashMap<(String, String), (TaskResult, Millis)>,
    pauses: BTreeMap<String, Pause>,
    /// Oldest first.
    policies: Vec<PolicyVersion>,
    nodes: BTreeMap<String, Node>,
    access: access::Access,
    notices: notices::Notices,
    triage: jobs::Triage,
    /// Rows inserted past the commands, as another process would.
    outside_changes: i64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(clock: Clock, settings: Settings) -> MemoryStore {
        MemoryStore { clock, settings, inner: Mutex::default() }
    }

    /// A row as another program would insert it through the public door: pending, due now, without a queue.
    pub fn insert_row(&self, id: &str, task_type: &str, payload: &str) {
        let now = self.clock.now();
        let spec = Spec {
            id: id.to_owned(),
            task_type: task_type.to_owned(),
            payload: payload.to_owned(),
            labels: BTreeMap::new(),
            idempotency_key: Some(id.to_owned()),
            priority: 0,
            cache_key: None,
            reply_to: None,
            trace: None,
            payload_hash: String::new(),
            submission_hash: None,
            created_at: now,
            raw: None,
            conflicts_with: None,
        };
        let mut inner = self.inner();
        inner.remember_place(id);
        inner.rows.load(Task { spec: Arc::new(spec), state: State::pending(now) });
        inner.outside_changes += 1;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tasks that `wanted` accepts with the key it gives them, smallest key first.
    fn sorted<K: Ord>(&self, limit: usize, wanted: impl Fn(&Task) -> Option<K>) -> Vec<Task> {
        let inner = self.inner();
        let mut found: Vec<_> = inner
            .rows
            .tasks()
            .filter_map(|task| Some((wanted(task)?, inner.places.get(task.id()).copied(), task)))
            .collect();
        found.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        found.into_iter().take(limit).map(|(_, _, task)| task.clone()).collect()
    }
}

impl Inner {
    fn remember_place(&mut self, id: &str) {
        let place = self.order.last_key_value().map_or(1, |(last, _)| last + 1);
        self.order.insert(place, id.to_owned());
        self.places.insert(id.to_owned(), place);
    }

    /// Takes in what a batch changed. A state keeps no stack: its attempt has it.
    fn keep_changes(&mut self) {
        let changes = self.rows.take_changes();
        for task in &changes.created {
            self.remember_place(task.id());
        }
        for mut task in changes.created.into_iter().chain(changes.updated.into_iter().map(|updated| updated.task)) {
            if let Some(failure) = &mut task.state.failure
                && failure.stack.take().is_some()
            {
                self.rows.load(task);
            }
        }
        for attempt in changes.attempts {
            self.attempts.insert((attempt.task_id.clone(), attempt.fence), Arc::unwrap_or_clone(attempt));
        }
        self.triage.edits.extend(changes.edits);
        self.results.extend(changes.results);
        self.notices.extend(changes.notices);
        self.cached.extend(changes.cached.into_iter().map(|c| ((c.task_type, c.key), (c.result, c.stored_at))));
    }

    fn attempts_of(&self, id: &str) -> impl Iterator<Item = &Attempt> {
        self.attempts.range((id.to_owned(), i64::MIN)..=(id.to_owned(), i64::MAX)).map(|(_, attempt)| attempt)
    }

    fn matches(&self, filter: &Filter, task: &Task) -> bool {
        let (spec, state) = (&task.spec, &task.state);
        let failure = state.failure.as_ref();
        let fingerprint = failure.map(|f| f.fingerprint.as_str()).filter(|print| !print.is_empty());
        let moment = state.ended_at.unwrap_or(spec.created_at);
        any_of(&filter.types, |pattern| pattern.matches(&spec.task_type))
            && filter.labels.iter().all(|(name, value)| spec.labels.get(name) == Some(value))
            && any_of(&filter.statuses, |status| *status == state.status)
            && any_of(&filter.reasons, |reason| Some(*reason) == state.dead_reason)
            && any_of(&filter.classes, |class| failure.is_some_and(|f| f.class == *class))
            && any_of(&filter.codes, |code| failure.is_some_and(|f| f.code.as_ref() == Some(code)))
            && any_of(&filter.http_statuses, |status| failure.is_some_and(|f| f.http_status == Some(*status)))
            && any_of(&filter.fingerprints, |print| fingerprint.unwrap_or(NO_FINGERPRINT) == print)
            && any_of(&filter.queues, |queue| queue == task.queue())
            && any_of(&filter.ids, |id| *id == spec.id)
            && filter.since.is_none_or(|since| moment >= since)
            && filter.until.is_none_or(|until| moment < until)
            && filter.attempts.is_none_or(|(how, number)| how.holds(self.attempts_now(task), number))
            && filter.text.as_ref().is_none_or(|text| {
                failure.is_some_and(|f| f.message.to_ascii_lowercase().contains(&text.to_ascii_lowercase()))
            })
    }

    fn ended(&self, filter: &Filter) -> Vec<Ended<'_>> {
        let matching = self.rows.tasks().filter(|task| self.matches(filter, task));
        matching.filter_map(|task| Ended::new(task, self.attempts_of(task.id()))).collect()
    }

    fn attempts_now(&self, task: &Task) -> i64 {
        let counts = |attempt: &&Attempt| {
            attempt.generation == task.stamp().generation && attempt.outcome != AttemptOutcome::Released
        };
        i64::try_from(self.attempts_of(task.id()).filter(counts).count()).unwrap_or(i64::MAX)
    }
}

fn any_of<T>(wanted: &[T], matches: impl Fn(&T) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(matches)
}

impl Comparison {
    fn holds(self, found: i64, wanted: i64) -> bool {
        match self {
            Comparison::Less => found < wanted,
            Comparison::AtMost => found <= wanted,
            Comparison::Equal => found == wanted,
            Comparison::AtLeast => found >= wanted,
            Comparison::More => found > wanted,
        }
    }
}

/// When an alarm of this kind rings for the row, if it can.
fn alarm_of(kind: Alarm, state: &State) -> Option<Millis> {
    let held = state.held_by.is_some();
    match kind {
        Alarm::Lease if state.status == Status::Running => state.wake_at,
        Alarm::Sent if state.status == Status::Pending && state.outstanding.is_some() && !held => state.wake_at,
        Alarm::Retry if state.status == Status::RetryWaiting && !held => state.wake_at,
        Alarm::Held if held => state.wake_at,
        Alarm::Deadline if state.status.is_waiting() => state.deadline.map(|deadline| deadline.saturating_add(1)),
        Alarm::Copy if state.dlq_copy == DlqCopy::Wanted => state.dlq_at,
        _ => None,
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn now(&self) -> Millis {
        self.clock.now()
    }

    async fn apply(&self, _urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError> {
        let mut inner = self.inner();
        let now = self.clock.now();
        let answers = commands.iter().map(|command| inner.rows.apply(command, now, &self.settings)).collect();
        inner.keep_changes();
        Ok(answers)
    }

    async fn alarms(&self, kind: Alarm, now: Millis, limit: usize) -> Result<Vec<Task>, StoreError> {
        Ok(self.sorted(limit, |task| alarm_of(kind, &task.state).filter(|at| *at <= now)))
    }

    async fn next_alarm(&self) -> Result<Option<Millis>, StoreError> {
        let kinds = [Alarm::Lease, Alarm::Sent, Alarm::Retry, Alarm::Held, Alarm::Copy];
        let inner = self.inner();
        Ok(inner.rows.tasks().flat_map(|task| kinds.map(|kind| alarm_of(kind, &task.state))).flatten().min())
    }

    async fn feed(&self, queue: &str, now: Millis, limit: usize) -> Result<Vec<Task>, StoreError> {
        Ok(self.sorted(limit, |task| {
            let state = &task.state;
            let waits = state.status == Status::Pending && state.outstanding.is_none() && state.held_by.is_none();
            state.wake_at.filter(|at| waits && *at <= now && state.queue.as_deref() == Some(queue))
        }))
    }

    async fn unrouted(&self, limit: usize) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self
            .sorted(limit, |task| (task.state.status == Status::Pending && task.state.queue.is_none()).then_some(()));
        Ok(rows.into_iter().map(|task| (task.spec.id.clone(), task.spec.task_type.clone())).collect())
    }

    async fn waiting_queues(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        let mut queues = BTreeMap::new();
        for task in self.inner().rows.tasks().filter(|task| task.state.status.is_waiting()) {
            if let Some(queue) = &task.state.queue {
                *queues.entry(queue.clone()).or_insert(0) += 1;
            }
        }
        Ok(queues)
    }

    async fn outstanding(&self, queue: &str, limit: usize) -> Result<usize, StoreError> {
        let on_lane = |task: &&Task| {
            task.queue() == queue && task.state.outstanding.is_some_and(|outstanding| outstanding.lane == Lane::Tasks)
        };
        Ok(self.inner().rows.tasks().filter(on_lane).take(limit).count())
    }

    async fn held_gates(&self, queues: &[String], from: &str) -> Result<Vec<HeldGate>, StoreError> {
        let inner = self.inner();
        let mut gates = BTreeSet::new();
        for task in inner.rows.tasks() {
            let Some(gate) = &task.state.held_by else { continue };
            if !inner.pauses.contains_key(gate) && queues.iter().any(|queue| queue == task.queue()) {
                gates.insert((gate.clone(), task.queue().to_owned()));
            }
        }
        let with_state = |(gate, queue): (String, String)| {
            let state = inner.rows.gates.get(&gate).cloned();
            HeldGate { gate, queue, state }
        };
        let page = gates.into_iter().filter(|(gate, _)| gate.as_str() >= from).take(HELD_GATES_PAGE);
        Ok(page.map(with_state).collect())
    }

    async fn held_heads(&self, chance: &Chance, after: &str) -> Result<Vec<Task>, StoreError> {
        let held = |task: &Task| {
            let of_chance = task.state.held_by.as_ref() == Some(&chance.gate) && task.queue() == chance.queue;
            of_chance.then_some(task.state.due_at)
        };
        let held = self.sorted(usize::MAX, held);
        let turns: BTreeSet<&str> = held.iter().map(|task| task.state.held_turn.as_str()).collect();
        let of_each = (chance.most / turns.len().clamp(1, chance.most.max(1))).max(1);
        let heads = in_turns(held.clone(), after, |task| (&task.state.held_turn, task.state.due_at));
        let mut given: HashMap<String, usize> = HashMap::new();
        let mut within = |task: &Task| {
            let of_turn = given.entry(task.state.held_turn.clone()).or_insert(0);
            *of_turn += 1;
            *of_turn <= of_each
        };
        Ok(heads.into_iter().filter(|task| within(task)).take(chance.most).collect())
    }

    async fn held_counts(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        let mut counts = BTreeMap::new();
        for gate in self.inner().rows.tasks().filter_map(|task| task.state.held_by.clone()) {
            *counts.entry(gate).or_insert(0) += 1;
        }
        Ok(counts)
    }

    async fn gates(&self) -> Result<Vec<(String, GateState)>, StoreError> {
        Ok(self.inner().rows.gates.iter().map(|(key, state)| (key.clone(), state.clone())).collect())
    }

    async fn outside_changes(&self) -> Result<i64, StoreError> {
        Ok(self.inner().outside_changes)
    }

    async fn get(&self, ids: &[String]) -> Result<Vec<Option<Task>>, StoreError> {
        let inner = self.inner();
        Ok(ids.iter().map(|id| inner.rows.get(id).cloned()).collect())
    }

    async fn attempts(&self, id: &str) -> Result<Vec<Attempt>, StoreError> {
        Ok(self.inner().attempts_of(id).cloned().collect())
    }

    async fn result(&self, id: &str) -> Result<Option<TaskResult>, StoreError> {
        Ok(self.inner().results.get(id).cloned())
    }

    async fn cached(&self, task_type: &str, key: &str) -> Result<Option<(TaskResult, Millis)>, StoreError> {
        Ok(self.inner().cached.get(&(task_type.to_owned(), key.to_owned())).cloned())
    }

    async fn list(&self, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page<Task>, StoreError> {
        let before = match cursor {
            None => i64::MAX,
            Some(text) => text.parse().map_err(|_| StoreError::Cursor { cursor: text.to_owned() })?,
        };
        let inner = self.inner();
        let mut found: Vec<(i64, Task)> = inner
            .order
            .range(..before)
            .rev()
            .filter_map(|(place, id)| Some((*place, inner.rows.get(id)?)))
            .filter(|(_, task)| inner.matches(filter, task))
            .map(|(place, task)| (place, task.clone()))
            .take(limit.saturating_add(1))
            .collect();
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|(place, _)| place.to_string());
        Ok(Page { items: found.into_iter().map(|(_, task)| task).collect(), next })
    }

    async fn count(&self, filter: &Filter) -> Result<BTreeMap<Status, i64>, StoreError> {
        let inner = self.inner();
        let mut counts = BTreeMap::new();
        for task in inner.rows.tasks().filter(|task| inner.matches(filter, task)) {
            *counts.entry(task.state.status).or_insert(0) += 1;
        }
        Ok(counts)
    }

    async fn tallies(&self, by: &GroupBy, filter: &Filter) -> Result<Vec<Tally>, StoreError> {
        Ok(tally::tallies(by, &self.inner().ended(filter)))
    }

    async fn attempt_tallies(&self, filter: &Filter) -> Result<Vec<AttemptTally>, StoreError> {
        Ok(tally::attempt_tallies(&self.inner().ended(filter)))
    }

    async fn failure_tallies(&self, filter: &Filter, limit: usize) -> Result<Vec<FailureTally>, StoreError> {
        Ok(tally::failure_tallies(&self.inner().ended(filter), limit))
    }

    async fn dead_rows(&self, queue: &str, after: &str, limit: usize) -> Result<Vec<DeadRow>, StoreError> {
        let inner = self.inner();
        let dead = inner
            .rows
            .tasks()
            .filter(|task| task.state.status == Status::Dead && task.queue() == queue && task.spec.id.as_str() > after);
        let row = |task: &Task| DeadRow {
            id: task.spec.id.clone(),
            stamp: task.stamp(),
            dlq_copy: task.state.dlq_copy,
            died_at: task.state.ended_at.unwrap_or(0),
        };
        Ok(dead.take(limit).map(row).collect())
    }

    async fn dead_copies(&self, queue: &str) -> Result<(i64, i64), StoreError> {
        let inner = self.inner();
        let mut copies = (0, 0);
        for task in inner.rows.tasks().filter(|task| task.state.status == Status::Dead && task.queue() == queue) {
            match task.state.dlq_copy {
                DlqCopy::Present => copies.0 += 1,
                DlqCopy::Wanted => copies.1 += 1,
                DlqCopy::None => {}
            }
        }
        Ok(copies)
    }

    async fn lanes(&self) -> Result<Vec<(LaneKey, LaneLedger)>, StoreError> {
        Ok(self.inner().rows.lanes.iter().map(|(key, ledger)| (key.clone(), *ledger)).collect())
    }

    async fn dlqs(&self) -> Result<Vec<(String, DlqLedger)>, StoreError> {
        Ok(self.inner().rows.dlqs.iter().map(|(queue, ledger)| (queue.clone(), ledger.clone())).collect())
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        Ok(self.inner().pauses.values().cloned().collect())
    }

    async fn pause(&self, mut pause: Pause) -> Result<(), StoreError> {
        let mut inner = self.inner();
        let known = inner.pauses.get(&pause.key).and_then(|known| known.reason.clone());
        pause.reason = pause.reason.or(known);
        inner.rows.pauses.insert(pause.key.clone());
        inner.pauses.insert(pause.key.clone(), pause);
        Ok(())
    }

    async fn resume(&self, key: &str) -> Result<bool, StoreError> {
        let mut inner = self.inner();
        inner.rows.pauses.remove(key);
        Ok(inner.pauses.remove(key).is_some())
    }

    async fn policies(&self, limit: usize) -> Result<Vec<PolicyVersion>, StoreError> {
        Ok(self.inner().policies.iter().rev().take(limit).cloned().collect())
    }

    async fn apply_policies(&self, new: NewPolicies) -> Result<i64, StoreError> {
        let mut inner = self.inner();
        let version = inner.policies.last().map_or(0, |newest| newest.version) + 1;
        inner.policies.push(PolicyVersion { version, applied_at: self.clock.now(), rules: new });
        Ok(version)
    }

    async fn report_node(&self, worker: &str, hash: &str, version: Option<i64>) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let node = Node { worker: worker.into(), hash: hash.into(), version, seen_at: now };
        inner.nodes.insert(worker.into(), node);
        inner.nodes.retain(|_, node| node.seen_at >= now.saturating_sub(NODE_FORGOTTEN_MS));
        Ok(())
    }

    async fn forget_node(&self, worker: &str) -> Result<(), StoreError> {
        self.inner().nodes.remove(worker);
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        Ok(self.inner().nodes.values().cloned().collect())
    }

    async fn report(&self, deep: bool) -> Result<StoreReport, StoreError> {
        Ok(StoreReport {
            place: "memory".into(),
            engine: "memory".into(),
            schema_version: 0,
            schema_known: 0,
            bytes: 0,
            integrity: deep.then(|| "ok".into()),
        })
    }

    async fn close(&self) {}
}
