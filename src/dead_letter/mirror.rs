//! A pass over one DLQ (§4.4).
//!
//! Quorum queues cannot drop one message, so a pass takes every copy before it returns any: a copy that went back early would come
//! round again and be counted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::broker::{Broker, BrokerError, DeadCopy, QueueRole, Topology};
use crate::store::{DeadRow, Store, StoreError, Urgency};
use crate::task::{Answer, Command, DlqCopy, DlqLedger, Millis};

/// The least time between the beginnings of two passes.
const EVERY_MS: Millis = 60_000;
/// How long a pass holds its DLQ; one that dies frees it after this.
const HOLD_MS: Millis = 120_000;
/// How long taking may last.
pub(super) const TAKE: Duration = Duration::from_secs(60);
/// Rows read at once.
const PAGE: usize = 5_000;

/// Why a pass did not finish. Nothing is lost by it: what was taken goes back to the DLQ by itself.
#[derive(Debug, Error)]
pub enum MirrorError {
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker did not answer.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// What a pass found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PassReport {
    /// Copies seen.
    pub copies: usize,
    /// Copies removed: of no current dead row, or doubles.
    pub removed: usize,
    /// Rows whose copy was missing; the sweeper publishes them again.
    pub missing: usize,
    /// Wanted copies that were there after all.
    pub found: usize,
    /// Copies with no row, left where they are.
    pub strangers: usize,
}

impl fmt::Display for PassReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} copies seen, {} removed, {} missing, {} found, {} strangers",
            self.copies, self.removed, self.missing, self.found, self.strangers
        )
    }
}

/// Makes a pass over the DLQ of `queue`. `None` when it is clean, another pass holds it, or the last one began less than a minute ago;
/// `force` passes over all but the second.
///
/// # Errors
/// When store or broker do not answer; the DLQ stays dirty.
pub async fn pass(
    store: &dyn Store,
    broker: &dyn Broker,
    queue: &str,
    force: bool,
) -> Result<Option<PassReport>, MirrorError> {
    let Some(begun) = begin(store, queue, force).await? else { return Ok(None) };
    match look_through(store, broker, queue).await {
        Ok(report) => {
            end(store, queue, &begun, true, Some(report.strangers)).await?;
            Ok(Some(report))
        }
        Err(error) => {
            // It stays dirty, but the next pass need not wait until this one's hold is over.
            end(store, queue, &begun, false, None).await?;
            Err(error)
        }
    }
}

/// A pass that holds a DLQ.
pub(super) struct Begun {
    pass: i64,
    dirty: i64,
}

/// Takes the DLQ for a pass; `None` when it must not begin.
pub(super) async fn begin(store: &dyn Store, queue: &str, force: bool) -> Result<Option<Begun>, StoreError> {
    let begin = Command::BeginPass { queue: queue.to_owned(), hold_ms: HOLD_MS, every_ms: EVERY_MS, force };
    Ok(match store.apply(Urgency::Normal, vec![begin]).await?.pop() {
        Some(Answer::PassBegun { pass, dirty, .. }) => Some(Begun { pass, dirty }),
        _ => None,
    })
}

/// Gives it back. `cleaned`: every copy was compared with its row; `strangers`: how many were left there, if they were counted.
pub(super) async fn end(
    store: &dyn Store,
    queue: &str,
    begun: &Begun,
    cleaned: bool,
    strangers: Option<usize>,
) -> Result<(), StoreError> {
    let strangers = match strangers {
        Some(counted) => i64::try_from(counted).unwrap_or(i64::MAX),
        None => {
            let known = store.dlqs().await?.into_iter().find(|(name, _)| name == queue);
            known.map_or(0, |(_, ledger)| ledger.strangers)
        }
    };
    let dirty = if cleaned { begun.dirty } else { 0 };
    let end = Command::EndPass { queue: queue.to_owned(), pass: begun.pass, dirty, strangers };
    let _: Vec<Answer> = store.apply(Urgency::Normal, vec![end]).await?;
    Ok(())
}

async fn look_through(store: &dyn Store, broker: &dyn Broker, queue: &str) -> Result<PassReport, MirrorError> {
    // Only rows that were present before anything was taken can be missed by the taking.
    let before = present_rows(store, queue).await?;
    let mut taking = broker.dead_pass(queue).await?;
    let copies = taking.take_all(TAKE).await?;
    let rows = all_rows(store, queue).await?;
    let sorted = sort(store, &copies, &rows).await?;

    let mut commands: Vec<Command> = before
        .iter()
        .filter(|(id, generation)| {
            let still = rows
                .get(*id)
                .is_some_and(|row| row.stamp.generation == **generation && row.dlq_copy == DlqCopy::Present);
            still && !sorted.kept.contains(&((*id).clone(), **generation))
        })
        .map(|(id, generation)| Command::CopyMissing { id: id.clone(), generation: *generation })
        .collect();
    let missing = commands.len();
    let found = sorted.kept.iter().filter(|(id, _)| rows.get(id).is_some_and(|row| row.dlq_copy == DlqCopy::Wanted));
    commands.extend(found.map(|(id, generation)| Command::CopyConfirmed { id: id.clone(), generation: *generation }));
    let report = PassReport {
        copies: copies.len(),
        removed: sorted.remove.len(),
        missing,
        found: commands.len() - missing,
        strangers: sorted.strangers.len(),
    };
    for chunk in commands.chunks(500) {
        let _: Vec<Answer> = store.apply(Urgency::Normal, chunk.to_vec()).await?;
    }
    taking.remove(&sorted.remove).await?;
    taking.finish().await?;
    Ok(report)
}

pub(super) struct Sorted {
    /// Indexes of copies to remove.
    remove: Vec<usize>,
    /// Tasks and generations whose copy stays.
    kept: BTreeSet<(String, i64)>,
    /// Indexes of copies without a row.
    pub(super) strangers: Vec<usize>,
}

pub(super) async fn sort(
    store: &dyn Store,
    copies: &[DeadCopy],
    rows: &BTreeMap<String, DeadRow>,
) -> Result<Sorted, StoreError> {
    let mut sorted = Sorted { remove: Vec::new(), kept: BTreeSet::new(), strangers: Vec::new() };
    let mut without_dead_row = Vec::new();
    for copy in copies {
        let Some((id, generation)) = &copy.of else {
            sorted.strangers.push(copy.index);
            continue;
        };
        match rows.get(id) {
            Some(row) if row.stamp.generation == *generation => {
                if !sorted.kept.insert((id.clone(), *generation)) {
                    sorted.remove.push(copy.index);
                }
            }
            Some(_) => sorted.remove.push(copy.index),
            None => without_dead_row.push((copy.index, id.clone(), *generation)),
        }
    }
    // The row is not dead in this queue: replayed or discarded, or died again since the rows were read, or gone with its store.
    for chunk in without_dead_row.chunks(500) {
        let ids: Vec<String> = chunk.iter().map(|(_, id, _)| id.clone()).collect();
        for ((index, _, generation), task) in chunk.iter().zip(store.get(&ids).await?) {
            match task {
                None => sorted.strangers.push(*index),
                Some(task) => {
                    let current = task.state.dead_reason.is_some() && task.stamp().generation == *generation;
                    if !current {
                        sorted.remove.push(*index);
                    }
                }
            }
        }
    }
    Ok(sorted)
}

pub(super) async fn all_rows(store: &dyn Store, queue: &str) -> Result<BTreeMap<String, DeadRow>, StoreError> {
    let mut rows = BTreeMap::new();
    let mut after = String::new();
    loop {
        let page = store.dead_rows(queue, &after, PAGE).await?;
        let done = page.len() < PAGE;
        for row in page {
            after.clone_from(&row.id);
            rows.insert(row.id.clone(), row);
        }
        if done {
            return Ok(rows);
        }
    }
}

async fn present_rows(store: &dyn Store, queue: &str) -> Result<BTreeMap<String, i64>, StoreError> {
    let rows = all_rows(store, queue).await?;
    let present = rows.into_values().filter(|row| row.dlq_copy == DlqCopy::Present);
    Ok(present.map(|row| (row.id, row.stamp.generation)).collect())
}

/// Queues whose DLQ holds fewer copies than its rows say are present, or more than are present or wanted, strangers aside.
///
/// # Errors
/// When store or broker do not answer.
pub async fn odd_dlqs(
    store: &dyn Store,
    broker: &dyn Broker,
    topology: &Topology,
) -> Result<BTreeSet<String>, MirrorError> {
    let ledgers: BTreeMap<String, DlqLedger> = store.dlqs().await?.into_iter().collect();
    let now = store.now();
    let depths = broker.depths(topology).await?;
    let mut odd = BTreeSet::new();
    for spec in topology.queues.iter().filter(|spec| spec.role == QueueRole::Dead) {
        let Some(ready) = depths.iter().find(|depth| depth.name == spec.name).and_then(|depth| depth.ready) else {
            continue;
        };
        let ledger = ledgers.get(&spec.queue).cloned().unwrap_or_default();
        if ledger.pass_until > now {
            // A pass holds every copy: none of them is ready.
            continue;
        }
        let ready = i64::try_from(ready).unwrap_or(i64::MAX);
        let (present, wanted) = store.dead_copies(&spec.queue).await?;
        let strangers = ledger.strangers;
        if ready < present + strangers || ready > present + wanted + strangers {
            odd.insert(spec.queue.clone());
        }
    }
    Ok(odd)
}
