//! What the history adds up to, in SQL: a walk over the tasks that ended in a window, each joined with its attempts.
//!
//! Tasks and attempts lie in the order of their ids, so with ids that grow (ours do) the join reads neighbours. A day of 300,000 tasks takes
//! two seconds on one busy core.

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Sqlite};

use super::SqliteStore;
use super::columns::Columns;
use super::filter::{matches_type, needs_matching, push_ended};
use super::read::limit;
use crate::policy::TopicPattern;
use crate::store::tally::{AttemptTally, FailureTally, GroupBy, Tally};
use crate::store::{Filter, StoreError};

/// The filter with the types that its wildcards stand for, because SQLite cannot match those; `None` when there are none.
async fn exact(store: &SqliteStore, filter: &Filter) -> Result<Option<Filter>, StoreError> {
    if !needs_matching(filter) {
        return Ok(Some(filter.clone()));
    }
    let any_type = Filter { types: Vec::new(), ..filter.clone() };
    let mut query = QueryBuilder::new("SELECT DISTINCT type");
    push_ended(&mut query, &any_type);
    let rows = fetch(store, query).await?;
    let types = rows.iter().map(|row| store.read(row, |columns| columns.next::<String>()));
    let types = types.collect::<Result<Vec<String>, StoreError>>()?;
    let wanted = types.into_iter().filter(|name| matches_type(filter, name));
    let types: Vec<TopicPattern> = wanted.filter_map(|name| TopicPattern::new(&name).ok()).collect();
    Ok((!types.is_empty()).then_some(Filter { types, ..any_type }))
}

async fn fetch(store: &SqliteStore, mut query: QueryBuilder<Sqlite>) -> Result<Vec<SqliteRow>, StoreError> {
    query.build().fetch_all(&store.readers).await.map_err(|error| store.fault(error))
}

fn read_all<T>(
    store: &SqliteStore,
    rows: &[SqliteRow],
    read: impl Fn(&mut Columns<'_>) -> Result<T, String>,
) -> Result<Vec<T>, StoreError> {
    rows.iter().map(|row| store.read(row, &read)).collect()
}

/// The policy that decided the last attempt.
const LAST_POLICY: &str = "(SELECT policy FROM attempts WHERE attempts.task_id = tasks.id AND attempts.outcome <> 'released' \
     ORDER BY attempts.fence DESC LIMIT 1)";

fn push_group(query: &mut QueryBuilder<Sqlite>, by: &GroupBy) {
    match by {
        GroupBy::Type => query.push("type"),
        GroupBy::Queue => query.push("coalesce(queue, 'default')"),
        GroupBy::Policy | GroupBy::Variant => query.push(LAST_POLICY),
        GroupBy::Label(name) => {
            query.push("(SELECT CAST(value AS TEXT) FROM json_each(labels) WHERE key = ");
            query.push_bind(name.clone()).push(")")
        }
    };
}

pub(super) async fn tallies(store: &SqliteStore, by: &GroupBy, filter: &Filter) -> Result<Vec<Tally>, StoreError> {
    let Some(filter) = exact(store, filter).await? else { return Ok(Vec::new()) };
    let by_variant = *by == GroupBy::Variant;
    let mut query = QueryBuilder::new("WITH ended AS (SELECT seq, id, ");
    push_group(&mut query, by);
    query.push(" AS grp, ").push(if by_variant { "variant" } else { "NULL AS variant" });
    query.push(
        ", status = 'succeeded' AND coalesce(degraded NOT IN ('cache', 'default'), 1) AS ok, \
         coalesce(degraded IN ('cache', 'default'), 0) AS fell_back, degraded IS NOT NULL AS degraded, \
         status <> 'succeeded' AS dead, coalesce(dead_reason = 'permanent_error', 0) AS permanent, \
         ended_at - created_at AS took",
    );
    push_ended(&mut query, &filter);
    if by_variant {
        query.push(" AND variant IS NOT NULL");
    }
    query.push(
        "), task AS (SELECT ended.*, count(attempts.fence) AS tried, total(attempts.cost) AS cost, \
         coalesce(sum(attempts.ended_at - attempts.started_at), 0) AS handler_ms \
         FROM ended LEFT JOIN attempts ON attempts.task_id = ended.id AND attempts.outcome <> 'released' GROUP BY ended.seq)",
    );
    // Times have to be sorted, which costs as much as all the rest: only where they are asked for.
    let (rows, p50, p95) = if by_variant {
        query.push(
            ", ranked AS (SELECT *, row_number() OVER same AS place, count(*) OVER (PARTITION BY grp, variant, ok) AS of \
             FROM task WINDOW same AS (PARTITION BY grp, variant, ok ORDER BY took))",
        );
        let at = |percent: u32| format!("max(CASE WHEN ok AND place = (of * {percent} + 99) / 100 THEN took END)");
        ("ranked", at(50), at(95))
    } else {
        ("task", "NULL".to_owned(), "NULL".to_owned())
    };
    query.push(format!(
        " SELECT grp, variant, count(*) AS tasks, sum(tried > 0), sum(ok AND tried <= 1), sum(ok AND tried = 2), \
         sum(ok AND tried = 3), sum(ok AND tried > 3), sum(ok), sum(fell_back), sum(degraded), sum(dead), sum(permanent), \
         sum(tried), max(tried), total(cost), sum(handler_ms), {p50}, {p95} FROM {rows} GROUP BY grp, variant \
         ORDER BY tasks DESC, grp, variant"
    ));
    let rows = fetch(store, query).await?;
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

pub(super) async fn attempt_tallies(store: &SqliteStore, filter: &Filter) -> Result<Vec<AttemptTally>, StoreError> {
    let Some(filter) = exact(store, filter).await? else { return Ok(Vec::new()) };
    let mut query = QueryBuilder::new("WITH ended AS (SELECT id");
    push_ended(&mut query, &filter);
    query.push(
        "), numbered AS (SELECT row_number() OVER (PARTITION BY attempts.task_id ORDER BY attempts.fence) AS number, \
         attempts.outcome = 'succeeded' AS ok, attempts.cost AS cost, attempts.ended_at - attempts.started_at AS handler_ms \
         FROM ended CROSS JOIN attempts ON attempts.task_id = ended.id WHERE attempts.outcome <> 'released') \
         SELECT number, count(*), sum(ok), total(cost), sum(handler_ms) FROM numbered GROUP BY number ORDER BY number",
    );
    let rows = fetch(store, query).await?;
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

pub(super) async fn failure_tallies(
    store: &SqliteStore,
    filter: &Filter,
    most: usize,
) -> Result<Vec<FailureTally>, StoreError> {
    let Some(filter) = exact(store, filter).await? else { return Ok(Vec::new()) };
    let mut query = QueryBuilder::new("WITH ended AS (SELECT id");
    push_ended(&mut query, &filter);
    query.push(
        ") SELECT attempts.class, attempts.code, attempts.http_status, count(*) AS failed, count(DISTINCT attempts.task_id) \
         FROM ended CROSS JOIN attempts ON attempts.task_id = ended.id \
         WHERE attempts.class IS NOT NULL AND attempts.outcome <> 'released' \
         GROUP BY attempts.class, attempts.code, attempts.http_status \
         ORDER BY failed DESC, attempts.class, attempts.code, attempts.http_status LIMIT ",
    );
    query.push_bind(limit(most));
    let rows = fetch(store, query).await?;
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
