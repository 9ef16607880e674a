//! A batch inside its transaction: load and lock the rows that the commands name, let the rules change them, write what changed.
//!
//! Every transaction takes its locks in one order, so that two of them wait for each other and never in a circle: the locks of
//! small shared tables, tasks by id, gates by key.

use std::collections::BTreeSet;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Executor, Row};

use super::quarantine;
use super::write::Writes;
use crate::store::Clock;
use crate::store::sql::columns::{Columns, select_tasks, spec, state};
use crate::store::sql::fault::Fault;
use crate::store::sql::ledgers;
use crate::store::sql::needs::{Needs, refusals_in_play};
use crate::task::{Answer, Command, Rows, Settings};

/// What batches need to know.
pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) writes: Writes,
    pub(super) clock: Clock,
}

/// Rows with certain ids, locked in their order.
const LOAD_IDS: &str = select_tasks!("WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE");
/// The same without those that another transaction is working on.
const LOAD_FREE: &str = select_tasks!("WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED");
/// Rows with certain ids, idempotency keys or submission hashes. Of one table alone: a row that another transaction has changed while
/// this one waited for it is then judged by what it is now, and by nothing else.
const LOAD: &str = select_tasks!(
    "WHERE id = ANY($1) OR coalesce(idempotency_key, id) = ANY($2) AND raw_length IS NULL \
     OR submission_hash = ANY($3) AND submission_hash IS NOT NULL ORDER BY id FOR NO KEY UPDATE"
);
/// Gates with these keys: state, and whether they hold somebody.
const GATES: &str = "SELECT key, state, EXISTS (SELECT 1 FROM tasks WHERE held_by = gates.key) FROM gates \
     WHERE key = ANY($1) ORDER BY key FOR NO KEY UPDATE";
const ADD_GATES: &str =
    "INSERT INTO gates (key) SELECT key FROM unnest($1::text[]) AS new(key) ORDER BY key ON CONFLICT DO NOTHING";

/// What is locked before any row, by number. The schema is part of a lock's name: a database may hold several stores.
#[derive(Debug, Clone, Copy, Default)]
struct Shared {
    lanes: bool,
    dlqs: bool,
    /// Submissions that are known by what they say alone: those that are surely new do not stand in each other's way, one that may
    /// have been here before waits until every other is committed.
    unnamed: bool,
    perhaps_again: bool,
    pauses: bool,
}

impl Shared {
    fn of(commands: &[Command], needs: &Needs<'_>) -> Shared {
        let mut shared = Shared { lanes: needs.lanes, dlqs: needs.dlqs, ..Shared::default() };
        for command in commands {
            match command {
                Command::Submit(new) => {
                    shared.pauses = true;
                    shared.unnamed |= new.spec.submission_hash.is_some();
                    shared.perhaps_again |= new.spec.submission_hash.is_some() && new.redelivered;
                }
                Command::Heartbeat { .. }
                | Command::Reclaim { .. }
                | Command::Settle { .. }
                | Command::Lost { .. }
                | Command::Release { .. }
                | Command::Mark { .. }
                | Command::Missing { .. } => {}
                _ => shared.pauses = true,
            }
        }
        shared
    }

    /// One text with everything that comes before rows: locks, then the pauses in force.
    fn text(self, begin: &str) -> String {
        let mut text = begin.to_owned();
        let mut lock = |function: &str, number: u8| {
            text.push_str(&format!("SELECT NULL::text FROM {function}(hashtext(current_schema()), {number});"));
        };
        match (self.perhaps_again, self.unnamed) {
            (true, _) => lock("pg_advisory_xact_lock", 1),
            (false, true) => lock("pg_advisory_xact_lock_shared", 1),
            (false, false) => {}
        }
        if self.lanes {
            lock("pg_advisory_xact_lock", 2);
        }
        if self.dlqs {
            lock("pg_advisory_xact_lock", 3);
        }
        if self.pauses {
            text.push_str("SELECT key FROM pauses;");
        }
        text
    }
}

/// Begins a transaction (`begin` is its first statement, or empty inside one) and takes the locks that come first. Returns the
/// pauses in force, as far as the commands ask for them.
pub(super) async fn prepare(
    conn: &mut PgConnection,
    begin: &str,
    commands: &[Command],
) -> Result<BTreeSet<String>, Fault> {
    let text = Shared::of(commands, &Needs::of(commands)).text(begin);
    if text.is_empty() {
        return Ok(BTreeSet::new());
    }
    let rows = conn.fetch_all(sqlx::raw_sql(sqlx::AssertSqlSafe(text))).await?;
    let pauses = rows.iter().map(|row| row.try_get_unchecked::<Option<String>, _>(0));
    Ok(pauses.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Applies the commands. Nothing is committed here, and on a fault the transaction, or its part since the last savepoint, is of no
/// further use.
pub(super) async fn apply(
    conn: &mut PgConnection,
    context: &Context,
    pauses: &BTreeSet<String>,
    commands: &[Command],
) -> Result<Vec<Answer>, Fault> {
    let mut batch = Batch { conn, context, rows: Rows::default(), passed_over: BTreeSet::new() };
    batch.rows.pauses.clone_from(pauses);
    batch.load(commands).await?;
    // After the locks, so that a wait for them shortens no lease.
    let now = context.clock.now();
    let made = batch.rows.made_by_edits(commands, now);
    batch.load_rows(&Needs::in_the_way_of(&made)).await?;
    batch.load_gates(commands).await?;
    let Batch { conn, mut rows, passed_over, .. } = batch;
    let answer = |command: &Command| match command {
        Command::Wake { id, .. } if passed_over.contains(id) => Answer::Changed,
        command => rows.apply(command, now, &context.settings),
    };
    let answers = commands.iter().map(answer).collect();
    context.writes.save(conn, &rows.into_changes()).await?;
    Ok(answers)
}

struct Batch<'b> {
    conn: &'b mut PgConnection,
    context: &'b Context,
    rows: Rows,
    /// Rows with a ringing alarm that another transaction is working on.
    passed_over: BTreeSet<String>,
}

impl Batch<'_> {
    async fn load(&mut self, commands: &[Command]) -> Result<(), Fault> {
        let mut needs = Needs::of(commands);
        if needs.lanes {
            let lanes = self.conn.fetch_all(ledgers::LANES).await?;
            self.rows.lanes = read(&lanes, ledgers::lane)?.into_iter().collect();
            let missing = self.conn.fetch_all(ledgers::MISSING).await?;
            self.rows.missing = read(&missing, ledgers::missing)?.into_iter().collect();
        }
        if needs.dlqs {
            let dlqs = self.conn.fetch_all(ledgers::DLQS).await?;
            self.rows.dlqs = read(&dlqs, ledgers::dlq)?.into_iter().collect();
        }
        needs.ids.append(&mut needs.running);
        if commands.iter().all(|command| matches!(command, Command::Wake { .. })) {
            return self.load_free(&needs).await;
        }
        self.load_rows(&needs).await?;
        let refusals = refusals_in_play(commands, &self.rows);
        self.load_rows(&Needs::ids(&refusals)).await
    }

    /// Every scheduler looks at the same alarms: what another one works on is left to it.
    async fn load_free(&mut self, needs: &Needs<'_>) -> Result<(), Fault> {
        let wanted: Vec<&str> = needs.ids.iter().copied().collect();
        let found = sqlx::query(LOAD_FREE).bind(&wanted).fetch_all(&mut *self.conn).await?;
        self.take(found).await?;
        let missing: Vec<&str> = wanted.into_iter().filter(|id| self.rows.get(id).is_none()).collect();
        if !missing.is_empty() {
            let there: Vec<String> = sqlx::query_scalar("SELECT id FROM tasks WHERE id = ANY($1)")
                .bind(&missing)
                .fetch_all(&mut *self.conn)
                .await?;
            self.passed_over.extend(there);
        }
        Ok(())
    }

    /// Loads the rows that the ids, keys and hashes of `needs` name. A row that cannot be read is made a dead one, so that the
    /// batch sees it as what it is now.
    async fn load_rows(&mut self, needs: &Needs<'_>) -> Result<(), Fault> {
        if needs.no_rows() {
            return Ok(());
        }
        let list = |words: &BTreeSet<&str>| words.iter().copied().map(str::to_owned).collect::<Vec<String>>();
        let found = if needs.keys.is_empty() && needs.hashes.is_empty() {
            sqlx::query(LOAD_IDS).bind(list(&needs.ids)).fetch_all(&mut *self.conn).await?
        } else {
            let query = sqlx::query(LOAD).bind(list(&needs.ids)).bind(list(&needs.keys)).bind(list(&needs.hashes));
            query.fetch_all(&mut *self.conn).await?
        };
        self.take(found).await
    }

    /// In the order of arrival, so that of several with one submission hash the newest counts.
    async fn take(&mut self, found: Vec<PgRow>) -> Result<(), Fault> {
        let mut tasks = Vec::with_capacity(found.len());
        for row in &found {
            match Columns::of(row).task() {
                Ok(task) => tasks.push(task),
                Err(row) => {
                    let now = self.context.clock.now();
                    let seq = row.seq;
                    let set_aside = quarantine::set_aside(self.conn, seq, now, self.context).await?;
                    tasks.extend(set_aside.map(|task| (seq, task)));
                }
            }
        }
        tasks.sort_by_key(|(seq, _)| *seq);
        tasks.into_iter().for_each(|(_, task)| self.rows.load(task));
        Ok(())
    }

    /// Loads and locks the gates that the commands meet. One without a row gets one: what is not there cannot be locked, and two
    /// transactions would both find it unused.
    async fn load_gates(&mut self, commands: &[Command]) -> Result<(), Fault> {
        let mut keys: Vec<String> = self.rows.gate_keys(commands).into_iter().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let found = sqlx::query(GATES).bind(&keys).fetch_all(&mut *self.conn).await?;
        let known = self.take_gates(&found)?;
        keys.retain(|key| !known.contains(key));
        if !keys.is_empty() {
            sqlx::query(ADD_GATES).bind(&keys).execute(&mut *self.conn).await?;
            let found = sqlx::query(GATES).bind(&keys).fetch_all(&mut *self.conn).await?;
            self.take_gates(&found)?;
        }
        Ok(())
    }

    fn take_gates(&mut self, found: &[PgRow]) -> Result<BTreeSet<String>, Fault> {
        let mut known = BTreeSet::new();
        for row in found {
            known.insert(Columns::of(row).next().map_err(Fault::Unusable)?);
            ledgers::load_gate(&mut Columns::of(row), &mut self.rows).map_err(Fault::Unusable)?;
        }
        Ok(known)
    }
}

fn read<T>(rows: &[PgRow], read: impl Fn(&mut Columns<'_, PgRow>) -> Result<T, String>) -> Result<Vec<T>, Fault> {
    rows.iter().map(|row| read(&mut Columns::of(row)).map_err(Fault::Unusable)).collect()
}
