//! `redeliver completions`

use clap::CommandFactory;

use super::exit::Exit;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver completions bash > /etc/bash_completion.d/redeliver
  redeliver completions zsh > \"${fpath[1]}/_redeliver\"
  redeliver completions fish > ~/.config/fish/completions/redeliver.fish")]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Prints it.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    use std::io::Write as _;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "redeliver", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Exit::Done)
}
