//! What a task costs beside ever more rows in the store: an installation grows for years.

use super::super::as_f64;
use super::crew::Crew;
use super::flow::{STANDSTILL, per_s};
use super::ground::{Ground, bodies};
use super::hand::Conduct;
use super::report::{Bound, Figures, Promise};
use super::seed::{self, Rows};
use super::tally::{Tally, span_ms};
use super::{Settings, Site};

const TASKS: usize = 20_000;

pub(super) fn promises(settings: &Settings) -> (String, Vec<Promise>) {
    let ids = if settings.random_ids { "in no order" } else { "in ascending order" };
    let about = format!(
        "{} tasks, ids {ids}, with so many succeeded ones and their attempts in the store before. `cpu_ratio` is the processor time of a task \
         beside the most rows by that beside the fewest, `time_ratio` the same of the time on the clock.",
        settings.tasks_or(TASKS)
    );
    let promises = vec![
        Promise::new("cpu_ratio", Bound::AtMost(1.15), "a task costs the same in a full store"),
        Promise::new("time_ratio", Bound::AtMost(1.15), "and takes as long"),
    ];
    (about, promises)
}

pub(super) async fn run(site: &Site<'_>, settings: &Settings) -> anyhow::Result<Figures> {
    let tasks = settings.tasks_or(TASKS);
    Ground::with(site, settings, Conduct::Succeed, None, async |ground| {
        let ground = &*ground;
        let mut figures = Figures::default();
        ground.ceiling(&bodies("bare", tasks, settings), &mut figures).await?;
        ground.store().await?.close().await;
        let mut costs = Vec::new();
        for (n, &rows) in settings.rows.iter().enumerate() {
            (site.progress)(&format!("{rows} rows: writing them"));
            let (file, random_ids, payload) = (ground.file(), settings.random_ids, settings.payload);
            tokio::task::spawn_blocking(move || {
                let there = seed::count(&file)?;
                let kind = Rows::Succeeded { random_ids };
                seed::seed(&file, "row", kind, there, rows.max(there), payload)
            })
            .await??;
            figures.set(format!("store_mb_at_{rows}"), as_f64(usize::try_from(ground.store_bytes())?) / 1_048_576.0);
            // Every worker begins with an empty cache, as the first one does.
            ground.publish(&bodies(&format!("task-{n}"), tasks, settings)).await?;
            let mut crew = Crew::start(ground, 1).await?;
            crew.until("all have succeeded", STANDSTILL, |tally| tally.succeeded >= tasks as u64).await?;
            let tally = Tally::together(&crew.stop().await?);
            let rate = per_s(tasks, span_ms(tally.began_us, tally.ended_us));
            let cpu_ms = tally.cpu_ms / as_f64(tasks) * 1_000.0;
            figures.set(format!("tasks_per_s_at_{rows}"), rate);
            figures.set(format!("cpu_ms_per_1k_at_{rows}"), cpu_ms);
            costs.push((rate, cpu_ms));
        }
        if let (Some((slow, most)), Some((fast, least))) = (costs.last(), costs.first()) {
            figures.set("cpu_ratio", most / least);
            figures.set("time_ratio", fast / slow);
        }
        Ok(figures)
    })
    .await
}
