//! The crash table of the design, row by row, on a real RabbitMQ and a real SQLite file.
//!
//! A child process (this test binary again) runs a worker that aborts at the step under test. Then a second worker, in this
//! process, has to bring every task to its end. What must hold afterwards is the same for every row: each task ended once, no
//! more attempts than allowed, and the DLQ holds exactly one copy of each dead task.

mod doubt;
mod faults;
mod full_disk;
#[path = "../support/store_double.rs"]
mod store_double;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use faults::{Away, DyingAt, DyingBroker, Step};
use redeliver::broker::{Broker, RabbitBroker, Topology};
use redeliver::config::Config;
use redeliver::handler::{AttemptContext, Handler, Report, Route};
use redeliver::policy::{Backoff, Policies, Policy, TopicPattern};
use redeliver::producer::Producer;
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{Filter, NewReplay, Pace, ReplayState, Selection, Store, Urgency};
use redeliver::task::{Attempt, AttemptOutcome, Command, DlqCopy, Envelope, Outcome, Status, Task, class};
use redeliver::telemetry::Observers;
use redeliver::worker::{Plan, Worker};
use store_double::StoreDouble;
use support::Vhost;

const CHILD: &str = "REDELIVER_TEST_CRASH_CHILD";
const STEP_MS: i64 = 500;

/// Fails the first `failures` attempts of each task, then succeeds; `InHandler` dies instead.
struct Flaky {
    failures: i64,
    step: Option<Step>,
    calls: Arc<AtomicU64>,
}

#[async_trait]
impl Handler for Flaky {
    async fn run(&self, attempt: AttemptContext) -> Report {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.step == Some(Step::InHandler) {
            Step::InHandler.die();
        }
        if attempt.retry_count < self.failures {
            return Outcome::failure(class::SERVER_ERROR, "not yet").into();
        }
        Outcome::success().into()
    }
}

fn config() -> Config {
    let policy =
        Policy { name: "test".into(), max_retries: 2, backoff: Backoff::Steps(vec![STEP_MS]), ..Policy::built_in() };
    let mut config = Config { policies: Policies::new(vec![policy]), ..Config::default() };
    config.worker.lease = Duration::from_secs(3);
    config.scheduler.grace = Duration::from_secs(1);
    config.scheduler.patience = Duration::from_secs(2);
    config.scheduler.max_patience = Duration::from_secs(8);
    config.scheduler.slack = Duration::from_secs(2);
    config.broker.confirm_timeout = Duration::from_secs(2);
    config
}

fn plan(handler: impl Handler + 'static) -> Plan {
    Plan::with_routes(&config(), vec![Route { task_type: TopicPattern::any(), handler: Arc::new(handler) }])
}

fn broker(url: &str) -> Arc<dyn Broker> {
    let broker =
        RabbitBroker::new(vec![url.to_owned()], "redeliver".into(), Duration::from_secs(2), Duration::from_secs(2));
    Arc::new(broker.expect("the test's broker URL"))
}

async fn store(path: &Path) -> Arc<dyn Store> {
    let url = format!("sqlite://{}", path.display());
    Arc::new(
        SqliteStore::open(&url, config().settings(), SqliteOptions::default())
            .await
            .expect("a store in a temporary folder"),
    )
}

/// The child's side: runs a worker that aborts at its step.
#[test]
fn child() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let mut parts = order.splitn(4, '|');
    let mut next = || parts.next().unwrap_or_default().to_owned();
    let (step, failures, url, path) = (next(), next(), next(), next());
    let step = Step::parse(&step).expect("a step");
    let failures = failures.parse().expect("a number");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = Arc::new(StoreDouble { inner: store(Path::new(&path)).await, interference: DyingAt(step) });
        let broker = Arc::new(DyingBroker { inner: broker(&url), step });
        let handler = Flaky { failures, step: Some(step), calls: Arc::default() };
        let _worker = Worker::start(store, broker, plan(handler), Observers::default()).await.expect("a worker");
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
    panic!("the step {step:?} never came");
}

/// Publishes one task, lets a worker die at `step`, lets another recover, and returns what became of it.
async fn die_and_recover(vhost: &Vhost, step: Step, failures: i64) -> (Task, Vec<Attempt>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.db");
    let recovering = broker(&vhost.url());
    let plan = plan(Flaky { failures, step: None, calls: Arc::default() });
    recovering.declare(&plan.topology).await.expect("the topology");
    let envelope = Envelope::new("test.crash").id("t1");
    Producer::new(Arc::clone(&recovering)).publish(envelope).await.expect("published");

    die(vhost, &path, step, failures).await;

    let store = store(&path).await;
    let worker = Worker::start(Arc::clone(&store), Arc::clone(&recovering), plan, Observers::default())
        .await
        .expect("the second worker");
    wait_for_end(store.as_ref(), "t1").await;
    wait_for_mirror(store.as_ref(), recovering.as_ref()).await;
    let task = wait_for_end(store.as_ref(), "t1").await;
    let attempts = store.attempts("t1").await.expect("attempts");
    worker.stop(Duration::from_secs(2)).await;
    (task, attempts)
}

/// Lets a worker die at `step`.
async fn die(vhost: &Vhost, path: &Path, step: Step, failures: i64) {
    let order = format!("{}|{failures}|{}|{}", step.name(), vhost.url(), path.display());
    let status = tokio::process::Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, order)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    let status = tokio::time::timeout(Duration::from_secs(90), status).await.expect("the child ends").expect("runs");
    assert_eq!(status.code(), None, "{step:?}: the child must die by its own hand, not end");
}

async fn wait_for_end(store: &dyn Store, id: &str) -> Task {
    wait_for(store, id, Status::is_ended).await
}

async fn wait_for(store: &dyn Store, id: &str, wanted: fn(Status) -> bool) -> Task {
    let reached = async {
        loop {
            let task = store.get(&[id.to_owned()]).await.expect("the store").pop().flatten();
            if let Some(task) = task.filter(|task| wanted(task.state.status)) {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("the task gets there")
}

/// Waits until the DLQ holds exactly one copy of each dead row.
async fn wait_for_mirror(store: &dyn Store, broker: &dyn Broker) {
    let mirrored = async {
        loop {
            let (present, wanted) = store.dead_copies("default").await.expect("the store");
            let dirty = store.dlqs().await.expect("the store").iter().any(|(_, dlq)| dlq.dirty > dlq.cleaned);
            let topology = Topology::new("redeliver", &[("default".into(), Vec::new())], &BTreeSet::new());
            let depths = broker.depths(&topology).await.unwrap_or_default();
            let ready = depths.iter().find(|depth| depth.name.ends_with(".dead")).and_then(|depth| depth.ready);
            if wanted == 0 && !dirty && ready == u64::try_from(present).ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(90), mirrored).await.expect("the DLQ becomes a mirror of the rows");
}

fn outcomes(attempts: &[Attempt]) -> Vec<(AttemptOutcome, Option<&str>)> {
    attempts.iter().map(|a| (a.outcome, a.failure.as_ref().map(|failure| failure.class.as_str()))).collect()
}

const WORKED: (AttemptOutcome, Option<&str>) = (AttemptOutcome::Succeeded, None);
const LOST: (AttemptOutcome, Option<&str>) = (AttemptOutcome::Retried, Some(class::WORKER_LOST));
const FAILED: (AttemptOutcome, Option<&str>) = (AttemptOutcome::Retried, Some(class::SERVER_ERROR));

#[tokio::test]
async fn a_death_before_the_first_commit_is_mended_by_redelivery() {
    support::with_vhost(async |vhost| {
        let (task, attempts) = die_and_recover(&vhost, Step::BeforeSubmitCommit, 0).await;
        assert_eq!(task.state.status, Status::Succeeded);
        assert_eq!(outcomes(&attempts), [WORKED]);
    })
    .await;
}

#[tokio::test]
async fn a_death_after_the_claim_is_mended_by_the_lease() {
    support::with_vhost(async |vhost| {
        let (task, attempts) = die_and_recover(&vhost, Step::AfterSubmitCommit, 0).await;
        assert_eq!(task.state.status, Status::Succeeded);
        assert_eq!(outcomes(&attempts), [LOST, WORKED]);
    })
    .await;
}

#[tokio::test]
async fn a_death_in_the_handler_spends_the_attempt() {
    support::with_vhost(async |vhost| {
        let (task, attempts) = die_and_recover(&vhost, Step::InHandler, 0).await;
        assert_eq!(task.state.status, Status::Succeeded);
        assert_eq!(outcomes(&attempts), [LOST, WORKED]);
    })
    .await;
}

#[tokio::test]
async fn a_death_after_the_handler_and_before_the_settle_runs_it_twice_and_settles_it_once() {
    support::with_vhost(async |vhost| {
        let (task, attempts) = die_and_recover(&vhost, Step::BeforeSettleCommit, 0).await;
        assert_eq!(task.state.status, Status::Succeeded);
        assert_eq!(outcomes(&attempts), [LOST, WORKED]);
    })
    .await;
}

#[tokio::test]
async fn a_death_after_the_settle_of_a_success_changes_nothing() {
    support::with_vhost(async |vhost| {
        let (task, attempts) = die_and_recover(&vhost, Step::AfterSettleCommit, 0).await;
        assert_eq!(task.state.status, Status::Succeeded);
        assert_eq!(outcomes(&attempts), [WORKED]);
    })
    .await;
}

#[tokio::test]
async fn a_death_between_a_retrys_settle_and_its_publish_is_mended_by_the_alarm() {
    for step in [Step::AfterSettleCommit, Step::BeforeWakeUpPublish] {
        support::with_vhost(async |vhost| {
            let (task, attempts) = die_and_recover(&vhost, step, 1).await;
            assert_eq!(task.state.status, Status::Succeeded, "{step:?}");
            assert_eq!(outcomes(&attempts), [FAILED, WORKED], "{step:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_death_between_publish_and_ack_leaves_two_messages_and_one_of_them_is_stale() {
    support::with_vhost(async |vhost| {
        let (task, attempts) = die_and_recover(&vhost, Step::AfterWakeUpPublish, 1).await;
        assert_eq!(task.state.status, Status::Succeeded);
        assert_eq!(outcomes(&attempts), [FAILED, WORKED]);
    })
    .await;
}

#[tokio::test]
async fn a_death_around_the_copys_publish_leaves_exactly_one_copy() {
    for step in [Step::BeforeCopyPublish, Step::AfterCopyPublish] {
        support::with_vhost(async |vhost| {
            let (task, attempts) = die_and_recover(&vhost, step, 9).await;
            assert_eq!(task.state.status, Status::Dead, "{step:?}");
            assert_eq!(task.state.dlq_copy, DlqCopy::Present, "{step:?}");
            assert_eq!(attempts.len(), 3, "{step:?}: max_retries + 1");
        })
        .await;
    }
}

/// A worker over a vhost of its own, with one dead task in it.
struct Stage {
    _folder: tempfile::TempDir,
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    worker: Worker,
    calls: Arc<AtomicU64>,
}

async fn stage(vhost: &Vhost, failures: i64) -> Stage {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = store(&folder.path().join("store.db")).await;
    let broker = broker(&vhost.url());
    let calls = Arc::new(AtomicU64::new(0));
    let plan = plan(Flaky { failures, step: None, calls: Arc::clone(&calls) });
    broker.declare(&plan.topology).await.expect("the topology");
    Producer::new(Arc::clone(&broker)).publish(Envelope::new("test.crash").id("t1")).await.expect("published");
    let worker =
        Worker::start(Arc::clone(&store), Arc::clone(&broker), plan, Observers::default()).await.expect("a worker");
    Stage { _folder: folder, store, broker, worker, calls }
}

impl Stage {
    async fn end(self) {
        self.worker.stop(Duration::from_secs(2)).await;
    }
}

#[tokio::test]
async fn a_replay_whose_wake_up_was_never_published_runs_by_its_alarm_and_its_copy_goes() {
    support::with_vhost(async |vhost| {
        let stage = stage(&vhost, 9).await;
        let task = wait_for_end(stage.store.as_ref(), "t1").await;
        wait_for_mirror(stage.store.as_ref(), stage.broker.as_ref()).await;
        let replay = Command::Replay { id: "t1".into(), generation: task.stamp().generation, note: None };
        let _ = stage.store.apply(Urgency::Normal, vec![replay]).await.expect("committed");
        let again = async {
            loop {
                let task = stage.store.get(&["t1".into()]).await.expect("the store").pop().flatten().expect("the task");
                if task.stamp().generation == 1 && task.state.status == Status::Dead {
                    return task;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let task = tokio::time::timeout(Duration::from_secs(60), again).await.expect("the replay runs to its end");
        assert_eq!(task.stamp().retry_count, 2);
        wait_for_mirror(stage.store.as_ref(), stage.broker.as_ref()).await;
        assert_eq!(stage.calls.load(Ordering::SeqCst), 6, "three attempts in each generation");
        stage.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_death_around_a_replay_jobs_commit_leaves_the_letter_to_the_next_driver_or_to_its_alarm() {
    for step in [Step::BeforeReleaseCommit, Step::AfterReleaseCommit] {
        support::with_vhost(async |vhost| {
            let Stage { _folder: folder, store, broker, worker, .. } = stage(&vhost, 9).await;
            wait_for_end(store.as_ref(), "t1").await;
            wait_for_mirror(store.as_ref(), broker.as_ref()).await;
            worker.stop(Duration::from_secs(2)).await;
            let new = NewReplay {
                selection: Selection::default(),
                about: serde_json::json!({}),
                created_by: None,
                reason: None,
                pace: Pace::default(),
                edit: None,
                driver: None,
            };
            let job = store.create_replay(new).await.expect("a job");
            die(&vhost, &folder.path().join("store.db"), step, 0).await;
            let left = store.replay(job.id).await.expect("the store").expect("the job");
            let replayed = i64::from(step == Step::AfterReleaseCommit);
            assert_eq!((left.counts.replayed, left.counts.waiting), (replayed, 1 - replayed), "{step:?}");

            let calls = Arc::new(AtomicU64::new(0));
            let plan = plan(Flaky { failures: 0, step: None, calls: Arc::clone(&calls) });
            let broker = self::broker(&vhost.url());
            let worker = Worker::start(Arc::clone(&store), Arc::clone(&broker), plan, Observers::default())
                .await
                .expect("the second worker");
            let done = async {
                loop {
                    let job = store.replay(job.id).await.expect("the store").expect("the job");
                    if job.state == ReplayState::Done {
                        return job;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            let job = tokio::time::timeout(Duration::from_secs(90), done).await.expect("the job ends");
            assert_eq!((job.counts.succeeded, job.counts.matched()), (1, 1), "{step:?}");
            assert_eq!(calls.load(Ordering::SeqCst), 1, "{step:?}: it ran once");
            let task = wait_for_end(store.as_ref(), "t1").await;
            assert_eq!(task.stamp().generation, 1, "{step:?}: it was replayed once");
            wait_for_mirror(store.as_ref(), broker.as_ref()).await;
            worker.stop(Duration::from_secs(2)).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_discard_leaves_no_copy_in_the_dlq() {
    support::with_vhost(async |vhost| {
        let stage = stage(&vhost, 9).await;
        let task = wait_for_end(stage.store.as_ref(), "t1").await;
        wait_for_mirror(stage.store.as_ref(), stage.broker.as_ref()).await;
        let discard = Command::Discard { id: "t1".into(), generation: task.stamp().generation, note: None };
        let _ = stage.store.apply(Urgency::Normal, vec![discard]).await.expect("committed");
        wait_for_mirror(stage.store.as_ref(), stage.broker.as_ref()).await;
        assert_eq!(stage.store.dead_copies("default").await.expect("the store"), (0, 0));
        stage.end().await;
    })
    .await;
}

#[tokio::test]
async fn every_queue_deleted_while_tasks_wait_brings_every_task_and_every_copy_back() {
    support::with_vhost(async |vhost| {
        let stage = stage(&vhost, 1).await;
        let waiting = async {
            loop {
                let counts = stage.store.count(&Filter::default()).await.expect("the store");
                if counts.get(&Status::RetryWaiting).copied().unwrap_or(0) == 1 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("the task fails once");
        let topology = Topology::new("redeliver", &[("default".into(), Vec::new())], &BTreeSet::from([STEP_MS]));
        stage.broker.delete(&topology, true).await.expect("deleted");
        let task = wait_for_end(stage.store.as_ref(), "t1").await;
        assert_eq!(task.state.status, Status::Succeeded);
        stage.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_holds_deliveries_and_acks_none() {
    support::with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let inner = store(&folder.path().join("store.db")).await;
        let (away, refusals) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let interference = Away { away: Arc::clone(&away), refusals: Arc::clone(&refusals) };
        let store = Arc::new(StoreDouble { inner: Arc::clone(&inner), interference });
        let broker = broker(&vhost.url());
        let calls = Arc::new(AtomicU64::new(0));
        let plan = plan(Flaky { failures: 0, step: None, calls: Arc::clone(&calls) });
        broker.declare(&plan.topology).await.expect("the topology");
        let producer = Producer::new(Arc::clone(&broker));
        producer.publish(Envelope::new("test.crash").id("t1")).await.expect("published");
        let worker = Worker::start(store, Arc::clone(&broker), plan, Observers::default()).await.expect("a worker");
        let tried = async {
            while refusals.load(Ordering::SeqCst) < 3 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), tried).await.expect("the worker tries and tries");
        assert_eq!(calls.load(Ordering::SeqCst), 0, "nothing runs that is not committed");
        away.store(false, Ordering::SeqCst);
        let task = wait_for_end(inner.as_ref(), "t1").await;
        assert_eq!(task.state.status, Status::Succeeded);
        worker.stop(Duration::from_secs(2)).await;
    })
    .await;
}
