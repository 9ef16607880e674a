//! Runs tasks that fail and must be tried again later, on RabbitMQ, with a store that decides.
//!
//! The program `redeliver` is made of this library; services in Rust can publish with [`producer::Producer`] and run tasks
//! in their own process with [`worker::Worker`] and a [`handler::Handler`]:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use redeliver::broker::RabbitBroker;
//! use redeliver::config::Config;
//! use redeliver::handler::{Route, handler_fn};
//! use redeliver::policy::TopicPattern;
//! use redeliver::producer::Producer;
//! use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
//! use redeliver::task::{Envelope, Outcome};
//! use redeliver::telemetry::{LogObserver, Observers};
//! use redeliver::worker::{Plan, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     order: u64,
//! }
//!
//! # async fn ship(order: u64) -> Result<String, std::io::Error> { Ok(format!("shipped {order}")) }
//! # async fn example() -> anyhow::Result<()> {
//! let config = Config::default();
//! let store = Arc::new(SqliteStore::open(&config.store.url, config.settings(), SqliteOptions::default()).await?);
//! let broker = Arc::new(RabbitBroker::new(
//!     config.broker.urls.clone(),
//!     config.broker.namespace.clone(),
//!     config.broker.confirm_timeout,
//!     config.broker.heartbeat,
//! )?);
//!
//! let ship_order = handler_fn(|_attempt, payload: Order| async move {
//!     match ship(payload.order).await {
//!         Ok(done) => Outcome::success_json(&done.into()),
//!         Err(error) => Outcome::failure("carrier", error.to_string()), // policy decides whether and when again
//!     }
//! });
//! let route = Route { task_type: TopicPattern::new("order.ship")?, handler: Arc::new(ship_order) };
//! let plan = Plan::with_routes(&config, vec![route]);
//! let worker = Worker::start(store, broker.clone(), plan, Observers::new(vec![Arc::new(LogObserver)])).await?;
//!
//! let envelope = Envelope::new("order.ship").id("order-1001").payload(&serde_json::json!({"order": 1001}))?;
//! Producer::new(broker).publish(envelope).await?;
//!
//! tokio::signal::ctrl_c().await?;
//! worker.stop(config.worker.shutdown_grace).await;
//! # Ok(())
//! # }
//! ```
//!
//! The rules ([`task`], [`policy`], [`gate`]) do no I/O, read no clock and draw no random numbers: production, the model
//! checker and tests call the same functions.

pub mod api;
pub mod bench;
pub mod broker;
pub mod config;
pub mod console;
pub mod dead_letter;
pub mod demo;
pub mod desk;
pub mod gate;
pub mod handler;
pub mod policy;
pub mod producer;
pub mod simulate;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod worker;
