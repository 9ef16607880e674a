//! `[[limit]]`, `[[breaker]]` and the `concurrency` of a `[[route]]` as they are written.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::config::value::{DurationText, RateText, Spanned};

/// `[[limit]]`: either `rate` or `max_ratio`.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawLimit {
    /// Unique among the limits.
    pub name: Option<Spanned<String>>,
    /// What its keys are made of: `type`, `queue`, `route`, `label.<name>`. Default: `[]`, one key for everything.
    #[serde(default)]
    pub per: Vec<Spanned<String>>,
    /// So many in such a time and key: `5/min`. Units: s, min, h, day, or a duration as in `5/10s`.
    pub rate: Option<Spanned<RateText>>,
    /// How many may start together after a rest. Default: 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: Option<Spanned<i64>>,
    /// Count every call, not only retries. Default: false.
    pub calls: Option<Spanned<bool>>,
    /// Retries are at most a share of the first attempts in a window.
    pub max_ratio: Option<Spanned<RawMaxRatio>>,
}

/// `max_ratio = { … }`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawMaxRatio {
    /// Retries for one first attempt, 0.001 to 10.
    #[schemars(range(min = 0.001, max = 10))]
    pub ratio: Option<Spanned<f64>>,
    /// The window that is looked at. Default: `1m`.
    pub window: Option<Spanned<DurationText>>,
    /// Retries that are allowed in any case. Default: `10/min`.
    pub floor: Option<Spanned<RateText>>,
}

/// `[[breaker]]`: at least one of `consecutive_same`, `consecutive` and `failure_rate`.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawBreaker {
    /// Unique among the breakers.
    pub name: Option<Spanned<String>>,
    /// What its keys are made of: `type`, `queue`, `route`, `label.<name>`. Default: `[]`, one key for everything.
    #[serde(default)]
    pub per: Vec<Spanned<String>>,
    /// Opens after so many failures in a row with the same fingerprint.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub consecutive_same: Option<Spanned<i64>>,
    /// Opens after so many failures in a row.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub consecutive: Option<Spanned<i64>>,
    /// Opens when a window of attempts has failed too often.
    pub failure_rate: Option<Spanned<RawFailureRate>>,
    /// Failure classes that neither open nor reset it, besides `rate_limited` and `worker_lost`. Default: `bad_payload`, `no_route`,
    /// `not_runnable`.
    pub ignore: Option<Spanned<Vec<Spanned<String>>>>,
    /// The first cool-down. Default: `60s`.
    pub open_for: Option<Spanned<DurationText>>,
    /// The longest cool-down; each failed probe doubles it up to here. Default: `30m`.
    pub open_for_max: Option<Spanned<DurationText>>,
    /// How many attempts may run while it is half open. Default: 1.
    #[schemars(range(min = 1, max = 100_000))]
    pub probes: Option<Spanned<i64>>,
    /// What an open breaker does with due tasks: `park` (default) lets them wait, `dead_letter` hands them to people, `fallback` ends them
    /// by their policy's fallbacks.
    pub when_open: Option<RawWhenOpen>,
    /// How long a task waits for it at most. Default: `24h`.
    pub park_max: Option<Spanned<DurationText>>,
}

/// `failure_rate = { … }`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawFailureRate {
    /// The share of failed attempts, 0.001 to 1.
    #[schemars(range(min = 0.001, max = 1))]
    pub ratio: Option<Spanned<f64>>,
    /// The window. Default: `1m`.
    pub window: Option<Spanned<DurationText>>,
    /// With fewer attempts in the window it never opens. Default: 20.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min: Option<Spanned<i64>>,
}

/// See [`RawBreaker::when_open`].
#[derive(Debug, Clone, Copy, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RawWhenOpen {
    /// They wait, no retry spent.
    Park,
    /// They die with `circuit_open`.
    DeadLetter,
    /// Their policy's fallbacks end them.
    Fallback,
}

/// The `concurrency` of a `[[route]]`.
#[derive(Debug)]
pub enum RawConcurrency {
    /// `16`
    Whole(i64),
    /// `{ per = "label.shop", max = 2 }`
    Keyed(RawCap),
}

/// `concurrency = { … }`
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawCap {
    /// What its keys are made of, within the route: `type`, `queue`, `label.<name>`, or a list of them.
    pub per: Option<Spanned<RawPer>>,
    /// Attempts at once of one key.
    #[schemars(range(min = 1, max = 100_000))]
    pub max: Option<Spanned<i64>>,
}

/// One word or a list of them.
#[derive(Debug)]
pub struct RawPer(pub Vec<String>);

const CONCURRENCY_FORM: &str = r#"a whole number, or a table such as { per = "label.shop", max = 2 }"#;
const PER_FORM: &str = r#"a word such as "label.shop", or a list of them"#;

impl<'de> Deserialize<'de> for RawConcurrency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrTable;
        impl<'de> Visitor<'de> for NumberOrTable {
            type Value = RawConcurrency;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(CONCURRENCY_FORM)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<RawConcurrency, E> {
                Ok(RawConcurrency::Whole(number))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawConcurrency, A::Error> {
                RawCap::deserialize(MapAccessDeserializer::new(map)).map(RawConcurrency::Keyed)
            }
        }
        deserializer.deserialize_any(NumberOrTable)
    }
}

impl JsonSchema for RawConcurrency {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Concurrency".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let keyed = generator.subschema_for::<RawCap>();
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 1 }, keyed] })
    }
}

impl<'de> Deserialize<'de> for RawPer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = RawPer;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(PER_FORM)
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<RawPer, E> {
                Ok(RawPer(vec![word.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawPer, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(RawPer(words))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

impl JsonSchema for RawPer {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Per".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
    }
}
