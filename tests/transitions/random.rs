//! Random commands, random clocks, values from the edge: whatever is thrown at the rows, the invariants of §3 hold after each.
//!
//! What is drawn here knows nothing of workers or brokers; `tests/model` knows, and searches instead of drawing.

use std::collections::BTreeMap;

use proptest::prelude::*;
use redeliver::gate::queue_pause;
use redeliver::task::{
    Answer, AttemptOutcome, Command, DEFAULT_QUEUE, DeadReason, Decision, Ending, Lane, Millis, NewTask, Spot, Stamp,
    State, Status,
};

use crate::desk::{
    Desk, anybody, check_row, die, failure, lane_key, retry_in_store, retry_on_rung, settlement, submission,
};

const IDS: [&str; 3] = ["a", "b", "c"];
const MAX_RETRIES: i64 = 2;

/// A command, with its stamp, fence and times still relative to what the row says when it is applied.
#[derive(Debug, Clone)]
enum Throw {
    Pass(Millis),
    Pause(bool),
    Submit { id: usize, key: usize, payload: bool, not_before: Option<Millis>, deadline: Option<Millis>, bits: u8 },
    Claim { id: usize, off: (i64, i64), claimed: bool },
    Heartbeat { id: usize, off: i64 },
    End { id: usize, off: i64, how: u8, delay_ms: Millis },
    Lost { id: usize, off: i64, shift: i64 },
    Release { id: usize, off: i64, nack: bool },
    Wake { id: usize, off: (i64, i64), shift: i64 },
    Returned { id: usize, shift: i64 },
    Postpone { id: usize, until: Millis },
    Deed { id: usize, off: i64, which: u8 },
    Copy { id: usize, off: i64, which: u8 },
    Mark { retries: bool, shift: Millis },
    Missing { which: u8 },
    Pass2 { which: u8, hold_ms: Millis },
}

/// Mostly small steps, sometimes the edge of the calendar.
fn time() -> impl Strategy<Value = Millis> {
    prop_oneof![
        6 => -5_000..120_000_i64,
        2 => 120_000..4_000_000_i64,
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(0), Just(-1)],
    ]
}

/// Mostly right, sometimes off by one, rarely absurd.
fn off() -> impl Strategy<Value = i64> {
    prop_oneof![12 => Just(0), 2 => Just(-1), 2 => Just(1), 1 => prop_oneof![Just(i64::MIN / 2), Just(i64::MAX / 2)]]
}

fn throw() -> impl Strategy<Value = Throw> {
    let id = 0..IDS.len();
    prop_oneof![
        4 => prop_oneof![8 => 0..90_000_i64, 1 => -4_000_000..0_i64, 1 => 0..100_000_000_i64].prop_map(Throw::Pass),
        1 => any::<bool>().prop_map(Throw::Pause),
        3 => (id.clone(), id.clone(), prop::bool::weighted(0.9), proptest::option::weighted(0.2, time()),
              proptest::option::weighted(0.2, time()), 0..16_u8)
            .prop_map(|(id, key, payload, not_before, deadline, bits)| Throw::Submit { id, key, payload, not_before, deadline, bits }),
        6 => (id.clone(), (off(), off()), prop::bool::weighted(0.9)).prop_map(|(id, off, claimed)| Throw::Claim { id, off, claimed }),
        1 => (id.clone(), off()).prop_map(|(id, off)| Throw::Heartbeat { id, off }),
        5 => (id.clone(), off(), 0..8_u8, time()).prop_map(|(id, off, how, delay_ms)| Throw::End { id, off, how, delay_ms }),
        2 => (id.clone(), off(), off()).prop_map(|(id, off, shift)| Throw::Lost { id, off, shift }),
        2 => (id.clone(), off(), any::<bool>()).prop_map(|(id, off, nack)| Throw::Release { id, off, nack }),
        6 => (id.clone(), (off(), off()), off()).prop_map(|(id, off, shift)| Throw::Wake { id, off, shift }),
        1 => (id.clone(), off()).prop_map(|(id, shift)| Throw::Returned { id, shift }),
        1 => (id.clone(), time()).prop_map(|(id, until)| Throw::Postpone { id, until }),
        2 => (id.clone(), off(), 0..6_u8).prop_map(|(id, off, which)| Throw::Deed { id, off, which }),
        3 => (id, off(), 0..3_u8).prop_map(|(id, off, which)| Throw::Copy { id, off, which }),
        2 => (any::<bool>(), time()).prop_map(|(retries, shift)| Throw::Mark { retries, shift }),
        1 => (0..4_u8).prop_map(|which| Throw::Missing { which }),
        1 => (0..4_u8, time()).prop_map(|(which, hold_ms)| Throw::Pass2 { which, hold_ms }),
    ]
}

impl Throw {
    /// The command for the rows as they stand; `None` when only the surroundings change.
    fn command(self, desk: &mut Desk) -> Option<Command> {
        let row = |desk: &Desk, id: usize| desk.rows.get(IDS[id]).map(|task| task.state.clone());
        let stamp = |desk: &Desk, id, off: (i64, i64)| {
            let stamp = row(desk, id).map_or(Stamp::FIRST, |row| row.stamp);
            Stamp { generation: stamp.generation + off.0, retry_count: stamp.retry_count + off.1 }
        };
        let fence = |desk: &Desk, id, off: i64| row(desk, id).map_or(0, |row| row.fence) + off;
        let generation = |desk: &Desk, id, off: i64| stamp(desk, id, (off, 0)).generation;
        let now = desk.now;
        let at = |shift: Millis| now.saturating_add(shift);
        Some(match self {
            Throw::Pass(length) => {
                desk.pass_time(length);
                return None;
            }
            Throw::Pause(on) => {
                desk.rows.pauses.clear();
                desk.rows.pauses.extend(on.then(|| queue_pause(DEFAULT_QUEUE)));
                return None;
            }
            Throw::Submit { id, key, payload, not_before, deadline, bits } => {
                let new = submission(IDS[id], IDS[key], if payload { "1" } else { "2" });
                Command::Submit(Box::new(NewTask {
                    not_before: not_before.map(at),
                    deadline: deadline.map(at),
                    claimant: (bits & 1 == 0).then(anybody),
                    publish: bits & 6 == 6,
                    rejected: bits & 14 == 8,
                    redelivered: bits & 8 == 8,
                    ..new
                }))
            }
            Throw::Claim { id, off, claimed } => {
                Command::Claim { id: IDS[id].into(), stamp: stamp(desk, id, off), claimant: claimed.then(anybody) }
            }
            Throw::Heartbeat { id, off } => Command::Heartbeat { id: IDS[id].into(), fence: fence(desk, id, off) },
            Throw::End { id, off, how, delay_ms } => {
                let spent = row(desk, id).map_or(0, |row| row.stamp.retry_count);
                let decision = match how {
                    0 => Decision::Succeed,
                    1 => die(DeadReason::PermanentError),
                    // As `decide` does: no retry beyond the budget, no negative delay.
                    _ if spent >= MAX_RETRIES => die(DeadReason::RetriesExhausted),
                    2..5 => retry_on_rung(delay_ms.max(1)),
                    _ => retry_in_store(delay_ms.max(0)),
                };
                Command::Settle { id: IDS[id].into(), fence: fence(desk, id, off), settlement: settlement(decision) }
            }
            Throw::Lost { id, off, shift } => {
                let spent = row(desk, id).map_or(0, |row| row.stamp.retry_count);
                let decision =
                    if spent >= MAX_RETRIES { die(DeadReason::RetriesExhausted) } else { retry_on_rung(60_000) };
                let wake_at = row(desk, id).and_then(|row| row.wake_at).unwrap_or(now).saturating_add(shift);
                let (fence, settlement) = (fence(desk, id, off), settlement(decision));
                Command::Lost { id: IDS[id].into(), fence, wake_at, settlement }
            }
            Throw::Release { id, off, nack } => {
                Command::Release { id: IDS[id].into(), fence: fence(desk, id, off), nack }
            }
            Throw::Wake { id, off, shift } => {
                let wake_at = row(desk, id).and_then(|row| row.wake_at).unwrap_or(now).saturating_add(shift);
                // An alarm is read only when it rings.
                desk.now = desk.now.max(wake_at.min(now + 100_000_000));
                if wake_at > desk.now {
                    return None;
                }
                Command::Wake { id: IDS[id].into(), stamp: stamp(desk, id, off), wake_at }
            }
            Throw::Returned { id, shift } => {
                let sent_at = row(desk, id).and_then(|row| row.outstanding).map_or(now, |sent| sent.sent_at);
                let (stamp, sent_at) = (stamp(desk, id, (0, 0)), sent_at.saturating_add(shift));
                Command::PublishFailed { id: IDS[id].into(), stamp, sent_at }
            }
            Throw::Postpone { id, until } => {
                Command::Postpone { id: IDS[id].into(), stamp: stamp(desk, id, (0, 0)), until: at(until) }
            }
            Throw::Deed { id, off, which } => match (which, IDS[id].to_owned()) {
                (0, id) => Command::RunNow { id },
                (1, id) => Command::Cancel { id, note: None },
                (2, task) => Command::Replay { id: task, generation: generation(desk, id, off), note: None },
                (3, task) => Command::Discard { id: task, generation: generation(desk, id, off), note: None },
                (4, id) => Command::Poison { id, message: "too big".into() },
                (_, task) => Command::Intercept {
                    id: task,
                    stamp: stamp(desk, id, (off, 0)),
                    ending: Ending::Dead { reason: DeadReason::PermanentError, failure: failure() },
                },
            },
            Throw::Copy { id, off, which } => {
                let generation = generation(desk, id, off);
                let id = IDS[id].to_owned();
                match which {
                    0 => Command::CopyConfirmed { id, generation },
                    1 => Command::CopyMissing { id, generation },
                    _ => Command::SendCopy { id, generation },
                }
            }
            Throw::Mark { retries, shift } => {
                let lane = lane_key(if retries { Lane::Retries } else { Lane::Tasks });
                Command::Mark { lane, arrives_at: at(shift) }
            }
            Throw::Missing { which } => Command::Missing {
                spot: match which {
                    0 => Spot::Lane(lane_key(Lane::Tasks)),
                    1 => Spot::Lane(lane_key(Lane::Retries)),
                    _ => Spot::Rung { queue: DEFAULT_QUEUE.into(), delay_ms: 60_000 },
                },
            },
            Throw::Pass2 { which, hold_ms } => {
                let queue = DEFAULT_QUEUE.to_owned();
                let ledger = desk.rows.dlqs.get(&queue).cloned().unwrap_or_default();
                match which {
                    0 => Command::DirtyDlq { queue },
                    1 => Command::EndPass { queue, pass: ledger.pass, dirty: ledger.dirty, strangers: 0 },
                    _ => Command::BeginPass { queue, hold_ms, every_ms: 60_000, force: which == 3 },
                }
            }
        })
    }
}

fn states(desk: &Desk) -> BTreeMap<String, State> {
    desk.rows.tasks().map(|task| (task.id().to_owned(), task.state.clone())).collect()
}

/// What a single step may not do, whatever the command was.
fn check_step(before: &BTreeMap<String, State>, desk: &Desk, command: &Command, answer: &Answer) -> Result<(), String> {
    let after = states(desk);
    let refused = matches!(
        answer,
        Answer::Stale { .. }
            | Answer::NotNow { .. }
            | Answer::Unknown
            | Answer::Changed
            | Answer::NotReplayable { .. }
            | Answer::Duplicate { .. }
            | Answer::PassRefused
    );
    if refused && *before != after {
        return Err(format!("{command:?} was refused with {answer:?} and changed a row"));
    }
    let moved = after.iter().filter(|(id, row)| before.get(*id) != Some(row)).count();
    if moved > 1 {
        return Err(format!("{command:?} changed {moved} rows"));
    }
    for (id, row) in &after {
        check_row(row)?;
        let Some(was) = before.get(id) else { continue };
        let grown = row.stamp.generation == was.stamp.generation && row.stamp.retry_count >= was.stamp.retry_count;
        let replayed = row.stamp == Stamp { generation: was.stamp.generation + 1, retry_count: 0 };
        if !(grown || replayed && was.status == Status::Dead) {
            return Err(format!("stamp {} became {}", was.stamp, row.stamp));
        }
        let claimed = row.status == Status::Running && was.status != Status::Running;
        if row.fence != was.fence + i64::from(claimed) {
            return Err(format!("fence {} became {} by {command:?}", was.fence, row.fence));
        }
        if matches!(was.status, Status::Succeeded | Status::Cancelled | Status::Discarded) && row != was {
            return Err(format!("{:?} is final", was.status));
        }
        if claimed && (row.due_at > desk.now || row.deadline.is_some_and(|deadline| deadline < desk.now)) {
            return Err("ran before its time or after its deadline".into());
        }
    }
    // An alarm that rang must not ring at once again.
    if let (Command::Wake { id, .. }, false) = (command, refused)
        && after[id].status.is_waiting()
        && after[id].wake_at.is_none_or(|at| at <= desk.now)
    {
        return Err(format!("the alarm stays in the past: {:?}", after[id]));
    }
    if let (Command::SendCopy { id, .. }, false) = (command, refused)
        && after[id].dlq_at.is_none_or(|at| at <= desk.now)
    {
        return Err("the copy is due at once again".into());
    }
    Ok(())
}

/// What the attempts may not say.
fn check_attempts(desk: &Desk) -> Result<(), String> {
    let mut runs: BTreeMap<(&str, i64), (i64, i64, i64)> = BTreeMap::new();
    let mut fences = BTreeMap::new();
    for attempt in &desk.attempts {
        let (count, successes, last) = runs.entry((&attempt.task_id, attempt.generation)).or_default();
        if *successes > 0 {
            return Err("an attempt after the success".into());
        }
        *count += i64::from(attempt.outcome != AttemptOutcome::Released);
        *successes += i64::from(attempt.outcome == AttemptOutcome::Succeeded);
        if *count > MAX_RETRIES + 1 || attempt.number < *last {
            return Err(format!("attempt {count}, numbered {} after {last}", attempt.number));
        }
        *last = attempt.number;
        if fences.insert(&attempt.task_id, attempt.fence).is_some_and(|fence| fence >= attempt.fence) {
            return Err("a fence settled twice".into());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_thrown_at_the_rows_the_invariants_hold(throws in proptest::collection::vec(throw(), 1..120)) {
        let mut desk = Desk::new();
        for throw in throws {
            let Some(command) = throw.command(&mut desk) else { continue };
            let before = states(&desk);
            let answer = desk.apply(command.clone());
            check_step(&before, &desk, &command, &answer).map_err(TestCaseError::fail)?;
        }
        check_attempts(&desk).map_err(TestCaseError::fail)?;
    }
}
