//! What a test of the suite stands on: a broker with nothing in it, whichever it is.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use redeliver::broker::{Broker, Consumption, Delivery, EmbeddedBroker, RabbitBroker, SessionWatch, Topology};
use redeliver::policy::TopicPattern;
use redeliver::task::Spot;
use tokio::sync::mpsc;

use crate::support::proxy::Proxy;
use crate::support::{PATIENCE, soon, with_vhost};

pub const NAMESPACE: &str = "redeliver";
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
pub const HEARTBEAT: Duration = Duration::from_secs(10);

/// A broker and the ways a test can hurt it.
pub struct Ground {
    pub broker: Arc<dyn Broker>,
    kind: Kind,
}

enum Kind {
    Embedded(Arc<EmbeddedBroker>),
    RabbitMq { proxy: Proxy, url: String },
}

impl Ground {
    /// Another client, as a second process would be.
    pub fn client(&self) -> Arc<dyn Broker> {
        match &self.kind {
            Kind::Embedded(broker) => Arc::new(broker.client()),
            Kind::RabbitMq { url, .. } => client(url),
        }
    }

    /// Loses the connections of `broker`, not those of other clients.
    pub fn break_session(&self) {
        match &self.kind {
            Kind::Embedded(broker) => broker.break_session(),
            Kind::RabbitMq { proxy, .. } => proxy.cut(),
        }
    }

    /// Whether the broker forgets what it is told as soon as nobody looks: rungs, which the embedded one does not have.
    pub fn expected_missing(&self, topology: &Topology) -> Vec<Spot> {
        let rungs = |spot: &Spot| matches!(spot, Spot::Rung { .. });
        match self.kind {
            Kind::Embedded(_) => topology.spots().into_iter().filter(rungs).collect(),
            Kind::RabbitMq { .. } => Vec::new(),
        }
    }

    /// Consumes the queues of `topology` named here.
    pub async fn consume(&self, topology: &Topology, queues: &[&str], prefetch: u16) -> mpsc::Receiver<Delivery> {
        consume(&self.broker, topology, queues, prefetch).await
    }
}

/// Consumes with a watch that agrees to everything.
pub async fn consume(
    broker: &Arc<dyn Broker>,
    topology: &Topology,
    queues: &[&str],
    prefetch: u16,
) -> mpsc::Receiver<Delivery> {
    broker
        .consume(Arc::new(topology.clone()), consumption(queues, prefetch), Arc::new(Watch::default()))
        .await
        .expect("the first session has no final error")
}

pub fn consumption(queues: &[&str], prefetch: u16) -> Consumption {
    Consumption { queues: queues.iter().map(|&queue| queue.to_owned()).collect(), prefetch }
}

pub async fn embedded<F: Future<Output = ()>>(test: impl FnOnce(Ground) -> F) {
    let broker = Arc::new(EmbeddedBroker::new(NAMESPACE));
    test(Ground { broker: broker.clone(), kind: Kind::Embedded(broker) }).await;
}

pub async fn rabbitmq<F: Future<Output = ()>>(test: impl FnOnce(Ground) -> F) {
    with_vhost(async |vhost| {
        let proxy = Proxy::start(vhost.address()).await;
        let broker: Arc<dyn Broker> = client(&vhost.url_at(&proxy.address));
        test(Ground { broker: broker.clone(), kind: Kind::RabbitMq { proxy, url: vhost.url() } }).await;
        broker.close().await;
    })
    .await;
}

pub fn client(url: &str) -> Arc<RabbitBroker> {
    let broker = RabbitBroker::new(vec![url.to_owned()], NAMESPACE.into(), CONFIRM_TIMEOUT, HEARTBEAT);
    Arc::new(broker.expect("a good URL"))
}

/// The queues `default` and `shipping` (types `order.ship.#`), with these rungs.
pub fn topology(rungs: &[i64]) -> Topology {
    let ship = TopicPattern::new("order.ship.#").expect("a good pattern");
    let queues = [("default".to_owned(), vec![]), ("shipping".to_owned(), vec![ship])];
    Topology::new(NAMESPACE, &queues, &rungs.iter().copied().collect::<BTreeSet<_>>())
}

/// Remembers what it was told.
#[derive(Default)]
pub struct Watch {
    told: Mutex<Vec<Vec<Spot>>>,
    told_dead: Mutex<Vec<Vec<String>>>,
}

impl Watch {
    pub fn told(&self) -> Vec<Vec<Spot>> {
        self.told.lock().expect("no test panics in here").clone()
    }

    pub fn told_dead(&self) -> Vec<Vec<String>> {
        self.told_dead.lock().expect("no test panics in here").clone()
    }
}

#[async_trait]
impl SessionWatch for Watch {
    async fn found_missing(&self, spots: Vec<Spot>) -> Result<(), String> {
        self.told.lock().expect("no test panics in here").push(spots);
        Ok(())
    }

    async fn found_dead_missing(&self, queues: Vec<String>) -> Result<(), String> {
        self.told_dead.lock().expect("no test panics in here").push(queues);
        Ok(())
    }
}

/// The next delivery, which must come.
pub async fn next(deliveries: &mut mpsc::Receiver<Delivery>) -> Delivery {
    soon("a delivery", deliveries.recv()).await.expect("the receiver goes on")
}

/// The next delivery whose session still stands; what an ended one left over is skipped, as a worker does.
pub async fn next_usable(deliveries: &mut mpsc::Receiver<Delivery>) -> Delivery {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let delivery = next(deliveries).await;
        if delivery.token.usable() {
            return delivery;
        }
        assert!(tokio::time::Instant::now() < end, "only unusable deliveries");
    }
}
