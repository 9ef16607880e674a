//! Arguments and rows, as sqlx takes and gives them.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments, Decode, Postgres, Row, TypeInfo, ValueRef};

use crate::store::sql::fault::Fault;
use crate::store::sql::value::{CellValue, Source, Value, Values};

/// The arguments of a statement.
pub(super) fn arguments(values: Values) -> Result<PgArguments, Fault> {
    let mut arguments = PgArguments::default();
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

impl Source for PgRow {
    fn value(&self, at: usize) -> Result<CellValue<'_>, String> {
        let raw = self.try_get_raw(at).map_err(|error| error.to_string())?;
        if raw.is_null() {
            return Ok(CellValue::Null);
        }
        let kind = raw.type_info();
        let value = match kind.name() {
            "INT8" => <i64 as Decode<Postgres>>::decode(raw).map(CellValue::Integer),
            "INT4" => <i32 as Decode<Postgres>>::decode(raw).map(|number| CellValue::Integer(number.into())),
            "BOOL" => <bool as Decode<Postgres>>::decode(raw).map(|truth| CellValue::Integer(truth.into())),
            "FLOAT8" => <f64 as Decode<Postgres>>::decode(raw).map(CellValue::Real),
            "BYTEA" => <&[u8] as Decode<Postgres>>::decode(raw).map(CellValue::Blob),
            "TEXT" | "VARCHAR" | "NAME" | "UNKNOWN" => {
                <&str as Decode<Postgres>>::decode(raw).map(|text| CellValue::Text(text.as_bytes()))
            }
            other => return Err(format!("it has the type {other}, which nothing here reads")),
        };
        value.map_err(|error| error.to_string())
    }
}
