//! Which dead letters a command is about, and what became of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::context::Context;
use super::exit::{self, Exit};
use super::filter::FilterArgs;
use super::output::{Document, Listing};
use redeliver::store::Filter;
use redeliver::task::Millis;

/// Which dead letters: ids, filters or all of them.
#[derive(Debug, Clone, clap::Args)]
pub struct Choice {
    /// These; `-` reads ids from stdin
    #[arg(id = "letters", value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Every dead letter (that the filters match)
    #[arg(long)]
    all: bool,
    /// At most so many, newest first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

impl Choice {
    /// Whether anything was chosen: a forgotten filter must not mean everything.
    ///
    /// # Errors
    /// [`Exit::Usage`] when nothing was.
    pub fn is_made(&self) -> anyhow::Result<()> {
        if self.all || !self.ids.is_empty() || !self.filter.is_empty() {
            return Ok(());
        }
        Err(exit::error(Exit::Usage, "say which dead letters: ids, filters, or --all"))
    }

    /// The filter it means. Reads stdin when an id says so.
    ///
    /// # Errors
    /// As [`FilterArgs::to_dead_filter`].
    pub fn to_filter(&self, now: Millis) -> anyhow::Result<Filter> {
        self.filter.to_dead_filter(&self.ids, now)
    }

    /// At most so many.
    pub fn limit(&self) -> Option<usize> {
        self.limit.and_then(|limit| usize::try_from(limit).ok())
    }
}

/// What was done and what was not.
#[derive(Default)]
pub struct Tally {
    /// The past participle in the output.
    pub verb: &'static str,
    /// As asked.
    pub done: i64,
    /// Not, by why.
    pub skipped: BTreeMap<String, i64>,
    /// Neither: it was ended before.
    pub left: i64,
    /// Letters were asked for by name.
    pub by_id: bool,
    /// Nothing was changed.
    pub dry_run: bool,
    /// What else belongs into the document.
    pub more: Vec<(&'static str, Value)>,
    /// What else people see.
    pub tables: Vec<(&'static str, Listing)>,
}

impl Tally {
    /// Prints it and says how it ended.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn print(self, context: &Context) -> anyhow::Result<Exit> {
        let exit = self.exit();
        let matched = self.done + self.left + self.skipped.values().sum::<i64>();
        let mut json = json!({ "matched": matched, (self.verb): self.done, "skipped": self.skipped });
        if self.dry_run {
            json["dry_run"] = true.into();
        }
        let skipped: Vec<String> = self.skipped.iter().map(|(why, n)| format!("{why}={n}")).collect();
        let mut lines = vec![
            ("matched", matched.to_string()),
            (if self.dry_run { "would be" } else { "done" }, format!("{} {}", self.done, self.verb)),
            ("skipped", if skipped.is_empty() { "0".into() } else { skipped.join(" ") }),
        ];
        for (name, value) in self.more {
            if !value.is_array() {
                lines.push((name, value.to_string()));
            }
            json[name] = value;
        }
        context.printer.one(&Document { name: self.done.to_string(), lines, tables: self.tables, json })?;
        Ok(exit)
    }

    fn exit(&self) -> Exit {
        if self.skipped.is_empty() {
            return if self.left > 0 { Exit::Partly } else { Exit::Done };
        }
        if self.done == 0 && self.by_id {
            let only_unknown = self.skipped.keys().all(|why| why == "not_found");
            return if only_unknown { Exit::NotFound } else { Exit::Conflict };
        }
        Exit::Partly
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_letters_make_it_partly_done() {
        let mut tally = Tally::default();
        assert_eq!(tally.exit(), Exit::Done);
        tally.left = 1;
        assert_eq!(tally.exit(), Exit::Partly);
        tally.skipped.insert("not_replayable".into(), 1);
        assert_eq!(tally.exit(), Exit::Partly);
        tally.by_id = true;
        assert_eq!(tally.exit(), Exit::Conflict);
        tally.skipped = BTreeMap::from([("not_found".into(), 1)]);
        assert_eq!(tally.exit(), Exit::NotFound);
        tally.done = 1;
        assert_eq!(tally.exit(), Exit::Partly);
    }
}
