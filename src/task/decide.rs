//! From an attempt's outcome to what happens to the task: the one place where retries are decided.

use std::collections::BTreeSet;

use crate::policy::{Backoff, Disposition, OverCap, Policy, RetryAfterMode, RetryAfterRule, classify};

use super::{DeadReason, Failure, Millis, Outcome, RetryAfter, Task, Verdict, class, fingerprint};

/// The longest delay that is ever kept: ten years. Whoever asks for more gets this, so that a due time stays a date that people,
/// RFC 3339 and every database can write down.
pub const LONGEST_DELAY_MS: Millis = 3650 * 24 * 3_600_000;

/// What an outcome means for its task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use]
pub enum Decision {
    /// It is done.
    Succeed,
    /// Another attempt after `delay_ms`.
    Retry {
        /// From the moment of the decision.
        delay_ms: Millis,
        /// Why that long, for people.
        reason: String,
        /// Whether a delay queue of exactly this length holds the wait; otherwise the store does.
        on_rung: bool,
        /// The handler itself asked for it: no policy that comes later takes it away; see [`rejudge`].
        by_handler: bool,
        /// Class as ruled, fingerprint filled.
        failure: Failure,
    },
    /// No further attempt.
    Die {
        /// Why.
        reason: DeadReason,
        /// Class as ruled, fingerprint filled.
        failure: Failure,
    },
}

/// Decides what `outcome` means for the running `task` under `policy`.
///
/// `rungs` are the delays for which the broker has a queue; `random` is uniform in [0, 1). The retry budget is that of the policy, of the
/// task's variant of it, or of its override for this failure: the attempt that has just failed was number `retry_count + 1`, so a task gets
/// at most `max_retries + 1` attempts in a generation.
pub fn decide(
    task: &Task,
    outcome: &Outcome,
    policy: &Policy,
    rungs: &BTreeSet<Millis>,
    now: Millis,
    random: f64,
) -> Decision {
    let (failure, verdict, retry_after) = match outcome {
        Outcome::Success { .. } => return Decision::Succeed,
        Outcome::Failure { failure, verdict, retry_after, .. } => (failure, *verdict, *retry_after),
    };
    let ruling = classify(policy, failure, verdict);
    let mut failure = failure.clone();
    failure.class = ruling.class;
    failure.fingerprint = fingerprint(&task.spec.task_type, &failure);

    if ruling.disposition == Disposition::Permanent {
        return Decision::Die { reason: DeadReason::PermanentError, failure };
    }
    let schedule = policy.schedule(policy.variant_for(task.id(), task.state.variant.as_deref()), Some(&failure));
    let spent = task.stamp().retry_count;
    if spent >= schedule.max_retries {
        return Decision::Die { reason: DeadReason::RetriesExhausted, failure };
    }
    let computed = Computed { backoff: schedule.backoff, source: &schedule.source, n: spent + 1, random };
    let (delay_ms, reason) = match delay_before_retry(&computed, policy.retry_after, retry_after) {
        Ok(delay) => delay,
        Err(too_long) => {
            // Not `permanent_error`: the other side said when it would work, so an automatic replay may find it working.
            failure.message = format!("{}; {too_long}", failure.message);
            return Decision::Die { reason: DeadReason::RetriesExhausted, failure };
        }
    };
    if effective_deadline(task, policy).is_some_and(|deadline| now.saturating_add(delay_ms) > deadline) {
        return Decision::Die { reason: DeadReason::DeadlineExceeded, failure };
    }
    let by_handler = verdict == Verdict::Retry;
    Decision::Retry { delay_ms, reason, on_rung: rungs.contains(&delay_ms), by_handler, failure }
}

/// Decides about a task whose worker did not come back before its lease ended. The attempt is spent: it may have had its
/// effect, and a task that kills its worker must not do so for ever.
pub fn decide_lost(task: &Task, policy: &Policy, rungs: &BTreeSet<Millis>, now: Millis, random: f64) -> Decision {
    let worker = task.state.worker.as_deref().unwrap_or("unknown");
    let message = format!("worker {worker} neither settled nor renewed its lease");
    let outcome = Outcome::Failure {
        failure: Failure::new(class::WORKER_LOST, message),
        verdict: Verdict::ByPolicy,
        retry_after: None,
        cost: None,
    };
    decide(task, &outcome, policy, rungs, now, random)
}

/// Judges the last failure of a waiting task by the policy that is in force now, before its next attempt: `Some` when that attempt must not
/// run, because the failure is permanent now or the budget is spent now. Such a task dies as it waits: nothing has run, so this is
/// neither an attempt nor a row of one.
///
/// A first attempt is never judged, nor is the failure's permanence where the handler itself asked for the retry; the budget holds there
/// too. The row keeps the failure as it was ruled and without its stack: a pattern over stderr that was added since is not applied.
pub fn rejudge(task: &Task, policy: &Policy) -> Option<(DeadReason, Failure)> {
    let spent = task.stamp().retry_count;
    let failure = task.state.failure.as_ref().filter(|_| spent > 0)?;
    let dead = |reason: DeadReason, why: String| {
        let mut failure = failure.clone();
        failure.message = format!("{}; not called again: {why}", failure.message);
        Some((reason, failure))
    };
    let ruling = classify(policy, failure, Verdict::ByPolicy);
    if ruling.disposition == Disposition::Permanent && !task.state.retry_by_handler {
        return dead(DeadReason::PermanentError, format!("policy {:?} now says {}", policy.name, ruling.because));
    }
    let schedule = policy.schedule(policy.variant_for(task.id(), task.state.variant.as_deref()), Some(failure));
    if spent > schedule.max_retries {
        let why = format!("{} now allows {} retries", schedule.source, schedule.max_retries);
        return dead(DeadReason::RetriesExhausted, why);
    }
    None
}

/// For how long the siblings of an attempt that was told to slow down should be held: what the other side asked for, within the policy's cap.
///
/// `None` unless the failure is a rate limit by the policy's ruling, came with a `Retry-After` above 0, and the policy does not ignore it.
pub fn hold_for(outcome: &Outcome, policy: &Policy) -> Option<Millis> {
    let Outcome::Failure { failure, verdict, retry_after: Some(asked), .. } = outcome else {
        return None;
    };
    let rule = policy.retry_after;
    if rule.mode == RetryAfterMode::Ignore || classify(policy, failure, *verdict).class != class::RATE_LIMITED {
        return None;
    }
    let most = if rule.over_cap == OverCap::Honour { LONGEST_DELAY_MS } else { rule.cap_ms.min(LONGEST_DELAY_MS) };
    Some(asked.delay_ms.min(most)).filter(|hold_ms| *hold_ms > 0)
}

/// The earlier of the task's own deadline and its policy's. A policy's deadline runs from the task's creation and so holds for
/// the first generation only: a person who replays an old task wants it run.
fn effective_deadline(task: &Task, policy: &Policy) -> Option<Millis> {
    let of_policy = policy
        .deadline_ms
        .filter(|_| task.stamp().generation == 0)
        .map(|length| task.spec.created_at.saturating_add(length));
    match (task.state.deadline, of_policy) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// What the wait would be without a `Retry-After`.
struct Computed<'a> {
    backoff: &'a Backoff,
    source: &'a str,
    n: i64,
    random: f64,
}

/// The delay and why; `Err` says so when the other side asked for more than the policy accepts at all.
fn delay_before_retry(
    schedule: &Computed<'_>,
    rule: RetryAfterRule,
    asked: Option<RetryAfter>,
) -> Result<(Millis, String), String> {
    let (computed, why) = schedule.backoff.delay(schedule.n, schedule.random);
    let computed = computed.min(LONGEST_DELAY_MS);
    let cap_ms = rule.cap_ms.clamp(0, LONGEST_DELAY_MS);
    let by_policy = format!("{}: {why}", schedule.source);
    let Some(RetryAfter { delay_ms: asked_ms }) = asked else {
        return Ok((computed, by_policy));
    };
    // The field is public: a handler of a library user may have counted wrong.
    let asked_ms = asked_ms.max(0);
    match rule.mode {
        RetryAfterMode::Ignore => return Ok((computed, format!("{by_policy}; Retry-After {asked_ms} ms ignored"))),
        RetryAfterMode::Floor if asked_ms <= computed => {
            return Ok((computed, format!("{by_policy}; Retry-After {asked_ms} ms is shorter")));
        }
        RetryAfterMode::Exact | RetryAfterMode::Floor => {}
    }
    if asked_ms <= cap_ms {
        if rule.mode == RetryAfterMode::Exact {
            return Ok((asked_ms, format!("Retry-After {asked_ms} ms")));
        }
        // Never earlier than asked, so the jitter of the backoff is added on top.
        let waits = schedule.backoff.at_least(asked_ms, cap_ms, schedule.random);
        let jitter = if waits > asked_ms { format!(", jitter + {} ms", waits - asked_ms) } else { String::new() };
        return Ok((waits, format!("Retry-After {asked_ms} ms{jitter}")));
    }
    match rule.over_cap {
        OverCap::Honour if asked_ms <= LONGEST_DELAY_MS => Ok((asked_ms, format!("Retry-After {asked_ms} ms"))),
        OverCap::Honour => Ok((LONGEST_DELAY_MS, format!("Retry-After {asked_ms} ms, at most ten years are kept"))),
        OverCap::DeadLetter => Err(format!("asked to wait {asked_ms} ms, the policy's cap is {cap_ms} ms")),
        OverCap::Cap => {
            let capped = if rule.mode == RetryAfterMode::Floor { cap_ms.max(computed) } else { cap_ms };
            Ok((capped, format!("Retry-After {asked_ms} ms, capped at {cap_ms} ms")))
        }
    }
}

#[cfg(test)]
mod tests;
