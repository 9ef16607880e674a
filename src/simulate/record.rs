//! What a run came to: counted while it runs, made into figures at its end. Decides nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::show_rate;
use crate::gate::{LimitKind, LimitRule, RuleOf, Subject};
use crate::policy::{Arm, Policies, least_attempts, sentence};
use crate::task::{AttemptOutcome, Change, DEFAULT_QUEUE, DeadReason, Millis, Status, Task};

use super::scenario::{Contender, Scenario};

/// A look that comes so late still takes what fell due meanwhile (`gate::limit`), so starts may stand so much closer than the rate says.
const LATE_MS: Millis = 50;

/// The figures of one contender.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// The contender.
    pub name: String,
    /// Tasks that arrived.
    pub tasks: u64,
    /// Tasks that ended well.
    pub succeeded: u64,
    /// Dead letters by reason.
    pub dead: BTreeMap<&'static str, u64>,
    /// Tasks that had not ended when the run did.
    pub unfinished: u64,
    /// Calls made.
    pub attempts: u64,
    /// Calls for one task.
    pub attempts_per_task: f64,
    /// The fewest calls for one task that any schedule needs; see [`least_attempts`].
    pub minimum_per_task: f64,
    /// The share of tasks whose first call succeeded.
    pub first_try_success: f64,
    /// The share of tasks that succeeded.
    pub final_success: f64,
    /// The most calls in one second.
    pub peak_per_s: u32,
    /// Calls that the third party can answer in a second.
    pub capacity_per_s: f64,
    /// The most retries in a minute.
    pub peak_retries_per_min: usize,
    /// Calls that the third party served when their sender had given up: work done and thrown away.
    pub thrown_away: u64,
    /// From the end of the outage until all that it had held up is done and no more is under way than before it. `None`: there was no outage,
    /// or that moment never came.
    pub recovery_ms: Option<Millis>,
    /// When the last task ended, from the beginning; `None` when some never did.
    pub done_at_ms: Option<Millis>,
    /// The mean time from arrival to success.
    pub mean_time_to_success_ms: Option<Millis>,
    /// Every configured limit and the most starts that one of its keys had in a window.
    pub limits: Vec<LimitSeen>,
    /// Whether any of them was exceeded.
    pub limit_exceeded: bool,
    /// The policies' variants and how their tasks ended.
    pub variants: Vec<VariantSeen>,
    /// What that says, when there are several.
    pub comparison: Option<String>,
    /// Calls by second from the beginning.
    pub attempts_by_s: Vec<u32>,
}

/// One limit as it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitSeen {
    /// Its name.
    pub name: String,
    /// Its rate.
    pub rate: String,
    /// The most starts of one key in any window of the rate's length.
    pub most: usize,
    /// What the rate allows there: its count, its burst less one, and what falls due in 50 ms.
    pub allowed: usize,
}

/// One variant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VariantSeen {
    /// Its name.
    pub name: String,
    /// Its tasks that ended.
    pub n: u64,
    /// How many of them succeeded.
    pub succeeded: u64,
    /// The share, and its 95 % interval.
    pub rate: f64,
    /// See `rate`.
    pub low: f64,
    /// See `rate`.
    pub high: f64,
}

/// Counts.
pub(super) struct Record<'s> {
    contender: &'s Contender,
    capacity_per_s: f64,
    outage: Option<(Millis, Millis)>,
    tasks: u64,
    ended: u64,
    succeeded: u64,
    dead: BTreeMap<&'static str, u64>,
    first_tries: u64,
    first_successes: u64,
    permanent: u64,
    by_second: Vec<u32>,
    retries: Vec<Millis>,
    thrown_away: u64,
    waited_ms: Millis,
    /// Unfinished tasks that the outage has seen.
    held_up: u64,
    /// The most that were unfinished at once before the outage.
    usual: u64,
    recovered_at: Option<Millis>,
    last_end: Millis,
    /// Starts by limit and key.
    starts: BTreeMap<(usize, String), Vec<Millis>>,
    arms: BTreeMap<String, (u64, u64)>,
}

impl<'s> Record<'s> {
    pub(super) fn new(scenario: &Scenario, contender: &'s Contender) -> Record<'s> {
        Record {
            contender,
            capacity_per_s: scenario.third_party.capacity_per_s(),
            outage: scenario.third_party.outage(),
            tasks: 0,
            ended: 0,
            succeeded: 0,
            dead: BTreeMap::new(),
            first_tries: 0,
            first_successes: 0,
            permanent: 0,
            by_second: Vec::new(),
            retries: Vec::new(),
            thrown_away: 0,
            waited_ms: 0,
            held_up: 0,
            usual: 1,
            recovered_at: None,
            last_end: 0,
            starts: BTreeMap::new(),
            arms: BTreeMap::new(),
        }
    }

    pub(super) fn unfinished(&self) -> u64 {
        self.tasks - self.ended
    }

    /// A task arrives. Its number.
    pub(super) fn arrive(&mut self, at: Millis) -> u64 {
        self.tasks += 1;
        if let Some((from, until)) = self.outage {
            if at < from {
                self.usual = self.usual.max(self.unfinished());
            }
            self.held_up += u64::from(at < until);
        }
        self.tasks
    }

    /// An attempt starts.
    pub(super) fn start(&mut self, task: &Task, at: Millis) {
        let second = usize::try_from(at / 1000).unwrap_or(0);
        if self.by_second.len() <= second {
            self.by_second.resize(second + 1, 0);
        }
        self.by_second[second] += 1;
        let is_retry = task.stamp().retry_count > 0;
        if is_retry {
            self.retries.push(at);
        } else {
            self.first_tries += 1;
        }
        let subject = Subject { task_type: &task.spec.task_type, queue: task.queue(), labels: &task.spec.labels };
        debug_assert_eq!(task.queue(), DEFAULT_QUEUE);
        for gate in self.contender.gates.way(subject, is_retry).gates {
            let RuleOf::Limit(rule) = gate.rule else { continue };
            let index = self.contender.gates.limits.iter().position(|limit| limit.name == rule.name).unwrap_or(0);
            self.starts.entry((index, gate.key)).or_default().push(at);
        }
    }

    /// An attempt was settled.
    pub(super) fn settle(&mut self, change: &Change) {
        let is_first = change.attempt.number == 1;
        self.first_successes += u64::from(is_first && change.attempt.outcome == AttemptOutcome::Succeeded);
    }

    /// The third party has served a call whose sender was gone.
    pub(super) fn threw_away(&mut self) {
        self.thrown_away += 1;
    }

    /// A task ended.
    pub(super) fn end(&mut self, task: &Task, variant: Option<&str>, at: Millis) {
        self.ended += 1;
        self.last_end = at;
        let arrived = at - task.state.ended_at.map_or(0, |ended| ended - task.spec.created_at);
        let is_success = task.state.status == Status::Succeeded;
        if is_success {
            self.succeeded += 1;
            self.waited_ms += at - arrived;
        } else if let Some(reason) = task.state.dead_reason {
            *self.dead.entry(reason.as_str()).or_insert(0) += 1;
            self.permanent += u64::from(reason == DeadReason::PermanentError);
        }
        if let Some(variant) = variant {
            let arm = self.arms.entry(variant.to_owned()).or_insert((0, 0));
            arm.0 += 1;
            arm.1 += u64::from(is_success);
        }
        if let Some((_, until)) = self.outage {
            self.held_up -= u64::from(arrived < until);
            if at >= until && self.recovered_at.is_none() && self.held_up == 0 && self.unfinished() <= self.usual {
                self.recovered_at = Some(at - until);
            }
        }
    }

    /// The figures of a run that ended at `at`.
    pub(super) fn finish(self, at: Millis) -> Run {
        let attempts: u64 = self.by_second.iter().map(|calls| u64::from(*calls)).sum();
        let first_try_success = share(self.first_successes, self.first_tries);
        // What a breaker has kept from being called at all needs no call.
        let (tried, permanent) = (share(self.first_tries, self.tasks), share(self.permanent, self.first_tries));
        let retries = most_retries(&self.contender.policies);
        let limits = self.limits_seen();
        let arms: Vec<Arm> = self
            .arms
            .iter()
            .map(|(name, (n, succeeded))| Arm { name: name.clone(), n: *n, succeeded: *succeeded })
            .collect();
        let seen = |arm: &Arm| {
            let (low, high) = arm.interval();
            VariantSeen { name: arm.name.clone(), n: arm.n, succeeded: arm.succeeded, rate: arm.rate(), low, high }
        };
        let unfinished = self.unfinished();
        let mut by_second = self.by_second;
        by_second.resize(usize::try_from(at / 1000 + 1).unwrap_or(0).max(by_second.len()), 0);
        Run {
            name: self.contender.name.clone(),
            tasks: self.tasks,
            succeeded: self.succeeded,
            dead: self.dead,
            unfinished,
            attempts,
            attempts_per_task: share(attempts, self.tasks),
            minimum_per_task: tried * least_attempts(first_try_success, permanent, retries),
            first_try_success,
            final_success: share(self.succeeded, self.tasks),
            peak_per_s: by_second.iter().copied().max().unwrap_or(0),
            capacity_per_s: self.capacity_per_s,
            peak_retries_per_min: most_in_a_window(&self.retries, 60_000),
            thrown_away: self.thrown_away,
            recovery_ms: self.recovered_at,
            done_at_ms: (unfinished == 0).then_some(self.last_end),
            mean_time_to_success_ms: i64::try_from(self.succeeded).ok().and_then(|n| self.waited_ms.checked_div(n)),
            limit_exceeded: limits.iter().any(|limit| limit.most > limit.allowed),
            limits,
            comparison: (arms.len() > 1).then(|| sentence(&arms)),
            variants: arms.iter().map(seen).collect(),
            attempts_by_s: by_second,
        }
    }

    fn limits_seen(&self) -> Vec<LimitSeen> {
        let seen = |(index, rule): (usize, &LimitRule)| {
            let LimitKind::Rate { rate, burst } = &rule.kind else { return None };
            let of_rule = self.starts.iter().filter(|((of, _), _)| *of == index);
            let most = of_rule.map(|(_, starts)| most_in_a_window(starts, rate.per_ms)).max().unwrap_or(0);
            let count = |n: i64| usize::try_from(n).unwrap_or(0);
            let late = u64::try_from(LATE_MS * rate.count).unwrap_or(0).div_ceil(rate.per_ms.max(1).unsigned_abs());
            let allowed = count(rate.count) + count(burst - 1) + usize::try_from(late).unwrap_or(0);
            Some(LimitSeen { name: rule.name.clone(), rate: show_rate(*rate), most, allowed })
        };
        self.contender.gates.limits.iter().enumerate().filter_map(seen).collect()
    }
}

/// The most of `times`, which are in order, that lie in one half-open window of this length.
fn most_in_a_window(times: &[Millis], window_ms: Millis) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (index, at) in times.iter().enumerate() {
        while times[first] <= at - window_ms {
            first += 1;
        }
        most = most.max(index + 1 - first);
    }
    most
}

fn most_retries(policies: &Policies) -> i64 {
    let of_rule = policies.reachable().iter().flat_map(|rule| {
        let variants = rule.variants.iter().map(|variant| variant.max_retries);
        let own = rule.variants.is_empty().then_some(rule.max_retries);
        variants.chain(own)
    });
    of_rule.max().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "counts of tasks stay far below 2^53")]
fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_half_open() {
        assert_eq!(most_in_a_window(&[0, 600, 1_200, 1_800], 1_200), 2);
        assert_eq!(most_in_a_window(&[0, 0, 0, 5], 5), 3);
        assert_eq!(most_in_a_window(&[], 5), 0);
    }
}
