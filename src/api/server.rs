//! The server: one router over API, sign-in and console, and its start and stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::listener::Bounded;
use super::{App, Problem, access, headers, sign_in};

/// The most connections at a time: more than people and programs need, fewer than a process may have files open.
const MOST_CONNECTIONS: usize = 512;

/// The console, as the server needs it.
pub struct Pages {
    /// Its routes.
    pub routes: Router<Arc<App>>,
    /// Turns the problems that anybody answers a browser into pages.
    pub dress: fn(Router, &Arc<App>) -> Router,
}

/// Everything that is served.
pub fn router(app: Arc<App>, pages: Pages) -> Router {
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .merge(super::table::router(&app, super::v1::table()))
        .merge(sign_in::routes())
        .merge(pages.routes)
        .fallback(async || Problem::not_found("there is nothing here"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(from_fn_with_state(Arc::clone(&app), access::guard))
        .layer(from_fn_with_state(Arc::clone(&app), headers::check_host))
        .with_state(Arc::clone(&app));
    (pages.dress)(router, &app).layer(from_fn(headers::harden))
}

/// Ready is who can ask the store.
async fn readyz(State(app): State<Arc<App>>) -> Result<(StatusCode, &'static str), Problem> {
    app.store.pauses().await?;
    Ok((StatusCode::OK, "ok\n"))
}

/// A server that runs.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    running: JoinHandle<std::io::Result<()>>,
}

impl Server {
    /// Serves on `listener` until told to stop.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn start(listener: TcpListener, app: Arc<App>, pages: Pages) -> std::io::Result<Server> {
        let address = listener.local_addr()?;
        let service = router(Arc::clone(&app), pages).into_make_service_with_connect_info::<SocketAddr>();
        let stopping = app.stopping.clone();
        // Only behind a tap axum knows that an address is what another listener's connections come from.
        let listener = Bounded::new(listener, MOST_CONNECTIONS).tap_io(|_| {});
        let serving = axum::serve(listener, service).with_graceful_shutdown(async move { stopping.cancelled().await });
        let running = tokio::spawn(serving.into_future());
        Ok(Server { app, address, running })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a URL that a browser on this machine can open.
    pub fn url(&self) -> String {
        match self.address.ip().is_unspecified() {
            true => format!("http://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    /// Its application.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// A link that signs its first user in as `who`, an admin, if nobody has a token yet.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn first_link(&self) -> Result<Option<String>, crate::store::StoreError> {
        if access::has_tokens(&self.app).await? {
            return Ok(None);
        }
        self.link("first sign-in").await.map(Some)
    }

    /// A link that signs its first user in as `who`, an admin.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn link(&self, who: &str) -> Result<String, crate::store::StoreError> {
        let path = sign_in::make_link(&self.app, who, crate::store::access::Role::Admin).await?;
        Ok(format!("{}{path}", self.url()))
    }

    /// Takes no new requests and waits for those that run, but not longer than `patience`.
    pub async fn stop(self, patience: Duration) {
        self.app.stopping.cancel();
        let abort = self.running.abort_handle();
        match tokio::time::timeout(patience, self.running).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the server ended with an error"),
            Ok(Err(error)) => tracing::error!(%error, "the server broke"),
            Err(_) => {
                abort.abort();
                tracing::warn!("some requests did not end in time");
            }
        }
    }
}
