//! The part of the port that is about dead letters, as far as it is not in a file of its own.

use async_trait::async_trait;

use super::engine::{Ask, Engine};
use super::value::values;
use super::{drive, groups, prune, replays};
use crate::store::{
    Filter, GroupNote, ItemCounts, ItemOutcome, LetterGroup, LetterGroupBy, LetterHistory, NewReplay, Pace, Prunable,
    Released, ReplayItem, ReplayJob, ReplayLease, ReplayState, ReplayStep, Selection, Steer, Steered, StoreError,
    TriageStore,
};
use crate::task::{EditRecord, Millis, Task};

/// The edit that made task ?1, and those that were made of it.
pub(crate) const EDITS_OF: &str = "SELECT task_id, edited_from, edited_at, edited_by, reason, patch FROM edits WHERE task_id = ?1 \
     UNION SELECT task_id, edited_from, edited_at, edited_by, reason, patch FROM edits INDEXED BY edits_from WHERE edited_from = ?1 \
     ORDER BY 3";

pub(crate) const HISTORIES: &str = "SELECT wanted.key, count(attempt.fence), \
     min(CASE WHEN attempt.outcome <> 'succeeded' THEN attempt.ended_at END), \
     max(CASE WHEN attempt.outcome <> 'succeeded' THEN attempt.ended_at END) FROM {listed:?} AS wanted \
     LEFT JOIN attempts AS attempt ON attempt.task_id = wanted.value AND attempt.outcome <> 'released' GROUP BY wanted.key";

#[async_trait]
impl<E: Engine> TriageStore for E {
    async fn letter_groups(
        &self,
        by: &LetterGroupBy,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<LetterGroup>, StoreError> {
        groups::groups(self, by, filter, limit).await
    }

    async fn group_notes(&self, by: &LetterGroupBy) -> Result<Vec<GroupNote>, StoreError> {
        groups::notes(self, by).await
    }

    async fn note_group(&self, by: &LetterGroupBy, note: GroupNote) -> Result<(), StoreError> {
        groups::note(self, by.to_string(), note).await
    }

    async fn preview_replay(&self, selection: &Selection) -> Result<ItemCounts, StoreError> {
        replays::preview(self, selection).await
    }

    async fn create_replay(&self, new: NewReplay) -> Result<ReplayJob, StoreError> {
        replays::make(self, new).await
    }

    async fn replays(
        &self,
        states: &[ReplayState],
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<ReplayJob>, StoreError> {
        replays::jobs(self, states, before, limit).await
    }

    async fn replay(&self, id: i64) -> Result<Option<ReplayJob>, StoreError> {
        replays::one(self, id).await
    }

    async fn replay_items(
        &self,
        id: i64,
        outcomes: &[ItemOutcome],
        after: i64,
        limit: usize,
    ) -> Result<Vec<ReplayItem>, StoreError> {
        replays::items(self, id, outcomes, after, limit).await
    }

    async fn replays_of(&self, task_id: &str, limit: usize) -> Result<Vec<ReplayItem>, StoreError> {
        replays::items_of(self, task_id, limit).await
    }

    async fn steer_replay(
        &self,
        id: i64,
        word: Steer,
        by: Option<&str>,
        why: Option<&str>,
    ) -> Result<Steered, StoreError> {
        replays::steer(self, id, word, by, why).await
    }

    async fn lease_replay(
        &self,
        id: Option<i64>,
        worker: &str,
        hold_ms: Millis,
    ) -> Result<Option<ReplayJob>, StoreError> {
        drive::lease(self, id, worker, hold_ms).await
    }

    async fn release_items(
        &self,
        lease: &ReplayLease,
        most: usize,
        paced_to_us: i64,
    ) -> Result<Option<Released>, StoreError> {
        drive::release(self, lease, most, paced_to_us).await
    }

    async fn judge_items(
        &self,
        lease: &ReplayLease,
        after: i64,
        most: usize,
    ) -> Result<(ItemCounts, Option<i64>), StoreError> {
        drive::judge(self, lease, after, most).await
    }

    async fn step_replay(&self, lease: &ReplayLease, step: ReplayStep) -> Result<bool, StoreError> {
        drive::step(self, lease, step).await
    }

    async fn unappointed(&self, limit: usize) -> Result<Vec<(Task, usize, bool)>, StoreError> {
        drive::newly_dead(self, limit).await
    }

    async fn appoint(&self, looked_to: Option<Millis>, letters: &[(String, i64, Millis)]) -> Result<(), StoreError> {
        drive::set_appointments(self, looked_to, letters).await
    }

    async fn create_automatic_replay(&self, pace: Pace, most: usize) -> Result<Option<ReplayJob>, StoreError> {
        drive::make_automatic(self, pace, most).await
    }

    async fn edits_of(&self, task_id: &str) -> Result<Vec<EditRecord>, StoreError> {
        self.all(EDITS_OF, values![task_id], |columns| {
            Ok(EditRecord {
                task_id: columns.next()?,
                edited_from: columns.next()?,
                edited_at: columns.next()?,
                edited_by: columns.next()?,
                reason: columns.next()?,
                patch: columns.next()?,
            })
        })
        .await
    }

    async fn letter_histories(&self, ids: &[String]) -> Result<Vec<LetterHistory>, StoreError> {
        let mut arguments = values![];
        arguments.list(ids);
        let found = self.all(HISTORIES, arguments, |columns| {
            let index: i64 = columns.next()?;
            let (attempts, first_failed_at, last_failed_at) = (columns.next()?, columns.next()?, columns.next()?);
            Ok((index, LetterHistory { attempts, first_failed_at, last_failed_at }))
        });
        let mut histories = vec![LetterHistory::default(); ids.len()];
        for (index, history) in found.await? {
            if let Some(place) = usize::try_from(index).ok().and_then(|index| histories.get_mut(index)) {
                *place = history;
            }
        }
        Ok(histories)
    }

    async fn prune(&self, what: Prunable, before: Millis, most: usize, dry_run: bool) -> Result<i64, StoreError> {
        prune::prune(self, what, before, most, dry_run).await
    }
}
