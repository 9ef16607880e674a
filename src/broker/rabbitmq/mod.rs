//! The broker for production: RabbitMQ 3.10 or newer.
//!
//! `session` keeps the connections, `publisher` and `consumer` are its two halves, `topology` asks and declares, `dead_pass`
//! walks the DLQ. Everything that waits for the broker waits for a bounded time; nothing here decides what becomes of a task.
//!
//! What AMQP cannot do is left out: it cannot list, so `plan` does not see old rungs or the bindings of types that have left
//! the configuration. A stale binding sends a type to a queue that no longer names it, where it runs all the same.

mod acks;
mod conflict;
mod consumer;
mod dead_pass;
mod endpoint;
mod greeting;
mod keeper;
mod management;
mod nodes;
mod publisher;
mod session;
mod sieve;
mod tls;
mod topology;
mod transport;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

pub use self::management::Management;
pub use self::tls::Tls;

use self::consumer::Intake;
use self::dead_pass::RabbitDeadPass;
use self::endpoint::{Endpoint, Opened};
use self::keeper::Keeper;
use self::session::{Plan, Supervisor, close};
use self::topology::Asker;
use super::{
    About, Broker, BrokerError, Consumption, DeadPass, Delivery, Difference, Message, Published, QueueDepth,
    SessionWatch, Topology,
};
use crate::task::Spot;

/// Deliveries on their way from the consumers to the worker. Small: what waits here waits in the prefetch anyway.
const DELIVERIES_AHEAD: usize = 64;

/// A RabbitMQ node or cluster. Connects when it is first used.
pub struct RabbitBroker {
    supervisor: Arc<Supervisor>,
    /// The connection for questions and declarations, kept between them.
    asking: tokio::sync::Mutex<Option<Arc<Opened>>>,
    dead_pass_prefetch: u16,
}

impl RabbitBroker {
    /// A broker at these AMQP URLs, which are the nodes of one cluster. Does not connect yet.
    ///
    /// `confirm_timeout` bounds every publish and every single question to the broker; `heartbeat` (whole seconds, at least
    /// one) is how a dead connection is noticed: within about two of them.
    ///
    /// # Errors
    /// [`BrokerError::BadUrl`] for a URL that cannot be read.
    pub fn new(
        urls: Vec<String>,
        namespace: String,
        confirm_timeout: Duration,
        heartbeat: Duration,
    ) -> Result<RabbitBroker, BrokerError> {
        RabbitBroker::with_tls(urls, &Tls::default(), namespace, confirm_timeout, heartbeat)
    }

    /// The same for `amqps://` with an own certificate authority or a client certificate.
    ///
    /// # Errors
    /// [`BrokerError::BadUrl`] for a URL that cannot be read, [`BrokerError::BadTls`] for a file that cannot be used.
    pub fn with_tls(
        urls: Vec<String>,
        tls: &Tls,
        namespace: String,
        confirm_timeout: Duration,
        heartbeat: Duration,
    ) -> Result<RabbitBroker, BrokerError> {
        let tls = Arc::new(tls.read()?);
        let parse = |url: &String| Endpoint::parse(url, heartbeat, Arc::clone(&tls));
        let endpoints = urls.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            return Err(BrokerError::BadUrl { place: String::new(), reason: "no URL is given".into() });
        }
        Ok(RabbitBroker {
            supervisor: Arc::new(Supervisor::new(endpoints, namespace, confirm_timeout)),
            asking: tokio::sync::Mutex::new(None),
            dead_pass_prefetch: u16::MAX,
        })
    }

    /// How many copies one consumer of a dead pass takes before another one is started. A quorum queue allows 65,535, which is
    /// the default; tests need fewer.
    #[must_use]
    pub fn with_dead_pass_prefetch(mut self, prefetch: u16) -> RabbitBroker {
        self.dead_pass_prefetch = prefetch.max(1);
        self
    }

    fn limit(&self) -> Duration {
        self.supervisor.confirm_timeout
    }

    /// The connection for questions.
    async fn asking(&self) -> Result<Arc<Opened>, BrokerError> {
        let mut kept = self.asking.lock().await;
        if let Some(opened) = kept.as_ref().filter(|opened| opened.connection.status().connected()) {
            return Ok(opened.clone());
        }
        let opened = Arc::new(self.supervisor.nodes.open("redeliver admin", self.limit()).await?);
        *kept = Some(opened.clone());
        Ok(opened)
    }
}

impl RabbitBroker {
    /// This node cannot answer: it may have lost its cluster's majority.
    async fn ask_elsewhere(&self, asked: &Arc<Opened>) {
        self.supervisor.nodes.leave(&asked.endpoint);
        let mut kept = self.asking.lock().await;
        if let Some(opened) = kept.take_if(|kept| Arc::ptr_eq(kept, asked)) {
            close(&opened.connection).await;
        }
    }
}

impl std::fmt::Debug for RabbitBroker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitBroker").field("nodes", &self.supervisor.nodes).finish_non_exhaustive()
    }
}

impl Drop for RabbitBroker {
    fn drop(&mut self) {
        // The supervisor lives on its own task and would go on for ever.
        self.supervisor.closed.cancel();
    }
}

/// Runs a question on the kept connection; at the next node when this one cannot answer.
macro_rules! ask {
    ($broker:expr, $asker:ident => $question:expr) => {{
        let mut tries = 0;
        loop {
            let opened = $broker.asking().await?;
            let mut $asker = Asker::new(&opened.connection, opened.endpoint.clone(), $broker.limit());
            tries += 1;
            match $question.await {
                Err(BrokerError::Unreachable { .. } | BrokerError::Failed { .. })
                    if tries < $broker.supervisor.nodes.count() =>
                {
                    $broker.ask_elsewhere(&opened).await;
                }
                answer => break answer,
            }
        }
    }};
}

#[async_trait]
impl Broker for RabbitBroker {
    async fn connect(&self) -> Result<(), BrokerError> {
        self.supervisor.first_session(self.limit()).await.map(drop)
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Published> {
        if messages.is_empty() {
            return Vec::new();
        }
        let deadline = Instant::now() + self.limit();
        match self.supervisor.first_session(self.limit()).await {
            Ok(session) => session.publisher.publish(&messages, deadline).await,
            Err(error) => messages.iter().map(|_| Published::NotSent { reason: error.to_string() }).collect(),
        }
    }

    fn is_up(&self) -> bool {
        self.supervisor.session().is_some_and(|session| session.is_up())
    }

    fn holds_waits(&self) -> bool {
        true
    }

    async fn consume(
        &self,
        topology: Arc<Topology>,
        consumption: Consumption,
        watch: Arc<dyn SessionWatch>,
    ) -> Result<mpsc::Receiver<Delivery>, BrokerError> {
        let (sender, receiver) = mpsc::channel(DELIVERIES_AHEAD);
        let (first, tried) = oneshot::channel();
        let intake = Arc::new(Intake {
            topology,
            consumption,
            stopped: CancellationToken::new(),
            running: TaskTracker::new(),
            deliveries: Mutex::new(Some(sender)),
        });
        let keeper = Arc::new(Keeper::new(intake.topology.clone(), watch));
        self.supervisor.follow(Plan { intake, keeper, first: Mutex::new(Some(first)) });
        match tried.await {
            Ok(Err(error)) if session::is_final(&error) => Err(error),
            // Up, or not reachable yet, or closed meanwhile: then the receiver ends.
            _ => Ok(receiver),
        }
    }

    fn keep(&self, topology: Arc<Topology>) {
        if let Some(plan) = self.supervisor.plan() {
            plan.keeper.keep_instead(topology);
        }
    }

    async fn stop_consuming(&self) {
        let Some(plan) = self.supervisor.plan() else { return };
        let intake = &plan.intake;
        intake.stopped.cancel();
        intake.deliveries.lock().unwrap_or_else(PoisonError::into_inner).take();
        intake.running.close();
        if timeout(self.limit(), intake.running.wait()).await.is_err() {
            warn!("consumers did not stop in time; what they hold goes back when the connection closes");
        }
    }

    async fn missing(&self, topology: &Topology, spots: &[Spot]) -> Result<Vec<Spot>, BrokerError> {
        ask!(self, asker => asker.missing(topology, spots))
    }

    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        ask!(self, asker => asker.declare(topology))
    }

    async fn plan(&self, topology: &Topology) -> Result<Vec<Difference>, BrokerError> {
        ask!(self, asker => asker.plan(topology))
    }

    async fn delete(&self, topology: &Topology, force: bool) -> Result<(), BrokerError> {
        ask!(self, asker => asker.delete(topology, force))
    }

    async fn depths(&self, topology: &Topology) -> Result<Vec<QueueDepth>, BrokerError> {
        ask!(self, asker => asker.depths(topology))
    }

    async fn dead_pass(&self, queue: &str) -> Result<Box<dyn DeadPass>, BrokerError> {
        let opened = self.supervisor.nodes.open("redeliver dead pass", self.limit()).await?;
        let name = format!("{}.{queue}.dead", self.supervisor.namespace);
        let name = wire::short("queue name", &name)
            .map_err(|reason| BrokerError::Failed { place: opened.endpoint.place.clone(), reason })?;
        Ok(Box::new(RabbitDeadPass::new(opened, name, self.limit(), self.dead_pass_prefetch)))
    }

    async fn about(&self) -> Result<About, BrokerError> {
        let opened = self.asking().await?;
        let frame_max = Some(opened.connection.configuration().frame_max());
        Ok(About { product: "RabbitMQ".into(), version: opened.version.clone(), frame_max })
    }

    async fn close(&self) {
        self.stop_consuming().await;
        self.supervisor.close().await;
        if let Some(opened) = self.asking.lock().await.take() {
            close(&opened.connection).await;
        }
    }
}
