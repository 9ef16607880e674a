//! What a database has to do to be a store: everything else is written once, over this.

use std::any::Any;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use super::columns::{Columns, Unreadable};
use super::dialect::Dialect;
use super::fault::Fault;
use super::value::{Record, Source, Values};
use crate::store::{Clock, StoreError, StoreReport, Urgency};
use crate::task::{Answer, Command, Millis, Task};

/// A database that keeps a store. Whoever implements it gets the whole port; see `read`.
#[async_trait]
pub(crate) trait Engine: Send + Sync + 'static {
    /// A row that a question brought.
    type Row: Source + Send + Sync;

    fn dialect(&self) -> Dialect;

    fn clock(&self) -> &Clock;

    /// File or server, without password.
    fn place(&self) -> String;

    /// Asks a question outside of the writers' transactions. `sql` is as the database reads it.
    async fn fetch(&self, sql: &str, values: Values) -> Result<Vec<Self::Row>, Fault>;

    /// Rows that could not be read are set aside, some time soon.
    fn report_unreadable(&self, seqs: Vec<i64>);

    /// See [`Store::apply`](crate::store::Store::apply).
    async fn commit(&self, urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError>;

    /// Runs `work` in a transaction of a writer.
    async fn transact(&self, work: Work) -> Result<Box<dyn Any + Send>, StoreError>;

    /// See [`Store::outside_changes`](crate::store::Store::outside_changes).
    async fn look_outside(&self) -> Result<i64, StoreError>;

    /// See [`Store::called`](crate::store::Store::called).
    async fn wait_for_call(&self) {
        std::future::pending().await
    }

    /// See [`Store::report`](crate::store::Store::report).
    async fn inspect(&self, deep: bool) -> Result<StoreReport, StoreError>;

    /// See [`Store::close`](crate::store::Store::close).
    async fn shut(&self);
}

/// A transaction of a writer. Its futures stay on the writer's thread.
pub(crate) trait Tx {
    /// Rows, each with as many columns as it has.
    fn rows<'a>(&'a mut self, sql: &'a str, values: Values) -> LocalBoxFuture<'a, Result<Vec<Record>, Fault>>;

    /// How many rows a statement changed.
    fn run<'a>(&'a mut self, sql: &'a str, values: Values) -> LocalBoxFuture<'a, Result<i64, Fault>>;

    /// Applies commands; a guilty one is answered as such, the others are applied.
    fn apply<'a>(&'a mut self, commands: &'a [Command]) -> LocalBoxFuture<'a, Result<Vec<Answer>, Fault>>;
}

/// What becomes of some work inside a transaction.
pub(crate) type Working<'t, T> = LocalBoxFuture<'t, Result<T, Fault>>;

/// Something rare that is done in a transaction, at the store's time.
pub(crate) type Work = Box<dyn for<'t> FnOnce(&'t mut dyn Tx, Millis) -> Working<'t, Box<dyn Any + Send>> + Send>;

/// What everything that is written over an engine uses.
pub(crate) trait Ask: Engine {
    fn fault(&self, fault: impl Into<Fault>) -> StoreError {
        fault.into().at(self.place())
    }

    /// Runs a query of ours.
    fn rows(&self, sql: &str, values: Values) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send {
        async move { self.fetch(&self.dialect().render(sql), values).await.map_err(|fault| self.fault(fault)) }
    }

    /// The rows of a query, each read.
    fn all<T: Send>(
        &self,
        sql: &str,
        values: Values,
        read: impl Fn(&mut Columns<'_, Self::Row>) -> Result<T, String> + Send,
    ) -> impl Future<Output = Result<Vec<T>, StoreError>> + Send {
        async move { self.rows(sql, values).await?.iter().map(|row| self.read(row, &read)).collect() }
    }

    /// The first row of a query, read.
    fn first<T: Send>(
        &self,
        sql: &str,
        values: Values,
        read: impl Fn(&mut Columns<'_, Self::Row>) -> Result<T, String> + Send,
    ) -> impl Future<Output = Result<Option<T>, StoreError>> + Send {
        async move { self.rows(sql, values).await?.first().map(|row| self.read(row, &read)).transpose() }
    }

    /// A row's columns, where a failure to read them is the store's fault: only we write that table.
    fn read<T>(
        &self,
        row: &Self::Row,
        read: impl FnOnce(&mut Columns<'_, Self::Row>) -> Result<T, String>,
    ) -> Result<T, StoreError> {
        read(&mut Columns::of(row)).map_err(|reason| self.fault(Fault::Unusable(reason)))
    }

    /// Runs a query for whole tasks. Rows that cannot be read are left out and reported, to be set aside.
    fn tasks(&self, sql: &str, values: Values) -> impl Future<Output = Result<Vec<Task>, StoreError>> + Send {
        async move {
            let rows = self.rows(sql, values).await?;
            Ok(self.readable(&rows).into_iter().map(|(_, task)| task).collect())
        }
    }

    /// The tasks among rows, with their place in the order of arrival.
    fn readable(&self, rows: &[Self::Row]) -> Vec<(i64, Task)> {
        let (read, unreadable): (Vec<_>, Vec<_>) =
            rows.iter().map(|row| Columns::of(row).task()).partition(Result::is_ok);
        let unreadable: Vec<Unreadable> = unreadable.into_iter().filter_map(Result::err).collect();
        if !unreadable.is_empty() {
            self.report_unreadable(unreadable.iter().map(|row| row.seq).collect());
        }
        read.into_iter().filter_map(Result::ok).collect()
    }

    /// Runs `work` in a transaction. For rare changes on tables that no command touches, or together with commands.
    fn write<T: Send + 'static>(
        &self,
        work: impl for<'t> FnOnce(&'t mut dyn Tx, Millis) -> Working<'t, T> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        async move {
            let work: Work = Box::new(move |tx, now| {
                async move { Ok(Box::new(work(tx, now).await?) as Box<dyn Any + Send>) }.boxed_local()
            });
            let done = self.transact(work).await?;
            done.downcast()
                .map(|value| *value)
                .map_err(|_| self.fault(Fault::Unusable("it mixed up its answers".into())))
        }
    }

    /// One statement in a transaction of its own: how many rows it changed.
    fn change(&self, sql: &'static str, values: Values) -> impl Future<Output = Result<i64, StoreError>> + Send {
        self.write(move |tx, _| tx.run(sql, values))
    }
}

impl<E: Engine> Ask for E {}

/// A limit as databases take it: signed.
pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Reads the rows of a statement inside a transaction.
pub(crate) fn read_records<T>(
    rows: &[Record],
    read: impl Fn(&mut Columns<'_, Record>) -> Result<T, String>,
) -> Result<Vec<T>, Fault> {
    rows.iter().map(|row| read(&mut Columns::of(row)).map_err(Fault::Unusable)).collect()
}
