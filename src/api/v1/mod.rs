//! Version 1: what each route does.
//!
//! A handler reads the request, calls the desk, tells the audit what was changed, and answers with the desk's document.

mod dead_letters;
mod gates;
mod people;
mod policies;
mod queues;
mod replays;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::table::Route;
use super::{App, Principal, Problem, input};
use crate::desk::{Mask, Waker};
use crate::store::StoreError;
use crate::store::access::{AuditEntry, Role};
use crate::task::Task;

/// The whole table.
pub fn table() -> Vec<Route> {
    let mut table = vec![
        Route::get(("/v1/openapi.json", "getOpenApi", "This description"), Role::Viewer, openapi)
            .open()
            .answers::<serde_json::Value>(200, "OpenAPI 3.1"),
    ];
    table.extend(tasks::routes());
    table.extend(dead_letters::routes());
    table.extend(replays::routes());
    table.extend(gates::routes());
    table.extend(policies::routes());
    table.extend(queues::routes());
    table.extend(people::routes());
    table
}

async fn openapi() -> Json<serde_json::Value> {
    Json(super::openapi::document(&table()))
}

/// A reason, and whether only a look is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Reason")]
struct ReasonBody {
    /// Why, for those who come after.
    reason: Option<String>,
    /// Say what would be done and change nothing.
    dry_run: bool,
}

/// What became of one task.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Done {
    /// The task.
    id: String,
    /// Always true: what was not done is a problem.
    done: bool,
    /// In a few words.
    detail: String,
}

impl App {
    /// Who may see what of a payload.
    pub(crate) fn mask<'c>(&'c self, principal: &Principal) -> Mask<'c> {
        if principal.may(Role::Editor) { Mask::none() } else { Mask::of(&self.console.masked) }
    }

    async fn task(&self, id: &str) -> Result<Task, Problem> {
        let found = self.store.get(&[id.to_owned()]).await?.pop().flatten();
        found.ok_or_else(|| Problem::not_found(format!("there is no task {id:?}")))
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.store), self.broker.clone())
    }

    /// Sums up the history, one sum at a time. It goes on when whoever asked has gone away, because the store would go on all the same: only
    /// so is there never a second one.
    async fn sum<T: Send + 'static>(
        &self,
        sum: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = tokio::time::timeout(PATIENCE_FOR_SUMS, Arc::clone(&self.sums).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(Problem::unavailable(
                "the history is being summed up for somebody else; ask again, or for a shorter window",
            ));
        };
        let summed = tokio::spawn(async move {
            let found = sum.await;
            drop(turn);
            found
        });
        let found = summed.await.map_err(|error| {
            tracing::error!(%error, "summing up the history broke");
            Problem::internal()
        })?;
        Ok(found?)
    }

    /// Tells the audit. A change whose entry cannot be written is answered as a problem, so that somebody looks.
    pub(crate) async fn told(&self, entry: AuditEntry) -> Result<(), Problem> {
        let action = entry.action.clone();
        self.store.record(entry).await.map(drop).map_err(|error| {
            tracing::error!(%error, action, "a change was made and the audit could not be told");
            Problem::from(error)
        })
    }
}

/// How long a sum waits for its turn.
const PATIENCE_FOR_SUMS: Duration = Duration::from_secs(5);

type Api = State<Arc<App>>;
