//! One statement for many rows.
//!
//! Every statement that sqlx sends, and every row that comes back, costs a thread switch, which for a small row is more than
//! SQLite's own work. A ladder is one statement in a few fixed sizes, so that a batch of any length takes few round trips
//! and each size is prepared once.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::columns::{self, Binds};
use super::fault::Fault;

const SIZES: [usize; 4] = [64, 16, 4, 1];

/// A statement for 64, 16, 4 and 1 rows.
pub(super) struct Ladder {
    /// Arguments per row.
    width: usize,
    statements: [Arc<str>; SIZES.len()],
}

impl Ladder {
    /// Inserts rows. `insert` is what stands before the table's name, all of it program text, never input.
    pub(super) fn insert(insert: &str, table: &str, columns: &str) -> Ladder {
        Ladder::new(&format!("{insert} {table} ({columns}) VALUES "), columns::count(columns), "")
    }

    /// Updates rows that `key` names: the first argument of a row is its key, the others are the columns.
    pub(super) fn update(table: &str, key: &str, columns: &str) -> Ladder {
        let assignments: Vec<String> =
            columns.split(',').zip(2..).map(|(column, n)| format!("{} = new.column{n}", column.trim())).collect();
        Ladder::new(
            &format!("UPDATE {table} SET {} FROM (VALUES ", assignments.join(", ")),
            columns::count(columns) + 1,
            &format!(") AS new WHERE {table}.{key} = new.column1"),
        )
    }

    fn new(before: &str, width: usize, after: &str) -> Ladder {
        let row = format!("({})", vec!["?"; width].join(","));
        let statements = SIZES.map(|size| format!("{before}{}{after}", vec![row.as_str(); size].join(",")).into());
        Ladder { width, statements }
    }

    /// The statement for a whole 64 rows.
    #[cfg(test)]
    pub(super) fn largest(&self) -> &str {
        &self.statements[0]
    }

    /// Runs the statement for every item; `bind` adds the arguments of one.
    pub(super) async fn run<T>(
        &self,
        conn: &mut SqliteConnection,
        mut items: &[T],
        bind: impl Fn(&mut Binds, &T),
    ) -> Result<(), Fault> {
        for (size, sql) in SIZES.into_iter().zip(&self.statements) {
            while items.len() >= size {
                let (now, later) = items.split_at(size);
                let mut binds = Binds::with_room(size * self.width);
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
