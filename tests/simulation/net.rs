//! The broker behind all processes: the embedded one, with rungs in front of it, and ways to lose, double, delay and refuse messages.
//!
//! The embedded broker holds no waits; here they are held beside it, so that the worker does what it does with RabbitMQ: it publishes to
//! rungs, judges what does not arrive, and finds rungs missing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use redeliver::broker::{Broker, EmbeddedBroker, Message, Published, QueueRole, QueueSpec, Target, Topology};
use redeliver::task::{Lane, LaneKey};

use crate::process::Process;
use crate::world::{World, locked};

/// See the module.
pub struct Net {
    pub world: Arc<World>,
    /// Our own client, under no fault.
    pub hub: EmbeddedBroker,
    /// The rungs that exist, by name, with a number that a lost one never has again.
    rungs: Mutex<BTreeMap<String, u64>>,
    made: Mutex<u64>,
    down: AtomicBool,
    processes: Mutex<Vec<Arc<Process>>>,
}

impl Net {
    pub fn new(world: Arc<World>) -> Net {
        Net {
            world,
            hub: EmbeddedBroker::new("redeliver"),
            rungs: Mutex::default(),
            made: Mutex::new(0),
            down: AtomicBool::new(false),
            processes: Mutex::default(),
        }
    }

    pub fn add(&self, process: Arc<Process>) {
        locked(&self.processes).push(process);
    }

    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// The whole broker goes or comes back. What it holds stays.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
        if down {
            self.cut_all();
        }
    }

    pub fn cut_all(&self) {
        for process in locked(&self.processes).iter().filter(|process| !process.is_dead()) {
            process.cut_session();
        }
    }

    /// Whether a queue of that name is there; rungs are kept here, the others in the hub.
    pub fn has(&self, topology: &Topology, spec: &QueueSpec) -> bool {
        match spec.role {
            QueueRole::Rung(_) => locked(&self.rungs).contains_key(&spec.name),
            _ => {
                let one = Topology { queues: vec![spec.clone()], ..bare(topology) };
                // It has nothing to wait for.
                let depths = self.hub.depths(&one).now_or_never().and_then(Result::ok).unwrap_or_default();
                depths.iter().any(|depth| depth.ready.is_some())
            }
        }
    }

    pub fn declare(&self, topology: &Topology) {
        let mut rungs = locked(&self.rungs);
        for spec in topology.queues.iter().filter(|spec| matches!(spec.role, QueueRole::Rung(_))) {
            rungs.entry(spec.name.clone()).or_insert_with(|| {
                let mut made = locked(&self.made);
                *made += 1;
                *made
            });
        }
        drop(rungs);
        if let Some(Err(error)) = self.hub.declare(&bare(topology)).now_or_never() {
            self.world.wrong(format!("the topology cannot be declared: {error}"));
        }
    }

    /// These queues are gone with what is in them, and the sessions that consume them end.
    pub fn lose(&self, topology: &Topology, gone: impl Fn(&QueueSpec) -> bool) {
        let lost: Vec<QueueSpec> = topology.queues.iter().filter(|spec| gone(spec)).cloned().collect();
        for spec in &lost {
            self.world.tell("broker", "loses", &spec.name, 0);
            if matches!(spec.role, QueueRole::Rung(_)) {
                locked(&self.rungs).remove(&spec.name);
            }
        }
        let rest = Topology { queues: lost, ..bare(topology) };
        if let Some(Err(error)) = self.hub.delete(&rest, true).now_or_never() {
            self.world.wrong(format!("queues cannot be deleted: {error}"));
        }
        self.cut_all();
    }

    /// Every message that is not out is gone, on rungs too; the queues stay.
    pub fn lose_messages(&self) {
        self.hub.purge();
        for number in locked(&self.rungs).values_mut() {
            let mut made = locked(&self.made);
            *made += 1;
            *number = *made;
        }
    }

    /// Publishes, with what may go wrong on the way.
    pub fn publish(self: &Arc<Self>, message: Message) -> Published {
        let (world, faults) = (&self.world, &self.world.faults);
        if self.is_down() {
            return Published::NotSent { reason: "the broker is down".into() };
        }
        if world.goes_wrong(faults.unpublished) {
            return match world.pick(0, 3) {
                0 => Published::Returned,
                1 => Published::Nacked,
                _ => Published::NotSent { reason: "simulated".into() },
            };
        }
        let untold = world.goes_wrong(faults.unconfirmed);
        // A copy whose confirm came is there: a quorum queue keeps it, and nothing but the DLQ's depth would tell.
        let copy = matches!(message.target, Target::Dead { .. }).then(|| message.message_id.clone());
        let may_be_lost = untold || copy.is_none();
        let fate = if may_be_lost && world.goes_wrong(faults.lost) || untold && world.happens(0.5) {
            world.tell("broker", "loses message", &message.message_id, 0);
            Published::Confirmed
        } else {
            if world.goes_wrong(faults.doubled) {
                self.deliver_late(message.clone());
            }
            let fate = if world.goes_wrong(faults.late) {
                self.deliver_late(message);
                Published::Confirmed
            } else {
                self.deliver(message)
            };
            if fate == Published::Confirmed {
                world.ledger().copies.extend(copy);
            }
            fate
        };
        if untold { Published::Unconfirmed { reason: "simulated".into() } } else { fate }
    }

    fn deliver_late(self: &Arc<Self>, message: Message) {
        let (net, wait) = (Arc::clone(self), self.world.length(5, 20_000));
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            net.world.tell("broker", "late", &message.message_id, 0);
            // Nobody waits for its fate any more.
            let _lost_if_returned: Published = net.deliver(message);
        });
    }

    /// To its queue, or to its rung and from there to its lane.
    fn deliver(self: &Arc<Self>, message: Message) -> Published {
        let Target::Rung { queue, delay_ms } = &message.target else {
            let fates = self.hub.publish(vec![message]).now_or_never().unwrap_or_default();
            return fates.into_iter().next().unwrap_or(Published::Nacked);
        };
        let rung = bare_name(queue, *delay_ms);
        let Some(number) = locked(&self.rungs).get(&rung).copied() else { return Published::Returned };
        let wait = std::time::Duration::from_millis(delay_ms.unsigned_abs());
        let lane = Target::Lane(LaneKey { queue: queue.clone(), lane: Lane::Retries });
        let (net, message) = (Arc::clone(self), Message { target: lane, ..message });
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if locked(&net.rungs).get(&rung) == Some(&number) {
                let fate = net.deliver(message);
                net.world.tell("broker", "rung ends", &rung, i64::from(fate == Published::Confirmed));
            }
        });
        Published::Confirmed
    }
}

/// The same objects without rungs.
pub fn bare(topology: &Topology) -> Topology {
    let mut bare = topology.clone();
    bare.queues.retain(|spec| !matches!(spec.role, QueueRole::Rung(_)));
    bare
}

fn bare_name(queue: &str, delay_ms: i64) -> String {
    format!("redeliver.{queue}.delay.{delay_ms}")
}
