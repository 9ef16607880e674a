//! `redeliver store …`

use clap::Subcommand;
use serde_json::json;

use super::confirm::Consent;
use super::context::Context;
use super::exit::Exit;
use super::output::Document;

/// Look after the store
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make the store, or bring its schema up to this version (a worker does the same when it starts)
    #[command(after_help = "Examples:
  redeliver store migrate
  REDELIVER_STORE_URL=sqlite:///var/lib/redeliver/redeliver.db redeliver store migrate")]
    Migrate {
        #[command(flatten)]
        consent: Consent,
    },
}

/// Runs the verb.
///
/// # Errors
/// When the store cannot be made or used.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    let Verb::Migrate { consent } = verb;
    if consent.dry_run {
        context.say(format!("would make or migrate {}", redeliver::config::mask(&context.config().store.url)));
        return Ok(Exit::Done);
    }
    let store = context.store_or_new().await?;
    let report = store.report(false).await?;
    store.close().await;
    let lines = vec![
        ("store", report.place.clone()),
        ("engine", report.engine.clone()),
        ("schema_version", report.schema_version.to_string()),
        ("bytes", report.bytes.to_string()),
    ];
    context.printer.one(&Document { name: report.place.clone(), lines, tables: Vec::new(), json: json!(report) })?;
    Ok(Exit::Done)
}
