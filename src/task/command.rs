//! What can be asked of the rows, and what they answer.
//!
//! A command names the row and what it expects to find there; when it finds something else it changes nothing and its
//! [`Answer`] says what was there. Answers are the only way to learn what happened, so they are `#[must_use]`.
//! What an answer asks for (publish, ack) happens after the commit. How commands are carried out is in `transition`.

use std::sync::Arc;

use crate::gate::{Gates, PersonsWord, Turn};
use crate::policy::{Policies, TopicPattern};

use super::{
    Announced, Attachment, Attempt, DeadReason, Decision, Failure, IfTaken, LaneKey, Millis, Outstanding, PayloadEdit,
    Spec, Spot, Stamp, Status, Task, TaskResult, rejudge,
};

/// The times that transitions use; from the `[scheduler]` and `[broker]` sections.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long after a rung's end the store waits before it acts itself.
    pub grace_ms: Millis,
    /// The first look after a wake-up that did not arrive.
    pub patience_ms: Millis,
    /// The longest pause between looks.
    pub max_patience_ms: Millis,
    /// How far a mark must be past an arrival before it counts as lost; also how far ahead a mark may be.
    pub slack_ms: Millis,
    /// How long a publish may take; nobody repeats it sooner.
    pub confirm_timeout_ms: Millis,
    /// How long a claim holds without a heartbeat.
    pub lease_ms: Millis,
    /// What is published as events; from `[events]`.
    pub announced: Announced,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            grace_ms: 60_000,
            patience_ms: 30_000,
            max_patience_ms: 300_000,
            slack_ms: 30_000,
            confirm_timeout_ms: 10_000,
            lease_ms: 60_000,
            announced: Announced::default(),
        }
    }
}

/// Who claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claimant {
    /// The worker's identity, new at every process start.
    pub worker: String,
    /// The task types it can run; `None`: every type. A task of another type stays waiting.
    pub serves: Option<Arc<[TopicPattern]>>,
    /// The gates in force.
    pub gates: Arc<Gates>,
    /// The policies in force, by which the last failure of a retry is judged once more; `None`: not at all.
    pub policies: Option<Arc<Policies>>,
}

impl Claimant {
    /// Why the coming attempt of `task` must not run although it was decided, if so, and whether a fallback may end it.
    pub(super) fn rejudge(&self, task: &Task, now: Millis) -> Option<(DeadReason, Failure, bool)> {
        // Most claims are first attempts, and need no policy to be looked up.
        let policies = self.policies.as_ref().filter(|_| task.stamp().retry_count > 0)?;
        let policy = policies.pick(&task.spec.task_type, &task.spec.labels, now);
        let (reason, failure) = rejudge(task, policy)?;
        let falls_back = reason == DeadReason::RetriesExhausted && policy.falls_back();
        Some((reason, failure, falls_back))
    }

    /// Whether it can run tasks of this type.
    pub fn can_run(&self, task_type: &str) -> bool {
        self.serves.as_ref().is_none_or(|types| types.iter().any(|pattern| pattern.matches(task_type)))
    }
}

/// A submission that can become a runnable task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewTask {
    /// The task.
    pub spec: Arc<Spec>,
    /// Its queue.
    pub queue: String,
    /// Not to run before.
    pub not_before: Option<Millis>,
    /// No attempt starts after.
    pub deadline: Option<Millis>,
    /// The broker says this delivery may have been seen before.
    pub redelivered: bool,
    /// The row it becomes if the id or key is taken by another payload.
    pub refusal: IfTaken,
    /// Who would run it now; `None` commits it as pending.
    pub claimant: Option<Claimant>,
    /// Whether a wake-up for it is published right after the commit (the doors that have no delivery of their own).
    pub publish: bool,
    /// The broker gave up delivering it: a new task is dead at once, a known one is looked at as by a wake-up.
    pub rejected: bool,
}

impl NewTask {
    /// Its specification, to change it.
    pub fn spec_mut(&mut self) -> &mut Spec {
        Arc::make_mut(&mut self.spec)
    }
}

/// A submission or message that cannot become a runnable task, or would if nobody were in the way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The row: id from routing key, message id and bytes; no idempotency key; `raw` set.
    pub spec: Spec,
    /// The queue whose DLQ shows it.
    pub queue: String,
    /// Why it cannot run.
    pub reason: DeadReason,
    /// For people.
    pub failure: Failure,
}

/// What a settle writes besides the decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    /// Who ran it.
    pub worker: String,
    /// The policy that decided.
    pub policy: Option<String>,
    /// The policy's variant.
    pub variant: Option<String>,
    /// The response, on success.
    pub result: Option<TaskResult>,
    /// What the attempt cost.
    pub cost: Option<f64>,
    /// What it left for people.
    pub attachments: Vec<Attachment>,
    /// What it means for the task.
    pub decision: Decision,
    /// What of a success is not the real thing, such as fields that were filled in.
    pub degraded: Option<String>,
    /// The cache key under which a success that is the real thing is remembered as the last good result of its type.
    pub remember: Option<String>,
    /// What ends the task instead, should the decision be that it dies.
    pub fallback: Option<Degraded>,
    /// How long the other side asked to be left alone by tasks of the same key.
    pub hold_ms: Option<Millis>,
    /// The gates in force.
    pub gates: Arc<Gates>,
}

impl Settlement {
    /// The settlement of an attempt that brought nothing but its decision, where no gates are in force.
    pub fn new(worker: impl Into<String>, decision: Decision) -> Settlement {
        Settlement {
            worker: worker.into(),
            policy: None,
            variant: None,
            result: None,
            cost: None,
            attachments: Vec::new(),
            decision,
            degraded: None,
            remember: None,
            fallback: None,
            hold_ms: None,
            gates: Arc::default(),
        }
    }
}

/// How a waiting task ends without an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ending {
    /// As a dead letter.
    Dead {
        /// Why.
        reason: DeadReason,
        /// For people.
        failure: Failure,
    },
    /// By something that is not the real thing.
    Degraded {
        /// By what.
        degraded: Degraded,
        /// What it would have died of, for people.
        failure: Failure,
    },
}

/// An end by something that is not the real thing (F1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Degraded {
    /// What it is: `cache` or `default`.
    pub by: String,
    /// What stands in for the result.
    pub result: TaskResult,
}

/// One change to one row.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// A submission: a new task, claimed at once when it names a claimant.
    Submit(Box<NewTask>),
    /// A message that cannot become a runnable task becomes a dead row.
    Refuse(Box<Refusal>),
    /// A wake-up arrived: run the task if the stamp still holds.
    Claim {
        /// The task.
        id: String,
        /// What the message carries.
        stamp: Stamp,
        /// Who would run it; `None` only takes note that the wake-up arrived: the row keeps waiting with a fresh alarm.
        claimant: Option<Claimant>,
    },
    /// A row that others inserted gets its queue, or one whose queue is not configured any more another.
    Route {
        /// The task.
        id: String,
        /// The queue that was read.
        from: Option<String>,
        /// Its queue.
        queue: String,
    },
    /// No worker here can run it yet: wait for one until `until` without spending anything.
    Postpone {
        /// The task.
        id: String,
        /// What the message carries.
        stamp: Stamp,
        /// When to look again.
        until: Millis,
    },
    /// The lease of a running attempt is renewed.
    Heartbeat {
        /// The task.
        id: String,
        /// The claim.
        fence: i64,
    },
    /// A claim of this worker was perhaps committed without an answer: if it was, run the task, under a lease that begins now.
    Reclaim {
        /// The task.
        id: String,
        /// The worker's identity.
        worker: String,
    },
    /// A running attempt has ended.
    Settle {
        /// The task.
        id: String,
        /// The claim.
        fence: i64,
        /// How.
        settlement: Box<Settlement>,
    },
    /// A lease is over.
    Lost {
        /// The task.
        id: String,
        /// The claim.
        fence: i64,
        /// The lease end that was read.
        wake_at: Millis,
        /// What that means for the task.
        settlement: Box<Settlement>,
    },
    /// A run is given back unfinished; its handler has ended.
    Release {
        /// The task.
        id: String,
        /// The claim.
        fence: i64,
        /// Whether its delivery is still held and will be returned to the broker.
        nack: bool,
    },
    /// A waiting task ends without an attempt.
    Intercept {
        /// The task.
        id: String,
        /// What the message carries.
        stamp: Stamp,
        /// How.
        ending: Ending,
    },
    /// A held task may try its gates: the one way in which it starts.
    Admit {
        /// The task.
        id: String,
        /// The stamp that was read.
        stamp: Stamp,
        /// Who would run it.
        claimant: Claimant,
    },
    /// A person opens or closes a breaker.
    Breaker {
        /// Its key.
        key: String,
        /// The person's word.
        word: PersonsWord,
    },
    /// An alarm of a waiting row rang.
    Wake {
        /// The task.
        id: String,
        /// The stamp that was read.
        stamp: Stamp,
        /// The alarm that was read.
        wake_at: Millis,
    },
    /// A publish came back: the queue refused it or does not exist.
    PublishFailed {
        /// The task.
        id: String,
        /// What was published.
        stamp: Stamp,
        /// When.
        sent_at: Millis,
    },
    /// A person wants a waiting task run now.
    RunNow {
        /// The task.
        id: String,
    },
    /// A person stops a waiting task.
    Cancel {
        /// The task.
        id: String,
        /// Why, in that person's words.
        note: Option<String>,
    },
    /// A person runs a dead task again.
    Replay {
        /// The task.
        id: String,
        /// The generation that was looked at.
        generation: i64,
        /// Why, in that person's words.
        note: Option<String>,
    },
    /// A person runs what a dead task should have been: another task, made of it by a JSON Patch; see [`PayloadEdit`].
    Edit {
        /// The dead task.
        id: String,
        /// The generation that was looked at.
        generation: i64,
        /// What is changed, and by whom.
        edit: Arc<PayloadEdit>,
        /// Why, in that person's words.
        note: Option<String>,
    },
    /// A dead task of another installation, or one whose row was lost, becomes a row here, with its attempts.
    Adopt {
        /// The task, dead.
        task: Box<Task>,
        /// Its attempts.
        attempts: Vec<Attempt>,
    },
    /// A person throws a dead task away.
    Discard {
        /// The task.
        id: String,
        /// The generation that was looked at.
        generation: i64,
        /// Why, in that person's words.
        note: Option<String>,
    },
    /// The copy of a dead task was confirmed by the broker.
    CopyConfirmed {
        /// The task.
        id: String,
        /// The generation of the copy.
        generation: i64,
    },
    /// A whole pass over the DLQ did not see the copy of a row that was `present`.
    CopyMissing {
        /// The task.
        id: String,
        /// The generation that was looked for.
        generation: i64,
    },
    /// The sweeper wants to publish a copy whose time has come.
    SendCopy {
        /// The task.
        id: String,
        /// The generation that was read.
        generation: i64,
    },
    /// Wake-ups were delivered on a lane up to this arrival time.
    Mark {
        /// The lane.
        lane: LaneKey,
        /// The latest `arrives_at` seen.
        arrives_at: Millis,
    },
    /// A lane or rung is not there.
    Missing {
        /// Which.
        spot: Spot,
    },
    /// The DLQ of a queue may differ from the rows.
    DirtyDlq {
        /// The queue.
        queue: String,
    },
    /// A worker wants to make a pass over a dirty DLQ.
    BeginPass {
        /// The queue.
        queue: String,
        /// How long the pass holds it.
        hold_ms: Millis,
        /// The least time between the beginnings of two passes.
        every_ms: Millis,
        /// Begin although it is not dirty and the last pass was just now (a person asked).
        force: bool,
    },
    /// A pass is done.
    EndPass {
        /// The queue.
        queue: String,
        /// The pass, as [`Answer::PassBegun`] named it.
        pass: i64,
        /// The value of `dirty` when it began.
        dirty: i64,
        /// Copies with no row that it left where they are.
        strangers: i64,
    },
    /// A row that no transaction can process is set aside.
    Poison {
        /// The task.
        id: String,
        /// What went wrong with it.
        message: String,
    },
}

/// A wake-up to publish.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WakeUp {
    /// The task.
    pub id: String,
    /// The stamp it carries.
    pub stamp: Stamp,
    /// The task's own priority.
    pub priority: i64,
    /// Where to.
    pub queue: String,
    /// Over which lane, by which rung, and when.
    pub route: Outstanding,
}

/// What a command did.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub enum Answer {
    /// Claimed: run it.
    Run(Box<Task>),
    /// Committed and waiting; nobody runs it now.
    Waiting(Box<Task>),
    /// A row was made or changed to dead; its copy may be published now.
    Dead(Box<Task>),
    /// A refused message is a dead row now, or was one before.
    Refused(Box<Task>),
    /// The same task again.
    Duplicate {
        /// The task that is already there.
        id: String,
        /// Where it stands.
        status: Status,
    },
    /// Due, but a gate is shut.
    Held {
        /// Which.
        by: String,
    },
    /// Ended without an attempt, by something that is not the real thing.
    Degraded(Box<Task>),
    /// Due, but a breaker that falls back is open: the caller ends it by an intercept. Its alarm is one patience away.
    Tripped {
        /// As it stands.
        task: Box<Task>,
        /// The breaker.
        by: String,
    },
    /// Due, but its retries are spent by the policy that is in force now, and that policy may end it otherwise than by death: the caller
    /// ends it by an intercept. Its alarm is one patience away.
    Spent {
        /// As it stands.
        task: Box<Task>,
        /// What it dies of if nothing else ends it.
        failure: Box<Failure>,
    },
    /// The wake-up came before its time; the alarm keeps the time.
    Early,
    /// The stamp does not match.
    Stale {
        /// The row's stamp.
        stamp: Stamp,
    },
    /// The row is not in a status that the command works on.
    NotNow {
        /// Where it stands.
        status: Status,
    },
    /// There is no such row.
    Unknown,
    /// Settled; a retry may have to be published.
    Settled(Box<Change>),
    /// Done, nothing to publish.
    Done,
    /// Publish this.
    Publish(WakeUp),
    /// The wake-up is late; the next look is set.
    Late,
    /// The alarm was moved to the due time.
    Rearmed,
    /// Something else has changed the row since it was read, or the fence is old.
    Changed,
    /// Dead for a reason that cannot be replayed.
    NotReplayable {
        /// Why it died.
        reason: DeadReason,
    },
    /// The edit cannot be made of this task.
    NotEditable {
        /// Why not.
        reason: String,
    },
    /// A pass over the DLQ may begin.
    PassBegun {
        /// Its number.
        pass: i64,
        /// The value of `dirty` now.
        dirty: i64,
        /// When it began, by the store's clock.
        began: Millis,
    },
    /// Not now: clean, running elsewhere or too soon.
    PassRefused,
    /// The store cannot process this row; the rest of the batch was applied.
    Unprocessable {
        /// What it said.
        message: String,
    },
}

/// A settled task.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// As it stands now.
    pub task: Task,
    /// The attempt as recorded.
    pub attempt: Arc<Attempt>,
    /// The wake-up to publish to a rung, if one holds the wait.
    pub wake_up: Option<WakeUp>,
    /// Breakers that it turned.
    pub turns: Vec<(String, Turn)>,
}
