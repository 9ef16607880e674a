//! What a run has in common: its seed and chance, its clock, the truth in the store, what happens and what was seen to be wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redeliver::config::Config;
use redeliver::gate::GateState;
use redeliver::store::memory::MemoryStore;
use redeliver::store::{Clock, Store};
use redeliver::task::Millis;
use tokio::time::Instant;

use crate::faults::Faults;
use crate::ledger::Ledger;

/// The store's clock at the start of every run: some day in 2026.
pub const EPOCH: Millis = 1_780_000_000_000;

/// See the module.
pub struct World {
    chance: Mutex<SmallRng>,
    /// The truth, past every fault.
    pub store: Arc<MemoryStore>,
    clock: Clock,
    began: Instant,
    /// How far the wall clock was set off the monotonic one.
    set_off: AtomicI64,
    /// What may go wrong, and whether anything may now.
    pub faults: Faults,
    pub at_peace: AtomicBool,
    pub ledger: Mutex<Ledger>,
    /// The moment, and how many calls were made at it.
    calls: Mutex<(Millis, u32)>,
    trace: Mutex<Trace>,
    wrongs: Mutex<BTreeSet<String>>,
}

struct Trace {
    hash: DefaultHasher,
    counts: Counts,
    /// Printed as it happens.
    told: bool,
}

impl World {
    /// A world at its beginning. Inside a runtime whose clock stands still.
    pub fn new(seed: u64, told: bool) -> World {
        let mut chance = SmallRng::seed_from_u64(seed);
        let faults = Faults::drawn(&mut chance);
        let clock = Clock::manual(EPOCH);
        let settings = crate::setting::base(&Config::default()).settings();
        World {
            chance: Mutex::new(chance),
            store: Arc::new(MemoryStore::new(clock.clone(), settings)),
            clock,
            began: Instant::now(),
            set_off: AtomicI64::new(0),
            faults,
            at_peace: AtomicBool::new(false),
            ledger: Mutex::default(),
            calls: Mutex::default(),
            trace: Mutex::new(Trace { hash: DefaultHasher::new(), counts: Counts::new(), told }),
            wrongs: Mutex::default(),
        }
    }

    /// A whole number in `from..to`.
    pub fn pick(&self, from: i64, to: i64) -> i64 {
        locked(&self.chance).random_range(from..to)
    }

    /// A number in [0, 1).
    pub fn unit(&self) -> f64 {
        locked(&self.chance).random()
    }

    /// True so often.
    pub fn happens(&self, likelihood: f64) -> bool {
        likelihood > 0.0 && self.unit() < likelihood
    }

    /// As [`World::happens`], while something may go wrong.
    pub fn goes_wrong(&self, likelihood: f64) -> bool {
        !self.at_peace.load(Ordering::Relaxed) && self.happens(likelihood)
    }

    /// One of these.
    pub fn one_of<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() {
            return None;
        }
        let at = locked(&self.chance).random_range(0..all.len());
        all.get(at)
    }

    /// A length between these.
    pub fn length(&self, from_ms: i64, to_ms: i64) -> Duration {
        Duration::from_millis(u64::try_from(self.pick(from_ms, to_ms)).unwrap_or(0))
    }

    /// Milliseconds since the beginning; never set off.
    pub fn elapsed(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// A call is made. Whether there were so many at this moment that no other will ever come: time stands still while somebody has
    /// something to do.
    pub fn is_stuck_in_time(&self) -> bool {
        const MOST: u32 = 100_000;
        let (now, mut calls) = (self.elapsed(), locked(&self.calls));
        *calls = (now, if calls.0 == now { calls.1 + 1 } else { 0 });
        calls.1 > MOST
    }

    /// The store's time, after its clock was moved to it.
    pub fn now(&self) -> Millis {
        let now = EPOCH + self.elapsed() + self.set_off.load(Ordering::Relaxed);
        self.clock.set(now);
        now
    }

    /// Sets the wall clock forward or back.
    pub fn set_clock_off(&self, by: Millis) {
        self.set_off.fetch_add(by, Ordering::Relaxed);
        self.now();
    }

    /// The state of a gate. The memory store has nothing to wait for.
    pub fn gate(&self, key: &str) -> Option<GateState> {
        let gates = self.store.gates().now_or_never()?.ok()?;
        gates.into_iter().find(|(known, _)| known == key).map(|(_, state)| state)
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        locked(&self.ledger)
    }

    /// Something has happened. Two runs of one seed tell the same.
    pub fn tell(&self, who: &str, what: &'static str, about: &str, number: i64) {
        let at = self.elapsed();
        let mut trace = locked(&self.trace);
        (at, who, what, about, number).hash(&mut trace.hash);
        *trace.counts.entry(what).or_insert(0) += 1;
        if trace.told {
            let at = Duration::from_millis(at.unsigned_abs()).as_secs_f64();
            println!("{at:>9.3} s  {who:<8} {what:<22} {about} {number}");
        }
    }

    /// For somebody who reads along: what would cost too much to be told always.
    pub fn tell_more(&self, who: &str, what: &str, text: impl FnOnce() -> String) {
        if locked(&self.trace).told {
            let at = Duration::from_millis(self.elapsed().unsigned_abs()).as_secs_f64();
            println!("{at:>9.3} s  {who:<8} {what:<22} {}", text());
        }
    }

    /// A promise is broken.
    pub fn wrong(&self, what: String) {
        self.tell("", "WRONG", &what, 0);
        locked(&self.wrongs).insert(what);
    }

    pub fn wrongs(&self) -> Vec<String> {
        locked(&self.wrongs).iter().cloned().collect()
    }

    /// The digest of all that was told, and how often each thing was.
    pub fn told(&self) -> (u64, Counts) {
        let trace = locked(&self.trace);
        (trace.hash.finish(), trace.counts.clone())
    }
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts by name.
pub type Counts = BTreeMap<&'static str, u64>;
