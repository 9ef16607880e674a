//! Dead letters by what they have in common, for the person who has four thousand of three kinds before them.
//!
//! Counts come from the letters as they are now. What is added here is what a person would otherwise work out: whether a kind is new,
//! growing or quiet, who looks after it, and whether a breaker already keeps more of it away. Never changes a letter.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gate::{GateState, Phase, gate_value};
use crate::store::{Filter, GroupNote, LetterGroup, LetterGroupBy, Store, StoreError};
use crate::task::Millis;

/// The last hours of the sparkline that say how a group is doing now, the running one included.
const RECENT_HOURS: usize = 3;
/// A group younger than this is new.
const NEW_MS: Millis = 24 * 3_600_000;
/// So many letters in the recent hours are too few to call growth.
const FEW: i64 = 3;

/// How a group is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trend {
    /// Its oldest letter died within a day, and letters still die.
    New,
    /// Letters die at more than twice the pace of the day before.
    Growing,
    /// Letters die as before.
    Steady,
    /// None has died for two to three hours.
    Quiet,
}

impl Trend {
    /// The word used in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Trend::New => "new",
            Trend::Growing => "growing",
            Trend::Steady => "steady",
            Trend::Quiet => "quiet",
        }
    }
}

/// How a group is doing at `now`, by its counts alone. Quiet comes before new: what has stopped by itself is the news.
pub fn trend(group: &LetterGroup, now: Millis) -> Trend {
    let (before, recent) = group.hourly.split_at(group.hourly.len() - RECENT_HOURS);
    let (hours_before, hours_recent) = (count(before.len()), count(RECENT_HOURS));
    let (before, recent): (i64, i64) = (before.iter().sum(), recent.iter().sum());
    if recent == 0 {
        Trend::Quiet
    } else if group.first_died_at > now.saturating_sub(NEW_MS) {
        Trend::New
    } else if recent >= FEW && recent * hours_before > 2 * before * hours_recent {
        Trend::Growing
    } else {
        Trend::Steady
    }
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A group with what people and gates say about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Its letters.
    pub letters: LetterGroup,
    /// How it is doing.
    pub trend: Trend,
    /// What people have written at it.
    pub note: Option<GroupNote>,
    /// Breakers that are not closed and whose key names one of its types (or its label's value), with their phase.
    pub breakers: BTreeMap<String, Phase>,
}

/// The dead letters that match `filter`, by group, largest first; at most `limit` groups.
///
/// # Errors
/// When the store does not answer.
pub async fn groups(
    store: &dyn Store,
    by: &LetterGroupBy,
    filter: &Filter,
    limit: usize,
) -> Result<Vec<Group>, StoreError> {
    let now = store.now();
    let groups = store.letter_groups(by, filter, limit).await?;
    let mut notes: BTreeMap<String, GroupNote> =
        store.group_notes(by).await?.into_iter().map(|note| (note.key.clone(), note)).collect();
    let shut: Vec<(String, Phase)> = store.gates().await?.into_iter().filter_map(shut).collect();
    let with_all = |letters: LetterGroup| {
        let trend = trend(&letters, now);
        let note = letters.key.as_ref().and_then(|key| notes.remove(key));
        let breakers = shut.iter().filter(|(key, _)| concerns(key, by, &letters)).cloned().collect();
        Group { letters, trend, note, breakers }
    };
    Ok(groups.into_iter().map(with_all).collect())
}

fn shut((key, state): (String, GateState)) -> Option<(String, Phase)> {
    match state {
        GateState::Breaker(breaker) if breaker.phase != Phase::Closed => Some((key, breaker.phase)),
        _ => None,
    }
}

/// Whether a breaker's key names the group. One for everything concerns every group.
fn concerns(key: &str, by: &LetterGroupBy, group: &LetterGroup) -> bool {
    if key.matches('/').count() < 2 {
        return true;
    }
    if let LetterGroupBy::Label(name) = by {
        return group.key.is_some() && gate_value(key, &format!("label.{name}")) == group.key;
    }
    gate_value(key, "type").is_some_and(|task_type| group.types.contains_key(&task_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::GROUP_HOURS;

    const HOUR: Millis = 3_600_000;

    fn group(age_hours: Millis, hourly: [i64; GROUP_HOURS]) -> (LetterGroup, Millis) {
        let now = 1_000_000 * HOUR;
        (LetterGroup { first_died_at: now - age_hours * HOUR, hourly, ..LetterGroup::default() }, now)
    }

    fn of(age_hours: Millis, hourly: [i64; GROUP_HOURS]) -> Trend {
        let (group, now) = group(age_hours, hourly);
        trend(&group, now)
    }

    #[test]
    fn a_group_is_new_growing_steady_or_quiet_by_its_last_day() {
        let mut even = [10; GROUP_HOURS];
        assert_eq!(of(100, even), Trend::Steady);
        assert_eq!(of(5, even), Trend::New);
        even[22] = 50;
        assert_eq!(of(100, even), Trend::Growing);
        even[21..].fill(0);
        assert_eq!(of(100, even), Trend::Quiet);
        assert_eq!(of(5, even), Trend::Quiet, "what has stopped is not new");
        assert_eq!(of(1_000, [0; GROUP_HOURS]), Trend::Quiet);
    }

    #[test]
    fn two_letters_out_of_the_blue_are_no_growth() {
        let mut few = [0; GROUP_HOURS];
        few[23] = 2;
        assert_eq!(of(100, few), Trend::Steady);
        few[23] = 3;
        assert_eq!(of(100, few), Trend::Growing);
    }
}
