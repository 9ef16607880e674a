//! End-to-end throughput beside the bare broker's ceiling in the same run.
//!
//! The ceiling is what the same broker gives to a consumer that does nothing: same queue type and arguments, same bodies, same
//! prefetch, each message acked singly. Ours is the whole product: each task committed twice, and on the disk each time.

mod bare;
mod spread;
pub mod suite;
mod usage;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use tokio::sync::Notify;

use crate::broker::{Broker, Message, Published, submission};
use crate::config::Config;
use crate::gate::{BreakerRule, FailureRate, Gates, LimitKind, LimitRule, Per, Rate, WhenOpen, Word};
use crate::handler::{AttemptContext, Handler, Report, Route};
use crate::policy::{Backoff, Policies, Policy, TopicPattern};
use crate::store::Store;
use crate::task::{AttemptOutcome, Outcome};
use crate::telemetry::{Event, LogObserver, Metrics, Observer, Observers};
use crate::worker::{Plan, Worker};

pub use usage::Usage;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tasks of the throughput run.
    pub tasks: usize,
    /// Bytes of each payload.
    pub payload: usize,
    /// Attempts at once.
    pub concurrency: usize,
    /// Unacked deliveries.
    pub prefetch: u16,
    /// Tasks per second of the latency run; 0 leaves it out.
    pub latency_rate: u32,
    /// With limits, a cap and a breaker that are met by every task and stop none: what gates cost.
    pub gates: bool,
    /// Every task fails once and is tried again at once.
    pub fail_once: bool,
    /// What fails is tried again after this long, by way of a delay queue; at least 1 ms.
    pub delay: Option<Duration>,
    /// Logs and metrics are written as a worker does: what being observed costs.
    pub observed: bool,
}

impl Default for Options {
    /// 50,000 tasks of 100 bytes, 64 at once, prefetch 256, latency at 200/s.
    fn default() -> Self {
        Options {
            tasks: 50_000,
            payload: 100,
            concurrency: 64,
            prefetch: 256,
            latency_rate: 200,
            gates: false,
            fail_once: false,
            delay: None,
            observed: false,
        }
    }
}

impl Options {
    /// The configuration ours runs on: the defaults, no delay queue but that of `delay`, a namespace of its own.
    pub fn config(&self, namespace: &str) -> Config {
        let backoff = match self.delay {
            Some(delay) => Backoff::Steps(vec![i64::try_from(delay.as_millis()).unwrap_or(i64::MAX).max(1)]),
            None if self.fail_once => Backoff::Exponential { base_ms: 1, max_ms: 1, multiplier: 1.0, jitter: 0.0 },
            None => Backoff::Fixed(1_000),
        };
        let policy = Policy { backoff, ..Policy::built_in() };
        let mut config = Config { policies: Policies::new(vec![policy]), ..Config::default() };
        if self.gates {
            config.gates = wide_gates();
        }
        config.broker.namespace = namespace.into();
        config.worker.concurrency = self.concurrency;
        config.worker.prefetch = self.prefetch;
        config
    }
}

/// A limit per type and one for all, of every call and far above any rate, and a breaker that counts every outcome and never opens.
fn wide_gates() -> Gates {
    let rate = LimitKind::Rate { rate: Rate { count: 1_000_000, per_ms: 1_000 }, burst: 100_000 };
    let limit = |name: &str, words: Vec<Word>, calls| LimitRule {
        name: name.into(),
        per: Per(words),
        calls,
        kind: rate.clone(),
    };
    let breaker = BreakerRule {
        name: "type".into(),
        per: Per(vec![Word::Type]),
        consecutive_same: None,
        consecutive: Some(1_000_000),
        failure_rate: Some(FailureRate { permille: 1_000, window_ms: 60_000, min: 1_000_000 }),
        ignore: Vec::new(),
        open_for_ms: 60_000,
        open_for_max_ms: 60_000,
        probes: 1,
        when_open: WhenOpen::Park,
        park_max_ms: 86_400_000,
    };
    Gates {
        limits: vec![
            limit("type", vec![Word::Type], false),
            limit("all", Vec::new(), false),
            limit("calls", vec![Word::Type], true),
        ],
        breakers: vec![breaker],
        ..Gates::default()
    }
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Tasks of the throughput run.
    pub tasks: usize,
    /// Ours: from the worker's start to the last settled task.
    pub tasks_per_s: f64,
    /// The bare consumer's, in the same run.
    pub ceiling_per_s: f64,
    /// Ours ÷ ceiling.
    pub ratio: f64,
    /// From publish to settled, at the latency run's rate; median.
    pub p50_ms: f64,
    /// The same; 99th percentile.
    pub p99_ms: f64,
    /// Resident memory of this process after the throughput run.
    pub rss_mb: f64,
    /// Processor time of this process per 1,000 tasks of the throughput run.
    pub cpu_ms_per_1k: f64,
}

/// Messages published in one call.
const PUBLISH_BATCH: usize = 1_000;
/// A run that has stood still for this long is given up.
const STANDSTILL: Duration = Duration::from_secs(60);
/// Length of the latency run.
const LATENCY_SECONDS: u32 = 5;

/// Measures the ceiling on `url`, then ours over `broker` and `store`. `progress` gets a line now and then.
///
/// # Errors
/// When something cannot be started or a run stands still.
pub async fn run(
    url: &str,
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    namespace: &str,
    options: &Options,
    progress: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<Figures> {
    let payload = format!("\"{}\"", "x".repeat(options.payload.saturating_sub(2)));
    let bodies: Vec<String> = (0..options.tasks)
        .map(|n| format!(r#"{{"id":"bench-{n:08}","type":"bench.noop","payload":{payload}}}"#))
        .collect();
    progress("bare ceiling: publishing");
    let bare = bare::on_own_queue(url, namespace, &bodies, options.prefetch).await.context("bare ceiling")?;
    let ceiling_per_s = bare.consume_per_s;
    progress(&format!("bare ceiling: {ceiling_per_s:.0}/s consumed and acked"));

    let noop = Arc::new(Noop { fail_once: options.fail_once });
    let plan = Plan::with_routes(
        &options.config(namespace),
        vec![Route { task_type: TopicPattern::new("bench.#")?, handler: noop }],
    );
    broker.declare(&plan.topology).await?;
    publish_all(broker.as_ref(), &bodies, progress).await?;
    let count = Arc::new(Count::default());
    let before = Usage::now();
    let started = Instant::now();
    let mut observers = vec![Arc::clone(&count) as _];
    if options.observed {
        observers.extend([Arc::new(LogObserver) as _, Arc::new(Metrics::new()) as _]);
    }
    let worker = Worker::start(store, Arc::clone(&broker), plan, Observers::new(observers)).await?;
    let measured = measure(&worker, broker.as_ref(), &count, options, started, before, progress).await;
    worker.stop(Duration::from_secs(5)).await;
    let (tasks_per_s, usage, latencies) = measured?;
    Ok(Figures {
        tasks: options.tasks,
        tasks_per_s: round(tasks_per_s),
        ceiling_per_s: round(ceiling_per_s),
        ratio: (tasks_per_s / ceiling_per_s * 1000.0).round() / 1000.0,
        p50_ms: percentile(&latencies, 0.50),
        p99_ms: percentile(&latencies, 0.99),
        rss_mb: round(usage.rss_mb),
        cpu_ms_per_1k: round(usage.cpu_ms / as_f64(options.tasks) * 1000.0),
    })
}

async fn measure(
    _worker: &Worker,
    broker: &dyn Broker,
    count: &Count,
    options: &Options,
    started: Instant,
    before: Usage,
    progress: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<(f64, Usage, Vec<f64>)> {
    count.wait_for(options.tasks as u64, STANDSTILL + options.delay.unwrap_or_default(), progress).await?;
    let seconds = started.elapsed().as_secs_f64();
    let usage = Usage::now().since(before);
    let tasks_per_s = as_f64(options.tasks) / seconds;
    progress(&format!("ours: {tasks_per_s:.0}/s from broker to settled"));
    let mut latencies = Vec::new();
    if options.latency_rate > 0 {
        latencies = latency_run(broker, count, options, progress).await?;
    }
    Ok((tasks_per_s, usage, latencies))
}

async fn publish_all(broker: &dyn Broker, bodies: &[String], progress: &(dyn Fn(&str) + Sync)) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !broker.is_up() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    progress("ours: publishing");
    for (n, chunk) in bodies.chunks(PUBLISH_BATCH).enumerate() {
        let messages: Vec<Message> = chunk
            .iter()
            .enumerate()
            .map(|(i, body)| submission("bench.noop", &format!("m{}", n * PUBLISH_BATCH + i), body.clone().into()))
            .collect();
        if let Some(bad) = broker.publish(messages).await.into_iter().find(|fate| *fate != Published::Confirmed) {
            bail!("the broker did not confirm a submission: {bad:?}");
        }
    }
    Ok(())
}

/// Publishes at a steady rate and takes the time from publish to settled.
async fn latency_run(
    broker: &dyn Broker,
    count: &Count,
    options: &Options,
    progress: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<Vec<f64>> {
    progress("latency run");
    let tasks = options.latency_rate * LATENCY_SECONDS;
    let before = count.settled.load(Ordering::Relaxed);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / options.latency_rate);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    count.lock().clear();
    for n in 0..tasks {
        ticks.tick().await;
        let id = format!("late-{n}");
        count.sent(&id);
        let body = format!(r#"{{"id":"{id}","type":"bench.noop"}}"#);
        if broker.publish(vec![submission("bench.noop", &id, body.into())]).await != [Published::Confirmed] {
            bail!("the broker did not confirm a submission");
        }
    }
    count.wait_for(before + u64::from(tasks), STANDSTILL, progress).await?;
    let taken = std::mem::take(&mut *count.took.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(taken)
}

struct Noop {
    fail_once: bool,
}

#[async_trait::async_trait]
impl Handler for Noop {
    async fn run(&self, attempt: AttemptContext) -> Report {
        if self.fail_once && attempt.retry_count == 0 {
            return Outcome::failure("timeout", "as it was told to").into();
        }
        Outcome::success().into()
    }
}

/// Counts settled tasks, and takes times for ids it was told of.
#[derive(Default)]
struct Count {
    settled: AtomicU64,
    moved: Notify,
    sent: Mutex<std::collections::HashMap<String, Instant>>,
    took: Mutex<Vec<f64>>,
}

impl Count {
    fn lock(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<String, Instant>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sent(&self, id: &str) {
        self.lock().insert(id.to_owned(), Instant::now());
    }

    async fn wait_for(&self, goal: u64, standstill: Duration, progress: &(dyn Fn(&str) + Sync)) -> anyhow::Result<()> {
        let mut seen = self.settled.load(Ordering::Relaxed);
        let mut since = Instant::now();
        let mut told = Instant::now();
        loop {
            let now = self.settled.load(Ordering::Relaxed);
            if now >= goal {
                return Ok(());
            }
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > standstill {
                bail!("stood still at {now} of {goal} tasks");
            }
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                progress(&format!("{now} of {goal} settled"));
            }
            // The goal's own notice ends the wait; the time-out is for a run that stands still.
            let _timed_out = tokio::time::timeout(Duration::from_millis(100), self.moved.notified()).await.is_err();
        }
    }
}

impl Observer for Count {
    fn observe(&self, event: &Event<'_>) {
        let Event::Settled { task, attempt } = event else { return };
        if attempt.outcome != AttemptOutcome::Succeeded {
            return;
        }
        if task.id().starts_with("late-")
            && let Some(at) = self.lock().remove(task.id())
        {
            let ms = at.elapsed().as_secs_f64() * 1000.0;
            self.took.lock().unwrap_or_else(PoisonError::into_inner).push(ms);
        }
        if (self.settled.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(1000) {
            self.moved.notify_one();
        }
    }
}

/// The nearest-rank percentile; 0 when there is nothing.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length is between 0 and that length"
    )]
    let rank = (as_f64(sorted.len()) * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().map_or(0.0, |ms| (ms * 100.0).round() / 100.0)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[expect(clippy::cast_precision_loss, reason = "counts of tasks are far below 2^52")]
fn as_f64(n: usize) -> f64 {
    n as f64
}

/// Where the benchmark keeps its store: a folder of its own in `dir`, removed at the end.
///
/// # Errors
/// When it cannot be made.
pub fn scratch(dir: &Path) -> std::io::Result<std::path::PathBuf> {
    let path = dir.join(format!("redeliver-bench-{}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    Ok(path)
}
