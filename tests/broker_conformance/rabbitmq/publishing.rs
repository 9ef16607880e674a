//! Confirms, returns, nacks, and publishes that get no answer.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use redeliver::broker::{Broker, HeaderValue, Message, Published, RabbitBroker, submission};
use redeliver::task::Lane;
use serde_json::json;

use crate::ground::{HEARTBEAT, NAMESPACE, client, next, topology};
use crate::rabbitmq::consume;
use crate::suite::wake;
use crate::support::proxy::Proxy;
use crate::support::{soon, until, with_vhost};

/// lapin attaches a return to whichever confirm comes next; the message it names is the one that failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returned_messages_are_told_from_their_neighbours_under_load() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        soon("declaring", broker.declare(&topology(&[]))).await.expect("declared");
        let publishers = (0..8).map(|publisher: usize| {
            let broker = broker.clone();
            tokio::spawn(async move {
                for round in 0..25 {
                    let lost = |index: usize| (index * 13 + round * 5 + publisher).is_multiple_of(7);
                    let messages = (0..100).map(|index| {
                        let queue = if lost(index) { "nowhere" } else { "default" };
                        wake(queue, Lane::Tasks, &format!("{publisher}-{round}-{index}"))
                    });
                    for (index, result) in broker.publish(messages.collect()).await.into_iter().enumerate() {
                        let expected = if lost(index) { Published::Returned } else { Published::Confirmed };
                        assert_eq!(result, expected, "message {index} of round {round} of publisher {publisher}");
                    }
                }
            })
        });
        for result in soon("publishing", join_all(publishers)).await {
            result.expect("every result as expected");
        }
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_returns_the_submission_and_leaves_publishing_able() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let submit = || vec![submission("order.list", "a", Bytes::from_static(b"{}"))];
        assert_eq!(soon("publishing", broker.publish(submit())).await, [Published::Returned]);
        soon("declaring", broker.declare(&topology(&[]))).await.expect("declared");
        until("publishing works again", async || broker.publish(submit()).await == [Published::Confirmed]).await;
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_takes_no_more_nacks() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        soon("declaring", broker.declare(&topology(&[]))).await.expect("declared");
        vhost
            .put(
                "policies",
                "full",
                json!({"pattern": "tasks$", "definition": {"max-length": 1}, "apply-to": "queues"}),
            )
            .await;
        until("the queue is full", async || {
            broker.publish(vec![wake("default", Lane::Tasks, "a")]).await == [Published::Nacked]
        })
        .await;
        let mixed = vec![wake("default", Lane::Tasks, "b"), wake("default", Lane::Retries, "c")];
        assert_eq!(soon("publishing", broker.publish(mixed)).await, [Published::Nacked, Published::Confirmed]);
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_whose_limit_was_taken_away_takes_messages_of_the_same_session_again() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        soon("declaring", broker.declare(&topology(&[]))).await.expect("declared");
        let full = json!({
            "pattern": "tasks$", "definition": {"max-length": 1, "overflow": "reject-publish"}, "apply-to": "queues"
        });
        vhost.put("policies", "full", full).await;
        let publish = async || broker.publish(vec![wake("default", Lane::Tasks, "a")]).await;
        until("the queue is full", async || publish().await == [Published::Nacked]).await;
        // Several channels know that it is full.
        let all = futures_util::future::join_all((0..8).map(|_| publish())).await;
        assert!(all.iter().all(|result| *result == [Published::Nacked]), "{all:?}");
        vhost.delete("policies", "full").await;
        until("there is room again", async || publish().await == [Published::Confirmed]).await;
        let all = futures_util::future::join_all((0..8).map(|_| publish())).await;
        assert!(all.iter().all(|result| *result == [Published::Confirmed]), "{all:?}");
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_messages_in_one_call_are_all_confirmed_and_each_is_delivered_once() {
    with_vhost(async |vhost| {
        // The rate is not what is tested: a machine that does something else may need its time.
        let limit = Duration::from_secs(120);
        let broker = RabbitBroker::new(vec![vhost.url()], NAMESPACE.into(), limit, HEARTBEAT).expect("a good URL");
        broker.declare(&topology(&[])).await.expect("declared");
        let messages: Vec<Message> = (0..20_000).map(|n| wake("default", Lane::Tasks, &format!("t{n}"))).collect();
        let began = Instant::now();
        let results = broker.publish(messages).await;
        let rate = 20_000.0 / began.elapsed().as_secs_f64();
        let confirmed = results.iter().filter(|result| **result == Published::Confirmed).count();
        eprintln!("{confirmed} confirmed, {rate:.0}/s");
        assert_eq!(confirmed, 20_000);
        let (mut deliveries, _) = consume(&broker, &topology(&[]), 256).await;
        let began = Instant::now();
        let mut seen = HashSet::new();
        while seen.len() < 20_000 {
            let delivery = next(&mut deliveries).await;
            assert!(seen.insert(delivery.message_id.clone()), "{:?} came twice", delivery.message_id);
            assert!(delivery.token.ack().await);
        }
        eprintln!("consumed and acked {:.0}/s", 20_000.0 / began.elapsed().as_secs_f64());
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_amqp_cannot_carry_is_not_sent_and_its_neighbours_are() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url());
        let topology = topology(&[]);
        let (mut deliveries, _) = consume(&broker, &topology, 10).await;
        let mut headers = wake("default", Lane::Tasks, "headers");
        for name in ["redeliver-error", "redeliver-code", "redeliver-class"] {
            headers.headers.push((name, HeaderValue::Text("ü".repeat(100_000))));
        }
        let messages = vec![
            wake("default", Lane::Tasks, &"x".repeat(300)),
            headers,
            submission(&"x.".repeat(200), "long-type", Bytes::new()),
            wake("default", Lane::Tasks, "plain"),
        ];
        let results = soon("publishing", broker.publish(messages)).await;
        assert!(matches!(&results[0], Published::NotSent { reason } if reason.contains("255")), "{results:?}");
        assert!(matches!(&results[2], Published::NotSent { reason } if reason.contains("routing key")), "{results:?}");
        assert_eq!([&results[1], &results[3]], [&Published::Confirmed; 2]);
        let delivery = next(&mut deliveries).await;
        assert_eq!(delivery.message_id.as_deref(), Some("headers:0:0"));
        assert!(delivery.arrives_at.is_some());
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_swallows_everything_answers_unconfirmed_within_the_time_out() {
    with_vhost(async |vhost| {
        let proxy = Proxy::start(vhost.address()).await;
        let limit = Duration::from_secs(2);
        let url = vhost.url_at(&proxy.address);
        let broker = RabbitBroker::new(vec![url], NAMESPACE.into(), limit, HEARTBEAT).expect("a good URL");
        soon("declaring", broker.declare(&topology(&[]))).await.expect("declared");
        soon("connecting", broker.connect()).await.expect("a session");
        proxy.freeze();
        let began = Instant::now();
        let results = soon("publishing", broker.publish(vec![wake("default", Lane::Tasks, "a"); 3])).await;
        let took = began.elapsed();
        assert!(
            results.iter().all(|result| matches!(result, Published::Unconfirmed { .. } | Published::NotSent { .. })),
            "{results:?}"
        );
        assert!(took < limit + Duration::from_secs(2), "it took {took:?}");
        proxy.thaw();
        until("publishing works again", async || {
            broker.publish(vec![wake("default", Lane::Tasks, "b")]).await == [Published::Confirmed]
        })
        .await;
        soon("closing", broker.close()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_leaves_what_was_under_way_unconfirmed_and_later_calls_are_not_sent_at_once() {
    with_vhost(async |vhost| {
        let proxy = Proxy::start(vhost.address()).await;
        let broker = client(&vhost.url_at(&proxy.address));
        soon("declaring", broker.declare(&topology(&[]))).await.expect("declared");
        soon("connecting", broker.connect()).await.expect("a session");
        proxy.freeze();
        let publishing = broker.publish(vec![wake("default", Lane::Tasks, "a")]);
        let cutting = async {
            // Long enough to be under way; the result is the same if it is not.
            tokio::task::yield_now().await;
            proxy.cut();
        };
        let (results, ()) = soon("publishing", async { tokio::join!(publishing, cutting) }).await;
        assert!(matches!(&results[..], [Published::Unconfirmed { .. } | Published::NotSent { .. }]), "{results:?}");
        until("the session is known to be lost", async || !broker.is_up()).await;
        let began = Instant::now();
        let results = broker.publish(vec![wake("default", Lane::Tasks, "b")]).await;
        assert!(matches!(&results[..], [Published::NotSent { .. }]), "{results:?}");
        assert!(began.elapsed() < Duration::from_secs(2), "without a session it waited {:?}", began.elapsed());
        proxy.thaw();
        until("a new session", async || broker.is_up()).await;
        broker.close().await;
    })
    .await;
}
