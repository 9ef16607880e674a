//! What people do to named tasks, and what became of each.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Waker;
use crate::store::{Filter, Store, StoreError, Urgency, why_skipped};
use crate::task::{Answer, Command, Status, WakeUp};

/// Rows read at once; each may hold a payload of up to `worker.max_body`.
const PAGE: usize = 200;
/// Rows changed in one transaction.
const BATCH: usize = 500;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Stop a waiting task for good.
    Cancel,
    /// Run a waiting task now instead of when it is due.
    RunNow,
    /// Run a dead task again.
    Replay,
    /// Throw a dead task away.
    Discard,
}

/// What became of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// As asked.
    Done,
    /// There is no such task.
    NotFound,
    /// It is in a state in which this cannot be done.
    Conflict,
    /// Something else went wrong.
    Failed,
}

/// What became of one task, and how that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FateOf {
    /// The task.
    pub id: String,
    /// What became of it.
    pub fate: Fate,
    /// The same in a few words.
    pub text: String,
    /// Where it stands instead, if that is why it was not done.
    pub status: Option<Status>,
}

impl FateOf {
    fn new(id: &str, fate: Fate, text: impl Into<String>) -> FateOf {
        FateOf { id: id.to_owned(), fate, text: text.into(), status: None }
    }
}

impl Act {
    fn done(self) -> &'static str {
        match self {
            Act::Cancel => "cancelled",
            Act::RunNow => "runs now",
            Act::Replay => "replayed",
            Act::Discard => "discarded",
        }
    }

    fn would(self) -> &'static str {
        match self {
            Act::Cancel => "would be cancelled",
            Act::RunNow => "would run now",
            Act::Replay => "would be replayed",
            Act::Discard => "would be discarded",
        }
    }

    /// The status it needs, in words.
    fn needs(self) -> &'static str {
        match self {
            Act::Cancel | Act::RunNow => "waiting",
            Act::Replay | Act::Discard => "dead",
        }
    }

    fn fits(self, status: Status) -> bool {
        match self {
            Act::Cancel | Act::RunNow => status.is_waiting(),
            Act::Replay | Act::Discard => status == Status::Dead,
        }
    }

    fn command(self, id: &str, generation: i64, note: Option<&str>) -> Command {
        let (id, note) = (id.to_owned(), note.map(str::to_owned));
        match self {
            Act::Cancel => Command::Cancel { id, note },
            Act::RunNow => Command::RunNow { id },
            Act::Replay => Command::Replay { id, generation, note },
            Act::Discard => Command::Discard { id, generation, note },
        }
    }
}

/// Does it to each of `ids`, or says what would be done. Dead tasks are meant as they are now.
///
/// # Errors
/// When the store does not answer. What was done until then stays done: each batch is committed with its alarms.
pub async fn act(
    store: &dyn Store,
    waker: &Waker,
    act: Act,
    ids: &[String],
    note: Option<&str>,
    dry_run: bool,
) -> Result<Vec<FateOf>, StoreError> {
    let mut fates = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(PAGE) {
        let found = store.get(chunk).await?;
        let mut commands = Vec::new();
        let mut asked = Vec::new();
        for (id, task) in chunk.iter().zip(found) {
            let Some(task) = task else {
                fates.push(FateOf::new(id, Fate::NotFound, "there is no such task"));
                continue;
            };
            let status = task.state.status;
            if !act.fits(status) {
                fates.push(refused(act, id, status));
            } else if let Some(reason) = task.state.dead_reason.filter(|why| act == Act::Replay && !why.is_replayable())
            {
                let text = format!("it is dead by {reason}, and cannot run as it is");
                fates.push(FateOf { status: Some(status), ..FateOf::new(id, Fate::Conflict, text) });
            } else if dry_run {
                fates.push(FateOf::new(id, Fate::Done, act.would()));
            } else {
                commands.push(act.command(id, task.stamp().generation, note));
                asked.push(id);
            }
        }
        let mut wake_ups: Vec<WakeUp> = Vec::new();
        if !commands.is_empty() {
            for (id, answer) in asked.into_iter().zip(store.apply(Urgency::Normal, commands).await?) {
                if let Answer::Publish(wake_up) = &answer {
                    wake_ups.push(wake_up.clone());
                }
                fates.push(fate_of(act, id, answer));
            }
        }
        waker.send(&wake_ups).await?;
    }
    // In the order in which they were asked for.
    let place: BTreeMap<&str, usize> = ids.iter().enumerate().map(|(at, id)| (id.as_str(), at)).collect();
    fates.sort_by_key(|fate| place.get(fate.id.as_str()).copied());
    Ok(fates)
}

fn fate_of(act: Act, id: &str, answer: Answer) -> FateOf {
    match answer {
        Answer::Done | Answer::Publish(_) => FateOf::new(id, Fate::Done, act.done()),
        Answer::Unknown => FateOf::new(id, Fate::NotFound, "there is no such task"),
        Answer::NotNow { status } => refused(act, id, status),
        Answer::NotReplayable { reason } => {
            let text = format!("it is dead by {reason}, and cannot run as it is");
            FateOf { status: Some(Status::Dead), ..FateOf::new(id, Fate::Conflict, text) }
        }
        Answer::Unprocessable { message } => FateOf::new(id, Fate::Failed, message),
        _ => FateOf::new(id, Fate::Conflict, "it has just changed"),
    }
}

fn refused(act: Act, id: &str, status: Status) -> FateOf {
    let text = format!("it is {status}, not {}", act.needs());
    FateOf { status: Some(status), ..FateOf::new(id, Fate::Conflict, text) }
}

/// How many dead letters were meant, how many were thrown away, and why the others were not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Discarded")]
pub struct Skips {
    /// How many were meant.
    pub matched: usize,
    /// How many are discarded now (or would be).
    pub discarded: usize,
    /// How many are not, by reason: `not_found`, `not_dead`, `not_matched`, `changed`.
    pub skipped: BTreeMap<String, usize>,
    /// Whether nothing was changed because only a look was asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Throws away the dead letters that `filter` means now, newest first, at most `limit`. What it is about is decided once, at the start; each
/// letter goes only if it is still in the generation that was looked at.
///
/// # Errors
/// When the store does not answer.
pub async fn discard_chosen(
    store: &dyn Store,
    filter: &Filter,
    limit: Option<usize>,
    reason: &str,
    dry_run: bool,
) -> Result<Skips, StoreError> {
    let mut tally = Skips { dry_run, ..Skips::default() };
    let most = limit.unwrap_or(usize::MAX);
    let mut letters: Vec<(String, i64)> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = store.list(filter, cursor.as_deref(), PAGE).await?;
        letters.extend(page.items.iter().map(|task| (task.id().to_owned(), task.stamp().generation)));
        cursor = page.next;
        if cursor.is_none() || letters.len() >= most {
            break;
        }
    }
    if cursor.is_none() && letters.len() < most {
        let chosen: std::collections::HashSet<&str> = letters.iter().map(|(id, _)| id.as_str()).collect();
        let others: Vec<String> = filter.ids.iter().filter(|id| !chosen.contains(id.as_str())).cloned().collect();
        for chunk in others.chunks(PAGE) {
            for task in store.get(chunk).await? {
                let why = match task.map(|task| task.state.status) {
                    None => "not_found",
                    Some(Status::Dead) => "not_matched",
                    Some(_) => "not_dead",
                };
                *tally.skipped.entry(why.to_owned()).or_default() += 1;
            }
        }
    }
    letters.truncate(most);
    if dry_run {
        tally.discarded = letters.len();
    } else {
        for chunk in letters.chunks(BATCH) {
            let commands =
                chunk.iter().map(|(id, generation)| Act::Discard.command(id, *generation, Some(reason))).collect();
            for answer in store.apply(Urgency::Normal, commands).await? {
                match answer {
                    Answer::Done => tally.discarded += 1,
                    other => *tally.skipped.entry(why_skipped(&other).to_owned()).or_default() += 1,
                }
            }
        }
    }
    tally.matched = tally.discarded + tally.skipped.values().sum::<usize>();
    Ok(tally)
}
