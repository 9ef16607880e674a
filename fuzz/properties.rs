//! What must hold of whatever comes from outside, whoever made it: the fuzz targets, and the test that replays their corpora, call these.
//!
//! Each takes any bytes, panics where a promise is broken, and promises more than that nothing panics.

#![allow(dead_code, reason = "each target calls one of these")]

#[path = "../src/handler/http/pointer.rs"]
mod pointer;
#[path = "../src/broker/rabbitmq/sieve.rs"]
mod sieve;

use async_trait::async_trait;
use redeliver::broker::{Answering, Delivery, Parsed, Source, Token, WAKE_UP_TYPE, parse};
use redeliver::config::{Request, Secrets, load_text};
use redeliver::policy::parse_retry_after;
use redeliver::task::{
    Envelope, Failure, MAX_NAME, MAX_PRIORITY, Origin, ReadSubmission, canonical_payload_hash,
    fingerprint as fingerprint_of, glance_at_priority, read_submission, refusal_id,
};

/// The parts of an input: text up to each NUL.
fn parts(bytes: &[u8]) -> impl Iterator<Item = &str> {
    bytes.split(|byte| *byte == 0).map(|part| std::str::from_utf8(part).unwrap_or_default())
}

/// A submission is a task or a refusal that keeps its bytes; what was read can be written and is read the same again.
pub fn envelope(bytes: &[u8]) {
    let _any: i64 = glance_at_priority(bytes);
    let origin = Origin { routing_key: "order.ship".into(), message_id: None, redelivered: false, trace: None };
    let cap = 4096;
    match read_submission(bytes, &origin, cap, 0, |_| "default".into(), || "made-up".into()) {
        ReadSubmission::New(new) => {
            let spec = &new.spec;
            assert!(
                bytes.len() <= cap
                    && (1..=MAX_NAME).contains(&spec.id.len())
                    && (0..=MAX_PRIORITY).contains(&spec.priority)
            );
            assert!(new.deadline.is_none_or(|end| new.not_before.is_none_or(|start| start <= end)));
            assert_eq!(spec.payload_hash, canonical_payload_hash(&spec.task_type, &spec.payload));
            let again = read_submission(bytes, &origin, cap, 0, |_| "default".into(), || "made-up".into());
            assert!(matches!(again, ReadSubmission::New(again) if again == new));
        }
        ReadSubmission::Refused(refusal) => {
            let raw = refusal.spec.raw.as_ref().expect("a refusal keeps what arrived");
            assert!(bytes.starts_with(&raw.bytes) && raw.length == i64::try_from(bytes.len()).expect("short"));
            assert!(bytes.len() > cap || raw.bytes == bytes);
            assert_eq!(refusal.spec.id, refusal_id(bytes, &origin).to_string());
            assert!(!refusal.failure.message.is_empty() && refusal.spec.idempotency_key.is_none());
        }
    }
    if let Ok(read) = Envelope::read(bytes) {
        let written = read.to_bytes().expect("what could be read can be written");
        let again = Envelope::read(&written).expect("what was written can be read");
        assert_eq!(again.to_bytes().expect("and written"), written);
    }
}

/// A file is refused with a reason, or means the same each time; what it asks of the broker can be declared.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let request = Request { file: None, environment: &|_| None, flags: Vec::new(), secrets: Secrets::Optional };
    let load = || load_text(&request, "fuzzed.toml".into(), text.to_owned());
    match load() {
        Err(problem) => assert!(!problem.to_string().is_empty()),
        Ok(loaded) => {
            let config = loaded.config;
            assert!(config.policies.rungs().len() <= 16 && config.worker.prefetch > 0 && config.worker.concurrency > 0);
            assert!(config.queue("default").is_some());
            let names: Vec<String> = config.topology().queues.into_iter().map(|queue| queue.name).collect();
            assert!(names.iter().all(|name| name.len() <= 255), "AMQP names have a length byte");
            assert_eq!(config.rules_digest(), load().expect("as before").config.rules_digest());
        }
    }
}

/// A wait is never negative; a number of seconds is what it says, up to the rounding to milliseconds.
pub fn retry_after(bytes: &[u8]) {
    let mut parts = parts(bytes);
    let (value, date) = (parts.next().unwrap_or_default(), parts.next());
    for now in [0, 1_780_000_000_000, i64::MAX] {
        let wait = parse_retry_after(value, date, now);
        assert!(wait.is_none_or(|wait| wait >= 0), "{value:?} {date:?}: {wait:?}");
        if let Ok(seconds) = value.parse::<u32>() {
            assert_eq!(wait, Some(i64::from(seconds) * 1000));
        }
    }
}

/// Every failure has a name, the same each time; an id in hexadecimal at its end makes no other failure of it.
pub fn fingerprint(bytes: &[u8]) {
    let mut parts = parts(bytes);
    let (task_type, class, message) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let failure = |end: &str| Failure::new(class.unwrap_or_default(), format!("{}{end}", message.unwrap_or_default()));
    let name = fingerprint_of(task_type, &failure(""));
    assert!(name.len() == 19 && name.starts_with("v1-"));
    assert_eq!(name, fingerprint_of(task_type, &failure("")));
    let (one, other) = (failure("\n 4711"), failure("\n 815"));
    assert_eq!(fingerprint_of(task_type, &one), fingerprint_of(task_type, &other));
}

/// What a pointer has filled in is found where it leads, and nothing that was there is gone.
pub fn json_pointer(bytes: &[u8]) {
    let mut parts = parts(bytes);
    let (text, document) = (parts.next().unwrap_or_default(), parts.next().unwrap_or("null"));
    let Some(pointer) = pointer::Pointer::new(text) else { return };
    assert_eq!(pointer.as_str(), text);
    let Ok(mut document) = serde_json::from_str::<serde_json::Value>(document) else { return };
    let before = pointer.find(&document).cloned();
    let value = serde_json::json!({ "filled": true });
    let filled = pointer.fill(&mut document, &value);
    assert_eq!(pointer.find(&document), if filled { Some(&value) } else { before.as_ref() });
    assert!(!filled || before.is_none());
}

/// A wake-up says one thing or is kept as one that cannot be read.
pub fn wake_up(bytes: &[u8]) {
    for (source, message_type) in
        [(Source::Retries, Some(WAKE_UP_TYPE)), (Source::Tasks, Some(WAKE_UP_TYPE)), (Source::Tasks, None)]
    {
        let delivery = Delivery {
            trace: None,
            queue: "default".into(),
            source,
            body: bytes.to_vec().into(),
            message_type: message_type.map(str::to_owned),
            message_id: None,
            routing_key: String::new(),
            arrives_at: None,
            priority: None,
            redelivered: false,
            returns: 0,
            token: Token::new(Nobody),
        };
        match parse(&delivery) {
            Parsed::WakeUp { stamp, .. } => {
                assert!(message_type.is_some() && stamp.generation >= 0 && stamp.retry_count >= 0);
            }
            Parsed::BadWakeUp { reason } => assert!(message_type.is_some() && !reason.is_empty()),
            Parsed::Submission => assert!(message_type.is_none()),
        }
    }
}

struct Nobody;

#[async_trait]
impl Answering for Nobody {
    fn usable(&self) -> bool {
        true
    }

    async fn ack(self: Box<Self>) -> bool {
        true
    }

    async fn nack(self: Box<Self>) -> bool {
        true
    }
}

/// What the broker sends passes in full length, however it is cut into reads, and what was made readable stays as it is.
pub fn amqp_frames(bytes: &[u8]) {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let whole = sieved(bytes, bytes.len());
    assert!(whole.len() <= bytes.len());
    assert_eq!(sieved(bytes, usize::from(*step)), whole);
    assert_eq!(sieved(&whole, whole.len()), whole);
}

fn sieved(bytes: &[u8], step: usize) -> Vec<u8> {
    let mut sieve = sieve::Sieve::default();
    let (mut passed, mut out) = (Vec::new(), [0; 61]);
    for read in bytes.chunks(step.max(1)) {
        if sieve.put(read, |_| Ok::<(), ()>(())).is_err() {
            return passed;
        }
        loop {
            match sieve.take(&mut out) {
                0 => break,
                length => passed.extend_from_slice(&out[..length]),
            }
        }
    }
    passed
}
