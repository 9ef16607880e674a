//! The store in a PostgreSQL database, for several hosts: writers with grouped commits, readers, the rules in `task/`.
//!
//! Nothing here decides about a task: a batch locks and loads the rows that its commands name,
//! [`Rows::apply`](crate::task::Rows::apply) changes them, and what changed is written, all in one transaction. Any number of processes
//! may do so at once. Time is the server's. How questions are asked and how a task lies in its columns is shared with SQLite.

mod batch;
mod calls;
mod engine;
mod fault;
mod open;
mod quarantine;
mod rows;
mod write;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, Executor, PgPool};

use super::{Clock, ServerClock, StoreError};
use crate::task::Settings;
use batch::Context;
pub(crate) use fault::fault_of;
use open::{Server, Use};

/// What [`PostgresStore::open`] says of a database without a store.
pub const NO_STORE: &str = "there is no store in it yet; make it with `redeliver store migrate`";

/// How the store is opened.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Make the tables when there are none.
    pub create: bool,
    /// Where `now` comes from; `None`: from the server.
    pub clock: Option<Clock>,
    /// How long a connection may take to be made; then [`StoreError::Unavailable`].
    pub connect_timeout: Duration,
    /// How long a statement may run or wait for a lock; then [`StoreError::Unavailable`], or for a commit [`StoreError::Unknown`].
    pub statement_timeout: Duration,
    /// Connections for questions.
    pub readers: u32,
    /// Connections for commits, besides the one for heartbeats.
    pub writers: usize,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        PostgresOptions {
            create: true,
            clock: None,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(15),
            readers: 3,
            writers: 2,
        }
    }
}

/// See the module. Dropping it finishes what callers have queued; [`close`](super::Store::close) also waits for that.
pub struct PostgresStore {
    server: Server,
    clock: Clock,
    writer: writer::Queues,
    readers: PgPool,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("place", &self.server.place).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens the store at `url` (`postgres://user:password@host:5432/database?sslmode=verify-full`) and brings its schema up to date.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] names what a person has to put right (no such database, a refused login, a newer schema, tables of
    /// another program); [`StoreError::Unavailable`] when the server does not answer.
    pub async fn open(url: &str, settings: Settings, options: PostgresOptions) -> Result<PostgresStore, StoreError> {
        let lease = Duration::from_millis(settings.lease_ms.max(0).unsigned_abs());
        let server = Server::of(url, &options, lease)?;
        let clock = options.clock.unwrap_or_else(|| Clock::Server(Arc::new(ServerClock::default())));
        let at = |fault: super::sql::fault::Fault| fault.at(server.place.clone());
        let mut conn = server.prepare(options.create).await.map_err(at)?;
        open::read_clock(&mut conn, &clock).await.map_err(at)?;
        if let Err(error) = conn.close().await {
            tracing::debug!(%error, "closing the bootstrap connection");
        }
        let set = server.settings(Use::Questions);
        let readers = PgPoolOptions::new()
            .max_connections(options.readers.max(1))
            .acquire_timeout(options.connect_timeout)
            .test_before_acquire(false)
            .after_connect(move |conn, _| {
                let set = set.clone();
                Box::pin(async move { conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(set))).await.map(drop) })
            })
            .connect_lazy_with(server.connect.clone());
        let context = Context { settings, writes: write::Writes::new(), clock: clock.clone() };
        let writer = writer::start(server.clone(), server.hurried(lease), context, options.writers)?;
        Ok(PostgresStore { server, clock, writer, readers })
    }
}
