//! Copies in the DLQ that belong to no row: a store was lost or restored from before they died, or another program put them there.
//!
//! A pass keeps and counts them. Here a person looks at them, and may adopt them: each becomes a dead letter of the store, and its copy is
//! taken out of the DLQ once that is committed; workers then put one of our own in its place. Nothing leaves the DLQ before its row is
//! there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::mirror::{MirrorError, TAKE, all_rows, begin, end, sort};
use crate::broker::{Broker, CopyContent, DEAD_LETTER_TYPE, DeadCopy, DeadPass, HeaderValue};
use crate::policy::check_topic;
use crate::store::{Store, Urgency};
use crate::task::{
    Answer, Command, DeadReason, Failure, MAX_NAME, Millis, Origin, Refusal, Spec, Stamp, State, Status, Task,
    canonical_payload_hash, refusal,
};

/// Bytes of bodies held at once. What is beyond is left for the next look.
const MOST_BYTES: usize = 128 * 1024 * 1024;
/// Rows made in one transaction.
const BATCH: usize = 200;
/// Of a body that is shown.
const SHOWN: usize = 200;

/// A copy without a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stranger {
    /// AMQP `message_id`.
    pub message_id: Option<String>,
    /// The task it says it is of.
    pub task_id: Option<String>,
    /// That task's type.
    #[serde(rename = "type")]
    pub task_type: Option<String>,
    /// Why it died, as the copy says.
    pub reason: Option<String>,
    /// The error, as the copy says.
    pub error: Option<String>,
    /// When it died, as the copy says.
    pub died_at: Option<Millis>,
    /// The length of its body; unknown when there was no room to keep it.
    pub bytes: Option<usize>,
    /// The beginning of its body, as text.
    pub body: Option<String>,
    /// The row that was made of it.
    pub adopted_as: Option<String>,
    /// Why none was.
    pub refused: Option<String>,
}

/// Looks at the strangers in the DLQ of `queue`, and adopts them if asked to. `None` when another pass holds it.
///
/// # Errors
/// When store or broker do not answer. What was adopted until then is; its copy may still be there, and the next pass removes it.
pub async fn strangers(
    store: &dyn Store,
    broker: &dyn Broker,
    queue: &str,
    adopt: bool,
) -> Result<Option<Vec<Stranger>>, MirrorError> {
    let Some(pass) = begin(store, queue, true).await? else { return Ok(None) };
    let looked = look(store, broker, queue, adopt).await;
    // The DLQ is as dirty as it was: nothing but strangers was looked at.
    let left = match &looked {
        Ok(found) => Some(found.iter().filter(|stranger| stranger.adopted_as.is_none()).count()),
        Err(_) => None,
    };
    end(store, queue, &pass, false, left).await?;
    looked.map(Some)
}

async fn look(store: &dyn Store, broker: &dyn Broker, queue: &str, adopt: bool) -> Result<Vec<Stranger>, MirrorError> {
    let mut taking = broker.dead_pass(queue).await?;
    taking.keep_content(MOST_BYTES);
    let copies = taking.take_all(TAKE).await?;
    let rows = all_rows(store, queue).await?;
    let unknown: BTreeSet<usize> = sort(store, &copies, &rows).await?.strangers.into_iter().collect();
    let mut found: BTreeMap<usize, Stranger> = BTreeMap::new();
    for copy in copies.iter().filter(|copy| unknown.contains(&copy.index)) {
        found.insert(copy.index, describe(copy, taking.content(copy.index).as_ref()));
    }
    if adopt {
        let indexes: Vec<usize> = found.keys().copied().collect();
        for part in indexes.chunks(BATCH) {
            adopt_part(store, taking.as_mut(), queue, &copies, part, &mut found).await?;
        }
    }
    taking.finish().await?;
    Ok(found.into_values().collect())
}

async fn adopt_part(
    store: &dyn Store,
    taking: &mut dyn DeadPass,
    queue: &str,
    copies: &[DeadCopy],
    part: &[usize],
    found: &mut BTreeMap<usize, Stranger>,
) -> Result<(), MirrorError> {
    let now = store.now();
    let mut asked = Vec::new();
    let mut commands = Vec::new();
    for index in part {
        let copy = copies.iter().find(|copy| copy.index == *index);
        match (copy, taking.content(*index)) {
            (Some(copy), Some(content)) => {
                asked.push(*index);
                commands.push(row_of(copy, content, queue, now));
            }
            _ => {
                if let Some(stranger) = found.get_mut(index) {
                    stranger.refused = Some("it was too large to be kept beside the others; look again".into());
                }
            }
        }
    }
    if commands.is_empty() {
        return Ok(());
    }
    let mut gone = Vec::new();
    for (index, answer) in asked.into_iter().zip(store.apply(Urgency::Normal, commands).await?) {
        let Some(stranger) = found.get_mut(&index) else { continue };
        match answer {
            Answer::Dead(task) | Answer::Refused(task) => {
                stranger.adopted_as = Some(task.id().to_owned());
                gone.push(index);
            }
            Answer::Duplicate { id, .. } => stranger.refused = Some(format!("task {id:?} has its id or its key")),
            Answer::Unprocessable { message } => stranger.refused = Some(message),
            other => stranger.refused = Some(format!("the store answered {other:?}")),
        }
    }
    taking.remove(&gone).await?;
    Ok(())
}

fn text<'c>(content: &'c CopyContent, header: &str) -> Option<&'c str> {
    match content.headers.get(header)? {
        HeaderValue::Text(text) => Some(text),
        HeaderValue::Number(_) => None,
    }
}

fn number(content: &CopyContent, header: &str) -> Option<i64> {
    match content.headers.get(header)? {
        HeaderValue::Number(number) => Some(*number),
        HeaderValue::Text(text) => text.trim().parse().ok(),
    }
}

fn describe(copy: &DeadCopy, content: Option<&CopyContent>) -> Stranger {
    let header = |name: &str| content.and_then(|content| text(content, name)).map(str::to_owned);
    let beginning = |content: &CopyContent| {
        let body = &content.body[..content.body.len().min(SHOWN)];
        String::from_utf8_lossy(body).into_owned()
    };
    Stranger {
        message_id: copy.message_id.clone(),
        task_id: copy.of.as_ref().map(|(id, _)| id.clone()),
        task_type: header("redeliver-task-type"),
        reason: header("redeliver-reason"),
        error: header("redeliver-error"),
        died_at: content.and_then(|content| number(content, "redeliver-died-at")),
        bytes: content.map(|content| content.body.len()),
        body: content.map(beginning),
        adopted_as: None,
        refused: None,
    }
}

/// The command that makes a row of a copy: the task it is of, where it is one of ours and whole; else a letter with the raw bytes.
fn row_of(copy: &DeadCopy, content: CopyContent, queue: &str, now: Millis) -> Command {
    match task_of(copy, &content, queue, now) {
        Some(task) => Command::Adopt { task: Box::new(task), attempts: Vec::new() },
        None => {
            let origin = Origin {
                routing_key: text(&content, "redeliver-task-type").unwrap_or(&content.routing_key).to_owned(),
                message_id: copy.message_id.clone(),
                ..Origin::default()
            };
            let mut refusal: Refusal = refusal(&content.body, &origin, usize::MAX, now, |_| queue.to_owned());
            refusal.failure = Failure::new("malformed", "found in the DLQ without a row that it belongs to");
            Command::Refuse(Box::new(refusal))
        }
    }
}

/// The dead task that a copy of ours is of. Its attempts, and what did not fit into headers, are lost with its row.
fn task_of(copy: &DeadCopy, content: &CopyContent, queue: &str, now: Millis) -> Option<Task> {
    let (id, generation) = copy.of.clone()?;
    let task_type = text(content, "redeliver-task-type").filter(|task_type| check_topic(task_type).is_ok())?;
    let reason = text(content, "redeliver-reason").and_then(DeadReason::parse)?;
    let payload = std::str::from_utf8(&content.body).ok()?.to_owned();
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&payload).is_ok();
    let whole = content.message_type.as_deref() == Some(DEAD_LETTER_TYPE) && reason.is_replayable() && is_json;
    if !whole || id.is_empty() || id.len() > MAX_NAME || generation < 0 {
        return None;
    }
    let owned = |header: &str| text(content, header).map(str::to_owned);
    let labels = text(content, "redeliver-labels").and_then(|labels| serde_json::from_str(labels).ok());
    let failure = owned("redeliver-class").map(|class| Failure {
        code: owned("redeliver-code"),
        http_status: number(content, "redeliver-http-status").and_then(|status| u16::try_from(status).ok()),
        fingerprint: owned("redeliver-fingerprint").unwrap_or_default(),
        ..Failure::new(class, owned("redeliver-error").unwrap_or_default())
    });
    let died_at = number(content, "redeliver-died-at").unwrap_or(now);
    let spec = Spec {
        payload_hash: canonical_payload_hash(task_type, &payload),
        task_type: task_type.to_owned(),
        payload,
        labels: labels.unwrap_or_default(),
        idempotency_key: owned("redeliver-idempotency-key").or_else(|| Some(id.clone())),
        id,
        priority: 0,
        cache_key: None,
        reply_to: None,
        trace: None,
        submission_hash: None,
        created_at: number(content, "redeliver-first-failed-at").unwrap_or(died_at),
        raw: None,
        conflicts_with: None,
    };
    let retry_count = number(content, "redeliver-retry-count").unwrap_or(0).max(0);
    let state = State {
        status: Status::Dead,
        dead_reason: Some(reason),
        stamp: Stamp { generation, retry_count },
        queue: Some(queue.to_owned()),
        failure,
        ended_at: Some(died_at),
        ..State::pending(died_at)
    };
    Some(Task { spec: Arc::new(spec), state })
}
