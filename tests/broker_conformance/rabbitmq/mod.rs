//! What a broker over a network must do besides the suite.

mod dead_letters;
mod login;
mod publishing;
mod sessions;
mod topology;

use std::sync::Arc;

use redeliver::broker::{Broker, Delivery, RabbitBroker, Topology};
use tokio::sync::mpsc;

use crate::ground::{Watch, consumption};

/// Consumes both queues with a watch of its own.
async fn consume(broker: &RabbitBroker, topology: &Topology, prefetch: u16) -> (mpsc::Receiver<Delivery>, Arc<Watch>) {
    let watch = Arc::new(Watch::default());
    let deliveries = broker
        .consume(Arc::new(topology.clone()), consumption(&["default", "shipping"], prefetch), watch.clone())
        .await
        .expect("no final error");
    (deliveries, watch)
}
