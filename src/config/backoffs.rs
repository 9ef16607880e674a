//! `backoff = { … }`: the shape of the delays, in a policy, a variant or an override.

use std::ops::Range;
use std::time::Duration;

use crate::policy::Backoff;
use crate::task::Millis;

use super::raw::{RawBackoff, RawExponential};
use super::reader::Reader;
use super::units::show_duration;
use super::value::{DurationText, Spanned};

/// RabbitMQ counts a queue's TTL in 32 bits of milliseconds: 49 days and some hours.
const LONGEST_STEP: Duration = Duration::from_secs(49 * 86_400);
/// Ten years: the longest delay that is ever kept.
const LONGEST_MAX: Duration = Duration::from_secs(3650 * 86_400);

impl Reader<'_, '_, '_, '_, '_> {
    /// `at` is where it stands: `backoff`, `variants.fast.backoff`. `None` when it was refused.
    pub(super) fn backoff(&mut self, at: &str, backoff: Spanned<RawBackoff>) -> Option<Backoff> {
        let Spanned { span, value: raw } = backoff;
        match (raw.steps, raw.fixed, raw.exponential) {
            (Some(steps), None, None) => self.steps(&format!("{at}.steps"), steps),
            (None, Some(fixed), None) => {
                let field = format!("{at}.fixed");
                self.note(&field, show_duration(fixed.value.0), &fixed.span);
                self.millis(&field, &fixed, LONGEST_STEP).map(Backoff::Fixed)
            }
            (None, None, Some(exponential)) => self.exponential(&format!("{at}.exponential"), exponential),
            (None, None, None) => {
                let text = r#"expected { steps = ["15m", …] }, { fixed = "1m" } or { exponential = { base = "1s", max = "60s" } }"#;
                self.missing(&span, &format!("{at}: {text}"));
                None
            }
            (steps, fixed, exponential) => {
                // At the one that is written last: the earlier ones were meant when they were written.
                let spans = [steps.map(|s| s.span), fixed.map(|f| f.span), exponential.map(|e| e.span)];
                let last: Option<Range<usize>> = spans.into_iter().flatten().max_by_key(|span| span.start);
                let text = format!("{at}: expected one of steps, fixed and exponential, found several");
                self.refuse(&last.unwrap_or(span), text);
                None
            }
        }
    }

    fn steps(&mut self, field: &str, steps: Spanned<Vec<Spanned<DurationText>>>) -> Option<Backoff> {
        if steps.value.is_empty() {
            let text = r#"expected at least one delay, such as steps = ["15m", "30m", "45m"]"#;
            self.missing(&steps.span, &format!("{field}: {text}"));
            return None;
        }
        let shown: Vec<String> = steps.value.iter().map(|step| show_duration(step.value.0)).collect();
        self.note(field, shown.join(", "), &steps.span);
        let steps: Vec<Option<Millis>> =
            steps.value.iter().map(|step| self.millis(field, step, LONGEST_STEP)).collect();
        steps.into_iter().collect::<Option<Vec<_>>>().map(Backoff::Steps)
    }

    fn exponential(&mut self, at: &str, exponential: Spanned<RawExponential>) -> Option<Backoff> {
        let Spanned { span, value: raw } = exponential;
        let base_ms = self.length(&format!("{at}.base"), raw.base.as_ref(), LONGEST_MAX, Backoff::DEFAULT_BASE_MS);
        let max_ms = self.length(&format!("{at}.max"), raw.max.as_ref(), LONGEST_MAX, Backoff::DEFAULT_MAX_MS);
        let multiplier = self.number(&format!("{at}.multiplier"), raw.multiplier.as_ref(), 1.0, 1000.0);
        let jitter = self.number(&format!("{at}.jitter"), raw.jitter.as_ref(), 0.0, 1.0);
        if max_ms < base_ms {
            let shown = |ms: Millis| show_duration(Duration::from_millis(ms.unsigned_abs()));
            let by_default = if raw.max.is_none() { ", the default" } else { "" };
            let place = raw.max.or(raw.base).map_or(span, |written| written.span);
            self.refuse(&place, format!("max ({}{by_default}) is below base ({})", shown(max_ms), shown(base_ms)));
            return None;
        }
        Some(Backoff::Exponential {
            base_ms,
            max_ms,
            multiplier: multiplier.unwrap_or(Backoff::DEFAULT_MULTIPLIER),
            jitter: jitter.unwrap_or(Backoff::DEFAULT_JITTER),
        })
    }
}
