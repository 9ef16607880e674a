//! The one writer: many callers, one connection, one commit for all who wait.
//!
//! While a commit is on its way to the disk, further callers queue up; the next transaction takes them all. So a busy store
//! commits large batches and an idle one answers at once, and nobody waits on purpose. The writer has a thread and a runtime
//! of its own, because a handler that blocks the caller's threads must not keep heartbeats from the disk. A transaction, once
//! begun, is never abandoned half way: callers may go away, the writer sees it through.
//!
//! It calls SQLite itself, where the readers have sqlx do it on threads of its own: a batch is a dozen statements, and two
//! changes of thread for each cost more than what SQLite does.

use std::any::Any;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::batch::{self, Context};
use super::engine::Open;
use super::rows::all_now;
use super::{open, quarantine};
use crate::store::sql::engine::Work;
use crate::store::sql::fault::Fault;
use crate::store::sql::ledgers;
use crate::store::{Clock, StoreError};
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
    /// Tells the caller in which batch they are; 0 while they wait.
    pub(super) batch: Arc<AtomicU64>,
    pub(super) reply: oneshot::Sender<Result<Vec<Answer>, StoreError>>,
}

/// Everything else the writer does.
pub(super) enum Errand {
    /// Something rare, in a transaction of its own.
    Write(Work, oneshot::Sender<Result<Box<dyn Any + Send>, StoreError>>),
    /// Rows that a reader could not read.
    SetAside(Vec<i64>),
    /// Looks whether another process has committed, for [`Queues::outside`].
    LookOutside(oneshot::Sender<()>),
    /// Finishes what is queued and ends.
    Close(oneshot::Sender<()>),
}

/// The callers' ends of the writer's queues.
pub(super) struct Queues {
    pub(super) first: mpsc::UnboundedSender<Job>,
    pub(super) normal: mpsc::UnboundedSender<Job>,
    pub(super) errands: mpsc::UnboundedSender<Errand>,
    /// Grows when another process has committed.
    pub(super) outside: Arc<AtomicI64>,
    pub(super) commit: Arc<Committing>,
}

/// Which batch is on its way to the disk, for callers who do not wait for ever.
pub(super) struct Committing {
    start: Instant,
    /// 0 between two commits.
    batch: AtomicU64,
    began_ms: AtomicU64,
}

impl Committing {
    fn new() -> Committing {
        Committing { start: Instant::now(), batch: AtomicU64::new(0), began_ms: AtomicU64::new(0) }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn begins(&self, batch: u64) {
        self.began_ms.store(self.elapsed_ms(), Ordering::SeqCst);
        self.batch.store(batch, Ordering::SeqCst);
    }

    fn ended(&self) {
        self.batch.store(0, Ordering::SeqCst);
    }

    /// For how long the commit of that batch has been going on; `None` when it is not.
    pub(super) fn since(&self, batch: u64) -> Option<Duration> {
        let began = self.began_ms.load(Ordering::SeqCst);
        let on_its_way = batch != 0 && self.batch.load(Ordering::SeqCst) == batch;
        on_its_way.then(|| Duration::from_millis(self.elapsed_ms().saturating_sub(began)))
    }
}

/// What the writer needs to know.
pub(super) struct Setup {
    pub(super) path: PathBuf,
    pub(super) busy_timeout: Duration,
    pub(super) clock: Clock,
    pub(super) context: Context,
}

/// Starts the writer's thread. It ends when it is told to close, or when all its callers are gone and the queues are empty.
pub(super) fn start(setup: Setup) -> Result<Queues, StoreError> {
    let (first, first_jobs) = mpsc::unbounded_channel();
    let (normal, normal_jobs) = mpsc::unbounded_channel();
    let (errands, errand_queue) = mpsc::unbounded_channel();
    let outside = Arc::new(AtomicI64::new(0));
    let commit = Arc::new(Committing::new());
    let unavailable = |error: std::io::Error| StoreError::Unavailable {
        place: setup.path.display().to_string(),
        reason: format!("the writer's thread cannot be started: {error}"),
    };
    // Timers only: without a poller for sockets, which nothing here has, a wake-up is one futex call.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(unavailable)?;
    let writer = Writer {
        first: first_jobs,
        normal: normal_jobs,
        errands: errand_queue,
        conn: None,
        version: 0,
        company_until: Instant::now(),
        outside: Arc::clone(&outside),
        commit: Arc::clone(&commit),
        batches: 0,
        ran_errand: false,
        path: setup.path.clone(),
        busy_timeout: setup.busy_timeout,
        clock: setup.clock,
        context: setup.context,
    };
    std::thread::Builder::new()
        .name("redeliver-writer".into())
        .spawn(move || runtime.block_on(writer.run()))
        .map_err(unavailable)?;
    Ok(Queues { first, normal, errands, outside, commit })
}

struct Writer {
    first: mpsc::UnboundedReceiver<Job>,
    normal: mpsc::UnboundedReceiver<Job>,
    errands: mpsc::UnboundedReceiver<Errand>,
    /// `None` before the first transaction and after a failed one: a connection that has seen an error is not trusted.
    conn: Option<Connection>,
    /// SQLite's data version as this connection last saw it: moved by every commit but its own.
    version: i64,
    company_until: Instant,
    outside: Arc<AtomicI64>,
    commit: Arc<Committing>,
    /// How many transactions were begun.
    batches: u64,
    /// Whether the last thing done was an errand.
    ran_errand: bool,
    path: PathBuf,
    busy_timeout: Duration,
    clock: Clock,
    context: Context,
}

enum Next {
    Batch(Job),
    Errand(Errand),
}

impl Writer {
    async fn run(mut self) {
        while let Some(work) = self.next().await {
            match work {
                Next::Batch(job) => self.batch(job),
                Next::Errand(Errand::Close(done)) => {
                    self.close();
                    done.send(()).ok();
                    return;
                }
                Next::Errand(errand) => self.errand(errand),
            }
            if Instant::now() < self.company_until {
                tokio::time::sleep(PAUSE_FOR_NEIGHBOURS).await;
            }
        }
        self.close();
    }

    async fn next(&mut self) -> Option<Next> {
        // Urgent jobs first. Errands and the rest take turns, so that neither a flood of notes nor one of tasks stops the other.
        let errand_first = !std::mem::replace(&mut self.ran_errand, false);
        let next = if errand_first {
            tokio::select! {
                biased;
                Some(job) = self.first.recv() => Some(Next::Batch(job)),
                Some(errand) = self.errands.recv() => Some(Next::Errand(errand)),
                Some(job) = self.normal.recv() => Some(Next::Batch(job)),
                else => None,
            }
        } else {
            tokio::select! {
                biased;
                Some(job) = self.first.recv() => Some(Next::Batch(job)),
                Some(job) = self.normal.recv() => Some(Next::Batch(job)),
                Some(errand) = self.errands.recv() => Some(Next::Errand(errand)),
                else => None,
            }
        };
        self.ran_errand = matches!(next, Some(Next::Errand(_)));
        next
    }

    /// Commits a job together with whatever else waits.
    fn batch(&mut self, job: Job) {
        let batch = self.batches + 1;
        let mut commands = Vec::new();
        let mut callers = Vec::new();
        let mut bytes = 0;
        let mut next = Some(job);
        while let Some(Job { commands: more, batch: tell, reply }) = next {
            bytes += more.iter().map(size_of_command).sum::<usize>();
            tell.store(batch, Ordering::SeqCst);
            callers.push((reply, more.len()));
            commands.extend(more);
            if commands.len() >= MOST_COMMANDS || bytes >= MOST_BYTES {
                break;
            }
            next = self.first.try_recv().or_else(|_| self.normal.try_recv()).ok();
        }
        let mut result = self.transaction(|conn, context, now| batch::apply(conn, context, &commands, now));
        if let Err(Failed::Row(reason)) = &result {
            tracing::debug!(commands = commands.len(), %reason, "a batch failed, looking for the guilty command");
            // The same number again: the callers' batch it is.
            self.batches = batch - 1;
            result = self.transaction(|conn, context, now| bisect(conn, context, &commands, now));
        }
        let mut answers = result.map(Vec::into_iter).map_err(|failed| failed.into_error(&self.path));
        for (caller, length) in callers {
            let part = match &mut answers {
                Ok(answers) => Ok(answers.by_ref().take(length).collect()),
                Err(error) => Err(error.clone()),
            };
            // A caller that went away does not undo its commands.
            caller.send(part).ok();
        }
    }

    fn errand(&mut self, errand: Errand) {
        match errand {
            Errand::Write(work, reply) => {
                let done = self.write(|conn, context, now| {
                    let mut open = Open { conn, context: &mut *context, now };
                    let ready = work(&mut open, now).now_or_never();
                    let done =
                        ready.unwrap_or_else(|| Err(Fault::Unusable("the work waits for something else".into())))?;
                    // It may have set or ended one. Should this not be committed, they are read again with the next connection.
                    context.pauses = pause_keys(conn)?;
                    Ok(done)
                });
                // Who asked may have gone away; what was begun is finished all the same.
                reply.send(done).ok();
            }
            Errand::SetAside(seqs) => {
                let set_aside = self.write(|conn, context, now| {
                    for seq in &seqs {
                        quarantine::set_aside(conn, *seq, now, context)?;
                    }
                    context.running.forget_all();
                    Ok(())
                });
                if let Err(error) = set_aside {
                    tracing::warn!(%error, "unreadable rows could not be set aside; the next reader reports them again");
                }
            }
            Errand::LookOutside(done) => {
                if let Err(fault) = self.connection().and_then(|()| self.look_outside()) {
                    tracing::debug!(?fault, "cannot see whether others have written");
                    self.disconnect();
                }
                done.send(()).ok();
            }
            // Handled by the loop, which it ends.
            Errand::Close(_) => {}
        }
    }

    /// Runs `work` in a transaction and commits it, for an errand.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut Context, Millis) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let done = self.transaction(work);
        // It may have written what is remembered.
        self.context.running.forget_all();
        done.map_err(|failed| failed.into_error(&self.path))
    }

    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut Context, Millis) -> Result<T, Fault>,
    ) -> Result<T, Failed> {
        self.batches += 1;
        let result = self.try_transaction(work);
        if let Err(failed) = &result {
            self.context.running.forget_all();
            if !matches!(failed, Failed::Row(_)) {
                self.disconnect();
            }
        }
        result
    }

    fn try_transaction<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut Context, Millis) -> Result<T, Fault>,
    ) -> Result<T, Failed> {
        self.connection()?;
        let Some(conn) = &mut self.conn else { return Err(Failed::Unknown) };
        // Immediate: a deferred transaction that reads first and writes then fails at once when another has written meanwhile.
        let tx = Transaction::new(conn, TransactionBehavior::Immediate).map_err(Fault::from)?;
        let version = data_version(&tx)?;
        if version != self.version {
            self.context.pauses = pause_keys(&tx)?;
            self.context.running.forget_all();
            self.version = version;
            self.outside.fetch_add(1, Ordering::SeqCst);
            self.company_until = Instant::now() + COMPANY;
        }
        // After the lock, so that a wait for it shortens no lease.
        let now = self.clock.now();
        let value = match work(&tx, &mut self.context, now) {
            Ok(value) => value,
            Err(Fault::Row(reason)) => {
                tx.rollback().map_err(Fault::from)?;
                return Err(Failed::Row(reason));
            }
            Err(fault) => return Err(fault.into()),
        };
        self.commit.begins(self.batches);
        let committed = tx.commit();
        self.commit.ended();
        match committed.map_err(Fault::from) {
            Ok(()) => Ok(value),
            Err(Fault::Broken(_)) => Err(Failed::Unknown),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Makes sure there is a connection.
    fn connection(&mut self) -> Result<(), Fault> {
        if self.conn.is_some() {
            return Ok(());
        }
        let conn = open::writer(&self.path, self.busy_timeout)?;
        self.context.running.forget_all();
        self.version = data_version(&conn)?;
        self.context.pauses = pause_keys(&conn)?;
        // Nobody counted while there was no connection.
        self.outside.fetch_add(1, Ordering::SeqCst);
        self.conn = Some(conn);
        Ok(())
    }

    fn look_outside(&mut self) -> Result<(), Fault> {
        let Some(conn) = &self.conn else { return Ok(()) };
        let version = data_version(conn)?;
        if version != self.version {
            self.context.pauses = pause_keys(conn)?;
            self.context.running.forget_all();
            self.version = version;
            self.outside.fetch_add(1, Ordering::SeqCst);
            self.company_until = Instant::now() + COMPANY;
        }
        Ok(())
    }

    fn disconnect(&mut self) {
        if let Some(conn) = self.conn.take()
            && let Err((_, error)) = conn.close()
        {
            tracing::debug!(%error, "closing the writer's connection");
        }
    }

    /// Commits what is queued, moves the log into the database file and closes.
    fn close(&mut self) {
        self.first.close();
        self.normal.close();
        while let Ok(job) = self.first.try_recv().or_else(|_| self.normal.try_recv()) {
            self.batch(job);
        }
        if let Some(conn) = &self.conn
            && let Err(error) = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
        {
            tracing::debug!(%error, "the last checkpoint; the log is read at the next start");
        }
        self.disconnect();
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
            Failed::Row(reason) => Fault::Row(reason).at(path.display().to_string()),
            Failed::Store(fault) => fault.at(path.display().to_string()),
            Failed::Unknown => StoreError::Unknown { place: path.display().to_string() },
        }
    }
}

/// Applies the commands, halving where a part fails, until each guilty command stands alone and is answered as such.
pub(super) fn bisect(
    conn: &Connection,
    context: &mut Context,
    commands: &[Command],
    now: Millis,
) -> Result<Vec<Answer>, Fault> {
    let mut answers = Vec::with_capacity(commands.len());
    let mut parts = vec![commands];
    while let Some(part) = parts.pop() {
        conn.execute_batch("SAVEPOINT part")?;
        match batch::apply(conn, context, part, now) {
            Ok(more) => {
                conn.execute_batch("RELEASE part")?;
                answers.extend(more);
            }
            Err(Fault::Row(message)) => {
                conn.execute_batch("ROLLBACK TO part; RELEASE part")?;
                context.running.forget_all();
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

fn data_version(conn: &Connection) -> Result<i64, Fault> {
    Ok(conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?)
}

#[expect(clippy::redundant_closure, reason = "the function itself is not general enough over a row's lifetime")]
fn pause_keys(conn: &Connection) -> Result<BTreeSet<String>, Fault> {
    let pauses = all_now(conn, ledgers::PAUSES, |row| ledgers::pause(row))?;
    Ok(pauses.into_iter().map(|pause| pause.key).collect())
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
