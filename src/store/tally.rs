//! What the history adds up to (A2, X4): counts of ended tasks and of their attempts, by group.
//!
//! A store answers from what it has kept, never from counters of its own: what was pruned is not counted. The plain functions here
//! say what each number means; the memory store uses them, every other store has to agree with them.

use std::collections::BTreeMap;

use crate::policy::Fallback;
use crate::task::{Attempt, AttemptOutcome, DeadReason, Millis, Status, Task};

/// What is counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupBy {
    /// Tasks of one type.
    Type,
    /// Tasks with the same value of this label; those without it are a group too.
    Label(String),
    /// Tasks whose last attempt was decided by the same policy.
    Policy,
    /// The same, with the same variant of it. Tasks without a variant are left out.
    Variant,
    /// Tasks of one `[[queue]]`.
    Queue,
}

/// How the tasks of a group ended. Counted are tasks that have ended by themselves: `succeeded`, `dead`, `discarded` (which was dead). Not
/// counted are cancelled ones, and submissions that were refused and could never have run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tally {
    /// The type, label value, policy or queue; `None`: the task has none.
    pub group: Option<String>,
    /// The variant, where that is asked for.
    pub variant: Option<String>,
    /// Tasks.
    pub tasks: i64,
    /// Those that were attempted at all: a breaker or a deadline ends some before that.
    pub attempted: i64,
    /// Those that succeeded on attempt 1, 2, 3, and any later one, counted over all generations.
    pub succeeded_on: [i64; 4],
    /// Those that succeeded. An end by cache or default is not one: the other side did not do it.
    pub succeeded: i64,
    /// Those that ended by cache or default.
    pub fell_back: i64,
    /// Those that are marked as degraded, by whatever: these fallbacks, or fields that were filled in.
    pub degraded: i64,
    /// Those that died.
    pub dead: i64,
    /// Those that are dead by a permanent error.
    pub permanent: i64,
    /// All their attempts; runs that were given back are none.
    pub attempts: i64,
    /// The most attempts of one task.
    pub most_attempts: i64,
    /// What the attempts cost.
    pub cost: f64,
    /// How long handlers ran.
    pub handler_ms: Millis,
    /// The median time from a task's creation to its success; for [`GroupBy::Variant`] alone.
    pub p50_ms: Option<Millis>,
    /// The same, within which 95 % succeeded.
    pub p95_ms: Option<Millis>,
}

/// The n-th attempts of ended tasks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AttemptTally {
    /// n, counted over all generations.
    pub number: i64,
    /// How many there were.
    pub attempts: i64,
    /// How many succeeded.
    pub succeeded: i64,
    /// What they cost.
    pub cost: f64,
    /// How long handlers ran.
    pub handler_ms: Millis,
}

/// How often attempts of ended tasks failed in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureTally {
    /// The class.
    pub class: String,
    /// The platform's code.
    pub code: Option<String>,
    /// The HTTP status.
    pub http_status: Option<u16>,
    /// Attempts that failed so.
    pub attempts: i64,
    /// Tasks they belong to.
    pub tasks: i64,
}

/// An ended task and its attempts without runs that were given back, oldest first.
pub(super) struct Ended<'a> {
    task: &'a Task,
    attempts: Vec<&'a Attempt>,
}

impl<'a> Ended<'a> {
    /// `None` for a task that is not counted.
    pub(super) fn new(task: &'a Task, attempts: impl Iterator<Item = &'a Attempt>) -> Option<Ended<'a>> {
        let counts = matches!(task.state.status, Status::Succeeded | Status::Dead | Status::Discarded)
            && task.spec.raw.is_none()
            && task.state.ended_at.is_some();
        let attempts = attempts.filter(|attempt| attempt.outcome != AttemptOutcome::Released);
        counts.then(|| Ended { task, attempts: attempts.collect() })
    }

    fn group(&self, by: &GroupBy) -> Option<String> {
        match by {
            GroupBy::Type => Some(self.task.spec.task_type.clone()),
            GroupBy::Label(name) => self.task.spec.labels.get(name).cloned(),
            GroupBy::Queue => Some(self.task.queue().to_owned()),
            GroupBy::Policy | GroupBy::Variant => self.attempts.last().and_then(|attempt| attempt.policy.clone()),
        }
    }
}

/// Group and variant.
type Names = (Option<String>, Option<String>);

/// The groups, largest first.
pub(super) fn tallies(by: &GroupBy, ended: &[Ended<'_>]) -> Vec<Tally> {
    let mut groups: BTreeMap<Names, (Tally, Vec<Millis>)> = BTreeMap::new();
    for ended in ended {
        let state = &ended.task.state;
        let variant = state.variant.clone().filter(|_| *by == GroupBy::Variant);
        if *by == GroupBy::Variant && variant.is_none() {
            continue;
        }
        let key = (ended.group(by), variant);
        let (tally, times) = groups.entry(key).or_default();
        let tried = i64::try_from(ended.attempts.len()).unwrap_or(i64::MAX);
        let fallbacks = [Fallback::Cache, Fallback::Default].map(Fallback::as_str);
        let fell_back = state.degraded.as_deref().is_some_and(|by| fallbacks.contains(&by));
        tally.tasks += 1;
        tally.attempted += i64::from(tried > 0);
        tally.fell_back += i64::from(fell_back);
        tally.degraded += i64::from(state.degraded.is_some());
        if state.status != Status::Succeeded {
            tally.dead += 1;
            tally.permanent += i64::from(state.dead_reason == Some(DeadReason::PermanentError));
        } else if !fell_back {
            tally.succeeded += 1;
            tally.succeeded_on[ended.attempts.len().clamp(1, 4) - 1] += 1;
            times.push(state.ended_at.unwrap_or(0).saturating_sub(ended.task.spec.created_at));
        }
        tally.attempts += tried;
        tally.most_attempts = tally.most_attempts.max(tried);
        for attempt in &ended.attempts {
            tally.cost += attempt.cost.unwrap_or(0.0);
            tally.handler_ms += attempt.ended_at.saturating_sub(attempt.started_at);
        }
    }
    let with_names = |((group, variant), (mut tally, mut times)): (_, (Tally, Vec<Millis>))| {
        if *by == GroupBy::Variant {
            times.sort_unstable();
            (tally.p50_ms, tally.p95_ms) = (nearest_rank(&times, 50), nearest_rank(&times, 95));
        }
        Tally { group, variant, ..tally }
    };
    let mut tallies: Vec<Tally> = groups.into_iter().map(with_names).collect();
    tallies.sort_by_key(|tally| std::cmp::Reverse(tally.tasks));
    tallies
}

/// The smallest of the sorted values that at least so many percent do not exceed.
fn nearest_rank(sorted: &[Millis], percent: usize) -> Option<Millis> {
    sorted.get((sorted.len() * percent).div_ceil(100).checked_sub(1)?).copied()
}

/// The numbers, ascending.
pub(super) fn attempt_tallies(ended: &[Ended<'_>]) -> Vec<AttemptTally> {
    let mut numbers: BTreeMap<i64, AttemptTally> = BTreeMap::new();
    for ended in ended {
        for (number, attempt) in (1..).zip(&ended.attempts) {
            let tally = numbers.entry(number).or_default();
            tally.number = number;
            tally.attempts += 1;
            tally.succeeded += i64::from(attempt.outcome == AttemptOutcome::Succeeded);
            tally.cost += attempt.cost.unwrap_or(0.0);
            tally.handler_ms += attempt.ended_at.saturating_sub(attempt.started_at);
        }
    }
    numbers.into_values().collect()
}

/// Class, code and HTTP status.
type Way = (String, Option<String>, Option<u16>);

/// The most frequent failures.
pub(super) fn failure_tallies(ended: &[Ended<'_>], limit: usize) -> Vec<FailureTally> {
    let mut failures: BTreeMap<Way, (i64, i64)> = BTreeMap::new();
    for ended in ended {
        let mut of_task = std::collections::BTreeSet::new();
        for failure in ended.attempts.iter().filter_map(|attempt| attempt.failure.as_ref()) {
            let key = (failure.class.clone(), failure.code.clone(), failure.http_status);
            let (attempts, tasks) = failures.entry(key.clone()).or_default();
            *attempts += 1;
            *tasks += i64::from(of_task.insert(key));
        }
    }
    let tally =
        |((class, code, http_status), (attempts, tasks))| FailureTally { class, code, http_status, attempts, tasks };
    let mut tallies: Vec<FailureTally> = failures.into_iter().map(tally).collect();
    tallies.sort_by_key(|tally| std::cmp::Reverse(tally.attempts));
    tallies.truncate(limit);
    tallies
}
