//! One statement for many rows.
//!
//! A ladder is one statement in a few fixed sizes, so that each size is prepared once, and a batch takes the smallest that holds
//! it: the rows it does not fill stay unbound, which is NULL, and a row whose first column is NULL is none.

use super::rows::Slots;
use crate::store::sql::columns;
use crate::store::sql::fault::Fault;

const SIZES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const LARGEST: usize = SIZES[SIZES.len() - 1];

/// A statement for up to 1, 2, 4, … 64 rows.
pub(super) struct Ladder {
    statements: [String; SIZES.len()],
}

impl Ladder {
    /// Inserts rows; their first column is never NULL. `insert` is what stands before the table's name, all of it program text,
    /// never input.
    pub(super) fn insert(insert: &str, table: &str, columns: &str) -> Ladder {
        Ladder::new(
            &format!("{insert} {table} ({columns}) SELECT * FROM (VALUES "),
            columns::count(columns),
            ") WHERE column1 IS NOT NULL",
        )
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
        let statements = SIZES.map(|size| format!("{before}{}{after}", vec![row.as_str(); size].join(",")));
        Ladder { statements }
    }

    /// The statement for a whole 64 rows.
    #[cfg(test)]
    pub(super) fn largest(&self) -> &str {
        &self.statements[SIZES.len() - 1]
    }

    /// Runs the statement for every item; `bind` adds the arguments of one.
    pub(super) fn run<T>(
        &self,
        conn: &rusqlite::Connection,
        items: &[T],
        bind: impl Fn(&mut Slots<'_, '_>, &T),
    ) -> Result<(), Fault> {
        for items in items.chunks(LARGEST) {
            let rung = SIZES.partition_point(|size| *size < items.len());
            let mut statement = conn.prepare_cached(&self.statements[rung])?;
            let mut slots = Slots::of(&mut statement);
            for item in items {
                bind(&mut slots, item);
            }
            slots.done()?;
            statement.raw_execute()?;
        }
        Ok(())
    }
}
