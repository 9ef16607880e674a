//! A task's way through the gates, inside the transitions: all of them or none at a claim, its places back at every way out,
//! its outcome to the breakers (§4.3).

use std::collections::{BTreeSet, HashSet};

use crate::gate::{self, Evidence, Gates, Look, RuleOf, Subject, Turn, Way, WhenOpen, pause_stops};

use super::{AttemptOutcome, Claimant, Command, Decision, Failure, Millis, Rows, Settlement, Stamp, Task, class};

/// What the gates say to a due task.
pub(super) enum Gated {
    /// It may run; what it took is taken.
    Through,
    /// It waits, in this turn.
    Held { by: String, turn: String, park_until: Option<Millis> },
    /// A breaker sends it away.
    Tripped { by: String, when_open: WhenOpen },
}

impl Rows {
    /// The gates whose state the commands need, as far as the loaded tasks tell.
    pub fn gate_keys(&self, commands: &[Command]) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        // Most tasks of a batch go a way that one before them went.
        let mut asked = HashSet::new();
        let mut ask = |gates: &Gates, subject, retry, keys: &mut BTreeSet<String>| {
            if !gates.is_empty() && asked.insert((std::ptr::from_ref(gates), subject, retry)) {
                keys.extend(gates.way(subject, retry).gates.into_iter().map(|gate| gate.key));
            }
        };
        for command in commands {
            match command {
                Command::Claim { id, claimant: Some(claimant), .. } | Command::Admit { id, claimant, .. } => {
                    if let Some(task) = self.get(id) {
                        ask(&claimant.gates, subject(task), is_retry(task.stamp()), &mut keys);
                    }
                }
                Command::Submit(new) => {
                    let Some(claimant) = &new.claimant else { continue };
                    if let Some(known) = self.known(new) {
                        ask(&claimant.gates, subject(known), is_retry(known.stamp()), &mut keys);
                    }
                    let subject =
                        Subject { task_type: &new.spec.task_type, queue: &new.queue, labels: &new.spec.labels };
                    ask(&claimant.gates, subject, false, &mut keys);
                }
                Command::Settle { id, settlement, .. } | Command::Lost { id, settlement, .. } => {
                    if let Some(task) = self.get(id) {
                        ask(&settlement.gates, subject(task), is_retry(task.stamp()), &mut keys);
                    }
                }
                _ => {}
            }
        }
        for command in commands {
            match command {
                Command::Settle { id, .. }
                | Command::Lost { id, .. }
                | Command::Release { id, .. }
                | Command::Poison { id, .. } => {
                    if let Some(task) = self.get(id) {
                        keys.extend(task.state.passes.iter().map(|pass| pass.gate.clone()));
                    }
                }
                Command::Breaker { key, .. } => _ = keys.insert(key.clone()),
                _ => {}
            }
        }
        keys
    }

    /// Asks every gate, and takes what is to be taken when all are open. `admitted`: it was held and its turn has come.
    pub(super) fn through_gates(&mut self, task: &mut Task, claimant: &Claimant, admitted: bool, now: Millis) -> Gated {
        let gates = &claimant.gates;
        if !admitted && let Some(by) = task.state.held_by.as_ref().filter(|by| gates.knows(by)) {
            // A second wake-up gives nobody a better place.
            let (turn, park_until) = (task.state.held_turn.clone(), task.state.park_until);
            return Gated::Held { by: by.clone(), turn, park_until };
        }
        let way = way(gates, task);
        let retry = is_retry(task.stamp());
        // The one whose next chance is latest holds; nobody knows when an event comes, so that is later than any time.
        let mut shut: Option<(Option<Millis>, &str)> = None;
        // Waiting ends at `park_max` for whoever waits for a breaker, whichever of its gates holds it.
        let mut park: Option<Millis> = None;
        for gate in &way.gates {
            let seen = match gate::look(gate.rule, &gate.key, self.gates.get(&gate.key), retry, now) {
                Look::Open { room: None } => continue,
                Look::Open { .. } if admitted || !self.is_crowded(&gate.key) => continue,
                // It has room, and others wait for it: they are first.
                Look::Open { .. } => Some(now),
                Look::Shut { opens_at } | Look::Tripped { when_open: WhenOpen::Park, opens_at } => opens_at,
                Look::Tripped { when_open, .. } => return Gated::Tripped { by: gate.key.clone(), when_open },
            };
            if let RuleOf::Breaker(rule) = gate.rule {
                let end = now.saturating_add(rule.park_max_ms);
                park = Some(park.map_or(end, |known| known.min(end)));
            }
            let later = |known: &Option<Millis>| seen.unwrap_or(Millis::MAX) > known.unwrap_or(Millis::MAX);
            if shut.as_ref().is_none_or(|(known, _)| later(known)) {
                shut = Some((seen, &gate.key));
            }
        }
        if let Some((_, key)) = shut {
            // It counts from the first breaker that it met.
            let park_until = park.map(|end| task.state.park_until.map_or(end, |known| known.min(end)));
            return Gated::Held { by: key.to_owned(), turn: way.turn, park_until };
        }
        let place = (task.spec.id.clone(), task.state.fence + 1);
        let mut passes = Vec::new();
        for gate in &way.gates {
            let (state, pass) =
                gate::take(gate.rule, &gate.key, self.gates.get(&gate.key), &place, retry, admitted, now);
            if let Some(state) = state {
                self.set_gate(&gate.key, state);
            }
            passes.extend(pass);
        }
        task.state.passes = passes;
        Gated::Through
    }

    /// The pause that stops this task, if one does.
    pub(super) fn pause_of(&self, task: &Task) -> Option<String> {
        self.pauses.iter().find(|pause| pause_stops(pause, task.queue(), &task.spec.task_type)).cloned()
    }

    /// A claim is over: its places are free.
    pub(super) fn leave_gates(&mut self, task: &mut Task) {
        let place = (task.spec.id.clone(), task.state.fence);
        for pass in std::mem::take(&mut task.state.passes) {
            if let Some(state) = gate::leave(self.gates.get(&pass.gate), &place) {
                self.set_gate(&pass.gate, state);
            }
        }
    }

    /// A claim has ended with an outcome: its breakers hear of it, its key is held if the other side asked for that, and its places
    /// are free.
    pub(super) fn tell_gates(&mut self, task: &mut Task, settlement: &Settlement, now: Millis) -> Vec<(String, Turn)> {
        let mut turns = Vec::new();
        if !settlement.gates.is_empty() {
            let place = (task.spec.id.clone(), task.state.fence);
            let way = way(&settlement.gates, task);
            for gate in &way.gates {
                let RuleOf::Breaker(rule) = gate.rule else { continue };
                let epoch = task.state.passes.iter().find(|pass| pass.gate == gate.key).map_or(0, |pass| pass.epoch);
                let evidence = evidence(&settlement.decision, &rule.ignore);
                let (state, turn) = gate::settle(gate.rule, self.gates.get(&gate.key), epoch, &place, evidence, now);
                if let Some(state) = state {
                    self.set_gate(&gate.key, state);
                }
                turns.extend(turn.map(|turn| (gate.key.clone(), turn)));
            }
            if let (Some(length), Some(key)) = (settlement.hold_ms, &way.hold) {
                let state = gate::hold(self.gates.get(key), now.saturating_add(length), now);
                self.set_gate(key, state);
            }
        }
        self.leave_gates(task);
        turns
    }
}

/// A stamp's coming attempt is a retry unless it is the first of its generation: replays are bounded by their jobs.
fn is_retry(stamp: Stamp) -> bool {
    stamp.retry_count > 0
}

fn way<'g>(gates: &'g Gates, task: &Task) -> Way<'g> {
    gates.way(subject(task), is_retry(task.stamp()))
}

fn subject(task: &Task) -> Subject<'_> {
    Subject { task_type: &task.spec.task_type, queue: task.queue(), labels: &task.spec.labels }
}

fn evidence<'d>(decision: &'d Decision, ignore: &[String]) -> Evidence<'d> {
    let failure: &Failure = match decision {
        Decision::Succeed => return Evidence::Success,
        Decision::Retry { failure, .. } | Decision::Die { failure, .. } => failure,
    };
    let says_nothing =
        failure.class == class::RATE_LIMITED || failure.class == class::WORKER_LOST || ignore.contains(&failure.class);
    if says_nothing { Evidence::Nothing } else { Evidence::Failure { fingerprint: &failure.fingerprint } }
}

/// How an attempt with this decision is recorded.
pub(super) fn outcome_of(decision: &Decision) -> (AttemptOutcome, Option<Failure>) {
    match decision {
        Decision::Succeed => (AttemptOutcome::Succeeded, None),
        Decision::Retry { failure, .. } => (AttemptOutcome::Retried, Some(failure.clone())),
        Decision::Die { failure, .. } => (AttemptOutcome::Died, Some(failure.clone())),
    }
}
