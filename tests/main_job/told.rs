//! Other services are told what became of tasks: events to whoever listens, replies to who asked for one, and nothing is lost on the
//! way when the worker that should tell is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Value, json};

use crate::rig::{Rig, report, sized};
use crate::support::{soon, until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

/// Somebody else's queue, and what arrives in it.
struct Listener {
    channel: lapin::Channel,
    consumer: lapin::Consumer,
}

impl Listener {
    /// A queue of that name; bound to the events of `topic`, if one is given.
    async fn new(rig: &Rig, queue: &str, topic: Option<&str>) -> Listener {
        let channel = rig.channel().await;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), durable, FieldTable::default()).await.expect("a queue");
        if let Some(topic) = topic {
            let (exchange, options) = ("redeliver.events".into(), QueueBindOptions::default());
            channel
                .queue_bind(queue.into(), exchange, topic.into(), options, FieldTable::default())
                .await
                .expect("bound");
        }
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await;
        Listener { channel, consumer: consumer.expect("a consumer") }
    }

    async fn next(&mut self) -> Delivery {
        let delivery =
            soon("something arrives", self.consumer.next()).await.expect("the consumer lives").expect("a message");
        self.channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default()).await.expect("acked");
        delivery
    }
}

fn body(delivery: &Delivery) -> Value {
    serde_json::from_slice(&delivery.data).expect("JSON")
}

fn header(delivery: &Delivery, name: &str) -> String {
    let headers = delivery.properties.headers().as_ref().expect("headers");
    match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        Some(AMQPValue::LongLongInt(number)) => number.to_string(),
        other => panic!("{name}: {other:?}"),
    }
}

fn settings(party: &ThirdParty, events: &str) -> String {
    format!(
        "[worker]\nlease = \"3s\"\n[scheduler]\ngrace = \"2s\"\npatience = \"2s\"\nslack = \"2s\"\n{}[[policy]]\nname = \"p\"\n\
         max_retries = 1\nbackoff = {{ fixed = \"100ms\" }}\n{events}",
        party.route("10s")
    )
}

#[tokio::test]
async fn a_compensating_service_is_told_of_a_death_with_all_it_needs_as_a_cloud_event() {
    with_vhost(async |vhost| {
        let party = ThirdParty::broken().await;
        let events = "[events]\npublish = [\"task.dead\", \"task.replayed\"]\npayload = true\n";
        let rig = Rig::new(&vhost, &settings(&party, events)).await;
        let mut listener = Listener::new(&rig, "compensation", Some("task.dead")).await;
        let _worker = rig.worker();
        rig.publish([
            json!({"id": "a", "type": "test.call", "payload": {"order": 7, "total": 12345678901234567890_u64},
            "labels": {"shop": "berlin"}, "idempotency_key": "key-a"}),
        ])
        .await;
        let told = listener.next().await;
        let properties = &told.properties;
        assert_eq!(told.routing_key.as_str(), "task.dead");
        assert_eq!(properties.content_type().as_ref().map(|text| text.as_str()), Some("application/json"));
        assert_eq!(properties.message_id().as_ref().map(|text| text.as_str()), Some("a:0:1:task.dead"));
        let expected = [
            ("cloudEvents_specversion", "1.0"),
            ("cloudEvents_id", "a:0:1:task.dead"),
            ("cloudEvents_source", "urn:redeliver:redeliver"),
            ("cloudEvents_type", "redeliver.task.dead"),
            ("cloudEvents_subject", "a"),
            ("cloudEvents_tasktype", "test.call"),
            ("cloudEvents_generation", "0"),
            ("cloudEvents_retrycount", "1"),
        ];
        for (name, value) in expected {
            assert_eq!(header(&told, name), value, "{name}");
        }
        let event = body(&told);
        assert_eq!(event["at"], header(&told, "cloudEvents_time"));
        assert_eq!(
            (&event["id"], &event["type"], &event["dead_reason"]),
            (&json!("a"), &json!("test.call"), &json!("retries_exhausted"))
        );
        assert_eq!((&event["labels"]["shop"], &event["idempotency_key"]), (&json!("berlin"), &json!("key-a")));
        assert_eq!((&event["attempts"], &event["failure"]["http_status"]), (&json!(2), &json!(503)));
        assert_eq!(event["failure"]["class"], "server_error");
        assert_eq!(event["payload"], json!({"order": 7, "total": 12345678901234567890_u64}), "to the last digit");
        assert!(event.get("result").is_none());

        // A person's replay from another process: its second death is another event, and what nobody listens to is no error.
        let said = rig.run(&["dlq", "replay", "a", "--yes", "--reason", "again"]).await;
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(header(&listener.next().await, "cloudEvents_id"), "a:1:1:task.dead");
        rig.until_number(Duration::from_secs(20), "SELECT count(*) FROM notices", 0).await;
    })
    .await;
}

#[tokio::test]
async fn who_asks_for_a_reply_gets_the_result_and_gets_it_again_when_it_asks_again() {
    with_vhost(async |vhost| {
        let party =
            ThirdParty::start(|arrival| if arrival.retry_count == 0 { Reply::refusal() } else { Reply::good() }).await;
        let rig = Rig::new(&vhost, &settings(&party, "")).await;
        let mut replies = Listener::new(&rig, "replies", None).await;
        let worker = rig.worker();
        let envelope = |id: &str, queue: &str| json!({"id": id, "type": "test.call", "reply_to": queue});
        rig.publish([envelope("a", "replies")]).await;
        let reply = replies.next().await;
        assert_eq!(reply.properties.correlation_id().as_ref().map(|text| text.as_str()), Some("a"));
        assert_eq!(reply.properties.kind().as_ref().map(|text| text.as_str()), Some("redeliver.reply"));
        let told = body(&reply);
        assert_eq!(
            (&told["event"], &told["status"], &told["attempts"]),
            (&json!("task.succeeded"), &json!("succeeded"), &json!(2))
        );
        // The third party says that it is text.
        let done = json!(r#"{"order":"done"}"#);
        assert_eq!(told["result"]["body"], done);
        assert!(told.get("already_done").is_none());

        rig.publish([envelope("a", "replies")]).await;
        let told = body(&replies.next().await);
        assert_eq!((&told["already_done"], &told["result"]["body"]), (&json!(true), &done));

        // Who has gone away holds nobody up.
        rig.publish([envelope("b", "nobody.is.here"), envelope("c", "replies")]).await;
        assert_eq!(body(&replies.next().await)["id"], "c");
        rig.until_number(Duration::from_secs(20), "SELECT count(*) FROM notices", 0).await;
        worker.until_says(Duration::from_secs(5), "there is no such queue to reply to").await;
    })
    .await;
}

#[tokio::test]
async fn a_reply_to_that_is_a_queue_of_ours_or_of_the_broker_is_refused() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party, "")).await;
        let _worker = rig.worker();
        let hostile = [
            ("redeliver.default.tasks", "is a queue of redeliver itself"),
            ("redeliver.default.dead", "is a queue of redeliver itself"),
            ("amq.rabbitmq.reply-to", "is a direct reply-to"),
            ("amq.topic", "belongs to the broker"),
        ];
        for (number, (queue, _)) in hostile.iter().enumerate() {
            let body = json!({"id": format!("h-{number}"), "reply_to": queue}).to_string();
            let properties = BasicProperties::default().with_message_id((*queue).into());
            rig.send("redeliver.submit", "test.call", body.as_bytes(), properties).await;
        }
        // Whoever writes rows himself comes further, but not to the end.
        rig.execute("INSERT INTO tasks (id, type, payload, reply_to) VALUES ('row', 'test.call', '{}', 'redeliver.default.tasks')").await;
        rig.until_all_ended(Duration::from_secs(30), hostile.len() + 1).await;
        for (queue, reason) in hostile {
            let sql = format!("SELECT dead_reason, failure_message FROM tasks WHERE raw_message_id = '{queue}'");
            let rows: Vec<(String, String)> = rig.rows(&sql).await;
            assert_eq!(rows[0].0, "malformed", "{queue}");
            assert!(rows[0].1.contains("`reply_to`") && rows[0].1.contains(reason), "{queue}: {rows:?}");
        }
        rig.until_number(Duration::from_secs(20), "SELECT count(*) FROM notices", 0).await;
        assert_eq!(rig.number("SELECT count(*) FROM tasks").await, 5, "no reply became a task");
    })
    .await;
}

#[tokio::test]
async fn no_event_is_lost_when_workers_are_killed_before_they_could_tell() {
    with_vhost(async |vhost| {
        let (n, kills) = (sized(3_000, 400), sized(15, 5));
        let party = ThirdParty::start(|arrival| {
            let reply = if arrival.task.ends_with('7') { Reply::refusal() } else { Reply::good() };
            reply.after(Duration::from_millis(10))
        })
        .await;
        let rig = Rig::new(&vhost, &settings(&party, "[events]\npublish = [\"task.#\"]\n")).await;
        let mut listener = Listener::new(&rig, "everything", Some("task.#")).await;
        rig.publish_many("t", n).await;
        let mut worker = rig.worker();
        for kill in 1..=kills {
            until_within(Duration::from_secs(60), "work goes on", async || party.calls() >= kill * n / (kills + 1))
                .await;
            std::mem::replace(&mut worker, rig.worker()).kill();
        }
        rig.until_all_ended(Duration::from_secs(120), n).await;
        rig.until_number(Duration::from_secs(60), "SELECT count(*) FROM notices", 0).await;

        let mut wanted: BTreeSet<String> = BTreeSet::new();
        let rows: Vec<(String, i64, i64, String)> =
            rig.rows("SELECT id, generation, retry_count, status FROM tasks").await;
        for (id, generation, retry_count, status) in rows {
            wanted.extend((1..=retry_count).map(|retry| format!("{id}:{generation}:{retry}:task.retry_waiting")));
            wanted.insert(format!("{id}:{generation}:{retry_count}:task.{status}"));
        }
        let mut told: BTreeMap<String, usize> = BTreeMap::new();
        while told.len() < wanted.len() {
            *told.entry(header(&listener.next().await, "cloudEvents_id")).or_default() += 1;
        }
        let told_of: BTreeSet<String> = told.keys().cloned().collect();
        assert_eq!(told_of, wanted);
        let doubled = told.values().filter(|times| **times > 1).count();
        report(&format!("told: {n} tasks, {kills} kills, {} events, {doubled} of them more than once", wanted.len()));
    })
    .await;
}

#[tokio::test]
async fn the_trace_of_a_submission_is_kept_and_what_is_none_fails_no_task() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party, "")).await;
        let _worker = rig.worker();
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let text = |text: &str| AMQPValue::LongString(text.into());
        let cases = [
            ("good", text(good), Some(good)),
            ("nonsense", text("00-nonsense"), None),
            ("injected", text(&format!("{good}\r\nX-Evil: 1")), None),
            ("not UTF-8", AMQPValue::LongString(vec![0xff; 55].into()), None),
            ("number", AMQPValue::LongLongInt(7), None),
            ("empty", text(""), None),
        ];
        for (id, traceparent, _) in &cases {
            let mut headers = FieldTable::default();
            headers.insert("traceparent".into(), traceparent.clone());
            headers.insert("tracestate".into(), text("congo=t61rcWkgMzE"));
            let properties = BasicProperties::default().with_message_id((*id).into()).with_headers(headers);
            rig.send("redeliver.submit", "test.call", b"{}", properties).await;
        }
        rig.until_number(Duration::from_secs(30), "SELECT count(*) FROM tasks WHERE status = 'succeeded'", 6).await;
        for (id, _, kept) in cases {
            let rows: Vec<(Option<String>, Option<String>)> =
                rig.rows(&format!("SELECT traceparent, tracestate FROM tasks WHERE id = '{id}'")).await;
            let state = kept.map(|_| "congo=t61rcWkgMzE".to_owned());
            assert_eq!(rows, [(kept.map(str::to_owned), state)], "{id}");
        }
    })
    .await;
}

#[tokio::test]
async fn events_wait_when_their_exchange_is_gone_and_come_when_it_is_back() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let settings = settings(&party, "[events]\npublish = [\"task.succeeded\"]\n");
        let rig = Rig::new(&vhost, &settings).await;
        // What was taken is held for two of these, long enough to listen again before it is told again.
        rig.rewrite_broker_with(&vhost.url(), "confirm_timeout = \"4s\"\n", &settings);
        let worker = rig.worker();
        worker.until_says(Duration::from_secs(20), "working").await;
        let deleted = rig.channel().await.exchange_delete("redeliver.events".into(), Default::default()).await;
        deleted.expect("deleted");
        rig.publish_many("t", 3).await;
        rig.until_all_ended(Duration::from_secs(30), 3).await;
        // The first event ends the session; the next one has the exchange again.
        let mut listener = None;
        until_within(Duration::from_secs(30), "the exchange is back", async || {
            let channel = rig.channel().await;
            let passive = lapin::options::ExchangeDeclareOptions { passive: true, ..Default::default() };
            let (name, kind) = ("redeliver.events".into(), lapin::ExchangeKind::Topic);
            if channel.exchange_declare(name, kind, passive, FieldTable::default()).await.is_ok() {
                listener = Some(Listener::new(&rig, "late", Some("task.#")).await);
            }
            listener.is_some()
        })
        .await;
        let mut listener = listener.expect("it is back");
        let mut told = BTreeSet::new();
        while told.len() < 3 {
            told.insert(header(&listener.next().await, "cloudEvents_subject"));
        }
        rig.until_number(Duration::from_secs(60), "SELECT count(*) FROM notices", 0).await;
    })
    .await;
}
