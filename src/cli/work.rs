//! `redeliver work`

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use redeliver::config::FlagValue;
use redeliver::telemetry::{LogObserver, Metrics, Observers, Watched};
use redeliver::worker::{Plan, Worker};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::context::{Context, open_broker};
use super::exit::{self, Exit};
use super::reload::Reloads;
use super::serve;
use super::service;

/// How long a worker that has stopped tries to say so.
const FAREWELL: Duration = Duration::from_secs(2);

/// Run workers: take submissions and wake-ups, run attempts, schedule retries, feed pending rows
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver work
  redeliver work --queue shipping --concurrency 8
  redeliver work --console 127.0.0.1:8780 --metrics 127.0.0.1:9464
  REDELIVER_BROKER_URL_FILE=/run/secrets/amqp redeliver work --log-format json

The file is read again when it changes and at SIGHUP: policies, limits, breakers and routes hold from the next claim and decision on,
the other sections from the next start. One with mistakes changes nothing.
SIGTERM or Ctrl-C: no new attempts, running ones get worker.shutdown_grace, the rest is given back. A second one: at once.")]
pub struct Args {
    /// Only these queues [default: all of them]
    #[arg(long = "queue", value_name = "Q", value_delimiter = ',')]
    queues: Vec<String>,
    /// Attempts at once, instead of worker.concurrency
    #[arg(long, value_name = "N")]
    concurrency: Option<String>,
    /// Serve API and console too, at this address and port
    #[arg(long, value_name = "ADDR")]
    console: Option<String>,
    /// That address may be one that other machines can reach
    #[arg(long, requires = "console")]
    public: bool,
    /// Serve /metrics, /livez and /readyz at this address and port, instead of metrics.address
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
}

impl Args {
    /// What the flags say about config keys.
    pub fn flag_values(&self) -> Vec<FlagValue> {
        let value =
            |value: &String| FlagValue { key: "worker.concurrency", flag: "--concurrency", value: value.clone() };
        let console = self.console.iter().map(|address| FlagValue {
            key: "console.address",
            flag: "--console",
            value: address.clone(),
        });
        let public = FlagValue { key: "console.public", flag: "--public", value: "true".into() };
        let flags = self.concurrency.iter().map(value).chain(console).chain(self.public.then_some(public));
        flags.chain(serve::metrics_flag(self.metrics.as_ref())).collect()
    }
}

/// Runs until told to stop.
///
/// # Errors
/// When it cannot start.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    if let Some(unknown) = args.queues.iter().find(|name| context.config().queue(name).is_none()) {
        return Err(exit::error(Exit::NotFound, format!("queue {unknown:?} is not configured")));
    }
    // Listening before anything runs: a signal that comes while the worker starts must stop it too.
    let mut signals = Signals::listen()?;
    let mut reloads = Reloads::listen(context)?;
    let listener = match args.console {
        Some(_) => Some(serve::listen(context.config().console.address).await?),
        None => None,
    };
    let probes = serve::listen_for_probes(context, args.metrics.as_ref()).await?;
    let store = context.store_or_new().await?;
    let metrics = Arc::new(Metrics::new());
    let observers = Observers::new(vec![Arc::new(LogObserver), Arc::clone(&metrics) as _]);
    let config = &context.bound("the store", reloads.first(store.as_ref(), &observers)).await??;
    let plan = Plan { serve: args.queues.clone(), ..Plan::new(config)? };
    if plan.routes.is_empty() {
        tracing::warn!("no [[route]] is configured: every task would die of no_route");
    }
    if config.broker.is_embedded() && !config.events.publish.is_empty() {
        tracing::warn!("[events] is set, but nobody can listen at the broker inside this process");
    }
    #[cfg(feature = "otel")]
    let exporting = redeliver::telemetry::Exporting::start().map_err(anyhow::Error::msg)?;
    let broker = open_broker(config)?;
    let worker = Worker::start(store.clone(), broker.clone(), plan, observers.clone()).await?;
    tracing::info!(worker = worker.name(), "working");
    let watched =
        Watched { metrics, store: store.clone(), broker: Some(broker.clone()), vitals: Some(worker.vitals()) };
    let probes = serve::start_probes(context, probes, watched)?;
    let server = listener
        .map(|listener| serve::start(listener, store.clone(), Some(broker.clone()), reloads.live()))
        .transpose()?;
    if let Some(server) = &server {
        serve::tell(context, server).await?;
    }
    service::ready();
    let name = tokio::select! {
        name = signals.next() => name,
        never = service::supervise(Some(worker.vitals()), store.clone(), Some(broker.clone())) => match never {},
        never = reloads.follow(Some(&worker), store.as_ref(), worker.observers()) => match never {},
    };
    service::stopping();
    tracing::info!(
        signal = name,
        grace_ms = config.worker.shutdown_grace.as_millis(),
        "stopping; again to stop at once"
    );
    tokio::select! {
        () = async {
            if let Some(server) = server {
                server.stop(serve::PATIENCE).await;
            }
            let name = worker.name().to_owned();
            worker.stop(config.worker.shutdown_grace).await;
            // Nobody waits long for a store that is away: this worker is forgotten by itself later.
            let forgotten = tokio::time::timeout(FAREWELL, store.forget_node(&name)).await;
            if !matches!(forgotten, Ok(Ok(()))) {
                tracing::debug!(?forgotten, "cannot say that this worker has stopped");
            }
            // To the end: a probe that finds nobody says that the process is gone, and it is not.
            if let Some(probes) = probes {
                probes.stop().await;
            }
            #[cfg(feature = "otel")]
            if let Some(exporting) = exporting {
                exporting.stop().await;
            }
        } => {
            store.close().await;
            tracing::info!("stopped");
            Ok(Exit::Done)
        }
        name = signals.next() => {
            tracing::warn!(signal = name, "stopped at once; running attempts are lost to their leases");
            Ok(Exit::Failed)
        }
    }
}

/// SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> anyhow::Result<Signals> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next one and names it.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
