//! One run: workers over a broker and a store while all kinds of things go wrong, then peace, until every task has ended.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redeliver::broker::QueueRole;
use redeliver::config::Config;
use redeliver::handler::{Handler, Route};
use redeliver::store::Store;
use redeliver::task::{Envelope, Lane, Millis};
use redeliver::telemetry::Observers;
use redeliver::worker::{Heartbeats, Plan, RuleSet, Surroundings, Worker};

use crate::broker::BrokerOf;
use crate::handler::ThirdParty;
use crate::net::Net;
use crate::process::Process;
use crate::store::Between;
use crate::store_double::StoreDouble;
use crate::world::{Counts, World, locked};
use crate::{checks, people, setting};

/// A run that is not over by then is stuck.
const LONGEST_PEACE_MS: i64 = 30 * 60_000;

/// What a run came to.
pub struct Ended {
    pub wrongs: Vec<String>,
    pub digest: u64,
    pub counts: Counts,
    /// How much virtual time it took.
    pub length_ms: Millis,
}

/// A place for one worker after the other.
struct Slot {
    process: Arc<Process>,
    /// There once it has started.
    worker: Arc<Mutex<Option<Worker>>>,
}

pub struct Stage {
    pub world: Arc<World>,
    pub net: Arc<Net>,
    pub submitted: Vec<Envelope>,
    pub inserted: usize,
    /// Tasks that are submitted.
    pub most: usize,
    pub config: Config,
    slots: Vec<Slot>,
    started: usize,
}

/// Plays a seed from its beginning to its end, in virtual time.
pub fn play(seed: u64, told: bool) -> Ended {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let world = Arc::new(World::new(seed, told));
        world.tell_more("", "faults", || format!("{:?}", world.faults));
        let mut stage = Stage::new(Arc::clone(&world));
        stage.play().await;
        let (digest, counts) = world.told();
        Ended { wrongs: world.wrongs(), digest, counts, length_ms: world.elapsed() }
    })
}

impl Stage {
    fn new(world: Arc<World>) -> Stage {
        let config = setting::drawn(&world);
        let net = Arc::new(Net::new(Arc::clone(&world)));
        let most = usize::try_from(world.pick(2, 14)).unwrap_or(2);
        Stage { world, net, submitted: Vec::new(), inserted: 0, most, config, slots: Vec::new(), started: 0 }
    }

    async fn play(&mut self) {
        let world = Arc::clone(&self.world);
        self.note_budgets();
        self.net.declare(&self.config.topology());
        for _ in 0..world.pick(1, 4) {
            let slot = self.start_worker();
            self.slots.push(slot);
        }
        let length = world.pick(6_000, 25_000);
        while world.elapsed() < length {
            tokio::time::sleep(world.length(20, 1_200)).await;
            checks::alarms(&world);
            people::act(self);
            self.mischief();
        }
        self.make_peace();
        let ends_by = world.elapsed() + LONGEST_PEACE_MS;
        // A DLQ is looked through once a minute. Mostly a person is not as patient, and so are those who wait for the end of the run.
        let impatient = world.happens(0.8);
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            checks::alarms(&world);
            if impatient && checks::all_have_ended(&world) {
                people::sync(self).await;
            }
            match checks::open_work(&world).or_else(|| checks::difference(&world, &self.net, &self.config)) {
                None => break,
                Some(open) if world.elapsed() > ends_by => {
                    world.wrong(format!("stuck: {open}"));
                    return;
                }
                Some(_) => {}
            }
        }
        checks::at_the_end(&world);
    }

    fn note_budgets(&self) {
        let mut ledger = self.world.ledger();
        for policy in self.config.policies.rules() {
            let known = ledger.budgets.entry(policy.name.clone()).or_insert(policy.max_retries);
            *known = policy.max_retries.max(*known);
        }
    }

    fn start_worker(&mut self) -> Slot {
        self.started += 1;
        let name = format!("w{}", self.started);
        let process = Arc::new(Process::new(name.clone(), Arc::clone(&self.world), self.net.hub.client()));
        self.net.add(Arc::clone(&process));
        let plan = Plan::with_routes(&self.config, routes(&process));
        let store: Arc<dyn Store> = self.world.store.clone();
        let store = Arc::new(StoreDouble { inner: store, interference: Between(Arc::clone(&process)) });
        let broker = Arc::new(BrokerOf::new(Arc::clone(&process), Arc::clone(&self.net)));
        let world = Arc::clone(&self.world);
        let random = Arc::new(move || world.unit());
        let surroundings = Surroundings { name, random, heartbeats: Heartbeats::WithTheRest };
        let worker = Arc::new(Mutex::new(None));
        let place = Arc::clone(&worker);
        let world = Arc::clone(&self.world);
        world.tell(&process.name, "starts", "", 0);
        tokio::spawn(async move {
            match Worker::start_in(surroundings, store, broker, plan, Observers::default()).await {
                Ok(started) => *locked(&place) = Some(started),
                Err(error) => world.wrong(format!("a worker did not start: {error}")),
            }
        });
        Slot { process, worker }
    }

    /// What goes wrong for all, and what people do to workers.
    fn mischief(&mut self) {
        let world = Arc::clone(&self.world);
        for at in 0..self.slots.len() {
            if self.slots[at].process.is_dead() && world.happens(0.25) {
                self.slots[at] = self.start_worker();
            }
        }
        let faults = &world.faults;
        if faults.outages && world.happens(0.05) {
            let length = world.pick(500, 20_000);
            world.tell("store", "outage", "", length);
            world.ledger().set_store_away(world.elapsed() + length);
        }
        if faults.outages && world.happens(0.08) {
            world.tell("broker", "outage", "", i64::from(!self.net.is_down()));
            self.net.set_down(!self.net.is_down());
        }
        if faults.queue_losses && world.happens(0.08) {
            self.lose_queues();
        }
        if faults.clock_jumps && world.happens(0.04) {
            let by = if world.happens(0.5) { world.pick(-30_000, 30_000) } else { world.pick(-200_000, 200_000) };
            world.tell("clock", "jumps", "", by);
            world.ledger().clock_jumped = true;
            world.set_clock_off(by);
        }
        if faults.restarts && world.happens(0.08) {
            self.restart();
        }
        if faults.reloads && world.happens(0.08) {
            self.reload();
        }
    }

    fn lose_queues(&self) {
        let (world, topology) = (&self.world, self.config.topology());
        match world.pick(0, 6) {
            0 => self.net.lose(&topology, |_| true),
            1 => self.net.lose(&topology, |spec| matches!(spec.role, QueueRole::Rung(_))),
            2 => self.net.lose(&topology, |spec| spec.role == QueueRole::Lane(Lane::Retries)),
            3 => self.net.lose(&topology, |spec| spec.role == QueueRole::Lane(Lane::Tasks)),
            4 => self.net.lose(&topology, |spec| spec.role == QueueRole::Dead),
            _ => {
                world.tell("broker", "loses messages", "", 0);
                self.net.lose_messages();
            }
        }
    }

    /// A worker is told to stop, and another starts.
    fn restart(&mut self) {
        let world = Arc::clone(&self.world);
        let at = usize::try_from(world.pick(0, 1_000)).unwrap_or(0) % self.slots.len();
        let Some(worker) = locked(&self.slots[at].worker).take() else { return };
        let process = Arc::clone(&self.slots[at].process);
        let grace = world.length(0, 4_000);
        world.tell(&process.name, "is told to stop", "", 0);
        tokio::spawn(async move {
            worker.stop(grace).await;
            process.world.tell(&process.name, "has stopped", "", 0);
            process.die();
        });
        self.slots[at] = self.start_worker();
    }

    /// Other rules for all.
    fn reload(&mut self) {
        let new = setting::drawn(&self.world);
        self.config.policies = new.policies;
        self.config.gates = new.gates;
        self.note_budgets();
        self.world.tell("people", "reload", "", 0);
        for slot in &self.slots {
            if let Some(worker) = locked(&slot.worker).as_ref() {
                worker.reload(RuleSet::with_routes(&self.config, routes(&slot.process)));
            }
        }
    }

    /// Nothing goes wrong any more, somebody works, and what is not in the store is submitted again.
    fn make_peace(&mut self) {
        let world = Arc::clone(&self.world);
        world.at_peace.store(true, Ordering::Relaxed);
        world.tell("", "peace", "", 0);
        world.ledger().set_store_away(0);
        self.net.set_down(false);
        for at in 0..self.slots.len() {
            self.slots[at].process.thaw();
            if at > 0 {
                // What many can do they have done; waiting for the end is cheaper with few.
                if world.happens(0.7) {
                    self.slots[at].process.die();
                }
            } else if self.slots[at].process.is_dead() {
                self.slots[at] = self.start_worker();
            }
        }
        people::make_peace(self);
        let known = checks::rows(&world);
        for envelope in &self.submitted {
            if !known.iter().any(|task| Some(task.id()) == envelope.id.as_deref()) {
                people::publish(self, envelope);
            }
        }
    }
}

fn routes(process: &Arc<Process>) -> Vec<Route> {
    let handler: Arc<dyn Handler> = Arc::new(ThirdParty(Arc::clone(process)));
    ["order.#", "bulk.#"]
        .map(|task_type| Route { task_type: setting::pattern(task_type), handler: Arc::clone(&handler) })
        .into()
}
