//! Where a broker is and who we are to it: URLs, connections, and lapin's errors in our words.
//!
//! Nothing here ever puts a password, or a URL that may hold one, into a text.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lapin::protocol::AMQPErrorKind;
use lapin::tcp::OwnedTLSConfig;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties, ErrorKind};
use tokio::time::timeout;

use super::greeting::Greeting;
use super::sieve::FRAME_MAX;
use super::{conflict, transport};
use crate::broker::BrokerError;

/// AMQP reply codes that we tell apart.
pub(super) mod reply {
    /// A queue or exchange is not there.
    pub(in crate::broker::rabbitmq) const NOT_FOUND: u16 = 404;
    /// Something exists with other arguments, or a delivery tag is unknown.
    pub(in crate::broker::rabbitmq) const PRECONDITION_FAILED: u16 = 406;
    /// Login or permission refused.
    pub(in crate::broker::rabbitmq) const ACCESS_REFUSED: u16 = 403;
    /// The vhost does not exist, or the user may not enter it.
    pub(in crate::broker::rabbitmq) const NOT_ALLOWED: u16 = 530;
}

/// One node of the broker.
#[derive(Clone)]
pub(super) struct Endpoint {
    uri: AMQPUri,
    tls: Arc<OwnedTLSConfig>,
    /// Host and port, and the address where the host has several.
    pub(super) place: String,
    /// Which of the host's addresses, once that is known; before it cannot be connected to.
    pub(super) address: Option<SocketAddr>,
}

impl fmt::Debug for Endpoint {
    // Not derived: the URI holds the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("place", &self.place).finish_non_exhaustive()
    }
}

/// A connection that just came up.
pub(super) struct Opened {
    /// Whose it is.
    pub(super) endpoint: Arc<Endpoint>,
    /// The version that the broker told before we logged in.
    pub(super) version: String,
    /// The connection.
    pub(super) connection: Connection,
}

impl Endpoint {
    /// Reads an AMQP URL. The heartbeat of our configuration and our longest frame replace those in the URL.
    pub(super) fn parse(url: &str, heartbeat: Duration, tls: Arc<OwnedTLSConfig>) -> Result<Endpoint, BrokerError> {
        let bad = |reason: String| BrokerError::BadUrl { place: shown(url), reason };
        let rest = url
            .strip_prefix("amqp://")
            .or_else(|| url.strip_prefix("amqps://"))
            .ok_or_else(|| bad("it must start with amqp:// or amqps://".into()))?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        // A password with one of these unescaped would be cut in two, and one half would end up in our logs as a host.
        if tail.contains(['@', '#']) || authority.matches('@').count() > 1 {
            return Err(bad("\"@\", \"/\", \"?\" and \"#\" in user, password or vhost must be percent-encoded".into()));
        }
        // The parser's own message repeats its input.
        let mut uri: AMQPUri = url.parse().map_err(|_: String| {
            bad("expected amqp://user:password@host:port/vhost, reserved characters percent-encoded".into())
        })?;
        // The parser takes an IPv6 address for no host at all and falls back to localhost.
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            uri.authority.host = address.to_owned();
        }
        if uri.vhost.len() > usize::from(u8::MAX) {
            return Err(bad("the vhost is longer than 255 bytes".into()));
        }
        uri.query.heartbeat = Some(heartbeat_seconds(heartbeat));
        uri.query.frame_max = Some(FRAME_MAX);
        let place = if uri.authority.host.contains(':') {
            format!("[{}]:{}", uri.authority.host, uri.authority.port)
        } else {
            format!("{}:{}", uri.authority.host, uri.authority.port)
        };
        Ok(Endpoint { uri, tls, place, address: None })
    }

    /// This node at one of its host's addresses.
    pub(super) fn at(&self, address: SocketAddr, one_of_several: bool) -> Endpoint {
        let mut at = self.clone();
        at.address = Some(address);
        if one_of_several {
            at.place = format!("{} ({})", self.place, address.ip());
        }
        at
    }

    /// What was read.
    pub(super) fn uri(&self) -> &AMQPUri {
        &self.uri
    }

    /// Host and port.
    pub(super) fn host(&self) -> (&str, u16) {
        (&self.uri.authority.host, self.uri.authority.port)
    }

    /// Opens one connection, within `limit`; the version is what the broker said before we logged in.
    pub(super) async fn connect(&self, name: &str, limit: Duration) -> Result<(String, Connection), BrokerError> {
        let properties = ConnectionProperties::default()
            .with_connection_name(name.into())
            .with_client_property("product".into(), "redeliver".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let greeting = Arc::new(Greeting::default());
        let Some(address) = self.address else {
            return Err(BrokerError::Unreachable { place: self.place.clone(), reason: "it has no address".into() });
        };
        let connecting = transport::connect(self.uri.clone(), address, self.tls.clone(), properties, greeting.clone());
        match timeout(limit, connecting).await {
            Ok(Ok(connection)) => Ok((greeting.version(), connection)),
            Ok(Err(error)) => Err(greeting.refusal(&self.place).unwrap_or_else(|| self.error(&error))),
            Err(_) => Err(self.too_slow("connecting", limit)),
        }
    }

    /// lapin's error in our words.
    pub(super) fn error(&self, error: &lapin::Error) -> BrokerError {
        let place = self.place.clone();
        let ErrorKind::ProtocolError(told) = error.kind() else {
            return BrokerError::Unreachable { place, reason: error.to_string() };
        };
        let text = told.get_message().to_string();
        match told.get_id() {
            reply::ACCESS_REFUSED | reply::NOT_ALLOWED => {
                BrokerError::Refused { place, user: self.uri.authority.userinfo.username.clone(), reason: text }
            }
            reply::PRECONDITION_FAILED => match conflict::parse(&text) {
                Some(found) => found.into(),
                None => BrokerError::Failed { place, reason: text },
            },
            // A hard error ends the connection: a node that shuts down, a frame it did not like. The next try may do.
            _ if matches!(told.kind(), AMQPErrorKind::Hard(_)) => BrokerError::Unreachable { place, reason: text },
            _ => BrokerError::Failed { place, reason: text },
        }
    }

    /// A time-out in our words.
    pub(super) fn too_slow(&self, doing: &str, limit: Duration) -> BrokerError {
        BrokerError::Unreachable {
            place: self.place.clone(),
            reason: format!("{doing} took longer than {} s", limit.as_secs_f32()),
        }
    }
}

/// AMQP counts heartbeats in whole seconds, and 0 would mean none.
fn heartbeat_seconds(heartbeat: Duration) -> u16 {
    let seconds = heartbeat.as_millis().div_ceil(1000).clamp(1, u128::from(u16::MAX));
    u16::try_from(seconds).unwrap_or(u16::MAX)
}

/// What of a URL may be shown when it cannot be read: never anything in front of an `@`.
fn shown(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, place)) => format!("…@{place}"),
        // Without an `@` it should hold no password, but a mistyped one may.
        None => url.split_once("://").map_or_else(|| "…".to_owned(), |(scheme, _)| format!("{scheme}://…")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Endpoint, BrokerError> {
        Endpoint::parse(url, Duration::from_secs(10), Arc::default())
    }

    #[test]
    fn a_url_that_cannot_be_read_is_named_without_its_password() {
        for url in [
            "amqp://ann:se/cret@host/vh",
            "amqp://ann:se#cret@host/vh",
            "amqp://ann:se?cret@host/vh",
            "amqp://ann:se@cret@host/vh",
            "amqp://ann:secret@host:port/vh",
            "amqp://ann:secret@host/vh?heartbeat=soon",
            "http://ann:secret@host/",
            "ann:secret",
            "",
        ] {
            let text = parse(url).expect_err(url).to_string();
            assert!(!text.contains("cret"), "{url}: {text}");
        }
    }

    #[test]
    fn host_port_and_vhost_are_read() {
        let read = |url: &str| {
            let endpoint = parse(url).expect(url);
            (endpoint.place.clone(), endpoint.uri.vhost.clone(), endpoint.uri.authority.userinfo.password.clone())
        };
        assert_eq!(read("amqp://u:p@h:1/v"), ("h:1".into(), "v".into(), "p".into()));
        assert_eq!(read("amqp://u:p%40%2F@h/%2f"), ("h:5672".into(), "/".into(), "p@/".into()));
        assert_eq!(read("amqp://127.0.0.1"), ("127.0.0.1:5672".into(), "/".into(), "guest".into()));
        assert_eq!(read("amqp://u:p@[::1]:7/v"), ("[::1]:7".into(), "v".into(), "p".into()));
        assert_eq!(read("amqps://u:p@h/v").0, "h:5671");
    }

    #[test]
    fn a_heartbeat_is_whole_seconds_and_never_none() {
        assert_eq!(heartbeat_seconds(Duration::ZERO), 1);
        assert_eq!(heartbeat_seconds(Duration::from_millis(1500)), 2);
        assert_eq!(heartbeat_seconds(Duration::from_secs(10)), 10);
        assert_eq!(heartbeat_seconds(Duration::MAX), u16::MAX);
    }
}
