//! What reading a route, a policy, a limit and a breaker have in common: fields of one named thing, each checked and noted.

use std::ops::Range;
use std::time::Duration;

use crate::task::Millis;

use super::problem::Origin;
use super::source::Layers;
use super::units::show_duration;
use super::validate::from_to;
use super::value::{DurationText, Spanned};

/// Reads one thing, with its name at hand for error texts.
pub(super) struct Reader<'c, 'l, 'r, 'p, 'a> {
    /// `policy "vip"`
    pub(super) called: &'c str,
    /// `policy[0]`
    pub(super) key: String,
    pub(super) layers: &'l mut Layers<'r, 'p, 'a>,
}

impl Reader<'_, '_, '_, '_, '_> {
    pub(super) fn refuse(&mut self, span: &Range<usize>, text: String) {
        self.layers.problems.at(span, self.called, text);
    }

    /// Something is not there; not said when something inside `span` was refused, which may be the reason.
    pub(super) fn missing(&mut self, span: &Range<usize>, text: &str) {
        self.layers.problems.missing(span, self.called, text.into());
    }

    pub(super) fn note(&mut self, field: &str, value: String, span: &Range<usize>) {
        self.layers.note(format!("{}.{field}", self.key), value, &Origin::File(span.clone()));
    }

    /// The name of a policy, limit, breaker or variant. Empty when there is none, which has been said then.
    pub(super) fn name(&mut self, span: &Range<usize>, name: Option<Spanned<String>>, example: &str) -> String {
        let Some(name) = name else {
            self.missing(span, &format!("expected a name, such as name = {example:?}"));
            return String::new();
        };
        if name.value.trim().is_empty() || name.value.len() > 100 || name.value.chars().any(char::is_control) {
            self.refuse(&name.span, "name: expected 1 to 100 characters".into());
        }
        self.note("name", name.value.clone(), &name.span);
        name.value
    }

    /// More than 0 and at most `longest`.
    pub(super) fn millis(
        &mut self,
        field: &str,
        duration: &Spanned<DurationText>,
        longest: Duration,
    ) -> Option<Millis> {
        let length = duration.value.0;
        if length.is_zero() || length > longest {
            let (longest, found) = (show_duration(longest), show_duration(length));
            self.refuse(&duration.span, format!("{field}: expected more than 0s and at most {longest}, found {found}"));
            return None;
        }
        Millis::try_from(length.as_millis()).ok()
    }

    /// As [`Reader::millis`], noted; `default` when it is not given.
    pub(super) fn length(
        &mut self,
        field: &str,
        raw: Option<&Spanned<DurationText>>,
        longest: Duration,
        default: Millis,
    ) -> Millis {
        let Some(raw) = raw else { return default };
        match self.millis(field, raw, longest) {
            Some(length) => {
                self.note(field, show_duration(raw.value.0), &raw.span);
                length
            }
            None => default,
        }
    }

    /// A whole number from `least` to `most`, noted. `None` when it is not given or was refused.
    pub(super) fn whole(&mut self, field: &str, raw: Option<&Spanned<i64>>, least: i64, most: i64) -> Option<i64> {
        let Spanned { span, value } = raw?;
        match from_to(least, most)(value) {
            Ok(()) => {
                self.note(field, value.to_string(), span);
                Some(*value)
            }
            Err(text) => {
                self.refuse(span, format!("{field}: {text}"));
                None
            }
        }
    }

    /// A number from `least` to `most`, noted. `None` when it is not given or was refused.
    pub(super) fn number(&mut self, field: &str, raw: Option<&Spanned<f64>>, least: f64, most: f64) -> Option<f64> {
        let Spanned { span, value } = raw?;
        if (least..=most).contains(value) {
            self.note(field, value.to_string(), span);
            return Some(*value);
        }
        self.refuse(span, format!("{field}: expected a number from {least} to {most}, found {value}"));
        None
    }
}
