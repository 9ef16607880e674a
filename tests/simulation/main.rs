//! Thousands of runs in virtual time: the real worker over the memory store and the embedded broker, with a fault at any call.
//!
//! A seed decides everything: rules, tasks, faults, and the order in which things happen. One thread runs it, on a clock that stands still
//! while somebody has something to do. So a run that breaks a promise breaks it again:
//!
//! ```sh
//! cargo test --test simulation                                                    # some seeds
//! REDELIVER_TEST_SEEDS=10000 cargo test --test simulation                         # more, as tests/run has them; 5000-9000: these
//! REDELIVER_TEST_SEED=4711 cargo test --test simulation -- --nocapture replayed   # one, told step by step
//! ```
//!
//! What goes wrong: processes die or stand still at any call of store, broker or handler; calls of the store fail, are slow, or are
//! committed in silence; messages are lost, doubled, late, refused; sessions break, acks are lost with them; queues, the whole broker and
//! the store go away for a while; clocks jump; handlers fail, hang, panic and do not hear that they are cancelled; rules change; workers are
//! restarted; people cancel, hurry, replay, discard, pause, open breakers and send nonsense. Each run has some of these. Then nothing
//! goes wrong any more, and every task has to end.
//!
//! What is checked, in `ledger` at every commit and in `checks` at every look and in the end: the invariants of the design. That these
//! checks can fail is shown by `mutations` beside this file.

mod broker;
mod checks;
mod faults;
mod handler;
mod ledger;
mod net;
mod people;
mod process;
mod setting;
mod stage;
mod store;
#[path = "../support/store_double.rs"]
mod store_double;
mod world;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use stage::{Ended, play};
use world::{Counts, locked};

/// Runs of a test that is not asked for more.
const FEW: u64 = 200;
/// Broken promises of which no more are looked for.
const ENOUGH: usize = 10;

fn seeds() -> Range<u64> {
    let Ok(asked) = std::env::var("REDELIVER_TEST_SEEDS") else { return 0..FEW };
    let (from, to) = asked.split_once('-').unwrap_or(("0", &asked));
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("REDELIVER_TEST_SEEDS={asked}: N or FROM-TO"));
    number(from)..number(to)
}

/// Simulated panics are part of the play; others are told as ever.
fn keep_simulated_panics_quiet() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(handler::PANIC) {
            told(panic);
        }
    }));
}

#[test]
fn every_promise_holds_whatever_goes_wrong() {
    keep_simulated_panics_quiet();
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let (broken, all, length_ms) = (Mutex::new(Vec::new()), Mutex::new(Counts::new()), AtomicI64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || locked(&broken).len() >= ENOUGH {
                        return;
                    }
                    let Ended { wrongs, counts, length_ms: length, .. } = play(seed, false);
                    length_ms.fetch_add(length, Ordering::Relaxed);
                    for (what, number) in counts {
                        *locked(&all).entry(what).or_insert(0) += number;
                    }
                    if !wrongs.is_empty() {
                        locked(&broken).push((seed, wrongs));
                    }
                }
            });
        }
    });
    let (broken, all) = (locked(&broken), locked(&all));
    let hours = length_ms.into_inner() / 3_600_000;
    println!("seeds {} to {}, {hours} hours of their time: {all:?}", seeds.start, seeds.end);
    for (seed, wrongs) in broken.iter() {
        println!("seed {seed}:");
        wrongs.iter().take(5).for_each(|wrong| println!("    {wrong}"));
        println!("    REDELIVER_TEST_SEED={seed} cargo test --test simulation -- --nocapture replayed");
    }
    assert!(broken.is_empty(), "{} of the seeds broke a promise", broken.len());
    if seeds.end - seeds.start >= FEW {
        let never: Vec<&str> = HAPPEN.into_iter().filter(|what| !all.contains_key(what)).collect();
        assert!(never.is_empty(), "these never happened, so nothing was shown about them: {never:?}");
    }
}

/// What some of the runs must have seen.
const HAPPEN: [&str; 24] = [
    "succeeded",
    "retried",
    "died",
    "released",
    "dies at",
    "stands still at",
    "loses message",
    "late",
    "returned",
    "nacked",
    "unconfirmed",
    "session ended",
    "loses",
    "loses messages",
    "outage",
    "jumps",
    "reload",
    "is told to stop",
    "replay",
    "replay job",
    "discard",
    "cancel",
    "pause",
    "open breaker",
];

/// One seed, told step by step.
#[test]
fn a_seed_that_was_asked_for_is_replayed() {
    let Ok(asked) = std::env::var("REDELIVER_TEST_SEED") else { return };
    keep_simulated_panics_quiet();
    let seed = asked.parse().unwrap_or_else(|_| panic!("REDELIVER_TEST_SEED={asked}: a number"));
    let ended = play(seed, true);
    assert!(ended.wrongs.is_empty(), "{:#?}", ended.wrongs);
}

#[test]
fn a_seed_is_the_same_run_again() {
    keep_simulated_panics_quiet();
    for seed in 0..20 {
        let (first, second) = (play(seed, false), play(seed, false));
        assert_eq!((first.digest, first.counts), (second.digest, second.counts), "seed {seed}");
    }
}

/// Chance decides between the ready branches of a `select!` that is not biased, and it is not the seed's.
#[test]
fn no_select_of_a_worker_is_left_to_chance() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/worker");
    let mut selects = 0;
    for entry in std::fs::read_dir(&folder).expect("the worker's folder") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a source file");
        for after in text.split("select! {").skip(1) {
            assert!(after.trim_start().starts_with("biased;"), "{}: a `select!` without `biased;`", path.display());
            selects += 1;
        }
    }
    assert!(selects > 10, "only {selects} were found, so the wrong thing was looked for");
}
