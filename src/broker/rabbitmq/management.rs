//! Where RabbitMQ's management API is: beside the broker unless the configuration says otherwise.
//!
//! Only a place and who we are there; what is asked there is no business of a worker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use reqwest::Url;

use super::endpoint::Endpoint;

/// A place to ask, and who asks.
#[derive(Clone, PartialEq, Eq)]
pub struct Management {
    /// Without user and password.
    pub url: Url,
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
    /// The vhost that the broker's URL names.
    pub vhost: String,
}

impl fmt::Debug for Management {
    // Not derived: it holds the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Management")
            .field("url", &self.url.as_str())
            .field("vhost", &self.vhost)
            .finish_non_exhaustive()
    }
}

impl Management {
    /// The places for a broker at these AMQP URLs: those of `given`, with the broker's user where they name none; without any, the
    /// hosts of the broker at the plugin's own port, 15672, or 15671 with TLS.
    ///
    /// # Errors
    /// What is wrong with a URL, without quoting it.
    pub fn places(broker: &[String], given: &[String]) -> Result<Vec<Management>, String> {
        let read =
            |url: &String| Endpoint::parse(url, Duration::ZERO, Arc::default()).map_err(|error| error.to_string());
        let nodes = broker.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = nodes.first() else { return Ok(Vec::new()) };
        if given.is_empty() {
            return nodes.iter().map(|node| beside(node.uri())).collect();
        }
        given.iter().map(|url| named(url, first.uri())).collect()
    }
}

fn beside(node: &AMQPUri) -> Result<Management, String> {
    let host = &node.authority.host;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let text = match node.scheme {
        AMQPScheme::AMQP => format!("http://{host}:15672"),
        AMQPScheme::AMQPS => format!("https://{host}:15671"),
    };
    let url = text.parse().map_err(|error| format!("its management API cannot be named: {error}"))?;
    let user = &node.authority.userinfo;
    let (user, password) = (user.username.clone(), user.password.clone());
    Ok(Management { url, user, password, vhost: node.vhost.clone() })
}

fn named(text: &str, node: &AMQPUri) -> Result<Management, String> {
    const FORM: &str = "expected http://user:password@host:15672 or https://…";
    let mut url: Url = text.parse().map_err(|error| format!("{FORM}; it does not parse: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(FORM.to_owned());
    }
    // The same rules for what is percent-encoded as in the broker's own URL.
    let user = if url.username().is_empty() {
        node.authority.userinfo.clone()
    } else {
        let (_, rest) = text.split_once("://").unwrap_or_default();
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let uri = format!("amqp://{authority}").parse::<AMQPUri>().map_err(|_| FORM.to_owned())?;
        uri.authority.userinfo
    };
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return Err(FORM.to_owned());
    }
    Ok(Management { url, user: user.username, password: user.password, vhost: node.vhost.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(broker: &[&str], given: &[&str]) -> Vec<(String, String, String, String)> {
        let owned = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        let places = Management::places(&owned(broker), &owned(given)).expect("good URLs");
        places.into_iter().map(|at| (at.url.to_string(), at.user, at.password, at.vhost)).collect()
    }

    fn place(url: &str, user: &str, password: &str, vhost: &str) -> (String, String, String, String) {
        (url.into(), user.into(), password.into(), vhost.into())
    }

    #[test]
    fn it_is_looked_for_beside_every_node_with_the_brokers_own_user() {
        let found = places(&["amqp://me:p%40ss@a:5673/v", "amqps://me:x@b/%2f", "amqp://[::1]"], &[]);
        assert_eq!(
            found,
            [
                place("http://a:15672/", "me", "p@ss", "v"),
                place("https://b:15671/", "me", "x", "/"),
                place("http://[::1]:15672/", "guest", "guest", "/"),
            ]
        );
    }

    #[test]
    fn a_given_place_wins_and_may_have_a_user_of_its_own() {
        let given = ["https://watch:er%2F@m/rabbit", "http://n:1"];
        let found = places(&["amqp://me:secret@a/v"], &given);
        assert_eq!(found, [place("https://m/rabbit", "watch", "er/", "v"), place("http://n:1/", "me", "secret", "v")]);
        let wrong = Management::places(&["amqp://me:secret@a".into()], &["ftp://u:geheim@m".into()]).unwrap_err();
        assert!(!wrong.contains("geheim"), "{wrong}");
    }
}
