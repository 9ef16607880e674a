//! The claims this process holds, and the thread that keeps them alive.
//!
//! Heartbeats have a thread and a runtime of their own: a handler that blocks every worker thread must not cost the other tasks
//! their leases.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::{Store, Urgency};
use crate::task::{Answer, Command, DEFAULT_QUEUE, Lane, LaneKey};
use crate::telemetry::Organ;

use super::pulse::Pulse;

/// Ticks from one heartbeat to the next. In between, and while nothing is held, the store is only asked whether it takes a commit:
/// a process that has nothing to write must know of a lock as well as those whose heartbeats wait for it.
const TICKS: u32 = 2;

/// Running attempts by task id.
#[derive(Debug, Default)]
pub struct Leases {
    running: Mutex<BTreeMap<String, Lease>>,
    doubts: AtomicUsize,
}

/// A commit of this process may have been made although its answer was lost, and what it claimed is not among the leases yet. Over
/// when dropped.
#[derive(Debug)]
pub struct Doubt(Arc<Leases>);

impl Drop for Doubt {
    fn drop(&mut self) {
        self.0.doubts.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone)]
struct Lease {
    fence: i64,
    cancel: CancellationToken,
}

impl Leases {
    /// Takes note of a claim; the token fires when it is lost. `None` when this process carries that very claim already: after a
    /// commit that did not answer, two copies of a message may both find it.
    pub fn add(&self, id: &str, fence: i64) -> Option<CancellationToken> {
        let mut running = self.lock();
        if running.get(id).is_some_and(|lease| lease.fence == fence) {
            return None;
        }
        let cancel = CancellationToken::new();
        running.insert(id.to_owned(), Lease { fence, cancel: cancel.clone() });
        Some(cancel)
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

    /// From now on a row may be this process's without being among these.
    pub fn doubt(self: &Arc<Self>) -> Doubt {
        self.doubts.fetch_add(1, Ordering::SeqCst);
        Doubt(Arc::clone(self))
    }

    /// Whether a row may be this process's without being among these.
    pub fn in_doubt(&self) -> bool {
        self.doubts.load(Ordering::SeqCst) > 0
    }

    /// Whether nothing is held and no answer is waited for: a claim that was settled without an answer may have been followed by a newer
    /// one of the same task, which is settled before the first is known of.
    pub fn at_rest(&self) -> bool {
        self.len() == 0 && !self.in_doubt()
    }

    /// How many claims are held.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn snapshot(&self) -> Vec<(String, Lease)> {
        self.lock().iter().map(|(id, lease)| (id.clone(), lease.clone())).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Lease>> {
        // A panic while holding the lock leaves a map that is still whole.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a process's claims alive until `stop` fires.
pub struct Heart {
    pub store: Arc<dyn Store>,
    pub leases: Arc<Leases>,
    pub pulse: Arc<Pulse>,
    /// From one heartbeat to the next.
    pub every: Duration,
    pub stop: CancellationToken,
}

impl Heart {
    /// Runs it on a thread of its own.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be made.
    pub fn spawn_thread(self) -> std::io::Result<std::thread::JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("redeliver-heartbeat".into()).spawn(move || runtime.block_on(self.run()))
    }

    /// Runs it where it is awaited.
    pub async fn run(self) {
        let Heart { store, leases, pulse, every, stop } = self;
        let tick = every / TICKS;
        // After a failed round the next one comes soon: the lease is running out.
        let retry_soon = (every / 10).max(Duration::from_millis(50));
        let (mut pause, mut ticks, mut behind, mut away) = (tick, 0_u32, false, false);
        loop {
            let asked = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = pulse.beat_asked() => true,
                () = tokio::time::sleep(pause) => false,
            };
            pulse.vitals.note(Organ::Heartbeat);
            ticks = ticks.wrapping_add(1);
            let renew = asked || behind || ticks.is_multiple_of(TICKS);
            let began = Instant::now();
            let well =
                if renew { beat(store.as_ref(), &leases, &pulse).await } else { look(store.as_ref(), &pulse).await };
            if well && away {
                pulse.note_return();
            }
            away = !well;
            // A look that took long has met a lock, and leases ran on meanwhile.
            behind = !well || (!renew && began.elapsed() > tick);
            pause = match (well, behind) {
                (false, _) => retry_soon,
                (true, true) => Duration::ZERO,
                (true, false) => tick,
            };
        }
    }
}

/// One round. `false` when the store did not answer.
async fn beat(store: &dyn Store, leases: &Leases, pulse: &Pulse) -> bool {
    let held = leases.snapshot();
    if held.is_empty() {
        return look(store, pulse).await;
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

/// Takes the store's write lock and changes nothing: no mark goes back.
async fn look(store: &dyn Store, pulse: &Pulse) -> bool {
    let nothing = Command::Mark { lane: LaneKey { queue: DEFAULT_QUEUE.into(), lane: Lane::Tasks }, arrives_at: 0 };
    match store.apply(Urgency::First, vec![nothing]).await {
        Ok(_) => {
            pulse.note_success();
            true
        }
        Err(error) => {
            tracing::debug!(%error, "the store takes no commit");
            false
        }
    }
}
