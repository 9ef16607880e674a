//! The submission envelope, as producers in other languages meet it: what is accepted, what is refused and why, and the JSON
//! Schema that says so.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use redeliver::task::{
    DeadReason, Envelope, MAX_DEPTH, NewTask, Origin, ReadSubmission, Refusal, TaskEvent, canonical_payload_hash,
    glance_at_priority, read_submission, refusal,
};

const NOW: i64 = 1_767_225_600_000;
const MAX_BODY: usize = 4096;
const FRESH: &str = "0197-fresh";

fn origin() -> Origin {
    Origin { routing_key: "order.ship".into(), message_id: Some("m-1".into()), ..Origin::default() }
}

fn read_from(body: &[u8], origin: &Origin) -> ReadSubmission {
    let queue_of = |task_type: &str| if task_type.starts_with("order.") { "orders" } else { "default" }.to_owned();
    read_submission(body, origin, MAX_BODY, NOW, queue_of, || FRESH.to_owned())
}

fn accepted_from(body: impl AsRef<[u8]>, origin: &Origin) -> NewTask {
    match read_from(body.as_ref(), origin) {
        ReadSubmission::New(new) => new,
        ReadSubmission::Refused(refusal) => panic!("refused: {}", refusal.failure.message),
    }
}

fn accepted(body: impl AsRef<[u8]>) -> NewTask {
    accepted_from(body, &origin())
}

fn refused_from(body: impl AsRef<[u8]>, origin: &Origin) -> Refusal {
    match read_from(body.as_ref(), origin) {
        ReadSubmission::Refused(refusal) => *refusal,
        ReadSubmission::New(new) => panic!("accepted: {new:?}"),
    }
}

fn why_refused(body: impl AsRef<[u8]>) -> String {
    refused_from(body, &origin()).failure.message
}

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

#[test]
fn a_whole_envelope_becomes_a_task_as_submitted() {
    let new = accepted(
        r#"{"id":"a:1","type":"order.pay","payload":{"b" : 1.0,"a":12345678901234567890123},"labels":{"shop":"甲"},
            "idempotency_key":"k","priority":9,"not_before":"2026-01-01T08:00:00+08:00","deadline":"2026-01-02T00:00:00.5Z",
            "cache_key":"c","reply_to":"answers"}"#,
    );
    let spec = &new.spec;
    assert_eq!((spec.id.as_str(), spec.task_type.as_str(), new.queue.as_str()), ("a:1", "order.pay", "orders"));
    assert_eq!(spec.payload, r#"{"b" : 1.0,"a":12345678901234567890123}"#);
    assert_eq!(spec.labels, BTreeMap::from([("shop".to_owned(), "甲".to_owned())]));
    assert_eq!(spec.idempotency_key.as_deref(), Some("k"));
    assert_eq!((spec.priority, spec.cache_key.as_deref(), spec.reply_to.as_deref()), (9, Some("c"), Some("answers")));
    assert_eq!(new.not_before, Some(NOW));
    assert_eq!(new.deadline, Some(NOW + 86_400_500));
    assert_eq!((spec.created_at, &spec.submission_hash, &spec.raw), (NOW, &None, &None));
    assert_eq!((new.claimant, new.publish, new.redelivered), (None, false, false));
    assert_eq!(spec.payload_hash, canonical_payload_hash("order.pay", r#"{"a":12345678901234567890123,"b":1.0}"#));
}

#[test]
fn an_empty_object_takes_everything_from_the_message() {
    for body in
        ["{}", " {} ", r#"{"id":null,"type":null,"payload":null,"labels":null,"priority":null,"deadline":null}"#]
    {
        let spec = accepted(body).spec;
        assert_eq!((spec.id.as_str(), spec.task_type.as_str(), spec.payload.as_str()), ("m-1", "order.ship", "null"));
        assert_eq!(spec.idempotency_key.as_deref(), Some("m-1"));
        assert_eq!((spec.priority, spec.labels.len(), &spec.submission_hash), (0, 0, &None));
    }
}

#[test]
fn a_submission_without_any_id_is_remembered_by_its_bytes() {
    let nameless = Origin { message_id: None, ..origin() };
    let first = accepted_from("{}", &nameless).spec;
    assert_eq!(first.id, FRESH);
    assert_eq!(first.idempotency_key.as_deref(), Some(FRESH));
    let hash = first.submission_hash.as_deref().expect("it has no other name");
    let again = Origin { redelivered: true, ..nameless.clone() };
    assert_eq!(accepted_from("{}", &again).spec.submission_hash.as_deref(), Some(hash));
    assert!(accepted_from("{}", &again).redelivered);
    let elsewhere = Origin { routing_key: "order.pay".into(), ..nameless.clone() };
    assert_ne!(accepted_from("{}", &elsewhere).spec.submission_hash.as_deref(), Some(hash));
    assert_ne!(accepted_from("{ }", &nameless).spec.submission_hash.as_deref(), Some(hash));
    assert_eq!(accepted_from(r#"{"id":"x"}"#, &nameless).spec.submission_hash, None);
}

#[test]
fn bad_input_is_refused_with_its_reason() {
    let long = |n: usize| "x".repeat(n);
    let many_labels: Vec<String> = (0..65).map(|i| format!(r#""l{i}":"v""#)).collect();
    let table: Vec<(Vec<u8>, &str)> = vec![
        (b"".to_vec(), "the body is empty"),
        (b" \n\t".to_vec(), "the body is empty"),
        (b"hello".to_vec(), "no JSON submission"),
        (b"{".to_vec(), "no JSON submission"),
        (b"{} {}".to_vec(), "trailing characters"),
        (b"[]".to_vec(), "expected a JSON object"),
        (b"null".to_vec(), "expected a JSON object"),
        (b"\"text\"".to_vec(), "expected a JSON object"),
        (b"\xef\xbb\xbf{}".to_vec(), "no JSON submission"),
        (b"{\"id\":\"\xff\"}".to_vec(), "not UTF-8 from byte 7"),
        (b"{\"payload\":\"a\nb\"}".to_vec(), "no JSON submission"),
        (vec![0; 10], "no JSON submission"),
        (long(MAX_BODY + 1).into_bytes(), "4097 bytes long, at most 4096"),
        (br#"{"kind":"x"}"#.to_vec(), r#"the field "kind" is unknown"#),
        (br#"{"ID":"x"}"#.to_vec(), r#"the field "ID" is unknown"#),
        (format!(r#"{{"{}":1}}"#, long(3000)).into_bytes(), "is unknown"),
        (br#"{"a\u0000b":1}"#.to_vec(), r#"the field "a\0b" is unknown"#),
        (br#"{"id":"a","id":"a"}"#.to_vec(), r#"the field "id" is there twice"#),
        (br#"{"payload":1,"payload":1}"#.to_vec(), r#"the field "payload" is there twice"#),
        (br#"{"id":"a","i\u0064":"a"}"#.to_vec(), r#"the field "id" is there twice"#),
        (br#"{"id":5}"#.to_vec(), "`id` cannot be read: invalid type: integer `5`, expected a string"),
        (br#"{"id":""}"#.to_vec(), "`id` is empty"),
        (br#"{"id":" a"}"#.to_vec(), "`id` has white space at an end"),
        (br#"{"id":"a\u0000b"}"#.to_vec(), r"`id` has the control character '\0'"),
        (br#"{"id":"a\nb"}"#.to_vec(), r"`id` has the control character '\n'"),
        (br#"{"id":"\ud800"}"#.to_vec(), "`id` cannot be read"),
        (format!(r#"{{"id":"{}"}}"#, long(201)).into_bytes(), "`id` is 201 bytes long, at most 200"),
        (format!(r#"{{"idempotency_key":"{}"}}"#, long(201)).into_bytes(), "`idempotency_key` is 201 bytes"),
        (br#"{"idempotency_key":{}}"#.to_vec(), "`idempotency_key` cannot be read"),
        (br#"{"type":""}"#.to_vec(), "`type` is empty"),
        (br#"{"type":"a..b"}"#.to_vec(), "`type` has an empty word"),
        (br#"{"type":"order.*"}"#.to_vec(), "`type` has '*' inside"),
        (br##"{"type":"#"}"##.to_vec(), "`type` has '#' inside"),
        (br#"{"type":"a b"}"#.to_vec(), "`type` has the character ' '"),
        (br#"{"type":["a"]}"#.to_vec(), "`type` cannot be read"),
        (format!(r#"{{"type":"{}"}}"#, long(256)).into_bytes(), "`type` is 256 bytes long"),
        (br#"{"labels":[]}"#.to_vec(), "`labels` cannot be read"),
        (br#"{"labels":{"a":1}}"#.to_vec(), "`labels` cannot be read: invalid type: integer `1`, expected a string"),
        (br#"{"labels":{"a":null}}"#.to_vec(), "`labels` cannot be read"),
        (br#"{"labels":{"a":"1","a":"2"}}"#.to_vec(), r#"the name "a" is there twice"#),
        (br#"{"labels":{"":"1"}}"#.to_vec(), "`labels` has a name that is empty"),
        (br#"{"labels":{"a=b":"1"}}"#.to_vec(), "with a `=` in it"),
        (br#"{"labels":{"a\u0007":"1"}}"#.to_vec(), "has the control character"),
        (br#"{"labels":{"a":"\u0000"}}"#.to_vec(), "control character in the value of \"a\""),
        (format!(r#"{{"labels":{{"a":"{}"}}}}"#, long(501)).into_bytes(), "a value of 501 bytes"),
        (format!(r#"{{"labels":{{"{}":"a"}}}}"#, long(101)).into_bytes(), "101 bytes long"),
        (format!(r#"{{"labels":{{{}}}}}"#, many_labels.join(",")).into_bytes(), "65 labels, at most 64"),
        (br#"{"priority":10}"#.to_vec(), "`priority` is 10, wanted 0 to 9"),
        (br#"{"priority":-1}"#.to_vec(), "`priority` is -1"),
        (br#"{"priority":1.0}"#.to_vec(), "`priority` cannot be read"),
        (br#"{"priority":"5"}"#.to_vec(), "`priority` cannot be read"),
        (br#"{"priority":99999999999999999999}"#.to_vec(), "`priority` cannot be read"),
        (br#"{"deadline":1767225600}"#.to_vec(), "`deadline` cannot be read"),
        (br#"{"deadline":"tomorrow"}"#.to_vec(), r#"`deadline` is "tomorrow", wanted RFC 3339"#),
        (br#"{"not_before":"2026-02-30T00:00:00Z"}"#.to_vec(), "`not_before` is"),
        (br#"{"not_before":"2026-01-01T00:00:00"}"#.to_vec(), "wanted RFC 3339 with an offset"),
        (br#"{"not_before":"2026-01-01T00:00:00Z[Asia/Shanghai]"}"#.to_vec(), "wanted RFC 3339 with an offset"),
        (br#"{"not_before":"2026-01-01"}"#.to_vec(), "wanted RFC 3339 with an offset"),
        (br#"{"not_before":"2026-01-01T00:00:00.Z"}"#.to_vec(), "wanted RFC 3339 with an offset"),
        (br#"{"not_before":"2026-01-01T00:00:00Zx"}"#.to_vec(), "wanted RFC 3339 with an offset"),
        (br#"{"not_before":"2026-01-01T00:00:00+8"}"#.to_vec(), "wanted RFC 3339 with an offset"),
        (
            br#"{"not_before":"2026-01-01T00:00:01Z","deadline":"2026-01-01T00:00:00Z"}"#.to_vec(),
            "`deadline` is before `not_before`: the task could never run",
        ),
        (br#"{"cache_key":""}"#.to_vec(), "`cache_key` is empty"),
        (br#"{"reply_to":"a\tb"}"#.to_vec(), "`reply_to` has the control character"),
        (format!(r#"{{"payload":{}}}"#, nested(MAX_DEPTH + 1)).into_bytes(), "`payload` nests deeper than 127 levels"),
    ];
    for (body, reason) in table {
        let refusal = refused_from(&body, &origin());
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        assert!(refusal.failure.message.contains(reason), "{shown}: {:?} lacks {reason:?}", refusal.failure.message);
        assert!(refusal.failure.message.len() < 1100 && !refusal.failure.message.contains('\0'), "{shown}");
        assert_eq!(refusal.failure.class, "malformed", "{shown}");
        assert_eq!(refusal.reason, DeadReason::Malformed);
        assert_eq!(refusal.queue, "orders");
        let spec = &refusal.spec;
        assert_eq!(
            (spec.task_type.as_str(), spec.payload.as_str(), &spec.idempotency_key),
            ("order.ship", "null", &None)
        );
        let raw = spec.raw.as_ref().expect("the bytes are kept");
        assert_eq!(raw.bytes, body[..body.len().min(MAX_BODY)]);
        assert_eq!(raw.length, i64::try_from(body.len()).unwrap());
        assert_eq!((raw.routing_key.as_str(), raw.message_id.as_deref()), ("order.ship", Some("m-1")));
    }
}

#[test]
fn ten_thousand_levels_are_an_error_and_no_stack_overflow() {
    let deep = nested(10_000);
    let objects = format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    let bodies = [
        deep.clone(),
        format!(r#"{{"payload":{deep}}}"#),
        format!(r#"{{"payload":{objects}}}"#),
        format!(r#"{{"payload":{}"#, "[".repeat(10_000)),
        format!(r#"{{"labels":{deep}}}"#),
        format!(r#"{{"labels":{{"a":{deep}}}}}"#),
        format!(r#"{{"id":{deep}}}"#),
        format!(r#"{{"nothing":{deep}}}"#),
    ];
    for body in bodies {
        let read = read_submission(body.as_bytes(), &origin(), 1 << 20, NOW, |_| "default".into(), || FRESH.into());
        assert!(matches!(read, ReadSubmission::Refused(_)), "{}", &body[..30]);
    }
    // Rows that others inserted are hashed as they stand.
    assert_eq!(canonical_payload_hash("t", &deep), canonical_payload_hash("t", &deep));
    assert_ne!(canonical_payload_hash("t", &deep), canonical_payload_hash("t", &objects));
}

#[test]
fn what_is_as_deep_as_allowed_can_be_read_by_every_handler() {
    let new = accepted(format!(r#"{{"payload":{}}}"#, nested(MAX_DEPTH)));
    assert!(serde_json::from_str::<serde_json::Value>(&new.spec.payload).is_ok());
    assert!(serde_json::from_str::<serde_json::Value>(&nested(MAX_DEPTH + 1)).is_err());
}

#[test]
fn a_bad_message_id_is_refused_only_where_it_would_be_used() {
    let odd = Origin { message_id: Some("a\u{0}b".into()), ..origin() };
    let refusal = refused_from("{}", &odd);
    assert_eq!(refusal.failure.message, r"`id` is missing and the message_id has the control character '\0'");
    assert_eq!(refusal.spec.raw.unwrap().message_id.as_deref(), Some("a\u{FFFD}b"));
    assert_eq!(accepted_from(r#"{"id":"x"}"#, &odd).spec.id, "x");
}

#[test]
fn a_bad_routing_key_is_refused_only_where_it_would_be_used() {
    for routing_key in ["", "a..b", "order.*", "a b"] {
        let odd = Origin { routing_key: routing_key.into(), ..origin() };
        let refusal = refused_from("{}", &odd);
        assert!(refusal.failure.message.starts_with("`type` is missing and the routing key "), "{routing_key:?}");
        assert_eq!((refusal.spec.task_type.as_str(), refusal.queue.as_str()), ("unknown", "default"));
        assert_eq!(accepted_from(r#"{"type":"order.pay"}"#, &odd).spec.task_type, "order.pay");
    }
}

#[test]
fn a_refused_message_has_the_same_id_at_every_delivery_and_another_message_another() {
    let id = |body: &str, origin: &Origin| refused_from(body, origin).spec.id;
    let first = id("nonsense", &origin());
    assert_eq!(first, id("nonsense", &Origin { redelivered: true, ..origin() }));
    assert_ne!(first, id("nonsense!", &origin()));
    assert_ne!(first, id("nonsense", &Origin { message_id: None, ..origin() }));
    assert_ne!(first, id("nonsense", &Origin { routing_key: "order.pay".into(), ..origin() }));
    // Bytes that only differ beyond the cap are two messages.
    let long = "x".repeat(MAX_BODY);
    assert_ne!(id(&format!("{long}a"), &origin()), id(&format!("{long}b"), &origin()));
    assert!(uuid::Uuid::parse_str(&first).is_ok_and(|id| id.get_version_num() == 5));
}

#[test]
fn the_row_for_a_conflict_can_be_found_by_type_and_label() {
    let new = accepted(r#"{"type":"report.render","labels":{"shop":"1"}}"#);
    let refusal = new.refusal.refusal(&new.spec, &new.queue);
    let spec = &refusal.spec;
    assert_eq!(spec.id, new.refusal.id());
    assert_eq!((spec.task_type.as_str(), refusal.queue.as_str()), ("report.render", "default"));
    assert_eq!(spec.labels, new.spec.labels);
    assert_ne!(spec.id, new.spec.id);
    assert_eq!((&spec.idempotency_key, spec.raw.is_some()), (&None, true));
}

#[test]
fn what_the_broker_gave_up_keeps_its_bytes() {
    let refusal = refusal(b"{}", &origin(), 1, NOW, |_| "orders".into());
    let raw = refusal.spec.raw.unwrap();
    assert_eq!((raw.bytes.as_slice(), raw.length), (&b"{"[..], 2));
}

#[test]
fn a_nul_in_a_payload_stays_an_escape() {
    assert_eq!(accepted(r#"{"payload":"a\u0000b"}"#).spec.payload, r#""a\u0000b""#);
}

#[test]
fn the_same_payload_has_one_hash_and_another_payload_another() {
    let same = [
        (r#"{"a":1,"b":[true,null]}"#, " { \"b\" : [ true ,\r\n null ],\t\"a\":1 } "),
        (r#""aé/""#, r#""\u0061\u00e9\/""#),
        (r#""🦀""#, r#""\ud83E\uDD80""#),
        (r#""\n\t\u0001""#, r#""\u000a\u0009\u0001""#),
        ("1e5", "1E+5"),
        (r#"{"a":{"c":1,"d":2},"b":1}"#, r#"{"b":1,"a":{"d":2,"c":1}}"#),
        (r#"{"a":1}"#, r#"{"\u0061":1}"#),
    ];
    for (a, b) in same {
        assert_eq!(canonical_payload_hash("t", a), canonical_payload_hash("t", b), "{a} {b}");
    }
    let different = [
        ("1", "1.0"),
        ("1", "\"1\""),
        ("9007199254740992", "9007199254740993"),
        ("12345678901234567890123", "12345678901234567890124"),
        ("0.1", "0.10000000000000000001"),
        ("1e400", "1e401"),
        ("null", "\"null\""),
        ("[1,2]", "[2,1]"),
        ("[[1],2]", "[[1,2]]"),
        (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
        (r#""\ud800""#, r#""\ud801""#),
        (r#""\\u0061""#, r#""\u0061""#),
        (r#""a""#, r#""A""#),
        ("not json", "not  json"),
    ];
    for (a, b) in different {
        assert_ne!(canonical_payload_hash("t", a), canonical_payload_hash("t", b), "{a} {b}");
    }
    assert_ne!(canonical_payload_hash("t", "1"), canonical_payload_hash("u", "1"));
}

#[test]
fn the_hash_does_not_change_between_versions() {
    let hash = "a14b080cbba3d4f661aad186d0b4db46df122f855744cd90cc2743a4d99fa036";
    assert_eq!(canonical_payload_hash("order.ship", r#"{"b":1,"a":[1.50,"é"]}"#), hash);
}

#[test]
fn a_built_envelope_is_read_as_it_was_meant() {
    let envelope = Envelope::new("order.ship")
        .id("a")
        .payload(&serde_json::json!({"n": 1}))
        .unwrap()
        .label("shop", "1")
        .idempotency_key("k")
        .priority(3)
        .not_before(NOW + 1)
        .deadline(i64::MAX)
        .cache_key("c")
        .reply_to("q");
    let new = accepted(envelope.to_bytes().unwrap());
    assert_eq!((new.spec.id.as_str(), new.spec.payload.as_str(), new.spec.priority), ("a", r#"{"n":1}"#, 3));
    assert_eq!(new.not_before, Some(NOW + 1));
    assert!(new.deadline.is_some_and(|deadline| deadline > 250_000_000_000_000));
    let bare = Envelope::new("order.ship").to_bytes().unwrap();
    assert_eq!(String::from_utf8(bare).unwrap(), r#"{"type":"order.ship"}"#);
}

#[test]
fn a_producer_is_told_before_it_publishes() {
    let told = |envelope: Envelope| envelope.to_bytes().unwrap_err().to_string();
    assert_eq!(
        told(Envelope::new("a b")),
        "`type` has the character ' '; words are letters, digits and punctuation without white space"
    );
    assert_eq!(told(Envelope::new("a").priority(10)), "`priority` is 10, wanted 0 to 9");
    assert_eq!(told(Envelope::new("a").id("")), "`id` is empty");
    assert_eq!(why_refused(r#"{"id":""}"#), "`id` is empty");
    assert!(Envelope::new("a").payload_text("{").is_err());
}

/// `REDELIVER_BLESS=1 cargo test --test envelope` writes the files anew.
#[test]
fn the_shipped_schemas_are_those_of_the_types() {
    let schemas = [("submission", schemars::schema_for!(Envelope)), ("event", schemars::schema_for!(TaskEvent))];
    for (name, schema) in schemas {
        let path = format!("{}/deploy/contract/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
        let schema = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("REDELIVER_BLESS").is_some() {
            std::fs::write(&path, &schema).unwrap();
        }
        let shipped = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(shipped, schema, "run again with REDELIVER_BLESS=1 if {name} was meant to change");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9_f64..1e9).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((any::<String>(), inner), 0..5).prop_map(Value::from_iter),
        ]
    })
}

/// The same value with the fields of every object the other way round.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(reversed).collect(),
        Value::Object(fields) => fields.iter().rev().map(|(name, value)| (name.clone(), reversed(value))).collect(),
        other => other.clone(),
    }
}

/// JSON text with every character of a string written as an escape.
fn escaped(value: &Value) -> String {
    let mut text = String::new();
    let mut inside = false;
    let mut characters = value.to_string().chars().collect::<Vec<_>>().into_iter().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' => {
                inside = !inside;
                text.push(c);
            }
            '\\' if inside => {
                text.push(c);
                text.extend(characters.next());
                // What follows the four digits of `\u` is looked at like any other character; the digits stay as they are.
                if text.ends_with('u') {
                    text.extend(characters.by_ref().take(4));
                }
            }
            c if inside => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04X}"))),
            c => text.push(c),
        }
    }
    text
}

proptest! {
    #[test]
    fn the_hash_does_not_depend_on_how_the_json_is_written(value in any_json()) {
        let hash = canonical_payload_hash("t", &value.to_string());
        prop_assert_eq!(&hash, &canonical_payload_hash("t", &serde_json::to_string_pretty(&value).unwrap()));
        prop_assert_eq!(&hash, &canonical_payload_hash("t", &reversed(&value).to_string()));
        prop_assert_eq!(&hash, &canonical_payload_hash("t", &escaped(&value)));
    }

    #[test]
    fn two_values_have_two_hashes(a in any_json(), b in any_json()) {
        prop_assume!(a != b);
        prop_assert_ne!(canonical_payload_hash("t", &a.to_string()), canonical_payload_hash("t", &b.to_string()));
    }

    #[test]
    fn every_payload_is_stored_as_submitted(value in any_json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let body = format!(r#"{{"payload":{text}}}"#);
        prop_assume!(body.len() <= MAX_BODY);
        prop_assert_eq!(&accepted(body).spec.payload, &text);
    }

    #[test]
    fn whatever_arrives_becomes_a_task_or_a_dead_row(
        body in proptest::collection::vec(any::<u8>(), 0..200), key in any::<String>(), id in proptest::option::of(any::<String>())
    ) {
        let origin = Origin { routing_key: key, message_id: id, ..Origin::default() };
        let refusal = refused_from(&body, &origin);
        prop_assert_eq!(&refusal.spec.raw.unwrap().bytes, &body);
    }
}

#[test]
fn a_glance_sees_the_priority_that_reading_the_submission_finds() {
    for priority in 0..=9 {
        let body = Envelope::new("a.b").payload(&vec!["\"priority\"", ": 3"]).expect("JSON").priority(priority);
        let body = body.to_bytes().expect("a submission");
        assert_eq!((glance_at_priority(&body), accepted(&body).spec.priority), (priority, priority));
    }
    let without = [
        r#"{"type":"a.b"}"#,
        r#"{"priority":null}"#,
        r#"{"payload":{"priority":7}}"#,
        r#"{"labels":{"priority":"7"}}"#,
    ];
    for body in without {
        assert_eq!((glance_at_priority(body.as_bytes()), accepted(body).spec.priority), (0, 0), "{body}");
    }
}

#[test]
fn a_glance_at_what_cannot_be_read_sees_no_priority() {
    let deep = format!(r#"{{"payload":{}{},"priority":7}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let bodies: [&[u8]; 8] = [
        b"",
        b"\"priority\"",
        b"{\"priority\"",
        br#"{"priority":"7"}"#,
        br#"{"priority":7.5}"#,
        br#"{"priority":99999999999999999999}"#,
        br#"{"priority":7,"priority":8}"#,
        b"\xff{\"priority\":7}",
    ];
    for body in bodies {
        assert_eq!(glance_at_priority(body), 0, "{}", String::from_utf8_lossy(body));
    }
    // Only that it comes back.
    let _ = glance_at_priority(deep.as_bytes());
}
