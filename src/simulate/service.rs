//! The third party at work: which calls it serves, refuses, fails or never answers. See [`ThirdParty`] for the model.
//!
//! It never looks at policies: it knows calls, not retries.

use std::collections::{BTreeMap, VecDeque};

use crate::task::{Failure, Millis, Outcome, RetryAfter, Spec, Verdict, class};

use super::random::{Random, millis};
use super::scenario::{Hiccups, RateLimit, ThirdParty, Trouble};

/// A refusal costs the other side next to nothing.
const REFUSAL_MS: Millis = 20;

/// What the draws are for; each has a stream of its own.
const LATENCY: u64 = 1;
const FATE: u64 = 2;
const MOOD: u64 = 3;
const ORDER: u64 = 4;

/// One call. Its number is unique in a run; task and attempt say whose luck it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) task: u64,
    pub(super) attempt: u64,
}

/// What becomes of a call.
pub(super) enum Reply {
    /// This, then.
    At(Millis, Outcome),
    /// It is being served until then.
    Serving(Millis),
    /// It waits to be served; or it was never heard and its sender waits in vain.
    Waits,
}

/// The state of the third party in a run.
pub(super) struct Service<'s> {
    model: &'s ThirdParty,
    seed: u64,
    order: Random,
    busy: usize,
    waiting: VecDeque<Call>,
    /// The window that is counted in, and its calls.
    window: (i64, i64),
    /// What is in the token bucket, and since when.
    tokens: (f64, Millis),
    /// Good and bad moments by phase and label value.
    moods: BTreeMap<(usize, String), Mood>,
}

/// A good or bad moment.
struct Mood {
    bad: bool,
    until: Millis,
    random: Random,
}

impl<'s> Service<'s> {
    pub(super) fn new(model: &'s ThirdParty, seed: u64) -> Service<'s> {
        Service {
            model,
            seed,
            order: Random::of(&[seed, ORDER]),
            busy: 0,
            waiting: VecDeque::new(),
            window: (0, 0),
            tokens: (f64::INFINITY, 0),
            moods: BTreeMap::new(),
        }
    }

    /// A call arrives, `at` counted from the beginning of the run.
    pub(super) fn call(&mut self, call: Call, spec: &Spec, at: Millis) -> Reply {
        if let Some(limit) = self.model.rate_limit
            && let Some(wait_ms) = self.over(limit, at)
        {
            let mut failure = Failure::new(class::RATE_LIMITED, "simulated: too many requests");
            failure.http_status = Some(429);
            return Reply::At(at + REFUSAL_MS, failed(failure, limit.says_when.then_some(wait_ms)));
        }
        if let Some(trouble) = self.trouble(call, spec, at) {
            let after_ms = match trouble.after_ms {
                Some(after_ms) => after_ms,
                None if trouble.class == class::TIMEOUT => self.model.timeout_ms,
                None => self.latency(call).min(self.model.timeout_ms),
            };
            let mut failure = Failure::new(&trouble.class, format!("simulated: {}", trouble.class));
            failure.http_status = trouble.http_status;
            failure.code.clone_from(&trouble.code);
            return Reply::At(at + after_ms, failed(failure, trouble.retry_after_ms));
        }
        if self.busy < self.model.places {
            self.busy += 1;
            return Reply::Serving(at + self.latency(call));
        }
        if self.waiting.len() < self.model.backlog {
            self.waiting.push_back(call);
        }
        Reply::Waits
    }

    /// A call has been served. The next one, and until when it is served.
    pub(super) fn served(&mut self, at: Millis) -> Option<(Call, Millis)> {
        let place = if self.model.random_order && !self.waiting.is_empty() {
            usize::try_from(self.order.below(self.waiting.len() as u64)).unwrap_or(0)
        } else {
            0
        };
        let next =
            if self.model.random_order { self.waiting.swap_remove_back(place) } else { self.waiting.pop_front() };
        match next {
            Some(call) => Some((call, at + self.latency(call))),
            None => {
                self.busy -= 1;
                None
            }
        }
    }

    /// What a sender gets whose patience is over.
    pub(super) fn no_answer() -> Outcome {
        failed(Failure::new(class::TIMEOUT, "simulated: timeout"), None)
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run are far below 2^53")]
    fn latency(&self, call: Call) -> Millis {
        let mut random = Random::of(&[self.seed, LATENCY, call.task, call.attempt]);
        millis(random.log_normal(self.model.latency_ms as f64, self.model.latency_spread))
    }

    /// Counts the call; how long to wait when it is one too many.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run are far below 2^53")]
    fn over(&mut self, limit: RateLimit, at: Millis) -> Option<Millis> {
        let per_ms = limit.rate.per_ms.max(1);
        let Some(burst) = limit.bucket else {
            let number = at.div_euclid(per_ms);
            if self.window.0 != number {
                self.window = (number, 0);
            }
            if self.window.1 >= limit.rate.count {
                return Some(whole_seconds((number + 1) * per_ms - at));
            }
            self.window.1 += 1;
            return None;
        };
        let per_token_ms = per_ms as f64 / limit.rate.count.max(1) as f64;
        let (left, since) = self.tokens;
        let tokens = (left + (at - since) as f64 / per_token_ms).min(burst as f64);
        if tokens < 1.0 {
            self.tokens = (tokens, at);
            return Some(whole_seconds(millis((1.0 - tokens) * per_token_ms)));
        }
        self.tokens = (tokens - 1.0, at);
        None
    }

    fn trouble(&mut self, call: Call, spec: &Spec, at: Millis) -> Option<&'s Trouble> {
        let model = self.model;
        for (index, phase) in model.phases.iter().enumerate() {
            let is_meant = phase.stretch.holds(at)
                && phase.task_type.as_ref().is_none_or(|pattern| pattern.matches(&spec.task_type))
                && phase.labels.iter().all(|(name, value)| spec.labels.get(name) == Some(value));
            if !is_meant {
                continue;
            }
            if let Some(hiccups) = &phase.hiccups {
                let key = hiccups.per.as_ref().and_then(|label| spec.labels.get(label)).cloned().unwrap_or_default();
                if !self.is_bad_moment(index, hiccups, key, at) {
                    continue;
                }
            }
            let attempt = if phase.same_tasks { 0 } else { call.attempt };
            if Random::of(&[self.seed, FATE, index as u64, call.task, attempt]).unit() < phase.failures {
                return Some(&phase.trouble);
            }
        }
        None
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run are far below 2^53")]
    fn is_bad_moment(&mut self, phase: usize, hiccups: &Hiccups, key: String, at: Millis) -> bool {
        let words =
            [self.seed, MOOD, phase as u64, key.bytes().fold(7, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte))];
        let good_ms = (hiccups.every_ms - hiccups.last_ms) as f64;
        let mood = self.moods.entry((phase, key)).or_insert_with(|| {
            let mut random = Random::of(&words);
            Mood { bad: false, until: millis(random.exponential(good_ms)), random }
        });
        while mood.until <= at {
            mood.bad = !mood.bad;
            mood.until += millis(mood.random.exponential(if mood.bad { hiccups.last_ms as f64 } else { good_ms }));
        }
        mood.bad
    }
}

/// `Retry-After` counts in whole seconds.
fn whole_seconds(wait_ms: Millis) -> Millis {
    wait_ms.div_euclid(1000) * 1000 + if wait_ms % 1000 == 0 { 0 } else { 1000 }
}

fn failed(failure: Failure, retry_after_ms: Option<Millis>) -> Outcome {
    let retry_after = retry_after_ms.map(|delay_ms| RetryAfter { delay_ms });
    Outcome::Failure { failure, verdict: Verdict::ByPolicy, retry_after, cost: None }
}
