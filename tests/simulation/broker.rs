//! The broker as a process sees it: sessions that break and come back, publishes whose fate is uncertain, passes that are interrupted.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use redeliver::broker::{
    About, Answering, Broker, BrokerError, Consumption, CopyContent, DeadCopy, DeadPass, Delivery, Difference, Message,
    Published, QueueDepth, QueueRole, QueueSpec, SessionWatch, Token, Topology,
};
use redeliver::task::Spot;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::net::{Net, bare};
use crate::process::{COMES_BACK, PassSlot, Process};
use crate::world::locked;

/// See the module.
pub struct BrokerOf {
    pub process: Arc<Process>,
    pub net: Arc<Net>,
    kept: Arc<Mutex<Option<Arc<Topology>>>>,
    stop: CancellationToken,
}

impl BrokerOf {
    pub fn new(process: Arc<Process>, net: Arc<Net>) -> BrokerOf {
        BrokerOf { process, net, kept: Arc::default(), stop: CancellationToken::new() }
    }

    async fn ask(&self, call: &'static str) -> Result<(), BrokerError> {
        self.process.step(call).await;
        let world = &self.process.world;
        if self.net.is_down() || world.goes_wrong(world.faults.unasked) {
            return Err(unreachable());
        }
        Ok(())
    }
}

fn unreachable() -> BrokerError {
    BrokerError::Unreachable { place: "simulated".into(), reason: "simulated".into() }
}

#[async_trait]
impl Broker for BrokerOf {
    async fn connect(&self) -> Result<(), BrokerError> {
        self.ask("connect").await
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Published> {
        self.process.step("publish").await;
        let world = &self.process.world;
        let mut fates = Vec::with_capacity(messages.len());
        for message in messages {
            let id = message.message_id.clone();
            let fate = self.net.publish(message);
            world.tell(&self.process.name, fate_word(&fate), &id, 0);
            fates.push(fate);
        }
        if fates.iter().any(|fate| matches!(fate, Published::Unconfirmed { .. })) {
            tokio::time::sleep(crate::setting::CONFIRM_TIMEOUT).await;
        }
        self.process.step("published").await;
        fates
    }

    fn is_up(&self) -> bool {
        self.process.session_up.load(Ordering::Relaxed) && !self.net.is_down()
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
        self.process.step("consume").await;
        *locked(&self.kept) = Some(topology);
        let (sender, receiver) = mpsc::channel(4096);
        let sessions = Sessions {
            process: Arc::clone(&self.process),
            net: Arc::clone(&self.net),
            kept: Arc::clone(&self.kept),
            consumption,
            watch,
            sender,
        };
        let stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = sessions.run() => {}
            }
        });
        Ok(receiver)
    }

    fn keep(&self, topology: Arc<Topology>) {
        *locked(&self.kept) = Some(topology);
    }

    async fn stop_consuming(&self) {
        self.process.step("stop_consuming").await;
        self.stop.cancel();
        self.process.client.stop_consuming().await;
    }

    async fn missing(&self, topology: &Topology, spots: &[Spot]) -> Result<Vec<Spot>, BrokerError> {
        self.ask("missing").await?;
        let is_there =
            |spot: &Spot| topology.queues.iter().any(|s| s.spot().as_ref() == Some(spot) && self.net.has(topology, s));
        Ok(spots.iter().filter(|spot| !is_there(spot)).cloned().collect())
    }

    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.ask("declare").await?;
        self.net.declare(topology);
        Ok(())
    }

    async fn plan(&self, topology: &Topology) -> Result<Vec<Difference>, BrokerError> {
        self.ask("plan").await?;
        self.process.client.plan(topology).await
    }

    async fn delete(&self, topology: &Topology, force: bool) -> Result<(), BrokerError> {
        self.ask("delete").await?;
        self.process.client.delete(topology, force).await
    }

    async fn depths(&self, topology: &Topology) -> Result<Vec<QueueDepth>, BrokerError> {
        self.ask("depths").await?;
        let depths = self.process.client.depths(topology).await;
        self.process.step("depths told").await;
        depths
    }

    async fn dead_pass(&self, queue: &str) -> Result<Box<dyn DeadPass>, BrokerError> {
        self.ask("dead_pass").await?;
        let pass = self.process.client.dead_pass(queue).await?;
        let slot = self.process.keep_pass(pass);
        Ok(Box::new(PassOf { process: Arc::clone(&self.process), slot }))
    }

    async fn about(&self) -> Result<About, BrokerError> {
        self.ask("about").await?;
        self.process.client.about().await
    }

    async fn close(&self) {
        self.stop.cancel();
        self.process.client.close().await;
    }
}

fn fate_word(fate: &Published) -> &'static str {
    match fate {
        Published::Confirmed => "published",
        Published::Returned => "returned",
        Published::Nacked => "nacked",
        Published::Unconfirmed { .. } => "unconfirmed",
        Published::NotSent { .. } => "not sent",
    }
}

/// Keeps a session up: what is missing is told, declared again, and consumed, after every loss.
struct Sessions {
    process: Arc<Process>,
    net: Arc<Net>,
    kept: Arc<Mutex<Option<Arc<Topology>>>>,
    consumption: Consumption,
    watch: Arc<dyn SessionWatch>,
    sender: mpsc::Sender<Delivery>,
}

impl Sessions {
    async fn run(&self) {
        loop {
            if let Ok(deliveries) = self.begin().await {
                // What cut the one before is over.
                let _told_before: Option<()> = self.process.cut.notified().now_or_never();
                self.process.session_up.store(true, Ordering::Relaxed);
                self.process.world.tell(&self.process.name, "session begins", "", 0);
                self.pass_on(deliveries).await;
                self.process.cut_session();
                self.process.client.stop_consuming().await;
                self.process.world.tell(&self.process.name, "session ended", "", 0);
            }
            tokio::time::sleep(COMES_BACK + self.process.world.length(0, 500)).await;
        }
    }

    async fn begin(&self) -> Result<mpsc::Receiver<Delivery>, BrokerError> {
        self.process.step("session").await;
        if self.net.is_down() {
            return Err(unreachable());
        }
        let Some(topology) = locked(&self.kept).clone() else { return Err(unreachable()) };
        let absent: Vec<&QueueSpec> = topology.queues.iter().filter(|spec| !self.net.has(&topology, spec)).collect();
        let spots: Vec<Spot> = absent.iter().filter_map(|spec| spec.spot()).collect();
        let dead = absent.iter().filter(|spec| spec.role == QueueRole::Dead).map(|spec| spec.queue.clone());
        let dead: Vec<String> = dead.collect();
        let unwritten = |reason| BrokerError::Failed { place: "simulated".into(), reason };
        if !spots.is_empty() {
            self.watch.found_missing(spots).await.map_err(unwritten)?;
        }
        if !dead.is_empty() {
            self.watch.found_dead_missing(dead).await.map_err(unwritten)?;
        }
        self.process.step("session declares").await;
        self.net.declare(&topology);
        let nobody = Arc::new(Nobody);
        self.process.client.consume(Arc::new(bare(&topology)), self.consumption.clone(), nobody).await
    }

    /// Until the session ends.
    async fn pass_on(&self, mut deliveries: mpsc::Receiver<Delivery>) {
        let world = &self.process.world;
        loop {
            let delivery = tokio::select! {
                biased;
                () = self.process.cut.notified() => return,
                delivery = deliveries.recv() => delivery,
            };
            let Some(delivery) = delivery else { return };
            self.process.step("delivery").await;
            let id = delivery.message_id.clone().unwrap_or_default();
            world.tell(&self.process.name, "delivery", &id, delivery.returns);
            if world.goes_wrong(world.faults.cut * 0.3) {
                return;
            }
            let is_submission = delivery.message_type.is_none();
            let answer = TokenOf { inner: delivery.token, process: Arc::clone(&self.process), id, is_submission };
            let delivery = Delivery { token: Token::new(answer), ..delivery };
            if self.sender.send(delivery).await.is_err() {
                return;
            }
        }
    }
}

/// All that is missing was told before.
struct Nobody;

#[async_trait]
impl SessionWatch for Nobody {
    async fn found_missing(&self, _spots: Vec<Spot>) -> Result<(), String> {
        Ok(())
    }
}

struct TokenOf {
    inner: Token,
    process: Arc<Process>,
    id: String,
    is_submission: bool,
}

#[async_trait]
impl Answering for TokenOf {
    fn usable(&self) -> bool {
        self.inner.usable()
    }

    async fn ack(self: Box<Self>) -> bool {
        let (process, world) = (&self.process, &self.process.world);
        process.step("ack").await;
        if world.goes_wrong(world.faults.cut) {
            // The ack is on its way when the session breaks.
            process.cut_session();
            return true;
        }
        world.tell(&process.name, "acks", &self.id, 0);
        if self.inner.usable() {
            crate::checks::acked(world, &self.id, self.is_submission);
        }
        self.inner.ack().await
    }

    async fn nack(self: Box<Self>) -> bool {
        self.process.step("nack").await;
        self.process.world.tell(&self.process.name, "nacks", &self.id, 0);
        self.inner.nack().await
    }
}

struct PassOf {
    process: Arc<Process>,
    slot: PassSlot,
}

impl PassOf {
    /// Calls the pass, if it has not been interrupted.
    async fn call<T>(
        &self,
        name: &'static str,
        call: impl for<'p> FnOnce(&'p mut Box<dyn DeadPass>) -> futures_util::future::BoxFuture<'p, Result<T, BrokerError>>
        + Send,
    ) -> Result<T, BrokerError> {
        self.process.step(name).await;
        let world = &self.process.world;
        let mut slot = locked(&self.slot);
        if world.goes_wrong(world.faults.unasked) {
            slot.take();
        }
        let Some(pass) = slot.as_mut() else { return Err(unreachable()) };
        // The embedded broker has nothing to wait for.
        call(pass).now_or_never().unwrap_or_else(|| Err(unreachable()))
    }
}

#[async_trait]
impl DeadPass for PassOf {
    fn keep_content(&mut self, most_bytes: usize) {
        if let Some(pass) = locked(&self.slot).as_mut() {
            pass.keep_content(most_bytes);
        }
    }

    fn content(&self, index: usize) -> Option<CopyContent> {
        locked(&self.slot).as_ref().and_then(|pass| pass.content(index))
    }

    async fn take_all(&mut self, timeout: Duration) -> Result<Vec<DeadCopy>, BrokerError> {
        self.call("take_all", move |pass| pass.take_all(timeout)).await
    }

    async fn remove(&mut self, indexes: &[usize]) -> Result<(), BrokerError> {
        let indexes = indexes.to_vec();
        self.call("remove", move |pass| Box::pin(async move { pass.remove(&indexes).await })).await
    }

    async fn finish(self: Box<Self>) -> Result<(), BrokerError> {
        self.process.step("finish").await;
        let pass = locked(&self.slot).take();
        match pass {
            Some(pass) => pass.finish().await,
            None => Err(unreachable()),
        }
    }
}
