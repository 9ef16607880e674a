//! What a person makes of a dead task whose payload was wrong: another task.
//!
//! A task's payload never changes: its attempts, its idempotency key and whatever the other side has stored under that key speak of that
//! payload, and a row whose payload moved would make its own history untrue. So an edit leaves the dead task as it was, discarded and
//! naming its successor, and makes a new one, linked by an [`EditRecord`] that says who changed what and why.
//!
//! The successor of a task that could run has an id derived from the letter (`order-7` → `order-7~1`), which is also its idempotency key:
//! another payload under the old key would be refused, or answered with what the old one did. That the old request had no effect is what
//! the person who edits vouches for. What could not be read (`malformed`, `duplicate_conflict`) never was a task: there the submission
//! itself is edited, and what comes out keeps the id and key that its producer gave it, so that the producer may also send it again.
//!
//! Never edits anything but dead tasks, and never makes two successors of one.

use std::sync::Arc;

use json_patch::{Patch, PatchOperation};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use uuid::Uuid;

use super::{
    ALERT_TYPE,
    Answer::{self, *},
    Attempt, Command, DlqCopy, MAX_NAME, Millis, Origin, ReadSubmission, Rows, Settings, Spec, State, Status, Task,
    canonical_payload_hash, read_submission,
};

/// A JSON Patch (RFC 6902) for a payload, and who wants it.
#[derive(Debug, Clone, PartialEq)]
pub struct PayloadEdit {
    patch: Patch,
    /// Who.
    pub by: Option<String>,
}

/// Why an edit cannot be made. The texts are fragments for people.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EditError {
    /// No JSON Patch.
    #[error("no JSON Patch (RFC 6902): {0}")]
    Unreadable(String),
    /// An operation of it does not fit the payload.
    #[error("the patch does not fit: {0}")]
    DoesNotFit(String),
    /// What comes out is no submission.
    #[error("the edited submission is refused: {0}")]
    Refused(String),
}

/// A task that was made of a dead letter by an edit; the letter keeps what it had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EditRecord {
    /// The task that was made.
    pub task_id: String,
    /// The letter.
    pub edited_from: String,
    /// When.
    pub edited_at: Millis,
    /// Who.
    pub edited_by: Option<String>,
    /// Why, in that person's words.
    pub reason: Option<String>,
    /// The JSON Patch.
    pub patch: String,
}

/// What an edit would do to one letter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EditPreview {
    /// The id of the task it makes; the letter's own when nothing changes.
    pub becomes: String,
    /// What changes, in the order of the document.
    pub differences: Vec<Difference>,
}

/// One value that an edit changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where (RFC 6901).
    pub path: String,
    /// What was there.
    pub before: Option<Value>,
    /// What is there then.
    pub after: Option<Value>,
}

/// More operations are no edit that a person made.
const MOST_OPERATIONS: usize = 500;
/// What an edit may add: as much as the document itself, or this, whichever is more.
const LARGEST_GROWTH: usize = 1 << 20;

/// What an edit makes of a letter.
struct Edited {
    spec: Spec,
    not_before: Option<Millis>,
    deadline: Option<Millis>,
}

impl PayloadEdit {
    /// Reads a JSON Patch.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str, by: Option<String>) -> Result<PayloadEdit, EditError> {
        let patch: Patch = serde_json::from_str(text).map_err(|error| EditError::Unreadable(error.to_string()))?;
        if patch.0.is_empty() {
            return Err(EditError::Unreadable("it has no operation".into()));
        }
        Ok(PayloadEdit { patch, by })
    }

    /// The patch as JSON.
    pub fn to_json(&self) -> String {
        serde_json::json!(self.patch).to_string()
    }

    /// What it would do to `task`.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn preview(&self, task: &Task, now: Millis) -> Result<EditPreview, EditError> {
        let (before, after) = self.documents(&task.spec)?;
        let becomes = match self.edited(task, now)? {
            Some(edited) => edited.spec.id,
            None => task.id().to_owned(),
        };
        Ok(EditPreview { becomes, differences: differences(&before, &after) })
    }

    /// The document that is edited, before and after: the payload, or all of the submission where that could not be read.
    fn documents(&self, spec: &Spec) -> Result<(Value, Value), EditError> {
        let (before, length) = match &spec.raw {
            Some(raw) => (serde_json::from_slice(&raw.bytes).unwrap_or(Value::Null), raw.bytes.len()),
            // Half a surrogate pair or a number beyond all floats is JSON and no document: what is not understood is not changed.
            None => {
                let document = serde_json::from_str(&spec.payload);
                let unread = |error| EditError::DoesNotFit(format!("the payload cannot be read: {error}"));
                (document.map_err(unread)?, spec.payload.len())
            }
        };
        let after = self.apply(&before, length)?;
        Ok((before, after))
    }

    /// The operations one after the other, each looked at before it adds anything: forty copies of a list into itself are a few lines
    /// of JSON and would take all memory there is.
    fn apply(&self, before: &Value, length: usize) -> Result<Value, EditError> {
        let misfit = |text: String| EditError::DoesNotFit(text);
        if self.patch.0.len() > MOST_OPERATIONS {
            return Err(misfit(format!("it has more than {MOST_OPERATIONS} operations")));
        }
        let mut after = before.clone();
        let mut room = LARGEST_GROWTH.max(length);
        for operation in &self.patch.0 {
            let adds = match operation {
                PatchOperation::Add(add) => weight(&add.value),
                PatchOperation::Replace(replace) => weight(&replace.value),
                PatchOperation::Copy(copy) => after.pointer(copy.from.as_str()).map_or(0, weight),
                PatchOperation::Remove(_) | PatchOperation::Move(_) | PatchOperation::Test(_) => 0,
            };
            room = room.checked_sub(adds).ok_or_else(|| misfit("it adds too much to the document".into()))?;
            json_patch::patch(&mut after, std::slice::from_ref(operation))
                .map_err(|error| misfit(error.to_string()))?;
        }
        // What nobody could read again must not become a payload: copies can nest deeper than any reader follows.
        if serde_json::from_str::<serde::de::IgnoredAny>(&after.to_string()).is_err() {
            return Err(misfit("what it makes is nested too deeply".into()));
        }
        Ok(after)
    }

    /// The task that it makes; `None` when it changes nothing of a task that can run as it is.
    fn edited(&self, task: &Task, now: Millis) -> Result<Option<Edited>, EditError> {
        let spec = &task.spec;
        let (before, after) = self.documents(spec)?;
        let id = successor(&spec.id, task.stamp().generation);
        if let Some(raw) = &spec.raw {
            let origin = Origin {
                routing_key: raw.routing_key.clone(),
                message_id: raw.message_id.clone(),
                ..Origin::default()
            };
            let body = after.to_string();
            return match read_submission(body.as_bytes(), &origin, usize::MAX, now, |_| String::new(), || id) {
                ReadSubmission::New(new) => {
                    // A redelivery of what arrived must find the letter and not its successor.
                    let spec = Spec { submission_hash: None, ..Arc::unwrap_or_clone(new.spec) };
                    Ok(Some(Edited { spec, not_before: new.not_before, deadline: new.deadline }))
                }
                ReadSubmission::Refused(refusal) => Err(EditError::Refused(refusal.failure.message)),
            };
        }
        if before == after {
            return Ok(None);
        }
        let payload = after.to_string();
        let spec = Spec {
            idempotency_key: Some(id.clone()),
            id,
            payload_hash: canonical_payload_hash(&spec.task_type, &payload),
            payload,
            submission_hash: None,
            created_at: now,
            conflicts_with: None,
            raw: None,
            ..(**spec).clone()
        };
        Ok(Some(Edited { spec, not_before: None, deadline: task.state.deadline.filter(|deadline| *deadline > now) }))
    }
}

/// About as many bytes as a value takes when it is written.
fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(values) => 2 + values.iter().map(weight).sum::<usize>() + values.len(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, value)| name.len() + 4 + weight(value)).sum::<usize>(),
    }
}

/// The id of what is made of a letter: the same for everybody who edits it in that generation, so that there is one.
fn successor(id: &str, generation: i64) -> String {
    /// Our own name space; drawn once at random.
    const NAME_SPACE: Uuid = Uuid::from_u128(0x2c9d_84b1_0f3e_4a57_8d26_91e5_7c40_b3fa);
    let id = format!("{id}~{}", generation.saturating_add(1));
    if id.len() <= MAX_NAME { id } else { Uuid::new_v5(&NAME_SPACE, id.as_bytes()).to_string() }
}

fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let at = |document: &Value, path: &str| document.pointer(path).cloned();
    let of = |operation: &PatchOperation| {
        let path = operation.path().to_string();
        match operation {
            // Later places of an array have moved; the value itself is what was added.
            PatchOperation::Add(add) => Difference { path, before: None, after: Some(add.value.clone()) },
            PatchOperation::Remove(_) => Difference { before: at(before, &path), after: None, path },
            _ => Difference { before: at(before, &path), after: at(after, &path), path },
        }
    };
    json_patch::diff(before, after).iter().map(of).collect()
}

impl Rows {
    /// The tasks that the edits among `commands` make of the loaded rows, for a store that has to load who owns their ids and keys.
    pub fn made_by_edits(&self, commands: &[Command], now: Millis) -> Vec<Spec> {
        let made = |command: &Command| {
            let Command::Edit { id, generation, edit, .. } = command else { return None };
            let task = self.dead(id, *generation).ok()?;
            edit.edited(&task, now).ok()?.map(|edited| edited.spec)
        };
        commands.iter().filter_map(made).collect()
    }

    pub(super) fn edit(
        &mut self,
        mut task: Task,
        edit: &PayloadEdit,
        note: Option<String>,
        now: Millis,
        settings: &Settings,
    ) -> Answer {
        if task.spec.task_type == ALERT_TYPE {
            return NotEditable { reason: "what an alert says is not for people to write".into() };
        }
        let Edited { spec, not_before, deadline } = match edit.edited(&task, now) {
            Ok(Some(edited)) => edited,
            Ok(None) => return self.replay(task, note, now, settings),
            Err(error) => return NotEditable { reason: error.to_string() },
        };
        let key = spec.idempotency_key.as_deref();
        if self.get(&spec.id).is_some() || key.is_some_and(|key| self.id_by_key(key).is_some()) {
            return NotEditable { reason: format!("task {:?} or its idempotency key is there already", spec.id) };
        }
        self.add_edit(EditRecord {
            task_id: spec.id.clone(),
            edited_from: task.id().to_owned(),
            edited_at: now,
            edited_by: edit.by.clone(),
            reason: note.clone(),
            patch: edit.to_json(),
        });
        let queue = task.queue().to_owned();
        let successor = spec.id.clone();
        task.state.end(Status::Discarded, now);
        task.state.note = Some(match note {
            Some(note) => format!("edited into {successor}: {note}"),
            None => format!("edited into {successor}"),
        });
        self.put(task);
        self.dlq_mut(&queue).dirty += 1;

        let due_at = not_before.unwrap_or(now).max(now);
        let mut state = State::pending(due_at);
        state.queue = Some(queue);
        state.deadline = deadline;
        let task = Task { spec: Arc::new(spec), state };
        self.create(task.clone());
        if due_at > now { Waiting(Box::new(task)) } else { self.publish_now(task, now, settings) }
    }

    pub(super) fn adopt(&mut self, mut task: Task, attempts: Vec<Attempt>, now: Millis) -> Answer {
        let by_key = task.spec.idempotency_key.as_deref().and_then(|key| self.id_by_key(key));
        if let Some(known) = self.get(task.id()).or_else(|| by_key.and_then(|id| self.get(id))) {
            return Duplicate { id: known.id().to_owned(), status: known.state.status };
        }
        if task.state.status != Status::Dead || task.state.dead_reason.is_none() {
            return NotNow { status: task.state.status };
        }
        let (reason, ended_at) = (task.state.dead_reason, task.state.ended_at);
        task.state.end(Status::Dead, ended_at.unwrap_or(now));
        task.state.dead_reason = reason;
        task.state.dlq_copy = DlqCopy::Wanted;
        task.state.dlq_at = Some(now);
        task.state.wakes = 0;
        task.state.passes.clear();
        // The next claim's fence must be newer than any attempt's.
        let newest = attempts.iter().map(|attempt| attempt.fence).max().unwrap_or(0);
        task.state.fence = task.state.fence.max(newest);
        self.take_in(task.clone());
        for attempt in attempts {
            self.add_attempt(Arc::new(Attempt { task_id: task.id().to_owned(), ..attempt }));
        }
        Dead(Box::new(task))
    }
}

#[cfg(test)]
mod tests;
