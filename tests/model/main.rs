//! A model check of DESIGN §3–4 over the real rules.
//!
//! Every interleaving of two workers, a broker that loses, doubles, reorders and delays messages, crashes at every step, leases that
//! end while their owner lives, and people who cancel, hurry, replay and discard. The model supplies the surroundings only: what a row
//! becomes is decided by `Rows::apply`, `decide` and `decide_lost`, the functions that production runs.
//!
//! Faults and messages in flight are bounded, time is not (`canon` says why). The whole does not fit into a minute at once, so it is
//! searched in parts, each to its end: a task's life, what people do to it, its end in the DLQ, two tasks with one key.
//! `REDELIVER_TEST_FULL=1` adds a fault to every part, which takes some minutes; `REDELIVER_MODEL_FAULTS=n` adds n, for a long night.

mod action;
mod canon;
mod fair;
mod gates;
mod mirror;
mod model;
mod parts;
mod properties;
mod step;
mod store;
mod world;

use std::time::Instant;

use model::{Mutant, Redeliver};
use stateright::{Checker, HasDiscoveries, Model};

/// Searches everything and asserts every property.
fn check(part: &str, mut model: Redeliver) {
    let asked =
        std::env::var("REDELIVER_MODEL_FAULTS").ok().map(|number| number.parse().expect("REDELIVER_MODEL_FAULTS=n"));
    let is_full = std::env::var("REDELIVER_TEST_FULL").as_deref() == Ok("1");
    model.faults += asked.unwrap_or(u8::from(is_full));
    let faults = model.faults;
    let start = Instant::now();
    let checker = model.checker().spawn_bfs().join();
    println!(
        "{part}, faults: {faults}, states: {} unique, {} steps, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}

#[test]
fn a_task_survives_every_two_faults() {
    check("a task's life", Redeliver::one_task());
}

#[test]
fn a_task_whose_wait_the_store_holds_survives_every_fault() {
    check(
        "no rungs",
        Redeliver { on_rung: false, faults: 1, wants: Redeliver::LIFE_WITHOUT_RUNGS, ..Redeliver::one_task() },
    );
}

#[test]
fn a_task_on_lanes_that_others_keep_busy_survives_every_fault() {
    check("busy lanes", Redeliver::busy_lanes());
}

#[test]
fn people_may_cancel_hurry_and_replay_beside_every_fault() {
    check("people", Redeliver { faults: 1, people: 1, wants: Redeliver::PEOPLE, ..Redeliver::one_task() });
}

#[test]
fn a_task_with_a_deadline_ends_whatever_fails() {
    check("deadline", Redeliver::with_deadline());
}

#[test]
fn rows_and_dlq_agree_in_the_end_after_every_two_faults() {
    check("dead letter", Redeliver::dead_letter());
}

#[test]
fn two_payloads_under_one_key_make_one_task_and_one_refusal() {
    check("one key", Redeliver::one_key());
}

/// The checker must be able to find something, and each wrong rule must break the promise that it endangers.
#[test]
fn every_wrong_rule_is_caught() {
    let life = || Redeliver { faults: 1, wants: &[], ..Redeliver::one_task() };
    let replayed = || Redeliver { people: 1, ..life() };
    let dead = || Redeliver { faults: 1, wants: &[], ..Redeliver::dead_letter() };
    let wrong: [(Mutant, Redeliver, &str); 8] = [
        (Mutant::AckBeforeCommit, life(), "2: an acked delivery leaves an alarm"),
        (Mutant::SettleWithoutFence, life(), "4: an old fence changes nothing and fences only grow"),
        (Mutant::ClaimWithoutStamp, replayed(), "5: a message starts nothing but the stamp it carries"),
        (
            Mutant::RetryWithoutAlarm,
            life(),
            "3: an unfinished row has an alarm, a dead one its copy or work open for it",
        ),
        (Mutant::LostIsFree, life(), "5: at most max_retries + 1 attempts in a generation"),
        (Mutant::LateConfirmBelieved, dead(), "every task ends and the DLQ settles"),
        (Mutant::AlarmStaysInThePast, life(), "an alarm that rang lies ahead again"),
        (Mutant::NothingMakesDirty, dead(), "every task ends and the DLQ settles"),
    ];
    for (mutant, model, property) in wrong {
        let model = Redeliver { mutant: Some(mutant), ..model };
        let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discoveries();
        let path = found.get(property).map(|path| path.clone().into_actions().len());
        println!("{mutant:?}: states: {} unique, caught after {path:?} steps", checker.unique_state_count());
        assert!(path.is_some(), "{mutant:?} broke {:?}, not {property:?}", found.keys());
    }
}
