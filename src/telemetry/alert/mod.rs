//! What somebody should be told, and how it reads.
//!
//! Pure: from events and from what a look at the store finds, with `now` as an argument. An alert is sent as a task of its own type
//! ([`ALERT_TYPE`]), so our own machinery retries it, and its id says what it is about and in which window, so that many workers, or
//! one that restarts, tell the same thing once. It carries no payload, no label and no id of a task.

mod message;
mod watch;

pub use message::{Body, Format, Sent, Signer, body};
pub use watch::{COPY_PATIENCE_MS, Findings, judge, of_event};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use crate::task::ALERT_TYPE;

use crate::task::Millis;

const MINUTE: Millis = 60_000;
const HOUR: Millis = 60 * MINUTE;

/// What an alert is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// Dead letters of one type rise far above their own pace.
    DeadLetterSurge,
    /// A kind of failure that no retry cures; told once a day for each fingerprint.
    PermanentError,
    /// A breaker opened.
    BreakerOpened,
    /// A changed configuration was refused.
    ConfigRefused,
    /// Workers run different rules.
    RulesDiffer,
    /// Alarms are served late.
    SchedulerLate,
    /// Copies of dead letters do not get into the DLQ.
    CopiesFailing,
    /// A replay job stopped itself.
    ReplayStopped,
    /// Alerts do not reach a webhook any more.
    WebhookGivenUp,
}

impl AlertKind {
    /// All of them.
    pub const ALL: [AlertKind; 9] = [
        AlertKind::DeadLetterSurge,
        AlertKind::PermanentError,
        AlertKind::BreakerOpened,
        AlertKind::ConfigRefused,
        AlertKind::RulesDiffer,
        AlertKind::SchedulerLate,
        AlertKind::CopiesFailing,
        AlertKind::ReplayStopped,
        AlertKind::WebhookGivenUp,
    ];

    /// The word used in the file and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            AlertKind::DeadLetterSurge => "dead_letter_surge",
            AlertKind::PermanentError => "permanent_error",
            AlertKind::BreakerOpened => "breaker_opened",
            AlertKind::ConfigRefused => "config_refused",
            AlertKind::RulesDiffer => "rules_differ",
            AlertKind::SchedulerLate => "scheduler_late",
            AlertKind::CopiesFailing => "copies_failing",
            AlertKind::ReplayStopped => "replay_stopped",
            AlertKind::WebhookGivenUp => "webhook_given_up",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<AlertKind> {
        AlertKind::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// For how long the same is told once.
    fn window_ms(self) -> Millis {
        match self {
            AlertKind::PermanentError | AlertKind::ConfigRefused | AlertKind::ReplayStopped => 24 * HOUR,
            AlertKind::DeadLetterSurge | AlertKind::RulesDiffer | AlertKind::CopiesFailing => HOUR,
            AlertKind::WebhookGivenUp => HOUR,
            AlertKind::SchedulerLate => 15 * MINUTE,
            AlertKind::BreakerOpened => 5 * MINUTE,
        }
    }
}

/// Something that somebody should be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// What it is about.
    pub kind: AlertKind,
    /// The very thing: a type, a breaker's key, a fingerprint. Equal ones are told once in a window.
    pub subject: String,
    /// One sentence.
    pub summary: String,
    /// What to do first: a command line.
    pub look: String,
    /// When it was seen.
    pub at: Millis,
}

impl Alert {
    /// The id of the task that brings it to `webhook`: the same for whoever else sees the same in this window.
    pub fn task_id(&self, webhook: &str) -> String {
        let what = hex::encode(Sha256::digest(format!("{}\0{}", webhook, self.subject)));
        format!("alert-{}-{}-{}", self.kind.as_str(), &what[..16], self.at.div_euclid(self.kind.window_ms()))
    }
}

#[cfg(test)]
mod tests;
