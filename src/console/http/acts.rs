//! `POST` of the forms: one command each, told to the audit, and back to a page that says what came of it.
//!
//! The server's guard has already asked for the operator's role and the session's CSRF token.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::Redirect;
use axum::routing::post;

use super::looks::find;
use super::visit::Visit;
use crate::api::{App, Principal, Problem};
use crate::broker::wake_up;
use crate::console::link;
use crate::console::query::Query;
use crate::gate::{PersonsWord, queue_pause, type_pause};
use crate::policy::TopicPattern;
use crate::store::access::AuditEntry;
use crate::store::{Pause, Urgency};
use crate::task::{Answer, Command};

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
    let entry = AuditEntry { reason, count: Some(count), ..principal.entry(action, target) };
    app.store.record(entry).await?;
    Ok(())
}

/// Gives one command.
pub(super) async fn apply(app: &App, command: Command) -> Result<Answer, Problem> {
    let answers = app.store.apply(Urgency::Normal, vec![command]).await?;
    answers.into_iter().next().ok_or_else(Problem::internal)
}

/// What an answer means that is not what was hoped for.
pub(super) fn moved_on(answer: &Answer) -> Problem {
    match answer {
        Answer::NotNow { status } => Problem::conflict(format!("the task is {status} now"), status.as_str()),
        Answer::Unknown => Problem::not_found("there is no such task"),
        Answer::NotReplayable { reason } => {
            Problem::conflict(format!("{reason} letters cannot run as they are"), reason.as_str())
        }
        _ => Problem::conflict("somebody else has changed it meanwhile; load the page again", "changed"),
    }
}

async fn run_now(State(app): State<Arc<App>>, Path(id): Path<String>, principal: Principal, visit: Visit) -> Act {
    match apply(&app, Command::RunNow { id: id.clone() }).await? {
        Answer::Publish(wake) => {
            record(&app, &principal, "task.retry", &id, None, 1).await?;
            // Its alarm does the same when there is no broker here, or the broker does not take it.
            if let Some(broker) = &app.broker {
                broker.publish(vec![wake_up(&wake)]).await;
            }
        }
        Answer::Done => record(&app, &principal, "task.retry", &id, None, 1).await?,
        other => return Err(moved_on(&other)),
    }
    visit.console.changes.tell();
    Ok(done(&link::task(&id), "run-now", 1))
}

async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    principal: Principal,
    visit: Visit,
    body: Bytes,
) -> Act {
    let reason = Form::read(&body)?.needed_reason()?;
    find(&app, &id, visit.ui.lang).await?;
    match apply(&app, Command::Cancel { id: id.clone(), note: Some(reason.clone()) }).await? {
        Answer::Done => {}
        other => return Err(moved_on(&other)),
    }
    record(&app, &principal, "task.cancel", &id, Some(reason), 1).await?;
    visit.console.changes.tell();
    Ok(done(&link::task(&id), "cancelled", 1))
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
    let config = app.config();
    let typed = form.get("key").unwrap_or_default();
    let (key, _) = config.gates.breaker_key(typed).map_err(|error| Problem::invalid("key", error.to_string()))?;
    let word = PersonsWord { open, by: principal.who.clone(), reason: Some(reason.clone()), at: app.store.now() };
    match apply(app, Command::Breaker { key: key.clone(), word }).await? {
        Answer::Done => {}
        other => return Err(moved_on(&other)),
    }
    record(app, principal, if open { "breaker.open" } else { "breaker.close" }, &key, Some(reason), 1).await?;
    Ok(if open { "opened" } else { "closed" })
}

async fn pause(app: &App, principal: &Principal, form: &Form) -> Result<&'static str, Problem> {
    let reason = form.needed_reason()?;
    let key = match (form.get("queue"), form.get("type")) {
        (Some(queue), None) if app.config().queue(queue).is_some() => queue_pause(queue),
        (Some(queue), None) => return Err(Problem::invalid("queue", format!("queue {queue:?} is not configured"))),
        (None, Some(pattern)) => {
            let pattern = TopicPattern::new(pattern).map_err(|error| Problem::invalid("type", error.to_string()))?;
            type_pause(&pattern)
        }
        _ => return Err(Problem::invalid("queue", "name a queue or a type, not both")),
    };
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
