//! A batch inside its transaction: load the rows that the commands name, let the rules change them, write what changed.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::columns::{Columns, Slots, select_tasks, spec, state};
use super::fault::Fault;
use super::ledgers;
use super::quarantine;
use super::running::Running;
use super::write::Writes;
use crate::task::{Answer, Command, Millis, Rows, Settings, Spec};

/// Rows with certain ids, idempotency keys or submission hashes, in the order of arrival.
pub(super) const LOAD: &str = select_tasks!(
    "WHERE seq IN ( \
     SELECT seq FROM tasks WHERE id IN (SELECT value FROM json_each(?)) \
     UNION ALL SELECT seq FROM tasks WHERE coalesce(idempotency_key, id) IN (SELECT value FROM json_each(?)) \
     AND raw_length IS NULL \
     UNION ALL SELECT seq FROM tasks WHERE submission_hash IN (SELECT value FROM json_each(?)) \
     AND submission_hash IS NOT NULL) ORDER BY seq"
);

/// What outlives a transaction.
pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) writes: Writes,
    pub(super) running: Running,
    /// Keys of the pauses in force.
    pub(super) pauses: BTreeSet<String>,
}

/// Which rows the commands of a batch work on.
#[derive(Default)]
struct Needs<'c> {
    /// Rows that have to be read.
    ids: BTreeSet<&'c str>,
    /// Rows that may be remembered because this process runs them.
    running: BTreeSet<&'c str>,
    keys: BTreeSet<&'c str>,
    hashes: BTreeSet<&'c str>,
    lanes: bool,
    dlqs: bool,
}

/// Applies the commands at `now`. Nothing is committed here, and on a fault the transaction is of no further use.
pub(super) fn apply(
    conn: &Connection,
    context: &mut Context,
    commands: &[Command],
    now: Millis,
) -> Result<Vec<Answer>, Fault> {
    let mut rows = load(conn, context, commands, now)?;
    let answers = commands.iter().map(|command| rows.apply(command.clone(), now, &context.settings)).collect();
    let changes = rows.take_changes();
    context.writes.save(conn, &changes)?;
    context.running.wrote(changes);
    Ok(answers)
}

#[expect(clippy::redundant_closure, reason = "the functions themselves are not general enough over a row's lifetime")]
fn load(conn: &Connection, context: &mut Context, commands: &[Command], now: Millis) -> Result<Rows, Fault> {
    let mut needs = Needs::default();
    for command in commands {
        needs.add(command);
    }
    let mut rows = Rows::default();
    rows.pauses.clone_from(&context.pauses);
    if needs.lanes {
        rows.lanes = ledgers::all_now(conn, ledgers::LANES, |row| ledgers::lane(row))?.into_iter().collect();
        rows.missing = ledgers::missing(conn)?;
    }
    if needs.dlqs {
        rows.dlqs = ledgers::all_now(conn, ledgers::DLQS, |row| ledgers::dlq(row))?.into_iter().collect();
    }
    for id in &needs.running {
        match context.running.get(id) {
            Some(task) => rows.load(task.clone()),
            None => _ = needs.ids.insert(id),
        }
    }
    load_rows(conn, context, &needs, &mut rows, now)?;
    let refusals = refusals_in_play(commands, &rows);
    let refusals = Needs { ids: refusals.iter().map(String::as_str).collect(), ..Needs::default() };
    load_rows(conn, context, &refusals, &mut rows, now)?;
    let made: Vec<Spec> = rows.made_by_edits(commands, now);
    let made = Needs {
        ids: made.iter().map(|spec| spec.id.as_str()).collect(),
        keys: made.iter().filter_map(|spec| spec.idempotency_key.as_deref()).collect(),
        ..Needs::default()
    };
    load_rows(conn, context, &made, &mut rows, now)?;
    let gates = context.running.load_gates(rows.gate_keys(commands), &mut rows);
    if !gates.is_empty() {
        ledgers::gates(conn, &gates, &mut rows)?;
        context.running.read_gates(gates, &rows);
    }
    Ok(rows)
}

impl<'c> Needs<'c> {
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
fn refusals_in_play(commands: &[Command], rows: &Rows) -> Vec<String> {
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

/// Loads the rows that the ids, keys and hashes of `needs` name, in the order of arrival, so that of several with one hash
/// the newest counts. A row that cannot be read is made a dead one, so that the batch sees it as what it is now.
fn load_rows(
    conn: &Connection,
    context: &Context,
    needs: &Needs<'_>,
    rows: &mut Rows,
    now: Millis,
) -> Result<(), Fault> {
    if needs.ids.is_empty() && needs.keys.is_empty() && needs.hashes.is_empty() {
        return Ok(());
    }
    let mut unreadable = Vec::new();
    let mut statement = conn.prepare_cached(LOAD)?;
    let mut slots = Slots::of(&mut statement);
    slots.add(json_array(&needs.ids)).add(json_array(&needs.keys)).add(json_array(&needs.hashes));
    slots.done()?;
    let mut found = statement.raw_query();
    while let Some(row) = found.next()? {
        match Columns::of(row).task() {
            Ok((_, task)) => rows.load(task),
            Err(row) => unreadable.push(row.seq),
        }
    }
    for seq in unreadable {
        if let Some(task) = quarantine::set_aside(conn, seq, now, context)? {
            rows.load(task);
        }
    }
    Ok(())
}

fn json_array<'a>(words: impl IntoIterator<Item = &'a &'a str>) -> String {
    let words: Vec<&str> = words.into_iter().copied().collect();
    serde_json::json!(words).to_string()
}
