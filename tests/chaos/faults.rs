//! Breaks what the plan says, and puts it right again. Of each fault it notes when it began and ended and whom it hit,
//! so that what came of it can be found in the store.

use std::time::{Duration, Instant};

use crate::ground::{Ground, lock_store};
use crate::plan::{Fault, LEASE_MS, Planned};
use crate::rig::epoch_ms;
use crate::support::{PrivateBroker, Vhost};
use crate::work::Orders;

/// A fault that was caused.
#[derive(Debug, Clone, PartialEq)]
pub struct Caused {
    pub kind: &'static str,
    /// Milliseconds since the epoch.
    pub began_at: i64,
    pub ended_at: i64,
    /// The process that it was about, and that has to recover; of a worker that was replaced the new one.
    pub process: Option<u32>,
    /// False when this machine does not let us.
    pub caused: bool,
}

/// Causes the faults of one hand, one after the other.
pub async fn cause(
    ground: &Ground,
    broker: Option<&PrivateBroker>,
    hand: &[Planned],
    began: Instant,
    orders: &Orders,
) -> Vec<Caused> {
    let mut all = Vec::new();
    for Planned { at, fault } in hand {
        tokio::time::sleep_until((began + Duration::from_millis(*at)).into()).await;
        let began_at = epoch_ms();
        let (process, caused) = cause_one(ground, broker, fault).await;
        let swept = fault.leaves_shells() && sweep(&ground.rig.vhost).await;
        if fault.loses_submissions() || swept {
            orders.audit();
        }
        all.push(Caused { kind: fault.kind(), began_at, ended_at: epoch_ms(), process, caused });
    }
    all
}

async fn cause_one(ground: &Ground, broker: Option<&PrivateBroker>, fault: &Fault) -> (Option<u32>, bool) {
    let process = async |worker: usize| Some(ground.with_worker(worker, async |worker| worker.id()).await);
    let vhost = &ground.rig.vhost;
    match *fault {
        Fault::Kill { worker } => {
            ground.kill(worker).await;
            (process(worker).await, true)
        }
        Fault::Restart { worker } => {
            ground.restart(worker).await;
            (process(worker).await, true)
        }
        Fault::Freeze { worker, lasting } => {
            assert!(lasting > LEASE_MS, "it has to outlast the lease");
            ground.revive().await;
            ground.with_worker(worker, async |worker| worker.signal("STOP")).await;
            wait(lasting).await;
            ground.with_worker(worker, async |worker| worker.signal("CONT")).await;
            (process(worker).await, true)
        }
        Fault::LockStore { lasting } => {
            lock_store(&ground.disk, wait(lasting)).await;
            (None, true)
        }
        Fault::FillDisk { lasting } => {
            if !ground.disk.can_be_filled() {
                return (None, false);
            }
            ground.disk.fill().await;
            wait(lasting).await;
            ground.disk.clear();
            (None, true)
        }
        Fault::RestartBroker { away } => {
            let broker = broker.expect("who stops a broker has one of his own");
            broker.ctl(&["stop"]).await;
            wait(away).await;
            broker.ctl(&["start"]).await;
            (None, true)
        }
        Fault::Cut { worker } => {
            ground.proxies[worker].cut();
            (process(worker).await, true)
        }
        Fault::BlackHole { worker, lasting } => {
            ground.proxies[worker].freeze();
            wait(lasting).await;
            ground.proxies[worker].thaw();
            (process(worker).await, true)
        }
        Fault::Slow { worker, lasting, delay } => {
            ground.proxies[worker].slow(Duration::from_millis(delay));
            wait(lasting).await;
            ground.proxies[worker].slow(Duration::ZERO);
            (process(worker).await, true)
        }
        Fault::CloseChannels { worker } => {
            ground.proxies[worker].ack_the_unknown();
            (process(worker).await, true)
        }
        Fault::DeleteQueues { which } => {
            for queue in Ground::names(which) {
                vhost.delete_queue(&queue).await;
            }
            (None, true)
        }
        Fault::PurgeQueues { which } => {
            for queue in Ground::names(which) {
                vhost.purge_queue(&queue).await;
            }
            (None, true)
        }
        Fault::WipeVhost => {
            vhost.wipe().await;
            (None, true)
        }
    }
}

/// As whoever deletes queues under workers that declare them again has to: looks whether RabbitMQ has got both halves done. Returns whether
/// it had not.
async fn sweep(vhost: &Vhost) -> bool {
    let mut found = 0;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        found += vhost.delete_shells().await;
    }
    found > 0
}

/// The plan's own time: how long a fault lasts.
async fn wait(lasting: u64) {
    tokio::time::sleep(Duration::from_millis(lasting)).await;
}
