//! The run: events in virtual time, and the rules of production between them.
//!
//! Every decision about a task is made by [`Rows::apply`], [`decide`], [`hold_for`], [`Policies::pick`](crate::policy::Policies::pick) and
//! the gates; what is here only carries messages, places and outcomes between them, as broker and worker do. Messages are never lost and
//! workers never die: it is the third party that is tried, not the transport. All workers are one pool of places, and there is one queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use crate::gate::{First, LaneBuffer, Share, chances, in_turns};
use crate::policy::Policies;
use crate::task::{
    Answer, Claimant, Command, DEFAULT_QUEUE, DeadReason, Ending, Failure, Lane, Millis, NewTask, Outcome, Refusal,
    Rows, Settings, Settlement, Spec, Stamp, Status, Task, decide, hold_for,
};

use super::held::Held;
use super::random::{Random, millis};
use super::record::{Record, Run};
use super::scenario::{Arrivals, Contender, LabelValues, Scenario};
use super::service::{Call, Reply, Service};

/// When a run begins by its own clock: 2026-01-01, a Thursday, 00:00 UTC. Policies with hours see it.
const BEGINS: Millis = 1_767_225_600_000;
/// As the worker's admission: the shortest time between two looks, the longest while something is held, the most offers of one, and how
/// many more rows than free places are offered.
const SHORTEST_PAUSE_MS: Millis = 20;
const HELD_PAUSE_MS: Millis = 250;
const MOST_OFFERS: usize = 128;
const AHEAD: usize = 16;

/// What the draws are for; each has a stream of its own.
const ARRIVAL: u64 = 11;
const DELAY: u64 = 12;

/// Something that happens.
enum Event {
    /// The next task of these arrivals.
    Arrival(usize),
    /// A wake-up reaches its lane.
    WakeUp { id: String, stamp: Stamp },
    /// A waiting row's alarm.
    Alarm { id: String, at: Millis },
    /// The third party has finished with a call, whether its sender still waits or not.
    Served(u64),
    /// The sender's patience with a call is over.
    GaveUp(u64),
    /// The answer to a call that took no place.
    Answered(u64, Box<Outcome>),
    /// A look at the held rows.
    Look,
}

/// Who waits for a place.
enum Next {
    New(Box<NewTask>),
    WakeUp { id: String, stamp: Stamp },
    Held { id: String, stamp: Stamp },
}

/// Arrivals under way.
struct Source<'s> {
    arrivals: &'s Arrivals,
    random: Random,
    /// How many have come, and when the next one does, from the beginning of the run.
    count: i64,
    next_at: f64,
}

/// Runs one contender through the scenario.
pub(super) fn run(scenario: &Scenario, contender: &Contender, seed: u64) -> Run {
    let mut engine = Engine::new(scenario, contender, seed);
    engine.run();
    engine.record.finish(engine.now - BEGINS)
}

struct Engine<'s> {
    scenario: &'s Scenario,
    seed: u64,
    now: Millis,
    /// By time, then in the order in which they were made.
    events: BinaryHeap<Reverse<(Millis, u64)>>,
    made: HashMap<u64, Event>,
    count: u64,
    rows: Rows,
    settings: Settings,
    claimant: Claimant,
    policies: Arc<Policies>,
    rungs: BTreeSet<Millis>,
    share: Share,
    lanes: BTreeMap<Lane, LaneBuffer<Next, Next>>,
    free: usize,
    held: Held,
    offered: BTreeSet<String>,
    cursor: String,
    looked_at: Millis,
    look_at: Option<Millis>,
    service: Service<'s>,
    /// Attempts whose senders still wait, by call.
    running: HashMap<u64, Box<Task>>,
    calls: u64,
    sources: Vec<Source<'s>>,
    arriving: usize,
    record: Record<'s>,
}

impl<'s> Engine<'s> {
    fn new(scenario: &'s Scenario, contender: &'s Contender, seed: u64) -> Engine<'s> {
        let policies = Arc::new(contender.policies.clone());
        let mut engine = Engine {
            scenario,
            seed,
            now: BEGINS,
            events: BinaryHeap::new(),
            made: HashMap::new(),
            count: 0,
            rows: Rows::default(),
            settings: Settings::default(),
            claimant: Claimant {
                worker: "simulated".into(),
                serves: None,
                gates: Arc::new(contender.gates.clone()),
                policies: Some(Arc::clone(&policies)),
            },
            rungs: policies.rungs(),
            policies,
            share: Share::new(contender.retry_share),
            lanes: BTreeMap::new(),
            free: contender.places,
            held: Held::default(),
            offered: BTreeSet::new(),
            cursor: String::new(),
            looked_at: BEGINS - SHORTEST_PAUSE_MS,
            look_at: None,
            service: Service::new(&scenario.third_party, seed),
            running: HashMap::new(),
            calls: 0,
            sources: Vec::new(),
            arriving: 0,
            record: Record::new(scenario, contender),
        };
        for (index, arrivals) in scenario.arrivals.iter().enumerate() {
            let random = Random::of(&[seed, ARRIVAL, index as u64]);
            engine.sources.push(Source { arrivals, random, count: 0, next_at: 0.0 });
            engine.expect_arrival(index);
        }
        engine
    }

    fn run(&mut self) {
        let end = BEGINS + self.scenario.duration_ms;
        while let Some(Reverse((at, number))) = self.events.pop() {
            if at > end {
                self.now = end;
                return;
            }
            self.now = at;
            let Some(event) = self.made.remove(&number) else { continue };
            self.happen(event);
            self.start_some();
            if self.arriving == 0 && self.record.unfinished() == 0 {
                return;
            }
        }
    }

    fn plan(&mut self, at: Millis, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at.max(self.now), self.count)));
        self.made.insert(self.count, event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival(index) => self.arrive(index),
            Event::WakeUp { id, stamp } => self.line_up_wake_up(id, stamp),
            Event::Alarm { id, at } => self.ring(id, at),
            Event::Served(call) => {
                match self.running.remove(&call) {
                    Some(task) => self.end_attempt(*task, &Outcome::success()),
                    None => self.record.threw_away(),
                }
                if let Some((next, until)) = self.service.served(self.now - BEGINS) {
                    self.plan(BEGINS + until, Event::Served(next.number));
                }
            }
            Event::GaveUp(call) => {
                if let Some(task) = self.running.remove(&call) {
                    self.end_attempt(*task, &Service::no_answer());
                }
            }
            Event::Answered(call, outcome) => {
                if let Some(task) = self.running.remove(&call) {
                    self.end_attempt(*task, &outcome);
                }
            }
            Event::Look => {
                if self.look_at == Some(self.now) {
                    self.look_at = None;
                    self.look();
                }
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run are far below 2^53")]
    fn expect_arrival(&mut self, index: usize) {
        let Some(source) = self.sources.get_mut(index) else { return };
        let rate = source.arrivals.rate;
        let gap = rate.per_ms as f64 / rate.count.max(1) as f64;
        // Evenly spaced ones come at the beginning of each step, so that they do not all begin with a pause.
        let step = if source.arrivals.even {
            gap * f64::from(u8::from(source.count > 0))
        } else {
            source.random.exponential(gap)
        };
        source.count += 1;
        source.next_at += step;
        let at = millis(source.next_at + 1.0) - 1;
        let Some(inside) = source.arrivals.stretch.next(at) else { return };
        if inside > at {
            source.next_at = inside as f64;
        }
        if inside <= self.scenario.duration_ms {
            self.arriving += 1;
            self.plan(BEGINS + inside, Event::Arrival(index));
        }
    }

    fn arrive(&mut self, index: usize) {
        self.arriving -= 1;
        let number = self.record.arrive(self.now - BEGINS);
        let Some(source) = self.sources.get_mut(index) else { return };
        let value = |random: &mut Random, name: &str, values: &LabelValues| match values {
            LabelValues::Fixed(text) => text.clone(),
            LabelValues::Numbered(n) => format!("{name}-{}", random.below(*n) + 1),
        };
        let arrivals = source.arrivals;
        let labels: BTreeMap<String, String> = arrivals
            .labels
            .iter()
            .map(|(name, values)| (name.clone(), value(&mut source.random, name, values)))
            .collect();
        let new = self.new_task(number, &arrivals.task_type, labels);
        self.lane(Lane::Tasks).line.push(0, 0, Next::New(Box::new(new)));
        self.expect_arrival(index);
    }

    fn new_task(&self, number: u64, task_type: &str, labels: BTreeMap<String, String>) -> NewTask {
        let id = format!("{number:09}");
        let deadline = self.policies.pick(task_type, &labels, self.now).deadline_ms;
        let spec = Spec {
            idempotency_key: Some(id.clone()),
            id,
            task_type: task_type.to_owned(),
            payload: "null".into(),
            labels,
            priority: 0,
            cache_key: None,
            reply_to: None,
            trace: None,
            payload_hash: String::new(),
            submission_hash: None,
            created_at: self.now,
            raw: None,
            conflicts_with: None,
        };
        // Ids are unique here, so that no submission is ever refused.
        let refusal = Refusal {
            spec: spec.clone(),
            queue: DEFAULT_QUEUE.into(),
            reason: DeadReason::DuplicateConflict,
            failure: Failure::new("duplicate_conflict", ""),
        };
        NewTask {
            spec: Arc::new(spec),
            queue: DEFAULT_QUEUE.into(),
            not_before: None,
            deadline: deadline.map(|length| self.now.saturating_add(length)),
            redelivered: false,
            refusal: refusal.into(),
            claimant: Some(self.claimant.clone()),
            publish: false,
            rejected: false,
        }
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneBuffer<Next, Next> {
        self.lanes.entry(lane).or_default()
    }

    fn line_up_wake_up(&mut self, id: String, stamp: Stamp) {
        self.lane(stamp.lane()).line.push(0, stamp.retry_count, Next::WakeUp { id, stamp });
    }

    fn apply(&mut self, command: Command) -> Answer {
        let answer = self.rows.apply(&command, self.now, &self.settings);
        // Nothing is written anywhere, so nobody asks what changed.
        self.rows.forget_changes();
        answer
    }

    /// As many as there are places, one turn each.
    fn start_some(&mut self) {
        while self.free > 0 {
            let waits = |lane| self.lanes.get(&lane).is_some_and(|lane| !lane.is_empty());
            let (tasks, retries) = (waits(Lane::Tasks), waits(Lane::Retries));
            let Some(turn) = self.share.next(tasks, retries) else { return };
            let Some(First::Message(who) | First::Held(who)) = self.lane(turn.lane).pop() else { return };
            if !self.start(who) {
                self.share.undo(turn);
            }
        }
    }

    /// Whether an attempt runs now.
    fn start(&mut self, who: Next) -> bool {
        let claimant = self.claimant.clone();
        let (id, command) = match who {
            Next::New(new) => (new.spec.id.clone(), Command::Submit(new)),
            Next::WakeUp { id, stamp } => (id.clone(), Command::Claim { id, stamp, claimant: Some(claimant) }),
            Next::Held { id, stamp } => {
                self.offered.remove(&id);
                (id.clone(), Command::Admit { id, stamp, claimant })
            }
        };
        match self.apply(command) {
            Answer::Run(task) => {
                self.held.forget(&id);
                self.launch(task);
                return true;
            }
            Answer::Dead(task) => self.end_task(&task),
            // A fallback is not modelled: what would fall back ends as a dead letter here.
            Answer::Tripped { task, by } => {
                let failure = Failure::new("circuit_open", format!("{by} is open"));
                let ending = Ending::Dead { reason: DeadReason::CircuitOpen, failure };
                if let Answer::Dead(task) = self.apply(Command::Intercept { id, stamp: task.stamp(), ending }) {
                    self.end_task(&task);
                }
            }
            Answer::Held { .. } => {
                if let Some(task) = self.rows.get(&id) {
                    self.held.note(task);
                    if let Some(at) = task.state.wake_at {
                        self.plan(at, Event::Alarm { id, at });
                    }
                }
                self.nudge();
            }
            // Early: its alarm is set. Anything else is a message about a row that has moved on.
            Answer::Early => self.expect_alarm(&id),
            _ => {}
        }
        false
    }

    fn launch(&mut self, task: Box<Task>) {
        self.free -= 1;
        self.calls += 1;
        let at = self.now - BEGINS;
        self.record.start(&task, at);
        let call =
            Call { number: self.calls, task: task.id().parse().unwrap_or(0), attempt: task.state.fence.unsigned_abs() };
        match self.service.call(call, &task.spec, at) {
            Reply::At(until, outcome) => self.plan(BEGINS + until, Event::Answered(call.number, Box::new(outcome))),
            Reply::Serving(until) => {
                self.plan(BEGINS + until, Event::Served(call.number));
                self.plan(self.now + self.scenario.third_party.timeout_ms, Event::GaveUp(call.number));
            }
            Reply::Waits => self.plan(self.now + self.scenario.third_party.timeout_ms, Event::GaveUp(call.number)),
        }
        self.running.insert(call.number, task);
    }

    /// As the worker settles.
    fn end_attempt(&mut self, task: Task, outcome: &Outcome) {
        self.free += 1;
        let policy = Arc::clone(self.policies.pick(&task.spec.task_type, &task.spec.labels, self.now));
        let (number, fence) = (task.id().parse().unwrap_or(0), task.state.fence);
        let random = Random::of(&[self.seed, DELAY, number, fence.unsigned_abs()]).unit();
        let settlement = Settlement {
            policy: Some(policy.name.clone()),
            variant: policy.variant_for(task.id(), task.state.variant.as_deref()).map(|variant| variant.name.clone()),
            hold_ms: hold_for(outcome, &policy),
            gates: Arc::clone(&self.claimant.gates),
            ..Settlement::new("simulated", decide(&task, outcome, &policy, &self.rungs, self.now, random))
        };
        let id = task.id().to_owned();
        let Answer::Settled(change) =
            self.apply(Command::Settle { id: id.clone(), fence, settlement: Box::new(settlement) })
        else {
            return;
        };
        self.record.settle(&change);
        match change.wake_up {
            Some(wake_up) => self.plan(wake_up.route.arrives_at, Event::WakeUp { id, stamp: wake_up.stamp }),
            None if change.task.state.status.is_ended() => self.end_task(&change.task),
            None => self.expect_alarm(&id),
        }
        self.nudge();
    }

    fn expect_alarm(&mut self, id: &str) {
        if let Some(at) = self.rows.get(id).and_then(|task| task.state.wake_at) {
            self.plan(at, Event::Alarm { id: id.to_owned(), at });
        }
    }

    /// A waiting row's alarm.
    fn ring(&mut self, id: String, at: Millis) {
        let Some(task) = self.rows.get(&id).filter(|task| task.state.wake_at == Some(at)) else { return };
        if !task.state.status.is_waiting() {
            return;
        }
        let stamp = task.stamp();
        match self.apply(Command::Wake { id: id.clone(), stamp, wake_at: at }) {
            Answer::Publish(wake_up) => self.line_up_wake_up(id, wake_up.stamp),
            Answer::Dead(task) => self.end_task(&task),
            Answer::Rearmed => self.expect_alarm(&id),
            _ => {}
        }
    }

    fn end_task(&mut self, task: &Task) {
        debug_assert!(matches!(task.state.status, Status::Succeeded | Status::Dead));
        self.held.forget(task.id());
        let policy = self.policies.pick(&task.spec.task_type, &task.spec.labels, self.now);
        let variant = policy.variant_for(task.id(), task.state.variant.as_deref());
        self.record.end(task, variant.map(|variant| variant.name.as_str()), self.now - BEGINS);
        self.rows.forget(task.id());
    }

    /// A gate may have moved: look soon.
    fn nudge(&mut self) {
        if !self.held.is_empty() {
            self.look_no_later_than(self.looked_at + SHORTEST_PAUSE_MS);
        }
    }

    fn look_no_later_than(&mut self, at: Millis) {
        let at = at.max(self.now);
        if self.look_at.is_none_or(|known| at < known) {
            self.look_at = Some(at);
            self.plan(at, Event::Look);
        }
    }

    /// Offers held rows whose gates have room, as the worker's admission does.
    fn look(&mut self) {
        self.looked_at = self.now;
        if self.held.is_empty() {
            return;
        }
        let held = self.held.gates(&self.rows.gates);
        let most = self.free.saturating_add(AHEAD).min(MOST_OFFERS);
        let (open, next) = chances(&held, &self.claimant.gates, most, self.now);
        let heads = open.iter().flat_map(|chance| self.held.heads(chance)).collect();
        let mut rows = in_turns(heads, &self.cursor, |task| (&task.turn, task.due_at));
        rows.truncate(most);
        if let Some(last) = rows.last() {
            self.cursor.clone_from(&last.turn);
        }
        for task in rows {
            if self.offered.len() < most && self.offered.insert(task.id.clone()) {
                let (lane, next) = (task.stamp.lane(), Next::Held { id: task.id, stamp: task.stamp });
                self.lane(lane).held.push_back(next);
            }
        }
        let pause = next.map_or(HELD_PAUSE_MS, |at| (at - self.now).clamp(SHORTEST_PAUSE_MS, HELD_PAUSE_MS));
        self.look_no_later_than(self.now + pause);
    }
}
