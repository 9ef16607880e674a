//! What the broker says before anybody logs in: its product and version.
//!
//! `connection.start` carries both, but lapin keeps that frame to itself, so it is read here over a short connection of its
//! own. A version that loses retries must be known before the first queue is declared.

use std::pin::Pin;
use std::time::Duration;

use amq_protocol::frame::{AMQPFrame, parse_frame};
use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use lapin::protocol::{AMQPClass, connection};
use lapin::tcp::{AMQPUriTcpExt, TLSConfig};
use lapin::types::{AMQPValue, FieldTable};
use tokio::time::timeout;
use tracing::warn;

use super::endpoint::Endpoint;
use crate::broker::BrokerError;

const PROTOCOL_HEADER: &[u8; 8] = b"AMQP\x00\x00\x09\x01";
/// The real frame has some 500 bytes; what is longer is no broker.
const LONGEST_GREETING: usize = 64 * 1024;

/// The broker's version. Refuses the ones with which retries get lost.
pub(super) async fn version(endpoint: &Endpoint, limit: Duration) -> Result<String, BrokerError> {
    let unreachable = |reason: String| BrokerError::Unreachable { place: endpoint.place.clone(), reason };
    let asked = timeout(limit, async {
        let runtime = lapin::runtime::default_runtime().map_err(|error| unreachable(error.to_string()))?;
        let mut stream = endpoint
            .uri()
            .connect_with_config_async(TLSConfig::default(), &runtime)
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        read_start(Pin::new(&mut stream)).await.map_err(unreachable)
    });
    let start = match asked.await {
        Ok(start) => start?,
        Err(_) => return Err(endpoint.too_slow("the greeting", limit)),
    };
    let version = text(&start.server_properties, "version").unwrap_or_default();
    if text(&start.server_properties, "product").as_deref() != Some("RabbitMQ") {
        warn!(broker = endpoint.place, version, "the broker does not call itself RabbitMQ; its version is not checked");
        return Ok(version);
    }
    match verdict(&version) {
        Verdict::Fine => {}
        Verdict::Aging(reason) => warn!(broker = endpoint.place, version, "{reason}"),
        Verdict::Refused(reason) => {
            return Err(BrokerError::Version { place: endpoint.place.clone(), version, reason: reason.into() });
        }
    }
    Ok(version)
}

async fn read_start(mut stream: Pin<&mut (impl AsyncRead + AsyncWrite)>) -> Result<connection::Start, String> {
    stream.write_all(PROTOCOL_HEADER).await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())?;
    let mut got = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let read = stream.read(&mut chunk).await.map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("closed the connection before it said its version".into());
        }
        got.extend_from_slice(&chunk[..read]);
        match parse_frame(got.as_slice()) {
            Ok((_, AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::Start(start))))) => {
                return Ok(start);
            }
            Ok(_) => return Err("does not speak AMQP 0-9-1 as a broker does".into()),
            Err(error) if error.is_incomplete() && got.len() < LONGEST_GREETING => {}
            Err(_) => return Err("does not speak AMQP 0-9-1".into()),
        }
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
