//! What the history adds up to, in SQL: a walk over the tasks that ended in a window, each joined with its attempts.
//!
//! Tasks and attempts lie in the order of their ids, so with ids that grow (ours do) the join reads neighbours. A day of 300,000 tasks takes
//! two seconds on one busy core.

use super::columns::Columns;
use super::engine::{Ask, Engine, limit};
use super::filter::{matches_type, needs_matching, push_ended};
use super::question::Question;
use crate::policy::TopicPattern;
use crate::store::tally::{AttemptTally, FailureTally, GroupBy, Tally};
use crate::store::{Filter, StoreError};

/// The filter with the types that its wildcards stand for, because databases cannot match those; `None` when there are none.
async fn exact<E: Engine>(store: &E, filter: &Filter) -> Result<Option<Filter>, StoreError> {
    if !needs_matching(filter) {
        return Ok(Some(filter.clone()));
    }
    let any_type = Filter { types: Vec::new(), ..filter.clone() };
    let mut query = Question::new("SELECT DISTINCT type");
    push_ended(&mut query, &any_type);
    let rows = query.rows(store).await?;
    let types = rows.iter().map(|row| store.read(row, |columns| columns.next::<String>()));
    let types = types.collect::<Result<Vec<String>, StoreError>>()?;
    let wanted = types.into_iter().filter(|name| matches_type(filter, name));
    let types: Vec<TopicPattern> = wanted.filter_map(|name| TopicPattern::new(&name).ok()).collect();
    Ok((!types.is_empty()).then_some(Filter { types, ..any_type }))
}

fn read_all<E: Engine, T>(
    store: &E,
    rows: &[E::Row],
    read: impl Fn(&mut Columns<'_, E::Row>) -> Result<T, String>,
) -> Result<Vec<T>, StoreError> {
    rows.iter().map(|row| store.read(row, &read)).collect()
}

/// The policy that decided the last attempt.
const LAST_POLICY: &str = "(SELECT policy FROM attempts WHERE attempts.task_id = tasks.id AND attempts.outcome <> 'released' \
     ORDER BY attempts.fence DESC LIMIT 1)";

fn push_group(query: &mut Question, by: &GroupBy) {
    match by {
        GroupBy::Type => query.push("type"),
        GroupBy::Queue => query.push("coalesce(queue, 'default')"),
        GroupBy::Policy | GroupBy::Variant => query.push(LAST_POLICY),
        GroupBy::Label(name) => query.push("{label:labels,?}").give(name.as_str()),
    };
}

/// What of a group's tasks is counted, in the order of [`Tally`].
const COUNTED: [&str; 10] = [
    "tried > 0",
    "ok AND tried <= 1",
    "ok AND tried = 2",
    "ok AND tried = 3",
    "ok AND tried > 3",
    "ok",
    "fell_back",
    "degraded",
    "dead",
    "permanent",
];

pub(super) async fn tallies<E: Engine>(store: &E, by: &GroupBy, filter: &Filter) -> Result<Vec<Tally>, StoreError> {
    let Some(filter) = exact(store, filter).await? else { return Ok(Vec::new()) };
    let by_variant = *by == GroupBy::Variant;
    let mut query = Question::new("WITH ended AS (SELECT seq, id, ");
    push_group(&mut query, by);
    query.push(" AS grp, ").push(if by_variant { "variant" } else { "CAST(NULL AS TEXT) AS variant" });
    query.push(
        ", status = 'succeeded' AND (degraded IS NULL OR degraded NOT IN ('cache', 'default')) AS ok, \
         degraded IS NOT NULL AND degraded IN ('cache', 'default') AS fell_back, degraded IS NOT NULL AS degraded, \
         status <> 'succeeded' AS dead, dead_reason IS NOT NULL AND dead_reason = 'permanent_error' AS permanent, \
         ended_at - created_at AS took",
    );
    push_ended(&mut query, &filter);
    if by_variant {
        query.push(" AND variant IS NOT NULL");
    }
    query.push(
        "), task AS (SELECT grp, ended.variant AS variant, ok, fell_back, degraded, dead, permanent, took, count(attempts.fence) AS tried, \
         coalesce(sum(attempts.cost), 0.0) AS cost, CAST(coalesce(sum(attempts.ended_at - attempts.started_at), 0) AS BIGINT) AS handler_ms \
         FROM ended LEFT JOIN attempts ON attempts.task_id = ended.id AND attempts.outcome <> 'released' \
         GROUP BY ended.seq, grp, ended.variant, ok, fell_back, degraded, dead, permanent, took)",
    );
    // Times have to be sorted, which costs as much as all the rest: only where they are asked for.
    let (rows, p50, p95) = if by_variant {
        query.push(
            ", ranked AS (SELECT *, row_number() OVER same AS place, count(*) OVER (PARTITION BY grp, variant, ok) AS among \
             FROM task WINDOW same AS (PARTITION BY grp, variant, ok ORDER BY took))",
        );
        let at = |percent: u32| format!("max(CASE WHEN ok AND place = (among * {percent} + 99) / 100 THEN took END)");
        ("ranked", at(50), at(95))
    } else {
        ("task", "CAST(NULL AS BIGINT)".to_owned(), "CAST(NULL AS BIGINT)".to_owned())
    };
    query.push(format!(
        " SELECT grp, variant, count(*) AS tasks, {}, CAST(sum(tried) AS BIGINT), max(tried), sum(cost), \
         CAST(sum(handler_ms) AS BIGINT), {p50}, {p95} FROM {rows} GROUP BY grp, variant \
         ORDER BY tasks DESC, grp NULLS FIRST, variant NULLS FIRST",
        COUNTED.map(|what| format!("count(*) FILTER (WHERE {what})")).join(", ")
    ));
    let rows = query.rows(store).await?;
    read_all(store, &rows, |columns| {
        Ok(Tally {
            group: columns.next()?,
            variant: columns.next()?,
            tasks: columns.next()?,
            attempted: columns.next()?,
            succeeded_on: [columns.next()?, columns.next()?, columns.next()?, columns.next()?],
            succeeded: columns.next()?,
            fell_back: columns.next()?,
            degraded: columns.next()?,
            dead: columns.next()?,
            permanent: columns.next()?,
            attempts: columns.next()?,
            most_attempts: columns.next()?,
            cost: columns.next()?,
            handler_ms: columns.next()?,
            p50_ms: columns.next()?,
            p95_ms: columns.next()?,
        })
    })
}

pub(super) async fn attempt_tallies<E: Engine>(store: &E, filter: &Filter) -> Result<Vec<AttemptTally>, StoreError> {
    let Some(filter) = exact(store, filter).await? else { return Ok(Vec::new()) };
    let mut query = Question::new("WITH ended AS (SELECT id");
    push_ended(&mut query, &filter);
    query.push(
        "), numbered AS (SELECT row_number() OVER (PARTITION BY attempts.task_id ORDER BY attempts.fence) AS number, \
         attempts.outcome = 'succeeded' AS ok, attempts.cost AS cost, attempts.ended_at - attempts.started_at AS handler_ms \
         FROM ended CROSS JOIN attempts WHERE attempts.task_id = ended.id AND attempts.outcome <> 'released') \
         SELECT number, count(*), count(*) FILTER (WHERE ok), coalesce(sum(cost), 0.0), CAST(sum(handler_ms) AS BIGINT) FROM numbered GROUP BY number ORDER BY number",
    );
    let rows = query.rows(store).await?;
    read_all(store, &rows, |columns| {
        Ok(AttemptTally {
            number: columns.next()?,
            attempts: columns.next()?,
            succeeded: columns.next()?,
            cost: columns.next()?,
            handler_ms: columns.next()?,
        })
    })
}

pub(super) async fn failure_tallies<E: Engine>(
    store: &E,
    filter: &Filter,
    most: usize,
) -> Result<Vec<FailureTally>, StoreError> {
    let Some(filter) = exact(store, filter).await? else { return Ok(Vec::new()) };
    let mut query = Question::new("WITH ended AS (SELECT id");
    push_ended(&mut query, &filter);
    query.push(
        ") SELECT attempts.class, attempts.code, attempts.http_status, count(*) AS failed, count(DISTINCT attempts.task_id) \
         FROM ended CROSS JOIN attempts \
         WHERE attempts.task_id = ended.id AND attempts.class IS NOT NULL AND attempts.outcome <> 'released' \
         GROUP BY attempts.class, attempts.code, attempts.http_status \
         ORDER BY failed DESC, attempts.class, attempts.code NULLS FIRST, attempts.http_status NULLS FIRST LIMIT ",
    );
    query.bind(limit(most));
    let rows = query.rows(store).await?;
    read_all(store, &rows, |columns| {
        Ok(FailureTally {
            class: columns.next()?,
            code: columns.next()?,
            http_status: columns.next::<Option<i64>>()?.and_then(|status| u16::try_from(status).ok()),
            attempts: columns.next()?,
            tasks: columns.next()?,
        })
    })
}
