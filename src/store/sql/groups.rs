//! Dead letters by group, counted from one index that holds all that is asked of them.
//!
//! Counting goes over the letters that match, in the order of the index, and reads no row of `tasks`. What comes out is one line per
//! fingerprint, type, class, code, HTTP status and reason; groups by anything coarser are put together here.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::{Value, json};

use super::columns::Columns;
use super::dialect::Dialect;
use super::engine::{Ask, Engine};
use super::fault::Fault;
use super::filter;
use super::question::Question;
use super::value::{plain, values};
use crate::policy::TopicPattern;
use crate::store::triage::HOUR_MS;
use crate::store::{
    Filter, GROUP_HOURS, GROUP_SAMPLES, GroupNote, LetterGroup, LetterGroupBy, LetterSample, StoreError,
};
use crate::task::{DeadReason, Millis};

/// What the index is ordered by, before the hour.
const KIND: &str = "failure_fingerprint, type, failure_class, failure_code, failure_http_status, dead_reason";

/// The letters of one kind, as the index holds them together. Read from an array.
#[derive(Deserialize)]
struct Kind {
    fingerprint: Option<String>,
    task_type: String,
    class: Option<String>,
    code: Option<String>,
    http_status: Option<i64>,
    reason: DeadReason,
    label: Option<String>,
}

impl Kind {
    fn key(&self, by: &LetterGroupBy) -> Option<String> {
        match by {
            LetterGroupBy::Fingerprint => self.fingerprint.clone().filter(|print| !print.is_empty()),
            LetterGroupBy::Class => self.class.clone(),
            LetterGroupBy::Type => Some(self.task_type.clone()),
            LetterGroupBy::Reason => Some(self.reason.as_str().to_owned()),
            LetterGroupBy::Label(_) => self.label.clone(),
        }
    }

    fn json(&self) -> Value {
        json!([
            self.fingerprint,
            self.task_type,
            self.class,
            self.code,
            self.http_status,
            self.reason.as_str(),
            self.label
        ])
    }
}

/// Letters of one kind in one hour of death, or in all hours before the first that is told apart: the hour, how many, the first and
/// the last death, and the first time at which one of them replays itself. Read from an array.
#[derive(Deserialize)]
struct Counted(Kind, Option<i64>, i64, Option<Millis>, Option<Millis>, Option<Millis>);

/// A group while it is put together.
#[derive(Default)]
struct Gathered {
    group: LetterGroup,
    /// Its kinds, as JSON, with the time of the newest letter of each.
    newest: HashMap<String, Millis>,
}

/// The label's value, as an expression; NULL where no label is asked for.
fn push_label(query: &mut Question, by: &LetterGroupBy) {
    match by {
        LetterGroupBy::Label(name) => {
            query.push("{label:labels,?}").give(name.as_str());
        }
        _ => {
            query.push("CAST(NULL AS TEXT)");
        }
    }
}

/// Adds `FROM` and the conditions of `filter` over the index of dead letters.
pub(super) fn push_letters(query: &mut Question, filter: &Filter) {
    // Ids lead to their rows at once; the index of letters does not hold them.
    let index = if filter.ids.is_empty() { "tasks_letters" } else { "tasks_id" };
    query.push(" FROM tasks INDEXED BY ").push(index).push(" WHERE status = 'dead'");
    filter::push_letter_conditions(query, filter);
}

/// The filter with the types written out that its patterns mean among dead letters; `None` when it can match no dead letter.
pub(super) async fn concrete<E: Engine>(store: &E, filter: &Filter) -> Result<Option<Filter>, StoreError> {
    if !filter.statuses.is_empty() && !filter.statuses.contains(&crate::task::Status::Dead) {
        return Ok(None);
    }
    if !filter::needs_matching(filter) {
        return Ok(Some(filter.clone()));
    }
    let sql = "SELECT DISTINCT type FROM tasks INDEXED BY tasks_letters WHERE status = 'dead'";
    let types = store.all(sql, values![], |columns| columns.next::<String>()).await?;
    let matching = types.iter().filter(|task_type| filter::matches_type(filter, task_type));
    let types: Vec<TopicPattern> = matching.filter_map(|task_type| TopicPattern::new(task_type).ok()).collect();
    Ok((!types.is_empty()).then(|| Filter { types, ..filter.clone() }))
}

pub(super) async fn groups<E: Engine>(
    store: &E,
    by: &LetterGroupBy,
    filter: &Filter,
    limit: usize,
) -> Result<Vec<LetterGroup>, StoreError> {
    let now = store.clock().now();
    let Some(filter) = concrete(store, filter).await? else { return Ok(Vec::new()) };
    let first_hour = now.div_euclid(HOUR_MS) - hours() + 1;
    let mut groups: HashMap<Option<String>, Gathered> = HashMap::new();
    for Counted(kind, hour, count, first, last, appointed) in counts(store, by, &filter, first_hour).await? {
        let key = kind.key(by);
        let gathered = groups.entry(key.clone()).or_default();
        let last = last.unwrap_or(0);
        let newest = gathered.newest.entry(kind.json().to_string()).or_insert(last);
        *newest = last.max(*newest);
        let group = &mut gathered.group;
        if group.count == 0 {
            group.first_died_at = Millis::MAX;
            group.key = key;
        }
        group.count += count;
        group.first_died_at = group.first_died_at.min(first.unwrap_or(0));
        group.last_died_at = group.last_died_at.max(last);
        group.next_replay_at = [group.next_replay_at, appointed].into_iter().flatten().min();
        if let Some(place) = hour.and_then(|hour| usize::try_from(hour - first_hour).ok()) {
            group.hourly[place.min(GROUP_HOURS - 1)] += count;
        }
        *group.types.entry(kind.task_type).or_insert(0) += count;
        *group.reasons.entry(kind.reason).or_insert(0) += count;
        if let Some(class) = kind.class {
            *group.classes.entry(class).or_insert(0) += count;
        }
        if let Some(code) = kind.code {
            *group.codes.entry(code).or_insert(0) += count;
        }
        group.fingerprints.extend(kind.fingerprint.filter(|print| !print.is_empty()));
    }

    let mut groups: Vec<Gathered> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        let rank = |g: &Gathered| (std::cmp::Reverse(g.group.count), std::cmp::Reverse(g.group.last_died_at));
        rank(a).cmp(&rank(b)).then_with(|| a.group.key.cmp(&b.group.key))
    });
    groups.truncate(limit);
    add_samples(store, by, &filter, &mut groups).await?;
    Ok(groups.into_iter().map(|gathered| gathered.group).collect())
}

fn hours() -> i64 {
    i64::try_from(GROUP_HOURS).unwrap_or(24)
}

/// The letters of each kind by hour of death, all those before `first_hour` as one. The inner counts come out in the order of the index;
/// putting the old hours together is work on those few lines only. They come as one JSON text: thousands of rows of their own would
/// each cost a change of thread, which is more than the counting.
async fn counts<E: Engine>(
    store: &E,
    by: &LetterGroupBy,
    filter: &Filter,
    first_hour: i64,
) -> Result<Vec<Counted>, StoreError> {
    let (list, array) = match store.dialect() {
        Dialect::Sqlite => ("json_group_array", "json_array"),
        #[cfg(feature = "postgres")]
        Dialect::Postgres => ("json_agg", "json_build_array"),
    };
    let mut query = Question::new("SELECT CAST(");
    query.push(format!(
        "{list}({array}({array}({KIND}, label), hour_or_before, letters, first, last, appointed)) AS TEXT) "
    ));
    query.push("FROM (SELECT ").push(KIND).push(", label, CASE WHEN hour > ").bind(first_hour - 1);
    query.push(" THEN hour ELSE ").bind(first_hour - 1);
    query.push(
        " END AS hour_or_before, CAST(sum(letters) AS BIGINT) AS letters, min(first) AS first, max(last) AS last, \
         min(appointed) AS appointed FROM (",
    );
    push_hourly(&mut query, by, filter);
    query.push(") AS hourly GROUP BY ").push(KIND).push(", label, hour_or_before) AS counted");
    let rows = query.rows(store).await?;
    let text = rows.first().map(|row| store.read(row, |columns| columns.next::<Option<String>>())).transpose()?;
    // PostgreSQL's list of nothing is NULL.
    let text = text.flatten().unwrap_or_else(|| "[]".to_owned());
    serde_json::from_str(&text)
        .map_err(|error| store.fault(Fault::Unusable(format!("groups cannot be counted: {error}"))))
}

/// The letters of each kind by hour of death.
fn push_hourly(query: &mut Question, by: &LetterGroupBy, filter: &Filter) {
    query.push("SELECT ").push(KIND).push(", ");
    push_label(query, by);
    query.push(
        " AS label, ended_at / 3600000 AS hour, count(*) AS letters, min(ended_at) AS first, max(ended_at) AS last, \
         min(wake_at) AS appointed",
    );
    push_letters(query, filter);
    query.push(" GROUP BY ").push(KIND).push(", ended_at / 3600000");
    if matches!(by, LetterGroupBy::Label(_)) {
        query.push(", label");
    }
}

/// The newest letters of a group are among those of the kinds with the newest letters, as many kinds as samples.
async fn add_samples<E: Engine>(
    store: &E,
    by: &LetterGroupBy,
    filter: &Filter,
    groups: &mut [Gathered],
) -> Result<(), StoreError> {
    let mut wanted = Vec::new();
    for (index, gathered) in groups.iter().enumerate() {
        let mut kinds: Vec<(&String, &Millis)> = gathered.newest.iter().collect();
        kinds.sort_by_key(|(_, last)| std::cmp::Reverse(**last));
        wanted.extend(kinds.into_iter().take(GROUP_SAMPLES).map(|(kind, _)| format!("[{index},{kind}]")));
    }
    let mut query = Question::new(
        "SELECT wanted.place, task.id, task.type, coalesce(task.ended_at, 0), task.failure_class, task.failure_code, \
         task.failure_http_status, task.failure_message FROM ",
    );
    let list = format!("[{}]", wanted.join(","));
    match store.dialect() {
        Dialect::Sqlite => {
            query.push("(SELECT value ->> 0 AS place, value -> 1 AS kind FROM json_each(").bind(list);
            query.push(")) AS wanted CROSS JOIN tasks AS task ON task.seq IN (SELECT seq");
        }
        #[cfg(feature = "postgres")]
        Dialect::Postgres => {
            query.push(
                "(SELECT CAST(value ->> 0 AS BIGINT) AS place, value -> 1 AS kind FROM json_array_elements(CAST(",
            );
            query.bind(list).push(" AS JSON)) AS each(value)) AS wanted CROSS JOIN LATERAL (SELECT *");
        }
    }
    push_letters(&mut query, filter);
    for (place, column) in KIND.split(", ").enumerate() {
        query.push(" AND ").push(column).push(" IS NOT DISTINCT FROM ");
        // The only number among them; SQLite's has its kind by itself, and a cast would cost it the index.
        match (store.dialect(), column) {
            #[cfg(feature = "postgres")]
            (Dialect::Postgres, "failure_http_status") => {
                query.push(format!("CAST(wanted.kind ->> {place} AS BIGINT)"))
            }
            _ => query.push(format!("wanted.kind ->> {place}")),
        };
    }
    if matches!(by, LetterGroupBy::Label(_)) {
        query.push(" AND ");
        push_label(&mut query, by);
        query.push(" IS NOT DISTINCT FROM wanted.kind ->> 6");
    }
    query.push(" ORDER BY ended_at / 3600000 DESC, ended_at DESC LIMIT ").push(GROUP_SAMPLES.to_string()).push(")");
    if store.dialect() != Dialect::Sqlite {
        query.push(" AS task");
    }
    for row in &query.rows(store).await? {
        let (index, sample) = store.read(row, |columns| {
            let index: i64 = columns.next()?;
            let sample = LetterSample {
                id: columns.next()?,
                task_type: columns.next()?,
                died_at: columns.next()?,
                class: columns.next()?,
                code: columns.next()?,
                http_status: columns.next::<Option<i64>>()?.and_then(|status| u16::try_from(status).ok()),
                message: columns.next()?,
            };
            Ok((index, sample))
        })?;
        if let Some(gathered) = usize::try_from(index).ok().and_then(|index| groups.get_mut(index)) {
            gathered.group.samples.push(sample);
        }
    }
    for gathered in groups {
        let samples = &mut gathered.group.samples;
        samples.sort_by(|a, b| b.died_at.cmp(&a.died_at).then_with(|| b.id.cmp(&a.id)));
        samples.truncate(GROUP_SAMPLES);
    }
    Ok(())
}

pub(super) async fn notes<E: Engine>(store: &E, by: &LetterGroupBy) -> Result<Vec<GroupNote>, StoreError> {
    let sql = "SELECT key, owner, note, noted_by, noted_at FROM group_notes WHERE grouped_by = ? ORDER BY key";
    let read = |columns: &mut Columns<'_, E::Row>| {
        Ok(GroupNote {
            key: columns.next()?,
            owner: columns.next()?,
            note: columns.next()?,
            noted_by: columns.next()?,
            noted_at: columns.next()?,
        })
    };
    store.all(sql, values![by.to_string()], read).await
}

pub(super) async fn note<E: Engine>(store: &E, by: String, note: GroupNote) -> Result<(), StoreError> {
    let work = store.write(move |tx, now| {
        Box::pin(async move {
            if note.owner.is_none() && note.note.is_none() {
                let sql = "DELETE FROM group_notes WHERE grouped_by = ? AND key = ?";
                return tx.run(sql, values![by, note.key]).await;
            }
            let sql = "INSERT INTO group_notes (grouped_by, key, owner, note, noted_by, noted_at) VALUES (?, ?, ?, ?, ?, ?) \
                       ON CONFLICT (grouped_by, key) DO UPDATE SET owner = excluded.owner, note = excluded.note, \
                       noted_by = excluded.noted_by, noted_at = excluded.noted_at";
            tx.run(sql, values![by, note.key, plain(note.owner), plain(note.note), plain(note.noted_by), now]).await
        })
    });
    work.await.map(drop)
}

/// How many letters of each way to be skipped a filter matches.
pub(super) type ByReason = BTreeMap<DeadReason, i64>;

pub(super) async fn by_reason<E: Engine>(
    store: &E,
    filter: &Filter,
    limit: Option<usize>,
) -> Result<ByReason, StoreError> {
    let mut query = Question::new("SELECT dead_reason, count(*) FROM (SELECT dead_reason, seq");
    push_letters(&mut query, filter);
    if let Some(limit) = limit {
        query.push(" ORDER BY seq DESC LIMIT ").bind(super::engine::limit(limit));
    }
    query.push(") AS letters GROUP BY dead_reason");
    let rows = query.rows(store).await?;
    let mut reasons = BTreeMap::new();
    for row in &rows {
        let (word, count): (String, i64) = store.read(row, |columns| Ok((columns.next()?, columns.next()?)))?;
        if let Some(reason) = DeadReason::parse(&word) {
            *reasons.entry(reason).or_insert(0) += count;
        }
    }
    Ok(reasons)
}

/// The places (`seq`) of the letters that match, newest first, taken at one moment and, as they may be many, in one row.
pub(super) async fn places<E: Engine>(
    store: &E,
    filter: &Filter,
    limit: Option<usize>,
) -> Result<Vec<i64>, StoreError> {
    let list = match store.dialect() {
        Dialect::Sqlite => "json_group_array(seq)",
        #[cfg(feature = "postgres")]
        Dialect::Postgres => "json_agg(seq)",
    };
    let mut query = Question::new("SELECT CAST(");
    query.push(list).push(" AS TEXT) FROM (SELECT seq");
    push_letters(&mut query, filter);
    query.push(" ORDER BY seq DESC LIMIT ").bind(limit.map_or(i64::MAX, super::engine::limit)).push(") AS letters");
    let rows = query.rows(store).await?;
    let text = rows.first().map(|row| store.read(row, |columns| columns.next::<Option<String>>())).transpose()?;
    serde_json::from_str(&text.flatten().unwrap_or_else(|| "[]".to_owned()))
        .map_err(|error| store.fault(Fault::Unusable(error.to_string())))
}
