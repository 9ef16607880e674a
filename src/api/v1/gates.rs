//! Breakers and limits.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;

use super::input::{self, Body};
use super::{Api, App, Principal, Problem, Route};
use crate::desk::List;
use crate::desk::gates::{BreakerDocument, LimitDocument, WordError, WordTaken, breakers, limits, say};
use crate::gate::BreakerKeyError;
use crate::store::access::Role;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            ("/v1/breakers", "listBreakers", "Breakers by key, those that stop something first"),
            Role::Viewer,
            list,
        )
        .answers::<List<BreakerDocument>>(200, "All that are known"),
        Route::post(("/v1/breakers/open", "openBreaker", "Start no more attempts of a key"), Role::Operator, open)
            .body::<WordBody>()
            .answers::<WordTaken>(200, "It is open until a person closes it")
            .problems(&[404, 409]),
        Route::post(("/v1/breakers/close", "closeBreaker", "Let attempts of a key start again"), Role::Operator, close)
            .body::<WordBody>()
            .answers::<WordTaken>(200, "What waits returns in growing groups")
            .problems(&[404, 409]),
        Route::get(
            ("/v1/limits", "listLimits", "Limits, concurrency caps and Retry-After holds by key"),
            Role::Viewer,
            of_limits,
        )
        .answers::<List<LimitDocument>>(200, "All that are known"),
    ]
}

async fn list(State(app): Api) -> Result<Json<List<BreakerDocument>>, Problem> {
    Ok(Json(List::whole(breakers(&*app.store, &app.config().gates).await?)))
}

async fn of_limits(State(app): Api) -> Result<Json<List<LimitDocument>>, Problem> {
    Ok(Json(List::whole(limits(&*app.store, &app.config().gates).await?)))
}

/// A person's word about a breaker.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WordBody {
    /// `breaker/NAME/word=value,…`; `breaker/` may be left out.
    key: String,
    /// Why, for those who come after.
    reason: Option<String>,
    /// Say what would be done and change nothing.
    #[serde(default)]
    dry_run: bool,
}

async fn open(State(app): Api, principal: Principal, Body(body): Body<WordBody>) -> Result<Json<WordTaken>, Problem> {
    word(&app, &principal, body, true).await
}

async fn close(State(app): Api, principal: Principal, Body(body): Body<WordBody>) -> Result<Json<WordTaken>, Problem> {
    word(&app, &principal, body, false).await
}

async fn word(app: &App, principal: &Principal, body: WordBody, open: bool) -> Result<Json<WordTaken>, Problem> {
    let reason = input::reason(body.reason)?;
    let config = app.config();
    let taken = say(&*app.store, &config.gates, &body.key, open, &principal.who, reason.clone(), body.dry_run).await;
    let taken = taken.map_err(|error| match &error {
        WordError::Key(BreakerKeyError::Unknown { .. }) | WordError::NeverOpen { .. } => {
            Problem::not_found(error.to_string())
        }
        WordError::Key(_) => Problem::invalid("key", error.to_string()),
        WordError::Closed { .. } => Problem::conflict(error.to_string(), "closed"),
        WordError::Refused { .. } => Problem::conflict(error.to_string(), "unprocessable"),
        WordError::Store(store) => store.clone().into(),
    })?;
    if !body.dry_run {
        let mut entry = principal.entry(if open { "breaker.open" } else { "breaker.close" }, &taken.key);
        (entry.reason, entry.count) = (reason, Some(taken.waiting));
        app.told(entry).await?;
    }
    Ok(Json(taken))
}
