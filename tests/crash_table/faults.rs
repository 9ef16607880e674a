//! A store and a broker that kill their process at a chosen step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use redeliver::broker::{
    About, Broker, BrokerError, Consumption, DEAD_LETTER_TYPE, DeadPass, Delivery, Difference, Message, Published,
    QueueDepth, SessionWatch, Topology, WAKE_UP_TYPE,
};
use redeliver::store::{Store, StoreError, Urgency};
use redeliver::task::{Answer, Command, Spot};
use tokio::sync::mpsc;

use crate::store_double::Interference;

/// Where the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    BeforeSubmitCommit,
    AfterSubmitCommit,
    InHandler,
    BeforeSettleCommit,
    AfterSettleCommit,
    BeforeWakeUpPublish,
    AfterWakeUpPublish,
    BeforeCopyPublish,
    AfterCopyPublish,
    BeforeReleaseCommit,
    AfterReleaseCommit,
}

pub const STEPS: [Step; 11] = [
    Step::BeforeSubmitCommit,
    Step::AfterSubmitCommit,
    Step::InHandler,
    Step::BeforeSettleCommit,
    Step::AfterSettleCommit,
    Step::BeforeWakeUpPublish,
    Step::AfterWakeUpPublish,
    Step::BeforeCopyPublish,
    Step::AfterCopyPublish,
    Step::BeforeReleaseCommit,
    Step::AfterReleaseCommit,
];

impl Step {
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    pub fn parse(name: &str) -> Option<Step> {
        STEPS.into_iter().find(|step| step.name() == name)
    }

    /// Dies like a process that is killed: no destructor runs, no socket is closed politely.
    pub fn die(self) -> ! {
        std::process::abort()
    }
}

/// A store whose process dies around a commit.
pub struct DyingAt(pub Step);

#[async_trait]
impl Interference for DyingAt {
    async fn apply(
        &self,
        store: &dyn Store,
        urgency: Urgency,
        commands: Vec<Command>,
    ) -> Result<Vec<Answer>, StoreError> {
        let step = self.0;
        let concerned = commands.iter().any(|command| match step {
            Step::BeforeSubmitCommit | Step::AfterSubmitCommit => matches!(command, Command::Submit(_)),
            Step::BeforeSettleCommit | Step::AfterSettleCommit => matches!(command, Command::Settle { .. }),
            _ => false,
        });
        if concerned && matches!(step, Step::BeforeSubmitCommit | Step::BeforeSettleCommit) {
            step.die();
        }
        let answers = store.apply(urgency, commands).await;
        if concerned {
            step.die();
        }
        answers
    }

    async fn before(&self, call: &'static str) -> Result<(), StoreError> {
        if call == "release_items" && self.0 == Step::BeforeReleaseCommit {
            self.0.die();
        }
        Ok(())
    }

    async fn after(&self, call: &'static str) -> Result<(), StoreError> {
        if call == "release_items" && self.0 == Step::AfterReleaseCommit {
            self.0.die();
        }
        Ok(())
    }
}

/// A store that refuses every transaction while it is away, and counts the refusals.
pub struct Away {
    pub away: Arc<AtomicBool>,
    pub refusals: Arc<AtomicU64>,
}

#[async_trait]
impl Interference for Away {
    async fn apply(
        &self,
        store: &dyn Store,
        urgency: Urgency,
        commands: Vec<Command>,
    ) -> Result<Vec<Answer>, StoreError> {
        if self.away.load(Ordering::SeqCst) {
            self.refusals.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::Unavailable { place: "test".into(), reason: "away".into() });
        }
        store.apply(urgency, commands).await
    }
}

pub struct DyingBroker {
    pub inner: Arc<dyn Broker>,
    pub step: Step,
}

#[async_trait]
impl Broker for DyingBroker {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Published> {
        let wanted = match self.step {
            Step::BeforeWakeUpPublish | Step::AfterWakeUpPublish => Some(WAKE_UP_TYPE),
            Step::BeforeCopyPublish | Step::AfterCopyPublish => Some(DEAD_LETTER_TYPE),
            _ => None,
        };
        let concerned = wanted.is_some() && messages.iter().any(|message| message.message_type == wanted);
        if concerned && matches!(self.step, Step::BeforeWakeUpPublish | Step::BeforeCopyPublish) {
            self.step.die();
        }
        let fates = self.inner.publish(messages).await;
        if concerned {
            self.step.die();
        }
        fates
    }

    async fn connect(&self) -> Result<(), BrokerError> {
        self.inner.connect().await
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn holds_waits(&self) -> bool {
        self.inner.holds_waits()
    }

    async fn consume(
        &self,
        topology: Arc<Topology>,
        consumption: Consumption,
        watch: Arc<dyn SessionWatch>,
    ) -> Result<mpsc::Receiver<Delivery>, BrokerError> {
        self.inner.consume(topology, consumption, watch).await
    }

    fn keep(&self, topology: Arc<Topology>) {
        self.inner.keep(topology);
    }

    async fn stop_consuming(&self) {
        self.inner.stop_consuming().await;
    }

    async fn missing(&self, topology: &Topology, spots: &[Spot]) -> Result<Vec<Spot>, BrokerError> {
        self.inner.missing(topology, spots).await
    }

    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.inner.declare(topology).await
    }

    async fn plan(&self, topology: &Topology) -> Result<Vec<Difference>, BrokerError> {
        self.inner.plan(topology).await
    }

    async fn delete(&self, topology: &Topology, force: bool) -> Result<(), BrokerError> {
        self.inner.delete(topology, force).await
    }

    async fn depths(&self, topology: &Topology) -> Result<Vec<QueueDepth>, BrokerError> {
        self.inner.depths(topology).await
    }

    async fn dead_pass(&self, queue: &str) -> Result<Box<dyn DeadPass>, BrokerError> {
        self.inner.dead_pass(queue).await
    }

    async fn about(&self) -> Result<About, BrokerError> {
        self.inner.about().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
