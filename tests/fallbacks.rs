//! What ends a task that cannot be done now (F1), seen in a whole worker: both stores, the embedded broker, and a handler that fails
//! when it is told to.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redeliver::broker::{Broker, EmbeddedBroker};
use redeliver::config::Config;
use redeliver::gate::{BreakerRule, Gates, Per, PersonsWord, WhenOpen};
use redeliver::handler::{AttemptContext, Handler, Report, Route};
use redeliver::policy::{Backoff, Fallback, Policies, Policy, TopicPattern};
use redeliver::producer::Producer;
use redeliver::store::memory::MemoryStore;
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{Clock, Store, Urgency};
use redeliver::task::{
    Answer, Claimant, Command, DeadReason, Envelope, Origin, Outcome, ReadSubmission, Status, Task, class,
    read_submission,
};
use redeliver::telemetry::{Event, Observer, Observers};
use redeliver::worker::{Plan, Worker};
use serde_json::{Value, json};

/// How long anything may take that should happen at once. Generous: the machine is shared.
const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3_600_000;

/// Answers with its payload, and fails while it is told to.
#[derive(Default)]
struct Echo {
    failing: AtomicBool,
    permanently: AtomicBool,
    calls: AtomicUsize,
}

#[async_trait]
impl Handler for Echo {
    async fn run(&self, attempt: AttemptContext) -> Report {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.permanently.load(Ordering::SeqCst) {
            return Outcome::failure(class::BAD_PAYLOAD, "never").into();
        }
        if self.failing.load(Ordering::SeqCst) {
            return Outcome::failure(class::SERVER_ERROR, "not now").into();
        }
        Outcome::success_json(&json!({ "answer": attempt.task.payload })).into()
    }
}

/// Remembers what was said of degraded ends.
#[derive(Default)]
struct Told(Mutex<Vec<(String, String)>>);

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Degraded { task, by } = event {
            let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            told.push((task.id().to_owned(), (*by).to_owned()));
        }
    }
}

struct Stage {
    store: Arc<dyn Store>,
    clock: Clock,
    broker: Arc<EmbeddedBroker>,
    echo: Arc<Echo>,
    told: Arc<Told>,
    config: Config,
    _folder: Option<tempfile::TempDir>,
}

fn falling_back(fallback: Vec<Fallback>) -> Policy {
    Policy {
        name: "once".into(),
        max_retries: 0,
        backoff: Backoff::Fixed(1_000),
        default_result: Some(json!({ "answer": "instead" })),
        cache_max_age_ms: HOUR,
        fallback,
        ..Policy::built_in()
    }
}

/// One stage per store, with the same policy.
async fn stages(policy: Policy) -> Vec<Stage> {
    let config = || {
        let everything = BreakerRule {
            name: "all".into(),
            per: Per(Vec::new()),
            consecutive_same: None,
            consecutive: Some(1_000),
            failure_rate: None,
            ignore: Vec::new(),
            open_for_ms: 60_000,
            open_for_max_ms: 60_000,
            probes: 1,
            when_open: WhenOpen::Fallback,
            park_max_ms: HOUR,
        };
        let gates = Gates { breakers: vec![everything], ..Gates::default() };
        let mut config = Config { policies: Policies::new(vec![policy.clone()]), gates, ..Config::default() };
        config.worker.lease = Duration::from_secs(1);
        config
    };
    let (memory_clock, file_clock) = (Clock::manual(Clock::System.now()), Clock::manual(Clock::System.now()));
    let memory = Arc::new(MemoryStore::new(memory_clock.clone(), config().settings()));
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("store.db").display());
    let options = SqliteOptions { clock: file_clock.clone(), ..SqliteOptions::default() };
    let file = Arc::new(SqliteStore::open(&url, config().settings(), options).await.expect("a store"));
    let mut stages = Vec::new();
    let stores: [(Arc<dyn Store>, Clock, Option<tempfile::TempDir>); 2] =
        [(memory, memory_clock, None), (file, file_clock, Some(folder))];
    for (store, clock, folder) in stores {
        let broker = Arc::new(EmbeddedBroker::new("redeliver"));
        broker.declare(&config().topology()).await.expect("declared");
        let (echo, told) = (Arc::default(), Arc::default());
        stages.push(Stage { store, clock, broker, echo, told, config: config(), _folder: folder });
    }
    stages
}

impl Stage {
    async fn worker(&self) -> Worker {
        let handler: Arc<dyn Handler> = self.echo.clone();
        let plan = Plan::with_routes(&self.config, vec![Route { task_type: TopicPattern::any(), handler }]);
        let client = Arc::new(self.broker.client());
        let observers = Observers::new(vec![self.told.clone()]);
        Worker::start(self.store.clone(), client, plan, observers).await.expect("a worker")
    }

    async fn publish(&self, envelope: Envelope) {
        let producer = Producer::new(self.broker.clone() as Arc<dyn Broker>);
        producer.publish(envelope).await.expect("published");
    }

    /// Publishes and waits for the end.
    async fn end_of(&self, envelope: Envelope) -> (Task, Value) {
        let id = envelope.id.clone().expect("an id");
        self.publish(envelope).await;
        self.ended(&id).await
    }

    async fn ended(&self, id: &str) -> (Task, Value) {
        let ended = async {
            loop {
                let task = self.store.get(&[id.to_owned()]).await.expect("rows").remove(0);
                if let Some(task) = task.filter(|task| task.state.status.is_ended()) {
                    return task;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let task = tokio::time::timeout(PATIENCE, ended).await.unwrap_or_else(|_| panic!("{id} never ended"));
        let result = self.store.result(id).await.expect("a result or none");
        let result = result.map_or(Value::Null, |result| serde_json::from_slice(&result.body).expect("JSON"));
        (task, result)
    }

    fn told(&self) -> Vec<(String, String)> {
        self.told.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn task(id: &str, payload: &Value) -> Envelope {
    Envelope::new("price.ask").id(id).payload(payload).expect("a payload")
}

fn degraded(task: &Task) -> (Status, Option<&str>) {
    (task.state.status, task.state.degraded.as_deref())
}

#[tokio::test]
async fn a_spent_task_ends_by_the_last_good_result_of_its_payload_or_of_its_producers_key() {
    for stage in stages(falling_back(vec![Fallback::Cache])).await {
        let worker = stage.worker().await;
        let (good, answer) = stage.end_of(task("good", &json!({"sku": 1, "shop": "a"}))).await;
        assert_eq!(degraded(&good), (Status::Succeeded, None));
        let keyed = |id: &str, n: i64| task(id, &json!({ "n": n })).cache_key("sku 7");
        let (_, keyed_answer) = stage.end_of(keyed("keyed", 1)).await;

        stage.echo.failing.store(true, Ordering::SeqCst);
        let (spent, result) = stage.end_of(task("spent", &json!({"shop": "a", "sku": 1}))).await;
        assert_eq!((degraded(&spent), &result), ((Status::Succeeded, Some("cache")), &answer), "the same payload");
        assert_eq!(spent.state.failure.map(|failure| failure.class).as_deref(), Some(class::SERVER_ERROR));
        assert_eq!(stage.store.attempts("spent").await.expect("attempts").len(), 1);
        let (_, result) = stage.end_of(keyed("keyed spent", 2)).await;
        assert_eq!(result, keyed_answer, "the producer's key");
        let (other, result) = stage.end_of(task("other", &json!({"sku": 2}))).await;
        assert_eq!((other.state.dead_reason, result), (Some(DeadReason::RetriesExhausted), Value::Null));
        assert_eq!(stage.told(), [("spent".into(), "cache".into()), ("keyed spent".into(), "cache".into())]);
        worker.stop(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_cached_result_is_used_up_to_its_age_and_a_degraded_end_does_not_renew_it() {
    for stage in stages(falling_back(vec![Fallback::Cache, Fallback::Default])).await {
        let worker = stage.worker().await;
        let (_, answer) = stage.end_of(task("good", &json!(1))).await;
        stage.echo.failing.store(true, Ordering::SeqCst);
        stage.clock.advance(HOUR);
        let (young, result) = stage.end_of(task("young", &json!(1))).await;
        assert_eq!((degraded(&young), result), ((Status::Succeeded, Some("cache")), answer));
        stage.clock.advance(1);
        let (old, result) = stage.end_of(task("old", &json!(1))).await;
        assert_eq!(degraded(&old), (Status::Succeeded, Some("default")), "the next fallback in order");
        assert_eq!(result, json!({ "answer": "instead" }));
        worker.stop(PATIENCE).await;
    }
}

#[tokio::test]
async fn queue_stops_the_fallbacks_and_a_critical_type_never_ends_by_cache_or_default() {
    let queue = falling_back(vec![Fallback::Cache, Fallback::Queue]);
    let critical = Policy { critical: true, ..falling_back(vec![Fallback::Cache, Fallback::Default]) };
    for policy in [queue, critical] {
        let is_critical = policy.critical;
        for stage in stages(policy.clone()).await {
            let worker = stage.worker().await;
            stage.end_of(task("good", &json!(1))).await;
            assert_eq!(stage.store.cached("price.ask", "anything").await.expect("an answer"), None);
            stage.echo.failing.store(true, Ordering::SeqCst);
            let payload = if is_critical { json!(1) } else { json!(2) };
            let (spent, result) = stage.end_of(task("spent", &payload)).await;
            assert_eq!((spent.state.dead_reason, result), (Some(DeadReason::RetriesExhausted), Value::Null));
            let word = PersonsWord { open: true, by: "mei".into(), reason: None, at: stage.store.now() };
            let open = Command::Breaker { key: "breaker/all".into(), word };
            assert_eq!(stage.store.apply(Urgency::Normal, vec![open]).await.expect("committed"), [Answer::Done]);
            let (tripped, _) = stage.end_of(task("tripped", &payload)).await;
            assert_eq!(tripped.state.dead_reason, Some(DeadReason::CircuitOpen));
            assert_eq!(stage.told(), []);
            worker.stop(PATIENCE).await;
        }
    }
}

#[tokio::test]
async fn an_open_breaker_that_falls_back_ends_due_tasks_without_an_attempt() {
    for stage in stages(falling_back(vec![Fallback::Cache, Fallback::Default])).await {
        let worker = stage.worker().await;
        let (_, answer) = stage.end_of(task("good", &json!(1))).await;
        let word = PersonsWord { open: true, by: "mei".into(), reason: None, at: stage.store.now() };
        let open = Command::Breaker { key: "breaker/all".into(), word };
        assert_eq!(stage.store.apply(Urgency::Normal, vec![open]).await.expect("committed"), [Answer::Done]);
        let (cached, result) = stage.end_of(task("cached", &json!(1))).await;
        assert_eq!((degraded(&cached), result), ((Status::Succeeded, Some("cache")), answer));
        let (unknown, result) = stage.end_of(task("unknown", &json!(2))).await;
        assert_eq!(
            (degraded(&unknown), result["answer"].as_str()),
            ((Status::Succeeded, Some("default")), Some("instead"))
        );
        let why = unknown.state.failure.expect("what it would have died of");
        assert_eq!((why.class.as_str(), why.message.as_str()), ("circuit_open", "breaker/all is open"));
        assert_eq!(stage.echo.calls.load(Ordering::SeqCst), 1, "only the good one ran");
        assert_eq!(stage.store.attempts("unknown").await.expect("attempts").len(), 0);
        assert_eq!(stage.told(), [("cached".into(), "cache".into()), ("unknown".into(), "default".into())]);
        worker.stop(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_permanent_failure_never_falls_back() {
    for stage in stages(falling_back(vec![Fallback::Cache, Fallback::Default])).await {
        let worker = stage.worker().await;
        stage.end_of(task("good", &json!(1))).await;
        stage.echo.permanently.store(true, Ordering::SeqCst);
        let (dead, result) = stage.end_of(task("bad", &json!(1))).await;
        assert_eq!((dead.state.dead_reason, result), (Some(DeadReason::PermanentError), Value::Null));
        worker.stop(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_waiting_retry_that_new_rules_give_up_falls_back_without_another_call() {
    let patient = Policy { max_retries: 3, backoff: Backoff::Fixed(HOUR), ..falling_back(vec![Fallback::Default]) };
    for mut stage in stages(patient).await {
        stage.echo.failing.store(true, Ordering::SeqCst);
        let worker = stage.worker().await;
        stage.publish(task("waits", &json!(1))).await;
        let waiting = async {
            loop {
                let task = stage.store.get(&["waits".to_owned()]).await.expect("rows").remove(0);
                if task.is_some_and(|task| task.state.status == Status::RetryWaiting) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it fails once");
        worker.stop(PATIENCE).await;

        stage.config.policies = Policies::new(vec![falling_back(vec![Fallback::Default])]);
        stage.clock.advance(HOUR);
        let worker = stage.worker().await;
        let (given_up, result) = stage.ended("waits").await;
        assert_eq!(degraded(&given_up), (Status::Succeeded, Some("default")));
        assert_eq!(result["answer"], "instead");
        assert_eq!(stage.echo.calls.load(Ordering::SeqCst), 1);
        let why = given_up.state.failure.expect("what it would have died of");
        assert!(why.message.contains("not called again"), "{why:?}");
        worker.stop(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_task_whose_last_worker_was_lost_falls_back_too() {
    for stage in stages(falling_back(vec![Fallback::Default])).await {
        let body = br#"{"id":"orphan","type":"price.ask","payload":1}"#;
        let origin = Origin { routing_key: "price.ask".into(), message_id: None, ..Origin::default() };
        let now = stage.store.now();
        let read = read_submission(body, &origin, 1_000, now, |_| "default".into(), || "id".into());
        let ReadSubmission::New(mut new) = read else { panic!("{read:?}") };
        let ghost = Claimant { worker: "ghost".into(), serves: None, gates: Arc::default(), policies: None };
        new.claimant = Some(ghost);
        let answers =
            stage.store.apply(Urgency::Normal, vec![Command::Submit(Box::new(new))]).await.expect("committed");
        assert!(matches!(answers[..], [Answer::Run(_)]), "{answers:?}");
        let worker = stage.worker().await;
        stage.clock.advance(2_000);
        let (orphan, result) = stage.ended("orphan").await;
        assert_eq!(
            (degraded(&orphan), result["answer"].as_str()),
            ((Status::Succeeded, Some("default")), Some("instead"))
        );
        assert_eq!(orphan.state.failure.map(|failure| failure.class).as_deref(), Some(class::WORKER_LOST));
        worker.stop(PATIENCE).await;
    }
}
