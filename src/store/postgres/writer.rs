//! The writers: many callers, a few connections, one commit for all who wait at one of them.
//!
//! While a commit is on its way, further callers queue up; the next writer that is free takes them all. Heartbeats have a writer of
//! their own, so that nothing stands before them. All of it lives on a thread with a runtime of its own, because a handler that
//! blocks the caller's threads must not keep heartbeats from the server. Callers may go away; a transaction that has begun is seen
//! through. Every wait for the server is bounded; after one that was too long the connection is given up, and with it, on the server's
//! side, whatever it had not committed.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, Row};
use tokio::sync::{Notify, mpsc, oneshot};

use super::batch::{self, Context};
use super::calls::{Calls, listen};
use super::open::{Server, Use, read_clock};
use super::quarantine;
use super::rows::arguments;
use crate::store::StoreError;
use crate::store::sql::dialect::Dialect;
use crate::store::sql::engine::{Tx, Work};
use crate::store::sql::fault::Fault;
use crate::store::sql::value::{Record, Values};
use crate::task::{Answer, Command};

/// A batch takes no further caller beyond this.
const MOST_COMMANDS: usize = 512;
/// Tries of a batch that others were in the way of; then its commands are tried apart.
const TRIES: usize = 5;
/// How often the server is asked for its time.
const CLOCK_EVERY: Duration = Duration::from_secs(5);

/// Commands of one caller.
pub(super) struct Job {
    pub(super) commands: Vec<Command>,
    pub(super) reply: oneshot::Sender<Result<Vec<Answer>, StoreError>>,
}

/// What the writers do.
pub(super) enum Order {
    Batch(Job),
    /// Something rare, in a transaction of its own.
    Work(Work, oneshot::Sender<Result<Box<dyn Any + Send>, StoreError>>),
    /// Rows that a reader could not read.
    SetAside(Vec<i64>),
    /// Finishes what is queued and ends.
    Close(oneshot::Sender<()>),
}

/// The callers' ends.
pub(super) struct Queues {
    pub(super) first: mpsc::UnboundedSender<Order>,
    pub(super) normal: mpsc::UnboundedSender<Order>,
    pub(super) calls: Arc<Calls>,
}

/// Starts the writers' thread; `hurried` is for heartbeats. It ends when it is told to close, or when all its callers are gone.
pub(super) fn start(server: Server, hurried: Server, context: Context, writers: usize) -> Result<Queues, StoreError> {
    let (first, first_orders) = mpsc::unbounded_channel();
    let (normal, normal_orders) = mpsc::unbounded_channel();
    let calls = Arc::new(Calls::default());
    let unavailable = |error: std::io::Error| StoreError::Unavailable {
        place: server.place.clone(),
        reason: format!("the writers' thread cannot be started: {error}"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unavailable)?;
    let told = Arc::clone(&calls);
    let house = server.clone();
    std::thread::Builder::new()
        .name("redeliver-writer".into())
        .spawn(move || {
            let _inside = runtime.enter();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                let listening = tokio::task::spawn_local(listen(house.clone(), told));
                let (context, line) = (Rc::new(context), Line::of(normal_orders));
                let urgent = Writer::new(hurried, &context, Line::of(first_orders)).run(true);
                let others = 0..writers.max(1);
                let others = others.map(|_| Writer::new(house.clone(), &context, Rc::clone(&line)).run(false));
                let others = futures_util::future::join_all(others);
                // The lines end together: both are the store's.
                tokio::join!(urgent, others);
                listening.abort();
                // Its connection is let go of while there is a runtime.
                listening.await.ok();
            });
        })
        .map_err(unavailable)?;
    Ok(Queues { first, normal, calls })
}

/// Orders that wait for the next free writer.
struct Line {
    orders: tokio::sync::Mutex<mpsc::UnboundedReceiver<Order>>,
    /// An order that was taken to see whether it fits into a batch, and does not.
    next: RefCell<Option<Order>>,
    /// Who waits for the end: told when the last writer drops its line, and this with it.
    closed: RefCell<Option<oneshot::Sender<()>>>,
    closing: Notify,
    ended: Cell<bool>,
}

impl Line {
    fn of(orders: mpsc::UnboundedReceiver<Order>) -> Rc<Line> {
        Rc::new(Line {
            orders: tokio::sync::Mutex::new(orders),
            next: RefCell::default(),
            closed: RefCell::default(),
            closing: Notify::new(),
            ended: Cell::new(false),
        })
    }

    /// The next order together with whatever fits into a batch with it.
    async fn take(&self) -> Option<Vec<Order>> {
        let mut orders = self.orders.lock().await;
        if self.ended.get() {
            return None;
        }
        let first = self.next.borrow_mut().take();
        let first = match first {
            Some(order) => order,
            None => {
                let received = tokio::select! {
                    biased;
                    order = orders.recv() => order,
                    () = self.closing.notified() => None,
                };
                let Some(order) = received else {
                    self.ended.set(true);
                    return None;
                };
                order
            }
        };
        let mut taken = vec![first];
        let mut commands = match taken.first() {
            Some(Order::Batch(job)) => job.commands.len(),
            _ => return Some(taken),
        };
        while commands < MOST_COMMANDS {
            match orders.try_recv() {
                Ok(Order::Batch(job)) => {
                    commands += job.commands.len();
                    taken.push(Order::Batch(job));
                }
                Ok(other) => {
                    self.next.replace(Some(other));
                    break;
                }
                Err(_) => break,
            }
        }
        Some(taken)
    }
}

/// One connection and what is done over it.
struct Writer {
    server: Server,
    context: Rc<Context>,
    line: Rc<Line>,
    /// `None` before the first transaction and after a failed one: a connection that has seen an error is not trusted.
    conn: Option<PgConnection>,
}

/// Why a transaction did not commit.
enum Failed {
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
    fn into_error(self, place: &str) -> StoreError {
        match self {
            Failed::Store(fault) => fault.at(place),
            Failed::Unknown => StoreError::Unknown { place: place.to_owned() },
        }
    }
}

impl Writer {
    fn new(server: Server, context: &Rc<Context>, line: Rc<Line>) -> Writer {
        Writer { server, context: Rc::clone(context), line, conn: None }
    }

    async fn run(mut self, urgent: bool) {
        let mut clock = tokio::time::interval(CLOCK_EVERY);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let line = Rc::clone(&self.line);
        loop {
            let taken = if urgent {
                tokio::select! {
                    biased;
                    taken = line.take() => taken,
                    _ = clock.tick() => {
                        self.read_clock().await;
                        continue;
                    }
                }
            } else {
                line.take().await
            };
            let Some(orders) = taken else { break };
            for order in self.batch(orders).await {
                match order {
                    Order::Batch(_) => {}
                    Order::Work(work, reply) => {
                        let done = self.work(work).await;
                        // Who asked may have gone away; what was begun is finished all the same.
                        reply.send(done.map_err(|failed| failed.into_error(&self.server.place))).ok();
                    }
                    Order::SetAside(seqs) => self.set_aside(&seqs).await,
                    Order::Close(done) => {
                        // Those that are at work in this line see their transactions through, then find it closed.
                        line.ended.set(true);
                        line.closed.replace(Some(done));
                        line.closing.notify_waiters();
                    }
                }
            }
        }
        if let Some(conn) = self.conn.take() {
            conn.close().await.ok();
        }
    }

    /// Commits what of the orders are batches, and returns the others.
    async fn batch(&mut self, orders: Vec<Order>) -> Vec<Order> {
        let (mut commands, mut callers, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for order in orders {
            match order {
                Order::Batch(Job { commands: more, reply }) => {
                    callers.push((reply, more.len()));
                    commands.extend(more);
                }
                other => others.push(other),
            }
        }
        if callers.is_empty() {
            return others;
        }
        let mut answers =
            self.commit(&commands).await.map(Vec::into_iter).map_err(|failed| failed.into_error(&self.server.place));
        for (caller, length) in callers {
            let part = match &mut answers {
                Ok(answers) => Ok(answers.by_ref().take(length).collect()),
                Err(error) => Err(error.clone()),
            };
            // A caller that went away does not undo its commands.
            caller.send(part).ok();
        }
        others
    }

    async fn commit(&mut self, commands: &[Command]) -> Result<Vec<Answer>, Failed> {
        for _ in 0..TRIES {
            match self.transaction(commands, false).await {
                Err(Failed::Store(Fault::Contended(reason))) => {
                    tracing::debug!(commands = commands.len(), %reason, "another transaction was in the way; again");
                }
                Err(Failed::Store(Fault::Row(reason))) => {
                    tracing::debug!(commands = commands.len(), %reason, "a batch failed, looking for the guilty command");
                    break;
                }
                done => return done,
            }
        }
        self.transaction(commands, true).await
    }

    async fn transaction(&mut self, commands: &[Command], apart: bool) -> Result<Vec<Answer>, Failed> {
        let mut conn = self.connection().await?;
        let context = &*self.context;
        let done = self.bounded(async {
            let pauses = batch::prepare(&mut conn, "BEGIN;", commands).await?;
            match apart {
                false => batch::apply(&mut conn, context, &pauses, commands).await,
                true => bisect(&mut conn, context, &pauses, commands).await,
            }
        });
        let done = done.await;
        self.finish(conn, done).await
    }

    async fn work(&mut self, work: Work) -> Result<Box<dyn Any + Send>, Failed> {
        let mut conn = self.connection().await?;
        let context = &*self.context;
        let done = self.bounded(async {
            conn.execute("BEGIN").await?;
            work(&mut Open { conn: &mut conn, context }, context.clock.now()).await
        });
        let done = done.await;
        self.finish(conn, done).await
    }

    async fn set_aside(&mut self, seqs: &[i64]) {
        if let Err(failed) = self.try_to_set_aside(seqs).await {
            let error = failed.into_error(&self.server.place);
            tracing::warn!(%error, "unreadable rows could not be set aside; the next reader reports them again");
        }
    }

    async fn try_to_set_aside(&mut self, seqs: &[i64]) -> Result<(), Failed> {
        let mut conn = self.connection().await?;
        let context = &*self.context;
        let done = self.bounded(async {
            conn.execute("BEGIN").await?;
            for seq in seqs {
                quarantine::set_aside(&mut conn, *seq, context.clock.now(), context).await?;
            }
            Ok::<_, Fault>(())
        });
        let done = done.await;
        self.finish(conn, done).await
    }

    /// The connection, taken out, so that it is given up unless all goes well.
    async fn connection(&mut self) -> Result<PgConnection, Fault> {
        match self.conn.take() {
            Some(conn) => Ok(conn),
            None => self.server.connect(Use::Writing).await,
        }
    }

    /// Commits what was done, or takes it back.
    async fn finish<T>(&mut self, mut conn: PgConnection, done: Result<T, Fault>) -> Result<T, Failed> {
        let value = match done {
            Ok(value) => value,
            Err(fault) => {
                let is_in_order = matches!(fault, Fault::Row(_) | Fault::Contended(_));
                if is_in_order && self.bounded(conn.execute("ROLLBACK")).await.is_ok() {
                    self.conn = Some(conn);
                }
                return Err(fault.into());
            }
        };
        match self.within(self.server.commit_timeout, conn.execute("COMMIT")).await {
            Ok(_) => {
                self.conn = Some(conn);
                Ok(value)
            }
            Err(Fault::Broken(reason)) => {
                tracing::debug!(%reason, "a commit was not answered");
                Err(Failed::Unknown)
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// See [`Server::patience`].
    async fn bounded<T, E: Into<Fault>>(&self, answer: impl Future<Output = Result<T, E>>) -> Result<T, Fault> {
        self.within(self.server.patience(), answer).await
    }

    async fn within<T, E: Into<Fault>>(
        &self,
        patience: Duration,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Fault> {
        match tokio::time::timeout(patience, answer).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(Fault::Broken(format!("it did not answer within {patience:?}"))),
        }
    }

    async fn read_clock(&mut self) {
        // Without a connection the clock goes on by itself.
        let Ok(mut conn) = self.connection().await else { return };
        if self.bounded(read_clock(&mut conn, &self.context.clock)).await.is_ok() {
            self.conn = Some(conn);
        }
    }
}

/// Applies the commands, halving where a part fails, until each guilty command stands alone and is answered as such.
async fn bisect(
    conn: &mut PgConnection,
    context: &Context,
    pauses: &BTreeSet<String>,
    commands: &[Command],
) -> Result<Vec<Answer>, Fault> {
    let mut answers = Vec::with_capacity(commands.len());
    let mut parts = vec![commands];
    while let Some(part) = parts.pop() {
        conn.execute("SAVEPOINT part").await?;
        match batch::apply(conn, context, pauses, part).await {
            Ok(more) => {
                conn.execute("RELEASE part").await?;
                answers.extend(more);
            }
            Err(Fault::Row(message) | Fault::Contended(message)) => {
                conn.execute(sqlx::raw_sql("ROLLBACK TO part; RELEASE part")).await?;
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

/// A writer's transaction, for rare work.
struct Open<'t> {
    conn: &'t mut PgConnection,
    context: &'t Context,
}

impl Tx for Open<'_> {
    fn rows<'a>(&'a mut self, sql: &'a str, values: Values) -> LocalBoxFuture<'a, Result<Vec<Record>, Fault>> {
        async move {
            let query = sqlx::query_with(AssertSqlSafe(Dialect::Postgres.render(sql)), arguments(values)?);
            let rows = query.fetch_all(&mut *self.conn).await?;
            rows.iter().map(|row| Record::of(row, row.len()).map_err(Fault::Unusable)).collect()
        }
        .boxed_local()
    }

    fn run<'a>(&'a mut self, sql: &'a str, values: Values) -> LocalBoxFuture<'a, Result<i64, Fault>> {
        async move {
            let query = sqlx::query_with(AssertSqlSafe(Dialect::Postgres.render(sql)), arguments(values)?);
            let done = query.execute(&mut *self.conn).await?;
            Ok(i64::try_from(done.rows_affected()).unwrap_or(i64::MAX))
        }
        .boxed_local()
    }

    fn apply<'a>(&'a mut self, commands: &'a [Command]) -> LocalBoxFuture<'a, Result<Vec<Answer>, Fault>> {
        async move {
            let pauses = batch::prepare(self.conn, "", commands).await?;
            bisect(self.conn, self.context, &pauses, commands).await
        }
        .boxed_local()
    }
}
