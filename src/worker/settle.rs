//! Settles attempts, those that end together in one call of the store.
//!
//! A call of its own for each would wake the store's writer at the first one, so that it commits that one alone while the others
//! queue up behind it. Here the first to end lets every attempt that is about to end go first, and then settles for all. Nobody
//! waits for a handler that still runs.

use std::sync::{Arc, Mutex, PoisonError};

use crate::broker::Token;
use crate::handler::Report;
use crate::store::Urgency;
use crate::task::{Answer, AttachmentBody, Command, Outcome, Settlement, Task, decide, hold_for};
use crate::telemetry::Event;

use super::attempt::{Places, ack, after_buried, after_settled};
use super::doubt::{Earlier, own_settlement};
use super::fallback;
use super::patience::Patience;
use super::{Persisted, Shared, after_you};

/// The most attempts, and about the most bytes, of one call: the others would wait for them in one transaction.
const MOST: usize = 64;
const MOST_BYTES: usize = 1024 * 1024;

/// An attempt that has ended.
pub(super) struct Finished {
    pub task: Box<Task>,
    pub settlement: Box<Settlement>,
    /// The delivery that woke it, if one did.
    pub token: Option<Token>,
    /// Freed when it is settled.
    pub places: Option<Places>,
}

/// Attempts that have ended and that nobody settles yet.
#[derive(Default)]
pub(crate) struct Gathering(Mutex<Gathered>);

#[derive(Default)]
struct Gathered {
    finished: Vec<Finished>,
    bytes: usize,
}

impl Gathering {
    /// Adds one. Returns what the caller has to settle now, because it is enough, and whether it is the first of a new
    /// gathering, for which the caller has to come back.
    fn add(&self, finished: Finished) -> (Vec<Finished>, bool) {
        let mut gathered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.bytes += bytes_of(&finished.settlement);
        gathered.finished.push(finished);
        if gathered.finished.len() >= MOST || gathered.bytes >= MOST_BYTES {
            return (std::mem::take(&mut *gathered).finished, false);
        }
        (Vec::new(), gathered.finished.len() == 1)
    }

    fn take(&self) -> Vec<Finished> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).finished
    }
}

/// Settles an attempt, by itself or by leaving it to the one that gathers.
pub(super) async fn settle(shared: &Shared, task: Box<Task>, report: Report, token: Option<Token>, places: Places) {
    let (rules, now) = (shared.rules(), shared.store.now());
    let policy = rules.policy_of(&task.spec, now);
    let hold_ms = hold_for(&report.outcome, &policy);
    let decision = decide(&task, &report.outcome, &policy, &rules.rungs, now, shared.random());
    let mut patience = Patience::new(shared);
    let fallback = loop {
        match fallback::for_decision(shared, &task.spec, &policy, &decision).await {
            Ok(fallback) => break fallback,
            Err(error) if patience.again(shared, &error).await => {}
            // The worker ends with the store away, as in `commit`.
            Err(_) => return shared.leases.remove(task.id(), task.state.fence),
        }
    };
    let (result, cost) = match report.outcome {
        Outcome::Success { result, cost } => (result, cost),
        Outcome::Failure { cost, .. } => (None, cost),
    };
    let settlement = Box::new(Settlement {
        worker: shared.name.clone(),
        policy: Some(policy.name.clone()),
        variant: policy.variant_for(task.id(), task.state.variant.as_deref()).map(|variant| variant.name.clone()),
        result,
        cost,
        attachments: report.attachments,
        decision,
        degraded: report.degraded,
        remember: policy.caches().then(|| task.spec.cached_as()),
        fallback,
        hold_ms,
        gates: Arc::clone(&rules.claimant.gates),
    });
    let (mut batch, gathers) = shared.finished.add(Finished { task, settlement, token, places: Some(places) });
    if gathers {
        // The runtime comes back to this task when the ones that are ready have run.
        after_you().await;
        batch = shared.finished.take();
    }
    if !batch.is_empty() {
        // Apart, because most attempts have nothing to commit: each is one allocation, and the smaller for it.
        Box::pin(commit(shared, batch)).await;
    }
}

/// Commits settlements, acks what they were for and does what they ask for. Their leases are given up in any case.
pub(super) async fn commit(shared: &Shared, batch: Vec<Finished>) {
    let mut commands = Vec::with_capacity(batch.len());
    let mut waiting = Vec::with_capacity(batch.len());
    for Finished { task, settlement, token, places } in batch {
        let (id, fence) = (task.id().to_owned(), task.state.fence);
        commands.push(Command::Settle { id: id.clone(), fence, settlement });
        waiting.push((id, fence, token, places));
    }
    let Some(persisted) = shared.persist(Urgency::Normal, commands).await else {
        // The worker ends with the store away: the leases carry the tasks, the deliveries come again and find them so.
        for (id, fence, ..) in waiting {
            shared.leases.remove(&id, fence);
        }
        return;
    };
    let Persisted { answers, doubt } = persisted;
    for ((id, fence, token, places), answer) in waiting.into_iter().zip(answers) {
        // No heartbeat for what is settled: it would be refused, and taken for a lost lease.
        shared.leases.remove(&id, fence);
        match answer {
            Answer::Settled(change) => {
                ack(token).await;
                after_settled(shared, *change);
            }
            Answer::Unprocessable { message } => {
                // The row alone breaks its transaction. Its lease will end; poison it now so that it does not run again and again.
                if let Some(answers) = shared.try_apply(vec![Command::Poison { id, message }]).await {
                    after_buried(shared, answers);
                }
                ack(token).await;
            }
            _ => {
                ack(token).await;
                match if doubt.is_some() { own_settlement(shared, &id, fence).await } else { Earlier::None } {
                    Earlier::Change(change) => after_settled(shared, *change),
                    Earlier::Untold => {}
                    Earlier::None => shared.observers.emit(&Event::SettleRefused { id: &id, fence }),
                }
            }
        }
        drop(places);
    }
}

fn bytes_of(settlement: &Settlement) -> usize {
    let attachments = settlement.attachments.iter().map(|attachment| match &attachment.body {
        AttachmentBody::Bytes(bytes) => bytes.len(),
        _ => 0,
    });
    let result = settlement.result.as_ref().or(settlement.fallback.as_ref().map(|fallback| &fallback.result));
    result.map_or(0, |result| result.body.len()) + attachments.sum::<usize>()
}
