//! The one writer: many callers, one connection, one commit for all who wait.
//!
//! While a commit is on its way to the disk, further callers queue up; the next transaction takes them all. So a busy store
//! commits large batches and an idle one answers at once, and nobody waits on purpose. The writer has a thread and a runtime
//! of its own, because a handler that blocks the caller's threads must not keep heartbeats from the disk. A transaction, once
//! begun, is never abandoned half way: callers may go away, the writer sees it through.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::batch::{self, Context};
use super::fault::Fault;
use super::{ledgers, quarantine, versions};
use crate::store::{Clock, NewPolicies, Pause, StoreError};
use crate::task::{Answer, Command, Millis};

/// A batch takes no further caller beyond this.
const MOST_COMMANDS: usize = 512;
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// With several processes on one file, a committer that starts again at once starves the others: SQLite's lock has no
/// queue (the longest wait was 3.7 s with four processes, with this pause 0.33 s).
const PAUSE_FOR_NEIGHBOURS: Duration = Duration::from_millis(2);
/// For how long a commit by another process counts as company.
const COMPANY: Duration = Duration::from_secs(1);

/// Commands of one caller.
pub(super) struct Job {
    pub(super) commands: Vec<Command>,
    pub(super) reply: oneshot::Sender<Result<Vec<Answer>, StoreError>>,
}

/// Everything else the writer does, each in a transaction of its own.
pub(super) enum Errand {
    Pause(Pause, oneshot::Sender<Result<(), StoreError>>),
    Resume(String, oneshot::Sender<Result<bool, StoreError>>),
    ApplyPolicies(NewPolicies, oneshot::Sender<Result<i64, StoreError>>),
    ReportNode {
        worker: String,
        hash: String,
        version: Option<i64>,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    /// What other modules have the writer do.
    Transact(Transact, oneshot::Sender<Result<(), StoreError>>),
    /// Rows that a reader could not read.
    SetAside(Vec<i64>),
    /// Looks whether another process has committed, for [`Queues::outside`].
    LookOutside(oneshot::Sender<()>),
    /// Finishes what is queued and ends.
    Close(oneshot::Sender<()>),
}

/// Work for one transaction of its own; what it finds out it keeps for its caller, who learns whether it was committed.
pub(super) type Transact =
    Box<dyn for<'t> FnOnce(&'t mut SqliteConnection, &'t mut Context, Millis) -> Working<'t> + Send>;
pub(super) type Working<'t> = LocalBoxFuture<'t, Result<(), Fault>>;

/// The callers' ends of the writer's queues.
pub(super) struct Queues {
    pub(super) first: mpsc::UnboundedSender<Job>,
    pub(super) normal: mpsc::UnboundedSender<Job>,
    pub(super) errands: mpsc::UnboundedSender<Errand>,
    /// Grows when another process has committed.
    pub(super) outside: Arc<AtomicI64>,
}

/// What the writer needs to know.
pub(super) struct Setup {
    pub(super) path: PathBuf,
    pub(super) connect: SqliteConnectOptions,
    pub(super) clock: Clock,
    pub(super) commit_timeout: Duration,
    pub(super) context: Context,
}

/// Starts the writer's thread. It ends when it is told to close, or when all its callers are gone and the queues are empty.
pub(super) fn start(setup: Setup) -> Result<Queues, StoreError> {
    let (first, first_jobs) = mpsc::unbounded_channel();
    let (normal, normal_jobs) = mpsc::unbounded_channel();
    let (errands, errand_queue) = mpsc::unbounded_channel();
    let outside = Arc::new(AtomicI64::new(0));
    let unavailable = |error: std::io::Error| StoreError::Unavailable {
        place: setup.path.display().to_string(),
        reason: format!("the writer's thread cannot be started: {error}"),
    };
    // Timers only: without a poller for sockets, which nothing here has, a wake-up from SQLite's thread is one futex call.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(unavailable)?;
    let writer = Writer {
        first: first_jobs,
        normal: normal_jobs,
        errands: errand_queue,
        conn: None,
        version: 0,
        company_until: Instant::now(),
        outside: Arc::clone(&outside),
        path: setup.path.clone(),
        connect: setup.connect,
        clock: setup.clock,
        commit_timeout: setup.commit_timeout,
        context: setup.context,
    };
    std::thread::Builder::new()
        .name("redeliver-writer".into())
        .spawn(move || runtime.block_on(writer.run()))
        .map_err(unavailable)?;
    Ok(Queues { first, normal, errands, outside })
}

struct Writer {
    first: mpsc::UnboundedReceiver<Job>,
    normal: mpsc::UnboundedReceiver<Job>,
    errands: mpsc::UnboundedReceiver<Errand>,
    /// `None` before the first transaction and after a failed one: a connection that has seen an error is not trusted.
    conn: Option<SqliteConnection>,
    /// SQLite's data version as this connection last saw it: moved by every commit but its own.
    version: i64,
    company_until: Instant,
    outside: Arc<AtomicI64>,
    path: PathBuf,
    connect: SqliteConnectOptions,
    clock: Clock,
    commit_timeout: Duration,
    context: Context,
}

enum Work {
    Batch(Job),
    Errand(Errand),
}

impl Writer {
    async fn run(mut self) {
        while let Some(work) = self.next().await {
            match work {
                Work::Batch(job) => self.batch(job).await,
                Work::Errand(Errand::Close(done)) => {
                    self.close().await;
                    done.send(()).ok();
                    return;
                }
                Work::Errand(errand) => self.errand(errand).await,
            }
            if Instant::now() < self.company_until {
                tokio::time::sleep(PAUSE_FOR_NEIGHBOURS).await;
            }
        }
        self.close().await;
    }

    async fn next(&mut self) -> Option<Work> {
        // Urgent jobs before errands before the rest; an errand waits for one batch at most.
        tokio::select! {
            biased;
            Some(job) = self.first.recv() => Some(Work::Batch(job)),
            Some(errand) = self.errands.recv() => Some(Work::Errand(errand)),
            Some(job) = self.normal.recv() => Some(Work::Batch(job)),
            else => None,
        }
    }

    /// Commits a job together with whatever else waits.
    async fn batch(&mut self, job: Job) {
        let mut commands = Vec::new();
        let mut callers = Vec::new();
        let mut bytes = 0;
        let mut next = Some(job);
        while let Some(Job { commands: more, reply }) = next {
            bytes += more.iter().map(size_of_command).sum::<usize>();
            callers.push((reply, more.len()));
            commands.extend(more);
            if commands.len() >= MOST_COMMANDS || bytes >= MOST_BYTES {
                break;
            }
            next = self.first.try_recv().or_else(|_| self.normal.try_recv()).ok();
        }

        let mut reply = |result: Result<Vec<Answer>, StoreError>| {
            let mut answers = result.map(Vec::into_iter);
            for (caller, length) in callers.drain(..) {
                let part = match &mut answers {
                    Ok(answers) => Ok(answers.by_ref().take(length).collect()),
                    Err(error) => Err(error.clone()),
                };
                // A caller that went away does not undo its commands.
                caller.send(part).ok();
            }
        };
        let unknown = StoreError::Unknown { place: self.path.display().to_string() };
        let mut result = self
            .transaction(
                || reply(Err(unknown.clone())),
                async |conn, context, now| batch::apply(conn, context, &commands, now).await,
            )
            .await;
        if let Err(Failed::Row(reason)) = &result {
            tracing::debug!(commands = commands.len(), %reason, "a batch failed, looking for the guilty command");
            result = self
                .transaction(
                    || reply(Err(unknown.clone())),
                    async |conn, context, now| bisect(conn, context, &commands, now).await,
                )
                .await;
        }
        let result = result.map_err(|failed| failed.into_error(&self.path));
        reply(result);
    }

    async fn errand(&mut self, errand: Errand) {
        let path = self.path.clone();
        match errand {
            Errand::Pause(pause, reply) => {
                let write = async |conn: &mut SqliteConnection, _: &mut Context, _| {
                    let sql = "INSERT OR REPLACE INTO pauses (key, since, reason) VALUES (?, ?, ?)";
                    sqlx::query(sql).bind(&pause.key).bind(pause.since).bind(&pause.reason).execute(conn).await?;
                    Ok(())
                };
                let done = self.transaction(|| (), write).await;
                if done.is_ok() {
                    self.context.pauses.insert(pause.key);
                }
                reply.send(done.map_err(|failed| failed.into_error(&path))).ok();
            }
            Errand::Resume(key, reply) => {
                let write = async |conn: &mut SqliteConnection, _: &mut Context, _| {
                    let sql = "DELETE FROM pauses WHERE key = ? RETURNING key";
                    Ok(sqlx::query(sql).bind(&key).fetch_optional(conn).await?.is_some())
                };
                let done = self.transaction(|| (), write).await;
                if done.is_ok() {
                    self.context.pauses.remove(&key);
                }
                reply.send(done.map_err(|failed| failed.into_error(&path))).ok();
            }
            Errand::ApplyPolicies(new, reply) => {
                let write =
                    async |conn: &mut SqliteConnection, _: &mut Context, now| versions::apply(conn, &new, now).await;
                let done = self.transaction(|| (), write).await;
                reply.send(done.map_err(|failed| failed.into_error(&path))).ok();
            }
            Errand::ReportNode { worker, hash, version, reply } => {
                let write = async |conn: &mut SqliteConnection, _: &mut Context, now| {
                    versions::report(conn, &worker, &hash, version, now).await
                };
                let done = self.transaction(|| (), write).await;
                reply.send(done.map_err(|failed| failed.into_error(&path))).ok();
            }
            Errand::Transact(work, reply) => {
                let done = self.transaction(|| (), async |conn, context, now| work(conn, context, now).await).await;
                reply.send(done.map_err(|failed| failed.into_error(&path))).ok();
            }
            Errand::SetAside(seqs) => {
                let write = async |conn: &mut SqliteConnection, context: &mut Context, now| {
                    for seq in &seqs {
                        quarantine::set_aside(conn, *seq, now, &context.settings).await?;
                    }
                    context.running.forget_all();
                    Ok(())
                };
                if let Err(failed) = self.transaction(|| (), write).await {
                    let error = failed.into_error(&path);
                    tracing::warn!(%error, "unreadable rows could not be set aside; the next reader reports them again");
                }
            }
            Errand::LookOutside(done) => {
                let looked = match self.connection().await {
                    Ok(()) => self.look_outside().await,
                    Err(fault) => Err(fault),
                };
                if let Err(fault) = looked {
                    tracing::debug!(?fault, "cannot see whether others have written");
                    self.disconnect().await;
                }
                done.send(()).ok();
            }
            // Handled by the loop, which it ends.
            Errand::Close(_) => {}
        }
    }

    /// Runs `work` in a transaction and commits it. `late` is called when the commit does not answer in time; it is awaited all
    /// the same, because a commit that has begun cannot be taken back.
    async fn transaction<T>(
        &mut self,
        late: impl FnOnce(),
        work: impl AsyncFnOnce(&mut SqliteConnection, &mut Context, Millis) -> Result<T, Fault>,
    ) -> Result<T, Failed> {
        let result = self.try_transaction(late, work).await;
        if let Err(failed) = &result {
            self.context.running.forget_all();
            if !matches!(failed, Failed::Row(_)) {
                self.disconnect().await;
            }
        }
        result
    }

    async fn try_transaction<T>(
        &mut self,
        late: impl FnOnce(),
        work: impl AsyncFnOnce(&mut SqliteConnection, &mut Context, Millis) -> Result<T, Fault>,
    ) -> Result<T, Failed> {
        self.connection().await?;
        let Some(conn) = &mut self.conn else { return Err(Failed::Unknown) };
        // Immediate: a deferred transaction that reads first and writes then fails at once when another has written meanwhile.
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.map_err(Fault::from)?;
        let version = data_version(&mut tx).await?;
        if version != self.version {
            self.context.pauses = pause_keys(&mut tx).await?;
            self.context.running.forget_all();
            self.version = version;
            self.outside.fetch_add(1, Ordering::SeqCst);
            self.company_until = Instant::now() + COMPANY;
        }
        // After the lock, so that a wait for it shortens no lease.
        let now = self.clock.now();
        let value = match work(&mut tx, &mut self.context, now).await {
            Ok(value) => value,
            Err(Fault::Row(reason)) => {
                tx.rollback().await.map_err(Fault::from)?;
                return Err(Failed::Row(reason));
            }
            Err(fault) => return Err(fault.into()),
        };
        let mut commit = Box::pin(tx.commit());
        let committed = match tokio::time::timeout(self.commit_timeout, &mut commit).await {
            Ok(committed) => committed,
            Err(_) => {
                late();
                commit.await
            }
        };
        match committed.map_err(Fault::from) {
            Ok(()) => Ok(value),
            Err(Fault::Broken(_)) => Err(Failed::Unknown),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Makes sure there is a connection.
    async fn connection(&mut self) -> Result<(), Fault> {
        if self.conn.is_some() {
            return Ok(());
        }
        let mut conn = self.connect.connect().await?;
        self.context.running.forget_all();
        self.version = data_version(&mut conn).await?;
        self.context.pauses = pause_keys(&mut conn).await?;
        // Nobody counted while there was no connection.
        self.outside.fetch_add(1, Ordering::SeqCst);
        self.conn = Some(conn);
        Ok(())
    }

    async fn look_outside(&mut self) -> Result<(), Fault> {
        let Some(conn) = &mut self.conn else { return Ok(()) };
        let version = data_version(conn).await?;
        if version != self.version {
            self.context.pauses = pause_keys(conn).await?;
            self.context.running.forget_all();
            self.version = version;
            self.outside.fetch_add(1, Ordering::SeqCst);
            self.company_until = Instant::now() + COMPANY;
        }
        Ok(())
    }

    async fn disconnect(&mut self) {
        if let Some(conn) = self.conn.take()
            && let Err(error) = conn.close().await
        {
            tracing::debug!(%error, "closing the writer's connection");
        }
    }

    /// Commits what is queued, moves the log into the database file and closes.
    async fn close(&mut self) {
        self.first.close();
        self.normal.close();
        while let Ok(job) = self.first.try_recv().or_else(|_| self.normal.try_recv()) {
            self.batch(job).await;
        }
        if let Some(conn) = &mut self.conn
            && let Err(error) = sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(conn).await
        {
            tracing::debug!(%error, "the last checkpoint; the log is read at the next start");
        }
        self.disconnect().await;
    }
}

/// Why a transaction did not commit.
enum Failed {
    /// One of its rows; the connection is in order.
    Row(String),
    Store(Fault),
    /// Perhaps it did.
    Unknown,
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Failed {
        Failed::Store(fault)
    }
}

impl Failed {
    fn into_error(self, path: &std::path::Path) -> StoreError {
        match self {
            Failed::Row(reason) => Fault::Row(reason).at(path),
            Failed::Store(fault) => fault.at(path),
            Failed::Unknown => StoreError::Unknown { place: path.display().to_string() },
        }
    }
}

/// Applies the commands, halving where a part fails, until each guilty command stands alone and is answered as such.
pub(super) async fn bisect(
    conn: &mut SqliteConnection,
    context: &mut Context,
    commands: &[Command],
    now: Millis,
) -> Result<Vec<Answer>, Fault> {
    let mut answers = Vec::with_capacity(commands.len());
    let mut parts = vec![commands];
    while let Some(part) = parts.pop() {
        let mut savepoint = conn.begin().await?;
        match batch::apply(&mut savepoint, context, part, now).await {
            Ok(more) => {
                savepoint.commit().await?;
                answers.extend(more);
            }
            Err(Fault::Row(message)) => {
                savepoint.rollback().await?;
                if part.len() == 1 {
                    answers.push(Answer::Unprocessable { message });
                } else {
                    let (front, back) = part.split_at(part.len() / 2);
                    parts.push(back);
                    parts.push(front);
                }
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(answers)
}

async fn data_version(conn: &mut SqliteConnection) -> Result<i64, Fault> {
    Ok(sqlx::query_scalar("PRAGMA data_version").fetch_one(conn).await?)
}

async fn pause_keys(conn: &mut SqliteConnection) -> Result<BTreeSet<String>, Fault> {
    Ok(ledgers::pauses(conn).await?.into_iter().map(|pause| pause.key).collect())
}

/// Roughly what a command will write.
fn size_of_command(command: &Command) -> usize {
    match command {
        Command::Submit(new) => new.spec.payload.len(),
        Command::Refuse(refusal) => refusal.spec.raw.as_ref().map_or(0, |raw| raw.bytes.len()),
        Command::Settle { settlement, .. } | Command::Lost { settlement, .. } => {
            let attachments = settlement.attachments.iter().map(|attachment| match &attachment.body {
                crate::task::AttachmentBody::Bytes(bytes) => bytes.len(),
                _ => 0,
            });
            settlement.result.as_ref().map_or(0, |result| result.body.len()) + attachments.sum::<usize>()
        }
        _ => 0,
    }
}
