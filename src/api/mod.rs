//! The HTTP API, and the server that it shares with the console.
//!
//! Handlers decide nothing about tasks: like the command line they ask the store, give commands to it and publish what it answers.
//! Nobody reaches one without having been recognised first (`access`), and every change is told to the audit.

pub mod access;
mod headers;
mod input;
pub(crate) mod listener;
mod openapi;
mod problem;
mod server;
mod sign_in;
mod table;
mod v1;

pub use crate::desk::secret;
pub use access::Principal;
pub use input::MOST_ITEMS;
pub use problem::{FieldError, Problem, ProblemBody};
pub use server::{Pages, Server, router};
pub use table::Route;
pub use v1::table;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::config::{Config, ConsoleConfig};
use crate::store::Store;
use sign_in::SignIns;

/// What every handler needs.
pub struct App {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The broker; `None` where it lives in another process (`embedded`), and the store's alarms do its work.
    pub broker: Option<Arc<dyn Broker>>,
    /// The configuration in force; replaced as a whole while the server runs. Take it once for each request.
    pub config: Arc<ArcSwap<Config>>,
    /// `[console]` as the server has started with it, flags included.
    pub console: ConsoleConfig,
    /// Ends when the server is about to stop: whoever holds a request open lets it go then.
    pub stopping: CancellationToken,
    sign_ins: SignIns,
    /// Whoever holds it sums up the history; the store's readers are few, and others need them too.
    sums: Arc<Semaphore>,
}

impl App {
    /// An application on `store`.
    pub fn new(
        store: Arc<dyn Store>,
        broker: Option<Arc<dyn Broker>>,
        config: Arc<ArcSwap<Config>>,
        console: ConsoleConfig,
    ) -> Arc<App> {
        Arc::new(App {
            store,
            broker,
            config,
            console,
            stopping: CancellationToken::new(),
            sign_ins: SignIns::default(),
            sums: Arc::new(Semaphore::new(1)),
        })
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }
}
