//! The questions that workers ask, each answered from an index of its own. Lists and counts are in `filter`.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;

use super::columns::{Columns, select_tasks, spec, state};
use super::dialect::Dialect;
use super::engine::{Ask, Engine, limit};
use super::value::{Source, plain, values, without_nul};
use super::{filter, ledgers, tally, versions};
use crate::gate::{Chance, GateState, HeldGate};
use crate::store::{
    Alarm, AttemptTally, DeadRow, FailureTally, Filter, GroupBy, HELD_GATES_PAGE, NewPolicies, Node, Page, Pause,
    PolicyVersion, Store, StoreError, StoreReport, Tally, Urgency,
};
use crate::task::{
    Answer, Attachment, AttachmentBody, Attempt, AttemptOutcome, Command, DlqCopy, DlqLedger, LaneKey, LaneLedger,
    Millis, Stamp, Status, Task, TaskResult,
};

/// The queries. Each names its index: without statistics the planner takes `tasks_status` for many of them, and sorts.
pub(crate) mod sql {
    use super::{select_tasks, spec, state};

    pub(crate) const LEASE: &str =
        select_tasks!("INDEXED BY tasks_lease WHERE status = 'running' AND wake_at <= ? ORDER BY wake_at LIMIT ?");
    pub(crate) const SENT: &str = select_tasks!(
        "INDEXED BY tasks_sent WHERE status = 'pending' AND sent_at IS NOT NULL AND held_by IS NULL AND wake_at <= ? ORDER BY wake_at LIMIT ?"
    );
    pub(crate) const RETRY: &str = select_tasks!(
        "INDEXED BY tasks_retry WHERE status = 'retry_waiting' AND held_by IS NULL AND wake_at <= ? ORDER BY wake_at LIMIT ?"
    );
    pub(crate) const HELD: &str = select_tasks!(
        "INDEXED BY tasks_held_alarm WHERE held_by IS NOT NULL AND wake_at <= ? ORDER BY wake_at LIMIT ?"
    );
    pub(crate) const DEADLINE: &str = select_tasks!(
        "INDEXED BY tasks_deadline WHERE (status = 'pending' OR status = 'retry_waiting') AND deadline IS NOT NULL AND deadline < ? \
         ORDER BY deadline LIMIT ?"
    );
    pub(crate) const COPY: &str =
        select_tasks!("INDEXED BY tasks_copy WHERE dlq_copy = 'wanted' AND dlq_at <= ? ORDER BY dlq_at LIMIT ?");
    pub(crate) const NEXT_ALARM: &str = "SELECT min(at) FROM ( \
         SELECT min(wake_at) AS at FROM tasks INDEXED BY tasks_lease WHERE status = 'running' \
         UNION ALL SELECT min(wake_at) FROM tasks INDEXED BY tasks_sent WHERE status = 'pending' AND sent_at IS NOT NULL AND held_by IS NULL \
         UNION ALL SELECT min(wake_at) FROM tasks INDEXED BY tasks_retry WHERE status = 'retry_waiting' AND held_by IS NULL \
         UNION ALL SELECT min(wake_at) FROM tasks INDEXED BY tasks_held_alarm WHERE held_by IS NOT NULL \
         UNION ALL SELECT min(dlq_at) FROM tasks INDEXED BY tasks_copy WHERE dlq_copy = 'wanted') AS alarms";
    pub(crate) const FEED: &str = select_tasks!(
        "INDEXED BY tasks_feed WHERE status = 'pending' AND sent_at IS NULL AND held_by IS NULL AND queue IS NOT NULL \
         AND queue = ? AND wake_at <= ? ORDER BY wake_at LIMIT ?"
    );
    pub(crate) const UNROUTED: &str = "SELECT seq, id, type FROM tasks INDEXED BY tasks_unrouted WHERE status = 'pending' AND queue IS NULL ORDER BY seq LIMIT ?";
    /// Reads every waiting row; asked once in a while.
    pub(crate) const WAITING_QUEUES: &str = "SELECT queue, count(*) FROM tasks INDEXED BY tasks_status \
         WHERE (status = 'pending' OR status = 'retry_waiting') AND queue IS NOT NULL GROUP BY queue";
    pub(crate) const OUTSTANDING: &str = "SELECT count(*) FROM (SELECT 1 FROM tasks \
         INDEXED BY tasks_outstanding WHERE sent_lane = 'tasks' AND coalesce(queue, 'default') = ? LIMIT ?) AS sent";
    /// The gates that hold something, by hopping from one to the next in the index: one step per gate, not per row. (A comparison
    /// of row values would say it in one, but beside a partial index SQLite uses only its first column.)
    pub(crate) const HELD_GATES: &str = "WITH RECURSIVE head(seq) AS ( SELECT (SELECT seq FROM tasks INDEXED BY tasks_held WHERE held_by >= ? ORDER BY held_by, queue LIMIT 1) \
         UNION ALL SELECT coalesce( \
         (SELECT seq FROM tasks INDEXED BY tasks_held WHERE held_by = task.held_by AND queue > task.queue ORDER BY queue LIMIT 1), \
         (SELECT seq FROM tasks INDEXED BY tasks_held WHERE held_by > task.held_by ORDER BY held_by, queue LIMIT 1)) FROM head JOIN tasks AS task ON task.seq = head.seq) \
         SELECT task.held_by, task.queue, gates.state FROM head JOIN tasks AS task ON task.seq = head.seq \
         LEFT JOIN gates ON gates.key = task.held_by \
         WHERE task.held_by NOT IN (SELECT key FROM pauses) AND task.queue IN ({each:?}) LIMIT ?";
    /// The oldest rows that gate ?1 holds of queue ?2: of as many turns as ?4, those after ?3 first, and of each turn as many as
    /// there is room for.
    pub(crate) const HELD_HEADS: &str = select_tasks!(
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
    /// The same for a planner that would not walk the rows of a turn in order by itself.
    #[cfg(feature = "postgres")]
    pub(crate) const HELD_HEADS_LATERAL: &str = select_tasks!(
        "WHERE seq IN ( \
         WITH RECURSIVE turn(name, n) AS ( \
         SELECT (SELECT min(held_turn) FROM tasks WHERE held_by = ?1 AND queue = ?2 AND held_turn > ?3), 1 \
         UNION ALL SELECT (SELECT min(held_turn) FROM tasks WHERE held_by = ?1 AND queue = ?2 AND held_turn > turn.name), n + 1 FROM turn WHERE turn.name IS NOT NULL AND n < ?4), \
         rest(name, n) AS ( \
         SELECT (SELECT min(held_turn) FROM tasks WHERE held_by = ?1 AND queue = ?2 AND held_turn <= ?3), 1 \
         UNION ALL SELECT (SELECT min(held_turn) FROM tasks WHERE held_by = ?1 AND queue = ?2 AND held_turn > rest.name AND held_turn <= ?3), n + 1 FROM rest WHERE rest.name IS NOT NULL AND n < ?4), \
         chosen(name) AS (SELECT name FROM turn WHERE name IS NOT NULL UNION ALL SELECT name FROM rest WHERE name IS NOT NULL LIMIT ?4) \
         SELECT held.seq FROM chosen CROSS JOIN LATERAL (SELECT seq FROM tasks WHERE held_by = ?1 AND queue = ?2 AND held_turn = chosen.name ORDER BY due_at LIMIT ?4 / (SELECT count(*) FROM chosen)) AS held)"
    );
    pub(crate) const HELD_COUNTS: &str =
        "SELECT held_by, count(*) FROM tasks INDEXED BY tasks_held WHERE held_by IS NOT NULL GROUP BY held_by";
    pub(crate) const GET: &str = select_tasks!("WHERE id IN ({each:?})");
    pub(crate) const ATTEMPTS: &str = "SELECT task_id, fence, number, generation, outcome, class, code, \
         http_status, message, stack, fingerprint, started_at, ended_at, worker, policy, variant, delay_before_ms, \
         delay_reason, cost FROM attempts WHERE task_id = ? ORDER BY fence";
    pub(crate) const ATTACHMENTS: &str =
        "SELECT fence, name, media_type, bytes, link, size FROM attachments WHERE task_id = ? ORDER BY fence, position";
    pub(crate) const RESULT: &str = "SELECT media_type, truncated, body FROM results WHERE task_id = ?";
    pub(crate) const CACHED: &str =
        "SELECT media_type, truncated, body, stored_at FROM cached WHERE type = ? AND cache_key = ?";
    pub(crate) const DEAD_ROWS: &str = "SELECT id, generation, retry_count, dlq_copy, coalesce(ended_at, 0) \
         FROM tasks INDEXED BY tasks_dead WHERE status = 'dead' AND coalesce(queue, 'default') = ? AND id > ? ORDER BY id LIMIT ?";
    pub(crate) const DEAD_COPIES: &str = "SELECT count(*) FILTER (WHERE dlq_copy = 'present'), \
         count(*) FILTER (WHERE dlq_copy = 'wanted') FROM tasks INDEXED BY tasks_dead WHERE status = 'dead' AND coalesce(queue, 'default') = ?";
}

#[async_trait]
impl<E: Engine> Store for E {
    fn now(&self) -> Millis {
        self.clock().now()
    }

    async fn apply(&self, urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.commit(urgency, commands).await
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
        self.tasks(sql, values![now, limit(most)]).await
    }

    async fn next_alarm(&self) -> Result<Option<Millis>, StoreError> {
        Ok(self.first(sql::NEXT_ALARM, values![], |columns| columns.next()).await?.flatten())
    }

    async fn feed(&self, queue: &str, now: Millis, most: usize) -> Result<Vec<Task>, StoreError> {
        self.tasks(sql::FEED, values![queue, now, limit(most)]).await
    }

    async fn unrouted(&self, most: usize) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.rows(sql::UNROUTED, values![limit(most)]).await?;
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
        if !unreadable.is_empty() {
            self.report_unreadable(unreadable);
        }
        Ok(unrouted)
    }

    async fn waiting_queues(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        let queues = self.all(sql::WAITING_QUEUES, values![], |columns| Ok((columns.next()?, columns.next()?))).await?;
        Ok(queues.into_iter().collect())
    }

    async fn outstanding(&self, queue: &str, most: usize) -> Result<usize, StoreError> {
        let count = self.first(sql::OUTSTANDING, values![queue, limit(most)], |columns| columns.next::<i64>()).await?;
        Ok(usize::try_from(count.unwrap_or(0)).unwrap_or(0))
    }

    async fn held_gates(&self, queues: &[String], from: &str) -> Result<Vec<HeldGate>, StoreError> {
        let mut arguments = values![from];
        arguments.list(queues).add(limit(HELD_GATES_PAGE));
        self.all(sql::HELD_GATES, arguments, |columns| {
            let (gate, queue): (String, String) = (columns.next()?, columns.next()?);
            let state: Option<String> = columns.next()?;
            let state = state.and_then(|text| ledgers::gate_state(&gate, &text));
            Ok(HeldGate { gate, queue, state })
        })
        .await
    }

    async fn held_heads(&self, chance: &Chance, after: &str) -> Result<Vec<Task>, StoreError> {
        let Chance { gate, queue, most } = chance;
        let arguments = values![gate.as_str(), queue.as_str(), after, limit(*most)];
        let sql = match self.dialect() {
            Dialect::Sqlite => sql::HELD_HEADS,
            #[cfg(feature = "postgres")]
            Dialect::Postgres => sql::HELD_HEADS_LATERAL,
        };
        self.tasks(sql, arguments).await
    }

    async fn held_counts(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        let counts = self.all(sql::HELD_COUNTS, values![], |columns| Ok((columns.next()?, columns.next()?))).await?;
        Ok(counts.into_iter().collect())
    }

    async fn gates(&self) -> Result<Vec<(String, GateState)>, StoreError> {
        let read = |columns: &mut Columns<'_, E::Row>| Ok((columns.next::<String>()?, columns.next::<String>()?));
        let gates =
            self.all("SELECT key, state FROM gates WHERE state IS NOT NULL ORDER BY key", values![], read).await?;
        let with_state = |(key, text): (String, String)| ledgers::gate_state(&key, &text).map(|state| (key, state));
        Ok(gates.into_iter().filter_map(with_state).collect())
    }

    async fn outside_changes(&self) -> Result<i64, StoreError> {
        self.look_outside().await
    }

    async fn called(&self) {
        self.wait_for_call().await;
    }

    async fn get(&self, ids: &[String]) -> Result<Vec<Option<Task>>, StoreError> {
        let mut arguments = values![];
        arguments.list(ids);
        let tasks = self.tasks(sql::GET, arguments).await?;
        let by_id: HashMap<&str, &Task> = tasks.iter().map(|task| (task.id(), task)).collect();
        Ok(ids.iter().map(|id| by_id.get(id.as_str()).map(|task| (*task).clone())).collect())
    }

    async fn attempts(&self, id: &str) -> Result<Vec<Attempt>, StoreError> {
        let mut attempts = self.all(sql::ATTEMPTS, values![id], attempt).await?;
        for (fence, attachment) in self.all(sql::ATTACHMENTS, values![id], attachment).await? {
            if let Some(attempt) = attempts.iter_mut().find(|attempt| attempt.fence == fence) {
                attempt.attachments.push(attachment);
            }
        }
        Ok(attempts)
    }

    async fn result(&self, id: &str) -> Result<Option<TaskResult>, StoreError> {
        self.first(sql::RESULT, values![id], result).await
    }

    async fn cached(&self, task_type: &str, key: &str) -> Result<Option<(TaskResult, Millis)>, StoreError> {
        let key = without_nul(key);
        self.first(sql::CACHED, values![task_type, key], |columns| Ok((result(columns)?, columns.next()?))).await
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
        self.all(sql::DEAD_ROWS, values![queue, after, limit(most)], |columns| {
            Ok(DeadRow {
                id: columns.next()?,
                stamp: Stamp { generation: columns.next()?, retry_count: columns.next()? },
                dlq_copy: columns.word(DlqCopy::parse)?,
                died_at: columns.next()?,
            })
        })
        .await
    }

    async fn dead_copies(&self, queue: &str) -> Result<(i64, i64), StoreError> {
        let copies = self.first(sql::DEAD_COPIES, values![queue], |columns| Ok((columns.next()?, columns.next()?)));
        Ok(copies.await?.unwrap_or_default())
    }

    async fn lanes(&self) -> Result<Vec<(LaneKey, LaneLedger)>, StoreError> {
        let lanes = self.all(ledgers::LANES, values![], ledgers::lane).await?;
        // In the order of the words, not of their letters.
        Ok(BTreeMap::from_iter(lanes).into_iter().collect())
    }

    async fn dlqs(&self) -> Result<Vec<(String, DlqLedger)>, StoreError> {
        self.all(ledgers::DLQS, values![], ledgers::dlq).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.all(ledgers::PAUSES, values![], ledgers::pause).await
    }

    async fn pause(&self, pause: Pause) -> Result<(), StoreError> {
        let sql = "INSERT INTO pauses (key, since, reason) VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE \
                   SET since = excluded.since, reason = coalesce(excluded.reason, pauses.reason)";
        self.change(sql, values![pause.key, pause.since, plain(pause.reason)]).await?;
        Ok(())
    }

    async fn resume(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.change("DELETE FROM pauses WHERE key = ?", values![key]).await? > 0)
    }

    async fn policies(&self, most: usize) -> Result<Vec<PolicyVersion>, StoreError> {
        self.all(versions::VERSIONS, values![limit(most)], versions::version).await
    }

    async fn apply_policies(&self, new: NewPolicies) -> Result<i64, StoreError> {
        versions::apply(self, new).await
    }

    async fn report_node(&self, worker: &str, hash: &str, version: Option<i64>) -> Result<(), StoreError> {
        versions::report(self, worker, hash, version).await
    }

    async fn forget_node(&self, worker: &str) -> Result<(), StoreError> {
        versions::forget(self, worker).await
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        self.all(versions::NODES, values![], versions::node).await
    }

    async fn report(&self, deep: bool) -> Result<StoreReport, StoreError> {
        self.inspect(deep).await
    }

    async fn close(&self) {
        self.shut().await;
    }
}

pub(crate) fn attempt<R: Source>(columns: &mut Columns<'_, R>) -> Result<Attempt, String> {
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

fn result<R: Source>(columns: &mut Columns<'_, R>) -> Result<TaskResult, String> {
    Ok(TaskResult { media_type: columns.next()?, truncated: columns.next::<i64>()? != 0, body: columns.next()? })
}

pub(crate) fn attachment<R: Source>(columns: &mut Columns<'_, R>) -> Result<(i64, Attachment), String> {
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
