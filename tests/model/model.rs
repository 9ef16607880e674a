//! The model and its bounds, and what can happen next in a world.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use redeliver::policy::Policy;
use redeliver::task::{DlqCopy, DlqLedger, Lane, LaneLedger, Millis, Settings, Spec, Status};
use stateright::{Model, Property};

use crate::action::{Action, Crash, Deed, Ending};
use crate::parts::Sight;
use crate::world::{History, Message, START, TaskNo, World};

/// The delay before a retry, in ticks.
pub const RUNG: Millis = 2;
/// Releases of one stamp that are free.
pub const MAX_RELEASES: i64 = 1;

/// The model with its bounds.
#[derive(Debug)]
pub struct Redeliver {
    /// Submissions that are in flight at the beginning: the first so many of `specs`.
    pub submissions: usize,
    /// The tasks, then the rows that their refusals would be.
    pub specs: Vec<Arc<Spec>>,
    /// No attempt of the tasks starts after.
    pub deadline: Option<Millis>,
    /// The times that transitions use, in ticks.
    pub settings: Settings,
    /// One retry.
    pub policy: Policy,
    /// Whether the broker holds the wait, or the store.
    pub on_rung: bool,
    /// Submissions and wake-ups that may be in flight at once; time has no bound, so without one they would heap up for ever.
    pub messages: usize,
    /// Copies that may exist at once, wherever they are.
    pub copies: usize,
    /// Confirms of copies that may be on their way at once.
    pub confirms: usize,
    /// Whether the DLQ in the broker is part of the model. Without it dead rows keep their copy wanted and nobody looks.
    pub mirror: bool,
    /// Faults per path.
    pub faults: u8,
    /// Acts of people per path.
    pub people: u8,
    /// Whether wake-ups of other tasks pass on the lanes and move their marks.
    pub traffic: bool,
    /// How attempts may end.
    pub endings: &'static [Ending],
    /// Workers, one or two.
    pub workers: usize,
    /// The only task is dead already and its copy not yet published: what follows is about the DLQ.
    pub born_dead: bool,
    /// What this part has to show at least once.
    pub wants: &'static [Sight],
    /// The wrong rule in force, if one is.
    pub mutant: Option<Mutant>,
    /// What was seen at least once; see [`Sight`].
    pub seen: AtomicU64,
    /// Worlds from which a fair run is known to end well.
    pub ends: Mutex<HashSet<u64>>,
}

/// Wrong rules. Each must be caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A delivery is acked although its commit did not happen.
    AckBeforeCommit,
    /// A settle is believed whatever its fence.
    SettleWithoutFence,
    /// A wake-up is believed whatever its stamp.
    ClaimWithoutStamp,
    /// A retry that a rung holds leaves no alarm.
    RetryWithoutAlarm,
    /// A crash spends no retry.
    LostIsFree,
    /// The confirm of an old generation's copy counts for the new one.
    LateConfirmBelieved,
    /// A late row keeps its alarm.
    AlarmStaysInThePast,
    /// No pass over the DLQ is ever asked for.
    NothingMakesDirty,
}

impl Redeliver {
    /// The row that keeps a submission whose key is taken.
    pub fn refusal_of(&self, task: TaskNo) -> Option<TaskNo> {
        let refusal = task + self.submissions;
        (refusal < self.specs.len()).then_some(refusal)
    }

    /// Whether this was seen anywhere.
    pub fn saw(&self, sight: Sight) -> bool {
        self.seen.load(Ordering::Relaxed) & (1 << sight as u64) != 0
    }

    /// A worker that can take a message.
    pub fn idle_worker(&self, world: &World) -> Option<usize> {
        let busy = world.workers.iter().flatten().count();
        world.workers.iter().position(Option::is_none).filter(|_| busy < self.workers)
    }

    fn same_as_first(world: &World, on: usize) -> bool {
        // Two workers in the same state can do the same.
        on == 1 && world.workers[0] == world.workers[1]
    }

    fn message_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let idle = self.idle_worker(world);
        for (at, message) in world.in_flight.iter().copied().enumerate() {
            if at > 0 && world.in_flight[at - 1] == message {
                continue;
            }
            match message {
                Message::Copy(copy) => actions.push(Action::CopyArrives(copy)),
                Message::Confirm(copy) => actions.push(Action::Confirmed(copy)),
                Message::Submission { .. } | Message::WakeUp { .. } => {
                    if let Some(worker) = idle {
                        if message.arrived(world.now) {
                            actions.push(Action::Deliver(worker, message));
                        } else if world.faults > 0 {
                            actions.push(Action::DeliverEarly(worker, message));
                        }
                        if world.faults > 0 && message.arrived(world.now) {
                            actions.push(Action::DeliverUnacked(worker, message));
                        }
                    }
                }
            }
            if world.faults == 0 {
                continue;
            }
            // A submission without a row is protected by its producer's confirm; we may not lose it, and nothing could be told.
            if world.rows[message.task()].is_some() {
                actions.push(Action::Lose(message));
            }
            if !matches!(message, Message::Confirm(_)) {
                actions.push(Action::Duplicate(message));
            }
            if matches!(message, Message::WakeUp { .. }) {
                actions.push(Action::Return(message));
            }
            if self.mutant == Some(Mutant::AckBeforeCommit) && matches!(message, Message::Submission { .. }) {
                actions.push(Action::AckUncommitted(message));
            }
        }
    }

    fn worker_actions(&self, world: &World, actions: &mut Vec<Action>) {
        for worker in 0..2 {
            let Some(run) = world.workers[worker] else { continue };
            if Self::same_as_first(world, worker) {
                continue;
            }
            // An old fence is refused whatever it says; that it says "done" is the most dangerous.
            let endings = if run.fence == 1 { self.endings } else { &[Ending::Succeeds] };
            for ending in endings.iter().copied() {
                actions.push(Action::Finish(worker, ending, Crash::No));
                if world.faults > 0 {
                    actions.push(Action::Finish(worker, ending, Crash::BeforePublish));
                    actions.push(Action::Finish(worker, ending, Crash::BeforeAck));
                }
            }
            if world.faults > 0 {
                actions.push(Action::Die(worker));
            }
            let row = world.rows[run.task].as_ref();
            if row.is_some_and(|row| row.wake_at.is_some_and(|at| at < world.now + self.settings.lease_ms)) {
                actions.push(Action::Heartbeat(worker));
            }
        }
    }

    fn store_actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (task, row) in world.rows.iter().enumerate() {
            let Some(row) = row else { continue };
            if row.wake_at.is_some_and(|at| at <= world.now) {
                actions.push(Action::Alarm(task));
            }
            if self.mirror && row.dlq_copy == DlqCopy::Wanted && row.dlq_at.is_some_and(|at| at <= world.now) {
                actions.push(Action::SendCopy(task));
            }
            if world.people > 0 {
                let deeds: &[Deed] = match row.status {
                    Status::Pending | Status::RetryWaiting => &[Deed::Cancel, Deed::RunNow],
                    Status::Dead => &[Deed::Replay, Deed::Discard],
                    _ => &[],
                };
                actions.extend(deeds.iter().map(|deed| Action::Person(*deed, task)));
            }
        }
    }

    fn pass_actions(&self, world: &World, actions: &mut Vec<Action>) {
        match &world.pass {
            None => {
                if world.ledger.dirty > world.ledger.cleaned {
                    actions.push(Action::PassBegins);
                } else if self.depth_is_odd(world) {
                    actions.push(Action::LookAtDepth);
                }
            }
            Some(pass) if pass.taken.is_none() => actions.push(Action::PassTakes),
            Some(_) => {
                actions.push(Action::PassEnds);
                if world.faults > 0 {
                    actions.push(Action::PassDies);
                }
            }
        }
    }
}

impl Model for Redeliver {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let submission = |task| Message::Submission { task };
        let born = World {
            now: START,
            rows: vec![None; self.specs.len()],
            history: vec![History::default(); self.specs.len()],
            lanes: [LaneLedger::default(); 2],
            missing_at: None,
            in_flight: (0..self.submissions).map(submission).collect(),
            workers: [None; 2],
            dlq: Vec::new(),
            ledger: DlqLedger::default(),
            pass: None,
            faults: self.faults,
            people: self.people,
            broken: None,
        };
        vec![if self.born_dead { self.dead(born) } else { born }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        self.message_actions(world, actions);
        self.worker_actions(world, actions);
        self.store_actions(world, actions);
        if self.mirror {
            self.pass_actions(world, actions);
        }
        if world.faults > 0 && world.rows.iter().take(self.submissions).all(Option::is_some) {
            actions.push(Action::Wipe);
        }
        if self.traffic {
            actions.extend([Action::Traffic(Lane::Tasks), Action::Traffic(Lane::Retries)]);
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.step(world, action, Some(&self.seen))
    }

    fn within_boundary(&self, world: &World) -> bool {
        let (mut wake_ups, mut confirms) = (0, 0);
        let mut copies = world.dlq.len() + world.pass.as_ref().and_then(|pass| pass.taken.as_ref()).map_or(0, Vec::len);
        for message in &world.in_flight {
            match message {
                Message::Copy(_) => copies += 1,
                Message::Confirm(_) => confirms += 1,
                Message::Submission { .. } | Message::WakeUp { .. } => wake_ups += 1,
            }
        }
        wake_ups <= self.messages && copies <= self.copies && confirms <= self.confirms
    }

    fn properties(&self) -> Vec<Property<Redeliver>> {
        crate::properties::all(self)
    }
}
