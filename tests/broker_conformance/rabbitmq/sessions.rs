//! Losing sessions in every way there is, and coming back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use redeliver::broker::{Broker, Published, RabbitBroker, SessionWatch, Topology};
use redeliver::task::{Lane, LaneKey, Spot};
use tokio::net::TcpListener;

use crate::ground::{CONFIRM_TIMEOUT, HEARTBEAT, NAMESPACE, Watch, client, consumption, next, next_usable, topology};
use crate::rabbitmq::consume;
use crate::suite::wake;
use crate::support::proxy::Proxy;
use crate::support::{PrivateBroker, soon, until, until_within, with_vhost};

/// What everybody does after a loss: one message in, one message out.
async fn goes_on(
    broker: &RabbitBroker,
    deliveries: &mut tokio::sync::mpsc::Receiver<redeliver::broker::Delivery>,
    id: &str,
) {
    until("publishing works again", async || {
        broker.publish(vec![wake("default", Lane::Tasks, id)]).await == [Published::Confirmed]
    })
    .await;
    let expected = format!("{id}:0:0");
    loop {
        let delivery = next_usable(deliveries).await;
        let found = delivery.message_id.as_deref() == Some(&expected);
        assert!(delivery.token.ack().await);
        if found {
            return;
        }
    }
}

/// Asks the broker, while it is told what is missing, whether that is so.
struct Suspicious {
    topology: Topology,
    url: String,
    told: Mutex<Vec<(Vec<Spot>, Vec<Spot>)>>,
}

#[async_trait]
impl SessionWatch for Suspicious {
    async fn found_missing(&self, spots: Vec<Spot>) -> Result<(), String> {
        let broker = client(&self.url);
        let missing =
            broker.missing(&self.topology, &self.topology.spots()).await.map_err(|error| error.to_string())?;
        broker.close().await;
        self.told.lock().expect("no panic in here").push((spots, missing));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queues_are_told_missing_while_they_still_are_and_then_declared() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[60_000]);
        let watch = Arc::new(Suspicious { topology: topology.clone(), url: vhost.url(), told: Mutex::default() });
        let mut deliveries = broker
            .consume(Arc::new(topology.clone()), consumption(&["default", "shipping"], 10), watch.clone())
            .await
            .expect("a session");
        watch.told.lock().expect("no panic in here").clear();

        // Rungs and the DLQ first: their loss alone ends no session, so all must be gone when the lanes are.
        for spec in topology.queues.iter().rev() {
            vhost.delete_queue(&spec.name).await;
        }
        let told_missing = async || {
            let told = watch.told.lock().expect("no panic in here");
            let mut all: Vec<Spot> = told.iter().flat_map(|(spots, _)| spots.clone()).collect();
            all.sort();
            all.dedup();
            all.len() == topology.spots().len()
        };
        until("every spot is told missing", told_missing).await;
        for (spots, missing) in watch.told.lock().expect("no panic in here").iter() {
            for spot in spots {
                assert!(missing.contains(spot), "{spot:?} existed when it was told missing");
            }
        }
        goes_on(&broker, &mut deliveries, "after").await;
        let missing = broker.missing(&topology, &topology.spots()).await.expect("an answer");
        assert_eq!(missing, []);
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_rung_is_told_and_declared_again_while_the_session_goes_on() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[60_000]);
        let (mut deliveries, watch) = consume(&broker, &topology, 10).await;
        crate::suite::publish(&broker, vec![wake("default", Lane::Tasks, "held")]).await;
        let held = next(&mut deliveries).await;
        vhost.delete_queue("redeliver.default.delay.60000").await;
        vhost.delete_queue("redeliver.default.dead").await;
        let results = soon("publishing", broker.publish(vec![crate::suite::dead("default", "a")])).await;
        assert_eq!(results, [Published::Returned]);
        until("the copy is taken", async || {
            broker.publish(vec![crate::suite::dead("default", "a")]).await == [Published::Confirmed]
        })
        .await;
        let rung = Spot::Rung { queue: "default".into(), delay_ms: 60_000 };
        assert_eq!(watch.told()[1..], [vec![rung]]);
        let dead = watch.told_dead();
        assert_eq!(dead, [vec!["default".to_owned(), "shipping".to_owned()], vec!["default".to_owned()]]);
        assert!(held.token.usable(), "nothing that runs was disturbed");
        assert!(held.token.ack().await);
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_cancelled_by_the_broker_starts_a_new_session() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[]);
        let (mut deliveries, watch) = consume(&broker, &topology, 10).await;
        crate::suite::publish(&broker, vec![wake("default", Lane::Tasks, "held")]).await;
        let held = next(&mut deliveries).await;
        vhost.delete_queue("redeliver.shipping.retries").await;
        until("the whole session ends", async || !held.token.usable()).await;
        goes_on(&broker, &mut deliveries, "after").await;
        let lost = Spot::Lane(LaneKey { queue: "shipping".into(), lane: Lane::Retries });
        assert_eq!(watch.told()[1..], [vec![lost]]);
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_closed_by_the_broker_starts_a_new_session() {
    with_vhost(async |vhost| {
        let proxy = Proxy::start(vhost.address()).await;
        let broker = client(&vhost.url_at(&proxy.address));
        let (mut deliveries, watch) = consume(&broker, &topology(&[]), 10).await;
        crate::suite::publish(&broker, vec![wake("default", Lane::Tasks, "held")]).await;
        let held = next(&mut deliveries).await;
        proxy.ack_the_unknown();
        until("the whole session ends", async || !held.token.usable()).await;
        assert!(!held.token.ack().await);
        let again = next_usable(&mut deliveries).await;
        assert_eq!(again.message_id.as_deref(), Some("held:0:0"));
        assert!(again.redelivered);
        assert!(again.token.ack().await);
        goes_on(&broker, &mut deliveries, "after").await;
        assert_eq!(watch.told().len(), 1, "nothing was missing after the first session");
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_closed_by_an_operator_come_back() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let (mut deliveries, _) = consume(&broker, &topology(&[]), 10).await;
        crate::suite::publish(&broker, vec![wake("default", Lane::Tasks, "held")]).await;
        let held = next(&mut deliveries).await;
        vhost.kill_connections(2).await;
        until("the whole session ends", async || !held.token.usable()).await;
        goes_on(&broker, &mut deliveries, "after").await;
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_holed_connection_is_noticed_within_some_heartbeats_and_replaced() {
    with_vhost(async |vhost| {
        let proxy = Proxy::start(vhost.address()).await;
        let heartbeat = Duration::from_secs(2);
        let url = vhost.url_at(&proxy.address);
        let broker =
            RabbitBroker::new(vec![url], NAMESPACE.into(), Duration::from_secs(3), heartbeat).expect("a good URL");
        let broker = Arc::new(broker);
        let (mut deliveries, _) = consume(&broker, &topology(&[]), 10).await;
        crate::suite::publish(&broker, vec![wake("default", Lane::Tasks, "held")]).await;
        let held = next(&mut deliveries).await;
        proxy.freeze();
        until_within(heartbeat * 4, "the session ends", async || !held.token.usable()).await;
        assert!(!broker.is_up());
        proxy.thaw();
        goes_on(&broker, &mut deliveries, "after").await;
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_broker_is_no_error_and_is_found_when_it_comes() {
    with_vhost(async |vhost| {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("an address");
        let broker = client(&vhost.url_at(&free.to_string()));
        let (mut deliveries, watch) = soon("the first try fails", consume(&broker, &topology(&[]), 10)).await;
        assert!(!broker.is_up() && watch.told().is_empty());
        let _proxy = Proxy::start_at(&free.to_string(), vhost.address()).await;
        until("a session", async || broker.is_up()).await;
        goes_on(&broker, &mut deliveries, "after").await;
        broker.close().await;
    })
    .await;
}

/// Fails twice, then agrees.
#[derive(Default)]
struct Reluctant {
    asked: AtomicUsize,
    watch: Watch,
}

#[async_trait]
impl SessionWatch for Reluctant {
    async fn found_missing(&self, spots: Vec<Spot>) -> Result<(), String> {
        if self.asked.fetch_add(1, Ordering::SeqCst) < 2 {
            return Err("the store is locked".into());
        }
        self.watch.found_missing(spots).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_declared_before_the_watch_agrees() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[]);
        let watch = Arc::new(Reluctant::default());
        let deliveries = broker
            .consume(Arc::new(topology.clone()), consumption(&["default"], 10), watch.clone())
            .await
            .expect("a watch that cannot write is no final error");
        assert!(!broker.is_up());
        until("a session", async || broker.is_up()).await;
        assert_eq!(watch.asked.load(Ordering::SeqCst), 3);
        assert_eq!(watch.watch.told(), [topology.spots()], "all were still missing at the third try");
        drop(deliveries);
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_dropped_gives_back_what_was_fetched() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[]);
        let (deliveries, _) = consume(&broker, &topology, 10).await;
        drop(deliveries);
        crate::suite::publish(&broker, (0..5).map(|n| wake("default", Lane::Tasks, &format!("t{n}"))).collect()).await;
        let other = client(&vhost.url());
        let (mut deliveries, _) = consume(&other, &topology, 10).await;
        for _ in 0..5 {
            assert!(next(&mut deliveries).await.token.ack().await);
        }
        broker.close().await;
        other.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_leaves_no_connection_behind() {
    with_vhost(async |vhost| {
        let proxy = Proxy::start(vhost.address()).await;
        let broker = client(&vhost.url_at(&proxy.address));
        let (mut deliveries, _) = consume(&broker, &topology(&[]), 10).await;
        crate::suite::publish(&broker, vec![wake("default", Lane::Tasks, "a")]).await;
        let held = next(&mut deliveries).await;
        let pass = broker.dead_pass("default").await.expect("a pass");
        broker.depths(&topology(&[])).await.expect("depths");
        drop(pass);
        soon("closing", broker.close()).await;
        until("every connection is gone", async || proxy.open() == 0).await;
        assert!(!held.token.usable());
        assert!(soon("the receiver ends", deliveries.recv()).await.is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_was_stopped_is_found_again_within_fifteen_seconds() {
    let Some(private) = PrivateBroker::start() else { return };
    private
        .broker
        .with_vhost(async |vhost| {
            let broker = client(&vhost.url());
            let (mut deliveries, watch) = consume(&broker, &topology(&[60_000]), 10).await;
            crate::suite::publish(&broker, vec![wake("default", Lane::Tasks, "kept")]).await;
            let held = next(&mut deliveries).await;
            private.ctl(&["stop"]).await;
            until("the session ends", async || !held.token.usable()).await;
            let stopped = Instant::now();
            // The longer it is away the rarer we ask, so the test has to let real time pass.
            tokio::time::sleep(Duration::from_secs(30).saturating_sub(stopped.elapsed())).await;
            private.ctl(&["start"]).await;
            let back = Instant::now();
            until_within(Duration::from_secs(15), "a session", async || broker.is_up()).await;
            eprintln!("up again {:?} after the broker", back.elapsed());
            let again = next_usable(&mut deliveries).await;
            assert_eq!(again.message_id.as_deref(), Some("kept:0:0"));
            assert!(again.token.ack().await);
            assert_eq!(watch.told().len(), 1, "nothing was lost");
            broker.close().await;
        })
        .await;
}

/// In a memory alarm the broker stops reading from connections that publish. Acks are what frees it, so they must go through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_memory_alarm_publishing_answers_in_time_and_acks_still_work() {
    let Some(private) = PrivateBroker::start() else { return };
    private
        .broker
        .with_vhost(async |vhost| {
            let limit = Duration::from_secs(3);
            let broker = RabbitBroker::new(vec![vhost.url()], NAMESPACE.into(), limit, HEARTBEAT).expect("a good URL");
            let broker = Arc::new(broker);
            let topology = topology(&[]);
            let (mut deliveries, _) = consume(&broker, &topology, 10).await;
            crate::suite::publish(&broker, (0..20).map(|n| wake("default", Lane::Tasks, &format!("t{n}"))).collect())
                .await;
            private.ctl(&["rabbitmqctl", "-q", "set_vm_memory_high_watermark", "absolute", "1MB"]).await;
            until("publishing is refused", async || {
                let began = Instant::now();
                let results = broker.publish(vec![wake("default", Lane::Retries, "a")]).await;
                assert!(began.elapsed() < limit + Duration::from_secs(1));
                matches!(&results[..], [Published::NotSent { .. }])
            })
            .await;
            assert!(!broker.is_up());
            // More than the prefetch, so every one of them needs the ack of an earlier one.
            for _ in 0..20 {
                assert!(next(&mut deliveries).await.token.ack().await);
            }
            private.ctl(&["rabbitmqctl", "-q", "set_vm_memory_high_watermark", "0.6"]).await;
            until("publishing works again", async || broker.is_up()).await;
            goes_on(&broker, &mut deliveries, "after").await;
            assert_eq!(CONFIRM_TIMEOUT, Duration::from_secs(10));
            soon("closing", broker.close()).await;
        })
        .await;
}

/// Nobody checks what a producer puts into `message_id`; lapin's parser ends the connection over a byte that is no UTF-8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_properties_that_are_no_text_is_delivered_like_any_other() {
    with_vhost(async |vhost| {
        let proxy = Proxy::start(vhost.address()).await;
        proxy.tamper(b"MARK", b"\xff\xfe\xc3(");
        let producer = client(&vhost.url_at(&proxy.address));
        let broker = client(&vhost.url());
        let (mut deliveries, _) = consume(&broker, &topology(&[]), 10).await;
        let mut message = wake("default", Lane::Tasks, "MARK");
        message.message_type = Some("MARK");
        crate::suite::publish(&producer, vec![message]).await;
        let delivery = next(&mut deliveries).await;
        assert_eq!(delivery.message_id.as_deref(), Some("???(:0:0"));
        assert!(delivery.token.ack().await);
        goes_on(&broker, &mut deliveries, "after").await;
        broker.close().await;
    })
    .await;
}

/// Headers stand in one frame, and the broker does not split them for a consumer that agreed to shorter frames than their producer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_headers_longer_than_our_frames_is_delivered_like_any_other() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let (mut deliveries, _) = consume(&broker, &topology(&[]), 10).await;
        let connection = soon("a producer", Connection::connect(&vhost.url(), ConnectionProperties::default())).await;
        let channel = connection.expect("connects").create_channel().await.expect("a channel");
        let mut headers = FieldTable::default();
        headers.insert("long".into(), AMQPValue::LongString("x".repeat(120_000).into()));
        let properties = BasicProperties::default().with_headers(headers).with_message_id("long".into());
        let options = BasicPublishOptions::default();
        let body = vec![b'y'; 200_000];
        let sent = channel.basic_publish("".into(), "redeliver.default.tasks".into(), options, &body, properties).await;
        drop(sent.expect("sent"));
        let delivery = next(&mut deliveries).await;
        assert_eq!((delivery.message_id.as_deref(), delivery.redelivered), (Some("long"), false));
        assert_eq!(delivery.body, body);
        assert!(delivery.token.ack().await);
        goes_on(&broker, &mut deliveries, "after").await;
        broker.close().await;
    })
    .await;
}
