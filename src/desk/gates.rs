//! Breakers, limits, caps and holds by key: state, evidence, and a person's word.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time;
use crate::config::show_duration;
use crate::gate::{
    Breaker, BreakerKeyError, BreakerRule, GateState, Gates, LimitKind, Look, PersonsWord, Phase, Rate, RuleOf,
    WhenOpen, look,
};
use crate::store::{Store, StoreError, Urgency};
use crate::task::{Answer, Command, Millis};

/// A breaker's key and its state.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Breaker")]
pub struct BreakerDocument {
    /// `breaker/NAME/word=value,…`
    pub key: String,
    /// The breaker's name; null when it is not configured any more.
    pub name: Option<String>,
    /// `closed`, `open`, or `half_open` when its cool-down is over.
    pub phase: String,
    /// Since when it is open.
    pub since: Option<String>,
    /// Until when, unless a person has opened it.
    pub until: Option<String>,
    /// What tripped it.
    pub because: Option<String>,
    /// Probes that have failed since.
    pub failed_probes: u32,
    /// Failures in a row while closed.
    pub failures_in_a_row: i64,
    /// Whether a person has opened it, for ever.
    pub forced_open: bool,
    /// The last word of a person.
    pub word: Option<WordDocument>,
    /// Probes that run.
    pub probes_in_use: usize,
    /// Probes that may run at once.
    pub probes: Option<i64>,
    /// When a probe may start; null: none will, or one runs.
    pub next_probe_at: Option<String>,
    /// How many may run at once while work returns after it closed.
    pub return_window: Option<i64>,
    /// Tasks that wait for it.
    pub waiting: i64,
    /// What an open one does to due tasks: `park`, `dead_letter`, `fallback`.
    pub when_open: Option<String>,
    /// Whether the configuration has it; if not, it stops nothing.
    pub configured: bool,
}

/// A person's word about a breaker.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Word")]
pub struct WordDocument {
    /// Open or close.
    pub open: bool,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// When.
    pub at: String,
}

/// A limit's, cap's or hold's key and its state.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Limit")]
pub struct LimitDocument {
    /// `limit/NAME/word=value,…`, `cap/…` or `hold/…`
    pub key: String,
    /// `limit`, `cap` or `hold`.
    pub kind: String,
    /// `open`, `shut`, or `not configured` any more.
    pub state: String,
    /// How many may start now; null: any number.
    pub room: Option<i64>,
    /// When the next may start; null: when one ends.
    pub next_chance_at: Option<String>,
    /// Places in use, of a cap.
    pub in_use: Option<usize>,
    /// When a hold ends.
    pub until: Option<String>,
    /// Tasks that wait for it.
    pub waiting: i64,
    /// The rule, for people.
    pub rule: Option<String>,
    /// Whether the configuration has it.
    pub configured: bool,
}

/// The word for what an open breaker does.
pub fn word_of(when_open: WhenOpen) -> &'static str {
    match when_open {
        WhenOpen::Park => "park",
        WhenOpen::DeadLetter => "dead_letter",
        WhenOpen::Fallback => "fallback",
    }
}

/// Every breaker key that is known, those that stop something first.
///
/// # Errors
/// When the store does not answer.
pub async fn breakers(store: &dyn Store, gates: &Gates) -> Result<Vec<BreakerDocument>, StoreError> {
    let mut waiting = store.held_counts().await?;
    let mut breakers: BTreeMap<String, Breaker> = BTreeMap::new();
    // One that has a single key is there from the start; the keys of others are known once they have failed.
    for gate in gates.alone() {
        if matches!(gate.rule, RuleOf::Breaker(_)) {
            breakers.insert(gate.key, Breaker::default());
        }
    }
    for (key, state) in store.gates().await? {
        if let GateState::Breaker(breaker) = state {
            breakers.insert(key, breaker);
        }
    }
    let now = store.now();
    let document = |(key, breaker): (&String, &Breaker)| {
        let rule = match gates.rule(key) {
            Some(RuleOf::Breaker(rule)) => Some(rule),
            _ => None,
        };
        BreakerDocument::of(key, breaker, rule, waiting.remove(key).unwrap_or(0), now)
    };
    let mut documents: Vec<BreakerDocument> = breakers.iter().map(document).collect();
    // What is shut is what a person looks for.
    documents.sort_by_key(|document| document.phase == "closed");
    Ok(documents)
}

impl BreakerDocument {
    fn of(key: &str, breaker: &Breaker, rule: Option<&BreakerRule>, waiting: i64, now: Millis) -> BreakerDocument {
        let phase = match breaker.phase {
            Phase::Closed => "closed",
            Phase::Open { until, .. } if breaker.is_forced_open() || now < until => "open",
            // Open after its cool-down counts as half open, whether or not a probe has come.
            Phase::Open { .. } | Phase::HalfOpen => "half_open",
        };
        let (since, until) = match breaker.phase {
            Phase::Open { since, until, .. } => (Some(since), Some(until).filter(|_| !breaker.is_forced_open())),
            Phase::Closed | Phase::HalfOpen => (None, None),
        };
        let next_probe =
            rule.filter(|_| breaker.phase != Phase::Closed).and_then(|rule| match breaker.look(rule, now) {
                Look::Open { .. } => Some(now),
                Look::Shut { opens_at } | Look::Tripped { opens_at, .. } => opens_at,
            });
        let word = |word: &PersonsWord| WordDocument {
            open: word.open,
            by: word.by.clone(),
            reason: word.reason.clone(),
            at: time(word.at),
        };
        BreakerDocument {
            key: key.to_owned(),
            name: rule.map(|rule| rule.name.clone()),
            phase: phase.to_owned(),
            since: since.map(time),
            until: until.map(time),
            because: breaker.because.clone(),
            failed_probes: breaker.failed_probes,
            failures_in_a_row: breaker.in_a_row,
            forced_open: breaker.is_forced_open(),
            word: breaker.word.as_ref().map(word),
            probes_in_use: breaker.probes.len(),
            probes: rule.map(|rule| rule.probes),
            next_probe_at: next_probe.map(time),
            return_window: breaker.back.as_ref().map(|back| back.window),
            waiting,
            when_open: rule.map(|rule| word_of(rule.when_open).to_owned()),
            configured: rule.is_some(),
        }
    }
}

/// Why a person's word about a breaker was not taken.
#[derive(Debug, thiserror::Error)]
pub enum WordError {
    /// The key.
    #[error(transparent)]
    Key(#[from] BreakerKeyError),
    /// It is closed.
    #[error("{key} is closed already")]
    Closed {
        /// The breaker.
        key: String,
    },
    /// It never had a state.
    #[error("{key} has never been open")]
    NeverOpen {
        /// The breaker.
        key: String,
    },
    /// The store refused it.
    #[error("{key}: {message}")]
    Refused {
        /// The breaker.
        key: String,
        /// What it said.
        message: String,
    },
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a word did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WordTaken")]
pub struct WordTaken {
    /// The breaker's key in full.
    pub key: String,
    /// Whether it is open now (or would be).
    pub open: bool,
    /// Tasks that wait for it.
    pub waiting: i64,
}

/// Opens or closes a breaker in a person's name, or says what that would do. `typed` is a key as lists show it.
///
/// # Errors
/// See [`WordError`].
pub async fn say(
    store: &dyn Store,
    gates: &Gates,
    typed: &str,
    open: bool,
    by: &str,
    reason: Option<String>,
    dry_run: bool,
) -> Result<WordTaken, WordError> {
    let (key, _) = gates.breaker_key(typed)?;
    if !open {
        let known = store.gates().await?.into_iter().find(|(known, _)| *known == key).map(|(_, state)| state);
        match known {
            Some(GateState::Breaker(breaker)) if breaker.phase == Phase::Closed => {
                return Err(WordError::Closed { key });
            }
            Some(GateState::Breaker(_)) => {}
            _ => return Err(WordError::NeverOpen { key }),
        }
    }
    let waiting = store.held_counts().await?.get(&key).copied().unwrap_or(0);
    if !dry_run {
        let word = PersonsWord { open, by: by.to_owned(), reason, at: store.now() };
        let answers = store.apply(Urgency::Normal, vec![Command::Breaker { key: key.clone(), word }]).await?;
        match answers.into_iter().next() {
            Some(Answer::Done) => {}
            other => return Err(WordError::Refused { key, message: format!("the store answered {other:?}") }),
        }
    }
    Ok(WordTaken { key, open, waiting })
}

/// Every limit, cap and hold that is known, by key.
///
/// # Errors
/// When the store does not answer.
pub async fn limits(store: &dyn Store, gates: &Gates) -> Result<Vec<LimitDocument>, StoreError> {
    let waiting = store.held_counts().await?;
    let now = store.now();
    let mut states: BTreeMap<String, Option<GateState>> =
        gates.alone().into_iter().map(|gate| (gate.key, None)).collect();
    states.extend(waiting.keys().map(|key| (key.clone(), None)));
    states.extend(store.gates().await?.into_iter().map(|(key, state)| (key, Some(state))));
    states.retain(|key, _| ["limit/", "cap/", "hold/"].iter().any(|kind| key.starts_with(kind)));
    let document = |(key, state): (&String, &Option<GateState>)| {
        LimitDocument::of(gates, key, state.as_ref(), waiting.get(key).copied().unwrap_or(0), now)
    };
    Ok(states.iter().map(document).collect())
}

impl LimitDocument {
    fn of(gates: &Gates, key: &str, state: Option<&GateState>, waiting: i64, now: Millis) -> LimitDocument {
        let rule = gates.rule(key);
        let (word, room, next) = match rule.map(|rule| look(rule, key, state, true, now)) {
            // What the configuration does not know stops nothing.
            None => ("not configured", None, None),
            Some(Look::Open { room }) => ("open", room, Some(now)),
            Some(Look::Shut { opens_at } | Look::Tripped { opens_at, .. }) => ("shut", Some(0), opens_at),
        };
        let in_use = match state {
            Some(GateState::Cap { places }) => Some(places.len()),
            _ => None,
        };
        let until = match state {
            Some(GateState::Hold { until, .. }) if *until > now => Some(*until),
            _ => None,
        };
        LimitDocument {
            key: key.to_owned(),
            kind: key.split('/').next().unwrap_or_default().to_owned(),
            state: word.to_owned(),
            room,
            next_chance_at: next.map(time),
            in_use,
            until: until.map(time),
            waiting,
            rule: rule.map(rule_for_people),
            configured: rule.is_some(),
        }
    }
}

/// `5 retries a 1m, burst 1`
fn rule_for_people(rule: RuleOf<'_>) -> String {
    match rule {
        RuleOf::Limit(rule) => {
            let what = |n: i64| match (rule.calls, n) {
                (true, 1) => "call",
                (true, _) => "calls",
                (false, 1) => "retry",
                (false, _) => "retries",
            };
            match &rule.kind {
                LimitKind::Rate { rate, burst } => {
                    format!("{}, burst {burst}", rate_for_people(*rate, what(rate.count)))
                }
                LimitKind::Ratio { permille, window_ms, floor } => format!(
                    "{}.{} % retries within {}, at least {}",
                    permille / 10,
                    permille % 10,
                    length(*window_ms),
                    rate_for_people(*floor, "")
                ),
            }
        }
        RuleOf::Cap(rule) => format!("{} at a time", rule.max),
        RuleOf::Hold => "Retry-After".into(),
        RuleOf::Breaker(_) => String::new(),
    }
}

fn rate_for_people(rate: Rate, what: &str) -> String {
    let per = match rate.per_ms {
        1_000 => "s".to_owned(),
        60_000 => "min".to_owned(),
        3_600_000 => "h".to_owned(),
        86_400_000 => "day".to_owned(),
        other => length(other),
    };
    let space = if what.is_empty() { "" } else { " " };
    format!("{}{space}{what}/{per}", rate.count)
}

fn length(ms: Millis) -> String {
    show_duration(Duration::from_millis(ms.unsigned_abs()))
}
