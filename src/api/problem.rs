//! Every error of the API as `application/problem+json` (RFC 9457), naming the field that is wrong.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::broker::BrokerError;
use crate::store::StoreError;

/// Why a request was not done. Behind a pointer, because it is the rare half of every answer.
#[derive(Debug, Clone)]
pub struct Problem(Box<ProblemBody>);

impl std::ops::Deref for Problem {
    type Target = ProblemBody;

    fn deref(&self) -> &ProblemBody {
        &self.0
    }
}

/// A problem as it is sent.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub struct ProblemBody {
    /// Which kind of problem: `urn:redeliver:` and a word such as `conflict`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened, and what to do.
    pub detail: String,
    /// Each field that is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Of a conflict: what the thing is now, such as a task's status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Seconds after which it may work.
    #[serde(skip)]
    #[schemars(skip)]
    pub retry_after_s: Option<u64>,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldError {
    /// The parameter, the header, or the path into the body: `labels.shop`.
    pub field: String,
    /// What was expected.
    pub message: String,
}

impl Problem {
    fn new(status: StatusCode, word: &str, detail: impl Into<String>) -> Problem {
        Problem(Box::new(ProblemBody {
            kind: format!("urn:redeliver:{word}"),
            title: status.canonical_reason().unwrap_or("error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
            state: None,
            retry_after_s: None,
        }))
    }

    /// The same, naming these fields.
    #[must_use]
    pub fn with(mut self, errors: Vec<FieldError>) -> Problem {
        self.0.errors = errors;
        self
    }

    fn later(mut self, seconds: u64) -> Problem {
        self.0.retry_after_s = Some(seconds);
        self
    }

    fn of_field(status: StatusCode, word: &str, field: &str, message: impl Into<String>) -> Problem {
        let message = message.into();
        let detail = if field.is_empty() { message.clone() } else { format!("{field}: {message}") };
        Problem::new(status, word, detail).with(vec![FieldError { field: field.to_owned(), message }])
    }

    /// 400: a parameter, a header or the request itself cannot be meant.
    pub fn bad_request(field: &str, message: impl Into<String>) -> Problem {
        Problem::of_field(StatusCode::BAD_REQUEST, "bad_request", field, message)
    }

    /// 422: the body is JSON, but a field of it cannot be meant.
    pub fn invalid(field: &str, message: impl Into<String>) -> Problem {
        Problem::of_field(StatusCode::UNPROCESSABLE_ENTITY, "invalid", field, message)
    }

    /// 401: nobody knows who asks.
    pub fn unauthorized(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// 403: whoever asks may not.
    pub fn forbidden(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// 404
    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// 405
    pub fn method_not_allowed() -> Problem {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this method does nothing here")
    }

    /// 409: the thing is in another state; `state` says in which.
    pub fn conflict(detail: impl Into<String>, state: impl Into<String>) -> Problem {
        let mut problem = Problem::new(StatusCode::CONFLICT, "conflict", detail);
        problem.0.state = Some(state.into());
        problem
    }

    /// 413
    pub fn too_large(most: usize) -> Problem {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("a body may have {most} bytes at most"))
    }

    /// 415
    pub fn wrong_media_type(expected: &str) -> Problem {
        let message = format!("expected {expected}");
        Problem::of_field(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "content-type", message)
    }

    /// 421: the name in `Host` is none of ours.
    pub fn wrong_host(host: &str) -> Problem {
        let detail = format!("{host:?} is no name of this server; if it is, put it under hosts in [console]");
        Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", detail)
    }

    /// 429
    pub fn too_many(retry_after_s: u64, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", detail).later(retry_after_s)
    }

    /// 503: store or broker do not answer; the same request may work later.
    pub fn unavailable(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).later(1)
    }

    /// 500: a mistake of ours, or a store that a person has to put right. Details go to the log.
    pub fn internal() -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "this was not done; the server's log says why")
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        match error {
            StoreError::Unavailable { .. } => Problem::unavailable("the store does not answer now"),
            StoreError::Unknown { .. } => {
                Problem::unavailable("the store has not confirmed this in time; look before you repeat it")
            }
            StoreError::Cursor { .. } => Problem::bad_request("cursor", error.to_string()),
            StoreError::Unusable { .. } => {
                tracing::error!(%error, "a request could not be done");
                Problem::internal()
            }
        }
    }
}

impl From<BrokerError> for Problem {
    fn from(error: BrokerError) -> Problem {
        tracing::warn!(%error, "the broker was needed for a request");
        Problem::unavailable("the broker does not answer now")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let retry_after_s = self.retry_after_s;
        let mut response = (status, Json(self.0)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
