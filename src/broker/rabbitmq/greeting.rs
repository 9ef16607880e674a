//! What the broker says before anybody logs in: its product and version.
//!
//! `connection.start` carries both, but lapin keeps that frame to itself, so `transport` shows it to us on its way. A version
//! that loses retries is refused there and then, before a name, a password or a queue is sent.

use std::sync::{Mutex, PoisonError};

use amq_protocol::frame::{AMQPFrame, parse_frame};
use lapin::protocol::{AMQPClass, connection};
use lapin::types::{AMQPValue, FieldTable};
use tracing::warn;

use crate::broker::BrokerError;

/// What one connection was told. Shared by its transport, which listens, and whoever opened it.
#[derive(Debug, Default)]
pub(super) struct Greeting(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    version: String,
    refused: Option<&'static str>,
}

impl Greeting {
    /// Looks at a whole frame of the broker; an error means that nothing more should be said to it.
    pub(super) fn hear(&self, frame: &[u8]) -> Result<(), &'static str> {
        let Ok((_, AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::Start(start))))) =
            parse_frame(frame)
        else {
            return Ok(());
        };
        let version = text(&start.server_properties, "version").unwrap_or_default();
        let refused = match text(&start.server_properties, "product").as_deref() {
            Some("RabbitMQ") => match verdict(&version) {
                Verdict::Fine => None,
                Verdict::Aging(reason) => {
                    warn!(version, "{reason}");
                    None
                }
                Verdict::Refused(reason) => Some(reason),
            },
            product => {
                warn!(product, version, "the broker does not call itself RabbitMQ; its version is not checked");
                None
            }
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Heard { version, refused };
        refused.map_or(Ok(()), Err)
    }

    /// The version that was told.
    pub(super) fn version(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).version.clone()
    }

    /// The error for `place`, if the version was refused.
    pub(super) fn refusal(&self, place: &str) -> Option<BrokerError> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = heard.refused?.to_owned();
        Some(BrokerError::Version { place: place.to_owned(), version: heard.version.clone(), reason })
    }
}

fn text(table: &FieldTable, name: &str) -> Option<String> {
    match table.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// What a version of RabbitMQ means to us.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// Works, with a known fault that an update mends.
    Aging(&'static str),
    Refused(&'static str),
}

fn verdict(version: &str) -> Verdict {
    // "3.10.8", "3.13.0-rc.1", "4.1.0+17.gabc"
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    let (Some(major), Some(minor), patch) = (next(), next(), next().unwrap_or(0)) else {
        return Verdict::Aging("its version cannot be read and is not checked");
    };
    match (major, minor, patch) {
        (..=2, ..) | (3, ..=9, _) => Verdict::Refused(
            "quorum queues dead-letter at least once only from 3.10 on; update it, best to 3.13.3 or newer",
        ),
        (3, 13, 0..=2) => {
            Verdict::Refused("it drops valid retries (rabbitmq-server #11159); update it to 3.13.3 or newer")
        }
        (3, 10, 0..=4) | (3, 11, 0..=19) | (3, 12, 0..=1) => Verdict::Aging(
            "this version has faults in at-least-once dead-lettering that its later patches mend; update it",
        ),
        _ => Verdict::Fine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_lose_retries_are_refused() {
        for version in ["2.8.7", "3.8.35", "3.9.0", "3.9.29", "3.13.0", "3.13.0-rc.3", "3.13.2"] {
            assert!(matches!(verdict(version), Verdict::Refused(_)), "{version}");
        }
        for version in ["3.10.0", "3.10.4", "3.11.19", "3.12.1", "unknown", "", "3"] {
            assert!(matches!(verdict(version), Verdict::Aging(_)), "{version}");
        }
        for version in ["3.10.5", "3.10.8", "3.11.20", "3.12.2", "3.13.3", "4.0.5", "4.3.6", "4.1.0+17.gabc", "5.0.0"] {
            assert_eq!(verdict(version), Verdict::Fine, "{version}");
        }
    }
}
