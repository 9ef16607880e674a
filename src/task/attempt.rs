//! The record of one run of the handler.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Attachment, Failure, Millis};

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The task succeeded.
    Succeeded,
    /// Another attempt follows.
    Retried,
    /// The task died of it, or was ended by a fallback instead.
    Died,
    /// Given back unfinished at shutdown; spends no retry and is not counted as an attempt.
    Released,
}

impl AttemptOutcome {
    /// The word used in the store and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            AttemptOutcome::Succeeded => "succeeded",
            AttemptOutcome::Retried => "retried",
            AttemptOutcome::Died => "died",
            AttemptOutcome::Released => "released",
        }
    }

    /// The outcome that `word` names, or `None`.
    pub fn parse(word: &str) -> Option<AttemptOutcome> {
        use AttemptOutcome::{Died, Released, Retried, Succeeded};
        [Succeeded, Retried, Died, Released].into_iter().find(|o| o.as_str() == word)
    }
}

/// One run of the handler, written in the transaction that settles it.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The task it belongs to.
    pub task_id: String,
    /// The fence of its claim: unique within the task, growing over generations.
    pub fence: i64,
    /// 1 for the first attempt of a generation.
    pub number: i64,
    /// The generation it ran in.
    pub generation: i64,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// What went wrong, if anything did.
    pub failure: Option<Failure>,
    /// When it was claimed.
    pub started_at: Millis,
    /// When it was settled.
    pub ended_at: Millis,
    /// Who ran it.
    pub worker: String,
    /// The policy that decided.
    pub policy: Option<String>,
    /// The policy's variant.
    pub variant: Option<String>,
    /// The delay before it.
    pub delay_before_ms: Option<Millis>,
    /// Why that delay.
    pub delay_reason: Option<String>,
    /// What it cost, in the user's unit.
    pub cost: Option<f64>,
    /// What it left for people.
    pub attachments: Vec<Attachment>,
}
