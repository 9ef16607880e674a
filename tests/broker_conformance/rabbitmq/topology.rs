//! Rungs, and the arguments that make them safe.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redeliver::broker::{Broker, QueueRole, Source, wake_up};
use redeliver::task::{Lane, Outstanding, Stamp, WakeUp};

use crate::ground::{client, next, topology};
use crate::rabbitmq::consume;
use crate::suite::wake;
use crate::support::{soon, with_vhost};

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(now.as_millis()).expect("a clock before the year 292 million")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_on_a_rung_reaches_the_retries_lane_when_its_time_is_over_and_not_before() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[1_500, 60_000]);
        let (mut deliveries, _) = consume(&broker, &topology, 10).await;
        let stamp = Stamp { generation: 2, retry_count: 3 };
        let sent_at = now();
        let on = |rung_ms: i64| {
            wake_up(&WakeUp {
                id: format!("on-{rung_ms}"),
                stamp,
                priority: 4,
                queue: "default".into(),
                route: Outstanding { lane: Lane::Retries, rung_ms, sent_at, arrives_at: sent_at + rung_ms },
            })
        };
        // The long one first: it must not hold up the short one.
        crate::suite::publish(&broker, vec![on(60_000), on(1_500)]).await;
        let delivery = next(&mut deliveries).await;
        let arrived = now();
        assert_eq!(delivery.message_id.as_deref(), Some("on-1500:2:3"));
        assert_eq!((delivery.queue.as_str(), delivery.source), ("default", Source::Retries));
        assert_eq!((delivery.arrives_at, delivery.priority), (Some(sent_at + 1_500), Some(4)));
        assert!(arrived >= sent_at + 1_500, "{} ms early", sent_at + 1_500 - arrived);
        assert!(!delivery.redelivered);
        assert!(delivery.token.ack().await);
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_queue_is_durable_quorum_and_dead_letters_at_least_once() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[900_000]);
        soon("declaring", broker.declare(&topology)).await.expect("declared");
        for spec in &topology.queues {
            let told = vhost.queue(&spec.name).await;
            let arguments = &told["arguments"];
            assert_eq!(told["durable"], true, "{}", spec.name);
            assert_eq!(arguments["x-queue-type"], "quorum", "{}", spec.name);
            assert!(arguments["x-expires"].is_null(), "{}: it would be deleted with its messages", spec.name);
            match spec.role {
                QueueRole::Lane(_) | QueueRole::Rung(_) => {
                    assert_eq!(arguments["x-dead-letter-strategy"], "at-least-once", "{}", spec.name);
                    assert_eq!(arguments["x-overflow"], "reject-publish", "{}", spec.name);
                }
                QueueRole::Rejected | QueueRole::Dead => {
                    assert_eq!(arguments["x-delivery-limit"], 1_000_000, "{}", spec.name);
                    assert!(arguments["x-message-ttl"].is_null() && arguments["x-max-length"].is_null());
                }
            }
        }
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_for_missing_queues_does_not_hurt_what_runs() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[1_000]);
        let (mut deliveries, watch) = consume(&broker, &topology, 10).await;
        let unknown = crate::ground::topology(&(1..=30).map(|n| n * 7_000).collect::<Vec<_>>());
        let missing = soon("asking", broker.missing(&unknown, &unknown.spots())).await.expect("an answer");
        assert_eq!(missing.len(), 60, "thirty rungs in two queues");
        crate::suite::publish(&broker, vec![wake("default", Lane::Tasks, "a")]).await;
        assert!(next(&mut deliveries).await.token.ack().await);
        assert_eq!(watch.told().len(), 1, "only the first session found something missing");
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rung_taken_out_of_the_topology_drains_by_itself() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let old = topology(&[1_000]);
        soon("declaring", broker.declare(&old)).await.expect("declared");
        let sent_at = now();
        let wake = wake_up(&WakeUp {
            id: "drains".into(),
            stamp: Stamp { generation: 0, retry_count: 1 },
            priority: 0,
            queue: "shipping".into(),
            route: Outstanding { lane: Lane::Retries, rung_ms: 1_000, sent_at, arrives_at: sent_at + 1_000 },
        });
        crate::suite::publish(&broker, vec![wake]).await;
        let (mut deliveries, _) = consume(&broker, &topology(&[2_000]), 10).await;
        let delivery = tokio::time::timeout(Duration::from_secs(20), next(&mut deliveries)).await.expect("it drains");
        assert_eq!(delivery.message_id.as_deref(), Some("drains:0:1"));
        assert!(delivery.token.ack().await);
        broker.close().await;
    })
    .await;
}
