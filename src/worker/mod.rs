//! Takes messages and alarms, runs attempts, settles them: intake → claim → run → settle → publish → ack.
//!
//! Everything here is plumbing around [`crate::task::Rows`]: this module never decides what a failure means or when a task may
//! run, and it acks nothing before a commit has left an alarm for the task or finished it.
//!
//! Every `select!` is biased, the end first: which of two ready branches goes on must not be left to chance, or a simulated run could not
//! be repeated.

mod admission;
mod alerts;
mod attempt;
mod doubt;
mod fallback;
mod feed;
mod follow;
mod intake;
mod lanes;
mod leases;
mod notices;
mod outbox;
mod patience;
mod plan;
mod pulse;
mod replays;
mod rules;
mod scheduler;
mod settle;
mod stall;
mod strays;
mod surroundings;

pub use feed::dispatch_once;
pub use plan::{Plan, RouteError};
pub use rules::RuleSet;
pub use strays::unknown_queues;
pub use surroundings::{Heartbeats, Surroundings};

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{Broker, BrokerError, Consumption, SessionWatch};
use crate::config::QueueConfig;
use crate::store::{Store, StoreError, Urgency};
use crate::task::{Answer, Command, Millis, Spot};
use crate::telemetry::{Event, Observers, Vitals};

use lanes::Lanes;
use leases::{Doubt, Leases};
use outbox::Outbox;
use patience::Patience;
use pulse::Pulse;
use rules::{Ground, Rules};

/// Why a worker did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The broker refused for good.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// `serve` names a queue that is not configured.
    #[error("queue {0:?} is not configured")]
    UnknownQueue(String),
    /// The system gave no thread.
    #[error("cannot start the heartbeat thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running worker.
#[must_use = "a worker that is dropped goes on until the runtime ends; stop it"]
pub struct Worker {
    shared: Arc<Shared>,
    tracker: TaskTracker,
    heartbeats: Option<std::thread::JoinHandle<()>>,
}

/// What all parts of a worker share.
pub(crate) struct Shared {
    pub store: Arc<dyn Store>,
    pub broker: Arc<dyn Broker>,
    /// As it was started. What a reload replaces is in `rules`.
    pub plan: Plan,
    rules: ArcSwap<Rules>,
    ground: Ground,
    tracker: TaskTracker,
    /// This process's identity, new at every start.
    pub name: String,
    /// See [`Surroundings::random`].
    random: Arc<dyn Fn() -> f64 + Send + Sync>,
    pub observers: Observers,
    pub leases: Arc<Leases>,
    pub pulse: Arc<Pulse>,
    pub outbox: Outbox,
    /// Attempts that have ended and are to be settled together.
    pub finished: settle::Gathering,
    /// Places for attempts.
    pub slots: Arc<Semaphore>,
    /// Places per queue, for queues with a bound of their own.
    pub queue_slots: HashMap<String, Arc<Semaphore>>,
    /// The lanes of each served queue: where held rows are offered for a start.
    pub lanes: HashMap<String, Arc<Lanes>>,
    /// Wakes the scheduler before its time.
    pub nudge: Notify,
    /// Wakes admission: an event may have opened a gate.
    pub gate_moved: Notify,
    /// Wakes admission at once: held rows that it could not offer yet may stand in line now.
    pub offers_used: Notify,
    /// The latest arrival seen on each lane since it was last written.
    pub marks: std::sync::Mutex<BTreeMap<crate::task::LaneKey, Millis>>,
    /// No new attempt starts after this.
    pub stop_intake: CancellationToken,
    /// Attempts are cancelled and released.
    pub stop_attempts: CancellationToken,
    /// Everything ends.
    pub stop_all: CancellationToken,
    store_down: std::sync::Mutex<Option<(Millis, String)>>,
}

impl Worker {
    /// Starts consuming, scheduling and heart-beating.
    ///
    /// # Errors
    /// When the broker refuses for good (credentials, version, arguments), a served queue is not configured, or the store cannot be read.
    pub async fn start(
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        plan: Plan,
        observers: Observers,
    ) -> Result<Worker, StartError> {
        Worker::start_in(Surroundings::machine(), store, broker, plan, observers).await
    }

    /// The same in other surroundings than the machine's own.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub async fn start_in(
        surroundings: Surroundings,
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        plan: Plan,
        observers: Observers,
    ) -> Result<Worker, StartError> {
        let Surroundings { name, random, heartbeats } = surroundings;
        if let Some(unknown) = plan.serve.iter().find(|name| !plan.queues.iter().any(|queue| queue.name == **name)) {
            return Err(StartError::UnknownQueue(unknown.clone()));
        }
        let served: Vec<&QueueConfig> =
            plan.queues.iter().filter(|q| plan.serve.is_empty() || plan.serve.contains(&q.name)).collect();
        let queue_slots = served
            .iter()
            .filter_map(|queue| queue.concurrency.map(|places| (queue.name.clone(), Arc::new(Semaphore::new(places)))))
            .collect();
        let lanes =
            served.iter().map(|queue| (queue.name.clone(), Arc::new(Lanes::new(plan.worker.retry_share)))).collect();
        let served: Vec<String> = served.into_iter().map(|queue| queue.name.clone()).collect();
        let tracker = TaskTracker::new();
        let (alerts, alert_feed) = alerts::AlertObserver::new();
        let told = Arc::new(Notify::new());
        let notices = notices::NoticeObserver::new(Arc::clone(&told), plan.events);
        let observers = observers.and(Arc::new(alerts)).and(Arc::new(notices));
        let pulse = Arc::new(Pulse::new());
        let leases = Arc::new(Leases::default());
        let stop_all = CancellationToken::new();
        let beat_every = plan.worker.lease / 3;
        let (outbox, outbox_feed) = Outbox::new();
        let (ground, rules) = Ground::new(&plan, &name, broker.as_ref());
        let shared = Arc::new(Shared {
            rules: ArcSwap::from_pointee(rules),
            ground,
            tracker: tracker.clone(),
            name,
            random,
            observers,
            leases: Arc::clone(&leases),
            pulse: Arc::clone(&pulse),
            outbox,
            finished: settle::Gathering::default(),
            slots: Arc::new(Semaphore::new(plan.worker.concurrency)),
            queue_slots,
            lanes,
            nudge: Notify::new(),
            gate_moved: Notify::new(),
            offers_used: Notify::new(),
            marks: std::sync::Mutex::default(),
            stop_intake: CancellationToken::new(),
            stop_attempts: CancellationToken::new(),
            stop_all: stop_all.clone(),
            store_down: std::sync::Mutex::new(None),
            store: Arc::clone(&store),
            broker: Arc::clone(&broker),
            plan,
        });
        let heart = leases::Heart { store, leases, pulse, every: beat_every, stop: stop_all };
        let heartbeats = match heartbeats {
            Heartbeats::OwnThread => Some(heart.spawn_thread()?),
            Heartbeats::WithTheRest => {
                tracker.spawn(heart.run());
                None
            }
        };
        let consumption = Consumption { queues: served.clone(), prefetch: shared.plan.worker.prefetch };
        let watch = Arc::new(MissingWriter(Arc::clone(&shared)));
        let deliveries = broker.consume(Arc::clone(&shared.rules().topology), consumption, watch).await?;
        tracker.spawn(outbox::run(Arc::clone(&shared), outbox_feed, tracker.clone()));
        tracker.spawn(scheduler::run(Arc::clone(&shared), tracker.clone()));
        tracker.spawn(admission::run(Arc::clone(&shared)));
        tracker.spawn(alerts::run(Arc::clone(&shared), alert_feed));
        tracker.spawn(notices::run(Arc::clone(&shared), told));
        tracker.spawn(replays::run(Arc::clone(&shared), tracker.clone()));
        intake::spawn(&shared, &tracker, deliveries, &served);
        Ok(Worker { shared, tracker, heartbeats })
    }

    /// This worker's identity.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Whether its parts go round; see [`Vitals`].
    pub fn vitals(&self) -> Arc<Vitals> {
        Arc::clone(&self.shared.pulse.vitals)
    }

    /// Who is told of this worker's events, its own alerts included: whoever acts for it tells them too.
    pub fn observers(&self) -> &Observers {
        &self.shared.observers
    }

    /// Puts other policies, gates and routes in force: the next claim and the next decision go by them. Running attempts go on with
    /// the handler they have; their outcome is judged by the new rules.
    ///
    /// New delay queues are used once the broker has them; until then the store holds those waits. Returns the digest of the rules
    /// and whether they say anything else than before (handlers are replaced in any case).
    pub fn reload(&self, rules: RuleSet) -> (String, bool) {
        self.shared.put_in_force(rules)
    }

    /// The digest of the rules in force: equal on all nodes that run the same rules with the same version of the program.
    pub fn rules_digest(&self) -> String {
        self.shared.rules().digest.clone()
    }

    /// Stops in order: no new attempts; running ones may finish within `grace`; the rest is cancelled and released; what
    /// was not started goes back to the broker.
    pub async fn stop(mut self, grace: Duration) {
        let shared = &self.shared;
        shared.stop_intake.cancel();
        shared.broker.stop_consuming().await;
        let at_rest = async || {
            while !shared.leases.at_rest() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(grace, at_rest()).await.is_err() {
            tracing::warn!(running = shared.leases.len(), "shutdown grace is over; running attempts are released");
        }
        shared.stop_attempts.cancel();
        // Handlers end at once when cancelled, and each release is one commit; a handler that does not end is left to its lease.
        if tokio::time::timeout(Duration::from_secs(10), at_rest()).await.is_err() {
            tracing::error!(running = shared.leases.len(), "attempts did not end; their leases will");
        }
        shared.outbox.drained(Duration::from_secs(10)).await;
        shared.stop_all.cancel();
        self.tracker.close();
        if tokio::time::timeout(Duration::from_secs(10), self.tracker.wait()).await.is_err() {
            tracing::error!("parts of the worker did not end in time");
        }
        shared.broker.close().await;
        if let Some(thread) = self.heartbeats.take()
            && tokio::task::spawn_blocking(move || thread.join()).await.is_err()
        {
            tracing::error!("the heartbeat thread did not end");
        }
    }
}

impl Shared {
    /// A number in [0, 1).
    pub fn random(&self) -> f64 {
        (self.random)()
    }

    pub fn queue_of(&self, task_type: &str) -> &str {
        crate::config::queue_of(&self.plan.queues, task_type)
    }

    /// How many attempts of that queue could start now.
    pub fn free_places(&self, queue: &str) -> usize {
        let own = self.queue_slots.get(queue).map_or(usize::MAX, |slots| slots.available_permits());
        own.min(self.slots.available_permits())
    }

    /// Applies commands, again and again while the store is away; `None` when the worker ends before it came back.
    pub async fn persist(&self, urgency: Urgency, commands: Vec<Command>) -> Option<Persisted> {
        let (mut patience, mut doubt) = (Patience::new(self), None);
        loop {
            match self.store.apply(urgency, commands.clone()).await {
                Ok(answers) => {
                    self.pulse.note_success();
                    self.store_is_up();
                    return Some(Persisted { answers, doubt });
                }
                Err(error) => {
                    if matches!(error, StoreError::Unknown { .. }) {
                        doubt.get_or_insert_with(|| self.leases.doubt());
                    }
                    if !patience.again(self, &error).await {
                        return None;
                    }
                }
            }
        }
    }

    /// One try; for work that is looked at again anyway.
    pub async fn try_apply(&self, commands: Vec<Command>) -> Option<Vec<Answer>> {
        match self.store.apply(Urgency::Normal, commands).await {
            Ok(answers) => {
                self.pulse.note_success();
                self.store_is_up();
                Some(answers)
            }
            Err(error) => {
                self.store_is_down(&error);
                None
            }
        }
    }

    pub fn store_is_down(&self, error: &StoreError) {
        let reason = error.to_string();
        let mut down = self.store_down.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let since = down.as_ref().map_or_else(|| self.pulse.now(), |(since, _)| *since);
        // Told again when it changes: first locked, then full, is two different things to do.
        if down.as_ref().is_none_or(|(_, told)| *told != reason) {
            self.observers.emit(&Event::StoreDown { reason: &reason });
            *down = Some((since, reason));
        }
    }

    fn store_is_up(&self) {
        let down = self.store_down.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some((since, _)) = down {
            self.observers.emit(&Event::StoreUp { down_ms: self.pulse.now() - since });
        }
    }
}

/// The answers of a batch that was committed at last.
pub(crate) struct Persisted {
    pub answers: Vec<Answer>,
    /// An earlier try may have been committed without telling. To be kept until its claims are known.
    pub doubt: Option<Doubt>,
}

/// Writes what a session found missing before the session declares it again.
struct MissingWriter(Arc<Shared>);

#[async_trait::async_trait]
impl SessionWatch for MissingWriter {
    async fn found_missing(&self, spots: Vec<Spot>) -> Result<(), String> {
        if spots.is_empty() {
            return Ok(());
        }
        let count = spots.len();
        let commands = spots.into_iter().map(|spot| Command::Missing { spot }).collect();
        match self.0.store.apply(Urgency::Normal, commands).await {
            Ok(_) => {
                self.0.observers.emit(&Event::SpotsMissing { count });
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    async fn found_dead_missing(&self, queues: Vec<String>) -> Result<(), String> {
        let commands = queues.into_iter().map(|queue| Command::DirtyDlq { queue }).collect();
        self.0.store.apply(Urgency::Normal, commands).await.map(drop).map_err(|error| error.to_string())
    }
}

/// Lets the tasks go first that are ready now. Unlike tokio's own yield this stands in a line from which any thread may take it,
/// so a handler that blocks this thread does not hold it up.
async fn after_you() {
    let mut stepped_back = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut stepped_back, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
