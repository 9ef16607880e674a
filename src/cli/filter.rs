//! Which tasks a command is about: the same filters everywhere.

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal};

pub use redeliver::desk::filter::{Moment, label, moment};
use redeliver::desk::filter::{attempts, dead_reason, pattern, status};
use redeliver::policy::TopicPattern;
use redeliver::store::{Comparison, Filter};
use redeliver::task::{DeadReason, Millis, Status};

use super::exit::{self, Exit};

/// The filters. Different filters narrow each other; the same one given again widens it.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Filters")]
pub struct FilterArgs {
    /// Task types: an AMQP topic pattern, `*` one word, `#` any number
    #[arg(long = "type", value_name = "PATTERN", value_parser = pattern)]
    pub types: Vec<TopicPattern>,
    /// A label with this value; all that are given must hold
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// pending, running, retry_waiting, succeeded, dead, discarded, cancelled
    #[arg(long = "status", value_name = "S", value_delimiter = ',', value_parser = status)]
    pub statuses: Vec<Status>,
    /// Why it is dead: retries_exhausted, permanent_error, circuit_open, deadline_exceeded, malformed, duplicate_conflict, poison
    #[arg(long = "reason-is", value_name = "R", value_delimiter = ',', value_parser = dead_reason)]
    pub reasons: Vec<DeadReason>,
    /// Class of the last failure: timeout, network, rate_limited, …
    #[arg(long = "class", value_name = "C", value_delimiter = ',')]
    pub classes: Vec<String>,
    /// Platform code of the last failure
    #[arg(long = "code", value_name = "C", value_delimiter = ',')]
    pub codes: Vec<String>,
    /// HTTP status of the last failure
    #[arg(long = "http-status", value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(100..=599))]
    pub http_statuses: Vec<u16>,
    /// Fingerprint of the last failure; `-` for none
    #[arg(long = "fingerprint", value_name = "F", value_delimiter = ',')]
    pub fingerprints: Vec<String>,
    /// The [[queue]] it belongs to
    #[arg(long = "queue", value_name = "Q", value_delimiter = ',')]
    pub queues: Vec<String>,
    /// Ended (or, while unfinished, created) at or after: `2h` ago, `2026-01-31`, or RFC 3339
    #[arg(long, value_name = "T", value_parser = moment)]
    pub since: Option<Moment>,
    /// Ended (or, while unfinished, created) before
    #[arg(long, value_name = "T", value_parser = moment)]
    pub until: Option<Moment>,
    /// Attempts of the current generation: `>=3`, `<2`, `=4`
    #[arg(long, value_name = ">=N", value_parser = attempts)]
    pub attempts: Option<(Comparison, i64)>,
    /// Text in the message of the last failure
    #[arg(long, value_name = "SUBSTRING")]
    pub text: Option<String>,
    /// These tasks; `-` reads ids from stdin, one a line
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Vec<String>,
}

/// Which part of a list.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Page")]
pub struct PageArgs {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// Go on where the previous page ended
    #[arg(long, value_name = "C")]
    pub cursor: Option<String>,
    /// Everything, page after page
    #[arg(long, conflicts_with = "cursor")]
    pub all: bool,
}

impl FilterArgs {
    /// Whether nothing restricts.
    pub fn is_empty(&self) -> bool {
        let lists_empty = self.types.is_empty()
            && self.labels.is_empty()
            && self.statuses.is_empty()
            && self.reasons.is_empty()
            && self.classes.is_empty()
            && self.codes.is_empty()
            && self.http_statuses.is_empty()
            && self.fingerprints.is_empty()
            && self.queues.is_empty()
            && self.ids.is_empty();
        lists_empty && self.since.is_none() && self.until.is_none() && self.attempts.is_none() && self.text.is_none()
    }

    /// The filter it means. `more_ids` are those given as arguments; `-` among any ids reads stdin.
    ///
    /// # Errors
    /// When two values for one label are asked for, or stdin has no ids.
    pub fn to_filter(&self, more_ids: &[String], now: Millis) -> anyhow::Result<Filter> {
        let mut labels = BTreeMap::new();
        for (name, value) in &self.labels {
            if labels.insert(name.clone(), value.clone()).is_some_and(|before| before != *value) {
                let text = format!("--label {name} is given twice with different values; no task has both");
                return Err(exit::error(Exit::Usage, text));
            }
        }
        Ok(Filter {
            types: self.types.clone(),
            labels,
            statuses: self.statuses.clone(),
            reasons: self.reasons.clone(),
            classes: self.classes.clone(),
            codes: self.codes.clone(),
            http_statuses: self.http_statuses.clone(),
            fingerprints: self.fingerprints.clone(),
            queues: self.queues.clone(),
            ids: read_ids(self.ids.iter().chain(more_ids))?,
            since: self.since.map(|moment| moment.resolve(now)),
            until: self.until.map(|moment| moment.resolve(now)),
            attempts: self.attempts,
            text: self.text.clone(),
        })
    }

    /// The same for commands about dead letters.
    ///
    /// # Errors
    /// As [`FilterArgs::to_filter`], and when another status is asked for.
    pub fn to_dead_filter(&self, more_ids: &[String], now: Millis) -> anyhow::Result<Filter> {
        if let Some(other) = self.statuses.iter().find(|status| **status != Status::Dead) {
            let text =
                format!("--status {other}: `dlq` is about dead tasks; see `redeliver task list --status {other}`");
            return Err(exit::error(Exit::Usage, text));
        }
        let mut filter = self.to_filter(more_ids, now)?;
        filter.statuses = vec![Status::Dead];
        Ok(filter)
    }
}

/// The time at a door that has no store.
pub fn now() -> Millis {
    jiff::Timestamp::now().as_millisecond()
}

/// Ids as typed, each once; `-` stands for the lines of stdin.
///
/// # Errors
/// When stdin is a terminal or holds none: an empty list of ids must not mean every task.
pub fn read_ids<'a>(typed: impl Iterator<Item = &'a String>) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::new();
    let mut from_stdin = false;
    for id in typed {
        if id == "-" {
            if std::mem::replace(&mut from_stdin, true) {
                continue;
            }
            let stdin = std::io::stdin();
            if stdin.is_terminal() {
                return Err(exit::error(Exit::Usage, "`-` reads ids from stdin, which is a terminal"));
            }
            let before = ids.len();
            for line in stdin.lock().lines() {
                let line = line?;
                let id = line.trim();
                if !id.is_empty() {
                    ids.push(id.to_owned());
                }
            }
            if ids.len() == before {
                return Err(exit::error(Exit::Usage, "`-` reads ids from stdin, and it holds none"));
            }
        } else {
            ids.push(id.clone());
        }
    }
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradicting_labels_are_refused() {
        let label = |value: &str| ("shop".to_owned(), value.to_owned());
        let args = FilterArgs { labels: vec![label("a"), label("b")], ..FilterArgs::default() };
        assert_eq!(exit::of(&args.to_filter(&[], 0).unwrap_err()), Exit::Usage);
    }
}
