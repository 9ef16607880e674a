//! Who starts next, seen in a whole worker: the memory store, the embedded broker, and a handler that remembers in which order
//! attempts began.
//!
//! Everything is ready before the worker under test starts: new tasks as submissions in their lane, retries as wake-ups in theirs. An
//! earlier worker, with delays of an hour, has failed the first attempts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redeliver::broker::{Broker, EmbeddedBroker, Published, wake_up};
use redeliver::config::Config;
use redeliver::gate::type_pause;
use redeliver::handler::{AttemptContext, Handler, Report, Route};
use redeliver::policy::{Backoff, Policies, Policy, TopicPattern};
use redeliver::producer::Producer;
use redeliver::store::memory::MemoryStore;
use redeliver::store::{Clock, Filter, Pause, Store, Urgency};
use redeliver::task::{Answer, Command, Envelope, Lane, Outcome, Status, class};
use redeliver::telemetry::Observers;
use redeliver::worker::{Plan, Worker};
use tokio::sync::watch;

/// How long anything may take that should happen at once. Generous: the machine is shared.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Start {
    id: String,
    lane: Lane,
}

/// Remembers who started, and fails while it is told to.
struct Recorder {
    starts: Mutex<Vec<Start>>,
    count: watch::Sender<usize>,
    failing: AtomicBool,
}

#[async_trait]
impl Handler for Recorder {
    async fn run(&self, attempt: AttemptContext) -> Report {
        let lane = if attempt.retry_count == 0 { Lane::Tasks } else { Lane::Retries };
        self.starts.lock().unwrap_or_else(PoisonError::into_inner).push(Start { id: attempt.task.id.clone(), lane });
        self.count.send_modify(|count| *count += 1);
        if self.failing.load(Ordering::SeqCst) {
            return Outcome::failure(class::SERVER_ERROR, "not yet").into();
        }
        Outcome::success().into()
    }
}

struct Stage {
    store: Arc<dyn Store>,
    broker: Arc<EmbeddedBroker>,
    recorder: Arc<Recorder>,
    config: Config,
}

impl Stage {
    async fn new(concurrency: usize) -> Stage {
        let policy = Policy { name: "hour".into(), backoff: Backoff::Fixed(3_600_000), ..Policy::built_in() };
        let mut config = Config { policies: Policies::new(vec![policy]), ..Config::default() };
        config.worker.concurrency = concurrency;
        let store = Arc::new(MemoryStore::new(Clock::System, config.settings()));
        let broker = Arc::new(EmbeddedBroker::new("redeliver"));
        broker.declare(&config.topology()).await.expect("declared");
        let recorder = Recorder { starts: Mutex::default(), count: watch::Sender::new(0), failing: false.into() };
        Stage { store, broker, recorder: Arc::new(recorder), config }
    }

    async fn worker(&self) -> Worker {
        let handler: Arc<dyn Handler> = self.recorder.clone();
        let plan = Plan::with_routes(&self.config, vec![Route { task_type: TopicPattern::any(), handler }]);
        // A worker closes its client when it stops.
        let client = Arc::new(self.broker.client());
        Worker::start(self.store.clone(), client, plan, Observers::default()).await.expect("a worker")
    }

    async fn publish(&self, envelopes: impl IntoIterator<Item = Envelope>) {
        let producer = Producer::new(self.broker.clone() as Arc<dyn Broker>);
        for envelope in envelopes {
            producer.publish(envelope).await.expect("published");
        }
    }

    async fn publish_new(&self, n: usize) {
        self.publish((0..n).map(|i| Envelope::new("new.task").id(format!("new-{i}")))).await;
    }

    /// Tasks whose first attempt has failed, due now, their wake-ups in the retries lane in this order.
    async fn make_retries(&self, envelopes: Vec<Envelope>) {
        let ids: Vec<String> = envelopes.iter().filter_map(|envelope| envelope.id.clone()).collect();
        self.recorder.failing.store(true, Ordering::SeqCst);
        self.publish(envelopes).await;
        let worker = self.worker().await;
        self.until(Status::RetryWaiting, ids.len()).await;
        worker.stop(PATIENCE).await;
        self.recorder.failing.store(false, Ordering::SeqCst);
        self.recorder.starts.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.recorder.count.send_replace(0);
        let now = ids.into_iter().map(|id| Command::RunNow { id }).collect();
        let answers = self.store.apply(Urgency::Normal, now).await.expect("committed");
        let messages: Vec<_> = answers
            .into_iter()
            .map(|answer| match answer {
                Answer::Publish(wake) => wake_up(&wake),
                other => panic!("nothing to publish: {other:?}"),
            })
            .collect();
        let fates = self.broker.publish(messages).await;
        assert!(fates.iter().all(|fate| *fate == Published::Confirmed));
    }

    async fn make_many_retries(&self, n: usize) {
        self.make_retries((0..n).map(|i| Envelope::new("retry.task").id(format!("retry-{i}"))).collect()).await;
    }

    async fn until(&self, status: Status, n: usize) {
        let wanted = i64::try_from(n).expect("a small number");
        let reached = async {
            while self.store.count(&Filter::default()).await.expect("counts").get(&status) != Some(&wanted) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{n} tasks never were {status:?}"));
    }

    /// The first `n` starts of a worker that finds all this.
    async fn first_starts(&self, n: usize) -> Vec<Start> {
        let worker = self.worker().await;
        let mut count = self.recorder.count.subscribe();
        let reached = tokio::time::timeout(PATIENCE, count.wait_for(|count| *count >= n)).await;
        reached.expect("enough starts").expect("the recorder lives");
        worker.stop(PATIENCE).await;
        let mut starts = self.recorder.starts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        starts.truncate(n);
        starts
    }
}

fn retries_in(starts: &[Start]) -> usize {
    starts.iter().filter(|start| start.lane == Lane::Retries).count()
}

#[tokio::test]
async fn of_the_first_hundred_starts_with_both_lanes_full_a_quarter_to_thirty_percent_are_retries() {
    let stage = Stage::new(64).await;
    stage.make_many_retries(1_000).await;
    stage.publish_new(1_000).await;
    let starts = stage.first_starts(1_000).await;
    let retries = retries_in(&starts[..100]);
    assert!((25..=30).contains(&retries), "{retries} of the first 100");
    for hundred in starts.chunks(100) {
        // Attempts that are decided together begin in any order.
        let retries = retries_in(hundred);
        assert!((20..=40).contains(&retries), "{retries} of 100");
    }
}

#[tokio::test]
async fn at_concurrency_one_the_share_holds_over_any_hundred_starts() {
    let stage = Stage::new(1).await;
    stage.make_many_retries(500).await;
    stage.publish_new(500).await;
    let starts = stage.first_starts(500).await;
    assert_eq!(starts[0].lane, Lane::Retries, "retries go before new tasks");
    for (from, hundred) in starts.windows(100).enumerate() {
        let retries = retries_in(hundred);
        assert!((25..=30).contains(&retries), "{retries} of 100 from {from} on");
    }
}

#[tokio::test]
async fn with_no_new_tasks_retries_take_every_start_and_with_no_retries_new_tasks_do() {
    let stage = Stage::new(8).await;
    stage.make_many_retries(300).await;
    assert_eq!(retries_in(&stage.first_starts(300).await), 300);

    let stage = Stage::new(8).await;
    stage.publish_new(300).await;
    assert_eq!(retries_in(&stage.first_starts(300).await), 0);
}

#[tokio::test]
async fn within_the_buffer_new_tasks_start_by_priority_and_then_by_age() {
    let stage = Stage::new(1).await;
    let priorities: Vec<i64> = (0..100).map(|i| i * 7 % 10).collect();
    let envelope = |(i, priority): (usize, &i64)| Envelope::new("new.task").id(format!("new-{i}")).priority(*priority);
    stage.publish(priorities.iter().enumerate().map(envelope)).await;
    let mut wanted: Vec<usize> = (0..100).collect();
    wanted.sort_by_key(|i| -priorities[*i]);
    let wanted: Vec<String> = wanted.into_iter().map(|i| format!("new-{i}")).collect();
    let started: Vec<String> = stage.first_starts(100).await.into_iter().map(|start| start.id).collect();
    assert_eq!(started, wanted);
}

#[tokio::test]
async fn within_the_buffer_retries_start_by_the_priority_of_their_task() {
    let stage = Stage::new(1).await;
    let priorities: Vec<i64> = (0..40).map(|i| i * 3 % 10).collect();
    let envelope = |(i, priority): (usize, &i64)| Envelope::new("retry.task").id(format!("r-{i}")).priority(*priority);
    stage.make_retries(priorities.iter().enumerate().map(envelope).collect()).await;
    let mut wanted: Vec<usize> = (0..40).collect();
    wanted.sort_by_key(|i| -priorities[*i]);
    let wanted: Vec<String> = wanted.into_iter().map(|i| format!("r-{i}")).collect();
    let started: Vec<String> = stage.first_starts(40).await.into_iter().map(|start| start.id).collect();
    assert_eq!(started, wanted);
}

#[tokio::test]
async fn held_retries_that_a_gate_lets_go_start_without_a_message_and_within_the_share() {
    for concurrency in [1, 16] {
        let stage = Stage::new(concurrency).await;
        stage.make_many_retries(300).await;
        let key = type_pause(&TopicPattern::new("retry.#").expect("a pattern"));
        let pause = Pause { key: key.clone(), since: stage.store.now(), reason: None };
        stage.store.pause(pause).await.expect("paused");
        let worker = stage.worker().await;
        let held = async {
            while !stage.retries_are_held(300).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, held).await.expect("all are held");
        worker.stop(PATIENCE).await;
        assert!(stage.store.resume(&key).await.expect("resumed"));

        stage.publish_new(700).await;
        let starts = stage.first_starts(1_000).await;
        let retries = retries_in(&starts[..100]);
        assert!((25..=30).contains(&retries), "{retries} of the first 100 at concurrency {concurrency}");
        assert_eq!(retries_in(&starts), 300, "and all get their start");
    }
}

impl Stage {
    async fn retries_are_held(&self, n: usize) -> bool {
        let filter = Filter::default();
        let page = self.store.list(&filter, None, 1_000).await.expect("rows");
        page.items.iter().filter(|task| task.state.held_by.is_some()).count() == n
    }
}
