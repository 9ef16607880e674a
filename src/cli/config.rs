//! `redeliver config …`

use std::path::PathBuf;

use clap::Subcommand;
use redeliver::config::{self, ConfigError, Request, Secrets, process_environment};
use serde_json::json;

use super::Globals;
use super::exit::Exit;
use super::output::{Document, Entry, Format, Listing, Printer};

/// Look at the configuration
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show every value in force and where it comes from; passwords masked
    #[command(after_help = "Examples:
  redeliver config show
  REDELIVER_WORKER_CONCURRENCY=8 redeliver config show -o json | jq '.items[] | select(.source != \"default\")'")]
    Show,
    /// Check a file: every mistake with file, line and way out
    #[command(after_help = "Examples:
  redeliver config check redeliver.toml
  redeliver config check --without-secrets redeliver.toml   # in CI, where env:NAME is not set

Exits 2 when something is wrong.")]
    Check {
        /// The file; by default the one that would be used
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Do not ask that the variables behind `env:NAME` are set
        #[arg(long)]
        without_secrets: bool,
    },
    /// Print the JSON Schema of the file, for editors
    #[command(after_help = "Examples:
  redeliver config schema > redeliver.schema.json")]
    Schema,
}

/// Runs the verb.
///
/// # Errors
/// [`Exit::Usage`] with every problem of the configuration.
pub fn run(verb: Verb, globals: &Globals) -> anyhow::Result<Exit> {
    let printer = Printer::new(globals.output, globals.color);
    match verb {
        Verb::Schema => {
            use std::io::Write as _;
            writeln!(std::io::stdout().lock(), "{:#}", config::schema())?;
            Ok(Exit::Done)
        }
        Verb::Show => {
            let loaded = config::load(&request(globals, globals.config.clone(), Secrets::Optional))?;
            let mut listing = Listing::new(&["key", "value", "source", "place"]);
            for value in &loaded.effective {
                listing.push(Entry {
                    name: value.key.clone(),
                    cells: vec![value.key.clone(), value.value.clone(), value.source.into(), value.place.clone()],
                    json: json!(value),
                });
            }
            printer.list(&listing)?;
            Ok(Exit::Done)
        }
        Verb::Check { file, without_secrets } => {
            let secrets = if without_secrets { Secrets::Optional } else { Secrets::Required };
            let checked = config::load(&request(globals, file.or_else(|| globals.config.clone()), secrets));
            report(&printer, checked)
        }
    }
}

pub(super) fn request(globals: &Globals, file: Option<PathBuf>, secrets: Secrets) -> Request<'static> {
    Request { file, environment: &process_environment, flags: globals.flag_values(), secrets }
}

pub(super) fn report(printer: &Printer, checked: Result<config::Loaded, ConfigError>) -> anyhow::Result<Exit> {
    let (file, problems) = match checked {
        Ok(loaded) => (loaded.file, Vec::new()),
        Err(ConfigError::Invalid(problems)) if matches!(printer.format(), Format::Json | Format::Jsonl) => {
            (None, problems)
        }
        Err(error) => return Err(error.into()),
    };
    let ok = problems.is_empty();
    let problems: Vec<_> = problems
        .iter()
        .map(|problem| json!({ "place": problem.place.to_string(), "subject": problem.subject, "text": problem.text }))
        .collect();
    let name = file.map_or_else(|| "no file, defaults hold".to_owned(), |file| file.display().to_string());
    let json = json!({ "ok": ok, "file": name, "problems": problems });
    printer.one(&Document { name: name.clone(), lines: vec![("ok", name)], tables: Vec::new(), json })?;
    Ok(if ok { Exit::Done } else { Exit::Usage })
}
