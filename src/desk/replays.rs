//! Replay jobs as documents, and what people order.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Mask, time};
use crate::dead_letter::replay::{DEFAULT_MAX_FAILURE_RATIO, STAGES, time_left_ms};
use crate::store::{
    Filter, ItemCounts, ItemOutcome, NewReplay, Pace, ReplayItem, ReplayJob, ReplayOrigin, ReplayState, Selection,
    Steer, Store, StoreError,
};
use crate::task::{EditError, PayloadEdit, Task};

/// Letters of which an edit is shown before it is made.
const SHOWN_EDITS: usize = 3;

/// How many letters came to what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReplayCounts")]
pub struct CountsDocument {
    /// All letters of the job.
    pub matched: i64,
    /// Put to run again, whatever came of it.
    pub replayed: i64,
    /// Not replayed, by why.
    pub skipped: BTreeMap<String, i64>,
    /// Not yet their turn.
    pub waiting: i64,
    /// Of those that were replayed: have not ended.
    pub running: i64,
    /// Of those that were replayed: succeeded.
    pub succeeded: i64,
    /// Of those that were replayed: dead again.
    pub failed_again: i64,
    /// Of those that were replayed: cancelled by a person while they waited to run.
    pub cancelled: i64,
}

impl CountsDocument {
    /// The document of counts.
    pub fn of(counts: &ItemCounts) -> CountsDocument {
        CountsDocument {
            matched: counts.matched(),
            replayed: counts.released(),
            skipped: counts.skipped.clone(),
            waiting: counts.waiting,
            running: counts.replayed,
            succeeded: counts.succeeded,
            failed_again: counts.failed_again,
            cancelled: counts.cancelled,
        }
    }
}

/// A replay job. Times are RFC 3339 in UTC.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Replay")]
pub struct ReplayDocument {
    /// Its number.
    pub id: i64,
    /// Whether a person made it or a policy's `replay_after`.
    pub origin: ReplayOrigin,
    /// Where it stands.
    pub state: ReplayState,
    /// Why it stands there: what stopped it, what a person said.
    pub why: Option<String>,
    /// When it was made.
    pub created_at: String,
    /// By whom.
    pub created_by: Option<String>,
    /// Why, in that person's words.
    pub reason: Option<String>,
    /// What was asked for.
    pub about: Value,
    /// Letters a second; null: as fast as they can be written.
    pub rate_per_s: Option<f64>,
    /// A few first, the rest only when those have ended well.
    pub ramp: bool,
    /// It stops when more than this part of the ended ones has failed again.
    pub max_failure_ratio: Option<f64>,
    /// A JSON Patch for each payload.
    pub edit_payload: Option<Value>,
    /// The part of its letters, in percent, up to which it goes before it waits for them to end; 100 without a ramp.
    pub stage_percent: f64,
    /// Its letters.
    #[serde(flatten)]
    pub counts: CountsDocument,
    /// How long the letters that wait will take to release; null where a rate does not tell.
    pub time_left_ms: Option<i64>,
    /// Who drives it, or drove it last.
    pub worker: Option<String>,
    /// Who paused, resumed or cancelled it last.
    pub changed_by: Option<String>,
    /// When its state last changed.
    pub changed_at: String,
    /// When it reached a final state.
    pub ended_at: Option<String>,
}

impl ReplayDocument {
    /// The document of a job.
    pub fn of(job: &ReplayJob) -> ReplayDocument {
        let permille = STAGES.get(job.stage).copied().filter(|_| job.pace.ramp).unwrap_or(1_000);
        #[expect(clippy::cast_precision_loss, reason = "parts per thousand")]
        let stage_percent = permille as f64 / 10.0;
        let left = time_left_ms(&job.pace, job.stage, &job.counts);
        ReplayDocument {
            id: job.id,
            origin: job.origin,
            state: job.state,
            why: job.why.clone(),
            created_at: time(job.created_at),
            created_by: job.created_by.clone(),
            reason: job.reason.clone(),
            about: job.about.clone(),
            rate_per_s: job.pace.rate_per_s,
            ramp: job.pace.ramp,
            max_failure_ratio: job.pace.max_failure_ratio,
            edit_payload: job.edit.as_deref().and_then(|patch| serde_json::from_str(patch).ok()),
            stage_percent,
            counts: CountsDocument::of(&job.counts),
            time_left_ms: left.filter(|_| job.state == ReplayState::Running && job.counts.waiting > 0),
            worker: job.worker.clone(),
            changed_by: job.changed_by.clone(),
            changed_at: time(job.changed_at),
            ended_at: job.ended_at.map(time),
        }
    }
}

/// A letter of a job.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReplayItem")]
pub struct ItemDocument {
    /// Its place in the job, from 1.
    pub position: i64,
    /// The task.
    pub id: String,
    /// The generation in which it was dead.
    pub generation: i64,
    /// What became of it; `replayed`: it runs and has not ended.
    pub outcome: ItemOutcome,
    /// Why it was skipped.
    pub why: Option<String>,
    /// The task that runs, when an edit made another one.
    pub runs_as: Option<String>,
    /// When that was written down.
    pub at: String,
}

impl ItemDocument {
    /// The document of a letter.
    pub fn of(item: &ReplayItem) -> ItemDocument {
        ItemDocument {
            position: item.position,
            id: item.task_id.clone(),
            generation: item.generation,
            outcome: item.outcome,
            why: item.why.clone(),
            runs_as: item.runs_as.clone(),
            at: time(item.at),
        }
    }
}

/// What a person orders.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Which letters.
    pub filter: Filter,
    /// The same as it was asked for, for those who look at the job later.
    pub about: Value,
    /// At most so many, newest first.
    pub limit: Option<usize>,
    /// How fast; see [`pace`].
    pub pace: Pace,
    /// A JSON Patch for each payload.
    pub edit: Option<String>,
    /// Who.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

/// What an order would do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReplayPreview")]
pub struct Preview {
    /// How many letters it is about.
    pub matched: i64,
    /// How many would be replayed.
    pub replayed: i64,
    /// How many would not, by why.
    pub skipped: BTreeMap<String, i64>,
    /// What an edit would do to the first few of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<EditDocument>,
    /// Always true: nothing was changed.
    pub dry_run: bool,
}

/// What an edit would do to one letter.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "EditPreview")]
pub struct EditDocument {
    /// The letter.
    pub id: String,
    /// The task that would be made of it; its own id where nothing changes.
    pub becomes: Option<String>,
    /// Why the edit cannot be made of it.
    pub refused: Option<String>,
    /// What changes.
    pub differences: Vec<DifferenceDocument>,
}

/// One value that an edit changes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "EditDifference")]
pub struct DifferenceDocument {
    /// Where (JSON pointer).
    pub path: String,
    /// What is there; null where nothing is.
    pub before: Option<Value>,
    /// What would be there; null where nothing would.
    pub after: Option<Value>,
}

/// A pace as it is asked for. A ramp without a bound gets [`DEFAULT_MAX_FAILURE_RATIO`].
///
/// # Errors
/// When the ratio is not within 0 and 1.
pub fn pace(rate_per_s: Option<f64>, ramp: bool, max_failure_ratio: Option<f64>) -> Result<Pace, String> {
    if let Some(ratio) = max_failure_ratio.filter(|ratio| !(0.0..=1.0).contains(ratio)) {
        return Err(format!("expected a ratio between 0 and 1, found {ratio}"));
    }
    let max_failure_ratio = max_failure_ratio.or(ramp.then_some(DEFAULT_MAX_FAILURE_RATIO));
    Ok(Pace { rate_per_s, ramp, max_failure_ratio })
}

/// Reads `50/s`, `300/min` or `10/h` as letters a second.
///
/// # Errors
/// What was expected.
pub fn rate(text: &str) -> Result<f64, String> {
    let refused = || format!("expected a rate such as 50/s, 300/min or 10/h, found {text:?}");
    let (number, unit) = text.split_once('/').ok_or_else(refused)?;
    let number: f64 = number.trim().parse().map_err(|_| refused())?;
    let seconds = match unit.trim() {
        "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(refused()),
    };
    let per_s = number / seconds;
    // A quotient that underflows is 0, which would mean no rate at all: full speed.
    if number > 1e9 || per_s <= 0.0 || !per_s.is_normal() {
        return Err(refused());
    }
    Ok(per_s)
}

impl Order {
    fn selection(&self) -> Selection {
        Selection { filter: self.filter.clone(), limit: self.limit }
    }

    /// Reads its edit, if it has one.
    ///
    /// # Errors
    /// When that is no JSON Patch.
    pub fn edit(&self) -> Result<Option<PayloadEdit>, EditError> {
        self.edit.as_deref().map(|patch| PayloadEdit::parse(patch, self.by.clone())).transpose()
    }

    /// What it would do, without doing it. `mask` hides what the person must not see.
    ///
    /// # Errors
    /// When the store does not answer. The edit has to be a JSON Patch; see [`Order::edit`].
    pub async fn preview(&self, store: &dyn Store, mask: Mask<'_>) -> Result<Preview, StoreError> {
        let mut counts = store.preview_replay(&self.selection()).await?;
        let mut edits = Vec::new();
        if let Ok(Some(edit)) = self.edit() {
            // What could not be read can be edited.
            counts.waiting += counts.skipped.remove("not_replayable").unwrap_or(0);
            let shown = store.list(&self.filter, None, self.limit.unwrap_or(SHOWN_EDITS).min(SHOWN_EDITS)).await?;
            edits = shown.items.iter().map(|task| preview_edit(&edit, task, store, mask)).collect::<Vec<_>>();
            // Where all are looked at, it is known how many the edit does not fit; of more, the first tell.
            let looked_at = i64::try_from(edits.len()).unwrap_or(i64::MAX);
            let misfits = edits.iter().filter(|edit| edit.refused.is_some()).count();
            if looked_at == counts.waiting && misfits > 0 {
                let misfits = i64::try_from(misfits).unwrap_or(i64::MAX);
                counts.waiting -= misfits;
                *counts.skipped.entry("not_editable".into()).or_insert(0) += misfits;
            }
        }
        Ok(Preview {
            matched: counts.matched(),
            replayed: counts.waiting,
            skipped: counts.skipped,
            edits,
            dry_run: true,
        })
    }

    /// Makes the job. `driver`: who drives it from the start, and how long without a sign of life.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn place(&self, store: &dyn Store, driver: Option<(String, i64)>) -> Result<ReplayJob, StoreError> {
        let new = NewReplay {
            selection: self.selection(),
            about: self.about.clone(),
            created_by: self.by.clone(),
            reason: self.reason.clone(),
            pace: self.pace,
            edit: self.edit.clone(),
            driver,
        };
        store.create_replay(new).await
    }
}

fn preview_edit(edit: &PayloadEdit, task: &Task, store: &dyn Store, mask: Mask<'_>) -> EditDocument {
    let id = task.id().to_owned();
    // Where fields are hidden, what changes in them is as well: the paths of a patch are the person's own.
    let hidden = mask.concerns(&task.spec.task_type) || mask.hides_bytes(task);
    match edit.preview(task, store.now()) {
        Ok(preview) => EditDocument {
            id,
            becomes: Some(preview.becomes),
            refused: None,
            differences: preview
                .differences
                .into_iter()
                .map(|difference| DifferenceDocument {
                    path: difference.path,
                    before: difference.before.filter(|_| !hidden),
                    after: difference.after.filter(|_| !hidden),
                })
                .collect(),
        },
        Err(error) => EditDocument { id, becomes: None, refused: Some(error.to_string()), differences: Vec::new() },
    }
}

/// The word for what a person did to a job.
pub fn steered(word: Steer) -> &'static str {
    match word {
        Steer::Pause => "paused",
        Steer::Resume => "resumed",
        Steer::Cancel => "cancelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_ratios_are_read_and_refused() {
        assert_eq!(rate("50/s"), Ok(50.0));
        assert_eq!(rate("300/min"), Ok(5.0));
        for bad in ["", "50", "0/s", "-1/s", "x/s", "5/day", "nan/s", "inf/s", "5e-324/h", "1e-310/s", "-0/s"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(pace(None, true, None).unwrap().max_failure_ratio, Some(DEFAULT_MAX_FAILURE_RATIO));
        assert_eq!(pace(None, false, None).unwrap().max_failure_ratio, None);
        for bad in [-0.1, 1.1, f64::NAN] {
            assert!(pace(None, false, Some(bad)).is_err(), "{bad}");
        }
    }
}
