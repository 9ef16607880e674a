//! What a request says, read strictly: unknown fields are refused, and every mistake names its field.

use std::sync::Arc;

use axum::body::{Body as HttpBody, Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;

use super::{App, FieldError, Problem};
use crate::desk::filter::{FilterError, FilterText};

/// The most items of a page; each may hold a payload of up to `worker.max_body`.
pub const MOST_ITEMS: usize = 200;
/// The items of a page when nobody says.
pub const ITEMS: usize = 50;
/// The longest id or key in a path or a reason's first words; see `task::submission`.
const LONGEST_ID: usize = 200;
/// A body without a payload in it: names, reasons, filters with pages of ids, rules.
const LARGEST_BODY: usize = 4 << 20;
/// The longest reason.
const LONGEST_REASON: usize = 2_000;

/// The query of a request.
pub struct Params<T>(pub T);

/// The query of a request for a page.
pub struct Paged<T> {
    /// What is asked for.
    pub query: T,
    /// How many items.
    pub limit: usize,
    /// Where the page starts.
    pub cursor: Option<String>,
}

/// The query of a request that is about tasks and asks for something else too.
pub struct Filtered<T> {
    /// Which tasks.
    pub filter: FilterText,
    /// What else.
    pub query: T,
}

type Pairs = Vec<(String, String)>;

fn pairs(parts: &Parts) -> Result<Pairs, Problem> {
    let query = parts.uri.query().unwrap_or_default();
    serde_html_form::from_str(query).map_err(|error| Problem::bad_request("", format!("the query: {error}")))
}

fn read<T: DeserializeOwned>(pairs: &Pairs) -> Result<T, Problem> {
    let text = serde_html_form::to_string(pairs).map_err(|error| Problem::bad_request("", error.to_string()))?;
    serde_path_to_error::deserialize(serde_html_form::Deserializer::from_bytes(text.as_bytes())).map_err(|error| {
        let message = error.inner().to_string();
        let field = field_of(&error.path().to_string(), &message);
        // Which of several values it is helps nobody: they have no places in a query.
        let field = field.split('[').next().unwrap_or_default();
        Problem::bad_request(field, plain(&message))
    })
}

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Params(read(&pairs(parts)?)?))
    }
}

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Paged<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut pairs = pairs(parts)?;
        let limit = match one(&mut pairs, "limit")? {
            None => ITEMS,
            Some(text) => {
                let number = text.parse::<usize>().ok().filter(|number| (1..=MOST_ITEMS).contains(number));
                number
                    .ok_or_else(|| Problem::bad_request("limit", format!("expected a number from 1 to {MOST_ITEMS}")))?
            }
        };
        let cursor = one(&mut pairs, "cursor")?;
        // Cursors are places in a list. What is no place is refused here, not asked for there.
        if cursor.as_ref().is_some_and(|text| text.parse::<i64>().is_err()) {
            return Err(Problem::bad_request("cursor", "expected the `next` of an earlier page"));
        }
        Ok(Paged { query: read(&pairs)?, limit, cursor })
    }
}

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Filtered<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let (filter, rest): (Pairs, Pairs) =
            pairs(parts)?.into_iter().partition(|(name, _)| FilterText::FIELDS.contains(&name.as_str()));
        Ok(Filtered { filter: read(&filter)?, query: read(&rest)? })
    }
}

/// Takes the one value of that name out.
fn one(pairs: &mut Pairs, name: &str) -> Result<Option<String>, Problem> {
    let mut values = pairs.extract_if(.., |(known, _)| known == name).map(|(_, value)| value);
    let value = values.next();
    if values.next().is_some() {
        return Err(Problem::bad_request(name, "is there twice"));
    }
    Ok(value)
}

/// An id, a key or a name in the path.
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(id) = path.map_err(|_| Problem::bad_request("id", "expected text in UTF-8"))?;
        check_id(&id)?;
        Ok(Id(id))
    }
}

/// Whether that can be an id at all.
///
/// # Errors
/// 400 when it cannot.
pub fn check_id(id: &str) -> Result<(), Problem> {
    if id.is_empty() || id.len() > LONGEST_ID || id.contains('\0') {
        return Err(Problem::bad_request("id", format!("expected 1 to {LONGEST_ID} bytes without NUL")));
    }
    Ok(())
}

/// A JSON body.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self, Problem> {
        Ok(Body(json(&json_bytes(request, LARGEST_BODY).await?)?))
    }
}

/// A JSON body that may be left out.
pub struct MaybeBody<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<App>> for MaybeBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = bytes(body, LARGEST_BODY).await?;
        if bytes.is_empty() {
            return Ok(MaybeBody(T::default()));
        }
        is_json(&parts.headers)?;
        Ok(MaybeBody(json(&bytes)?))
    }
}

/// The bytes of a JSON body of at most `most`.
///
/// # Errors
/// 415 when it says that it is something else, 413 when it is longer.
pub async fn json_bytes(request: Request, most: usize) -> Result<Bytes, Problem> {
    let (parts, body) = request.into_parts();
    is_json(&parts.headers)?;
    bytes(body, most).await
}

fn is_json(headers: &HeaderMap) -> Result<(), Problem> {
    let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media == "application/json" { Ok(()) } else { Err(Problem::wrong_media_type("application/json")) }
}

async fn bytes(body: HttpBody, most: usize) -> Result<Bytes, Problem> {
    to_bytes(body, most).await.map_err(|error| {
        use std::error::Error as _;
        match error.source().is_some_and(|source| source.to_string().contains("length limit exceeded")) {
            true => Problem::too_large(most),
            false => Problem::bad_request("", "the body did not arrive whole"),
        }
    })
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let message = error.inner().to_string();
        if error.inner().is_data() {
            let field = field_of(&error.path().to_string(), &message);
            return Problem::invalid(&field, plain(&message));
        }
        Problem::bad_request("", format!("the body is no JSON: {message}"))
    })?;
    reader.end().map_err(|error| Problem::bad_request("", format!("the body is no JSON: {error}")))?;
    Ok(value)
}

/// The field that an error is about: an unknown one is not on the path that led to it.
fn field_of(path: &str, message: &str) -> String {
    let unknown = ["unknown field `", "missing field `", "duplicate field `"];
    let named = unknown.iter().find_map(|before| message.split_once(before)?.1.split_once('`'));
    match (path, named) {
        (".", Some((name, _))) => name.to_owned(),
        (path, Some((name, _))) if !path.ends_with(name) => format!("{path}.{name}"),
        (".", None) => String::new(),
        (path, _) => path.to_owned(),
    }
}

/// An error's text without the place in the body, which helps nobody who has not typed it.
fn plain(message: &str) -> &str {
    message.split(" at line ").next().unwrap_or(message)
}

/// A reason as it was given; blank is none.
///
/// # Errors
/// 422 when it is too long.
pub fn reason(text: Option<String>) -> Result<Option<String>, Problem> {
    let text = text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if text.as_ref().is_some_and(|text| text.chars().count() > LONGEST_REASON) {
        return Err(Problem::invalid("reason", format!("expected at most {LONGEST_REASON} characters")));
    }
    Ok(text)
}

/// The same where one is needed.
///
/// # Errors
/// 422 when there is none.
pub fn needed_reason(text: Option<String>) -> Result<String, Problem> {
    reason(text)?.ok_or_else(|| Problem::invalid("reason", "expected a few words, for those who come after"))
}

/// What is wrong with a filter in a query (400).
pub fn bad_query(errors: Vec<FilterError>) -> Problem {
    wrong(errors, "", Problem::bad_request)
}

/// What is wrong with a filter in a body (422).
pub fn bad_filter(errors: Vec<FilterError>) -> Problem {
    wrong(errors, "filter.", Problem::invalid)
}

fn wrong(errors: Vec<FilterError>, prefix: &str, make: impl Fn(&str, String) -> Problem) -> Problem {
    let named: Vec<FieldError> = errors
        .into_iter()
        .map(|error| FieldError { field: format!("{prefix}{}", error.field), message: error.message })
        .collect();
    let first = named.first().cloned().unwrap_or(FieldError { field: String::new(), message: String::new() });
    make(&first.field, first.message).with(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Sample {
        #[serde(default)]
        type_: Vec<u16>,
        inner: Option<Inner>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Inner {
        name: String,
    }

    #[test]
    fn mistakes_in_a_body_name_their_field() {
        for (body, status, field) in [
            (r#"{"type_": ["x"]}"#, 422, "type_[0]"),
            (r#"{"inner": {"nam": 1}}"#, 422, "inner.nam"),
            (r#"{"inner": {}}"#, 422, "inner.name"),
            (r#"{"other": 1}"#, 422, "other"),
            ("[]", 422, ""),
            ("{", 400, ""),
            ("{} {}", 400, ""),
            ("\u{0}", 400, ""),
        ] {
            let problem = json::<Sample>(body.as_bytes()).unwrap_err();
            assert_eq!(problem.status, status, "{body}: {problem:?}");
            assert_eq!(problem.errors[0].field, field, "{body}: {problem:?}");
        }
    }

    #[test]
    fn mistakes_in_a_query_name_their_field() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for (pairs, field) in [(vec![pair("type_", "x")], "type_"), (vec![pair("other", "1")], "other")] {
            let problem = read::<Sample>(&pairs).unwrap_err();
            assert_eq!(problem.status, 400);
            assert!(problem.errors[0].field.starts_with(field), "{problem:?}");
        }
    }
}
