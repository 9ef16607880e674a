//! Arguments and rows, as SQLite's two clients take and give them.

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, Decode, Row, Sqlite, TypeInfo, ValueRef as _};

use crate::store::sql::columns::Columns;
use crate::store::sql::fault::Fault;
use crate::store::sql::value::{Bind, CellValue, Source, Value, Values};

/// The arguments of a question to a reader.
pub(super) fn arguments(values: Values) -> Result<SqliteArguments, Fault> {
    let mut arguments = SqliteArguments::default();
    for value in values.0 {
        let added = match value {
            Value::Text(text) => arguments.add(text),
            Value::Integer(number) => arguments.add(number),
            Value::Real(number) => arguments.add(number),
            Value::Blob(bytes) => arguments.add(bytes),
        };
        added.map_err(|error| Fault::Row(error.to_string()))?;
    }
    Ok(arguments)
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        match self {
            Value::Text(text) => text.to_sql(),
            Value::Integer(number) => number.to_sql(),
            Value::Real(number) => number.to_sql(),
            Value::Blob(bytes) => bytes.to_sql(),
        }
    }
}

impl Source for SqliteRow {
    fn value(&self, at: usize) -> Result<CellValue<'_>, String> {
        let raw = self.try_get_raw(at).map_err(|error| error.to_string())?;
        if raw.is_null() {
            return Ok(CellValue::Null);
        }
        let value = match raw.type_info().name() {
            "TEXT" => <&[u8] as Decode<Sqlite>>::decode(raw).map(CellValue::Text),
            "REAL" => <f64 as Decode<Sqlite>>::decode(raw).map(CellValue::Real),
            "BLOB" => <&[u8] as Decode<Sqlite>>::decode(raw).map(CellValue::Blob),
            _ => <i64 as Decode<Sqlite>>::decode(raw).map(CellValue::Integer),
        };
        value.map_err(|error| error.to_string())
    }
}

impl Source for rusqlite::Row<'_> {
    fn value(&self, at: usize) -> Result<CellValue<'_>, String> {
        Ok(match self.get_ref(at).map_err(|error| error.to_string())? {
            ValueRef::Null => CellValue::Null,
            ValueRef::Integer(number) => CellValue::Integer(number),
            ValueRef::Real(number) => CellValue::Real(number),
            ValueRef::Text(text) => CellValue::Text(text),
            ValueRef::Blob(bytes) => CellValue::Blob(bytes),
        })
    }
}

/// Arguments of a statement of the writer, which SQLite copies as they come.
pub(super) struct Slots<'s, 'c> {
    statement: &'s mut rusqlite::Statement<'c>,
    next: usize,
    failed: Option<rusqlite::Error>,
}

impl<'s, 'c> Slots<'s, 'c> {
    pub(super) fn of(statement: &'s mut rusqlite::Statement<'c>) -> Slots<'s, 'c> {
        Slots { statement, next: 1, failed: None }
    }

    pub(super) fn add(&mut self, value: impl rusqlite::ToSql) -> &mut Self {
        // Too long a text, for example: it shows when all is bound.
        if let Err(error) = self.statement.raw_bind_parameter(self.next, value) {
            self.failed.get_or_insert(error);
        }
        self.next += 1;
        self
    }

    /// # Errors
    /// The first argument that SQLite did not take.
    pub(super) fn done(self) -> rusqlite::Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}

impl Bind for Slots<'_, '_> {
    fn word(&mut self, text: &str) -> &mut Self {
        self.add(text)
    }

    fn null(&mut self) -> &mut Self {
        self.add(rusqlite::types::Null)
    }

    fn number(&mut self, number: Option<i64>) -> &mut Self {
        self.add(number)
    }

    fn real(&mut self, number: Option<f64>) -> &mut Self {
        self.add(number)
    }

    fn bytes(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        self.add(bytes)
    }
}

/// Reads all rows of a small table for the writer; one that cannot be read is an error, for only we write them.
pub(super) fn all_now<T>(
    conn: &Connection,
    sql: &'static str,
    read: impl Fn(&mut Columns<'_, rusqlite::Row<'_>>) -> Result<T, String>,
) -> Result<Vec<T>, Fault> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.raw_query();
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read(&mut Columns::of(row)).map_err(Fault::Unusable)?);
    }
    Ok(all)
}
