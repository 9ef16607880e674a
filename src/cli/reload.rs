//! Rules that change while a worker runs: from the file, when it changes and at SIGHUP, and from the store, when a version is applied there.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use redeliver::config::{Config, FileWatch, Seen, SharedRules};
use redeliver::store::{Store, StoreError};
use redeliver::telemetry::{Event, Observers};
use redeliver::worker::{RuleSet, Worker};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::context::Context;
use super::service;

/// How often the file is looked at. A change counts when it is seen twice, so it is in force after at most three of these.
const LOOK: Duration = Duration::from_millis(250);
/// Every so many looks the store is asked for a newer version: once a second.
const STORE_LOOKS: u32 = 4;
/// Every so many looks a node says again what it runs: twice a minute.
const REPORT_LOOKS: u32 = 120;

/// See the module.
pub struct Reloads<'c> {
    context: &'c Context,
    hangup: Signal,
    /// `None` when the process has started without a file.
    file: Option<FileWatch>,
    /// What file, environment and flags mean, as last accepted.
    own: Config,
    stored: Stored,
    /// What holds, for whoever else needs to know.
    live: Arc<ArcSwap<Config>>,
}

/// The newest version in the store.
#[derive(Default)]
struct Stored {
    /// Its number, also when it cannot be used; 0 before there is one.
    seen: i64,
    /// The version in force and its rules; `None`: each node's own file holds.
    rules: Option<(i64, SharedRules)>,
}

impl Stored {
    /// Asks for a newer version. `Ok(true)`: other rules hold now. Inner `Err`: there is one that cannot be used.
    async fn look(&mut self, store: &dyn Store) -> Result<Result<bool, String>, StoreError> {
        let Some(newest) = store.policies(1).await?.into_iter().find(|newest| newest.version > self.seen) else {
            return Ok(Ok(false));
        };
        self.seen = newest.version;
        let Some(text) = newest.rules.text else {
            return Ok(Ok(self.rules.take().is_some()));
        };
        Ok(match SharedRules::read(&source_of(newest.version), &text) {
            Ok(rules) => {
                self.rules = Some((newest.version, rules));
                Ok(true)
            }
            Err(error) => Err(error.to_string()),
        })
    }

    fn on_top_of(&self, own: &Config) -> Config {
        match &self.rules {
            Some((_, rules)) => own.clone().with_rules(rules.clone()),
            None => own.clone(),
        }
    }
}

fn source_of(version: i64) -> String {
    format!("policies version {version}")
}

impl<'c> Reloads<'c> {
    /// Listens for SIGHUP from now on: until then it would end the process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen(context: &'c Context) -> anyhow::Result<Reloads<'c>> {
        let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        let file = context.loaded.file.clone().map(FileWatch::new);
        let own = context.config().clone();
        let live = Arc::new(ArcSwap::from_pointee(own.clone()));
        Ok(Reloads { context, hangup, file, own, stored: Stored::default(), live })
    }

    /// The configuration in force, also after it has changed.
    pub fn live(&self) -> Arc<ArcSwap<Config>> {
        Arc::clone(&self.live)
    }

    /// The configuration to start with: the file's, with the rules that the store holds. Rules there that cannot be used change nothing.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn first(&mut self, store: &dyn Store, observers: &Observers) -> Result<Config, StoreError> {
        if let Err(problems) = self.stored.look(store).await? {
            observers.emit(&Event::ConfigRefused { problems: &problems });
        }
        let config = self.stored.on_top_of(&self.own);
        self.live.store(Arc::new(config.clone()));
        Ok(config)
    }

    /// Puts what changes in force, for ever. Without a worker nobody runs by it, but what is said of it must be true.
    pub async fn follow(&mut self, worker: Option<&Worker>, store: &dyn Store, observers: &Observers) -> Infallible {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The first text of the file is the one that the process has started with, nearly always.
        let mut quietly = self.file.is_some();
        for count in (0..STORE_LOOKS * REPORT_LOOKS).cycle() {
            let asked = tokio::select! {
                _ = looks.tick() => false,
                _ = self.hangup.recv() => true,
            };
            if asked {
                service::reloading();
            }
            // What cannot be put in force must not stay: the next change would be built on it.
            let before = (self.own.clone(), self.stored.rules.clone());
            let mut changed = self.look_at_file(asked, observers);
            let first_text = changed && std::mem::take(&mut quietly);
            if count % STORE_LOOKS == 0 {
                match self.stored.look(store).await {
                    Ok(Ok(newer)) => changed |= newer,
                    Ok(Err(problems)) => observers.emit(&Event::ConfigRefused { problems: &problems }),
                    // Who needs the store says so; the next look is in a second.
                    Err(error) => tracing::debug!(%error, "cannot ask for newer policies"),
                }
            }
            if changed && !self.put_in_force(worker, observers, first_text) {
                (self.own, self.stored.rules) = before;
            }
            if asked {
                service::ready();
            }
            let Some(worker) = worker else { continue };
            if changed || count % REPORT_LOOKS == 0 {
                let version = self.stored.rules.as_ref().map(|(version, _)| *version);
                if let Err(error) = store.report_node(worker.name(), &worker.rules_digest(), version).await {
                    tracing::debug!(%error, "cannot say which rules run here");
                }
            }
        }
        unreachable!("the count goes round for ever")
    }

    /// `false`: routes that cannot be made; what was in force before still is.
    fn put_in_force(&self, worker: Option<&Worker>, observers: &Observers, first_text: bool) -> bool {
        // Handlers are bounded by the sections that hold, not by those of the next start.
        let mut config = self.stored.on_top_of(&self.own);
        config.worker = self.context.config().worker.clone();
        let live = Arc::new(config.clone());
        let Some(worker) = worker else {
            self.live.store(live);
            return true;
        };
        // Routes make TLS contexts, which takes a moment.
        match tokio::task::block_in_place(|| RuleSet::new(&config)) {
            Ok(rules) => {
                let (digest, changed) = worker.reload(rules);
                self.live.store(live);
                if changed || !first_text {
                    let of_file = || self.file.as_ref().map_or(String::new(), |file| file.path().display().to_string());
                    let source = self.stored.rules.as_ref().map_or_else(of_file, |(version, _)| source_of(*version));
                    observers.emit(&Event::RulesChanged { digest: &digest, source: &source });
                }
                true
            }
            Err(error) => {
                observers.emit(&Event::ConfigRefused { problems: &error.to_string() });
                false
            }
        }
    }

    /// Reads the file if it has changed or somebody asks. `true`: it means something that can be meant, perhaps the same.
    fn look_at_file(&mut self, asked: bool, observers: &Observers) -> bool {
        let Some(file) = &mut self.file else {
            if asked {
                tracing::warn!("SIGHUP, but this process has started without a config file");
            }
            return false;
        };
        let path = file.path().to_owned();
        // A small file: blocking, but not for long unless its disk hangs.
        let read = tokio::task::block_in_place(|| match asked {
            true => file.read().map(Seen::Changed),
            false => Ok(file.look()),
        });
        match read {
            Ok(Seen::Same) => false,
            Ok(Seen::Changed(text)) => self.accept(&path, text, observers),
            Ok(Seen::Gone(reason)) | Err(reason) => {
                tracing::warn!(path = %path.display(), reason, "the config file cannot be read; what it said before holds");
                false
            }
        }
    }

    fn accept(&mut self, path: &Path, text: String, observers: &Observers) -> bool {
        match self.context.load_again(path, text) {
            Ok(config) => {
                let later = self.context.config().needs_restart(&config);
                if !later.is_empty() {
                    let sections = later.join(", ");
                    tracing::warn!(sections, "changed, but in force from the next start on only");
                }
                self.own = config;
                true
            }
            Err(error) => {
                observers.emit(&Event::ConfigRefused { problems: &error.to_string() });
                false
            }
        }
    }
}
