//! How it went in the last minutes, kept in memory: the console asks the store for a few seconds at a time and never sums up a
//! quarter of an hour while somebody waits for a page.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::store::{FailureTally, Filter, GroupBy, Store, StoreError, Tally};
use crate::task::Millis;

/// The length of one reading.
const SLICE_MS: Millis = 10_000;
const MINUTE_MS: Millis = 60_000;
/// How far back it goes.
pub(crate) const MINUTES: i64 = 15;
/// A settle is in the store when its time has passed; a commit may be a moment behind its own clock.
const SETTLE_MS: Millis = 1_000;
/// Different failures of one reading that are kept.
const FAILURES: usize = 50;

/// How the tasks ended that ended within a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    /// When it began.
    pub at: Millis,
    /// Succeeded at the first attempt.
    pub first: i64,
    /// Succeeded at a later one.
    pub retried: i64,
    /// Ended by a fallback.
    pub fell_back: i64,
    /// Died.
    pub dead: i64,
}

/// A way to fail, and how many attempts of ended tasks did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failing {
    pub class: String,
    pub platform_code: Option<String>,
    pub http_status: Option<u16>,
    pub attempts: i64,
}

impl Failing {
    /// The platform's code, else the HTTP status.
    pub(crate) fn code(&self) -> Option<String> {
        self.platform_code.clone().or_else(|| self.http_status.map(|status| format!("HTTP {status}")))
    }

    /// The filter that finds tasks whose last failure was such a one.
    pub(crate) fn filter(&self) -> Vec<(&'static str, String)> {
        let code = self.platform_code.clone().map(|code| ("code", code));
        let status = self.http_status.map(|status| ("http-status", status.to_string()));
        std::iter::once(("class", self.class.clone())).chain(code).chain(status).collect()
    }
}

/// All minutes together.
pub(crate) fn sum(minutes: &[Minute]) -> Minute {
    minutes.iter().fold(Minute::default(), |mut all, minute| {
        all.first += minute.first;
        all.retried += minute.retried;
        all.fell_back += minute.fell_back;
        all.dead += minute.dead;
        all
    })
}

#[derive(Debug, Clone)]
struct Slice {
    at: Millis,
    ended: Minute,
    failures: Vec<FailureTally>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Oldest first, without gaps where the store answered.
    slices: Mutex<VecDeque<Slice>>,
}

impl Pulse {
    fn slices(&self) -> MutexGuard<'_, VecDeque<Slice>> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last minutes up to now, oldest first, each of them there.
    pub(crate) fn minutes(&self, now: Millis) -> Vec<Minute> {
        let last = now.div_euclid(MINUTE_MS) * MINUTE_MS;
        let mut minutes: BTreeMap<Millis, Minute> = (0..MINUTES)
            .map(|back| last - back * MINUTE_MS)
            .map(|at| (at, Minute { at, ..Minute::default() }))
            .collect();
        for slice in self.slices().iter() {
            if let Some(minute) = minutes.get_mut(&(slice.at.div_euclid(MINUTE_MS) * MINUTE_MS)) {
                let at = minute.at;
                *minute = Minute { at, ..sum(&[*minute, slice.ended]) };
            }
        }
        minutes.into_values().collect()
    }

    /// The failures of the same minutes, most frequent first.
    pub(crate) fn failures(&self) -> Vec<Failing> {
        let mut ways: BTreeMap<(String, Option<String>, Option<u16>), i64> = BTreeMap::new();
        for failure in self.slices().iter().flat_map(|slice| &slice.failures) {
            let way = (failure.class.clone(), failure.code.clone(), failure.http_status);
            *ways.entry(way).or_default() += failure.attempts;
        }
        let failing =
            |((class, platform_code, http_status), attempts)| Failing { class, platform_code, http_status, attempts };
        let mut failures: Vec<Failing> = ways.into_iter().map(failing).collect();
        failures.sort_by_key(|failing| std::cmp::Reverse(failing.attempts));
        failures
    }

    /// Reads what has ended since the last reading; at the beginning also what ended before, newest first.
    ///
    /// # Errors
    /// When the store does not answer; what was read until then is kept.
    pub(crate) async fn read(&self, store: &dyn Store) -> Result<(), StoreError> {
        let end = (store.now() - SETTLE_MS).div_euclid(SLICE_MS) * SLICE_MS;
        let begin = end - MINUTES * MINUTE_MS;
        self.slices().retain(|slice| slice.at >= begin);
        let known: std::collections::BTreeSet<Millis> = self.slices().iter().map(|slice| slice.at).collect();
        let mut at = end - SLICE_MS;
        while at >= begin {
            if !known.contains(&at) {
                let slice = read_slice(store, at).await?;
                let mut slices = self.slices();
                let place = slices.partition_point(|known| known.at < at);
                slices.insert(place, slice);
            }
            at -= SLICE_MS;
        }
        Ok(())
    }

    /// Keeps reading, until the future is dropped.
    pub(crate) async fn keep(&self, store: &dyn Store) {
        loop {
            if let Err(error) = self.read(store).await {
                tracing::debug!(%error, "the console's rates are behind");
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
}

async fn read_slice(store: &dyn Store, at: Millis) -> Result<Slice, StoreError> {
    let filter = Filter { since: Some(at), until: Some(at + SLICE_MS), ..Filter::default() };
    let tallies = store.tallies(&GroupBy::Queue, &filter).await?;
    let mut ended = Minute { at, ..Minute::default() };
    for tally in &tallies {
        ended.first += tally.succeeded_on[0];
        ended.retried += tally.succeeded - tally.succeeded_on[0];
        ended.fell_back += tally.fell_back;
        ended.dead += tally.dead;
    }
    let tried = |tally: &Tally| tally.attempts > tally.succeeded;
    let failures = if tallies.iter().any(tried) { store.failure_tallies(&filter, FAILURES).await? } else { Vec::new() };
    Ok(Slice { at, ended, failures })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(at: Millis, first: i64, dead: i64) -> Slice {
        let failure =
            FailureTally { class: "timeout".into(), code: None, http_status: None, attempts: dead, tasks: dead };
        Slice { at, ended: Minute { at, first, dead, ..Minute::default() }, failures: vec![failure] }
    }

    #[test]
    fn slices_add_up_to_minutes_without_gaps() {
        let pulse = Pulse::default();
        pulse.slices().extend([slice(600_000, 3, 1), slice(650_000, 4, 0), slice(720_000, 5, 2)]);
        let minutes = pulse.minutes(725_000);
        assert_eq!(minutes.len(), 15);
        assert_eq!((minutes[14].at, minutes[14].first, minutes[13].first, minutes[12].first), (720_000, 5, 0, 7));
        assert_eq!(sum(&minutes), Minute { first: 12, dead: 3, ..Minute::default() });
        assert_eq!(pulse.failures()[0].attempts, 3);
    }
}
