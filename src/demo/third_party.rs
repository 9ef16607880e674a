//! A third party as our users meet it: it fails in bursts, times out, limits rates, answers nonsense, and heals on its own time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// How each kind of call goes wrong. The name is the last part of the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Always answers well.
    Fine,
    /// 503 until it heals.
    Down,
    /// Answers far too late until it heals.
    Slow,
    /// 429 with `Retry-After: 2` at the first call of each task.
    Busy,
    /// 200 with a platform code at the first call of each task.
    PlatformCode,
    /// 400 for ever.
    Refuses,
    /// 200 with half a JSON document, for ever.
    BrokenJson,
    /// 500 for ever: it never heals.
    Dead,
}

impl Mood {
    const ALL: [(Mood, &'static str); 8] = [
        (Mood::Fine, "fine"),
        (Mood::Down, "down"),
        (Mood::Slow, "slow"),
        (Mood::Busy, "busy"),
        (Mood::PlatformCode, "platform-code"),
        (Mood::Refuses, "refuses"),
        (Mood::BrokenJson, "broken-json"),
        (Mood::Dead, "dead"),
    ];

    /// The part of the URL that asks for it.
    pub fn path(self) -> &'static str {
        Mood::ALL.iter().find(|(mood, _)| *mood == self).map_or("fine", |(_, path)| path)
    }

    fn of(path: &str) -> Option<Mood> {
        Mood::ALL.iter().find(|(_, name)| *name == path).map(|(mood, _)| *mood)
    }
}

/// The running server.
#[derive(Debug)]
pub struct ThirdParty {
    address: SocketAddr,
    calls: Arc<Shop>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Shop {
    heals_at: Instant,
    too_slow: Duration,
    seen: Mutex<HashMap<String, u32>>,
}

impl ThirdParty {
    /// Starts one on a free port of the loopback interface. It heals after `heals_after`; until then a slow answer takes `too_slow`.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(heals_after: Duration, too_slow: Duration) -> std::io::Result<ThirdParty> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shop = Arc::new(Shop { heals_at: Instant::now() + heals_after, too_slow, seen: Mutex::default() });
        let app = Router::new().route("/{mood}", post(answer)).with_state(Arc::clone(&shop));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the demo's third party stopped");
            }
        });
        Ok(ThirdParty { address, calls: shop, server })
    }

    /// Where a mood is called.
    pub fn url(&self, mood: Mood) -> String {
        format!("http://{}/{}", self.address, mood.path())
    }

    /// How many calls it has got.
    pub fn calls(&self) -> u64 {
        let seen = self.calls.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.values().map(|n| u64::from(*n)).sum()
    }
}

impl Drop for ThirdParty {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(shop): State<Arc<Shop>>, Path(path): Path<String>, headers: HeaderMap) -> Response<Body> {
    let id = headers.get("redeliver-task-id").and_then(|value| value.to_str().ok()).unwrap_or("?").to_owned();
    let call = {
        let mut seen = shop.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let call = seen.entry(id.clone()).or_insert(0);
        *call += 1;
        *call
    };
    let healed = Instant::now() >= shop.heals_at;
    let done = || json(StatusCode::OK, &format!(r#"{{"order_id":"{id}","accepted":true}}"#));
    match Mood::of(&path) {
        Some(Mood::Down) if !healed => json(StatusCode::SERVICE_UNAVAILABLE, r#"{"error":"maintenance"}"#),
        Some(Mood::Slow) if !healed => {
            tokio::time::sleep(shop.too_slow).await;
            done()
        }
        Some(Mood::Busy) if call == 1 => {
            let mut response = json(StatusCode::TOO_MANY_REQUESTS, r#"{"error":"slow down"}"#);
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("2"));
            response
        }
        Some(Mood::PlatformCode) if call == 1 => json(StatusCode::OK, r#"{"error_code":"system_error"}"#),
        Some(Mood::Refuses) => json(StatusCode::BAD_REQUEST, r#"{"error":"sku does not exist"}"#),
        Some(Mood::BrokenJson) => json(StatusCode::OK, r#"{"order_id": "#),
        Some(Mood::Dead) => json(StatusCode::INTERNAL_SERVER_ERROR, r#"{"error":"null pointer"}"#),
        Some(_) => done(),
        None => json(StatusCode::NOT_FOUND, r#"{"error":"no such door"}"#),
    }
}

fn json(status: StatusCode, body: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
