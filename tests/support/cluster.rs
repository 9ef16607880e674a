//! Three nodes of one RabbitMQ on this machine, any of which can be hurt alone. One cluster for a whole test program, which its
//! tests use one after the other; it ends with the process.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use super::{PrivateBroker, Vhost, until_within};

/// How long a cluster on a busy machine may take to agree.
const AGREEMENT: Duration = Duration::from_secs(90);

/// See the module.
pub struct Cluster {
    nodes: Vec<PrivateBroker>,
}

/// Runs `test` with a cluster that is whole and a vhost of its own; skips it without a broker.
pub async fn with_cluster<F: Future<Output = ()>>(test: impl FnOnce(&'static Cluster, Vhost) -> F) {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = TURN.lock().await;
    let started = tokio::task::spawn_blocking(|| CLUSTER.get_or_init(Cluster::start)).await.expect("it starts");
    let Some(cluster) = started else { return };
    // The test before may have left it in any state.
    cluster.mend().await;
    cluster.nodes[0]
        .broker
        .with_vhost(async |vhost| {
            test(cluster, vhost).await;
            cluster.mend().await;
        })
        .await;
}

impl Cluster {
    fn start() -> Option<Cluster> {
        let first = PrivateBroker::start()?;
        let rest = std::thread::scope(|scope| {
            let starting: Vec<_> = (1..3).map(|_| scope.spawn(|| first.join())).collect();
            starting.into_iter().map(|node| node.join().expect("a node starts")).collect::<Vec<_>>()
        });
        let mut nodes = vec![first];
        nodes.extend(rest);
        Some(Cluster { nodes })
    }

    /// Every node runs and talks to every other.
    async fn mend(&self) {
        for node in &self.nodes {
            node.ctl(&["mend"]).await;
        }
        until_within(AGREEMENT, "every node sees every other", async || {
            for node in &self.nodes {
                let seen = node.broker.api(reqwest::Method::GET, "/api/nodes", None).await;
                let seen = seen.as_array().cloned().unwrap_or_default();
                let apart = |of: &serde_json::Value| of["partitions"].as_array().is_some_and(|nodes| !nodes.is_empty());
                let own = self.names().position(|name| seen.iter().any(|of| of["name"] == name.as_str() && apart(of)));
                if let Some(index) = own {
                    // Nodes that have lost each other stay so until one begins anew, as their documentation says.
                    self.nodes[index].ctl(&["restart"]).await;
                    return false;
                }
                if seen.iter().filter(|of| of["running"] == true).count() < self.nodes.len() {
                    return false;
                }
            }
            true
        })
        .await;
    }

    fn names(&self) -> impl Iterator<Item = String> {
        (0..self.nodes.len()).map(|index| self.name(index))
    }

    /// The URLs of a vhost at every node, as a TOML list.
    pub fn urls(&self, vhost: &Vhost) -> String {
        let urls: Vec<String> = self.nodes.iter().map(|node| vhost.url_at(&node.broker.address())).collect();
        format!("{urls:?}")
    }

    /// One node.
    pub fn node(&self, index: usize) -> &PrivateBroker {
        &self.nodes[index]
    }

    /// Its name in the cluster.
    pub fn name(&self, index: usize) -> String {
        let address = self.nodes[index].broker.address();
        format!("redeliver-{}@localhost", address.rsplit_once(':').expect("a port").1)
    }

    /// The node where the queue's leader is. All must be up.
    pub async fn leader(&self, vhost: &Vhost, queue: &str) -> usize {
        let mut leader = None;
        until_within(AGREEMENT, "the queue has a leader", async || {
            let told = vhost.queue(queue).await;
            leader = (0..self.nodes.len()).find(|index| told["leader"] == self.name(*index).as_str());
            leader.is_some()
        })
        .await;
        leader.expect("a leader")
    }

    /// Which node a worker's or command's log says it is connected to: the last one.
    pub fn node_in_use(&self, log: &str) -> Option<usize> {
        let line = log.lines().rev().find(|line| line.contains("broker session up"))?;
        (0..self.nodes.len()).find(|index| line.contains(&self.nodes[*index].broker.address()))
    }
}
