//! Finds what the broker has lost, tells the watch, and declares it again: in this order, always.
//!
//! Once a lost queue is declared again nobody can see that it was lost, and the wake-ups that were in it would be waited for. So
//! nothing that could be a lost queue is ever declared in passing: at the start of a session, and while it lasts, the absent ones
//! are told first. A lane that is lost ends the session by itself, because its consumer does; a rung or a DLQ has no consumer, so
//! the keeper looks now and then, and whenever a message came back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use lapin::Connection;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::endpoint::Endpoint;
use super::nodes::Nodes;
use super::session::Life;
use super::topology::Asker;
use crate::broker::{BrokerError, QueueRole, QueueSpec, SessionWatch, Topology};

/// How often a session looks for what was lost.
const LOOK: Duration = Duration::from_secs(30);
/// The shortest time between two looks, however many messages come back.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the watch may take to write: longer than a store that is locked for a while.
const WATCH_LIMIT: Duration = Duration::from_secs(60);

/// Keeps one topology complete, over all sessions.
pub(super) struct Keeper {
    topology: ArcSwap<Topology>,
    watch: Arc<dyn SessionWatch>,
    /// Whether the arguments of what exists have been checked: once is enough, they cannot change.
    checked: AtomicBool,
    /// Whether the broker lets us declare: a worker can do with less.
    declares: AtomicBool,
    /// A message came back: perhaps something is missing.
    pub(super) returned: Notify,
}

impl Keeper {
    pub(super) fn new(topology: Arc<Topology>, watch: Arc<dyn SessionWatch>) -> Keeper {
        Keeper {
            topology: ArcSwap::new(topology),
            watch,
            checked: AtomicBool::new(false),
            declares: AtomicBool::new(true),
            returned: Notify::new(),
        }
    }

    /// From the next look on.
    pub(super) fn keep_instead(&self, topology: Arc<Topology>) {
        self.topology.store(topology);
        self.checked.store(false, Ordering::Relaxed);
    }

    /// Makes the topology complete. A user who may not declare takes what is there as it is, and fails for what is not.
    pub(super) async fn complete(
        &self,
        connection: &Connection,
        endpoint: &Arc<Endpoint>,
        limit: Duration,
        nodes: &Nodes,
    ) -> Result<(), BrokerError> {
        let mut asker = Asker::new(connection, endpoint.clone(), limit);
        let topology = self.topology.load_full();
        let probe = topology.queues.iter().find(|spec| spec.role == QueueRole::Rejected);
        let absent = asker.absent(&topology).await?;
        self.restore(&mut asker, &absent).await?;
        if self.declares.load(Ordering::Relaxed) {
            match self.compare(&mut asker, &topology).await {
                Err(BrokerError::Refused { reason, .. }) => {
                    warn!("this user may not declare, so arguments and bindings are taken as they are: {reason}");
                    self.declares.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
                Ok(()) => return self.probe(&mut asker, probe, nodes).await,
            }
        }
        asker.need_exchanges(&topology).await?;
        self.probe(&mut asker, probe, nodes).await
    }

    /// Holds what is there against the topology, and declares what belongs to no queue.
    async fn compare(&self, asker: &mut Asker<'_>, topology: &Topology) -> Result<(), BrokerError> {
        if !self.checked.load(Ordering::Relaxed) {
            let absent = asker.check(topology).await?;
            self.restore(asker, &absent).await?;
            self.checked.store(true, Ordering::Relaxed);
        }
        asker.declare_routes(topology).await
    }

    /// Looks again and again, until the session ends; ends it when something cannot be mended.
    pub(super) async fn keep(
        self: Arc<Self>,
        connection: Arc<Connection>,
        endpoint: Arc<Endpoint>,
        limit: Duration,
        life: Arc<Life>,
        nodes: Arc<Nodes>,
    ) {
        loop {
            tokio::select! {
                () = life.ended() => return,
                () = self.returned.notified() => {}
                () = sleep(LOOK) => {}
            }
            let looked = tokio::select! {
                () = life.ended() => return,
                looked = self.complete(&connection, &endpoint, limit, &nodes) => looked,
            };
            if let Err(error) = looked {
                return life.end_elsewhere(format!("looking for lost queues: {error}"));
            }
            tokio::select! {
                () = life.ended() => return,
                () = sleep(PAUSE) => {}
            }
        }
    }

    /// A node that has lost its cluster's majority still answers for its queues, with nothing in them. Only what needs the majority
    /// tells: taking from a queue that is empty nearly always. Where no other node is left to go to, this one is taken as it is.
    async fn probe(&self, asker: &mut Asker<'_>, queue: Option<&QueueSpec>, nodes: &Nodes) -> Result<(), BrokerError> {
        match queue {
            Some(spec) if nodes.has_others() => asker.serves(&spec.name).await,
            _ => Ok(()),
        }
    }

    /// Tells the watch what is absent, then declares it.
    async fn restore(&self, asker: &mut Asker<'_>, absent: &[&QueueSpec]) -> Result<(), BrokerError> {
        if absent.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = absent.iter().map(|spec| spec.name.as_str()).collect();
        info!(queues = ?names, "not in the broker");
        let spots: Vec<_> = absent.iter().filter_map(|spec| spec.spot()).collect();
        if !spots.is_empty() {
            written(asker, self.watch.found_missing(spots)).await?;
        }
        let dead: Vec<_> =
            absent.iter().filter(|spec| spec.role == QueueRole::Dead).map(|spec| spec.queue.clone()).collect();
        if !dead.is_empty() {
            written(asker, self.watch.found_dead_missing(dead)).await?;
        }
        match asker.declare_queues(absent).await {
            // Somebody else has to; until then this is no reason to give up.
            Err(BrokerError::Refused { reason, .. }) => Err(asker.failed(format!(
                "{} is missing and this user may not declare it ({reason}): import the definitions, or `redeliver topology apply` \
                 as somebody who may",
                names.join(", ")
            ))),
            declared => declared,
        }
    }
}

/// Waits until the watch has written something down.
async fn written(asker: &Asker<'_>, writing: impl Future<Output = Result<(), String>>) -> Result<(), BrokerError> {
    let reason = match timeout(WATCH_LIMIT, writing).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(reason)) => reason,
        Err(_) => format!("it took longer than {} s", WATCH_LIMIT.as_secs()),
    };
    warn!("what is missing could not be written: {reason}");
    Err(asker.failed(format!("what is missing could not be written: {reason}")))
}
