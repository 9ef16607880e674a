//! `[console]`: where API and console listen, and what they keep to themselves.

use std::net::SocketAddr;
use std::time::Duration;

use super::problem::Origin;
use super::raw::RawConsole;
use super::routes::check_pointer;
use super::source::Layers;
use super::units::show_duration;
use super::value::{DurationText, Spanned};
use crate::policy::TopicPattern;

/// `[console]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleConfig {
    /// Where `serve` listens.
    pub address: SocketAddr,
    /// Whether an address that other machines can reach is meant.
    pub public: bool,
    /// Names, besides `localhost` and addresses, under which browsers reach it; anything else is refused, so that no other site's name
    /// can be pointed here.
    pub hosts: Vec<String>,
    /// Whether every change is refused.
    pub read_only: bool,
    /// How long a browser stays signed in.
    pub session: Duration,
    /// Payload fields that only editors see.
    pub masked: Vec<MaskedFields>,
}

/// Payload fields that are not for everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskedFields {
    /// Of tasks of these types.
    pub task_type: TopicPattern,
    /// JSON pointers into the payload.
    pub fields: Vec<String>,
}

impl ConsoleConfig {
    /// The port that nothing else of ours or RabbitMQ's uses, on loopback only.
    pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8780";
}

impl Default for ConsoleConfig {
    fn default() -> ConsoleConfig {
        ConsoleConfig {
            address: SocketAddr::from(([127, 0, 0, 1], 8780)),
            public: false,
            hosts: Vec::new(),
            read_only: false,
            session: Duration::from_hours(12),
            masked: Vec::new(),
        }
    }
}

pub(super) fn console(raw: RawConsole, layers: &mut Layers<'_, '_, '_>) -> ConsoleConfig {
    let defaults = ConsoleConfig::default();
    let public = layers.scalar("console.public", raw.public, false, |_| Ok(()));
    let address = layers.scalar("console.address", raw.address, ConsoleConfig::DEFAULT_ADDRESS.into(), |text| {
        let address = check_address(text)?;
        if public || address.ip().is_loopback() {
            return Ok(());
        }
        Err(format!(
            "{address} can be reached by other machines; if that is meant, say public = true in [console], and put TLS before it"
        ))
    });
    let read_only = layers.scalar("console.read_only", raw.read_only, false, |_| Ok(()));
    let session = layers.scalar("console.session", raw.session, DurationText(defaults.session), |session| {
        let (least, most) = (Duration::from_mins(1), Duration::from_hours(24 * 90));
        if (least..=most).contains(&session.0) {
            return Ok(());
        }
        let [least, most, found] = [least, most, session.0].map(show_duration);
        Err(format!("expected from {least} to {most}, found {found}"))
    });
    let mut hosts = Vec::new();
    for host in raw.hosts.unwrap_or_default() {
        let name = host.value.trim().to_ascii_lowercase();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        if name.is_empty() || name.len() > 253 || !name.chars().all(fits) {
            let text = format!(
                "hosts: expected a name without scheme and port such as \"redeliver.example.com\", found {name:?}"
            );
            layers.problems.at(&host.span, "[console]", text);
        } else {
            layers.note("console.hosts".into(), name.clone(), &Origin::File(host.span));
            hosts.push(name);
        }
    }
    let masked = raw.masked.into_iter().flatten().enumerate().filter_map(|(index, raw)| masked(index, raw, layers));
    let masked = masked.collect();
    let address = check_address(&address).unwrap_or(defaults.address);
    ConsoleConfig { address, public, hosts, read_only, session: session.0, masked }
}

fn check_address(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| {
        format!(
            "expected an address and a port such as {:?} or \"[::1]:8780\", found {text:?}",
            ConsoleConfig::DEFAULT_ADDRESS
        )
    })
}

fn masked(
    index: usize,
    Spanned { span, value: raw }: Spanned<super::raw::RawMasked>,
    layers: &mut Layers<'_, '_, '_>,
) -> Option<MaskedFields> {
    let called = format!("[console]: masked {}", index + 1);
    let task_type = match raw.task_type {
        Some(text) => match TopicPattern::new(&text.value) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                layers.problems.at(&text.span, &called, format!("type: {error}"));
                None
            }
        },
        None => {
            layers.problems.missing(&span, &called, r##"expected a type, such as type = "#""##.into());
            None
        }
    };
    let fields = raw.fields.unwrap_or_default();
    if fields.is_empty() {
        layers.problems.missing(&span, &called, r#"expected fields, such as fields = ["/card/number"]"#.into());
    }
    for field in &fields {
        if let Err(text) = check_pointer(&field.value) {
            layers.problems.at(&field.span, &called, format!("fields: {text}"));
        }
    }
    let fields: Vec<String> = fields.into_iter().map(|field| field.value).collect();
    let task_type = task_type?;
    layers.note(format!("console.masked[{index}]"), format!("{task_type} {}", fields.join(", ")), &Origin::File(span));
    Some(MaskedFields { task_type, fields })
}
