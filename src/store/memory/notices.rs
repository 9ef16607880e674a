//! Notices, in the order of their numbers.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::MemoryStore;
use crate::store::StoreError;
use crate::store::notice::{MOST_DOUBLINGS, NoticeBacklog, NoticeStore, TakenNotice};
use crate::task::{Millis, Notice};

/// What waits to be published.
#[derive(Debug, Default)]
pub(super) struct Notices {
    newest: i64,
    waiting: BTreeMap<i64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    notice: Notice,
    send_at: Millis,
    tries: i64,
}

impl Notices {
    pub(super) fn extend(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            self.newest += 1;
            let send_at = notice.at;
            self.waiting.insert(self.newest, Waiting { notice, send_at, tries: 0 });
        }
    }
}

#[async_trait]
impl NoticeStore for MemoryStore {
    async fn next_notice(&self) -> Result<Option<Millis>, StoreError> {
        Ok(self.inner().notices.waiting.values().map(|waiting| waiting.send_at).min())
    }

    async fn take_notices(&self, most: usize, hold_ms: Millis) -> Result<Vec<TakenNotice>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let waiting = &mut inner.notices.waiting;
        let mut due: Vec<(Millis, i64)> =
            waiting.iter().filter(|(_, w)| w.send_at <= now).map(|(number, w)| (w.send_at, *number)).collect();
        due.sort_unstable();
        let mut numbers: Vec<i64> = due.into_iter().take(most).map(|(_, number)| number).collect();
        numbers.sort_unstable();
        let mut taken = Vec::new();
        for number in numbers {
            let Some(waiting) = waiting.get_mut(&number) else { continue };
            waiting.send_at = now + hold_ms * (1 << waiting.tries.min(MOST_DOUBLINGS));
            waiting.tries += 1;
            taken.push(TakenNotice { number, notice: waiting.notice.clone() });
        }
        Ok(taken)
    }

    async fn drop_notices(&self, numbers: Vec<i64>) -> Result<(), StoreError> {
        let mut inner = self.inner();
        for number in numbers {
            inner.notices.waiting.remove(&number);
        }
        Ok(())
    }

    async fn notice_backlog(&self) -> Result<NoticeBacklog, StoreError> {
        let inner = self.inner();
        let waiting = &inner.notices.waiting;
        Ok(NoticeBacklog {
            waiting: i64::try_from(waiting.len()).unwrap_or(i64::MAX),
            oldest_at: waiting.values().map(|waiting| waiting.notice.at).min(),
        })
    }
}
