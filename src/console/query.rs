//! The query of an address: the filters of the command line under the same names.

use std::collections::BTreeMap;

use crate::config::parse_duration;
use crate::policy::TopicPattern;
use crate::store::{Comparison, Filter};
use crate::task::{DeadReason, Millis, Status};

/// Names and values in their order; a name may come more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

/// The filters, as the command line names them.
pub(crate) const FILTERS: [&str; 14] = [
    "type",
    "label",
    "status",
    "reason-is",
    "class",
    "code",
    "http-status",
    "fingerprint",
    "queue",
    "since",
    "until",
    "attempts",
    "text",
    "id",
];

impl Query {
    /// From the decoded pairs of an address; empty values are fields that nobody filled in.
    pub(crate) fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Query {
        Query(pairs.into_iter().filter(|(_, value)| !value.trim().is_empty()).collect())
    }

    /// Only the filters and the cursor.
    pub(crate) fn filters(&self) -> Query {
        Query(self.0.iter().filter(|(name, _)| name == "cursor" || FILTERS.contains(&name.as_str())).cloned().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether it narrows anything.
    pub(crate) fn is_empty(&self) -> bool {
        !self.0.iter().any(|(name, _)| FILTERS.contains(&name.as_str()))
    }

    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        self.0.clone()
    }

    /// The same with this value alone for `name`.
    pub(crate) fn with(&self, name: &str, value: &str) -> Query {
        let mut query = self.without(name);
        query.0.push((name.to_owned(), value.to_owned()));
        query
    }

    pub(crate) fn without(&self, name: &str) -> Query {
        Query(self.0.iter().filter(|(known, _)| known != name).cloned().collect())
    }

    /// The filters as arguments of the command line.
    pub(crate) fn flags(&self) -> Vec<&str> {
        let mut words = Vec::new();
        for (name, value) in &self.0 {
            if let Some(flag) = flag(name) {
                words.extend([flag, value.as_str()]);
            }
        }
        words
    }
}

/// Which filter is wrong, and why.
pub(crate) type Problems = Vec<(String, String)>;

impl Query {
    /// The filter it means at `now`.
    ///
    /// # Errors
    /// Every filter that cannot be meant.
    pub(crate) fn to_filter(&self, now: Millis) -> Result<Filter, Problems> {
        let mut problems = Vec::new();
        let mut labels = BTreeMap::new();
        for pair in self.all("label") {
            match pair.split_once('=').filter(|(name, _)| !name.is_empty()) {
                None => problems.push(("label".to_owned(), "expected NAME=VALUE".to_owned())),
                Some((name, value)) => {
                    let before = labels.insert(name.to_owned(), value.to_owned());
                    if before.is_some_and(|before| before != value) {
                        problems.push((
                            "label".to_owned(),
                            format!("{name} is given twice with different values; no task has both"),
                        ));
                    }
                }
            }
        }
        let texts = |name: &str| self.all(name).map(|value| value.trim().to_owned()).collect::<Vec<_>>();
        let mut read = Read { query: self, problems };
        let filter = Filter {
            types: read.each("type", |text| TopicPattern::new(text).map_err(|error| error.to_string())),
            labels,
            statuses: read.each("status", |word| known(Status::parse(word), &Status::ALL.map(Status::as_str))),
            reasons: read
                .each("reason-is", |word| known(DeadReason::parse(word), &DeadReason::ALL.map(DeadReason::as_str))),
            classes: texts("class"),
            codes: texts("code"),
            http_statuses: read.each("http-status", |text| {
                text.parse()
                    .ok()
                    .filter(|status| (100..=599).contains(status))
                    .ok_or_else(|| "expected 100 to 599".to_owned())
            }),
            fingerprints: texts("fingerprint"),
            queues: texts("queue"),
            ids: self.all("id").map(str::to_owned).collect(),
            since: read.each("since", |text| moment(text, now)).pop(),
            until: read.each("until", |text| moment(text, now)).pop(),
            attempts: read.each("attempts", attempts).pop(),
            text: self.get("text").map(str::to_owned),
        };
        if read.problems.is_empty() { Ok(filter) } else { Err(read.problems) }
    }
}

struct Read<'a> {
    query: &'a Query,
    problems: Problems,
}

impl Read<'_> {
    fn each<T>(&mut self, name: &str, read: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let mut values = Vec::new();
        for text in self.query.all(name) {
            match read(text.trim()) {
                Ok(value) => values.push(value),
                Err(why) => self.problems.push((name.to_owned(), why)),
            }
        }
        values
    }
}

fn known<T>(found: Option<T>, words: &[&str]) -> Result<T, String> {
    found.ok_or_else(|| format!("expected one of {}", words.join(", ")))
}

/// `2h` ago, `2026-01-31`, `2026-01-31T12:00:00Z`.
fn moment(text: &str, now: Millis) -> Result<Millis, String> {
    if let Ok(ago) = parse_duration(text) {
        return Ok(now.saturating_sub(Millis::try_from(ago.as_millis()).unwrap_or(Millis::MAX)));
    }
    let read = text.parse::<jiff::Timestamp>().or_else(|_| format!("{text}T00:00:00Z").parse::<jiff::Timestamp>());
    read.map(|timestamp| timestamp.as_millisecond()).map_err(|_| {
        "expected a length of time such as 2h, a date such as 2026-01-31, or RFC 3339 with a zone".to_owned()
    })
}

/// `>=3`, `<2`, `4`.
fn attempts(text: &str) -> Result<(Comparison, i64), String> {
    const SIGNS: [(&str, Comparison); 6] = [
        (">=", Comparison::AtLeast),
        ("<=", Comparison::AtMost),
        (">", Comparison::More),
        ("<", Comparison::Less),
        ("=", Comparison::Equal),
        ("", Comparison::Equal),
    ];
    let read = |(sign, comparison): &(&str, Comparison)| {
        let number = text.strip_prefix(sign)?.trim().parse::<u32>().ok()?;
        Some((*comparison, i64::from(number)))
    };
    SIGNS.iter().find_map(read).ok_or_else(|| "expected a comparison such as >=3".to_owned())
}

fn flag(name: &str) -> Option<&'static str> {
    Some(match name {
        "type" => "--type",
        "label" => "--label",
        "status" => "--status",
        "reason-is" => "--reason-is",
        "class" => "--class",
        "code" => "--code",
        "http-status" => "--http-status",
        "fingerprint" => "--fingerprint",
        "queue" => "--queue",
        "since" => "--since",
        "until" => "--until",
        "attempts" => "--attempts",
        "text" => "--text",
        "id" => "--id",
        "cursor" => "--cursor",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Query {
        Query::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn a_filter_is_read_and_every_wrong_value_is_named() {
        let good = query(&[
            ("type", "order.#"),
            ("label", "shop=a=b"),
            ("status", "dead"),
            ("since", "2h"),
            ("attempts", ">= 3"),
            ("http-status", "503"),
        ]);
        let filter = good.to_filter(10_000_000).unwrap();
        assert_eq!(
            (filter.since, filter.attempts, filter.labels["shop"].as_str()),
            (Some(2_800_000), Some((Comparison::AtLeast, 3)), "a=b")
        );
        let bad = query(&[
            ("type", "a..b"),
            ("label", "x"),
            ("status", "gone"),
            ("reason-is", "no"),
            ("http-status", "99"),
            ("since", "soon"),
            ("until", "x"),
            ("attempts", "=>"),
        ]);
        let named: Vec<String> = bad.to_filter(0).unwrap_err().into_iter().map(|(name, _)| name).collect();
        assert_eq!(named, ["label", "type", "status", "reason-is", "http-status", "since", "until", "attempts"]);
        let twice = query(&[("label", "shop=a"), ("label", "shop=b")]);
        assert!(twice.to_filter(0).is_err());
    }

    #[test]
    fn every_filter_has_its_flag() {
        for name in FILTERS {
            assert_eq!(flag(name), Some(format!("--{name}").as_str()));
        }
    }

    #[test]
    fn fields_that_nobody_filled_in_are_none() {
        let query = query(&[("text", ""), ("type", "order.#"), ("cursor", "7"), ("x", "y")]);
        assert_eq!(query.flags(), ["--type", "order.#", "--cursor", "7"]);
        assert_eq!(query.filters().pairs().len(), 2);
        assert!(!query.is_empty() && query.without("type").is_empty());
        assert_eq!(query.with("cursor", "8").get("cursor"), Some("8"));
    }
}
