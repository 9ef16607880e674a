//! The queues themselves and who consumes them: plain state behind one lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::broker::{
    Answering, Argument, BrokerErrorConflict, Delivery, Headers, QueueRole, QueueSpec, Source, Token, Topology,
};
use crate::policy::TopicPattern;
use crate::task::{Millis, TraceContext};

/// What all clients of one embedded broker share.
#[derive(Debug, Default)]
pub(super) struct Hub(Mutex<Core>);

impl Hub {
    /// Changes the state, then hands out whatever can be handed out.
    pub(super) fn with<T>(self: &Arc<Self>, change: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut core);
        core.pump(self);
        result
    }
}

#[derive(Debug, Default)]
pub(super) struct Core {
    queues: BTreeMap<String, Queue>,
    /// Pattern and queue; the configuration refuses patterns that overlap.
    bindings: Vec<(TopicPattern, String)>,
    /// Where types go that no pattern names.
    rest: Option<String>,
    consumers: Vec<Consumer>,
    unacked: BTreeMap<u64, Unacked>,
    next_tag: u64,
    clients: usize,
}

#[derive(Debug)]
struct Queue {
    ready: VecDeque<Stored>,
    arguments: Vec<(&'static str, Argument)>,
    /// Whose turn it is.
    turn: usize,
}

/// A message in a queue.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) body: Bytes,
    pub(super) message_type: Option<String>,
    pub(super) message_id: String,
    pub(super) routing_key: String,
    pub(super) arrives_at: Option<Millis>,
    pub(super) priority: Option<i64>,
    pub(super) trace: Option<TraceContext>,
    pub(super) headers: Headers,
    /// How often it was delivered and came back.
    pub(super) returns: i64,
}

#[derive(Debug)]
pub(super) struct Consumer {
    /// The client, as it numbers itself.
    pub(super) client: usize,
    /// The broker queue.
    pub(super) queue: String,
    /// The `[[queue]]`.
    pub(super) name: String,
    pub(super) source: Source,
    pub(super) prefetch: usize,
    pub(super) held: usize,
    pub(super) sender: mpsc::Sender<Delivery>,
    /// Set when the client's session breaks.
    pub(super) broken: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Unacked {
    queue: String,
    client: usize,
    message: Stored,
}

impl Core {
    pub(super) fn new_client(&mut self) -> usize {
        self.clients += 1;
        self.clients
    }

    pub(super) fn has_queue(&self, name: &str) -> bool {
        self.queues.contains_key(name)
    }

    /// Declares what is not there; rungs never are. The first object with other arguments ends it.
    pub(super) fn declare(&mut self, topology: &Topology) -> Result<(), BrokerErrorConflict> {
        for spec in topology.queues.iter().filter(|spec| !matches!(spec.role, QueueRole::Rung(_))) {
            if let Some(conflict) = self.conflict(spec) {
                return Err(conflict);
            }
            self.queues.entry(spec.name.clone()).or_insert_with(|| Queue {
                ready: VecDeque::new(),
                arguments: spec.arguments.clone(),
                turn: 0,
            });
        }
        let submit = topology.submit_exchange();
        for binding in &topology.bindings {
            if binding.exchange != submit {
                self.rest = Some(binding.queue.clone());
            } else if let Ok(pattern) = TopicPattern::new(&binding.key)
                && !self.bindings.iter().any(|(known, queue)| known.as_str() == binding.key && *queue == binding.queue)
            {
                self.bindings.push((pattern, binding.queue.clone()));
            }
        }
        Ok(())
    }

    /// How the queue that exists differs from `spec`.
    pub(super) fn conflict(&self, spec: &QueueSpec) -> Option<BrokerErrorConflict> {
        let queue = self.queues.get(&spec.name)?;
        let names = spec.arguments.iter().chain(&queue.arguments).map(|(name, _)| *name);
        names
            .map(|name| (name, argument(&queue.arguments, name), argument(&spec.arguments, name)))
            .find(|(_, found, wanted)| found != wanted)
            .map(|(name, found, wanted)| BrokerErrorConflict {
                queue: spec.name.clone(),
                argument: name.to_owned(),
                found: shown(found),
                wanted: shown(wanted),
            })
    }

    pub(super) fn delete(&mut self, name: &str) {
        self.queues.remove(name);
        self.bindings.retain(|(_, queue)| queue != name);
        if self.rest.as_deref() == Some(name) {
            self.rest = None;
        }
        self.unacked.retain(|_, unacked| unacked.queue != name);
        self.consumers.retain(|consumer| consumer.queue != name);
    }

    /// The queue that takes submissions of `task_type`.
    pub(super) fn route(&self, task_type: &str) -> Option<String> {
        let bound = self.bindings.iter().find(|(pattern, _)| pattern.matches(task_type)).map(|(_, queue)| queue);
        bound.or(self.rest.as_ref()).cloned()
    }

    /// Appends a message; `false` when there is no such queue.
    pub(super) fn push(&mut self, queue: &str, message: Stored) -> bool {
        match self.queues.get_mut(queue) {
            Some(queue) => {
                queue.ready.push_back(message);
                true
            }
            None => false,
        }
    }

    pub(super) fn purge(&mut self) {
        for queue in self.queues.values_mut() {
            queue.ready.clear();
        }
    }

    pub(super) fn ready(&self, name: &str) -> Option<usize> {
        self.queues.get(name).map(|queue| queue.ready.len())
    }

    pub(super) fn consumer_count(&self, name: &str) -> usize {
        self.consumers.iter().filter(|consumer| consumer.queue == name).count()
    }

    pub(super) fn add_consumer(&mut self, consumer: Consumer) {
        self.consumers.push(consumer);
    }

    /// Ends the consumers of `client`; what they hold can still be answered.
    pub(super) fn remove_consumers(&mut self, client: usize) {
        self.consumers.retain(|consumer| consumer.client != client);
    }

    /// What the loss of its connection does to a client: all it holds goes back, and its tokens say so.
    pub(super) fn break_session(&mut self, client: usize) {
        for consumer in self.consumers.iter_mut().filter(|consumer| consumer.client == client) {
            consumer.broken.store(true, Ordering::Release);
            consumer.broken = Arc::default();
            consumer.held = 0;
        }
        let tags: Vec<u64> =
            self.unacked.iter().filter(|(_, unacked)| unacked.client == client).map(|(tag, _)| *tag).collect();
        // Newest first, each to the front, so that the oldest is in front in the end.
        for tag in tags.into_iter().rev() {
            if let Some(unacked) = self.unacked.remove(&tag) {
                self.give_back(&unacked.queue, unacked.message);
            }
        }
    }

    /// Takes every ready message of a queue.
    pub(super) fn take_all(&mut self, name: &str) -> Vec<Stored> {
        self.queues.get_mut(name).map(|queue| queue.ready.drain(..).collect()).unwrap_or_default()
    }

    /// Returns a message to the front of its queue, or to the queue behind its delivery limit.
    pub(super) fn give_back(&mut self, name: &str, mut message: Stored) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        message.returns += 1;
        let over = matches!(argument(&queue.arguments, "x-delivery-limit"), Some(Argument::Number(limit)) if message.returns > *limit);
        if !over {
            queue.ready.push_front(message);
            return;
        }
        if let Some(Argument::Text(rejected)) = argument(&queue.arguments, "x-dead-letter-routing-key").cloned() {
            self.push(&rejected, Stored { returns: 0, ..message });
        }
    }

    /// Ends a delivery; `false` when its session ended first.
    fn settle(&mut self, tag: u64, back: bool) -> bool {
        let Some(unacked) = self.unacked.remove(&tag) else { return false };
        let holder = self
            .consumers
            .iter_mut()
            .find(|consumer| consumer.client == unacked.client && consumer.queue == unacked.queue);
        if let Some(consumer) = holder {
            consumer.held = consumer.held.saturating_sub(1);
        }
        if back {
            self.give_back(&unacked.queue, unacked.message);
        }
        true
    }

    /// Hands out in the order of queue names and, within a queue, of messages.
    fn pump(&mut self, hub: &Arc<Hub>) {
        for (name, queue) in &mut self.queues {
            while let Some(message) = queue.ready.front() {
                let mut takers: Vec<&mut Consumer> = self
                    .consumers
                    .iter_mut()
                    .filter(|consumer| consumer.queue == *name && consumer.held < consumer.prefetch)
                    .collect();
                if takers.is_empty() {
                    break;
                }
                let at = queue.turn % takers.len();
                takers.rotate_left(at);
                // Full only while deliveries of a broken session lie in it unread; their end pumps again.
                let taker = takers.into_iter().find_map(|consumer| {
                    let place = consumer.sender.clone().try_reserve_owned().ok()?;
                    Some((consumer, place))
                });
                let Some((consumer, place)) = taker else { break };
                let tag = self.next_tag;
                self.next_tag += 1;
                consumer.held += 1;
                queue.turn = queue.turn.wrapping_add(1);
                let answer = Answer { hub: hub.clone(), tag, broken: consumer.broken.clone(), open: true };
                place.send(Delivery {
                    queue: consumer.name.clone(),
                    source: consumer.source,
                    body: message.body.clone(),
                    message_type: message.message_type.clone(),
                    message_id: Some(message.message_id.clone()),
                    routing_key: message.routing_key.clone(),
                    arrives_at: message.arrives_at,
                    priority: message.priority,
                    trace: message.trace.clone(),
                    redelivered: message.returns > 0,
                    returns: message.returns,
                    token: Token::new(answer),
                });
                let client = consumer.client;
                if let Some(message) = queue.ready.pop_front() {
                    self.unacked.insert(tag, Unacked { queue: name.clone(), client, message });
                }
            }
        }
    }
}

fn argument<'a>(arguments: &'a [(&'static str, Argument)], name: &str) -> Option<&'a Argument> {
    arguments.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

fn shown(value: Option<&Argument>) -> String {
    match value {
        None => "none".into(),
        Some(Argument::Text(text)) => text.clone(),
        Some(Argument::Number(number)) => number.to_string(),
    }
}

struct Answer {
    hub: Arc<Hub>,
    tag: u64,
    broken: Arc<AtomicBool>,
    open: bool,
}

#[async_trait]
impl Answering for Answer {
    fn usable(&self) -> bool {
        !self.broken.load(Ordering::Acquire)
    }

    async fn ack(mut self: Box<Self>) -> bool {
        self.open = false;
        self.hub.with(|core| core.settle(self.tag, false))
    }

    async fn nack(mut self: Box<Self>) -> bool {
        self.open = false;
        self.hub.with(|core| core.settle(self.tag, true))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // A dropped token leaves its message unacked, but its place in the receiver may be what another one waits for. Not
        // while the lock is held: that is a delivery which the hub itself could not hand on.
        if self.open
            && let Ok(mut core) = self.hub.0.try_lock()
        {
            core.pump(&self.hub);
        }
    }
}
