//! A running server on a store in memory, and clients for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use redeliver::api::{App, Server, secret};
use redeliver::config::Config;
use redeliver::console;
use redeliver::desk::submit::submit;
use redeliver::store::access::{NewToken, Role};
use redeliver::store::memory::MemoryStore;
use redeliver::store::{Clock, Store, Urgency};
use redeliver::task::{
    Answer, Attachment, AttachmentBody, Claimant, Command, DeadReason, Decision, Envelope, Failure, Settings,
    Settlement, TaskResult,
};
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

/// A JSON body.
pub trait WithJson {
    fn json(self, body: &Value) -> RequestBuilder;
}

impl WithJson for RequestBuilder {
    fn json(self, body: &Value) -> RequestBuilder {
        self.header("content-type", "application/json").body(body.to_string())
    }
}

pub async fn json(response: Response) -> Value {
    let text = response.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Tasks in every state, past the API.
impl Desk {
    async fn one(&self, command: Command) -> Answer {
        self.store.apply(Urgency::Normal, vec![command]).await.unwrap().remove(0)
    }

    pub async fn submit(&self, id: &str, task_type: &str, payload: &str) {
        let envelope = Envelope::new(task_type).id(id).payload_text(payload).unwrap();
        let store = Arc::clone(&self.store) as Arc<dyn Store>;
        submit(store, None, Arc::new(Config::default()), envelope).await.unwrap();
    }

    /// A worker takes it. Returns its fence.
    async fn claim(&self, id: &str) -> i64 {
        self.clock.advance(1_000);
        let claimant = Claimant { worker: "w".into(), serves: None, gates: Arc::default(), policies: None };
        let stamp = self.store.get(&[id.into()]).await.unwrap().remove(0).unwrap().stamp();
        match self.one(Command::Claim { id: id.into(), stamp, claimant: Some(claimant) }).await {
            Answer::Run(task) => task.state.fence,
            other => panic!("{other:?}"),
        }
    }

    async fn settle(&self, id: &str, change: impl FnOnce(&mut Settlement), decision: Decision) {
        let fence = self.claim(id).await;
        let mut settlement = Settlement::new("w", decision);
        change(&mut settlement);
        let answer = self.one(Command::Settle { id: id.into(), fence, settlement: Box::new(settlement) }).await;
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
    }

    pub async fn succeeded(&self, id: &str, result: &str) {
        self.submit(id, "order.ship", r#"{"order": 7}"#).await;
        let result = TaskResult { media_type: "application/json".into(), body: result.into(), truncated: false };
        self.settle(id, |settlement| settlement.result = Some(result), Decision::Succeed).await;
    }

    pub async fn run_to_death(&self, id: &str, message: &str, reason: DeadReason) {
        let failure = Failure { fingerprint: "print".into(), ..Failure::new("timeout", message) };
        self.settle(id, |_| {}, Decision::Die { reason, failure }).await;
    }

    pub async fn dead(&self, id: &str, message: &str, reason: DeadReason) {
        self.submit(id, "order.ship", "{}").await;
        self.run_to_death(id, message, reason).await;
    }

    pub async fn fail_with_attachments(&self, id: &str, files: Vec<(&str, &str, Vec<u8>)>) {
        let attachments = files.into_iter().map(|(name, media_type, bytes)| Attachment {
            name: name.into(),
            media_type: media_type.into(),
            body: AttachmentBody::Bytes(bytes.into()),
        });
        let attachments = attachments.collect();
        let decision =
            Decision::Die { reason: DeadReason::PermanentError, failure: Failure::new("http_status", "broken") };
        self.settle(id, |settlement| settlement.attachments = attachments, decision).await;
    }
}
