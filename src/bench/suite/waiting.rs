//! What tasks cost that only wait: a worker's memory, the store's size, and the time to find those that are due.

use std::time::{Duration, Instant};

use super::super::as_f64;
use super::super::spread::{Quantiles, Spread};
use super::crew::Crew;
use super::flow::STANDSTILL;
use super::ground::{Ground, bodies};
use super::hand::{Conduct, epoch_us};
use super::report::{Bound, Figures, Promise};
use super::seed::{self, Rows};
use super::tally::Tally;
use super::{Settings, Site};
use crate::desk::queues::{depths, queues};
use crate::store::{Alarm, Store};

/// Tasks that fall due while others wait, one every [`APART_MS`].
const DUE: usize = 300;
const APART_MS: i64 = 10;
/// From when they are written to when the first is due.
const AHEAD_MS: i64 = 1_000;
/// The others are due no sooner than that.
const FAR_MS: i64 = 3_600_000;
/// Due rows that are looked for at once.
const FOUND: usize = 100;
/// How often each question is asked.
const ASKED: usize = 200;
const LISTED: usize = 20;
/// How long a worker without work is looked at.
const REST: Duration = Duration::from_secs(5);
/// How often rows are looked at that are to be routed.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn promises(settings: &Settings) -> (String, Vec<Promise>) {
    let waiting = settings.waiting;
    let about = format!(
        "{waiting} tasks wait, half for a retry and half inserted by another program for later; {DUE} more fall due one by one. \
         `find_due_…` is the query for due retries, {FOUND} found; `round_…` all that the scheduler asks in a round; `late_…` is from due \
         to started, through the broker; `extra_mb` is the worker's memory less that of one beside an empty store, both after the same work."
    );
    let promises = vec![
        Promise::new("extra_mb", Bound::AtMost(10.0), "the wait is not in the worker"),
        Promise::new("find_due_p99_ms", Bound::AtMost(5.0), "what is due is found at once"),
    ];
    (about, promises)
}

pub(super) async fn run(site: &Site<'_>, settings: &Settings) -> anyhow::Result<Figures> {
    Ground::with(site, settings, Conduct::Succeed, None, async |ground| {
        let ground = &*ground;
        let mut figures = Figures::default();
        ground.ceiling(&bodies("bare", 5_000, settings), &mut figures).await?;
        // Makes the file.
        ground.store().await?.close().await;
        let mut crew = Crew::start(ground, 1).await?;
        let alone = falling_due(ground, &mut crew, "before", settings).await?;
        crew.stop().await?;
        figures.set("idle_mb", alone.rss_mb);
        figures.set("idle_late_p99_ms", alone.lateness.p99_ms);
        fill(ground, settings, &mut figures).await?;
        find(ground, settings, &mut figures).await?;
        beside(ground, settings, alone, &mut figures).await?;
        Ok(figures)
    })
    .await
}

/// Puts the waiting rows into the store.
async fn fill(ground: &Ground<'_>, settings: &Settings, figures: &mut Figures) -> anyhow::Result<()> {
    let before = ground.store_bytes();
    let (waiting, payload, file) = (settings.waiting, settings.payload, ground.file());
    let far_ms = epoch_us() / 1_000 + FAR_MS;
    let seeded = tokio::task::spawn_blocking(move || {
        let retries = Rows::RetryWaiting { due_ms: far_ms, apart_ms: 1 };
        seed::seed(&file, "retry", retries, 0, waiting / 2, payload)?;
        seed::seed(&file, "pending", Rows::Pending { due_ms: far_ms }, waiting / 2, waiting, payload)
    });
    figures.set("inserted_per_s", seeded.await??);
    figures.set("store_mb", as_f64(usize::try_from(ground.store_bytes())?) / 1_048_576.0);
    let grown = ground.store_bytes().saturating_sub(before);
    figures.set("bytes_per_task", as_f64(usize::try_from(grown)?) / as_f64(waiting));
    Ok(())
}

/// Asks what the scheduler asks, as if some of the waiting retries were due.
async fn find(ground: &Ground<'_>, settings: &Settings, figures: &mut Figures) -> anyhow::Result<()> {
    let store = ground.store().await?;
    let due_at = first_due(store.as_ref()).await?.saturating_add(i64::try_from(FOUND)? - 1);
    let (mut found, mut round) = (Spread::default(), Spread::default());
    let expected = FOUND.min(settings.waiting / 2);
    for _ in 0..ASKED {
        let began = Instant::now();
        let rows = store.alarms(Alarm::Retry, due_at, FOUND).await?.len();
        found.add_us(elapsed_us(began));
        anyhow::ensure!(rows == expected, "{rows} of {expected} due rows were found");
        let began = Instant::now();
        ask_all(store.as_ref()).await?;
        round.add_us(elapsed_us(began));
    }
    store.close().await;
    set(figures, "find_due", found.quantiles());
    set(figures, "round", round.quantiles());
    Ok(())
}

async fn first_due(store: &dyn Store) -> anyhow::Result<i64> {
    Ok(store.alarms(Alarm::Retry, i64::MAX, 1).await?.first().map_or(0, |task| task.state.due_at))
}

/// Everything that a round of the scheduler reads when nothing is due.
async fn ask_all(store: &dyn Store) -> anyhow::Result<()> {
    let now = store.now();
    for kind in [Alarm::Lease, Alarm::Deadline, Alarm::Held, Alarm::Copy, Alarm::Retry, Alarm::Sent] {
        store.alarms(kind, now, FOUND).await?;
    }
    store.feed(crate::task::DEFAULT_QUEUE, now, FOUND).await?;
    store.dlqs().await?;
    store.next_alarm().await?;
    Ok(())
}

/// A worker beside the waiting rows.
async fn beside(ground: &Ground<'_>, settings: &Settings, alone: Tally, figures: &mut Figures) -> anyhow::Result<()> {
    let mut crew = Crew::start(ground, 1).await?;
    let began = Instant::now();
    let inserted = settings.waiting - settings.waiting / 2;
    loop {
        let file = ground.file();
        if tokio::task::spawn_blocking(move || seed::unrouted(&file)).await?? == 0 {
            break;
        }
        anyhow::ensure!(began.elapsed() < STANDSTILL * 5, "inserted rows are not routed");
        tokio::time::sleep(LOOK).await;
    }
    figures.set("routed_per_s", as_f64(inserted) / began.elapsed().as_secs_f64());
    let tally = falling_due(ground, &mut crew, "beside", settings).await?;
    figures.set("worker_mb", tally.rss_mb);
    figures.set("worker_peak_mb", tally.peak_mb);
    figures.set("extra_mb", tally.rss_mb - alone.rss_mb);
    set(figures, "late", tally.lateness);
    let rested = crew.tally().cpu_all_ms;
    tokio::time::sleep(REST).await;
    figures.set("idle_cpu_ms_per_s", (crew.tally().cpu_all_ms - rested) / REST.as_secs_f64());
    let store = ground.store().await?;
    let mut listed = Spread::default();
    for _ in 0..LISTED {
        let began = Instant::now();
        let depths = depths(ground.broker.as_ref(), &ground.config).await?;
        queues(Some(store.as_ref()), Some(&depths), &ground.config).await?;
        listed.add_us(elapsed_us(began));
    }
    store.close().await;
    set(figures, "queue_list", listed.quantiles());
    crew.stop().await?;
    Ok(())
}

/// Lets tasks fall due one by one and waits until they have run.
async fn falling_due(
    ground: &Ground<'_>,
    crew: &mut Crew<'_>,
    name: &'static str,
    settings: &Settings,
) -> anyhow::Result<Tally> {
    let (file, payload) = (ground.file(), settings.payload);
    let rows = Rows::RetryWaiting { due_ms: epoch_us() / 1_000 + AHEAD_MS, apart_ms: APART_MS };
    tokio::task::spawn_blocking(move || seed::seed(&file, name, rows, 0, DUE, payload)).await??;
    crew.until("all that are due have run", STANDSTILL, |tally| tally.succeeded >= DUE as u64).await?;
    tokio::time::sleep(REST).await;
    Ok(crew.tally())
}

fn set(figures: &mut Figures, name: &str, told: Quantiles) {
    figures.set(format!("{name}_p50_ms"), told.p50_ms);
    figures.set(format!("{name}_p99_ms"), told.p99_ms);
    figures.set(format!("{name}_max_ms"), told.max_ms);
}

fn elapsed_us(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
