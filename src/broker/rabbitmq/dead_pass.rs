//! A pass over a DLQ: takes every copy before it returns any, so that no copy is seen twice or missed.
//!
//! Works on a connection of its own. One consumer of a quorum queue can hold at most 65,535 messages, so there are as many
//! consumers as it takes. Bodies are dropped as they come, unless somebody asks for what is in the copies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::endpoint::{Endpoint, Opened};
use super::session::close;
use crate::broker::{BrokerError, CopyContent, DEAD_LETTER_TYPE, DeadCopy, DeadPass, HeaderValue, copy_of};

/// Silence after the last expected copy that means there are no more.
const QUIET: Duration = Duration::from_millis(100);
/// The same while copies that the queue counted have not come: they may still be on their way.
const LONG_QUIET: Duration = Duration::from_secs(2);

pub(super) struct RabbitDeadPass {
    connection: Arc<Connection>,
    endpoint: Arc<Endpoint>,
    limit: Duration,
    queue: ShortString,
    /// What one consumer holds at most.
    prefetch: u16,
    /// One per consumer, with its tag.
    channels: Vec<(Channel, ShortString)>,
    /// Of every copy taken, by index: its channel and delivery tag there.
    taken: Vec<(usize, u64)>,
    /// What is in the copies, by index, as far as it is kept.
    contents: BTreeMap<usize, CopyContent>,
    /// How many bytes of bodies may still be kept.
    may_keep: usize,
    keeps: bool,
    arrived: mpsc::UnboundedReceiver<Arrival>,
    /// Kept so that `arrived` does not end while there is no consumer.
    arrivals: mpsc::UnboundedSender<Arrival>,
    /// Set when the pass is over, however it ends: its consumers keep nothing and its connection is closed.
    over: CancellationToken,
    closed: Option<JoinHandle<()>>,
}

enum Arrival {
    Copy { channel: usize, tag: u64, message_id: Option<String>, ours: bool, content: Option<CopyContent> },
    Broken(String),
}

impl RabbitDeadPass {
    pub(super) fn new(opened: Opened, queue: ShortString, limit: Duration, prefetch: u16) -> RabbitDeadPass {
        let (arrivals, arrived) = mpsc::unbounded_channel();
        let Opened { endpoint, connection, .. } = opened;
        let connection = Arc::new(connection);
        let over = CancellationToken::new();
        let closed = Some(tokio::spawn(close_when(over.clone(), connection.clone())));
        RabbitDeadPass {
            connection,
            endpoint,
            limit,
            queue,
            prefetch,
            channels: Vec::new(),
            taken: Vec::new(),
            contents: BTreeMap::new(),
            may_keep: 0,
            keeps: false,
            arrived,
            arrivals,
            over,
            closed,
        }
    }

    async fn bounded<T>(&self, doing: &str, request: impl Future<Output = lapin::Result<T>>) -> Result<T, BrokerError> {
        match timeout(self.limit, request).await {
            Ok(answer) => answer.map_err(|error| self.endpoint.error(&error)),
            Err(_) => Err(self.endpoint.too_slow(doing, self.limit)),
        }
    }

    fn broken(&self, reason: String) -> BrokerError {
        BrokerError::Unreachable { place: self.endpoint.place.clone(), reason }
    }

    async fn ready(&self, channel: &Channel) -> Result<u64, BrokerError> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = self.bounded(
            "counting dead letters",
            channel.queue_declare(self.queue.clone(), options, FieldTable::default()),
        );
        Ok(u64::from(found.await?.message_count()))
    }

    /// Starts one more consumer.
    async fn consume(&mut self, channel: Channel) -> Result<(), BrokerError> {
        self.bounded("limiting a consumer", channel.basic_qos(self.prefetch, BasicQosOptions::default())).await?;
        let consuming = channel.basic_consume(
            self.queue.clone(),
            ShortString::default(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let mut consumer = self.bounded("consuming dead letters", consuming).await?;
        let index = self.channels.len();
        self.channels.push((channel, consumer.tag()));
        let (arrivals, over, keeps) = (self.arrivals.clone(), self.over.clone(), self.keeps);
        tokio::spawn(async move {
            let reason = loop {
                let next = tokio::select! {
                    () = over.cancelled() => return,
                    next = consumer.next() => next,
                };
                match next {
                    Some(Ok(mut copy)) => {
                        let content = keeps.then(|| content_of(&mut copy));
                        let properties = &copy.properties;
                        let arrival = Arrival::Copy {
                            channel: index,
                            tag: copy.delivery_tag,
                            message_id: properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
                            ours: properties.kind().as_ref().is_some_and(|kind| kind.as_str() == DEAD_LETTER_TYPE),
                            content,
                        };
                        if arrivals.send(arrival).is_err() {
                            return;
                        }
                    }
                    Some(Err(error)) => break error.to_string(),
                    None => break "the broker cancelled the consumer".to_owned(),
                }
            };
            // The pass may be over already.
            drop(arrivals.send(Arrival::Broken(reason)));
        });
        Ok(())
    }
}

/// Takes a delivery's content out of it.
fn content_of(delivery: &mut Delivery) -> CopyContent {
    let properties = &delivery.properties;
    let headers = properties.headers().as_ref().map(|table| table.inner().iter().filter_map(header).collect());
    CopyContent {
        message_type: properties.kind().as_ref().map(|kind| kind.as_str().to_owned()),
        routing_key: delivery.routing_key.as_str().to_owned(),
        headers: headers.unwrap_or_default(),
        body: std::mem::take(&mut delivery.data).into(),
    }
}

fn header((name, value): (&ShortString, &AMQPValue)) -> Option<(String, HeaderValue)> {
    let value = match value {
        AMQPValue::LongString(text) => HeaderValue::Text(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => HeaderValue::Text(text.as_str().to_owned()),
        AMQPValue::ShortShortInt(n) => HeaderValue::Number((*n).into()),
        AMQPValue::ShortShortUInt(n) => HeaderValue::Number((*n).into()),
        AMQPValue::ShortInt(n) => HeaderValue::Number((*n).into()),
        AMQPValue::ShortUInt(n) => HeaderValue::Number((*n).into()),
        AMQPValue::LongInt(n) => HeaderValue::Number((*n).into()),
        AMQPValue::LongUInt(n) => HeaderValue::Number((*n).into()),
        AMQPValue::LongLongInt(n) => HeaderValue::Number(*n),
        _ => return None,
    };
    Some((name.as_str().to_owned(), value))
}

#[async_trait]
impl DeadPass for RabbitDeadPass {
    fn keep_content(&mut self, most_bytes: usize) {
        (self.keeps, self.may_keep) = (true, most_bytes);
    }

    fn content(&self, index: usize) -> Option<CopyContent> {
        self.contents.get(&index).cloned()
    }

    async fn take_all(&mut self, limit: Duration) -> Result<Vec<DeadCopy>, BrokerError> {
        let deadline = Instant::now() + limit;
        let too_slow = |pass: &Self| pass.endpoint.too_slow("taking every dead letter", limit);
        let first = self.bounded("opening a channel", self.connection.create_channel()).await?;
        // The broker answers on this one while the others are busy delivering.
        let asking = self.bounded("opening a channel", self.connection.create_channel()).await?;
        let expected = self.ready(&first).await?;
        let mut copies = Vec::new();
        if expected == 0 {
            return Ok(copies);
        }
        self.consume(first).await?;
        loop {
            let quiet = if copies.len() as u64 >= expected { QUIET } else { LONG_QUIET };
            match timeout_at(deadline.min(Instant::now() + quiet), self.arrived.recv()).await {
                Ok(Some(Arrival::Copy { channel, tag, message_id, ours, content })) => {
                    if let Some(content) = content.filter(|content| content.body.len() <= self.may_keep) {
                        self.may_keep -= content.body.len();
                        self.contents.insert(copies.len(), content);
                    }
                    let of = message_id.as_deref().filter(|_| ours).and_then(copy_of);
                    copies.push(DeadCopy { index: copies.len(), message_id, of });
                    self.taken.push((channel, tag));
                    let full = usize::from(self.prefetch) * self.channels.len();
                    if copies.len() == full {
                        let next = self.bounded("opening a channel", self.connection.create_channel()).await?;
                        self.consume(next).await?;
                    }
                }
                Ok(Some(Arrival::Broken(reason))) => return Err(self.broken(reason)),
                Ok(None) => return Err(self.broken("the consumers are gone".into())),
                Err(_) if Instant::now() >= deadline => return Err(too_slow(self)),
                Err(_) => {
                    if self.ready(&asking).await? == 0 {
                        return Ok(copies);
                    }
                }
            }
        }
    }

    async fn remove(&mut self, indexes: &[usize]) -> Result<(), BrokerError> {
        for &index in indexes {
            let Some(&(channel, tag)) = self.taken.get(index) else { continue };
            // An ack has no reply; `finish` learns whether they all went through.
            if let Some(Err(error)) = self.channels[channel].0.basic_ack(tag, BasicAckOptions::default()).now_or_never()
            {
                return Err(self.endpoint.error(&error));
            }
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<(), BrokerError> {
        let everything = BasicNackOptions { multiple: true, requeue: true };
        for (channel, consumer) in &self.channels {
            // First no more deliveries: what is returned would come straight back to us.
            let cancelling = channel.basic_cancel(consumer.clone(), BasicCancelOptions::default());
            self.bounded("cancelling a consumer", cancelling).await?;
            // A queue's client in the broker holds acks back while it is behind, and drops them when their channel closes. The
            // cancel went through the queue's log after them; with one more answer of the channel they are all on their way.
            self.bounded("settling", channel.basic_qos(self.prefetch, BasicQosOptions::default())).await?;
            // Tag 0 is all that is still out on the channel, whether it was seen or not.
            self.bounded("returning dead letters", channel.basic_nack(0, everything)).await?;
            self.bounded("closing a channel", channel.close(200, "done".into())).await?;
        }
        self.over.cancel();
        if let Some(closed) = self.closed.take()
            && let Err(error) = closed.await
        {
            warn!("closing the connection of a pass: {error}");
        }
        Ok(())
    }
}

impl Drop for RabbitDeadPass {
    fn drop(&mut self) {
        // The end of the connection returns what is still out.
        self.over.cancel();
    }
}

async fn close_when(over: CancellationToken, connection: Arc<Connection>) {
    over.cancelled().await;
    close(&connection).await;
}
