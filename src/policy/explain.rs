//! What would happen to a task, and why: the answer that `explain` prints, from the functions that production asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::task::{Failure, LONGEST_DELAY_MS, Millis, class};

use super::{Backoff, Policies, Policy};

/// Which rule is for a task at a moment, and what it would do.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The rule.
    pub policy: Arc<Policy>,
    /// The earlier rules in order: name, and why it is not for the task.
    pub passed_over: Vec<(String, String)>,
    /// When retries would come: one schedule for each variant (or one for the policy itself), then one for each override.
    pub schedules: Vec<Timetable>,
}

/// When retries would come if every attempt failed in no time.
#[derive(Debug, Clone, PartialEq)]
pub struct Timetable {
    /// Who says so: `policy "vip", variant "fast", on class rate_limited`.
    pub source: String,
    /// Failed attempts that are followed by another.
    pub max_retries: i64,
    /// The delays.
    pub backoff: Backoff,
    /// One for each retry, up to `ends`.
    pub retries: Vec<Due>,
    /// Why there is no further retry.
    pub ends: Ends,
}

/// One retry of a [`Timetable`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// 1 for the first.
    pub retry: i64,
    /// The shortest delay before it.
    pub least_ms: Millis,
    /// The longest.
    pub most_ms: Millis,
    /// The first moment at which it may start.
    pub earliest_at: Millis,
    /// The last, if nothing holds it.
    pub latest_at: Millis,
}

/// Why a [`Timetable`] has no further retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ends {
    /// The budget is spent.
    Exhausted,
    /// The next one would be due after the policy's deadline.
    Deadline {
        /// When that passes.
        at: Millis,
    },
    /// When the next failure is decided, another rule is in force.
    OtherRule {
        /// Its name.
        policy: String,
        /// The moment of that decision, jitter aside.
        at: Millis,
    },
}

impl Policies {
    /// Explains what would happen to a task of `task_type` with `labels` that is made and fails at `at`.
    pub fn explain(&self, task_type: &str, labels: &BTreeMap<String, String>, at: Millis) -> Explanation {
        let policy = Arc::clone(self.pick(task_type, labels, at));
        let mut passed_over = Vec::new();
        for rule in self.rules() {
            let Some(mismatch) = rule.mismatch(task_type, labels, at) else { break };
            passed_over.push((rule.name.clone(), mismatch.to_string()));
        }
        let rule_at = |moment: Millis| self.pick(task_type, labels, moment);
        let mut schedules = Vec::new();
        if policy.variants.is_empty() {
            schedules.push(timetable(&policy, None, None, at, rule_at));
        }
        for variant in &policy.variants {
            schedules.push(timetable(&policy, Some(&variant.name), None, at, rule_at));
        }
        for over in &policy.overrides {
            // A failure of which everything is so that the override names.
            let mut failure = Failure::new(over.class.as_deref().unwrap_or(class::FAILED), "");
            failure.code = over.code.clone();
            failure.http_status = over.http_status;
            let names: Vec<Option<&str>> = match policy.variants.is_empty() {
                true => vec![None],
                false => policy.variants.iter().map(|variant| Some(variant.name.as_str())).collect(),
            };
            for name in names {
                schedules.push(timetable(&policy, name, Some(&failure), at, rule_at));
            }
        }
        Explanation { policy, passed_over, schedules }
    }
}

fn timetable<'a>(
    policy: &Policy,
    variant: Option<&str>,
    failure: Option<&Failure>,
    at: Millis,
    rule_at: impl Fn(Millis) -> &'a Arc<Policy>,
) -> Timetable {
    let variant = policy.variants.iter().find(|known| Some(known.name.as_str()) == variant);
    let schedule = policy.schedule(variant, failure);
    let deadline = policy.deadline_ms.map(|length| at.saturating_add(length));
    let (mut earliest_at, mut latest_at, mut decided_at) = (at, at, at);
    let mut retries = Vec::new();
    let ends = loop {
        let retry = i64::try_from(retries.len()).unwrap_or(i64::MAX).saturating_add(1);
        let then = rule_at(decided_at);
        if then.name != policy.name {
            break Ends::OtherRule { policy: then.name.clone(), at: decided_at };
        }
        if retry > schedule.max_retries {
            break Ends::Exhausted;
        }
        let bounded = |(least, most): (Millis, Millis)| (least.min(LONGEST_DELAY_MS), most.min(LONGEST_DELAY_MS));
        let (least_ms, most_ms) = bounded(schedule.backoff.bounds(retry));
        earliest_at = earliest_at.saturating_add(least_ms);
        if let Some(at) = deadline.filter(|deadline| earliest_at > *deadline) {
            break Ends::Deadline { at };
        }
        latest_at = latest_at.saturating_add(most_ms);
        decided_at = decided_at.saturating_add(schedule.backoff.delay(retry, 0.5).0.min(LONGEST_DELAY_MS));
        retries.push(Due { retry, least_ms, most_ms, earliest_at, latest_at });
    };
    Timetable {
        source: schedule.source,
        max_retries: schedule.max_retries,
        backoff: schedule.backoff.clone(),
        retries,
        ends,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Hours, Override, TopicPattern, Variant, find_zone};

    const HOUR: Millis = 3_600_000;

    fn named(name: &str, backoff: Backoff) -> Policy {
        Policy { name: name.into(), backoff, ..Policy::built_in() }
    }

    #[test]
    fn a_timetable_adds_up_the_bounds_of_every_delay() {
        let backoff = Backoff::Exponential { base_ms: 1_000, max_ms: 3_000, multiplier: 2.0, jitter: 0.2 };
        let explained = Policies::new(vec![named("p", backoff)]).explain("a", &BTreeMap::new(), 100);
        let table = &explained.schedules[0];
        let times: Vec<_> =
            table.retries.iter().map(|due| (due.least_ms, due.most_ms, due.earliest_at, due.latest_at)).collect();
        assert_eq!(times, [(800, 1_200, 900, 1_300), (1_600, 2_400, 2_500, 3_700), (2_400, 3_000, 4_900, 6_700)]);
        assert_eq!((table.source.as_str(), table.ends.clone()), ("policy \"p\"", Ends::Exhausted));
        assert_eq!((explained.policy.name.as_str(), explained.passed_over.len()), ("p", 0));
    }

    #[test]
    fn a_timetable_ends_at_the_deadline_and_where_another_rule_takes_over() {
        let night = Policy {
            hours: Hours::new(0, 60, find_zone("UTC").unwrap()),
            max_retries: 9,
            ..named("night", Backoff::Fixed(HOUR / 2))
        };
        let due = Policy { deadline_ms: Some(HOUR), ..night.clone() };
        let of = |policy: Policy, at| Policies::new(vec![policy]).explain("a", &BTreeMap::new(), at);
        let table = of(night, 0).schedules.remove(0);
        assert_eq!((table.retries.len(), table.ends), (2, Ends::OtherRule { policy: "default".into(), at: HOUR }));
        let table = of(Policy { hours: None, ..due }, 0).schedules.remove(0);
        assert_eq!((table.retries.len(), table.ends), (2, Ends::Deadline { at: HOUR }));
    }

    #[test]
    fn every_variant_and_override_has_a_timetable_and_every_rule_before_a_reason() {
        let variant =
            |name: &str, ms| Variant { name: name.into(), weight: 1, backoff: Backoff::Fixed(ms), max_retries: 1 };
        let over = Override {
            class: None,
            code: Some("7".into()),
            http_status: Some(503),
            backoff: Some(Backoff::Fixed(9)),
            max_retries: None,
        };
        let policy = Policy {
            variants: vec![variant("x", 1), variant("y", 2)],
            overrides: vec![over],
            ..named("p", Backoff::Fixed(5))
        };
        let other = Policy { task_type: TopicPattern::new("b.#").unwrap(), ..named("other", Backoff::Fixed(5)) };
        let explained = Policies::new(vec![other, policy]).explain("a", &BTreeMap::new(), 0);
        assert_eq!(explained.passed_over, [("other".to_owned(), "is for type b.#".to_owned())]);
        let found: Vec<_> =
            explained.schedules.iter().map(|table| (table.source.as_str(), table.retries[0].least_ms)).collect();
        assert_eq!(
            found,
            [
                ("policy \"p\", variant \"x\"", 1),
                ("policy \"p\", variant \"y\"", 2),
                ("policy \"p\", variant \"x\", on code 7, HTTP 503", 9),
                ("policy \"p\", variant \"y\", on code 7, HTTP 503", 9),
            ]
        );
    }
}
