//! What every command needs: the configuration, the printer, and the one place where a real store and broker are opened.
//!
//! Commands see ports only. Every wait for a port is bounded: by `--timeout`, else by [`PATIENCE`].

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redeliver::broker::{Broker, EmbeddedBroker, RabbitBroker};
use redeliver::config::{self, Config, ConfigError, FlagValue, Loaded, Request, Secrets, process_environment};
use redeliver::desk::rules;
use redeliver::store::{self, Store};

use super::Globals;
use super::exit::{self, Exit};
use super::output::Printer;
use super::remote::Remote;

/// How long a command waits for store or broker when `--timeout` does not say.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// See the module.
pub struct Context {
    /// The configuration and where its values come from.
    pub loaded: Loaded,
    /// For stdout.
    pub printer: Printer,
    /// `--timeout`
    pub timeout: Option<Duration>,
    flags: Vec<FlagValue>,
    secrets: Secrets,
    began: Instant,
    quiet: bool,
    remote: Option<Remote>,
}

/// Where a command works.
pub enum Door<'c> {
    /// On the store.
    Store(Arc<dyn Store>),
    /// Through a running server.
    Api(&'c Remote),
}

impl Context {
    /// Loads the configuration; `flags` are the command's own values for config keys.
    ///
    /// # Errors
    /// Every problem of the configuration ([`Exit::Usage`]).
    pub fn load(globals: &Globals, mut flags: Vec<FlagValue>, secrets: Secrets) -> anyhow::Result<Context> {
        flags.extend(globals.flag_values());
        let file = globals.config.clone();
        let request = Request { file, environment: &process_environment, flags: flags.clone(), secrets };
        let loaded = config::load(&request)?;
        Ok(Context {
            loaded,
            flags,
            secrets,
            printer: Printer::new(globals.output, globals.color),
            timeout: globals.timeout,
            began: Instant::now(),
            quiet: globals.quiet,
            remote: globals.api.remote()?,
        })
    }

    /// What the configuration would mean if its file said `text`, with the same environment and flags.
    ///
    /// # Errors
    /// Every problem of it.
    pub fn load_again(&self, file: &Path, text: String) -> Result<Config, ConfigError> {
        let (flags, secrets) = (self.flags.clone(), self.secrets);
        let request = Request { file: None, environment: &process_environment, flags, secrets };
        config::load_text(&request, file.to_owned(), text).map(|loaded| loaded.config)
    }

    /// What the configuration means.
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// When `--timeout` is over; `None` without one.
    pub fn deadline(&self) -> Option<Instant> {
        self.timeout.map(|timeout| self.began + timeout)
    }

    /// What is left of `--timeout`, else [`PATIENCE`].
    pub fn patience(&self) -> Duration {
        self.deadline().map_or(PATIENCE, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits for `answer` as long as patience allows.
    ///
    /// # Errors
    /// [`Exit::Unreachable`], naming `whom`, when patience is over.
    pub async fn bound<T>(&self, whom: &str, answer: impl Future<Output = T>) -> anyhow::Result<T> {
        self.bound_for(self.patience(), whom, answer).await
    }

    /// The same for a last look when `--timeout` is as good as over: a moment longer, so that the answer is about the task and not about
    /// the clock.
    ///
    /// # Errors
    /// [`Exit::Unreachable`], naming `whom`, when that moment is over too.
    pub async fn bound_last<T>(&self, whom: &str, answer: impl Future<Output = T>) -> anyhow::Result<T> {
        const MOMENT: Duration = Duration::from_secs(2);
        self.bound_for(self.patience().max(MOMENT), whom, answer).await
    }

    async fn bound_for<T>(&self, patience: Duration, whom: &str, answer: impl Future<Output = T>) -> anyhow::Result<T> {
        tokio::time::timeout(patience, answer).await.map_err(|_| {
            let length = config::show_duration(self.timeout.unwrap_or(PATIENCE));
            exit::error(Exit::Unreachable, format!("{whom} did not answer within {length}"))
        })
    }

    /// A line for people on stderr, unless `-q`.
    pub fn say(&self, text: impl AsRef<str>) {
        if !self.quiet {
            eprintln!("{}", super::output::clean(text.as_ref()));
        }
    }

    /// Where the command works: through the server of `--api`, else on the store, which must exist.
    ///
    /// # Errors
    /// When the store does not exist, cannot be used or does not answer.
    pub async fn door(&self) -> anyhow::Result<Door<'_>> {
        match &self.remote {
            Some(remote) => Ok(Door::Api(remote)),
            None => Ok(Door::Store(self.store().await?)),
        }
    }

    /// The server of `--api`.
    pub fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// Refuses where `--api` was given to a command that needs the store itself: it must not work on another one than was meant.
    ///
    /// # Errors
    /// [`Exit::Usage`].
    pub fn needs_store(&self) -> anyhow::Result<()> {
        self.not_remote("the store")
    }

    /// The same for one that needs the broker itself.
    ///
    /// # Errors
    /// [`Exit::Usage`].
    pub fn needs_broker(&self) -> anyhow::Result<()> {
        self.not_remote("the broker")
    }

    fn not_remote(&self, whom: &str) -> anyhow::Result<()> {
        match &self.remote {
            Some(_) => Err(exit::error(Exit::Usage, format!("this works on {whom} itself; leave --api out"))),
            None => Ok(()),
        }
    }

    /// The store, which must exist.
    ///
    /// # Errors
    /// When it does not exist, cannot be used or does not answer.
    pub async fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        self.needs_store()?;
        self.bound("the store", open_store(self.config(), Missing::Refused)).await?
    }

    /// The store, made if it does not exist.
    ///
    /// # Errors
    /// When it cannot be made or used, or does not answer.
    pub async fn store_or_new(&self) -> anyhow::Result<Arc<dyn Store>> {
        self.needs_store()?;
        self.bound("the store", open_store(self.config(), Missing::Created)).await?
    }

    /// The configuration with the rules in force, as workers have them, and where the rules come from: the newest version in the store,
    /// else the file, also where there is no store yet.
    ///
    /// # Errors
    /// When the store does not answer, or holds rules that cannot be used.
    pub async fn in_force(&self) -> anyhow::Result<(Config, String)> {
        let store = match store_exists(self.config()) {
            true => match self.store().await {
                Err(error) if exit::of(&error) == Exit::NotFound => None,
                opened => Some(opened?),
            },
            false => None,
        };
        let Some(store) = store else { return Ok((self.config().clone(), self.own_source())) };
        let found = self.bound("the store", self.in_force_in(&*store)).await?;
        store.close().await;
        found
    }

    /// The same with a store that is open already.
    ///
    /// # Errors
    /// As [`Context::in_force`].
    pub async fn in_force_in(&self, store: &dyn Store) -> anyhow::Result<(Config, String)> {
        Ok(rules::in_force(store, self.config(), &self.own_source()).await?)
    }

    /// Where the rules of this machine's own configuration come from.
    pub fn own_source(&self) -> String {
        let file = self.loaded.file.as_ref().map(|file| file.display().to_string());
        file.unwrap_or_else(|| "no file, defaults hold".into())
    }

    /// The broker, connected, so that an unreachable one is an error here and not a message lost later.
    ///
    /// # Errors
    /// When it is not reachable or refuses.
    pub async fn broker(&self) -> anyhow::Result<Arc<dyn Broker>> {
        let broker = open_broker(self.config())?;
        self.bound("the broker", broker.connect()).await??;
        Ok(broker)
    }
}

/// What to do about a store that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Make it.
    Created,
    /// An error: whoever lists or replays has mistyped the path, and an empty new store would look like lost tasks.
    Refused,
}

/// Opens the configured store.
///
/// # Errors
/// When it cannot be used.
pub async fn open_store(config: &Config, missing: Missing) -> anyhow::Result<Arc<dyn Store>> {
    open_store_at(&config.store.url, config, missing).await
}

/// Opens a store that is not the configured one.
///
/// # Errors
/// When it cannot be used.
pub async fn open_store_at(url: &str, config: &Config, missing: Missing) -> anyhow::Result<Arc<dyn Store>> {
    let place = config::mask(url);
    let none = || {
        let text = format!("there is no store at {place}: check store.url, or make it with `redeliver store migrate`");
        Err(exit::error(Exit::NotFound, text))
    };
    if missing == Missing::Refused && !file_exists(url) {
        return none();
    }
    match store::open(url, config.settings(), missing == Missing::Created).await {
        #[cfg(feature = "postgres")]
        Err(store::StoreError::Unusable { reason, .. }) if reason == store::postgres::NO_STORE => none(),
        opened => Ok(opened?),
    }
}

/// Whether the configured store is there.
pub fn store_exists(config: &Config) -> bool {
    file_exists(&config.store.url)
}

/// Whether there is a database file with something in it. A server, and a file that cannot be looked at, are left to the store to complain
/// about.
pub fn file_exists(url: &str) -> bool {
    if store::is_postgres(url) {
        return true;
    }
    let path = url.strip_prefix("sqlite://").unwrap_or(url);
    let path = path.split('?').next().unwrap_or(path);
    match std::fs::metadata(path) {
        Ok(file) => file.len() > 0,
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// The configured broker; nothing is connected yet.
///
/// # Errors
/// When its URL cannot be used.
pub fn open_broker(config: &Config) -> anyhow::Result<Arc<dyn Broker>> {
    let broker = &config.broker;
    if broker.is_embedded() {
        return Ok(Arc::new(EmbeddedBroker::new(&broker.namespace)));
    }
    let rabbit = RabbitBroker::with_tls(
        broker.urls.clone(),
        &broker.tls,
        broker.namespace.clone(),
        broker.confirm_timeout,
        broker.heartbeat,
    )?;
    Ok(Arc::new(rabbit))
}
