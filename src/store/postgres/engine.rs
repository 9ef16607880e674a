//! PostgreSQL as an engine: readers for questions, the writers for everything else.

use std::any::Any;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgRow;
use tokio::sync::oneshot;

use super::rows::arguments;
use super::writer::{Job, Order};
use super::{PostgresStore, open};
use crate::store::sql::dialect::Dialect;
use crate::store::sql::engine::{Ask, Engine, Work};
use crate::store::sql::fault::Fault;
use crate::store::sql::value::{Values, values};
use crate::store::{Clock, StoreError, StoreReport, Urgency};
use crate::task::{Answer, Command};

/// Tries of a question: after the server was restarted, every idle connection of the pool may have to be found dead.
const TRIES: u32 = 5;

const OUTSIDE: &str = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
/// Every index of our tables that is not whole: a build that was broken off, for example.
const DAMAGE: &str = "SELECT c.relname::text FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid \
     WHERE c.relnamespace = current_schema()::regnamespace AND NOT i.indisvalid ORDER BY 1";
const REPORT: &str = "SELECT current_setting('server_version'), (SELECT version FROM redeliver_schema), \
     (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class \
     WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r')";

impl PostgresStore {
    fn closed(&self) -> StoreError {
        self.fault(Fault::Transient("it has been closed".into()))
    }

    async fn ask_once(&self, sql: &str, values: Values) -> Result<Vec<PgRow>, Fault> {
        let query = sqlx::query_with(AssertSqlSafe(sql), arguments(values)?);
        let patience = self.server.patience();
        match tokio::time::timeout(patience, query.fetch_all(&self.readers)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Fault::Transient(format!("it did not answer within {patience:?}"))),
        }
    }
}

#[async_trait]
impl Engine for PostgresStore {
    type Row = PgRow;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn place(&self) -> String {
        self.server.place.clone()
    }

    async fn fetch(&self, sql: &str, values: Values) -> Result<Vec<PgRow>, Fault> {
        let mut tries = 1;
        loop {
            match self.ask_once(sql, values.clone()).await {
                Err(Fault::Broken(reason)) if tries < TRIES => {
                    tracing::debug!(%reason, "a connection is gone; asked again over another");
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    fn report_unreadable(&self, seqs: Vec<i64>) {
        // A closed writer sets nothing aside; the next process that meets them will.
        self.writer.normal.send(Order::SetAside(seqs)).ok();
    }

    async fn commit(&self, urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError> {
        let queue = match urgency {
            Urgency::First => &self.writer.first,
            Urgency::Normal => &self.writer.normal,
        };
        let (reply, answer) = oneshot::channel();
        queue.send(Order::Batch(Job { commands, reply })).map_err(|_| self.closed())?;
        // The writer went away with the job: nobody knows how far it came.
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown { place: self.place() }))
    }

    async fn transact(&self, work: Work) -> Result<Box<dyn Any + Send>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.writer.normal.send(Order::Work(work, reply)).map_err(|_| self.closed())?;
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Moved by every commit in the server, those of others and our own.
    async fn look_outside(&self) -> Result<i64, StoreError> {
        let commits = self.first(OUTSIDE, values![], |columns| columns.next::<i64>()).await?.unwrap_or(0);
        Ok(commits.wrapping_add(self.writer.calls.number.load(Ordering::SeqCst)))
    }

    async fn wait_for_call(&self) {
        self.writer.calls.told.notified().await;
    }

    async fn inspect(&self, deep: bool) -> Result<StoreReport, StoreError> {
        let rows = self.rows(REPORT, values![]).await?;
        let Some(row) = rows.first() else {
            return Err(self.fault(Fault::Unusable("it says nothing of itself".into())));
        };
        let (version, schema_version, bytes): (String, i64, i64) =
            self.read(row, |columns| Ok((columns.next()?, columns.next()?, columns.next()?)))?;
        let integrity = match deep {
            false => None,
            true => {
                let damaged = self.all(DAMAGE, values![], |columns| columns.next::<String>()).await?;
                Some(if damaged.is_empty() {
                    "ok".to_owned()
                } else {
                    format!("indexes that are not whole, to be made anew with REINDEX: {}", damaged.join(", "))
                })
            }
        };
        Ok(StoreReport {
            place: self.place(),
            engine: format!("PostgreSQL {version}"),
            schema_version,
            schema_known: open::known_version(),
            bytes: u64::try_from(bytes).unwrap_or(0),
            integrity,
        })
    }

    async fn shut(&self) {
        for queue in [&self.writer.first, &self.writer.normal] {
            let (done, closed) = oneshot::channel();
            if queue.send(Order::Close(done)).is_ok() {
                closed.await.ok();
            }
        }
        self.readers.close().await;
    }
}
