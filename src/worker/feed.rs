//! First attempts of rows that wait for one: routed, and woken while their lane has room. The scheduler's `pending` branch and the
//! `dispatch` command are both this.

use crate::broker::{Broker, Published};
use crate::config::{QueueConfig, queue_of};
use crate::store::{Store, StoreError, Urgency};
use crate::task::{Answer, Command, Task, WakeUp};

/// Rows of one kind that one round takes.
pub(super) const BATCH: usize = 500;
/// What one round of feeding did.
#[derive(Debug, Default)]
pub struct Fed {
    /// What the store answered; [`Answer::Publish`] is to be published.
    pub answers: Vec<Answer>,
    /// Whether there is more than one round takes.
    pub more: bool,
}

/// Routes rows that others inserted and takes pending rows with nothing outstanding, oldest first, while their lane has fewer than
/// `cap` wake-ups outstanding.
///
/// # Errors
/// When the store does not answer.
pub async fn feed(store: &dyn Store, queues: &[QueueConfig], cap: usize, batch: usize) -> Result<Fed, StoreError> {
    let mut fed = Fed::default();
    let unrouted = store.unrouted(batch).await?;
    fed.more |= unrouted.len() == batch;
    if !unrouted.is_empty() {
        let route = |(id, task_type): (String, String)| {
            let queue = queue_of(queues, &task_type).to_owned();
            Command::Route { id, from: None, queue }
        };
        let _: Vec<Answer> = store.apply(Urgency::Normal, unrouted.into_iter().map(route).collect()).await?;
    }
    for queue in queues {
        let rows = store.feed(&queue.name, store.now(), batch).await?;
        if rows.is_empty() {
            continue;
        }
        let room = cap.saturating_sub(store.outstanding(&queue.name, cap).await?);
        fed.more |= rows.len() == batch && room > batch;
        let commands = rows.iter().take(room).filter_map(wake_command).collect::<Vec<_>>();
        if !commands.is_empty() {
            fed.answers.extend(store.apply(Urgency::Normal, commands).await?);
        }
    }
    Ok(fed)
}

/// Publishes the first attempts of pending rows until none is left or the lanes are full: the `dispatch` command. Returns how many
/// were confirmed and how many were not (their alarms stand).
///
/// # Errors
/// When the store does not answer.
pub async fn dispatch_once(
    store: &dyn Store,
    broker: &dyn Broker,
    queues: &[QueueConfig],
    cap: usize,
) -> Result<(usize, usize), StoreError> {
    let (mut confirmed, mut failed) = (0, 0);
    loop {
        let fed = feed(store, queues, cap, BATCH).await?;
        let wake_ups: Vec<WakeUp> = fed
            .answers
            .into_iter()
            .filter_map(|answer| match answer {
                Answer::Publish(wake_up) => Some(wake_up),
                _ => None,
            })
            .collect();
        let fates = broker.publish(wake_ups.iter().map(crate::broker::wake_up).collect()).await;
        let mut commands = Vec::new();
        for (wake, fate) in wake_ups.iter().zip(fates) {
            match fate {
                Published::Confirmed => confirmed += 1,
                Published::Unconfirmed { .. } => failed += 1,
                Published::Returned | Published::Nacked | Published::NotSent { .. } => {
                    failed += 1;
                    commands.push(Command::PublishFailed {
                        id: wake.id.clone(),
                        stamp: wake.stamp,
                        sent_at: wake.route.sent_at,
                    });
                }
            }
        }
        if !commands.is_empty() {
            let _: Vec<Answer> = store.apply(Urgency::Normal, commands).await?;
        }
        if !fed.more || failed > 0 {
            return Ok((confirmed, failed));
        }
    }
}

/// The command for an alarm that rang.
pub(super) fn wake_command(task: &Task) -> Option<Command> {
    Some(Command::Wake { id: task.id().to_owned(), stamp: task.stamp(), wake_at: task.state.wake_at? })
}
