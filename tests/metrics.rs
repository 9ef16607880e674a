//! What Prometheus and probes are told, by a whole worker on the memory store and the embedded broker: the documented table is the
//! truth, hostile words do not become series, and nothing about a single task gets out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redeliver::broker::{Broker, EmbeddedBroker};
use redeliver::config::Config;
use redeliver::gate::{BreakerRule, Gates, LimitKind, LimitRule, Per, Rate, WhenOpen, Word};
use redeliver::handler::{AttemptContext, Handler, Report, Route};
use redeliver::policy::{Backoff, Policies, Policy, TopicPattern};
use redeliver::producer::Producer;
use redeliver::store::memory::MemoryStore;
use redeliver::store::notice::NoticeStore;
use redeliver::store::{Clock, Pause, Store};
use redeliver::task::{Envelope, Happening, Outcome};
use redeliver::telemetry::{Event, MOST_TYPES, Metrics, Observer, Observers, ScrapeServer, Watched, unready};
use redeliver::worker::{Plan, Worker};

const PATIENCE: Duration = Duration::from_secs(60);

/// Does what the type's last word says.
struct Obedient;

#[async_trait]
impl Handler for Obedient {
    async fn run(&self, attempt: AttemptContext) -> Report {
        match attempt.task.task_type.rsplit('.').next() {
            Some("fails") => Outcome::failure("timeout", "secret-message").into(),
            Some("wrong") => Outcome::failure("bad_payload", "secret-message").into(),
            _ => Outcome::success().into(),
        }
    }
}

/// Counts ends.
#[derive(Default)]
struct Ends(AtomicU64);

impl Observer for Ends {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Settled { task, .. } = event
            && !task.state.status.is_waiting()
        {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

struct Stage {
    store: Arc<MemoryStore>,
    broker: Arc<EmbeddedBroker>,
    worker: Option<Worker>,
    server: ScrapeServer,
    ends: Arc<Ends>,
}

async fn stage() -> Stage {
    let policy = Policy {
        max_retries: 1,
        backoff: Backoff::Exponential { base_ms: 1, max_ms: 1, multiplier: 1.0, jitter: 0.0 },
        ..Policy::built_in()
    };
    let shop = Per(vec![Word::Label("shop".into())]);
    let kind = LimitKind::Rate { rate: Rate { count: 1, per_ms: 3_600_000 }, burst: 100 };
    let mut config = Config { policies: Policies::new(vec![policy]), ..Config::default() };
    config.events.publish = [Happening::Dead].into_iter().collect();
    config.gates = Gates {
        limits: vec![LimitRule { name: "per shop".into(), per: shop.clone(), calls: false, kind }],
        breakers: vec![BreakerRule {
            name: "shop".into(),
            per: shop,
            consecutive_same: Some(3),
            consecutive: None,
            failure_rate: None,
            ignore: Vec::new(),
            open_for_ms: 3_600_000,
            open_for_max_ms: 3_600_000,
            probes: 1,
            when_open: WhenOpen::Park,
            park_max_ms: 86_400_000,
        }],
        ..Gates::default()
    };
    let store = Arc::new(MemoryStore::new(Clock::System, config.settings()));
    let broker = Arc::new(EmbeddedBroker::new("redeliver"));
    let (metrics, ends) = (Arc::new(Metrics::new()), Arc::new(Ends::default()));
    let observers = Observers::new(vec![Arc::clone(&metrics) as _, Arc::clone(&ends) as _]);
    let route = Route { task_type: TopicPattern::new("#").unwrap(), handler: Arc::new(Obedient) };
    let plan = Plan::with_routes(&config, vec![route]);
    let worker = Worker::start(store.clone(), broker.clone(), plan, observers).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let watched = Watched { metrics, store: store.clone(), broker: Some(broker.clone()), vitals: None };
    let server = ScrapeServer::start(listener, watched).unwrap();
    Stage { store, broker, worker: Some(worker), server, ends }
}

impl Stage {
    async fn publish(&self, task_type: &str, shop: &str, n: usize) {
        for i in 0..n {
            let envelope = Envelope::new(task_type)
                .id(format!("secret-id-{task_type}-{shop}-{i}"))
                .label("shop", shop)
                .payload(&serde_json::json!({ "card": "secret-payload" }))
                .unwrap();
            Producer::new(self.broker.clone()).publish(envelope).await.unwrap();
        }
    }

    async fn ended(&self, n: u64) {
        let begun = std::time::Instant::now();
        while self.ends.0.load(Ordering::SeqCst) < n {
            assert!(begun.elapsed() < PATIENCE, "{} of {n} ended", self.ends.0.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.stop(Duration::from_secs(5)).await;
        }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("http://{}{path}", self.server.address())).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

fn install_crypto() {
    // Nothing here speaks TLS, but the client asks for a provider all the same.
    rustls::crypto::ring::default_provider().install_default().ok();
}

/// Names of series in a scrape, without what a histogram's parts add.
fn names(scrape: &str) -> BTreeSet<String> {
    scrape
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .map(|name| {
            let part = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            // `task_retry_count` ends like a part and is none.
            part.filter(|base| *base != "redeliver_task_retry").unwrap_or(name).to_owned()
        })
        .collect()
}

#[tokio::test]
async fn every_metric_of_a_scrape_is_in_the_documented_table_and_the_other_way_round() {
    install_crypto();
    let mut stage = stage().await;
    stage.publish("order.ship", "a", 2).await;
    stage.publish("order.fails", "b", 1).await;
    stage.publish("order.wrong", "b", 1).await;
    stage.publish("order.wrong", "c", 3).await;
    stage.ended(7).await;
    // Its breaker is open now.
    stage.publish("order.ship", "c", 1).await;
    let begun = std::time::Instant::now();
    while stage.store.held_counts().await.unwrap().is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Nobody listens to its events.
    let begun = std::time::Instant::now();
    while stage.store.notice_backlog().await.unwrap().waiting > 0 {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.store.pause(Pause { key: "x".into(), since: 0, reason: None }).await.unwrap();
    stage.store.report_node("w", &"d".repeat(64), None).await.unwrap();
    let (status, scrape) = stage.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(scrape.ends_with("# EOF\n"), "{scrape}");

    let table = include_str!("../docs/metrics.md");
    let documented: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `redeliver_")?.split('`').next())
        .map(|name| format!("redeliver_{name}"))
        .collect();
    // Series that only exist once something has happened that does not happen here.
    let unseen = ["redeliver_fallbacks_total"].map(str::to_owned);
    let seen: BTreeSet<String> = names(&scrape).into_iter().chain(unseen).collect();
    assert_eq!(seen, documented);

    let has = |line: &str| assert!(scrape.lines().any(|found| found == line), "{line}\n{scrape}");
    has(r#"redeliver_tasks_ended_total{type="order.ship",outcome="succeeded"} 2"#);
    has(r#"redeliver_dead_letters_total{type="order.wrong",reason="permanent_error"} 4"#);
    has(r#"redeliver_dead_letters_total{type="order.fails",reason="retries_exhausted"} 1"#);
    has(r#"redeliver_retries_total{type="order.fails",class="timeout"} 1"#);
    has(r#"redeliver_breakers{breaker="breaker/shop",state="open"} 1"#);
    has(r#"redeliver_held_tasks{gate="breaker/shop"} 1"#);
    has(r#"redeliver_held_total{gate="breaker/shop"} 1"#);
    has(r#"redeliver_tasks_accepted_total{type="order.ship"} 3"#);
    has(r#"redeliver_tasks{status="dead"} 5"#);
    has("redeliver_pauses 1");
    has(r#"redeliver_notices_sent_total{kind="event",fate="no_queue"} 5"#);
    has("redeliver_notices 0");
    assert!(!scrape.contains("secret"), "{scrape}");
    stage.stop().await;
}

#[tokio::test]
async fn types_that_a_producer_invents_are_counted_as_other_and_cut() {
    install_crypto();
    let mut stage = stage().await;
    let quoted = format!("a\"}}1\\{}", "x".repeat(150));
    stage.publish(&quoted, "a", 1).await;
    for n in 0..MOST_TYPES + 20 {
        stage.publish(&format!("made.up.{n}"), "a", 1).await;
    }
    stage.ended(u64::try_from(MOST_TYPES).unwrap() + 21).await;
    let (_, scrape) = stage.get("/metrics").await;
    let series: Vec<&str> = scrape.lines().filter(|line| line.starts_with("redeliver_tasks_accepted_total{")).collect();
    assert_eq!(series.len(), MOST_TYPES + 1);
    assert!(series.contains(&r#"redeliver_tasks_accepted_total{type="other"} 21"#), "{series:#?}");
    assert!(series.iter().all(|line| line.len() < 200));
    assert!(series[..].iter().any(|line| line.contains(r#"type="a\"}1\\xxx"#)), "{series:#?}");
    stage.stop().await;
}

#[tokio::test]
async fn a_probe_is_told_what_is_missing() {
    install_crypto();
    let mut stage = stage().await;
    assert_eq!(stage.get("/livez").await, (200, "ok\n".to_owned()));
    let begun = std::time::Instant::now();
    loop {
        let (status, why) = stage.get("/readyz").await;
        if status == 200 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stage.stop().await;
    assert!(!stage.broker.is_up());
    assert_eq!(stage.get("/readyz").await, (503, "no session with the broker\n".to_owned()));
    assert_eq!(unready(stage.store.as_ref(), None).await, Vec::<String>::new());
}

#[test]
fn alert_rules_and_dashboard_ask_for_metrics_that_exist() {
    let table = include_str!("../docs/metrics.md");
    let word = |c: char| c.is_ascii_lowercase() || c == '_';
    for (file, text) in [
        ("rules.yml", include_str!("../deploy/prometheus/rules.yml")),
        ("redeliver.json", include_str!("../deploy/grafana/dashboards/redeliver.json")),
    ] {
        let mut asked = 0;
        for (at, _) in text.match_indices("redeliver_") {
            let name: String = text[at..].chars().take_while(|c| word(*c)).collect();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            let known = |name: &str| table.contains(&format!("`{name}`"));
            assert!(known(&name) || base.is_some_and(known), "{file} asks for {name}");
            asked += 1;
        }
        assert!(asked > 10, "{file}");
    }
    let runbook = include_str!("../docs/operations.md");
    let anchors: BTreeSet<String> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|title| title.to_ascii_lowercase().replace(' ', "-"))
        .collect();
    let rules = include_str!("../deploy/prometheus/rules.yml");
    let pages: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: docs/operations.md#")).collect();
    assert_eq!(pages.len(), rules.matches("- alert:").count());
    for page in pages {
        assert!(anchors.contains(page), "no page {page:?}");
    }
}
