//! What test programs share: a real broker to test against, with a vhost for each test, and waiting for things to happen.
//!
//! The broker is the one that the environment names (`tests/run` starts one): `REDELIVER_TEST_BROKER` is its AMQP URL,
//! `REDELIVER_TEST_MANAGEMENT` its management API, user and password included. Without them a test that needs a broker is skipped,
//! says so on stderr, and writes a line to the file that `REDELIVER_TEST_SKIP_LOG` names; with `REDELIVER_TEST_REQUIRE_BROKER=1` it
//! fails instead.

#![allow(dead_code, reason = "every test program uses another part of this, so none could `expect` it")]

pub mod cluster;
pub mod proxy;

use std::future::Future;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde_json::{Value, json};

/// How long anything may take that should happen at once. Generous: the machine is shared.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Where a broker listens.
#[derive(Debug, Clone)]
pub struct TestBroker {
    amqp: String,
    management: String,
}

/// A vhost of its own for one test.
#[derive(Debug, Clone)]
pub struct Vhost {
    pub name: String,
    broker: TestBroker,
}

/// Runs `test` in a vhost of its own, which is deleted afterwards however the test ends. Skips it without a broker.
pub async fn with_vhost<F: Future<Output = ()>>(test: impl FnOnce(Vhost) -> F) {
    let Some(broker) = TestBroker::from_env() else { return };
    broker.with_vhost(test).await;
}

impl TestBroker {
    /// The broker that the environment names; `None` after saying that the test is skipped.
    pub fn from_env() -> Option<TestBroker> {
        let (Ok(amqp), Ok(management)) =
            (std::env::var("REDELIVER_TEST_BROKER"), std::env::var("REDELIVER_TEST_MANAGEMENT"))
        else {
            skip("REDELIVER_TEST_BROKER and REDELIVER_TEST_MANAGEMENT are not set");
            return None;
        };
        Some(TestBroker { amqp, management: management.trim_end_matches('/').to_owned() })
    }

    /// Runs `test` in a vhost of its own.
    pub async fn with_vhost<F: Future<Output = ()>>(&self, test: impl FnOnce(Vhost) -> F) {
        let name = format!("test-{}", uuid::Uuid::now_v7());
        self.make_vhost(&name).await;
        let vhost = Vhost { name: name.clone(), broker: self.clone() };
        let result = AssertUnwindSafe(test(vhost)).catch_unwind().await;
        self.api(reqwest::Method::DELETE, &format!("/api/vhosts/{name}"), None).await;
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    }

    async fn make_vhost(&self, name: &str) {
        self.api(reqwest::Method::PUT, &format!("/api/vhosts/{name}"), None).await;
        let (user, _) = credentials(&self.amqp);
        let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
        self.api(reqwest::Method::PUT, &format!("/api/permissions/{name}/{user}"), Some(all)).await;
    }

    /// One request to the management API.
    pub async fn api(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> Value {
        let (status, text) = self.ask(method, path, body).await;
        assert!(status.is_success() || status == 404, "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// The same, whatever it answers.
    async fn ask(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> (reqwest::StatusCode, String) {
        // The TLS back end has no provider of its own; a second installation changes nothing.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("an HTTP client");
        let (user, password) = credentials(&self.management);
        let mut request = client
            .request(method, format!("{}{path}", without_credentials(&self.management)))
            .basic_auth(user, Some(password));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().await.expect("the management API answers");
        let status = response.status();
        (status, response.text().await.expect("the management API answers"))
    }

    /// Host and port of AMQP.
    pub fn address(&self) -> String {
        let rest = self.amqp.rsplit_once('@').map_or(self.amqp.as_str(), |(_, rest)| rest);
        rest.split('/').next().unwrap_or_default().to_owned()
    }
}

impl Vhost {
    /// The AMQP URL of this vhost.
    pub fn url(&self) -> String {
        self.url_at(&self.broker.address())
    }

    /// The same through another address: a proxy's.
    pub fn url_at(&self, address: &str) -> String {
        let (user, password) = credentials(&self.broker.amqp);
        format!("amqp://{user}:{password}@{address}/{}", self.name)
    }

    /// The same with another password.
    pub fn url_with_password(&self, password: &str) -> String {
        let (user, _) = credentials(&self.broker.amqp);
        format!("amqp://{user}:{password}@{}/{}", self.broker.address(), self.name)
    }

    /// The same as another user.
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("amqp://{user}:{password}@{}/{}", self.broker.address(), self.name)
    }

    /// The management API, with user and password.
    pub fn management_url(&self) -> &str {
        &self.broker.management
    }

    /// Host and port of AMQP.
    pub fn address(&self) -> String {
        self.broker.address()
    }

    /// Makes or changes a user of the whole broker; its name should have the vhost's in it.
    pub async fn user(&self, name: &str, password: &str, tags: &str) {
        let user = json!({"password": password, "tags": tags});
        self.broker.api(reqwest::Method::PUT, &format!("/api/users/{name}"), Some(user)).await;
    }

    /// Major and minor version of the broker.
    pub async fn broker_version(&self) -> (u32, u32) {
        let told = self.broker.api(reqwest::Method::GET, "/api/overview", None).await;
        let version = told["rabbitmq_version"].as_str().expect("a version");
        let mut numbers = version.split('.').map(|number| number.parse().expect("a number"));
        let mut next = || numbers.next().expect("major and minor");
        (next(), next())
    }

    /// Deletes a user.
    pub async fn forget_user(&self, name: &str) {
        self.broker.api(reqwest::Method::DELETE, &format!("/api/users/{name}"), None).await;
    }

    /// Imports definitions, as an operator would.
    pub async fn import(&self, definitions: Value) {
        self.broker.api(reqwest::Method::POST, "/api/definitions", Some(definitions)).await;
    }

    /// Closes every connection to this vhost that the management API knows, as an operator would; at least `expected` of them.
    pub async fn kill_connections(&self, expected: usize) {
        let mut names = Vec::new();
        until("the management API lists the connections", async || {
            let listed =
                self.broker.api(reqwest::Method::GET, &format!("/api/vhosts/{}/connections", self.name), None).await;
            let listed = listed.as_array().cloned().unwrap_or_default();
            names = listed.iter().filter_map(|c| c["name"].as_str().map(str::to_owned)).collect();
            names.len() >= expected
        })
        .await;
        for name in names {
            let name = name.replace(' ', "%20").replace('>', "%3E");
            self.broker.api(reqwest::Method::DELETE, &format!("/api/connections/{name}"), None).await;
        }
    }

    /// Sets one thing of `kind` (`policies`, `operator-policies`, `permissions`).
    pub async fn put(&self, kind: &str, name: &str, body: Value) {
        self.broker.api(reqwest::Method::PUT, &format!("/api/{kind}/{}/{name}", self.name), Some(body)).await;
    }

    /// Takes away what [`put`](Vhost::put) has set.
    pub async fn delete(&self, kind: &str, name: &str) {
        self.broker.api(reqwest::Method::DELETE, &format!("/api/{kind}/{}/{name}", self.name), None).await;
    }

    /// Deletes a queue behind everybody's back.
    pub async fn delete_queue(&self, queue: &str) {
        self.broker.api(reqwest::Method::DELETE, &format!("/api/queues/{}/{queue}", self.name), None).await;
    }

    /// The names of the queues that the management API knows. A queue that is gone may be among them for a moment.
    pub async fn queues(&self) -> Vec<String> {
        let listed = self.broker.api(reqwest::Method::GET, &format!("/api/queues/{}", self.name), None).await;
        let listed = listed.as_array().cloned().unwrap_or_default();
        listed.iter().filter_map(|queue| queue["name"].as_str().map(str::to_owned)).collect()
    }

    /// Takes all ready messages out of a queue behind everybody's back; nothing where there is no such queue.
    pub async fn purge_queue(&self, queue: &str) {
        let path = format!("/api/queues/{}/{queue}/contents", self.name);
        let (status, text) = self.broker.ask(reqwest::Method::DELETE, &path, None).await;
        match status.as_u16() {
            200..300 | 404 => {}
            // Nobody stands behind its name (`noproc`), see `delete_shells`: whoever wants it empty has to delete it.
            400 => self.delete_queue(queue).await,
            _ => panic!("{path}: {status} {text}"),
        }
    }

    /// Deletes the vhost and makes it again, empty.
    pub async fn wipe(&self) {
        self.broker.api(reqwest::Method::DELETE, &format!("/api/vhosts/{}", self.name), None).await;
        self.broker.make_vhost(&self.name).await;
    }

    /// Deletes what RabbitMQ leaves of a queue that is declared while it, or its vhost, is being deleted: its name, and nobody behind it.
    /// Such a queue takes nothing and gives nothing until the node starts again or, as here, somebody deletes it.
    ///
    /// Returns how many there were.
    pub async fn delete_shells(&self) -> usize {
        let mut deleted = 0;
        let listed = self.broker.api(reqwest::Method::GET, &format!("/api/queues/{}", self.name), None).await;
        for queue in listed.as_array().into_iter().flatten() {
            if queue["type"] == "quorum" && queue["leader"].is_null() {
                self.delete_queue(queue["name"].as_str().expect("a name")).await;
                deleted += 1;
            }
        }
        deleted
    }

    /// What the management API tells of a queue.
    pub async fn queue(&self, queue: &str) -> Value {
        self.broker.api(reqwest::Method::GET, &format!("/api/queues/{}/{queue}", self.name), None).await
    }
}

/// A broker for one test alone, which may stop and start it. Gone when this is dropped, or with this process.
#[derive(Debug)]
pub struct PrivateBroker {
    pub broker: TestBroker,
    ctl: String,
}

impl PrivateBroker {
    /// Starts one; `None` after saying that the test is skipped.
    pub fn start() -> Option<PrivateBroker> {
        TestBroker::from_env()?;
        Some(PrivateBroker::start_with(&[]))
    }

    /// Starts one that joins the cluster of this one.
    pub fn join(&self) -> PrivateBroker {
        let folder = self.ctl.strip_suffix("/ctl").expect("its folder holds its ctl");
        PrivateBroker::start_with(&["--join", folder])
    }

    fn start_with(arguments: &[&str]) -> PrivateBroker {
        let start = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broker/start");
        let output = Command::new("bash")
            .arg(start)
            .args(["--owner", &std::process::id().to_string()])
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .expect("bash runs");
        assert!(output.status.success(), "{start} failed");
        let text = String::from_utf8(output.stdout).expect("its output is text");
        let value = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .unwrap_or_else(|| panic!("no {name} in {text}"))
                .to_owned()
        };
        PrivateBroker {
            broker: TestBroker { amqp: value("REDELIVER_TEST_BROKER"), management: value("REDELIVER_TEST_MANAGEMENT") },
            ctl: value("REDELIVER_TEST_BROKER_CTL"),
        }
    }

    /// Runs one verb of `tests/broker/ctl`.
    pub async fn ctl(&self, arguments: &[&str]) {
        let status = tokio::process::Command::new(&self.ctl).args(arguments).status().await.expect("ctl runs");
        assert!(status.success(), "ctl {arguments:?} failed");
    }
}

impl Drop for PrivateBroker {
    fn drop(&mut self) {
        if let Err(error) = Command::new(&self.ctl).arg("destroy").status() {
            say(&format!("a private broker could not be destroyed: {error}"));
        }
    }
}

/// Says that the running test is skipped, and why.
pub fn skip(reason: &str) {
    assert!(std::env::var("REDELIVER_TEST_REQUIRE_BROKER").as_deref() != Ok("1"), "may not be skipped: {reason}");
    let line = format!("SKIPPED: {}: {reason}", std::thread::current().name().unwrap_or("a test"));
    say(&line);
    if let Ok(path) = std::env::var("REDELIVER_TEST_SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).expect("the skip log opens");
        writeln!(file, "{line}").expect("the skip log takes a line");
    }
}

/// Past the test harness, which swallows what a passing test prints.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("stderr takes a line");
}

/// Waits until `condition` holds; panics after [`PATIENCE`].
pub async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    until_within(PATIENCE, what, condition).await;
}

/// Waits until `condition` holds; panics after `limit`.
pub async fn until_within(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + limit;
    while !condition().await {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for `future`; panics after [`PATIENCE`].
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// User and password in a URL.
fn credentials(url: &str) -> (String, String) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let user = rest.rsplit_once('@').map_or("guest:guest", |(user, _)| user);
    user.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned())).expect("a user and a password")
}

fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL");
    format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, rest)| rest))
}
