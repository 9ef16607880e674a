//! Moves an installation from one store to another: every table, row by row, and then looks whether all of it arrived.
//!
//! It never changes the source, and never writes into a target that holds anything.

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::sql::columns::Columns;
use super::sql::engine::{Ask, Engine, limit};
use super::sql::fault::Fault;
use super::sql::value::{CellValue, Source, Value, Values, values};
use super::sql::written::Kind;
use super::{Store, StoreError};
use crate::task::{Millis, Settings};

/// Bytes of a row that are not counted in its cells.
const ROW_BYTES: usize = 64;
/// Rows read at once, at most.
const PAGE: usize = 500;
/// Rows and bytes written in one transaction, at most: a statement takes 32,766 arguments, and a task has 52.
const PART: usize = 100;
const PART_BYTES: usize = 4 << 20;
/// Workers that have said so within this time are at work.
pub const FRESH_MS: Millis = 120_000;

/// A table: its name, the columns that order it, and the others.
struct Table {
    name: &'static str,
    key: &'static [&'static str],
    others: &'static str,
    /// The number that the database gives itself, which has to go on behind what was copied.
    numbered: bool,
}

/// Every table but `nodes`, which only says who is at work. Tasks come last: before they are there, nothing can run in the target.
const TABLES: &[Table] = &[
    table(
        "attempts",
        &["task_id", "fence"],
        "number, generation, outcome, class, code, http_status, message, stack, fingerprint, \
        started_at, ended_at, worker, policy, variant, delay_before_ms, delay_reason, cost",
    ),
    table("attachments", &["task_id", "fence", "position"], "name, media_type, bytes, link, size"),
    table("results", &["task_id"], "media_type, truncated, body"),
    table("cached", &["type", "cache_key"], "stored_at, media_type, truncated, body"),
    table("lanes", &["queue", "lane"], "mark, probed_at, probe_gap_ms, probe_mark"),
    table("missing", &["queue", "spot", "delay_ms"], "at"),
    table("dlqs", &["queue"], "dirty, cleaned, pass, pass_until, pass_began, strangers"),
    table("gates", &["key"], "state"),
    table("policies", &["version"], "applied_at, applied_by, reason, text, hash"),
    table("pauses", &["key"], "since, reason"),
    table("group_notes", &["grouped_by", "key"], "owner, note, noted_by, noted_at"),
    numbered(
        "replay_jobs",
        &["id"],
        "origin, created_at, created_by, reason, about, rate_per_s, ramp, max_failure_ratio, edit, state, \
        why, changed_by, changed_at, stage, paced_to_us, worker, fence, lease_until, ended_at",
    ),
    table("replay_items", &["job", "position"], "task_id, generation, outcome, why, runs_as, runs_generation, at"),
    table("edits", &["task_id"], "edited_from, edited_at, edited_by, reason, patch"),
    numbered("notices", &["number"], "topic, reply_to, task_id, generation, retry_count, at, document, send_at, tries"),
    table("triage_marks", &["name"], "at"),
    table("tokens", &["name"], "hash, role, created_at, created_by, last_used_at, expires_at, revoked_at"),
    table("sessions", &["hash"], "who, token, role, created_at, expires_at"),
    table("sign_in_links", &["hash"], "who, role, expires_at"),
    numbered("audit", &["seq"], "at, who, role, door, origin, action, target, reason, count"),
    numbered("tasks", &["seq"], concat!(super::sql::columns::state!(), ", ", super::sql::columns::spec!())),
];

const fn table(name: &'static str, key: &'static [&'static str], others: &'static str) -> Table {
    Table { name, key, others, numbered: false }
}

const fn numbered(name: &'static str, key: &'static [&'static str], others: &'static str) -> Table {
    Table { name, key, others, numbered: true }
}

impl Table {
    fn columns(&self) -> String {
        format!("{}, {}", self.key.join(", "), self.others)
    }

    /// Where its rows are read. A gate that has nothing to remember is as good as none.
    fn source(&self) -> &'static str {
        if self.name == "gates" { "(SELECT * FROM gates WHERE state IS NOT NULL) AS gates" } else { self.name }
    }

    fn kinds(&self) -> Vec<Kind> {
        let columns = self.columns();
        let kind = |column: &str| match (self.name, column.trim()) {
            // The only number of that name.
            ("replay_jobs", "id") => Kind::Integer,
            (_, column) => Kind::of(column),
        };
        columns.split(',').map(kind).collect()
    }
}

/// Why nothing, or not everything, was copied.
#[derive(Debug, Error)]
pub enum CopyError {
    /// A store did not do what it was asked to.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The target holds something.
    #[error("{place} is not empty: its table {table} has {rows} rows; copy into a new one")]
    NotEmpty {
        /// The target.
        place: String,
        /// The first table with rows.
        table: &'static str,
        /// How many.
        rows: i64,
    },
    /// Workers are at work on the source.
    #[error(
        "workers run on {place}: {workers}; stop them and try again, after two minutes for one that was killed (or --force: what they write meanwhile is missing in the copy)"
    )]
    Busy {
        /// The source.
        place: String,
        /// Their names.
        workers: String,
    },
    /// What was read back is not what was read before.
    #[error("{table} differs: {from} rows in the source, {to} in the copy{same}; empty the target and copy again while nothing writes to the source",
        same = if from == to { ", with other content" } else { "" })]
    Differs {
        /// The table.
        table: &'static str,
        /// Rows in the source.
        from: i64,
        /// Rows in the target.
        to: i64,
    },
}

/// A table that was copied and looked at again.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CopiedTable {
    /// Its name.
    pub table: &'static str,
    /// Its rows.
    pub rows: i64,
    /// SHA-256 over every row, in the order of the key, in hex.
    pub sha256: String,
}

/// What a copy is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Copy although workers run on the source.
    pub force: bool,
    /// Only look whether it could be done, and count.
    pub dry_run: bool,
}

/// Copies the store at `from` into the one at `to`, which is made if it is not there. `progress` is told a table, how many of its rows are
/// done, and how many there are.
///
/// # Errors
/// See [`CopyError`]. What was copied before an error stays in the target.
pub async fn copy(
    from: &str,
    to: &str,
    settings: Settings,
    options: CopyOptions,
    progress: &(dyn Fn(&str, i64, i64) + Sync),
) -> Result<Vec<CopiedTable>, CopyError> {
    /// One of the stores that can be copied, opened, as `$store` in `$then`.
    macro_rules! with_store {
        ($url:expr, $create:expr, |$store:ident| $then:expr) => {{
            #[cfg(feature = "postgres")]
            let is_postgres = super::is_postgres($url);
            #[cfg(not(feature = "postgres"))]
            let is_postgres = false;
            if is_postgres {
                #[cfg(feature = "postgres")]
                {
                    let options = super::postgres::PostgresOptions {
                        create: $create,
                        ..super::postgres::PostgresOptions::default()
                    };
                    let $store = super::postgres::PostgresStore::open($url, settings.clone(), options).await?;
                    let done = $then;
                    $store.close().await;
                    return done;
                }
            }
            let options = super::sqlite::SqliteOptions { create: $create, ..super::sqlite::SqliteOptions::default() };
            let $store = super::sqlite::SqliteStore::open($url, settings.clone(), options).await?;
            let done = $then;
            $store.close().await;
            done
        }};
    }
    let copied: Result<Vec<CopiedTable>, CopyError> = with_store!(from, false, |source| {
        let into = async { with_store!(to, true, |target| copy_all(&source, &target, options, progress).await) };
        into.await
    });
    copied
}

async fn copy_all<A: Engine, B: Engine>(
    source: &A,
    target: &B,
    options: CopyOptions,
    progress: &(dyn Fn(&str, i64, i64) + Sync),
) -> Result<Vec<CopiedTable>, CopyError> {
    for table in TABLES {
        let rows = count(target, table).await?;
        if rows > 0 {
            return Err(CopyError::NotEmpty { place: target.place(), table: table.name, rows });
        }
    }
    let since = source.clock().now().saturating_sub(FRESH_MS);
    let nodes = source.nodes().await?;
    let workers: Vec<&str> =
        nodes.iter().filter(|node| node.seen_at >= since).map(|node| node.worker.as_str()).collect();
    if !workers.is_empty() && !options.force {
        return Err(CopyError::Busy { place: source.place(), workers: workers.join(", ") });
    }
    let mut copied = Vec::new();
    for table in TABLES {
        let rows = count(source, table).await?;
        if options.dry_run {
            copied.push(CopiedTable { table: table.name, rows, sha256: String::new() });
            continue;
        }
        copy_table(source, target, table, rows, progress).await?;
    }
    if options.dry_run {
        return Ok(copied);
    }
    for table in TABLES {
        let (from, to) = (digest(source, table).await?, digest(target, table).await?);
        if from != to {
            return Err(CopyError::Differs { table: table.name, from: from.0, to: to.0 });
        }
        progress(table.name, to.0, to.0);
        copied.push(CopiedTable { table: table.name, rows: to.0, sha256: to.1 });
    }
    Ok(copied)
}

async fn count<E: Engine>(store: &E, table: &Table) -> Result<i64, StoreError> {
    let sql = format!("SELECT count(*) FROM {}", table.source());
    Ok(store.first(&sql, values![], |row| row.next::<i64>()).await?.unwrap_or(0))
}

/// A page of a table, in the order of its key, after `after`: each row as its values.
async fn page<E: Engine>(store: &E, table: &Table, after: Option<&[Value]>) -> Result<Vec<Vec<Value>>, StoreError> {
    let kinds = table.kinds();
    let key = table.key.join(", ");
    let mut values = Values::default();
    let beyond = match after {
        None => String::new(),
        Some(after) => {
            values.0.extend_from_slice(&after[..table.key.len()]);
            format!("WHERE ({key}) > ({})", vec!["?"; table.key.len()].join(", "))
        }
    };
    values.add(limit(PAGE));
    let sql = format!("SELECT {} FROM {} {beyond} ORDER BY {key} LIMIT ?", table.columns(), table.source());
    let rows = store.rows(&sql, values).await?;
    rows.iter().map(|row| read(row, &kinds).map_err(|reason| store.fault(Fault::Unusable(reason)))).collect()
}

fn read(row: &impl Source, kinds: &[Kind]) -> Result<Vec<Value>, String> {
    let mut columns = Columns::of(row);
    let mut next = |kind: &Kind| {
        Ok(match kind {
            Kind::Text => Value::Text(columns.next()?),
            Kind::Integer => Value::Integer(columns.next()?),
            Kind::Real => Value::Real(columns.next()?),
            Kind::Bytes => Value::Blob(columns.next()?),
        })
    };
    kinds.iter().map(&mut next).collect()
}

async fn copy_table<A: Engine, B: Engine>(
    source: &A,
    target: &B,
    table: &'static Table,
    all: i64,
    progress: &(dyn Fn(&str, i64, i64) + Sync),
) -> Result<(), StoreError> {
    let (mut last, mut done): (Option<Vec<Value>>, i64) = (None, 0);
    loop {
        let rows = page(source, table, last.as_deref()).await?;
        let Some(end) = rows.last() else { break };
        last = Some(end.clone());
        done += limit(rows.len());
        for part in parts(rows) {
            target
                .write(move |tx, _| {
                    Box::pin(async move {
                        let row = format!("({})", vec!["?"; part.first().map_or(0, Vec::len)].join(", "));
                        let rows = vec![row.as_str(); part.len()].join(", ");
                        let sql = format!("INSERT INTO {} ({}) VALUES {rows}", table.name, table.columns());
                        tx.run(&sql, Values(part.into_iter().flatten().collect())).await
                    })
                })
                .await?;
        }
        progress(table.name, done, all.max(done));
    }
    if table.numbered && done > 0 && target.dialect().numbers_by_sequence() {
        // SQLite looks at the rows by itself.
        let (name, number) = (table.name, table.key[0]);
        let sql =
            format!("SELECT setval(pg_get_serial_sequence('{name}', '{number}'), (SELECT max({number}) FROM {name}))");
        target.write(move |tx, _| Box::pin(async move { tx.rows(&sql, values![]).await.map(drop) })).await?;
    }
    Ok(())
}

/// Rows in parts that one transaction takes.
fn parts(rows: Vec<Vec<Value>>) -> Vec<Vec<Vec<Value>>> {
    let mut parts: Vec<Vec<Vec<Value>>> = Vec::new();
    let mut bytes = PART_BYTES;
    for row in rows {
        let size = ROW_BYTES + row.iter().map(size_of).sum::<usize>();
        match parts.last_mut().filter(|part| part.len() < PART && bytes + size <= PART_BYTES) {
            Some(part) => part.push(row),
            None => {
                bytes = 0;
                parts.push(vec![row]);
            }
        }
        bytes += size;
    }
    parts
}

fn size_of(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.as_ref().map_or(0, String::len),
        Value::Blob(bytes) => bytes.as_ref().map_or(0, Vec::len),
        Value::Integer(_) | Value::Real(_) => 8,
    }
}

/// How many rows a table has, and the digest of all of them.
async fn digest<E: Engine>(store: &E, table: &Table) -> Result<(i64, String), StoreError> {
    let mut hash = Sha256::new();
    let (mut last, mut count): (Option<Vec<Value>>, i64) = (None, 0);
    loop {
        let rows = page(store, table, last.as_deref()).await?;
        for row in &rows {
            row.iter().for_each(|value| feed(&mut hash, value));
        }
        count += limit(rows.len());
        match rows.into_iter().last() {
            Some(end) => last = Some(end),
            None => return Ok((count, hex::encode(hash.finalize()))),
        }
    }
}

/// A value with its kind and length, so that no two rows look alike.
fn feed(hash: &mut Sha256, value: &Value) {
    let cell = match value {
        Value::Text(Some(text)) => CellValue::Text(text.as_bytes()),
        Value::Blob(Some(bytes)) => CellValue::Blob(bytes),
        Value::Integer(Some(number)) => CellValue::Integer(*number),
        Value::Real(Some(number)) => CellValue::Real(*number),
        _ => CellValue::Null,
    };
    let mut add = |kind: u8, bytes: &[u8]| {
        hash.update([kind]);
        hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(bytes);
    };
    match cell {
        CellValue::Null => add(0, &[]),
        CellValue::Integer(number) => add(1, &number.to_be_bytes()),
        CellValue::Real(number) => add(2, &number.to_be_bytes()),
        CellValue::Text(text) => add(3, text),
        CellValue::Blob(bytes) => add(4, bytes),
    }
}
