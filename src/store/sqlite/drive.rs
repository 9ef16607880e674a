//! What a replay job's driver does: takes the job, releases letters, writes down what became of them. And letters that replay themselves.

use sqlx::{Row, SqliteConnection};

use super::SqliteStore;
use super::columns::{self, Binds, select_tasks, spec, state};
use super::fault::Fault;
use super::read::limit;
use super::replays::{RUNNING, tally};
use super::writer;
use crate::store::triage::{became, command_for};
use crate::store::{
    ItemCounts, ItemOutcome, Pace, Released, ReplayJob, ReplayLease, ReplayOrigin, ReplayStep, StoreError,
};
use crate::task::{Command, Millis, PayloadEdit, Task};

/// A selection that has shown no sign of life for so long is given up.
const SELECTION_MS: Millis = 60_000;

/// Whether a lease is in force: the job runs and has no newer driver.
const HELD: &str = "SELECT reason, edit, created_by FROM replay_jobs WHERE id = ? AND fence = ? AND state = 'running'";

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
            .transact(move |conn, _, now| {
                Box::pin(async move {
                    let sql = "UPDATE replay_jobs SET state = 'stopped', ended_at = ?1, changed_at = ?1, \
                         why = 'its letters were never all written down; none of them was replayed' \
                         WHERE state = 'selecting' AND changed_at <= ?2";
                    sqlx::query(sql).bind(now).bind(now.saturating_sub(SELECTION_MS)).execute(&mut *conn).await?;
                    let sql = "UPDATE replay_jobs SET worker = ?1, fence = fence + 1, lease_until = ?2 WHERE id = \
                         (SELECT id FROM replay_jobs WHERE state = 'running' AND lease_until <= ?3 AND (?4 IS NULL OR id = ?4) \
                         ORDER BY id LIMIT 1) RETURNING id";
                    let mut binds = Binds::default();
                    binds.text(&worker).add(now.saturating_add(hold_ms)).add(now).add(id);
                    Ok(sqlx::query_scalar_with::<_, i64, _>(sql, binds.done()).fetch_optional(conn).await?)
                })
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
        self.transact(move |conn, context, now| {
            Box::pin(async move {
                let held = sqlx::query(HELD).bind(lease.job).bind(lease.fence).fetch_optional(&mut *conn).await?;
                let Some(held) = held else { return Ok(None) };
                let mut columns = columns::Columns::of(&held);
                let mut read = || Ok((columns.next()?, columns.next()?, columns.next()?));
                let (note, edit, by): (Option<String>, Option<String>, Option<String>) = read().map_err(Fault::Unusable)?;
                let edit = edit.map(|text| PayloadEdit::parse(&text, by)).transpose();
                let edit = edit.map_err(|error| Fault::Unusable(format!("replay job {}: {error}", lease.job)))?;
                let edit = edit.map(std::sync::Arc::new);

                let next = sqlx::query(NEXT_ITEMS).bind(lease.job).bind(limit(most)).fetch_all(&mut *conn).await?;
                let mut places = Vec::with_capacity(next.len());
                let mut commands: Vec<Command> = Vec::with_capacity(next.len());
                for row in &next {
                    let mut columns = columns::Columns::of(row);
                    let mut read = || Ok((columns.next()?, columns.next()?, columns.next()?));
                    let (position, id, generation): (i64, String, i64) = read().map_err(Fault::Unusable)?;
                    places.push(position);
                    commands.push(command_for(id, generation, edit.as_ref(), note.clone()));
                }
                let answers = writer::bisect(conn, context, &commands, now).await?;
                let fates: Vec<_> = answers.iter().map(became).collect();
                let rows: Vec<serde_json::Value> = places
                    .iter()
                    .zip(&fates)
                    .map(|(position, fate)| {
                        serde_json::json!([position, fate.outcome.as_str(), fate.why, fate.runs_as, fate.runs_generation])
                    })
                    .collect();
                let sql = "UPDATE replay_items SET outcome = fate.value ->> 1, why = fate.value ->> 2, runs_as = fate.value ->> 3, \
                     runs_generation = fate.value ->> 4, at = ?2 FROM json_each(?3) AS fate \
                     WHERE job = ?1 AND position = fate.value ->> 0";
                let mut binds = Binds::default();
                binds.add(lease.job).add(now).add(serde_json::Value::Array(rows).to_string());
                sqlx::query_with(sql, binds.done()).execute(&mut *conn).await?;
                let sql = "UPDATE replay_jobs SET paced_to_us = ?, lease_until = ? WHERE id = ?";
                let until = now.saturating_add(lease.hold_ms);
                sqlx::query(sql).bind(paced_to_us).bind(until).bind(lease.job).execute(conn).await?;
                let counts = tally(&fates.into_iter().map(|fate| (fate.outcome, fate.why)).collect::<Vec<_>>());
                Ok(Some(Released { answers, counts }))
            })
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
            .transact(move |conn, _, now| {
                Box::pin(async move {
                    let held = sqlx::query(HELD).bind(lease.job).bind(lease.fence).fetch_optional(&mut *conn).await?;
                    if held.is_none() {
                        return Ok(ItemCounts::default());
                    }
                    let pairs: Vec<_> = ended
                        .iter()
                        .map(|(position, outcome)| serde_json::json!([position, outcome.as_str()]))
                        .collect();
                    let sql = "UPDATE replay_items SET outcome = fate.value ->> 1, at = ?2 FROM json_each(?3) AS fate \
                         WHERE job = ?1 AND position = fate.value ->> 0 AND outcome = 'replayed'";
                    let mut binds = Binds::default();
                    binds.add(lease.job).add(now).add(serde_json::Value::Array(pairs).to_string());
                    sqlx::query_with(sql, binds.done()).execute(conn).await?;
                    Ok(tally(&ended.into_iter().map(|(_, outcome)| (outcome, None)).collect::<Vec<_>>()))
                })
            })
            .await?;
        Ok((counts, next))
    }

    pub(super) async fn step(&self, lease: &ReplayLease, step: ReplayStep) -> Result<bool, StoreError> {
        let lease = *lease;
        self.transact(move |conn, _, now| {
            Box::pin(async move {
                let alive = now.saturating_add(lease.hold_ms);
                let (set, at, word) = match step {
                    ReplayStep::Alive => ("lease_until = ?3", alive, None),
                    ReplayStep::LeaveToOthers => ("lease_until = ?3", 0, None),
                    ReplayStep::Stage(stage) => {
                        ("lease_until = ?3, stage = CAST(?4 AS INTEGER)", alive, Some(stage.to_string()))
                    }
                    ReplayStep::Stop(why) => {
                        ("state = 'stopped', changed_at = ?3, ended_at = ?3, why = ?4", now, Some(why))
                    }
                    ReplayStep::Finish => ("state = 'done', changed_at = ?3, ended_at = ?3", now, None),
                };
                let sql = format!(
                    "UPDATE replay_jobs SET {set} WHERE id = ?1 AND fence = ?2 AND state = 'running' RETURNING id"
                );
                let mut binds = Binds::default();
                binds.add(lease.job).add(lease.fence).add(at);
                if let Some(word) = word {
                    binds.text(&word);
                }
                let done = sqlx::query_with(sqlx::AssertSqlSafe(sql), binds.done()).fetch_optional(conn).await?;
                Ok(done.is_some())
            })
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
        let letters: Vec<_> =
            letters.iter().map(|(id, generation, at)| serde_json::json!([id, generation, at])).collect();
        let letters = serde_json::Value::Array(letters).to_string();
        self.transact(move |conn, _, _| {
            Box::pin(async move {
                let sql = "UPDATE tasks SET wake_at = letter.value ->> 2 FROM json_each(?) AS letter \
                     WHERE tasks.id = letter.value ->> 0 AND tasks.status = 'dead' AND tasks.generation = letter.value ->> 1 \
                     AND tasks.wake_at IS NULL";
                sqlx::query(sql).bind(letters).execute(&mut *conn).await?;
                let sql = match looked_to {
                    Some(_) => "INSERT OR REPLACE INTO triage_marks (name, at) VALUES (?1, ?2)",
                    None => "DELETE FROM triage_marks WHERE name = ?1 AND ?2 IS NULL",
                };
                sqlx::query(sql).bind(MARK).bind(looked_to).execute(conn).await?;
                Ok(())
            })
        })
        .await
    }

    pub(super) async fn make_automatic_replay(&self, pace: Pace, most: usize) -> Result<Option<ReplayJob>, StoreError> {
        let mut binds = Binds::default();
        binds.add(self.clock.now()).add(1_i64);
        if self.rows(APPOINTED, binds).await?.is_empty() {
            return Ok(None);
        }
        let made = self
            .transact(move |conn, _, now| Box::pin(async move { insert_automatic(conn, pace, limit(most), now).await }))
            .await?;
        match made {
            Some(id) => self.job(id).await,
            None => Ok(None),
        }
    }
}

/// A job of the letters whose time has come. Their appointments are over: should the job be ended by a person, they stay dead.
async fn insert_automatic(
    conn: &mut SqliteConnection,
    pace: Pace,
    most: i64,
    now: Millis,
) -> Result<Option<i64>, Fault> {
    let seqs: Vec<i64> = sqlx::query_scalar(APPOINTED).bind(now).bind(most).fetch_all(&mut *conn).await?;
    if seqs.is_empty() {
        return Ok(None);
    }
    let sql = "INSERT INTO replay_jobs (origin, created_at, reason, about, rate_per_s, ramp, max_failure_ratio, state, changed_at) \
         VALUES ('automatic', ?1, 'automatic replay', '{}', ?2, ?3, ?4, 'running', ?1) RETURNING id";
    let id: i64 = sqlx::query_scalar(sql)
        .bind(now)
        .bind(pace.rate_per_s)
        .bind(i64::from(pace.ramp))
        .bind(pace.max_failure_ratio)
        .fetch_one(&mut *conn)
        .await?;
    let seqs = serde_json::json!(seqs).to_string();
    let sql = "INSERT INTO replay_items (job, position, task_id, generation, outcome, at) \
         SELECT ?1, 1 + wanted.key, task.id, task.generation, 'waiting', ?3 \
         FROM json_each(?2) AS wanted CROSS JOIN tasks AS task ON task.seq = wanted.value";
    sqlx::query(sql).bind(id).bind(&seqs).bind(now).execute(&mut *conn).await?;
    let sql = "UPDATE tasks SET wake_at = NULL WHERE seq IN (SELECT value FROM json_each(?))";
    sqlx::query(sql).bind(&seqs).execute(conn).await?;
    Ok(Some(id))
}
