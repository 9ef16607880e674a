//! Exit codes: what a script learns from a command without reading its text.

use std::fmt;

use redeliver::broker::BrokerError;
use redeliver::config::ConfigError;
use redeliver::dead_letter::MirrorError;
use redeliver::store::StoreError;
use redeliver::worker::StartError;

/// How a command ended. Part of the contract with scripts: the numbers never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything asked for was done; an empty list is done.
    Done = 0,
    /// It failed, for a reason that has no code of its own.
    Failed = 1,
    /// The command line or the configuration cannot be meant.
    Usage = 2,
    /// Some of it was done; stdout says what.
    Partly = 3,
    /// Whoever asks may not.
    NotAllowed = 4,
    /// The thing that was named does not exist.
    NotFound = 5,
    /// It is in another state than the command needs, perhaps since a moment ago.
    Conflict = 6,
    /// Broker, store or API do not answer.
    Unreachable = 7,
    /// Dangerous, and neither `--yes` nor a person at a terminal agreed.
    Refused = 8,
}

/// The table for `--help`.
pub const HELP: &str = "Exit codes:
  0 done (an empty list is 0)    5 not found
  1 failed                       6 conflict: the state changed
  2 usage or invalid config      7 broker, store or API unreachable
  3 partly done                  8 refused without --yes
  4 not allowed";

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        // The cast reads the number that the variant declares.
        std::process::ExitCode::from(exit as u8)
    }
}

/// An error that knows its exit code.
#[derive(Debug)]
pub struct ExitError {
    exit: Exit,
    text: String,
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ExitError {}

/// An error with that exit code.
pub fn error(exit: Exit, text: impl Into<String>) -> anyhow::Error {
    ExitError { exit, text: text.into() }.into()
}

/// The exit code of an error, by the first cause that has one.
pub fn of(error: &anyhow::Error) -> Exit {
    error.chain().find_map(of_cause).unwrap_or(Exit::Failed)
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(error) = cause.downcast_ref::<ExitError>() {
        return Some(error.exit);
    }
    // These wrap their cause transparently, so it is no link of the chain.
    match cause.downcast_ref::<StartError>() {
        Some(StartError::Store(error)) => return Some(of_store(error)),
        Some(StartError::Broker(error)) => return Some(of_broker(error)),
        Some(StartError::UnknownQueue(_)) => return Some(Exit::NotFound),
        _ => {}
    }
    match cause.downcast_ref::<MirrorError>() {
        Some(MirrorError::Store(error)) => return Some(of_store(error)),
        Some(MirrorError::Broker(error)) => return Some(of_broker(error)),
        None => {}
    }
    if let Some(error) = cause.downcast_ref::<StoreError>() {
        return Some(of_store(error));
    }
    if let Some(error) = cause.downcast_ref::<BrokerError>() {
        return Some(of_broker(error));
    }
    cause.downcast_ref::<ConfigError>().map(|_| Exit::Usage)
}

/// The exit code of a store's error.
pub fn of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Unavailable { .. } | StoreError::Unknown { .. } => Exit::Unreachable,
        StoreError::Unusable { .. } => Exit::Failed,
        StoreError::Cursor { .. } => Exit::Usage,
    }
}

fn of_broker(error: &BrokerError) -> Exit {
    match error {
        BrokerError::Unreachable { .. } | BrokerError::Refused { .. } => Exit::Unreachable,
        BrokerError::BadUrl { .. } | BrokerError::BadTls { .. } => Exit::Usage,
        BrokerError::NotEmpty { .. } => Exit::Conflict,
        BrokerError::Version { .. } | BrokerError::Conflict { .. } | BrokerError::Failed { .. } => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn the_first_cause_with_a_code_decides() {
        let unreachable = StoreError::Unavailable { place: "x".into(), reason: "locked".into() };
        let refused = BrokerError::Refused { place: "h:5672".into(), user: "me".into(), reason: "no".into() };
        let unusable = StoreError::Unusable { place: "x".into(), reason: "newer".into() };
        for (error, exit) in [
            (anyhow::Error::from(unreachable), Exit::Unreachable),
            (refused.into(), Exit::Unreachable),
            (unusable.into(), Exit::Failed),
            (ConfigError::Invalid(Vec::new()).into(), Exit::Usage),
            (error(Exit::NotFound, "no task"), Exit::NotFound),
            (anyhow::anyhow!("odd"), Exit::Failed),
        ] {
            let wrapped = Err::<(), _>(error).context("while listing").unwrap_err();
            assert_eq!(of(&wrapped), exit, "{wrapped:#}");
        }
    }
}
