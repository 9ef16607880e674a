//! The Broker port: wakes workers, holds waits, shows operators real queues. It is never the truth about a task.
//!
//! Losing any message, or the whole broker, delays tasks and loses none; see the design's one idea. One conformance suite
//! (`tests/broker_conformance`) holds every broker to the same behaviour.

mod about;
mod definitions;
mod embedded;
mod message;
mod notice;
mod rabbitmq;
mod topology;

pub use about::About;
pub use definitions::{Rights, definitions};
pub use embedded::EmbeddedBroker;
pub use message::{
    ARRIVES_AT_HEADER, CopyHistory, DEAD_LETTER_TYPE, HeaderValue, Headers, Message, PRIORITY_HEADER, Parsed,
    TRACEPARENT_HEADER, TRACESTATE_HEADER, Target, WAKE_UP_TYPE, copy_of, dead_copy, parse, submission, trace_headers,
    wake_up,
};
pub use notice::{REPLY_TYPE, notice_message};
pub use rabbitmq::{Management, RabbitBroker, Tls};
pub use topology::{Argument, Binding, ExchangeSpec, QueueRole, QueueSpec, Topology};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::task::{Millis, Spot, TraceContext};

/// Why a broker call failed.
#[derive(Debug, Error, Clone)]
pub enum BrokerError {
    /// The URL is no AMQP URL.
    #[error("broker url {place:?}: {reason}")]
    BadUrl {
        /// What may be shown of it.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate or key cannot be used.
    #[error("broker tls file {file}: {reason}")]
    BadTls {
        /// Which file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Not reachable now; the same call may work later.
    #[error("broker {place} is unreachable: {reason}")]
    Unreachable {
        /// Host and port, never the password.
        place: String,
        /// What happened.
        reason: String,
    },
    /// The credentials or the vhost were refused.
    #[error("broker {place} refused user {user:?}: {reason}")]
    Refused {
        /// Host and port.
        place: String,
        /// The user name.
        user: String,
        /// What it said.
        reason: String,
    },
    /// A version with which retries get lost.
    #[error("broker {place} is RabbitMQ {version}: {reason}")]
    Version {
        /// Host and port.
        place: String,
        /// Its version.
        version: String,
        /// Why it is refused and what to do.
        reason: String,
    },
    /// A queue or exchange exists with another argument.
    #[error(
        "queue {queue:?} exists with {argument} = {found}, wanted {wanted}: delete or drain it, or change the configuration"
    )]
    Conflict {
        /// The queue or exchange.
        queue: String,
        /// Which argument.
        argument: String,
        /// What the broker has.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// It still holds messages.
    #[error("queue {queue:?} still holds {ready} messages: let them run, replay or discard them, or force it")]
    NotEmpty {
        /// The queue.
        queue: String,
        /// How many.
        ready: u64,
    },
    /// The broker said no for another reason.
    #[error("broker {place}: {reason}")]
    Failed {
        /// Host and port.
        place: String,
        /// What it said.
        reason: String,
    },
}

/// What became of a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Published {
    /// The broker has it, on disk on a majority of its nodes.
    Confirmed,
    /// No queue took it.
    Returned,
    /// The broker refused it.
    Nacked,
    /// Neither came in time, or the connection broke meanwhile: it may or may not be there.
    Unconfirmed {
        /// What happened.
        reason: String,
    },
    /// It was not sent.
    NotSent {
        /// Why.
        reason: String,
    },
}

/// Where a delivery came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// `redeliver.<queue>.tasks`
    Tasks,
    /// `redeliver.<queue>.retries`
    Retries,
    /// `redeliver.<queue>.rejected`
    Rejected,
}

/// A message that waits for our word.
#[derive(Debug)]
pub struct Delivery {
    /// The `[[queue]]`.
    pub queue: String,
    /// Which of its broker queues.
    pub source: Source,
    /// The body.
    pub body: Bytes,
    /// AMQP `type`.
    pub message_type: Option<String>,
    /// AMQP `message_id`.
    pub message_id: Option<String>,
    /// The routing key it was first published with.
    pub routing_key: String,
    /// Our `redeliver-arrives-at` header, if it is there and an integer.
    pub arrives_at: Option<Millis>,
    /// Our `redeliver-priority` header, if it is there and an integer. A submission has its priority in its envelope.
    pub priority: Option<i64>,
    /// The span that sent it, if its headers `traceparent` and `tracestate` name one.
    pub trace: Option<TraceContext>,
    /// Delivered before, perhaps.
    pub redelivered: bool,
    /// How often the broker got it back without an ack. At the delivery limit it goes to `.rejected`.
    pub returns: i64,
    /// How to answer.
    pub token: Token,
}

/// The answer to a delivery. Use it once; dropping it leaves the message unacked until the session ends.
#[must_use]
pub struct Token(Box<dyn Answering>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("usable", &self.0.usable()).finish()
    }
}

/// What a broker implements behind a [`Token`].
#[async_trait]
pub trait Answering: Send + Sync {
    /// Whether the session that delivered it still stands.
    fn usable(&self) -> bool;
    /// Done with it. `false`: the session is gone and the message will be delivered again.
    async fn ack(self: Box<Self>) -> bool;
    /// Give it back for another delivery. `false`: the session is gone, which does the same.
    async fn nack(self: Box<Self>) -> bool;
}

impl Token {
    /// Wraps a broker's own answering.
    pub fn new(answering: impl Answering + 'static) -> Token {
        Token(Box::new(answering))
    }

    /// Whether the session that delivered the message still stands. If not, do not start it: it comes again.
    pub fn usable(&self) -> bool {
        self.0.usable()
    }

    /// Done with the message. `false`: the session is gone and the message will be delivered again. `true` means that the answer
    /// is on its way: nobody confirms an ack, and one that is under way when the session ends may be lost, which delivers the
    /// message again too.
    pub async fn ack(self) -> bool {
        self.0.ack().await
    }

    /// Gives the message back for another delivery. `false`: the session is gone, which does the same.
    pub async fn nack(self) -> bool {
        self.0.nack().await
    }
}

/// Told what is not in the broker, at the start of every session and while it lasts.
#[async_trait]
pub trait SessionWatch: Send + Sync {
    /// These spots of the topology were not there. They are declared after this returns `Ok`; on `Err` the session ends and is
    /// tried again, because a spot that is re-declared before the loss is written would hide it.
    async fn found_missing(&self, spots: Vec<Spot>) -> Result<(), String>;

    /// The DLQs of these queues were not there, so they hold no copy of anything. As above.
    async fn found_dead_missing(&self, queues: Vec<String>) -> Result<(), String> {
        let _no_interest = queues;
        Ok(())
    }
}

/// What a worker consumes.
#[derive(Debug, Clone)]
pub struct Consumption {
    /// What to declare and consume: both lanes and `.rejected` of each of these queues.
    pub queues: Vec<String>,
    /// Unacked deliveries per lane; at least 1.
    pub prefetch: u16,
}

/// What a broker has of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDepth {
    /// Its full name.
    pub name: String,
    /// `None` when it does not exist.
    pub ready: Option<u64>,
    /// Consumers, when it exists.
    pub consumers: Option<u64>,
}

/// A difference between a topology and the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// Not there yet.
    Missing(String),
    /// There with another argument.
    Conflict(BrokerErrorConflict),
    /// There, ours by its name, but in no part of the topology (an old rung). Only where the broker can list.
    Extra {
        /// Its name.
        name: String,
        /// What it still holds.
        ready: u64,
    },
}

/// The parts of [`BrokerError::Conflict`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerErrorConflict {
    /// The queue or exchange.
    pub queue: String,
    /// Which argument.
    pub argument: String,
    /// What the broker has.
    pub found: String,
    /// What was asked for.
    pub wanted: String,
}

impl From<BrokerErrorConflict> for BrokerError {
    fn from(conflict: BrokerErrorConflict) -> BrokerError {
        let BrokerErrorConflict { queue, argument, found, wanted } = conflict;
        BrokerError::Conflict { queue, argument, found, wanted }
    }
}

/// The port.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Brings the publishing session up, for those who want to know why it does not come. Publishing does it by itself.
    ///
    /// # Errors
    /// Why the first try failed; the next ones go on in the background.
    async fn connect(&self) -> Result<(), BrokerError>;

    /// Publishes all, pipelined, mandatory, persistent, confirmed within the broker's confirm time-out. By input index; never
    /// fails as a whole and never waits longer than that time-out.
    async fn publish(&self, messages: Vec<Message>) -> Vec<Published>;

    /// Whether a session stands, so that publishing has a chance.
    fn is_up(&self) -> bool;

    /// Whether the broker can hold waits on rungs.
    fn holds_waits(&self) -> bool;

    /// Starts the session's supervisor: connect, ask `watch` about missing spots, declare `topology`, consume; again after every
    /// loss, with jittered backoff, until [`Broker::close`]. Deliveries of all queues come on the one receiver.
    ///
    /// # Errors
    /// Only for what no later try can mend: refused credentials, version, conflicting arguments. An unreachable broker is not
    /// an error: the supervisor keeps trying.
    async fn consume(
        &self,
        topology: Arc<Topology>,
        consumption: Consumption,
        watch: Arc<dyn SessionWatch>,
    ) -> Result<mpsc::Receiver<Delivery>, BrokerError>;

    /// The session that consumes keeps this topology complete from now on: the same queues, with the rungs of other rules.
    fn keep(&self, topology: Arc<Topology>);

    /// Stops delivering; deliveries that are out can still be answered.
    async fn stop_consuming(&self);

    /// Which of these spots do not exist.
    ///
    /// # Errors
    /// When the broker cannot be asked.
    async fn missing(&self, topology: &Topology, spots: &[Spot]) -> Result<Vec<Spot>, BrokerError>;

    /// Declares what is not there.
    ///
    /// # Errors
    /// [`BrokerError::Conflict`] names the first object that exists with other arguments.
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError>;

    /// The difference between `topology` and the broker, without changing anything.
    ///
    /// # Errors
    /// When the broker cannot be asked.
    async fn plan(&self, topology: &Topology) -> Result<Vec<Difference>, BrokerError>;

    /// Deletes every object of `topology`. Refuses, naming the queue, while one holds messages, unless `force`.
    ///
    /// # Errors
    /// [`BrokerError::NotEmpty`], with nothing deleted, or when the broker cannot be asked.
    async fn delete(&self, topology: &Topology, force: bool) -> Result<(), BrokerError>;

    /// Depth of every queue of `topology`, in its order.
    ///
    /// # Errors
    /// When the broker cannot be asked.
    async fn depths(&self, topology: &Topology) -> Result<Vec<QueueDepth>, BrokerError>;

    /// Opens a pass over a queue's DLQ: takes every copy before any is returned.
    ///
    /// # Errors
    /// When the broker cannot be asked.
    async fn dead_pass(&self, queue: &str) -> Result<Box<dyn DeadPass>, BrokerError>;

    /// What the broker tells of itself.
    ///
    /// # Errors
    /// When the broker cannot be asked.
    async fn about(&self) -> Result<About, BrokerError>;

    /// Closes everything, bounded. Deliveries that were not answered come again, to somebody else.
    async fn close(&self);
}

/// A copy in the DLQ, taken but not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadCopy {
    /// Its place in this pass.
    pub index: usize,
    /// AMQP `message_id`: `<task_id>:<generation>`.
    pub message_id: Option<String>,
    /// The task and generation, when the copy is ours.
    pub of: Option<(String, i64)>,
}

/// What is in a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyContent {
    /// The body.
    pub body: Bytes,
    /// AMQP `type`.
    pub message_type: Option<String>,
    /// The routing key it was published with.
    pub routing_key: String,
    /// Its headers, as far as they are text or whole numbers.
    pub headers: BTreeMap<String, HeaderValue>,
}

/// A pass over a DLQ. Dropping it returns every copy that was not acked.
#[async_trait]
pub trait DeadPass: Send {
    /// Keeps what is in the copies, for [`DeadPass::content`], up to so many bytes of bodies in all; those that come later are taken
    /// without it. To be called before anything is taken: nothing is kept otherwise.
    fn keep_content(&mut self, most_bytes: usize);

    /// What is in a copy that was taken and not removed; `None` when it was not kept.
    fn content(&self, index: usize) -> Option<CopyContent>;

    /// Takes every copy that is ready; a time-out bounds it.
    ///
    /// # Errors
    /// When the session breaks; everything goes back by itself.
    async fn take_all(&mut self, timeout: Duration) -> Result<Vec<DeadCopy>, BrokerError>;

    /// Removes these copies for good.
    ///
    /// # Errors
    /// When the session breaks.
    async fn remove(&mut self, indexes: &[usize]) -> Result<(), BrokerError>;

    /// Returns the rest and ends.
    ///
    /// # Errors
    /// When the session breaks.
    async fn finish(self: Box<Self>) -> Result<(), BrokerError>;
}
