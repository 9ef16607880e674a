//! Waiting tasks of a `[[queue]]` that is not configured any more: nobody feeds them and no lane carries them.
//!
//! They are routed anew, but only when nobody works on that queue: in a rolling deployment other workers may know it already, or
//! still. So the broker is asked for its consumers, and the second of two looks in a row decides.

use std::collections::BTreeSet;

use crate::broker::{Broker, Topology};
use crate::config::{QueueConfig, queue_of};
use crate::store::{Filter, Store, StoreError, Urgency};
use crate::task::{Answer, Command, Millis, Status};

/// How often it is looked for them.
const EVERY_MS: Millis = 30_000;
/// Rows of one transaction.
const BATCH: usize = 500;

/// See the module.
pub(super) struct Strays {
    looked_at: Millis,
    /// Queues that nobody consumed at the last look.
    deserted: BTreeSet<String>,
}

/// Tasks that were routed anew.
pub(super) struct Rerouted {
    pub(super) queue: String,
    pub(super) tasks: usize,
}

impl Strays {
    pub(super) fn new(now: Millis) -> Strays {
        Strays { looked_at: now, deserted: BTreeSet::new() }
    }

    /// Looks, if it is time to, and routes anew what two looks found deserted.
    pub(super) async fn look(
        &mut self,
        store: &dyn Store,
        broker: &dyn Broker,
        topology: &Topology,
        queues: &[QueueConfig],
        now: Millis,
    ) -> Result<Vec<Rerouted>, StoreError> {
        if now - self.looked_at < EVERY_MS {
            return Ok(Vec::new());
        }
        self.looked_at = now;
        let before = std::mem::take(&mut self.deserted);
        let mut rerouted = Vec::new();
        for (queue, _) in unknown_queues(store, queues).await? {
            if !is_deserted(broker, topology, &queue).await {
                continue;
            }
            if before.contains(&queue) {
                let tasks = reroute(store, queues, &queue).await?;
                rerouted.push(Rerouted { queue, tasks });
            } else {
                self.deserted.insert(queue);
            }
        }
        Ok(rerouted)
    }
}

/// Queues that waiting tasks belong to and that are not among `queues`, with the number of these tasks.
///
/// # Errors
/// When the store does not answer.
pub async fn unknown_queues(store: &dyn Store, queues: &[QueueConfig]) -> Result<Vec<(String, i64)>, StoreError> {
    let waiting = store.waiting_queues().await?;
    let known = |name: &str| queues.iter().any(|queue| queue.name == name);
    Ok(waiting.into_iter().filter(|(name, _)| !known(name)).collect())
}

/// Whether its lanes are gone or have no consumer. When the broker does not say, it is not.
async fn is_deserted(broker: &dyn Broker, topology: &Topology, queue: &str) -> bool {
    let lanes = topology.of_one_queue(queue);
    match broker.depths(&lanes).await {
        Ok(depths) => depths.iter().all(|depth| depth.consumers.unwrap_or(0) == 0),
        Err(error) => {
            tracing::debug!(queue, %error, "cannot ask the broker for its consumers");
            false
        }
    }
}

async fn reroute(store: &dyn Store, queues: &[QueueConfig], queue: &str) -> Result<usize, StoreError> {
    let filter = Filter {
        queues: vec![queue.to_owned()],
        statuses: vec![Status::Pending, Status::RetryWaiting],
        ..Filter::default()
    };
    let mut moved = 0;
    loop {
        let page = store.list(&filter, None, BATCH).await?;
        if page.items.is_empty() {
            return Ok(moved);
        }
        let commands = page.items.iter().map(|task| Command::Route {
            id: task.id().to_owned(),
            from: task.state.queue.clone(),
            queue: queue_of(queues, &task.spec.task_type).to_owned(),
        });
        let answers = store.apply(Urgency::Normal, commands.collect()).await?;
        let done = answers.iter().filter(|answer| matches!(answer, Answer::Done)).count();
        if done == 0 {
            // Others are at it; what they leave is found at the next look.
            return Ok(moved);
        }
        moved += done;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::broker::EmbeddedBroker;
    use crate::config::Config;
    use crate::store::Clock;
    use crate::store::memory::MemoryStore;
    use crate::task::{Settings, Stamp};

    #[tokio::test]
    async fn tasks_of_a_queue_that_is_gone_are_routed_anew_at_the_second_look_and_run() {
        let config = Config::default();
        let store = Arc::new(MemoryStore::new(Clock::System, Settings::default()));
        let broker = EmbeddedBroker::new("redeliver");
        for id in ["a", "b"] {
            store.insert_row(id, "order.ship", "1");
            let route = Command::Route { id: id.into(), from: None, queue: "gone".into() };
            assert_eq!(store.apply(Urgency::Normal, vec![route]).await.unwrap(), [Answer::Done]);
        }
        assert_eq!(unknown_queues(store.as_ref(), &config.queues).await.unwrap(), [("gone".to_owned(), 2)]);
        let mut strays = Strays::new(0);
        let mut moved = Vec::new();
        for now in [EVERY_MS - 1, EVERY_MS, EVERY_MS + 1, 2 * EVERY_MS] {
            let done = strays.look(store.as_ref(), &broker, &config.topology(), &config.queues, now).await.unwrap();
            moved.push(done.iter().map(|rerouted| rerouted.tasks).sum::<usize>());
        }
        assert_eq!(moved, [0, 0, 0, 2]);
        let task = store.get(&["a".to_owned()]).await.unwrap().remove(0).unwrap();
        assert_eq!((task.queue(), task.stamp(), task.state.outstanding), ("default", Stamp::FIRST, None));
        assert_eq!(store.feed("default", store.now(), 10).await.unwrap().len(), 2);
    }
}
