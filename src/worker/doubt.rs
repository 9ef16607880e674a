//! What became of commits whose answer was lost.
//!
//! The connection was cut between a commit and its answer, or the answer took too long. The same commands again are then refused by the
//! row that the first try has changed. Here the row is asked: what it says of this process and this fence is our own doing, and
//! anything else is not. Nothing is guessed from the refusal alone.

use std::sync::Arc;

use crate::store::Urgency;
use crate::task::{Answer, Attempt, Change, Command, Status, Task, class};

use super::Shared;
use super::patience::Patience;

/// Which of these running rows this process has claimed without knowing it, by input index. Their leases begin anew, because they have
/// run on meanwhile; and it is done where heartbeats are, because others may call them lost any moment.
pub(super) async fn own_claims(shared: &Shared, ids: Vec<String>) -> Vec<Option<Task>> {
    let reclaim = |id| Command::Reclaim { id, worker: shared.name.clone() };
    let commands: Vec<Command> = ids.into_iter().map(reclaim).collect();
    if commands.is_empty() {
        return Vec::new();
    }
    let Some(persisted) = shared.persist(Urgency::First, commands).await else {
        // The worker ends with the store away: the leases have to end.
        return Vec::new();
    };
    let ours = |answer| match answer {
        Answer::Run(task) if !shared.leases.holds(task.id(), task.state.fence) => Some(*task),
        _ => None,
    };
    persisted.answers.into_iter().map(ours).collect()
}

/// What an earlier try of a settlement that is refused now has done.
pub(super) enum Earlier {
    /// It was committed, and nobody has told of it.
    Change(Box<Change>),
    /// The worker ends and nobody is told, or the row has been deleted since.
    Untold,
    /// Nothing: the lease was lost.
    None,
}

/// After a commit without an answer: an attempt of ours with that fence that nobody called lost is our own settlement.
pub(super) async fn own_settlement(shared: &Shared, id: &str, fence: i64) -> Earlier {
    let mut patience = Patience::new(shared);
    let (attempts, task) = loop {
        let read = async {
            let attempts = shared.store.attempts(id).await?;
            Ok((attempts, shared.store.get(&[id.to_owned()]).await?.pop().flatten()))
        };
        match read.await {
            Ok(read) => break read,
            Err(error) if patience.again(shared, &error).await => {}
            Err(_) => return Earlier::Untold,
        }
    };
    let lost = |attempt: &Attempt| attempt.failure.as_ref().is_some_and(|failure| failure.class == class::WORKER_LOST);
    let ours = |attempt: &Attempt| attempt.fence == fence && attempt.worker == shared.name && !lost(attempt);
    let Some(attempt) = attempts.into_iter().find(ours) else { return Earlier::None };
    let Some(task) = task else { return Earlier::Untold };
    if task.state.fence != fence {
        return Earlier::Change(Box::new(Change {
            task: as_it_left(task),
            attempt: Arc::new(attempt),
            wake_up: None,
            turns: Vec::new(),
        }));
    }
    let waits = task.state.status.is_waiting();
    let wake_up = task.state.outstanding.filter(|_| waits).map(|route| task.wake_up(route));
    Earlier::Change(Box::new(Change { task, attempt: Arc::new(attempt), wake_up, turns: Vec::new() }))
}

/// The task for those who count and log an attempt that others have gone on from. It ended nothing then: it was to be tried again, was
/// given back, or has been replayed since. What became of the task later is for those others to tell, and would be counted twice.
fn as_it_left(mut task: Task) -> Task {
    task.state.status = Status::RetryWaiting;
    task.state.dead_reason = None;
    task.state.degraded = None;
    task
}
