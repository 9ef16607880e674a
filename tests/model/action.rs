//! Everything that can happen, as names.

use redeliver::task::Lane;

use crate::world::{CopyOf, Message, TaskNo};

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Done.
    Succeeds,
    /// Deserves a retry.
    Fails,
    /// Does not.
    FailsForGood,
    /// The worker stops and gives it back.
    GivenBack,
}

/// Where the worker dies while it settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Crash {
    /// It does not.
    No,
    /// After the commit, before anything is published or acked.
    BeforePublish,
    /// After the publish, before the ack.
    BeforeAck,
}

/// What a person does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deed {
    /// Stops a waiting task.
    Cancel,
    /// Runs a waiting task now.
    RunNow,
    /// Runs a dead task again.
    Replay,
    /// Throws a dead task away.
    Discard,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A worker takes a message and commits what it means; a claim runs on, anything else is acked.
    Deliver(usize, Message),
    /// The same, but the worker dies between commit and ack.
    DeliverUnacked(usize, Message),
    /// Mutant only: the ack goes out and the worker dies before the commit.
    AckUncommitted(Message),
    /// A rung lets a message go before its time.
    DeliverEarly(usize, Message),
    /// An attempt ends and is settled.
    Finish(usize, Ending, Crash),
    /// A worker renews its lease.
    Heartbeat(usize),
    /// A worker dies while its handler runs.
    Die(usize),
    /// A scheduler finds a row's alarm ringing.
    Alarm(TaskNo),
    /// The sweeper finds a wanted copy's time come.
    SendCopy(TaskNo),
    /// A copy reaches the DLQ.
    CopyArrives(CopyOf),
    /// The confirm of a copy reaches the store.
    Confirmed(CopyOf),
    /// A message is gone; so is the publish of a worker that died between commit and publish.
    Lose(Message),
    /// A message is there twice.
    Duplicate(Message),
    /// A publish comes back, returned or nacked.
    Return(Message),
    /// The broker loses everything; its queues are found missing, that is written down, they are declared again.
    Wipe,
    /// A pass over the dirty DLQ begins.
    PassBegins,
    /// It takes every copy.
    PassTakes,
    /// It writes what it found, removes what must not be there, returns the rest.
    PassEnds,
    /// It dies after writing, before removing.
    PassDies,
    /// The DLQ's depth is compared with the rows.
    LookAtDepth,
    /// Another task's wake-up, sent just now, is delivered on a lane.
    Traffic(Lane),
    /// A person acts.
    Person(Deed, TaskNo),
    /// A tick of the store's clock.
    Tick,
}
