//! The parts in which the whole is searched, each with its bounds and with what it must have seen to prove anything.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use redeliver::policy::{Backoff, Policy};
use redeliver::task::{Settings, Spec};

use crate::action::Ending;
use crate::model::{RUNG, Redeliver};
use crate::world::START;

/// What the model must have seen, or it proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// A success on the second attempt.
    SuccessAfterRetry,
    /// A success in generation 1.
    ReplayedSuccess,
    /// A task out of retries.
    Exhausted,
    /// A task that died of a permanent error.
    Permanent,
    /// A message whose stamp no longer held.
    StaleDropped,
    /// A message whose task was not waiting.
    NotWaitingDropped,
    /// A lease that ended.
    LeaseLost,
    /// A settle with an old fence.
    SettleRefused,
    /// A late wake-up left alone.
    Late,
    /// A late wake-up sent again as a probe.
    Probe,
    /// A wake-up judged lost by the lane's mark.
    LostByMark,
    /// A wake-up judged lost because its lane went missing.
    LostByMissing,
    /// A wake-up before its time.
    Early,
    /// A run given back.
    Released,
    /// A run given back once too often.
    ReleasedTooOften,
    /// A publish that came back.
    Returned,
    /// A copy that a pass found missing.
    CopyMissing,
    /// A copy that a pass removed.
    CopyRemoved,
    /// A wanted copy that a pass found in place.
    CopyFound,
    /// A refused submission.
    Conflict,
    /// The same submission again.
    Duplicate,
    /// A deadline that passed.
    Deadline,
}

impl Redeliver {
    /// What a task's life must show.
    pub const LIFE: &'static [Sight] = &[
        Sight::SuccessAfterRetry,
        Sight::Exhausted,
        Sight::StaleDropped,
        Sight::NotWaitingDropped,
        Sight::LeaseLost,
        Sight::SettleRefused,
        Sight::Late,
        Sight::Probe,
        Sight::LostByMissing,
        Sight::Early,
        Sight::Released,
        Sight::ReleasedTooOften,
        Sight::Duplicate,
    ];
    /// The same where no broker holds a wait, so that nothing can be early.
    pub const LIFE_WITHOUT_RUNGS: &'static [Sight] = &[
        Sight::SuccessAfterRetry,
        Sight::Exhausted,
        Sight::StaleDropped,
        Sight::LeaseLost,
        Sight::SettleRefused,
        Sight::Probe,
        Sight::Released,
    ];
    /// What people's part in it must show.
    pub const PEOPLE: &'static [Sight] = &[Sight::ReplayedSuccess, Sight::Returned, Sight::StaleDropped];

    /// One task, everything that can go wrong.
    pub fn one_task() -> Redeliver {
        Redeliver {
            submissions: 1,
            specs: vec![spec("task", "key", "{}")],
            deadline: None,
            settings: Settings {
                grace_ms: 1,
                patience_ms: 1,
                max_patience_ms: 2,
                slack_ms: 1,
                confirm_timeout_ms: 1,
                lease_ms: 2,
                ..Settings::default()
            },
            policy: Policy { max_retries: 1, backoff: Backoff::Fixed(RUNG), ..Policy::built_in() },
            on_rung: true,
            messages: 2,
            copies: 2,
            confirms: 1,
            mirror: false,
            faults: 2,
            people: 0,
            wants: Redeliver::LIFE,
            traffic: false,
            endings: &[Ending::Succeeds, Ending::Fails, Ending::GivenBack],
            workers: 2,
            born_dead: false,
            mutant: None,
            seen: AtomicU64::new(0),
            ends: Mutex::default(),
        }
    }

    /// A dead task, its copy on the way, and everything that can go wrong between rows and DLQ.
    pub fn dead_letter() -> Redeliver {
        let policy = Policy { max_retries: 0, ..Redeliver::one_task().policy };
        let endings = &[Ending::Succeeds, Ending::Fails];
        Redeliver {
            born_dead: true,
            mirror: true,
            policy,
            endings,
            workers: 1,
            messages: 1,
            people: 1,
            wants: &[
                Sight::CopyMissing,
                Sight::CopyRemoved,
                Sight::CopyFound,
                Sight::ReplayedSuccess,
                Sight::LostByMissing,
                Sight::Exhausted,
            ],
            ..Redeliver::one_task()
        }
    }

    /// One task on lanes that others keep busy.
    pub fn busy_lanes() -> Redeliver {
        let wants = &[Sight::LostByMark, Sight::Late, Sight::Probe, Sight::SuccessAfterRetry];
        let endings = &[Ending::Succeeds, Ending::Fails];
        Redeliver { traffic: true, endings, faults: 1, wants, ..Redeliver::one_task() }
    }

    /// Two tasks with one idempotency key and different payloads.
    pub fn one_key() -> Redeliver {
        let specs =
            vec![spec("a", "key", "1"), spec("b", "key", "2"), spec("refused-a", "", "1"), spec("refused-b", "", "2")];
        let wants = &[Sight::Conflict, Sight::Duplicate, Sight::Exhausted, Sight::SuccessAfterRetry, Sight::LeaseLost];
        let endings = &[Ending::Succeeds, Ending::Fails];
        Redeliver { submissions: 2, specs, endings, messages: 3, faults: 1, wants, ..Redeliver::one_task() }
    }

    /// One task that must start within four ticks.
    pub fn with_deadline() -> Redeliver {
        let wants = &[Sight::Deadline, Sight::Permanent, Sight::Exhausted, Sight::SuccessAfterRetry];
        let endings = &[Ending::Succeeds, Ending::Fails, Ending::FailsForGood];
        Redeliver { deadline: Some(START + 4), endings, faults: 1, wants, ..Redeliver::one_task() }
    }
}

fn spec(id: &str, key: &str, payload: &str) -> Arc<Spec> {
    Arc::new(Spec {
        id: id.into(),
        task_type: "t".into(),
        payload: payload.into(),
        labels: std::collections::BTreeMap::new(),
        idempotency_key: (!key.is_empty()).then(|| key.into()),
        priority: 0,
        cache_key: None,
        reply_to: None,
        trace: None,
        payload_hash: payload.into(),
        submission_hash: None,
        created_at: START,
        raw: None,
        conflicts_with: None,
    })
}
