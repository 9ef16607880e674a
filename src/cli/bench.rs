//! `redeliver bench`

use super::context::Context;
use super::exit::Exit;

/// Measure end-to-end throughput beside the bare broker's ceiling, in the same run
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver bench
  redeliver bench --tasks 50000 -o json

Runs a no-op handler on queues and a store of its own, which are removed at the end. -o json: {tasks, tasks_per_s,
ceiling_per_s, ratio, p50_ms, p99_ms, rss_mb, cpu_ms_per_1k}.")]
pub struct Args {
    /// How many tasks
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    tasks: u32,
}

/// Measures.
///
/// # Errors
/// When the broker does not answer.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let _ = (args.tasks, context);
    // SEAM: bench::run(options).
    anyhow::bail!("`bench` is not built in yet")
}
