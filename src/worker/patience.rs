//! Waiting for a store that did not answer.
//!
//! Whoever has something to commit asks again at growing intervals, and at once when the heartbeats have found the store again: other
//! workers leave leases alone only for a heartbeat interval after that. Never a queue: what waits here is held by its caller.

use std::time::Duration;

use crate::store::StoreError;

use super::Shared;

/// The first pause, and the longest.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// The pauses of one caller, from its first try on.
pub(super) struct Patience {
    pause: Duration,
    /// How often the store had come back when it was looked for last.
    returns: u64,
}

impl Patience {
    /// To be made before the first try, so that a store that comes back just after it is not overlooked.
    pub(super) fn new(shared: &Shared) -> Patience {
        Patience { pause: FIRST, returns: shared.pulse.returns() }
    }

    /// Whether to ask again; not when the worker ends.
    pub(super) async fn again(&mut self, shared: &Shared, error: &StoreError) -> bool {
        shared.store_is_down(error);
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST);
        tokio::select! {
            biased;
            () = shared.stop_all.cancelled() => false,
            () = shared.pulse.returned_since(&mut self.returns) => true,
            () = tokio::time::sleep(pause) => true,
        }
    }
}
