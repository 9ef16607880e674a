//! What the store keeps of replay jobs and their letters.

use std::collections::{BTreeMap, HashSet};

use super::Inner;
use crate::store::{
    GroupNote, ItemCounts, ItemOutcome, Pace, ReplayItem, ReplayJob, ReplayLease, ReplayOrigin, ReplayState, Selection,
};
use crate::task::{EditRecord, Millis, Status, Task};

/// What the store keeps besides tasks.
#[derive(Debug, Default)]
pub(super) struct Triage {
    pub(super) notes: BTreeMap<(String, String), GroupNote>,
    pub(super) jobs: BTreeMap<i64, ReplayJob>,
    pub(super) items: BTreeMap<(i64, i64), Item>,
    pub(super) edits: Vec<EditRecord>,
    pub(super) looked_to: Option<Millis>,
}

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) item: ReplayItem,
    pub(super) runs_generation: Option<i64>,
}

impl Inner {
    /// Letters that match, newest first.
    pub(super) fn letters(&self, selection: &Selection) -> Vec<&Task> {
        let letters = self.order.values().rev().filter_map(|id| self.rows.get(id));
        let letters = letters.filter(|task| task.state.status == Status::Dead && self.matches(&selection.filter, task));
        letters.take(selection.limit.unwrap_or(usize::MAX)).collect()
    }

    /// The items of a job over `selection`: id, generation, and why it is skipped.
    pub(super) fn select(&self, selection: &Selection, edited: bool) -> Vec<(String, i64, Option<&'static str>)> {
        let letters = self.letters(selection);
        let mut chosen: Vec<_> = letters
            .iter()
            .map(|task| {
                let fit = edited || task.state.dead_reason.is_none_or(|reason| reason.is_replayable());
                (task.id().to_owned(), task.stamp().generation, (!fit).then_some("not_replayable"))
            })
            .collect();
        if selection.limit.is_none_or(|most| chosen.len() < most) {
            let known: HashSet<&str> = letters.iter().map(|task| task.id()).collect();
            for id in selection.filter.ids.iter().filter(|id| !known.contains(id.as_str())) {
                let task = self.rows.get(id);
                let why = match task.map(|task| task.state.status) {
                    None => "not_found",
                    Some(Status::Dead) => "not_matched",
                    Some(_) => "not_dead",
                };
                chosen.push((id.clone(), task.map_or(0, |task| task.stamp().generation), Some(why)));
            }
        }
        chosen
    }

    /// The item with what it has come to by now.
    pub(super) fn live(&self, item: &Item) -> ReplayItem {
        let mut found = item.item.clone();
        let runs = found.runs_as.as_ref().and_then(|id| self.rows.get(id));
        if let (ItemOutcome::Replayed, Some(task), Some(generation)) = (found.outcome, runs, item.runs_generation) {
            let outcome = ItemOutcome::of(task.state.status, task.stamp().generation, generation);
            found.outcome = outcome.unwrap_or(ItemOutcome::Replayed);
        }
        found.runs_as = found.runs_as.filter(|id| *id != found.task_id);
        found
    }

    pub(super) fn items_of_job(&self, job: i64) -> impl Iterator<Item = &Item> {
        self.triage.items.range((job, i64::MIN)..=(job, i64::MAX)).map(|(_, item)| item)
    }

    pub(super) fn job(&self, id: i64) -> Option<ReplayJob> {
        let mut job = self.triage.jobs.get(&id)?.clone();
        job.counts = ItemCounts::default();
        for item in self.items_of_job(id) {
            let item = self.live(item);
            job.counts.add(item.outcome, item.why.as_deref(), 1);
        }
        Some(job)
    }

    pub(super) fn add_job(&mut self, job: ReplayJob, letters: Vec<(String, i64, Option<&'static str>)>) -> ReplayJob {
        let (id, at) = (job.id, job.created_at);
        for (position, (task_id, generation, why)) in (1..).zip(letters) {
            let outcome = if why.is_some() { ItemOutcome::Skipped } else { ItemOutcome::Waiting };
            let why = why.map(str::to_owned);
            let item = ReplayItem { job: id, position, task_id, generation, outcome, why, runs_as: None, at };
            self.triage.items.insert((id, position), Item { item, runs_generation: None });
        }
        self.triage.jobs.insert(id, job.clone());
        self.job(id).unwrap_or(job)
    }

    pub(super) fn held(&mut self, lease: &ReplayLease) -> Option<&mut ReplayJob> {
        let job = self.triage.jobs.get_mut(&lease.job)?;
        (job.fence == lease.fence && job.state == ReplayState::Running).then_some(job)
    }

    pub(super) fn new_job(&self, origin: ReplayOrigin, pace: Pace, now: Millis) -> ReplayJob {
        ReplayJob {
            id: self.triage.jobs.last_key_value().map_or(1, |(last, _)| last + 1),
            origin,
            created_at: now,
            created_by: None,
            reason: None,
            about: serde_json::json!({}),
            pace,
            edit: None,
            state: ReplayState::Running,
            why: None,
            changed_by: None,
            changed_at: now,
            stage: 0,
            paced_to_us: 0,
            worker: None,
            fence: 0,
            lease_until: 0,
            ended_at: None,
            counts: ItemCounts::default(),
        }
    }
}
