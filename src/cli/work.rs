//! `redeliver work`

use redeliver::config::FlagValue;

use super::context::Context;
use super::exit::{self, Exit};

/// Run workers: take submissions and wake-ups, run attempts, schedule retries, feed pending rows
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver work
  redeliver work --queue shipping --concurrency 8
  REDELIVER_BROKER_URL_FILE=/run/secrets/amqp redeliver work --log-format json

SIGTERM or Ctrl-C: no new attempts, running ones get worker.shutdown_grace, the rest is given back. A second one: at once.")]
pub struct Args {
    /// Only these queues [default: all of them]
    #[arg(long = "queue", value_name = "Q", value_delimiter = ',')]
    queues: Vec<String>,
    /// Attempts at once, instead of worker.concurrency
    #[arg(long, value_name = "N")]
    concurrency: Option<String>,
}

impl Args {
    /// What the flags say about config keys.
    pub fn flag_values(&self) -> Vec<FlagValue> {
        let value =
            |value: &String| FlagValue { key: "worker.concurrency", flag: "--concurrency", value: value.clone() };
        self.concurrency.iter().map(value).collect()
    }
}

/// Runs until told to stop.
///
/// # Errors
/// When it cannot start.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    if let Some(unknown) = args.queues.iter().find(|name| context.config().queue(name).is_none()) {
        return Err(exit::error(Exit::NotFound, format!("queue {unknown:?} is not configured")));
    }
    // SEAM: worker::Worker::start(store, broker, plan, observers), then signals, then stop(grace).
    anyhow::bail!("`work` is not built in yet")
}
