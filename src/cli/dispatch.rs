//! `redeliver dispatch`

use super::confirm::Consent;
use super::context::Context;
use super::exit::Exit;

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
    let _ = (args, context, Exit::Done);
    // SEAM: worker::dispatch_once(store, broker, queues, cap, topology).
    anyhow::bail!("`dispatch` is not built in yet")
}
