//! A task's place in a distributed trace, sent on by the real program; and spans, where it is built with them
//! (`cargo test --features otel --test traces`): a collector inside the test takes what is exported, and looks for the ids in it.

#[allow(dead_code, reason = "the command line's tests use all of it")]
#[path = "cli/folder.rs"]
mod folder;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;

use folder::Folder;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// What came in: bodies of exports, and the `traceparent` of calls.
#[derive(Default)]
struct Seen {
    exports: Mutex<Vec<Vec<u8>>>,
    calls: Mutex<Vec<Option<String>>>,
}

impl Seen {
    /// Whether some export holds these bytes, written in hex.
    #[cfg(feature = "otel")]
    fn exported(&self, hex_id: &str) -> bool {
        let id = hex::decode(hex_id).unwrap();
        self.exports.lock().unwrap().iter().any(|body| body.windows(id.len()).any(|part| part == id))
    }
}

async fn server(seen: Arc<Seen>) -> SocketAddr {
    async fn export(State(seen): State<Arc<Seen>>, body: Bytes) {
        seen.exports.lock().unwrap().push(body.to_vec());
    }
    async fn call(State(seen): State<Arc<Seen>>, headers: HeaderMap) -> &'static str {
        let parent = headers.get("traceparent").map(|value| value.to_str().unwrap().to_owned());
        seen.calls.lock().unwrap().push(parent);
        "{}"
    }
    let router = Router::new().route("/v1/traces", post(export)).route("/call", post(call)).with_state(seen);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn config(address: SocketAddr) -> String {
    format!(
        "[broker]\nurl = 'embedded'\n[store]\nurl = 'sqlite://store.db'\n[[route]]\ntype = 'test.#'\n\
         http = {{ url = 'http://{address}/call' }}\n"
    )
}

#[cfg(feature = "otel")]
#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_is_a_span_that_links_to_what_asked_for_the_task_and_is_sent_on() {
    let seen = Arc::new(Seen::default());
    let address = server(seen.clone()).await;
    let folder = Folder::with_config(&config(address));
    let endpoint = format!("http://{address}");
    let worker =
        folder.work_with(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint), ("OTEL_BSP_SCHEDULE_DELAY", "100")]);
    let parent = format!("00-{TRACE}-{SPAN}-01");
    folder.run_with(&["publish", "test.call", "--id", "a"], &[("TRACEPARENT", &parent)]).expect_exit(0);
    until("the call", || !seen.calls.lock().unwrap().is_empty()).await;
    let sent_on = seen.calls.lock().unwrap()[0].clone().expect("a traceparent");
    let parts: Vec<&str> = sent_on.split('-').collect();
    assert_ne!(parts[1], TRACE, "an attempt is a trace of its own and no child");
    until("the span", || seen.exported(parts[2])).await;
    assert!(seen.exported(parts[1]), "in its own trace");
    assert!(seen.exported(TRACE) && seen.exported(SPAN), "with a link to what asked for it");
    assert!(seen.exported(&hex::encode("attempt test.call")) && seen.exported(&hex::encode("redeliver.task.id")));
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_the_context_of_the_task_is_sent_on_as_it_came() {
    let seen = Arc::new(Seen::default());
    let address = server(seen.clone()).await;
    let folder = Folder::with_config(&config(address));
    let worker = folder.work();
    let parent = format!("00-{TRACE}-{SPAN}-01");
    folder.run_with(&["publish", "test.call", "--id", "a"], &[("TRACEPARENT", &parent)]).expect_exit(0);
    folder.run_with(&["publish", "test.call", "--id", "b"], &[("TRACEPARENT", "00-nonsense")]).expect_exit(0);
    until("both calls", || seen.calls.lock().unwrap().len() == 2).await;
    let mut calls = seen.calls.lock().unwrap().clone();
    calls.sort();
    assert_eq!(calls, [None, Some(parent)]);
    assert!(seen.exports.lock().unwrap().is_empty());
    worker.stop();
}
