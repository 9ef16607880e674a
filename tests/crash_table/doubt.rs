//! Commits whose answer is lost, and a store that is away for longer than a lease after them: nothing runs twice, nobody is called
//! lost, and what was committed is told once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redeliver::handler::{AttemptContext, Handler, Report};
use redeliver::producer::Producer;
use redeliver::store::{Store, StoreError, Urgency};
use redeliver::task::{Answer, Attempt, Command, Envelope, Outcome, Status, class};
use redeliver::telemetry::{Event, Observer, Observers};
use redeliver::worker::Worker;

use crate::store_double::{Interference, StoreDouble};

use super::{FAILED, Flaky, WORKED, broker, outcomes, plan, store, support, wait_for, wait_for_end};

/// Longer than the lease, and between two of the growing pauses after which a worker would ask again by itself.
const AWAY: Duration = Duration::from_millis(3_300);

/// What was told of settlements.
#[derive(Default)]
struct Told {
    settled: AtomicU64,
    /// Those of them that ended the task.
    ended: AtomicU64,
    refused: AtomicU64,
}

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Settled { task, .. } => {
                self.ended.fetch_add(u64::from(task.state.status.is_ended()), Ordering::SeqCst);
                self.settled.fetch_add(1, Ordering::SeqCst)
            }
            Event::SettleRefused { .. } => self.refused.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
    }
}

/// The store as two workers see it: the answer of the first commit with such a command is lost, and from then on it is `away`.
struct Muted {
    away: Arc<AtomicBool>,
    over: AtomicBool,
    of: fn(&Command) -> bool,
    /// Whoever asks what became of it is answered when the task has ended.
    late: Option<Arc<dyn Store>>,
}

#[async_trait]
impl Interference for Muted {
    async fn apply(
        &self,
        store: &dyn Store,
        urgency: Urgency,
        commands: Vec<Command>,
    ) -> Result<Vec<Answer>, StoreError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable { place: "test".into(), reason: "away".into() });
        }
        let concerned = commands.iter().any(self.of);
        let answers = store.apply(urgency, commands).await?;
        if concerned && !self.over.swap(true, Ordering::SeqCst) {
            self.away.store(true, Ordering::SeqCst);
            return Err(StoreError::Unknown { place: "test".into() });
        }
        Ok(answers)
    }

    async fn before(&self, call: &'static str) -> Result<(), StoreError> {
        if let Some(store) = self.late.as_ref().filter(|_| call == "attempts") {
            wait_for_end(store.as_ref(), "t1").await;
        }
        Ok(())
    }
}

/// When the worker hears what became of a commit whose answer was lost.
#[derive(Clone, Copy, PartialEq)]
enum Hears {
    AtOnce,
    /// When others have gone on from it.
    WhenAllIsOver,
}

/// Runs a task that fails `failures` times, through an outage that begins with the lost answer. Its attempts, and how often the handler
/// was called.
async fn through(
    failures: i64,
    of: fn(&Command) -> bool,
    hears: Hears,
    told: &Arc<Told>,
) -> Option<(Vec<Attempt>, u64)> {
    let mut seen = None;
    support::with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let inner = store(&folder.path().join("store.db")).await;
        let (away, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let late = (hears == Hears::WhenAllIsOver).then(|| Arc::clone(&inner));
        let interference = Muted { away: Arc::clone(&away), over: AtomicBool::new(false), of, late };
        let muted: Arc<dyn Store> = Arc::new(StoreDouble { inner: Arc::clone(&inner), interference });
        let plan = plan(Flaky { failures, step: None, calls: Arc::clone(&calls) });
        let first = broker(&vhost.url());
        first.declare(&plan.topology).await.expect("the topology");
        let mut workers = Vec::new();
        for connection in [Arc::clone(&first), broker(&vhost.url())] {
            let observers = Observers::new(vec![Arc::clone(told) as Arc<dyn Observer>]);
            workers
                .push(Worker::start(Arc::clone(&muted), connection, plan.clone(), observers).await.expect("a worker"));
        }
        Producer::new(first).publish(Envelope::new("test.crash").id("t1")).await.expect("published");
        let lost = async {
            while !away.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), lost).await.expect("the answer is lost");
        tokio::time::sleep(AWAY).await;
        away.store(false, Ordering::SeqCst);
        wait_for_end(inner.as_ref(), "t1").await;
        for worker in workers {
            worker.stop(Duration::from_secs(2)).await;
        }
        seen = Some((inner.attempts("t1").await.expect("attempts"), calls.load(Ordering::SeqCst)));
    })
    .await;
    seen
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_run_once_and_never_called_lost() {
    let claims = |command: &Command| matches!(command, Command::Submit(_));
    let Some((attempts, calls)) = through(0, claims, Hears::AtOnce, &Arc::default()).await else { return };
    assert_eq!(outcomes(&attempts), [WORKED]);
    assert_eq!(calls, 1);
}

async fn is_told_once_and_not_as_refused(hears: Hears) {
    let settles = |command: &Command| matches!(command, Command::Settle { .. });
    let told = Arc::new(Told::default());
    let Some((attempts, calls)) = through(1, settles, hears, &told).await else { return };
    assert_eq!(outcomes(&attempts), [FAILED, WORKED]);
    assert_eq!(calls, 2);
    assert_eq!((told.settled.load(Ordering::SeqCst), told.refused.load(Ordering::SeqCst)), (2, 0));
    assert_eq!(told.ended.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_settlement_whose_answer_was_lost_is_told_once_and_not_as_refused() {
    is_told_once_and_not_as_refused(Hears::AtOnce).await;
}

#[tokio::test]
async fn a_settlement_whose_answer_was_lost_is_told_once_when_others_went_on_from_it() {
    is_told_once_and_not_as_refused(Hears::WhenAllIsOver).await;
}

/// Runs until it is told to end.
struct Endless;

#[async_trait]
impl Handler for Endless {
    async fn run(&self, attempt: AttemptContext) -> Report {
        attempt.cancel.cancelled().await;
        Outcome::failure(class::SERVER_ERROR, "told to end").into()
    }
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_told_once() {
    support::with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let inner = store(&folder.path().join("store.db")).await;
        let away = Arc::new(AtomicBool::new(false));
        let of = |command: &Command| matches!(command, Command::Release { .. });
        let interference = Muted { away: Arc::clone(&away), over: AtomicBool::new(false), of, late: None };
        let muted = Arc::new(StoreDouble { inner: Arc::clone(&inner), interference });
        let plan = plan(Endless);
        let connection = broker(&vhost.url());
        connection.declare(&plan.topology).await.expect("the topology");
        let told = Arc::new(Told::default());
        let observers = Observers::new(vec![Arc::clone(&told) as Arc<dyn Observer>]);
        let worker = Worker::start(muted, Arc::clone(&connection), plan, observers).await.expect("a worker");
        Producer::new(broker(&vhost.url())).publish(Envelope::new("test.crash").id("t1")).await.expect("published");
        wait_for(inner.as_ref(), "t1", |status| status == Status::Running).await;
        let returns = async {
            let lost = async {
                while !away.swap(false, Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), lost).await.expect("the answer is lost");
        };
        tokio::join!(worker.stop(Duration::ZERO), returns);
        assert_eq!((told.settled.load(Ordering::SeqCst), told.ended.load(Ordering::SeqCst)), (1, 0));
        assert_eq!(inner.attempts("t1").await.expect("attempts").len(), 1);
    })
    .await;
}
