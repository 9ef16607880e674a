//! Retention, as the stores in databases have it: what has ended long ago is removed. Dead letters and whatever is unfinished stay.

use std::collections::HashSet;

use super::Inner;
use crate::store::{ItemOutcome, Prunable};
use crate::task::{Millis, Status, Task};

impl Inner {
    /// Removes at most `most` of them, or only counts them.
    pub(super) fn prune(&mut self, what: Prunable, before: Millis, most: usize, dry_run: bool) -> usize {
        match what {
            Prunable::Tasks => self.prune_tasks(before, most, dry_run),
            Prunable::Attachments => self.prune_attachments(before, most, dry_run),
            Prunable::Cached => {
                let old = self.cached.iter().filter(|(_, (_, stored_at))| *stored_at < before);
                let old: Vec<_> = old.map(|(key, _)| key.clone()).take(most).collect();
                if !dry_run {
                    old.iter().for_each(|key| _ = self.cached.remove(key));
                }
                old.len()
            }
            Prunable::Gates => {
                let idle = self.rows.gates.iter().filter(|(_, state)| state.is_idle_since(before));
                let idle: Vec<String> = idle.map(|(key, _)| key.clone()).take(most).collect();
                if !dry_run {
                    idle.iter().for_each(|key| _ = self.rows.gates.remove(key));
                }
                idle.len()
            }
            Prunable::Replays => {
                let old = self.triage.jobs.values().filter(|job| job.state.is_final());
                let old = old.filter(|job| job.ended_at.is_some_and(|at| at < before));
                let old: HashSet<i64> = old.map(|job| job.id).take(most).collect();
                if !dry_run {
                    self.triage.jobs.retain(|id, _| !old.contains(id));
                    self.triage.items.retain(|(job, _), _| !old.contains(job));
                }
                old.len()
            }
        }
    }

    fn prune_tasks(&mut self, before: Millis, most: usize, dry_run: bool) -> usize {
        let awaited: HashSet<&str> = self
            .triage
            .items
            .values()
            .filter(|item| item.item.outcome == ItemOutcome::Replayed)
            .flat_map(|item| [Some(item.item.task_id.as_str()), item.item.runs_as.as_deref()])
            .flatten()
            .collect();
        let may_go = |task: &&Task| {
            matches!(task.state.status, Status::Succeeded | Status::Discarded | Status::Cancelled)
                && task.state.ended_at.is_some_and(|at| at < before)
                && !awaited.contains(task.id())
        };
        let ids: Vec<String> = self.rows.tasks().filter(may_go).map(|task| task.id().to_owned()).take(most).collect();
        if !dry_run {
            for id in &ids {
                self.rows.forget(id);
                self.results.remove(id);
                self.attempts.retain(|(task, _), _| task != id);
                if let Some(place) = self.places.remove(id) {
                    self.order.remove(&place);
                }
            }
        }
        ids.len()
    }

    fn prune_attachments(&mut self, before: Millis, most: usize, dry_run: bool) -> usize {
        let rows = &self.rows;
        let is_dead = |id: &str| rows.get(id).is_some_and(|task| task.state.status == Status::Dead);
        let mut removed = 0;
        for attempt in self.attempts.values_mut() {
            if attempt.ended_at >= before || is_dead(&attempt.task_id) || removed >= most {
                continue;
            }
            removed += attempt.attachments.len();
            if !dry_run {
                attempt.attachments.clear();
            }
        }
        removed
    }
}
