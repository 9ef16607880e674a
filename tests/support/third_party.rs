//! The third party whose failures are the reason for all this: an HTTP server inside the test that does what the test says,
//! and remembers who came and when.

#![allow(dead_code, reason = "every test program uses another part of this, so none could `expect` it")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::rig::epoch_ms;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Milliseconds since the epoch.
    pub at: i64,
    /// `Redeliver-Task-Id`
    pub task: String,
    /// `X-Retry-Count`
    pub retry_count: i64,
    /// `Idempotency-Key`
    pub key: String,
}

/// What it answers.
#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    body: &'static str,
    retry_after: Option<&'static str>,
    after: Duration,
}

impl Reply {
    /// A result.
    pub fn good() -> Reply {
        Reply { status: 200, body: r#"{"order":"done"}"#, retry_after: None, after: Duration::ZERO }
    }

    /// Service unavailable.
    pub fn refusal() -> Reply {
        Reply { status: 503, body: "no", ..Reply::good() }
    }

    /// Bad request: no retry would help.
    pub fn unwelcome() -> Reply {
        Reply { status: 400, ..Reply::refusal() }
    }

    /// Nothing at all, for longer than anybody waits.
    pub fn silence() -> Reply {
        Reply::good().after(Duration::from_secs(3600))
    }

    /// The same, later.
    pub fn after(self, after: Duration) -> Reply {
        Reply { after, ..self }
    }

    /// Too many requests, and when to come again.
    pub fn slow_down(retry_after: &'static str) -> Reply {
        Reply { status: 429, retry_after: Some(retry_after), ..Reply::refusal() }
    }
}

type Rule = Arc<dyn Fn(&Arrival) -> Reply + Send + Sync>;

struct Inner {
    arrivals: Mutex<Vec<Arrival>>,
    rule: Mutex<Rule>,
}

/// See the module. Ends with the test's runtime.
pub struct ThirdParty {
    address: std::net::SocketAddr,
    inner: Arc<Inner>,
}

impl ThirdParty {
    /// Starts one that follows `rule`.
    pub async fn start(rule: impl Fn(&Arrival) -> Reply + Send + Sync + 'static) -> ThirdParty {
        let inner = Arc::new(Inner { arrivals: Mutex::default(), rule: Mutex::new(Arc::new(rule)) });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().fallback(answer).with_state(Arc::clone(&inner));
        tokio::spawn(async move { axum::serve(listener, router).await });
        ThirdParty { address, inner }
    }

    /// One that refuses everything.
    pub async fn broken() -> ThirdParty {
        ThirdParty::start(|_| Reply::refusal()).await
    }

    /// One that takes everything.
    pub async fn healthy() -> ThirdParty {
        ThirdParty::start(|_| Reply::good()).await
    }

    /// Follows another rule from now on.
    pub fn now(&self, rule: impl Fn(&Arrival) -> Reply + Send + Sync + 'static) {
        *self.inner.rule.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rule);
    }

    /// From now on takes everything.
    pub fn heal(&self) {
        self.now(|_| Reply::good());
    }

    /// Who came, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.inner.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many came.
    pub fn calls(&self) -> usize {
        self.inner.arrivals.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Who came for one task.
    pub fn arrivals_of(&self, task: &str) -> Vec<Arrival> {
        self.arrivals().into_iter().filter(|arrival| arrival.task == task).collect()
    }

    /// Where it is called.
    pub fn url(&self) -> String {
        format!("http://{}/call", self.address)
    }

    /// The `[[route]]` that leads here for every type that begins with `test`.
    pub fn route(&self, timeout: &str) -> String {
        format!("[[route]]\ntype = \"test.#\"\nhttp = {{ url = \"{}\", timeout = \"{timeout}\" }}\n", self.url())
    }
}

async fn answer(State(inner): State<Arc<Inner>>, headers: HeaderMap) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let arrival = Arrival {
        at: epoch_ms(),
        task: text("redeliver-task-id"),
        retry_count: text("x-retry-count").parse().unwrap_or(-1),
        key: text("idempotency-key"),
    };
    let rule = Arc::clone(&inner.rule.lock().unwrap_or_else(PoisonError::into_inner));
    let reply = rule(&arrival);
    inner.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
    tokio::time::sleep(reply.after).await;
    let mut response = (StatusCode::from_u16(reply.status).expect("a status"), reply.body).into_response();
    if let Some(seconds) = reply.retry_after {
        response.headers_mut().insert(HeaderName::from_static("retry-after"), HeaderValue::from_static(seconds));
    }
    response
}

/// By how many starts the worst window of any length exceeds `per_s` times its length; `times` in milliseconds, in order.
pub fn worst_excess(times: &[i64], per_s: f64) -> f64 {
    let mut worst = 0.0_f64;
    // With e(i) = i − rate · t(i) the excess of a window from i to j is e(j) − e(i) + 1: the best i for a j is the least e so far.
    let mut least = f64::MAX;
    for (index, at) in times.iter().enumerate() {
        let level = index as f64 - per_s * (*at - times[0]) as f64 / 1_000.0;
        least = least.min(level);
        worst = worst.max(level - least + 1.0);
    }
    worst
}
