//! Whatever is asked of them, in whatever order and batches, all stores answer alike and hold the same rows.
//!
//! The other tests say what is right, case by case; this one finds the case that nobody thought of, where a store loads,
//! writes or looks up less than the rules needed.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use redeliver::gate::{Gates, chances};
use redeliver::store::memory::MemoryStore;
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{Alarm, Clock, Filter, Pause, Store, Urgency};
use redeliver::task::{
    Command, DeadReason, Decision, Ending, Failure, Happening, Lane, LaneKey, Settings, Spot, Stamp, Status, Task,
};

use crate::fixture::{claim, die, new_task, refusal, result, retry_after, settlement, submit, url_in};

const QUEUES: [&str; 2] = ["default", "shipping"];

/// What somebody wants done; the numbers choose among what is there.
#[derive(Debug, Clone)]
struct Wish {
    kind: u8,
    id: u8,
    a: u8,
    b: u8,
}

/// One batch, and how far the clock moves before it.
type Step = (u32, Vec<Wish>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wish = (0..40_u8, 0..6_u8, any::<u8>(), any::<u8>()).prop_map(|(kind, id, a, b)| Wish { kind, id, a, b });
    let pause = prop_oneof![3 => Just(0), 3 => 1..2_000_u32, 2 => 2_000..120_000_u32];
    prop::collection::vec((pause, prop::collection::vec(wish, 1..9)), 1..30)
}

/// The command that a wish means where `task` is what its id names.
fn command(wish: &Wish, task: Option<&Task>, now: i64) -> Command {
    let Wish { kind, id, a, b } = *wish;
    let id = format!("t{id}");
    let queue = QUEUES[usize::from(a) % 2].to_owned();
    // Mostly what is there, sometimes something else.
    let off = |n: u8| i64::from(n.is_multiple_of(5));
    let stamp = task.map_or(Stamp::FIRST, Task::stamp);
    let stamp = Stamp { retry_count: stamp.retry_count + off(a), ..stamp };
    let generation = stamp.generation + off(b);
    let fence = task.map_or(1, |task| task.state.fence) + off(a);
    let wake_at = task.and_then(|task| task.state.wake_at).unwrap_or(now) + off(b);
    let outcome = match b % 5 {
        0 => die(DeadReason::RetriesExhausted),
        1 => retry_after(900_000, true),
        2 => retry_after(i64::from(a) * 100, false),
        _ => Decision::Succeed,
    };
    let mut settlement = settlement(outcome);
    settlement.result = (a % 2 == 0).then(|| result(&id));
    match kind {
        0..=7 => {
            let mut new = new_task(&id);
            new.queue = queue;
            new.spec_mut().idempotency_key =
                Some(format!("key {}", if b % 3 == 0 { u8::from(b % 2 == 0) } else { 2 + wish.id }));
            new.spec_mut().submission_hash = (a % 4 == 0).then(|| format!("bytes {}", b % 3));
            new.redelivered = a % 8 == 0;
            if b % 7 == 0 {
                new.spec_mut().payload_hash = "hash of another order".into();
            }
            new.claimant = new.claimant.filter(|_| b % 4 != 0);
            new.publish = a % 5 == 0;
            new.spec_mut().reply_to = (b % 2 == 0).then(|| "replies".into());
            new.not_before = (a % 6 == 0).then(|| now + i64::from(b) * 100);
            new.deadline = (b % 9 == 0).then(|| now + i64::from(a) * 50);
            submit(new)
        }
        8 => Command::Refuse(Box::new(refusal(&id))),
        9..=13 => claim(&id, stamp),
        14 => Command::Route { id, from: task.and_then(|task| task.state.queue.clone()), queue },
        15 => Command::Postpone { id, stamp, until: now + i64::from(b) * 100 },
        16 if b % 2 == 0 => {
            Command::Reclaim { id, worker: task.and_then(|task| task.state.worker.clone()).unwrap_or_default() }
        }
        16 => Command::Heartbeat { id, fence },
        17..=20 => Command::Settle { id, fence, settlement },
        21 => Command::Lost { id, fence, wake_at, settlement },
        22 => Command::Release { id, fence, nack: b % 2 == 0 },
        23 => Command::Intercept {
            id,
            stamp,
            ending: Ending::Dead { reason: DeadReason::PermanentError, failure: Failure::new("no_route", "x") },
        },
        24..=26 => Command::Wake { id, stamp, wake_at },
        27 => {
            let sent_at = task.and_then(|task| task.state.outstanding).map_or(now, |outstanding| outstanding.sent_at);
            Command::PublishFailed { id, stamp, sent_at: sent_at + off(b) }
        }
        28 => Command::RunNow { id },
        29 => Command::Cancel { id, note: None },
        30 => Command::Replay { id, generation, note: None },
        31 => Command::Discard { id, generation, note: None },
        32 => Command::CopyConfirmed { id, generation },
        33 => Command::CopyMissing { id, generation },
        34 => Command::SendCopy { id, generation },
        35 => {
            let lane = if b % 2 == 0 { Lane::Tasks } else { Lane::Retries };
            Command::Mark { lane: LaneKey { queue, lane }, arrives_at: now - 40_000 + i64::from(a) * 500 }
        }
        36 => {
            let lane = if b % 2 == 0 { Lane::Tasks } else { Lane::Retries };
            let lane = Spot::Lane(LaneKey { queue: queue.clone(), lane });
            Command::Missing { spot: if b % 3 == 0 { Spot::Rung { queue, delay_ms: 900_000 } } else { lane } }
        }
        37 => Command::DirtyDlq { queue },
        38 => Command::BeginPass { queue, hold_ms: 30_000, every_ms: 60_000, force: b % 4 == 0 },
        _ => match b % 2 {
            0 => Command::EndPass {
                queue,
                pass: 1 + i64::from(a % 2),
                dirty: i64::from(a % 4),
                strangers: i64::from(a % 3),
            },
            _ => Command::Poison { id, message: "y".into() },
        },
    }
}

/// Everything that can be asked, as text.
async fn all_answers(store: &dyn Store, now: i64) -> String {
    let mut told = String::new();
    let mut tell = |name: &str, what: &dyn std::fmt::Debug| told.push_str(&format!("{name}: {what:#?}\n"));
    let everything = Filter::default();
    let tasks = store.list(&everything, None, 1_000).await.unwrap().items;
    for task in &tasks {
        tell("attempts", &store.attempts(task.id()).await.unwrap());
        tell("result", &store.result(task.id()).await.unwrap());
    }
    tell("tasks", &tasks);
    tell("counts", &store.count(&everything).await.unwrap());
    for kind in [Alarm::Lease, Alarm::Sent, Alarm::Retry, Alarm::Held, Alarm::Copy] {
        for moment in [now, i64::MAX] {
            let ringing: BTreeSet<String> =
                store.alarms(kind, moment, 1_000).await.unwrap().iter().map(|task| task.id().to_owned()).collect();
            tell("alarms", &(kind, ringing));
        }
    }
    tell("next alarm", &store.next_alarm().await.unwrap());
    let queues = QUEUES.map(str::to_owned);
    let held = store.held_gates(&queues, "").await.unwrap();
    tell("held gates", &held);
    for chance in chances(&held, &Gates::default(), 5, now).0 {
        let heads = store.held_heads(&chance, "").await.unwrap();
        tell("held heads", &heads.iter().map(|task| task.id().to_owned()).collect::<BTreeSet<_>>());
    }
    tell("held counts", &store.held_counts().await.unwrap());
    tell("gates", &store.gates().await.unwrap());
    for queue in QUEUES {
        let fed = store.feed(queue, now, 1_000).await.unwrap();
        tell("feed", &fed.iter().map(|task| task.id().to_owned()).collect::<BTreeSet<_>>());
        tell("outstanding", &store.outstanding(queue, 1_000).await.unwrap());
        tell("dead rows", &store.dead_rows(queue, "", 1_000).await.unwrap());
        tell("dead copies", &store.dead_copies(queue).await.unwrap());
    }
    tell("lanes", &store.lanes().await.unwrap());
    tell("dlqs", &store.dlqs().await.unwrap());
    tell("pauses", &store.pauses().await.unwrap());
    tell("notices", &store.take_notices(1_000, 1).await.unwrap());
    told
}

async fn agree(steps: Vec<Step>) {
    let clock = Clock::manual(1_800_000_000_000);
    let settings = Settings { announced: Happening::ALL.into_iter().collect(), ..Settings::default() };
    let memory = MemoryStore::new(clock.clone(), settings.clone());
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { clock: clock.clone(), ..SqliteOptions::default() };
    let url = url_in(&folder);
    let open = || SqliteStore::open(&url, settings.clone(), options.clone());
    // Two on one file take turns, so that neither may believe what it remembers.
    let (sqlite, other) = (open().await.unwrap(), open().await.unwrap());
    let mut stores: [Arc<dyn Store>; 2] = [Arc::new(memory), Arc::new(sqlite)];
    let mut resting: Arc<dyn Store> = Arc::new(other);
    for (n, (pause, wishes)) in steps.iter().enumerate() {
        clock.advance(i64::from(*pause));
        if pause % 3 == 0 {
            std::mem::swap(&mut stores[1], &mut resting);
        }
        if pause % 11 == 0 {
            let key = "pause queue shipping".to_owned();
            for store in &stores {
                if n % 2 == 0 {
                    store.pause(Pause { key: key.clone(), since: clock.now(), reason: None }).await.unwrap();
                } else {
                    store.resume(&key).await.unwrap();
                }
            }
        }
        let mut commands = Vec::new();
        for wish in wishes {
            let found = stores[0].get(&[format!("t{}", wish.id)]).await.unwrap().remove(0);
            commands.push(command(wish, found.as_ref(), clock.now()));
        }
        let mut answers = Vec::new();
        for store in &stores {
            answers.push(store.apply(Urgency::Normal, commands.clone()).await.unwrap());
        }
        assert_eq!(answers[0], answers[1], "to {commands:#?}");
    }
    let expected = all_answers(&*stores[0], clock.now()).await;
    assert_eq!(expected, all_answers(&*stores[1], clock.now()).await);
    check_invariants(&stores[1].list(&Filter::default(), None, 1_000).await.unwrap().items);
    stores[1].close().await;
    resting.close().await;
}

/// Design §3.3: what the schema checks too, said by the rows themselves.
fn check_invariants(tasks: &[Task]) {
    for Task { spec, state } in tasks {
        let unfinished = !state.status.is_ended();
        assert_eq!(state.wake_at.is_some(), unfinished, "{}: an alarm exactly while it is unfinished", spec.id);
        assert_eq!(state.dead_reason.is_some(), state.status == Status::Dead, "{}", spec.id);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn stores_agree_on_every_answer_and_every_row(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(agree(steps));
    }
}
