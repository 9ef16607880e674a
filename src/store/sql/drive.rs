//! What a replay job's driver does: takes the job, releases letters, writes down what became of them. And letters that replay themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::columns::{Columns, select_tasks, spec, state};
use super::engine::{Ask, Engine, Tx, limit, read_records};
use super::fault::Fault;
use super::replays::{RUNNING, made, one};
use super::value::values;
use crate::store::replay::{Fate, became, command_for};
use crate::store::{
    ItemCounts, ItemOutcome, Pace, Released, ReplayJob, ReplayLease, ReplayOrigin, ReplayStep, StoreError,
};
use crate::task::{Command, Millis, PayloadEdit, Task};

/// A selection that has shown no sign of life for so long is given up.
const SELECTION_MS: Millis = 60_000;

/// The next letters of job ?1.
pub(crate) const NEXT_ITEMS: &str = "SELECT position, task_id, generation FROM replay_items INDEXED BY replay_items_outcome \
     WHERE job = ? AND outcome = 'waiting' AND why IS NULL ORDER BY position LIMIT ?";

/// Jobs that somebody has to go on with: that run without a driver, or whose selection was given up.
pub(crate) const UNDRIVEN: &str = "SELECT id FROM replay_jobs INDEXED BY replay_jobs_open WHERE \
     (state = 'selecting' OR state = 'running' OR state = 'paused') AND \
     (state = 'running' AND lease_until <= ?1 OR state = 'selecting' AND changed_at <= ?2) ORDER BY id";

/// Dead letters that died after ?1, oldest first.
pub(crate) const DIED_AFTER: &str = select_tasks!(
    "INDEXED BY tasks_ended WHERE ended_at IS NOT NULL AND ended_at > ? AND status = 'dead' AND wake_at IS NULL ORDER BY ended_at LIMIT ?"
);

/// Letters whose time has come at ?1.
pub(crate) const APPOINTED: &str = "SELECT seq FROM tasks INDEXED BY tasks_appointed \
     WHERE status = 'dead' AND wake_at IS NOT NULL AND wake_at <= ?1 ORDER BY wake_at LIMIT ?2";

/// How often the task was replayed by jobs of each origin.
pub(crate) const REPLAYED_BY: &str = "SELECT job.origin, count(*) FROM replay_items AS item INDEXED BY replay_items_task \
     JOIN replay_jobs AS job ON job.id = item.job WHERE item.task_id = ? AND item.runs_as IS NOT NULL GROUP BY job.origin";

const MARK: &str = "automatic";

pub(super) async fn lease<E: Engine>(
    store: &E,
    id: Option<i64>,
    worker: &str,
    hold_ms: Millis,
) -> Result<Option<ReplayJob>, StoreError> {
    let now = store.clock().now();
    let given_up = now.saturating_sub(SELECTION_MS);
    let open = store.all(UNDRIVEN, values![now, given_up], |columns| columns.next::<i64>()).await?;
    // Most of the time there is nothing to do, and nothing is written.
    if open.iter().all(|open| id.is_some_and(|id| id != *open)) {
        return Ok(None);
    }
    let worker = worker.to_owned();
    let taken = store
        .write(move |tx, now| {
            Box::pin(async move {
                let sql = "UPDATE replay_jobs SET state = 'stopped', ended_at = ?1, changed_at = ?1, \
                     why = 'its letters were never all written down; none of them was replayed' \
                     WHERE state = 'selecting' AND changed_at <= ?2";
                tx.run(sql, values![now, now.saturating_sub(SELECTION_MS)]).await?;
                // Asked again in the update itself: of two workers that find the same job, the second finds it taken.
                let sql = "UPDATE replay_jobs SET worker = ?1, fence = fence + 1, lease_until = ?2 WHERE id = \
                     (SELECT id FROM replay_jobs WHERE state = 'running' AND lease_until <= ?3 AND (?4 = 0 OR id = ?4) \
                     ORDER BY id LIMIT 1) AND state = 'running' AND lease_until <= ?3 RETURNING id";
                made(tx, sql, values![worker, now.saturating_add(hold_ms), now, id.unwrap_or(0)]).await
            })
        })
        .await?;
    match taken {
        Some(id) => one(store, id).await,
        None => Ok(None),
    }
}

pub(super) async fn release<E: Engine>(
    store: &E,
    lease: &ReplayLease,
    most: usize,
    paced_to_us: i64,
) -> Result<Option<Released>, StoreError> {
    let lease = *lease;
    store.write(move |tx, now| Box::pin(release_next(tx, lease, most, paced_to_us, now))).await
}

async fn release_next(
    tx: &mut dyn Tx,
    lease: ReplayLease,
    most: usize,
    paced_to_us: i64,
    now: Millis,
) -> Result<Option<Released>, Fault> {
    let Some((note, edit)) = held(tx, &lease).await? else { return Ok(None) };
    let next = tx.rows(NEXT_ITEMS, values![lease.job, limit(most)]).await?;
    let next = read_records(&next, |row| Ok((row.next::<i64>()?, row.next::<String>()?, row.next::<i64>()?)))?;
    let commands: Vec<Command> = next
        .iter()
        .map(|(_, id, generation)| command_for(id.clone(), *generation, edit.as_ref(), note.clone()))
        .collect();
    let answers = tx.apply(&commands).await?;
    let fates: Vec<Fate> = answers.iter().map(became).collect();
    // One by one: joined with a list the planner may walk the whole job for it.
    let sql = "UPDATE replay_items SET outcome = ?, why = ?, runs_as = ?, runs_generation = ?, at = ? WHERE job = ? AND position = ?";
    for ((position, _, _), fate) in next.iter().zip(&fates) {
        let Fate { outcome, why, runs_as, runs_generation } = fate;
        let (why, runs_as) = (why.clone(), runs_as.clone());
        let values = values![outcome.as_str(), why, runs_as, *runs_generation, now, lease.job, *position];
        tx.run(sql, values).await?;
    }
    let sql = "UPDATE replay_jobs SET paced_to_us = ?, lease_until = ? WHERE id = ?";
    tx.run(sql, values![paced_to_us, now.saturating_add(lease.hold_ms), lease.job]).await?;
    let mut counts = ItemCounts::default();
    fates.iter().for_each(|fate| counts.add(fate.outcome, fate.why.as_deref(), 1));
    Ok(Some(Released { answers, counts }))
}

pub(super) async fn judge<E: Engine>(
    store: &E,
    lease: &ReplayLease,
    after: i64,
    most: usize,
) -> Result<(ItemCounts, Option<i64>), StoreError> {
    let read = |columns: &mut Columns<'_, E::Row>| Ok((columns.next::<i64>()?, columns.word(ItemOutcome::parse)?));
    let looked = store.all(RUNNING, values![lease.job, after, limit(most)], read).await?;
    let next = looked.last().filter(|_| looked.len() == most).map(|(position, _)| *position);
    let ended: Vec<_> = looked.into_iter().filter(|(_, outcome)| *outcome != ItemOutcome::Replayed).collect();
    if ended.is_empty() {
        return Ok((ItemCounts::default(), next));
    }
    let lease = *lease;
    let counts = store
        .write(move |tx, now| {
            Box::pin(async move {
                let mut counts = ItemCounts::default();
                if held(tx, &lease).await?.is_none() {
                    return Ok(counts);
                }
                let sql = "UPDATE replay_items SET outcome = ?, at = ? WHERE job = ? AND position = ? AND outcome = 'replayed'";
                for (position, outcome) in &ended {
                    tx.run(sql, values![outcome.as_str(), now, lease.job, *position]).await?;
                    counts.add(*outcome, None, 1);
                }
                Ok(counts)
            })
        })
        .await?;
    Ok((counts, next))
}

pub(super) async fn step<E: Engine>(store: &E, lease: &ReplayLease, step: ReplayStep) -> Result<bool, StoreError> {
    let ReplayLease { job, fence, hold_ms } = *lease;
    let work = store.write(move |tx, now| {
        let alive = now.saturating_add(hold_ms);
        let (set, values) = match step {
            ReplayStep::Alive => ("lease_until = ?3", values![job, fence, alive]),
            ReplayStep::LeaveToOthers => ("lease_until = 0", values![job, fence]),
            ReplayStep::Stage(stage) => ("lease_until = ?3, stage = ?4", values![job, fence, alive, limit(stage)]),
            ReplayStep::Stop(why) => {
                ("state = 'stopped', changed_at = ?3, ended_at = ?3, why = ?4", values![job, fence, now, why])
            }
            ReplayStep::Finish => ("state = 'done', changed_at = ?3, ended_at = ?3", values![job, fence, now]),
        };
        Box::pin(async move {
            let sql = format!("UPDATE replay_jobs SET {set} WHERE id = ?1 AND fence = ?2 AND state = 'running'");
            tx.run(&sql, values).await
        })
    });
    Ok(work.await? > 0)
}

pub(super) async fn newly_dead<E: Engine>(store: &E, most: usize) -> Result<Vec<(Task, usize, bool)>, StoreError> {
    let sql = "SELECT at FROM triage_marks WHERE name = ?";
    let Some(mark) = store.first(sql, values![MARK], |columns| columns.next::<i64>()).await? else {
        return Ok(Vec::new());
    };
    let tasks = store.tasks(DIED_AFTER, values![mark, limit(most)]).await?;
    let mut found = Vec::with_capacity(tasks.len());
    for task in tasks {
        let (mut automatically, mut by_person) = (0, false);
        // In its first generation nobody can have replayed it.
        if task.stamp().generation > 0 {
            let read =
                |columns: &mut Columns<'_, E::Row>| Ok((columns.word(ReplayOrigin::parse)?, columns.next::<i64>()?));
            for (origin, count) in store.all(REPLAYED_BY, values![task.id()], read).await? {
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

pub(super) async fn set_appointments<E: Engine>(
    store: &E,
    looked_to: Option<Millis>,
    letters: &[(String, i64, Millis)],
) -> Result<(), StoreError> {
    let letters = letters.to_vec();
    let work = store.write(move |tx, _| {
        Box::pin(async move {
            let sql = "UPDATE tasks SET wake_at = ? WHERE id = ? AND status = 'dead' AND generation = ? AND wake_at IS NULL";
            for (id, generation, at) in letters {
                tx.run(sql, values![at, id, generation]).await?;
            }
            match looked_to {
                Some(at) => {
                    let sql = "INSERT INTO triage_marks (name, at) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET at = excluded.at";
                    tx.run(sql, values![MARK, at]).await
                }
                None => tx.run("DELETE FROM triage_marks WHERE name = ?", values![MARK]).await,
            }
        })
    });
    work.await.map(drop)
}

pub(super) async fn make_automatic<E: Engine>(
    store: &E,
    pace: Pace,
    most: usize,
) -> Result<Option<ReplayJob>, StoreError> {
    if store.rows(APPOINTED, values![store.clock().now(), 1_i64]).await?.is_empty() {
        return Ok(None);
    }
    match store.write(move |tx, now| Box::pin(insert_automatic(tx, pace, limit(most), now))).await? {
        Some(id) => one(store, id).await,
        None => Ok(None),
    }
}

/// A job of the letters whose time has come. Their appointments are over: should the job be ended by a person, they stay dead.
async fn insert_automatic(tx: &mut dyn Tx, pace: Pace, most: i64, now: Millis) -> Result<Option<i64>, Fault> {
    let due = read_records(&tx.rows(APPOINTED, values![now, most]).await?, |row| row.next::<i64>())?;
    // Several workers look for the same letters: each letter is one worker's alone.
    let sql = "UPDATE tasks SET wake_at = NULL WHERE seq IN ({numbers:?2}) AND status = 'dead' AND wake_at <= ?1 RETURNING seq";
    let mut values = values![now];
    values.list(&due);
    let ours: BTreeSet<i64> = read_records(&tx.rows(sql, values).await?, |row| row.next())?.into_iter().collect();
    let seqs: Vec<i64> = due.into_iter().filter(|seq| ours.contains(seq)).collect();
    if seqs.is_empty() {
        return Ok(None);
    }
    let sql = "INSERT INTO replay_jobs (origin, created_at, reason, about, rate_per_s, ramp, max_failure_ratio, state, changed_at) \
         VALUES ('automatic', ?1, 'automatic replay', '{}', ?2, ?3, ?4, 'running', ?1) RETURNING id";
    let Some(id) = made(tx, sql, values![now, pace.rate_per_s, pace.ramp, pace.max_failure_ratio]).await? else {
        return Ok(None);
    };
    let sql = "INSERT INTO replay_items (job, position, task_id, generation, outcome, at) \
         SELECT ?1, 1 + wanted.key, task.id, task.generation, 'waiting', ?3 \
         FROM {listed:?2} AS wanted CROSS JOIN tasks AS task WHERE task.seq = CAST(wanted.value AS BIGINT)";
    let mut values = values![id];
    values.list(&seqs).add(now);
    tx.run(sql, values).await?;
    Ok(Some(id))
}

/// A job's reason and edit.
type Orders = (Option<String>, Option<Arc<PayloadEdit>>);

/// The orders of a job whose lease is in force: it runs and has no newer driver, and none gets it before this transaction ends.
async fn held(tx: &mut dyn Tx, lease: &ReplayLease) -> Result<Option<Orders>, Fault> {
    let sql = "UPDATE replay_jobs SET fence = fence WHERE id = ? AND fence = ? AND state = 'running' RETURNING reason, edit, created_by";
    let found = tx.rows(sql, values![lease.job, lease.fence]).await?;
    type Found = (Option<String>, Option<String>, Option<String>);
    let found: Vec<Found> = read_records(&found, |row| Ok((row.next()?, row.next()?, row.next()?)))?;
    let Some((reason, edit, by)) = found.into_iter().next() else { return Ok(None) };
    let edit = edit.map(|text| PayloadEdit::parse(&text, by)).transpose();
    let edit = edit.map_err(|error| Fault::Unusable(format!("replay job {}: {error}", lease.job)))?;
    Ok(Some((reason, edit.map(Arc::new))))
}
