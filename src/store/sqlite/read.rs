//! The questions that workers ask, each answered from an index of its own. Lists and counts are in `filter`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::params;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use tokio::sync::oneshot;

use super::columns::{self, Bind, Binds, Columns, select_tasks, spec, state};
use super::fault::Fault;
use super::writer::{Errand, Job};
use super::{SqliteStore, filter, ledgers, open, tally, versions};
use crate::gate::{Chance, GateState, HeldGate};
use crate::store::{
    Alarm, AttemptTally, DeadRow, FailureTally, Filter, GroupBy, HELD_GATES_PAGE, NewPolicies, Node, Page, Pause,
    PolicyVersion, Store, StoreError, StoreReport, Tally, Urgency,
};
use crate::task::{
    Answer, Attachment, AttachmentBody, Attempt, AttemptOutcome, Command, DlqCopy, DlqLedger, LaneKey, LaneLedger,
    Millis, Stamp, Status, Task, TaskResult,
};

/// A caller whose commit may take no time at all still looks only so often.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// The queries. Each names its index: without statistics the planner takes `tasks_status` for many of them, and sorts.
pub(super) mod sql {
    use super::{select_tasks, spec, state};

    pub(in super::super) const LEASE: &str =
        select_tasks!("INDEXED BY tasks_lease WHERE status = 'running' AND wake_at <= ? ORDER BY wake_at LIMIT ?");
    pub(in super::super) const SENT: &str = select_tasks!(
        "INDEXED BY tasks_sent WHERE status = 'pending' AND sent_at IS NOT NULL AND held_by IS NULL AND wake_at <= ? ORDER BY wake_at LIMIT ?"
    );
    pub(in super::super) const RETRY: &str = select_tasks!(
        "INDEXED BY tasks_retry WHERE status = 'retry_waiting' AND held_by IS NULL AND wake_at <= ? ORDER BY wake_at LIMIT ?"
    );
    pub(in super::super) const HELD: &str = select_tasks!(
        "INDEXED BY tasks_held_alarm WHERE held_by IS NOT NULL AND wake_at <= ? ORDER BY wake_at LIMIT ?"
    );
    pub(in super::super) const DEADLINE: &str = select_tasks!(
        "INDEXED BY tasks_deadline WHERE (status = 'pending' OR status = 'retry_waiting') AND deadline IS NOT NULL AND deadline < ? \
         ORDER BY deadline LIMIT ?"
    );
    pub(in super::super) const COPY: &str =
        select_tasks!("INDEXED BY tasks_copy WHERE dlq_copy = 'wanted' AND dlq_at <= ? ORDER BY dlq_at LIMIT ?");
    pub(in super::super) const NEXT_ALARM: &str = "SELECT min(at) FROM ( \
         SELECT min(wake_at) AS at FROM tasks INDEXED BY tasks_lease WHERE status = 'running' \
         UNION ALL SELECT min(wake_at) FROM tasks INDEXED BY tasks_sent WHERE status = 'pending' AND sent_at IS NOT NULL AND held_by IS NULL \
         UNION ALL SELECT min(wake_at) FROM tasks INDEXED BY tasks_retry WHERE status = 'retry_waiting' AND held_by IS NULL \
         UNION ALL SELECT min(wake_at) FROM tasks INDEXED BY tasks_held_alarm WHERE held_by IS NOT NULL \
         UNION ALL SELECT min(dlq_at) FROM tasks INDEXED BY tasks_copy WHERE dlq_copy = 'wanted')";
    pub(in super::super) const FEED: &str = select_tasks!(
        "INDEXED BY tasks_feed WHERE status = 'pending' AND sent_at IS NULL AND held_by IS NULL AND queue IS NOT NULL \
         AND queue = ? AND wake_at <= ? ORDER BY wake_at LIMIT ?"
    );
    pub(in super::super) const UNROUTED: &str = "SELECT seq, id, type FROM tasks INDEXED BY tasks_unrouted WHERE status = 'pending' AND queue IS NULL ORDER BY seq LIMIT ?";
    /// Reads every waiting row; asked once in a while.
    pub(in super::super) const WAITING_QUEUES: &str = "SELECT queue, count(*) FROM tasks INDEXED BY tasks_status \
         WHERE (status = 'pending' OR status = 'retry_waiting') AND queue IS NOT NULL GROUP BY queue";
    pub(in super::super) const OUTSTANDING: &str = "SELECT count(*) FROM (SELECT 1 FROM tasks \
         INDEXED BY tasks_outstanding WHERE sent_lane = 'tasks' AND coalesce(queue, 'default') = ? LIMIT ?)";
    /// The gates that hold something, by hopping from one to the next in the index: one step per gate, not per row. (A comparison
    /// of row values would say it in one, but beside a partial index SQLite uses only its first column.)
    pub(in super::super) const HELD_GATES: &str = "WITH RECURSIVE head(seq) AS ( SELECT (SELECT seq FROM tasks INDEXED BY tasks_held WHERE held_by >= ? ORDER BY held_by, queue LIMIT 1) \
         UNION ALL SELECT coalesce( \
         (SELECT seq FROM tasks INDEXED BY tasks_held WHERE held_by = task.held_by AND queue > task.queue ORDER BY queue LIMIT 1), \
         (SELECT seq FROM tasks INDEXED BY tasks_held WHERE held_by > task.held_by ORDER BY held_by, queue LIMIT 1)) FROM head JOIN tasks AS task ON task.seq = head.seq) \
         SELECT task.held_by, task.queue, gates.state FROM head JOIN tasks AS task ON task.seq = head.seq \
         LEFT JOIN gates ON gates.key = task.held_by \
         WHERE task.held_by NOT IN (SELECT key FROM pauses) AND task.queue IN (SELECT value FROM json_each(?)) LIMIT ?";
    /// The oldest rows that gate ?1 holds of queue ?2: of as many turns as ?4, those after ?3 first, and of each turn as many as
    /// there is room for.
    pub(in super::super) const HELD_HEADS: &str = select_tasks!(
        "WHERE seq IN ( \
         WITH RECURSIVE turn(name, n) AS ( \
         SELECT (SELECT min(held_turn) FROM tasks INDEXED BY tasks_held WHERE held_by = ?1 AND queue = ?2 AND held_turn > ?3), 1 \
         UNION ALL SELECT (SELECT min(held_turn) FROM tasks INDEXED BY tasks_held WHERE held_by = ?1 AND queue = ?2 AND held_turn > turn.name), n + 1 FROM turn WHERE turn.name IS NOT NULL AND n < ?4), \
         rest(name, n) AS ( \
         SELECT (SELECT min(held_turn) FROM tasks INDEXED BY tasks_held WHERE held_by = ?1 AND queue = ?2 AND held_turn <= ?3), 1 \
         UNION ALL SELECT (SELECT min(held_turn) FROM tasks INDEXED BY tasks_held WHERE held_by = ?1 AND queue = ?2 AND held_turn > rest.name AND held_turn <= ?3), n + 1 FROM rest WHERE rest.name IS NOT NULL AND n < ?4), \
         chosen(name) AS (SELECT name FROM turn WHERE name IS NOT NULL UNION ALL SELECT name FROM rest WHERE name IS NOT NULL LIMIT ?4) \
         SELECT held.seq FROM chosen JOIN tasks AS held ON held.seq IN (SELECT seq FROM tasks INDEXED BY tasks_held WHERE held_by = ?1 AND queue = ?2 AND held_turn = chosen.name ORDER BY due_at LIMIT ?4 / (SELECT count(*) FROM chosen)))"
    );
    pub(in super::super) const HELD_COUNTS: &str =
        "SELECT held_by, count(*) FROM tasks INDEXED BY tasks_held WHERE held_by IS NOT NULL GROUP BY held_by";
    pub(in super::super) const GET: &str = select_tasks!("WHERE id IN (SELECT value FROM json_each(?))");
    pub(in super::super) const ATTEMPTS: &str = "SELECT task_id, fence, number, generation, outcome, class, code, \
         http_status, message, stack, fingerprint, started_at, ended_at, worker, policy, variant, delay_before_ms, \
         delay_reason, cost FROM attempts WHERE task_id = ? ORDER BY fence";
    pub(in super::super) const ATTACHMENTS: &str =
        "SELECT fence, name, media_type, bytes, link, size FROM attachments WHERE task_id = ? ORDER BY fence, position";
    pub(in super::super) const RESULT: &str = "SELECT media_type, truncated, body FROM results WHERE task_id = ?";
    pub(in super::super) const CACHED: &str =
        "SELECT media_type, truncated, body, stored_at FROM cached WHERE type = ? AND cache_key = ?";
    pub(in super::super) const DEAD_ROWS: &str = "SELECT id, generation, retry_count, dlq_copy, coalesce(ended_at, 0) \
         FROM tasks INDEXED BY tasks_dead WHERE status = 'dead' AND coalesce(queue, 'default') = ? AND id > ? ORDER BY id LIMIT ?";
    pub(in super::super) const DEAD_COPIES: &str = "SELECT coalesce(sum(dlq_copy = 'present'), 0), \
         coalesce(sum(dlq_copy = 'wanted'), 0) FROM tasks INDEXED BY tasks_dead WHERE status = 'dead' AND coalesce(queue, 'default') = ?";
}

impl SqliteStore {
    /// Runs a query for whole tasks. Rows that cannot be read are left out and reported to the writer, which sets them aside.
    pub(super) async fn tasks(&self, sql: &'static str, binds: Binds) -> Result<Vec<Task>, StoreError> {
        let rows = self.rows(sql, binds).await?;
        Ok(self.readable(&rows).map(|(_, task)| task).collect())
    }

    pub(super) fn readable<'r>(&self, rows: &'r [SqliteRow]) -> impl Iterator<Item = (i64, Task)> + use<'r> {
        let (read, unreadable): (Vec<_>, Vec<_>) = rows.iter().map(columns::task).partition(Result::is_ok);
        let unreadable: Vec<i64> = unreadable.into_iter().filter_map(Result::err).map(|row| row.seq).collect();
        self.report_unreadable(unreadable);
        read.into_iter().filter_map(Result::ok)
    }

    fn report_unreadable(&self, seqs: Vec<i64>) {
        if !seqs.is_empty() {
            // A closed writer sets nothing aside; the next process that meets them will.
            self.writer.errands.send(Errand::SetAside(seqs)).ok();
        }
    }

    pub(super) async fn rows(&self, sql: &'static str, binds: Binds) -> Result<Vec<SqliteRow>, StoreError> {
        sqlx::query_with(sql, binds.done()).fetch_all(&self.readers).await.map_err(|error| self.fault(error))
    }

    /// Runs `question` on a reader's connection.
    async fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let mut conn = self.readers.acquire().await.map_err(|error| self.fault(error))?;
        question(&mut conn).await.map_err(|fault| self.fault(fault))
    }

    /// A row's columns, where a failure to read them is the store's fault: only we write that table.
    pub(super) fn read<T>(
        &self,
        row: &SqliteRow,
        read: impl FnOnce(&mut Columns<'_>) -> Result<T, String>,
    ) -> Result<T, StoreError> {
        read(&mut Columns::of(row)).map_err(|reason| self.fault(Fault::Unusable(reason)))
    }
}

/// SQLite's LIMIT is signed.
pub(super) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn binds(add: impl FnOnce(&mut Binds)) -> Binds {
    let mut binds = Binds::default();
    add(&mut binds);
    binds
}

#[async_trait]
impl Store for SqliteStore {
    fn now(&self) -> Millis {
        self.clock.now()
    }

    async fn apply(&self, urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let queue = match urgency {
            Urgency::First => &self.writer.first,
            Urgency::Normal => &self.writer.normal,
        };
        let (reply, mut answer) = oneshot::channel();
        let batch = Arc::new(AtomicU64::new(0));
        queue.send(Job { commands, batch: Arc::clone(&batch), reply }).map_err(|_| self.closed())?;
        let unknown = || StoreError::Unknown { place: self.path.display().to_string() };
        let mut patience = self.commit_timeout.max(SHORTEST_LOOK);
        loop {
            match tokio::time::timeout(patience, &mut answer).await {
                // The writer went away with the job: nobody knows how far it came.
                Ok(answer) => return answer.unwrap_or_else(|_| Err(unknown())),
                Err(_) => match self.writer.commit.since(batch.load(Ordering::SeqCst)) {
                    // It has begun, so it cannot be taken back: the writer sees it through.
                    Some(taken) if taken >= self.commit_timeout => return Err(unknown()),
                    Some(taken) => patience = (self.commit_timeout - taken).max(SHORTEST_LOOK),
                    None => patience = self.commit_timeout.max(SHORTEST_LOOK),
                },
            }
        }
    }

    async fn alarms(&self, kind: Alarm, now: Millis, most: usize) -> Result<Vec<Task>, StoreError> {
        let sql = match kind {
            Alarm::Lease => sql::LEASE,
            Alarm::Sent => sql::SENT,
            Alarm::Retry => sql::RETRY,
            Alarm::Held => sql::HELD,
            Alarm::Deadline => sql::DEADLINE,
            Alarm::Copy => sql::COPY,
        };
        self.tasks(sql, binds(|b| _ = b.add(now).add(limit(most)))).await
    }

    async fn next_alarm(&self) -> Result<Option<Millis>, StoreError> {
        let rows = self.rows(sql::NEXT_ALARM, Binds::default()).await?;
        rows.first().map_or(Ok(None), |row| self.read(row, |columns| columns.next()))
    }

    async fn feed(&self, queue: &str, now: Millis, most: usize) -> Result<Vec<Task>, StoreError> {
        self.tasks(sql::FEED, binds(|b| _ = b.add(queue).add(now).add(limit(most)))).await
    }

    async fn unrouted(&self, most: usize) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.rows(sql::UNROUTED, binds(|b| _ = b.add(limit(most)))).await?;
        let mut unrouted = Vec::with_capacity(rows.len());
        let mut unreadable = Vec::new();
        for row in &rows {
            let mut columns = Columns::of(row);
            let seq = columns.next().unwrap_or(0);
            match (columns.next(), columns.next()) {
                (Ok(id), Ok(task_type)) => unrouted.push((id, task_type)),
                _ => unreadable.push(seq),
            }
        }
        self.report_unreadable(unreadable);
        Ok(unrouted)
    }

    async fn waiting_queues(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        let rows = self.rows(sql::WAITING_QUEUES, Binds::default()).await?;
        rows.iter().map(|row| self.read(row, |columns| Ok((columns.next()?, columns.next()?)))).collect()
    }

    async fn outstanding(&self, queue: &str, most: usize) -> Result<usize, StoreError> {
        let rows = self.rows(sql::OUTSTANDING, binds(|b| _ = b.add(queue).add(limit(most)))).await?;
        let count: i64 = rows.first().map_or(Ok(0), |row| self.read(row, |columns| columns.next()))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    async fn held_gates(&self, queues: &[String], from: &str) -> Result<Vec<HeldGate>, StoreError> {
        let queues = serde_json::json!(queues).to_string();
        let rows =
            self.rows(sql::HELD_GATES, binds(|b| _ = b.word(from).add(queues).add(limit(HELD_GATES_PAGE)))).await?;
        let mut gates = Vec::with_capacity(rows.len());
        for row in &rows {
            gates.push(self.read(row, |columns| {
                let (gate, queue): (String, String) = (columns.next()?, columns.next()?);
                let state: Option<String> = columns.next()?;
                let state = state.and_then(|text| ledgers::gate_state(&gate, &text));
                Ok(HeldGate { gate, queue, state })
            })?);
        }
        Ok(gates)
    }

    async fn held_heads(&self, chance: &Chance, after: &str) -> Result<Vec<Task>, StoreError> {
        let Chance { gate, queue, most } = chance;
        let arguments = binds(|b| _ = b.word(gate).word(queue).word(after).add(limit(*most)));
        self.tasks(sql::HELD_HEADS, arguments).await
    }

    async fn held_counts(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        let rows = self.rows(sql::HELD_COUNTS, Binds::default()).await?;
        rows.iter().map(|row| self.read(row, |columns| Ok((columns.next()?, columns.next()?)))).collect()
    }

    async fn gates(&self) -> Result<Vec<(String, GateState)>, StoreError> {
        let rows = self.rows("SELECT key, state FROM gates ORDER BY key", Binds::default()).await?;
        let mut gates = Vec::with_capacity(rows.len());
        for row in &rows {
            let (key, state): (String, String) = self.read(row, |columns| Ok((columns.next()?, columns.next()?)))?;
            gates.extend(ledgers::gate_state(&key, &state).map(|state| (key, state)));
        }
        Ok(gates)
    }

    async fn outside_changes(&self) -> Result<i64, StoreError> {
        Ok(self.look_outside().await)
    }

    async fn get(&self, ids: &[String]) -> Result<Vec<Option<Task>>, StoreError> {
        let tasks = self.tasks(sql::GET, binds(|b| _ = b.add(serde_json::json!(ids).to_string()))).await?;
        let by_id: HashMap<&str, &Task> = tasks.iter().map(|task| (task.id(), task)).collect();
        Ok(ids.iter().map(|id| by_id.get(id.as_str()).map(|task| (*task).clone())).collect())
    }

    async fn attempts(&self, id: &str) -> Result<Vec<Attempt>, StoreError> {
        let rows = self.rows(sql::ATTEMPTS, binds(|b| _ = b.add(id))).await?;
        let mut attempts =
            rows.iter().map(|row| self.read(row, attempt)).collect::<Result<Vec<Attempt>, StoreError>>()?;
        for row in self.rows(sql::ATTACHMENTS, binds(|b| _ = b.add(id))).await? {
            let (fence, attachment) = self.read(&row, attachment)?;
            if let Some(attempt) = attempts.iter_mut().find(|attempt| attempt.fence == fence) {
                attempt.attachments.push(attachment);
            }
        }
        Ok(attempts)
    }

    async fn result(&self, id: &str) -> Result<Option<TaskResult>, StoreError> {
        let rows = self.rows(sql::RESULT, binds(|b| _ = b.add(id))).await?;
        rows.first().map(|row| self.read(row, result)).transpose()
    }

    async fn cached(&self, task_type: &str, key: &str) -> Result<Option<(TaskResult, Millis)>, StoreError> {
        let rows = self.rows(sql::CACHED, binds(|b| _ = b.word(task_type).text(key))).await?;
        rows.first().map(|row| self.read(row, |columns| Ok((result(columns)?, columns.next()?)))).transpose()
    }

    async fn list(&self, filter: &Filter, cursor: Option<&str>, most: usize) -> Result<Page<Task>, StoreError> {
        filter::list(self, filter, cursor, most).await
    }

    async fn count(&self, filter: &Filter) -> Result<BTreeMap<Status, i64>, StoreError> {
        filter::count(self, filter).await
    }

    async fn tallies(&self, by: &GroupBy, filter: &Filter) -> Result<Vec<Tally>, StoreError> {
        tally::tallies(self, by, filter).await
    }

    async fn attempt_tallies(&self, filter: &Filter) -> Result<Vec<AttemptTally>, StoreError> {
        tally::attempt_tallies(self, filter).await
    }

    async fn failure_tallies(&self, filter: &Filter, most: usize) -> Result<Vec<FailureTally>, StoreError> {
        tally::failure_tallies(self, filter, most).await
    }

    async fn dead_rows(&self, queue: &str, after: &str, most: usize) -> Result<Vec<DeadRow>, StoreError> {
        let rows = self.rows(sql::DEAD_ROWS, binds(|b| _ = b.add(queue).add(after).add(limit(most)))).await?;
        let read = |columns: &mut Columns<'_>| {
            Ok(DeadRow {
                id: columns.next()?,
                stamp: Stamp { generation: columns.next()?, retry_count: columns.next()? },
                dlq_copy: columns.word(DlqCopy::parse)?,
                died_at: columns.next()?,
            })
        };
        rows.iter().map(|row| self.read(row, read)).collect()
    }

    async fn dead_copies(&self, queue: &str) -> Result<(i64, i64), StoreError> {
        let rows = self.rows(sql::DEAD_COPIES, binds(|b| _ = b.add(queue))).await?;
        rows.first().map_or(Ok((0, 0)), |row| self.read(row, |columns| Ok((columns.next()?, columns.next()?))))
    }

    async fn lanes(&self) -> Result<Vec<(LaneKey, LaneLedger)>, StoreError> {
        let lanes = self.ask(async |conn| ledgers::all(conn, ledgers::LANES, ledgers::lane).await).await?;
        // In the order of the words, not of their letters.
        Ok(BTreeMap::from_iter(lanes).into_iter().collect())
    }

    async fn dlqs(&self) -> Result<Vec<(String, DlqLedger)>, StoreError> {
        self.ask(async |conn| ledgers::all(conn, ledgers::DLQS, ledgers::dlq).await).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.ask(async |conn| ledgers::all(conn, ledgers::PAUSES, ledgers::pause).await).await
    }

    async fn pause(&self, pause: Pause) -> Result<(), StoreError> {
        self.write(move |conn, context, _| {
            let sql = "INSERT INTO pauses (key, since, reason) VALUES (?, ?, ?) ON CONFLICT DO UPDATE \
                       SET since = excluded.since, reason = coalesce(excluded.reason, reason)";
            conn.execute(sql, params![pause.key, pause.since, pause.reason])?;
            // Should this not be committed: a pause too many is read anew with the next foreign commit, or now by a failed one.
            context.pauses.insert(pause.key);
            Ok(())
        })
        .await
    }

    async fn resume(&self, key: &str) -> Result<bool, StoreError> {
        let key = key.to_owned();
        self.write(move |conn, context, _| {
            let known = conn.execute("DELETE FROM pauses WHERE key = ?", [&key])? > 0;
            context.pauses.remove(&key);
            Ok(known)
        })
        .await
    }

    async fn policies(&self, most: usize) -> Result<Vec<PolicyVersion>, StoreError> {
        self.ask(async |conn| versions::versions(conn, limit(most)).await).await
    }

    async fn apply_policies(&self, new: NewPolicies) -> Result<i64, StoreError> {
        self.write(move |conn, _, now| versions::apply(conn, &new, now)).await
    }

    async fn report_node(&self, worker: &str, hash: &str, version: Option<i64>) -> Result<(), StoreError> {
        let (worker, hash) = (worker.to_owned(), hash.to_owned());
        self.write(move |conn, _, now| versions::report(conn, &worker, &hash, version, now)).await
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        self.ask(versions::nodes).await
    }

    async fn report(&self, deep: bool) -> Result<StoreReport, StoreError> {
        let (version, schema_version, integrity) = self
            .ask(async |conn| {
                let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut *conn).await?;
                let schema: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *conn).await?;
                let integrity = match deep {
                    false => None,
                    true => {
                        let found: Vec<String> =
                            sqlx::query_scalar("PRAGMA integrity_check(20)").fetch_all(&mut *conn).await?;
                        Some(found.join("; "))
                    }
                };
                Ok((version, schema, integrity))
            })
            .await?;
        let size = |suffix: &str| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(suffix);
            std::fs::metadata(name).map_or(0, |file| file.len())
        };
        Ok(StoreReport {
            place: self.path.display().to_string(),
            engine: format!("SQLite {version}"),
            schema_version,
            schema_known: open::known_version(),
            bytes: size("") + size("-wal") + size("-shm"),
            integrity,
        })
    }

    async fn close(&self) {
        // The writer goes last: only it can move the log into the file, so that one file is what is left.
        self.readers.close().await;
        let (done, closed) = oneshot::channel();
        if self.writer.errands.send(Errand::Close(done)).is_ok() {
            closed.await.ok();
        }
    }
}

pub(super) fn attempt(columns: &mut Columns<'_>) -> Result<Attempt, String> {
    Ok(Attempt {
        task_id: columns.next()?,
        fence: columns.next()?,
        number: columns.next()?,
        generation: columns.next()?,
        outcome: columns.word(AttemptOutcome::parse)?,
        failure: columns.failure(true)?,
        started_at: columns.next()?,
        ended_at: columns.next()?,
        worker: columns.next()?,
        policy: columns.next()?,
        variant: columns.next()?,
        delay_before_ms: columns.next()?,
        delay_reason: columns.next()?,
        cost: columns.next()?,
        attachments: Vec::new(),
    })
}

fn result(columns: &mut Columns<'_>) -> Result<TaskResult, String> {
    Ok(TaskResult { media_type: columns.next()?, truncated: columns.next::<i64>()? != 0, body: columns.next()? })
}

pub(super) fn attachment(columns: &mut Columns<'_>) -> Result<(i64, Attachment), String> {
    let fence = columns.next()?;
    let (name, media_type) = (columns.next()?, columns.next()?);
    let (bytes, link, size): (Option<Vec<u8>>, Option<String>, Option<i64>) =
        (columns.next()?, columns.next()?, columns.next()?);
    let body = match (bytes, link) {
        (Some(bytes), _) => AttachmentBody::Bytes(bytes.into()),
        (None, Some(link)) => AttachmentBody::Link(link),
        (None, None) => AttachmentBody::TooLarge { size: size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0) },
    };
    Ok((fence, Attachment { name, media_type, body }))
}
