//! A batch inside its transaction: load the rows that the commands name, let the rules change them, write what changed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use sqlx::SqliteConnection;

use super::columns::{self, Binds, Columns, Unreadable, select_tasks, spec, state};
use super::fault::Fault;
use super::ledgers;
use super::quarantine;
use super::spec_cache::SpecCache;
use super::write::Writes;
use crate::task::{Answer, Command, Millis, Rows, Settings, Task};

/// The states of rows with certain ids.
pub(super) const LOAD_STATES: &str =
    concat!("SELECT seq, id, created_at, ", state!(), " FROM tasks WHERE id IN (SELECT value FROM json_each(?))");

/// Whole rows with certain ids, idempotency keys or submission hashes, in the order of arrival.
pub(super) const LOAD_WHOLE: &str = select_tasks!(
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
    pub(super) specs: SpecCache,
    /// Keys of the pauses in force.
    pub(super) pauses: BTreeSet<String>,
}

/// Which rows the commands of a batch work on.
#[derive(Default)]
struct Needs<'c> {
    /// Rows of which everything is needed.
    whole: BTreeSet<&'c str>,
    /// Rows of which only the state is needed, as long as their spec is remembered.
    states: BTreeSet<&'c str>,
    keys: BTreeSet<&'c str>,
    hashes: BTreeSet<&'c str>,
    lanes: bool,
    dlqs: bool,
}

/// Applies the commands at `now`. Nothing is committed here, and on a fault the transaction is of no further use.
pub(super) async fn apply(
    conn: &mut SqliteConnection,
    context: &mut Context,
    commands: &[Command],
    now: Millis,
) -> Result<Vec<Answer>, Fault> {
    let mut loaded = load(conn, context, commands, now).await?;
    let rows = &mut loaded.rows;
    let answers = commands.iter().map(|command| rows.apply(command.clone(), now, &context.settings)).collect();
    context.writes.save(conn, rows.take_changes(), &loaded.seqs).await?;
    Ok(answers)
}

struct Loaded {
    rows: Rows,
    /// The `seq` of every row that was there.
    seqs: HashMap<String, i64>,
}

impl Loaded {
    fn add(&mut self, seq: i64, task: Task) {
        self.seqs.insert(task.spec.id.clone(), seq);
        self.rows.load(task);
    }
}

async fn load(
    conn: &mut SqliteConnection,
    context: &Context,
    commands: &[Command],
    now: Millis,
) -> Result<Loaded, Fault> {
    let mut needs = Needs::default();
    for command in commands {
        needs.add(command);
    }
    let mut loaded = Loaded { rows: Rows::default(), seqs: HashMap::new() };
    loaded.rows.pauses.clone_from(&context.pauses);
    if needs.lanes {
        loaded.rows.lanes = ledgers::lanes(conn).await?;
        loaded.rows.missing = ledgers::missing(conn).await?;
    }
    if needs.dlqs {
        loaded.rows.dlqs = ledgers::dlqs(conn).await?;
    }
    let mut whole = std::mem::take(&mut needs.whole);
    whole.extend(load_states(conn, context, &needs, &whole, &mut loaded, now).await?);
    load_whole(conn, context, &whole, &needs, &mut loaded, now).await?;
    let refusals = refusals_in_play(commands, &loaded.rows);
    load_whole(conn, context, &refusals, &Needs::default(), &mut loaded, now).await?;
    Ok(loaded)
}

impl<'c> Needs<'c> {
    fn add(&mut self, command: &'c Command) {
        match command {
            Command::Submit(new) => {
                self.whole.insert(&new.spec.id);
                self.keys.extend(new.spec.idempotency_key.as_deref());
                if new.redelivered {
                    self.hashes.extend(new.spec.submission_hash.as_deref());
                }
            }
            Command::Refuse(refusal) => {
                self.whole.insert(&refusal.spec.id);
            }
            Command::Heartbeat { id, .. }
            | Command::Settle { id, .. }
            | Command::Lost { id, .. }
            | Command::Release { id, .. } => {
                self.states.insert(id);
            }
            Command::Wake { id, .. } => {
                self.whole.insert(id);
                self.lanes = true;
            }
            Command::Replay { id, .. } | Command::Discard { id, .. } | Command::CopyConfirmed { id, .. } => {
                self.whole.insert(id);
                self.dlqs = true;
            }
            Command::Claim { id, .. }
            | Command::Route { id, .. }
            | Command::Postpone { id, .. }
            | Command::Intercept { id, .. }
            | Command::PublishFailed { id, .. }
            | Command::RunNow { id }
            | Command::Cancel { id, .. }
            | Command::CopyMissing { id, .. }
            | Command::SendCopy { id, .. }
            | Command::Poison { id, .. } => {
                self.whole.insert(id);
            }
            Command::Mark { .. } | Command::Missing { .. } => self.lanes = true,
            Command::DirtyDlq { .. } | Command::BeginPass { .. } | Command::EndPass { .. } => self.dlqs = true,
        }
    }
}

/// The rows of conflicts and refusals: they matter only where a submission meets a task that is there already, in the store
/// or earlier in the batch, which is rare; new submissions are spared the look-up.
fn refusals_in_play<'c>(commands: &'c [Command], rows: &Rows) -> BTreeSet<&'c str> {
    let mut named = BTreeSet::new();
    let mut in_play = BTreeSet::new();
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
            in_play.insert(new.refusal.spec.id.as_str());
        }
    }
    in_play
}

/// Loads states and joins them to remembered specs. Returns the ids of rows whose spec is not remembered.
async fn load_states<'c>(
    conn: &mut SqliteConnection,
    context: &Context,
    needs: &Needs<'c>,
    whole: &BTreeSet<&str>,
    loaded: &mut Loaded,
    now: Millis,
) -> Result<Vec<&'c str>, Fault> {
    let ids: Vec<&str> = needs.states.iter().copied().filter(|id| !whole.contains(id)).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut binds = Binds::default();
    binds.add(json_array(&ids));
    let rows = sqlx::query_with(LOAD_STATES, binds.done()).fetch_all(&mut *conn).await?;
    let mut unread = Vec::new();
    let mut unreadable = Vec::new();
    for row in &rows {
        let mut columns = Columns::of(row);
        let seq: i64 = columns.next().unwrap_or(0);
        let mut read = || -> Result<_, String> { Ok((columns.next::<&str>()?, columns.next()?, columns.state()?)) };
        match read() {
            Ok((id, created_at, state)) => match context.specs.get(id, created_at) {
                Some(spec) => loaded.add(seq, Task { spec: Arc::clone(spec), state }),
                None => unread.extend(needs.states.get(id).copied()),
            },
            Err(reason) => unreadable.push(Unreadable { seq, reason }),
        }
    }
    set_aside(conn, context, unreadable, loaded, now).await?;
    Ok(unread)
}

/// Loads whole rows: those in `ids`, and those that the keys and hashes of `needs` name. Rows come in the order of arrival, so
/// that of several with one hash the newest counts.
async fn load_whole(
    conn: &mut SqliteConnection,
    context: &Context,
    ids: &BTreeSet<&str>,
    needs: &Needs<'_>,
    loaded: &mut Loaded,
    now: Millis,
) -> Result<(), Fault> {
    if ids.is_empty() && needs.keys.is_empty() && needs.hashes.is_empty() {
        return Ok(());
    }
    let mut binds = Binds::default();
    binds.add(json_array(ids)).add(json_array(&needs.keys)).add(json_array(&needs.hashes));
    let rows = sqlx::query_with(LOAD_WHOLE, binds.done()).fetch_all(&mut *conn).await?;
    let mut unreadable = Vec::new();
    for row in &rows {
        match columns::task(row) {
            Ok((seq, task)) => loaded.add(seq, task),
            Err(row) => unreadable.push(row),
        }
    }
    set_aside(conn, context, unreadable, loaded, now).await
}

/// Makes unreadable rows dead, so that the batch sees them as what they are now.
async fn set_aside(
    conn: &mut SqliteConnection,
    context: &Context,
    unreadable: Vec<Unreadable>,
    loaded: &mut Loaded,
    now: Millis,
) -> Result<(), Fault> {
    for row in unreadable {
        if let Some(task) = quarantine::set_aside(conn, row.seq, now, &context.settings).await? {
            loaded.add(row.seq, task);
        }
    }
    Ok(())
}

fn json_array<'a>(words: impl IntoIterator<Item = &'a &'a str>) -> String {
    let words: Vec<&str> = words.into_iter().copied().collect();
    serde_json::json!(words).to_string()
}
