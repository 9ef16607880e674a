//! What `doctor` finds on a real broker. Each test breaks one thing and must be told of it, with a way out.

use std::time::Duration;

use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection};

use crate::rig::Rig;
use crate::support::{PrivateBroker, Vhost, until_within, with_vhost};
use crate::third_party::ThirdParty;

const SOON: Duration = Duration::from_secs(30);

async fn rig(vhost: &Vhost) -> Rig {
    let party = ThirdParty::healthy().await;
    let rig = Rig::new(vhost, &party.route("10s")).await;
    let management = format!("management_url = \"{}\"", vhost.management_url());
    rig.rewrite_broker_with(&vhost.url(), &management, &party.route("10s"));
    rig
}

/// Waits until doctor has a finding on `subject` with `text` in it: the management API is a second behind. Returns its result.
async fn until_found(rig: &Rig, subject: &str, text: &str) -> Value {
    let mut found = Value::Null;
    until_within(SOON, &format!("doctor finds {text:?} in {subject}"), async || {
        let said = rig.run(&["-o", "json", "doctor"]).await;
        let items = said.json()["items"].as_array().cloned().unwrap_or_default();
        let wrong = items.iter().any(|item| item["result"] == "wrong");
        assert_eq!(said.code, Some(i32::from(wrong)), "the exit code says whether anything is wrong: {said:?}");
        found = items
            .into_iter()
            .find(|item| item["subject"] == subject && item["found"].as_str().is_some_and(|found| found.contains(text)))
            .unwrap_or(Value::Null);
        found != Value::Null
    })
    .await;
    if found["result"] != "ok" {
        assert!(found["to_do"].as_str().is_some_and(|todo| !todo.is_empty()), "no way out: {found}");
    }
    found["result"].clone()
}

#[tokio::test]
async fn a_sound_broker_is_told_sound() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        let said = rig.run(&["-o", "json", "doctor"]).await;
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(until_found(&rig, "management", "http://").await, "ok");
        assert_eq!(until_found(&rig, "broker state", "no policy, alarm, binding or member").await, "ok");
        assert_eq!(until_found(&rig, "broker", "RabbitMQ ").await, "ok");
    })
    .await;
}

#[tokio::test]
async fn broker_policies_on_our_queues_are_wrong() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        let policy =
            |definition: Value| json!({"pattern": "^redeliver", "apply-to": "queues", "definition": definition});
        vhost.put("policies", "tidy-up", policy(json!({"expires": 60_000, "max-length": 1_000}))).await;
        assert_eq!(until_found(&rig, "policies", "policy tidy-up sets expires = 60000").await, "wrong");
        assert_eq!(until_found(&rig, "policies", "sets max-length = 1000").await, "wrong");
        vhost.put("policies", "tidy-up", policy(json!({"message-ttl": 1_000}))).await;
        assert_eq!(until_found(&rig, "policies", "message-ttl = 1000 on redeliver.default.dead").await, "wrong");
        assert_eq!(until_found(&rig, "policies", "waits end too early").await, "wrong");
    })
    .await;
}

#[tokio::test]
async fn queues_and_bindings_that_nobody_asked_for_are_named() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        let channel = rig.channel().await;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut quorum = FieldTable::default();
        quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        channel.queue_declare("redeliver.default.delay.77000".into(), durable, quorum).await.expect("declared");
        channel
            .queue_bind(
                "redeliver.default.retries".into(),
                "redeliver.submit".into(),
                "order.#".into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("bound");
        assert_eq!(
            until_found(&rig, "queues", "redeliver.default.delay.77000 is in no configuration").await,
            "warning"
        );
        assert_eq!(
            until_found(&rig, "bindings", "bound to redeliver.default.retries for \"order.#\"").await,
            "warning"
        );
        vhost.delete_queue("redeliver.default.tasks").await;
        assert_eq!(until_found(&rig, "bindings", "is not bound to redeliver.default.tasks").await, "wrong");
        assert_eq!(until_found(&rig, "topology", "1 queues or exchanges are missing").await, "warning");
    })
    .await;
}

#[tokio::test]
async fn who_consumes_what_is_not_theirs_is_named() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        let channel = rig.channel().await;
        let consume = async |queue: &str| {
            let options = BasicConsumeOptions::default();
            channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await.expect("a consumer")
        };
        let _consumers = [consume("redeliver.default.delay.900000").await, consume("redeliver.default.tasks").await];
        assert_eq!(until_found(&rig, "consumers", "delay.900000 has 1 consumers").await, "wrong");
        assert_eq!(
            until_found(&rig, "consumers", "consumes redeliver.default.tasks without a prefetch").await,
            "wrong"
        );
    })
    .await;
}

#[tokio::test]
async fn a_queue_declared_otherwise_and_messages_that_nobody_takes_up_are_named() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        rig.send("", "redeliver.default.rejected", b"{}", lapin::BasicProperties::default()).await;
        assert_eq!(until_found(&rig, "consumers", "rejected holds 1 messages").await, "warning");
        vhost.delete_queue("redeliver.default.delay.900000").await;
        let mut other = FieldTable::default();
        other.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        other.insert("x-message-ttl".into(), AMQPValue::LongLongInt(1000));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let channel = rig.channel().await;
        channel.queue_declare("redeliver.default.delay.900000".into(), durable, other).await.expect("declared");
        assert_eq!(until_found(&rig, "topology", "redeliver.default.delay.900000 has x-").await, "wrong");
    })
    .await;
}

#[tokio::test]
async fn a_memory_alarm_and_small_frames_are_wrong() {
    let Some(private) = PrivateBroker::start() else { return };
    private
        .broker
        .with_vhost(async |vhost| {
            let rig = rig(&vhost).await;
            private.ctl(&["rabbitmqctl", "-q", "set_vm_memory_high_watermark", "absolute", "1MB"]).await;
            assert_eq!(until_found(&rig, "alarms", "low on memory").await, "wrong");
            private.ctl(&["rabbitmqctl", "-q", "set_vm_memory_high_watermark", "0.4"]).await;
            private.ctl(&["rabbitmqctl", "-q", "eval", "application:set_env(rabbit, frame_max, 16384)."]).await;
            assert_eq!(until_found(&rig, "frame", "16384 bytes").await, "wrong");
        })
        .await;
}

#[tokio::test]
async fn without_the_management_api_doctor_says_what_it_cannot_see() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        let party = ThirdParty::healthy().await;
        rig.rewrite_broker_with(&vhost.url(), "management_url = \"http://127.0.0.1:9\"", &party.route("10s"));
        assert_eq!(until_found(&rig, "management", "http://127.0.0.1:9/").await, "warning");
        let blind = format!("blind-{}", vhost.name);
        vhost.user(&blind, "geheim", "").await;
        let url = vhost.management_url().replace("guest:guest", &format!("{blind}:geheim"));
        rig.rewrite_broker_with(&vhost.url(), &format!("management_url = \"{url}\""), &party.route("10s"));
        assert_eq!(until_found(&rig, "management", "has no tag that lets it ask").await, "warning");
        vhost.user(&blind, "geheim", "management").await;
        vhost.put("permissions", &blind, json!({"configure": "^$", "write": "^$", "read": "^$"})).await;
        assert_eq!(until_found(&rig, "management", "may not see nodes").await, "warning");
        vhost.forget_user(&blind).await;
    })
    .await;
}

#[tokio::test]
async fn what_works_on_the_store_or_the_broker_itself_does_not_work_through_a_server() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        let topology = [&["topology", "plan"][..], &["topology", "apply", "--yes"], &["topology", "delete", "--yes"]];
        for command in topology.into_iter().chain([&["doctor"][..]]) {
            let through = [&["--api", "http://127.0.0.1:9", "--token", "x"], command].concat();
            let said = rig.run(&through).await;
            assert_eq!(said.code, Some(2), "{command:?}: {said:?}");
            assert!(said.stderr.contains("--api"), "{said:?}");
        }
        assert_eq!(until_found(&rig, "topology", "every queue is there").await, "ok", "nothing was deleted");
    })
    .await;
}

#[tokio::test]
async fn the_delay_queues_of_the_rules_in_the_store_are_what_is_listed_declared_checked_and_not_deleted_full() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        let rules = rig.folder().join("rules.toml");
        std::fs::write(&rules, "[[policy]]\nname = \"slow\"\nbackoff = { steps = [\"10m\"] }\n").expect("written");
        let applied = rig.run(&["policy", "apply", rules.to_str().expect("a path"), "--yes"]).await;
        assert_eq!(applied.code, Some(0), "{applied:?}");
        let plan = rig.json(&["topology", "plan"]).await;
        let missing =
            plan["items"].as_array().expect("items").iter().map(|item| item["object"].clone()).collect::<Vec<_>>();
        assert!(missing.contains(&json!("redeliver.default.delay.600000")), "{missing:?}");
        assert!(until_found(&rig, "topology", "queues or exchanges are missing").await == "warning");
        let declared = rig.run(&["topology", "apply", "--yes"]).await;
        assert_eq!(declared.code, Some(0), "{declared:?}");
        assert!(declared.stderr.contains("policies version 1"), "{declared:?}");
        assert_eq!(until_found(&rig, "topology", "every queue is there").await, "ok");
        assert_eq!(until_found(&rig, "policies", "policies version 1").await, "ok");
        rig.send("", "redeliver.default.delay.600000", b"{}", lapin::BasicProperties::default()).await;
        let listed = rig.json(&["queue", "list"]).await;
        let waits: Vec<&Value> =
            listed["items"].as_array().expect("items").iter().filter(|item| item["role"] == "delay").collect();
        assert!(waits.iter().all(|item| item["delay_ms"] == 600_000) && !waits.is_empty(), "{waits:?}");
        let kept = rig.run(&["topology", "delete", "--yes"]).await;
        assert_eq!(kept.code, Some(6), "a parked message is in the way: {kept:?}");
        assert_eq!(rig.ready("redeliver.default.delay.600000").await, Some(1));
    })
    .await;
}

#[tokio::test]
async fn a_store_that_another_program_locks_is_wrong_although_it_can_be_read() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        let file = format!("sqlite://{}", rig.folder().join("store.db").display());
        let mut other = SqliteConnection::connect(&file).await.expect("a second program");
        sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.expect("the lock");
        assert_eq!(until_found(&rig, "store", "nothing can be written").await, "wrong");
        sqlx::query("ROLLBACK").execute(&mut other).await.expect("the lock is given back");
        assert_eq!(until_found(&rig, "store", "store.db").await, "ok");
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_has_stopped_is_not_at_work_and_what_it_leaves_in_its_lane_is_named() {
    with_vhost(async |vhost| {
        let rig = rig(&vhost).await;
        assert_eq!(until_found(&rig, "workers", "none is at work").await, "warning");
        let mut worker = rig.worker();
        assert_eq!(until_found(&rig, "workers", "1, the last seen").await, "ok");
        assert!(worker.stop(SOON).await.success());
        rig.send_task("left").await;
        assert_eq!(until_found(&rig, "workers", "none is at work").await, "warning");
        assert_eq!(until_found(&rig, "consumers", "default.tasks holds 1 messages").await, "warning");
    })
    .await;
}
