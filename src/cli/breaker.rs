//! `redeliver breaker …`: which keys are shut and why; a person's word.

use clap::Subcommand;
use redeliver::desk::gates::{self, BreakerDocument, WordError, WordTaken, word_of};
use redeliver::desk::{List, to_json};
use redeliver::gate::{BreakerKeyError, WhenOpen};
use redeliver::task::Millis;
use serde_json::json;

use super::audit::{tell, whoami};
use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::filter::now;
use super::output::{Entry, Listing, ago, ahead, moment};

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
    let taken: WordTaken = match context.door().await? {
        Door::Store(store) => {
            let gates = &context.config().gates;
            let (full, rule) = gates.breaker_key(&key).map_err(|error| refused(&error.into()))?;
            // Waiting can be taken back, an end cannot.
            if open && rule.when_open != WhenOpen::Park && !consent.dry_run {
                consent.ask(&format!("Open {full}? Its due tasks end by {}.", word_of(rule.when_open)))?;
            }
            let by = whoami();
            let said = gates::say(&*store, gates, &key, open, &by, consent.reason.clone(), consent.dry_run);
            let taken = said.await.map_err(|error| refused(&error))?;
            if !consent.dry_run {
                let action = if open { "breaker.open" } else { "breaker.close" };
                tell(&*store, action, &taken.key, consent.reason, Some(taken.waiting)).await?;
            }
            store.close().await;
            taken
        }
        Door::Api(remote) => {
            // Which of them ends tasks, the server's configuration knows.
            if open && !consent.dry_run {
                consent.ask(&format!("Open {key}? Where its when_open is not park, its due tasks end."))?;
            }
            let body = json!({ "key": key, "reason": consent.reason, "dry_run": consent.dry_run });
            remote.post(&["breakers", if open { "open" } else { "close" }], &body).await?
        }
    };
    let WordTaken { key, waiting, .. } = taken;
    match (consent.dry_run, open) {
        (true, _) => {
            let verb = if open { "open" } else { "close" };
            context.say(format!("would {verb} {key}; {waiting} tasks wait for it"));
        }
        (false, _) => {
            let done = if open { "opened" } else { "closed" };
            context.say(format!("{done}: {key}; {waiting} tasks wait for it"));
        }
    }
    Ok(Exit::Done)
}

fn refused(error: &WordError) -> anyhow::Error {
    let exit = match error {
        WordError::Key(BreakerKeyError::Unknown { .. }) | WordError::NeverOpen { .. } => Exit::NotFound,
        WordError::Key(_) => Exit::Usage,
        WordError::Closed { .. } => Exit::Conflict,
        WordError::Refused { .. } => Exit::Failed,
        WordError::Store(store) => exit::of_store(store),
    };
    let more = if matches!(error, WordError::NeverOpen { .. }) { "; see `redeliver breaker list`" } else { "" };
    exit::error(exit, format!("{error}{more}"))
}

async fn list(context: &Context) -> anyhow::Result<Exit> {
    let breakers = match context.door().await? {
        Door::Store(store) => gates::breakers(&*store, &context.config().gates).await?,
        Door::Api(remote) => remote.get::<List<BreakerDocument>>(&["breakers"], &()).await?.items,
    };
    let now = now();
    let mut listing = Listing::new(&COLUMNS);
    breakers.iter().for_each(|breaker| listing.push(Row { breaker, now }.entry()));
    if breakers.is_empty() {
        let names: Vec<&str> = context.config().gates.breakers.iter().map(|rule| rule.name.as_str()).collect();
        context.say(match names.is_empty() {
            true => "no [[breaker]] is configured".to_owned(),
            false => format!("nothing has failed yet at: {}", names.join(", ")),
        });
    }
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

struct Row<'a> {
    breaker: &'a BreakerDocument,
    now: Millis,
}

impl Row<'_> {
    fn next_probe(&self) -> String {
        let breaker = self.breaker;
        match breaker.next_probe_at.as_deref().and_then(moment) {
            _ if breaker.phase == "closed" || !breaker.configured => String::new(),
            Some(at) => ahead(at, self.now),
            None if breaker.forced_open => "never".into(),
            None => "one runs".into(),
        }
    }

    fn why(&self) -> String {
        let breaker = self.breaker;
        let said = breaker.word.as_ref().map(|word| {
            let reason = word.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
            // When it was opened stands in its own column.
            let verb = if word.open { "opened" } else { "closed" };
            let at = moment(&word.at).unwrap_or(self.now);
            let when = if word.open { String::new() } else { format!(" {} ago", ago(at, self.now)) };
            format!("{verb} by {}{when}{reason}", word.by)
        });
        let mut parts = Vec::new();
        match (&breaker.because, said) {
            // A word that was given before it tripped is not why.
            (Some(because), _) if !breaker.forced_open => parts.push(because.clone()),
            (_, Some(said)) => parts.push(said),
            _ => {}
        }
        if breaker.failed_probes > 0 {
            parts.push(format!("{} {} failed", breaker.failed_probes, plural(breaker.failed_probes.into(), "probe")));
        }
        if breaker.phase == "closed" && breaker.failures_in_a_row > 0 {
            let count = breaker.failures_in_a_row;
            parts.push(format!("{count} {} in a row", plural(count, "failure")));
        }
        if !breaker.configured {
            parts.push("not configured any more: stops nothing".into());
        }
        parts.join("; ")
    }

    fn entry(&self) -> Entry {
        let breaker = self.breaker;
        let cells = vec![
            breaker.key.clone(),
            breaker.phase.clone(),
            breaker.since.as_deref().and_then(moment).map(|since| ago(since, self.now)).unwrap_or_default(),
            self.next_probe(),
            breaker.probes.map_or_else(String::new, |probes| format!("{}/{probes}", breaker.probes_in_use)),
            breaker.waiting.to_string(),
            self.why(),
        ];
        Entry { name: breaker.key.clone(), cells, json: to_json(breaker) }
    }
}

fn plural(count: i64, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}
