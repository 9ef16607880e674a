//! What must hold of the rows: at every look, at every ack, and when all is over.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use redeliver::broker::Broker;
use redeliver::config::Config;
use redeliver::gate::GateState;
use redeliver::store::{Filter, Store};
use redeliver::task::{DlqCopy, Status, Task};

use crate::net::Net;
use crate::world::World;

/// Every row. The memory store has nothing to wait for.
pub fn rows(world: &World) -> Vec<Task> {
    let page = world.store.list(&Filter::default(), None, 100_000).now_or_never();
    page.and_then(Result::ok).map(|page| page.items).unwrap_or_default()
}

fn row(world: &World, id: &str) -> Option<Task> {
    world.store.get(&[id.to_owned()]).now_or_never()?.ok()?.pop()?
}

/// A message is acked, so the broker may forget it: what it was about must be safe in the store.
pub fn acked(world: &World, message_id: &str, is_submission: bool) {
    if is_submission {
        let as_raw =
            |task: &Task| task.spec.raw.as_ref().is_some_and(|raw| raw.message_id.as_deref() == Some(message_id));
        if row(world, message_id).is_none() && !rows(world).iter().any(as_raw) {
            world.wrong(format!("submission {message_id} was acked and is not in the store"));
        }
    } else if let Some(task) = message_id.rsplitn(3, ':').nth(2).and_then(|id| row(world, id)) {
        alarm(world, &task);
    }
}

/// Every unfinished row has its alarm; a dead one has its copy, or work open for it.
pub fn alarms(world: &World) {
    for task in rows(world) {
        alarm(world, &task);
    }
}

fn alarm(world: &World, task: &Task) {
    let (id, state) = (task.id(), &task.state);
    if !state.status.is_ended() && state.wake_at.is_none() {
        world.wrong(format!("{id} is {} and has no alarm", state.status));
    }
    let copy_is_cared_for =
        state.dlq_copy == DlqCopy::Present || state.dlq_copy == DlqCopy::Wanted && state.dlq_at.is_some();
    if state.status == Status::Dead && !copy_is_cared_for {
        world.wrong(format!("{id} is dead and nobody cares for its copy"));
    }
}

/// Whether no task waits or runs.
pub fn all_have_ended(world: &World) -> bool {
    rows(world).iter().all(|task| task.state.status.is_ended())
}

/// What is still to be done, in a few words; `None` when all is over.
pub fn open_work(world: &World) -> Option<String> {
    let rows = rows(world);
    let open = |task: &&Task| {
        !task.state.status.is_ended() || task.state.status == Status::Dead && task.state.dlq_copy != DlqCopy::Present
    };
    if let Some(task) = rows.iter().find(open) {
        return Some(format!("{} is {:?}", task.id(), task.state));
    }
    let dlqs = world.store.dlqs().now_or_never()?.ok()?;
    if let Some((queue, ledger)) = dlqs.iter().find(|(_, ledger)| ledger.dirty > ledger.cleaned) {
        return Some(format!("the DLQ of {queue} is dirty: {ledger:?}"));
    }
    let jobs = {
        use redeliver::store::TriageStore;
        world.store.replays(&[], None, 1_000).now_or_never()?.ok()?
    };
    jobs.iter().find(|job| !job.state.is_final()).map(|job| format!("replay job {} is {:?}", job.id, job.state))
}

/// What holds when all is over.
pub fn at_the_end(world: &World) {
    alarms(world);
    let rows = rows(world);
    for (key, state) in world.store.gates().now_or_never().and_then(Result::ok).unwrap_or_default() {
        match state {
            GateState::Cap { places } if !places.is_empty() => {
                world.wrong(format!("{key} is still occupied by {places:?}"));
            }
            GateState::Breaker(breaker) if !breaker.probes.is_empty() => {
                world.wrong(format!("{key} is still probed by {:?}", breaker.probes));
            }
            _ => {}
        }
    }
    let ledger = world.ledger();
    ledger.check_limits(world);
    for id in ledger.still_live() {
        world.wrong(format!("{id} has ended and its claim was never settled"));
    }
    for task in rows.iter().filter(|task| task.state.status == Status::Succeeded) {
        if world.store.result(task.id()).now_or_never().and_then(Result::ok).flatten().is_none() {
            world.wrong(format!("{} has succeeded without its result", task.id()));
        }
    }
}

/// How the DLQs differ from the dead rows. A double is found by the DLQ's depth, which takes a while.
pub fn difference(world: &World, net: &Net, config: &Config) -> Option<String> {
    let rows = rows(world);
    for queue in &config.queues {
        let dead = rows.iter().filter(|task| task.state.status == Status::Dead && task.queue() == queue.name);
        let dead: BTreeMap<(String, i64), usize> =
            dead.map(|task| ((task.id().to_owned(), task.stamp().generation), 1)).collect();
        let copies = copies(net, &queue.name);
        if dead != copies {
            return Some(format!("the DLQ of {} holds {copies:?} for {dead:?}", queue.name));
        }
    }
    None
}

/// The copies in a DLQ, with how often each is there.
fn copies(net: &Net, queue: &str) -> BTreeMap<(String, i64), usize> {
    let mut copies = BTreeMap::new();
    if let Some(Ok(mut pass)) = net.hub.dead_pass(queue).now_or_never() {
        let taken = pass.take_all(Duration::ZERO).now_or_never().and_then(Result::ok).unwrap_or_default();
        for copy in taken {
            *copies.entry(copy.of.unwrap_or_default()).or_insert(0) += 1;
        }
    }
    copies
}
