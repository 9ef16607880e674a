//! Replay jobs in whole workers: the embedded broker, an SQLite file, and a handler that counts whom it is called for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redeliver::broker::{Broker, EmbeddedBroker};
use redeliver::config::Config;
use redeliver::handler::{AttemptContext, Handler, Report, Route};
use redeliver::policy::{Policies, Policy, TopicPattern};
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{
    Filter, ItemOutcome, NewReplay, Pace, ReplayJob, ReplayOrigin, ReplayState, Selection, Steer, Steered, Store,
    TriageStore,
};
use redeliver::task::{Outcome, Status, class};
use redeliver::telemetry::Observers;
use redeliver::worker::{Plan, Worker};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

/// How long anything may take that should happen soon. Generous: the machine is shared.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts its calls by task; permanently fails while it is told to.
#[derive(Default)]
struct Counting {
    failing: AtomicBool,
    calls: Mutex<HashMap<String, Vec<Instant>>>,
}

impl Counting {
    fn calls(&self) -> HashMap<String, Vec<Instant>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Handler for Counting {
    async fn run(&self, attempt: AttemptContext) -> Report {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.entry(attempt.task.id.clone()).or_default().push(Instant::now());
        if self.failing.load(Ordering::SeqCst) {
            return Outcome::failure(class::BAD_PAYLOAD, "still broken").into();
        }
        Outcome::success().into()
    }
}

struct Stage {
    store: Arc<SqliteStore>,
    broker: Arc<EmbeddedBroker>,
    counting: Arc<Counting>,
    config: Config,
    pool: SqlitePool,
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Stage {
        Stage::with(Config::default()).await
    }

    async fn with(config: Config) -> Stage {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("store.db");
        let url = format!("sqlite://{}", file.display());
        let store = SqliteStore::open(&url, config.settings(), SqliteOptions::default()).await.expect("a store");
        let broker = Arc::new(EmbeddedBroker::new("redeliver"));
        broker.declare(&config.topology()).await.expect("declared");
        let options = SqliteConnectOptions::new().filename(file).busy_timeout(PATIENCE);
        let pool = SqlitePool::connect_with(options).await.expect("the file opens");
        Stage { store: Arc::new(store), broker, counting: Arc::default(), config, pool, _folder: folder }
    }

    async fn worker(&self) -> Worker {
        let handler: Arc<dyn Handler> = self.counting.clone();
        let plan = Plan::with_routes(&self.config, vec![Route { task_type: TopicPattern::any(), handler }]);
        let client = Arc::new(self.broker.client());
        Worker::start(self.store.clone(), client, plan, Observers::default()).await.expect("a worker")
    }

    /// Dead letters `<name>-1` to `<name>-<n>`, as if they had died just now.
    async fn letters(&self, name: &str, n: i64) {
        let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) \
             INSERT INTO tasks (id, type, status, dead_reason, queue, wake_at, dlq_copy, failure_class, failure_message, failure_fingerprint, ended_at) \
             SELECT ?1 || '-' || i, 'order.ship', 'dead', 'retries_exhausted', 'default', NULL, 'none', 'timeout', 'too slow', 'v1-slow', ?3 FROM n";
        sqlx::query(sql).bind(name).bind(n).bind(self.store.now()).execute(&self.pool).await.expect("letters");
    }

    async fn order(&self, pace: Pace, driver: Option<(String, i64)>) -> ReplayJob {
        let filter = Filter { fingerprints: vec!["v1-slow".into()], ..Filter::default() };
        let new = NewReplay {
            selection: Selection { filter, limit: None },
            about: serde_json::json!({}),
            created_by: None,
            reason: Some("it is back".into()),
            pace,
            edit: None,
            driver,
        };
        self.store.create_replay(new).await.expect("a job")
    }

    async fn job(&self, id: i64) -> ReplayJob {
        self.store.replay(id).await.expect("the store").expect("the job")
    }

    async fn until_ended(&self, id: i64) -> ReplayJob {
        self.until(id, |job| job.state.is_final()).await
    }

    async fn until(&self, id: i64, reached: impl Fn(&ReplayJob) -> bool) -> ReplayJob {
        let end = Instant::now() + PATIENCE;
        loop {
            let job = self.job(id).await;
            if reached(&job) {
                return job;
            }
            assert!(Instant::now() < end, "{job:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.expect("a number")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_press_replay_on_the_same_group_and_every_task_runs_once_and_both_are_told_the_truth() {
    let stage = Stage::new().await;
    stage.letters("a", 300).await;
    let (one, two) = tokio::join!(stage.order(Pace::default(), None), stage.order(Pace::default(), None));
    let (first, second) = (stage.worker().await, stage.worker().await);
    let (one, two) = (stage.until_ended(one.id).await, stage.until_ended(two.id).await);
    let calls = stage.counting.calls();
    assert_eq!(calls.len(), 300);
    assert!(calls.values().all(|calls| calls.len() == 1), "some ran twice");
    for job in [&one, &two] {
        assert_eq!((job.state, job.counts.matched()), (ReplayState::Done, 300));
        assert!(job.counts.skipped.keys().all(|why| why == "not_dead"), "{job:?}");
    }
    assert_eq!(one.counts.succeeded + two.counts.succeeded, 300);
    assert_eq!(one.counts.skipped() + two.counts.skipped(), 300);
    first.stop(PATIENCE).await;
    second.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_of_the_group_that_die_during_a_replay_are_not_taken_along() {
    let stage = Stage::new().await;
    stage.letters("before", 60).await;
    let worker = stage.worker().await;
    let job = stage.order(Pace { rate_per_s: Some(60.0), ..Pace::default() }, None).await;
    stage.until(job.id, |job| job.counts.released() > 0).await;
    stage.letters("during", 20).await;
    let job = stage.until_ended(job.id).await;
    assert_eq!((job.counts.matched(), job.counts.succeeded), (60, 60));
    assert_eq!(stage.number("SELECT count(*) FROM tasks WHERE id LIKE 'during-%' AND status = 'dead'").await, 20);
    worker.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_against_a_platform_that_is_still_broken_stops_itself_after_the_canary_and_says_so() {
    let stage = Stage::new().await;
    stage.counting.failing.store(true, Ordering::SeqCst);
    stage.letters("a", 400).await;
    let worker = stage.worker().await;
    let pace = Pace { ramp: true, max_failure_ratio: Some(0.1), ..Pace::default() };
    let job = stage.order(pace, None).await;
    let job = stage.until_ended(job.id).await;
    assert_eq!((job.state, job.stage), (ReplayState::Stopped, 0));
    assert_eq!(job.why.as_deref(), Some("4 of 4 failed again (100 %), more than 10 %"));
    assert_eq!((job.counts.failed_again, job.counts.waiting), (4, 396));
    assert_eq!(stage.number("SELECT count(*) FROM tasks WHERE status = 'dead' AND generation = 0").await, 396);
    let failed = stage.store.replay_items(job.id, &[ItemOutcome::FailedAgain], 0, 10).await.expect("items");
    assert_eq!(failed.len(), 4);
    worker.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ramp_goes_through_its_stages_while_all_ends_well() {
    let stage = Stage::new().await;
    stage.letters("a", 200).await;
    let worker = stage.worker().await;
    let job = stage.order(Pace { ramp: true, max_failure_ratio: Some(0.1), ..Pace::default() }, None).await;
    let job = stage.until_ended(job.id).await;
    assert_eq!((job.state, job.stage, job.counts.succeeded), (ReplayState::Done, 3, 200));
    worker.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_driver_has_died_goes_on_with_another() {
    // Wake-ups that were never sent are missed soon.
    let mut config = Config::default();
    config.broker.confirm_timeout = Duration::from_secs(1);
    config.scheduler.patience = Duration::from_secs(1);
    config.scheduler.max_patience = Duration::from_secs(2);
    config.scheduler.slack = Duration::from_secs(1);
    let stage = Stage::with(config).await;
    stage.letters("a", 50).await;
    let job = stage.order(Pace::default(), Some(("gone".into(), 500))).await;
    let lease = redeliver::store::ReplayLease { job: job.id, fence: job.fence, hold_ms: 500 };
    // It had released some, whose wake-ups it never sent.
    let released = stage.store.release_items(&lease, 20, 0).await.expect("the store").expect("ours");
    assert_eq!(released.counts.replayed, 20);
    let worker = stage.worker().await;
    let job = stage.until(job.id, |job| job.counts.waiting == 0).await;
    assert_eq!(job.fence, lease.fence + 1);
    let job = stage.until_ended(job.id).await;
    assert_eq!((job.state, job.counts.succeeded), (ReplayState::Done, 50));
    assert!(stage.counting.calls().values().all(|calls| calls.len() == 1));
    worker.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_job_releases_nothing_until_it_is_resumed() {
    let stage = Stage::new().await;
    stage.letters("a", 100).await;
    let worker = stage.worker().await;
    let job = stage.order(Pace { rate_per_s: Some(100.0), ..Pace::default() }, None).await;
    stage.until(job.id, |job| job.counts.released() > 5).await;
    let paused = stage.store.steer_replay(job.id, Steer::Pause, None, None).await.expect("the store");
    let Steered::Done(paused) = paused else { panic!("{paused:?}") };
    let waiting = paused.counts.waiting;
    assert!(waiting > 0);
    stage.until(job.id, |job| job.counts.replayed == 0).await;
    assert_eq!(stage.job(job.id).await.counts.waiting, waiting);
    assert!(matches!(stage.store.steer_replay(job.id, Steer::Resume, None, None).await, Ok(Steered::Done(_))));
    let job = stage.until_ended(job.id).await;
    assert_eq!((job.state, job.counts.succeeded), (ReplayState::Done, 100));
    worker.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_replays_itself_by_its_policy_until_it_succeeds() {
    let policy = Policy { name: "long".into(), max_retries: 0, replay_after_ms: vec![300, 200], ..Policy::built_in() };
    let stage = Stage::with(Config { policies: Policies::new(vec![policy]), ..Config::default() }).await;
    stage.letters("old", 1).await;
    let worker = stage.worker().await;
    // From the first look on. That the look was taken is seen by what it leaves.
    let end = Instant::now() + PATIENCE;
    while stage.number("SELECT count(*) FROM triage_marks").await == 0 {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sqlx::query("UPDATE tasks SET ended_at = ended_at - 3600000").execute(&stage.pool).await.expect("long ago");
    stage.letters("a", 1).await;
    let succeeded = async {
        loop {
            let task = stage.store.get(&["a-1".into()]).await.expect("the store").remove(0).expect("the task");
            if task.state.status == Status::Succeeded {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let task = tokio::time::timeout(PATIENCE, succeeded).await.expect("it replays itself");
    assert_eq!(task.stamp().generation, 1);
    let jobs = stage.store.replays(&[], None, 10).await.expect("jobs");
    assert_eq!((jobs.len(), jobs[0].origin), (1, ReplayOrigin::Automatic));
    let old = stage.store.get(&["old-1".into()]).await.expect("the store").remove(0).expect("the task");
    assert_eq!((old.state.status, old.state.wake_at), (Status::Dead, None), "what died before is for people");
    worker.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_smoothly() {
    let stage = Stage::new().await;
    stage.letters("a", 150).await;
    let worker = stage.worker().await;
    let job = stage.order(Pace { rate_per_s: Some(50.0), ..Pace::default() }, None).await;
    stage.until_ended(job.id).await;
    let mut calls: Vec<Instant> = stage.counting.calls().into_values().flatten().collect();
    calls.sort();
    let took = *calls.last().expect("calls") - calls[0];
    assert!(took >= Duration::from_millis(2_400), "150 at 50/s are not done in {took:?}");
    // In no second more than a second's worth and what a held-up driver may catch up with.
    for (i, from) in calls.iter().enumerate() {
        let within = calls[i..].iter().take_while(|at| **at < *from + Duration::from_secs(1)).count();
        assert!(within <= 50 + 25 + 25, "{within} in a second");
    }
    worker.stop(PATIENCE).await;
}
