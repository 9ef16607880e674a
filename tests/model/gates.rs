//! The gates, over the real rules: tasks of one key meet a breaker, a cap and a limit, while attempts succeed, fail, say nothing,
//! are given back or die, and a person opens and closes the breaker, in every order within bounds.
//!
//! Messages are not part of it (the other parts are about those): a wake-up is a claim that may happen whenever a task waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redeliver::gate::{
    BreakerRule, CapRule, GateState, Gates, LimitKind, LimitRule, Per, PersonsWord, Phase, Rate, WhenOpen,
};
use redeliver::policy::TopicPattern;
use redeliver::task::{
    Answer, Claimant, Command, DEFAULT_QUEUE, DeadReason, Decision, Failure, Millis, Rows, Settings, Settlement, Spec,
    State, Status, Task, class,
};
use stateright::{Checker, Model, Property};

/// One tick; a look may be late by less than this, so times within a tick do not matter.
const TICK: Millis = 1_000;
const START: Millis = 1_000_000;
const BREAKER: &str = "breaker/b";
const CAP: &str = "cap/#";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    ticks: i64,
    rows: Vec<State>,
    gates: BTreeMap<String, GateState>,
    /// Whether each running claim is still carried by a worker.
    alive: Vec<bool>,
    faults: u8,
    people: u8,
    broken: Option<&'static str>,
}

impl World {
    fn now(&self) -> Millis {
        START + self.ticks * TICK
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Claim(usize),
    Admit(usize),
    Succeed(usize),
    Fail(usize),
    SayNothing(usize),
    Release(usize),
    Die(usize),
    Lost(usize),
    Person(bool),
    Tick,
}

struct Yard {
    specs: Vec<Arc<Spec>>,
    gates: Arc<Gates>,
    settings: Settings,
    most_ticks: i64,
    faults: u8,
    people: u8,
}

impl Yard {
    fn new(tasks: &[&str], limits: Vec<LimitRule>, cap: i64) -> Yard {
        let every = TopicPattern::any();
        let caps = vec![CapRule { route: every.clone(), per: Per::default(), max: cap }];
        let gates = Gates { limits, breakers: vec![rule()], caps, routes: vec![every] };
        let spec = |id: &&str| {
            Arc::new(Spec {
                id: (*id).into(),
                task_type: "t".into(),
                payload: "1".into(),
                labels: BTreeMap::new(),
                idempotency_key: Some((*id).into()),
                priority: 0,
                cache_key: None,
                reply_to: None,
                trace: None,
                payload_hash: String::new(),
                submission_hash: None,
                created_at: START,
                raw: None,
                conflicts_with: None,
            })
        };
        Yard {
            specs: tasks.iter().map(spec).collect(),
            gates: Arc::new(gates),
            settings: Settings { lease_ms: TICK, patience_ms: TICK, ..Settings::default() },
            most_ticks: 3,
            faults: 2,
            people: 0,
        }
    }

    fn apply(&self, world: &mut World, command: Command) -> Answer {
        let mut rows = Rows::default();
        for (spec, state) in self.specs.iter().zip(&world.rows) {
            rows.load(Task { spec: Arc::clone(spec), state: state.clone() });
        }
        rows.gates.clone_from(&world.gates);
        let needed = rows.gate_keys(std::slice::from_ref(&command));
        let before = rows.gates.clone();
        let answer = rows.apply(&command, world.now(), &self.settings);
        let changed = rows.take_changes();
        for (key, _) in &changed.gates {
            // A store loads no other gates than these, so a change of another would be made on nothing.
            if !needed.contains(key) {
                world.broken = Some("a command changed a gate that it did not ask for");
            }
        }
        for (at, spec) in self.specs.iter().enumerate() {
            if let Some(task) = rows.get(&spec.id) {
                world.rows[at] = task.state.clone();
            }
        }
        if matches!(answer, Answer::Held { .. }) && before != rows.gates {
            world.broken = Some("a task that is held took something");
        }
        world.gates = rows.gates;
        answer
    }

    fn claimant(&self) -> Claimant {
        Claimant { worker: "w".into(), serves: None, gates: Arc::clone(&self.gates), policies: None }
    }

    fn start(&self, world: &mut World, at: usize, admit: bool) {
        let (id, stamp) = (self.specs[at].id.clone(), world.rows[at].stamp);
        let phase_before = self.phase(world);
        let command = if admit {
            Command::Admit { id, stamp, claimant: self.claimant() }
        } else {
            Command::Claim { id, stamp, claimant: Some(self.claimant()) }
        };
        let others = (0..world.rows.len()).filter(|other| *other != at);
        let waits_before_it = others.clone().any(|other| world.rows[other].held_by.is_some());
        if let Answer::Run(_) = self.apply(world, command) {
            world.alive[at] = true;
            if let Phase::Open { until, .. } = phase_before
                && world.now() < until
            {
                world.broken = Some("an attempt started in the cool-down");
            }
            let same_gates = world.rows[at].stamp.retry_count > 0;
            if !admit && waits_before_it && same_gates {
                world.broken = Some("a newcomer passed those who wait for the same gates");
            }
        }
    }

    fn settle(&self, world: &mut World, at: usize, decision: Decision) {
        let settlement = Settlement { gates: Arc::clone(&self.gates), ..Settlement::new("w", decision) };
        let (id, fence) = (self.specs[at].id.clone(), world.rows[at].fence);
        let _: Answer = self.apply(world, Command::Settle { id, fence, settlement: Box::new(settlement) });
        world.alive[at] = false;
    }

    fn phase(&self, world: &World) -> Phase {
        match world.gates.get(BREAKER) {
            Some(GateState::Breaker(breaker)) => breaker.phase,
            _ => Phase::Closed,
        }
    }

    fn failed(&self, world: &World, at: usize, class: &str) -> Decision {
        let failure = Failure { fingerprint: "same".into(), ..Failure::new(class, "") };
        if world.rows[at].stamp.retry_count >= 1 {
            return Decision::Die { reason: DeadReason::RetriesExhausted, failure };
        }
        Decision::Retry { delay_ms: 0, reason: String::new(), on_rung: false, by_handler: false, failure }
    }

    /// Everybody does what is left to do, nothing goes wrong any more: does every task end?
    fn ends(&self, from: &World) -> bool {
        let mut world = World { faults: 0, people: 0, ..from.clone() };
        if let Some(GateState::Breaker(breaker)) = world.gates.get(BREAKER)
            && breaker.is_forced_open()
        {
            // Only a person ends that.
            self.step(&mut world, Action::Person(false));
        }
        for _ in 0..60 {
            if world.rows.iter().all(|row| row.status.is_ended()) {
                return true;
            }
            let before = world.clone();
            for at in 0..world.rows.len() {
                let row = &world.rows[at];
                match (row.status, &row.held_by) {
                    (Status::Running, _) if world.alive[at] => self.step(&mut world, Action::Succeed(at)),
                    (Status::Running, _) if row.wake_at.is_some_and(|at| at <= world.now()) => {
                        self.step(&mut world, Action::Lost(at));
                    }
                    (Status::Pending | Status::RetryWaiting, Some(_)) => self.step(&mut world, Action::Admit(at)),
                    (Status::Pending | Status::RetryWaiting, None) => self.step(&mut world, Action::Claim(at)),
                    _ => {}
                }
            }
            if world == before {
                world.ticks += 1;
            }
        }
        false
    }

    fn step(&self, world: &mut World, action: Action) {
        match action {
            Action::Claim(at) => self.start(world, at, false),
            Action::Admit(at) => self.start(world, at, true),
            Action::Succeed(at) => self.settle(world, at, Decision::Succeed),
            Action::Fail(at) => {
                let decision = self.failed(world, at, class::TIMEOUT);
                self.settle(world, at, decision);
            }
            Action::SayNothing(at) => {
                let decision = self.failed(world, at, class::RATE_LIMITED);
                self.settle(world, at, decision);
            }
            Action::Release(at) => {
                let (id, fence) = (self.specs[at].id.clone(), world.rows[at].fence);
                let _: Answer = self.apply(world, Command::Release { id, fence, nack: false });
                world.alive[at] = false;
            }
            Action::Die(at) => world.alive[at] = false,
            Action::Lost(at) => {
                let decision = self.failed(world, at, class::WORKER_LOST);
                let settlement = Settlement { gates: Arc::clone(&self.gates), ..Settlement::new("w", decision) };
                let (id, fence, wake_at) =
                    (self.specs[at].id.clone(), world.rows[at].fence, world.rows[at].wake_at.unwrap_or_default());
                let lost = Command::Lost { id, fence, wake_at, settlement: Box::new(settlement) };
                let _: Answer = self.apply(world, lost);
                world.alive[at] = false;
            }
            Action::Person(open) => {
                let word = PersonsWord { open, by: "p".into(), reason: None, at: world.now() };
                let _: Answer = self.apply(world, Command::Breaker { key: BREAKER.into(), word });
            }
            Action::Tick => world.ticks += 1,
        }
    }
}

impl Model for Yard {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let pending = || {
            let mut state = State::pending(START);
            state.queue = Some(DEFAULT_QUEUE.into());
            state
        };
        vec![World {
            ticks: 0,
            rows: self.specs.iter().map(|_| pending()).collect(),
            gates: BTreeMap::new(),
            alive: vec![false; self.specs.len()],
            faults: self.faults,
            people: self.people,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        for (at, row) in world.rows.iter().enumerate() {
            match row.status {
                Status::Pending | Status::RetryWaiting => {
                    actions.push(if row.held_by.is_some() { Action::Admit(at) } else { Action::Claim(at) });
                    if row.held_by.is_some() {
                        actions.push(Action::Claim(at));
                    }
                }
                Status::Running if world.alive[at] => {
                    actions.push(Action::Succeed(at));
                    if world.faults > 0 {
                        actions.extend([
                            Action::Fail(at),
                            Action::SayNothing(at),
                            Action::Release(at),
                            Action::Die(at),
                        ]);
                    }
                }
                Status::Running if row.wake_at.is_some_and(|at| at <= world.now()) => actions.push(Action::Lost(at)),
                _ => {}
            }
        }
        if world.people > 0 {
            actions.extend([Action::Person(true), Action::Person(false)]);
        }
        if world.ticks < self.most_ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, old: &World, action: Action) -> Option<World> {
        let mut world = old.clone();
        match action {
            Action::Fail(_) | Action::SayNothing(_) | Action::Release(_) | Action::Die(_) => world.faults -= 1,
            Action::Person(_) => world.people -= 1,
            _ => {}
        }
        self.step(&mut world, action);
        (world != *old).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing forbidden happened", |_, world: &World| world.broken.is_none()),
            Property::always("a place belongs to a running claim", |yard: &Yard, world: &World| {
                let runs = |(id, fence): &(String, i64)| {
                    let at = yard.specs.iter().position(|spec| spec.id == *id);
                    at.map(|at| &world.rows[at]).is_some_and(|row| row.status == Status::Running && row.fence == *fence)
                };
                world.gates.values().all(|state| match state {
                    GateState::Cap { places } => places.iter().all(runs),
                    GateState::Breaker(breaker) => breaker.probes.iter().all(runs),
                    _ => true,
                })
            }),
            Property::always("no cap is exceeded", |yard: &Yard, world: &World| {
                let running = world.rows.iter().filter(|row| row.status == Status::Running).count();
                running as i64 <= yard.gates.caps[0].max
            }),
            Property::always("no more probes run than the rule allows", |yard: &Yard, world: &World| {
                let Some(GateState::Breaker(breaker)) = world.gates.get(BREAKER) else { return true };
                let of_epoch = |row: &&State| {
                    row.status == Status::Running
                        && row.passes.iter().any(|pass| pass.gate == BREAKER && pass.epoch == breaker.epoch)
                };
                breaker.phase != Phase::HalfOpen
                    || world.rows.iter().filter(of_epoch).count() as i64 <= yard.gates.breakers[0].probes
            }),
            Property::always("waiting spends no attempt and held rows have an alarm", |_, world: &World| {
                let sound = |row: &State| row.held_by.is_none() || (row.status.is_waiting() && row.wake_at.is_some());
                world.rows.iter().all(sound)
            }),
            Property::always("every task ends", |yard: &Yard, world: &World| {
                world.broken.is_some() || yard.ends(world)
            }),
            Property::sometimes("the breaker opens", |yard: &Yard, world: &World| {
                matches!(yard.phase(world), Phase::Open { .. })
            }),
            Property::sometimes("a probe runs", |yard: &Yard, world: &World| yard.phase(world) == Phase::HalfOpen),
            Property::sometimes(
                "the breaker closes again",
                |_, world: &World| matches!(world.gates.get(BREAKER), Some(GateState::Breaker(b)) if b.back.is_some()),
            ),
            Property::sometimes("the cap holds somebody", |_, world: &World| {
                world.rows.iter().any(|row| row.held_by.as_deref() == Some(CAP))
            }),
        ]
    }
}

fn rule() -> BreakerRule {
    BreakerRule {
        name: "b".into(),
        per: Per::default(),
        consecutive_same: None,
        consecutive: Some(1),
        failure_rate: None,
        ignore: Vec::new(),
        open_for_ms: TICK,
        open_for_max_ms: 2 * TICK,
        probes: 1,
        when_open: WhenOpen::Park,
        park_max_ms: 1_000 * TICK,
    }
}

fn check(name: &str, yard: Yard) {
    let checker = yard.checker().spawn_bfs().join();
    println!("{name}: states: {} unique, {} steps", checker.unique_state_count(), checker.state_count());
    checker.assert_properties();
}

#[test]
fn gates_keep_their_bounds_and_every_task_ends_whatever_the_order() {
    check("two tasks", Yard::new(&["a", "b"], Vec::new(), 1));
    check("three tasks", Yard { faults: 1, most_ticks: 2, ..Yard::new(&["a", "b", "c"], Vec::new(), 2) });
}

#[test]
fn gates_keep_their_bounds_while_a_person_opens_and_closes_a_breaker() {
    check("gates and a person", Yard { people: 2, faults: 1, most_ticks: 2, ..Yard::new(&["a", "b"], Vec::new(), 1) });
}

#[test]
fn a_limit_beside_the_other_gates_takes_nothing_from_those_who_are_held() {
    let kind = LimitKind::Rate { rate: Rate { count: 1, per_ms: 2 * TICK }, burst: 1 };
    let limit = LimitRule { name: "l".into(), per: Per::default(), calls: false, kind };
    check("gates and a limit", Yard { faults: 2, most_ticks: 3, ..Yard::new(&["a", "b"], vec![limit], 1) });
}

/// The checker must be able to find something.
#[test]
fn a_breaker_that_forgets_nobody_is_caught() {
    // A place that nobody gives back: the claim is over, the gate does not know.
    let yard = Yard::new(&["a", "b"], Vec::new(), 1);
    let mut world = yard.init_states().remove(0);
    yard.step(&mut world, Action::Claim(0));
    world.rows[0].passes.clear();
    yard.step(&mut world, Action::Succeed(0));
    assert!(!yard.ends(&world), "a stuck place goes unnoticed");
    let names: BTreeSet<_> = yard.properties().iter().map(|property| property.name).collect();
    assert_eq!(names.len(), 10);
}
