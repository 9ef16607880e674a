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
use crate::broker::about::Verdict;

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
            Some("RabbitMQ") => match Verdict::of(&version) {
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
