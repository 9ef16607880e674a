//! Queues, pauses and workers.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;

use super::input::{self, Body};
use super::{Api, App, Principal, Problem, Route};
use crate::desk::List;
use crate::desk::queues::{Depths, PauseDocument, QueueDocument, depths, pause_key, queues};
use crate::desk::rules::{NodeDocument, nodes};
use crate::store::Pause;
use crate::store::access::Role;

/// How long the broker may take; what the store knows is worth an answer without it.
const BROKER_PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(("/v1/queues", "listQueues", "Lanes, delay queues, rejected and DLQ"), Role::Viewer, list)
            .answers::<List<QueueDocument>>(200, "What the broker does not say is null"),
        Route::get(("/v1/queues/pauses", "listPauses", "The pauses in force"), Role::Viewer, pauses)
            .answers::<List<PauseDocument>>(200, "All of them"),
        Route::post(
            ("/v1/queues/pause", "pauseQueue", "Start no more attempts of a queue or of task types"),
            Role::Operator,
            pause,
        )
        .body::<PauseBody>()
        .answers::<PauseDocument>(200, "It is paused until resumed"),
        Route::post(("/v1/queues/resume", "resumeQueue", "End a pause"), Role::Operator, resume)
            .body::<PauseBody>()
            .answers::<PauseDocument>(200, "The pause that has ended")
            .problems(&[404]),
        Route::get(
            ("/v1/workers", "listWorkers", "The workers that have said lately what they run"),
            Role::Viewer,
            workers,
        )
        .answers::<List<NodeDocument>>(200, "By name"),
    ]
}

async fn list(State(app): Api) -> Result<Json<List<QueueDocument>>, Problem> {
    let config = app.config();
    let known = ask(&app).await;
    Ok(Json(List::whole(queues(Some(&*app.store), known.as_ref(), &config).await?)))
}

/// The broker's depths; `None` when it does not say.
async fn ask(app: &App) -> Option<Depths> {
    let (broker, config) = (app.broker.as_ref()?, app.config());
    match tokio::time::timeout(BROKER_PATIENCE, depths(&**broker, &config)).await {
        Ok(Ok(depths)) => Some(depths),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the broker does not say how deep its queues are");
            None
        }
        Err(_) => None,
    }
}

async fn pauses(State(app): Api) -> Result<Json<List<PauseDocument>>, Problem> {
    Ok(Json(List::whole(app.store.pauses().await?.iter().map(PauseDocument::of).collect())))
}

/// A queue or types: one of the two.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    /// The `[[queue]]`.
    queue: Option<String>,
    /// Task types instead: an AMQP topic pattern.
    #[serde(rename = "type")]
    task_type: Option<String>,
    /// Why, for those who come after.
    reason: Option<String>,
    /// Say what would be done and change nothing.
    #[serde(default)]
    dry_run: bool,
}

impl PauseBody {
    fn key(&self, app: &App) -> Result<String, Problem> {
        let field = if self.task_type.is_some() { "type" } else { "queue" };
        let key = pause_key(&app.config(), self.queue.as_deref(), self.task_type.as_deref());
        key.map_err(|message| Problem::invalid(field, message))
    }
}

async fn pause(
    State(app): Api,
    principal: Principal,
    Body(body): Body<PauseBody>,
) -> Result<Json<PauseDocument>, Problem> {
    let key = body.key(&app)?;
    let reason = input::reason(body.reason)?;
    let pause = Pause { key, since: app.store.now(), reason };
    if !body.dry_run {
        app.store.pause(pause.clone()).await?;
        let mut entry = principal.entry("queue.pause", &pause.key);
        entry.reason.clone_from(&pause.reason);
        app.told(entry).await?;
    }
    Ok(Json(PauseDocument::of(&pause)))
}

async fn resume(
    State(app): Api,
    principal: Principal,
    Body(body): Body<PauseBody>,
) -> Result<Json<PauseDocument>, Problem> {
    let key = body.key(&app)?;
    let reason = input::reason(body.reason)?;
    let none = || Problem::not_found(format!("there is no {key}"));
    let pause = app.store.pauses().await?.into_iter().find(|pause| pause.key == key).ok_or_else(none)?;
    if !body.dry_run {
        if !app.store.resume(&key).await? {
            return Err(none());
        }
        let mut entry = principal.entry("queue.resume", &key);
        entry.reason = reason;
        app.told(entry).await?;
    }
    Ok(Json(PauseDocument::of(&pause)))
}

async fn workers(State(app): Api) -> Result<Json<List<NodeDocument>>, Problem> {
    Ok(Json(List::whole(nodes(&*app.store).await?)))
}
