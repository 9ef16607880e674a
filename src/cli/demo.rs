//! `redeliver demo`

use std::io::IsTerminal;
use std::sync::Arc;

use arc_swap::ArcSwap;
use redeliver::config::FlagValue;
use redeliver::demo;

use super::Globals;
use super::context::{Missing, PATIENCE, open_broker, open_store};
use super::exit::{self, Exit};
use super::output::{self, ColorChoice, Document, Printer};
use super::scratch::Scratch;
use super::serve;

/// A free one, on this machine only.
const ANY_PORT: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

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
/// When something cannot be started, or a task has not ended within twice the schedule.
pub async fn run(args: &Args, globals: &Globals) -> anyhow::Result<Exit> {
    // The demo's own configuration, not the user's: it must run anywhere and touch nothing of theirs.
    let printer = Printer::new(globals.output, globals.color);
    let options = demo::Options {
        tasks: usize::try_from(args.tasks)?,
        colour: colour(globals),
        quiet: globals.quiet,
        ..demo::Options::default()
    };
    let mut config = options.config();
    if let Some(url) = &args.broker {
        let flag = FlagValue { key: "broker.url", flag: "--broker", value: url.clone() };
        config.broker.urls = redeliver::config::from_flags(vec![flag])?.broker.urls;
    } else {
        config.broker.urls = Vec::new();
    }
    let folder = Scratch::new("demo", None)?;
    config.store.url = format!("sqlite://{}", folder.path.join("redeliver.db").display());
    let store = open_store(&config, Missing::Created).await?;
    let broker = open_broker(&config)?;
    if args.broker.is_some() {
        let patience = globals.timeout.unwrap_or(PATIENCE);
        let connected = tokio::time::timeout(patience, broker.connect()).await;
        connected.map_err(|_| exit::error(Exit::Unreachable, "the broker did not answer in time"))??;
    }
    let narrator = Arc::new(demo::Narrator::new(minute_ms(&options), options.colour, options.quiet));
    // What is running can be looked at; where no port is free, the story is told all the same.
    let live = Arc::new(ArcSwap::from_pointee(config.clone()));
    let server = match serve::listen(ANY_PORT.into()).await {
        Ok(listener) => Some(serve::start(listener, store.clone(), Some(broker.clone()), live)?),
        Err(error) => {
            tracing::warn!("no console: {error:#}");
            None
        }
    };
    if let Some(server) = server.as_ref().filter(|_| !globals.quiet) {
        eprintln!("the console, signed in: {}", server.link("demo").await?);
    }
    // The console shows who works; a whole demo is shorter than that is remembered.
    store.report_node("demo", &config.rules_digest(), None).await?;
    let told = demo::run(store.clone(), broker.clone(), &options, narrator).await;
    if args.broker.is_some() {
        // Nothing of ours stays on somebody's broker.
        if let Err(error) = open_broker(&config)?.delete(&config.topology(), true).await {
            tracing::warn!(%error, "the demo's queues are still on the broker");
        }
    }
    let summary = told?;
    let json = serde_json::to_value(&summary)?;
    let lines = vec![
        ("tasks", summary.tasks.to_string()),
        ("succeeded", summary.succeeded.to_string()),
        ("dead", summary.dead.to_string()),
        ("attempts", summary.attempts.to_string()),
        ("retries", summary.retries.to_string()),
        ("stale_dropped", summary.stale_dropped.to_string()),
        ("seconds", summary.seconds.to_string()),
    ];
    printer.one(&Document { name: summary.tasks.to_string(), lines, tables: Vec::new(), json })?;
    let all_ended = summary.succeeded + summary.dead == summary.tasks;
    if !args.exit && all_ended && std::io::stdin().is_terminal() {
        eprintln!("every task has ended; the store is {} until you press Ctrl-C", config.store.url);
        tokio::signal::ctrl_c().await?;
    }
    if let Some(server) = server {
        server.stop(serve::PATIENCE).await;
    }
    store.close().await;
    Ok(if all_ended { Exit::Done } else { Exit::Failed })
}

fn colour(globals: &Globals) -> bool {
    match globals.color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            output::stderr_is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        }
    }
}

fn minute_ms(options: &demo::Options) -> i64 {
    i64::try_from(options.minute.as_millis()).unwrap_or(1_000)
}
