//! URLs that may hold passwords: checked without being quoted, shown with the password masked.

/// What stands for a password.
pub const MASK: &str = "***";

/// `text` with the password of a URL in it masked. Text that is no URL comes back as it is.
///
/// Works on the text and not on a parsed URL, so that what does not parse does not leak either: everything between the first colon
/// after `://` and the last `@` before the first `/` behind it is taken for the password. A query's `password=` is masked as well.
pub fn mask(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    // The last `@` of all: a password with an unescaped slash must not leak.
    let (credentials, place) = match rest.rsplit_once('@') {
        Some((credentials, place)) => (Some(credentials), place),
        None => (None, rest),
    };
    let mut shown = format!("{scheme}://");
    match credentials.map(|credentials| credentials.split_once(':')) {
        Some(Some((user, _))) => shown.push_str(&format!("{user}:{MASK}@")),
        Some(None) => shown.push_str(&format!("{}@", credentials.unwrap_or_default())),
        None => {}
    }
    shown.push_str(&mask_query(place));
    shown
}

fn mask_query(place: &str) -> String {
    let Some((path, query)) = place.split_once('?') else {
        return place.to_owned();
    };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((key, _)) if ["password", "token", "secret", "key", "sslpassword"].contains(&key) => {
            format!("{key}={MASK}")
        }
        _ => pair.to_owned(),
    });
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
}

/// Checks `amqp://user:password@host:port/vhost`. The error never quotes the URL.
pub(super) fn check_amqp(text: &str) -> Result<(), String> {
    const FORM: &str = "expected amqp://user:password@host:5672/vhost or amqps://…";
    if text.is_empty() {
        return Err(format!("{FORM}, found nothing"));
    }
    let url = reqwest::Url::parse(text).map_err(|error| {
        format!("{FORM}; it does not parse: {error} (in user names and passwords write @ / : % as %40 %2F %3A %25)")
    })?;
    if !matches!(url.scheme(), "amqp" | "amqps") {
        return Err(format!("{FORM}, found the scheme {:?}", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(format!("{FORM}, found no host"));
    }
    if url.path().trim_start_matches('/').contains('/') {
        return Err(format!("{FORM}; a slash in the name of a vhost is written %2f"));
    }
    Ok(())
}

/// Checks `sqlite://path` and `postgres://host/database`. The error never quotes the URL.
///
/// # Errors
/// What is wrong, and what was expected.
pub fn check_store(text: &str) -> Result<(), String> {
    const FORM: &str = "expected sqlite://path/to/redeliver.db or postgres://user:password@host:5432/database";
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!("{FORM}, found a text without ://"));
    };
    match scheme {
        "sqlite" => {}
        "postgres" | "postgresql" if !cfg!(feature = "postgres") => {
            return Err(crate::store::WITHOUT_POSTGRES.to_owned());
        }
        "postgres" | "postgresql" => {
            return reqwest::Url::parse(text).map(drop).map_err(|error| {
                format!(
                    "{FORM}; it does not parse: {error} (in user names and passwords write @ / : % as %40 %2F %3A %25)"
                )
            });
        }
        _ => return Err(format!("{FORM}, found the scheme {scheme:?}")),
    }
    let path = rest.split('?').next().unwrap_or_default();
    if path.is_empty() {
        return Err(format!("{FORM}, found no path"));
    }
    if rest.contains(":memory:") || rest.contains("mode=memory") {
        return Err(format!("{FORM}; a store in memory would lose every task at exit"));
    }
    if rest.contains('?') {
        return Err(format!("{FORM}; options after ? are not supported"));
    }
    Ok(())
}

/// Checks and parses `http://` and `https://`. The error never quotes the URL.
pub(super) fn parse_http(text: &str) -> Result<reqwest::Url, String> {
    const FORM: &str = "expected http://host/path or https://host/path";
    let url = reqwest::Url::parse(text).map_err(|error| format!("{FORM}; it does not parse: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{FORM}, found the scheme {:?}", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(format!("{FORM}, found no host"));
    }
    Ok(url)
}

/// Checks a proxy URL. The error never quotes it.
pub(super) fn check_proxy(text: &str) -> Result<(), String> {
    const FORM: &str = "expected http://, https:// or socks5:// and a host";
    let url = reqwest::Url::parse(text).map_err(|error| format!("{FORM}; it does not parse: {error}"))?;
    if !matches!(url.scheme(), "http" | "https" | "socks5" | "socks5h") {
        return Err(format!("{FORM}, found the scheme {:?}", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(format!("{FORM}, found no host"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn passwords_are_masked_even_in_urls_that_do_not_parse() {
        for (url, shown) in [
            ("amqp://guest:guest@localhost:5672/%2f", "amqp://guest:***@localhost:5672/%2f"),
            ("amqp://u:p@ss/w:rd@host", "amqp://u:***@host"),
            ("amqp://user@host", "amqp://user@host"),
            ("sqlite://redeliver.db", "sqlite://redeliver.db"),
            ("postgres://h/db?user=x&password=y", "postgres://h/db?user=x&password=***"),
            ("embedded", "embedded"),
        ] {
            assert_eq!(mask(url), shown);
        }
    }
}
