//! What a person looks at: how much waits where, and attempts without the weight of their attachments.
//!
//! Nothing here decides anything; workers do not ask these questions. Each is answered from an index, or about so many rows at most.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::StoreError;
use crate::task::{Attachment, Attempt, Millis};

/// The parts in which the time until retries fall due is counted.
pub const WAIT_PARTS: usize = 60;

/// How retries that wait are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitScale {
    /// Delays that are counted each by itself: the rungs.
    pub delays_ms: Vec<Millis>,
    /// The length on which all other delays are counted; at least 1.
    pub other_ms: Millis,
    /// Look at so many retries at most, those that fall due first.
    pub most: usize,
}

/// Retries of one queue that wait out one delay, and that no gate holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryWait {
    /// The queue.
    pub queue: String,
    /// The delay; `None`: all those that are no rung.
    pub delay_ms: Option<Millis>,
    /// How many.
    pub waiting: i64,
    /// How many of them are due already.
    pub due: i64,
    /// When the first of them falls due, or did.
    pub first_due_at: Millis,
    /// How many fall due in each part of the delay, the soonest first; what is due already is in none, what is further away than the
    /// delay in the last.
    pub parts: [i64; WAIT_PARTS],
}

/// How much waits where.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting {
    /// New tasks that no message was published for, by queue.
    pub unsent: BTreeMap<String, i64>,
    /// Tasks with a message on its way through the tasks lane, by queue.
    pub sent: BTreeMap<String, i64>,
    /// Tasks that a gate holds, by queue.
    pub held: BTreeMap<String, i64>,
    /// Running attempts, by worker.
    pub running: BTreeMap<String, i64>,
    /// Retries, by queue and delay.
    pub retries: Vec<RetryWait>,
    /// Whether there are more retries than were looked at.
    pub is_part: bool,
}

/// An attempt without what it left, and what that is.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptHead {
    /// Its attachments are empty here.
    pub attempt: Attempt,
    /// What it left, in order.
    pub attachments: Vec<AttachmentHead>,
}

/// What is known of an attachment without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentHead {
    /// A file name without folders.
    pub name: String,
    /// e.g. `image/png`.
    pub media_type: String,
    /// In bytes; 0 for a link.
    pub size: u64,
    /// Whether the bytes are stored.
    pub is_kept: bool,
    /// Where the handler has kept it.
    pub link: Option<String>,
}

/// The part of the Store port that only people ask.
#[async_trait]
pub trait LookStore: Send + Sync + 'static {
    /// How much waits where.
    async fn waiting(&self, scale: &WaitScale) -> Result<Waiting, StoreError>;

    /// From which moment on no more than about `most` tasks have ended, of those that ended from `since` on and before `until`; `None`: all
    /// of them are no more. Sums over a window ask this first, so that nobody waits for a million.
    async fn newest_ended(&self, since: Millis, until: Millis, most: usize) -> Result<Option<Millis>, StoreError>;

    /// The attempts of a task, oldest first, without their attachments' bytes.
    async fn attempt_heads(&self, id: &str) -> Result<Vec<AttemptHead>, StoreError>;

    /// One attachment, by its place among those of its attempt.
    async fn attachment(&self, id: &str, fence: i64, position: usize) -> Result<Option<Attachment>, StoreError>;
}

/// The part of a delay in which a retry falls due; `None`: it is due.
pub(super) fn part(due_at: Millis, now: Millis, length_ms: Millis) -> Option<usize> {
    let left = due_at.saturating_sub(now);
    if left <= 0 {
        return None;
    }
    let parts = i64::try_from(WAIT_PARTS).unwrap_or(1);
    let part = left.saturating_mul(parts) / length_ms.max(1);
    Some(usize::try_from(part).unwrap_or(WAIT_PARTS).min(WAIT_PARTS - 1))
}

/// Adds so many retries to those of their queue and delay.
pub(super) fn add(
    waits: &mut BTreeMap<(String, Option<Millis>), RetryWait>,
    (queue, delay_ms): (String, Option<Millis>),
    part: Option<usize>,
    n: i64,
    first_due_at: Millis,
) {
    let wait = waits.entry((queue.clone(), delay_ms)).or_insert_with(|| RetryWait {
        queue,
        delay_ms,
        waiting: 0,
        due: 0,
        first_due_at,
        parts: [0; WAIT_PARTS],
    });
    wait.waiting += n;
    wait.first_due_at = wait.first_due_at.min(first_due_at);
    match part.and_then(|part| wait.parts.get_mut(part)) {
        Some(part) => *part += n,
        None => wait.due += n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_is_in_the_part_of_its_delay_in_which_it_falls_due() {
        assert_eq!(part(100, 100, 60_000), None);
        assert_eq!(part(101, 100, 60_000), Some(0));
        assert_eq!(part(1_100, 100, 60_000), Some(1));
        assert_eq!(part(60_100, 100, 60_000), Some(59), "a whole delay away is the last part");
        assert_eq!(part(Millis::MAX, -1, 1), Some(59));
    }
}
