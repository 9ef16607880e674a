//! Tasks: submit, look, cancel, run now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::input::{self, Id, MaybeBody, Paged, Params};
use super::{Api, App, Done, Principal, Problem, ReasonBody, Route};
use crate::broker::{TRACEPARENT_HEADER, TRACESTATE_HEADER};
use crate::config::parse_duration;
use crate::desk::filter::FilterText;
use crate::desk::submit::{Submission, complete, submit, until_ended};
use crate::desk::task::{AttemptDocument, ResultDocument, TaskDetail, TaskDocument};
use crate::desk::{Act, Fate, List, act};
use crate::producer::ProduceError;
use crate::store::access::Role;
use crate::task::{AttachmentBody, Envelope, Status, SubmissionError, TaskResult, TraceContext};

/// The longest wait for a task's end; a client asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Pictures that a browser shows and that cannot run anything. Everything else is for saving only.
const PICTURES: [&str; 5] = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(("/v1/tasks", "listTasks", "List tasks, newest first"), Role::Viewer, list)
            .query::<FilterText>()
            .paged()
            .answers::<List<TaskDocument>>(200, "A page"),
        Route::post(
            ("/v1/tasks", "submitTask", "Submit a task, and perhaps wait for its end"),
            Role::Operator,
            submit_task,
        )
        .query::<WaitQuery>()
        .header(
            "Idempotency-Key",
            "Submitting the same key again is the same task; like `idempotency_key` in the body.",
        )
        .body::<Envelope>()
        .answers::<Submission>(201, "A new task, committed")
        .answers::<Submission>(200, "It was there already, or has ended while waiting")
        .problems(&[409]),
        Route::get(("/v1/counts", "countTasks", "How many tasks match, by status"), Role::Viewer, count)
            .query::<FilterText>()
            .answers::<Counts>(200, "By status; one that no task has is left out"),
        Route::get(("/v1/tasks/{id}", "getTask", "Everything about one task"), Role::Viewer, show)
            .query::<WaitQuery>()
            .answers::<TaskDetail>(200, "The task, its result and its attempts"),
        Route::get(
            ("/v1/tasks/{id}/attempts", "listAttempts", "The attempts of a task, oldest first"),
            Role::Viewer,
            attempts,
        )
        .answers::<List<AttemptDocument>>(200, "All of them"),
        Route::get(
            (
                "/v1/tasks/{id}/attempts/{generation}/{number}/attachments/{position}",
                "getAttachment",
                "The bytes of an attachment",
            ),
            Role::Viewer,
            attachment,
        )
        .bytes(
            200,
            "A picture as such, everything else as bytes to save",
            &["application/octet-stream", "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"],
        ),
        Route::get(("/v1/tasks/{id}/result", "getResult", "The handler's response"), Role::Viewer, result)
            .answers::<ResultDocument>(200, "As stored"),
        Route::post(("/v1/tasks/{id}/cancel", "cancelTask", "Stop a waiting task for good"), Role::Operator, cancel)
            .maybe_body::<ReasonBody>()
            .answers::<Done>(200, "It is cancelled")
            .problems(&[409]),
        Route::post(("/v1/tasks/{id}/retry", "retryTask", "Run a waiting task now"), Role::Operator, retry)
            .maybe_body::<ReasonBody>()
            .answers::<Done>(200, "It runs at the next free place")
            .problems(&[409]),
    ]
}

async fn list(
    State(app): Api,
    principal: Principal,
    Paged { query, limit, cursor }: Paged<FilterText>,
) -> Result<Json<List<TaskDocument>>, Problem> {
    let filter = query.to_filter(app.store.now()).map_err(input::bad_query)?;
    let page = app.store.list(&filter, cursor.as_deref(), limit).await?;
    let mask = app.mask(&principal);
    Ok(Json(List { items: page.items.iter().map(|task| TaskDocument::of(task, mask)).collect(), next: page.next }))
}

/// How many tasks there are, by status.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Counts {
    /// A status that no task has is left out.
    counts: BTreeMap<Status, i64>,
}

async fn count(State(app): Api, Params(query): Params<FilterText>) -> Result<Json<Counts>, Problem> {
    let filter = query.to_filter(app.store.now()).map_err(input::bad_query)?;
    Ok(Json(Counts { counts: app.store.count(&filter).await? }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WaitQuery {
    /// How long to wait for the task's end, at most a minute: `30s`.
    #[schemars(regex(pattern = r"^[1-9][0-9]{0,3}(ms|s)$"))]
    wait: Option<String>,
}

impl WaitQuery {
    fn length(&self) -> Result<Option<Duration>, Problem> {
        let Some(text) = &self.wait else { return Ok(None) };
        let length = parse_duration(text).map_err(|message| Problem::bad_request("wait", message))?;
        Ok(Some(length.min(LONGEST_WAIT)))
    }
}

/// Ready when the wait is over or the server stops.
async fn enough(app: &App, length: Duration) {
    tokio::select! {
        () = tokio::time::sleep(length) => {}
        () = app.stopping.cancelled() => {}
    }
}

async fn submit_task(
    State(app): Api,
    principal: Principal,
    Params(query): Params<WaitQuery>,
    headers: HeaderMap,
    request: Request,
) -> Result<(StatusCode, Json<Submission>), Problem> {
    let wait = query.length()?;
    let config = app.config();
    let body = input::json_bytes(request, config.worker.max_body).await?;
    let mut envelope = Envelope::read(&body).map_err(refused)?;
    if let Some(key) = idempotency_key(&headers)? {
        if envelope.idempotency_key.as_ref().is_some_and(|in_body| *in_body != key) {
            return Err(Problem::bad_request("Idempotency-Key", "differs from idempotency_key in the body"));
        }
        envelope.idempotency_key = Some(key);
        envelope.check().map_err(refused)?;
    }
    if envelope.task_type.is_none() {
        return Err(Problem::invalid("type", "expected a task type such as order.ship"));
    }
    envelope.trace = trace(&headers);
    complete(&mut envelope);
    let accepted = submit(Arc::clone(&app.store), app.broker.clone(), config, envelope).await.map_err(not_accepted)?;
    let is_new = accepted.already.is_none();
    if is_new {
        app.told(principal.entry("task.submit", &accepted.id)).await?;
    }
    let already_done = accepted.already.is_some_and(Status::is_ended);
    let task = match wait {
        Some(length) => until_ended(&*app.store, &accepted.id, enough(&app, length)).await?,
        None => app.store.get(std::slice::from_ref(&accepted.id)).await?.pop().flatten(),
    };
    let state = task.as_ref().map(|task| &task.state);
    let status = state.map(|state| state.status);
    let result = match status {
        Some(status) if status.is_ended() => app.store.result(&accepted.id).await?,
        _ => None,
    };
    let submission = Submission {
        accepted: true,
        already_done,
        status,
        dead_reason: state.and_then(|state| state.dead_reason),
        degraded: state.and_then(|state| state.degraded.clone()),
        result: result.as_ref().map(ResultDocument::of),
        id: accepted.id,
    };
    let ended = wait.is_some() && status.is_some_and(Status::is_ended);
    Ok((if is_new && !ended { StatusCode::CREATED } else { StatusCode::OK }, Json(submission)))
}

/// The span of whoever submits; a header that is none is as good as not there.
fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    TraceContext::read(text(TRACEPARENT_HEADER)?, text(TRACESTATE_HEADER))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wrong = |message: &str| Problem::bad_request("Idempotency-Key", message);
    if values.next().is_some() {
        return Err(wrong("is there twice"));
    }
    let key = std::str::from_utf8(value.as_bytes()).map_err(|_| wrong("expected UTF-8"))?;
    // The draft of that header writes keys in quotes; most clients do not.
    let key = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key);
    if key.is_empty() || key.len() > 200 || key.chars().any(char::is_control) {
        return Err(wrong("expected 1 to 200 bytes without control characters"));
    }
    Ok(Some(key.to_owned()))
}

fn refused(error: SubmissionError) -> Problem {
    match &error {
        SubmissionError::TooLong { max, .. } => Problem::too_large(*max),
        SubmissionError::Field { field, problem } => Problem::invalid(field, problem),
        SubmissionError::UnknownField { name } => Problem::invalid(name, "is no field of a submission"),
        SubmissionError::DoubledField { name } => Problem::invalid(name, "is there twice"),
        SubmissionError::Empty | SubmissionError::NotUtf8 { .. } | SubmissionError::NotJson { .. } => {
            Problem::bad_request("", error.to_string())
        }
    }
}

fn not_accepted(error: ProduceError) -> Problem {
    match error {
        ProduceError::Invalid(error) => refused(error),
        ProduceError::Conflict { .. } => Problem::conflict(error.to_string(), "duplicate_conflict"),
        ProduceError::Store(error) => error.into(),
        ProduceError::Unconfirmed { reason, .. } => Problem::invalid("", reason),
        ProduceError::Unroutable { .. } => Problem::unavailable(error.to_string()),
    }
}

async fn show(
    State(app): Api,
    principal: Principal,
    Id(id): Id,
    Params(query): Params<WaitQuery>,
) -> Result<Json<TaskDetail>, Problem> {
    if let Some(length) = query.length()? {
        until_ended(&*app.store, &id, enough(&app, length)).await?;
    }
    detail(&app, &principal, &id).await.map(Json)
}

pub(super) async fn detail(app: &App, principal: &Principal, id: &str) -> Result<TaskDetail, Problem> {
    let task = app.task(id).await?;
    let attempts = app.store.attempts(id).await?;
    let result = app.store.result(id).await?;
    Ok(TaskDetail::of(&task, &attempts, result.as_ref(), app.mask(principal)))
}

async fn attempts(State(app): Api, Id(id): Id) -> Result<Json<List<AttemptDocument>>, Problem> {
    app.task(&id).await?;
    let attempts = app.store.attempts(&id).await?;
    Ok(Json(List::whole(attempts.iter().map(AttemptDocument::of).collect())))
}

/// Where an attachment is.
#[derive(Debug, Deserialize)]
struct Place {
    id: String,
    generation: String,
    number: String,
    position: String,
}

async fn attachment(
    State(app): Api,
    place: Result<Path<Place>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let Path(place) = place.map_err(|_| Problem::bad_request("id", "expected text in UTF-8"))?;
    input::check_id(&place.id)?;
    let number = |field: &str, text: &str| {
        let number = text.parse::<u32>().map(i64::from);
        number.map_err(|_| Problem::bad_request(field, "expected a whole number"))
    };
    let generation = number("generation", &place.generation)?;
    let of_attempt = number("number", &place.number)?;
    let position = usize::try_from(number("position", &place.position)?).unwrap_or(usize::MAX);
    let attempts = app.store.attempts(&place.id).await?;
    let of_it = attempts.iter().filter(|attempt| attempt.generation == generation && attempt.number == of_attempt);
    let found = of_it.filter_map(|attempt| attempt.attachments.get(position)).next();
    let Some((found, bytes)) = found.and_then(|found| match &found.body {
        AttachmentBody::Bytes(bytes) => Some((found, bytes.clone())),
        AttachmentBody::Link(_) | AttachmentBody::TooLarge { .. } => None,
    }) else {
        return Err(Problem::not_found("there is no such attachment here"));
    };
    let media = PICTURES.into_iter().find(|picture| found.media_type.eq_ignore_ascii_case(picture));
    let mut response = axum::body::Bytes::copy_from_slice(&bytes).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media.unwrap_or("application/octet-stream")));
    // It came from a handler: whatever it is, nothing of it may run as a page of ours.
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    Ok(response)
}

async fn result(State(app): Api, Id(id): Id) -> Result<Json<ResultDocument>, Problem> {
    app.task(&id).await?;
    let result: Option<TaskResult> = app.store.result(&id).await?;
    let result = result.ok_or_else(|| Problem::not_found(format!("task {id:?} has no result")))?;
    Ok(Json(ResultDocument::of(&result)))
}

async fn cancel(
    State(app): Api,
    principal: Principal,
    Id(id): Id,
    MaybeBody(body): MaybeBody<ReasonBody>,
) -> Result<Json<Done>, Problem> {
    one(&app, &principal, Act::Cancel, "task.cancel", &id, body).await
}

async fn retry(
    State(app): Api,
    principal: Principal,
    Id(id): Id,
    MaybeBody(body): MaybeBody<ReasonBody>,
) -> Result<Json<Done>, Problem> {
    one(&app, &principal, Act::RunNow, "task.retry", &id, body).await
}

/// Does something to one task.
pub(super) async fn one(
    app: &App,
    principal: &Principal,
    what: Act,
    action: &str,
    id: &str,
    body: ReasonBody,
) -> Result<Json<Done>, Problem> {
    let reason = input::reason(body.reason)?;
    let note = reason.as_deref();
    let fates = act(&*app.store, &app.waker(), what, &[id.to_owned()], note, body.dry_run).await?;
    let Some(fate) = fates.into_iter().next() else { return Err(Problem::internal()) };
    match fate.fate {
        Fate::Done => {
            if !body.dry_run {
                let mut entry = principal.entry(action, id);
                (entry.reason, entry.count) = (reason, Some(1));
                app.told(entry).await?;
            }
            Ok(Json(Done { id: fate.id, done: true, detail: fate.text }))
        }
        Fate::NotFound => Err(Problem::not_found(format!("there is no task {id:?}"))),
        Fate::Conflict => {
            let state = fate.status.map_or_else(|| "changed".to_owned(), |status| status.to_string());
            Err(Problem::conflict(fate.text, state))
        }
        Fate::Failed => {
            tracing::error!(id, error = fate.text, "a row cannot be processed");
            Err(Problem::conflict(fate.text, "unprocessable"))
        }
    }
}
