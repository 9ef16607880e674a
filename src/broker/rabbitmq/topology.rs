//! Asks about, declares and deletes the broker's objects.
//!
//! AMQP's only question is the passive declare, and a "no" closes the channel it was asked on. So everything here works on a
//! channel of its own that is opened again when needed, never on one that carries messages.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{
    BasicGetOptions, BasicNackOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};
use tokio::time::timeout;
use tracing::debug;

use super::endpoint::{Endpoint, reply};
use super::wire;
use crate::broker::{BrokerError, BrokerErrorConflict, Difference, ExchangeSpec, QueueDepth, QueueSpec, Topology};
use crate::task::Spot;

/// Asks one question after the other on a throwaway channel.
pub(super) struct Asker<'c> {
    connection: &'c Connection,
    endpoint: Arc<Endpoint>,
    limit: Duration,
    channel: Option<Channel>,
}

/// What a passive declare told.
pub(super) struct Found {
    pub(super) ready: u64,
    pub(super) consumers: u64,
}

impl<'c> Asker<'c> {
    /// Each single question takes at most `limit`.
    pub(super) fn new(connection: &'c Connection, endpoint: Arc<Endpoint>, limit: Duration) -> Asker<'c> {
        Asker { connection, endpoint, limit, channel: None }
    }

    /// Runs one request; `Ok(None)` is the broker's "not found", which costs the channel.
    async fn ask<T>(
        &mut self,
        doing: &str,
        request: impl AsyncFnOnce(&Channel) -> lapin::Result<T>,
    ) -> Result<Option<T>, BrokerError> {
        let channel = match self.channel.take().filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => match timeout(self.limit, self.connection.create_channel()).await {
                Ok(channel) => channel.map_err(|error| self.endpoint.error(&error))?,
                Err(_) => return Err(self.endpoint.too_slow("opening a channel", self.limit)),
            },
        };
        match timeout(self.limit, request(&channel)).await {
            Ok(Ok(answer)) => {
                self.channel = Some(channel);
                Ok(Some(answer))
            }
            Ok(Err(error)) if is_not_found(&error) => Ok(None),
            Ok(Err(error)) => Err(self.endpoint.error(&error)),
            Err(_) => Err(self.endpoint.too_slow(doing, self.limit)),
        }
    }

    /// A failure that is not the broker's.
    pub(super) fn failed(&self, reason: String) -> BrokerError {
        BrokerError::Failed { place: self.endpoint.place.clone(), reason }
    }

    fn name(&self, name: &str) -> Result<ShortString, BrokerError> {
        wire::short("name", name).map_err(|reason| self.failed(format!("{name:?}: {reason}")))
    }

    /// What is in queue `name`, or `None` when there is no such queue.
    pub(super) async fn queue(&mut self, name: &str) -> Result<Option<Found>, BrokerError> {
        let name = self.name(name)?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = self
            .ask("asking for a queue", async |channel| {
                channel.queue_declare(name, options, FieldTable::default()).await
            })
            .await?;
        Ok(found.map(|queue| Found {
            ready: u64::from(queue.message_count()),
            consumers: u64::from(queue.consumer_count()),
        }))
    }

    /// Whether queue `name` takes part in a majority: taking a message needs one, whether there is a message or not. One that is
    /// there goes back.
    pub(super) async fn serves(&mut self, name: &str) -> Result<(), BrokerError> {
        let queue = self.name(name)?;
        let taken = self
            .ask("taking from a queue", async |channel| {
                let taken = channel.basic_get(queue, BasicGetOptions::default()).await?;
                if let Some(taken) = &taken {
                    let back = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
                    channel.basic_nack(taken.delivery_tag, back).await?;
                }
                Ok(())
            })
            .await?;
        self.expect_found(taken, name)
    }

    async fn exchange(&mut self, spec: &ExchangeSpec) -> Result<bool, BrokerError> {
        let name = self.name(&spec.name)?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let found = self
            .ask("asking for an exchange", async |channel| {
                channel.exchange_declare(name, kind(spec), options, FieldTable::default()).await
            })
            .await?;
        Ok(found.is_some())
    }

    async fn declare_queue(&mut self, spec: &QueueSpec) -> Result<(), BrokerError> {
        let name = self.name(&spec.name)?;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let arguments = wire::arguments(&spec.arguments);
        let declared = self
            .ask("declaring a queue", async |channel| channel.queue_declare(name, options, arguments).await)
            .await?;
        self.expect_found(declared, &spec.name)?;
        Ok(())
    }

    async fn declare_exchange(&mut self, spec: &ExchangeSpec) -> Result<(), BrokerError> {
        let name = self.name(&spec.name)?;
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let arguments = wire::arguments(&spec.arguments);
        let declared = self
            .ask("declaring an exchange", async |channel| {
                channel.exchange_declare(name, kind(spec), options, arguments).await
            })
            .await?;
        self.expect_found(declared, &spec.name)
    }

    /// Turns a "not found" where it makes no sense into an error: a queue that has no leader answers so.
    fn expect_found<T>(&self, answer: Option<T>, name: &str) -> Result<T, BrokerError> {
        answer.ok_or_else(|| self.failed(format!("{name:?} is not available")))
    }

    /// Which of these spots are not there.
    pub(super) async fn missing(&mut self, topology: &Topology, spots: &[Spot]) -> Result<Vec<Spot>, BrokerError> {
        let mut missing = Vec::new();
        for spot in spots {
            if self.queue(&topology.spot_name(spot)).await?.is_none() {
                missing.push(spot.clone());
            }
        }
        Ok(missing)
    }

    /// The queues of `topology` that are not there.
    pub(super) async fn absent<'t>(&mut self, topology: &'t Topology) -> Result<Vec<&'t QueueSpec>, BrokerError> {
        let mut absent = Vec::new();
        for spec in &topology.queues {
            if self.queue(&spec.name).await?.is_none() {
                absent.push(spec);
            }
        }
        Ok(absent)
    }

    /// Checks the arguments of what is there, and returns what is not. AMQP can only check by declaring, so each is asked for
    /// once more right before: what was lost a moment ago must not come back unseen.
    pub(super) async fn check<'t>(&mut self, topology: &'t Topology) -> Result<Vec<&'t QueueSpec>, BrokerError> {
        let mut absent = Vec::new();
        for spec in &topology.queues {
            if self.queue(&spec.name).await?.is_none() {
                absent.push(spec);
            } else {
                self.declare_queue(spec).await?;
            }
        }
        Ok(absent)
    }

    /// Declares these queues.
    pub(super) async fn declare_queues(&mut self, specs: &[&QueueSpec]) -> Result<(), BrokerError> {
        for spec in specs {
            self.declare_queue(spec).await?;
        }
        Ok(())
    }

    /// Declares everything, in the topology's order.
    pub(super) async fn declare(&mut self, topology: &Topology) -> Result<(), BrokerError> {
        for spec in &topology.queues {
            self.declare_queue(spec).await?;
        }
        self.declare_routes(topology).await?;
        debug!(queues = topology.queues.len(), bindings = topology.bindings.len(), "topology declared");
        Ok(())
    }

    /// Declares exchanges and bindings; their queues must be there.
    pub(super) async fn declare_routes(&mut self, topology: &Topology) -> Result<(), BrokerError> {
        for spec in &topology.exchanges {
            self.declare_exchange(spec).await?;
        }
        for binding in &topology.bindings {
            let (queue, exchange) = (self.name(&binding.queue)?, self.name(&binding.exchange)?);
            let key = self.name(&binding.key)?;
            let bound = self
                .ask("binding a queue", async |channel| {
                    channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default()).await
                })
                .await?;
            self.expect_found(bound, &binding.queue)?;
        }
        Ok(())
    }

    /// Fails, naming it, when an exchange is not there.
    pub(super) async fn need_exchanges(&mut self, topology: &Topology) -> Result<(), BrokerError> {
        for spec in &topology.exchanges {
            if !self.exchange(spec).await? {
                return Err(self.failed(format!(
                    "exchange {:?} is missing and this user may not declare it: import the definitions, or `redeliver topology \
                     apply` as somebody who may",
                    spec.name
                )));
            }
        }
        Ok(())
    }

    /// The difference, without changing anything: what exists is declared again as we want it, which a broker answers with
    /// "yes" or with the conflict. AMQP cannot list, so bindings and old rungs are not seen.
    pub(super) async fn plan(&mut self, topology: &Topology) -> Result<Vec<Difference>, BrokerError> {
        let mut differences = Vec::new();
        for spec in &topology.queues {
            if self.queue(&spec.name).await?.is_none() {
                differences.push(Difference::Missing(spec.name.clone()));
            } else {
                differences.extend(as_difference(self.declare_queue(spec).await)?);
            }
        }
        for spec in &topology.exchanges {
            if self.exchange(spec).await? {
                differences.extend(as_difference(self.declare_exchange(spec).await)?);
            } else {
                differences.push(Difference::Missing(spec.name.clone()));
            }
        }
        Ok(differences)
    }

    /// Deletes everything, exchanges first, so that nothing new comes in, and targets after what dead-letters into them.
    pub(super) async fn delete(&mut self, topology: &Topology, force: bool) -> Result<(), BrokerError> {
        if !force {
            // Quorum queues refuse the broker's own if-empty with the loss of the connection, so we look first.
            for spec in &topology.queues {
                if let Some(Found { ready: ready @ 1.., .. }) = self.queue(&spec.name).await? {
                    return Err(BrokerError::NotEmpty { queue: spec.name.clone(), ready });
                }
            }
        }
        for spec in topology.exchanges.iter().rev() {
            let name = self.name(&spec.name)?;
            self.ask("deleting an exchange", async |channel| {
                channel.exchange_delete(name, ExchangeDeleteOptions::default()).await
            })
            .await?;
        }
        for spec in topology.queues.iter().rev() {
            let name = self.name(&spec.name)?;
            self.ask("deleting a queue", async |channel| {
                channel.queue_delete(name, QueueDeleteOptions::default()).await
            })
            .await?;
        }
        Ok(())
    }

    /// Depth of every queue, in order.
    pub(super) async fn depths(&mut self, topology: &Topology) -> Result<Vec<QueueDepth>, BrokerError> {
        let mut depths = Vec::with_capacity(topology.queues.len());
        for spec in &topology.queues {
            let found = self.queue(&spec.name).await?;
            depths.push(QueueDepth {
                name: spec.name.clone(),
                ready: found.as_ref().map(|found| found.ready),
                consumers: found.as_ref().map(|found| found.consumers),
            });
        }
        Ok(depths)
    }
}

fn kind(spec: &ExchangeSpec) -> ExchangeKind {
    match spec.kind {
        "topic" => ExchangeKind::Topic,
        "fanout" => ExchangeKind::Fanout,
        other => ExchangeKind::Custom(other.to_owned()),
    }
}

fn as_difference(declared: Result<(), BrokerError>) -> Result<Option<Difference>, BrokerError> {
    match declared {
        Ok(()) => Ok(None),
        Err(BrokerError::Conflict { queue, argument, found, wanted }) => {
            Ok(Some(Difference::Conflict(BrokerErrorConflict { queue, argument, found, wanted })))
        }
        Err(error) => Err(error),
    }
}

/// The broker closed the channel because the object does not exist. A queue whose home is down gets a 404 too, with another
/// text, and must not be taken for a lost one.
pub(super) fn is_not_found(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(told) = error.kind() else { return false };
    let text = told.get_message().as_str();
    told.get_id() == reply::NOT_FOUND && (text.contains("no queue") || text.contains("no exchange"))
}
