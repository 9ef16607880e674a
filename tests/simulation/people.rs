//! Producers and people: they submit, submit again, send nonsense, and do all that can be done to a task.

use futures_util::FutureExt;
use redeliver::broker::{Message, Published, Target, submission, wake_up};
use redeliver::gate::{PersonsWord, queue_pause, type_pause};
use redeliver::store::{NewReplay, Pace, Pause, Selection, Store, TriageStore, Urgency};
use redeliver::task::{Answer, Command, DeadReason, Envelope, Lane, LaneKey, Outstanding, Stamp, Status, Task, WakeUp};

use crate::checks::rows;
use crate::setting::{SHOPS, TYPES, labels, pattern};
use crate::stage::Stage;

/// One of them does something.
pub fn act(stage: &mut Stage) {
    match stage.world.pick(0, 30) {
        0..12 => submit(stage),
        12 => submit_again(stage),
        13 => insert(stage),
        14 => nonsense(stage),
        15 | 16 => forge(stage),
        17 => hurry(stage),
        18 => cancel(stage),
        19 | 20 => replay(stage),
        21 => replay_all(stage),
        22 => discard(stage),
        23 => pause(stage),
        24 | 25 => resume(stage),
        26 => breaker(stage, true),
        27 => breaker(stage, false),
        _ => {}
    }
}

fn submit(stage: &mut Stage) {
    let world = &stage.world;
    if stage.submitted.len() >= stage.most {
        return;
    }
    let id = format!("t{}", stage.submitted.len());
    let task_type = if world.happens(0.05) { "ghost" } else { world.one_of(&TYPES).copied().unwrap_or("order") };
    let mut envelope = Envelope::new(task_type).id(&id).priority(world.pick(0, 3));
    for (name, value) in labels(world) {
        envelope = envelope.label(name, value);
    }
    if world.happens(0.15) {
        envelope = envelope.not_before(world.now() + world.pick(0, 15_000));
    }
    if world.happens(0.1) {
        envelope = envelope.deadline(world.now() + world.pick(15_000, 40_000));
    }
    publish(stage, &envelope);
    stage.submitted.push(envelope);
}

/// To the broker, as a producer that believes its confirm. What is not confirmed it sends again in the end.
pub fn publish(stage: &Stage, envelope: &Envelope) {
    let (task_type, id) = (envelope.task_type.clone().unwrap_or_default(), envelope.id.clone().unwrap_or_default());
    let body = envelope.to_bytes().expect("an envelope");
    let fate = stage.net.publish(submission(&task_type, &id, body.into()));
    stage.world.tell("people", if fate == Published::Confirmed { "submit" } else { "submit in vain" }, &id, 0);
}

/// The same again, or another payload under the same id.
fn submit_again(stage: &Stage) {
    let Some(envelope) = stage.world.one_of(&stage.submitted) else { return };
    let mut envelope = envelope.clone();
    if stage.world.happens(0.3) {
        envelope = envelope.payload(&"another").expect("JSON");
    }
    publish(stage, &envelope);
}

/// A row by the public door.
fn insert(stage: &mut Stage) {
    let id = format!("row{}", stage.inserted);
    stage.inserted += 1;
    stage.world.now();
    let task_type = stage.world.one_of(&TYPES).copied().unwrap_or("order");
    stage.world.store.insert_row(&id, task_type, "1");
    stage.world.tell("people", "insert", &id, 0);
}

/// What cannot be read: as a submission or as a wake-up.
fn nonsense(stage: &mut Stage) {
    let id = format!("bad{}", stage.inserted);
    stage.inserted += 1;
    let mut message = submission("order.ship", &id, format!("{{\"n\": {}", stage.inserted).into_bytes().into());
    if stage.world.happens(0.5) {
        message.message_type = Some(redeliver::broker::WAKE_UP_TYPE);
        message.target = Target::Lane(LaneKey { queue: "default".into(), lane: Lane::Retries });
    }
    send(stage, message, "nonsense");
}

/// A wake-up that nobody has asked for: old, early, from the future, for nobody.
fn forge(stage: &Stage) {
    let world = &stage.world;
    let all = rows(world);
    let (id, queue, stamp) = match world.one_of(&all) {
        Some(task) => (task.id().to_owned(), task.queue().to_owned(), task.stamp()),
        None => ("nobody".to_owned(), "default".to_owned(), Stamp::FIRST),
    };
    let stamp = match world.pick(0, 4) {
        0 => Stamp { retry_count: (stamp.retry_count - 1).max(0), ..stamp },
        1 => Stamp { retry_count: stamp.retry_count + 1, ..stamp },
        _ => stamp,
    };
    let at = world.now();
    let route =
        Outstanding { lane: stamp.lane(), rung_ms: 0, sent_at: at, arrives_at: at + world.pick(-20_000, 20_000) };
    send(stage, wake_up(&WakeUp { id, stamp, priority: 0, queue, route }), "forge");
}

fn send(stage: &Stage, message: Message, what: &'static str) {
    let id = message.message_id.clone();
    let fate = stage.net.publish(message);
    stage.world.tell("people", what, &id, i64::from(fate == Published::Confirmed));
}

/// Commits, publishes what that asks for, as the CLI does.
pub fn command(stage: &Stage, what: &'static str, command: Command) {
    let world = &stage.world;
    let now = world.now();
    let commands = vec![command];
    let Some(Ok(answers)) = world.store.apply(Urgency::Normal, commands.clone()).now_or_never() else { return };
    world.ledger().committed(world, "people", &commands, &answers, now);
    for answer in answers {
        world.tell("people", what, "", 0);
        if let Answer::Publish(wake) = answer {
            send(stage, wake_up(&wake), "wake");
        }
    }
}

fn one(stage: &Stage, which: impl Fn(&Task) -> bool) -> Option<Task> {
    let all: Vec<Task> = rows(&stage.world).into_iter().filter(which).collect();
    stage.world.one_of(&all).cloned()
}

fn hurry(stage: &Stage) {
    let Some(task) = one(stage, |task| task.state.status.is_waiting()) else { return };
    command(stage, "run now", Command::RunNow { id: task.id().to_owned() });
}

fn cancel(stage: &Stage) {
    let Some(task) = one(stage, |task| task.state.status.is_waiting()) else { return };
    command(stage, "cancel", Command::Cancel { id: task.id().to_owned(), note: None });
}

fn replay(stage: &Stage) {
    let Some(task) = one(stage, |task| task.state.status == Status::Dead) else { return };
    let generation = task.stamp().generation;
    command(stage, "replay", Command::Replay { id: task.id().to_owned(), generation, note: None });
}

fn replay_all(stage: &Stage) {
    let world = &stage.world;
    world.now();
    let pace = Pace {
        rate_per_s: world.happens(0.5).then_some(2.0),
        ramp: world.happens(0.3),
        max_failure_ratio: world.happens(0.3).then_some(0.5),
    };
    let new = NewReplay {
        selection: Selection::default(),
        about: serde_json::json!({}),
        created_by: None,
        reason: None,
        pace,
        edit: None,
        driver: None,
    };
    if let Some(Ok(job)) = world.store.create_replay(new).now_or_never() {
        world.tell("people", "replay job", "", job.id);
    }
}

fn discard(stage: &Stage) {
    let Some(task) = one(stage, |task| task.state.dead_reason == Some(DeadReason::RetriesExhausted)) else { return };
    let generation = task.stamp().generation;
    command(stage, "discard", Command::Discard { id: task.id().to_owned(), generation, note: None });
}

fn pause(stage: &Stage) {
    let world = &stage.world;
    let key = if world.happens(0.5) { queue_pause("default") } else { type_pause(&pattern("order.#")) };
    world.tell("people", "pause", &key, 0);
    let pause = Pause { key, since: world.now(), reason: None };
    let _done: Option<Result<(), _>> = world.store.pause(pause).now_or_never();
}

/// Every pause is over.
pub fn resume(stage: &Stage) {
    let world = &stage.world;
    for pause in world.store.pauses().now_or_never().and_then(Result::ok).unwrap_or_default() {
        world.tell("people", "resume", &pause.key, 0);
        let _done: Option<Result<bool, _>> = world.store.resume(&pause.key).now_or_never();
    }
}

fn breaker(stage: &Stage, open: bool) {
    let world = &stage.world;
    let shop = world.one_of(&SHOPS).copied().unwrap_or("a");
    let task_type = world.one_of(&TYPES).copied().unwrap_or("order");
    let key = format!("breaker/shop/type={task_type},label.shop={shop}");
    say(stage, key, open);
}

fn say(stage: &Stage, key: String, open: bool) {
    let word = PersonsWord { open, by: "people".into(), reason: None, at: stage.world.now() };
    command(stage, if open { "open breaker" } else { "close breaker" }, Command::Breaker { key, word });
}

/// `dlq sync`: a pass over every DLQ now.
pub async fn sync(stage: &Stage) {
    let (world, broker) = (&stage.world, &stage.net.hub);
    world.now();
    for queue in &stage.config.queues {
        match redeliver::dead_letter::pass(world.store.as_ref(), broker, &queue.name, true).await {
            Ok(report) => world.tell_more("people", "sync", || format!("{} {report:?}", queue.name)),
            Err(error) => world.wrong(format!("the DLQ of {} cannot be looked through: {error}", queue.name)),
        }
    }
}

/// What people have shut they open.
pub fn make_peace(stage: &Stage) {
    resume(stage);
    for (key, state) in stage.world.store.gates().now_or_never().and_then(Result::ok).unwrap_or_default() {
        if matches!(&state, redeliver::gate::GateState::Breaker(breaker) if breaker.word.as_ref().is_some_and(|word| word.open))
        {
            say(stage, key, false);
        }
    }
}
