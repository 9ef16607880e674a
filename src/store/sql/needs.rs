//! What a batch has to load before the rules can work on it.

use std::collections::BTreeSet;

use crate::task::{Command, Rows, Spec};

/// Which rows the commands of a batch work on.
#[derive(Default)]
pub(crate) struct Needs<'c> {
    /// Rows that have to be read.
    pub(crate) ids: BTreeSet<&'c str>,
    /// Rows that may be remembered because this process runs them.
    pub(crate) running: BTreeSet<&'c str>,
    pub(crate) keys: BTreeSet<&'c str>,
    pub(crate) hashes: BTreeSet<&'c str>,
    pub(crate) lanes: bool,
    pub(crate) dlqs: bool,
}

impl<'c> Needs<'c> {
    /// What these commands work on.
    pub(crate) fn of(commands: &'c [Command]) -> Needs<'c> {
        let mut needs = Needs::default();
        commands.iter().for_each(|command| needs.add(command));
        needs
    }

    /// The rows with these ids.
    pub(crate) fn ids(ids: &'c [String]) -> Needs<'c> {
        Needs { ids: ids.iter().map(String::as_str).collect(), ..Needs::default() }
    }

    /// Rows that stand in the way of tasks that edits make.
    pub(crate) fn in_the_way_of(made: &'c [Spec]) -> Needs<'c> {
        Needs {
            ids: made.iter().map(|spec| spec.id.as_str()).collect(),
            keys: made.iter().filter_map(|spec| spec.idempotency_key.as_deref()).collect(),
            ..Needs::default()
        }
    }

    /// Whether no row is asked for.
    pub(crate) fn no_rows(&self) -> bool {
        self.ids.is_empty() && self.keys.is_empty() && self.hashes.is_empty()
    }

    fn add(&mut self, command: &'c Command) {
        match command {
            Command::Submit(new) => {
                self.ids.insert(&new.spec.id);
                self.keys.extend(new.spec.idempotency_key.as_deref());
                if new.redelivered {
                    self.hashes.extend(new.spec.submission_hash.as_deref());
                }
            }
            Command::Refuse(refusal) => {
                self.ids.insert(&refusal.spec.id);
            }
            Command::Heartbeat { id, .. }
            | Command::Settle { id, .. }
            | Command::Lost { id, .. }
            | Command::Release { id, .. } => {
                self.running.insert(id);
            }
            Command::Wake { id, .. } => {
                self.ids.insert(id);
                self.lanes = true;
            }
            Command::Replay { id, .. }
            | Command::Edit { id, .. }
            | Command::Discard { id, .. }
            | Command::CopyConfirmed { id, .. } => {
                self.ids.insert(id);
                self.dlqs = true;
            }
            Command::Adopt { task, .. } => {
                self.ids.insert(task.id());
                self.keys.extend(task.spec.idempotency_key.as_deref());
            }
            Command::Claim { id, .. }
            | Command::Admit { id, .. }
            | Command::Reclaim { id, .. }
            | Command::Route { id, .. }
            | Command::Postpone { id, .. }
            | Command::Intercept { id, .. }
            | Command::PublishFailed { id, .. }
            | Command::RunNow { id }
            | Command::Cancel { id, .. }
            | Command::CopyMissing { id, .. }
            | Command::SendCopy { id, .. }
            | Command::Poison { id, .. } => {
                self.ids.insert(id);
            }
            // The gates of a batch are known once its rows are.
            Command::Breaker { .. } => {}
            Command::Mark { .. } | Command::Missing { .. } => self.lanes = true,
            Command::DirtyDlq { .. } | Command::BeginPass { .. } | Command::EndPass { .. } => self.dlqs = true,
        }
    }
}

/// The rows of conflicts and refusals: they matter only where a submission meets a task that is there already, in the store
/// or earlier in the batch, which is rare; new submissions are spared the look-up.
pub(crate) fn refusals_in_play(commands: &[Command], rows: &Rows) -> Vec<String> {
    let mut named = BTreeSet::new();
    let mut in_play = Vec::new();
    for command in commands {
        let Command::Submit(new) = command else { continue };
        let (id, key) = (new.spec.id.as_str(), new.spec.idempotency_key.as_deref());
        let hash = new.spec.submission_hash.as_deref();
        let known = rows.get(id).is_some()
            || key.is_some_and(|key| rows.id_by_key(key).is_some())
            || hash.is_some_and(|hash| rows.id_by_submission_hash(hash).is_some());
        let mut repeated = !named.insert(("id", id));
        repeated |= key.is_some_and(|key| !named.insert(("key", key)));
        repeated |= hash.is_some_and(|hash| !named.insert(("hash", hash)));
        if known || repeated {
            in_play.push(new.refusal.id());
        }
    }
    in_play
}
