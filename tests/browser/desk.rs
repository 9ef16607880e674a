//! A whole installation in this process: an SQLite store, a worker whose handlers work again, and the server.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use redeliver::api::{App, Server, secret};
use redeliver::broker::EmbeddedBroker;
use redeliver::console;
use redeliver::handler::{Route, handler_fn};
use redeliver::policy::TopicPattern;
use redeliver::store::Store;
use redeliver::store::access::{NewToken, Role};
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::task::Outcome;
use redeliver::telemetry::Observers;
use redeliver::worker::{Plan, Worker};

use crate::night::{self, Night};

pub struct Desk {
    pub store: Arc<dyn Store>,
    pub server: Server,
    worker: Option<Worker>,
    _folder: tempfile::TempDir,
}

impl Desk {
    /// After such a night. Without a worker nothing moves by itself.
    pub async fn after(letters: usize, with_worker: bool) -> Desk {
        let folder = tempfile::tempdir().unwrap();
        Night::begin(folder.path()).await.fall(letters).await;
        Desk::on(folder, with_worker).await
    }

    /// On what is in the folder.
    pub async fn on(folder: tempfile::TempDir, with_worker: bool) -> Desk {
        redeliver::handler::http::install_crypto();
        let config = night::config();
        let options = SqliteOptions::default();
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&night::url(folder.path()), config.settings(), options).await.unwrap());
        let broker = Arc::new(EmbeddedBroker::new("redeliver"));
        let worker = if with_worker {
            // The carrier is back; one address in forty does not exist.
            let ship = handler_fn(async |attempt: redeliver::handler::AttemptContext, payload: serde_json::Value| {
                tokio::time::sleep(Duration::from_millis(30)).await;
                drop(attempt);
                match payload["order"].as_u64() {
                    Some(order) if order % 40 == 7 => Outcome::dead("the address does not exist"),
                    _ => Outcome::success_json(&serde_json::json!({"ok": true})),
                }
            });
            let route = Route { task_type: TopicPattern::new("#").unwrap(), handler: Arc::new(ship) };
            let plan = Plan::with_routes(&config, vec![route]);
            Some(Worker::start(Arc::clone(&store), broker.clone(), plan, Observers::default()).await.unwrap())
        } else {
            None
        };
        if with_worker {
            store.report_node("worker-a.example:4711", &config.rules_digest(), None).await.unwrap();
        }
        for role in Role::ALL {
            let new = NewToken {
                name: role.to_string(),
                hash: secret::hash(&token(role)),
                role,
                created_by: "test".into(),
                expires_at: None,
            };
            assert!(store.create_token(new).await.unwrap());
        }
        let settings = config.console.clone();
        let app = App::new(Arc::clone(&store), Some(broker), Arc::new(ArcSwap::from_pointee(config)), settings);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pages = console::pages(&app);
        let server = Server::start(listener, app, pages).unwrap();
        Desk { store, server, worker, _folder: folder }
    }

    pub fn at(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    pub async fn stop(self) {
        self.server.stop(Duration::from_secs(5)).await;
        if let Some(worker) = self.worker {
            worker.stop(Duration::from_secs(5)).await;
        }
        self.store.close().await;
    }
}

/// The token of a role.
pub fn token(role: Role) -> String {
    format!("rdl_token-of-{role}")
}
