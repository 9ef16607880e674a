//! The other side of the measurement: a process that is nothing but a worker, with a handler that does no work.
//!
//! It is told what to do in one line of JSON on stdin, tells how it stands in lines of JSON on stdout, and ends when stdin does: a
//! benchmark that is killed leaves no worker behind.

use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::super::Usage;
use super::super::spread::Spread;
use super::marks::Marks;
use super::tally::Tally;
use crate::broker::Broker;
use crate::config::Config;
use crate::gate::{Gates, LimitKind, LimitRule, Per, Rate};
use crate::handler::{AttemptContext, Handler, Report, Route};
use crate::policy::{Backoff, Policies, Policy, TopicPattern};
use crate::store;
use crate::task::{AttemptOutcome, Outcome, Stamp, class};
use crate::telemetry::{Event, Observer, Observers};
use crate::worker::{Plan, Worker};

/// How often it tells how it stands.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// What a worker is to do. Without a debug form: `urls` hold passwords.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    pub(super) urls: Vec<String>,
    pub(super) namespace: String,
    pub(super) store: String,
    pub(super) concurrency: usize,
    pub(super) prefetch: u16,
    pub(super) delay_ms: i64,
    pub(super) max_retries: i64,
    /// A limit of all retries together.
    pub(super) limit_per_s: Option<u32>,
    pub(super) conduct: Conduct,
    pub(super) marks: Option<PathBuf>,
}

/// What its handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Conduct {
    Succeed,
    /// Fails at the first attempt, in a way that deserves a retry.
    FailOnce,
    /// Fails until that moment, in epoch milliseconds.
    FailUntil(i64),
    /// Fails for good, until it is replayed.
    DieOnce,
}

impl Setup {
    /// The configuration that worker and producer run on: the defaults, on the broker of `base`.
    pub(super) fn config(&self, base: &Config) -> Config {
        let policy =
            Policy { backoff: Backoff::Fixed(self.delay_ms), max_retries: self.max_retries, ..Policy::built_in() };
        let mut config = Config { policies: Policies::new(vec![policy]), ..Config::default() };
        if let Some(per_s) = self.limit_per_s {
            let rate = Rate { count: per_s.into(), per_ms: 1_000 };
            let kind = LimitKind::Rate { rate, burst: 1 };
            let limit = LimitRule { name: "all".into(), per: Per(Vec::new()), calls: false, kind };
            config.gates = Gates { limits: vec![limit], ..Gates::default() };
        }
        config.broker = base.broker.clone();
        config.broker.urls.clone_from(&self.urls);
        config.broker.namespace.clone_from(&self.namespace);
        config.store.url.clone_from(&self.store);
        config.worker.concurrency = self.concurrency;
        config.worker.prefetch = self.prefetch;
        config
    }
}

/// Works as the line on stdin says, until stdin ends. `open_broker` makes the client of `base`'s broker.
///
/// # Errors
/// When that line cannot be read or the worker cannot be started.
pub async fn work(
    base: &Config,
    open_broker: &(dyn Fn(&Config) -> anyhow::Result<Arc<dyn Broker>> + Sync),
) -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("cannot read what is to be done")?;
    let setup: Setup = serde_json::from_str(&line).context("stdin does not say what is to be done")?;
    let config = setup.config(base);
    let store = store::open(&config.store.url, config.settings(), true).await?;
    let marks = setup.marks.is_some().then(Arc::<Marks>::default);
    let handler = NoWork { conduct: setup.conduct, marks: marks.clone() };
    let route = Route { task_type: TopicPattern::any(), handler: Arc::new(handler) };
    let plan = Plan::with_routes(&config, vec![route]);
    let watch = Arc::new(Watch::default());
    let observers = Observers::new(vec![Arc::clone(&watch) as _]);
    let worker = Worker::start(store.clone(), open_broker(&config)?, plan, observers).await?;
    let mut ended = stdin_ends()?;
    let mut ticks = tokio::time::interval(TELL_EVERY);
    loop {
        tell(&watch.tally())?;
        tokio::select! {
            _ = ticks.tick() => {}
            _ = &mut ended => break,
        }
    }
    // As it was while it worked.
    let last = watch.tally();
    worker.stop(Duration::from_secs(5)).await;
    store.close().await;
    if let (Some(marks), Some(file)) = (marks, &setup.marks) {
        marks.save(file)?;
    }
    tell(&last)
}

fn stdin_ends() -> std::io::Result<oneshot::Receiver<()>> {
    let (over, ended) = oneshot::channel();
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut ignored = [0; 256];
        let mut stdin = std::io::stdin().lock();
        while stdin.read(&mut ignored).is_ok_and(|read| read > 0) {}
        // Dropped, it says the same.
        drop(over);
    })?;
    Ok(ended)
}

fn tell(tally: &Tally) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(tally)?;
    line.push('\n');
    std::io::stdout().write_all(line.as_bytes()).context("nobody reads how the worker stands")
}

struct NoWork {
    conduct: Conduct,
    marks: Option<Arc<Marks>>,
}

#[async_trait::async_trait]
impl Handler for NoWork {
    async fn run(&self, attempt: AttemptContext) -> Report {
        if let Some(marks) = &self.marks {
            marks.note(&attempt.task.id, attempt.number());
        }
        let failed = || Outcome::failure("timeout", "as it was told to").into();
        match self.conduct {
            Conduct::FailOnce if attempt.retry_count == 0 => failed(),
            Conduct::FailUntil(until_ms) if epoch_us() < until_ms.saturating_mul(1_000) => failed(),
            Conduct::DieOnce if attempt.generation == 0 => {
                Outcome::failure(class::BAD_PAYLOAD, "as it was told to").into()
            }
            _ => Outcome::success().into(),
        }
    }
}

/// When it was to be sent, in a payload.
#[derive(Deserialize)]
struct Sent {
    sent_ms: i64,
}

/// Counts what the worker does.
#[derive(Default)]
struct Watch(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    tally: Tally,
    lateness: Spread,
    start_delay: Spread,
    /// The second in which retries are being counted, and their number.
    second: (i64, u64),
    cpu_before_ms: f64,
}

impl Watch {
    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> Tally {
        let usage = Usage::now();
        let seen = self.lock();
        Tally {
            lateness: seen.lateness.quantiles(),
            start_delay: seen.start_delay.quantiles(),
            rss_mb: usage.rss_mb,
            peak_mb: usage.peak_mb,
            cpu_ms: usage.cpu_ms - seen.cpu_before_ms,
            cpu_all_ms: usage.cpu_ms,
            ..seen.tally
        }
    }
}

impl Observer for Watch {
    fn observe(&self, event: &Event<'_>) {
        let now_us = epoch_us();
        match event {
            Event::Started { task } => self.lock().starts(task, now_us),
            Event::Settled { attempt, .. } => {
                let mut seen = self.lock();
                match attempt.outcome {
                    AttemptOutcome::Succeeded => seen.tally.succeeded += 1,
                    AttemptOutcome::Retried => seen.tally.retried += 1,
                    AttemptOutcome::Died => seen.tally.died += 1,
                    AttemptOutcome::Released => return,
                }
                if attempt.generation == 0 && attempt.number == 1 {
                    seen.tally.first_settled_us = Some(now_us);
                }
                if attempt.outcome != AttemptOutcome::Retried {
                    seen.tally.ended_us = Some(now_us);
                }
            }
            Event::Died { .. } => {
                let mut seen = self.lock();
                seen.tally.died += 1;
                seen.tally.ended_us = Some(now_us);
            }
            _ => {}
        }
    }
}

impl Seen {
    fn starts(&mut self, task: &crate::task::Task, now_us: i64) {
        if self.tally.began_us.is_none() {
            self.tally.began_us = Some(now_us);
            self.cpu_before_ms = Usage::now().cpu_ms;
        }
        if task.stamp() == (Stamp { generation: 0, retry_count: 0 }) {
            self.tally.first += 1;
            if let Ok(sent) = serde_json::from_str::<Sent>(&task.spec.payload) {
                self.start_delay.add_us(since_us(sent.sent_ms, now_us));
            }
            return;
        }
        self.tally.again += 1;
        self.tally.again_began_us.get_or_insert(now_us);
        self.lateness.add_us(since_us(task.state.due_at, now_us));
        let second = now_us.div_euclid(1_000_000);
        if self.second.0 != second {
            self.second = (second, 0);
        }
        self.second.1 += 1;
        self.tally.most_again_per_s = self.tally.most_again_per_s.max(self.second.1);
    }
}

fn since_us(then_ms: i64, now_us: i64) -> u64 {
    u64::try_from(now_us.saturating_sub(then_ms.saturating_mul(1_000))).unwrap_or(0)
}

/// Microseconds since the epoch.
pub(super) fn epoch_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
