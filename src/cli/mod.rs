//! The command line: one file per noun, everything else shared.
//!
//! Commands decide nothing about tasks: they ask the store, give commands to it and publish what it answers. stdout is data, stderr is
//! everything else.

mod audit;
mod batch;
mod bench;
mod breaker;
mod bulk;
mod completions;
mod config;
mod confirm;
mod context;
mod demo;
mod dispatch;
mod dlq;
mod doctor;
mod exit;
mod explain;
mod filter;
mod groups;
mod letters;
mod limit;
mod logging;
mod man;
mod order;
mod output;
mod pager;
mod policy;
mod publish;
mod queue;
mod reload;
mod remote;
mod replay;
mod scratch;
mod serve;
mod service;
mod simulate;
mod stats;
mod store;
mod task;
mod token;
mod topology;
mod transfer;
mod variants;
mod view;
mod wait;
mod wake;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use redeliver::config::{FlagValue, Secrets, parse_duration};

use context::Context;
use exit::Exit;
use output::{ColorChoice, Format};

/// Runs tasks that must be retried later, on RabbitMQ, with a store that decides
#[derive(Debug, Parser)]
#[command(name = "redeliver", version, max_term_width = 110, disable_help_subcommand = true, after_help = exit::HELP)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

/// What every command understands.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Global options")]
struct Globals {
    /// The config file [default: ./redeliver.toml, $XDG_CONFIG_HOME/redeliver/redeliver.toml, /etc/redeliver/redeliver.toml]
    #[arg(long, global = true, value_name = "FILE", env = "REDELIVER_CONFIG")]
    config: Option<PathBuf>,
    /// How to print: by default a table on a terminal and TSV without a header in a pipe
    #[arg(long, short, global = true, value_name = "FORMAT", value_enum, env = "REDELIVER_OUTPUT")]
    output: Option<Format>,
    /// Only errors on stderr
    #[arg(long, short, global = true)]
    quiet: bool,
    /// More on stderr; twice for even more
    #[arg(long, short, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Colours; NO_COLOR is honoured
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value = "auto")]
    color: ColorChoice,
    /// Give up after this long [default: 30s for broker and store to answer; none for `wait`, `--wait` and replays]
    #[arg(long, global = true, value_name = "DURATION", value_parser = positive_duration, env = "REDELIVER_TIMEOUT")]
    timeout: Option<Duration>,
    /// Logs on stderr as text or JSON; REDELIVER_LOG filters them (`redeliver=debug,lapin=warn`)
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        value_enum,
        default_value = "text",
        env = "REDELIVER_LOG_FORMAT"
    )]
    log_format: logging::LogFormat,
    /// Instead of `broker.url`; a URL with a password is better kept in REDELIVER_BROKER_URL or a file
    #[arg(long, global = true, value_name = "URL", hide_short_help = true)]
    broker_url: Option<String>,
    /// Instead of `store.url`
    #[arg(long, global = true, value_name = "URL", hide_short_help = true)]
    store_url: Option<String>,
    #[command(flatten)]
    api: remote::ApiArgs,
}

impl Globals {
    fn flag_values(&self) -> Vec<FlagValue> {
        let broker = self.broker_url.iter().map(|url| ("broker.url", "--broker-url", url));
        let store = self.store_url.iter().map(|url| ("store.url", "--store-url", url));
        broker.chain(store).map(|(key, flag, url)| FlagValue { key, flag, value: url.clone() }).collect()
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Work(work::Args),
    Serve(serve::Args),
    Publish(Box<publish::Args>),
    Dispatch(dispatch::Args),
    #[command(subcommand)]
    Task(task::Verb),
    #[command(subcommand)]
    Dlq(dlq::Verb),
    #[command(subcommand)]
    Replay(replay::Verb),
    #[command(subcommand)]
    Queue(queue::Verb),
    #[command(subcommand)]
    Breaker(breaker::Verb),
    #[command(subcommand)]
    Limit(limit::Verb),
    #[command(subcommand)]
    Topology(topology::Verb),
    #[command(subcommand)]
    Policy(policy::Verb),
    Stats(Box<stats::Args>),
    #[command(subcommand)]
    Token(token::Verb),
    #[command(subcommand)]
    Audit(audit::Verb),
    #[command(subcommand)]
    Config(config::Verb),
    #[command(subcommand)]
    Store(store::Verb),
    Doctor(doctor::Args),
    Simulate(simulate::Args),
    Bench(Box<bench::Args>),
    Completions(completions::Args),
    Man(man::Args),
}

/// Parses, runs, and says how it ended. Usage errors end the process here, with code 2.
pub fn main() -> Exit {
    let cli = Cli::parse();
    logging::start(&cli.globals, matches!(cli.command, Command::Work(_) | Command::Serve(_)));
    // reqwest and lapin are built without a TLS library of their own: both take the process's.
    redeliver::handler::http::install_crypto();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // Store and broker have a thread each beside these. With one fewer than there are cores, threads are changed half as often and the
    // store gets larger batches: on two cores 72 µs of processor time a task instead of 101.
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        builder.worker_threads(std::thread::available_parallelism().map_or(1, |cores| (cores.get() - 1).max(1)));
    }
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return Exit::Failed;
        }
    };
    let ended = runtime.block_on(run(cli));
    // A blocking call that hangs (a dead file system) must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match ended {
        Ok(exit) => exit,
        Err(error) if is_broken_pipe(&error) => Exit::Done,
        Err(error) => {
            for line in format!("{error:#}").lines() {
                eprintln!("error: {}", output::clean(line));
            }
            exit::of(&error)
        }
    }
}

/// `redeliver task list | head` is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_error = error.downcast_ref::<std::io::Error>();
    io_error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

async fn run(cli: Cli) -> anyhow::Result<Exit> {
    let Cli { globals, command } = cli;
    let data = |flags: Vec<FlagValue>| Context::load(&globals, flags, Secrets::Optional);
    match command {
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Config(verb) => config::run(verb, &globals),
        Command::Policy(verb) => policy::run(verb, &globals).await,
        Command::Work(args) => work::run(&args, &Context::load(&globals, args.flag_values(), Secrets::Required)?).await,
        Command::Serve(args) => {
            serve::run(&args, &Context::load(&globals, args.flag_values(), Secrets::Optional)?).await
        }
        Command::Simulate(args) => simulate::run(&args, &globals),
        Command::Demo(args) => demo::run(&args, &globals).await,
        Command::Bench(args) => bench::run(&args, &globals, &data(Vec::new())?).await,
        Command::Publish(args) => publish::run(&args, &data(Vec::new())?).await,
        Command::Dispatch(args) => dispatch::run(&args, &data(Vec::new())?).await,
        Command::Task(verb) => {
            verb.can_run()?;
            task::run(verb, &data(Vec::new())?).await
        }
        Command::Dlq(verb) => {
            verb.can_run()?;
            dlq::run(verb, &data(Vec::new())?).await
        }
        Command::Replay(verb) => replay::run(verb, &data(Vec::new())?).await,
        Command::Queue(verb) => {
            let context = data(Vec::new())?;
            context.bound("the store or the broker", queue::run(verb, &context)).await?
        }
        Command::Breaker(verb) => breaker::run(verb, &data(Vec::new())?).await,
        Command::Limit(verb) => limit::run(verb, &data(Vec::new())?).await,
        Command::Token(verb) => token::run(verb, &data(Vec::new())?).await,
        Command::Audit(verb) => audit::run(verb, &data(Vec::new())?).await,
        Command::Stats(args) => stats::run(&args, &data(Vec::new())?).await,
        Command::Topology(verb) => {
            verb.can_run()?;
            topology::run(verb, &data(Vec::new())?).await
        }
        Command::Store(verb) => {
            verb.can_run()?;
            store::run(verb, &data(Vec::new())?).await
        }
        Command::Doctor(args) => doctor::run(&args, &Context::load(&globals, Vec::new(), Secrets::Optional)?).await,
    }
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.is_zero() { Err("expected more than 0s".into()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself_with_an_example() {
        fn visit(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no description");
            if command.get_subcommands().next().is_none() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("redeliver "), "{path} has no example");
            }
            command.get_subcommands().for_each(|command| visit(command, &path));
        }
        Cli::command().get_subcommands().for_each(|command| visit(command, "redeliver"));
    }
}
