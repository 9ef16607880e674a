//! The judgement: pure, so that each check can be shown to find what it is there for.
//!
//! Every call of the third party's log is laid to the attempt in the store that made it; what then does not agree is a
//! violation. What at-least-once execution allows, a call made twice, is no violation where the store names its cause,
//! and is counted by that.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::evidence::{AttemptRow, Evidence, TaskRow};
use crate::ground::{AT_ONCE, RETRIES_PER_S, RETRY_BURST, max_retries};
use crate::party::{Answer, Call};
use crate::plan::Door;
use crate::third_party::worst_excess;

/// How often a stamp may be given back before that counts as a crash: `scheduler.max_releases`.
const MAX_RELEASES: usize = 5;
/// How much later than it fell due a look may take a token (DESIGN §4.3).
const LATE_LOOK_S: f64 = 0.05;

/// What was found.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    /// Effects beyond the first at the third party, by what the store says of the attempt that left them.
    pub duplicates: BTreeMap<String, usize>,
}

/// Something that may never be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub kind: Kind,
    pub what: String,
}

/// What sort of violation it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Was sent and has no row.
    Lost,
    /// Has a row that has not ended.
    Stuck,
    /// More attempts than allowed.
    Over,
    /// Ran twice and the store knows no reason.
    Twice,
    /// Two of store, third party and producer say different things.
    Disagreement,
    /// A DLQ is not what the rows say.
    DeadLetters,
    /// A gate let too much through.
    Gate,
    /// A process ended that should not have.
    Process,
}

impl Verdict {
    /// How many there are of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.violations.iter().filter(|violation| violation.kind == kind).count()
    }

    /// Adds one.
    pub fn violates(&mut self, kind: Kind, what: String) {
        self.violations.push(Violation { kind, what });
    }
}

/// Judges.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let mut attempts: HashMap<&str, Vec<&AttemptRow>> = HashMap::new();
    for attempt in &evidence.attempts {
        attempts.entry(&attempt.task).or_default().push(attempt);
    }
    let mut calls: HashMap<&str, Vec<&Call>> = HashMap::new();
    for call in &evidence.calls {
        calls.entry(&call.task).or_default().push(call);
    }
    everything_sent_has_a_row(evidence, &mut verdict);
    for task in &evidence.tasks {
        let attempts = attempts.remove(task.id.as_str()).unwrap_or_default();
        let calls = calls.remove(task.id.as_str()).unwrap_or_default();
        if !task.ended() {
            verdict.violates(Kind::Stuck, format!("{} is {}", task.id, task.status));
        }
        attempts_are_within_bounds(task, &attempts, &mut verdict);
        the_end_fits_the_attempts(task, &attempts, &mut verdict);
        calls_fit_the_attempts(task, &attempts, &calls, &mut verdict);
    }
    for id in attempts.keys().chain(calls.keys()) {
        verdict.violates(Kind::Disagreement, format!("{id} was attempted or called and has no row"));
    }
    dead_letters_fit_the_rows(evidence, &mut verdict);
    gates_held(evidence, &mut verdict);
    verdict
}

fn everything_sent_has_a_row(evidence: &Evidence, verdict: &mut Verdict) {
    let by_id: HashMap<&str, &TaskRow> =
        evidence.tasks.iter().filter(|task| task.refused.is_none()).map(|task| (task.id.as_str(), task)).collect();
    let refused: HashMap<&str, &TaskRow> =
        evidence.tasks.iter().filter_map(|task| Some((task.refused.as_deref()?, task))).collect();
    for work in &evidence.sent {
        let row = match work.door {
            Door::Message | Door::Row => by_id.get(work.name.as_str()),
            Door::Malformed | Door::Conflict => refused.get(work.name.as_str()),
        };
        let Some(row) = row else {
            verdict.violates(Kind::Lost, format!("{} ({:?}) has no row", work.name, work.door));
            continue;
        };
        let wanted = match work.door {
            Door::Message | Door::Row => None,
            Door::Malformed => Some("malformed"),
            Door::Conflict => Some("duplicate_conflict"),
        };
        let discarded = row.status == "discarded";
        if wanted.is_some() && row.dead_reason.as_deref() != wanted && !discarded {
            let found = (&row.status, &row.dead_reason);
            verdict.violates(Kind::Disagreement, format!("{} was to be {wanted:?} and is {found:?}", work.name));
        }
        if row.conflicts_with != work.claims {
            verdict.violates(Kind::Disagreement, format!("{} conflicts with {:?}", work.name, row.conflicts_with));
        }
    }
    let names: HashSet<&str> = evidence.sent.iter().map(|work| work.name.as_str()).collect();
    for task in &evidence.tasks {
        let name = task.refused.as_deref().unwrap_or(&task.id);
        let forged = task.refused.is_some() && name.starts_with("forged-");
        if !forged && !names.contains(name) {
            verdict.violates(Kind::Disagreement, format!("{} has a row and nobody sent it", task.id));
        }
    }
    let mut seen = HashSet::new();
    for task in evidence.tasks.iter().filter(|task| !seen.insert(task.refused.as_deref().unwrap_or(&task.id))) {
        verdict.violates(Kind::Disagreement, format!("{:?} has a second row, {}", task.refused, task.id));
    }
}

/// Whether it counts as an attempt: a run that was given back does not.
fn counts(attempt: &AttemptRow) -> bool {
    attempt.outcome != "released"
}

fn attempts_are_within_bounds(task: &TaskRow, attempts: &[&AttemptRow], verdict: &mut Verdict) {
    let mut stamps: BTreeMap<(i64, i64), (usize, usize)> = BTreeMap::new();
    for attempt in attempts {
        let (counted, released) = stamps.entry((attempt.generation, attempt.number)).or_default();
        *if counts(attempt) { counted } else { released } += 1;
        let allowed = attempt.policy.as_deref().and_then(max_retries);
        match allowed {
            Some(retries) if attempt.number > retries + 1 => {
                let (number, generation) = (attempt.number, attempt.generation);
                let what =
                    format!("{}: attempt {number} of generation {generation}, {} are allowed", task.id, retries + 1);
                verdict.violates(Kind::Over, what);
            }
            None if counts(attempt) => {
                verdict.violates(Kind::Disagreement, format!("{}: decided by policy {:?}", task.id, attempt.policy));
            }
            _ => {}
        }
    }
    for ((generation, number), (counted, released)) in stamps {
        if counted > 1 {
            verdict.violates(
                Kind::Over,
                format!("{}: attempt {number} of generation {generation} was settled {counted} times", task.id),
            );
        }
        if released > MAX_RELEASES {
            verdict.violates(
                Kind::Over,
                format!("{}: attempt {number} of generation {generation} was given back {released} times", task.id),
            );
        }
    }
}

fn the_end_fits_the_attempts(task: &TaskRow, attempts: &[&AttemptRow], verdict: &mut Verdict) {
    let successes = attempts.iter().filter(|attempt| attempt.outcome == "succeeded").count();
    let done = task.status == "succeeded" && task.degraded.is_none();
    if successes != usize::from(done) {
        verdict.violates(
            Kind::Disagreement,
            format!("{} is {} with {successes} successful attempts", task.id, task.status),
        );
    }
    if task.status == "succeeded" && !task.has_result {
        verdict.violates(Kind::Disagreement, format!("{} succeeded and has no result", task.id));
    }
    if task.dead_reason.as_deref() == Some("retries_exhausted") {
        let last = attempts.iter().filter(|attempt| counts(attempt) && attempt.generation == task.generation);
        let policies: BTreeSet<_> =
            last.clone().map(|attempt| attempt.policy.as_deref().and_then(max_retries)).collect();
        let made = last.count();
        if policies != BTreeSet::from([i64::try_from(made).ok().map(|made| made - 1)]) {
            verdict.violates(
                Kind::Disagreement,
                format!("{} died of its retries after {made} attempts, {policies:?} retries", task.id),
            );
        }
    }
}

/// Lays every call to the attempt that made it. A worker that was stopped between its claim and its call makes the call
/// when its attempt has long been called lost, so a call that fits into no attempt's time is one of those that came
/// late.
fn lay<'a>(attempts: &[&'a AttemptRow], calls: &[&'a Call]) -> (BTreeMap<i64, &'a Call>, Vec<&'a Call>) {
    let mut laid: BTreeMap<i64, &Call> = BTreeMap::new();
    let mut left = Vec::new();
    let mut late = Vec::new();
    let free = |laid: &BTreeMap<i64, &Call>, call: &Call, within: bool| {
        let fits = attempts.iter().filter(|attempt| {
            attempt.number == call.retry_count + 1
                && attempt.started_at <= call.at
                && (!within || call.at <= attempt.ended_at)
                && !laid.contains_key(&attempt.fence)
        });
        fits.map(|attempt| attempt.fence).max()
    };
    for call in calls {
        match free(&laid, call, true) {
            Some(fence) => drop(laid.insert(fence, call)),
            None => late.push(*call),
        }
    }
    for call in late {
        match free(&laid, call, false) {
            Some(fence) => drop(laid.insert(fence, call)),
            None => left.push(call),
        }
    }
    (laid, left)
}

fn calls_fit_the_attempts(task: &TaskRow, attempts: &[&AttemptRow], calls: &[&Call], verdict: &mut Verdict) {
    let (laid, left) = lay(attempts, calls);
    for call in left {
        let what = format!(
            "{}: a call with retry count {} at {} belongs to no attempt of its own",
            task.id, call.retry_count, call.at
        );
        verdict.violates(Kind::Twice, what);
    }
    for call in calls.iter().filter(|call| call.key != task.id) {
        verdict.violates(Kind::Disagreement, format!("{} was called with the key {}", task.id, call.key));
    }
    let mut effects = Vec::new();
    for attempt in attempts {
        let answer = laid.get(&attempt.fence).map(|call| call.answer);
        if answer == Some(Answer::Done) {
            effects.push(*attempt);
        }
        // These say that nobody knows what the third party did.
        let unknown =
            matches!(attempt.class.as_deref(), Some("worker_lost" | "timeout" | "network")) || !counts(attempt);
        let agrees = match answer {
            Some(Answer::Done) => attempt.outcome == "succeeded",
            Some(Answer::Status(status)) => attempt.http_status == Some(status.into()),
            Some(Answer::Silence) | None => false,
        };
        if !unknown && !agrees {
            let said = (&attempt.outcome, &attempt.class, attempt.http_status);
            let what =
                format!("{}: attempt {} is {said:?}, and the third party says {answer:?}", task.id, attempt.fence);
            verdict.violates(Kind::Disagreement, what);
        }
    }
    // One effect is what was asked for: the one that the store knows of, or the last.
    let known = effects.iter().position(|attempt| attempt.outcome == "succeeded").or(effects.len().checked_sub(1));
    for (index, attempt) in effects.iter().enumerate().filter(|(index, _)| Some(*index) != known) {
        let cause = if counts(attempt) { attempt.class.clone().unwrap_or_default() } else { attempt.outcome.clone() };
        if cause.is_empty() {
            verdict.violates(
                Kind::Twice,
                format!("{}: effect {} of {} without a cause", task.id, index + 1, effects.len()),
            );
        }
        *verdict.duplicates.entry(cause).or_default() += 1;
    }
}

fn dead_letters_fit_the_rows(evidence: &Evidence, verdict: &mut Verdict) {
    let mut wanted: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for task in evidence.tasks.iter().filter(|task| task.status == "dead") {
        wanted.insert((&task.queue, format!("{}:{}", task.id, task.generation)), 0);
        if task.dlq_copy != "present" {
            verdict.violates(Kind::DeadLetters, format!("{} is dead and its copy is {}", task.id, task.dlq_copy));
        }
    }
    for copy in &evidence.copies {
        match wanted.get_mut(&(copy.queue.as_str(), copy.message_id.clone())) {
            Some(found) => *found += 1,
            None => verdict.violates(
                Kind::DeadLetters,
                format!("{} lies in the DLQ of {} and is no dead task there", copy.message_id, copy.queue),
            ),
        }
    }
    for ((queue, copy), found) in wanted.into_iter().filter(|(_, found)| *found != 1) {
        verdict.violates(Kind::DeadLetters, format!("{copy} lies {found} times in the DLQ of {queue}"));
    }
}

fn gates_held(evidence: &Evidence, verdict: &mut Verdict) {
    let shops: HashMap<&str, (&str, &str)> =
        evidence.tasks.iter().map(|task| (task.id.as_str(), (task.topic.as_str(), task.shop.as_str()))).collect();
    let mut running: BTreeMap<&str, Vec<(i64, i64)>> = BTreeMap::new();
    let mut retries: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for attempt in &evidence.attempts {
        let Some((topic, shop)) = shops.get(attempt.task.as_str()) else { continue };
        if *topic == "chaos.shop" {
            // An end sorts before a beginning of the same millisecond: the place was given back by then.
            running.entry(shop).or_default().extend([(attempt.started_at, 1), (attempt.ended_at, -1)]);
        }
        if attempt.number > 1 {
            retries.entry(shop).or_default().push(attempt.started_at);
        }
    }
    for (shop, mut changes) in running {
        // What began and ended in one millisecond gives its place back after it has taken it.
        changes.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, change) in changes {
            now += change;
            most = most.max(now);
        }
        if most > i64::try_from(AT_ONCE).expect("small") {
            verdict.violates(Kind::Gate, format!("{most} attempts of {shop} at once, {AT_ONCE} are allowed"));
        }
    }
    for (shop, mut starts) in retries {
        starts.sort_unstable();
        let excess = worst_excess(&starts, RETRIES_PER_S);
        if excess > RETRY_BURST + RETRIES_PER_S * LATE_LOOK_S + 0.01 {
            verdict.violates(
                Kind::Gate,
                format!("{excess:.2} retries of {shop} over {RETRIES_PER_S}/s, {RETRY_BURST} are allowed"),
            );
        }
    }
}
