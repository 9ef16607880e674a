//! What a replay job's driver does: takes the job, releases letters, writes down what became of them. And letters that replay themselves.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;
use sqlx::Row;

use super::SqliteStore;
use super::columns::{Bind, Binds, select_tasks, spec, state};
use super::fault::Fault;
use super::read::limit;
use super::replays::RUNNING;
use super::writer;
use crate::store::triage::{Fate, became, command_for};
use crate::store::{
    ItemCounts, ItemOutcome, Pace, Released, ReplayJob, ReplayLease, ReplayOrigin, ReplayStep, StoreError,
};
use crate::task::{Millis, PayloadEdit, Task};

/// A selection that has shown no sign of life for so long is given up.
const SELECTION_MS: Millis = 60_000;

/// The next letters of job ?1.
pub(super) const NEXT_ITEMS: &str = "SELECT position, task_id, generation FROM replay_items INDEXED BY replay_items_outcome \
     WHERE job = ? AND outcome = 'waiting' AND why IS NULL ORDER BY position LIMIT ?";

/// Jobs that somebody has to go on with: that run without a driver, or whose selection was given up.
pub(super) const UNDRIVEN: &str = "SELECT id FROM replay_jobs INDEXED BY replay_jobs_open WHERE \
     (state = 'selecting' OR state = 'running' OR state = 'paused') AND \
     (state = 'running' AND lease_until <= ?1 OR state = 'selecting' AND changed_at <= ?2) ORDER BY id";

/// Dead letters that died after ?1, oldest first.
pub(super) const DIED_AFTER: &str = select_tasks!(
    "INDEXED BY tasks_ended WHERE ended_at IS NOT NULL AND ended_at > ? AND status = 'dead' AND wake_at IS NULL ORDER BY ended_at LIMIT ?"
);

/// Letters whose time has come at ?1.
pub(super) const APPOINTED: &str = "SELECT seq FROM tasks INDEXED BY tasks_appointed \
     WHERE status = 'dead' AND wake_at IS NOT NULL AND wake_at <= ? ORDER BY wake_at LIMIT ?";

/// How often the task was replayed by jobs of each origin.
pub(super) const REPLAYED_BY: &str = "SELECT job.origin, count(*) FROM replay_items AS item INDEXED BY replay_items_task \
     JOIN replay_jobs AS job ON job.id = item.job WHERE item.task_id = ? AND item.runs_as IS NOT NULL GROUP BY job.origin";

const MARK: &str = "automatic";

impl SqliteStore {
    pub(super) async fn lease(
        &self,
        id: Option<i64>,
        worker: &str,
        hold_ms: Millis,
    ) -> Result<Option<ReplayJob>, StoreError> {
        let now = self.clock.now();
        let mut binds = Binds::default();
        binds.add(now).add(now.saturating_sub(SELECTION_MS));
        let rows = self.rows(UNDRIVEN, binds).await?;
        let open =
            rows.iter().map(|row| self.read(row, |columns| columns.next::<i64>())).collect::<Result<Vec<_>, _>>()?;
        // Most of the time there is nothing to do, and nothing is written.
        if open.iter().all(|open| id.is_some_and(|id| id != *open)) {
            return Ok(None);
        }
        let worker = worker.to_owned();
        let taken = self
            .write(move |conn, _, now| {
                let sql = "UPDATE replay_jobs SET state = 'stopped', ended_at = ?1, changed_at = ?1, \
                     why = 'its letters were never all written down; none of them was replayed' \
                     WHERE state = 'selecting' AND changed_at <= ?2";
                conn.execute(sql, params![now, now.saturating_sub(SELECTION_MS)])?;
                let sql = "UPDATE replay_jobs SET worker = ?1, fence = fence + 1, lease_until = ?2 WHERE id = \
                     (SELECT id FROM replay_jobs WHERE state = 'running' AND lease_until <= ?3 AND (?4 IS NULL OR id = ?4) \
                     ORDER BY id LIMIT 1) RETURNING id";
                let values = params![worker, now.saturating_add(hold_ms), now, id];
                Ok(conn.query_row(sql, values, |row| row.get::<_, i64>(0)).optional()?)
            })
            .await?;
        match taken {
            Some(id) => self.job(id).await,
            None => Ok(None),
        }
    }

    pub(super) async fn release(
        &self,
        lease: &ReplayLease,
        most: usize,
        paced_to_us: i64,
    ) -> Result<Option<Released>, StoreError> {
        let lease = *lease;
        self.write(move |conn, context, now| {
            let Some((note, edit)) = held(conn, &lease)? else { return Ok(None) };
            let mut next = conn.prepare_cached(NEXT_ITEMS)?;
            let next = next.query_map(params![lease.job, limit(most)], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
            })?;
            let (mut places, mut commands) = (Vec::new(), Vec::new());
            for item in next {
                let (position, id, generation) = item?;
                places.push(position);
                commands.push(command_for(id, generation, edit.as_ref(), note.clone()));
            }
            let answers = writer::bisect(conn, context, &commands, now)?;
            let fates: Vec<_> = answers.iter().map(became).collect();
            // One by one: joined with a list the planner may walk the whole job for it.
            let mut write = conn.prepare_cached(
                "UPDATE replay_items SET outcome = ?, why = ?, runs_as = ?, runs_generation = ?, at = ? WHERE job = ? AND position = ?",
            )?;
            for (position, fate) in places.iter().zip(&fates) {
                let Fate { outcome, why, runs_as, runs_generation } = fate;
                write.execute(params![outcome.as_str(), why, runs_as, runs_generation, now, lease.job, position])?;
            }
            let sql = "UPDATE replay_jobs SET paced_to_us = ?, lease_until = ? WHERE id = ?";
            let alive = now.saturating_add(lease.hold_ms);
            conn.prepare_cached(sql)?.execute(params![paced_to_us, alive, lease.job])?;
            let mut counts = ItemCounts::default();
            fates.iter().for_each(|fate| counts.add(fate.outcome, fate.why.as_deref(), 1));
            Ok(Some(Released { answers, counts }))
        })
        .await
    }

    pub(super) async fn judge(
        &self,
        lease: &ReplayLease,
        after: i64,
        most: usize,
    ) -> Result<(ItemCounts, Option<i64>), StoreError> {
        let mut binds = Binds::default();
        binds.add(lease.job).add(after).add(limit(most));
        let rows = self.rows(RUNNING, binds).await?;
        let mut ended = Vec::new();
        let mut last = after;
        for row in &rows {
            let (position, outcome) =
                self.read(row, |columns| Ok((columns.next::<i64>()?, columns.word(ItemOutcome::parse)?)))?;
            last = position;
            if outcome != ItemOutcome::Replayed {
                ended.push((position, outcome));
            }
        }
        let next = (rows.len() == most).then_some(last);
        if ended.is_empty() {
            return Ok((ItemCounts::default(), next));
        }
        let lease = *lease;
        let counts = self
            .write(move |conn, _, now| {
                let mut counts = ItemCounts::default();
                if held(conn, &lease)?.is_none() {
                    return Ok(counts);
                }
                let mut write = conn.prepare_cached(
                    "UPDATE replay_items SET outcome = ?, at = ? WHERE job = ? AND position = ? AND outcome = 'replayed'",
                )?;
                for (position, outcome) in &ended {
                    write.execute(params![outcome.as_str(), now, lease.job, position])?;
                }
                ended.iter().for_each(|(_, outcome)| counts.add(*outcome, None, 1));
                Ok(counts)
            })
            .await?;
        Ok((counts, next))
    }

    pub(super) async fn step(&self, lease: &ReplayLease, step: ReplayStep) -> Result<bool, StoreError> {
        let lease = *lease;
        self.write(move |conn, _, now| {
            let (job, fence, alive) = (lease.job, lease.fence, now.saturating_add(lease.hold_ms));
            const OURS: &str = "WHERE id = ?1 AND fence = ?2 AND state = 'running'";
            let run = |set: &str, values: &[&dyn rusqlite::ToSql]| {
                conn.prepare_cached(&format!("UPDATE replay_jobs SET {set} {OURS}"))?.execute(values)
            };
            let changed = match step {
                ReplayStep::Alive => run("lease_until = ?3", params![job, fence, alive]),
                ReplayStep::LeaveToOthers => run("lease_until = 0", params![job, fence]),
                ReplayStep::Stage(stage) => {
                    run("lease_until = ?3, stage = ?4", params![job, fence, alive, limit(stage)])
                }
                ReplayStep::Stop(why) => {
                    run("state = 'stopped', changed_at = ?3, ended_at = ?3, why = ?4", params![job, fence, now, why])
                }
                ReplayStep::Finish => run("state = 'done', changed_at = ?3, ended_at = ?3", params![job, fence, now]),
            };
            Ok(changed? > 0)
        })
        .await
    }

    pub(super) async fn newly_dead(&self, most: usize) -> Result<Vec<(Task, usize, bool)>, StoreError> {
        let sql = "SELECT at FROM triage_marks WHERE name = ?";
        let mut binds = Binds::default();
        binds.word(MARK);
        let Some(mark) =
            self.rows(sql, binds).await?.first().map(|row| row.try_get_unchecked::<i64, _>(0).unwrap_or(0))
        else {
            return Ok(Vec::new());
        };
        let mut binds = Binds::default();
        binds.add(mark).add(limit(most));
        let tasks = self.tasks(DIED_AFTER, binds).await?;
        let mut found = Vec::with_capacity(tasks.len());
        for task in tasks {
            let (mut automatically, mut by_person) = (0, false);
            // In its first generation nobody can have replayed it.
            if task.stamp().generation > 0 {
                let mut binds = Binds::default();
                binds.word(task.id());
                for row in &self.rows(REPLAYED_BY, binds).await? {
                    let (origin, count) =
                        self.read(row, |columns| Ok((columns.word(ReplayOrigin::parse)?, columns.next::<i64>()?)))?;
                    match origin {
                        ReplayOrigin::Automatic => automatically = usize::try_from(count).unwrap_or(0),
                        ReplayOrigin::Person => by_person = true,
                    }
                }
                // Replayed by what left no item: a person's own program.
                by_person |= i64::try_from(automatically).unwrap_or(0) < task.stamp().generation;
            }
            found.push((task, automatically, by_person));
        }
        Ok(found)
    }

    pub(super) async fn set_appointments(
        &self,
        looked_to: Option<Millis>,
        letters: &[(String, i64, Millis)],
    ) -> Result<(), StoreError> {
        let letters = letters.to_vec();
        self.write(move |conn, _, _| {
            let mut write = conn.prepare_cached(
                "UPDATE tasks SET wake_at = ? WHERE id = ? AND status = 'dead' AND generation = ? AND wake_at IS NULL",
            )?;
            for (id, generation, at) in &letters {
                write.execute(params![at, id, generation])?;
            }
            match looked_to {
                Some(at) => {
                    conn.execute("INSERT OR REPLACE INTO triage_marks (name, at) VALUES (?, ?)", params![MARK, at])?
                }
                None => conn.execute("DELETE FROM triage_marks WHERE name = ?", [MARK])?,
            };
            Ok(())
        })
        .await
    }

    pub(super) async fn make_automatic_replay(&self, pace: Pace, most: usize) -> Result<Option<ReplayJob>, StoreError> {
        let mut binds = Binds::default();
        binds.add(self.clock.now()).add(1_i64);
        if self.rows(APPOINTED, binds).await?.is_empty() {
            return Ok(None);
        }
        let made = self.write(move |conn, _, now| insert_automatic(conn, pace, limit(most), now)).await?;
        match made {
            Some(id) => self.job(id).await,
            None => Ok(None),
        }
    }
}

/// A job of the letters whose time has come. Their appointments are over: should the job be ended by a person, they stay dead.
fn insert_automatic(conn: &Connection, pace: Pace, most: i64, now: Millis) -> Result<Option<i64>, Fault> {
    let mut due = conn.prepare(APPOINTED)?;
    let seqs: Vec<i64> = due.query_map(params![now, most], |row| row.get(0))?.collect::<Result<_, _>>()?;
    if seqs.is_empty() {
        return Ok(None);
    }
    let sql = "INSERT INTO replay_jobs (origin, created_at, reason, about, rate_per_s, ramp, max_failure_ratio, state, changed_at) \
         VALUES ('automatic', ?1, 'automatic replay', '{}', ?2, ?3, ?4, 'running', ?1) RETURNING id";
    let values = params![now, pace.rate_per_s, pace.ramp, pace.max_failure_ratio];
    let id: i64 = conn.query_row(sql, values, |row| row.get(0))?;
    let seqs = json!(seqs).to_string();
    let sql = "INSERT INTO replay_items (job, position, task_id, generation, outcome, at) \
         SELECT ?1, 1 + wanted.key, task.id, task.generation, 'waiting', ?3 \
         FROM json_each(?2) AS wanted CROSS JOIN tasks AS task ON task.seq = wanted.value";
    conn.execute(sql, params![id, seqs, now])?;
    conn.execute("UPDATE tasks SET wake_at = NULL WHERE seq IN (SELECT value FROM json_each(?))", [&seqs])?;
    Ok(Some(id))
}

/// A job's reason and edit.
type Orders = (Option<String>, Option<Arc<PayloadEdit>>);

/// The orders of a job whose lease is in force: it runs and has no newer driver.
fn held(conn: &Connection, lease: &ReplayLease) -> Result<Option<Orders>, Fault> {
    type Found = (Option<String>, Option<String>, Option<String>);
    let sql = "SELECT reason, edit, created_by FROM replay_jobs WHERE id = ? AND fence = ? AND state = 'running'";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let found: Option<Found> = conn.prepare_cached(sql)?.query_row(params![lease.job, lease.fence], read).optional()?;
    let Some((reason, edit, by)) = found else { return Ok(None) };
    let edit = edit.map(|text| PayloadEdit::parse(&text, by)).transpose();
    let edit = edit.map_err(|error| Fault::Unusable(format!("replay job {}: {error}", lease.job)))?;
    Ok(Some((reason, edit.map(Arc::new))))
}
