//! Choosing dead letters once and replaying them, as fast as asked.
//!
//! The choice is made before the first letter moves and never widens; each letter moves only if it is still in the generation that was
//! looked at. What was skipped is counted by reason.

use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redeliver::store::{Store, Urgency};
use redeliver::task::{Answer, Command, Status};
use serde_json::json;

use super::confirm::Consent;
use super::context::Context;
use super::exit::{self, Exit};
use super::filter::FilterArgs;
use super::output::{Document, stderr_is_terminal};
use super::wake::Waker;

/// Letters in one transaction.
pub const BATCH: usize = 500;
/// Letters read at once; each may hold a payload of up to `worker.max_body`.
const PAGE: usize = 200;
/// Between two lines of progress where nobody watches a bar.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Which dead letters: ids, filters or all of them.
#[derive(Debug, Clone, clap::Args)]
pub struct Choice {
    /// These; `-` reads ids from stdin
    #[arg(id = "letters", value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Every dead letter (that the filters match)
    #[arg(long)]
    all: bool,
    /// At most so many, newest first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

impl Choice {
    /// Whether anything was chosen: a forgotten filter must not mean everything.
    ///
    /// # Errors
    /// [`Exit::Usage`] when nothing was.
    pub fn is_made(&self) -> anyhow::Result<()> {
        if self.all || !self.ids.is_empty() || !self.filter.is_empty() {
            return Ok(());
        }
        Err(exit::error(Exit::Usage, "say which dead letters: ids, filters, or --all"))
    }
}

/// `50/s`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Letters a second.
    pub per_s: f64,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let refused = || format!("expected a rate such as 50/s, 300/min or 10/h, found {text:?}");
        let (number, unit) = text.split_once('/').ok_or_else(refused)?;
        let number: f64 = number.trim().parse().map_err(|_| refused())?;
        let seconds = match unit.trim() {
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(refused()),
        };
        if !number.is_finite() || number <= 0.0 || number > 1e9 {
            return Err(refused());
        }
        Ok(Rate { per_s: number / seconds })
    }
}

/// A dead letter as it was when it was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// The task.
    pub id: String,
    /// The generation that was looked at.
    pub generation: i64,
    /// Whether it can run again as it is.
    replayable: bool,
}

/// What was done and what was not.
#[derive(Debug)]
pub struct Tally {
    verb: &'static str,
    /// As asked.
    pub done: usize,
    skipped: BTreeMap<&'static str, usize>,
    by_id: bool,
}

impl Tally {
    /// Nothing yet; `verb` is the past participle in the output.
    pub fn new(verb: &'static str) -> Tally {
        Tally { verb, done: 0, skipped: BTreeMap::new(), by_id: false }
    }

    /// One more that was not done, and why.
    pub fn skip(&mut self, why: &'static str) {
        *self.skipped.entry(why).or_default() += 1;
    }

    fn skipped(&self) -> usize {
        self.skipped.values().sum()
    }

    /// Prints it and says how it ended.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn print(&self, context: &Context, dry_run: bool) -> anyhow::Result<Exit> {
        let matched = self.done + self.skipped();
        let mut json = json!({ "matched": matched, (self.verb): self.done, "skipped": self.skipped });
        if dry_run {
            json["dry_run"] = true.into();
        }
        let skipped: Vec<String> = self.skipped.iter().map(|(why, n)| format!("{why}={n}")).collect();
        let lines = vec![
            ("matched", matched.to_string()),
            (if dry_run { "would be" } else { "done" }, format!("{} {}", self.done, self.verb)),
            ("skipped", if skipped.is_empty() { "0".into() } else { skipped.join(" ") }),
        ];
        context.printer.one(&Document { name: self.done.to_string(), lines, tables: Vec::new(), json })?;
        Ok(self.exit())
    }

    fn exit(&self) -> Exit {
        if self.skipped.is_empty() {
            return Exit::Done;
        }
        if self.done == 0 && self.by_id {
            let only_unknown = self.skipped.keys().all(|why| *why == "not_found");
            return if only_unknown { Exit::NotFound } else { Exit::Conflict };
        }
        Exit::Partly
    }
}

/// The letters that `choice` means now, newest first. Ids that are not dead letters are counted as skipped.
///
/// # Errors
/// When the store does not answer.
pub async fn choose(
    context: &Context,
    store: &dyn Store,
    choice: &Choice,
    tally: &mut Tally,
) -> anyhow::Result<Vec<Letter>> {
    let filter = choice.filter.to_dead_filter(&choice.ids, store.now())?;
    tally.by_id = !filter.ids.is_empty();
    let most = choice.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let mut letters: Vec<Letter> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = context.bound("the store", store.list(&filter, cursor.as_deref(), PAGE)).await??;
        letters.extend(page.items.iter().map(|task| Letter {
            id: task.id().to_owned(),
            generation: task.stamp().generation,
            replayable: task.state.dead_reason.is_none_or(|reason| reason.is_replayable()),
        }));
        cursor = page.next;
        if cursor.is_none() || letters.len() >= most {
            break;
        }
    }
    if cursor.is_none() && letters.len() < most {
        let chosen: HashSet<&str> = letters.iter().map(|letter| letter.id.as_str()).collect();
        let others: Vec<String> = filter.ids.iter().filter(|id| !chosen.contains(id.as_str())).cloned().collect();
        for chunk in others.chunks(PAGE) {
            for task in context.bound("the store", store.get(chunk)).await?? {
                match task.map(|task| task.state.status) {
                    None => tally.skip("not_found"),
                    Some(Status::Dead) => tally.skip("not_matched"),
                    Some(_) => tally.skip("not_dead"),
                }
            }
        }
    }
    letters.truncate(most);
    Ok(letters)
}

/// The word for what was not done.
pub fn why_skipped(answer: &Answer) -> &'static str {
    match answer {
        Answer::NotReplayable { .. } => "not_replayable",
        Answer::Unknown => "not_found",
        Answer::NotNow { .. } => "not_dead",
        Answer::Unprocessable { .. } => "unprocessable",
        _ => "changed",
    }
}

/// `redeliver dlq replay`
///
/// # Errors
/// When store or broker do not answer. What was replayed until then stays replayed: each batch is committed with its alarms.
pub async fn replay(
    context: &Context,
    store: Arc<dyn Store>,
    choice: &Choice,
    rate: Option<Rate>,
    consent: &Consent,
) -> anyhow::Result<Exit> {
    let mut tally = Tally::new("replayed");
    let letters = choose(context, &*store, choice, &mut tally).await?;
    if consent.dry_run {
        for letter in &letters {
            if letter.replayable { tally.done += 1 } else { tally.skip("not_replayable") }
        }
        return tally.print(context, true);
    }
    if letters.is_empty() {
        return tally.print(context, false);
    }
    consent.ask(&format!("Replay {} dead letters?", letters.len()))?;
    let waker = Waker::connect(context, store.clone()).await?;
    tracing::info!(tasks = letters.len(), reason = consent.reason.as_deref().unwrap_or(""), "replaying");
    let exit = paced(context, &*store, &waker, &letters, rate, consent.reason.as_deref(), &mut tally).await;
    waker.close().await;
    match exit {
        Ok(true) => tally.print(context, false),
        Ok(false) => {
            tally.print(context, false)?;
            Err(exit::error(Exit::Partly, "--timeout is over; the rest was not replayed"))
        }
        Err(error) => {
            tally.print(context, false)?;
            Err(error)
        }
    }
}

/// Replays batch after batch. `false`: `--timeout` was over before the end.
async fn paced(
    context: &Context,
    store: &dyn Store,
    waker: &Waker,
    letters: &[Letter],
    rate: Option<Rate>,
    note: Option<&str>,
    tally: &mut Tally,
) -> anyhow::Result<bool> {
    let batch = rate.map_or(BATCH, batch_of);
    let began = Instant::now();
    let mut progress = Progress::new(letters.len());
    let mut left_to_alarms = 0;
    for (index, chunk) in letters.chunks(batch).enumerate() {
        if let Some(rate) = rate {
            #[expect(clippy::cast_precision_loss, reason = "counts of letters are far below 2^52")]
            let due = Duration::from_secs_f64((index * batch) as f64 / rate.per_s);
            let due = context.deadline().map_or(began + due, |deadline| deadline.min(began + due));
            tokio::time::sleep_until(due.into()).await;
        }
        if context.deadline().is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(false);
        }
        let commands = chunk
            .iter()
            .map(|letter| Command::Replay {
                id: letter.id.clone(),
                generation: letter.generation,
                note: note.map(str::to_owned),
            })
            .collect();
        let mut wake_ups = Vec::new();
        for answer in context.bound("the store", store.apply(Urgency::Normal, commands)).await?? {
            match answer {
                Answer::Publish(wake_up) => {
                    tally.done += 1;
                    wake_ups.push(wake_up);
                }
                other => tally.skip(why_skipped(&other)),
            }
        }
        left_to_alarms += waker.send(&wake_ups).await?.left_to_alarms;
        progress.advance(chunk.len());
    }
    progress.finish();
    if left_to_alarms > 0 && waker.has_broker() {
        context.say(format!("{left_to_alarms} wake-ups were not confirmed; the store's alarms cover them"));
    }
    Ok(true)
}

/// Ten batches a second, so that a rate is smooth, but at least one letter and at most [`BATCH`] each.
fn batch_of(rate: Rate) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 1..=500 first")]
    let batch = (rate.per_s / 10.0).clamp(1.0, 500.0) as usize;
    batch
}

/// A bar on a terminal, else a line every ten seconds.
struct Progress {
    bar: Option<indicatif::ProgressBar>,
    done: usize,
    all: usize,
    told: Instant,
}

impl Progress {
    fn new(all: usize) -> Progress {
        let length = u64::try_from(all).unwrap_or(u64::MAX);
        let bar = stderr_is_terminal().then(|| indicatif::ProgressBar::new(length));
        Progress { bar, done: 0, all, told: Instant::now() }
    }

    fn advance(&mut self, by: usize) {
        self.done += by;
        match &self.bar {
            Some(bar) => bar.inc(u64::try_from(by).unwrap_or(0)),
            None if self.told.elapsed() >= TELL_EVERY => {
                self.told = Instant::now();
                eprintln!("{} of {}", self.done, self.all);
            }
            None => {}
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_and_are_smooth() {
        assert_eq!("50/s".parse(), Ok(Rate { per_s: 50.0 }));
        assert_eq!("300/min".parse(), Ok(Rate { per_s: 5.0 }));
        for bad in ["", "50", "0/s", "-1/s", "x/s", "5/day", "nan/s", "inf/s"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
        assert_eq!(batch_of(Rate { per_s: 0.1 }), 1);
        assert_eq!(batch_of(Rate { per_s: 50.0 }), 5);
        assert_eq!(batch_of(Rate { per_s: 1e6 }), BATCH);
    }

    #[test]
    fn skipped_letters_make_it_partly_done() {
        let mut tally = Tally::new("replayed");
        assert_eq!(tally.exit(), Exit::Done);
        tally.skip("not_replayable");
        assert_eq!(tally.exit(), Exit::Partly);
        tally.by_id = true;
        assert_eq!(tally.exit(), Exit::Conflict);
        let mut unknown = Tally { by_id: true, ..Tally::new("replayed") };
        unknown.skip("not_found");
        assert_eq!(unknown.exit(), Exit::NotFound);
        unknown.done = 1;
        assert_eq!(unknown.exit(), Exit::Partly);
    }
}
