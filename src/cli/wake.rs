//! The desk's waker, over the configured broker.

use std::ops::Deref;
use std::sync::Arc;

use redeliver::store::Store;

use super::context::Context;

/// Sends wake-ups, or leaves them to the alarms where there is no broker to reach (`embedded` lives inside the worker).
pub struct Waker(redeliver::desk::Waker);

impl Waker {
    /// Reaches the broker, so that an unreachable one is an error before anything is changed.
    ///
    /// # Errors
    /// When it is not reachable.
    pub async fn connect(context: &Context, store: Arc<dyn Store>) -> anyhow::Result<Waker> {
        let broker = if context.config().broker.is_embedded() { None } else { Some(context.broker().await?) };
        Ok(Waker(redeliver::desk::Waker::new(store, broker)))
    }
}

impl Deref for Waker {
    type Target = redeliver::desk::Waker;

    fn deref(&self) -> &redeliver::desk::Waker {
        &self.0
    }
}
