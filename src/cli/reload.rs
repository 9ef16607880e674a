//! Rules that change while a worker runs: from the file, when it changes and at SIGHUP.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use redeliver::config::{Config, FileWatch, Seen};
use redeliver::telemetry::{Event, Observers};
use redeliver::worker::{RuleSet, Worker};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::context::Context;

/// How often the file is looked at. A change counts when it is seen twice, so it is in force after at most three of these.
const LOOK: Duration = Duration::from_millis(250);

/// See the module.
pub struct Reloads<'c> {
    context: &'c Context,
    hangup: Signal,
    /// `None` when the process has started without a file.
    file: Option<FileWatch>,
}

impl<'c> Reloads<'c> {
    /// Listens for SIGHUP from now on: until then it would end the process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen(context: &'c Context) -> anyhow::Result<Reloads<'c>> {
        let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        Ok(Reloads { context, hangup, file: context.loaded.file.clone().map(FileWatch::new) })
    }

    /// Puts what changes in force, for ever.
    pub async fn follow(&mut self, worker: &Worker, observers: &Observers) -> Infallible {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut first = true;
        loop {
            let asked = tokio::select! {
                _ = looks.tick() => false,
                _ = self.hangup.recv() => true,
            };
            // A small file and, if it has changed, a few TLS contexts: blocking, but not for long unless its disk hangs.
            let changed = tokio::task::block_in_place(|| self.changed(asked));
            match changed {
                None => {}
                Some(Ok((config, rules))) => {
                    let (digest, changed) = worker.reload(rules);
                    // The first text is the one that the process has started with, nearly always.
                    if changed || !first {
                        let source = self.source();
                        observers.emit(&Event::RulesChanged { digest: &digest, source: &source });
                    }
                    let later = self.context.config().needs_restart(&config);
                    if !later.is_empty() {
                        let sections = later.join(", ");
                        tracing::warn!(sections, "changed, but in force from the next start on only");
                    }
                    first = false;
                }
                Some(Err(problems)) => {
                    observers.emit(&Event::ConfigRefused { problems: &problems });
                    first = false;
                }
            }
        }
    }

    fn source(&self) -> String {
        self.file.as_ref().map_or_else(String::new, |file| file.path().display().to_string())
    }

    /// What the file means now, if it is to be looked at: it has changed, or somebody asks. `Err` says every problem, once for each text.
    fn changed(&mut self, asked: bool) -> Option<Result<(Config, RuleSet), String>> {
        let Some(file) = &mut self.file else {
            if asked {
                tracing::warn!("SIGHUP, but this process has started without a config file");
            }
            return None;
        };
        let text = if asked {
            match file.read() {
                Ok(text) => text,
                Err(reason) => return Some(Err(format!("{}: {reason}", file.path().display()))),
            }
        } else {
            match file.look() {
                Seen::Same => return None,
                Seen::Changed(text) => text,
                Seen::Gone(reason) => {
                    let path = file.path().display();
                    tracing::warn!(%path, reason, "the config file cannot be read; what it said before holds");
                    return None;
                }
            }
        };
        let loaded = self.context.load_again(file.path(), text).map_err(|error| error.to_string());
        Some(loaded.and_then(|config| {
            // Handlers are bounded by the sections that hold, not by those of the next start.
            let holding = Config { worker: self.context.config().worker.clone(), ..config.clone() };
            RuleSet::new(&holding).map(|rules| (config, rules)).map_err(|error| error.to_string())
        }))
    }
}
