//! The claims this process holds, and the thread that keeps them alive.
//!
//! Heartbeats have a thread and a runtime of their own: a handler that blocks every worker thread must not cost the other tasks
//! their leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::store::{Store, Urgency};
use crate::task::{Answer, Command};

use super::pulse::Pulse;

/// Running attempts by task id.
#[derive(Debug, Default)]
pub struct Leases {
    running: Mutex<HashMap<String, Lease>>,
}

#[derive(Debug, Clone)]
struct Lease {
    fence: i64,
    cancel: CancellationToken,
}

impl Leases {
    /// Takes note of a claim. The token fires when the claim is lost.
    pub fn add(&self, id: &str, fence: i64, cancel: CancellationToken) {
        self.lock().insert(id.to_owned(), Lease { fence, cancel });
    }

    /// Forgets a claim that was settled, released or lost. A newer claim of the same task stays.
    pub fn remove(&self, id: &str, fence: i64) {
        let mut running = self.lock();
        if running.get(id).is_some_and(|lease| lease.fence == fence) {
            running.remove(id);
        }
    }

    /// Whether this process holds that claim.
    pub fn holds(&self, id: &str, fence: i64) -> bool {
        self.lock().get(id).is_some_and(|lease| lease.fence == fence)
    }

    /// How many claims are held.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn snapshot(&self) -> Vec<(String, Lease)> {
        self.lock().iter().map(|(id, lease)| (id.clone(), lease.clone())).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Lease>> {
        // A panic while holding the lock leaves a map that is still whole.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the heartbeat thread; it ends when `stop` fires.
///
/// # Errors
/// When the thread or its runtime cannot be made.
pub fn spawn_heartbeats(
    store: Arc<dyn Store>,
    leases: Arc<Leases>,
    pulse: Arc<Pulse>,
    every: Duration,
    stop: CancellationToken,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("redeliver-heartbeat".into()).spawn(move || {
        runtime.block_on(async move {
            // After a failed round the next one comes soon: the lease is running out.
            let retry_soon = (every / 10).max(Duration::from_millis(50));
            let mut pause = every;
            loop {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = pulse.beat_asked() => {}
                    () = stop.cancelled() => return,
                }
                pause = if beat(store.as_ref(), &leases, &pulse).await { every } else { retry_soon };
            }
        });
    })
}

/// One round. `false` when the store did not answer.
async fn beat(store: &dyn Store, leases: &Leases, pulse: &Pulse) -> bool {
    let held = leases.snapshot();
    if held.is_empty() {
        return true;
    }
    let commands =
        held.iter().map(|(id, lease)| Command::Heartbeat { id: id.clone(), fence: lease.fence }).collect::<Vec<_>>();
    match store.apply(Urgency::First, commands).await {
        Ok(answers) => {
            pulse.note_success();
            for ((id, lease), answer) in held.iter().zip(answers) {
                // A row that was settled meanwhile is refused too; then the claim is no longer held here either.
                if !matches!(answer, Answer::Done | Answer::Unprocessable { .. }) && leases.holds(id, lease.fence) {
                    tracing::warn!(task = id, fence = lease.fence, "lease lost; the attempt is cancelled");
                    lease.cancel.cancel();
                }
            }
            true
        }
        Err(error) => {
            tracing::warn!(%error, "heartbeat failed");
            false
        }
    }
}
