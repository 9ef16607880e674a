//! An alert as a webhook wants to hear it.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::Sha256;

use super::Alert;
use crate::task::Millis;

/// In whose form a webhook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// Standard Webhooks (<https://www.standardwebhooks.com>, specification 1.0): `{type, timestamp, data}`, signed.
    #[default]
    Standard,
    /// Slack's incoming webhooks, and whatever understands them.
    Slack,
    /// A bot of Feishu or Lark.
    Feishu,
    /// A bot of DingTalk.
    DingTalk,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 4] = [Format::Standard, Format::Slack, Format::Feishu, Format::DingTalk];

    /// The word used in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Standard => "standard",
            Format::Slack => "slack",
            Format::Feishu => "feishu",
            Format::DingTalk => "dingtalk",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.as_str() == word)
    }

    /// Where an answer with status 200 says that it is none: bots answer so. The code for success is 0.
    pub fn code(self) -> Option<&'static str> {
        match self {
            Format::Standard | Format::Slack => None,
            Format::Feishu => Some("/code"),
            Format::DingTalk => Some("/errcode"),
        }
    }
}

/// The payload of a task that brings an alert to a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The webhook's name in the file.
    pub webhook: String,
    /// The alert.
    pub alert: Alert,
}

/// A request's body, and what it is called by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// JSON.
    pub text: String,
}

/// The body for a webhook of that format.
pub fn body(format: Format, alert: &Alert) -> Body {
    let line = format!("redeliver: {}\n{}", alert.summary, alert.look);
    let value = match format {
        Format::Standard => json!({
            "type": format!("redeliver.{}", alert.kind.as_str()),
            "timestamp": crate::task::rfc_3339(alert.at),
            "data": { "subject": alert.subject, "summary": alert.summary, "look": alert.look },
        }),
        Format::Slack => json!({ "text": escaped_for_slack(&line) }),
        Format::Feishu => json!({ "msg_type": "text", "content": { "text": line } }),
        Format::DingTalk => json!({ "msgtype": "text", "text": { "content": line } }),
    };
    Body { text: value.to_string() }
}

/// Slack reads `<!channel>` and links out of a text; these three characters are all that it asks to be escaped.
fn escaped_for_slack(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Signs requests as Standard Webhooks say: HMAC-SHA256 over `id.timestamp.body`, one signature for each secret, so that a receiver
/// can change from one to the next.
#[derive(Clone, PartialEq, Eq)]
pub struct Signer {
    keys: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signer({} keys)", self.keys.len())
    }
}

impl Signer {
    /// From secrets separated by white space, each `whsec_` and base64.
    ///
    /// # Errors
    /// What is wrong with them; never what they are.
    pub fn new(secrets: &str) -> Result<Signer, &'static str> {
        let mut keys = Vec::new();
        for secret in secrets.split_whitespace() {
            let text =
                secret.strip_prefix("whsec_").ok_or("expected whsec_ and base64, as Standard Webhooks write them")?;
            let key = BASE64_STANDARD.decode(text).map_err(|_| "what follows whsec_ is no base64")?;
            if !(24..=64).contains(&key.len()) {
                return Err("expected 24 to 64 bytes after whsec_");
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err("is empty");
        }
        Ok(Signer { keys })
    }

    /// The value of the header `webhook-signature`.
    pub fn sign(&self, id: &str, now: Millis, body: &str) -> String {
        let content = format!("{id}.{}.{body}", now.div_euclid(1000));
        let signatures = self.keys.iter().filter_map(|key| {
            // A key of any length does for HMAC; nothing is left out in fact.
            let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
            mac.update(content.as_bytes());
            Some(format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes())))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}
