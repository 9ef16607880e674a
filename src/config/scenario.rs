//! Scenario files of `simulate`: arrivals, a modelled third party, and contenders whose policies, limits and breakers are read by the very
//! code that reads `redeliver.toml`, so that what was tried can be copied there as it is.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::gate::Gates;
use crate::policy::{TopicPattern, check_topic};
use crate::simulate::{
    Arrivals, Contender, Hiccups, LabelValues, Phase, RateLimit, Scenario, Stretch, ThirdParty, Trouble, class_of,
};
use crate::task::Millis;

use super::problem::{ConfigError, Problems, Text};
use super::raw::{RawBreaker, RawLimit, RawPolicy};
use super::read::{read, subject};
use super::reader::Reader;
use super::source::{Layers, Request, Secrets};
use super::value::{AnyValue, Code, DurationText, RateText, Spanned};
use super::{gates, policies};

/// Longer than anybody wants to wait for; keeps arithmetic away from overflow.
const LONGEST: Duration = Duration::from_hours(366 * 24);
const DAY_MS: Millis = 86_400_000;
/// More tasks than that are hours of computing, and more memory than a laptop has.
const MOST_TASKS: i64 = 5_000_000;
/// The labels of arrivals have at most so many values.
const MOST_VALUES: i64 = 100_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    title: Option<Spanned<String>>,
    duration: Option<Spanned<DurationText>>,
    seed: Option<Spanned<i64>>,
    #[serde(default)]
    arrivals: Vec<Spanned<RawArrivals>>,
    third_party: Option<Spanned<RawThirdParty>>,
    #[serde(default)]
    contender: Vec<Spanned<RawContender>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArrivals {
    #[serde(rename = "type")]
    task_type: Option<Spanned<String>>,
    rate: Option<Spanned<RateText>>,
    from: Option<Spanned<DurationText>>,
    until: Option<Spanned<DurationText>>,
    every: Option<Spanned<DurationText>>,
    spacing: Option<RawSpacing>,
    #[serde(default)]
    labels: BTreeMap<String, Spanned<AnyValue>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawSpacing {
    Even,
    Random,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawThirdParty {
    concurrency: Option<Spanned<i64>>,
    latency: Option<Spanned<DurationText>>,
    latency_spread: Option<Spanned<f64>>,
    timeout: Option<Spanned<DurationText>>,
    backlog: Option<Spanned<i64>>,
    order: Option<RawOrder>,
    rate_limit: Option<Spanned<RawRateLimit>>,
    #[serde(default)]
    phase: Vec<Spanned<RawPhase>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawOrder {
    Arrival,
    Random,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRateLimit {
    rate: Option<Spanned<RateText>>,
    kind: Option<RawKind>,
    burst: Option<Spanned<i64>>,
    retry_after: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawKind {
    FixedWindow,
    TokenBucket,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPhase {
    from: Option<Spanned<DurationText>>,
    until: Option<Spanned<DurationText>>,
    every: Option<Spanned<DurationText>>,
    #[serde(rename = "type")]
    task_type: Option<Spanned<String>>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    failures: Option<Spanned<f64>>,
    same_tasks: Option<bool>,
    hiccups: Option<Spanned<RawHiccups>>,
    class: Option<String>,
    status: Option<Spanned<i64>>,
    code: Option<Code>,
    after: Option<Spanned<DurationText>>,
    retry_after: Option<Spanned<DurationText>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHiccups {
    every: Option<Spanned<DurationText>>,
    last: Option<Spanned<DurationText>>,
    per: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawContender {
    name: Option<Spanned<String>>,
    workers: Option<Spanned<i64>>,
    concurrency: Option<Spanned<i64>>,
    retry_share: Option<Spanned<f64>>,
    #[serde(default)]
    policy: Vec<Spanned<RawPolicy>>,
    #[serde(default)]
    limit: Vec<Spanned<RawLimit>>,
    #[serde(default)]
    breaker: Vec<Spanned<RawBreaker>>,
}

/// Reads a scenario. `path` is how error texts name it; `name` is what its results are called.
///
/// # Errors
/// Every problem at once, each with its line.
pub fn read_scenario(name: &str, path: &str, text: &str) -> Result<Scenario, ConfigError> {
    let mut problems = Problems::new(Text { path: path.to_owned(), text });
    let raw: RawScenario = read(text, &mut problems);
    let request = Request { file: None, environment: &|_| None, flags: Vec::new(), secrets: Secrets::Optional };
    let mut layers = Layers::new(&request, &mut problems);
    let scenario = scenario(name, raw, &mut layers);
    problems.into_result()?;
    Ok(scenario)
}

fn scenario(name: &str, raw: RawScenario, layers: &mut Layers<'_, '_, '_>) -> Scenario {
    // Something that is missing from the whole file is said at its first line, unless what was refused may be the reason.
    let whole = 0..layers.problems.file().text.len();
    let mut file = Reader { called: "", key: "scenario".into(), layers };
    let duration_ms = match &raw.duration {
        Some(duration) => file.millis("duration", duration, LONGEST).unwrap_or(DAY_MS),
        None => {
            file.missing(&whole, r#"expected a duration, such as duration = "1h""#);
            DAY_MS
        }
    };
    let seed = file.whole("seed", raw.seed.as_ref(), 0, i64::MAX).unwrap_or(1).unsigned_abs();
    let mut arrivals = Vec::new();
    for (index, arrival) in raw.arrivals.into_iter().enumerate() {
        let called = subject("arrivals", index, None);
        let mut reader = Reader { called: &called, key: called.clone(), layers };
        arrivals.extend(reader.arrivals(arrival, duration_ms));
    }
    let mut file = Reader { called: "", key: "scenario".into(), layers };
    if arrivals.is_empty() {
        file.missing(&whole, r#"expected [[arrivals]], such as type = "order.ship" and rate = "1/s""#);
    }
    let third_party = match raw.third_party {
        Some(third_party) => {
            Reader { called: "[third_party]", key: "third_party".into(), layers }.third_party(third_party)
        }
        None => {
            file.missing(&whole, r#"expected [third_party] with concurrency = 4 and latency = "200ms", for instance"#);
            ThirdParty::default()
        }
    };
    let mut contenders: Vec<Contender> = Vec::new();
    for (index, contender) in raw.contender.into_iter().enumerate() {
        let called = subject("contender", index, contender.value.name.as_ref().map(|name| name.value.as_str()));
        let taken: Vec<String> = contenders.iter().map(|contender| contender.name.clone()).collect();
        contenders.push(read_contender(contender, &called, &taken, layers));
    }
    if contenders.is_empty() {
        let mut file = Reader { called: "", key: "scenario".into(), layers };
        file.missing(&whole, "expected at least one [[contender]] with its [[contender.policy]]");
    }
    let title = raw.title.map_or_else(|| name.to_owned(), |title| title.value);
    Scenario { name: name.to_owned(), title, duration_ms, seed, arrivals, third_party, contenders }
}

fn read_contender(
    raw: Spanned<RawContender>,
    called: &str,
    taken: &[String],
    layers: &mut Layers<'_, '_, '_>,
) -> Contender {
    let Spanned { span, value: raw } = raw;
    let mut reader = Reader { called, key: called.to_owned(), layers };
    let at = raw.name.as_ref().map(|name| name.span.clone());
    let name = reader.name(&span, raw.name, "ours");
    if let Some(at) = at.filter(|_| taken.contains(&name)) {
        reader.refuse(&at, "name: there is a contender of this name above; rename one".into());
    }
    let workers = reader.whole("workers", raw.workers.as_ref(), 1, 10_000).unwrap_or(1);
    let concurrency = reader.whole("concurrency", raw.concurrency.as_ref(), 1, 100_000).unwrap_or(64);
    let retry_share = reader.number("retry_share", raw.retry_share.as_ref(), 0.001, 0.999).unwrap_or(0.30);
    let policies = policies::policies(raw.policy, layers);
    let gates = Gates {
        limits: gates::limits(raw.limit, layers),
        breakers: gates::breakers(raw.breaker, layers),
        ..Gates::default()
    };
    let places = usize::try_from(workers.saturating_mul(concurrency)).unwrap_or(usize::MAX);
    Contender { name, places, retry_share, policies, gates }
}

impl Reader<'_, '_, '_, '_, '_> {
    fn arrivals(&mut self, raw: Spanned<RawArrivals>, duration_ms: Millis) -> Option<Arrivals> {
        let Spanned { span, value: raw } = raw;
        let task_type = raw.task_type.map_or_else(|| "task".to_owned(), |text| self.checked_type(text));
        let stretch = self.stretch(raw.from.as_ref(), raw.until.as_ref(), raw.every.as_ref());
        let Some(rate) = raw.rate else {
            self.missing(&span, r#"expected a rate, such as rate = "1/s""#);
            return None;
        };
        let (count, per_ms) = (rate.value.0.count, rate.value.0.per_ms);
        let spans = duration_ms.min(stretch.until_ms.unwrap_or(Millis::MAX)) / per_ms.max(1);
        if stretch.every_ms.is_none() && count.saturating_mul(spans) > MOST_TASKS {
            let text = format!("rate: would be more than {MOST_TASKS} tasks; expected fewer, or a shorter duration");
            self.refuse(&rate.span, text);
        }
        let mut labels = Vec::new();
        for (name, Spanned { span, value: AnyValue(value) }) in raw.labels {
            let values = match (value.as_str(), value.as_i64()) {
                (Some(text), _) => Some(LabelValues::Fixed(text.to_owned())),
                (_, Some(n @ 1..=MOST_VALUES)) => Some(LabelValues::Numbered(n.unsigned_abs())),
                _ => None,
            };
            match values {
                Some(values) => labels.push((name, values)),
                None => {
                    let text =
                        format!(r#"labels.{name}: expected a text, or how many values it takes (1 to {MOST_VALUES})"#);
                    self.refuse(&span, text);
                }
            }
        }
        let even = raw.spacing == Some(RawSpacing::Even);
        Some(Arrivals { task_type, rate: rate.value.0, stretch, even, labels })
    }

    fn checked_type(&mut self, text: Spanned<String>) -> String {
        if let Err(error) = check_topic(&text.value) {
            self.refuse(&text.span, format!("type: {:?} {error}", text.value));
        }
        text.value
    }

    fn third_party(&mut self, raw: Spanned<RawThirdParty>) -> ThirdParty {
        let Spanned { span, value: raw } = raw;
        let default = ThirdParty::default();
        if raw.concurrency.is_none() {
            self.missing(&span, "expected concurrency, the calls that it serves at once, such as concurrency = 4");
        }
        if raw.latency.is_none() {
            self.missing(&span, r#"expected latency, the time it takes for a call, such as latency = "200ms""#);
        }
        let places = self.whole("concurrency", raw.concurrency.as_ref(), 1, 1_000_000);
        let backlog = self.whole("backlog", raw.backlog.as_ref(), 0, 1_000_000);
        let size = |n: Option<i64>, default| n.and_then(|n| usize::try_from(n).ok()).unwrap_or(default);
        let mut phases = Vec::new();
        for (index, phase) in raw.phase.into_iter().enumerate() {
            let called = subject("phase", index, None);
            let mut reader = Reader { called: &called, key: called.clone(), layers: self.layers };
            phases.extend(reader.phase(phase));
        }
        ThirdParty {
            places: size(places, default.places),
            latency_ms: self.length("latency", raw.latency.as_ref(), LONGEST, default.latency_ms),
            latency_spread: self.number("latency_spread", raw.latency_spread.as_ref(), 0.0, 3.0).unwrap_or(0.3),
            timeout_ms: self.length("timeout", raw.timeout.as_ref(), LONGEST, default.timeout_ms),
            backlog: size(backlog, default.backlog),
            random_order: raw.order == Some(RawOrder::Random),
            rate_limit: raw.rate_limit.and_then(|limit| self.rate_limit(limit)),
            phases,
        }
    }

    fn rate_limit(&mut self, raw: Spanned<RawRateLimit>) -> Option<RateLimit> {
        let Spanned { span, value: raw } = raw;
        let burst = self.whole("rate_limit.burst", raw.burst.as_ref(), 1, 1_000_000);
        let Some(rate) = raw.rate else {
            self.missing(&span, r#"rate_limit: expected a rate, such as rate = "60/min""#);
            return None;
        };
        let rate = rate.value.0;
        let bucket = raw.kind == Some(RawKind::TokenBucket);
        if let Some(burst) = raw.burst.filter(|_| !bucket) {
            self.refuse(&burst.span, r#"rate_limit.burst: goes with kind = "token_bucket""#.into());
        }
        let burst = burst.unwrap_or(1);
        Some(RateLimit { rate, bucket: bucket.then_some(burst), says_when: raw.retry_after.unwrap_or(true) })
    }

    fn phase(&mut self, raw: Spanned<RawPhase>) -> Option<Phase> {
        let Spanned { span, value: raw } = raw;
        let stretch = self.stretch(raw.from.as_ref(), raw.until.as_ref(), raw.every.as_ref());
        let task_type = raw.task_type.and_then(|text| match TopicPattern::new(&text.value) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                self.refuse(&text.span, format!("type: {:?} {error}", text.value));
                None
            }
        });
        if raw.failures.is_none() {
            self.missing(&span, "expected failures, the share of calls that fail, such as failures = 1.0");
        }
        let failures = self.number("failures", raw.failures.as_ref(), 0.0, 1.0).unwrap_or(0.0);
        let http_status = self.whole("status", raw.status.as_ref(), 100, 599).and_then(|n| u16::try_from(n).ok());
        let hiccups = raw.hiccups.and_then(|hiccups| {
            let Spanned { span, value: raw } = hiccups;
            let (Some(every), Some(last)) = (&raw.every, &raw.last) else {
                self.missing(&span, r#"hiccups: expected { every = "20s", last = "3s" }"#);
                return None;
            };
            let every_ms = self.millis("hiccups.every", every, LONGEST)?;
            let last_ms = self.millis("hiccups.last", last, LONGEST)?;
            if last_ms >= every_ms {
                self.refuse(&last.span, "hiccups.last: expected less than hiccups.every".into());
            }
            Some(Hiccups { every_ms, last_ms, per: raw.per })
        });
        let after_ms = raw.after.as_ref().and_then(|after| self.millis("after", after, LONGEST));
        let retry_after_ms = raw.retry_after.as_ref().and_then(|wait| self.millis("retry_after", wait, LONGEST));
        let class = raw.class.unwrap_or_else(|| class_of(http_status).to_owned());
        let trouble = Trouble { class, http_status, code: raw.code.map(|code| code.0), after_ms, retry_after_ms };
        let same_tasks = raw.same_tasks.unwrap_or(false);
        Some(Phase { stretch, task_type, labels: raw.labels, failures, same_tasks, hiccups, trouble })
    }

    /// From `from` to `until`, again `every` so often.
    fn stretch(
        &mut self,
        from: Option<&Spanned<DurationText>>,
        until: Option<&Spanned<DurationText>>,
        every: Option<&Spanned<DurationText>>,
    ) -> Stretch {
        let from_ms = from.map_or(0, |from| Millis::try_from(from.value.0.as_millis()).unwrap_or(0));
        let until_ms = until.and_then(|until| self.millis("until", until, LONGEST));
        let every_ms = every.and_then(|every| self.millis("every", every, LONGEST));
        if let (Some(until), Some(until_ms)) = (until, until_ms)
            && until_ms <= from_ms
        {
            self.refuse(&until.span, "until: expected later than from".into());
        }
        if let (Some(every), Some(every_ms)) = (every, every_ms)
            && until_ms.is_none_or(|until_ms| until_ms - from_ms > every_ms)
        {
            self.refuse(&every.span, "every: expected an until, and at least the time from from to until".into());
        }
        Stretch { from_ms, until_ms, every_ms }
    }
}
