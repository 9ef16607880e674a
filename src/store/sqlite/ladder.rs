//! One statement for many rows.
//!
//! Every statement that sqlx sends costs two thread switches, which for a small row is more than SQLite's own work. A
//! ladder is one statement in a few fixed sizes, so that a batch of any length takes few round trips and each size is
//! prepared once.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::columns::Binds;
use super::fault::Fault;

const SIZES: [usize; 4] = [64, 16, 4, 1];

/// A statement, repeated for 64, 16, 4 and 1 rows.
pub(super) struct Ladder([Arc<str>; SIZES.len()]);

impl Ladder {
    /// `statement` is for one row. It is program text, never input.
    pub(super) fn new(statement: &str) -> Ladder {
        Ladder(SIZES.map(|size| format!("{statement};").repeat(size).into()))
    }

    /// The statement for one row.
    #[cfg(test)]
    pub(super) fn one(&self) -> &str {
        self.0.last().map_or("", |sql| sql)
    }

    /// Runs the statement for every item; `bind` adds the arguments of one.
    pub(super) async fn run<T>(
        &self,
        conn: &mut SqliteConnection,
        mut items: &[T],
        bind: impl Fn(&mut Binds, &T),
    ) -> Result<(), Fault> {
        for (size, sql) in SIZES.into_iter().zip(&self.0) {
            while items.len() >= size {
                let (now, later) = items.split_at(size);
                let mut binds = Binds::default();
                for item in now {
                    bind(&mut binds, item);
                }
                sqlx::query_with(AssertSqlSafe(Arc::clone(sql)), binds.done()).execute(&mut *conn).await?;
                items = later;
            }
        }
        Ok(())
    }
}
