//! Hears what other programs tell: that they have put in rows past the commands. Never looks for those rows itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::Notify;

use super::open::Server;

/// How long to wait before listening again after the connection was lost.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Rows that other programs have put in: how often that was told, and who waits to hear of it.
#[derive(Default)]
pub(super) struct Calls {
    pub(super) number: AtomicI64,
    pub(super) told: Notify,
}

impl Calls {
    fn tell(&self) {
        self.number.fetch_add(1, Ordering::SeqCst);
        self.told.notify_one();
    }
}

/// Hears of rows that other programs have put in. Without a connection nobody hears; then the schedulers' own looks have to do.
pub(super) async fn listen(server: Server, calls: Arc<Calls>) {
    let pool =
        PgPoolOptions::new().max_connections(1).acquire_timeout(server.timeout).connect_lazy_with(server.connect);
    loop {
        if let Err(error) = hear(&pool, &calls).await {
            tracing::debug!(%error, "not told of new rows any more; listening again");
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

async fn hear(pool: &sqlx::PgPool, calls: &Calls) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    let schema: String = sqlx::query_scalar("SELECT current_schema()::text").fetch_one(&mut listener).await?;
    // As long as a name may be in PostgreSQL; the trigger cuts it the same way.
    let channel: String = format!("redeliver.{schema}").chars().take(63).collect();
    listener.listen(&channel).await?;
    // What was put in before somebody listened is looked for now.
    calls.tell();
    while listener.try_recv().await?.is_some() {
        calls.tell();
    }
    Ok(())
}
