//! What there is to hold against each other at the end: the store's rows, the copies in the DLQs as a consumer gets
//! them, and the third party's log. Reads, and judges nothing.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sqlx::{AssertSqlSafe, SqlitePool};

use crate::ground::{Ground, QUEUES};
use crate::party::Call;
use crate::plan::Work;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    pub sent: Vec<Work>,
    pub tasks: Vec<TaskRow>,
    pub attempts: Vec<AttemptRow>,
    pub calls: Vec<Call>,
    pub copies: Vec<Copy>,
}

/// What the checks need of a task.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct TaskRow {
    pub id: String,
    #[serde(rename = "type")]
    pub topic: String,
    pub shop: String,
    pub queue: String,
    pub status: String,
    pub dead_reason: Option<String>,
    pub degraded: Option<String>,
    pub generation: i64,
    pub dlq_copy: String,
    /// Of what was refused: what its message was called.
    pub refused: Option<String>,
    pub conflicts_with: Option<String>,
    pub has_result: bool,
}

impl TaskRow {
    /// Whether nothing more comes of it by itself.
    pub fn ended(&self) -> bool {
        !matches!(self.status.as_str(), "pending" | "running" | "retry_waiting")
    }
}

/// An attempt as the store has it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct AttemptRow {
    #[serde(rename = "task_id")]
    pub task: String,
    pub fence: i64,
    pub generation: i64,
    pub number: i64,
    pub outcome: String,
    pub class: Option<String>,
    pub http_status: Option<i64>,
    pub policy: Option<String>,
    pub started_at: i64,
    pub ended_at: i64,
    pub worker: String,
}

/// A copy in a DLQ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    pub queue: String,
    pub message_id: String,
}

/// Each row as one JSON object with the names above.
const TASKS: &str = "SELECT json_object('id', id, 'type', type, 'shop', coalesce(json_extract(labels, '$.shop'), ''),
    'queue', coalesce(queue, 'default'), 'status', status, 'dead_reason', dead_reason, 'degraded', degraded,
    'generation', generation, 'dlq_copy', dlq_copy, 'conflicts_with', conflicts_with,
    'refused', CASE WHEN raw_length IS NOT NULL THEN coalesce(raw_message_id, '') END,
    'has_result', json(CASE WHEN EXISTS (SELECT 1 FROM results WHERE task_id = tasks.id) THEN 'true' ELSE 'false' END))
    FROM tasks ORDER BY seq";
const ATTEMPTS: &str =
    "SELECT json_object('task_id', task_id, 'fence', fence, 'generation', generation, 'number', number,
    'outcome', outcome, 'class', class, 'http_status', http_status, 'policy', policy, 'started_at', started_at,
    'ended_at', ended_at, 'worker', worker) FROM attempts ORDER BY task_id, fence";

/// Reads it all. Nobody may be working: a pass over a DLQ would hold its copies.
pub async fn gather(ground: &Ground, sent: &[Work], calls: Vec<Call>) -> Evidence {
    let mut copies = Vec::new();
    for queue in QUEUES {
        copies.extend(copies_in(ground, queue).await);
    }
    Evidence {
        sent: sent.to_vec(),
        tasks: rows(&ground.rows, TASKS).await,
        attempts: rows(&ground.rows, ATTEMPTS).await,
        calls,
        copies,
    }
}

async fn rows<T: DeserializeOwned>(pool: &SqlitePool, sql: &str) -> Vec<T> {
    let rows = texts(pool, sql).await;
    rows.iter().map(|row| serde_json::from_str(row).unwrap_or_else(|error| panic!("{row}: {error}"))).collect()
}

/// Consumes a DLQ and gives everything back.
async fn copies_in(ground: &Ground, queue: &str) -> Vec<Copy> {
    let name = format!("redeliver.{queue}.dead");
    let Some(count) = ground.rig.ready(&name).await else { return Vec::new() };
    let (channel, mut consumer) = consume(ground, &name).await;
    let mut copies = Vec::new();
    while copies.len() < count as usize {
        let next = tokio::time::timeout(Duration::from_secs(20), consumer.next()).await;
        let Ok(Some(Ok(delivery))) = next else {
            panic!("{name} said {count} ready and gave {}: {next:?}", copies.len())
        };
        let message_id = delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        copies.push(Copy { queue: queue.to_owned(), message_id });
    }
    // Unacked: they go back.
    channel.close(200, "read".into()).await.expect("the channel closes");
    copies
}

/// RabbitMQ 3.10 ends a connection with a bare 541 where a quorum queue takes longer than 5 s to accept a consumer, as on a machine that has
/// more to do than it can: then again.
async fn consume(ground: &Ground, queue: &str) -> (Channel, Consumer) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let channel = ground.rig.channel().await;
        channel.basic_qos(u16::MAX, BasicQosOptions::default()).await.expect("qos");
        let options = BasicConsumeOptions::default();
        match channel.basic_consume(queue.into(), "chaos".into(), options, FieldTable::default()).await {
            Ok(consumer) => return (channel, consumer),
            Err(error) => assert!(std::time::Instant::now() < end, "consuming {queue}: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// What still has to come to rest, in words; `None` when nothing has.
pub async fn unrest(ground: &Ground, sent: &[Work]) -> Option<String> {
    let known = crate::work::known(&ground.rows).await;
    let missing: Vec<&str> = sent.iter().map(|work| work.name.as_str()).filter(|name| !known.contains(*name)).collect();
    if !missing.is_empty() {
        return Some(format!(
            "{} of {} sent have no row: {:?}",
            missing.len(),
            sent.len(),
            &missing[..missing.len().min(5)]
        ));
    }
    let unended = "SELECT id || ' ' || status || coalesce(' held by ' || held_by, '') FROM tasks
        WHERE status IN ('pending', 'running', 'retry_waiting') OR status = 'dead' AND wake_at IS NOT NULL";
    let unended: Vec<String> = texts(&ground.rows, unended).await;
    if !unended.is_empty() {
        return Some(format!("{} have not ended: {:?}", unended.len(), &unended[..unended.len().min(5)]));
    }
    let open = "SELECT 'replay job ' || id || ' is ' || state FROM replay_jobs WHERE state IN ('selecting', 'running', 'paused')";
    if let Some(open) = texts(&ground.rows, open).await.pop() {
        return Some(open);
    }
    for queue in QUEUES {
        let dead =
            format!("SELECT dlq_copy FROM tasks WHERE status = 'dead' AND coalesce(queue, 'default') = '{queue}'");
        let dead = texts(&ground.rows, &dead).await;
        let wanted = dead.iter().filter(|copy| *copy != "present").count();
        let dirty = format!("SELECT queue FROM dlqs WHERE queue = '{queue}' AND dirty > cleaned");
        let dirty = !texts(&ground.rows, &dirty).await.is_empty();
        let ready = ground.rig.ready(&format!("redeliver.{queue}.dead")).await;
        if wanted > 0 || dirty || ready.unwrap_or(0) as usize != dead.len() {
            return Some(format!(
                "the DLQ of {queue} holds {ready:?} for {} dead tasks, {wanted} of them without a confirmed copy{}",
                dead.len(),
                if dirty { "; it waits for a pass" } else { "" }
            ));
        }
    }
    None
}

/// The rows of a query with one column.
pub async fn texts(pool: &SqlitePool, sql: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_all(pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
}
