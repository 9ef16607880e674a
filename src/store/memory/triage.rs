//! The part of the port that is about dead letters, by looking at everything.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::MemoryStore;
use super::jobs::Item;
use crate::store::replay::{became, command_for};
use crate::store::triage::HOUR_MS;
use crate::store::{
    Filter, GROUP_HOURS, GROUP_SAMPLES, GroupNote, ItemCounts, ItemOutcome, LetterGroup, LetterGroupBy, LetterHistory,
    LetterSample, NewReplay, Pace, Prunable, Released, ReplayItem, ReplayJob, ReplayLease, ReplayOrigin, ReplayState,
    ReplayStep, Selection, Steer, Steered, StoreError, TriageStore,
};
use crate::task::{AttemptOutcome, EditRecord, Millis, PayloadEdit, Status, Task};

fn key_of(by: &LetterGroupBy, task: &Task) -> Option<String> {
    let failure = task.state.failure.as_ref();
    match by {
        LetterGroupBy::Fingerprint => failure.map(|f| f.fingerprint.clone()).filter(|print| !print.is_empty()),
        LetterGroupBy::Class => failure.map(|f| f.class.clone()),
        LetterGroupBy::Type => Some(task.spec.task_type.clone()),
        LetterGroupBy::Reason => task.state.dead_reason.map(|reason| reason.as_str().to_owned()),
        LetterGroupBy::Label(name) => task.spec.labels.get(name).cloned(),
    }
}

fn sample(task: &Task) -> LetterSample {
    let failure = task.state.failure.as_ref();
    LetterSample {
        id: task.id().to_owned(),
        task_type: task.spec.task_type.clone(),
        died_at: task.state.ended_at.unwrap_or(0),
        class: failure.map(|f| f.class.clone()),
        code: failure.and_then(|f| f.code.clone()),
        http_status: failure.and_then(|f| f.http_status),
        message: failure.map(|f| f.message.clone()),
    }
}

#[async_trait]
impl TriageStore for MemoryStore {
    async fn letter_groups(
        &self,
        by: &LetterGroupBy,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<LetterGroup>, StoreError> {
        let hours = i64::try_from(GROUP_HOURS).unwrap_or(i64::MAX);
        let first_hour = self.clock.now().div_euclid(HOUR_MS) - hours + 1;
        let inner = self.inner();
        let mut groups: BTreeMap<Option<String>, LetterGroup> = BTreeMap::new();
        let mut letters = inner.letters(&Selection { filter: filter.clone(), limit: None });
        letters.sort_by(|a, b| (b.state.ended_at, b.id()).cmp(&(a.state.ended_at, a.id())));
        for task in letters {
            let key = key_of(by, task);
            let died_at = task.state.ended_at.unwrap_or(0);
            let group = groups.entry(key.clone()).or_insert_with(|| LetterGroup {
                key,
                first_died_at: died_at,
                last_died_at: died_at,
                ..LetterGroup::default()
            });
            group.count += 1;
            group.first_died_at = group.first_died_at.min(died_at);
            group.last_died_at = group.last_died_at.max(died_at);
            if let Ok(hour) = usize::try_from(died_at.div_euclid(HOUR_MS) - first_hour) {
                group.hourly[hour.min(GROUP_HOURS - 1)] += 1;
            }
            *group.types.entry(task.spec.task_type.clone()).or_insert(0) += 1;
            if let Some(reason) = task.state.dead_reason {
                *group.reasons.entry(reason).or_insert(0) += 1;
            }
            if let Some(failure) = &task.state.failure {
                *group.classes.entry(failure.class.clone()).or_insert(0) += 1;
                if let Some(code) = &failure.code {
                    *group.codes.entry(code.clone()).or_insert(0) += 1;
                }
                if !failure.fingerprint.is_empty() {
                    group.fingerprints.insert(failure.fingerprint.clone());
                }
            }
            if group.samples.len() < GROUP_SAMPLES {
                group.samples.push(sample(task));
            }
            group.next_replay_at = [group.next_replay_at, task.state.wake_at].into_iter().flatten().min();
        }
        let mut groups: Vec<LetterGroup> = groups.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.count), std::cmp::Reverse(group.last_died_at)));
        groups.truncate(limit);
        Ok(groups)
    }

    async fn group_notes(&self, by: &LetterGroupBy) -> Result<Vec<GroupNote>, StoreError> {
        let by = by.to_string();
        let inner = self.inner();
        Ok(inner.triage.notes.iter().filter(|((kind, _), _)| *kind == by).map(|(_, note)| note.clone()).collect())
    }

    async fn note_group(&self, by: &LetterGroupBy, note: GroupNote) -> Result<(), StoreError> {
        let key = (by.to_string(), note.key.clone());
        let noted_at = self.clock.now();
        let mut inner = self.inner();
        if note.owner.is_none() && note.note.is_none() {
            inner.triage.notes.remove(&key);
        } else {
            inner.triage.notes.insert(key, GroupNote { noted_at, ..note });
        }
        Ok(())
    }

    async fn preview_replay(&self, selection: &Selection) -> Result<ItemCounts, StoreError> {
        let mut counts = ItemCounts::default();
        for (_, _, why) in self.inner().select(selection, false) {
            let outcome = if why.is_some() { ItemOutcome::Skipped } else { ItemOutcome::Waiting };
            counts.add(outcome, why, 1);
        }
        Ok(counts)
    }

    async fn create_replay(&self, new: NewReplay) -> Result<ReplayJob, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let letters = inner.select(&new.selection, new.edit.is_some());
        let mut job = inner.new_job(ReplayOrigin::Person, new.pace, now);
        job.created_by = new.created_by;
        job.reason = new.reason;
        job.about = new.about;
        job.edit = new.edit;
        if let Some((worker, hold_ms)) = new.driver {
            job.worker = Some(worker);
            job.fence = 1;
            job.lease_until = now.saturating_add(hold_ms);
        }
        if letters.iter().all(|(_, _, why)| why.is_some()) {
            job.state = ReplayState::Done;
            job.ended_at = Some(now);
        }
        Ok(inner.add_job(job, letters))
    }

    async fn replays(
        &self,
        states: &[ReplayState],
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<ReplayJob>, StoreError> {
        let inner = self.inner();
        let jobs = inner.triage.jobs.range(..before.unwrap_or(i64::MAX)).rev();
        let jobs = jobs.filter(|(_, job)| states.is_empty() || states.contains(&job.state));
        Ok(jobs.filter_map(|(id, _)| inner.job(*id)).take(limit).collect())
    }

    async fn replay(&self, id: i64) -> Result<Option<ReplayJob>, StoreError> {
        Ok(self.inner().job(id))
    }

    async fn replay_items(
        &self,
        id: i64,
        outcomes: &[ItemOutcome],
        after: i64,
        limit: usize,
    ) -> Result<Vec<ReplayItem>, StoreError> {
        let inner = self.inner();
        let items = inner.items_of_job(id).map(|item| inner.live(item)).filter(|item| item.position > after);
        Ok(items.filter(|item| outcomes.is_empty() || outcomes.contains(&item.outcome)).take(limit).collect())
    }

    async fn replays_of(&self, task_id: &str, limit: usize) -> Result<Vec<ReplayItem>, StoreError> {
        let inner = self.inner();
        let items = inner.triage.items.values().rev().filter(|item| item.item.task_id == task_id);
        Ok(items.map(|item| inner.live(item)).take(limit).collect())
    }

    async fn steer_replay(
        &self,
        id: i64,
        word: Steer,
        by: Option<&str>,
        why: Option<&str>,
    ) -> Result<Steered, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let Some(job) = inner.triage.jobs.get_mut(&id) else { return Ok(Steered::Unknown) };
        let to = match (word, job.state) {
            (Steer::Pause, ReplayState::Running) => Some(ReplayState::Paused),
            (Steer::Resume, ReplayState::Paused) => Some(ReplayState::Running),
            (Steer::Cancel, state) if !state.is_final() => Some(ReplayState::Cancelled),
            _ => None,
        };
        if let Some(to) = to {
            job.state = to;
            job.changed_at = now;
            job.changed_by = by.map(str::to_owned);
            job.why = why.map(str::to_owned);
            job.ended_at = to.is_final().then_some(now);
            if to == ReplayState::Running {
                (job.lease_until, job.paced_to_us) = (0, 0);
            }
        }
        Ok(match (inner.job(id), to) {
            (None, _) => Steered::Unknown,
            (Some(job), Some(_)) => Steered::Done(Box::new(job)),
            (Some(job), None) => Steered::Conflict(Box::new(job)),
        })
    }

    async fn lease_replay(
        &self,
        id: Option<i64>,
        worker: &str,
        hold_ms: Millis,
    ) -> Result<Option<ReplayJob>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let free = |job: &&mut ReplayJob| {
            job.state == ReplayState::Running && job.lease_until <= now && id.is_none_or(|id| id == job.id)
        };
        let Some(job) = inner.triage.jobs.values_mut().find(free) else { return Ok(None) };
        job.worker = Some(worker.to_owned());
        job.fence += 1;
        job.lease_until = now.saturating_add(hold_ms);
        let id = job.id;
        Ok(inner.job(id))
    }

    async fn release_items(
        &self,
        lease: &ReplayLease,
        most: usize,
        paced_to_us: i64,
    ) -> Result<Option<Released>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let Some(job) = inner.held(lease) else { return Ok(None) };
        job.paced_to_us = paced_to_us;
        job.lease_until = now.saturating_add(lease.hold_ms);
        let (note, by) = (job.reason.clone(), job.created_by.clone());
        let edit = job.edit.as_deref().map(|text| PayloadEdit::parse(text, by)).transpose();
        let edit = edit.map_err(|error| StoreError::Unusable { place: "memory".into(), reason: error.to_string() })?;
        let edit = edit.map(std::sync::Arc::new);
        let waiting = inner.items_of_job(lease.job).filter(|item| item.item.outcome == ItemOutcome::Waiting);
        let next: Vec<ReplayItem> = waiting.take(most).map(|item| item.item.clone()).collect();
        let mut released = Released { answers: Vec::new(), counts: ItemCounts::default() };
        for item in next {
            let command = command_for(item.task_id, item.generation, edit.as_ref(), note.clone());
            let answer = inner.rows.apply(&command, now, &self.settings);
            inner.keep_changes();
            let fate = became(&answer);
            released.counts.add(fate.outcome, fate.why.as_deref(), 1);
            released.answers.push(answer);
            if let Some(known) = inner.triage.items.get_mut(&(lease.job, item.position)) {
                known.item.outcome = fate.outcome;
                known.item.why = fate.why;
                known.item.runs_as = fate.runs_as;
                known.item.at = now;
                known.runs_generation = fate.runs_generation;
            }
        }
        Ok(Some(released))
    }

    async fn judge_items(
        &self,
        lease: &ReplayLease,
        after: i64,
        most: usize,
    ) -> Result<(ItemCounts, Option<i64>), StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let running = inner
            .items_of_job(lease.job)
            .filter(|item| item.item.outcome == ItemOutcome::Replayed && item.item.position > after);
        let looked_at: Vec<(i64, ItemOutcome)> =
            running.take(most).map(|item| (item.item.position, inner.live(item).outcome)).collect();
        let next = (looked_at.len() == most).then(|| looked_at.last().map_or(after, |(position, _)| *position));
        let mut counts = ItemCounts::default();
        if inner.held(lease).is_none() {
            return Ok((counts, next));
        }
        for (position, outcome) in looked_at.into_iter().filter(|(_, outcome)| *outcome != ItemOutcome::Replayed) {
            counts.add(outcome, None, 1);
            if let Some(known) = inner.triage.items.get_mut(&(lease.job, position)) {
                known.item.outcome = outcome;
                known.item.at = now;
            }
        }
        Ok((counts, next))
    }

    async fn step_replay(&self, lease: &ReplayLease, step: ReplayStep) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let Some(job) = inner.held(lease) else { return Ok(false) };
        job.lease_until = now.saturating_add(lease.hold_ms);
        match step {
            ReplayStep::Alive => {}
            ReplayStep::LeaveToOthers => job.lease_until = 0,
            ReplayStep::Stage(stage) => job.stage = stage,
            ReplayStep::Stop(why) => {
                job.state = ReplayState::Stopped;
                job.why = Some(why);
                (job.changed_at, job.ended_at) = (now, Some(now));
            }
            ReplayStep::Finish => {
                job.state = ReplayState::Done;
                (job.changed_at, job.ended_at) = (now, Some(now));
            }
        }
        Ok(true)
    }

    async fn unappointed(&self, limit: usize) -> Result<Vec<(Task, usize, bool)>, StoreError> {
        let inner = self.inner();
        let Some(mark) = inner.triage.looked_to else { return Ok(Vec::new()) };
        let died = |task: &&Task| {
            task.state.status == Status::Dead
                && task.state.wake_at.is_none()
                && task.state.ended_at.is_some_and(|at| at > mark)
        };
        let mut died: Vec<&Task> = inner.rows.tasks().filter(died).collect();
        died.sort_by_key(|task| task.state.ended_at);
        died.truncate(limit);
        let by_origin = |task: &Task, origin: ReplayOrigin| {
            let items = inner.triage.items.values().filter(|item| item.item.task_id == task.id());
            let of_origin =
                |item: &&Item| inner.triage.jobs.get(&item.item.job).is_some_and(|job| job.origin == origin);
            items.filter(|item| item.item.runs_as.is_some()).filter(of_origin).count()
        };
        let found = died.into_iter().map(|task| {
            let automatically = by_origin(task, ReplayOrigin::Automatic);
            let by_person = by_origin(task, ReplayOrigin::Person) > 0
                || i64::try_from(automatically).unwrap_or(0) < task.stamp().generation;
            (task.clone(), automatically, by_person)
        });
        Ok(found.collect())
    }

    async fn appoint(&self, looked_to: Option<Millis>, letters: &[(String, i64, Millis)]) -> Result<(), StoreError> {
        let mut inner = self.inner();
        for (id, generation, at) in letters {
            let Some(task) = inner.rows.get(id) else { continue };
            let mut task = task.clone();
            let fits = task.state.status == Status::Dead && task.stamp().generation == *generation;
            if fits && task.state.wake_at.is_none() {
                task.state.wake_at = Some(*at);
                inner.rows.load(task);
            }
        }
        inner.triage.looked_to = looked_to;
        Ok(())
    }

    async fn create_automatic_replay(&self, pace: Pace, most: usize) -> Result<Option<ReplayJob>, StoreError> {
        let now = self.clock.now();
        let due = self.sorted(most, |task| {
            (task.state.status == Status::Dead).then_some(task.state.wake_at?).filter(|at| *at <= now)
        });
        if due.is_empty() {
            return Ok(None);
        }
        let mut inner = self.inner();
        let mut letters = Vec::with_capacity(due.len());
        for mut task in due {
            letters.push((task.id().to_owned(), task.stamp().generation, None));
            task.state.wake_at = None;
            inner.rows.load(task);
        }
        let mut job = inner.new_job(ReplayOrigin::Automatic, pace, now);
        job.reason = Some("automatic replay".into());
        Ok(Some(inner.add_job(job, letters)))
    }

    async fn edits_of(&self, task_id: &str) -> Result<Vec<EditRecord>, StoreError> {
        let inner = self.inner();
        let concerned = |edit: &&EditRecord| edit.task_id == task_id || edit.edited_from == task_id;
        Ok(inner.triage.edits.iter().filter(concerned).cloned().collect())
    }

    async fn letter_histories(&self, ids: &[String]) -> Result<Vec<LetterHistory>, StoreError> {
        let inner = self.inner();
        let history = |id: &String| {
            let mut history = LetterHistory::default();
            for attempt in inner.attempts_of(id).filter(|attempt| attempt.outcome != AttemptOutcome::Released) {
                history.attempts += 1;
                if attempt.outcome != AttemptOutcome::Succeeded {
                    history.first_failed_at.get_or_insert(attempt.ended_at);
                    history.last_failed_at = Some(attempt.ended_at);
                }
            }
            history
        };
        Ok(ids.iter().map(history).collect())
    }

    async fn prune(&self, what: Prunable, before: Millis, most: usize, dry_run: bool) -> Result<i64, StoreError> {
        let most = if dry_run { usize::MAX } else { most };
        let removed = self.inner().prune(what, before, most, dry_run);
        Ok(i64::try_from(removed).unwrap_or(i64::MAX))
    }
}
