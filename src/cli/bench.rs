//! `redeliver bench`: one throughput run, or scenarios.

mod suite;

use std::path::PathBuf;
use std::time::Duration;

use redeliver::bench;
use redeliver::store::{Filter, is_postgres};

use super::Globals;
use super::context::{Context, Missing, open_broker, open_store};
use super::exit::{self, Exit};
use super::output::Document;
use super::scratch::Scratch;

/// Measure end-to-end throughput beside the bare broker's ceiling, in the same run
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver bench
  redeliver bench --tasks 50000 -o json
  redeliver bench --store postgres://redeliver@db/bench
  redeliver bench --gates                # beside a run without: what limits and breakers cost where they stop nobody
  redeliver bench --fail-once --delay 10s
  redeliver bench --scenario all --report night.json
  redeliver bench --scenario rows --rows 10000,1000000 --runs 1
  redeliver bench --render night.json > benchmarks.md

Runs a no-op handler on queues and a store of its own, which are removed at the end. -o json: {tasks, tasks_per_s,
ceiling_per_s, ratio, p50_ms, p99_ms, rss_mb, cpu_ms_per_1k}.

With --scenario, what is promised is measured and judged, in worker processes of their own: first-try, fail-once, storm, waiting, replay,
rows, processes, sustained (40 minutes by itself), or all. A promise that is missed is in the report; the exit code is 0 all the same.")]
pub struct Args {
    /// How many tasks [default: 50000; with --scenario, what its promises speak of]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    tasks: Option<u32>,
    /// Attempts at once in a worker
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    concurrency: u16,
    /// With limits and a breaker that every task meets and none is stopped by
    #[arg(long)]
    gates: bool,
    /// Every task fails once and is tried again, at once or after --delay
    #[arg(long)]
    fail_once: bool,
    /// How long a failed task waits, in a delay queue [default with --scenario: 10s]
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration)]
    delay: Option<Duration>,
    /// With metrics, and with logs as REDELIVER_LOG and --log-format say
    #[arg(long)]
    observed: bool,
    /// Where to put the store that is measured: its disk is part of the figure [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// An empty PostgreSQL database, or schema, to measure instead; what the run leaves in it is yours to drop
    #[arg(long, value_name = "URL", conflicts_with = "dir")]
    store: Option<String>,
    #[command(flatten)]
    suite: suite::SuiteArgs,
}

/// Measures.
///
/// # Errors
/// When store or broker do not answer, or a run stands still.
pub async fn run(args: &Args, globals: &Globals, context: &Context) -> anyhow::Result<Exit> {
    if args.suite.is_wanted() {
        return suite::run(args, globals, context).await;
    }
    if args.delay.is_some() && !args.fail_once {
        return Err(exit::error(Exit::Usage, "--delay is how long a failed task waits: add --fail-once or --scenario"));
    }
    let Some(url) = context.config().broker.urls.first().cloned() else {
        return Err(exit::error(Exit::Usage, "bench measures RabbitMQ; set broker.url to an amqp:// URL"));
    };
    let namespace = format!("redeliver-bench-{}", std::process::id());
    let options = bench::Options {
        tasks: usize::try_from(args.tasks.unwrap_or(50_000))?,
        concurrency: args.concurrency.into(),
        gates: args.gates,
        fail_once: args.fail_once,
        delay: args.delay,
        observed: args.observed,
        // Its tasks are few and would all wait for their second attempt.
        latency_rate: if args.fail_once { 0 } else { bench::Options::default().latency_rate },
        ..bench::Options::default()
    };
    let folder = Scratch::new("bench", args.dir.as_deref())?;
    let mut config = options.config(&namespace);
    config.broker.urls.clone_from(&context.config().broker.urls);
    config.store.url = match &args.store {
        Some(url) if is_postgres(url) => url.clone(),
        Some(_) => {
            return Err(exit::error(
                Exit::Usage,
                "--store takes a postgres:// URL; --dir says where SQLite is measured",
            ));
        }
        None => format!("sqlite://{}", folder.path.join("redeliver.db").display()),
    };
    let store = context.bound("the store", open_store(&config, Missing::Created)).await??;
    if store.count(&Filter::default()).await?.values().any(|tasks| *tasks > 0) {
        return Err(exit::error(Exit::Conflict, "that store has tasks; measure an empty one"));
    }
    let broker = open_broker(&config)?;
    context.bound("the broker", broker.connect()).await??;
    let progress = |text: &str| context.say(text);
    let measured = bench::run(&url, store.clone(), broker, &namespace, &options, &progress).await;
    let cleaner = open_broker(&config)?;
    if let Err(error) = cleaner.delete(&config.topology(), true).await {
        tracing::warn!(%error, "the benchmark's queues are still on the broker");
    }
    cleaner.close().await;
    store.close().await;
    let figures = measured?;
    let json = serde_json::to_value(&figures)?;
    let lines = vec![
        ("tasks", figures.tasks.to_string()),
        ("tasks_per_s", figures.tasks_per_s.to_string()),
        ("ceiling_per_s", figures.ceiling_per_s.to_string()),
        ("ratio", figures.ratio.to_string()),
        ("p50_ms", figures.p50_ms.to_string()),
        ("p99_ms", figures.p99_ms.to_string()),
        ("rss_mb", figures.rss_mb.to_string()),
        ("cpu_ms_per_1k", figures.cpu_ms_per_1k.to_string()),
    ];
    context.printer.one(&Document { name: figures.tasks_per_s.to_string(), lines, tables: Vec::new(), json })?;
    Ok(Exit::Done)
}
