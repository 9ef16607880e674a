//! Commands about several named tasks: what became of each, and the exit code of all.

use redeliver::desk::{self, Act, Fate};
use serde_json::{Value, json};

use super::audit;
use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::output::{Entry, Listing};
use super::wake::Waker;

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

/// Does something to each task, and prints what became of it.
///
/// # Errors
/// When store, broker or server do not answer.
pub async fn act(context: &Context, what: Act, ids: &[String], consent: &Consent) -> anyhow::Result<Exit> {
    let mut fates = Fates::default();
    match context.door().await? {
        Door::Store(store) => {
            let waker = match (what, consent.dry_run) {
                (Act::Cancel, _) | (_, true) => None,
                _ => Some(Waker::connect(context, store.clone()).await?),
            };
            let none = desk::Waker::new(store.clone(), None);
            let sender = waker.as_deref().unwrap_or(&none);
            let note = consent.reason.as_deref();
            let done = desk::act(&*store, sender, what, ids, note, consent.dry_run);
            for fate in context.bound("the store or the broker", done).await?? {
                fates.push(&fate.id, fate.fate, fate.text);
            }
            if !consent.dry_run {
                let done = fates.entries.iter().filter(|(_, fate, _)| *fate == Fate::Done);
                let done: Vec<String> = done.map(|(id, ..)| id.clone()).collect();
                audit::of_ids(context, &*store, action(what), &done, consent.reason.clone()).await?;
            }
            if let Some(waker) = waker {
                waker.close().await;
            }
        }
        Door::Api(remote) => {
            let body = json!({ "reason": consent.reason, "dry_run": consent.dry_run });
            for id in ids {
                let path = match what {
                    Act::Cancel => ["tasks", id, "cancel"],
                    Act::RunNow => ["tasks", id, "retry"],
                    Act::Replay => ["dead-letters", id, "replay"],
                    Act::Discard => ["dead-letters", id, "discard"],
                };
                let answer = context.bound("the server", remote.post::<Value>(&path, &body)).await?;
                match answer {
                    Ok(done) => fates.push(id, Fate::Done, done["detail"].as_str().unwrap_or_default()),
                    Err(error) => match exit::of(&error) {
                        Exit::NotFound => fates.push(id, Fate::NotFound, format!("{error:#}")),
                        Exit::Conflict => fates.push(id, Fate::Conflict, format!("{error:#}")),
                        _ => return Err(error),
                    },
                }
            }
        }
    }
    fates.print(context)
}

fn action(what: Act) -> &'static str {
    match what {
        Act::Cancel => "task.cancel",
        Act::RunNow => "task.retry",
        Act::Replay => "dlq.replay",
        Act::Discard => "dlq.discard",
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
