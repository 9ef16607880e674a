//! "Every task ends", as a property of every single state.
//!
//! `eventually` cannot say it: a checker with bounded faults and a horizon ends most of its paths in the middle of a story, and
//! stateright forgets what it still waits for when paths meet. So each state is asked instead: if from here on nothing goes wrong,
//! every handler fails and nobody intervenes, do all tasks end, and does the DLQ hold exactly one copy of each dead one? That run takes
//! the model's own actions in a fixed order. Runs join quickly, so what is known to end is remembered.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::PoisonError;

use redeliver::task::{DlqCopy, Status};

use crate::action::{Action, Crash, Ending};
use crate::model::Redeliver;
use crate::world::{CopyOf, Message, World};

/// Steps after which a run counts as endless. The longest of a sound model takes a third of it.
const ENDLESS: usize = 150;

impl Redeliver {
    /// Whether a run without further faults from here ends every task and settles the DLQ, breaking nothing on the way.
    pub fn fair_run_ends(&self, from: &World) -> bool {
        let mut world = World { faults: 0, people: 0, ..from.clone() };
        let mut path = Vec::new();
        while path.len() < ENDLESS {
            let print = fingerprint(&world);
            let known = self.ends.lock().unwrap_or_else(PoisonError::into_inner).contains(&print);
            if known || self.is_settled(&world) {
                self.ends.lock().unwrap_or_else(PoisonError::into_inner).extend(path);
                return true;
            }
            path.push(print);
            world = match self.fair_step(&world) {
                Some(next) if next.broken.is_none() => next,
                _ => return false,
            };
        }
        false
    }

    /// The next step of a fair run. What is in motion arrives before time passes.
    pub fn fair_step(&self, world: &World) -> Option<World> {
        let mut actions = Vec::new();
        for message in world.in_flight.iter().copied() {
            match message {
                Message::Copy(copy) => actions.push(Action::CopyArrives(copy)),
                Message::Confirm(copy) => actions.push(Action::Confirmed(copy)),
                message if message.arrived(world.now) => {
                    actions.extend(self.idle_worker(world).map(|idle| Action::Deliver(idle, message)));
                }
                _ => {}
            }
        }
        let busy = (0..2).filter(|worker| world.workers[*worker].is_some());
        actions.extend(busy.map(|worker| Action::Finish(worker, Ending::Fails, Crash::No)));
        actions.push(match &world.pass {
            _ if !self.mirror => Action::Tick,
            None if world.ledger.dirty > world.ledger.cleaned => Action::PassBegins,
            None if self.depth_is_odd(world) => Action::LookAtDepth,
            None => Action::Tick,
            Some(pass) if pass.taken.is_none() => Action::PassTakes,
            Some(_) => Action::PassEnds,
        });
        for (task, row) in world.rows.iter().enumerate().filter_map(|(task, row)| Some((task, row.as_ref()?))) {
            if row.wake_at.is_some_and(|at| at <= world.now) {
                actions.push(Action::Alarm(task));
            }
            if self.mirror && row.dlq_at.is_some_and(|at| at <= world.now) {
                actions.push(Action::SendCopy(task));
            }
        }
        // A refused `PassBegins` changes nothing; then time has to pass.
        let order = |action: &Action| matches!(action, Action::Tick | Action::LookAtDepth | Action::PassBegins);
        actions.sort_by_key(order);
        actions.push(Action::Tick);
        actions.into_iter().find_map(|action| self.step(world, action, None))
    }

    /// Nothing is left to do: every task has ended, nothing is in motion, and the DLQ holds exactly one copy of each dead task.
    fn is_settled(&self, world: &World) -> bool {
        let rows = || world.rows.iter().enumerate().filter_map(|(task, row)| Some((task, row.as_ref()?)));
        let still = world.in_flight.is_empty() && world.workers.iter().all(Option::is_none) && world.pass.is_none();
        let ended = rows().all(|(_, row)| row.status.is_ended());
        if !self.mirror {
            return still && ended;
        }
        let dead = rows().filter(|(_, row)| row.status == Status::Dead);
        let copies: Vec<CopyOf> = dead.map(|(task, row)| CopyOf { task, generation: row.stamp.generation }).collect();
        still
            && ended
            && rows().all(|(_, row)| row.dlq_copy != DlqCopy::Wanted)
            && world.ledger.dirty == world.ledger.cleaned
            && world.dlq == copies
    }
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}
