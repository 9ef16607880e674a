//! The broker inside the process: for `demo`, tests and very small single-node use.
//!
//! It keeps nothing across a restart and needs not to: every unfinished task has its alarm in the store. It holds no waits, so
//! rungs do not exist in it and are reported as missing. Otherwise it does what RabbitMQ does, in the same words: prefetch per
//! consumer, redelivery with its flag, a delivery limit that leads to `.rejected`, deliveries that turn unusable when a session
//! breaks.
//!
//! There are no tasks and no timers in here. What a call causes has happened when the call returns, so a test that makes the
//! same calls sees the same deliveries.

mod hub;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use self::hub::{Consumer, Hub, Stored};
use super::{
    ARRIVES_AT_HEADER, About, Broker, BrokerError, Consumption, CopyContent, DEAD_LETTER_TYPE, DeadCopy, DeadPass,
    Delivery, Difference, HeaderValue, Message, PRIORITY_HEADER, Published, QueueDepth, QueueRole, QueueSpec,
    SessionWatch, Source, TRACEPARENT_HEADER, TRACESTATE_HEADER, Target, Topology, copy_of,
};
use crate::task::{Lane, LaneKey, Spot, TraceContext};

const PLACE: &str = "embedded";

/// One client of a broker in this process. Further clients of the same broker come from [`EmbeddedBroker::client`].
#[derive(Debug)]
pub struct EmbeddedBroker {
    hub: Arc<Hub>,
    namespace: String,
    id: usize,
    closed: AtomicBool,
}

impl EmbeddedBroker {
    /// A new, empty broker.
    pub fn new(namespace: impl Into<String>) -> EmbeddedBroker {
        EmbeddedBroker { hub: Arc::default(), namespace: namespace.into(), id: 0, closed: AtomicBool::new(false) }
    }

    /// Another client of the same broker, as a second process would be.
    pub fn client(&self) -> EmbeddedBroker {
        EmbeddedBroker {
            hub: self.hub.clone(),
            namespace: self.namespace.clone(),
            id: self.hub.with(|core| core.new_client()),
            closed: AtomicBool::new(false),
        }
    }

    /// Does what a lost connection does: every delivery of this client that is not answered turns unusable and is delivered
    /// again, flagged. The client consumes on, as with a new session.
    pub fn break_session(&self) {
        self.hub.with(|core| core.break_session(self.id));
    }

    /// Loses every message that is not out with a client.
    pub fn purge(&self) {
        self.hub.with(|core| core.purge());
    }

    fn check_open(&self) -> Result<(), BrokerError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(BrokerError::Unreachable { place: PLACE.into(), reason: "this client was closed".into() });
        }
        Ok(())
    }

    fn close_now(&self) {
        self.closed.store(true, Ordering::Release);
        self.hub.with(|core| {
            core.break_session(self.id);
            core.remove_consumers(self.id);
        });
    }

    fn publish_one(&self, message: Message) -> Published {
        let direct = |key: &LaneKey| format!("{}.{}.{}", self.namespace, key.queue, key.lane.as_str());
        let number = |header: &str| {
            message.headers.iter().find_map(|(name, value)| match value {
                HeaderValue::Number(number) if *name == header => Some(*number),
                _ => None,
            })
        };
        let text = |header: &str| {
            message.headers.iter().find_map(|(name, value)| match value {
                HeaderValue::Text(text) if *name == header => Some(text.as_str()),
                _ => None,
            })
        };
        let stored = |routing_key: String| Stored {
            body: message.body.clone(),
            message_type: message.message_type.map(str::to_owned),
            message_id: message.message_id.clone(),
            routing_key,
            arrives_at: number(ARRIVES_AT_HEADER),
            priority: number(PRIORITY_HEADER),
            trace: text(TRACEPARENT_HEADER).and_then(|parent| TraceContext::read(parent, text(TRACESTATE_HEADER))),
            // A copy's alone are ever asked for.
            headers: if matches!(message.target, Target::Dead { .. }) { message.headers.clone() } else { Vec::new() },
            returns: 0,
        };
        let taken = self.hub.with(|core| match &message.target {
            Target::Submit { task_type } => match core.route(task_type) {
                Some(queue) => core.push(&queue, stored(task_type.clone())),
                None => false,
            },
            Target::Lane(key) => core.push(&direct(key), stored(direct(key))),
            Target::Dead { queue } => {
                let name = format!("{}.{queue}.dead", self.namespace);
                core.push(&name, stored(name.clone()))
            }
            // The store holds the waits; and nobody outside this process has a queue here.
            Target::Rung { .. } | Target::Event { .. } | Target::Reply { .. } => false,
        });
        if taken { Published::Confirmed } else { Published::Returned }
    }
}

impl Drop for EmbeddedBroker {
    fn drop(&mut self) {
        self.close_now();
    }
}

#[async_trait]
impl Broker for EmbeddedBroker {
    async fn connect(&self) -> Result<(), BrokerError> {
        self.check_open()
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Published> {
        if let Err(error) = self.check_open() {
            return messages.iter().map(|_| Published::NotSent { reason: error.to_string() }).collect();
        }
        messages.into_iter().map(|message| self.publish_one(message)).collect()
    }

    fn is_up(&self) -> bool {
        self.check_open().is_ok()
    }

    fn holds_waits(&self) -> bool {
        false
    }

    async fn consume(
        &self,
        topology: Arc<Topology>,
        consumption: Consumption,
        watch: Arc<dyn SessionWatch>,
    ) -> Result<mpsc::Receiver<Delivery>, BrokerError> {
        self.check_open()?;
        let unwritten = |reason: String| BrokerError::Failed {
            place: PLACE.into(),
            reason: format!("what is missing could not be written: {reason}"),
        };
        let absent: Vec<_> =
            self.hub.with(|core| topology.queues.iter().filter(|spec| !core.has_queue(&spec.name)).cloned().collect());
        let spots: Vec<_> = absent.iter().filter_map(QueueSpec::spot).collect();
        if !spots.is_empty() {
            watch.found_missing(spots).await.map_err(unwritten)?;
        }
        let dead: Vec<_> =
            absent.into_iter().filter(|spec| spec.role == QueueRole::Dead).map(|spec| spec.queue).collect();
        if !dead.is_empty() {
            watch.found_dead_missing(dead).await.map_err(unwritten)?;
        }
        self.declare(&topology).await?;
        let prefetch = usize::from(consumption.prefetch.max(1));
        let sources = [Source::Tasks, Source::Retries, Source::Rejected];
        // Room for all that can be out at once, so that handing out never waits.
        let (sender, receiver) = mpsc::channel((prefetch * sources.len() * consumption.queues.len()).max(1));
        self.hub.with(|core| {
            core.remove_consumers(self.id);
            for name in &consumption.queues {
                for source in sources {
                    let queue = match source {
                        Source::Tasks => topology.lane_name(name, Lane::Tasks),
                        Source::Retries => topology.lane_name(name, Lane::Retries),
                        Source::Rejected => topology.rejected_name(name),
                    };
                    core.add_consumer(Consumer {
                        client: self.id,
                        queue,
                        name: name.clone(),
                        source,
                        prefetch,
                        held: 0,
                        sender: sender.clone(),
                        broken: Arc::default(),
                    });
                }
            }
        });
        Ok(receiver)
    }

    async fn stop_consuming(&self) {
        self.hub.with(|core| core.remove_consumers(self.id));
    }

    /// It has no rungs, so there is nothing else to keep.
    fn keep(&self, _topology: Arc<Topology>) {}

    async fn missing(&self, topology: &Topology, spots: &[Spot]) -> Result<Vec<Spot>, BrokerError> {
        self.check_open()?;
        Ok(self
            .hub
            .with(|core| spots.iter().filter(|spot| !core.has_queue(&topology.spot_name(spot))).cloned().collect()))
    }

    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.check_open()?;
        Ok(self.hub.with(|core| core.declare(topology))?)
    }

    async fn plan(&self, topology: &Topology) -> Result<Vec<Difference>, BrokerError> {
        self.check_open()?;
        let wanted = topology.queues.iter().filter(|spec| !matches!(spec.role, QueueRole::Rung(_)));
        Ok(self.hub.with(|core| {
            wanted
                .filter_map(|spec| {
                    if core.has_queue(&spec.name) {
                        core.conflict(spec).map(Difference::Conflict)
                    } else {
                        Some(Difference::Missing(spec.name.clone()))
                    }
                })
                .collect()
        }))
    }

    async fn delete(&self, topology: &Topology, force: bool) -> Result<(), BrokerError> {
        self.check_open()?;
        self.hub.with(|core| {
            let holding = topology
                .queues
                .iter()
                .find_map(|spec| core.ready(&spec.name).filter(|ready| *ready > 0).map(|ready| (spec, ready)));
            if let Some((spec, ready)) = holding
                && !force
            {
                return Err(BrokerError::NotEmpty { queue: spec.name.clone(), ready: ready as u64 });
            }
            for spec in &topology.queues {
                core.delete(&spec.name);
            }
            Ok(())
        })
    }

    async fn depths(&self, topology: &Topology) -> Result<Vec<QueueDepth>, BrokerError> {
        self.check_open()?;
        Ok(self.hub.with(|core| {
            topology
                .queues
                .iter()
                .map(|spec| {
                    let ready = core.ready(&spec.name).map(|ready| ready as u64);
                    let consumers = ready.map(|_| core.consumer_count(&spec.name) as u64);
                    QueueDepth { name: spec.name.clone(), ready, consumers }
                })
                .collect()
        }))
    }

    async fn dead_pass(&self, queue: &str) -> Result<Box<dyn DeadPass>, BrokerError> {
        self.check_open()?;
        let name = format!("{}.{queue}.dead", self.namespace);
        Ok(Box::new(EmbeddedDeadPass { hub: self.hub.clone(), name, taken: Vec::new() }))
    }

    async fn about(&self) -> Result<About, BrokerError> {
        Ok(About { product: "embedded".into(), version: env!("CARGO_PKG_VERSION").into(), frame_max: None })
    }

    async fn close(&self) {
        self.close_now();
    }
}

struct EmbeddedDeadPass {
    hub: Arc<Hub>,
    name: String,
    taken: Vec<Option<Stored>>,
}

#[async_trait]
impl DeadPass for EmbeddedDeadPass {
    fn keep_content(&mut self, _most_bytes: usize) {
        // It is all here anyway.
    }

    fn content(&self, index: usize) -> Option<CopyContent> {
        let copy = self.taken.get(index)?.as_ref()?;
        let headers = copy.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Some(CopyContent {
            body: copy.body.clone(),
            message_type: copy.message_type.clone(),
            routing_key: copy.routing_key.clone(),
            headers,
        })
    }

    async fn take_all(&mut self, _limit: Duration) -> Result<Vec<DeadCopy>, BrokerError> {
        let first = self.taken.len();
        let taken = self.hub.with(|core| core.take_all(&self.name));
        self.taken.extend(taken.into_iter().map(Some));
        let copies = self.taken.iter().enumerate().skip(first).filter_map(|(index, copy)| {
            let copy = copy.as_ref()?;
            let ours = copy.message_type.as_deref() == Some(DEAD_LETTER_TYPE);
            let of = if ours { copy_of(&copy.message_id) } else { None };
            Some(DeadCopy { index, message_id: Some(copy.message_id.clone()), of })
        });
        Ok(copies.collect())
    }

    async fn remove(&mut self, indexes: &[usize]) -> Result<(), BrokerError> {
        for &index in indexes {
            if let Some(copy) = self.taken.get_mut(index) {
                *copy = None;
            }
        }
        Ok(())
    }

    async fn finish(self: Box<Self>) -> Result<(), BrokerError> {
        Ok(())
    }
}

impl Drop for EmbeddedDeadPass {
    fn drop(&mut self) {
        let rest: Vec<Stored> = self.taken.drain(..).flatten().collect();
        self.hub.with(|core| {
            for copy in rest.into_iter().rev() {
                core.give_back(&self.name, copy);
            }
        });
    }
}
