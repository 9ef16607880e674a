//! Getting in, or being told why not, without a password in any text.

use std::time::Duration;

use amq_protocol::frame::{AMQPFrame, gen_frame};
use lapin::protocol::{AMQPClass, connection};
use lapin::types::{AMQPValue, FieldTable};
use redeliver::broker::{Broker, BrokerError, Published, RabbitBroker};
use redeliver::task::Lane;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::ground::{CONFIRM_TIMEOUT, HEARTBEAT, NAMESPACE, client, topology};
use crate::rabbitmq::consume;
use crate::suite::wake;
use crate::support::{soon, with_vhost};

/// A broker that says it is `version` of `product` and hangs up.
async fn fake(product: &'static str, version: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut header = [0; 8];
            if stream.read_exact(&mut header).await.is_err() {
                continue;
            }
            let mut properties = FieldTable::default();
            properties.insert("product".into(), AMQPValue::LongString(product.into()));
            properties.insert("version".into(), AMQPValue::LongString(version.into()));
            let start = connection::Start {
                version_major: 0,
                version_minor: 9,
                server_properties: properties,
                mechanisms: "PLAIN".into(),
                locales: "en_US".into(),
            };
            let frame = AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::Start(start)));
            let bytes = gen_frame(&frame)(Vec::new().into()).expect("a frame").into_inner().0;
            drop(stream.write_all(&bytes).await);
        }
    });
    format!("amqp://ann:s3cret@{address}/%2f")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_that_lose_retries_are_refused_before_logging_in() {
    for version in ["3.13.0", "3.13.1", "3.13.2", "3.9.0"] {
        let broker = client(&fake("RabbitMQ", version).await);
        for result in [
            soon("connecting", broker.connect()).await,
            soon("declaring", broker.declare(&topology(&[]))).await,
            soon("asking", broker.about()).await.map(drop),
        ] {
            match result {
                Err(BrokerError::Version { version: told, reason, .. }) => {
                    assert_eq!(told, version);
                    assert!(reason.contains("update it"), "{reason}");
                }
                other => panic!("{version}: {other:?}"),
            }
        }
        broker.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_named_as_that_and_shown_nowhere() {
    with_vhost(async |vhost| {
        let broker = client(&vhost.url_with_password("s3cret"));
        let errors = [
            soon("connecting", broker.connect()).await.expect_err("a wrong password"),
            soon("declaring", broker.declare(&topology(&[]))).await.expect_err("a wrong password"),
        ];
        for error in errors {
            assert!(matches!(&error, BrokerError::Refused { .. }), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
        let results = soon("publishing", broker.publish(vec![wake("default", Lane::Tasks, "a")])).await;
        assert!(!format!("{results:?} {broker:?}").contains("s3cret"), "{results:?} {broker:?}");
        broker.close().await;

        let broker = client(&vhost.url_with_password("s3cret"));
        let consumed = broker
            .consume(
                std::sync::Arc::new(topology(&[])),
                crate::ground::consumption(&["default"], 1),
                std::sync::Arc::new(crate::ground::Watch::default()),
            )
            .await;
        assert!(matches!(&consumed, Err(BrokerError::Refused { .. })), "{consumed:?}");
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vhost_that_does_not_exist_is_a_refusal() {
    with_vhost(async |vhost| {
        let broker = client(&format!("{}-not", vhost.url()));
        let error = soon("connecting", broker.connect()).await.expect_err("no such vhost");
        assert!(matches!(&error, BrokerError::Refused { reason, .. } if reason.contains("vhost")), "{error:?}");
        broker.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_not_there_or_is_none_is_unreachable() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("an address");
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let rude = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let rude_address = rude.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = rude.accept().await {
            drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
        }
    });
    let silent_address = silent.local_addr().expect("an address");
    let each = [closed, silent_address, rude_address];
    let each =
        each.iter().flat_map(|address| ["amqp", "amqps"].map(|scheme| format!("{scheme}://ann:s3cret@{address}/%2f")));
    for url in each {
        let limit = Duration::from_millis(500);
        let broker = RabbitBroker::new(vec![url], NAMESPACE.into(), limit, HEARTBEAT).expect("a good URL");
        let error = soon("connecting", broker.connect()).await.expect_err("nobody there");
        assert!(matches!(&error, BrokerError::Unreachable { .. }), "{error:?}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
        let results = soon("publishing", broker.publish(vec![wake("default", Lane::Tasks, "a")])).await;
        assert!(matches!(&results[..], [Published::NotSent { .. }]), "{results:?}");
        assert!(!broker.is_up());
        soon("closing", broker.close()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_node_is_used_while_the_first_is_down() {
    with_vhost(async |vhost| {
        let urls = vec!["amqp://guest:guest@127.0.0.1:1/%2f".to_owned(), vhost.url()];
        let broker = RabbitBroker::new(urls, NAMESPACE.into(), CONFIRM_TIMEOUT, HEARTBEAT).expect("good URLs");
        soon("connecting", broker.connect()).await.expect("a session");
        let (deliveries, _) = consume(&broker, &topology(&[]), 1).await;
        assert!(broker.about().await.expect("a version").to_string().starts_with("RabbitMQ "));
        drop(deliveries);
        broker.close().await;
    })
    .await;
}
