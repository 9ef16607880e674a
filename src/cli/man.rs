//! `redeliver man`

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory;
use clap_mangen::Man;

use super::exit::Exit;

/// Print the manual page, or write one page for each command into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver man | man -l -
  redeliver man --dir /usr/local/share/man/man1")]
pub struct Args {
    /// Write redeliver.1, redeliver-task.1, redeliver-task-list.1, … there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints or writes them.
///
/// # Errors
/// When stdout or the folder cannot be written.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let command = super::Cli::command();
    match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
            clap_mangen::generate_to(command, dir)
                .with_context(|| format!("cannot write the pages into {}", dir.display()))?;
        }
        None => {
            use std::io::Write as _;
            let mut page = Vec::new();
            Man::new(command).render(&mut page)?;
            std::io::stdout().lock().write_all(&page)?;
        }
    }
    Ok(Exit::Done)
}
