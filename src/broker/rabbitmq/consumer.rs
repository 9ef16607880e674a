//! Consumes lanes and `.rejected`: one channel per queue, each with a prefetch of its own.
//!
//! A consumer never ends quietly. An error, or an end that nobody asked for (the broker cancels consumers when their queue is
//! deleted or moves), ends the whole session, so that the next one looks for what is missing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::acks::Acks;
use super::session::Life;
use super::wire;
use crate::broker::{Answering, Consumption, Delivery, Source, Token, Topology};
use crate::task::Lane;

/// What the consumers of every session of one `consume` share.
pub(super) struct Intake {
    pub(super) topology: Arc<Topology>,
    pub(super) consumption: Consumption,
    /// Set by `stop_consuming`: no consumer is started any more, and those that run give back what they hold.
    pub(super) stopped: CancellationToken,
    /// The running consumers.
    pub(super) running: TaskTracker,
    /// Where deliveries go. A consumer takes its own sender, so the receiver ends when all have stopped.
    pub(super) deliveries: std::sync::Mutex<Option<mpsc::Sender<Delivery>>>,
}

/// Starts a consumer on each lane and `.rejected` of the queues. The session keeps the channels: lapin closes one with its last
/// handle, and a quorum queue's client in the broker, when it is behind, drops the acks that a closing channel has sent it.
pub(super) async fn start(
    connection: &Connection,
    intake: &Arc<Intake>,
    life: &Arc<Life>,
    limit: Duration,
) -> Result<Vec<Channel>, String> {
    let mut channels = Vec::new();
    let mut lanes = Vec::new();
    let sender = intake.deliveries.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let Some(sender) = sender else { return Ok(channels) };
    for queue in &intake.consumption.queues {
        for source in [Source::Tasks, Source::Retries, Source::Rejected] {
            let name = match source {
                Source::Tasks => intake.topology.lane_name(queue, Lane::Tasks),
                Source::Retries => intake.topology.lane_name(queue, Lane::Retries),
                Source::Rejected => intake.topology.rejected_name(queue),
            };
            let name = wire::short("queue name", &name)?;
            let opened = timeout(limit, open(connection, name.clone(), intake.consumption.prefetch)).await;
            let (channel, consumer) = opened
                .map_err(|_| format!("consuming {name} took longer than {} s", limit.as_secs_f32()))?
                .map_err(|error| format!("consuming {name}: {error}"))?;
            channels.push(channel.clone());
            let prefetch = intake.consumption.prefetch;
            lanes.push(LaneConsumer {
                queue: queue.clone(),
                source,
                name,
                acks: Acks::start(channel.clone(), life.clone(), intake.stopped.clone(), prefetch),
                channel,
                consumer,
                life: life.clone(),
                stopped: intake.stopped.clone(),
                deliveries: sender.clone(),
                limit,
            });
        }
    }
    // None hands anything on before all are open: each lane has a prefetch of its own, so the worker sees the heads of both from
    // the beginning and can give each its share.
    for lane in lanes {
        intake.running.spawn(lane.run());
    }
    Ok(channels)
}

async fn open(connection: &Connection, queue: ShortString, prefetch: u16) -> lapin::Result<(Channel, lapin::Consumer)> {
    let channel = connection.create_channel().await?;
    // 0 would mean no limit at all.
    channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await?;
    let consumer = channel
        .basic_consume(queue, ShortString::default(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    Ok((channel, consumer))
}

struct LaneConsumer {
    queue: String,
    source: Source,
    name: ShortString,
    acks: Arc<Acks>,
    channel: Channel,
    consumer: lapin::Consumer,
    life: Arc<Life>,
    stopped: CancellationToken,
    deliveries: mpsc::Sender<Delivery>,
    limit: Duration,
}

impl LaneConsumer {
    async fn run(mut self) {
        loop {
            let next = tokio::select! {
                biased;
                () = self.life.ended() => return,
                () = self.stopped.cancelled() => return self.stop().await,
                next = self.consumer.next() => next,
            };
            let incoming = match next {
                Some(Ok(incoming)) => incoming,
                Some(Err(error)) => return self.life.end(format!("consumer of {}: {error}", self.name)),
                None => return self.life.end(format!("the broker cancelled the consumer of {}", self.name)),
            };
            let tag = incoming.delivery_tag;
            self.acks.delivered(tag);
            let token = Token::new(Answer { acks: self.acks.clone(), tag });
            let delivery = wire::delivery(&self.queue, self.source, incoming, token);
            let handed_on = tokio::select! {
                biased;
                () = self.life.ended() => return,
                handed_on = self.deliveries.send(delivery) => handed_on,
                () = self.stopped.cancelled() => {
                    self.give_back(tag);
                    return self.stop().await;
                }
            };
            if handed_on.is_err() {
                debug!(queue = %self.name, "nobody takes deliveries any more");
                self.give_back(tag);
                return self.stop().await;
            }
        }
    }

    /// Cancels the consumer and gives back what it had fetched and not handed on.
    async fn stop(mut self) {
        // Nothing waits from here on.
        self.acks.flush();
        let cancelled =
            timeout(self.limit, self.channel.basic_cancel(self.consumer.tag(), BasicCancelOptions::default()));
        match cancelled.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return self.life.end(format!("cancelling the consumer of {}: {error}", self.name)),
            Err(_) => return self.life.end(format!("cancelling the consumer of {} took too long", self.name)),
        }
        // After the cancel lapin yields what was fetched and then ends.
        loop {
            match timeout(self.limit, self.consumer.next()).await {
                Ok(Some(Ok(incoming))) => self.give_back(incoming.delivery_tag),
                Ok(Some(Err(_)) | None) => return,
                Err(_) => {
                    warn!(queue = %self.name, "a cancelled consumer did not end");
                    return;
                }
            }
        }
    }

    fn give_back(&self, tag: u64) {
        if !(self.acks.usable() && self.acks.nack(tag)) {
            debug!(queue = %self.name, "the session ended before a delivery was given back; that gives it back too");
        }
    }
}

/// The answer to one delivery, valid on its own channel of its own session only.
struct Answer {
    acks: Arc<Acks>,
    tag: u64,
}

#[async_trait]
impl Answering for Answer {
    fn usable(&self) -> bool {
        self.acks.usable()
    }

    async fn ack(self: Box<Self>) -> bool {
        let usable = self.usable();
        if usable {
            self.acks.ack(self.tag);
        }
        usable
    }

    async fn nack(self: Box<Self>) -> bool {
        self.usable() && self.acks.nack(self.tag)
    }
}
