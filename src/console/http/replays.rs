//! Replay jobs: the list, one job, and a person's word on it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};

use super::acts::{Act, done, record};
use super::looks::{PAGE, Page, html};
use super::visit::Visit;
use crate::api::{App, Principal, Problem};
use crate::console::pages::replays::{self, JobView, JobsView};
use crate::store::access::Role;
use crate::store::{ItemOutcome, Steer, Steered};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/replays", get(jobs))
        .route("/replays/{id}", get(job))
        .route("/replays/{id}/{word}", post(steer))
}

/// A number of the query.
fn number(visit: &Visit, name: &str) -> Result<Option<i64>, Problem> {
    let read = |text: &str| text.parse().map_err(|_| Problem::bad_request(name, "expected a number"));
    visit.query.get(name).map(read).transpose()
}

async fn jobs(State(app): State<Arc<App>>, visit: Visit) -> Page {
    let mut jobs = app.store.replays(&[], number(&visit, "before")?, PAGE + 1).await?;
    let more = jobs.len() > PAGE;
    jobs.truncate(PAGE);
    let next = jobs.last().filter(|_| more).map(|job| job.id);
    html(replays::render_jobs(&JobsView { jobs, next }, &visit.ui))
}

async fn job(State(app): State<Arc<App>>, Path(id): Path<i64>, principal: Principal, visit: Visit) -> Page {
    let mut job = app.store.replay(id).await?.ok_or_else(|| Problem::not_found(visit.ui.lang.job_not_found()))?;
    // A patch may hold what is masked in payloads; the API hides it from the same people.
    if !principal.may(Role::Editor) && !app.console.masked.is_empty() {
        job.edit = None;
    }
    let outcome = match visit.query.get("outcome") {
        None => None,
        Some(word) => {
            let known = ItemOutcome::ALL.map(ItemOutcome::as_str).join(", ");
            let bad = || Problem::bad_request("outcome", format!("expected one of {known}"));
            Some(ItemOutcome::parse(word).ok_or_else(bad)?)
        }
    };
    let after = number(&visit, "after")?;
    let outcomes: Vec<ItemOutcome> = outcome.into_iter().collect();
    let mut items = app.store.replay_items(id, &outcomes, after.unwrap_or(0), PAGE + 1).await?;
    let more = items.len() > PAGE;
    items.truncate(PAGE);
    let next = items.last().filter(|_| more).map(|item| item.position);
    html(replays::render_job(&JobView { job, outcome, items, next, is_later: after.is_some() }, &visit.ui))
}

async fn steer(
    State(app): State<Arc<App>>,
    Path((id, word)): Path<(i64, String)>,
    principal: Principal,
    visit: Visit,
) -> Act {
    let (steer, told) = match word.as_str() {
        "pause" => (Steer::Pause, "paused"),
        "resume" => (Steer::Resume, "resumed"),
        "cancel" => (Steer::Cancel, "cancelled"),
        _ => return Err(Problem::not_found("there is nothing here")),
    };
    match app.store.steer_replay(id, steer, Some(&principal.who), None).await? {
        Steered::Done(job) => {
            record(&app, &principal, &format!("replay.{word}"), &id.to_string(), None, job.counts.waiting).await?
        }
        Steered::Conflict(job) => {
            let state = job.state.as_str();
            return Err(Problem::conflict(format!("the job is {state} now"), state));
        }
        Steered::Unknown => return Err(Problem::not_found(visit.ui.lang.job_not_found())),
    }
    visit.console.changes.tell();
    Ok(done(&format!("/replays/{id}"), told, 1))
}
