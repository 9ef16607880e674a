//! SQLite as an engine: readers for questions, the writer for everything else.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{FutureExt, LocalBoxFuture};
use rusqlite::Connection;
use sqlx::sqlite::SqliteRow;
use tokio::sync::oneshot;

use super::batch::Context;
use super::rows::{Slots, arguments};
use super::writer::{Errand, Job, bisect};
use super::{SqliteStore, open};
use crate::store::sql::dialect::Dialect;
use crate::store::sql::engine::{Ask, Engine, Tx, Work};
use crate::store::sql::fault::Fault;
use crate::store::sql::value::{Record, Values};
use crate::store::{Clock, StoreError, StoreReport, Urgency};
use crate::task::{Answer, Command, Millis};

/// A caller whose commit may take no time at all still looks only so often.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
/// How long to wait for the writer's word on commits by others before going by its last one.
const LOOK_OUTSIDE: Duration = Duration::from_millis(200);

impl SqliteStore {
    fn closed(&self) -> StoreError {
        self.fault(Fault::Transient("it has been closed".into()))
    }
}

#[async_trait]
impl Engine for SqliteStore {
    type Row = SqliteRow;

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    async fn fetch(&self, sql: &str, values: Values) -> Result<Vec<SqliteRow>, Fault> {
        let query = sqlx::query_with(sqlx::AssertSqlSafe(sql), arguments(values)?);
        Ok(query.fetch_all(&self.readers).await?)
    }

    fn report_unreadable(&self, seqs: Vec<i64>) {
        // A closed writer sets nothing aside; the next process that meets them will.
        self.writer.errands.send(Errand::SetAside(seqs)).ok();
    }

    async fn commit(&self, urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError> {
        let queue = match urgency {
            Urgency::First => &self.writer.first,
            Urgency::Normal => &self.writer.normal,
        };
        let (reply, mut answer) = oneshot::channel();
        let batch = Arc::new(AtomicU64::new(0));
        queue.send(Job { commands, batch: Arc::clone(&batch), reply }).map_err(|_| self.closed())?;
        let unknown = || StoreError::Unknown { place: self.path.display().to_string() };
        let mut patience = self.commit_timeout.max(SHORTEST_LOOK);
        loop {
            match tokio::time::timeout(patience, &mut answer).await {
                // The writer went away with the job: nobody knows how far it came.
                Ok(answer) => return answer.unwrap_or_else(|_| Err(unknown())),
                Err(_) => match self.writer.commit.since(batch.load(Ordering::SeqCst)) {
                    // It has begun, so it cannot be taken back: the writer sees it through.
                    Some(taken) if taken >= self.commit_timeout => return Err(unknown()),
                    Some(taken) => patience = (self.commit_timeout - taken).max(SHORTEST_LOOK),
                    None => patience = self.commit_timeout.max(SHORTEST_LOOK),
                },
            }
        }
    }

    async fn transact(&self, work: Work) -> Result<Box<dyn Any + Send>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.writer.errands.send(Errand::Write(work, reply)).map_err(|_| self.closed())?;
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// The count of commits by others, as new as the writer can tell at once.
    async fn look_outside(&self) -> Result<i64, StoreError> {
        let (done, looked) = oneshot::channel();
        if self.writer.errands.send(Errand::LookOutside(done)).is_ok() {
            // While the writer waits for a lock its last word has to do: it looks again in its next transaction.
            tokio::time::timeout(LOOK_OUTSIDE, looked).await.ok();
        }
        Ok(self.writer.outside.load(Ordering::SeqCst))
    }

    async fn inspect(&self, deep: bool) -> Result<StoreReport, StoreError> {
        let look = async {
            let mut conn = self.readers.acquire().await?;
            let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut *conn).await?;
            let schema: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *conn).await?;
            let integrity: Option<Vec<String>> = match deep {
                false => None,
                true => Some(sqlx::query_scalar("PRAGMA integrity_check(20)").fetch_all(&mut *conn).await?),
            };
            Ok::<_, sqlx::Error>((version, schema, integrity.map(|found| found.join("; "))))
        };
        let (version, schema_version, integrity) = look.await.map_err(|error| self.fault(error))?;
        let size = |suffix: &str| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(suffix);
            std::fs::metadata(name).map_or(0, |file| file.len())
        };
        Ok(StoreReport {
            place: self.path.display().to_string(),
            engine: format!("SQLite {version}"),
            schema_version,
            schema_known: open::known_version(),
            bytes: size("") + size("-wal") + size("-shm"),
            integrity,
        })
    }

    async fn shut(&self) {
        // The writer goes last: only it can move the log into the file, so that one file is what is left.
        self.readers.close().await;
        let (done, closed) = oneshot::channel();
        if self.writer.errands.send(Errand::Close(done)).is_ok() {
            closed.await.ok();
        }
    }
}

/// The writer's transaction. SQLite answers at once, so its futures are ready when they are made.
pub(super) struct Open<'t> {
    pub(super) conn: &'t Connection,
    pub(super) context: &'t mut Context,
    pub(super) now: Millis,
}

impl Open<'_> {
    fn rows(&self, sql: &str, values: &Values) -> Result<Vec<Record>, Fault> {
        let mut statement = self.conn.prepare_cached(&Dialect::Sqlite.render(sql))?;
        bind(&mut statement, values)?;
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(Record::of(row, columns).map_err(Fault::Unusable)?);
        }
        Ok(found)
    }

    fn run(&self, sql: &str, values: &Values) -> Result<i64, Fault> {
        let mut statement = self.conn.prepare_cached(&Dialect::Sqlite.render(sql))?;
        bind(&mut statement, values)?;
        Ok(i64::try_from(statement.raw_execute()?).unwrap_or(i64::MAX))
    }
}

fn bind(statement: &mut rusqlite::Statement<'_>, values: &Values) -> Result<(), Fault> {
    let mut slots = Slots::of(statement);
    for value in &values.0 {
        slots.add(value);
    }
    Ok(slots.done()?)
}

impl Tx for Open<'_> {
    fn rows<'a>(&'a mut self, sql: &'a str, values: Values) -> LocalBoxFuture<'a, Result<Vec<Record>, Fault>> {
        std::future::ready(Open::rows(self, sql, &values)).boxed_local()
    }

    fn run<'a>(&'a mut self, sql: &'a str, values: Values) -> LocalBoxFuture<'a, Result<i64, Fault>> {
        std::future::ready(Open::run(self, sql, &values)).boxed_local()
    }

    fn apply<'a>(&'a mut self, commands: &'a [Command]) -> LocalBoxFuture<'a, Result<Vec<Answer>, Fault>> {
        std::future::ready(bisect(self.conn, self.context, commands, self.now)).boxed_local()
    }
}
