//! Who is told when something is wrong, seen in a whole worker: memory store, embedded broker, and a receiver of webhooks that keeps
//! what it got.

use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use redeliver::broker::{Broker, EmbeddedBroker, Published, submission};
use redeliver::config::{Config, Request, Secrets, load_text};
use redeliver::handler::{AttemptContext, Handler, Report, Route, Webhook, WebhookHandler, is_local};
use redeliver::policy::TopicPattern;
use redeliver::producer::Producer;
use redeliver::store::memory::MemoryStore;
use redeliver::store::{Clock, Filter, Store};
use redeliver::task::{DeadReason, Envelope, Outcome, Status, Task};
use redeliver::telemetry::Observers;
use redeliver::telemetry::alert::{ALERT_TYPE, AlertKind, Format, Signer};
use redeliver::worker::{Plan, Worker};

const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: &str = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tr";

/// Answers with `status` and keeps what it got.
#[derive(Default)]
struct Receiver {
    status: AtomicU16,
    calls: AtomicUsize,
    got: Mutex<Vec<(HeaderMap, String)>>,
}

impl Receiver {
    async fn start() -> (Arc<Receiver>, reqwest::Url) {
        let receiver = Arc::new(Receiver { status: AtomicU16::new(200), ..Receiver::default() });
        let router = Router::new().route("/hook", post(Receiver::take)).with_state(Arc::clone(&receiver));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(axum::serve(listener, router).into_future());
        (receiver, url)
    }

    async fn take(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: String) -> StatusCode {
        receiver.calls.fetch_add(1, Ordering::SeqCst);
        receiver.got.lock().unwrap_or_else(PoisonError::into_inner).push((headers, body));
        StatusCode::from_u16(receiver.status.load(Ordering::SeqCst)).unwrap()
    }

    async fn got(&self, n: usize) -> Vec<(HeaderMap, String)> {
        let begun = Instant::now();
        loop {
            let got = self.got.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if got.len() >= n {
                return got;
            }
            assert!(begun.elapsed() < PATIENCE, "got {} of {n}", got.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A payload that it cannot use.
struct Wrong;

#[async_trait]
impl Handler for Wrong {
    async fn run(&self, _: AttemptContext) -> Report {
        Outcome::failure("bad_payload", "card 4711 is missing").into()
    }
}

struct Stage {
    store: Arc<MemoryStore>,
    broker: Arc<EmbeddedBroker>,
    worker: Worker,
}

fn webhook(name: &str, url: &reqwest::Url, kinds: &[AlertKind]) -> Webhook {
    Webhook {
        name: name.into(),
        url: url.clone(),
        format: Format::Standard,
        signer: Some(Signer::new(SECRET).unwrap()),
        kinds: kinds.to_vec(),
        allow_local: true,
    }
}

async fn stage(webhooks: Vec<Webhook>) -> Stage {
    let config = Config { webhooks, ..Config::default() };
    let store = Arc::new(MemoryStore::new(Clock::System, config.settings()));
    let broker = Arc::new(EmbeddedBroker::new("redeliver"));
    let alerts = Arc::new(WebhookHandler::new(&config.webhooks).unwrap());
    let routes = vec![
        Route { task_type: TopicPattern::new(ALERT_TYPE).unwrap(), handler: alerts },
        Route { task_type: TopicPattern::new("order.#").unwrap(), handler: Arc::new(Wrong) },
    ];
    let plan = Plan::with_routes(&config, routes);
    let worker = Worker::start(store.clone(), broker.clone(), plan, Observers::default()).await.unwrap();
    Stage { store, broker, worker }
}

impl Stage {
    async fn publish(&self, task_type: &str, id: &str) {
        let envelope = Envelope::new(task_type).id(id).payload(&serde_json::json!("secret-payload")).unwrap();
        Producer::new(self.broker.clone()).publish(envelope).await.unwrap();
    }

    async fn ended(&self, id: &str) -> Task {
        let begun = Instant::now();
        loop {
            let task = self.store.get(&[id.to_owned()]).await.unwrap().pop().flatten();
            if let Some(task) = task.filter(|task| task.state.ended_at.is_some()) {
                return task;
            }
            assert!(begun.elapsed() < PATIENCE, "{id}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn alerts(&self) -> Vec<Task> {
        let filter = Filter { types: vec![TopicPattern::new(ALERT_TYPE).unwrap()], ..Filter::default() };
        self.store.list(&filter, None, 100).await.unwrap().items
    }
}

#[tokio::test]
async fn the_first_permanent_error_of_a_kind_is_told_at_once_signed_and_the_next_ones_are_not() {
    let (receiver, url) = Receiver::start().await;
    let stage = stage(vec![webhook("on call", &url, &AlertKind::ALL)]).await;
    stage.publish("order.ship", "a-1").await;
    let (headers, body) = receiver.got(1).await.remove(0);
    let said: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(said["type"], "redeliver.permanent_error");
    assert_eq!(said["data"]["summary"], "order.ship fails with bad_payload and no retry will cure it");
    assert!(!body.contains("secret") && !body.contains("a-1") && !body.contains("4711"), "{body}");
    let header = |name: &str| headers.get(name).unwrap().to_str().unwrap().to_owned();
    let at: i64 = header("webhook-timestamp").parse().unwrap();
    let signature = Signer::new(SECRET).unwrap().sign(&header("webhook-id"), at * 1000, &body);
    assert_eq!(header("webhook-signature"), signature);
    for n in 2..5 {
        stage.publish("order.ship", &format!("a-{n}")).await;
        stage.ended(&format!("a-{n}")).await;
    }
    // Another alert than this one, told after the repeats had their turn.
    stage.worker.stop(Duration::from_secs(5)).await;
    assert_eq!(receiver.calls.load(Ordering::SeqCst), 1);
    let rows = stage.store.list(&Filter::default(), None, 100).await.unwrap().items;
    let of_alerts: Vec<&Task> = rows.iter().filter(|row| row.spec.task_type == ALERT_TYPE).collect();
    assert_eq!(of_alerts.len(), 1, "a repeat is no row of its own: {of_alerts:#?}");
}

#[tokio::test]
async fn a_webhook_hears_only_what_it_asked_for() {
    let (receiver, url) = Receiver::start().await;
    let hooks = vec![
        webhook("chat", &url, &[AlertKind::BreakerOpened]),
        webhook("on call", &url, &[AlertKind::PermanentError]),
    ];
    let stage = stage(hooks).await;
    stage.publish("order.ship", "a-1").await;
    receiver.got(1).await;
    let alerts = stage.alerts().await;
    assert_eq!(alerts.len(), 1);
    assert!(alerts[0].spec.payload.contains("on call"), "{}", alerts[0].spec.payload);
    stage.worker.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_webhook_that_refuses_is_given_up_the_others_are_told_and_no_task_waits() {
    let (gone, gone_url) = Receiver::start().await;
    let (receiver, url) = Receiver::start().await;
    gone.status.store(410, Ordering::SeqCst);
    let hooks =
        vec![webhook("gone", &gone_url, &AlertKind::ALL), webhook("on call", &url, &[AlertKind::WebhookGivenUp])];
    let stage = stage(hooks).await;
    stage.publish("order.ship", "a-1").await;
    stage.ended("a-1").await;
    let (_, body) = receiver.got(1).await.remove(0);
    assert!(body.contains(r#"alerts do not reach the webhook \"gone\" any more"#), "{body}");
    // Told to the broken one too, which refuses that as well, and nothing comes of it.
    gone.got(2).await;
    let begun = Instant::now();
    loop {
        let alerts = stage.alerts().await;
        if alerts.len() == 3 && alerts.iter().all(|alert| alert.state.ended_at.is_some()) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{alerts:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.worker.stop(Duration::from_secs(5)).await;
    assert_eq!((gone.calls.load(Ordering::SeqCst), receiver.calls.load(Ordering::SeqCst)), (2, 1));
}

#[tokio::test]
async fn a_webhook_that_redirects_is_not_followed_and_one_that_fails_is_tried_again() {
    let (receiver, url) = Receiver::start().await;
    receiver.status.store(503, Ordering::SeqCst);
    let stage = stage(vec![webhook("on call", &url, &[AlertKind::PermanentError])]).await;
    stage.publish("order.ship", "a-1").await;
    receiver.got(1).await;
    let begun = Instant::now();
    let waiting = loop {
        let alert = stage.alerts().await.remove(0);
        if alert.state.status == Status::RetryWaiting {
            break alert;
        }
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    // The first wait of its own policy, whatever the others say: 5 s and a fifth of it either way.
    let wait = waiting.state.delay_ms.unwrap();
    assert!((4_000..=6_000).contains(&wait), "{wait}");
    stage.worker.stop(Duration::from_secs(5)).await;

    let (receiver, url) = Receiver::start().await;
    receiver.status.store(307, Ordering::SeqCst);
    let stage = super_stage(&url).await;
    stage.publish("order.ship", "a-1").await;
    receiver.got(1).await;
    let alert = stage.alerts().await.remove(0);
    assert_eq!(stage.ended(alert.id()).await.state.dead_reason, Some(DeadReason::PermanentError));
    stage.worker.stop(Duration::from_secs(5)).await;
}

async fn super_stage(url: &reqwest::Url) -> Stage {
    stage(vec![webhook("on call", url, &[AlertKind::PermanentError])]).await
}

#[tokio::test]
async fn a_name_that_leads_to_this_machine_is_refused_at_the_call() {
    let (receiver, url) = Receiver::start().await;
    // Whatever resolver the machine has, this name is always its own.
    let named = format!("http://localhost:{}/hook", url.port().unwrap()).parse().unwrap();
    let hook = Webhook { allow_local: false, ..webhook("on call", &named, &[AlertKind::PermanentError]) };
    let stage = stage(vec![hook]).await;
    stage.publish("order.ship", "a-1").await;
    let begun = Instant::now();
    let failure = loop {
        let alert = stage.alerts().await.pop();
        if let Some(failure) = alert.and_then(|alert| alert.state.failure) {
            break failure;
        }
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(failure.message.contains("address of this machine or its link"), "{}", failure.message);
    assert_eq!(receiver.calls.load(Ordering::SeqCst), 0);
    stage.worker.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_submission_that_calls_itself_an_alert_is_kept_as_malformed_and_sent_nowhere() {
    let (receiver, url) = Receiver::start().await;
    let stage = stage(vec![webhook("on call", &url, &[AlertKind::BreakerOpened])]).await;
    // By name it is refused at once; by its routing key alone it arrives.
    let named = Envelope::new(ALERT_TYPE).id("named");
    assert!(Producer::new(stage.broker.clone()).publish(named).await.is_err());
    let forged = submission(ALERT_TYPE, "forged", r#"{"id":"forged","payload":{"webhook":"on call"}}"#.into());
    assert_eq!(stage.broker.publish(vec![forged]).await, [Published::Confirmed]);
    let filter = Filter { reasons: vec![DeadReason::Malformed], ..Filter::default() };
    let begun = Instant::now();
    while stage.store.list(&filter, None, 1).await.unwrap().items.is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.worker.stop(Duration::from_secs(5)).await;
    assert_eq!(receiver.calls.load(Ordering::SeqCst), 0);
}

#[test]
fn local_addresses_are_known_in_every_spelling() {
    for local in [
        "127.0.0.1",
        "127.9.9.9",
        "169.254.169.254",
        "0.0.0.0",
        "::1",
        "::",
        "fe80::1",
        "::ffff:127.0.0.1",
        "100.100.100.200",
        "fd00:ec2::254",
        "64:ff9b::7f00:1",
    ] {
        assert!(is_local(local.parse().unwrap()), "{local}");
    }
    for other in ["10.0.0.1", "192.168.1.1", "1.1.1.1", "2606:4700::1", "fd00::1", "64:ff9b::101:101"] {
        assert!(!is_local(other.parse().unwrap()), "{other}");
    }
}

#[test]
fn mistakes_in_webhooks_are_named_with_line_and_field_all_at_once() {
    let file = r#"[[webhook]]
name = "a"
url = "http://127.0.0.1/x"

[[webhook]]
name = "a"
url = "ftp://example.com"
format = "telegram"
secret = "plain"
alerts = ["surge"]

[[webhook]]
name = "chat"
url = "https://chat.example.com/hook"
format = "slack"
secret = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tr"

[[webhook]]
url = "https://example.com"
"#;
    let request = Request { file: None, environment: &|_| None, flags: Vec::new(), secrets: Secrets::Optional };
    let refused = load_text(&request, "redeliver.toml".into(), file.into()).unwrap_err().to_string();
    for line in [
        "redeliver.toml:3: webhook \"a\": url: it is an address of this machine or its link; say allow_local = true",
        "redeliver.toml:6: webhook \"a\": there are two webhooks \"a\"",
        "redeliver.toml:7: webhook \"a\": url: expected http://host/path",
        "redeliver.toml:8: webhook \"a\": format: expected one of standard, slack, feishu, dingtalk",
        "redeliver.toml:9: webhook \"a\": secret: expected whsec_",
        "redeliver.toml:10: webhook \"a\": alerts: expected some of dead_letter_surge",
        "redeliver.toml:16: webhook \"chat\": secret: slack webhooks are not signed",
        "redeliver.toml:18: webhook 4: expected a name",
    ] {
        assert!(refused.contains(line), "{line}\n{refused}");
    }
    assert!(!refused.contains("plain\"") && !refused.contains("a2tra2"), "{refused}");
}
