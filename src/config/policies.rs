//! `[[policy]]`: when and how often a failed task is tried again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use regex::Regex;

use crate::policy::{
    Backoff, Fallback, Hours, Lists, MAX_RUNGS, OverCap, Override, Policies, Policy, RetryAfterMode, RetryAfterRule,
    TopicPattern, Variant, find_zone, parse_time_of_day,
};
use crate::task::Millis;

use super::raw::{
    RawFallback, RawHours, RawLists, RawOn, RawOverCap, RawPermanent, RawPolicy, RawRetryAfter, RawRetryAfterMode,
    RawVariant,
};
use super::read::subject;
use super::reader::Reader;
use super::source::Layers;
use super::units::show_duration;
use super::value::{DurationText, Spanned};

/// Far beyond any use; keeps arithmetic with deadlines away from overflow.
pub(super) const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
/// More attempts than that are a loop.
const MOST_RETRIES: i64 = 1000;

/// A backoff's rungs and where it is written.
type Asked = (Range<usize>, Vec<Millis>);

pub(super) fn policies(raw: Vec<Spanned<RawPolicy>>, layers: &mut Layers<'_, '_, '_>) -> Policies {
    let mut rules: Vec<Policy> = Vec::new();
    let mut asked: Vec<Vec<Asked>> = Vec::new();
    for (index, Spanned { span, value: raw }) in raw.into_iter().enumerate() {
        let called = subject("policy", index, raw.name.as_ref().map(|name| name.value.as_str()));
        if let Some(name) = &raw.name
            && rules.iter().any(|earlier| earlier.name == name.value)
        {
            let text = "name: there is a policy of this name above; rename one".into();
            layers.problems.at(&name.span, &called, text);
        }
        let mut reader = Reader { called: &called, key: format!("policy[{index}]"), layers };
        let mut rungs = Vec::new();
        rules.push(reader.policy(&span, raw, &mut rungs));
        asked.push(rungs);
    }
    check_ladder(&rules, &asked, layers);
    Policies::new(rules)
}

/// The broker holds at most [`MAX_RUNGS`] distinct delays, the built-in rule's included while it can be reached.
fn check_ladder(rules: &[Policy], asked: &[Vec<Asked>], layers: &mut Layers<'_, '_, '_>) {
    let catch_all = rules.iter().position(Policy::is_for_everything);
    let reachable = catch_all.map_or(rules.len(), |last| last + 1);
    let mut rungs: BTreeSet<Millis> = BTreeSet::new();
    if catch_all.is_none() {
        rungs.extend(Policy::built_in().backoff.rungs());
    }
    for (index, (rule, asked)) in rules.iter().zip(asked).take(reachable).enumerate() {
        for (span, delays) in asked {
            rungs.extend(delays);
            if rungs.len() > MAX_RUNGS {
                let text = format!(
                    "backoff: with it the policies name {} different delays, each a queue in the broker; expected at most \
                     {MAX_RUNGS}: use the same delays in several policies",
                    rungs.len()
                );
                return layers.problems.at(span, &subject("policy", index, Some(&rule.name)), text);
            }
        }
    }
}

impl Reader<'_, '_, '_, '_, '_> {
    fn policy(&mut self, span: &Range<usize>, raw: RawPolicy, asked: &mut Vec<Asked>) -> Policy {
        let built_in = Policy::built_in();
        let name = self.policy_name(span, raw.name);
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
        let hours = raw.hours.and_then(|hours| self.hours(hours));
        // With variants nobody follows the policy's own delays, so they need no queue.
        let no_variants = raw.variants.as_ref().is_none_or(|variants| variants.value.is_empty());
        let mut own = Vec::new();
        let backoff = match raw.backoff {
            Some(backoff) => self.counted("backoff", backoff, &mut own).unwrap_or_else(|| built_in.backoff.clone()),
            None => built_in.backoff.clone(),
        };
        if no_variants {
            asked.append(&mut own);
        }
        let given_retries = self.whole("max_retries", raw.max_retries.as_ref(), 0, MOST_RETRIES);
        let max_retries = given_retries.unwrap_or_else(|| backoff.natural_retries());
        let variants = raw.variants.map(|variants| self.variants(variants, &backoff, given_retries, asked));
        let retry_after = raw.retry_after.map_or_else(RetryAfterRule::default, |rule| self.retry_after(rule));
        let deadline_ms = raw.deadline.map(|deadline| self.length("deadline", Some(&deadline), LONGEST, 1));
        let fallback = self.fallback(&raw.fallback, raw.default_result.is_some());
        if let Some(result) = &raw.default_result {
            self.note("default_result", result.value.0.to_string(), &result.span);
        }
        if let Some(critical) = &raw.critical {
            self.note("critical", critical.value.to_string(), &critical.span);
        }
        Policy {
            name,
            task_type,
            labels: raw.labels,
            hours,
            max_retries,
            backoff,
            retry_after,
            deadline_ms,
            retryable: self.lists("retryable", raw.retryable),
            permanent: self.permanent(raw.permanent),
            rate_limited: self.lists("rate_limited", raw.rate_limited),
            overrides: raw.on.into_iter().filter_map(|over| self.over(over, asked)).collect(),
            fallback,
            cache_max_age_ms: self.length(
                "cache_max_age",
                raw.cache_max_age.as_ref(),
                LONGEST,
                Policy::DEFAULT_CACHE_MAX_AGE_MS,
            ),
            default_result: raw.default_result.map(|result| result.value.0),
            critical: raw.critical.is_some_and(|critical| critical.value),
            replay_after_ms: self.replay_after(&raw.replay_after),
            variants: variants.unwrap_or_default(),
        }
    }

    fn policy_name(&mut self, span: &Range<usize>, name: Option<Spanned<String>>) -> String {
        if let Some(name) = name.as_ref().filter(|name| name.value == Policy::built_in().name) {
            let text =
                r##"name: "default" is the built-in last policy's; to replace it, take another name with type = "#""##;
            self.refuse(&name.span, text.into());
        }
        self.name(span, name, "vip shipping")
    }

    /// A backoff, and what it asks of the ladder.
    fn counted(&mut self, at: &str, raw: Spanned<super::raw::RawBackoff>, asked: &mut Vec<Asked>) -> Option<Backoff> {
        let span = raw.span.clone();
        let backoff = self.backoff(at, raw)?;
        asked.push((span, backoff.rungs()));
        Some(backoff)
    }

    fn hours(&mut self, hours: Spanned<RawHours>) -> Option<Hours> {
        let Spanned { span, value: raw } = hours;
        let from = self.time_of_day("from", &span, raw.from.as_ref());
        let to = self.time_of_day("to", &span, raw.to.as_ref());
        let zone = match &raw.tz {
            Some(name) => find_zone(&name.value).or_else(|| {
                let text = r#"hours.tz: expected an IANA time zone such as "Asia/Shanghai" or "UTC""#;
                self.refuse(&name.span, format!("{text}, found {:?}", name.value));
                None
            }),
            None => find_zone("UTC"),
        };
        let hours = Hours::new(from?, to?, zone?);
        match &hours {
            Some(hours) => self.note("hours", hours.to_string(), &span),
            None => {
                let text = r#"hours: expected two different times; for the whole day from = "00:00", to = "24:00""#;
                self.refuse(&span, text.into());
            }
        }
        hours
    }

    fn time_of_day(&mut self, field: &str, span: &Range<usize>, raw: Option<&Spanned<String>>) -> Option<u16> {
        let latest = if field == "from" { "23:59" } else { "24:00" };
        let Some(text) = raw else {
            self.missing(span, &format!(r#"hours: expected {field}, a time such as {field} = "06:00""#));
            return None;
        };
        let minute = parse_time_of_day(&text.value).filter(|minute| field == "to" || *minute < 24 * 60);
        if minute.is_none() {
            let text_there =
                format!("hours.{field}: expected a time from \"00:00\" to \"{latest}\", found {:?}", text.value);
            self.refuse(&text.span, text_there);
        }
        minute
    }

    fn variants(
        &mut self,
        variants: Spanned<Vec<Spanned<RawVariant>>>,
        own: &Backoff,
        given_retries: Option<i64>,
        asked: &mut Vec<Asked>,
    ) -> Vec<Variant> {
        let mut found: Vec<Variant> = Vec::new();
        for Spanned { span, value: raw } in variants.value {
            let name_span = raw.name.as_ref().map_or_else(|| span.clone(), |name| name.span.clone());
            let name = match raw.name {
                Some(name) if name.value.trim().is_empty() || name.value.len() > 100 => {
                    self.refuse(&name.span, "variants: name: expected 1 to 100 characters".into());
                    name.value
                }
                Some(name) => name.value,
                None => {
                    self.missing(&span, r#"variants: expected a name, such as name = "fast""#);
                    String::new()
                }
            };
            if !name.is_empty() && found.iter().any(|earlier| earlier.name == name) {
                self.refuse(&name_span, format!("variants: there are two of the name {name:?}; rename one"));
            }
            let at = |field: &str| format!("variants.{name}.{field}");
            let weight = self.whole(&at("weight"), raw.weight.as_ref(), 0, 1_000_000);
            let backoff = raw.backoff.and_then(|backoff| self.counted(&at("backoff"), backoff, asked));
            let backoff = backoff.unwrap_or_else(|| own.clone());
            let retries = self.whole(&at("max_retries"), raw.max_retries.as_ref(), 0, MOST_RETRIES);
            let max_retries = retries.or(given_retries).unwrap_or_else(|| backoff.natural_retries());
            // A weight that was refused must not make the sum 0 as well.
            let weight = weight.unwrap_or(1);
            found.push(Variant { name, weight: u32::try_from(weight).unwrap_or(1), backoff, max_retries });
        }
        if found.is_empty() {
            self.missing(&variants.span, "variants: expected at least one, or leave the key out");
        } else if found.iter().all(|variant| variant.weight == 0) {
            self.refuse(&variants.span, "variants: the weights sum to 0; give at least one of them a weight".into());
        }
        found
    }

    fn over(&mut self, over: Spanned<RawOn>, asked: &mut Vec<Asked>) -> Option<Override> {
        let Spanned { span, value: raw } = over;
        let class = raw.class.and_then(|class| {
            let empty = class.value.trim().is_empty();
            if empty {
                self.refuse(&class.span, "on.class: expected the name of a failure class, found nothing".into());
            }
            (!empty).then_some(class.value)
        });
        let code = raw.code.map(|code| code.value.0);
        let http_status = self
            .whole("on.http_status", raw.http_status.as_ref(), 100, 599)
            .and_then(|status| u16::try_from(status).ok());
        let names_one = class.is_some() || code.is_some() || http_status.is_some();
        if !names_one && raw.http_status.is_none() {
            let text = r#"on: expected class, code or http_status, such as { class = "rate_limited", backoff = { fixed = "1m" } }"#;
            self.missing(&span, text);
        }
        if raw.backoff.is_none() && raw.max_retries.is_none() {
            self.missing(
                &span,
                r#"on: expected what is different then: backoff = { fixed = "1m" } or max_retries = 1"#,
            );
        }
        let backoff = raw.backoff.and_then(|backoff| self.counted("on.backoff", backoff, asked));
        let max_retries = self.whole("on.max_retries", raw.max_retries.as_ref(), 0, MOST_RETRIES);
        names_one.then_some(Override { class, code, http_status, backoff, max_retries })
    }

    fn fallback(&mut self, raw: &[Spanned<RawFallback>], has_default: bool) -> Vec<Fallback> {
        let mut found = Vec::new();
        for Spanned { span, value } in raw {
            let fallback = match value {
                RawFallback::Cache => Fallback::Cache,
                RawFallback::Default => Fallback::Default,
                RawFallback::Queue => Fallback::Queue,
            };
            if found.contains(&fallback) {
                self.refuse(span, format!("fallback: {} stands twice", fallback.as_str()));
            } else if found.contains(&Fallback::Queue) {
                self.refuse(span, format!("fallback: {} never happens behind queue", fallback.as_str()));
            }
            if fallback == Fallback::Default && !has_default {
                let text = r#"fallback: default needs a default_result, such as default_result = { answer = "" }"#;
                self.refuse(span, text.into());
            }
            self.note(&format!("fallback[{}]", found.len()), fallback.as_str().into(), span);
            found.push(fallback);
        }
        found
    }

    fn replay_after(&mut self, raw: &[Spanned<DurationText>]) -> Vec<Millis> {
        let waits: Vec<Millis> = raw.iter().filter_map(|wait| self.millis("replay_after", wait, LONGEST)).collect();
        if let Some(first) = raw.first() {
            let shown: Vec<String> = raw.iter().map(|wait| show_duration(wait.value.0)).collect();
            self.note("replay_after", shown.join(", "), &first.span);
        }
        waits
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
            Some(cap) => self.millis("retry_after.cap", &cap, LONGEST).unwrap_or(default.cap_ms),
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
            classes: self.classes(&format!("{field}.classes"), raw.classes),
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

    pub(super) fn classes(&mut self, field: &str, raw: Vec<Spanned<String>>) -> Vec<String> {
        let mut classes = Vec::new();
        for Spanned { span, value } in raw {
            if value.trim().is_empty() {
                self.refuse(&span, format!("{field}: expected the name of a failure class, found nothing"));
            } else {
                classes.push(value);
            }
        }
        classes
    }
}
