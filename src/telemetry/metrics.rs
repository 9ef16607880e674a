//! Counters of what happened in this process, for Prometheus.
//!
//! An [`Observer`] like the log: it counts events after their commit, and nothing waits for it. Labels are words of ours, names from
//! the configuration, and task types, of which only the first [`MOST_TYPES`] get a series of their own: a producer who invents types
//! must not fill somebody's Prometheus. Shops, ids and fingerprints are never labels. `docs/metrics.md` is the table.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::{Event, Observer};
use crate::dead_letter::replay::ReplayNews;
use crate::gate::Turn;
use crate::task::{Attempt, AttemptOutcome, Millis, Stamp, Status, Task};

/// As many task types are told apart; the others are counted as [`OTHER`].
pub const MOST_TYPES: usize = 200;
/// The label of types beyond [`MOST_TYPES`].
pub const OTHER: &str = "other";
/// Longer types are cut: a label of 255 bytes helps nobody.
const LONGEST_TYPE: usize = 80;

/// A task type as a label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TypeName(Arc<str>);

impl EncodeLabelValue for TypeName {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        (&*self.0).encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByType {
    r#type: TypeName,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    r#type: TypeName,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    r#type: TypeName,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByClass {
    r#type: TypeName,
    class: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByBreaker {
    breaker: String,
    turn: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByGate {
    gate: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByLane {
    lane: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAnswer {
    confirmed: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByFallback {
    r#type: TypeName,
    by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByFate {
    kind: &'static str,
    fate: &'static str,
}

/// Classes that a handler's own word may bring are as many as somebody likes, like types.
struct Words {
    known: RwLock<HashSet<Arc<str>>>,
}

impl Words {
    fn new() -> Words {
        Words { known: RwLock::default() }
    }

    /// The word, or [`OTHER`] when there are too many.
    fn get(&self, word: &str) -> Arc<str> {
        let word = cut(word);
        if let Some(known) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(word) {
            return Arc::clone(known);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_TYPES {
            return OTHER.into();
        }
        let new: Arc<str> = word.into();
        known.insert(Arc::clone(&new));
        new
    }
}

fn cut(word: &str) -> &str {
    let mut end = word.len().min(LONGEST_TYPE);
    while !word.is_char_boundary(end) {
        end -= 1;
    }
    &word[..end]
}

/// The name of the rule in a gate's key: `limit/per shop` of `limit/per shop/label.shop=a`.
pub(super) fn rule_of(key: &str) -> String {
    key.splitn(3, '/').take(2).collect::<Vec<_>>().join("/")
}

/// The counters of a process.
pub struct Metrics {
    registry: Registry,
    types: Words,
    classes: Words,
    accepted: Family<ByType, Counter>,
    duplicates: Counter,
    attempts: Family<ByOutcome, Counter>,
    seconds: Family<ByType, Histogram, fn() -> Histogram>,
    retries: Family<ByClass, Counter>,
    ended: Family<ByOutcome, Counter>,
    retry_count: Histogram,
    dead: Family<ByReason, Counter>,
    fallbacks: Family<ByFallback, Counter>,
    late: Family<ByLane, Histogram, fn() -> Histogram>,
    held: Family<ByGate, Counter>,
    turns: Family<ByBreaker, Counter>,
    wake_ups: Family<ByAnswer, Counter>,
    wake_ups_late: Counter,
    notices: Family<ByFate, Counter>,
    stale: Counter,
    refused_settles: Counter,
    missing: Counter,
    config_refused: Counter,
    rules_changed: Counter,
    store_failures: Counter,
    store_down: Counter<f64, std::sync::atomic::AtomicU64>,
    replayed: Counter,
    replays_stopped: Counter,
}

/// From 5 ms to 5 minutes: calls of third parties.
fn call_seconds() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0])
}

/// From 10 ms to 3 hours: how late starts are, gates included.
fn late_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 4.0, 11))
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// Counters at zero.
    pub fn new() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("redeliver"),
            types: Words::new(),
            classes: Words::new(),
            accepted: Family::default(),
            duplicates: Counter::default(),
            attempts: Family::default(),
            seconds: Family::new_with_constructor(call_seconds),
            retries: Family::default(),
            ended: Family::default(),
            retry_count: Histogram::new([0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0]),
            dead: Family::default(),
            fallbacks: Family::default(),
            late: Family::new_with_constructor(late_seconds),
            held: Family::default(),
            turns: Family::default(),
            wake_ups: Family::default(),
            wake_ups_late: Counter::default(),
            notices: Family::default(),
            stale: Counter::default(),
            refused_settles: Counter::default(),
            missing: Counter::default(),
            config_refused: Counter::default(),
            rules_changed: Counter::default(),
            store_failures: Counter::default(),
            store_down: Counter::default(),
            replayed: Counter::default(),
            replays_stopped: Counter::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("tasks_accepted", "Submissions from the broker that became tasks", self.accepted.clone());
        r.register("duplicates", "Submissions of a task that was there already", self.duplicates.clone());
        r.register("attempts", "Attempts that ended, by outcome", self.attempts.clone());
        r.register_with_unit(
            "attempt_duration",
            "How long attempts ran, outcomes of all kinds",
            Unit::Seconds,
            self.seconds.clone(),
        );
        r.register("retries", "Failures that are tried again, by class", self.retries.clone());
        r.register(
            "tasks_ended",
            "Tasks that ended: succeeded, degraded or dead; a replayed one ends again",
            self.ended.clone(),
        );
        r.register("task_retry_count", "Retries that a task had used when it ended", self.retry_count.clone());
        r.register("dead_letters", "Tasks that died, by reason", self.dead.clone());
        r.register("fallbacks", "Tasks that ended by something that is not the real thing", self.fallbacks.clone());
        r.register_with_unit(
            "start_delay",
            "From the moment an attempt was due to its start, time at gates included",
            Unit::Seconds,
            self.late.clone(),
        );
        r.register("held", "Wake-ups that found a gate shut, by rule", self.held.clone());
        r.register("breaker_turns", "Breakers that opened, opened again or closed, by rule", self.turns.clone());
        r.register("wake_ups_sent", "Wake-ups given to the broker", self.wake_ups.clone());
        r.register("wake_ups_late", "Wake-ups that had not arrived when their alarm rang", self.wake_ups_late.clone());
        r.register(
            "notices_sent",
            "Events and replies given to the broker, by what became of them",
            self.notices.clone(),
        );
        r.register("stale_dropped", "Wake-ups that started nothing: another stamp, or not waiting", self.stale.clone());
        r.register(
            "settles_refused",
            "Attempts that outlived their lease; their outcome did not count",
            self.refused_settles.clone(),
        );
        r.register("broker_queues_missing", "Lanes and rungs that were found missing", self.missing.clone());
        r.register("config_refused", "Changed configurations that were refused", self.config_refused.clone());
        r.register("rules_changed", "Times that other rules came into force", self.rules_changed.clone());
        r.register("store_failures", "Times that the store stopped answering", self.store_failures.clone());
        r.register_with_unit(
            "store_down",
            "Time without an answer from the store, counted when it answers again",
            Unit::Seconds,
            self.store_down.clone(),
        );
        r.register("letters_replayed", "Dead letters released by replay jobs of this process", self.replayed.clone());
        r.register("replays_stopped", "Replay jobs that stopped themselves", self.replays_stopped.clone());
    }

    /// All of them in the OpenMetrics text format, without the mark of the end.
    pub(super) fn encode(&self, text: &mut String) -> std::fmt::Result {
        prometheus_client::encoding::text::encode_registry(text, &self.registry)
    }

    fn type_of(&self, task: &Task) -> TypeName {
        TypeName(self.types.get(&task.spec.task_type))
    }

    fn settled(&self, task: &Task, attempt: &Attempt) {
        let name = self.type_of(task);
        let outcome = attempt.outcome.as_str();
        self.attempts.get_or_create(&ByOutcome { r#type: name.clone(), outcome }).inc();
        self.seconds
            .get_or_create(&ByType { r#type: name.clone() })
            .observe(seconds(attempt.ended_at - attempt.started_at));
        if attempt.outcome == AttemptOutcome::Retried
            && let Some(failure) = &attempt.failure
        {
            let class = self.classes.get(&failure.class).to_string();
            self.retries.get_or_create(&ByClass { r#type: name.clone(), class }).inc();
        }
        self.ended(task, name);
    }

    /// Counts a task that has ended, if it has.
    fn ended(&self, task: &Task, name: TypeName) {
        let outcome = match task.state.status {
            Status::Succeeded if task.state.degraded.is_some() => "degraded",
            Status::Succeeded => "succeeded",
            Status::Dead => "dead",
            _ => return,
        };
        self.ended.get_or_create(&ByOutcome { r#type: name.clone(), outcome }).inc();
        #[expect(clippy::cast_precision_loss, reason = "retry counts are far below 2^52")]
        self.retry_count.observe(task.state.stamp.retry_count as f64);
        if let Some(reason) = task.state.dead_reason {
            self.dead.get_or_create(&ByReason { r#type: name, reason: reason.as_str() }).inc();
        }
    }
}

fn seconds(ms: Millis) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of centuries are below 2^52")]
    let seconds = ms.max(0) as f64 / 1000.0;
    seconds
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Accepted { task } => {
                self.accepted.get_or_create(&ByType { r#type: self.type_of(task) }).inc();
            }
            Event::Started { task } => {
                let lane = if task.state.stamp == Stamp::FIRST { "tasks" } else { "retries" };
                let started = task.state.started_at.unwrap_or(task.state.due_at);
                self.late.get_or_create(&ByLane { lane }).observe(seconds(started - task.state.due_at));
            }
            Event::Settled { task, attempt } => self.settled(task, attempt),
            Event::Died { task, .. } => self.ended(task, self.type_of(task)),
            Event::Degraded { task, by } => {
                let by = self.classes.get(by).to_string();
                self.fallbacks.get_or_create(&ByFallback { r#type: self.type_of(task), by }).inc();
            }
            Event::Duplicate { .. } => _ = self.duplicates.inc(),
            Event::SettleRefused { .. } => _ = self.refused_settles.inc(),
            Event::StaleDropped { .. } => _ = self.stale.inc(),
            Event::Held { by, .. } => _ = self.held.get_or_create(&ByGate { gate: rule_of(by) }).inc(),
            Event::BreakerTurned { breaker, turn } => {
                let turn = match turn {
                    Turn::Opened => "opened",
                    Turn::Reopened => "reopened",
                    Turn::Closed => "closed",
                };
                self.turns.get_or_create(&ByBreaker { breaker: rule_of(breaker), turn }).inc();
            }
            Event::WakeUpSent { confirmed, .. } => {
                let confirmed = if *confirmed { "yes" } else { "no" };
                self.wake_ups.get_or_create(&ByAnswer { confirmed }).inc();
            }
            Event::NoticeSent { notice, fate } => {
                let kind = if notice.reply_to.is_some() { "reply" } else { "event" };
                self.notices.get_or_create(&ByFate { kind, fate: fate.as_str() }).inc();
            }
            Event::WakeUpLate { .. } => _ = self.wake_ups_late.inc(),
            Event::SpotsMissing { count } => _ = self.missing.inc_by(u64::try_from(*count).unwrap_or(u64::MAX)),
            Event::RulesChanged { .. } => _ = self.rules_changed.inc(),
            Event::ConfigRefused { .. } => _ = self.config_refused.inc(),
            Event::StoreDown { .. } => _ = self.store_failures.inc(),
            Event::StoreUp { down_ms } => _ = self.store_down.inc_by(seconds(*down_ms)),
            Event::Replay { what: ReplayNews::Released { replayed, .. }, .. } => {
                self.replayed.inc_by(u64::try_from(*replayed).unwrap_or(0));
            }
            Event::Replay { what: ReplayNews::Stopped(_), .. } => _ = self.replays_stopped.inc(),
            Event::Replay { .. } | Event::DlqPassed { .. } | Event::Rerouted { .. } => {}
        }
    }
}
