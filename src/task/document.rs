//! Failures and results as the outside sees them: the same in the API, on the command line, in events and in replies.

use base64::Engine as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, TaskResult};

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Failure")]
pub struct FailureDocument {
    /// `timeout`, `network`, `rate_limited`, …
    pub class: String,
    /// The platform's code.
    pub code: Option<String>,
    /// The HTTP status.
    pub http_status: Option<u16>,
    /// For people.
    pub message: String,
    /// Equal for failures that are the same but for ids and numbers.
    pub fingerprint: String,
}

/// A stored response: a JSON body as JSON, other text as text, anything else as base64.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Result")]
pub struct ResultDocument {
    /// Its media type.
    pub media_type: String,
    /// Whether its end was cut off.
    pub truncated: bool,
    /// JSON or text.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "there")]
    pub body: Option<Value>,
    /// What is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// A body that is there and null is not a body that is absent.
fn there<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl FailureDocument {
    /// The document of a failure.
    pub fn of(failure: &Failure) -> FailureDocument {
        FailureDocument {
            class: failure.class.clone(),
            code: failure.code.clone(),
            http_status: failure.http_status,
            message: failure.message.clone(),
            fingerprint: failure.fingerprint.clone(),
        }
    }
}

impl ResultDocument {
    /// The document of a stored response.
    pub fn of(result: &TaskResult) -> ResultDocument {
        let is_json = result.media_type.split(';').next().is_some_and(|media| {
            let media = media.trim().to_ascii_lowercase();
            media == "application/json" || media.ends_with("+json")
        });
        let parsed = serde_json::from_slice::<Value>(&result.body).ok().filter(|_| is_json);
        let (body, body_base64) = match parsed {
            Some(body) => (Some(body), None),
            None => {
                let (text, base64) = text_or_base64(&result.body);
                (text.map(Value::String), base64)
            }
        };
        ResultDocument { media_type: result.media_type.clone(), truncated: result.truncated, body, body_base64 }
    }
}

/// Bytes as text where they are text, else as base64.
pub(crate) fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(base64::engine::general_purpose::STANDARD.encode(bytes))),
    }
}
