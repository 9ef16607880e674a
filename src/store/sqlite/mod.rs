//! The store in an SQLite file: one writer with grouped commits, a few readers, the rules in `task/`.
//!
//! Several processes may share the file. Nothing here decides about a task: a batch loads the rows that its commands name,
//! [`Rows::apply`](crate::task::Rows::apply) changes them, and what changed is written, all in one transaction.

mod access;
mod batch;
mod columns;
mod drive;
mod fault;
mod filter;
mod groups;
mod ladder;
mod ledgers;
mod look;
mod notices;
mod open;
#[cfg(test)]
mod plans;
mod prune;
mod quarantine;
mod read;
mod replays;
mod running;
mod tally;
mod triage;
mod versions;
mod write;
mod writer;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;
use tokio::sync::oneshot;

use super::{Clock, StoreError};
use crate::task::{Millis, Settings};
use batch::Context;
use fault::Fault;
use writer::{Errand, Queues};

/// How long to wait for the writer's word on commits by others before going by its last one.
const LOOK_OUTSIDE: Duration = Duration::from_millis(200);

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
            .map_err(|error| Fault::from(error).at(&path))?;
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

    fn fault(&self, fault: impl Into<Fault>) -> StoreError {
        fault.into().at(&self.path)
    }

    fn closed(&self) -> StoreError {
        self.fault(Fault::Transient("it has been closed".into()))
    }

    /// Sends an errand to the writer and waits for its answer.
    async fn errand<T>(
        &self,
        errand: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Errand,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.writer.errands.send(errand(reply)).map_err(|_| self.closed())?;
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Runs `work` in a transaction of the writer. For rare changes on tables that no command touches, or together with commands.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&rusqlite::Connection, &mut Context, Millis) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.errand(|reply| {
            Errand::Write(Box::new(move |writer| {
                // Who asked may have gone away; what was begun is finished all the same.
                reply.send(writer.write(work)).ok();
            }))
        })
        .await
    }

    /// The count of commits by others, as new as the writer can tell at once.
    async fn look_outside(&self) -> i64 {
        let (done, looked) = oneshot::channel();
        if self.writer.errands.send(Errand::LookOutside(done)).is_ok() {
            // While the writer waits for a lock its last word has to do: it looks again in its next transaction.
            tokio::time::timeout(LOOK_OUTSIDE, looked).await.ok();
        }
        self.writer.outside.load(Ordering::SeqCst)
    }
}
