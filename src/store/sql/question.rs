//! A statement that is put together at run time: text of ours, and arguments.

use super::engine::{Ask, Engine};
use super::value::{Value, Values};
use crate::store::StoreError;

/// See the module. The text is as in [`super::dialect`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Question {
    sql: String,
    values: Values,
}

impl Question {
    pub(crate) fn new(sql: &str) -> Question {
        Question { sql: sql.to_owned(), values: Values::default() }
    }

    /// Adds program text.
    pub(crate) fn push(&mut self, sql: impl AsRef<str>) -> &mut Question {
        self.sql.push_str(sql.as_ref());
        self
    }

    /// Adds an argument.
    pub(crate) fn bind(&mut self, value: impl Into<Value>) -> &mut Question {
        self.sql.push('?');
        self.values.add(value);
        self
    }

    /// Gives the argument of a `?` that has been pushed inside braces.
    pub(crate) fn give(&mut self, value: impl Into<Value>) -> &mut Question {
        self.values.add(value);
        self
    }

    /// The same for a list.
    pub(crate) fn give_list<T: serde::Serialize>(&mut self, values: &[T]) -> &mut Question {
        self.values.list(values);
        self
    }

    pub(crate) async fn rows<E: Engine>(self, store: &E) -> Result<Vec<E::Row>, StoreError> {
        store.rows(&self.sql, self.values).await
    }
}
