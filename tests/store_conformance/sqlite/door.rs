//! The table `tasks` is a public door: any program may insert a task. These tests are such programs: Debian's `sqlite3` and
//! Python's module, both older than the SQLite in the store.

use redeliver::store::{Store, Urgency};
use redeliver::task::{Answer, Stamp, Status};

use super::{open, run};
use crate::fixture::{claim, file_in};

#[tokio::test]
async fn three_columns_from_the_sqlite3_shell_make_a_valid_pending_task() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let before = store.now();
    let sql = r#"INSERT INTO tasks (id, type, payload) VALUES ('o-1', 'order.ship', '{"order":1}')"#;
    let Some(output) = run("sqlite3", &[file_in(&folder).to_str().unwrap(), sql]) else { return };
    assert!(output.status.success(), "{output:?}");

    let task = store.get(&["o-1".into()]).await.unwrap().remove(0).unwrap();
    assert_eq!((task.state.status, task.state.stamp), (Status::Pending, Stamp::FIRST));
    assert_eq!(task.spec.idempotency_key.as_deref(), Some("o-1"));
    let now = store.now();
    for time in [task.state.due_at, task.state.wake_at.unwrap(), task.spec.created_at] {
        assert!((before - 1..=now + 1).contains(&time), "{time} lies between {before} and {now}");
    }
    assert_eq!(store.unrouted(10).await.unwrap(), [("o-1".to_owned(), "order.ship".to_owned())]);
    let answer = store.apply(Urgency::Normal, vec![claim("o-1", Stamp::FIRST)]).await.unwrap().remove(0);
    assert!(matches!(answer, Answer::Run(_)), "{answer:?}");
}

#[tokio::test]
async fn python_may_give_every_optional_column() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let script = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
columns = "id, type, payload, labels, priority, due_at, deadline, idempotency_key, cache_key"
row = ("o-2", "order.ship", "[1, 2]", '{"shop": "s1"}', 7, 4000000000000, 5000000000000, "key", "cache")
db.execute(f"INSERT INTO tasks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
db.executemany("INSERT INTO tasks (id, type, payload) VALUES (?, ?, ?)", [(f"m-{n}", "a.b", "{}") for n in range(1000)])
db.commit()
"#;
    let Some(output) = run("python3", &["-c", script, file_in(&folder).to_str().unwrap()]) else { return };
    assert!(output.status.success(), "{output:?}");

    let task = store.get(&["o-2".into()]).await.unwrap().remove(0).unwrap();
    assert_eq!(task.spec.labels.get("shop").map(String::as_str), Some("s1"));
    assert_eq!((task.spec.priority, task.spec.cache_key.as_deref()), (7, Some("cache")));
    assert_eq!(task.spec.idempotency_key.as_deref(), Some("key"));
    assert_eq!(task.state.deadline, Some(5_000_000_000_000));
    assert_eq!((task.state.due_at, task.state.wake_at), (4_000_000_000_000, Some(4_000_000_000_000)));
    assert_eq!(store.unrouted(5_000).await.unwrap().len(), 1_001);
}

#[tokio::test]
async fn what_could_not_be_run_is_refused_at_the_door_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(&folder).await;
    let long = format!("'{}', 'a', '{{}}'", "x".repeat(201));
    let cases = [
        ("(id, type, payload) VALUES ('', 'a', '{}')", "id_has_1_to_200_bytes"),
        (&format!("(id, type, payload) VALUES ({long})"), "id_has_1_to_200_bytes"),
        ("(id, type, payload) VALUES ('a', 'order..ship', '{}')", "type_is_a_topic"),
        ("(id, type, payload) VALUES ('a', '.ship', '{}')", "type_is_a_topic"),
        ("(id, type, payload) VALUES ('a', 'order.', '{}')", "type_is_a_topic"),
        ("(id, type, payload) VALUES ('a', 'order ship', '{}')", "type_is_a_topic"),
        ("(id, type, payload) VALUES ('a', 'order.*', '{}')", "type_is_a_topic"),
        ("(id, type, payload) VALUES ('a', '#', '{}')", "type_is_a_topic"),
        ("(id, type, payload) VALUES ('a', 'a' || char(12288), '{}')", "type_is_a_topic"),
        ("(id, type, payload) VALUES ('a', '', '{}')", "type_is_a_topic"),
        ("(id, type, payload) VALUES ('a', 'a', '{')", "payload_is_json"),
        ("(id, type, payload, labels) VALUES ('a', 'a', '{}', '[]')", "labels_are_a_json_object"),
        ("(id, type, payload, labels) VALUES ('a', 'a', '{}', 'shop=1')", "labels_are_a_json_object"),
        ("(id, type, payload, priority) VALUES ('a', 'a', '{}', 10)", "priority_is_0_to_9"),
        ("(id, type, payload, status) VALUES ('a', 'a', '{}', 'PENDING')", "status"),
        ("(id, type, payload, wake_at) VALUES ('a', 'a', '{}', NULL)", "unfinished_has_an_alarm"),
        (
            "(id, type, payload, due_at) VALUES ('a', 'a', '{}', '2026-01-01')",
            "cannot store TEXT value in INTEGER column",
        ),
        ("(type, payload) VALUES ('a', '{}')", "NOT NULL constraint failed: tasks.id"),
    ];
    for (values, reason) in cases {
        let sql = format!("INSERT INTO tasks {values}");
        let Some(output) = run("sqlite3", &[file_in(&folder).to_str().unwrap(), &sql]) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{sql}: {said}");
    }
}

#[tokio::test]
async fn one_key_makes_one_task_at_the_door_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let file = file_in(&folder);
    let insert = |how: &str, id: &str, key: &str| {
        let sql = format!("{how} INTO tasks (id, type, payload, idempotency_key) VALUES ('{id}', 'a', '{{}}', {key})");
        run("sqlite3", &[file.to_str().unwrap(), &sql])
    };
    let Some(first) = insert("INSERT", "a", "'k'") else { return };
    assert!(first.status.success(), "{first:?}");
    for (id, key) in [("a", "NULL"), ("b", "'k'"), ("k", "NULL"), ("c", "'k'")] {
        let output = insert("INSERT", id, key).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("UNIQUE constraint failed"), "{id} {key}: {said}");
        let ignored = insert("INSERT OR IGNORE", id, key).unwrap();
        assert!(ignored.status.success(), "{ignored:?}");
    }
    assert_eq!(store.unrouted(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn labels_that_are_no_strings_are_taken_as_their_text() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let sql = r#"INSERT INTO tasks (id, type, payload, labels) VALUES ('a', 'b', '{}', '{"n": 7, "b": true, "o": {"x": null}}')"#;
    let Some(output) = run("sqlite3", &[file_in(&folder).to_str().unwrap(), sql]) else { return };
    assert!(output.status.success(), "{output:?}");
    let task = store.get(&["a".into()]).await.unwrap().remove(0).unwrap();
    let labels: Vec<_> = task.spec.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(labels, [("b", "true"), ("n", "7"), ("o", r#"{"x":null}"#)]);
}

#[tokio::test]
async fn the_schema_needs_nothing_newer_than_the_floor() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(&folder).await;
    let Some(schema) = run("sqlite3", &[file_in(&folder).to_str().unwrap(), ".schema"]) else { return };
    let schema = String::from_utf8(schema.stdout).unwrap();
    for newer in ["unixepoch", "subsec", "jsonb", "->>"] {
        assert!(!schema.contains(newer), "{newer} runs in the inserting program's SQLite");
    }
}
