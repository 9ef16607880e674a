//! The sections and queues: from what was written to what it means.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use crate::broker::{Management, Tls};
use crate::policy::TopicPattern;
use crate::task::DEFAULT_QUEUE;

use super::problem::Origin;
use super::raw::{RawBroker, RawQueue, RawScheduler, RawStore, RawWorker};
use super::read::subject;
use super::source::Layers;
use super::units::{show_duration, show_size};
use super::url::{check_amqp, check_store};
use super::value::{DurationText, SizeText, Spanned, Urls};
use super::{BrokerConfig, QueueConfig, SchedulerConfig, StoreConfig, WorkerConfig};

/// The most attempts at once that anybody can have meant.
const MOST_CONCURRENCY: i64 = 100_000;
/// RabbitMQ's own bound on messages in its 3.x default.
const LARGEST_BODY: u64 = 128 << 20;
/// AMQP short strings hold 255 bytes; this leaves room for `.<queue>.delay.<ms>`.
const LONGEST_NAMESPACE: usize = 100;

pub(super) fn broker(raw: RawBroker, layers: &mut Layers<'_, '_, '_>) -> BrokerConfig {
    let urls =
        layers.scalar("broker.url", raw.url, Urls(vec![BrokerConfig::DEFAULT_URL.into()]), |urls| check_urls(&urls.0));
    let namespace = layers.scalar("broker.namespace", raw.namespace, "redeliver".into(), |name| check_namespace(name));
    let confirm_timeout =
        layers.scalar("broker.confirm_timeout", raw.confirm_timeout, seconds(10), at_least(Duration::from_millis(1)));
    let heartbeat = layers.scalar("broker.heartbeat", raw.heartbeat, seconds(10), |heartbeat| {
        // AMQP counts heartbeats in whole seconds, in 16 bits.
        let whole = heartbeat.0.subsec_nanos() == 0;
        if whole && (1..=65_535).contains(&heartbeat.0.as_secs()) {
            return Ok(());
        }
        Err(format!("expected whole seconds from 1s to 65535s, found {}", show_duration(heartbeat.0)))
    });
    let management = layers.scalar("broker.management_url", raw.management_url, Urls(Vec::new()), |given| {
        Management::places(&[BrokerConfig::DEFAULT_URL.into()], &given.0).map(drop)
    });
    let embedded = urls.0.iter().any(|url| url == "embedded");
    let span =
        |text: &Option<Spanned<String>>| text.as_ref().map_or(Origin::Default, |text| Origin::File(text.span.clone()));
    let (certificate_from, key_from) = (span(&raw.cert_file), span(&raw.key_file));
    // Read when the broker is opened; an empty text is none, so that a variable can take back what the file says.
    let mut file = |key, raw| {
        let text = layers.scalar(key, raw, String::new(), |_: &String| Ok(()));
        (!text.is_empty()).then(|| PathBuf::from(text))
    };
    let ca_file = file("broker.ca_file", raw.ca_file);
    let (certificate, key) = (file("broker.cert_file", raw.cert_file), file("broker.key_file", raw.key_file));
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            layers.problems.of(&certificate_from, "[broker]", "cert_file: expected key_file beside it".into());
            None
        }
        (None, Some(_)) => {
            layers.problems.of(&key_from, "[broker]", "key_file: expected cert_file beside it".into());
            None
        }
    };
    BrokerConfig {
        urls: if embedded { Vec::new() } else { urls.0 },
        namespace,
        confirm_timeout: confirm_timeout.0,
        heartbeat: heartbeat.0,
        tls: Tls { ca_file, identity },
        management_urls: management.0,
    }
}

pub(super) fn store(raw: RawStore, layers: &mut Layers<'_, '_, '_>) -> StoreConfig {
    let url = layers.scalar("store.url", raw.url, StoreConfig::DEFAULT_URL.into(), |url| check_store(url));
    StoreConfig { url }
}

pub(super) fn worker(raw: RawWorker, layers: &mut Layers<'_, '_, '_>) -> WorkerConfig {
    let concurrency = layers.scalar("worker.concurrency", raw.concurrency, 64, from_to(1, MOST_CONCURRENCY));
    let prefetch = layers.scalar("worker.prefetch", raw.prefetch, 256, |n| match n {
        0 => Err("expected a whole number from 1 to 65535, found 0, which RabbitMQ takes for unlimited".into()),
        n => from_to(1, 65_535)(n),
    });
    let retry_share = layers.scalar("worker.retry_share", raw.retry_share, 0.30, |share| {
        if *share > 0.0 && *share < 1.0 {
            return Ok(());
        }
        Err(format!("expected a number more than 0 and less than 1, found {share}"))
    });
    let lease = layers.scalar("worker.lease", raw.lease, seconds(60), at_least(Duration::from_millis(100)));
    let shutdown_grace = layers.scalar("worker.shutdown_grace", raw.shutdown_grace, seconds(30), |_| Ok(()));
    let max_body = layers.scalar("worker.max_body", raw.max_body, SizeText(1 << 20), |size| {
        if (1..=LARGEST_BODY).contains(&size.0) {
            return Ok(());
        }
        Err(format!("expected a size from 1B to {}, found {}", show_size(LARGEST_BODY), show_size(size.0)))
    });
    let no_route_hold = layers.scalar("worker.no_route_hold", raw.no_route_hold, seconds(0), |_| Ok(()));
    WorkerConfig {
        concurrency: count(concurrency),
        prefetch: u16::try_from(prefetch).unwrap_or(u16::MAX),
        retry_share,
        lease: lease.0,
        shutdown_grace: shutdown_grace.0,
        max_body: usize::try_from(max_body.0).unwrap_or(usize::MAX),
        no_route_hold: no_route_hold.0,
    }
}

pub(super) fn scheduler(raw: RawScheduler, layers: &mut Layers<'_, '_, '_>) -> SchedulerConfig {
    let positive = || at_least(Duration::from_millis(1));
    let grace = layers.scalar("scheduler.grace", raw.grace, seconds(60), positive());
    let patience = layers.scalar("scheduler.patience", raw.patience, seconds(30), positive());
    // A patience longer than the default longest pause simply is the longest pause, unless that one was set as well.
    let longest = DurationText(patience.0.max(Duration::from_mins(5)));
    let max_patience = layers.scalar("scheduler.max_patience", raw.max_patience, longest, |longest| {
        if longest.0 >= patience.0 {
            return Ok(());
        }
        let (first, found) = (show_duration(patience.0), show_duration(longest.0));
        Err(format!("expected at least patience ({first}), found {found}"))
    });
    let slack = layers.scalar("scheduler.slack", raw.slack, seconds(30), |_| Ok(()));
    let max_releases = layers.scalar("scheduler.max_releases", raw.max_releases, 5, from_to(0, 1_000_000));
    let lane_depth_cap = layers.scalar("scheduler.lane_depth_cap", raw.lane_depth_cap, 10_000, from_to(1, 10_000_000));
    SchedulerConfig {
        grace: grace.0,
        patience: patience.0,
        max_patience: max_patience.0,
        slack: slack.0,
        max_releases,
        lane_depth_cap: count(lane_depth_cap),
    }
}

/// Every `[[queue]]`, and `default` at the end if it was not placed.
pub(super) fn queues(raw: Vec<Spanned<RawQueue>>, layers: &mut Layers<'_, '_, '_>) -> Vec<QueueConfig> {
    let mut queues: Vec<QueueConfig> = Vec::new();
    for (index, Spanned { span, value: raw }) in raw.into_iter().enumerate() {
        let called = subject("queue", index, raw.name.as_ref().map(|name| name.value.as_str()));
        let name = match raw.name {
            Some(name) => {
                if let Err(text) = check_queue_name(&name.value) {
                    layers.problems.at(&name.span, &called, format!("name: {text}"));
                } else if queues.iter().any(|queue| queue.name == name.value) {
                    let text = "name: there is a queue of this name above; merge the two or rename one".into();
                    layers.problems.at(&name.span, &called, text);
                }
                name.value
            }
            None => {
                layers.problems.missing(&span, &called, r#"expected a name, such as name = "shipping""#.into());
                String::new()
            }
        };
        let key = |field: &str| format!("queue[{name}].{field}");
        let mut types = Vec::new();
        match raw.types {
            Some(list) => {
                let texts: Vec<&str> = list.value.iter().map(|text| text.value.as_str()).collect();
                layers.note(key("types"), texts.join(", "), &Origin::File(list.span.clone()));
                for text in &list.value {
                    match TopicPattern::new(&text.value) {
                        Ok(pattern) => {
                            refuse_overlap(&pattern, &text.span, &called, &name, &queues, layers);
                            types.push(pattern);
                        }
                        Err(error) => {
                            layers.problems.at(&text.span, &called, format!("types: {:?} {error}", text.value))
                        }
                    }
                }
                if list.value.is_empty() && name != DEFAULT_QUEUE {
                    let text = r#"types: expected at least one, such as types = ["order.ship.#"]"#.into();
                    layers.problems.missing(&list.span, &called, text);
                }
            }
            None if name == DEFAULT_QUEUE => {}
            None => {
                let text =
                    r#"expected types, such as types = ["order.ship.#"]; without them no task belongs to it"#.into();
                layers.problems.missing(&span, &called, text);
            }
        }
        let concurrency = raw.concurrency.and_then(|n| match from_to(1, MOST_CONCURRENCY)(&n.value) {
            Ok(()) => {
                layers.note(key("concurrency"), n.value.to_string(), &Origin::File(n.span));
                Some(count(n.value))
            }
            Err(text) => {
                layers.problems.at(&n.span, &called, format!("concurrency: {text}"));
                None
            }
        });
        queues.push(QueueConfig { name, types, concurrency });
    }
    if !queues.iter().any(|queue| queue.name == DEFAULT_QUEUE) {
        queues.push(QueueConfig { name: DEFAULT_QUEUE.into(), types: Vec::new(), concurrency: None });
    }
    queues
}

/// A submission must reach one queue only, so patterns of two queues must not share a type.
fn refuse_overlap(
    pattern: &TopicPattern,
    span: &Range<usize>,
    called: &str,
    name: &str,
    queues: &[QueueConfig],
    layers: &mut Layers<'_, '_, '_>,
) {
    for other in queues.iter().filter(|queue| queue.name != name) {
        for theirs in other.types.iter().filter(|theirs| theirs.overlaps(pattern)) {
            let text = format!(
                "types: {:?} overlaps {:?} of queue {:?}, so one task would run twice; make one of them narrower",
                pattern.as_str(),
                theirs.as_str(),
                other.name
            );
            layers.problems.at(span, called, text);
        }
    }
}

fn check_urls(urls: &[String]) -> Result<(), String> {
    if urls.is_empty() {
        return Err(r#"expected an amqp:// URL, a list of them, or "embedded", found an empty list"#.into());
    }
    if urls.iter().any(|url| url == "embedded") {
        if urls.len() > 1 {
            return Err(r#""embedded" cannot stand in a list with others"#.into());
        }
        return Ok(());
    }
    urls.iter().try_for_each(|url| check_amqp(url))
}

fn check_namespace(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > LONGEST_NAMESPACE || !name.chars().all(allowed) {
        return Err(format!("expected 1 to {LONGEST_NAMESPACE} letters, digits, `.`, `_` or `-`, found {name:?}"));
    }
    if name == "amq" || name.starts_with("amq.") {
        return Err("names that begin with `amq.` belong to RabbitMQ".into());
    }
    Ok(())
}

/// Dots would make `redeliver.<queue>.tasks` ambiguous.
fn check_queue_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    if (1..=100).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err("expected 1 to 100 characters a-z, 0-9, `_` or `-`".into())
}

pub(super) fn seconds(n: u64) -> DurationText {
    DurationText(Duration::from_secs(n))
}

pub(super) fn at_least(least: Duration) -> impl Fn(&DurationText) -> Result<(), String> {
    move |duration| {
        if duration.0 >= least {
            return Ok(());
        }
        Err(format!("expected at least {}, found {}", show_duration(least), show_duration(duration.0)))
    }
}

pub(super) fn from_to(least: i64, most: i64) -> impl Fn(&i64) -> Result<(), String> {
    move |n| {
        if (least..=most).contains(n) {
            return Ok(());
        }
        Err(format!("expected a whole number from {least} to {most}, found {n}"))
    }
}

fn count(n: i64) -> usize {
    usize::try_from(n).unwrap_or(0)
}
