//! Lists and counts over a [`Filter`].
//!
//! All of a filter is SQL with bound arguments, except topic patterns with wildcards, which databases cannot match: those are
//! checked here while paging. Which index is walked is decided here and said with INDEXED BY, because succeeded tasks are
//! nearly all rows and the planner does not know it: a filter that leaves them out walks the others only.

use std::collections::{BTreeMap, BTreeSet};

use super::columns::{Columns, spec, state};
use super::engine::{Ask, Engine, limit};
use super::question::Question;
use super::value::Values;
use crate::store::{Comparison, Filter, NO_FINGERPRINT, Page, StoreError};
use crate::task::{Status, Task};

/// Rows fetched at once while wildcards are checked here.
const CHUNK: usize = 500;
/// The newest dead letters that are looked through one by one before all of them are asked by their index: where most match, a page is
/// full by then, and asking all of them for every page of a long list would cost more.
const NEWEST: i64 = 1_000;

/// A part of the table that one index covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// The rows with the ids of the filter.
    Ids,
    /// The rows of one status.
    Status(Status),
    /// The rows that something else than the real thing has ended.
    Degraded,
    /// Every row.
    Everything,
}

/// The parts to walk; together they hold every row that can match.
fn walks(filter: &Filter) -> Vec<Walk> {
    if !filter.ids.is_empty() {
        return vec![Walk::Ids];
    }
    let mut statuses: BTreeSet<Status> = filter.statuses.iter().copied().collect();
    if statuses.is_empty() {
        statuses.extend(Status::ALL);
    }
    if !filter.reasons.is_empty() {
        statuses.retain(|status| *status == Status::Dead);
    }
    if is_about_failures(filter) && statuses.remove(&Status::Succeeded) {
        // A success clears the last failure, unless it was a fallback.
        let others = statuses.into_iter().map(Walk::Status);
        return others.chain([Walk::Degraded]).collect();
    }
    if statuses.len() == Status::ALL.len() {
        return vec![Walk::Everything];
    }
    statuses.into_iter().map(Walk::Status).collect()
}

fn is_about_failures(filter: &Filter) -> bool {
    !filter.classes.is_empty()
        || !filter.codes.is_empty()
        || !filter.http_statuses.is_empty()
        || !filter.fingerprints.is_empty()
        || filter.text.is_some()
}

impl Walk {
    /// The index, and the condition that lets SQLite use it. Statuses are the program's own words, never input.
    fn push(self, query: &mut Question, filter: &Filter) {
        match self {
            Walk::Ids => {
                query.push(" INDEXED BY tasks_id WHERE id IN ({each:?})").give_list(&filter.ids);
            }
            Walk::Status(Status::Succeeded) => {
                query.push(" NOT INDEXED WHERE status = 'succeeded'");
            }
            Walk::Status(Status::Running) => {
                query.push(" INDEXED BY tasks_lease WHERE status = 'running'");
            }
            Walk::Degraded => {
                query.push(" INDEXED BY tasks_degraded WHERE degraded IS NOT NULL AND status = 'succeeded'");
            }
            Walk::Status(status) => {
                query.push(" INDEXED BY tasks_status WHERE status = '").push(status.as_str()).push("'");
            }
            Walk::Everything => {
                query.push(" NOT INDEXED WHERE true");
            }
        }
    }
}

/// Adds `AND column IN (…)` unless nothing is asked for.
fn one_of<T: serde::Serialize>(query: &mut Question, column: &str, wanted: &[T]) {
    if !wanted.is_empty() {
        query.push(" AND ").push(column).push(" IN ({each:?})").give_list(wanted);
    }
}

/// Adds everything that SQL can check, besides what the walk says.
fn push_conditions(query: &mut Question, filter: &Filter, walk: Walk) {
    if walk == Walk::Ids {
        one_of(query, "status", &filter.statuses);
    }
    if !needs_matching(filter) {
        let types: Vec<&str> = filter.types.iter().map(|pattern| pattern.as_str()).collect();
        if !filter.types.iter().any(|pattern| pattern.is_any()) {
            one_of(query, "type", &types);
        }
    }
    for (name, value) in &filter.labels {
        query.push(" AND {label:labels,?} = ").give(name.as_str()).bind(value.as_str());
    }
    one_of(query, "dead_reason", &filter.reasons);
    one_of(query, "failure_class", &filter.classes);
    one_of(query, "failure_code", &filter.codes);
    if !filter.http_statuses.is_empty() {
        query.push(" AND failure_http_status IN ({numbers:?})").give_list(&filter.http_statuses);
    }
    one_of(query, &format!("coalesce(nullif(failure_fingerprint, ''), '{NO_FINGERPRINT}')"), &filter.fingerprints);
    one_of(query, "coalesce(queue, 'default')", &filter.queues);
    if let Some(since) = filter.since {
        query.push(" AND coalesce(ended_at, created_at) >= ").bind(since);
    }
    if let Some(until) = filter.until {
        query.push(" AND coalesce(ended_at, created_at) < ").bind(until);
    }
    if let Some((comparison, number)) = filter.attempts {
        query
            .push(
                " AND (SELECT count(*) FROM attempts WHERE attempts.task_id = tasks.id \
                 AND attempts.generation = tasks.generation AND attempts.outcome <> 'released') ",
            )
            .push(match comparison {
                Comparison::Less => "< ",
                Comparison::AtMost => "<= ",
                Comparison::Equal => "= ",
                Comparison::AtLeast => ">= ",
                Comparison::More => "> ",
            })
            .bind(number);
    }
    if let Some(text) = &filter.text {
        query.push(" AND {contains:failure_message,?}").give(text.as_str());
    }
}

/// Adds every condition that a dead letter has to meet besides being dead. Types with wildcards have to be written out before.
pub(crate) fn push_letter_conditions(query: &mut Question, filter: &Filter) {
    one_of(query, "id", &filter.ids);
    push_conditions(query, filter, Walk::Everything);
}

/// Adds `FROM` and every condition for the ended tasks that are counted; see [`crate::store::tally`].
pub(crate) fn push_ended(query: &mut Question, filter: &Filter) {
    query.push(" FROM tasks INDEXED BY tasks_ended WHERE ended_at IS NOT NULL AND ended_at >= ");
    query.bind(filter.since.unwrap_or(i64::MIN)).push(" AND ended_at < ");
    query.bind(filter.until.unwrap_or(i64::MAX));
    query.push(" AND (status = 'succeeded' OR status = 'dead' OR status = 'discarded') AND raw_length IS NULL");
    one_of(query, "status", &filter.statuses);
    one_of(query, "id", &filter.ids);
    push_conditions(query, filter, Walk::Everything);
}

/// Whether types have to be matched here.
pub(crate) fn needs_matching(filter: &Filter) -> bool {
    let has_wildcard = |pattern: &crate::policy::TopicPattern| pattern.as_str().contains(['*', '#']);
    filter.types.iter().any(has_wildcard) && !filter.types.iter().any(|pattern| pattern.is_any())
}

pub(crate) fn matches_type(filter: &Filter, task_type: &str) -> bool {
    filter.types.is_empty() || filter.types.iter().any(|pattern| pattern.matches(task_type))
}

/// A page, newest first. The cursor is the place of the last row shown, so rows that arrive meanwhile move nothing.
pub(crate) async fn list<E: Engine>(
    store: &E,
    filter: &Filter,
    cursor: Option<&str>,
    most: usize,
) -> Result<Page<Task>, StoreError> {
    let mut before = match cursor {
        None => i64::MAX,
        Some(text) => text.parse().map_err(|_| StoreError::Cursor { cursor: text.to_owned() })?,
    };
    let wanted = most.saturating_add(1);
    let chunk = if needs_matching(filter) { wanted.max(CHUNK) } else { wanted };
    let walks = walks(filter);
    let mut found: Vec<(i64, Task)> = Vec::new();
    loop {
        let mut rows = Vec::new();
        for walk in &walks {
            rows.extend(page_of(store, filter, *walk, before, chunk).await?);
        }
        // Each walk is in order; together they have to be brought into it.
        let seq = |row: &E::Row| Columns::of(row).next::<i64>().unwrap_or(0);
        rows.sort_by_key(|row| std::cmp::Reverse(seq(row)));
        rows.truncate(chunk);
        let last = rows.len() < chunk;
        before = rows.last().map_or(before, seq);
        let matching = store.readable(&rows).into_iter().filter(|(_, task)| matches_type(filter, &task.spec.task_type));
        found.extend(matching.take(wanted - found.len()));
        if last || found.len() == wanted {
            break;
        }
    }
    let more = found.len() > most;
    found.truncate(most);
    let next = found.last().filter(|_| more).map(|(seq, _)| seq.to_string());
    Ok(Page { items: found.into_iter().map(|(_, task)| task).collect(), next })
}

/// Adds the rows of a page of one walk, newest first, at most `chunk`, all with `seq` before `before`.
async fn page_of<E: Engine>(
    store: &E,
    filter: &Filter,
    walk: Walk,
    before: i64,
    chunk: usize,
) -> Result<Vec<E::Row>, StoreError> {
    let select = || Question::new(concat!("SELECT seq, ", state!(), ", ", spec!(), " FROM tasks"));
    let mut query = select();
    if walk != Walk::Status(Status::Dead) || only_statuses(filter) {
        walk.push(&mut query, filter);
        query.push(" AND seq < ").bind(before);
        push_conditions(&mut query, filter, walk);
        query.push(" ORDER BY seq DESC LIMIT ").bind(limit(chunk));
        return query.rows(store).await;
    }
    query.push(" WHERE seq IN (SELECT seq FROM tasks");
    walk.push(&mut query, filter);
    query.push(" AND seq < ").bind(before).push(" ORDER BY seq DESC LIMIT ").bind(NEWEST).push(")");
    push_conditions(&mut query, filter, walk);
    query.push(" ORDER BY seq DESC LIMIT ").bind(limit(chunk));
    let rows = query.rows(store).await?;
    if rows.len() >= chunk {
        return Ok(rows);
    }
    let mut query = select();
    query.push(" WHERE seq IN (SELECT seq FROM tasks INDEXED BY tasks_letters WHERE status = 'dead' AND seq < ");
    query.bind(before);
    push_conditions(&mut query, filter, walk);
    query.push(" ORDER BY seq DESC LIMIT ").bind(limit(chunk)).push(") ORDER BY seq DESC");
    query.rows(store).await
}

/// How many tasks match, by status; a status that none has is left out.
pub(crate) async fn count<E: Engine>(store: &E, filter: &Filter) -> Result<BTreeMap<Status, i64>, StoreError> {
    let mut counts = BTreeMap::new();
    // Without the succeeded ones each status is counted in an index of its own.
    let wants_succeeded = filter.statuses.is_empty() || filter.statuses.contains(&Status::Succeeded);
    if only_statuses(filter) && wants_succeeded {
        let mut counts = count_all(store).await?;
        counts.retain(|status, _| filter.statuses.is_empty() || filter.statuses.contains(status));
        return Ok(counts);
    }
    for walk in walks(filter) {
        let by_type = needs_matching(filter);
        let mut query = Question::new(if by_type {
            "SELECT status, count(*), type FROM tasks"
        } else {
            "SELECT status, count(*), '' FROM tasks"
        });
        match walk {
            // Here something is asked for besides the status, and all of it is in the index of letters.
            Walk::Status(Status::Dead) => {
                query.push(" INDEXED BY tasks_letters WHERE status = 'dead'");
            }
            _ => walk.push(&mut query, filter),
        }
        push_conditions(&mut query, filter, walk);
        query.push(if by_type { " GROUP BY status, type" } else { " GROUP BY status" });
        for row in &query.rows(store).await? {
            let mut columns = Columns::of(row);
            let (Ok(status), Ok(number)) = (columns.word(Status::parse), columns.next::<i64>()) else { continue };
            // A type that is no text belongs to a row that is about to be set aside.
            if !by_type || columns.next::<&str>().is_ok_and(|task_type| matches_type(filter, task_type)) {
                *counts.entry(status).or_insert(0) += number;
            }
        }
    }
    Ok(counts)
}

/// Counting every row by its status would read the whole table. Succeeded is what is left of all rows, counted in the
/// narrowest index, when the others are taken off, which have indexes of their own.
async fn count_all<E: Engine>(store: &E) -> Result<BTreeMap<Status, i64>, StoreError> {
    let sql = "SELECT 'running', count(*) FROM tasks INDEXED BY tasks_lease WHERE status = 'running' \
               UNION ALL SELECT status, count(*) FROM tasks INDEXED BY tasks_status WHERE status = 'pending' \
               OR status = 'retry_waiting' OR status = 'dead' OR status = 'discarded' OR status = 'cancelled' \
               GROUP BY status UNION ALL SELECT 'all', count(*) FROM tasks";
    let mut counts = BTreeMap::new();
    let mut rest = 0;
    let read = |columns: &mut Columns<'_, E::Row>| Ok((Status::parse(columns.next::<&str>()?), columns.next::<i64>()?));
    for found in store.all(sql, Values::default(), read).await? {
        match found {
            (Some(status), number) => {
                rest -= number;
                counts.insert(status, number);
            }
            (None, all) => rest += all,
        }
    }
    counts.insert(Status::Succeeded, rest);
    counts.retain(|_, number| *number > 0);
    Ok(counts)
}

/// Whether nothing but statuses is asked for.
fn only_statuses(filter: &Filter) -> bool {
    filter.types.is_empty()
        && filter.labels.is_empty()
        && filter.reasons.is_empty()
        && !is_about_failures(filter)
        && filter.queues.is_empty()
        && filter.ids.is_empty()
        && filter.since.is_none()
        && filter.until.is_none()
        && filter.attempts.is_none()
}
