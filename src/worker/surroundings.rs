//! What a worker takes from the machine it runs on, besides store and broker: its name, chance, and where its heartbeats run.
//!
//! A simulation gives it others, so that a run can be repeated exactly. Time is not here: parts of a worker wait by tokio's clock, which a
//! simulation pauses, and everything that is decided goes by the store's.

use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub struct Surroundings {
    /// The worker's identity. Two that start must never have the same one, also not the same process twice.
    pub name: String,
    /// Gives numbers in [0, 1): the jitter of backoffs.
    pub random: Arc<dyn Fn() -> f64 + Send + Sync>,
    /// Where heartbeats run.
    pub heartbeats: Heartbeats,
}

/// Where heartbeats run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeats {
    /// On a thread and a runtime of their own: handlers that block every other thread cost nobody a lease.
    OwnThread,
    /// Among the worker's other parts. Only where nothing blocks and time is not the machine's.
    WithTheRest,
}

impl Surroundings {
    /// The machine itself.
    pub fn machine() -> Surroundings {
        Surroundings { name: worker_name(), random: Arc::new(rand::random), heartbeats: Heartbeats::OwnThread }
    }
}

/// `host-pid-random`: a process that comes back with the same pid must not look like the one that died.
fn worker_name() -> String {
    let host = std::env::var("HOSTNAME")
        .ok()
        .filter(|name| !name.is_empty())
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok().map(|name| name.trim().to_owned()))
        .unwrap_or_else(|| "worker".into());
    let random = &uuid::Uuid::new_v4().simple().to_string()[..8];
    format!("{host}-{}-{random}", std::process::id())
}
