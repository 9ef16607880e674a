//! What became of commits whose answer was lost.
//!
//! The connection was cut between a commit and its answer, or the answer took too long. The same commands again are then refused by the
//! row that the first try has changed. Here the row is read back: what it says of this process and this fence is our own doing, and
//! anything else is not. Nothing is guessed from the refusal alone.

use crate::store::Urgency;
use crate::task::{Answer, Attempt, Change, Command, Status, Task, class};

use super::Shared;
use super::patience::Patience;

/// Which of these running rows this process has claimed without knowing it, by input index. The leases have run on meanwhile, so
/// they are renewed first.
pub(super) async fn own_claims(shared: &Shared, ids: &[String]) -> Vec<Option<Task>> {
    let none = || vec![None; ids.len()];
    if ids.is_empty() {
        return none();
    }
    let mut patience = Patience::new(shared);
    let mut found = loop {
        match shared.store.get(ids).await {
            Ok(found) => break found,
            Err(error) if patience.again(shared, &error).await => {}
            // The worker ends with the store away: the leases have to end.
            Err(_) => return none(),
        }
    };
    let ours = |task: &Task| {
        task.state.status == Status::Running
            && task.state.worker.as_deref() == Some(&shared.name)
            && !shared.leases.holds(task.id(), task.state.fence)
    };
    found.iter_mut().for_each(|task| *task = task.take().filter(ours));
    let beats = found.iter().flatten();
    let beats = beats.map(|task| Command::Heartbeat { id: task.id().to_owned(), fence: task.state.fence });
    let beats: Vec<Command> = beats.collect();
    if beats.is_empty() {
        return found;
    }
    let Some(renewed) = shared.persist(Urgency::First, beats).await else { return none() };
    for (task, answer) in found.iter_mut().filter(|task| task.is_some()).zip(renewed.answers) {
        if answer != Answer::Done {
            *task = None;
        }
    }
    found
}

/// What an earlier try of a settlement that is refused now has done.
pub(super) enum Earlier {
    /// It was committed, and the row is as it left it.
    Change(Box<Change>),
    /// It was committed, and others have gone on with the row; or the worker ends and nobody is told.
    Passed,
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
            Err(_) => return Earlier::Passed,
        }
    };
    let lost = |attempt: &Attempt| attempt.failure.as_ref().is_some_and(|failure| failure.class == class::WORKER_LOST);
    let ours = |attempt: &Attempt| attempt.fence == fence && attempt.worker == shared.name && !lost(attempt);
    let Some(attempt) = attempts.into_iter().find(ours) else { return Earlier::None };
    let Some(task) = task.filter(|task| task.state.fence == fence && task.state.status != Status::Running) else {
        return Earlier::Passed;
    };
    let waits = task.state.status.is_waiting();
    let wake_up = task.state.outstanding.filter(|_| waits).map(|route| task.wake_up(route));
    Earlier::Change(Box::new(Change { task, attempt, wake_up, turns: Vec::new() }))
}
