//! `[[policy]]`: when and how often a failed task is tried again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use regex::Regex;

use crate::policy::{
    Backoff, Lists, MAX_RUNGS, OverCap, Policies, Policy, RetryAfterMode, RetryAfterRule, TopicPattern,
};
use crate::task::Millis;

use super::problem::Origin;
use super::raw::{RawBackoff, RawLists, RawOverCap, RawPermanent, RawPolicy, RawRetryAfter, RawRetryAfterMode};
use super::read::subject;
use super::source::Layers;
use super::units::show_duration;
use super::validate::from_to;
use super::value::{DurationText, Spanned};

/// RabbitMQ counts a queue's TTL in 32 bits of milliseconds: 49 days and some hours.
const LONGEST_STEP: Duration = Duration::from_secs(49 * 86_400);
/// Far beyond any use; keeps arithmetic with deadlines away from overflow.
const LONGEST_DEADLINE: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(super) fn policies(raw: Vec<Spanned<RawPolicy>>, layers: &mut Layers<'_, '_, '_>) -> Policies {
    let mut rules: Vec<Policy> = Vec::new();
    let mut backoff_spans: Vec<Option<Range<usize>>> = Vec::new();
    for (index, Spanned { span, value: raw }) in raw.into_iter().enumerate() {
        let called = subject("policy", index, raw.name.as_ref().map(|name| name.value.as_str()));
        backoff_spans.push(raw.backoff.as_ref().map(|backoff| backoff.span.clone()));
        if let Some(name) = &raw.name
            && rules.iter().any(|earlier| earlier.name == name.value)
        {
            let text = "name: there is a policy of this name above; rename one".into();
            layers.problems.at(&name.span, &called, text);
        }
        let mut reader = Reader { called: &called, key: format!("policy[{index}]"), layers };
        let rule = reader.policy(&span, raw);
        rules.push(rule);
    }
    check_ladder(&rules, &backoff_spans, layers);
    Policies::new(rules)
}

/// The broker holds at most [`MAX_RUNGS`] distinct delays, the built-in rule's included while it can be reached.
fn check_ladder(rules: &[Policy], backoff_spans: &[Option<Range<usize>>], layers: &mut Layers<'_, '_, '_>) {
    let catch_all = rules.iter().position(|rule| rule.task_type.is_any() && rule.labels.is_empty());
    let reachable = catch_all.map_or(rules.len(), |last| last + 1);
    let mut rungs: BTreeSet<Millis> = BTreeSet::new();
    if catch_all.is_none() {
        rungs.extend(Policy::built_in().backoff.rungs());
    }
    for (index, rule) in rules[..reachable].iter().enumerate() {
        rungs.extend(rule.backoff.rungs());
        if rungs.len() > MAX_RUNGS
            && let Some(Some(span)) = backoff_spans.get(index)
        {
            let text = format!(
                "backoff: with it the policies name {} different delays, each a queue in the broker; expected at most {MAX_RUNGS}: \
                 use the same delays in several policies",
                rungs.len()
            );
            return layers.problems.at(span, &subject("policy", index, Some(&rule.name)), text);
        }
    }
}

/// Reads one policy, with its name at hand for error texts.
struct Reader<'c, 'l, 'r, 'p, 'a> {
    called: &'c str,
    key: String,
    layers: &'l mut Layers<'r, 'p, 'a>,
}

impl Reader<'_, '_, '_, '_, '_> {
    fn refuse(&mut self, span: &Range<usize>, text: String) {
        self.layers.problems.at(span, self.called, text);
    }

    fn note(&mut self, field: &str, value: String, span: &Range<usize>) {
        self.layers.note(format!("{}.{field}", self.key), value, &Origin::File(span.clone()));
    }

    fn policy(&mut self, span: &Range<usize>, raw: RawPolicy) -> Policy {
        let built_in = Policy::built_in();
        let name = self.name(span, raw.name);
        let task_type = match raw.task_type {
            Some(text) => {
                self.note("type", text.value.clone(), &text.span);
                TopicPattern::new(&text.value).unwrap_or_else(|error| {
                    self.refuse(&text.span, format!("type: {error}"));
                    TopicPattern::any()
                })
            }
            None => TopicPattern::any(),
        };
        let backoff = match raw.backoff {
            Some(backoff) => self.backoff(backoff).unwrap_or_else(|| built_in.backoff.clone()),
            None => built_in.backoff.clone(),
        };
        let max_retries = match raw.max_retries {
            Some(n) => match from_to(0, 1000)(&n.value) {
                Ok(()) => {
                    self.note("max_retries", n.value.to_string(), &n.span);
                    n.value
                }
                Err(text) => {
                    self.refuse(&n.span, format!("max_retries: {text}"));
                    0
                }
            },
            None => backoff.natural_retries(),
        };
        let retry_after = raw.retry_after.map_or_else(RetryAfterRule::default, |rule| self.retry_after(rule));
        let deadline_ms = raw.deadline.map(|deadline| {
            self.note("deadline", show_duration(deadline.value.0), &deadline.span);
            self.millis("deadline", &deadline, LONGEST_DEADLINE).unwrap_or(1)
        });
        Policy {
            name,
            task_type,
            labels: raw.labels,
            max_retries,
            backoff,
            retry_after,
            deadline_ms,
            retryable: self.lists("retryable", raw.retryable),
            permanent: self.permanent(raw.permanent),
            rate_limited: self.lists("rate_limited", raw.rate_limited),
        }
    }

    fn name(&mut self, span: &Range<usize>, name: Option<Spanned<String>>) -> String {
        let Some(name) = name else {
            let text = r#"expected a name, such as name = "vip shipping""#.into();
            self.layers.problems.missing(span, self.called, text);
            return String::new();
        };
        if name.value.trim().is_empty() || name.value.len() > 100 || name.value.chars().any(char::is_control) {
            self.refuse(&name.span, "name: expected 1 to 100 characters".into());
        } else if name.value == Policy::built_in().name {
            let text =
                r##"name: "default" is the built-in last policy's; to replace it, take another name with type = "#""##;
            self.refuse(&name.span, text.into());
        }
        self.note("name", name.value.clone(), &name.span);
        name.value
    }

    fn backoff(&mut self, backoff: Spanned<RawBackoff>) -> Option<Backoff> {
        let Spanned { span, value: raw } = backoff;
        match (raw.steps, raw.fixed) {
            (Some(steps), None) => {
                if steps.value.is_empty() {
                    let text = r#"backoff.steps: expected at least one delay, such as steps = ["15m", "30m", "45m"]"#;
                    self.layers.problems.missing(&steps.span, self.called, text.into());
                    return None;
                }
                let shown: Vec<String> = steps.value.iter().map(|step| show_duration(step.value.0)).collect();
                self.note("backoff.steps", shown.join(", "), &steps.span);
                let steps: Vec<Option<Millis>> =
                    steps.value.iter().map(|step| self.millis("backoff.steps", step, LONGEST_STEP)).collect();
                steps.into_iter().collect::<Option<Vec<_>>>().map(Backoff::Steps)
            }
            (None, Some(fixed)) => {
                self.note("backoff.fixed", show_duration(fixed.value.0), &fixed.span);
                self.millis("backoff.fixed", &fixed, LONGEST_STEP).map(Backoff::Fixed)
            }
            (Some(_), Some(fixed)) => {
                self.refuse(&fixed.span, "backoff: expected either steps or fixed, found both".into());
                None
            }
            (None, None) => {
                let text = r#"backoff: expected { steps = ["15m", …] } or { fixed = "1m" }"#.into();
                self.layers.problems.missing(&span, self.called, text);
                None
            }
        }
    }

    fn retry_after(&mut self, rule: Spanned<RawRetryAfter>) -> RetryAfterRule {
        let raw = rule.value;
        let default = RetryAfterRule::default();
        let mode = raw.mode.map_or(default.mode, |mode| match mode {
            RawRetryAfterMode::Exact => RetryAfterMode::Exact,
            RawRetryAfterMode::Floor => RetryAfterMode::Floor,
            RawRetryAfterMode::Ignore => RetryAfterMode::Ignore,
        });
        let over_cap = raw.over_cap.map_or(default.over_cap, |over| match over {
            RawOverCap::Cap => OverCap::Cap,
            RawOverCap::Honour => OverCap::Honour,
            RawOverCap::DeadLetter => OverCap::DeadLetter,
        });
        let cap_ms = match raw.cap {
            Some(cap) => self.millis("retry_after.cap", &cap, LONGEST_DEADLINE).unwrap_or(default.cap_ms),
            None => default.cap_ms,
        };
        self.note(
            "retry_after",
            format!("{mode:?}, cap {cap_ms} ms, over cap {over_cap:?}").to_lowercase(),
            &rule.span,
        );
        RetryAfterRule { mode, cap_ms, over_cap }
    }

    fn lists(&mut self, field: &str, raw: Option<RawLists>) -> Lists {
        let raw = raw.unwrap_or_default();
        Lists {
            codes: raw.codes.into_iter().map(|code| code.0).collect(),
            http_status: self.statuses(field, raw.http_status),
            classes: self.classes(field, raw.classes),
            stderr: Vec::new(),
        }
    }

    fn permanent(&mut self, raw: Option<RawPermanent>) -> Lists {
        let RawPermanent { codes, http_status, classes, stderr } = raw.unwrap_or_default();
        let mut lists = self.lists("permanent", Some(RawLists { codes, http_status, classes }));
        for text in stderr {
            match Regex::new(&text.value) {
                Ok(pattern) => lists.stderr.push(pattern),
                Err(error) => {
                    // The error draws the pattern over several lines; its last line says what is wrong.
                    let error = error.to_string();
                    let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
                    self.refuse(&text.span, format!("permanent.stderr: expected a regular expression: {reason}"));
                }
            }
        }
        lists
    }

    fn statuses(&mut self, field: &str, raw: Vec<Spanned<i64>>) -> Vec<u16> {
        let mut statuses = Vec::new();
        for Spanned { span, value } in raw {
            match u16::try_from(value) {
                Ok(status @ 100..=599) => statuses.push(status),
                _ => {
                    self.refuse(&span, format!("{field}.http_status: expected a number from 100 to 599, found {value}"))
                }
            }
        }
        statuses
    }

    fn classes(&mut self, field: &str, raw: Vec<Spanned<String>>) -> Vec<String> {
        let mut classes = Vec::new();
        for Spanned { span, value } in raw {
            if value.trim().is_empty() {
                self.refuse(&span, format!("{field}.classes: expected the name of a failure class, found nothing"));
            } else {
                classes.push(value);
            }
        }
        classes
    }

    /// At least 1 ms, at most `longest`.
    fn millis(&mut self, field: &str, duration: &Spanned<DurationText>, longest: Duration) -> Option<Millis> {
        let length = duration.value.0;
        if length.is_zero() || length > longest {
            let (longest, found) = (show_duration(longest), show_duration(length));
            self.refuse(&duration.span, format!("{field}: expected more than 0s and at most {longest}, found {found}"));
            return None;
        }
        Millis::try_from(length.as_millis()).ok()
    }
}
