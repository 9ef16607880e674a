//! Which tasks are meant: the same filters at every door, as text.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::parse_duration;
use crate::policy::TopicPattern;
use crate::store::{Comparison, Filter};
use crate::task::{DeadReason, Millis, Status};

/// A point in time as it was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// That long before now.
    Ago(Millis),
    /// That time.
    At(Millis),
}

impl Moment {
    /// The time it means.
    pub fn resolve(self, now: Millis) -> Millis {
        match self {
            Moment::Ago(ms) => now.saturating_sub(ms),
            Moment::At(at) => at,
        }
    }

    /// The time it means where a length of time counts from now on (`--not-before 10m`).
    pub fn resolve_ahead(self, now: Millis) -> Millis {
        match self {
            Moment::Ago(ms) => now.saturating_add(ms),
            Moment::At(at) => at,
        }
    }
}

/// `2h`, `2026-01-31`, `2026-01-31T12:00:00Z`.
///
/// # Errors
/// What was expected.
pub fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(length) = parse_duration(text) {
        return Ok(Moment::Ago(Millis::try_from(length.as_millis()).unwrap_or(Millis::MAX)));
    }
    if let Ok(timestamp) = text.parse::<jiff::Timestamp>() {
        return Ok(Moment::At(timestamp.as_millisecond()));
    }
    let midnight = format!("{text}T00:00:00Z").parse::<jiff::Timestamp>();
    midnight.map(|timestamp| Moment::At(timestamp.as_millisecond())).map_err(|_| {
        "expected a length of time such as 2h, a date such as 2026-01-31, or RFC 3339 with a zone".to_owned()
    })
}

/// A moment that may also be a local time with its zone: `2026-07-01T03:00[Asia/Shanghai]`.
///
/// # Errors
/// What was expected.
pub fn zoned_moment(text: &str) -> Result<Moment, String> {
    if let Ok(zoned) = text.parse::<jiff::ZonedDateTime>() {
        return Ok(Moment::At(zoned.timestamp().as_millisecond()));
    }
    moment(text).map_err(|_| {
        "expected RFC 3339 with a zone, a local time such as 2026-07-01T03:00[Asia/Shanghai], or a length such as 2h".into()
    })
}

/// An AMQP topic pattern.
///
/// # Errors
/// What is wrong with it.
pub fn pattern(text: &str) -> Result<TopicPattern, String> {
    TopicPattern::new(text).map_err(|error| error.to_string())
}

/// `k=v`
///
/// # Errors
/// What was expected.
pub fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if name.is_empty() {
        return Err("expected NAME=VALUE".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// A status by its word.
///
/// # Errors
/// The words there are.
pub fn status(text: &str) -> Result<Status, String> {
    let known = || Status::ALL.map(Status::as_str).join(", ");
    Status::parse(text).ok_or_else(|| format!("expected one of {}", known()))
}

/// A dead reason by its word.
///
/// # Errors
/// The words there are.
pub fn dead_reason(text: &str) -> Result<DeadReason, String> {
    let known = || DeadReason::ALL.map(DeadReason::as_str).join(", ");
    DeadReason::parse(text).ok_or_else(|| format!("expected one of {}", known()))
}

/// `>=3`, `< 2`, `4`
///
/// # Errors
/// What was expected.
pub fn attempts(text: &str) -> Result<(Comparison, i64), String> {
    let text = text.trim();
    let signs = [
        (">=", Comparison::AtLeast),
        ("<=", Comparison::AtMost),
        (">", Comparison::More),
        ("<", Comparison::Less),
        ("=", Comparison::Equal),
        ("", Comparison::Equal),
    ];
    for (sign, comparison) in signs {
        if let Some(number) = text.strip_prefix(sign) {
            let number = number.trim().parse::<u32>().map_err(|_| "expected a comparison such as '>=3'".to_owned())?;
            return Ok((comparison, number.into()));
        }
    }
    Err("expected a comparison such as '>=3'".into())
}

/// The filters as they stand in a query or a body. Different ones narrow each other; several values of one widen it, except of `label`, all
/// of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Filter")]
pub struct FilterText {
    /// Task types: AMQP topic patterns, `*` one word, `#` any number.
    #[serde(rename = "type", skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 255)))]
    pub types: Vec<String>,
    /// `NAME=VALUE`
    #[serde(rename = "label", skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^[^=]+=")))]
    pub labels: Vec<String>,
    /// pending, running, retry_waiting, succeeded, dead, discarded, cancelled
    #[serde(rename = "status", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Status>")]
    pub statuses: Vec<String>,
    /// Why it is dead.
    #[serde(rename = "reason_is", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<DeadReason>")]
    pub reasons: Vec<String>,
    /// Class of the last failure.
    #[serde(rename = "class", skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Platform code of the last failure.
    #[serde(rename = "code", skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<String>,
    /// HTTP status of the last failure.
    #[serde(rename = "http_status", skip_serializing_if = "Vec::is_empty")]
    pub http_statuses: Vec<u16>,
    /// Fingerprint of the last failure.
    #[serde(rename = "fingerprint", skip_serializing_if = "Vec::is_empty")]
    pub fingerprints: Vec<String>,
    /// The queue it belongs to.
    #[serde(rename = "queue", skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// These tasks.
    #[serde(rename = "id", skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Ended (or, while unfinished, created) at or after: `2h` ago, `2026-01-31`, or RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Ended (or, while unfinished, created) before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Attempts of the current generation: `>=3`, `<2`, `=4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^(>=|<=|>|<|=)?[0-9]{1,9}$"))]
    pub attempts: Option<String>,
    /// The last failure's message contains this (ASCII case ignored).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A filter that cannot be meant: which field, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// As it is called in [`FilterText`].
    pub field: &'static str,
    /// What was expected.
    pub message: String,
}

/// The most values of one filter: enough for a page of ids, too few to make a query that nobody can have typed.
const MOST_VALUES: usize = 10_000;
/// The same of `type` and `label`: each value becomes a condition of its own, and SQLite nests them only so deep.
const MOST_CONDITIONS: usize = 100;

impl FilterText {
    /// What its fields are called in a query.
    pub const FIELDS: [&str; 14] = [
        "type",
        "label",
        "status",
        "reason_is",
        "class",
        "code",
        "http_status",
        "fingerprint",
        "queue",
        "id",
        "since",
        "until",
        "attempts",
        "text",
    ];

    /// The text that means `filter`, for those who look at it later: points in time instead of lengths.
    pub fn of(filter: &Filter) -> FilterText {
        let words = |comparison| match comparison {
            Comparison::Less => "<",
            Comparison::AtMost => "<=",
            Comparison::Equal => "=",
            Comparison::AtLeast => ">=",
            Comparison::More => ">",
        };
        FilterText {
            types: filter.types.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
            labels: filter.labels.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            statuses: filter.statuses.iter().map(|status| status.as_str().to_owned()).collect(),
            reasons: filter.reasons.iter().map(|reason| reason.as_str().to_owned()).collect(),
            classes: filter.classes.clone(),
            codes: filter.codes.clone(),
            http_statuses: filter.http_statuses.clone(),
            fingerprints: filter.fingerprints.clone(),
            queues: filter.queues.clone(),
            ids: filter.ids.clone(),
            since: filter.since.map(super::time),
            until: filter.until.map(super::time),
            attempts: filter.attempts.map(|(comparison, number)| format!("{}{number}", words(comparison))),
            text: filter.text.clone(),
        }
    }

    /// Whether nothing restricts.
    pub fn is_empty(&self) -> bool {
        *self == FilterText::default()
    }

    /// The filter it means.
    ///
    /// # Errors
    /// Every value that cannot be meant.
    pub fn to_filter(&self, now: Millis) -> Result<Filter, Vec<FilterError>> {
        let mut errors = Vec::new();
        let mut labels = BTreeMap::new();
        for (name, value) in each("label", &self.labels, label, &mut errors) {
            if labels.insert(name.clone(), value.clone()).is_some_and(|before| before != value) {
                let message = format!("{name} is given twice with different values; no task has both");
                errors.push(FilterError { field: "label", message });
            }
        }
        let since = each("since", &self.since, moment, &mut errors).pop();
        let until = each("until", &self.until, moment, &mut errors).pop();
        let filter = Filter {
            types: each("type", &self.types, pattern, &mut errors),
            labels,
            statuses: each("status", &self.statuses, status, &mut errors),
            reasons: each("reason_is", &self.reasons, dead_reason, &mut errors),
            classes: self.classes.clone(),
            codes: self.codes.clone(),
            http_statuses: self.http_statuses.clone(),
            fingerprints: self.fingerprints.clone(),
            queues: self.queues.clone(),
            ids: self.ids.clone(),
            since: since.map(|moment| moment.resolve(now)),
            until: until.map(|moment| moment.resolve(now)),
            attempts: each("attempts", &self.attempts, attempts, &mut errors).pop(),
            text: self.text.clone(),
        };
        let lengths = [
            ("type", self.types.len(), MOST_CONDITIONS),
            ("label", self.labels.len(), MOST_CONDITIONS),
            ("class", self.classes.len(), MOST_VALUES),
            ("code", self.codes.len(), MOST_VALUES),
            ("http_status", self.http_statuses.len(), MOST_VALUES),
            ("fingerprint", self.fingerprints.len(), MOST_VALUES),
            ("queue", self.queues.len(), MOST_VALUES),
            ("id", self.ids.len(), MOST_VALUES),
        ];
        for (field, _, most) in lengths.into_iter().filter(|(_, length, most)| length > most) {
            errors.push(FilterError { field, message: format!("expected at most {most} values") });
        }
        if errors.is_empty() { Ok(filter) } else { Err(errors) }
    }

    /// The same for dead letters.
    ///
    /// # Errors
    /// As [`FilterText::to_filter`], and when another status is asked for.
    pub fn to_dead_filter(&self, now: Millis) -> Result<Filter, Vec<FilterError>> {
        let mut filter = self.to_filter(now)?;
        if let Some(other) = filter.statuses.iter().find(|status| **status != Status::Dead) {
            let message = format!("dead letters are dead, not {other}");
            return Err(vec![FilterError { field: "status", message }]);
        }
        filter.statuses = vec![Status::Dead];
        Ok(filter)
    }
}

fn each<'t, T>(
    field: &'static str,
    texts: impl IntoIterator<Item = &'t String>,
    read: impl Fn(&str) -> Result<T, String>,
    errors: &mut Vec<FilterError>,
) -> Vec<T> {
    let mut values = Vec::new();
    for text in texts {
        match read(text) {
            Ok(value) => values.push(value),
            Err(message) => errors.push(FilterError { field, message }),
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_lengths_dates_and_times() {
        assert_eq!(moment("2h"), Ok(Moment::Ago(7_200_000)));
        assert_eq!(moment("1970-01-02"), Ok(Moment::At(86_400_000)));
        assert_eq!(moment("1970-01-01T01:00:00+01:00"), Ok(Moment::At(0)));
        assert!(moment("yesterday").is_err() && moment("").is_err() && moment("12").is_err());
        assert_eq!(Moment::Ago(5).resolve(100), 95);
        assert_eq!(Moment::Ago(5).resolve_ahead(100), 105);
    }

    #[test]
    fn attempts_read_comparisons() {
        assert_eq!(attempts(">=3"), Ok((Comparison::AtLeast, 3)));
        assert_eq!(attempts("< 2"), Ok((Comparison::Less, 2)));
        assert_eq!(attempts("4"), Ok((Comparison::Equal, 4)));
        for bad in ["", ">", "=>3", ">=x", ">=-1"] {
            assert!(attempts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn its_fields_are_called_as_they_are() {
        let schema = schemars::schema_for!(FilterText);
        let names: Vec<&String> = schema.get("properties").unwrap().as_object().unwrap().keys().collect();
        assert_eq!(names, FilterText::FIELDS);
    }

    #[test]
    fn every_mistake_of_a_filter_is_named_at_once() {
        let text = FilterText {
            types: vec!["a..b".into()],
            labels: vec!["shop=a".into(), "shop=b".into(), "x".into()],
            statuses: vec!["lost".into()],
            since: Some("yesterday".into()),
            ..FilterText::default()
        };
        let fields: Vec<&str> = text.to_filter(0).unwrap_err().into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["label", "label", "since", "type", "status"]);
        let alive = FilterText { statuses: vec!["pending".into()], ..FilterText::default() };
        assert_eq!(alive.to_dead_filter(0).unwrap_err()[0].field, "status");
    }

    #[test]
    fn more_types_or_labels_than_a_query_can_hold_are_refused() {
        let many = |most: usize| FilterText {
            types: (0..most).map(|n| format!("t{n}")).collect(),
            labels: (0..most).map(|n| format!("l{n}=x")).collect(),
            ..FilterText::default()
        };
        assert!(many(MOST_CONDITIONS).to_filter(0).is_ok());
        let fields: Vec<&str> =
            many(MOST_CONDITIONS + 1).to_filter(0).unwrap_err().into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["type", "label"]);
    }
}
