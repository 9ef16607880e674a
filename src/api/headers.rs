//! What holds for every answer: headers that leave a browser little to be tricked with, and names that are ours.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{App, Problem};

/// Scripts, styles, images and connections from this server only, nothing inline, no frame round it.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'";

const ALWAYS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Adds the headers; what a handler has set itself stays.
pub(super) async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in ALWAYS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    // What a person may see is not for a cache that others share.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Refuses names that are not ours: a page of another site whose name was pointed at this address would count as ours to the browser
/// (DNS rebinding). A bearer token is something that such a page does not have.
pub(super) async fn check_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if headers.contains_key(header::AUTHORIZATION) {
        return next.run(request).await;
    }
    let Some(host) = host(headers) else {
        return Problem::bad_request("host", "expected a name or an address").into_response();
    };
    let name = name_of(host).to_ascii_lowercase();
    if name == "localhost" || is_address(&name) || app.console.hosts.contains(&name) {
        return next.run(request).await;
    }
    Problem::wrong_host(&name).into_response()
}

/// The `Host` header.
pub(super) fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST)?.to_str().ok().filter(|host| !host.is_empty())
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or(host),
    }
}

fn is_address(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
}

/// Whether a request that changes something comes from a page of ours. Browsers say where it comes from; who does not say is no page.
pub(super) fn is_from_us(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site")
        && site != "same-origin"
    {
        return false;
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let place = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let (Some((scheme, origin)), Some(host)) = (place, host(headers)) else { return false };
    let port = if scheme == "https" { ":443" } else { ":80" };
    let plain = |place: &str| place.strip_suffix(port).unwrap_or(place).to_ascii_lowercase();
    plain(origin) == plain(host)
}

/// Whether the browser's side of the connection is encrypted, as the proxy before us says. A lie changes only the liar's own cookie.
pub(super) fn is_https(headers: &HeaderMap) -> bool {
    let first = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    first.and_then(|value| value.split(',').next()).is_some_and(|scheme| scheme.trim().eq_ignore_ascii_case("https"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_pages_of_ours_count_as_ours() {
        for (pairs, ours) in [
            (&[("host", "a:8780")][..], true),
            (&[("host", "a:8780"), ("origin", "http://a:8780")], true),
            (&[("host", "a"), ("origin", "https://a:443")], true),
            (&[("host", "a:8780"), ("origin", "http://a:8781")], false),
            (&[("host", "a:8780"), ("origin", "null")], false),
            (&[("host", "a:8780"), ("origin", "http://b:8780")], false),
            (&[("host", "a:8780"), ("sec-fetch-site", "cross-site")], false),
            (&[("host", "a:8780"), ("sec-fetch-site", "same-origin"), ("origin", "http://a:8780")], true),
        ] {
            assert_eq!(is_from_us(&headers(pairs)), ours, "{pairs:?}");
        }
    }

    #[test]
    fn a_host_is_known_with_and_without_its_port() {
        assert_eq!(["a:80", "a", "[::1]:8780", "127.0.0.1:1"].map(name_of), ["a", "a", "::1", "127.0.0.1"]);
    }
}
