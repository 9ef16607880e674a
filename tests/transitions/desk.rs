//! A desk with rows on it: the smallest store there can be, with a clock that a test turns.

use std::collections::BTreeMap;
use std::sync::Arc;

use redeliver::task::{
    Answer, Attempt, Claimant, Command, DEFAULT_QUEUE, DeadReason, Decision, DlqCopy, Failure, Lane, LaneKey, Millis,
    NewTask, RawSubmission, Refusal, Rows, Settings, Settlement, Spec, Stamp, State, Status, Task, WakeUp,
};

/// Some moment in 2023.
pub const MORNING: Millis = 1_700_000_000_000;
pub const SECOND: Millis = 1_000;
pub const MINUTE: Millis = 60 * SECOND;

/// The row of a test that has only one.
pub const ID: &str = "task";

pub struct Desk {
    pub rows: Rows,
    pub now: Millis,
    pub settings: Settings,
    pub attempts: Vec<Attempt>,
}

impl Desk {
    pub fn new() -> Desk {
        Desk { rows: Rows::default(), now: MORNING, settings: Settings::default(), attempts: Vec::new() }
    }

    /// A desk with one task that others inserted: pending, due, nothing outstanding.
    pub fn with_pending() -> Desk {
        let mut desk = Desk::new();
        desk.insert(ID, |_| {});
        desk
    }

    /// A desk with one running task, fence 1.
    pub fn with_running() -> Desk {
        let mut desk = Desk::with_pending();
        desk.run(Stamp::FIRST);
        desk
    }

    /// A desk with one task whose retry waits on the rung of `delay_ms`.
    pub fn with_retry_on_rung(delay_ms: Millis) -> Desk {
        let mut desk = Desk::with_running();
        let _: Answer = desk.settle(1, retry_on_rung(delay_ms));
        desk
    }

    /// A desk with one task dead for `reason`.
    pub fn with_dead(reason: DeadReason) -> Desk {
        let mut desk = Desk::with_running();
        let _: Answer = desk.settle(1, die(reason));
        desk
    }

    pub fn insert(&mut self, id: &str, change: impl FnOnce(&mut State)) {
        let mut state = State::pending(self.now);
        state.queue = Some(DEFAULT_QUEUE.into());
        change(&mut state);
        self.rows.load(Task { spec: Arc::new(spec(id, id, "1")), state });
    }

    pub fn apply(&mut self, command: Command) -> Answer {
        let answer = self.rows.apply(&command, self.now, &self.settings);
        self.attempts.extend(self.rows.take_changes().attempts.into_iter().map(Arc::unwrap_or_clone));
        answer
    }

    pub fn row(&self) -> &State {
        self.row_of(ID)
    }

    pub fn row_of(&self, id: &str) -> &State {
        &self.rows.get(id).expect("the row is there").state
    }

    pub fn change(&mut self, change: impl FnOnce(&mut State)) {
        let mut task = self.rows.get(ID).expect("the row is there").clone();
        change(&mut task.state);
        self.rows.load(task);
    }

    pub fn pass_time(&mut self, length: Millis) {
        self.now += length;
    }

    pub fn claim(&mut self, stamp: Stamp) -> Answer {
        self.apply(Command::Claim { id: ID.into(), stamp, claimant: Some(anybody()) })
    }

    /// Claims and expects to run. Returns the fence.
    pub fn run(&mut self, stamp: Stamp) -> i64 {
        match self.claim(stamp) {
            Answer::Run(task) => task.state.fence,
            other => panic!("not claimed: {other:?}"),
        }
    }

    pub fn settle(&mut self, fence: i64, decision: Decision) -> Answer {
        self.apply(Command::Settle { id: ID.into(), fence, settlement: settlement(decision) })
    }

    /// Moves the clock to the row's alarm and lets it ring.
    pub fn ring(&mut self) -> Answer {
        let (stamp, wake_at) = (self.row().stamp, self.row().wake_at.expect("it waits"));
        self.now = self.now.max(wake_at);
        self.apply(Command::Wake { id: ID.into(), stamp, wake_at })
    }

    /// Lets the alarm ring and expects a wake-up to publish.
    pub fn ring_and_publish(&mut self) -> WakeUp {
        match self.ring() {
            Answer::Publish(wake_up) => wake_up,
            other => panic!("nothing published: {other:?}"),
        }
    }

    pub fn mark(&mut self, lane: Lane, arrives_at: Millis) {
        let _: Answer = self.apply(Command::Mark { lane: lane_key(lane), arrives_at });
    }

    pub fn dirty(&self) -> i64 {
        self.rows.dlqs.get(DEFAULT_QUEUE).map_or(0, |ledger| ledger.dirty)
    }
}

pub fn lane_key(lane: Lane) -> LaneKey {
    LaneKey { queue: DEFAULT_QUEUE.into(), lane }
}

pub fn anybody() -> Claimant {
    Claimant { worker: "w".into(), serves: None, gates: Arc::default(), policies: None }
}

pub fn stamp(generation: i64, retry_count: i64) -> Stamp {
    Stamp { generation, retry_count }
}

pub fn retry_on_rung(delay_ms: Millis) -> Decision {
    Decision::Retry { delay_ms, reason: "step".into(), on_rung: true, by_handler: false, failure: failure() }
}

pub fn retry_in_store(delay_ms: Millis) -> Decision {
    Decision::Retry { delay_ms, reason: "formula".into(), on_rung: false, by_handler: false, failure: failure() }
}

pub fn die(reason: DeadReason) -> Decision {
    Decision::Die { reason, failure: failure() }
}

pub fn failure() -> Failure {
    Failure::new("timeout", "no answer")
}

pub fn settlement(decision: Decision) -> Box<Settlement> {
    Box::new(Settlement::new("w", decision))
}

pub fn spec(id: &str, key: &str, payload: &str) -> Spec {
    Spec {
        id: id.into(),
        task_type: "order.ship".into(),
        payload: payload.into(),
        labels: BTreeMap::new(),
        idempotency_key: Some(key.into()),
        priority: 0,
        cache_key: None,
        reply_to: None,
        trace: None,
        payload_hash: format!("hash of {payload}"),
        submission_hash: None,
        created_at: MORNING,
        raw: None,
        conflicts_with: None,
    }
}

/// A submission, claimed at once if it can run.
pub fn submission(id: &str, key: &str, payload: &str) -> NewTask {
    let refused = Spec {
        idempotency_key: None,
        raw: Some(Arc::new(RawSubmission {
            bytes: payload.into(),
            length: 1,
            routing_key: "order.ship".into(),
            message_id: Some(id.into()),
        })),
        ..spec(&format!("refusal of {id} {payload}"), "", payload)
    };
    NewTask {
        spec: Arc::new(spec(id, key, payload)),
        queue: DEFAULT_QUEUE.into(),
        not_before: None,
        deadline: None,
        redelivered: false,
        refusal: Refusal {
            spec: refused,
            queue: DEFAULT_QUEUE.into(),
            reason: DeadReason::DuplicateConflict,
            failure: failure(),
        }
        .into(),
        claimant: Some(anybody()),
        publish: false,
        rejected: false,
    }
}

/// Invariant 3, and that no column contradicts another.
pub fn check_row(row: &State) -> Result<(), String> {
    let dead = row.status == Status::Dead;
    let rules = [
        ("an unfinished row has an alarm, a finished one none", row.wake_at.is_some() != row.status.is_ended()),
        ("exactly dead rows have a dead reason", row.dead_reason.is_some() == dead),
        ("only dead rows have a copy", dead != (row.dlq_copy == DlqCopy::None)),
        ("exactly wanted copies have a time", row.dlq_at.is_some() == (row.dlq_copy == DlqCopy::Wanted)),
        ("only waiting rows have something outstanding", row.outstanding.is_none() || row.status.is_waiting()),
        ("only waiting rows are held", row.held_by.is_none() || row.status.is_waiting()),
        ("a held row has nothing outstanding", row.held_by.is_none() || row.outstanding.is_none()),
        ("pending means that no retry is spent", row.status != Status::Pending || row.stamp.retry_count == 0),
        ("retry_waiting means that one is", row.status != Status::RetryWaiting || row.stamp.retry_count > 0),
        ("exactly running rows have a worker", row.worker.is_some() == (row.status == Status::Running)),
        ("exactly finished rows have an end", row.ended_at.is_some() == row.status.is_ended()),
    ];
    match rules.into_iter().find(|(_, holds)| !holds) {
        Some((rule, _)) => Err(format!("{rule}: {row:?}")),
        None => Ok(()),
    }
}
