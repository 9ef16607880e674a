//! What other services are told of a task: lifecycle events for whoever listens, and replies to who asked for one.
//!
//! A notice is made inside the transition that it tells of and stored by the same commit, so that none is lost when a worker dies
//! between commit and publish; see `store::notice` for how it leaves. A task that nobody wants told about costs nothing here.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{ALERT_TYPE, DeadReason, FailureDocument, Millis, ResultDocument, Stamp, State, Status, Task, rfc_3339};

/// What can happen to a task that others may want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Happening {
    /// It succeeded.
    Succeeded,
    /// It ended by something that is not the real thing, or with fields filled in.
    Degraded,
    /// It died: out of retries, permanent, past its deadline, refused … An automatic or a person's replay may still follow.
    Dead,
    /// An attempt failed and there will be another.
    RetryWaiting,
    /// A dead one runs again, as the next generation.
    Replayed,
    /// A dead one was thrown away.
    Discarded,
    /// It was stopped before it ran.
    Cancelled,
}

impl Happening {
    /// All of them.
    pub const ALL: [Happening; 7] = [
        Happening::Succeeded,
        Happening::Degraded,
        Happening::Dead,
        Happening::RetryWaiting,
        Happening::Replayed,
        Happening::Discarded,
        Happening::Cancelled,
    ];

    /// The topic under which it is published, and its word in the store and in JSON: `task.dead`.
    pub fn topic(self) -> &'static str {
        match self {
            Happening::Succeeded => "task.succeeded",
            Happening::Degraded => "task.degraded",
            Happening::Dead => "task.dead",
            Happening::RetryWaiting => "task.retry_waiting",
            Happening::Replayed => "task.replayed",
            Happening::Discarded => "task.discarded",
            Happening::Cancelled => "task.cancelled",
        }
    }

    /// The one that `topic` names, or `None`.
    pub fn parse(topic: &str) -> Option<Happening> {
        Happening::ALL.into_iter().find(|happening| happening.topic() == topic)
    }

    /// Whether the task has come to an end by it, at least until a person acts.
    pub fn is_end(self) -> bool {
        !matches!(self, Happening::RetryWaiting | Happening::Replayed)
    }

    /// What happened between two states of a task; `None` when it is nothing that others are told.
    fn between(before: Option<&State>, after: &State) -> Option<Happening> {
        if before.is_some_and(|before| before.stamp.generation < after.stamp.generation) {
            return Some(Happening::Replayed);
        }
        let retries = before.map_or(0, |before| before.stamp.retry_count);
        if after.status == Status::RetryWaiting {
            return (after.stamp.retry_count > retries).then_some(Happening::RetryWaiting);
        }
        if before.is_some_and(|before| before.status == after.status) {
            return None;
        }
        match after.status {
            Status::Succeeded if after.degraded.is_some() => Some(Happening::Degraded),
            Status::Succeeded => Some(Happening::Succeeded),
            Status::Dead => Some(Happening::Dead),
            Status::Discarded => Some(Happening::Discarded),
            Status::Cancelled => Some(Happening::Cancelled),
            Status::Pending | Status::Running | Status::RetryWaiting => None,
        }
    }
}

/// Which happenings are published as events; none by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Announced(u8);

impl Announced {
    /// Whether there are any.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this one is among them.
    pub fn contains(self, happening: Happening) -> bool {
        self.0 & Announced::bit(happening) != 0
    }

    fn bit(happening: Happening) -> u8 {
        1 << happening as u8
    }
}

impl FromIterator<Happening> for Announced {
    fn from_iter<I: IntoIterator<Item = Happening>>(happenings: I) -> Announced {
        Announced(happenings.into_iter().fold(0, |all, happening| all | Announced::bit(happening)))
    }
}

/// Something that another service is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What happened.
    pub happening: Happening,
    /// The queue that asked to be told; `None`: an event, for whoever listens.
    pub reply_to: Option<String>,
    /// The task.
    pub task_id: String,
    /// Its stamp afterwards.
    pub stamp: Stamp,
    /// When it happened.
    pub at: Millis,
    /// A [`TaskEvent`] without payload and result, which do not change any more and are added when it is published.
    pub document: String,
}

impl Notice {
    /// What both sides know this happening of this task by: the same however often it is published, and when a store that was
    /// restored from a copy lets it happen again.
    pub fn event_id(&self) -> String {
        format!("{}:{}:{}", self.task_id, self.stamp, self.happening.topic())
    }

    /// The event for a row that died past the rules, because it could not be read.
    pub fn of_set_aside(task: &Task, announced: Announced, now: Millis) -> Option<Notice> {
        let telling = Telling { now, announced };
        let event = || TaskEvent::of(task, Happening::Dead, now, None);
        announced.contains(Happening::Dead).then(|| telling.notice(task, Happening::Dead, None, &event()))
    }
}

/// What happened to a task: the body of an event and of a reply. Times are RFC 3339 in UTC.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "redeliver task event")]
pub struct TaskEvent {
    /// What happened; also the routing key of an event.
    #[schemars(extend("enum" = Happening::ALL.map(Happening::topic)))]
    pub event: String,
    /// When.
    pub at: String,
    /// The task.
    pub id: String,
    /// The task type, a topic.
    #[serde(rename = "type")]
    pub task_type: String,
    /// What policies, filters and reports go by.
    pub labels: BTreeMap<String, String>,
    /// Its queue.
    pub queue: String,
    /// The same on every attempt and replay. Null for a submission that was refused.
    pub idempotency_key: Option<String>,
    /// Where it stands now.
    pub status: Status,
    /// By what it was ended, if not by the real thing: `cache`, `default`, `defaults`.
    pub degraded: Option<String>,
    /// Why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// How often it was replayed.
    pub generation: i64,
    /// Failed attempts spent in this generation that were followed, or will be, by another.
    pub retry_count: i64,
    /// Attempts of this generation so far; null where the row does not tell any more.
    pub attempts: Option<i64>,
    /// When it came.
    pub created_at: String,
    /// When it runs next; null when it has ended.
    pub due_at: Option<String>,
    /// The last failure.
    pub failure: Option<FailureDocument>,
    /// What the last person who acted on it said.
    pub note: Option<String>,
    /// The task whose id or key it has, with another payload.
    pub conflicts_with: Option<String>,
    /// In a reply: the task had ended before it was submitted once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_done: bool,
    /// What the handler was given. Only where the configuration asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub payload: Option<Box<RawValue>>,
    /// The handler's response. In every reply to a success, in events only where the configuration asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultDocument>,
}

impl TaskEvent {
    fn of(task: &Task, happening: Happening, now: Millis, attempts: Option<i64>) -> TaskEvent {
        let (spec, state) = (&task.spec, &task.state);
        TaskEvent {
            event: happening.topic().to_owned(),
            at: rfc_3339(now),
            id: spec.id.clone(),
            task_type: spec.task_type.clone(),
            labels: spec.labels.clone(),
            queue: task.queue().to_owned(),
            idempotency_key: spec.idempotency_key.clone(),
            status: state.status,
            degraded: state.degraded.clone(),
            dead_reason: state.dead_reason,
            generation: state.stamp.generation,
            retry_count: state.stamp.retry_count,
            attempts,
            created_at: rfc_3339(spec.created_at),
            due_at: (!state.status.is_ended()).then(|| rfc_3339(state.due_at)),
            failure: state.failure.as_ref().map(FailureDocument::of),
            note: state.note.clone(),
            conflicts_with: spec.conflicts_with.clone(),
            already_done: false,
            payload: None,
            result: None,
        }
    }
}

/// What notices need to know of the command that makes them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Telling {
    /// The time of the command.
    pub(super) now: Millis,
    /// What is published as events.
    pub(super) announced: Announced,
}

impl Telling {
    fn notice(self, task: &Task, happening: Happening, reply_to: Option<&str>, event: &TaskEvent) -> Notice {
        Notice {
            happening,
            reply_to: reply_to.map(str::to_owned),
            task_id: task.id().to_owned(),
            stamp: task.stamp(),
            at: self.now,
            // Text, numbers and lists: this cannot fail, and were it to, an empty document says so to everybody.
            document: serde_json::to_string(event).unwrap_or_default(),
        }
    }
}

/// What others are to be told of the change of a task from `before` to `after`: an event, a reply, both or nothing.
pub(super) fn told(before: Option<&State>, after: &Task, telling: Telling) -> Vec<Notice> {
    let reply_to = after.spec.reply_to.as_deref();
    if telling.announced.is_empty() && reply_to.is_none() || after.spec.task_type == ALERT_TYPE {
        return Vec::new();
    }
    let Some(happening) = Happening::between(before, &after.state) else { return Vec::new() };
    let is_event = telling.announced.contains(happening);
    let reply_to = reply_to.filter(|_| happening.is_end());
    if !is_event && reply_to.is_none() {
        return Vec::new();
    }
    // An attempt that has just ended is counted by the stamp only if another follows.
    let ended_now = before.is_some_and(|before| before.status == Status::Running) && happening.is_end();
    let attempts = after.state.stamp.retry_count + i64::from(ended_now);
    let event = TaskEvent::of(after, happening, telling.now, Some(attempts));
    let to = [is_event.then_some(None), reply_to.map(Some)];
    to.into_iter().flatten().map(|reply_to| telling.notice(after, happening, reply_to, &event)).collect()
}

/// The reply to somebody who submitted a task once more that has ended.
pub(super) fn told_again(known: &Task, reply_to: &str, telling: Telling) -> Option<Notice> {
    let happening = Happening::between(None, &known.state).filter(|happening| happening.is_end())?;
    let event = TaskEvent { already_done: true, ..TaskEvent::of(known, happening, telling.now, None) };
    Some(telling.notice(known, happening, Some(reply_to), &event))
}
