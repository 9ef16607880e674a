//! A model check of DESIGN §3–4 over the real rules.
//!
//! Every interleaving of two workers, a broker that loses, doubles, reorders and delays messages, crashes at every step, leases that
//! end while their owner lives, and people who cancel, replay and discard, up to a bound on faults and time. The model supplies the
//! surroundings only: what a row becomes is decided by `Rows::apply`, `decide` and `decide_lost`, the functions that production runs.

mod canon;
mod fair;
mod model;
mod properties;
mod step;
mod store;
mod world;

use std::time::Instant;

use model::Redeliver;
use stateright::{Checker, Model};

fn check(name: &str, model: Redeliver) {
    let start = Instant::now();
    let checker = model.checker().spawn_bfs().join();
    println!("{name}: states: {} unique, depth {}, {:.1?}", checker.unique_state_count(), checker.max_depth(), start.elapsed());
    checker.assert_properties();
}

#[test]
fn one_task_survives_every_pair_of_faults() {
    check("one task", Redeliver::one_task());
}
#[test]
fn explore() {
    let n = |key: &str, default: i64| std::env::var(key).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let mut model = match n("KEY", 0) { 1 => Redeliver::one_key(), 2 => Redeliver::dead_letter(), _ => Redeliver::one_task() };
    model.messages = n("M", model.messages as i64) as usize;
    model.copies = n("C", model.copies as i64) as usize;
    model.confirms = n("CC", model.confirms as i64) as usize;
    model.faults = n("F", 1) as u8;
    model.people = n("P", 1) as u8;
    model.mirror = n("MIRROR", 1) == 1;
    model.policy.max_retries = n("R", model.policy.max_retries);
    model.workers = n("W", model.workers as i64) as usize;
    let start = Instant::now();
    let checker = model.checker().target_state_count(n("N", 3000000) as usize).spawn_bfs().join();
    println!("states: {} unique, {} all, depth {}, {:.1?}", checker.unique_state_count(), checker.state_count(), checker.max_depth(), start.elapsed());
    for (name, path) in checker.discoveries() {
        if name.contains(' ') {
            println!("{name}");
            let mut last = None;
            for (state, action) in path.into_vec() {
                println!("  {action:?}");
                last = Some(state);
            }
            println!("{last:#?}");
        }
    }
}
