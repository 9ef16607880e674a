//! Values on their way to and from a database, whichever it is.

use std::borrow::Cow;

/// An argument of a statement. What is missing still has a kind: PostgreSQL wants to know of what it is the absence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(Option<String>),
    Integer(Option<i64>),
    Real(Option<f64>),
    Blob(Option<Vec<u8>>),
}

macro_rules! into_value {
    ($($kind:ident: $($from:ty),+;)+) => {
        $($(
            impl From<$from> for Value {
                fn from(value: $from) -> Value {
                    Value::$kind(Some(value.into()))
                }
            }
            impl From<Option<$from>> for Value {
                fn from(value: Option<$from>) -> Value {
                    Value::$kind(value.map(Into::into))
                }
            }
        )+)+
    };
}

into_value! {
    Text: String, &str, Cow<'_, str>;
    Integer: i64, bool;
    Real: f64;
    Blob: Vec<u8>;
}

/// The arguments of a statement, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Values(pub(crate) Vec<Value>);

impl Values {
    pub(crate) fn add(&mut self, value: impl Into<Value>) -> &mut Values {
        self.0.push(value.into());
        self
    }

    /// A list, for `{each:?}` and its like.
    pub(crate) fn list<T: serde::Serialize>(&mut self, values: &[T]) -> &mut Values {
        self.add(serde_json::json!(values).to_string())
    }
}

/// Arguments in one expression.
macro_rules! values {
    () => {
        $crate::store::sql::value::Values::default()
    };
    ($($value:expr),* $(,)?) => {{
        let mut values = $crate::store::sql::value::Values::default();
        $(values.add($value);)*
        values
    }};
}

pub(crate) use values;

/// Takes the columns of a row on its way in, in order.
pub(crate) trait Bind {
    /// A word of ours, an id or a key, or JSON: as it is.
    fn word(&mut self, text: &str) -> &mut Self;
    /// No text.
    fn null(&mut self) -> &mut Self;
    fn number(&mut self, number: Option<i64>) -> &mut Self;
    fn real(&mut self, number: Option<f64>) -> &mut Self;
    fn bytes(&mut self, bytes: Option<&[u8]>) -> &mut Self;

    fn integer(&mut self, number: i64) -> &mut Self {
        self.number(Some(number))
    }

    fn optional_word(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.word(text),
            None => self.null(),
        }
    }

    /// Text for people. NUL is replaced: SQLite's own functions stop at it and PostgreSQL refuses it.
    fn text(&mut self, text: &str) -> &mut Self {
        self.word(&without_nul(text))
    }

    fn optional_text(&mut self, text: Option<&str>) -> &mut Self {
        self.optional_word(text.map(without_nul).as_deref())
    }
}

pub(crate) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Text for people that may be missing, as it is stored; see [`Bind::text`].
pub(crate) fn plain(text: Option<String>) -> Option<String> {
    text.map(|text| if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text })
}

/// What stands in a column of a row that was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CellValue<'r> {
    Null,
    Integer(i64),
    Real(f64),
    /// Not yet known to be UTF-8.
    Text(&'r [u8]),
    Blob(&'r [u8]),
}

/// A row that was read.
pub(crate) trait Source {
    fn value(&self, at: usize) -> Result<CellValue<'_>, String>;
}

/// A row that stands by itself, for statements inside a transaction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record(Vec<Owned>);

#[derive(Debug, Clone)]
enum Owned {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl Record {
    /// The first `columns` columns of a row.
    pub(crate) fn of(row: &impl Source, columns: usize) -> Result<Record, String> {
        let own = |at| {
            Ok(match row.value(at)? {
                CellValue::Null => Owned::Null,
                CellValue::Integer(number) => Owned::Integer(number),
                CellValue::Real(number) => Owned::Real(number),
                CellValue::Text(text) => Owned::Text(text.to_vec()),
                CellValue::Blob(bytes) => Owned::Blob(bytes.to_vec()),
            })
        };
        (0..columns).map(own).collect::<Result<Vec<Owned>, String>>().map(Record)
    }
}

impl Source for Record {
    fn value(&self, at: usize) -> Result<CellValue<'_>, String> {
        Ok(match self.0.get(at).ok_or_else(|| "there is no such column".to_owned())? {
            Owned::Null => CellValue::Null,
            Owned::Integer(number) => CellValue::Integer(*number),
            Owned::Real(number) => CellValue::Real(*number),
            Owned::Text(text) => CellValue::Text(text),
            Owned::Blob(bytes) => CellValue::Blob(bytes),
        })
    }
}

/// What a column can be read as.
pub(crate) trait Cell<'r>: Sized {
    fn of(value: CellValue<'r>) -> Result<Self, String>;
}

fn unexpected<T>(value: CellValue<'_>) -> Result<T, String> {
    Err(format!(
        "it is unexpectedly {}",
        match value {
            CellValue::Null => "Null",
            CellValue::Integer(_) => "Integer",
            CellValue::Real(_) => "Real",
            CellValue::Text(_) => "Text",
            CellValue::Blob(_) => "Blob",
        }
    ))
}

impl Cell<'_> for i64 {
    fn of(value: CellValue<'_>) -> Result<i64, String> {
        if let CellValue::Integer(number) = value { Ok(number) } else { unexpected(value) }
    }
}

impl Cell<'_> for bool {
    fn of(value: CellValue<'_>) -> Result<bool, String> {
        i64::of(value).map(|number| number != 0)
    }
}

impl Cell<'_> for f64 {
    #[expect(clippy::cast_precision_loss, reason = "SQLite keeps a whole number as one, and so does a sum")]
    fn of(value: CellValue<'_>) -> Result<f64, String> {
        match value {
            CellValue::Real(number) => Ok(number),
            CellValue::Integer(number) => Ok(number as f64),
            _ => unexpected(value),
        }
    }
}

impl<'r> Cell<'r> for &'r str {
    fn of(value: CellValue<'r>) -> Result<&'r str, String> {
        let CellValue::Text(bytes) = value else { return unexpected(value) };
        std::str::from_utf8(bytes).map_err(|error| error.to_string())
    }
}

impl<'r> Cell<'r> for String {
    fn of(value: CellValue<'r>) -> Result<String, String> {
        <&str>::of(value).map(str::to_owned)
    }
}

impl<'r> Cell<'r> for Vec<u8> {
    fn of(value: CellValue<'r>) -> Result<Vec<u8>, String> {
        if let CellValue::Blob(bytes) = value { Ok(bytes.to_vec()) } else { unexpected(value) }
    }
}

impl<'r, T: Cell<'r>> Cell<'r> for Option<T> {
    fn of(value: CellValue<'r>) -> Result<Option<T>, String> {
        if value == CellValue::Null { Ok(None) } else { T::of(value).map(Some) }
    }
}
