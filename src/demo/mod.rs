//! The whole story in under two minutes, with no set-up: an unreliable third party inside the process, minutes shown as
//! seconds, live lines that say what happens and why.
//!
//! It runs the real worker on the real store; only the broker is embedded, and even that can be a real one.

mod narrator;
mod third_party;

pub use narrator::{Narrator, Told};
pub use third_party::{Mood, ThirdParty};

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;

use crate::broker::{Broker, Published, submission, wake_up};
use crate::config::Config;
use crate::handler::http::HttpHandler;
use crate::handler::{Caps, HttpRoute, Route};
use crate::policy::{Backoff, Lists, Policies, Policy, TopicPattern};
use crate::store::{Filter, Store};
use crate::task::{Lane, Millis, Outstanding, Stamp, Status, WakeUp};
use crate::telemetry::Observers;
use crate::worker::{Plan, Worker};

/// What the demo is to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many tasks.
    pub tasks: usize,
    /// How long a minute of the schedule lasts.
    pub minute: Duration,
    /// Colour the lines.
    pub colour: bool,
    /// No lines at all.
    pub quiet: bool,
}

impl Default for Options {
    /// 40 tasks, a minute as a second.
    fn default() -> Self {
        Options { tasks: 40, minute: Duration::from_secs(1), colour: false, quiet: false }
    }
}

/// What came of it.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct Summary {
    /// Tasks that were published, doubles not counted.
    pub tasks: u64,
    /// Of those, succeeded.
    pub succeeded: u64,
    /// Of those, dead.
    pub dead: u64,
    /// Attempts recorded.
    pub attempts: u64,
    /// Attempts that were followed by another.
    pub retries: u64,
    /// Wake-ups that started nothing.
    pub stale_dropped: u64,
    /// From the first publish to the last end.
    pub seconds: f64,
}

/// One kind of task in the story.
struct Character {
    task_type: &'static str,
    letter: char,
    mood: Mood,
    /// How many of ten tasks.
    share: usize,
}

const CAST: [Character; 8] = [
    Character { task_type: "order.ship", letter: 'o', mood: Mood::Fine, share: 3 },
    Character { task_type: "listing.update", letter: 'l', mood: Mood::Down, share: 1 },
    Character { task_type: "report.render", letter: 'r', mood: Mood::Slow, share: 1 },
    Character { task_type: "price.sync", letter: 'p', mood: Mood::Busy, share: 1 },
    Character { task_type: "stock.count", letter: 's', mood: Mood::PlatformCode, share: 1 },
    Character { task_type: "invoice.send", letter: 'i', mood: Mood::Refuses, share: 1 },
    Character { task_type: "ads.fetch", letter: 'a', mood: Mood::BrokenJson, share: 1 },
    Character { task_type: "review.crawl", letter: 'c', mood: Mood::Dead, share: 1 },
];

impl Options {
    fn minute_ms(&self) -> Millis {
        Millis::try_from(self.minute.as_millis()).unwrap_or(1000).max(1)
    }

    /// The configuration the demo runs on; its store must be opened with these settings.
    pub fn config(&self) -> Config {
        config(self)
    }
}

/// Runs the story until every task has ended.
///
/// # Errors
/// When something cannot be started, a publish is refused, or a task has not ended within twice the schedule.
pub async fn run(
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    options: &Options,
    narrator: Arc<Narrator>,
) -> anyhow::Result<Summary> {
    let timeout = options.minute.clamp(Duration::from_millis(200), Duration::from_secs(1));
    let third_party =
        ThirdParty::start(options.minute * 20, timeout * 3).await.context("cannot start the third party")?;
    narrator.say("a third party that fails, times out, limits, refuses and lies is up; it heals after 20 minutes");
    narrator.say("schedule: 15, 30, 45 minutes, three retries; a minute lasts a second here");
    let plan = Plan::with_routes(&options.config(), routes(&third_party, timeout)?);
    broker.declare(&plan.topology).await.context("cannot declare the queues")?;
    let observers = Observers::new(vec![Arc::clone(&narrator) as _]);
    let worker = Worker::start(Arc::clone(&store), Arc::clone(&broker), plan, observers).await?;
    let outcome = story(store.as_ref(), broker.as_ref(), options, &narrator).await;
    worker.stop(Duration::from_secs(5)).await;
    let tasks = outcome?;
    let told = narrator.told();
    let counts = store.count(&Filter::default()).await?;
    let count = |status| u64::try_from(counts.get(&status).copied().unwrap_or(0)).unwrap_or(0);
    Ok(Summary {
        tasks,
        succeeded: count(Status::Succeeded),
        dead: count(Status::Dead),
        attempts: told.attempts,
        retries: told.retries,
        stale_dropped: told.stale_dropped,
        seconds: (narrator.seconds() * 10.0).round() / 10.0,
    })
}

/// Publishes everything and waits for the end.
async fn story(store: &dyn Store, broker: &dyn Broker, options: &Options, narrator: &Narrator) -> anyhow::Result<u64> {
    wait_for_session(broker).await?;
    let cast: Vec<&Character> = CAST.iter().flat_map(|who| std::iter::repeat_n(who, who.share)).collect();
    let ids: Vec<(String, &str)> = (0..options.tasks)
        .map(|n| {
            let who = cast[n % cast.len()];
            (format!("{}-{}", who.letter, n + 1), who.task_type)
        })
        .collect();
    let mut messages: Vec<_> = ids.iter().map(|(id, task_type)| envelope(id, task_type)).collect();
    if let Some((id, task_type)) = ids.first() {
        messages.push(envelope(id, task_type));
    }
    for (fate, (id, _)) in broker.publish(messages).await.into_iter().zip(&ids) {
        if fate != Published::Confirmed {
            bail!("task {id} was not accepted by the broker: {fate:?}");
        }
    }
    narrator.say(&format!("{} tasks published, the first of them twice", ids.len()));
    if let Some((id, _)) = ids.first() {
        forge(store, broker, id).await;
    }
    let longest = options.minute * 90 + Duration::from_secs(60);
    let ended = async {
        loop {
            let counts = store.count(&Filter::default()).await?;
            let open: i64 = counts.iter().filter(|(status, _)| !status.is_ended()).map(|(_, n)| n).sum();
            let all: i64 = counts.values().sum();
            if open == 0 && usize::try_from(all).unwrap_or(0) >= ids.len() {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(longest, ended).await.context("some tasks did not end in time")??;
    Ok(ids.len() as u64)
}

async fn wait_for_session(broker: &dyn Broker) -> anyhow::Result<()> {
    let up = async {
        while !broker.is_up() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), up).await.context("the broker is not reachable")
}

/// A wake-up that nobody should believe: another generation of a task.
async fn forge(store: &dyn Store, broker: &dyn Broker, id: &str) {
    let now = store.now();
    let route = Outstanding { lane: Lane::Retries, rung_ms: 0, sent_at: now, arrives_at: now };
    let forged = WakeUp {
        id: id.to_owned(),
        stamp: Stamp { generation: 7, retry_count: 0 },
        priority: 0,
        queue: crate::task::DEFAULT_QUEUE.to_owned(),
        route,
    };
    if broker.publish(vec![wake_up(&forged)]).await != [Published::Confirmed] {
        tracing::debug!("the forged wake-up was not taken");
    }
}

fn envelope(id: &str, task_type: &str) -> crate::broker::Message {
    let body = serde_json::json!({"id": id, "type": task_type, "payload": {"order": id}, "labels": {"shop": "demo"}});
    submission(task_type, id, body.to_string().into())
}

/// The demo's configuration: the built-in schedule with its minutes shortened, and one platform code that is worth a retry.
fn config(options: &Options) -> Config {
    let minute_ms = options.minute_ms();
    let policy = Policy {
        name: "demo".into(),
        backoff: Backoff::Steps(vec![15 * minute_ms, 30 * minute_ms, 45 * minute_ms]),
        retryable: Lists { codes: vec!["system_error".into()], ..Lists::default() },
        ..Policy::built_in()
    };
    let mut config = Config { policies: Policies::new(vec![policy]), ..Config::default() };
    // Its own on every run: two demos on one broker must not share queues.
    config.broker.namespace = format!("redeliver-demo-{}", std::process::id());
    config
}

fn routes(third_party: &ThirdParty, timeout: Duration) -> anyhow::Result<Vec<Route>> {
    let mut routes = Vec::new();
    for who in &CAST {
        let route = HttpRoute {
            url: third_party.url(who.mood).parse()?,
            method: reqwest::Method::POST,
            timeout,
            headers: Vec::new(),
            proxy: None,
            ca_file: None,
            code: Some("/error_code".into()),
            expect: vec!["/order_id".into()],
            defaults: Vec::new(),
        };
        let handler = HttpHandler::new(route, Caps::default())?;
        routes.push(Route { task_type: TopicPattern::new(who.task_type)?, handler: Arc::new(handler) });
    }
    Ok(routes)
}
