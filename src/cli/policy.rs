//! `redeliver policy …`

use std::path::PathBuf;

use clap::Subcommand;
use redeliver::config::{self, Secrets};

use super::Globals;
use super::config::{report, request};
use super::context::Context;
use super::exit::Exit;
use super::explain;
use super::output::Printer;
use super::variants;

/// Look at the rules that decide about retries
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Check the rules of a file: every mistake with file, line and way out
    #[command(after_help = "Examples:
  redeliver policy check policies.toml
  redeliver policy check                # the file that would be used

Exits 2 when something is wrong.")]
    Check {
        /// The file; by default the one that would be used
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Which rule is for a task at a moment, why the earlier ones are not, and when its retries would come
    #[command(after_help = "Examples:
  redeliver policy explain --type order.ship --label shop_tier=vip
  redeliver policy explain --type item.upload --at '2026-07-01T03:00[Asia/Shanghai]' -o json
  redeliver policy explain --config policies.toml --type report.render --at 2h")]
    Explain(explain::Args),
    /// Compare the variants of policies by how their tasks ended
    #[command(after_help = "Examples:
  redeliver policy report
  redeliver policy report shipping --since 7d
  redeliver policy report shipping --label shop_tier=vip -o json | jq '.verdicts[0].sentence'

Counted are tasks that ended (in the window, if --since or --until give one), by the policy of their last attempt. SUCCESS has its
95 % interval (Wilson); an end by cache or default is no success. TRIES, HANDLER (time) and COST are per task; P50 and P95 are the
times from creation to success. The verdict's interval is Newcombe's; -o json has the p-value of the two-proportion z-test.")]
    Report(Box<variants::Args>),
}

/// Runs the verb.
///
/// # Errors
/// [`Exit::Usage`] with every problem of the configuration.
pub async fn run(verb: Verb, globals: &Globals) -> anyhow::Result<Exit> {
    match verb {
        // Rules name no secrets, so that a file is checked where its routes' tokens are not set.
        Verb::Check { file } => {
            let file = file.or_else(|| globals.config.clone());
            let checked = config::load(&request(globals, file, Secrets::Optional));
            report(&Printer::new(globals.output, globals.color), checked)
        }
        Verb::Report(args) => variants::run(&args, &Context::load(globals, Vec::new(), Secrets::Optional)?).await,
        Verb::Explain(args) => explain::run(&args, &Context::load(globals, Vec::new(), Secrets::Optional)?),
    }
}
