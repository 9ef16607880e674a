//! Scenarios in which tasks flow: first attempts, retries, storms, replays, several processes.

use std::time::Duration;

use anyhow::bail;

use super::super::as_f64;
use super::crew::Crew;
use super::ground::{Ground, bodies};
use super::hand::{Conduct, epoch_us};
use super::report::{Bound, Figures, Promise};
use super::tally::{Tally, span_ms};
use super::{Settings, Site};
use crate::store::{NewReplay, Pace, Selection};

/// A run in which nothing moves for this long, waits not counted, is given up.
pub(super) const STANDSTILL: Duration = Duration::from_secs(60);

const FIRST_TRY_TASKS: usize = 50_000;
const FAIL_ONCE_TASKS: usize = 5_000;
const STORM_TASKS: usize = 20_000;
const REPLAY_LETTERS: usize = 3_000;

/// Tasks per second of such a span.
pub(super) fn per_s(tasks: usize, span_ms: f64) -> f64 {
    as_f64(tasks) / span_ms * 1_000.0
}

/// What a worker has used.
pub(super) fn usage(figures: &mut Figures, tally: &Tally, tasks: usize) {
    figures.set("worker_peak_mb", tally.peak_mb);
    figures.set("cpu_ms_per_1k", tally.cpu_ms / as_f64(tasks) * 1_000.0);
}

pub(super) fn first_try_promises(settings: &Settings) -> (String, Vec<Promise>) {
    let tasks = settings.tasks_or(FIRST_TRY_TASKS);
    let about = format!(
        "{tasks} tasks of {} bytes wait in the lane when the worker starts; all succeed. From the first start to the last settled task; \
         `ratio` is that rate by the rate of the bare consumer.",
        settings.payload
    );
    (about, vec![Promise::new("ratio", Bound::AtLeast(0.7), "near the bare broker, with every task on the disk twice")])
}

pub(super) async fn first_try(site: &Site<'_>, settings: &Settings) -> anyhow::Result<Figures> {
    let tasks = settings.tasks_or(FIRST_TRY_TASKS);
    let bodies = bodies("bench", tasks, settings);
    Ground::with(site, settings, Conduct::Succeed, None, async |ground| {
        let mut figures = Figures::default();
        let bare = ground.ceiling(&bodies, &mut figures).await?;
        figures.set("publish_per_s", ground.publish(&bodies).await?);
        let started_us = epoch_us();
        let tally = until_succeeded(ground, 1, tasks, STANDSTILL).await?;
        figures.set("first_start_ms", span_ms(Some(started_us), tally.began_us));
        let rate = per_s(tasks, span_ms(tally.began_us, tally.ended_us));
        figures.set("tasks_per_s", rate);
        figures.set("ratio", rate / bare.consume_per_s);
        usage(&mut figures, &tally, tasks);
        Ok(figures)
    })
    .await
}

/// Runs workers until so many tasks have succeeded.
async fn until_succeeded(
    ground: &Ground<'_>,
    workers: usize,
    tasks: usize,
    standstill: Duration,
) -> anyhow::Result<Tally> {
    let mut crew = Crew::start(ground, workers).await?;
    crew.until("all have succeeded", standstill, |tally| tally.succeeded >= tasks as u64).await?;
    Ok(Tally::together(&crew.stop().await?))
}

pub(super) fn fail_once_promises(settings: &Settings) -> (String, Vec<Promise>) {
    let tasks = settings.tasks_or(FAIL_ONCE_TASKS);
    let about = format!(
        "{tasks} tasks fail once, wait {} ms in a delay queue, and succeed. `rounds` is the time from the first start to the last end, \
         less the delay, in units of the first round; `late_…` is from when a retry was due to its start.",
        settings.delay_ms
    );
    let promises = vec![
        Promise::new("rounds", Bound::AtMost(1.5), "done within the delay and half a round more than the first"),
        Promise::new("late_p99_ms", Bound::AtMost(500.0), "punctual"),
        Promise::new("worker_peak_mb", Bound::AtMost(40.0), "the wait is not in the worker"),
    ];
    (about, promises)
}

pub(super) async fn fail_once(site: &Site<'_>, settings: &Settings) -> anyhow::Result<Figures> {
    let tasks = settings.tasks_or(FAIL_ONCE_TASKS);
    let bodies = bodies("bench", tasks, settings);
    Ground::with(site, settings, Conduct::FailOnce, None, async |ground| {
        let mut figures = Figures::default();
        ground.ceiling(&bodies, &mut figures).await?;
        figures.set("publish_per_s", ground.publish(&bodies).await?);
        let delay = Duration::from_millis(settings.delay_ms);
        let started_us = epoch_us();
        let tally = until_succeeded(ground, 1, tasks, STANDSTILL + delay).await?;
        figures.set("first_start_ms", span_ms(Some(started_us), tally.began_us));
        let first_ms = span_ms(tally.began_us, tally.first_settled_us);
        let beyond_ms = span_ms(tally.began_us, tally.ended_us) - delay.as_secs_f64() * 1_000.0;
        figures.set("first_round_ms", first_ms);
        figures.set("second_round_ms", span_ms(tally.again_began_us, tally.ended_us));
        figures.set("beyond_delay_ms", beyond_ms);
        figures.set("rounds", beyond_ms / first_ms);
        figures.set("late_p50_ms", tally.lateness.p50_ms);
        figures.set("late_p99_ms", tally.lateness.p99_ms);
        figures.set("late_max_ms", tally.lateness.max_ms);
        usage(&mut figures, &tally, tasks);
        Ok(figures)
    })
    .await
}

pub(super) fn storm_promises(settings: &Settings) -> (String, Vec<Promise>) {
    let tasks = settings.tasks_or(STORM_TASKS);
    let limit = f64::from(settings.limit_per_s);
    // The backlog by the rate, the delay of the last that failed, and a tenth for what is not the limit.
    let recovery_ms = as_f64(tasks) / limit * 1_100.0 + as_f64(usize::try_from(settings.delay_ms).unwrap_or(0));
    let about = format!(
        "{tasks} tasks fail together for {} ms, each is tried again after {} ms, and a limit lets {} retries per second through. \
         `recovery_ms` is from when the third party has healed to the last end.",
        settings.outage_ms, settings.delay_ms, settings.limit_per_s
    );
    let promises = vec![
        Promise::new("dead", Bound::AtMost(0.0), "nobody dies of the storm"),
        Promise::new("most_retries_per_s", Bound::AtMost(limit * 1.05 + 1.0), "the limit holds in every second"),
        Promise::new("recovery_ms", Bound::AtMost(recovery_ms), "done in the backlog by the rate"),
    ];
    (about, promises)
}

pub(super) async fn storm(site: &Site<'_>, settings: &Settings) -> anyhow::Result<Figures> {
    let tasks = settings.tasks_or(STORM_TASKS);
    let bodies = bodies("bench", tasks, settings);
    // The moment of healing is set when the worker is started, since publishing takes its time.
    let conduct = Conduct::FailUntil(i64::MAX);
    Ground::with(site, settings, conduct, Some(settings.limit_per_s), async |ground| {
        let mut figures = Figures::default();
        ground.ceiling(&bodies, &mut figures).await?;
        ground.publish(&bodies).await?;
        let heals_ms = epoch_us() / 1_000 + i64::try_from(settings.outage_ms)?;
        ground.setup.conduct = Conduct::FailUntil(heals_ms);
        let ground = &*ground;
        let mut crew = Crew::start(ground, 1).await?;
        let waits = STANDSTILL + Duration::from_millis(settings.delay_ms);
        let ended = |tally: &Tally| tally.ended() >= tasks as u64;
        crew.until("all have ended", waits, ended).await?;
        let tally = Tally::together(&crew.stop().await?);
        figures.set("dead", as_f64(usize::try_from(tally.died)?));
        figures.set("attempts_per_task", as_f64(usize::try_from(tally.attempts())?) / as_f64(tasks));
        figures.set("first_round_ms", span_ms(tally.began_us, tally.first_settled_us));
        figures.set("most_retries_per_s", as_f64(usize::try_from(tally.most_again_per_s)?));
        figures.set("recovery_ms", span_ms(Some(heals_ms * 1_000), tally.ended_us));
        usage(&mut figures, &tally, tasks);
        Ok(figures)
    })
    .await
}

pub(super) fn replay_promises(settings: &Settings) -> (String, Vec<Promise>) {
    let letters = settings.tasks_or(REPLAY_LETTERS);
    let rate = f64::from(settings.replay_per_s);
    let about = format!(
        "{letters} dead letters are replayed at {} per second; from the first start to the last end.",
        settings.replay_per_s
    );
    let promises = vec![
        Promise::new("replayed_per_s", Bound::AtLeast(rate * 0.95), "the rate that was asked for"),
        Promise::new("most_per_s", Bound::AtMost(rate * 1.5 + 1.0), "and hardly more in any second"),
    ];
    (about, promises)
}

pub(super) async fn replay(site: &Site<'_>, settings: &Settings) -> anyhow::Result<Figures> {
    let letters = settings.tasks_or(REPLAY_LETTERS);
    let bodies = bodies("bench", letters, settings);
    Ground::with(site, settings, Conduct::DieOnce, None, async |ground| {
        let mut figures = Figures::default();
        ground.ceiling(&bodies, &mut figures).await?;
        ground.publish(&bodies).await?;
        let ground = &*ground;
        let mut crew = Crew::start(ground, 1).await?;
        crew.until("all are dead", STANDSTILL, |tally| tally.died >= letters as u64).await?;
        let dead = crew.tally();
        figures.set("dead_per_s", per_s(letters, span_ms(dead.began_us, dead.ended_us)));
        let store = ground.store().await?;
        let pace = Pace { rate_per_s: Some(f64::from(settings.replay_per_s)), ..Pace::default() };
        let selection = Selection::default();
        let about = serde_json::json!({});
        let job = store
            .create_replay(NewReplay {
                selection,
                about,
                created_by: None,
                reason: None,
                pace,
                edit: None,
                driver: None,
            })
            .await?;
        let found = job.counts.matched();
        store.close().await;
        if found != i64::try_from(letters)? {
            bail!("{found} of {letters} dead letters are in the replay");
        }
        crew.until("all are replayed", STANDSTILL, |tally| tally.succeeded >= letters as u64).await?;
        let tally = Tally::together(&crew.stop().await?);
        figures.set("replayed_per_s", per_s(letters, span_ms(tally.again_began_us, tally.ended_us)));
        figures.set("most_per_s", as_f64(usize::try_from(tally.most_again_per_s)?));
        figures.set("late_p99_ms", tally.lateness.p99_ms);
        usage(&mut figures, &tally, letters);
        Ok(figures)
    })
    .await
}

pub(super) fn processes_promises(settings: &Settings) -> (String, Vec<Promise>) {
    let tasks = settings.tasks_or(FIRST_TRY_TASKS);
    let about = format!(
        "{tasks} tasks wait in the lane when so many workers start on one store; all succeed. `share_…` is the smallest worker's part \
         of the tasks by an equal part; memory and processor time are of all workers together."
    );
    (about, Vec::new())
}

pub(super) async fn processes(site: &Site<'_>, settings: &Settings) -> anyhow::Result<Figures> {
    let tasks = settings.tasks_or(FIRST_TRY_TASKS);
    let bodies = bodies("bench", tasks, settings);
    let mut figures = Figures::default();
    for &workers in &settings.processes {
        let found = Ground::with(site, settings, Conduct::Succeed, None, async |ground| {
            let mut found = Figures::default();
            ground.ceiling(&bodies, &mut found).await?;
            ground.publish(&bodies).await?;
            let ground = &*ground;
            let mut crew = Crew::start(ground, workers).await?;
            crew.until("all have succeeded", STANDSTILL, |tally| tally.succeeded >= tasks as u64).await?;
            let tallies = crew.stop().await?;
            let all = Tally::together(&tallies);
            let smallest = tallies.iter().map(|tally| tally.succeeded).min().unwrap_or(0);
            found.set("tasks_per_s", per_s(tasks, span_ms(all.began_us, all.ended_us)));
            found.set("share", as_f64(usize::try_from(smallest)? * workers) / as_f64(tasks));
            usage(&mut found, &all, tasks);
            Ok(found)
        })
        .await?;
        for name in found.names() {
            figures.set(format!("{name}_with_{workers}"), found.get(name).unwrap_or(f64::NAN));
        }
    }
    Ok(figures)
}
