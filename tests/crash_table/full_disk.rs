//! A disk that is full takes a commit that changes nothing and no other: a worker that runs nothing does not notice, and must not take its
//! neighbour, whose heartbeats fail, for dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redeliver::handler::{AttemptContext, Handler, Report};
use redeliver::producer::Producer;
use redeliver::store::{Store, StoreError, Urgency};
use redeliver::task::{Answer, Command, Envelope, Outcome, Status};
use redeliver::telemetry::Observers;
use redeliver::worker::Worker;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::store_double::{Interference, StoreDouble};

use super::{WORKED, broker, outcomes, plan, store, support, wait_for, wait_for_end};

/// How much later a heartbeat finds room than the end of a lease would: less than a third of the lease, which is a second.
const LATER: Duration = Duration::from_millis(500);

/// Full from `full` on until somebody tries to end a lease. From then on there is room, for a heartbeat a little later.
#[derive(Default)]
struct FullDisk {
    full: AtomicBool,
    room_since: std::sync::Mutex<Option<Instant>>,
    beaten: Notify,
}

#[async_trait]
impl Interference for Arc<FullDisk> {
    async fn apply(
        &self,
        store: &dyn Store,
        urgency: Urgency,
        commands: Vec<Command>,
    ) -> Result<Vec<Answer>, StoreError> {
        let any = |of: fn(&Command) -> bool| commands.iter().any(of);
        let beats = any(|command| matches!(command, Command::Heartbeat { .. }));
        let ends = any(|command| matches!(command, Command::Lost { .. }));
        let room_since = *self.room_since.lock().expect("not poisoned");
        let changes = any(|command| !matches!(command, Command::Mark { .. }));
        let too_early = beats && room_since.is_some_and(|since| since.elapsed() < LATER);
        if (self.full.load(Ordering::SeqCst) && changes) || too_early {
            if ends {
                self.full.store(false, Ordering::SeqCst);
                self.room_since.lock().expect("not poisoned").get_or_insert_with(Instant::now);
            }
            return Err(StoreError::Unavailable { place: "test".into(), reason: "the disk is full".into() });
        }
        let answers = store.apply(urgency, commands).await?;
        if beats && room_since.is_some() {
            self.beaten.notify_one();
        }
        Ok(answers)
    }
}

/// Works until it is told that it is done.
struct Until(Arc<Notify>);

#[async_trait]
impl Handler for Until {
    async fn run(&self, _attempt: AttemptContext) -> Report {
        self.0.notified().await;
        Outcome::Success { result: None, cost: None }.into()
    }
}

#[tokio::test]
async fn an_idle_worker_ends_no_lease_of_one_whose_heartbeats_met_a_full_disk() {
    support::with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let inner = store(&folder.path().join("store.db")).await;
        let (disk, done) = (Arc::new(FullDisk::default()), Arc::new(Notify::new()));
        let double: Arc<dyn Store> =
            Arc::new(StoreDouble { inner: Arc::clone(&inner), interference: Arc::clone(&disk) });
        let plan = plan(Until(Arc::clone(&done)));
        let first = broker(&vhost.url());
        first.declare(&plan.topology).await.expect("the topology");
        let work = async |connection| {
            Worker::start(Arc::clone(&double), connection, plan.clone(), Observers::default()).await.expect("a worker")
        };
        let busy = work(Arc::clone(&first)).await;
        Producer::new(first).publish(Envelope::new("test.crash").id("t1")).await.expect("published");
        wait_for(inner.as_ref(), "t1", |status| status == Status::Running).await;
        let idle = work(broker(&vhost.url())).await;
        disk.full.store(true, Ordering::SeqCst);
        tokio::time::timeout(Duration::from_secs(30), disk.beaten.notified()).await.expect("a heartbeat finds room");
        done.notify_one();
        wait_for_end(inner.as_ref(), "t1").await;
        assert_eq!(outcomes(&inner.attempts("t1").await.expect("attempts")), [WORKED]);
        for worker in [busy, idle] {
            worker.stop(Duration::from_secs(2)).await;
        }
    })
    .await;
}
