//! Asks RabbitMQ's management API what AMQP does not tell. One answer that cannot be had never hides the others.

use std::time::Duration;

use redeliver::broker::{About, Management, Topology};
use reqwest::StatusCode;
use serde_json::Value;

use super::rabbitmq::{Told, judge};
use super::{Context, Findings, Verdict};

/// For one question: a node that is asked about another one that hangs answers late.
const PATIENCE: Duration = Duration::from_secs(15);
/// For reaching it: behind many firewalls nobody answers at all.
const CONNECT: Duration = Duration::from_secs(3);

/// Asks and judges.
pub(super) async fn check(context: &Context, about: &About, topology: &Topology, findings: &mut Findings) {
    let todo = "enable the plugin rabbitmq_management, or set [broker] management_url; until then broker policies, members, \
                alarms and bindings are not looked at";
    let asker = match Asker::reach(context).await {
        Ok(asker) => asker,
        Err(error) => return findings.push("management", Verdict::Warning, format!("{error:#}"), todo),
    };
    let mut refused = Vec::new();
    let mut told = Told::default();
    let (vhost, submit) = (asker.at.vhost.clone(), format!("{}.submit", topology.namespace));
    let rest = format!("{submit}.rest");
    let questions: [(&str, Vec<&str>, &mut Value); 8] = [
        ("nodes", vec!["nodes"], &mut told.nodes),
        ("queues", vec!["queues", &vhost], &mut told.queues),
        ("submit", vec!["exchanges", &vhost, &submit, "bindings", "source"], &mut told.bindings),
        ("rest", vec!["exchanges", &vhost, &rest, "bindings", "source"], &mut told.rest_bindings),
        ("exchanges", vec!["exchanges", &vhost], &mut told.exchanges),
        ("consumers", vec!["consumers", &vhost], &mut told.consumers),
        ("feature flags", vec!["feature-flags"], &mut told.flags),
        ("shovels", vec!["parameters", "shovel", &vhost], &mut told.shovels),
    ];
    for (what, path, answer) in questions {
        match asker.get(&path).await {
            Ok(told) => *answer = told,
            Err(Trouble::NotAllowed) => refused.push(what),
            Err(Trouble::NotThere) => {}
            Err(Trouble::Other(error)) => {
                return findings.push("management", Verdict::Warning, error, todo);
            }
        }
    }
    if refused.is_empty() {
        findings.ok("management", asker.place());
    } else {
        let found = format!("{}: this user may not see {}", asker.place(), refused.join(", "));
        let todo = "name a user with the tag monitoring in [broker] management_url";
        findings.push("management", Verdict::Warning, found, todo);
    }
    judge(&told, about, topology, findings);
}

/// Why there is no answer.
enum Trouble {
    NotAllowed,
    /// A plugin that is not enabled, an object that does not exist.
    NotThere,
    Other(String),
}

struct Asker {
    client: reqwest::Client,
    at: Management,
}

impl Asker {
    /// The first place that answers.
    async fn reach(context: &Context) -> anyhow::Result<Asker> {
        let broker = &context.config().broker;
        let places = Management::places(&broker.urls, &broker.management_urls).map_err(anyhow::Error::msg)?;
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .connect_timeout(CONNECT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        let certificates = match &broker.tls.ca_file {
            Some(path) => reqwest::Certificate::from_pem_bundle(&std::fs::read(path)?)?,
            None => Vec::new(),
        };
        let client = if places.iter().any(|at| at.url.scheme() == "https") {
            client.tls_certs_merge(certificates)
        } else {
            // Plain HTTP must work in a container that ships no certificates.
            client.tls_certs_only(certificates)
        };
        let client = client.build()?;
        let mut unreachable = Vec::new();
        for at in places {
            let asker = Asker { client: client.clone(), at };
            match asker.get(&["whoami"]).await {
                Ok(_) => return Ok(asker),
                Err(Trouble::NotAllowed) => anyhow::bail!(
                    "{} does not know user {:?}, or it has no tag that lets it ask",
                    asker.place(),
                    asker.at.user
                ),
                Err(Trouble::NotThere) => unreachable.push(format!("{} is no management API", asker.place())),
                Err(Trouble::Other(error)) => unreachable.push(error),
            }
        }
        anyhow::bail!(unreachable.join("; "))
    }

    /// Without user and password.
    fn place(&self) -> String {
        self.at.url.to_string()
    }

    async fn get(&self, path: &[&str]) -> Result<Value, Trouble> {
        let mut url = self.at.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("api").extend(path);
        }
        let other = |error: reqwest::Error| {
            let error = anyhow::Error::from(error.without_url());
            Trouble::Other(format!("no answer from {}: {error:#}", self.place()))
        };
        let asking = self.client.get(url).basic_auth(&self.at.user, Some(&self.at.password)).send();
        let answer = asking.await.map_err(other)?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(Trouble::NotAllowed),
            StatusCode::NOT_FOUND => return Err(Trouble::NotThere),
            status => return Err(Trouble::Other(format!("{} answers {status}", self.place()))),
        }
        let text = answer.text().await.map_err(other)?;
        serde_json::from_str(&text)
            .map_err(|_| Trouble::Other(format!("what answers at {} is not RabbitMQ's management API", self.place())))
    }
}
