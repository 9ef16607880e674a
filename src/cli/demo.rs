//! `redeliver demo`

use super::Globals;
use super::exit::Exit;

/// See the whole story in under two minutes, with nothing to set up
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver demo
  redeliver demo --exit -o json
  redeliver demo --broker amqp://guest:guest@localhost:5672/%2f --tasks 200

An unreliable third party runs inside the process: it fails, times out, answers 429, 400 and broken JSON, and heals after
a while. Minutes are shown as seconds. With --exit it ends when every task has, prints {tasks, succeeded, dead,
attempts, retries, stale_dropped, seconds}, and exits 0 only if every task ended.")]
pub struct Args {
    /// A real RabbitMQ instead of the broker inside the process
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// How many tasks
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tasks: u32,
    /// End when every task has ended
    #[arg(long)]
    exit: bool,
}

/// Tells the story.
///
/// # Errors
/// When the broker does not answer.
pub async fn run(args: &Args, globals: &Globals) -> anyhow::Result<Exit> {
    let _ = (&args.broker, args.tasks, args.exit, globals);
    // SEAM: demo::run(options).
    anyhow::bail!("`demo` is not built in yet")
}
