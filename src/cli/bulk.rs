//! Commands about several named tasks: what became of each, and the exit code of all.

use serde_json::json;

use super::context::Context;
use super::exit::Exit;
use super::output::{Entry, Listing};

/// What became of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// As asked.
    Done,
    /// There is no such task.
    NotFound,
    /// It is in a state in which this cannot be done.
    Conflict,
    /// Something else went wrong.
    Failed,
}

/// What became of each.
#[derive(Default)]
pub struct Fates {
    entries: Vec<(String, Fate, String)>,
}

impl Fates {
    /// Notes one; `text` says what happened in a few words.
    pub fn push(&mut self, id: &str, fate: Fate, text: impl Into<String>) {
        self.entries.push((id.to_owned(), fate, text.into()));
    }

    /// Prints all of them and says how it ended: done when all are, partly when some are, else by what went wrong.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn print(&self, context: &Context) -> anyhow::Result<Exit> {
        let mut listing = Listing::new(&["id", "done", "detail"]);
        for (id, fate, text) in &self.entries {
            let done = *fate == Fate::Done;
            listing.push(Entry {
                name: id.clone(),
                cells: vec![id.clone(), if done { "yes" } else { "no" }.to_owned(), text.clone()],
                json: json!({ "id": id, "done": done, "detail": text }),
            });
        }
        context.printer.list(&listing)?;
        Ok(self.exit())
    }

    fn exit(&self) -> Exit {
        let all = |fate: Fate| self.entries.iter().all(|(_, this, _)| *this == fate);
        let any = |fate: Fate| self.entries.iter().any(|(_, this, _)| *this == fate);
        if all(Fate::Done) {
            Exit::Done
        } else if any(Fate::Done) {
            Exit::Partly
        } else if all(Fate::NotFound) {
            Exit::NotFound
        } else if any(Fate::Failed) {
            Exit::Failed
        } else {
            Exit::Conflict
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_all_some_and_none_apart() {
        let exit = |fates: &[Fate]| {
            let mut all = Fates::default();
            fates.iter().for_each(|fate| all.push("x", *fate, ""));
            all.exit()
        };
        assert_eq!(exit(&[]), Exit::Done);
        assert_eq!(exit(&[Fate::Done, Fate::Done]), Exit::Done);
        assert_eq!(exit(&[Fate::Done, Fate::NotFound]), Exit::Partly);
        assert_eq!(exit(&[Fate::NotFound]), Exit::NotFound);
        assert_eq!(exit(&[Fate::NotFound, Fate::Conflict]), Exit::Conflict);
        assert_eq!(exit(&[Fate::Failed, Fate::Conflict]), Exit::Failed);
    }
}
