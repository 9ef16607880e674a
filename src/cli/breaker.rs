//! `redeliver breaker …`: which keys are shut and why; a person's word.

use std::collections::BTreeMap;

use clap::Subcommand;
use redeliver::gate::{Breaker, BreakerKeyError, BreakerRule, GateState, Look, PersonsWord, Phase, RuleOf, WhenOpen};
use redeliver::store::Urgency;
use redeliver::task::{Answer, Command, Millis};
use serde_json::{Value, json};

use super::confirm::Consent;
use super::context::Context;
use super::exit::{self, Exit};
use super::output::{Entry, Listing, ago, ahead, time, time_or_null};
use super::people::user;

/// Look at circuit breakers, open and close them
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List breakers by key: phase, why, next probe, how many tasks wait
    #[command(after_help = "Examples:
  redeliver breaker list
  redeliver breaker list -o json | jq '.items[] | select(.phase == \"open\")'

A key appears once an attempt of it has failed; one that has never failed is closed.")]
    List,
    /// Start no more attempts of a key, until a person closes it
    #[command(after_help = "Examples:
  redeliver breaker open 'shop/label.shop=a' --reason 'the platform has locked this shop'
  redeliver breaker open breaker/shop/type=order.ship,label.shop=a --dry-run

The key is as `breaker list` shows it. It stays open over restarts and without probes. Where the breaker's when_open is
dead_letter or fallback, due tasks end by it, and this asks first.")]
    Open(Word),
    /// Let attempts of a key start again, in growing groups
    #[command(after_help = "Examples:
  redeliver breaker close 'shop/label.shop=a' --reason 'the platform says it is back'")]
    Close(Word),
}

/// A key and the consent.
#[derive(Debug, clap::Args)]
pub struct Word {
    /// As `breaker list` shows it: `breaker/NAME/word=value,…`; `breaker/` may be left out
    key: String,
    #[command(flatten)]
    consent: Consent,
}

const COLUMNS: [&str; 7] = ["breaker", "phase", "since", "next_probe", "probes", "waiting", "why"];

/// Runs the verb.
///
/// # Errors
/// With an exit code in the chain where one fits.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    match verb {
        Verb::List => context.bound("the store", list(context)).await?,
        Verb::Open(word) => context.bound("the store", say(context, word, true)).await?,
        Verb::Close(word) => context.bound("the store", say(context, word, false)).await?,
    }
}

async fn say(context: &Context, word: Word, open: bool) -> anyhow::Result<Exit> {
    let Word { key, consent } = word;
    let (key, rule) = context.config().gates.breaker_key(&key).map_err(|error| {
        let exit = if matches!(error, BreakerKeyError::Unknown { .. }) { Exit::NotFound } else { Exit::Usage };
        exit::error(exit, error.to_string())
    })?;
    // Waiting can be taken back, an end cannot.
    let ends_tasks = open && rule.when_open != WhenOpen::Park;
    if ends_tasks {
        consent.can_be_had()?;
    }
    let store = context.store().await?;
    let known = store.gates().await?.into_iter().find(|(known, _)| *known == key).map(|(_, state)| state);
    if !open {
        match &known {
            Some(GateState::Breaker(breaker)) if breaker.phase == Phase::Closed => {
                return Err(exit::error(Exit::Conflict, format!("{key} is closed already")));
            }
            Some(GateState::Breaker(_)) => {}
            _ => {
                let text = format!("{key} has never been open; see `redeliver breaker list`");
                return Err(exit::error(Exit::NotFound, text));
            }
        }
    }
    let waiting = store.held_counts().await?.get(&key).copied().unwrap_or(0);
    let verb = if open { "open" } else { "close" };
    if consent.dry_run {
        context.say(format!("would {verb} {key}; {waiting} tasks wait for it"));
        return Ok(Exit::Done);
    }
    if ends_tasks {
        consent.ask(&format!("Open {key}? Its due tasks end by {}.", word_of(rule.when_open)))?;
    }
    let word = PersonsWord { open, by: user(), reason: consent.reason, at: store.now() };
    let answers = store.apply(Urgency::Normal, vec![Command::Breaker { key: key.clone(), word }]).await?;
    match answers.into_iter().next() {
        Some(Answer::Done) => {}
        other => return Err(exit::error(Exit::Failed, format!("{key}: the store answered {other:?}"))),
    }
    store.close().await;
    let done = if open { "opened" } else { "closed" };
    context.say(format!("{done}: {key}; {waiting} tasks wait for it"));
    Ok(Exit::Done)
}

async fn list(context: &Context) -> anyhow::Result<Exit> {
    let store = context.store().await?;
    let gates = &context.config().gates;
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
    let mut rows: Vec<Row<'_>> = breakers
        .iter()
        .map(|(key, breaker)| {
            let rule = match gates.rule(key) {
                Some(RuleOf::Breaker(rule)) => Some(rule),
                _ => None,
            };
            Row { key, breaker, rule, waiting: waiting.remove(key).unwrap_or(0), now }
        })
        .collect();
    // What is shut is what a person looks for.
    rows.sort_by_key(|row| row.breaker.phase == Phase::Closed);
    let mut listing = Listing::new(&COLUMNS);
    rows.iter().for_each(|row| listing.push(row.entry()));
    if rows.is_empty() {
        let names: Vec<&str> = gates.breakers.iter().map(|rule| rule.name.as_str()).collect();
        context.say(match names.is_empty() {
            true => "no [[breaker]] is configured".to_owned(),
            false => format!("nothing has failed yet at: {}", names.join(", ")),
        });
    }
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

struct Row<'a> {
    key: &'a str,
    breaker: &'a Breaker,
    /// `None`: the configuration has no such breaker any more, so that it stops nothing.
    rule: Option<&'a BreakerRule>,
    waiting: i64,
    now: Millis,
}

impl Row<'_> {
    /// `open` after its cool-down counts as half open, whether or not a probe has come.
    fn phase(&self) -> &'static str {
        match self.breaker.phase {
            Phase::Closed => "closed",
            Phase::Open { until, .. } if self.breaker.is_forced_open() || self.now < until => "open",
            Phase::Open { .. } | Phase::HalfOpen => "half_open",
        }
    }

    fn since(&self) -> Option<Millis> {
        match self.breaker.phase {
            Phase::Open { since, .. } => Some(since),
            Phase::Closed | Phase::HalfOpen => None,
        }
    }

    fn until(&self) -> Option<Millis> {
        match self.breaker.phase {
            Phase::Open { until, .. } if !self.breaker.is_forced_open() => Some(until),
            _ => None,
        }
    }

    /// When a probe may start; `None`: none will, or only an event tells.
    fn next_probe(&self) -> Option<Millis> {
        if self.breaker.phase == Phase::Closed {
            return None;
        }
        match self.breaker.look(self.rule?, self.now) {
            Look::Open { .. } => Some(self.now),
            Look::Shut { opens_at } | Look::Tripped { opens_at, .. } => opens_at,
        }
    }

    fn next_probe_for_people(&self) -> String {
        match self.next_probe() {
            _ if self.breaker.phase == Phase::Closed || self.rule.is_none() => String::new(),
            Some(at) => ahead(at, self.now),
            None if self.breaker.is_forced_open() => "never".into(),
            None => "one runs".into(),
        }
    }

    fn why(&self) -> String {
        let breaker = self.breaker;
        let said = breaker.word.as_ref().map(|word| {
            let reason = word.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
            // When it was opened stands in its own column.
            let verb = if word.open { "opened" } else { "closed" };
            let when = if word.open { String::new() } else { format!(" {} ago", ago(word.at, self.now)) };
            format!("{verb} by {}{when}{reason}", word.by)
        });
        let mut parts = Vec::new();
        match (&breaker.because, said) {
            // A word that was given before it tripped is not why.
            (Some(because), _) if !breaker.is_forced_open() => parts.push(because.clone()),
            (_, Some(said)) => parts.push(said),
            _ => {}
        }
        if breaker.failed_probes > 0 {
            parts.push(format!("{} {} failed", breaker.failed_probes, plural(breaker.failed_probes.into(), "probe")));
        }
        if breaker.phase == Phase::Closed && breaker.in_a_row > 0 {
            parts.push(format!("{} {} in a row", breaker.in_a_row, plural(breaker.in_a_row, "failure")));
        }
        if self.rule.is_none() {
            parts.push("not configured any more: stops nothing".into());
        }
        parts.join("; ")
    }

    fn entry(&self) -> Entry {
        let (breaker, rule) = (self.breaker, self.rule);
        let probes = rule.map_or_else(String::new, |rule| format!("{}/{}", breaker.probes.len(), rule.probes));
        let cells = vec![
            self.key.to_owned(),
            self.phase().to_owned(),
            self.since().map(|since| ago(since, self.now)).unwrap_or_default(),
            self.next_probe_for_people(),
            probes,
            self.waiting.to_string(),
            self.why(),
        ];
        let json = json!({
            "key": self.key,
            "name": rule.map(|rule| &rule.name),
            "phase": self.phase(),
            "since": time_or_null(self.since()),
            "until": time_or_null(self.until()),
            "because": breaker.because,
            "failed_probes": breaker.failed_probes,
            "failures_in_a_row": breaker.in_a_row,
            "forced_open": breaker.is_forced_open(),
            "word": breaker.word.as_ref().map(word_json),
            "probes_in_use": breaker.probes.len(),
            "probes": rule.map(|rule| rule.probes),
            "next_probe_at": time_or_null(self.next_probe()),
            // How many may run at once while work returns after it closed.
            "return_window": breaker.back.as_ref().map(|back| back.window),
            "waiting": self.waiting,
            "when_open": rule.map(|rule| word_of(rule.when_open)),
            "configured": rule.is_some(),
        });
        Entry { name: self.key.to_owned(), cells, json }
    }
}

fn plural(count: i64, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}

fn word_json(word: &PersonsWord) -> Value {
    json!({ "open": word.open, "by": word.by, "reason": word.reason, "at": time(word.at) })
}

fn word_of(when_open: WhenOpen) -> &'static str {
    match when_open {
        WhenOpen::Park => "park",
        WhenOpen::DeadLetter => "dead_letter",
        WhenOpen::Fallback => "fallback",
    }
}
