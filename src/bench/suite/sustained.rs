//! A steady rate for a long time: does it hold, how soon do tasks start, and does anything grow for ever.
//!
//! Ended tasks are pruned meanwhile, as an installation does that keeps its history for a while, so the store has a size at which it can
//! stay. The time of a start counts from when its message was to be sent: a producer that is held up makes tasks late, not fewer.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;

use super::super::as_f64;
use super::crew::Crew;
use super::flow::STANDSTILL;
use super::ground::{Ground, TASK_TYPE, bodies};
use super::hand::{Conduct, epoch_us};
use super::report::{Bound, Figures, Promise};
use super::tally::Tally;
use super::{Load, Settings, Site};
use crate::broker::{Message, submission};
use crate::store::{Prunable, Store};

/// Between two calls of the producer.
const TICK: Duration = Duration::from_millis(10);
/// Its calls under way at once.
const MOST_CALLS: usize = 64;
/// Samples of a load, at most one a second.
const SAMPLES: u32 = 200;
/// The longest that ended tasks are kept.
const LONGEST_KEPT: Duration = Duration::from_secs(60);
/// How often a line says how far it has come.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// Rows that one call prunes, as `redeliver store prune` does.
const PRUNED: usize = 20_000;

pub(super) fn promises(settings: &Settings) -> (String, Vec<Promise>) {
    let loads: Vec<String> = settings
        .sustained
        .iter()
        .map(|load| format!("{} per second for {} s", load.per_s, load.for_ms / 1_000))
        .collect();
    let about = format!(
        "{}; tasks that have ended are pruned after a minute at most. `start_…` is from when a message was to be sent to the start of its \
         task, with up to 10 ms until the producer's next call in it; `backlog_s` is what was published and not settled at the end, in \
         seconds of the rate; `…_level` is the most of the last third of the time by the most of the middle third.",
        loads.join(", then ")
    );
    let mut promises = Vec::new();
    for Load { per_s, .. } in &settings.sustained {
        let of = |name: &str| format!("{name}_at_{per_s}");
        promises.extend([
            Promise::new(of("published_per_s"), Bound::AtLeast(f64::from(*per_s) * 0.99), "the rate was there"),
            Promise::new(of("backlog_s"), Bound::AtMost(1.0), "and was held"),
            Promise::new(of("start_p99_ms"), Bound::AtMost(1_000.0), "starts within a second"),
            Promise::new(of("memory_level"), Bound::AtMost(1.05), "memory levels off"),
            Promise::new(of("store_level"), Bound::AtMost(1.05), "so does the store's file"),
        ]);
    }
    (about, promises)
}

pub(super) async fn run(site: &Site<'_>, settings: &Settings) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    for load in &settings.sustained {
        let found =
            Ground::with(site, settings, Conduct::Succeed, None, async |ground| hold(ground, *load, settings).await)
                .await?;
        for name in found.names() {
            figures.set(format!("{name}_at_{}", load.per_s), found.get(name).unwrap_or(f64::NAN));
        }
    }
    Ok(figures)
}

async fn hold(ground: &Ground<'_>, load: Load, settings: &Settings) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    ground.ceiling(&bodies("bare", 20_000, settings), &mut figures).await?;
    let mut crew = Crew::start(ground, 1).await?;
    let length = Duration::from_millis(load.for_ms);
    let store = ground.store().await?;
    let mut samples = Samples::default();
    let began = Instant::now();
    let published = tokio::select! {
        published = publish(ground, load, settings) => published?,
        never = sample(ground, &crew, length, &mut samples) => match never {},
        error = prune(store.as_ref(), length) => return Err(error),
    };
    figures.set("published_per_s", as_f64(published) / began.elapsed().as_secs_f64());
    let unsettled = (published as u64).saturating_sub(crew.tally().succeeded);
    figures.set("backlog_s", as_f64(usize::try_from(unsettled)?) / f64::from(load.per_s));
    store.close().await;
    crew.until("all have succeeded", STANDSTILL, |tally| tally.succeeded >= published as u64).await?;
    let tally = Tally::together(&crew.stop().await?);
    figures.set("start_p50_ms", tally.start_delay.p50_ms);
    figures.set("start_p99_ms", tally.start_delay.p99_ms);
    figures.set("start_max_ms", tally.start_delay.max_ms);
    figures.set("worker_mb", tally.rss_mb);
    figures.set("worker_peak_mb", tally.peak_mb);
    figures.set("memory_level", samples.level(|sample| sample.rss_mb));
    figures.set("store_mb", samples.0.last().map_or(f64::NAN, |sample| sample.store_mb));
    figures.set("store_level", samples.level(|sample| sample.store_mb));
    figures.set("cpu_ms_per_1k", tally.cpu_ms / as_f64(published) * 1_000.0);
    Ok(figures)
}

/// Publishes at the rate until the time is over; how many. Late ticks are made up for, so the rate is kept on the whole.
async fn publish(ground: &Ground<'_>, load: Load, settings: &Settings) -> anyhow::Result<usize> {
    let gap_us = 1_000_000 / u64::from(load.per_s.max(1));
    let all = usize::try_from(load.for_ms * 1_000 / gap_us)?;
    let (began, began_us) = (Instant::now(), epoch_us());
    let pad = "x".repeat(settings.payload.saturating_sub(30));
    let mut ticks = tokio::time::interval(TICK);
    let mut calls: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let mut sent = 0;
    while sent < all {
        ticks.tick().await;
        let due = usize::try_from(u64::try_from(began.elapsed().as_micros())? / gap_us)?.min(all);
        let message = |n: usize| -> anyhow::Result<Message> {
            let sent_ms = (began_us + i64::try_from(n as u64 * gap_us)?) / 1_000;
            let id = format!("bench-{n:08}");
            let body =
                format!(r#"{{"id":"{id}","type":"{TASK_TYPE}","payload":{{"sent_ms":{sent_ms},"pad":"{pad}"}}}}"#);
            Ok(submission(TASK_TYPE, &id, body.into()))
        };
        let messages: Vec<Message> = (sent..due).map(message).collect::<anyhow::Result<_>>()?;
        sent = due;
        if !messages.is_empty() {
            let broker = ground.broker.clone();
            calls.spawn(async move { super::ground::send(broker.as_ref(), messages).await });
        }
        while let Some(call) = calls.try_join_next() {
            call??;
        }
        while calls.len() >= MOST_CALLS {
            calls.join_next().await.context("no call is under way")???;
        }
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    Ok(all)
}

/// One look at what could grow.
#[derive(Debug, Clone, Copy)]
struct Sample {
    rss_mb: f64,
    store_mb: f64,
}

/// All looks, in order.
#[derive(Debug, Default)]
struct Samples(Vec<Sample>);

impl Samples {
    /// The most of the last third by the most of the middle third.
    fn level(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let third = self.0.len() / 3;
        let most = |samples: &[Sample]| samples.iter().map(&of).fold(f64::NAN, f64::max);
        let middle = most(self.0.get(third..2 * third).unwrap_or_default());
        most(self.0.get(2 * third..).unwrap_or_default()) / middle
    }
}

/// Looks, again and again.
async fn sample(ground: &Ground<'_>, crew: &Crew<'_>, length: Duration, samples: &mut Samples) -> Infallible {
    let every = (length / SAMPLES).max(Duration::from_secs(1)).min(length / 6);
    let mut ticks = tokio::time::interval(every);
    let (began, mut told) = (Instant::now(), Instant::now());
    loop {
        ticks.tick().await;
        let store_mb = as_f64(usize::try_from(ground.store_bytes()).unwrap_or(0)) / 1_048_576.0;
        let tally = crew.tally();
        samples.0.push(Sample { rss_mb: tally.rss_mb, store_mb });
        if told.elapsed() > TOLD_EVERY {
            told = Instant::now();
            (ground.site.progress)(&format!(
                "{} tasks ended, worker {:.1} MB, store {store_mb:.0} MB, {} s left",
                tally.succeeded,
                tally.rss_mb,
                length.saturating_sub(began.elapsed()).as_secs()
            ));
        }
    }
}

/// Removes what has ended a while ago, again and again, until that fails.
async fn prune(store: &dyn Store, length: Duration) -> anyhow::Error {
    let kept = LONGEST_KEPT.min(length / 6);
    let mut ticks = tokio::time::interval(kept / 2);
    loop {
        ticks.tick().await;
        let before = store.now().saturating_sub(i64::try_from(kept.as_millis()).unwrap_or(i64::MAX));
        loop {
            match store.prune(Prunable::Tasks, before, PRUNED, false).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return error.into(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_the_last_third_by_the_middle_one_and_no_number_without_samples() {
        let sample = |rss_mb| Sample { rss_mb, store_mb: 0.0 };
        let grows = Samples([1.0, 2.0, 4.0, 4.0, 6.0, 5.0].map(sample).into());
        assert!((grows.level(|sample| sample.rss_mb) - 1.5).abs() < 1e-9);
        assert!(Samples::default().level(|sample| sample.rss_mb).is_nan());
    }
}
