//! Consent to what cannot be taken back: `--dry-run`, `--yes`, `--reason`.
//!
//! Never waits where nobody can answer: without a terminal and without `--yes` a dangerous command is refused before it has opened
//! anything.

use std::io::{self, BufRead, IsTerminal, Write};

use super::exit::{self, Exit};

/// The flags of everything that changes state.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Consent")]
pub struct Consent {
    /// Say what would be done and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do it without asking
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Why, for those who come after
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

impl Consent {
    /// Refuses at once where a question could not be answered.
    ///
    /// # Errors
    /// [`Exit::Refused`].
    pub fn can_be_had(&self) -> anyhow::Result<()> {
        if self.dry_run || self.yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Ok(());
        }
        Err(exit::error(
            Exit::Refused,
            "refused: this changes state and there is no terminal to ask on; say --yes, or look with --dry-run",
        ))
    }

    /// Asks, unless `--yes` has answered already. Call only when `--dry-run` is not set.
    ///
    /// # Errors
    /// [`Exit::Refused`] on anything but yes.
    pub fn ask(&self, question: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        self.can_be_had()?;
        eprint!("{question} [y/N] ");
        io::stderr().flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
            return Ok(());
        }
        Err(exit::error(Exit::Refused, "refused: nothing was changed"))
    }

    /// The reason, which this command needs.
    ///
    /// # Errors
    /// [`Exit::Usage`] when there is none.
    pub fn needed_reason(&self) -> anyhow::Result<&str> {
        let reason = self.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
        reason.ok_or_else(|| exit::error(Exit::Usage, "this needs --reason TEXT, for those who come after"))
    }
}
