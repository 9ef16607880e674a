//! The ceiling: a consumer that only acks.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};

/// Publishes confirms this many at a time.
const IN_FLIGHT: usize = 512;
/// A broker that delivers nothing for this long has stopped.
const STANDSTILL: Duration = Duration::from_secs(30);

/// Publishes `bodies` to a bare quorum queue, then consumes them with `prefetch` and single acks; messages per second of the
/// consuming, from `basic.consume` to the last ack handed over.
pub(super) async fn consume_rate(url: &str, namespace: &str, bodies: &[String], prefetch: u16) -> anyhow::Result<f64> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.context("cannot connect")?;
    let channel = connection.create_channel().await?;
    let queue = format!("{namespace}.bare");
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(20));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), durable, arguments).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let properties = BasicProperties::default().with_delivery_mode(2).with_content_type("application/json".into());
    for chunk in bodies.chunks(IN_FLIGHT) {
        let mut confirms = Vec::with_capacity(chunk.len());
        for body in chunk {
            confirms.push(
                channel
                    .basic_publish(
                        "".into(),
                        queue.as_str().into(),
                        BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
                        body.as_bytes(),
                        properties.clone(),
                    )
                    .await?,
            );
        }
        for confirm in confirms {
            if !confirm.await?.is_ack() {
                bail!("the broker refused a bare message");
            }
        }
    }
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let started = Instant::now();
    let mut consumer = channel
        .basic_consume(queue.as_str().into(), "bare".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    for _ in 0..bodies.len() {
        let delivery = tokio::time::timeout(STANDSTILL, consumer.next())
            .await
            .context("the bare consumer got nothing for 30 s")?
            .context("the bare consumer was cancelled")??;
        delivery.acker.ack(BasicAckOptions::default()).await?;
    }
    let seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "counts of messages are far below 2^52")]
    let rate = bodies.len() as f64 / seconds;
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(rate)
}
