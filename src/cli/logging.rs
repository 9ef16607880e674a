//! Logs on stderr. What a log line holds is decided where it is written; this only chooses how much and in which form.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use super::Globals;
use super::output::ColorChoice;

/// `--log-format`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON document a line.
    Json,
}

/// Starts logging. `long_running` processes tell what they do; commands only what is wrong. `REDELIVER_LOG` (like
/// `redeliver=debug,lapin=warn`) wins over `-v` and `-q`.
pub fn start(globals: &Globals, long_running: bool) {
    // lapin logs as an error what is an answer to us (a queue that a question found missing); whatever matters comes back as an error
    // of ours.
    let level = match (globals.quiet, globals.verbose, long_running) {
        (true, _, _) => "error,lapin=off",
        (_, 0, true) => "warn,redeliver=info,lapin=off",
        // A command says itself that it did not reach the broker.
        (_, 0, false) => "error,redeliver=warn,redeliver::broker=off,lapin=off",
        (_, 1, true) | (_, 2, false) => "info,redeliver=debug,lapin=warn",
        (_, 1, false) => "warn,redeliver=info,lapin=error",
        _ => "debug,redeliver=trace",
    };
    let asked = std::env::var("REDELIVER_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = match asked.as_deref().map(EnvFilter::try_new) {
        Some(Ok(filter)) => filter,
        Some(Err(error)) => {
            eprintln!("warning: REDELIVER_LOG is no filter and is ignored: {error}");
            EnvFilter::new(level)
        }
        None => EnvFilter::new(level),
    };
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let color = match globals.color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => std::io::stderr().is_terminal() && !no_color,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(color);
    let started = match globals.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        eprintln!("warning: no logs: {error}");
    }
}
