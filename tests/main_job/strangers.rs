//! The DLQ as people see it: what a copy tells by itself, and what becomes of copies whose row is gone.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicGetOptions, BasicNackOptions};
use lapin::types::AMQPValue;
use serde_json::json;

use crate::rig::Rig;
use crate::support::with_vhost;
use crate::third_party::ThirdParty;

const DEAD_QUEUE: &str = "redeliver.default.dead";

#[tokio::test]
async fn a_copy_tells_why_it_is_dead_and_one_whose_row_was_lost_becomes_a_letter_again() {
    with_vhost(async |vhost| {
        let party = ThirdParty::broken().await;
        let settings = format!(
            "{}[[policy]]\nname = \"p\"\nmax_retries = 1\nbackoff = {{ fixed = \"100ms\" }}\n",
            party.route("10s")
        );
        let rig = Rig::new(&vhost, &settings).await;
        let envelope = |id: &str| json!({"id": id, "type": "test.call", "payload": {"n": id}, "labels": {"shop": "a"}});
        rig.publish([envelope("kept"), envelope("lost")]).await;
        let mut worker = rig.worker();
        let present = "SELECT count(*) FROM tasks WHERE status = 'dead' AND dlq_copy = 'present'";
        rig.until_number(Duration::from_secs(60), present, 2).await;
        assert!(worker.stop(Duration::from_secs(20)).await.success());

        let channel = rig.channel().await;
        for _ in 0..2 {
            let got = channel.basic_get(DEAD_QUEUE.into(), BasicGetOptions::default()).await.expect("answered");
            let copy = got.expect("a copy").delivery;
            let headers = copy.properties.headers().clone().expect("headers");
            let header = |name: &str| headers.inner().get(name).cloned();
            let text = |name: &str| match header(name) {
                Some(AMQPValue::LongString(text)) => text.to_string(),
                other => panic!("{name}: {other:?}"),
            };
            assert_eq!((text("redeliver-reason"), text("redeliver-class")), ("retries_exhausted".into(), "server_error".into()));
            assert!(text("redeliver-error").contains("503"), "{headers:?}");
            assert_eq!(text("redeliver-labels"), r#"{"shop":"a"}"#);
            assert_eq!(header("redeliver-attempts"), Some(AMQPValue::LongLongInt(2)));
            let at = |name: &str| match header(name) {
                Some(AMQPValue::LongLongInt(at)) => at,
                other => panic!("{name}: {other:?}"),
            };
            assert!(at("redeliver-first-failed-at") < at("redeliver-last-failed-at"));
            assert!(headers.inner().keys().all(|name| !name.as_str().starts_with("x-") || name.as_str() == "x-delivery-count"));
        }
        let back = BasicNackOptions { multiple: true, requeue: true };
        channel.basic_nack(0, back).await.expect("given back");

        rig.execute("DELETE FROM tasks WHERE id = 'lost'").await;
        rig.execute("DELETE FROM attempts WHERE task_id = 'lost'").await;
        rig.send("", DEAD_QUEUE, b"not one of ours", BasicProperties::default().with_message_id("m7".into())).await;
        rig.until_ready(Duration::from_secs(20), DEAD_QUEUE, 3).await;
        let found = rig.json(&["dlq", "strangers"]).await;
        let found = found["items"].as_array().expect("a list").clone();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|stranger| stranger["task_id"] == "lost" && stranger["type"] == "test.call"), "{found:?}");
        assert!(found.iter().any(|stranger| stranger["message_id"] == "m7" && stranger["body"] == "not one of ours"), "{found:?}");
        assert_eq!(rig.ready(DEAD_QUEUE).await, Some(3), "looking takes nothing away");
        assert_eq!(rig.run(&["dlq", "strangers", "--adopt"]).await.code, Some(8));

        let adopted = rig.json(&["dlq", "strangers", "--adopt", "--yes", "--reason", "restored"]).await;
        let adopted = adopted["items"].as_array().expect("a list");
        assert!(adopted.iter().all(|stranger| stranger["adopted_as"].is_string()), "{adopted:?}");
        let lost = rig.json(&["dlq", "show", "lost"]).await;
        assert_eq!((&lost["payload"], &lost["labels"]), (&json!({"n": "lost"}), &json!({"shop": "a"})), "{lost}");
        assert_eq!(lost["dead_reason"], "retries_exhausted");
        let bytes = "SELECT count(*) FROM tasks WHERE dead_reason = 'malformed' AND raw_bytes = CAST('not one of ours' AS BLOB)";
        assert_eq!(rig.number(bytes).await, 1);
        assert!(rig.json(&["dlq", "strangers"]).await["items"].as_array().expect("a list").is_empty());

        let _worker = rig.worker();
        rig.until_number(Duration::from_secs(60), present, 3).await;
        rig.until_ready(Duration::from_secs(60), DEAD_QUEUE, 3).await;
        party.heal();
        let replay = rig.json(&["dlq", "replay", "lost", "--yes"]).await;
        assert_eq!(replay, json!({"matched": 1, "replayed": 1, "skipped": {}}));
        rig.until_number(Duration::from_secs(60), "SELECT count(*) FROM tasks WHERE status = 'succeeded'", 1).await;
    })
    .await;
}
