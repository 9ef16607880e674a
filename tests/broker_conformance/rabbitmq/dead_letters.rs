//! Passes over a DLQ that is longer than one consumer can hold.

use std::collections::BTreeSet;
use std::time::Duration;

use redeliver::broker::{Broker, BrokerError, DeadCopy, DeadPass, RabbitBroker};

use crate::ground::{HEARTBEAT, NAMESPACE, topology};
use crate::suite::dead;
use crate::support::{soon, with_vhost};

const COPIES: usize = 2_500;

async fn ids(pass: &mut dyn DeadPass) -> (BTreeSet<String>, Vec<DeadCopy>) {
    let copies = pass.take_all(Duration::from_secs(60)).await.expect("all copies");
    (copies.iter().map(|copy| copy.of.clone().expect("ours").0).collect(), copies)
}

/// A quorum queue's client in the broker holds acks back while it is behind, and drops them when their channel closes; what was
/// removed would be back in the next pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_longer_than_one_consumer_holds_sees_all_and_what_it_removed_stays_removed() {
    with_vhost(async |vhost| {
        let limit = Duration::from_secs(60);
        let broker = RabbitBroker::new(vec![vhost.url()], NAMESPACE.into(), limit, HEARTBEAT)
            .expect("a good URL")
            .with_dead_pass_prefetch(400);
        broker.declare(&topology(&[])).await.expect("declared");
        crate::suite::publish(
            &std::sync::Arc::new(broker),
            (0..COPIES).map(|n| dead("default", &format!("t{n}"))).collect(),
        )
        .await;
        let broker = RabbitBroker::new(vec![vhost.url()], NAMESPACE.into(), limit, HEARTBEAT)
            .expect("a good URL")
            .with_dead_pass_prefetch(400);

        let mut pass = broker.dead_pass("default").await.expect("a pass");
        let (seen, copies) = ids(pass.as_mut()).await;
        assert_eq!((seen.len(), copies.len()), (COPIES, COPIES));
        let every_other: Vec<usize> = copies.iter().map(|copy| copy.index).filter(|index| index % 2 == 0).collect();
        pass.remove(&every_other).await.expect("removed");
        soon("finishing", pass.finish()).await.expect("finished");

        let mut pass = broker.dead_pass("default").await.expect("a pass");
        let (left, copies_left) = ids(pass.as_mut()).await;
        let kept: BTreeSet<String> =
            copies.iter().filter(|copy| copy.index % 2 == 1).map(|copy| copy.of.clone().expect("ours").0).collect();
        assert_eq!(copies_left.len(), left.len(), "a copy came twice");
        assert_eq!(left, kept);
        soon("finishing", pass.finish()).await.expect("finished");
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_that_cannot_see_everything_in_time_is_an_error_and_not_a_short_list() {
    with_vhost(async |vhost| {
        let broker = crate::ground::client(&vhost.url());
        broker.declare(&topology(&[])).await.expect("declared");
        crate::suite::publish(&broker, (0..200).map(|n| dead("default", &format!("t{n}"))).collect()).await;
        let mut pass = broker.dead_pass("default").await.expect("a pass");
        let taken = pass.take_all(Duration::ZERO).await;
        assert!(matches!(taken, Err(BrokerError::Unreachable { .. })), "{taken:?}");
        drop(pass);
        crate::support::until("all are back", async || {
            let depths = broker.depths(&topology(&[])).await.expect("depths");
            depths.iter().any(|depth| depth.name.ends_with("default.dead") && depth.ready == Some(200))
        })
        .await;
        broker.close().await;
    })
    .await;
}
