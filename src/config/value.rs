//! The scalar values of the file, each with its own reading, its own error text and its own JSON Schema.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use crate::gate::Rate;

use super::units::{DURATION_FORM, RATE_FORM, SIZE_FORM, parse_duration, parse_rate, parse_size};

/// A value and where in the file it stands.
#[derive(Debug, Clone)]
pub struct Spanned<T> {
    /// Byte offsets.
    pub span: std::ops::Range<usize>,
    /// The value.
    pub value: T,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = toml::Spanned::<T>::deserialize(deserializer)?;
        Ok(Spanned { span: spanned.span(), value: spanned.into_inner() })
    }
}

impl<T: JsonSchema> JsonSchema for Spanned<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }
    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// `15m`, `1h30m`, `500ms`.
#[derive(Debug, Clone, Copy)]
pub struct DurationText(pub Duration);

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = DurationText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(DURATION_FORM)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<DurationText, E> {
                parse_duration(text).map(DurationText).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for DurationText {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^\s*(\d+(\.\d+)?(ms|s|m|h|d)\s*)+$",
            "examples": ["10s", "1h30m", "500ms"]
        })
    }
}

/// `1MiB`, or a number of bytes.
#[derive(Debug, Clone, Copy)]
pub struct SizeText(pub u64);

impl<'de> Deserialize<'de> for SizeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;
        impl Visitor<'_> for TextOrNumber {
            type Value = SizeText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(SIZE_FORM)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<SizeText, E> {
                parse_size(text).map(SizeText).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<SizeText, E> {
                let size = u64::try_from(bytes);
                size.map(SizeText).map_err(|_| E::custom(format!("expected {SIZE_FORM}, found {bytes}")))
            }
        }
        deserializer.deserialize_any(TextOrNumber)
    }
}

impl JsonSchema for SizeText {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(B|KiB|MiB|GiB|kB|KB|MB|GB)?\s*$" },
                { "type": "integer", "minimum": 0 }
            ],
            "examples": ["1MiB", 65536]
        })
    }
}

/// `5/min`
#[derive(Debug, Clone, Copy)]
pub struct RateText(pub Rate);

impl<'de> Deserialize<'de> for RateText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = RateText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(RATE_FORM)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RateText, E> {
                parse_rate(text).map(RateText).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for RateText {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^\s*\d+\s*/\s*(s|min|h|day|\d.*)\s*$",
            "examples": ["5/min", "50/s", "5/10s"]
        })
    }
}

/// A platform code: text, or a whole number that compares as its decimal text.
#[derive(Debug, Clone)]
pub struct Code(pub String);

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;
        impl Visitor<'_> for TextOrNumber {
            type Value = Code;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#"a code such as "rate_limit" or 1000001"#)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Code, E> {
                Ok(Code(text.to_owned()))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Code, E> {
                Ok(Code(number.to_string()))
            }
        }
        deserializer.deserialize_any(TextOrNumber)
    }
}

impl JsonSchema for Code {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"] })
    }
}

/// One URL or a list of them. May hold passwords.
#[derive(Clone)]
pub struct Urls(pub Vec<String>);

impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} urls", self.0.len())
    }
}

impl<'de> Deserialize<'de> for Urls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Urls;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#"an amqp:// URL, a list of them, or "embedded""#)
            }
            fn visit_str<E: de::Error>(self, url: &str) -> Result<Urls, E> {
                Ok(Urls(vec![url.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Urls, A::Error> {
                let mut urls = Vec::new();
                while let Some(url) = list.next_element()? {
                    urls.push(url);
                }
                Ok(Urls(urls))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

impl JsonSchema for Urls {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Urls".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "string" }, "minItems": 1 }
            ]
        })
    }
}

/// A list of topics.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Topics(pub Vec<String>);

/// Any TOML value, as JSON; dates become text.
#[derive(Debug, Clone)]
pub struct AnyValue(pub serde_json::Value);

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        to_json(toml::Value::deserialize(deserializer)?).map(AnyValue).map_err(de::Error::custom)
    }
}

fn to_json(value: toml::Value) -> Result<serde_json::Value, String> {
    Ok(match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => serde_json::Number::from_f64(number)
            .ok_or_else(|| format!("expected a value that JSON has, found {number}"))?
            .into(),
        toml::Value::Boolean(yes) => yes.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(items) => items.into_iter().map(to_json).collect::<Result<Vec<_>, _>>()?.into(),
        toml::Value::Table(table) => serde_json::Value::Object(
            table.into_iter().map(|(key, value)| Ok((key, to_json(value)?))).collect::<Result<_, String>>()?,
        ),
    })
}

impl JsonSchema for AnyValue {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Any".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!(true)
    }
}
