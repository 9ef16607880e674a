//! Acts when alarms ring (§4.2): ends leases, publishes what is due, judges what is late, feeds what others inserted, sweeps
//! DLQ copies.
//!
//! Every worker runs it; compare-and-set in the store makes that safe. Each kind of alarm has its own bounded query, so that a
//! hundred thousand rows of one kind never stand before another kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::dead_letter;
use crate::store::{Alarm, StoreError, Urgency};
use crate::task::{Answer, Command, Millis, Spot, Task};
use crate::telemetry::{Event, Organ};

use super::Shared;
use super::attempt::{after_buried, after_settled, lost_settlement};
use super::feed::{BATCH, feed, wake_command};
use super::outbox::Letter;
use super::stall::StallGuard;
use super::strays::Strays;

/// The longest sleep, so that a lost nudge costs at most this.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The sleep while an alarm rings that this process cannot act on.
const UNHEEDED_SLEEP: Duration = Duration::from_millis(100);
/// How often the store is asked whether somebody outside wrote to it.
const OUTSIDE_LOOK: Duration = Duration::from_millis(200);
/// Messages on their way out beyond which no DLQ copy is added.
const MOST_WAITING: usize = 1_000;
/// How often a spot is looked for in the broker at most.
const SPOT_LOOK_MS: Millis = 5_000;
/// How often a DLQ's depth is compared with the store.
const DEPTH_LOOK_MS: Millis = 30_000;

/// Runs until the worker ends.
pub(super) async fn run(shared: Arc<Shared>, tracker: TaskTracker) {
    let mut scheduler = Scheduler {
        guard: StallGuard::new(shared.plan.settings.lease_ms, shared.pulse.now()),
        asked_others: false,
        looked_for: BTreeMap::new(),
        marks_written_at: 0,
        depths_looked_at: shared.pulse.now(),
        odd_since: BTreeMap::new(),
        passes: BTreeMap::new(),
        strays: Strays::new(shared.pulse.now()),
        tracker,
        shared,
    };
    scheduler.run().await;
}

struct Scheduler {
    shared: Arc<Shared>,
    tracker: TaskTracker,
    guard: StallGuard,
    /// Whether it knows what other processes have seen of the store before it started.
    asked_others: bool,
    /// When each spot was last looked for, by the monotonic clock.
    looked_for: BTreeMap<Spot, Millis>,
    marks_written_at: Millis,
    depths_looked_at: Millis,
    /// Since when a DLQ's depth does not fit the rows.
    odd_since: BTreeMap<String, Millis>,
    /// The last pass over each DLQ.
    passes: BTreeMap<String, JoinHandle<()>>,
    strays: Strays,
}

impl Scheduler {
    async fn run(&mut self) {
        loop {
            self.shared.pulse.vitals.note(Organ::Scheduler);
            let more = match self.round().await {
                // Not a sign of life: a round with nothing to write has only read, which works while another program has the lock.
                Ok(more) => more,
                Err(error) => {
                    self.shared.store_is_down(&error);
                    false
                }
            };
            if self.shared.stop_all.is_cancelled() {
                return;
            }
            if more {
                tokio::task::yield_now().await;
            } else {
                self.sleep().await;
            }
        }
    }

    /// Sleeps to the earliest alarm, a nudge, or a commit from outside, at most a second.
    async fn sleep(&self) {
        let shared = &self.shared;
        let next = shared.store.next_alarm().await.ok().flatten();
        let now = shared.store.now();
        let length = match next {
            None => LONGEST_SLEEP,
            // It rang in this round already and nothing could be done: no broker, a quiet stall guard, a heartbeat on its way.
            Some(at) if at <= now => UNHEEDED_SLEEP,
            Some(at) => Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0)).min(LONGEST_SLEEP),
        };
        let seen = shared.store.outside_changes().await.ok();
        let outside = async {
            loop {
                tokio::time::sleep(OUTSIDE_LOOK).await;
                if shared.store.outside_changes().await.ok() != seen {
                    shared.gate_moved.notify_one();
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = shared.stop_all.cancelled() => {}
            () = shared.nudge.notified() => {}
            () = shared.store.called() => {}
            () = outside => {}
            () = tokio::time::sleep(length) => {}
        }
    }

    /// Looks at every kind of alarm once. `true` when at least one kind had more than a round takes.
    async fn round(&mut self) -> Result<bool, StoreError> {
        self.write_marks().await;
        let mut more = self.end_leases().await?;
        more |= self.end_past_deadline().await?;
        more |= self.look_at_held().await?;
        if !self.shared.broker.is_up() {
            return Ok(more);
        }
        more |= self.send_copies().await?;
        more |= self.ring(Alarm::Retry).await?;
        more |= self.ring(Alarm::Sent).await?;
        let shared = Arc::clone(&self.shared);
        let fed = feed(shared.store.as_ref(), &shared.plan.queues, shared.plan.scheduler.lane_depth_cap, BATCH).await?;
        self.follow(fed.answers);
        more |= fed.more;
        self.watch_dlqs().await?;
        self.look_for_strays().await?;
        Ok(more)
    }

    async fn look_for_strays(&mut self) -> Result<(), StoreError> {
        let shared = &self.shared;
        let (store, broker, plan) = (shared.store.as_ref(), shared.broker.as_ref(), &shared.plan);
        let now = shared.pulse.now();
        for rerouted in self.strays.look(store, broker, &plan.topology, &plan.queues, now).await? {
            let (queue, tasks) = (rerouted.queue.as_str(), rerouted.tasks);
            shared.observers.emit(&Event::Rerouted { queue, tasks });
        }
        Ok(())
    }

    /// Writes the lanes' marks, at most once a second.
    async fn write_marks(&mut self) {
        let now = self.shared.pulse.now();
        if now - self.marks_written_at < 1000 {
            return;
        }
        let marks = std::mem::take(&mut *self.shared.marks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        if marks.is_empty() {
            return;
        }
        self.marks_written_at = now;
        let commands = marks.into_iter().map(|(lane, arrives_at)| Command::Mark { lane, arrives_at }).collect();
        self.shared.try_apply(commands).await;
    }

    async fn end_leases(&mut self) -> Result<bool, StoreError> {
        let shared = &self.shared;
        let (wall, mono) = (shared.store.now(), shared.pulse.now());
        let committed = shared.pulse.last_success();
        if !self.asked_others && committed > 0 {
            let seen = shared.store.nodes().await?.into_iter().map(|node| node.seen_at);
            self.guard.vouched(wall - (mono - committed), committed, seen);
            self.asked_others = true;
        }
        let was_silent = mono - shared.pulse.last_success() > shared.plan.settings.lease_ms / 3;
        if !self.guard.may_expire(wall, mono, shared.pulse.last_success()) {
            if was_silent {
                shared.pulse.ask_for_beat();
            }
            return Ok(false);
        }
        let rows = shared.store.alarms(Alarm::Lease, wall, BATCH).await?;
        if rows.is_empty() {
            return Ok(false);
        }
        let more = rows.len() == BATCH;
        let mut commands = Vec::with_capacity(rows.len());
        for task in &rows {
            // A claim that this very process still carries is late with its heartbeat, not lost. So may be one that it knows nothing of
            // yet, because the commit has not been answered.
            let ours = task.state.worker.as_deref() == Some(&shared.name);
            if shared.leases.holds(task.id(), task.state.fence) || ours && shared.leases.in_doubt() {
                continue;
            }
            let Some(wake_at) = task.state.wake_at else { continue };
            let (id, fence) = (task.id().to_owned(), task.state.fence);
            let settlement = Box::new(lost_settlement(shared, task).await?);
            commands.push(Command::Lost { id, fence, wake_at, settlement });
        }
        let more = more && !commands.is_empty();
        if let Err(error) = self.apply(commands).await {
            self.guard.refused(self.shared.pulse.now());
            return Err(error);
        }
        Ok(more)
    }

    async fn look_at_held(&mut self) -> Result<bool, StoreError> {
        let rows = self.shared.store.alarms(Alarm::Held, self.shared.store.now(), BATCH).await?;
        let more = rows.len() == BATCH;
        self.apply(rows.iter().filter_map(wake_command).collect()).await?;
        Ok(more)
    }

    /// Deadlines are kept whether or not the broker is there, and whatever else a row waits for.
    async fn end_past_deadline(&mut self) -> Result<bool, StoreError> {
        let rows = self.shared.store.alarms(Alarm::Deadline, self.shared.store.now(), BATCH).await?;
        let more = rows.len() == BATCH;
        self.apply(rows.iter().filter_map(wake_command).collect()).await?;
        Ok(more)
    }

    /// Waiting rows whose alarm rang: rearmed, published, or judged.
    async fn ring(&mut self, kind: Alarm) -> Result<bool, StoreError> {
        let mut rows = self.shared.store.alarms(kind, self.shared.store.now(), BATCH).await?;
        if rows.is_empty() {
            return Ok(false);
        }
        let more = rows.len() == BATCH;
        self.look_for_spots(&rows).await?;
        // The oldest goes first, so that it is the one that probes its lane.
        rows.sort_by_key(|task| task.state.outstanding.map(|outstanding| outstanding.arrives_at));
        self.apply(rows.iter().filter_map(wake_command).collect()).await?;
        Ok(more)
    }

    /// Before wake-ups are judged: are the lanes and rungs they went to still there? What is missing is written to the store first
    /// and declared again after, because an empty new queue looks like one that has delivered everything.
    async fn look_for_spots(&mut self, rows: &[Task]) -> Result<(), StoreError> {
        let now = self.shared.pulse.now();
        let mut spots: BTreeSet<Spot> = rows.iter().flat_map(spots_of).collect();
        spots.retain(|spot| self.looked_for.get(spot).is_none_or(|at| now - at >= SPOT_LOOK_MS));
        if spots.is_empty() {
            return Ok(());
        }
        for spot in &spots {
            self.looked_for.insert(spot.clone(), now);
        }
        let spots: Vec<Spot> = spots.into_iter().collect();
        let rules = self.shared.rules();
        let topology = &rules.topology;
        let missing = match self.shared.broker.missing(topology, &spots).await {
            Ok(missing) => missing,
            Err(error) => {
                tracing::warn!(%error, "cannot ask the broker for its queues; late wake-ups stay late");
                return Ok(());
            }
        };
        if missing.is_empty() {
            return Ok(());
        }
        let count = missing.len();
        let commands = missing.into_iter().map(|spot| Command::Missing { spot }).collect();
        let _: Vec<Answer> = self.shared.store.apply(Urgency::Normal, commands).await?;
        self.shared.observers.emit(&Event::SpotsMissing { count });
        if let Err(error) = self.shared.broker.declare(topology).await {
            tracing::error!(%error, "cannot declare the missing queues");
        }
        Ok(())
    }

    async fn send_copies(&mut self) -> Result<bool, StoreError> {
        // Each copy carries its payload: what the broker has not taken yet is not added to.
        if self.shared.outbox.waiting() > MOST_WAITING {
            return Ok(false);
        }
        let rows = self.shared.store.alarms(Alarm::Copy, self.shared.store.now(), BATCH).await?;
        let commands = rows
            .iter()
            .map(|task| Command::SendCopy { id: task.id().to_owned(), generation: task.stamp().generation })
            .collect::<Vec<_>>();
        if commands.is_empty() {
            return Ok(false);
        }
        for answer in self.shared.store.apply(Urgency::Normal, commands).await? {
            if let Answer::Dead(task) = answer {
                self.shared.outbox.send(Letter::Copy(task));
            }
        }
        Ok(rows.len() == BATCH)
    }

    /// A row that the store cannot process would ring for ever.
    async fn set_aside(&self, id: String, message: String) -> Result<(), StoreError> {
        tracing::error!(task = id, message, "the store cannot process this row; it is set aside as poison");
        let answers = self.shared.store.apply(Urgency::Normal, vec![Command::Poison { id, message }]).await?;
        after_buried(&self.shared, answers);
        Ok(())
    }

    async fn apply(&self, commands: Vec<Command>) -> Result<(), StoreError> {
        if commands.is_empty() {
            return Ok(());
        }
        let ids: Vec<Option<String>> = commands
            .iter()
            .map(|command| match command {
                Command::Wake { id, .. } | Command::Lost { id, .. } => Some(id.clone()),
                _ => None,
            })
            .collect();
        let answers = self.shared.store.apply(Urgency::Normal, commands).await?;
        for (answer, id) in answers.into_iter().zip(ids) {
            match (answer, id) {
                (Answer::Unprocessable { message }, Some(id)) => self.set_aside(id, message).await?,
                (answer, _) => self.follow(vec![answer]),
            }
        }
        Ok(())
    }

    fn follow(&self, answers: Vec<Answer>) {
        for answer in answers {
            match answer {
                Answer::Publish(wake_up) => self.shared.outbox.send(Letter::WakeUp(wake_up)),
                Answer::Settled(change) => after_settled(&self.shared, *change),
                Answer::Dead(_) => after_buried(&self.shared, vec![answer]),
                _ => {}
            }
        }
    }

    /// Starts a pass over each dirty DLQ, and marks as dirty one whose depth has not fitted its rows for a confirm's time.
    async fn watch_dlqs(&mut self) -> Result<(), StoreError> {
        let now = self.shared.pulse.now();
        if now - self.depths_looked_at >= DEPTH_LOOK_MS || !self.odd_since.is_empty() {
            self.depths_looked_at = now;
            self.compare_depths(now).await?;
        }
        for (queue, ledger) in self.shared.store.dlqs().await? {
            if ledger.dirty <= ledger.cleaned || !self.shared.plan.queues.iter().any(|known| known.name == queue) {
                continue;
            }
            let name = queue.clone();
            if self.passes.get(&queue).is_some_and(|pass| !pass.is_finished()) {
                continue;
            }
            // Beside the rounds: a pass over a long DLQ takes a while, and alarms must not wait for it.
            let shared = Arc::clone(&self.shared);
            let pass = self.tracker.spawn(async move {
                match dead_letter::pass(shared.store.as_ref(), shared.broker.as_ref(), &queue, false).await {
                    Ok(Some(report)) => shared.observers.emit(&Event::DlqPassed { queue: &queue, report: &report }),
                    Ok(None) => {}
                    Err(error) => tracing::warn!(queue, %error, "DLQ pass failed; it is tried again"),
                }
            });
            self.passes.insert(name, pass);
        }
        Ok(())
    }

    async fn compare_depths(&mut self, now: Millis) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let odd = match dead_letter::odd_dlqs(shared.store.as_ref(), shared.broker.as_ref(), &shared.rules().topology)
            .await
        {
            Ok(odd) => odd,
            Err(dead_letter::MirrorError::Store(error)) => return Err(error),
            Err(dead_letter::MirrorError::Broker(error)) => {
                tracing::debug!(%error, "cannot read the depth of the DLQs");
                return Ok(());
            }
        };
        self.odd_since.retain(|queue, _| odd.contains(queue));
        let mut dirty = Vec::new();
        for queue in odd {
            let since = *self.odd_since.entry(queue.clone()).or_insert(now);
            if now - since >= shared.plan.settings.confirm_timeout_ms {
                self.odd_since.remove(&queue);
                dirty.push(Command::DirtyDlq { queue });
            }
        }
        self.apply(dirty).await
    }
}

fn spots_of(task: &Task) -> Vec<Spot> {
    let Some(outstanding) = task.state.outstanding else { return Vec::new() };
    let queue = task.queue().to_owned();
    let lane = Spot::Lane(crate::task::LaneKey { queue: queue.clone(), lane: outstanding.lane });
    if outstanding.rung_ms > 0 { vec![lane, Spot::Rung { queue, delay_ms: outstanding.rung_ms }] } else { vec![lane] }
}
