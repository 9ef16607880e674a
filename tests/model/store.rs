//! The model's store: the real rows around every command, and a check of what the command did to them.

use std::collections::{BTreeMap, BTreeSet};

use redeliver::task::{
    Answer, AttemptOutcome, Command, DEFAULT_QUEUE, DlqCopy, Lane, LaneKey, Millis, Rows, Spot, State, Status, Task,
};

use crate::model::{Mutant, RUNG, Redeliver};
use crate::world::{Broken, History, TaskNo, World};

impl Redeliver {
    /// Applies a command at the world's time, as a store does: load, apply, write back.
    pub fn apply(&self, world: &mut World, command: Command) -> Answer {
        let fenced = fence_of(&command).and_then(|(id, fence)| Some((self.task_no(id)?, fence)));
        let before = world.rows.clone();
        let mut rows = self.load(world);
        let mut answer = rows.apply(&self.mutate_command(world, command), world.now, &self.settings);
        self.write(world, &mut rows);
        self.mutate_rows(world, &mut answer);
        check_changes(world, &before, &answer);
        if let Some((task, fence)) = fenced
            && before[task].as_ref().is_none_or(|row| row.status != Status::Running || row.fence != fence)
            && before[task] != world.rows[task]
        {
            world.breaks(Broken::OldFence);
        }
        answer
    }

    /// The row as the task that `decide` and workers see.
    pub fn task(&self, world: &World, task: TaskNo) -> Option<Task> {
        let state = world.rows.get(task)?.clone()?;
        Some(Task { spec: self.specs[task].clone(), state })
    }

    /// The place of a row.
    pub fn task_no(&self, id: &str) -> Option<TaskNo> {
        self.specs.iter().position(|spec| spec.id == id)
    }

    /// Notes an ack: from here on only the row protects the task.
    pub fn acked(&self, world: &mut World, task: TaskNo) {
        // A submission whose key another payload owns lives on as its refusal's row.
        let covered = [Some(task), self.refusal_of(task)].into_iter().flatten().any(|row| {
            world
                .rows
                .get(row)
                .and_then(Option::as_ref)
                .is_some_and(|row| row.status.is_ended() || row.wake_at.is_some())
        });
        if !covered {
            world.breaks(Broken::AckWithoutAlarm);
        }
    }

    fn load(&self, world: &World) -> Rows {
        let mut rows = Rows::default();
        for task in 0..self.specs.len() {
            if let Some(task) = self.task(world, task) {
                rows.load(task);
            }
        }
        rows.lanes = BTreeMap::from([(lane(Lane::Tasks), world.lanes[0]), (lane(Lane::Retries), world.lanes[1])]);
        if let Some(at) = world.missing_at {
            rows.missing = spots().into_iter().map(|spot| (spot, at)).collect();
        }
        rows.dlqs.insert(DEFAULT_QUEUE.into(), world.ledger.clone());
        rows
    }

    fn write(&self, world: &mut World, rows: &mut Rows) {
        for (row, spec) in world.rows.iter_mut().zip(&self.specs) {
            *row = rows.get(&spec.id).map(|task| task.state.clone());
        }
        world.lanes =
            [Lane::Tasks, Lane::Retries].map(|which| rows.lanes.get(&lane(which)).copied().unwrap_or_default());
        world.missing_at = rows.missing.values().max().copied();
        world.ledger = rows.dlqs.get(DEFAULT_QUEUE).cloned().unwrap_or_default();
        for attempt in rows.take_changes().attempts {
            let Some(task) = self.task_no(&attempt.task_id) else { continue };
            let history = &mut world.history[task];
            if history.generation != attempt.generation {
                *history = History { generation: attempt.generation, ..History::default() };
            }
            history.attempts += i64::from(attempt.outcome != AttemptOutcome::Released);
            history.successes += i64::from(attempt.outcome == AttemptOutcome::Succeeded);
        }
    }

    /// A wrong rule in place of a right one, to show that the model would notice.
    fn mutate_command(&self, world: &World, mut command: Command) -> Command {
        let row_of = |id: &str| self.task_no(id).and_then(|task| world.rows[task].as_ref());
        match (self.mutant, &mut command) {
            (Some(Mutant::SettleWithoutFence), Command::Settle { id, fence, .. }) => {
                *fence = row_of(id).map_or(*fence, |row| row.fence);
            }
            (Some(Mutant::ClaimWithoutStamp), Command::Claim { id, stamp, .. }) => {
                *stamp = row_of(id).map_or(*stamp, |row| row.stamp);
            }
            (Some(Mutant::LateConfirmBelieved), Command::CopyConfirmed { id, generation }) => {
                *generation = row_of(id).map_or(*generation, |row| row.stamp.generation);
            }
            _ => {}
        }
        command
    }

    fn mutate_rows(&self, world: &mut World, answer: &mut Answer) {
        match (self.mutant, answer) {
            (Some(Mutant::RetryWithoutAlarm), Answer::Settled(change)) if change.wake_up.is_some() => {
                let task = self.task_no(change.task.id());
                if let Some(row) = task.and_then(|task| world.rows[task].as_mut()) {
                    row.wake_at = None;
                }
            }
            (Some(Mutant::LostIsFree), Answer::Settled(change)) => {
                let lost = change.attempt.failure.as_ref().is_some_and(|failure| failure.class == "worker_lost");
                let task = self.task_no(change.task.id()).filter(|_| lost);
                let row = task.and_then(|task| world.rows[task].as_mut()).filter(|row| row.status.is_waiting());
                if let Some(row) = row {
                    (row.status, row.stamp.retry_count) = (Status::Pending, 0);
                }
            }
            (Some(Mutant::AlarmStaysInThePast), Answer::Late) => {
                let now = world.now;
                for row in world.rows.iter_mut().flatten().filter(|row| row.status.is_waiting()) {
                    row.wake_at = Some(now);
                }
            }
            _ => {}
        }
        if self.mutant == Some(Mutant::NothingMakesDirty) {
            world.ledger.dirty = world.ledger.cleaned;
        }
    }
}

/// What no command may do to a row, whatever it is.
fn check_changes(world: &mut World, before: &[Option<State>], answer: &Answer) {
    let refused = matches!(
        answer,
        Answer::Stale { .. } | Answer::NotNow { .. } | Answer::Unknown | Answer::Changed | Answer::NotReplayable { .. }
    );
    if refused && before != world.rows {
        world.breaks(Broken::RefusedButChanged);
    }
    for (task, was) in before.iter().enumerate() {
        let (Some(was), Some(is)) = (was, world.rows[task].clone()) else { continue };
        let (old, new) = (was.stamp, is.stamp);
        let same_generation = new.generation == old.generation && new.retry_count >= old.retry_count;
        let replayed = new.generation == old.generation + 1 && new.retry_count == 0 && was.status == Status::Dead;
        if !same_generation && !replayed {
            world.breaks(Broken::Stamp);
        }
        let claimed = is.status == Status::Running && was.status.is_waiting();
        if is.fence != was.fence + i64::from(claimed) {
            world.breaks(Broken::OldFence);
        }
        let last = matches!(was.status, Status::Succeeded | Status::Cancelled | Status::Discarded);
        if last && is != *was {
            world.breaks(Broken::Final);
        }
        let history = world.history[task];
        if claimed && history.generation == new.generation && history.successes > 0 {
            world.breaks(Broken::RanAfterSuccess);
        }
    }
}

/// Invariant 3, and that no column contradicts another.
pub fn row_is_sound(row: &State) -> bool {
    let alarm = row.wake_at.is_some() != row.status.is_ended();
    let reason = row.dead_reason.is_some() == (row.status == Status::Dead);
    let copy = match row.dlq_copy {
        DlqCopy::None => row.status != Status::Dead && row.dlq_at.is_none(),
        DlqCopy::Wanted => row.status == Status::Dead && row.dlq_at.is_some(),
        DlqCopy::Present => row.status == Status::Dead && row.dlq_at.is_none(),
    };
    let waits_only_when_waiting = row.status.is_waiting() || (row.outstanding.is_none() && row.held_by.is_none());
    let status = match row.status {
        Status::Pending => row.stamp.retry_count == 0,
        Status::RetryWaiting => row.stamp.retry_count > 0,
        _ => true,
    };
    alarm && reason && copy && waits_only_when_waiting && status
}

fn lane(lane: Lane) -> LaneKey {
    LaneKey { queue: DEFAULT_QUEUE.into(), lane }
}

/// Everything that a wipe takes.
pub fn spots() -> BTreeSet<Spot> {
    let rung = Spot::Rung { queue: DEFAULT_QUEUE.into(), delay_ms: RUNG };
    BTreeSet::from([Spot::Lane(lane(Lane::Tasks)), Spot::Lane(lane(Lane::Retries)), rung])
}

/// The mark that a delivered wake-up leaves.
pub fn mark(of: Lane, arrives_at: Millis) -> Command {
    Command::Mark { lane: lane(of), arrives_at }
}

fn fence_of(command: &Command) -> Option<(&str, i64)> {
    match command {
        Command::Heartbeat { id, fence }
        | Command::Settle { id, fence, .. }
        | Command::Lost { id, fence, .. }
        | Command::Release { id, fence, .. } => Some((id, *fence)),
        _ => None,
    }
}
