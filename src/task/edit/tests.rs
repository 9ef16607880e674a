use std::collections::BTreeMap;

use super::*;
use crate::task::{DeadReason, RawSubmission};

fn letter(payload: &str) -> Task {
    let spec = Spec {
        id: "order-7".into(),
        task_type: "order.ship".into(),
        payload: payload.into(),
        labels: BTreeMap::from([("shop".to_owned(), "a".to_owned())]),
        idempotency_key: Some("k".into()),
        priority: 3,
        cache_key: None,
        reply_to: None,
        trace: None,
        payload_hash: "old".into(),
        submission_hash: Some("sent".into()),
        created_at: 1,
        raw: None,
        conflicts_with: None,
    };
    let state = State { status: Status::Dead, dead_reason: Some(DeadReason::PermanentError), ..State::pending(1) };
    Task { spec: Arc::new(spec), state }
}

fn edit(patch: &str) -> PayloadEdit {
    PayloadEdit::parse(patch, None).unwrap()
}

#[test]
fn what_is_no_json_patch_is_refused() {
    for bad in ["", "{}", "[]", "[{}]", r#"[{"op":"jump","path":"/a"}]"#, r#"[{"op":"add","path":"a","value":1}]"#] {
        assert!(matches!(PayloadEdit::parse(bad, None), Err(EditError::Unreadable(_))), "{bad}");
    }
}

#[test]
fn another_payload_gets_another_id_and_key_and_keeps_the_rest() {
    let task = letter(r#"{"zip":1}"#);
    let made = edit(r#"[{"op":"replace","path":"/zip","value":2}]"#).edited(&task, 50).unwrap().unwrap().spec;
    assert_eq!((made.id.as_str(), made.idempotency_key.as_deref()), ("order-7~1", Some("order-7~1")));
    assert_eq!((made.payload.as_str(), made.priority, &made.labels), (r#"{"zip":2}"#, 3, &task.spec.labels));
    assert_eq!((made.created_at, made.submission_hash), (50, None));
    assert_eq!(made.payload_hash, canonical_payload_hash("order.ship", r#"{"zip":2}"#));
}

#[test]
fn an_edit_that_changes_nothing_makes_nothing() {
    let task = letter(r#"{"zip":1}"#);
    assert!(edit(r#"[{"op":"test","path":"/zip","value":1}]"#).edited(&task, 50).unwrap().is_none());
    let preview = edit(r#"[{"op":"replace","path":"/zip","value":1}]"#).preview(&task, 50).unwrap();
    assert_eq!((preview.becomes.as_str(), preview.differences), ("order-7", Vec::new()));
}

#[test]
fn the_difference_names_each_place_with_what_was_and_what_will_be() {
    let task = letter(r#"{"zip":1,"old":true}"#);
    let patch = r#"[{"op":"replace","path":"/zip","value":2},{"op":"remove","path":"/old"},{"op":"add","path":"/new","value":[]}]"#;
    let mut differences = edit(patch).preview(&task, 50).unwrap().differences;
    differences.sort_by(|a, b| a.path.cmp(&b.path));
    let of = |path: &str, before: Option<Value>, after: Option<Value>| Difference { path: path.into(), before, after };
    let expected = [
        of("/new", None, Some(Value::Array(Vec::new()))),
        of("/old", Some(true.into()), None),
        of("/zip", Some(1.into()), Some(2.into())),
    ];
    assert_eq!(differences, expected);
}

#[test]
fn a_patch_that_does_not_fit_says_so() {
    let error = edit(r#"[{"op":"remove","path":"/nothing"}]"#).preview(&letter("{}"), 0).unwrap_err();
    assert!(error.to_string().starts_with("the patch does not fit: "), "{error}");
}

#[test]
fn what_could_not_be_read_is_edited_as_the_submission_it_should_have_been() {
    let mut task = letter("null");
    let raw = RawSubmission {
        bytes: br#"{"id":"a","payload":{"zip":1},"surprise":1}"#.to_vec(),
        length: 43,
        routing_key: "order.ship".into(),
        message_id: None,
    };
    task.spec = Arc::new(Spec { raw: Some(Arc::new(raw)), idempotency_key: None, ..(*task.spec).clone() });
    let made = edit(r#"[{"op":"remove","path":"/surprise"}]"#).edited(&task, 50).unwrap().unwrap().spec;
    assert_eq!((made.id.as_str(), made.task_type.as_str()), ("a", "order.ship"));
    assert_eq!((made.payload.as_str(), made.raw), (r#"{"zip":1}"#, None));
    let still = edit(r#"[{"op":"replace","path":"/surprise","value":2}]"#).edited(&task, 50);
    assert!(matches!(still, Err(EditError::Refused(reason)) if reason.contains("surprise")));
}

#[test]
fn an_id_that_grows_too_long_becomes_a_short_one() {
    let id = "x".repeat(MAX_NAME);
    let made = successor(&id, 0);
    assert!(made.len() <= MAX_NAME && made != id);
    assert_eq!(made, successor(&id, 0), "the same for everybody");
    assert_ne!(made, successor(&id, 1));
}

#[test]
fn copies_that_double_a_document_again_and_again_are_stopped_before_they_fill_memory() {
    let task = letter(r#"{"b":[]}"#);
    let seed = format!(r#"{{"op":"add","path":"/b","value":["{}"]}}"#, "x".repeat(1000));
    let copies = [r#"{"op":"copy","from":"/b","path":"/b/-"}"#; 40].join(",");
    let bomb = edit(&format!("[{seed},{copies}]"));
    assert!(matches!(bomb.edited(&task, 50), Err(EditError::DoesNotFit(text)) if text.contains("too much")));
    assert!(matches!(bomb.preview(&task, 50), Err(EditError::DoesNotFit(_))));
    let many = [r#"{"op":"test","path":"/b","value":[]}"#; 501].join(",");
    assert!(matches!(edit(&format!("[{many}]")).edited(&task, 50), Err(EditError::DoesNotFit(_))));
    let deep = [r#"{"op":"copy","from":"","path":"/b"}"#; 12].join(",");
    assert!(edit(&format!("[{deep}]")).edited(&task, 50).is_ok(), "a few levels are a document");
}

#[test]
fn a_payload_that_is_json_and_no_document_is_not_taken_for_null() {
    for payload in [r#""\ud83d""#, "1e999"] {
        let task = letter(payload);
        let changed = edit(r#"[{"op":"replace","path":"","value":1}]"#).edited(&task, 50);
        assert!(matches!(changed, Err(EditError::DoesNotFit(_))), "{payload}");
    }
}
