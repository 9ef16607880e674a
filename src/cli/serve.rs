//! `redeliver serve`, and the server beside `work` and `demo`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use redeliver::api::{App, Server};
use redeliver::broker::Broker;
use redeliver::config::{Config, FlagValue};
use redeliver::console;
use redeliver::store::Store;
use redeliver::telemetry::{LogObserver, Metrics, Observers, ScrapeServer, Watched};
use tokio::net::TcpListener;

use super::context::{Context, open_broker};
use super::exit::Exit;
use super::reload::Reloads;
use super::service;
use super::work::Signals;

/// How long requests may go on after the server was told to stop.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Serve the API and the console, without running tasks
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver serve
  redeliver serve --listen 127.0.0.1:9000 --read-only
  redeliver serve --listen 0.0.0.0:8780 --public

Listens on this machine only unless --public says that others are meant; put TLS before it then. While there is no token, a link
that signs in once is printed; make tokens with `redeliver token create`.")]
pub struct Args {
    /// Address and port, instead of console.address; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The address may be one that other machines can reach
    #[arg(long)]
    public: bool,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Serve /metrics, /livez and /readyz at this address and port, instead of metrics.address
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
}

impl Args {
    /// What the flags say about config keys.
    pub fn flag_values(&self) -> Vec<FlagValue> {
        let listen = self.listen.iter().map(|address| ("console.address", "--listen", address.clone()));
        let public = self.public.then(|| ("console.public", "--public", "true".to_owned()));
        let read_only = self.read_only.then(|| ("console.read_only", "--read-only", "true".to_owned()));
        let flags = listen.chain(public).chain(read_only);
        let flags = flags.map(|(key, flag, value)| FlagValue { key, flag, value });
        flags.chain(metrics_flag(self.metrics.as_ref())).collect()
    }
}

/// Serves until told to stop.
///
/// # Errors
/// When it cannot start.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let mut reloads = Reloads::listen(context)?;
    let listener = listen(context.config().console.address).await?;
    let probes = listen_for_probes(context, args.metrics.as_ref()).await?;
    let store = context.store_or_new().await?;
    let metrics = Arc::new(Metrics::new());
    let observers = Observers::new(vec![Arc::new(LogObserver), Arc::clone(&metrics) as _]);
    let config = context.bound("the store", reloads.first(store.as_ref(), &observers)).await??;
    // An embedded broker lives in the worker's process; its alarms do what messages would.
    let broker = if config.broker.is_embedded() { None } else { Some(open_broker(&config)?) };
    if let Some(broker) = broker.clone() {
        // From the start: without a session of its own the probes would say that the broker is away until somebody asks for it.
        tokio::spawn(async move {
            if let Err(error) = broker.connect().await {
                tracing::warn!(%error, "no session with the broker yet; tried again until there is one");
            }
        });
    }
    let server = start(listener, Arc::clone(&store), broker.clone(), reloads.live())?;
    let _probes =
        start_probes(context, probes, Watched { metrics, store: store.clone(), broker: broker.clone(), vitals: None })?;
    tell(context, &server).await?;
    if args.read_only {
        context.say("read-only: every change is refused");
    }
    service::ready();
    let name = tokio::select! {
        name = signals.next() => name,
        never = service::supervise(None, store.clone(), broker.clone()) => match never {},
        never = reloads.follow(None, store.as_ref(), &observers) => match never {},
    };
    service::stopping();
    tracing::info!(signal = name, "stopping");
    server.stop(PATIENCE).await;
    if let Some(broker) = broker {
        broker.close().await;
    }
    store.close().await;
    Ok(Exit::Done)
}

/// Takes the address, before anything else is opened.
///
/// # Errors
/// When it is taken.
pub async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// What `--metrics` says about config keys.
pub fn metrics_flag(address: Option<&String>) -> Option<FlagValue> {
    address.map(|address| FlagValue { key: "metrics.address", flag: "--metrics", value: address.clone() })
}

/// Takes the address for Prometheus and probes, if there is to be one.
///
/// # Errors
/// When it is taken and `flag` asked for it; one from the file is let go with a warning.
pub async fn listen_for_probes(context: &Context, flag: Option<&String>) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = context.config().metrics.address else { return Ok(None) };
    match listen(address).await {
        Ok(listener) => Ok(Some(listener)),
        // The second process on a host reads the same file. That nobody can count it is no reason for it not to work.
        Err(error) if flag.is_none() => {
            tracing::warn!(
                "{error:#} (metrics.address): nobody can scrape this process; give it an address of its own with --metrics, \
                 or say --metrics off"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Answers Prometheus and probes from now on.
///
/// # Errors
/// When the listener has no address.
pub fn start_probes(
    context: &Context,
    listener: Option<TcpListener>,
    watched: Watched,
) -> anyhow::Result<Option<ScrapeServer>> {
    let server = listener.map(|listener| ScrapeServer::start(listener, watched)).transpose()?;
    if let Some(server) = &server {
        context.say(format!("metrics: http://{}/metrics", server.address()));
    }
    Ok(server)
}

/// Starts the server.
///
/// # Errors
/// When the listener has no address.
pub fn start(
    listener: TcpListener,
    store: Arc<dyn Store>,
    broker: Option<Arc<dyn Broker>>,
    live: Arc<ArcSwap<Config>>,
) -> anyhow::Result<Server> {
    let settings = live.load().console.clone();
    let app = App::new(store, broker, live, settings);
    let pages = console::pages(&app);
    Ok(Server::start(listener, app, pages)?)
}

/// Says where it listens, and how to get in while there is no token.
///
/// # Errors
/// When the store does not answer.
pub async fn tell(context: &Context, server: &Server) -> anyhow::Result<()> {
    context.say(format!("API and console: {}", server.url()));
    if let Some(link) = context.bound("the store", server.first_link()).await?? {
        context.say(format!("nobody has a token yet; sign in once within 15 minutes: {link}"));
    }
    Ok(())
}
