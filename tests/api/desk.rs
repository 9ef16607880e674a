//! A running server on a store in memory, and clients for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use redeliver::api::{App, Server, secret};
use redeliver::config::Config;
use redeliver::console;
use redeliver::store::access::{NewToken, Role};
use redeliver::store::memory::MemoryStore;
use redeliver::store::{Clock, Store};
use redeliver::task::Settings;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;

pub struct Desk {
    pub store: Arc<MemoryStore>,
    pub clock: Clock,
    pub address: SocketAddr,
    pub server: Server,
    client: reqwest::Client,
}

/// The token of a role, as every desk has one.
pub fn token_of(role: Role) -> String {
    format!("rdl_token-of-{role}")
}

impl Desk {
    pub async fn new() -> Desk {
        Desk::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Desk {
        redeliver::handler::http::install_crypto();
        let mut config = Config::default();
        config.broker.urls = Vec::new();
        change(&mut config);
        let clock = Clock::manual(Clock::System.now());
        let store = Arc::new(MemoryStore::new(clock.clone(), Settings::default()));
        for role in Role::ALL {
            let name = role.to_string();
            let hash = secret::hash(&token_of(role));
            let new = NewToken { name, hash, role, created_by: "test".into(), expires_at: None };
            assert!(redeliver::store::access::AccessStore::create_token(&*store, new).await.unwrap());
        }
        let settings = config.console.clone();
        let app =
            App::new(Arc::clone(&store) as Arc<dyn Store>, None, Arc::new(ArcSwap::from_pointee(config)), settings);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pages = console::pages(&app);
        let server = Server::start(listener, app, pages).unwrap();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(Duration::from_secs(20))
            .build()
            .unwrap();
        Desk { store, clock, address: server.address(), server, client }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    /// A request with the token of `role`.
    pub fn by(&self, role: Role, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path).bearer_auth(token_of(role))
    }

    /// Signs `role` in. Returns its cookie.
    pub async fn sign_in(&self, role: Role) -> String {
        let form = format!("token={}", token_of(role));
        let response = self.form("/sign-in", form).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        cookie_of(&response).expect("a sign-in sets the cookie")
    }

    pub fn form(&self, path: &str, form: String) -> RequestBuilder {
        self.request(Method::POST, path).header("content-type", "application/x-www-form-urlencoded").body(form)
    }
}

/// `name=value` of the cookie that a response sets.
pub fn cookie_of(response: &Response) -> Option<String> {
    let line = response.headers().get("set-cookie")?.to_str().ok()?;
    line.split(';').next().map(str::to_owned)
}

pub async fn json(response: Response) -> Value {
    let text = response.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
