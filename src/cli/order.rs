//! `redeliver dlq replay`: orders a replay job and follows it until its last letter is put to run.
//!
//! The command drives the job itself, so that it works where no worker runs; should it die, the next worker goes on. What becomes of the
//! letters afterwards is for `redeliver replay show`.

mod through;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redeliver::dead_letter::replay::{Driven, HOLD_MS, Publisher, Until, drive};
use redeliver::desk::filter::FilterText;
use redeliver::desk::replays::{self, Order, Preview};
use redeliver::desk::{Mask, to_json};
use redeliver::store::{ReplayJob, ReplayState, Steer, Store};
use redeliver::task::WakeUp;
use redeliver::telemetry::Observers;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::audit::{tell, whoami};
use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::letters::{Choice, Tally};
use super::output::{Entry, Listing, stderr_is_terminal};
use super::wake::Waker;

/// Between two lines of progress where nobody watches a bar.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How often a job is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Ids beyond which a job's description names only how many there were.
const MOST_IDS: usize = 20;

/// What is ordered.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// At most so many a second, minute or hour: `50/s`, `300/min`
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: Option<f64>,
    /// A few first: 1 %, 5 %, 25 % and then all, each step only when all of the one before have ended well
    #[arg(long)]
    ramp: bool,
    /// Stop when more than this part of those that have ended failed again; with --ramp 0.1 unless given
    #[arg(long, value_name = "RATIO")]
    max_failure_ratio: Option<f64>,
    /// Run what the letters should have been: a JSON Patch for each payload, or @FILE. Makes new tasks; the letters are kept, discarded
    #[arg(long, value_name = "JSON-PATCH")]
    edit_payload: Option<String>,
    /// Leave the job to the workers and come back at once
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    consent: Consent,
}

fn rate(text: &str) -> Result<f64, String> {
    replays::rate(text)
}

impl Args {
    /// Refuses before anything is opened.
    ///
    /// # Errors
    /// [`Exit::Refused`] without consent, [`Exit::Usage`] for what cannot be meant.
    pub fn can_run(&self) -> anyhow::Result<()> {
        self.choice.is_made()?;
        self.pace()?;
        self.consent.can_be_had()
    }

    fn pace(&self) -> anyhow::Result<redeliver::store::Pace> {
        replays::pace(self.rate, self.ramp, self.max_failure_ratio)
            .map_err(|problem| exit::error(Exit::Usage, format!("--max-failure-ratio: {problem}")))
    }

    fn edit(&self) -> anyhow::Result<Option<String>> {
        let Some(text) = self.edit_payload.as_deref() else { return Ok(None) };
        let Some(file) = text.strip_prefix('@') else { return Ok(Some(text.to_owned())) };
        let read = std::fs::read_to_string(file);
        read.map(Some).map_err(|error| exit::error(Exit::Usage, format!("--edit-payload {file}: {error}")))
    }

    fn order(&self, store: &dyn Store) -> anyhow::Result<Order> {
        let filter = self.choice.to_filter(store.now())?;
        let mut text = FilterText::of(&filter);
        let mut about = json!({});
        if text.ids.len() > MOST_IDS {
            about["ids"] = text.ids.len().into();
            text.ids.clear();
        }
        about["filter"] = to_json(&text);
        if let Some(limit) = self.choice.limit() {
            about["limit"] = limit.into();
        }
        let edit = self.edit()?;
        let order = Order {
            filter,
            about,
            limit: self.choice.limit(),
            pace: self.pace()?,
            edit,
            by: Some(whoami()),
            reason: self.consent.reason.clone(),
        };
        order.edit().map_err(|error| exit::error(Exit::Usage, format!("--edit-payload: {error}")))?;
        Ok(order)
    }
}

/// Runs the command.
///
/// # Errors
/// When store or broker do not answer. What was replayed until then stays replayed, and the job goes on where a worker runs.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let store = match context.door().await? {
        Door::Store(store) => store,
        Door::Api(remote) => return through::run(args, context, remote).await,
    };
    let order = args.order(&*store)?;
    let by_id = !order.filter.ids.is_empty();
    let preview = context.bound("the store", order.preview(&*store, Mask::none())).await??;
    if args.consent.dry_run || preview.replayed == 0 {
        return print_preview(context, preview, by_id, args.consent.dry_run);
    }
    args.consent.ask(&format!("Replay {} dead letters?", preview.replayed))?;
    if args.detach {
        let job = context.bound("the store", order.place(&*store, None)).await??;
        told(context, &*store, &order, &job).await?;
        store.close().await;
        return detached(context, &job, by_id);
    }
    let waker = Waker::connect(context, store.clone()).await?;
    let driver = format!("command-{}", std::process::id());
    let job = context.bound("the store", order.place(&*store, Some((driver, HOLD_MS)))).await??;
    told(context, &*store, &order, &job).await?;
    context.say(format!("replay job {}", job.id));
    let ended = follow(context, &*store, &waker, &job).await;
    waker.close().await;
    // What has happened is told whatever ended it.
    let job = match context.bound_last("the store", store.replay(job.id)).await {
        Ok(Ok(Some(now))) => now,
        _ => job,
    };
    let tally = Tally {
        verb: "replayed",
        done: job.counts.released(),
        left: job.counts.waiting,
        skipped: job.counts.skipped.clone(),
        by_id,
        ..Tally::default()
    };
    let exit = tally.print(context)?;
    ended?;
    match job.state {
        ReplayState::Stopped | ReplayState::Cancelled | ReplayState::Paused if job.counts.waiting > 0 => {
            let why = job.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let text = format!("replay job {} is {}{why}; the rest was not replayed", job.id, job.state.as_str());
            Err(exit::error(Exit::Partly, text))
        }
        _ => Ok(exit),
    }
}

async fn told(context: &Context, store: &dyn Store, order: &Order, job: &ReplayJob) -> anyhow::Result<()> {
    let target = format!("job {}: {}", job.id, order.about);
    let told = tell(store, "replay.create", target, order.reason.clone(), Some(job.counts.waiting));
    Ok(context.bound("the store", told).await??)
}

/// Drives the job, or watches who does, until nothing waits in it.
async fn follow(context: &Context, store: &dyn Store, waker: &Waker, job: &ReplayJob) -> anyhow::Result<()> {
    let sent = Sent { waker, left_to_alarms: AtomicUsize::new(0) };
    let stop = CancellationToken::new();
    let observers = Observers::default();
    let driving = async {
        match drive(store, &sent, &observers, job, Until::Released, &stop).await? {
            Driven::Done | Driven::GivenUp => {}
            // Another drives it, or a person has halted it.
            Driven::NotOurs => until_released(store, job.id).await?,
        }
        Ok::<(), anyhow::Error>(())
    };
    let deadline = async {
        match context.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = driving => ended,
        error = tell_progress(store, job) => Err(error),
        () = deadline => {
            stop.cancel();
            let why = Some("the command's --timeout was over");
            let _: redeliver::store::Steered =
                context.bound_last("the store", store.steer_replay(job.id, Steer::Cancel, Some(&whoami()), why)).await??;
            Err(exit::error(Exit::Partly, "--timeout is over; the rest was not replayed"))
        }
    };
    let left = sent.left_to_alarms.load(Ordering::Relaxed);
    if left > 0 && waker.has_broker() {
        context.say(format!("{left} wake-ups were not confirmed; the store's alarms cover them"));
    }
    ended
}

async fn until_released(store: &dyn Store, id: i64) -> anyhow::Result<()> {
    loop {
        match store.replay(id).await? {
            Some(job) if job.state == ReplayState::Running && job.counts.waiting > 0 => tokio::time::sleep(LOOK).await,
            _ => return Ok(()),
        }
    }
}

/// A bar on a terminal, else a line every ten seconds. Comes back only when the store cannot be read.
async fn tell_progress(store: &dyn Store, job: &ReplayJob) -> anyhow::Error {
    let all = job.counts.waiting;
    let bar = stderr_is_terminal().then(|| indicatif::ProgressBar::new(u64::try_from(all).unwrap_or(0)));
    let bar = bar.map(ClearedBar);
    let mut told = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        let now = match store.replay(job.id).await {
            Ok(Some(now)) => now,
            Ok(None) => return anyhow::anyhow!("replay job {} is gone", job.id),
            Err(error) => return error.into(),
        };
        let done = all - now.counts.waiting;
        match &bar {
            Some(bar) => bar.0.set_position(u64::try_from(done).unwrap_or(0)),
            None if told.elapsed() >= TELL_EVERY => {
                told = Instant::now();
                eprintln!("{done} of {all}");
            }
            None => {}
        }
    }
}

struct ClearedBar(indicatif::ProgressBar);

impl Drop for ClearedBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

struct Sent<'a> {
    waker: &'a Waker,
    left_to_alarms: AtomicUsize,
}

#[async_trait]
impl Publisher for Sent<'_> {
    fn is_ready(&self) -> bool {
        true
    }

    async fn publish(&self, wake_ups: Vec<WakeUp>) {
        let left = match self.waker.send(&wake_ups).await {
            Ok(sent) => sent.left_to_alarms,
            Err(error) => {
                tracing::warn!(%error, "wake-ups are left to their alarms");
                wake_ups.len()
            }
        };
        self.left_to_alarms.fetch_add(left, Ordering::Relaxed);
    }
}

fn detached(context: &Context, job: &ReplayJob, by_id: bool) -> anyhow::Result<Exit> {
    context.say(format!("replay job {}: the workers drive it; see `redeliver replay show {}`", job.id, job.id));
    let tally = Tally {
        verb: "replayed",
        done: job.counts.released(),
        left: job.counts.waiting,
        skipped: job.counts.skipped.clone(),
        by_id,
        more: vec![("job", job.id.into()), ("waiting", job.counts.waiting.into())],
        ..Tally::default()
    };
    tally.print(context)?;
    Ok(Exit::Done)
}

fn print_preview(context: &Context, preview: Preview, by_id: bool, dry_run: bool) -> anyhow::Result<Exit> {
    let mut tally = Tally {
        verb: "replayed",
        done: preview.replayed,
        skipped: preview.skipped,
        by_id,
        dry_run,
        ..Tally::default()
    };
    if !preview.edits.is_empty() {
        let mut listing = Listing::new(&["id", "becomes", "path", "before", "after"]);
        for edit in &preview.edits {
            let shown = |value: &Option<Value>| value.as_ref().map_or_else(String::new, Value::to_string);
            let refused = edit.refused.as_deref().unwrap_or_default();
            let becomes = edit.becomes.clone().unwrap_or_default();
            if edit.differences.is_empty() {
                let cells = vec![edit.id.clone(), becomes.clone(), String::new(), String::new(), refused.to_owned()];
                listing.push(Entry { name: edit.id.clone(), cells, json: Value::Null });
            }
            for difference in &edit.differences {
                let (before, after) = (shown(&difference.before), shown(&difference.after));
                let cells = vec![edit.id.clone(), becomes.clone(), difference.path.clone(), before, after];
                listing.push(Entry { name: edit.id.clone(), cells, json: Value::Null });
            }
        }
        tally.tables.push(("EDITS of the first letters", listing));
        tally.more.push(("edits", to_json(&preview.edits)));
    }
    tally.print(context)
}
