//! Where one run takes place: a namespace on the broker and a folder for the store, both its own and gone afterwards.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};

use super::super::as_f64;
use super::super::bare::{self, Bare};
use super::hand::{Conduct, Setup};
use super::report::{Figures, Versions};
use super::{Settings, Site};
use crate::broker::{Broker, Message, Published, Topology, submission};
use crate::config::Config;
use crate::store::{self, Store};
use crate::task::{DEFAULT_QUEUE, Lane};

/// Messages published in one call.
const PUBLISH_BATCH: usize = 1_000;
/// The most messages of the ceiling of a scenario that is not about throughput.
const CEILING_TASKS: usize = 20_000;
/// The type of all tasks.
pub(super) const TASK_TYPE: &str = "bench.noop";

/// See the module.
pub(super) struct Ground<'a> {
    pub site: &'a Site<'a>,
    pub setup: Setup,
    pub config: Config,
    pub topology: Topology,
    pub broker: Arc<dyn Broker>,
    pub folder: PathBuf,
    url: String,
}

impl Ground<'_> {
    /// Makes one for `conduct`, lets `run` use it, and removes it however that ended.
    pub async fn with<T>(
        site: &Site<'_>,
        settings: &Settings,
        conduct: Conduct,
        limit_per_s: Option<u32>,
        run: impl AsyncFnOnce(&mut Ground<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let mut ground = Ground::make(site, settings, conduct, limit_per_s).await?;
        let came_to = run(&mut ground).await;
        if let Err(error) = ground.broker.delete(&ground.topology, true).await {
            tracing::warn!(%error, namespace = ground.setup.namespace, "queues of the benchmark are still on the broker");
        }
        ground.broker.close().await;
        if let Err(error) = std::fs::remove_dir_all(&ground.folder) {
            tracing::warn!(%error, folder = %ground.folder.display(), "cannot remove a store of the benchmark");
        }
        came_to
    }

    async fn make<'a>(
        site: &'a Site<'a>,
        settings: &Settings,
        conduct: Conduct,
        limit_per_s: Option<u32>,
    ) -> anyhow::Result<Ground<'a>> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = site.folder.join(format!("run-{number}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let setup = Setup {
            urls: site.base.broker.urls.clone(),
            namespace: format!("redeliver-bench-{}-{number}", std::process::id()),
            store: format!("sqlite://{}", folder.join("redeliver.db").display()),
            concurrency: settings.concurrency,
            prefetch: settings.prefetch,
            delay_ms: i64::try_from(settings.delay_ms)?.max(1),
            // More than any scenario spends: what is measured is the way back, not the end of a budget.
            max_retries: 1_000,
            limit_per_s,
            conduct,
            marks: site.marks.clone(),
        };
        let config = setup.config(site.base);
        let url = config.broker.urls.first().cloned().context("no broker.url")?;
        let broker = (site.open_broker)(&config)?;
        broker.connect().await.context("the broker")?;
        let topology = config.topology();
        broker.declare(&topology).await?;
        Ok(Ground { site, setup, config, topology, broker, folder, url })
    }

    /// The database file.
    pub fn file(&self) -> PathBuf {
        self.folder.join("redeliver.db")
    }

    /// The store, beside those of the workers.
    pub async fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok(store::open(&self.setup.store, self.config.settings(), true).await?)
    }

    /// Bytes of the store's files.
    pub fn store_bytes(&self) -> u64 {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    }

    /// What the broker gives to those who do nothing, on the very lane that the workers will consume.
    pub async fn ceiling(&self, bodies: &[String], figures: &mut Figures) -> anyhow::Result<Bare> {
        let lane = self.topology.lane_name(DEFAULT_QUEUE, Lane::Tasks);
        let bodies = bodies.get(..CEILING_TASKS.max(self.setup.concurrency)).unwrap_or(bodies);
        let bare = bare::on_queue(&self.url, &lane, bodies, self.setup.prefetch).await.context("bare ceiling")?;
        figures.set("bare_publish_per_s", bare.publish_per_s);
        figures.set("bare_consume_per_s", bare.consume_per_s);
        Ok(bare)
    }

    /// Publishes submissions as a producer does; how many per second.
    pub async fn publish(&self, bodies: &[String]) -> anyhow::Result<f64> {
        let started = Instant::now();
        for (n, chunk) in bodies.chunks(PUBLISH_BATCH).enumerate() {
            let message = |(i, body): (usize, &String)| {
                submission(TASK_TYPE, &format!("m{}", n * PUBLISH_BATCH + i), body.clone().into())
            };
            send(self.broker.as_ref(), chunk.iter().enumerate().map(message).collect()).await?;
        }
        Ok(as_f64(bodies.len()) / started.elapsed().as_secs_f64())
    }
}

/// Publishes all of these or fails.
pub(super) async fn send(broker: &dyn Broker, messages: Vec<Message>) -> anyhow::Result<()> {
    match broker.publish(messages).await.into_iter().find(|fate| *fate != Published::Confirmed) {
        None => Ok(()),
        Some(bad) => bail!("the broker did not confirm a submission: {bad:?}"),
    }
}

/// Submissions with ids in ascending order that begin with `name`, or in no order at all.
pub(super) fn bodies(name: &str, tasks: usize, settings: &Settings) -> Vec<String> {
    let payload = "x".repeat(settings.payload.saturating_sub(2));
    let id = |n: usize| if settings.random_ids { uuid::Uuid::new_v4().to_string() } else { format!("{name}-{n:08}") };
    (0..tasks).map(|n| format!(r#"{{"id":"{}","type":"{TASK_TYPE}","payload":"{payload}"}}"#, id(n))).collect()
}

/// What is measured.
pub(super) async fn versions(site: &Site<'_>) -> anyhow::Result<Versions> {
    let broker = (site.open_broker)(site.base)?;
    let about = broker.about().await;
    broker.close().await;
    Ok(Versions {
        redeliver: env!("CARGO_PKG_VERSION").into(),
        broker: about.context("the broker")?.to_string(),
        store: format!("SQLite {}", rusqlite::version()),
    })
}
