//! Bad input, one line each: a dead row with what arrived and why it cannot run, and the consumer goes on.

use std::time::Duration;

use lapin::BasicProperties;
use serde_json::{Value, json};

use crate::rig::{Rig, as_i64};
use crate::support::with_vhost;
use crate::third_party::ThirdParty;

const MAX_BODY: usize = 64 * 1024;

struct Bad {
    name: &'static str,
    body: Vec<u8>,
    /// What the reason must contain.
    reason: &'static str,
}

fn bad(name: &'static str, body: impl Into<Vec<u8>>, reason: &'static str) -> Bad {
    Bad { name, body: body.into(), reason }
}

fn table() -> Vec<Bad> {
    let deep = format!(r#"{{"payload":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let huge = format!(r#"{{"payload":"{}"}}"#, "x".repeat(2 * MAX_BODY));
    let long_id = format!(r#"{{"id":"{}"}}"#, "i".repeat(201));
    let mut rows = vec![
        bad("no JSON", "order 4711", "no JSON"),
        bad("half a document", r#"{"id":"a","#, "no JSON"),
        bad("two documents", r#"{"id":"a"}{"id":"b"}"#, "no JSON"),
        bad("not UTF-8", b"{\"id\":\"\xff\xfe\"}".to_vec(), "not UTF-8 from byte 7"),
        bad("nothing", "", "empty"),
        bad("white space", " \n\t ", "empty"),
        bad("over max_body", huge, "at most 65536"),
        bad("10,000 levels deep", deep, "deeper than 127"),
        bad("an unknown field", r#"{"retries":3}"#, "\"retries\" is unknown"),
        bad("a doubled field", r#"{"id":"a","id":"b"}"#, "\"id\" is there twice"),
        bad("a doubled label", r#"{"labels":{"a":"1","a":"2"}}"#, "\"a\" is there twice"),
        bad("a number for an id", r#"{"id":7}"#, "`id`"),
        bad("an empty id", r#"{"id":""}"#, "`id` is empty"),
        bad("an id that is too long", long_id, "`id` is 201 bytes long"),
        bad("an id with a line break", r#"{"id":"a\nb"}"#, "control character"),
        bad("a type that is no topic", r#"{"type":"test..call"}"#, "`type`"),
        bad("a type with a wildcard", r#"{"type":"test.#"}"#, "`type`"),
        bad("labels that are no object", r#"{"labels":["a"]}"#, "`labels`"),
        bad("a label that is a number", r#"{"labels":{"shop":17}}"#, "`labels`"),
        bad("a label with = in its name", r#"{"labels":{"a=b":"1"}}"#, "`=`"),
        bad("a priority out of range", r#"{"priority":10}"#, "`priority` is 10"),
        bad("a time without an offset", r#"{"not_before":"2030-01-01T00:00:00"}"#, "`not_before`"),
        bad("a time that is a number", r#"{"deadline":1893456000}"#, "`deadline`"),
        bad("a day that does not exist", r#"{"not_before":"2030-02-30T00:00:00Z"}"#, "`not_before`"),
        bad(
            "a deadline before its beginning",
            r#"{"not_before":"2030-01-02T00:00:00Z","deadline":"2030-01-01T00:00:00Z"}"#,
            "`deadline` is before",
        ),
    ];
    for (name, body) in [("an array", "[]"), ("a string", "\"x\""), ("null", "null"), ("a number", "7")] {
        rows.push(bad(name, body, "no JSON"));
    }
    rows
}

#[tokio::test]
async fn each_bad_submission_becomes_a_dead_row_with_its_bytes_and_the_consumer_goes_on() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &format!("[worker]\nmax_body = \"{MAX_BODY}\"\n{}", party.route("10s"))).await;
        let mut worker = rig.worker();
        let table = table();
        for case in &table {
            let properties = BasicProperties::default().with_message_id(case.name.into());
            rig.send("redeliver.submit", "test.call", &case.body, properties).await;
        }
        rig.publish_many("good", 1).await;
        rig.until_all_ended(Duration::from_secs(60), table.len() + 1).await;

        for case in &table {
            let sql = format!(
                "SELECT id, status || ' ' || dead_reason, failure_message, raw_bytes, raw_length FROM tasks WHERE raw_message_id = '{}'",
                case.name
            );
            let rows: Vec<(String, String, String, Vec<u8>, i64)> = rig.rows(&sql).await;
            let [(id, end, reason, bytes, length)] = &rows[..] else { panic!("{}: {} rows", case.name, rows.len()) };
            assert_eq!(end, "dead malformed", "{}", case.name);
            assert!(reason.contains(case.reason), "{}: {reason:?} does not say {:?}", case.name, case.reason);
            assert_eq!(*length, as_i64(case.body.len()), "{}", case.name);
            assert_eq!(*bytes, case.body[..case.body.len().min(MAX_BODY)], "{}", case.name);
            if case.name == "not UTF-8" {
                let shown = rig.json(&["dlq", "show", id]).await;
                assert_eq!(shown["raw"]["length"], case.body.len(), "{shown}");
            }
        }
        assert_eq!(party.calls(), 1, "only the good one ran");
        assert!(worker.is_running());
        let copies = u32::try_from(table.len()).expect("small");
        rig.until_ready(Duration::from_secs(20), "redeliver.default.dead", copies).await;
        let replay = rig.run(&["-o", "json", "dlq", "replay", "--all", "--yes", "--reason", "x"]).await;
        assert_eq!(replay.code, Some(3), "{replay:?}");
        assert_eq!(replay.json()["skipped"], json!({"not_replayable": table.len()}));
    })
    .await;
}

#[tokio::test]
async fn the_same_again_is_ignored_and_another_payload_under_a_known_name_is_a_conflict() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        let _worker = rig.worker();
        let first = json!({"id": "a", "type": "test.call", "idempotency_key": "key", "payload": {"n": 1, "m": [2.0]}});
        rig.publish([first.clone()]).await;
        rig.until_all_ended(Duration::from_secs(30), 1).await;
        let before: Vec<(String, i64)> = rig.rows("SELECT status, ended_at FROM tasks WHERE id = 'a'").await;

        // The same payload, written in another order and under a name of its own or the same one.
        let same = json!({"type": "test.call", "payload": {"m": [2.0], "n": 1}});
        let with = |more: Value| {
            let mut envelope = same.clone();
            envelope.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            envelope
        };
        rig.publish([first, with(json!({"id": "a"})), with(json!({"id": "b", "idempotency_key": "key"}))]).await;
        let other = json!({"n": 2});
        rig.publish([
            with(json!({"id": "a", "payload": other})),
            with(json!({"id": "c", "idempotency_key": "key", "payload": other})),
        ])
        .await;
        let conflicts = "SELECT count(*) FROM tasks WHERE status = 'dead' AND dead_reason = 'duplicate_conflict'
                         AND conflicts_with = 'a' AND raw_length = length(raw_bytes)";
        rig.until_number(Duration::from_secs(30), conflicts, 2).await;
        rig.publish_many("sentinel", 1).await;
        rig.until_all_ended(Duration::from_secs(30), 4).await;
        assert_eq!(rig.rows::<(String, i64)>("SELECT status, ended_at FROM tasks WHERE id = 'a'").await, before);
        assert_eq!(party.arrivals_of("a").len(), 1);
        assert_eq!(party.calls(), 2, "a duplicate ran");
        let listed = rig.json(&["dlq", "list", "--reason-is", "duplicate_conflict"]).await;
        assert_eq!(listed["items"][0]["conflicts_with"], "a", "{listed}");
        let said =
            rig.run(&["publish", "test.call", "--id", "a", "--payload", "3", "--wait", "--timeout", "20s"]).await;
        assert_eq!(said.code, Some(6), "{said:?}");
    })
    .await;
}

#[tokio::test]
async fn a_task_without_a_route_dies_of_no_route_and_is_replayable() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        let worker = rig.worker();
        rig.publish([json!({"id": "lost", "type": "nobody.knows.this"})]).await;
        let died =
            "SELECT count(*) FROM tasks WHERE id = 'lost' AND status = 'dead' AND dead_reason = 'permanent_error'
                    AND failure_class = 'no_route'";
        rig.until_number(Duration::from_secs(30), died, 1).await;
        assert_eq!(rig.number("SELECT count(*) FROM attempts").await, 0);
        worker.kill();
        rig.rewrite_config(&party.route("10s").replace("test.#", "#"));
        let _worker = rig.worker();
        let replay = rig.json(&["dlq", "replay", "lost", "--yes", "--reason", "it has a route now"]).await;
        assert_eq!(replay["replayed"], 1, "{replay}");
        rig.until_number(Duration::from_secs(30), "SELECT count(*) FROM tasks WHERE status = 'succeeded'", 1).await;
    })
    .await;
}
