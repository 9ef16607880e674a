//! Dead letters: look, run again, throw away. Many at once are replayed by a job.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;

use super::input::{self, Body, Id, MaybeBody, Paged};
use super::{Api, Done, Principal, Problem, ReasonBody, Route, tasks};
use crate::desk::filter::FilterText;
use crate::desk::task::{TaskDetail, TaskDocument};
use crate::desk::{Act, List, Skips, discard_chosen, to_json};
use crate::store::access::Role;
use crate::task::Status;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(("/v1/dead-letters", "listDeadLetters", "List dead letters, newest first"), Role::Viewer, list)
            .query::<FilterText>()
            .paged()
            .answers::<List<TaskDocument>>(200, "A page"),
        Route::get(("/v1/dead-letters/{id}", "getDeadLetter", "Everything about one dead letter"), Role::Viewer, show)
            .answers::<TaskDetail>(200, "The task, its result and its attempts")
            .problems(&[409]),
        Route::post(
            ("/v1/dead-letters/{id}/replay", "replayDeadLetter", "Run one dead letter again"),
            Role::Operator,
            replay,
        )
        .maybe_body::<ReasonBody>()
        .answers::<Done>(200, "It waits for its first attempt")
        .problems(&[409]),
        Route::post(
            ("/v1/dead-letters/{id}/discard", "discardDeadLetter", "Throw one dead letter away"),
            Role::Operator,
            discard,
        )
        .body::<DiscardOne>()
        .answers::<Done>(200, "It is discarded")
        .problems(&[409]),
        Route::post(
            ("/v1/discards", "discardDeadLetters", "Throw dead letters away, by filter"),
            Role::Operator,
            discards,
        )
        .body::<Discards>()
        .answers::<Skips>(200, "How many were, and why the others were not"),
    ]
}

async fn list(
    State(app): Api,
    principal: Principal,
    Paged { query, limit, cursor }: Paged<FilterText>,
) -> Result<Json<List<TaskDocument>>, Problem> {
    let filter = query.to_dead_filter(app.store.now()).map_err(input::bad_query)?;
    let page = app.store.list(&filter, cursor.as_deref(), limit).await?;
    let mask = app.mask(&principal);
    Ok(Json(List { items: page.items.iter().map(|task| TaskDocument::of(task, mask)).collect(), next: page.next }))
}

async fn show(State(app): Api, principal: Principal, Id(id): Id) -> Result<Json<TaskDetail>, Problem> {
    let detail = tasks::detail(&app, &principal, &id).await?;
    if detail.task.status != Status::Dead {
        let text = format!("task {id:?} is {}, not dead", detail.task.status);
        return Err(Problem::conflict(text, detail.task.status.as_str()));
    }
    Ok(Json(detail))
}

async fn replay(
    State(app): Api,
    principal: Principal,
    Id(id): Id,
    MaybeBody(body): MaybeBody<ReasonBody>,
) -> Result<Json<Done>, Problem> {
    tasks::one(&app, &principal, Act::Replay, "dlq.replay", &id, body).await
}

/// Why one is thrown away.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DiscardOne {
    /// Why, for those who come after.
    #[schemars(length(min = 1, max = 2000))]
    reason: String,
    /// Say what would be done and change nothing.
    #[serde(default)]
    dry_run: bool,
}

async fn discard(
    State(app): Api,
    principal: Principal,
    Id(id): Id,
    Body(body): Body<DiscardOne>,
) -> Result<Json<Done>, Problem> {
    let reason = input::needed_reason(Some(body.reason))?;
    let body = ReasonBody { reason: Some(reason), dry_run: body.dry_run };
    tasks::one(&app, &principal, Act::Discard, "dlq.discard", &id, body).await
}

/// Which are thrown away.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Discards {
    /// Which.
    #[serde(default)]
    filter: FilterText,
    /// Must be true where the filter restricts nothing: a forgotten filter must not mean everything.
    #[serde(default)]
    all: bool,
    /// At most so many, newest first.
    #[schemars(range(min = 1))]
    limit: Option<u32>,
    /// Why, for those who come after.
    #[schemars(length(min = 1, max = 2000))]
    reason: String,
    /// Say what would be done and change nothing.
    #[serde(default)]
    dry_run: bool,
}

async fn discards(State(app): Api, principal: Principal, Body(body): Body<Discards>) -> Result<Json<Skips>, Problem> {
    let reason = input::needed_reason(Some(body.reason))?;
    if body.filter.is_empty() && !body.all {
        return Err(Problem::invalid("filter", "expected a filter, or all = true"));
    }
    if body.limit == Some(0) {
        return Err(Problem::invalid("limit", "expected at least 1"));
    }
    let filter = body.filter.to_dead_filter(app.store.now()).map_err(input::bad_filter)?;
    let limit = body.limit.and_then(|limit| usize::try_from(limit).ok());
    let tally = discard_chosen(&*app.store, &filter, limit, &reason, body.dry_run).await?;
    if !body.dry_run {
        let mut entry = principal.entry("dlq.discard", to_json(&body.filter).to_string());
        (entry.reason, entry.count) = (Some(reason), i64::try_from(tally.discarded).ok());
        app.told(entry).await?;
    }
    Ok(Json(tally))
}
