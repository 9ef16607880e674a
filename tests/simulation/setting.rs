//! The configuration of a run: short times, and rules that are drawn.

use std::collections::BTreeMap;
use std::time::Duration;

use redeliver::config::{Config, QueueConfig};
use redeliver::gate::{BreakerRule, CapRule, FailureRate, Gates, LimitKind, LimitRule, Per, Rate, WhenOpen, Word};
use redeliver::policy::{Backoff, Fallback, OverCap, Policies, Policy, RetryAfterMode, RetryAfterRule, TopicPattern};
use redeliver::task::Millis;

use crate::world::World;

pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);
pub const LEASE_MS: Millis = 6_000;
/// The types of the tasks: one that has a queue of its own, two that have not.
pub const TYPES: [&str; 3] = ["order.ship", "order.list", "bulk.load"];
pub const SHOPS: [&str; 3] = ["a", "b", "c"];

/// What is the same in every run: the store knows these times.
pub fn base(config: &Config) -> Config {
    let mut config = config.clone();
    config.worker.lease = Duration::from_millis(LEASE_MS.unsigned_abs());
    config.worker.concurrency = 3;
    config.worker.prefetch = 6;
    config.worker.no_route_hold = Duration::from_secs(20);
    config.scheduler.grace = Duration::from_secs(4);
    config.scheduler.patience = Duration::from_secs(3);
    config.scheduler.max_patience = Duration::from_secs(24);
    config.scheduler.slack = Duration::from_secs(3);
    config.broker.confirm_timeout = CONFIRM_TIMEOUT;
    config.queues.insert(0, QueueConfig { name: "bulk".into(), types: vec![pattern("bulk.#")], concurrency: Some(2) });
    config
}

/// With rules by chance.
pub fn drawn(world: &World) -> Config {
    let mut config = base(&Config::default());
    config.policies = Policies::new(vec![policy(world, "ship", "order.ship"), policy(world, "rest", "#")]);
    config.gates = gates(world);
    config
}

pub fn pattern(text: &str) -> TopicPattern {
    TopicPattern::new(text).expect("a pattern")
}

fn policy(world: &World, name: &str, task_type: &str) -> Policy {
    let backoff = match world.pick(0, 4) {
        0 => Backoff::Steps(vec![1_000, 4_000]),
        1 => Backoff::Fixed(2_000),
        2 => Backoff::Exponential { base_ms: 500, max_ms: 8_000, multiplier: 2.0, jitter: 0.2 },
        _ => Backoff::Steps(vec![1_000, 2_000, 9_000]),
    };
    let retry_after = RetryAfterRule {
        mode: *world.one_of(&[RetryAfterMode::Exact, RetryAfterMode::Floor, RetryAfterMode::Ignore]).expect("one"),
        cap_ms: 5_000,
        over_cap: *world.one_of(&[OverCap::Cap, OverCap::Honour, OverCap::DeadLetter]).expect("one"),
    };
    let mut policy = Policy {
        name: name.into(),
        task_type: pattern(task_type),
        max_retries: world.pick(0, 4),
        backoff,
        retry_after,
        ..Policy::built_in()
    };
    if world.happens(0.2) {
        policy.deadline_ms = Some(world.pick(5_000, 40_000));
    }
    if world.happens(0.25) {
        policy.fallback = vec![Fallback::Cache, Fallback::Default];
        policy.default_result = world.happens(0.5).then(|| serde_json::json!({"stand": "in"}));
    }
    if world.happens(0.2) {
        policy.replay_after_ms = vec![10_000, 30_000];
    }
    policy
}

fn gates(world: &World) -> Gates {
    let mut gates = Gates::default();
    let per_shop = || Per(vec![Word::Label("shop".into())]);
    if world.happens(0.35) {
        let kind = if world.happens(0.75) {
            let rate = Rate { count: world.pick(1, 6), per_ms: *world.one_of(&[1_000, 5_000, 10_000]).expect("one") };
            LimitKind::Rate { rate, burst: world.pick(1, 4) }
        } else {
            LimitKind::Ratio { permille: 500, window_ms: 10_000, floor: Rate { count: 1, per_ms: 5_000 } }
        };
        let calls = matches!(kind, LimitKind::Rate { .. }) && world.happens(0.3);
        gates.limits.push(LimitRule { name: "shop".into(), per: per_shop(), calls, kind });
    }
    if world.happens(0.2) {
        let kind = LimitKind::Rate { rate: Rate { count: 2, per_ms: 1_000 }, burst: 2 };
        gates.limits.push(LimitRule { name: "all".into(), per: Per::default(), calls: false, kind });
    }
    if world.happens(0.35) {
        let by_rate = FailureRate { permille: 500, window_ms: 20_000, min: 4 };
        gates.breakers.push(BreakerRule {
            name: "shop".into(),
            per: Per(vec![Word::Type, Word::Label("shop".into())]),
            consecutive_same: world.happens(0.4).then_some(3),
            consecutive: Some(world.pick(2, 5)),
            failure_rate: world.happens(0.4).then_some(by_rate),
            ignore: Vec::new(),
            open_for_ms: world.pick(2_000, 10_000),
            open_for_max_ms: 30_000,
            probes: world.pick(1, 3),
            when_open: *world
                .one_of(&[WhenOpen::Park, WhenOpen::Park, WhenOpen::DeadLetter, WhenOpen::Fallback])
                .expect("one"),
            park_max_ms: *world.one_of(&[20_000, 600_000]).expect("one"),
        });
    }
    if world.happens(0.3) {
        let per = if world.happens(0.5) { per_shop() } else { Per::default() };
        gates.caps.push(CapRule { route: pattern("order.#"), per, max: world.pick(1, 3) });
    }
    gates
}

/// The labels of a task.
pub fn labels(world: &World) -> BTreeMap<String, String> {
    match world.one_of(&SHOPS) {
        Some(shop) if world.happens(0.8) => BTreeMap::from([("shop".to_owned(), (*shop).to_owned())]),
        _ => BTreeMap::new(),
    }
}
