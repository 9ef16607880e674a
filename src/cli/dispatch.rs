//! `redeliver dispatch`

use serde_json::json;

use super::confirm::Consent;
use super::context::Context;
use super::exit::{self, Exit};
use super::output::Document;

/// Publish the first attempts of pending rows once, and exit
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver dispatch
  sqlite3 redeliver.db \"INSERT INTO tasks (id, type, payload) VALUES ('a-1', 'order.ship', '{}')\" && redeliver dispatch

Workers do the same all the time; this is for those who run workers elsewhere. Prints {published, failed}; rows that
failed keep their alarms.")]
pub struct Args {
    #[command(flatten)]
    consent: Consent,
}

/// Publishes what waits.
///
/// # Errors
/// When store or broker do not answer.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let config = context.config();
    let store = context.store().await?;
    if args.consent.dry_run {
        let mut pending = 0;
        for queue in &config.queues {
            pending += context.bound("the store", store.feed(&queue.name, store.now(), LOOK)).await??.len();
        }
        let unrouted = context.bound("the store", store.unrouted(LOOK)).await??.len();
        context.say(format!(
            "would publish the first attempts of {} rows (counted up to {LOOK} each)",
            pending + unrouted
        ));
        return Ok(Exit::Done);
    }
    if config.broker.is_embedded() {
        let text =
            "the embedded broker lives inside the worker, which dispatches by itself; there is nothing to do here";
        return Err(exit::error(Exit::Usage, text));
    }
    let broker = context.broker().await?;
    let cap = config.scheduler.lane_depth_cap;
    let (published, failed) = redeliver::worker::dispatch_once(&*store, &*broker, &config.queues, cap).await?;
    broker.close().await;
    store.close().await;
    let lines = vec![("published", published.to_string()), ("failed", failed.to_string())];
    let json = json!({ "published": published, "failed": failed });
    context.printer.one(&Document { name: published.to_string(), lines, tables: Vec::new(), json })?;
    Ok(match (published, failed) {
        (_, 0) => Exit::Done,
        (0, _) => Exit::Failed,
        _ => Exit::Partly,
    })
}

/// How many rows a dry run looks at in each queue.
const LOOK: usize = 1_000;
