//! Groups of dead letters as documents.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time;
use crate::dead_letter::{self, Group, Trend};
use crate::gate::Phase;
use crate::store::{Filter, GroupNote, LetterGroupBy, LetterSample, Store, StoreError};
use crate::task::DeadReason;

/// The most groups of one answer: what a person can look through.
pub const MOST_GROUPS: usize = 1_000;

/// Dead letters that have something in common.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Group")]
pub struct GroupDocument {
    /// By what they are grouped: `fingerprint`, `class`, `type`, `reason`, `label.NAME`.
    pub by: String,
    /// What they have in common; null: they have no such thing.
    pub key: Option<String>,
    /// How many.
    pub count: i64,
    /// How it is doing.
    pub trend: Trend,
    /// When the first of them died.
    pub first_died_at: String,
    /// When the last of them died.
    pub last_died_at: String,
    /// How many died in each of the last 24 hours of the clock, oldest first; the last one is the running hour.
    pub hourly: Vec<i64>,
    /// How many of each type.
    pub types: BTreeMap<String, i64>,
    /// How many of each class of the last failure.
    pub classes: BTreeMap<String, i64>,
    /// How many of each platform code of the last failure.
    pub codes: BTreeMap<String, i64>,
    /// How many for each reason.
    pub reasons: BTreeMap<DeadReason, i64>,
    /// The fingerprints in it.
    pub fingerprints: Vec<String>,
    /// The newest of them, newest first.
    pub samples: Vec<SampleDocument>,
    /// When the next of them replays itself.
    pub next_replay_at: Option<String>,
    /// Breakers that are not closed and keep more of it away: `open` or `half_open`.
    pub breakers: BTreeMap<String, String>,
    /// Who looks after it.
    pub owner: Option<String>,
    /// What is known about it.
    pub note: Option<String>,
    /// Who wrote that.
    pub noted_by: Option<String>,
    /// When.
    pub noted_at: Option<String>,
}

/// One letter of a group.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GroupSample")]
pub struct SampleDocument {
    /// The task.
    pub id: String,
    /// Its type.
    #[serde(rename = "type")]
    pub task_type: String,
    /// When it died.
    pub died_at: String,
    /// Class of the last failure.
    pub class: Option<String>,
    /// Platform code of the last failure.
    pub code: Option<String>,
    /// HTTP status of the last failure.
    pub http_status: Option<u16>,
    /// Message of the last failure.
    pub message: Option<String>,
}

impl SampleDocument {
    fn of(sample: LetterSample) -> SampleDocument {
        SampleDocument {
            id: sample.id,
            task_type: sample.task_type,
            died_at: time(sample.died_at),
            class: sample.class,
            code: sample.code,
            http_status: sample.http_status,
            message: sample.message,
        }
    }
}

impl GroupDocument {
    fn of(by: &LetterGroupBy, group: Group) -> GroupDocument {
        let Group { letters, trend, note, breakers } = group;
        let GroupNote { owner, note, noted_by, noted_at, .. } = note.clone().unwrap_or(GroupNote {
            key: String::new(),
            owner: None,
            note: None,
            noted_by: None,
            noted_at: 0,
        });
        GroupDocument {
            by: by.to_string(),
            key: letters.key,
            count: letters.count,
            trend,
            first_died_at: time(letters.first_died_at),
            last_died_at: time(letters.last_died_at),
            hourly: letters.hourly.to_vec(),
            types: letters.types,
            classes: letters.classes,
            codes: letters.codes,
            reasons: letters.reasons,
            fingerprints: letters.fingerprints.into_iter().collect(),
            samples: letters.samples.into_iter().map(SampleDocument::of).collect(),
            next_replay_at: letters.next_replay_at.map(time),
            breakers: breakers.into_iter().map(|(key, phase)| (key, word_of(phase).to_owned())).collect(),
            noted_at: (owner.is_some() || note.is_some()).then(|| time(noted_at)),
            owner,
            note,
            noted_by,
        }
    }
}

/// The dead letters that match, by group, largest first; at most `limit` groups and never more than [`MOST_GROUPS`].
///
/// # Errors
/// When the store does not answer.
pub async fn groups(
    store: &dyn Store,
    by: &LetterGroupBy,
    filter: &Filter,
    limit: usize,
) -> Result<Vec<GroupDocument>, StoreError> {
    let groups = dead_letter::groups(store, by, filter, limit.min(MOST_GROUPS)).await?;
    Ok(groups.into_iter().map(|group| GroupDocument::of(by, group)).collect())
}

fn word_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Closed => "closed",
        Phase::Open { .. } => "open",
        Phase::HalfOpen => "half_open",
    }
}

/// Reads what groups are by.
///
/// # Errors
/// What was expected.
pub fn group_by(text: &str) -> Result<LetterGroupBy, String> {
    LetterGroupBy::parse(text)
        .ok_or_else(|| "expected fingerprint, class, type, reason or label.NAME, such as label.shop".to_owned())
}

/// Twenty-four counts as one line of bars, the largest of them as the full height.
pub fn sparkline(counts: &[i64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |count: &i64| match *count {
        ..=0 => '·',
        count => {
            let height = (count.saturating_mul(8) + most - 1) / most;
            BARS[usize::try_from(height.clamp(1, 8) - 1).unwrap_or(0)]
        }
    };
    counts.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_shows_every_count_that_is_not_nothing() {
        assert_eq!(sparkline(&[0, 1, 50, 100]), "·▁▄█");
        assert_eq!(sparkline(&[0, 0]), "··");
        assert_eq!(sparkline(&[3, 3]), "██");
    }
}
