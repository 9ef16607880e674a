//! The submission envelope: what another service publishes, in any language.
//!
//! Reading is strict. A field we do not know is more often a typing error than a wish, and a field that is there twice means one
//! thing to one reader and another to the next; both are refused before they can be half understood.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::policy::check_topic;
use crate::task::{Millis, TraceContext};

use super::canonical::{MAX_DEPTH, NoCanonicalForm, canonical};
use super::{ALERT_TYPE, SubmissionError};

/// The longest id, idempotency key or cache key, in bytes.
pub const MAX_NAME: usize = 200;
/// The most labels of one task.
pub const MAX_LABELS: usize = 64;
/// The longest name of a label, in bytes.
pub const MAX_LABEL_NAME: usize = 100;
/// The longest value of a label, in bytes.
pub const MAX_LABEL_VALUE: usize = 500;
/// The highest priority.
pub const MAX_PRIORITY: i64 = 9;

/// A task as a producer submits it: the JSON body of a message to the exchange `redeliver.submit`.
///
/// Every field may be left out or `null`; any other field is refused, and so is a field that is there twice.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[schemars(title = "redeliver submission", deny_unknown_fields)]
pub struct Envelope {
    /// Unique, 1 to 200 bytes, no control characters, no white space at either end. Default: the AMQP `message_id`, else
    /// one is made up. Submitting the same id again with the same type and payload is the same task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub id: Option<String>,
    /// The task type, an AMQP topic: words without white space or wildcards, separated by single dots, at most 255 bytes.
    /// Default: the routing key.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[^\s.*#]+(\.[^\s.*#]+)*$"))]
    pub task_type: Option<String>,
    /// What the handler is given: any JSON, nested at most 127 deep. Default: null.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub payload: Option<Box<RawValue>>,
    /// What policies, filters and reports go by. At most 64; names at most 100 bytes without `=`, values at most 500 bytes, no
    /// control characters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "Option<BTreeMap<String, String>>", extend("maxProperties" = MAX_LABELS))]
    pub labels: BTreeMap<String, String>,
    /// What the other side recognises a repeated call by; the same on every attempt and replay. Written like an id. Default:
    /// the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub idempotency_key: Option<String>,
    /// 0 (default) to 9, higher first within a worker's buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9))]
    pub priority: Option<i64>,
    /// Not to run before: RFC 3339 with an offset or `Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub not_before: Option<String>,
    /// No attempt starts after: RFC 3339 with an offset or `Z`, not before `not_before`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deadline: Option<String>,
    /// Names the last good result that a fallback may use. Written like an id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub cache_key: Option<String>,
    /// The AMQP queue to which the result is sent when the task ends, at most 255 bytes. No queue of ours and none of the broker's own
    /// (`amq.…`, but for the names that it gives to its clients' queues, `amq.gen-…`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub reply_to: Option<String>,
    /// The span that asks for it. Travels beside the envelope, as the headers `traceparent` and `tracestate`.
    #[serde(skip)]
    pub trace: Option<TraceContext>,
}

/// The times of an envelope, read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub not_before: Option<Millis>,
    pub deadline: Option<Millis>,
}

impl Envelope {
    /// An envelope for a task of `task_type`, everything else by default.
    pub fn new(task_type: impl Into<String>) -> Envelope {
        Envelope { task_type: Some(task_type.into()), ..Envelope::default() }
    }

    /// With this id.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Envelope {
        self.id = Some(id.into());
        self
    }

    /// With what `payload` serialises to.
    ///
    /// # Errors
    /// When it does not serialise to JSON.
    pub fn payload(mut self, payload: &impl Serialize) -> Result<Envelope, serde_json::Error> {
        self.payload = Some(serde_json::value::to_raw_value(payload)?);
        Ok(self)
    }

    /// With a payload that is JSON text already.
    ///
    /// # Errors
    /// When it is no JSON.
    pub fn payload_text(mut self, payload: impl Into<String>) -> Result<Envelope, serde_json::Error> {
        self.payload = Some(RawValue::from_string(payload.into())?);
        Ok(self)
    }

    /// With a label more.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Envelope {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// With this idempotency key.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Envelope {
        self.idempotency_key = Some(key.into());
        self
    }

    /// With this priority, 0 to 9.
    #[must_use]
    pub fn priority(mut self, priority: i64) -> Envelope {
        self.priority = Some(priority);
        self
    }

    /// Not to run before `at` (epoch milliseconds).
    #[must_use]
    pub fn not_before(mut self, at: Millis) -> Envelope {
        self.not_before = Some(rfc_3339(at));
        self
    }

    /// No attempt starts after `at` (epoch milliseconds).
    #[must_use]
    pub fn deadline(mut self, at: Millis) -> Envelope {
        self.deadline = Some(rfc_3339(at));
        self
    }

    /// With this cache key.
    #[must_use]
    pub fn cache_key(mut self, key: impl Into<String>) -> Envelope {
        self.cache_key = Some(key.into());
        self
    }

    /// With a queue for the result.
    #[must_use]
    pub fn reply_to(mut self, queue: impl Into<String>) -> Envelope {
        self.reply_to = Some(queue.into());
        self
    }

    /// The bytes to publish.
    ///
    /// # Errors
    /// When a worker would refuse them, for the same reason.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SubmissionError> {
        self.check()?;
        serde_json::to_vec(self).map_err(|error| SubmissionError::NotJson { reason: error.to_string() })
    }

    /// Reads an envelope: its shape and its values.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn read(body: &[u8]) -> Result<Envelope, SubmissionError> {
        if body.trim_ascii().is_empty() {
            return Err(SubmissionError::Empty);
        }
        let text = std::str::from_utf8(body).map_err(|error| SubmissionError::NotUtf8 { at: error.valid_up_to() })?;
        let fields: Fields =
            serde_json::from_str(text).map_err(|error| SubmissionError::NotJson { reason: error.to_string() })?;
        let envelope = fields.into_envelope()?;
        envelope.check()?;
        Ok(envelope)
    }

    /// Asked for by this span.
    #[must_use]
    pub fn trace(mut self, trace: Option<TraceContext>) -> Envelope {
        self.trace = trace;
        self
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first one that is refused.
    pub fn check(&self) -> Result<(), SubmissionError> {
        self.times()?;
        let names = [("id", &self.id), ("idempotency_key", &self.idempotency_key), ("cache_key", &self.cache_key)];
        for (field, value) in names {
            if let Some(value) = value {
                check_name(value, MAX_NAME).map_err(|problem| SubmissionError::field(field, problem))?;
            }
        }
        if let Some(task_type) = &self.task_type {
            check_topic(task_type).map_err(|error| SubmissionError::field("type", error.to_string()))?;
            if task_type == ALERT_TYPE {
                return Err(SubmissionError::field("type", format!("{ALERT_TYPE:?} belongs to redeliver itself")));
            }
        }
        if let Some(queue) = &self.reply_to {
            check_name(queue, 255).map_err(|problem| SubmissionError::field("reply_to", problem))?;
            check_reply_to(queue).map_err(|problem| SubmissionError::field("reply_to", problem))?;
        }
        if let Some(priority) = self.priority.filter(|p| !(0..=MAX_PRIORITY).contains(p)) {
            return Err(SubmissionError::field("priority", format!("is {priority}, wanted 0 to {MAX_PRIORITY}")));
        }
        self.check_labels()?;
        if let Some(payload) = &self.payload {
            match canonical(payload.get()) {
                Ok(_) => {}
                Err(NoCanonicalForm::TooDeep) => {
                    return Err(SubmissionError::field("payload", format!("nests deeper than {MAX_DEPTH} levels")));
                }
                Err(NoCanonicalForm::NotJson) => return Err(SubmissionError::field("payload", "is not JSON")),
            }
        }
        Ok(())
    }

    fn check_labels(&self) -> Result<(), SubmissionError> {
        let refused = |problem: String| Err(SubmissionError::field("labels", problem));
        if self.labels.len() > MAX_LABELS {
            return refused(format!("has {} labels, at most {MAX_LABELS} are allowed", self.labels.len()));
        }
        for (name, value) in &self.labels {
            if let Err(problem) = check_name(name, MAX_LABEL_NAME) {
                return refused(format!("has a name that {problem}"));
            }
            // `--label name=value` could not name it.
            if name.contains('=') {
                return refused(format!("has the name {name:?} with a `=` in it"));
            }
            if value.len() > MAX_LABEL_VALUE {
                return refused(format!(
                    "has a value of {} bytes under {name:?}, at most {MAX_LABEL_VALUE}",
                    value.len()
                ));
            }
            if value.chars().any(char::is_control) {
                return refused(format!("has a control character in the value of {name:?}"));
            }
        }
        Ok(())
    }

    /// `not_before` and `deadline`, read.
    pub(super) fn times(&self) -> Result<Times, SubmissionError> {
        let read = |field, text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            let problem =
                || SubmissionError::field(field, format!("is {:?}, wanted RFC 3339 with an offset", cut(text)));
            read_rfc_3339(text).map(Some).ok_or_else(problem)
        };
        let times =
            Times { not_before: read("not_before", &self.not_before)?, deadline: read("deadline", &self.deadline)? };
        if let (Some(from), Some(until)) = (times.not_before, times.deadline)
            && until < from
        {
            return Err(SubmissionError::field("deadline", "is before `not_before`: the task could never run"));
        }
        Ok(times)
    }
}

/// Checks an id or a key: 1 to `longest` bytes without control characters (a NUL would cut it in half elsewhere) and without
/// white space at its ends (headers lose it).
pub(super) fn check_name(text: &str, longest: usize) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty".into());
    }
    if text.len() > longest {
        return Err(format!("is {} bytes long, at most {longest} are allowed", text.len()));
    }
    if let Some(c) = text.chars().find(|c| c.is_control()) {
        return Err(format!("has the control character {c:?}"));
    }
    if text.trim().len() != text.len() {
        return Err("has white space at an end".into());
    }
    Ok(())
}

/// A time of RFC 3339 §5.6, its lower-case letters and its blank instead of the `T` included, as epoch milliseconds. Checked here
/// before `jiff` sees it, because that also reads shorter forms and zone names, which others would not.
fn read_rfc_3339(text: &str) -> Option<Millis> {
    let shape = text.as_bytes();
    let digits = |from: usize, to: usize| shape.get(from..to).is_some_and(|part| part.iter().all(u8::is_ascii_digit));
    let is = |at: usize, any: &[u8]| shape.get(at).is_some_and(|b| any.contains(b));
    let date = digits(0, 4) && is(4, b"-") && digits(5, 7) && is(7, b"-") && digits(8, 10);
    let time = is(10, b"Tt ") && digits(11, 13) && is(13, b":") && digits(14, 16) && is(16, b":") && digits(17, 19);
    if !date || !time {
        return None;
    }
    let mut at = 19;
    if is(at, b".") {
        let fraction = shape[at + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
        if !(1..=9).contains(&fraction) {
            return None;
        }
        at += 1 + fraction;
    }
    let zulu = is(at, b"Zz") && shape.len() == at + 1;
    let offset = is(at, b"+-") && digits(at + 1, at + 3) && is(at + 3, b":") && digits(at + 4, at + 6);
    let ends = zulu || offset && shape.len() == at + 6;
    text.parse::<Timestamp>().ok().filter(|_| ends).map(Timestamp::as_millisecond)
}

/// `at` as RFC 3339 in UTC; times that the calendar does not hold become its first or last.
pub fn rfc_3339(at: Millis) -> String {
    let edge = if at < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(at).unwrap_or(edge).to_string()
}

/// Whether replies can go to a queue of that name, as far as the name tells everywhere.
fn check_reply_to(queue: &str) -> Result<(), &'static str> {
    if queue.starts_with("amq.rabbitmq.reply-to") {
        // Such a reply lasts as long as one connection; ours comes whenever the task ends, perhaps hours later.
        return Err("is a direct reply-to, which cannot wait for a task; name a queue");
    }
    if queue.starts_with("amq.") && !queue.starts_with("amq.gen-") {
        return Err("is a name that belongs to the broker");
    }
    Ok(())
}

/// What is wrong with a `reply_to` that names a queue of the installation itself: a reply there would be taken for a submission.
pub fn own_queue(queue: &str, namespace: &str) -> Option<String> {
    let ours = queue.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('.'));
    ours.then(|| format!("{queue:?} is a queue of redeliver itself"))
}

/// The beginning of `text`, for an error message.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(100)]
}

/// The fields of a JSON object as they stand, doubled ones included.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object with the fields of a submission")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl Fields<'_> {
    fn into_envelope(self) -> Result<Envelope, SubmissionError> {
        let mut envelope = Envelope::default();
        let mut seen: Vec<&str> = Vec::new();
        for (name, value) in &self.0 {
            if seen.contains(&name.as_str()) {
                return Err(SubmissionError::DoubledField { name: cut(name).into() });
            }
            match name.as_str() {
                "id" => envelope.id = read(name, value)?,
                "type" => envelope.task_type = read(name, value)?,
                "payload" => envelope.payload = read(name, value)?,
                "labels" => envelope.labels = read::<Option<Labels>>(name, value)?.map(|l| l.0).unwrap_or_default(),
                "idempotency_key" => envelope.idempotency_key = read(name, value)?,
                "priority" => envelope.priority = read(name, value)?,
                "not_before" => envelope.not_before = read(name, value)?,
                "deadline" => envelope.deadline = read(name, value)?,
                "cache_key" => envelope.cache_key = read(name, value)?,
                "reply_to" => envelope.reply_to = read(name, value)?,
                _ => return Err(SubmissionError::UnknownField { name: cut(name).into() }),
            }
            seen.push(name);
        }
        Ok(envelope)
    }
}

fn read<'a, T: Deserialize<'a>>(field: &str, value: &'a RawValue) -> Result<T, SubmissionError> {
    serde_json::from_str(value.get()).map_err(|error| {
        // The position is one inside the value and would mislead.
        let text = error.to_string();
        let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
        SubmissionError::field(field, format!("cannot be read: {problem}"))
    })
}

/// Labels in which no name is there twice.
struct Labels(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Labels;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of names and strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut labels = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    if labels.contains_key(&name) {
                        return Err(de::Error::custom(format_args!("the name {:?} is there twice", cut(&name))));
                    }
                    labels.insert(name, value);
                }
                Ok(Labels(labels))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
