//! Tells open pages that something has changed, at most once a second. What has changed they see by loading it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::watch;

use super::visit::Visit;
use crate::api::App;
use crate::store::Store;

/// The shortest time between two looks, and between two events of one page.
const EVERY: Duration = Duration::from_secs(1);
/// Also without a change that could be seen: times go on, and what this process itself commits moves no mark.
const AT_LEAST_EVERY: u32 = 3;
/// A comment now and then keeps proxies from closing a quiet connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A number that grows when open pages should load what they show again.
pub(crate) struct Changes(watch::Sender<u64>);

impl Default for Changes {
    fn default() -> Self {
        Changes(watch::Sender::new(0))
    }
}

impl Changes {
    /// Says that something has changed.
    pub(crate) fn tell(&self) {
        self.0.send_modify(|number| *number += 1);
    }

    /// Watches the store while any page is open, until the future is dropped.
    pub(super) async fn watch(&self, store: &dyn Store) {
        let (mut seen, mut quiet) = (None, 0);
        loop {
            tokio::time::sleep(EVERY).await;
            if self.0.receiver_count() == 0 {
                continue;
            }
            let now = store.outside_changes().await.ok();
            quiet += 1;
            if now != seen || quiet >= AT_LEAST_EVERY {
                (seen, quiet) = (now, 0);
                self.tell();
            }
        }
    }
}

/// `GET /events`
pub(super) async fn stream(State(app): State<Arc<App>>, visit: Visit) -> Response {
    let changes = visit.console.changes.0.subscribe();
    let stopping = app.stopping.clone();
    let events = stream::unfold((changes, stopping), async |(mut changes, stopping)| {
        tokio::select! {
            () = stopping.cancelled() => return None,
            changed = changes.changed() => changed.ok()?,
        }
        let number = *changes.borrow_and_update();
        let event = Event::default().event("changed").data(number.to_string()).retry(EVERY * 2);
        // What comes within the next moment is told together.
        tokio::select! {
            () = stopping.cancelled() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
        Some((Ok::<_, Infallible>(event), (changes, stopping)))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}
