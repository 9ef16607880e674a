//! The query of an address: the filters of the command line under the same names.

use crate::desk::filter::FilterText;
use crate::store::Filter;
use crate::task::Millis;

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
        let all = |name: &str| self.all(name).map(|value| value.trim().to_owned()).collect::<Vec<_>>();
        let one = |name: &str| self.get(name).map(|value| value.trim().to_owned());
        let mut problems = Vec::new();
        let mut http_statuses = Vec::new();
        for text in self.all("http-status") {
            match text.trim().parse().ok().filter(|status| (100..=599).contains(status)) {
                Some(status) => http_statuses.push(status),
                None => problems.push(("http-status".to_owned(), "expected 100 to 599".to_owned())),
            }
        }
        let text = FilterText {
            types: all("type"),
            labels: all("label"),
            statuses: all("status"),
            reasons: all("reason-is"),
            classes: all("class"),
            codes: all("code"),
            http_statuses,
            fingerprints: all("fingerprint"),
            queues: all("queue"),
            // An id may begin or end with a space.
            ids: self.all("id").map(str::to_owned).collect(),
            since: one("since"),
            until: one("until"),
            attempts: one("attempts"),
            text: self.get("text").map(str::to_owned),
        };
        match text.to_filter(now) {
            Ok(filter) if problems.is_empty() => Ok(filter),
            Ok(_) => Err(problems),
            Err(errors) => {
                problems.extend(errors.into_iter().map(|error| (error.field.replace('_', "-"), error.message)));
                Err(problems)
            }
        }
    }
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
    use crate::store::Comparison;

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
        assert_eq!(named, ["http-status", "label", "since", "until", "type", "status", "reason-is", "attempts"]);
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
