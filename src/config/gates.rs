//! `[[limit]]`, `[[breaker]]` and the `concurrency` of a `[[route]]`: what protects the other side.

use std::ops::Range;

use crate::gate::{BreakerRule, CapRule, FailureRate, LimitKind, LimitRule, Per, Rate, WhenOpen, Word};
use crate::policy::TopicPattern;
use crate::task::{Millis, class};

use super::policies::LONGEST;
use super::raw::{RawBreaker, RawCap, RawConcurrency, RawFailureRate, RawLimit, RawMaxRatio, RawWhenOpen};
use super::read::subject;
use super::reader::Reader;
use super::source::Layers;
use super::units::{show_duration, show_rate};
use super::value::{RateText, Spanned};

const SECOND_MS: Millis = 1_000;
const MINUTE_MS: Millis = 60 * SECOND_MS;
const MOST: i64 = 1_000_000;
const MOST_CONCURRENCY: i64 = 100_000;
const PER_FORM: &str = "expected type, queue, route or label.<name>";

pub(super) fn limits(raw: Vec<Spanned<RawLimit>>, layers: &mut Layers<'_, '_, '_>) -> Vec<LimitRule> {
    let mut limits: Vec<LimitRule> = Vec::new();
    for (index, Spanned { span, value: raw }) in raw.into_iter().enumerate() {
        let called = subject("limit", index, raw.name.as_ref().map(|name| name.value.as_str()));
        let mut reader = Reader { called: &called, key: format!("limit[{index}]"), layers };
        let taken: Vec<&str> = limits.iter().map(|limit| limit.name.as_str()).collect();
        let name = reader.gate_name("limit", &span, raw.name, &taken, "per shop");
        let per = reader.per(&raw.per);
        let calls = raw.calls.as_ref().is_some_and(|calls| calls.value);
        if let Some(calls) = &raw.calls {
            reader.note("calls", calls.value.to_string(), &calls.span);
        }
        let kind = match (raw.rate, raw.max_ratio) {
            (Some(rate), None) => {
                reader.note("rate", show_rate(rate.value.0), &rate.span);
                let burst = reader.whole("burst", raw.burst.as_ref(), 1, MOST).unwrap_or(1);
                Some(LimitKind::Rate { rate: rate.value.0, burst })
            }
            (None, Some(ratio)) => {
                if let Some(burst) = &raw.burst {
                    reader.refuse(&burst.span, "burst: goes with rate only; leave it out beside max_ratio".into());
                }
                if let Some(calls) = raw.calls.filter(|calls| calls.value) {
                    let text = "calls: max_ratio compares retries with first attempts; leave calls out or use rate";
                    reader.refuse(&calls.span, text.into());
                }
                reader.max_ratio(ratio)
            }
            (Some(_), Some(ratio)) => {
                reader.refuse(&ratio.span, "expected either rate or max_ratio, found both; make it two limits".into());
                None
            }
            (None, None) => {
                reader.missing(&span, r#"expected a rate, such as rate = "5/min", or max_ratio = { ratio = 0.2 }"#);
                None
            }
        };
        // Kept without its kind too, so that a later one of the same name is still said to be one.
        let kind = kind.unwrap_or(LimitKind::Rate { rate: Rate { count: 1, per_ms: 1 }, burst: 1 });
        limits.push(LimitRule { name, per, calls, kind });
    }
    limits
}

pub(super) fn breakers(raw: Vec<Spanned<RawBreaker>>, layers: &mut Layers<'_, '_, '_>) -> Vec<BreakerRule> {
    let mut breakers: Vec<BreakerRule> = Vec::new();
    for (index, Spanned { span, value: raw }) in raw.into_iter().enumerate() {
        let called = subject("breaker", index, raw.name.as_ref().map(|name| name.value.as_str()));
        let mut reader = Reader { called: &called, key: format!("breaker[{index}]"), layers };
        let taken: Vec<&str> = breakers.iter().map(|breaker| breaker.name.as_str()).collect();
        let breaker = reader.breaker(&span, raw, &taken);
        breakers.push(breaker);
    }
    breakers
}

impl Reader<'_, '_, '_, '_, '_> {
    fn gate_name(
        &mut self,
        what: &str,
        span: &Range<usize>,
        name: Option<Spanned<String>>,
        taken: &[&str],
        example: &str,
    ) -> String {
        if let Some(name) = name.as_ref().filter(|name| taken.contains(&name.value.as_str())) {
            self.refuse(&name.span, format!("name: there is a {what} of this name above; rename one"));
        }
        self.name(span, name, example)
    }

    fn per(&mut self, raw: &[Spanned<String>]) -> Per {
        let mut words: Vec<Word> = Vec::new();
        for Spanned { span, value } in raw {
            self.word(span, value, &mut words);
        }
        if let Some(first) = raw.first() {
            let shown: Vec<String> = words.iter().map(ToString::to_string).collect();
            self.note("per", shown.join(", "), &first.span);
        }
        Per(words)
    }

    fn word(&mut self, span: &Range<usize>, text: &str, words: &mut Vec<Word>) {
        match Word::parse(text) {
            Some(word) if words.contains(&word) => self.refuse(span, format!("per: {word} stands twice")),
            Some(word) => words.push(word),
            None => self.refuse(span, format!("per: {PER_FORM}, found {text:?}")),
        }
    }

    fn rate(&mut self, field: &str, raw: Option<&Spanned<RateText>>, default: Rate) -> Rate {
        let Some(Spanned { span, value }) = raw else { return default };
        self.note(field, show_rate(value.0), span);
        value.0
    }

    fn max_ratio(&mut self, ratio: Spanned<RawMaxRatio>) -> Option<LimitKind> {
        let Spanned { span, value: raw } = ratio;
        if raw.ratio.is_none() {
            self.missing(
                &span,
                r#"max_ratio: expected a ratio, such as { ratio = 0.2, window = "1m", floor = "10/min" }"#,
            );
        }
        let permille = self.number("max_ratio.ratio", raw.ratio.as_ref(), 0.001, 10.0).map(permille);
        let window_ms = self.length("max_ratio.window", raw.window.as_ref(), LONGEST, MINUTE_MS);
        let floor = self.rate("max_ratio.floor", raw.floor.as_ref(), Rate { count: 10, per_ms: MINUTE_MS });
        if floor.count.saturating_mul(window_ms) < floor.per_ms {
            let text = "max_ratio.floor: is less than one retry in the window, and without first attempts none would ever start; make the \
                        window longer or the floor higher";
            self.refuse(&span, text.into());
        }
        Some(LimitKind::Ratio { permille: permille?, window_ms, floor })
    }

    fn breaker(&mut self, span: &Range<usize>, raw: RawBreaker, taken: &[&str]) -> BreakerRule {
        let name = self.gate_name("breaker", span, raw.name, taken, "shop");
        if raw.consecutive_same.is_none() && raw.consecutive.is_none() && raw.failure_rate.is_none() {
            let text = "expected when it opens: consecutive_same = 3, consecutive = 5 or failure_rate = { ratio = 0.5, min = 20 }";
            self.missing(span, text);
        }
        let ignore = match raw.ignore {
            Some(ignore) => {
                let classes = self.classes("ignore", ignore.value);
                self.note("ignore", classes.join(", "), &ignore.span);
                classes
            }
            None => [class::BAD_PAYLOAD, class::NO_ROUTE, class::NOT_RUNNABLE].map(String::from).to_vec(),
        };
        let open_for_ms = self.length("open_for", raw.open_for.as_ref(), LONGEST, MINUTE_MS);
        // The default follows a longer open_for, so that one may be set alone.
        let longest = open_for_ms.max(30 * MINUTE_MS);
        let open_for_max_ms = self.length("open_for_max", raw.open_for_max.as_ref(), LONGEST, longest);
        if let Some(max) = raw.open_for_max.filter(|_| open_for_max_ms < open_for_ms) {
            let first = show_duration(std::time::Duration::from_millis(open_for_ms.unsigned_abs()));
            self.refuse(
                &max.span,
                format!("open_for_max ({}) is below open_for ({first})", show_duration(max.value.0)),
            );
        }
        BreakerRule {
            name,
            per: self.per(&raw.per),
            consecutive_same: self.whole("consecutive_same", raw.consecutive_same.as_ref(), 1, MOST),
            consecutive: self.whole("consecutive", raw.consecutive.as_ref(), 1, MOST),
            failure_rate: raw.failure_rate.and_then(|rate| self.failure_rate(rate)),
            ignore,
            open_for_ms,
            open_for_max_ms,
            probes: self.whole("probes", raw.probes.as_ref(), 1, MOST_CONCURRENCY).unwrap_or(1),
            when_open: match raw.when_open {
                None | Some(RawWhenOpen::Park) => WhenOpen::Park,
                Some(RawWhenOpen::DeadLetter) => WhenOpen::DeadLetter,
                Some(RawWhenOpen::Fallback) => WhenOpen::Fallback,
            },
            park_max_ms: self.length("park_max", raw.park_max.as_ref(), LONGEST, 24 * 60 * MINUTE_MS),
        }
    }

    fn failure_rate(&mut self, rate: Spanned<RawFailureRate>) -> Option<FailureRate> {
        let Spanned { span, value: raw } = rate;
        if raw.ratio.is_none() {
            self.missing(&span, r#"failure_rate: expected a ratio, such as { ratio = 0.5, window = "1m", min = 20 }"#);
        }
        let ratio = self.number("failure_rate.ratio", raw.ratio.as_ref(), 0.001, 1.0);
        let window_ms = self.length("failure_rate.window", raw.window.as_ref(), LONGEST, MINUTE_MS);
        let min = self.whole("failure_rate.min", raw.min.as_ref(), 1, MOST).unwrap_or(20);
        Some(FailureRate { permille: permille(ratio?), window_ms, min })
    }

    /// The `concurrency` of a route.
    pub(super) fn cap(&mut self, raw: Spanned<RawConcurrency>, route: &TopicPattern) -> Option<CapRule> {
        let Spanned { span, value } = raw;
        let (per, max) = match value {
            RawConcurrency::Whole(value) => {
                (Per::default(), self.whole("concurrency", Some(&Spanned { span, value }), 1, MOST_CONCURRENCY))
            }
            RawConcurrency::Keyed(RawCap { per, max }) => {
                let mut words = Vec::new();
                match &per {
                    Some(per) => per.value.0.iter().for_each(|text| self.word(&per.span, text, &mut words)),
                    None => {
                        self.missing(&span, r#"concurrency: expected per, such as { per = "label.shop", max = 2 }"#)
                    }
                }
                if max.is_none() {
                    self.missing(&span, r#"concurrency: expected max, such as { per = "label.shop", max = 2 }"#);
                }
                (Per(words), self.whole("concurrency.max", max.as_ref(), 1, MOST_CONCURRENCY))
            }
        };
        Some(CapRule { route: route.clone(), per, max: max? })
    }
}

/// In thousandths, at least one of them.
fn permille(ratio: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be from 0.001 to 10")]
    let permille = (ratio * 1000.0).round() as i64;
    permille.max(1)
}
