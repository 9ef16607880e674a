//! Notices on their way out: see [`Notice`].
//!
//! They are published at least once. Whoever takes some has them to itself for a while; those it does not report as out by then are
//! taken again. Nothing removes one that is not out, so while no broker takes them they pile up in the store.

use async_trait::async_trait;

use super::StoreError;
use crate::task::{Millis, Notice};

/// A notice that was taken for publishing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenNotice {
    /// Its number in this store; never given twice.
    pub number: i64,
    /// What to say.
    pub notice: Notice,
}

/// How much is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoticeBacklog {
    /// How many notices.
    pub waiting: i64,
    /// When the oldest of them was made.
    pub oldest_at: Option<Millis>,
}

/// The longest doubling of how long a notice is held: 2⁵.
pub const MOST_DOUBLINGS: i64 = 5;

/// The part of the Store port that is about what other services are told.
#[async_trait]
pub trait NoticeStore: Send + Sync + 'static {
    /// When the next notice may be taken; `None` when there is none.
    async fn next_notice(&self) -> Result<Option<Millis>, StoreError>;

    /// Takes at most `most` notices whose time has come, those first that may go the longest, and of those the oldest. Nobody else
    /// gets one of them for `hold_ms` · 2ⁿ, where n is how often it was taken before, at most [`MOST_DOUBLINGS`].
    async fn take_notices(&self, most: usize, hold_ms: Millis) -> Result<Vec<TakenNotice>, StoreError>;

    /// Forgets notices that are out; numbers that are not there are passed over.
    async fn drop_notices(&self, numbers: Vec<i64>) -> Result<(), StoreError>;

    /// How much is on its way out.
    async fn notice_backlog(&self) -> Result<NoticeBacklog, StoreError>;
}
