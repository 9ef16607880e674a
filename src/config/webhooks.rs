//! `[[webhook]]`: who is told when something is wrong.

use std::collections::HashSet;
use std::net::IpAddr;

use super::raw::RawWebhook;
use super::read::subject;
use super::reader::Reader;
use super::source::Layers;
use super::url::parse_http;
use super::value::Spanned;
use crate::handler::{Webhook, is_local};
use crate::telemetry::alert::{AlertKind, Format, Signer};

pub(super) fn webhooks(raw: Vec<Spanned<RawWebhook>>, layers: &mut Layers<'_, '_, '_>) -> Vec<Webhook> {
    let mut names = HashSet::new();
    raw.into_iter().enumerate().filter_map(|(index, raw)| one(index, raw, &mut names, layers)).collect()
}

fn one(
    index: usize,
    Spanned { span, value: raw }: Spanned<RawWebhook>,
    names: &mut HashSet<String>,
    layers: &mut Layers<'_, '_, '_>,
) -> Option<Webhook> {
    let called = subject("webhook", index, raw.name.as_ref().map(|name| name.value.as_str()));
    let mut reader = Reader { called: &called, key: format!("webhook[{index}]"), layers };
    let name_span = raw.name.as_ref().map_or(span.clone(), |name| name.span.clone());
    let name = reader.name(&span, raw.name, "on call");
    if !names.insert(name.clone()) && !name.is_empty() {
        reader.refuse(&name_span, format!("there are two webhooks {name:?}; names are unique"));
    }
    let allow_local = raw.allow_local.is_some_and(|allow| allow.value);
    let url = match raw.url {
        Some(text) => {
            let url_span = text.span.clone();
            let shown = if text.value.starts_with("env:") { text.value.clone() } else { super::url::MASK.into() };
            let url = reader.resolve("url", text)?;
            match parse_http(&url) {
                Ok(url) if !allow_local && names_local(&url) => {
                    reader.refuse(
                        &url_span,
                        "url: it is an address of this machine or its link; say allow_local = true if that is meant"
                            .into(),
                    );
                    None
                }
                Ok(url) => {
                    reader.note("url", shown, &url_span);
                    Some(url)
                }
                Err(text) => {
                    reader.refuse(&url_span, format!("url: {text}"));
                    None
                }
            }
        }
        None => {
            reader.missing(&span, r#"expected a url, such as url = "env:WEBHOOK_URL""#);
            None
        }
    };
    let format = match raw.format {
        None => Format::default(),
        Some(text) => Format::parse(&text.value).unwrap_or_else(|| {
            let words = Format::ALL.map(Format::as_str).join(", ");
            reader.refuse(&text.span, format!("format: expected one of {words}, found {:?}", text.value));
            Format::default()
        }),
    };
    let signer = raw.secret.and_then(|secret| {
        let secret_span = secret.span.clone();
        let secrets = reader.resolve("secret", secret)?;
        if format != Format::Standard {
            reader.refuse(&secret_span, format!("secret: {} webhooks are not signed; leave it out", format.as_str()));
        }
        Signer::new(&secrets).map_err(|text| reader.refuse(&secret_span, format!("secret: {text}"))).ok()
    });
    let mut kinds = AlertKind::ALL.to_vec();
    if let Some(words) = raw.alerts {
        kinds.clear();
        for word in words {
            match AlertKind::parse(&word.value) {
                Some(kind) => kinds.push(kind),
                None => {
                    let words = AlertKind::ALL.map(AlertKind::as_str).join(", ");
                    reader.refuse(&word.span, format!("alerts: expected some of {words}, found {:?}", word.value));
                }
            }
        }
    }
    Some(Webhook { name, url: url?, format, signer, kinds, allow_local })
}

/// Whether the host is written as a local address, or as the name that always is one.
fn names_local(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches([']', '.']);
    host.eq_ignore_ascii_case("localhost")
        || host.to_ascii_lowercase().ends_with(".localhost")
        || host.parse::<IpAddr>().is_ok_and(is_local)
}
