//! The console's routes. Handlers are thin: they read a query or a form, ask the store or give it commands, and hand what came of it
//! to a page.
//!
//! Nobody comes here unrecognised: the server's guard has looked at session, role and CSRF token before (`api::access`).

mod acts;
mod dead;
mod events;
mod files;
mod looks;
mod replays;
mod visit;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Path;
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::sync::Mutex;

use super::assets::Asset;
use super::page::Badges;
use super::pulse::Pulse;
use crate::api::{App, Pages, Problem};
use crate::broker::QueueDepth;
use crate::dead_letter::{Group, groups};
use crate::store::{Filter, LetterGroupBy, StoreError};

/// What the console remembers between requests; all of it can be lost.
#[derive(Default)]
pub(crate) struct Console {
    pulse: Pulse,
    badges: Mutex<Option<(Instant, Badges)>>,
    depths: Mutex<Depths>,
    groups: Mutex<Option<(Instant, Vec<Group>)>>,
    pub(crate) changes: events::Changes,
}

/// What the broker has said last.
struct Depths {
    asked: Option<Instant>,
    known: Result<Vec<QueueDepth>, String>,
}

impl Default for Depths {
    fn default() -> Self {
        Depths { asked: None, known: Ok(Vec::new()) }
    }
}

/// The console, for [`crate::api::Server`]. Starts what keeps its numbers fresh; that ends when the server stops.
pub fn pages(app: &Arc<App>) -> Pages {
    let console = Arc::new(Console::default());
    tokio::spawn(keep(Arc::clone(app), Arc::clone(&console)));
    let dress = |router: Router, app: &Arc<App>| router.layer(from_fn_with_state(Arc::clone(app), visit::dress));
    Pages { routes: routes(app, console), dress }
}

fn routes(app: &Arc<App>, console: Arc<Console>) -> Router<Arc<App>> {
    Router::new()
        .merge(looks::routes())
        .merge(acts::routes())
        .merge(dead::routes())
        .merge(replays::routes())
        .merge(files::routes())
        .route("/events", get(events::stream))
        .route("/set", get(visit::set))
        .route("/sign-in", get(looks::sign_in))
        .route("/favicon.ico", get(async || asset(&super::assets::ICON)))
        // Once more inside, where it is known who asks: the page of a problem keeps its navigation.
        .layer(from_fn_with_state(Arc::clone(app), visit::dress))
        .route("/assets/{hash}/{name}", get(assets))
        .layer(Extension(console))
}

async fn assets(Path((hash, name)): Path<(String, String)>) -> Response {
    Asset::find(&hash, &name).map_or_else(|| Problem::not_found("there is no such file").into_response(), asset)
}

/// Its address changes when it changes, so it may be kept for ever.
fn asset(asset: &'static Asset) -> Response {
    let headers =
        [(header::CONTENT_TYPE, asset.media_type), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
    (headers, asset.text).into_response()
}

async fn keep(app: Arc<App>, console: Arc<Console>) {
    tokio::select! {
        () = app.stopping.cancelled() => {}
        () = console.pulse.keep(&*app.store) => {}
        () = console.changes.watch(&*app.store) => {}
    }
}

/// How long numbers beside the navigation may be old.
const BADGES_OLD: Duration = Duration::from_secs(2);
/// How long the groups on the first page may be old, and how many there are.
const GROUPS_OLD: Duration = Duration::from_secs(5);
const FIRST_GROUPS: usize = 4;
/// How long what the broker has said may be old, and how long it may take to say it.
const DEPTHS_OLD: Duration = Duration::from_secs(4);
const DEPTHS_PATIENCE: Duration = Duration::from_secs(3);

impl Console {
    /// The numbers beside the navigation. Several requests at once ask the store once.
    async fn badges(&self, app: &App) -> Result<Badges, StoreError> {
        let mut known = self.badges.lock().await;
        if let Some((at, badges)) = *known
            && at.elapsed() < BADGES_OLD
        {
            return Ok(badges);
        }
        let badges = looks::badges(app).await?;
        *known = Some((Instant::now(), badges));
        Ok(badges)
    }

    /// The largest groups of dead letters, as they were a moment ago.
    async fn groups(&self, app: &App) -> Result<Vec<Group>, StoreError> {
        let mut known = self.groups.lock().await;
        if let Some((at, groups)) = &*known
            && at.elapsed() < GROUPS_OLD
        {
            return Ok(groups.clone());
        }
        let found = groups(&*app.store, &LetterGroupBy::Fingerprint, &Filter::default(), FIRST_GROUPS).await?;
        *known = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    /// The broker's queues, by full name, as they were when it last said so. It is asked behind the page's back: one that does not answer
    /// must not hold up the person who looks why.
    async fn depths(self: &Arc<Self>, app: &Arc<App>) -> Result<Vec<QueueDepth>, String> {
        let mut depths = self.depths.lock().await;
        if app.broker.is_some() && depths.asked.is_none_or(|asked| asked.elapsed() >= DEPTHS_OLD) {
            depths.asked = Some(Instant::now());
            tokio::spawn(ask_depths(Arc::clone(self), Arc::clone(app)));
        }
        depths.known.clone()
    }
}

async fn ask_depths(console: Arc<Console>, app: Arc<App>) {
    let Some(broker) = &app.broker else { return };
    let topology = app.config().topology();
    let known = match tokio::time::timeout(DEPTHS_PATIENCE, broker.depths(&topology)).await {
        Ok(Ok(known)) => Ok(known),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(String::new()),
    };
    let mut depths = console.depths.lock().await;
    let is_news = depths.known != known;
    depths.known = known;
    if is_news {
        console.changes.tell();
    }
}
