//! The ceiling: a producer and a consumer that do nothing but what the broker asks of them.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPHardError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ErrorKind};

/// Publishes confirms this many at a time.
const IN_FLIGHT: usize = 512;
/// A broker that delivers nothing for this long has stopped.
const STANDSTILL: Duration = Duration::from_secs(30);

/// What the broker gives to those who do nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bare {
    /// Published and confirmed, 512 in flight.
    pub publish_per_s: f64,
    /// Consumed and acked, each message singly.
    pub consume_per_s: f64,
}

/// Measures both on a quorum queue of its own, which is gone afterwards.
pub(super) async fn on_own_queue(url: &str, namespace: &str, bodies: &[String], prefetch: u16) -> anyhow::Result<Bare> {
    let queue = format!("{namespace}.bare");
    let connection = taken_on("cannot declare", async || declare(url, &queue).await).await?;
    let bare = on_queue(url, &queue, bodies, prefetch).await?;
    let channel = connection.create_channel().await?;
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(bare)
}

/// Measures both on a queue that is there, empty and without a consumer; it is left so.
pub(super) async fn on_queue(url: &str, queue: &str, bodies: &[String], prefetch: u16) -> anyhow::Result<Bare> {
    let connection = connect(url).await.context("cannot connect")?;
    let channel = connection.create_channel().await?;
    let publish_per_s = publish(&channel, queue, bodies).await.context("cannot publish")?;
    connection.close(200, "done".into()).await?;
    let consume_per_s = consume(url, queue, bodies.len(), prefetch).await.context("cannot consume")?;
    Ok(Bare { publish_per_s, consume_per_s })
}

async fn connect(url: &str) -> lapin::Result<Connection> {
    Connection::connect(url, ConnectionProperties::default()).await
}

async fn declare(url: &str, queue: &str) -> lapin::Result<Connection> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(20));
    let connection = connect(url).await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    connection.create_channel().await?.queue_declare(queue.into(), durable, arguments).await?;
    Ok(connection)
}

/// What `begin` answers, begun anew while the broker is too busy for it: RabbitMQ 3.10 ends a connection with 541 when a quorum queue
/// takes longer than 5 s to be declared or to accept a consumer (`rabbit_quorum_queue` expects `ok` and gets a time-out).
async fn taken_on<T>(what: &'static str, begin: impl AsyncFn() -> lapin::Result<T>) -> anyhow::Result<T> {
    let until = Instant::now() + STANDSTILL;
    loop {
        match begin().await {
            Err(error) if Instant::now() < until && is_internal(&error) => {}
            answer => return answer.context(what),
        }
    }
}

fn is_internal(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(told)
        if *told.kind() == AMQPErrorKind::Hard(AMQPHardError::INTERNALERROR))
}

async fn publish(channel: &Channel, queue: &str, bodies: &[String]) -> anyhow::Result<f64> {
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let properties = BasicProperties::default().with_delivery_mode(2).with_content_type("application/json".into());
    let started = Instant::now();
    for chunk in bodies.chunks(IN_FLIGHT) {
        let mut confirms = Vec::with_capacity(chunk.len());
        for body in chunk {
            confirms.push(
                channel
                    .basic_publish(
                        "".into(),
                        queue.into(),
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
    Ok(per_second(bodies.len(), started))
}

/// From `basic.consume` to the last ack handed over.
async fn consume(url: &str, queue: &str, messages: usize, prefetch: u16) -> anyhow::Result<f64> {
    let (connection, _channel, started, mut consumer) = taken_on("not accepted as a consumer", async || {
        let connection = connect(url).await?;
        let channel = connection.create_channel().await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let started = Instant::now();
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.into(), "bare".into(), options, FieldTable::default()).await?;
        Ok((connection, channel, started, consumer))
    })
    .await?;
    for _ in 0..messages {
        let delivery = tokio::time::timeout(STANDSTILL, consumer.next())
            .await
            .context("the bare consumer got nothing for 30 s")?
            .context("the bare consumer was cancelled")??;
        delivery.acker.ack(BasicAckOptions::default()).await?;
    }
    let per_s = per_second(messages, started);
    connection.close(200, "done".into()).await?;
    Ok(per_s)
}

#[expect(clippy::cast_precision_loss, reason = "counts of messages are far below 2^52")]
fn per_second(messages: usize, started: Instant) -> f64 {
    messages as f64 / started.elapsed().as_secs_f64()
}
