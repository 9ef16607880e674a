//! Replay jobs: made, read and steered. What a driver does with one is in `drive`.
//!
//! A selection is taken by readers at one moment and written down in parts, so that the writer is never held for long; the job moves
//! nothing before the last part is written.

use super::columns::Columns;
use super::engine::{Ask, Engine, Tx, limit, read_records};
use super::fault::Fault;
use super::groups;
use super::question::Question;
use super::value::{Source, Values, plain, values};
use crate::store::{
    ItemCounts, ItemOutcome, NewReplay, Pace, ReplayItem, ReplayJob, ReplayOrigin, ReplayState, Selection, Steer,
    Steered, StoreError,
};
use crate::task::{DeadReason, Millis};

/// Letters written down in one transaction.
const PART: usize = 1_000;

const JOB: &str = "SELECT id, origin, created_at, created_by, reason, about, rate_per_s, ramp, max_failure_ratio, edit, \
     state, why, changed_by, changed_at, stage, paced_to_us, worker, fence, lease_until, ended_at FROM replay_jobs";

/// What an item that runs has come to, as the task stands now; the same as [`ItemOutcome::of`].
macro_rules! live {
    () => {
        "CASE WHEN item.outcome <> 'replayed' OR task.id IS NULL THEN item.outcome \
         WHEN task.generation > item.runs_generation THEN 'failed_again' \
         WHEN task.status = 'succeeded' THEN 'succeeded' WHEN task.status = 'cancelled' THEN 'cancelled' \
         WHEN task.status = 'dead' OR task.status = 'discarded' THEN 'failed_again' ELSE 'replayed' END"
    };
}

/// The letters of job ?1 by what became of them.
pub(crate) const COUNTS: &str = concat!(
    "SELECT outcome, why, count(*) FROM replay_items INDEXED BY replay_items_outcome WHERE job = ?1 AND outcome <> 'replayed' \
     GROUP BY outcome, why UNION ALL SELECT ",
    live!(),
    " AS live, CAST(NULL AS TEXT), count(*) FROM replay_items AS item INDEXED BY replay_items_outcome \
     LEFT JOIN tasks AS task ON task.id = item.runs_as WHERE item.job = ?1 AND item.outcome = 'replayed' GROUP BY live"
);

/// Letters of job ?1 after position ?2 with an outcome among ?3.
pub(crate) const ITEMS: &str = concat!(
    "SELECT item.job, item.position, item.task_id, item.generation, ",
    live!(),
    " AS live, item.why, item.runs_as, item.at FROM replay_items AS item LEFT JOIN tasks AS task ON task.id = item.runs_as \
     WHERE item.job = ?1 AND item.position > ?2 AND ",
    live!(),
    " IN ({each:?3}) ORDER BY item.position LIMIT ?4"
);

/// The items of task ?1.
pub(crate) const ITEMS_OF: &str = concat!(
    "SELECT item.job, item.position, item.task_id, item.generation, ",
    live!(),
    " AS live, item.why, item.runs_as, item.at FROM replay_items AS item LEFT JOIN tasks AS task ON task.id = item.runs_as \
     WHERE item.task_id = ?1 ORDER BY item.job DESC LIMIT ?2"
);

/// Running letters of job ?1 after position ?2, at most ?3.
pub(crate) const RUNNING: &str = concat!(
    "SELECT item.position, ",
    live!(),
    " FROM replay_items AS item INDEXED BY replay_items_outcome LEFT JOIN tasks AS task ON task.id = item.runs_as \
     WHERE item.job = ?1 AND item.outcome = 'replayed' AND item.why IS NULL AND item.position > ?2 ORDER BY item.position LIMIT ?3"
);

fn job<R: Source>(columns: &mut Columns<'_, R>) -> Result<ReplayJob, String> {
    Ok(ReplayJob {
        id: columns.next()?,
        origin: columns.word(ReplayOrigin::parse)?,
        created_at: columns.next()?,
        created_by: columns.next()?,
        reason: columns.next()?,
        about: serde_json::from_str(columns.next()?).unwrap_or_default(),
        pace: Pace {
            rate_per_s: columns.next()?,
            ramp: columns.next::<i64>()? != 0,
            max_failure_ratio: columns.next()?,
        },
        edit: columns.next()?,
        state: columns.word(ReplayState::parse)?,
        why: columns.next()?,
        changed_by: columns.next()?,
        changed_at: columns.next()?,
        stage: usize::try_from(columns.next::<i64>()?).unwrap_or(0),
        paced_to_us: columns.next()?,
        worker: columns.next()?,
        fence: columns.next()?,
        lease_until: columns.next()?,
        ended_at: columns.next()?,
        counts: ItemCounts::default(),
    })
}

fn item<R: Source>(columns: &mut Columns<'_, R>) -> Result<ReplayItem, String> {
    let (job, position, task_id): (i64, i64, String) = (columns.next()?, columns.next()?, columns.next()?);
    let (generation, outcome) = (columns.next()?, columns.word(ItemOutcome::parse)?);
    let (why, runs_as): (Option<String>, Option<String>) = (columns.next()?, columns.next()?);
    let runs_as = runs_as.filter(|id| *id != task_id);
    Ok(ReplayItem { job, position, task_id, generation, outcome, why, runs_as, at: columns.next()? })
}

/// What skips a letter of that reason before it is tried; an edit can make something of any letter.
fn skipped_for(reason: DeadReason, edited: bool) -> Option<&'static str> {
    (!edited && !reason.is_replayable()).then_some("not_replayable")
}

pub(super) async fn preview<E: Engine>(store: &E, selection: &Selection) -> Result<ItemCounts, StoreError> {
    let mut counts = ItemCounts::default();
    let mut matched = 0;
    let letters = groups::concrete(store, &selection.filter).await?;
    if let Some(filter) = &letters {
        for (reason, number) in groups::by_reason(store, filter, selection.limit).await? {
            matched += number;
            match skipped_for(reason, false) {
                Some(why) => counts.add(ItemOutcome::Skipped, Some(why), number),
                None => counts.add(ItemOutcome::Waiting, None, number),
            }
        }
    }
    let full = selection.limit.is_some_and(|most| limit(most) <= matched);
    if !selection.filter.ids.is_empty() && !full {
        let mut query = Question::new(
            "SELECT CASE WHEN task.id IS NULL THEN 'not_found' WHEN task.status = 'dead' THEN 'not_matched' ELSE 'not_dead' END \
             AS why, count(*) FROM {listed:?} AS wanted LEFT JOIN tasks AS task ON task.id = wanted.value",
        );
        query.give_list(&selection.filter.ids);
        if let Some(filter) = &letters {
            query.push(" WHERE wanted.value NOT IN (SELECT id");
            groups::push_letters(&mut query, filter);
            query.push(")");
        }
        query.push(" GROUP BY why");
        for row in &query.rows(store).await? {
            let (why, number): (String, i64) = store.read(row, |columns| Ok((columns.next()?, columns.next()?)))?;
            counts.add(ItemOutcome::Skipped, Some(&why), number);
        }
    }
    Ok(counts)
}

pub(super) async fn make<E: Engine>(store: &E, new: NewReplay) -> Result<ReplayJob, StoreError> {
    let places: Vec<i64> = match groups::concrete(store, &new.selection.filter).await? {
        Some(filter) => groups::places(store, &filter, new.selection.limit).await?,
        None => Vec::new(),
    };
    let full = new.selection.limit.is_some_and(|most| places.len() >= most);
    let others = if full { Vec::new() } else { new.selection.filter.ids.clone() };
    let edited = new.edit.is_some();
    let id = store.write(move |tx, now| Box::pin(insert_job(tx, new, now))).await?;
    for (part, places) in places.chunks(PART).enumerate() {
        let (before, places) = (limit(part * PART), places.to_vec());
        store.write(move |tx, now| Box::pin(insert_items(tx, id, before, places, edited, now))).await?;
    }
    store.write(move |tx, now| Box::pin(close_selection(tx, id, others, now))).await?;
    let job = one(store, id).await?;
    job.ok_or_else(|| store.fault(Fault::Unusable(format!("replay job {id} is gone"))))
}

pub(super) async fn one<E: Engine>(store: &E, id: i64) -> Result<Option<ReplayJob>, StoreError> {
    let Some(mut found) = store.first(&format!("{JOB} WHERE id = ?"), values![id], job).await? else {
        return Ok(None);
    };
    found.counts = counts(store, id).await?;
    Ok(Some(found))
}

async fn counts<E: Engine>(store: &E, id: i64) -> Result<ItemCounts, StoreError> {
    let read = |columns: &mut Columns<'_, E::Row>| {
        let outcome = columns.word(ItemOutcome::parse)?;
        Ok((outcome, columns.next::<Option<String>>()?, columns.next::<i64>()?))
    };
    let mut counts = ItemCounts::default();
    for (outcome, why, number) in store.all(COUNTS, values![id], read).await? {
        counts.add(outcome, why.as_deref(), number);
    }
    Ok(counts)
}

pub(super) async fn jobs<E: Engine>(
    store: &E,
    states: &[ReplayState],
    before: Option<i64>,
    most: usize,
) -> Result<Vec<ReplayJob>, StoreError> {
    let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    let mut query = Question::new(JOB);
    query.push(" WHERE id < ").bind(before.unwrap_or(i64::MAX));
    if !states.is_empty() {
        query.push(" AND state IN ({each:?})").give_list(&states);
    }
    query.push(" ORDER BY id DESC LIMIT ").bind(limit(most));
    let rows = query.rows(store).await?;
    let mut jobs = Vec::with_capacity(rows.len());
    for row in &rows {
        let mut found = store.read(row, job)?;
        found.counts = counts(store, found.id).await?;
        jobs.push(found);
    }
    Ok(jobs)
}

pub(super) async fn items<E: Engine>(
    store: &E,
    id: i64,
    outcomes: &[ItemOutcome],
    after: i64,
    most: usize,
) -> Result<Vec<ReplayItem>, StoreError> {
    let outcomes = if outcomes.is_empty() { &ItemOutcome::ALL } else { outcomes };
    let outcomes: Vec<&str> = outcomes.iter().map(|outcome| outcome.as_str()).collect();
    let mut arguments = values![id, after];
    arguments.list(&outcomes).add(limit(most));
    store.all(ITEMS, arguments, item).await
}

pub(super) async fn items_of<E: Engine>(store: &E, task_id: &str, most: usize) -> Result<Vec<ReplayItem>, StoreError> {
    store.all(ITEMS_OF, values![task_id, limit(most)], item).await
}

pub(super) async fn steer<E: Engine>(
    store: &E,
    id: i64,
    word: Steer,
    by: Option<&str>,
    why: Option<&str>,
) -> Result<Steered, StoreError> {
    let (by, why) = (plain(by.map(str::to_owned)), plain(why.map(str::to_owned)));
    // Whoever resumes a job lets any worker go on with it, at a rate that begins anew.
    let sql = match word {
        Steer::Pause => {
            "UPDATE replay_jobs SET state = 'paused', why = ?2, changed_by = ?3, changed_at = ?4 \
             WHERE id = ?1 AND state = 'running'"
        }
        Steer::Resume => {
            "UPDATE replay_jobs SET state = 'running', why = ?2, changed_by = ?3, changed_at = ?4, \
             lease_until = 0, paced_to_us = 0 WHERE id = ?1 AND state = 'paused'"
        }
        Steer::Cancel => {
            "UPDATE replay_jobs SET state = 'cancelled', why = ?2, changed_by = ?3, changed_at = ?4, ended_at = ?4 \
             WHERE id = ?1 AND (state = 'selecting' OR state = 'running' OR state = 'paused')"
        }
    };
    let done = store.write(move |tx, now| tx.run(sql, values![id, why, by, now])).await? > 0;
    Ok(match one(store, id).await? {
        None => Steered::Unknown,
        Some(job) if done => Steered::Done(Box::new(job)),
        Some(job) => Steered::Conflict(Box::new(job)),
    })
}

async fn insert_job(tx: &mut dyn Tx, new: NewReplay, now: Millis) -> Result<i64, Fault> {
    let (worker, lease_until) = match new.driver {
        Some((worker, hold_ms)) => (Some(worker), now.saturating_add(hold_ms)),
        None => (None, 0),
    };
    let sql = "INSERT INTO replay_jobs (origin, created_at, created_by, reason, about, rate_per_s, ramp, max_failure_ratio, edit, \
               state, worker, fence, lease_until, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'selecting', ?, ?, ?, ?) RETURNING id";
    let fence = i64::from(worker.is_some());
    let values = values![
        ReplayOrigin::Person.as_str(),
        now,
        plain(new.created_by),
        plain(new.reason),
        new.about.to_string(),
        new.pace.rate_per_s,
        new.pace.ramp,
        new.pace.max_failure_ratio,
        new.edit,
        worker,
        fence,
        lease_until,
        now,
    ];
    made(tx, sql, values).await?.ok_or_else(|| Fault::Unusable("a replay job got no number".into()))
}

/// The number of the job that a statement has made.
pub(super) async fn made(tx: &mut dyn Tx, sql: &str, values: Values) -> Result<Option<i64>, Fault> {
    Ok(read_records(&tx.rows(sql, values).await?, |row| row.next::<i64>())?.first().copied())
}

/// Writes letters down behind the `before` first ones. One that has moved on since it was chosen is skipped, and so is one that has
/// come back to the dead since.
async fn insert_items(
    tx: &mut dyn Tx,
    job: i64,
    before: i64,
    places: Vec<i64>,
    edited: bool,
    now: Millis,
) -> Result<(), Fault> {
    if !is_selecting(tx, job).await? {
        return Ok(());
    }
    let unfit: Vec<&str> = DeadReason::ALL
        .into_iter()
        .filter(|reason| skipped_for(*reason, edited).is_some())
        .map(DeadReason::as_str)
        .collect();
    let sql = "INSERT INTO replay_items (job, position, task_id, generation, outcome, why, at) \
         SELECT ?1, ?2 + 1 + place, id, generation, CASE WHEN why IS NULL THEN 'waiting' ELSE 'skipped' END, why, ?5 FROM ( \
         SELECT wanted.key AS place, task.id, task.generation, CASE WHEN task.status <> 'dead' THEN 'not_dead' \
         WHEN task.ended_at > (SELECT created_at FROM replay_jobs WHERE id = ?1) THEN 'changed' \
         WHEN task.dead_reason IN ({each:?4}) THEN 'not_replayable' END AS why \
         FROM {listed:?3} AS wanted CROSS JOIN tasks AS task WHERE task.seq = CAST(wanted.value AS BIGINT)) AS letters";
    let mut values = values![job, before];
    values.list(&places).list(&unfit).add(now);
    tx.run(sql, values).await?;
    // A sign of life: a selection that nobody goes on with is given up; see `drive`.
    tx.run("UPDATE replay_jobs SET changed_at = ? WHERE id = ?", values![now, job]).await?;
    Ok(())
}

async fn is_selecting(tx: &mut dyn Tx, job: i64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM replay_jobs WHERE id = ? AND state = 'selecting'";
    Ok(!tx.rows(sql, values![job]).await?.is_empty())
}

/// The last part: ids that were asked for by name and are no letters of the job; then the job may run.
async fn close_selection(tx: &mut dyn Tx, job: i64, ids: Vec<String>, now: Millis) -> Result<(), Fault> {
    if !is_selecting(tx, job).await? {
        return Ok(());
    }
    if !ids.is_empty() {
        let sql = "INSERT INTO replay_items (job, position, task_id, generation, outcome, why, at) \
             SELECT ?1, (SELECT coalesce(max(position), 0) FROM replay_items WHERE job = ?1) + row_number() OVER (), wanted.value, \
             coalesce(task.generation, 0), 'skipped', CASE WHEN task.id IS NULL THEN 'not_found' WHEN task.status = 'dead' \
             THEN 'not_matched' ELSE 'not_dead' END, ?3 FROM {listed:?2} AS wanted LEFT JOIN tasks AS task ON task.id = wanted.value \
             WHERE NOT EXISTS (SELECT 1 FROM replay_items AS known INDEXED BY replay_items_task \
             WHERE known.task_id = wanted.value AND known.job = ?1)";
        let mut values = values![job];
        values.list(&ids).add(now);
        tx.run(sql, values).await?;
    }
    let sql = "UPDATE replay_jobs SET changed_at = ?2, \
         (state, ended_at) = (SELECT CASE WHEN waiting THEN 'running' ELSE 'done' END, CASE WHEN waiting THEN NULL ELSE ?2 END FROM \
         (SELECT EXISTS (SELECT 1 FROM replay_items WHERE job = ?1 AND outcome = 'waiting') AS waiting) AS letters) \
         WHERE id = ?1";
    tx.run(sql, values![job, now]).await?;
    Ok(())
}
