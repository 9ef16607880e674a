//! The state of the model: store, broker and two workers, reduced to what decisions depend on.
//!
//! Everything a rule reads is kept as the real type. Workers are anonymous, messages are a multiset; see `canon` for what else is
//! the same to every rule.

use redeliver::task::{DlqLedger, LaneLedger, Millis, Stamp, State};

/// When it is: time moves around `now`, so `now` never changes in a canonical world. Far enough from 0 that "never" (a ledger's 0)
/// lies long before it.
pub const START: Millis = 1000;

/// How long a pass holds the DLQ, and the least time between two passes, in ticks.
pub const PASS_HOLD: Millis = 3;
/// See [`PASS_HOLD`].
pub const PASS_EVERY: Millis = 2;

/// A row of the model, by its place in `Redeliver::specs`.
pub type TaskNo = usize;

/// Everything there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// The store's clock, in ticks.
    pub now: Millis,
    /// The rows; `None` before the first commit.
    pub rows: Vec<Option<State>>,
    /// What the attempts table says about each row's current generation.
    pub history: Vec<History>,
    /// Ledgers of the tasks lane and the retries lane.
    pub lanes: [LaneLedger; 2],
    /// When every lane and rung was last found missing: a wipe takes them all at once.
    pub missing_at: Option<Millis>,
    /// Messages that the broker or the network has, sorted.
    pub in_flight: Vec<Message>,
    /// What each worker runs, sorted.
    pub workers: [Option<Run>; 2],
    /// Copies ready in the DLQ, sorted.
    pub dlq: Vec<CopyOf>,
    /// The store's ledger of the DLQ.
    pub ledger: DlqLedger,
    /// The pass over the DLQ that is under way.
    pub pass: Option<Pass>,
    /// How many more faults may strike.
    pub faults: u8,
    /// How many more times a person may act.
    pub people: u8,
    /// The first invariant that a step broke.
    pub broken: Option<Broken>,
}

/// What the attempts table says about one generation of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct History {
    /// The generation.
    pub generation: i64,
    /// Attempts, released runs not counted.
    pub attempts: i64,
    /// Attempts that succeeded.
    pub successes: i64,
}

/// A message on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// A whole new task.
    Submission {
        /// Which.
        task: TaskNo,
    },
    /// "Look at this task."
    WakeUp {
        /// Which.
        task: TaskNo,
        /// What it carries.
        stamp: Stamp,
        /// The rung it was published to; 0 for none.
        rung_ms: Millis,
        /// When it was published.
        sent_at: Millis,
        /// When it should reach its lane.
        arrives_at: Millis,
    },
    /// A copy on its way to the DLQ.
    Copy(CopyOf),
    /// The broker's word that it has a copy, on its way to the store.
    Confirm(CopyOf),
}

/// Whose copy, and of which generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyOf {
    /// The dead task.
    pub task: TaskNo,
    /// Its generation when it died.
    pub generation: i64,
}

/// A claim as the worker knows it: a snapshot, possibly of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// The task.
    pub task: TaskNo,
    /// The claim's number.
    pub fence: i64,
    /// The stamp at the claim.
    pub stamp: Stamp,
    /// The row's releases at the claim.
    pub releases: i64,
    /// The unacked delivery, while its session lasts.
    pub holds: Option<Message>,
}

/// A pass over the DLQ, as `dead_letter::pass` makes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pass {
    /// Its number in the ledger.
    pub number: i64,
    /// The value of `dirty` when it began.
    pub dirty: i64,
    /// Rows whose copy was present before anything was taken.
    pub before: Vec<CopyOf>,
    /// What it has taken from the DLQ, once it has.
    pub taken: Option<Vec<CopyOf>>,
}

/// An invariant that a single step can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A delivery was acked and no alarm covers its task.
    AckWithoutAlarm,
    /// An old fence changed a row.
    OldFence,
    /// A command that was refused changed its row all the same.
    RefusedButChanged,
    /// retry_count or generation moved in a way it must not.
    Stamp,
    /// A message started an attempt of another stamp than its own.
    WrongStamp,
    /// A finished task moved.
    Final,
    /// An attempt started although its generation had already succeeded.
    RanAfterSuccess,
    /// An alarm rang and is still in the past.
    Storm,
}

impl World {
    /// Puts a message in flight.
    pub fn send(&mut self, message: Message) {
        let at = self.in_flight.partition_point(|other| *other < message);
        self.in_flight.insert(at, message);
    }

    /// Takes one such message out of flight.
    pub fn take(&mut self, message: Message) {
        if let Ok(at) = self.in_flight.binary_search(&message) {
            self.in_flight.remove(at);
        }
    }

    /// Notes the first broken invariant.
    pub fn breaks(&mut self, what: Broken) {
        self.broken.get_or_insert(what);
    }
}

impl Message {
    /// Whether a worker may see it now without anybody having erred.
    pub fn arrived(self, now: Millis) -> bool {
        match self {
            Message::Submission { .. } => true,
            Message::WakeUp { rung_ms, arrives_at, .. } => rung_ms == 0 || arrives_at <= now,
            Message::Copy(_) | Message::Confirm(_) => false,
        }
    }

    /// The task it is about.
    pub fn task(self) -> TaskNo {
        match self {
            Message::Submission { task, .. } | Message::WakeUp { task, .. } => task,
            Message::Copy(copy) | Message::Confirm(copy) => copy.task,
        }
    }
}
