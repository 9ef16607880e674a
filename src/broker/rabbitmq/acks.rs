//! The acks of one channel, put together.
//!
//! One commit finishes many tasks, and an ack for each of them would be a frame, a write to the socket and an entry in the
//! quorum queue's log each. An ack with `multiple` speaks for every delivery up to its tag. It may go out only when all of
//! those are done, so each delivery is known here until it is answered; what is done while an older one still runs is acked
//! singly. Nothing is acked that the worker has not finished with, and nothing waits longer than [`MOMENT`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::session::Life;

/// How long an ack may wait for others. A crash in it repeats deliveries, as one before the ack always could: they are stale.
const MOMENT: Duration = Duration::from_millis(1);
/// The share of the prefetch that may wait for its ack, so that the broker never stops delivering for want of acks.
const SHARE_OF_PREFETCH: u16 = 4;

/// See the module.
pub(super) struct Acks {
    channel: Channel,
    life: Arc<Life>,
    /// The worker stops: no ack waits any more.
    stopped: CancellationToken,
    most: usize,
    tags: Mutex<Tags>,
    due: Notify,
}

impl Acks {
    /// For a channel that nobody else acks on, with one consumer. Sends what is due until the session ends.
    pub(super) fn start(channel: Channel, life: Arc<Life>, stopped: CancellationToken, prefetch: u16) -> Arc<Acks> {
        let most = usize::from((prefetch / SHARE_OF_PREFETCH).max(1));
        let acks = Arc::new(Acks { channel, life, stopped, most, tags: Mutex::default(), due: Notify::new() });
        tokio::spawn(acks.clone().run());
        acks
    }

    async fn run(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.life.ended() => return,
                () = self.due.notified() => {}
            }
            sleep(MOMENT).await;
            self.flush();
        }
    }

    /// Whether an answer can still reach the broker.
    pub(super) fn usable(&self) -> bool {
        !self.life.is_over() && self.channel.status().connected()
    }

    /// Takes note of a delivery. Before anybody can answer it, and in the order of delivery.
    pub(super) fn delivered(&self, tag: u64) {
        self.lock().open.insert(tag);
    }

    /// Acks a delivery, soon.
    pub(super) fn ack(&self, tag: u64) {
        let mut tags = self.lock();
        tags.open.remove(&tag);
        tags.done.push(tag);
        if tags.open.is_empty() || tags.done.len() >= self.most || self.stopped.is_cancelled() {
            self.send(&mut tags);
        } else if tags.done.len() == 1 {
            self.due.notify_one();
        }
    }

    /// Gives a delivery back, at once. `false` when the channel is gone.
    pub(super) fn nack(&self, tag: u64) -> bool {
        // Sent before the lock goes: an ack that speaks for this tag too must come after it.
        let mut tags = self.lock();
        tags.open.remove(&tag);
        let options = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
        !matches!(self.channel.basic_nack(tag, options).now_or_never(), Some(Err(_)))
    }

    /// Sends what is due.
    pub(super) fn flush(&self) {
        self.send(&mut self.lock());
    }

    fn send(&self, tags: &mut Tags) {
        for (tag, multiple) in tags.take() {
            // An ack has no reply. The first poll puts it in line for the socket; waiting until it is written would cost two
            // thread switches and prove nothing.
            if let Some(Err(error)) = self.channel.basic_ack(tag, BasicAckOptions { multiple }).now_or_never() {
                debug!(%error, "an ack was not sent; the message comes again and will be stale");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a channel has delivered and not had an answer to.
#[derive(Default)]
struct Tags {
    /// With the worker.
    open: BTreeSet<u64>,
    /// Done, in any order; their acks are due.
    done: Vec<u64>,
}

impl Tags {
    /// The acks for what is done: tag, and whether it speaks for every delivery before it.
    fn take(&mut self) -> Vec<(u64, bool)> {
        let mut done = std::mem::take(&mut self.done);
        done.sort_unstable();
        let oldest_open = self.open.first().copied().unwrap_or(u64::MAX);
        let singly = done.split_off(done.partition_point(|tag| *tag < oldest_open));
        let together = done.last().map(|last| (*last, done.len() > 1));
        together.into_iter().chain(singly.into_iter().map(|tag| (tag, false))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(open: &[u64], done: &[u64]) -> Tags {
        Tags { open: open.iter().copied().collect(), done: done.to_vec() }
    }

    #[test]
    fn one_ack_speaks_for_all_that_are_done_and_for_no_other() {
        assert_eq!(tags(&[], &[3, 1, 2]).take(), [(3, true)]);
        assert_eq!(tags(&[4, 5], &[3, 1, 2]).take(), [(3, true)]);
        assert_eq!(tags(&[4, 9], &[3, 6, 1]).take(), [(3, true), (6, false)]);
        assert_eq!(tags(&[1], &[3, 2]).take(), [(2, false), (3, false)]);
        assert_eq!(tags(&[2], &[1]).take(), [(1, false)]);
        assert_eq!(tags(&[2], &[]).take(), []);
    }

    #[test]
    fn whatever_the_order_every_tag_is_acked_once_and_no_open_one_ever() {
        for seed in 0..200_u64 {
            let mut tags = Tags::default();
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let (mut next, mut unacked) = (1, BTreeSet::new());
            for _ in 0..300 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                match random % 4 {
                    0 | 1 => {
                        tags.open.insert(next);
                        unacked.insert(next);
                        next += 1;
                    }
                    2 => {
                        let at = usize::try_from(random >> 32).unwrap() % tags.open.len().max(1);
                        if let Some(tag) = tags.open.iter().nth(at).copied() {
                            tags.open.remove(&tag);
                            tags.done.push(tag);
                        }
                    }
                    _ => {
                        for (tag, multiple) in tags.take() {
                            let acked: Vec<u64> =
                                if multiple { unacked.range(..=tag).copied().collect() } else { vec![tag] };
                            for tag in acked {
                                assert!(!tags.open.contains(&tag), "{tag} is with the worker");
                                assert!(unacked.remove(&tag), "{tag} was acked twice");
                            }
                        }
                        assert_eq!(unacked, tags.open);
                    }
                }
            }
        }
    }
}
