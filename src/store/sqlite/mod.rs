//! The store in an SQLite file: one writer with grouped commits, a few readers, the rules in `task/`.
//!
//! Several processes may share the file. Nothing here decides about a task: a batch loads the rows that its commands name,
//! [`Rows::apply`](crate::task::Rows::apply) changes them, and what changed is written, all in one transaction.

mod batch;
mod engine;
mod fault;
mod ladder;
mod open;
#[cfg(test)]
mod plans;
mod quarantine;
mod rows;
mod running;
mod shape;
mod write;
mod writer;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

use super::sql::fault::Fault;
use super::{Clock, StoreError};
use crate::task::Settings;
use batch::Context;
pub(crate) use fault::fault_of_code;
use writer::Queues;

/// How the store is opened.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// Create the file when there is none.
    pub create: bool,
    /// Where `now` comes from.
    pub clock: Clock,
    /// How long a transaction waits for a lock that another program holds; then [`StoreError::Unavailable`].
    pub busy_timeout: Duration,
    /// How long a commit may take; then [`StoreError::Unknown`].
    pub commit_timeout: Duration,
    /// Connections for questions.
    pub readers: u32,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        SqliteOptions {
            create: true,
            clock: Clock::System,
            busy_timeout: Duration::from_secs(5),
            commit_timeout: Duration::from_secs(30),
            readers: 3,
        }
    }
}

/// See the module. Dropping it finishes what callers have queued; [`close`](super::Store::close) also waits for that.
pub struct SqliteStore {
    path: PathBuf,
    clock: Clock,
    commit_timeout: Duration,
    writer: Queues,
    readers: SqlitePool,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the store at `url` (`sqlite://redeliver.db`, `sqlite:///var/lib/redeliver.db`) and brings its schema up to date.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] names what a person has to put right (not a database, another program's, a newer schema,
    /// read-only, a folder that does not exist); [`StoreError::Unavailable`] when another program holds it locked.
    pub async fn open(url: &str, settings: Settings, options: SqliteOptions) -> Result<SqliteStore, StoreError> {
        let path = open::path_of(url)?;
        open::prepare(&path, options.create, options.busy_timeout).await?;
        let connect = open::connect_options(&path, options.busy_timeout);
        let readers = SqlitePoolOptions::new()
            .max_connections(options.readers.max(1))
            .acquire_timeout(options.busy_timeout)
            .test_before_acquire(false)
            .connect_with(connect.clone().read_only(true))
            .await
            .map_err(|error| Fault::from(error).at(path.display().to_string()))?;
        let writer = writer::start(writer::Setup {
            path: path.clone(),
            busy_timeout: options.busy_timeout,
            clock: options.clock.clone(),
            context: Context {
                settings,
                writes: write::Writes::new(),
                running: running::Running::default(),
                pauses: BTreeSet::new(),
            },
        })?;
        Ok(SqliteStore { path, clock: options.clock, commit_timeout: options.commit_timeout, writer, readers })
    }
}
