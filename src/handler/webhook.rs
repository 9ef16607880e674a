//! Brings an alert to a webhook.
//!
//! One task is one alert for one webhook; how often and how late it is tried again is the business of the task's policy, as for every
//! other task. Nothing is sent to loopback or link-local addresses unless the file allows it, whatever a name resolves to at the
//! moment of the call, and no redirect is followed: a webhook's address comes from a person, but who answers under it does not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url, redirect, retry};

use super::http::{judge_plain, now, transport_failure};
use super::{AttemptContext, Caps, Handler, Report};
use crate::task::{Outcome, class};
use crate::telemetry::alert::{AlertKind, Format, Sent, Signer, body};

/// For a whole call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What is read of an answer.
const ANSWER: usize = 64 << 10;

/// `[[webhook]]`
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its name; alerts remember it, not its address.
    pub name: String,
    /// Where to call. May hold a token.
    pub url: Url,
    /// In whose form.
    pub format: Format,
    /// Signs requests of the standard form.
    pub signer: Option<Signer>,
    /// What it is told.
    pub kinds: Vec<AlertKind>,
    /// Whether addresses of this machine and its link may be called.
    pub allow_local: bool,
}

impl std::fmt::Debug for Webhook {
    /// Without the URL: it may hold a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("name", &self.name).field("format", &self.format).finish_non_exhaustive()
    }
}

/// Clouds' metadata outside of the link: Alibaba's and AWS's.
const METADATA: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254))];

/// Whether an address is this machine's or its link's, or a cloud's metadata: where services listen that trust whoever reaches them.
pub fn is_local(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if METADATA.contains(&address) {
        return true;
    }
    match address {
        IpAddr::V4(address) => {
            address.is_loopback() || address.is_link_local() || address.is_unspecified() || address.is_broadcast()
        }
        IpAddr::V6(address) => {
            // RFC 6052: an IPv4 address behind a translator.
            if address.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
                let [.., a, b, c, d] = address.octets();
                return is_local(IpAddr::V4(Ipv4Addr::new(a, b, c, d)));
            }
            address.is_loopback()
                || address.is_unspecified()
                || address.is_unicast_link_local()
                || address.is_multicast()
        }
    }
}

/// Resolves as the system does, and leaves local addresses out.
struct NotLocal;

impl Resolve for NotLocal {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> = found.iter().copied().filter(|address| !is_local(address.ip())).collect();
            if allowed.is_empty() && !found.is_empty() {
                let text = format!(
                    "{} is an address of this machine or its link; say allow_local = true if that is meant",
                    name.as_str()
                );
                return Err(text.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Runs the tasks of all webhooks.
pub struct WebhookHandler {
    webhooks: Vec<(Webhook, Client)>,
}

impl WebhookHandler {
    /// A handler for these webhooks.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(webhooks: &[Webhook]) -> Result<WebhookHandler, String> {
        super::http::install_crypto();
        let clients = webhooks.iter().map(|webhook| Ok((webhook.clone(), client(webhook)?)));
        Ok(WebhookHandler { webhooks: clients.collect::<Result<_, reqwest::Error>>().map_err(|e| e.to_string())? })
    }

    async fn call(&self, attempt: &AttemptContext) -> Report {
        let sent: Sent = match attempt.payload() {
            Ok(sent) => sent,
            Err(error) => return Outcome::failure(class::BAD_PAYLOAD, format!("it is no alert: {error}")).into(),
        };
        let Some((webhook, client)) = self.webhooks.iter().find(|(webhook, _)| webhook.name == sent.webhook) else {
            let text = format!("there is no webhook {:?} any more", sent.webhook);
            return Outcome::failure(class::NO_ROUTE, text).into();
        };
        let body = body(webhook.format, &sent.alert).text;
        let headers = headers(webhook, &attempt.task.id, now(), &body);
        let call = async {
            let request = client.post(webhook.url.clone()).headers(headers).body(body);
            let mut response = request.send().await?;
            let (status, mut answer) = (response.status(), Vec::new());
            while let Some(chunk) = response.chunk().await? {
                answer.extend_from_slice(&chunk[..chunk.len().min(ANSWER - answer.len())]);
                if answer.len() >= ANSWER {
                    break;
                }
            }
            Ok::<_, reqwest::Error>((status, std::mem::take(response.headers_mut()), answer))
        };
        match tokio::time::timeout(TIMEOUT, call).await {
            Err(_) => Outcome::failure(class::TIMEOUT, format!("no answer within {} ms", TIMEOUT.as_millis())).into(),
            Ok(Err(error)) => transport_failure(error).into(),
            Ok(Ok((status, headers, answer))) => {
                let refused = webhook.format.code().and_then(|pointer| refusal(pointer, &answer));
                match refused {
                    // A bot that is asked too often answers so too; it is worth another try.
                    Some(text) if status.is_success() => Outcome::failure(class::SERVER_ERROR, text).into(),
                    _ => judge_plain(status, headers, answer, Caps::default(), now()),
                }
            }
        }
    }
}

#[async_trait]
impl Handler for WebhookHandler {
    async fn run(&self, attempt: AttemptContext) -> Report {
        tokio::select! {
            biased;
            () = attempt.cancel.cancelled() => super::cancelled(),
            report = self.call(&attempt) => report,
        }
    }
}

fn client(webhook: &Webhook) -> Result<Client, reqwest::Error> {
    let mut builder = Client::builder()
        .user_agent(concat!("redeliver/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .no_proxy();
    if webhook.url.scheme() == "http" {
        builder = builder.tls_certs_only(Vec::new());
    }
    if !webhook.allow_local {
        builder = builder.dns_resolver(Arc::new(NotLocal));
    }
    builder.build()
}

/// What Standard Webhooks ask for; the others need no more than the type of the body.
fn headers(webhook: &Webhook, id: &str, now: i64, body: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(reqwest::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if webhook.format == Format::Standard {
        let mut set = |name: &'static str, value: String| {
            // Ids of alerts, digits and base64: there is nothing in them that a header cannot carry.
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        set("webhook-id", id.to_owned());
        set("webhook-timestamp", now.div_euclid(1000).to_string());
        if let Some(signer) = &webhook.signer {
            set("webhook-signature", signer.sign(id, now, body));
        }
    }
    headers
}

/// A bot's own refusal in an answer whose status says success.
fn refusal(pointer: &str, answer: &[u8]) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let code = answer.pointer(pointer)?;
    (code != 0).then(|| format!("the bot answered code {code}"))
}
