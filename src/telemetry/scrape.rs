//! What Prometheus and probes ask a process: `/metrics`, `/livez` and `/readyz`, on an address of their own.
//!
//! Apart from API and console, because a probe has no token: nothing here changes anything or shows a payload, a label or an id.
//! Gauges come from the store and are asked for at most every [`FRESH`], however often somebody scrapes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Vitals;
use super::metrics::{Metrics, rule_of};
use crate::api::listener::Bounded;
use crate::bench::Usage;
use crate::broker::Broker;
use crate::gate::{GateState, Phase};
use crate::store::{Filter, Store, StoreError};
use crate::task::{Millis, Status};

/// How old the store's gauges may be.
pub const FRESH: Duration = Duration::from_secs(5);
/// A scheduler this late is not ready: somebody's retries wait for it.
pub const LATEST: Duration = Duration::from_secs(30);
/// A store that takes longer counts as away.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections at a time.
const MOST_CONNECTIONS: usize = 64;

/// What is asked.
pub struct Watched {
    /// What the process has counted.
    pub metrics: Arc<Metrics>,
    /// The store.
    pub store: Arc<dyn Store>,
    /// The broker; `None` where the process has none.
    pub broker: Option<Arc<dyn Broker>>,
    /// The worker's signs of life; `None` where no worker runs.
    pub vitals: Option<Arc<Vitals>>,
}

/// Why a process is not ready; empty when it is.
///
/// The store answers, the broker's session is up, and no alarm is later than [`LATEST`].
pub async fn unready(store: &dyn Store, broker: Option<&dyn Broker>) -> Vec<String> {
    let mut why = Vec::new();
    match tokio::time::timeout(STORE_TIMEOUT, store.next_alarm()).await {
        Err(_) => why.push("the store does not answer".to_owned()),
        Ok(Err(error)) => why.push(error.to_string()),
        Ok(Ok(alarm)) => {
            let late = lag(alarm, store.now());
            if late > LATEST {
                why.push(format!("the scheduler is {} s late", late.as_secs()));
            }
        }
    }
    if broker.is_some_and(|broker| !broker.is_up()) {
        why.push("no session with the broker".to_owned());
    }
    why
}

fn lag(alarm: Option<Millis>, now: Millis) -> Duration {
    let late = alarm.map_or(0, |alarm| now.saturating_sub(alarm));
    Duration::from_millis(u64::try_from(late).unwrap_or(0))
}

/// The server of one process.
pub struct ScrapeServer {
    address: SocketAddr,
    stopping: CancellationToken,
    running: JoinHandle<std::io::Result<()>>,
}

struct Shared {
    watched: Watched,
    gauges: Mutex<Option<(Instant, Arc<str>)>>,
}

impl ScrapeServer {
    /// Serves on `listener` until it is stopped or dropped.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn start(listener: TcpListener, watched: Watched) -> std::io::Result<ScrapeServer> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { watched, gauges: Mutex::default() });
        let router = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(shared);
        let stopping = CancellationToken::new();
        let told = stopping.clone();
        let listener = Bounded::new(listener, MOST_CONNECTIONS);
        let serving = axum::serve(listener, router).with_graceful_shutdown(async move { told.cancelled().await });
        Ok(ScrapeServer { address, stopping, running: tokio::spawn(serving.into_future()) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no new requests.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        if tokio::time::timeout(Duration::from_secs(1), &mut self.running).await.is_err() {
            self.running.abort();
        }
    }
}

impl Drop for ScrapeServer {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

async fn livez(State(shared): State<Arc<Shared>>) -> Response {
    match shared.watched.vitals.as_ref().and_then(|vitals| vitals.stuck()) {
        None => (StatusCode::OK, "ok\n").into_response(),
        Some(stuck) => (StatusCode::SERVICE_UNAVAILABLE, format!("{stuck}\n")).into_response(),
    }
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let why = unready(shared.watched.store.as_ref(), shared.watched.broker.as_deref()).await;
    if why.is_empty() {
        return (StatusCode::OK, "ok\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", why.join("\n"))).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let gauges = shared.gauges().await;
    let mut text = String::new();
    if shared.watched.metrics.encode(&mut text).is_err() {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n").into_response();
    }
    text.push_str(&gauges);
    text.push_str("# EOF\n");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

impl Shared {
    async fn gauges(&self) -> Arc<str> {
        // One asks, the others wait for its answer.
        let mut kept = self.gauges.lock().await;
        if let Some((at, text)) = &*kept
            && at.elapsed() < FRESH
        {
            return Arc::clone(text);
        }
        let text: Arc<str> = self.ask().await.into();
        *kept = Some((Instant::now(), Arc::clone(&text)));
        text
    }

    async fn ask(&self) -> String {
        let mut gauges = Gauges::new();
        gauges.broker_up.set(i64::from(self.watched.broker.as_ref().is_some_and(|broker| broker.is_up())));
        let asked = tokio::time::timeout(STORE_TIMEOUT, gauges.read(self.watched.store.as_ref())).await;
        match asked {
            Ok(Ok(())) => _ = gauges.store_up.set(1),
            Ok(Err(error)) => tracing::debug!(%error, "no gauges from the store"),
            Err(_) => tracing::debug!("no gauges from the store in time"),
        }
        gauges.process();
        gauges.encode()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStatus {
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByQueue {
    queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCopy {
    queue: String,
    copies: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByGate {
    gate: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByBreaker {
    breaker: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByDigest {
    digest: String,
}

/// One answer of the store.
struct Gauges {
    registry: Registry,
    store_up: Gauge,
    broker_up: Gauge,
    tasks: Family<ByStatus, Gauge>,
    waiting: Family<ByQueue, Gauge>,
    held: Family<ByGate, Gauge>,
    breakers: Family<ByBreaker, Gauge>,
    copies: Family<ByCopy, Gauge>,
    workers: Family<ByDigest, Gauge>,
    pauses: Gauge,
    notices: Gauge,
    notices_lag: Gauge<f64, AtomicU64>,
    lag: Gauge<f64, AtomicU64>,
    bytes: Gauge,
    resident: Gauge<f64, AtomicU64>,
    cpu: Gauge<f64, AtomicU64>,
}

impl Gauges {
    fn new() -> Gauges {
        let mut gauges = Gauges {
            registry: Registry::with_prefix("redeliver"),
            store_up: Gauge::default(),
            broker_up: Gauge::default(),
            tasks: Family::default(),
            waiting: Family::default(),
            held: Family::default(),
            breakers: Family::default(),
            copies: Family::default(),
            workers: Family::default(),
            pauses: Gauge::default(),
            notices: Gauge::default(),
            notices_lag: Gauge::default(),
            lag: Gauge::default(),
            bytes: Gauge::default(),
            resident: Gauge::default(),
            cpu: Gauge::default(),
        };
        let r = &mut gauges.registry;
        r.register("build", "The program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        r.register("store_up", "Whether the store answers", gauges.store_up.clone());
        r.register("broker_up", "Whether this process has a session with the broker", gauges.broker_up.clone());
        r.register("tasks", "Tasks that have not ended well, by status", gauges.tasks.clone());
        r.register("waiting_tasks", "Tasks that wait, by queue", gauges.waiting.clone());
        r.register("held_tasks", "Tasks that wait for a gate, by its rule", gauges.held.clone());
        r.register("breakers", "Breakers that are not closed, by rule and state", gauges.breakers.clone());
        r.register("dlq_copies", "Copies in the DLQ by queue: present, wanted, strangers", gauges.copies.clone());
        r.register("workers", "Workers seen lately, by the digest of their rules", gauges.workers.clone());
        r.register("pauses", "Pauses in force", gauges.pauses.clone());
        r.register("notices", "Events and replies that wait to be published", gauges.notices.clone());
        r.register_with_unit(
            "notices_lag",
            "How long the oldest event or reply has waited",
            Unit::Seconds,
            gauges.notices_lag.clone(),
        );
        r.register_with_unit("scheduler_lag", "How late the earliest alarm is", Unit::Seconds, gauges.lag.clone());
        r.register_with_unit("store_size", "Size of the store on disk", Unit::Bytes, gauges.bytes.clone());
        r.register_with_unit("process_memory", "Resident memory of this process", Unit::Bytes, gauges.resident.clone());
        r.register_with_unit("process_cpu", "Processor time of this process", Unit::Seconds, gauges.cpu.clone());
        gauges
    }

    async fn read(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let unended = [Status::Pending, Status::Running, Status::RetryWaiting, Status::Dead];
        let counts = store.count(&Filter { statuses: unended.to_vec(), ..Filter::default() }).await?;
        for status in unended {
            let count = counts.get(&status).copied().unwrap_or(0);
            self.tasks.get_or_create(&ByStatus { status: status.as_str() }).set(count);
        }
        for (queue, count) in store.waiting_queues().await? {
            self.waiting.get_or_create(&ByQueue { queue }).set(count);
        }
        for (gate, count) in store.held_counts().await? {
            self.held.get_or_create(&ByGate { gate: rule_of(&gate) }).inc_by(count);
        }
        let mut breakers: BTreeMap<(String, &'static str), i64> = BTreeMap::new();
        for (key, state) in store.gates().await? {
            let GateState::Breaker(breaker) = state else { continue };
            let state = match breaker.phase {
                _ if breaker.is_forced_open() => "forced_open",
                Phase::Closed => continue,
                Phase::Open { .. } => "open",
                Phase::HalfOpen => "half_open",
            };
            *breakers.entry((rule_of(&key), state)).or_default() += 1;
        }
        for ((breaker, state), count) in breakers {
            self.breakers.get_or_create(&ByBreaker { breaker, state }).set(count);
        }
        for (queue, ledger) in store.dlqs().await? {
            let (present, wanted) = store.dead_copies(&queue).await?;
            for (copies, count) in [("present", present), ("wanted", wanted), ("strangers", ledger.strangers)] {
                self.copies.get_or_create(&ByCopy { queue: queue.clone(), copies }).set(count);
            }
        }
        for node in store.nodes().await? {
            let digest = node.hash.chars().take(12).collect();
            self.workers.get_or_create(&ByDigest { digest }).inc();
        }
        self.pauses.set(i64::try_from(store.pauses().await?.len()).unwrap_or(i64::MAX));
        let backlog = store.notice_backlog().await?;
        self.notices.set(backlog.waiting);
        self.notices_lag.set(lag(backlog.oldest_at, store.now()).as_secs_f64());
        self.lag.set(lag(store.next_alarm().await?, store.now()).as_secs_f64());
        self.bytes.set(i64::try_from(store.report(false).await?.bytes).unwrap_or(i64::MAX));
        Ok(())
    }

    fn process(&self) {
        let usage = Usage::now();
        self.resident.set(usage.rss_mb * 1024.0 * 1024.0);
        self.cpu.set(usage.cpu_ms / 1000.0);
    }

    fn encode(&self) -> String {
        let mut text = String::new();
        if let Err(error) = prometheus_client::encoding::text::encode_registry(&mut text, &self.registry) {
            tracing::error!(%error, "the gauges cannot be written");
        }
        text
    }
}
