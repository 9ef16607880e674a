//! Keeps a session with the broker: opens it, watches it, ends it as a whole, and opens the next one.
//!
//! lapin's own recovery is never used: it can leave a consumer hanging for ever and brings closed connections back to life. Here
//! a session is all or nothing. Whatever goes wrong in any part of it, the whole session ends, every token of it says so, and a
//! new one starts from the beginning: connect, look for what is missing, tell the watch, declare, consume.
//!
//! A session has two connections, because the broker stops reading from one that publishes while it is low on memory, and acks
//! on it would wait as well, although they are what frees the memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::{Channel, Connection, Event};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};

use super::consumer::{self, Intake};
use super::endpoint::{Endpoint, Opened};
use super::keeper::Keeper;
use super::nodes::Nodes;
use super::publisher::Publisher;
use crate::broker::BrokerError;

/// A session that lived this long was a good one: the next failure is a new trouble.
const STABLE: Duration = Duration::from_secs(10);
/// The first try after a good session. Most losses are a single cut connection or a broker that restarts.
const SOON: Duration = Duration::from_millis(250);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The longer the trouble lasts the longer we wait: a fifth of it, so that a broker that was away for half a minute is found
/// within some seconds, and one that is away for an hour is not pestered.
const SHARE_OF_TROUBLE: u32 = 5;
/// How long a connection may take to say goodbye.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// A connection's state is also looked at this often, should lapin not tell.
const LOOK: Duration = Duration::from_secs(1);

/// Whether a session still stands. Everything that belongs to it holds one.
#[derive(Default)]
pub(super) struct Life {
    over: CancellationToken,
    why: OnceLock<String>,
    /// The node itself is of no use; another one may be.
    useless: AtomicBool,
}

impl Life {
    /// Ends the session; the first reason stays.
    pub(super) fn end(&self, why: String) {
        // The others are consequences of the first one.
        if self.why.set(why).is_ok() {
            self.over.cancel();
        }
    }

    /// Ends the session because its node, though we are connected, is of no use.
    pub(super) fn end_elsewhere(&self, why: String) {
        if !self.is_over() {
            self.useless.store(true, Ordering::Relaxed);
        }
        self.end(why);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    pub(super) async fn ended(&self) {
        self.over.cancelled().await;
    }

    fn why(&self) -> &str {
        self.why.get().map_or("", String::as_str)
    }
}

/// Ends a session that never came to stand.
struct EndOnDrop(Option<Arc<Life>>);

impl EndOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(life) = &self.0 {
            life.end("it never came to stand".into());
        }
    }
}

/// A standing session.
pub(super) struct Session {
    pub(super) publisher: Publisher,
    pub(super) life: Arc<Life>,
    endpoint: Arc<Endpoint>,
    /// The guards of its connections.
    guards: TaskTracker,
    /// Held open until the session ends, see [`consumer::start`].
    _consuming: Vec<Channel>,
}

impl Session {
    /// Whether publishing has a chance.
    pub(super) fn is_up(&self) -> bool {
        !self.life.is_over() && !self.publisher.blocked()
    }

    /// Done when its connections are closed or had their time.
    async fn close(&self) {
        self.life.end("closed".into());
        self.guards.close();
        self.guards.wait().await;
    }
}

/// Says goodbye, for at most a moment: a connection that is broken already cannot.
pub(super) async fn close(connection: &Connection) {
    if connection.status().connected() {
        match timeout(CLOSE_LIMIT, connection.close(200, "bye".into())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!("closing a connection: {error}"),
            Err(_) => debug!("a connection did not close within {CLOSE_LIMIT:?}"),
        }
    }
}

/// What the world sees of the supervisor.
#[derive(Clone, Default)]
pub(super) struct Standing {
    /// The session, while there is one.
    pub(super) session: Option<Arc<Session>>,
    /// How the last try to open one ended; `None` before the first.
    pub(super) last: Option<Result<(), BrokerError>>,
}

/// What a session is for, beyond publishing.
pub(super) struct Plan {
    pub(super) intake: Arc<Intake>,
    pub(super) keeper: Arc<Keeper>,
    /// Told how the first try went.
    pub(super) first: Mutex<Option<oneshot::Sender<Result<(), BrokerError>>>>,
}

/// One per [`RabbitBroker`](super::RabbitBroker); runs until closed.
pub(super) struct Supervisor {
    pub(super) nodes: Arc<Nodes>,
    pub(super) namespace: String,
    pub(super) confirm_timeout: Duration,
    pub(super) standing: watch::Sender<Standing>,
    pub(super) closed: CancellationToken,
    plan: Mutex<Option<Arc<Plan>>>,
    /// Ends a wait between two tries.
    hurry: Notify,
    started: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Supervisor {
    pub(super) fn new(endpoints: Vec<Endpoint>, namespace: String, confirm_timeout: Duration) -> Supervisor {
        Supervisor {
            nodes: Arc::new(Nodes::new(endpoints)),
            namespace,
            confirm_timeout,
            standing: watch::Sender::new(Standing::default()),
            closed: CancellationToken::new(),
            plan: Mutex::new(None),
            hurry: Notify::new(),
            started: Mutex::new(None),
        }
    }

    /// Starts supervising, once.
    pub(super) fn start(self: &Arc<Self>) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if started.is_none() && !self.closed.is_cancelled() {
            *started = Some(tokio::spawn(self.clone().run()));
        }
    }

    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.standing.borrow().session.clone().filter(|session| !session.life.is_over())
    }

    /// The session, or why there is none. Waits only before the very first try has ended.
    pub(super) async fn first_session(self: &Arc<Self>, limit: Duration) -> Result<Arc<Session>, BrokerError> {
        self.start();
        let mut standing = self.standing.subscribe();
        let tried = timeout(limit, standing.wait_for(|standing| standing.last.is_some()));
        let last = match tried.await {
            Ok(Ok(standing)) => standing.last.clone(),
            Ok(Err(_)) => None,
            Err(_) => Some(Err(self.unreachable(&format!("connecting took longer than {} s", limit.as_secs_f32())))),
        };
        match (self.session(), last) {
            _ if self.closed.is_cancelled() => Err(self.unreachable("this client was closed")),
            (Some(session), _) => Ok(session),
            (None, Some(Err(error))) => Err(error),
            (None, _) => Err(self.unreachable("the session was lost; the next one is on its way")),
        }
    }

    fn unreachable(&self, reason: &str) -> BrokerError {
        BrokerError::Unreachable { place: self.nodes.place(), reason: reason.into() }
    }

    /// The sessions from now on also do this.
    pub(super) fn follow(self: &Arc<Self>, plan: Plan) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(plan));
        if let Some(session) = self.session() {
            session.life.end("a session that consumes is wanted".into());
        }
        self.start();
        self.hurry.notify_one();
    }

    pub(super) fn plan(&self) -> Option<Arc<Plan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_current(&self, plan: Option<&Arc<Plan>>) -> bool {
        self.plan().as_ref().map(Arc::as_ptr) == plan.map(Arc::as_ptr)
    }

    /// Ends everything; done when the connections are closed or had their time.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        let running = self.started.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running
            && timeout(CLOSE_LIMIT * 2, running).await.is_err()
        {
            warn!("the broker session did not close in time");
        }
    }

    async fn run(self: Arc<Self>) {
        let mut trouble: Option<Instant> = None;
        loop {
            let plan = self.plan();
            let opened = tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                opened = self.open(plan.as_deref()) => opened,
            };
            let last = opened.as_ref().map(|_| ()).map_err(Clone::clone);
            if let Some(first) =
                plan.as_ref().and_then(|plan| plan.first.lock().unwrap_or_else(PoisonError::into_inner).take())
            {
                // The caller may have stopped waiting; the session goes on without it.
                if first.send(last.clone()).is_err() {
                    debug!("nobody waits for the first session any more");
                }
                if last.as_ref().is_err_and(is_final) {
                    *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
            }
            let began = Instant::now();
            match opened {
                Ok(session) => {
                    if !self.is_current(plan.as_ref()) {
                        session.life.end("a session that consumes is wanted".into());
                    }
                    self.standing.send_replace(Standing { session: Some(session.clone()), last: Some(last) });
                    tokio::select! {
                        () = session.life.ended() => {}
                        () = self.closed.cancelled() => session.life.end("closed".into()),
                    }
                    if session.life.useless.load(Ordering::Relaxed) {
                        self.nodes.leave(&session.endpoint);
                    }
                    let lost = BrokerError::Unreachable {
                        place: session.endpoint.place.clone(),
                        reason: format!("the session ended: {}", session.life.why()),
                    };
                    self.standing.send_replace(Standing { session: None, last: Some(Err(lost)) });
                    session.close().await;
                    if self.closed.is_cancelled() {
                        return;
                    }
                    let lived_ms = millis(began.elapsed());
                    if self.is_current(plan.as_ref()) {
                        warn!(
                            broker = session.endpoint.place,
                            reason = session.life.why(),
                            lived_ms,
                            "broker session ended"
                        );
                    } else {
                        debug!(broker = session.endpoint.place, lived_ms, "broker session replaced");
                    }
                    if began.elapsed() >= STABLE {
                        trouble = None;
                    }
                }
                Err(error) => {
                    if is_final(&error) {
                        error!("no broker session: {error}");
                    } else {
                        warn!("no broker session: {error}");
                    }
                    self.standing.send_replace(Standing { session: None, last: Some(Err(error)) });
                }
            }
            let wait = wait_after(trouble.map(|since| since.elapsed()), rand::random());
            trouble.get_or_insert_with(Instant::now);
            debug!(wait_ms = millis(wait), "next try");
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = self.hurry.notified() => {}
                () = sleep(wait) => {}
            }
        }
    }

    /// One session, at the first node where it comes to stand. A node that lets us in and cannot serve its queues is one that has
    /// lost its cluster's majority; the others may have it.
    async fn open(&self, plan: Option<&Plan>) -> Result<Arc<Session>, BrokerError> {
        let mut tries = 0;
        loop {
            let opened = self.nodes.open("redeliver publish", self.confirm_timeout).await?;
            let endpoint = opened.endpoint.clone();
            tries += 1;
            match self.stand_up(opened, plan).await {
                Err(error) if !is_final(&error) => {
                    self.nodes.leave(&endpoint);
                    if tries >= self.nodes.count() {
                        return Err(error);
                    }
                    warn!("no broker session at this node, trying the next: {error}");
                }
                done => return done,
            }
        }
    }

    /// From the first connection to the last consumer.
    async fn stand_up(&self, opened: Opened, plan: Option<&Plan>) -> Result<Arc<Session>, BrokerError> {
        let limit = self.confirm_timeout;
        let Opened { endpoint, version, connection } = opened;
        let life = Arc::new(Life::default());
        // Whichever way this ends before the session stands, what was opened goes with it.
        let unfinished = EndOnDrop(Some(life.clone()));
        let guards = TaskTracker::new();
        let publishing = Arc::new(connection);
        guards.spawn(watch_over(publishing.clone(), "publishing", life.clone()));
        let mut channels = Vec::new();
        let plan = plan.filter(|plan| !plan.intake.stopped.is_cancelled());
        if let Some(plan) = plan {
            let (_, connection) = endpoint.connect("redeliver consume", limit).await?;
            let connection = Arc::new(connection);
            guards.spawn(watch_over(connection.clone(), "consuming", life.clone()));
            tokio::select! {
                biased;
                () = life.ended() => {
                    return Err(BrokerError::Unreachable { place: endpoint.place.clone(), reason: life.why().into() });
                }
                started = self.start_consuming(plan, &connection, &endpoint, &life) => channels = started?,
            }
            tokio::spawn(plan.keeper.clone().keep(
                connection,
                endpoint.clone(),
                limit,
                life.clone(),
                self.nodes.clone(),
            ));
        }
        info!(broker = endpoint.place, version, consuming = plan.is_some(), "broker session up");
        let keeper = plan.map(|plan| plan.keeper.clone());
        let (namespace, nodes) = (self.namespace.clone(), self.nodes.clone());
        let publisher = Publisher::new(publishing, namespace, life.clone(), limit, keeper, nodes);
        unfinished.disarm();
        Ok(Arc::new(Session { publisher, life, endpoint, guards, _consuming: channels }))
    }

    async fn start_consuming(
        &self,
        plan: &Plan,
        connection: &Connection,
        endpoint: &Arc<Endpoint>,
        life: &Arc<Life>,
    ) -> Result<Vec<Channel>, BrokerError> {
        let limit = self.confirm_timeout;
        plan.keeper.complete(connection, endpoint, limit, &self.nodes).await?;
        consumer::start(connection, &plan.intake, life, limit)
            .await
            .map_err(|reason| BrokerError::Unreachable { place: endpoint.place.clone(), reason })
    }
}

/// Whether no later try can mend it.
pub(super) fn is_final(error: &BrokerError) -> bool {
    match error {
        BrokerError::BadUrl { .. }
        | BrokerError::BadTls { .. }
        | BrokerError::Refused { .. }
        | BrokerError::Version { .. }
        | BrokerError::Conflict { .. } => true,
        BrokerError::Unreachable { .. } | BrokerError::NotEmpty { .. } | BrokerError::Failed { .. } => false,
    }
}

/// Ends the session when its connection does, and the connection when its session does.
async fn watch_over(connection: Arc<Connection>, name: &'static str, life: Arc<Life>) {
    guard(&connection, name, &life).await;
    close(&connection).await;
}

async fn guard(connection: &Connection, name: &'static str, life: &Life) {
    let mut events = std::pin::pin!(connection.events_listener());
    loop {
        tokio::select! {
            () = life.ended() => return,
            event = events.next() => match event {
                Some(Event::ConnectionBlocked(reason)) => warn!(connection = name, reason, "the broker blocks publishers"),
                Some(Event::ConnectionUnblocked) => info!(connection = name, "the broker takes messages again"),
                // A channel's own error is for whoever uses the channel; some channels are opened to be closed.
                Some(Event::Error(error)) if !error.is_amqp_soft_error() => {
                    return life.end(format!("{name} connection: {error}"));
                }
                Some(_) => {}
                None => return life.end(format!("{name} connection is gone")),
            },
            () = sleep(LOOK) => {
                if !connection.status().connected() {
                    return life.end(format!("{name} connection is not connected any more"));
                }
            }
        }
    }
}

/// How long to wait before the next try, when the trouble has lasted for `trouble`; `random` is in 0..1. Jittered by a fifth
/// either way, so that all workers of a cluster do not come back in one instant.
fn wait_after(trouble: Option<Duration>, random: f64) -> Duration {
    let wait = match trouble {
        None => SOON,
        Some(trouble) => (trouble / SHARE_OF_TROUBLE).clamp(SHORTEST_WAIT, LONGEST_WAIT),
    };
    wait.mul_f64(0.8 + 0.4 * random.clamp(0.0, 1.0)).min(LONGEST_WAIT)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_try_comes_soon_and_later_ones_between_one_and_thirty_seconds() {
        for random in [0.0, 0.5, 1.0] {
            assert!(wait_after(None, random) <= Duration::from_millis(300));
            for trouble in [0, 1, 5, 30, 40, 600, 86_400] {
                let wait = wait_after(Some(Duration::from_secs(trouble)), random);
                assert!(wait >= Duration::from_millis(800) && wait <= LONGEST_WAIT, "{trouble} s: {wait:?}");
            }
        }
    }

    #[test]
    fn a_broker_that_was_away_for_half_a_minute_is_found_within_ten_seconds() {
        // 30 s stopped and 10 s to boot.
        assert!(wait_after(Some(Duration::from_secs(40)), 1.0) < Duration::from_secs(10));
    }
}
