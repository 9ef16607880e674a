//! `POST` of the forms: one command each, told to the audit, and back to a page that says what came of it.
//!
//! The server's guard has already asked for the operator's role and the session's CSRF token.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::Redirect;
use axum::routing::post;

use super::visit::Visit;
use crate::api::{App, Principal, Problem};
use crate::console::link;
use crate::console::query::Query;
use crate::desk::gates::{WordError, say};
use crate::desk::queues::pause_key;
use crate::desk::{Act as TaskAct, Fate, act};
use crate::store::Pause;
use crate::store::access::AuditEntry;
use crate::task::Status;

pub(super) type Act = Result<Redirect, Problem>;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/tasks/{id}/run-now", post(run_now))
        .route("/tasks/{id}/cancel", post(cancel))
        .route("/gates/{word}", post(gate))
}

/// What a form says.
pub(super) struct Form(Query);

impl Form {
    pub(super) fn read(body: &Bytes) -> Result<Form, Problem> {
        let pairs: Vec<(String, String)> =
            serde_html_form::from_bytes(body).map_err(|error| Problem::bad_request("", error.to_string()))?;
        Ok(Form(Query::new(pairs)))
    }

    pub(super) fn query(&self) -> &Query {
        &self.0
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(str::trim)
    }

    /// The reason that was given.
    pub(super) fn reason(&self) -> Option<String> {
        self.get("reason").map(|reason| reason.chars().take(500).collect())
    }

    /// The reason, where none is not taken.
    pub(super) fn needed_reason(&self) -> Result<String, Problem> {
        self.reason().ok_or_else(|| Problem::invalid("reason", "say why; it is kept with what you do"))
    }
}

/// Goes to a page that says what was done.
pub(super) fn done(page: &str, word: &str, n: i64) -> Redirect {
    let joint = if page.contains('?') { '&' } else { '?' };
    Redirect::to(&format!("{page}{joint}{}", link::query([("done", word), ("n", &n.to_string())])))
}

/// Tells the audit.
pub(super) async fn record(
    app: &App,
    principal: &Principal,
    action: &str,
    target: &str,
    reason: Option<String>,
    count: i64,
) -> Result<(), Problem> {
    app.told(AuditEntry { reason, count: Some(count), ..principal.entry(action, target) }).await
}

/// Does it to one task, tells the audit, and goes back to the task.
pub(super) async fn one(
    app: &App,
    principal: &Principal,
    visit: &Visit,
    (what, action, told): (TaskAct, &str, &str),
    id: &str,
    reason: Option<String>,
) -> Act {
    let fates = act(&*app.store, &app.waker(), what, &[id.to_owned()], reason.as_deref(), false).await?;
    let fate = fates.into_iter().next().ok_or_else(Problem::internal)?;
    match fate.fate {
        Fate::Done => {}
        Fate::NotFound => return Err(Problem::not_found(visit.ui.lang.task_not_found())),
        Fate::Conflict | Fate::Failed => {
            let state = fate.status.map_or("changed", Status::as_str);
            return Err(Problem::conflict(fate.text, state));
        }
    }
    record(app, principal, action, id, reason, 1).await?;
    visit.console.changes.tell();
    Ok(done(&link::task(id), told, 1))
}

async fn run_now(State(app): State<Arc<App>>, Path(id): Path<String>, principal: Principal, visit: Visit) -> Act {
    one(&app, &principal, &visit, (TaskAct::RunNow, "task.retry", "run-now"), &id, None).await
}

async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    principal: Principal,
    visit: Visit,
    body: Bytes,
) -> Act {
    let reason = Form::read(&body)?.needed_reason()?;
    one(&app, &principal, &visit, (TaskAct::Cancel, "task.cancel", "cancelled"), &id, Some(reason)).await
}

async fn gate(
    State(app): State<Arc<App>>,
    Path(word): Path<String>,
    principal: Principal,
    visit: Visit,
    body: Bytes,
) -> Act {
    let form = Form::read(&body)?;
    let told = match word.as_str() {
        "open" | "close" => breaker(&app, &principal, &form, word == "open").await?,
        "pause" => pause(&app, &principal, &form).await?,
        "resume" => resume(&app, &principal, &form).await?,
        _ => return Err(Problem::not_found("there is nothing here")),
    };
    visit.console.changes.tell();
    Ok(done("/gates", told, 1))
}

async fn breaker(app: &App, principal: &Principal, form: &Form, open: bool) -> Result<&'static str, Problem> {
    let reason = form.needed_reason()?;
    let typed = form.get("key").unwrap_or_default();
    let config = app.config();
    let taken = say(&*app.store, &config.gates, typed, open, &principal.who, Some(reason.clone()), false).await;
    let taken = taken.map_err(|error| match error {
        WordError::Key(_) => Problem::invalid("key", error.to_string()),
        WordError::NeverOpen { .. } => Problem::not_found(error.to_string()),
        WordError::Closed { .. } => Problem::conflict(error.to_string(), "closed"),
        WordError::Refused { .. } => Problem::conflict(error.to_string(), "unprocessable"),
        WordError::Store(store) => store.into(),
    })?;
    let action = if open { "breaker.open" } else { "breaker.close" };
    record(app, principal, action, &taken.key, Some(reason), taken.waiting).await?;
    Ok(if open { "opened" } else { "closed" })
}

async fn pause(app: &App, principal: &Principal, form: &Form) -> Result<&'static str, Problem> {
    let reason = form.needed_reason()?;
    let key =
        pause_key(&app.config(), form.get("queue"), form.get("type")).map_err(|why| Problem::invalid("queue", why))?;
    app.store.pause(Pause { key: key.clone(), since: app.store.now(), reason: Some(reason.clone()) }).await?;
    record(app, principal, "queue.pause", &key, Some(reason), 1).await?;
    Ok("paused")
}

async fn resume(app: &App, principal: &Principal, form: &Form) -> Result<&'static str, Problem> {
    let key = form.get("key").unwrap_or_default();
    if !app.store.resume(key).await? {
        return Err(Problem::not_found(format!("there is no {key}")));
    }
    record(app, principal, "queue.resume", key, None, 1).await?;
    Ok("resumed")
}
