//! What waits for a place in one served queue, and who gets the next one.
//!
//! All starts of a queue are decided here: those of messages, and those of held rows that the scheduler offers because their gates
//! have room. So both are counted in the lane share, and no second decider has to be kept in step with the first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::broker::{Delivery, Parsed};
use crate::gate::{First, LaneBuffer, LaneTurn, Share};
use crate::task::{Lane, Stamp, Task, glance_at_priority};

/// Held rows that stand in line beyond the free places, so that the lanes' share of a busy worker is there when it falls due. Few:
/// other workers see the same rows, and what they take meanwhile is a place tried for nothing.
const AHEAD: usize = 16;

/// A delivery that waits for a place.
pub(super) struct Waiting {
    pub(super) delivery: Delivery,
    /// What it says it is.
    pub(super) parsed: Parsed,
    pub(super) since: Instant,
}

/// A held row whose gates have room, offered for a start without a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) id: String,
    pub(super) stamp: Stamp,
}

/// Who starts next.
#[expect(clippy::large_enum_variant, reason = "short-lived, and nearly always a message")]
pub(super) enum Next {
    Message(Waiting),
    Held(Offer),
}

/// One served queue's share and offers; the intake and the scheduler both hold it.
pub(crate) struct Lanes {
    share: Mutex<Share>,
    offers: Mutex<Offers>,
    /// There are new offers.
    pub(super) offered: Notify,
}

#[derive(Default)]
struct Offers {
    /// Not yet in line.
    fresh: Vec<Offer>,
    /// In line or being tried.
    open: BTreeSet<String>,
    /// The last look found more than there was room for.
    more: bool,
}

impl Lanes {
    pub(super) fn new(share: f64) -> Lanes {
        Lanes { share: Mutex::new(Share::new(share)), offers: Mutex::default(), offered: Notify::new() }
    }

    /// How many held rows are of use when so many places are free.
    pub(super) fn most_offers(free: usize) -> usize {
        free.saturating_add(AHEAD)
    }

    /// Offers held rows, in the order in which they are to start, while fewer than `most` are on offer. Rows that are keep their place,
    /// so the scheduler may offer the same ones at every look; what there is no room for now it finds again.
    pub(super) fn offer(&self, rows: &[Task], most: usize) {
        let mut offers = locked(&self.offers);
        offers.more = rows.len() >= most;
        for task in rows {
            if offers.open.len() >= most {
                break;
            }
            if offers.open.insert(task.id().to_owned()) {
                offers.fresh.push(Offer { id: task.id().to_owned(), stamp: task.stamp() });
            }
        }
        if !offers.fresh.is_empty() {
            self.offered.notify_one();
        }
    }

    /// The row was tried: it may be offered again.
    pub(super) fn closed(&self, id: &str) {
        locked(&self.offers).open.remove(id);
    }

    /// Whether all offers were tried and there were more rows than could be offered.
    pub(super) fn wants_more(&self) -> bool {
        let offers = locked(&self.offers);
        offers.more && offers.open.is_empty()
    }

    pub(super) fn take_offers(&self) -> Vec<Offer> {
        std::mem::take(&mut locked(&self.offers).fresh)
    }

    /// Takes back a turn that led to no start.
    pub(super) fn undo(&self, turn: LaneTurn) {
        locked(&self.share).undo(turn);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What waits for a place, by lane.
#[derive(Default)]
pub(super) struct Buffer {
    lanes: BTreeMap<Lane, LaneBuffer<Waiting, Offer>>,
}

impl Buffer {
    /// To its place in its lane's line. The lane is that of the start it leads to, whichever queue it came from: a wake-up's by its
    /// stamp, and everything else is a new task.
    pub(super) fn push(&mut self, delivery: Delivery, parsed: Parsed) {
        let (lane, priority, retry_count) = match &parsed {
            Parsed::WakeUp { stamp, .. } => (stamp.lane(), delivery.priority.unwrap_or(0), stamp.retry_count),
            Parsed::Submission => (Lane::Tasks, glance_at_priority(&delivery.body), 0),
            Parsed::BadWakeUp { .. } => (Lane::Tasks, 0, 0),
        };
        let waiting = Waiting { delivery, parsed, since: Instant::now() };
        self.lanes.entry(lane).or_default().line.push(priority, retry_count, waiting);
    }

    pub(super) fn push_held(&mut self, offer: Offer) {
        self.lanes.entry(offer.stamp.lane()).or_default().held.push_back(offer);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.values().all(LaneBuffer::is_empty)
    }

    /// Who starts next, and whose turn that was. Deliveries of a session that is gone are dropped on the way: the broker delivers
    /// them again.
    pub(super) fn next(&mut self, lanes: &Lanes) -> Option<(Next, LaneTurn)> {
        let mut share = locked(&lanes.share);
        loop {
            let waits = |lane| self.lanes.get(&lane).is_some_and(|lane| !lane.is_empty());
            let turn = share.next(waits(Lane::Tasks), waits(Lane::Retries))?;
            match self.lanes.get_mut(&turn.lane).and_then(LaneBuffer::pop) {
                Some(First::Message(waiting)) if !waiting.delivery.token.usable() => share.undo(turn),
                Some(First::Message(waiting)) => return Some((Next::Message(waiting), turn)),
                Some(First::Held(offer)) => return Some((Next::Held(offer), turn)),
                // Cannot be: the share names only lanes in which somebody waits.
                None => return None,
            }
        }
    }

    /// Takes out what has waited too long, and drops what a lost session has left here.
    pub(super) fn drain_old(&mut self, is_old: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let lines = self.lanes.values_mut().map(|lane| &mut lane.line);
        lines
            .flat_map(|line| {
                line.retain(|waiting| waiting.delivery.token.usable());
                line.drain_old(&is_old)
            })
            .collect()
    }
}
