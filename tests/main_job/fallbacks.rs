//! F1 on real processes: what ends a task when the third party is down for longer than its retries last.

use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::Rig;
use crate::support::with_vhost;
use crate::third_party::ThirdParty;

const LIMIT: Duration = Duration::from_secs(60);
const DEAD_QUEUE: &str = "redeliver.default.dead";

/// One retry after a second, then these fallbacks.
fn settings(party: &ThirdParty, fallback: &str, more: &str) -> String {
    format!(
        "{}[[policy]]\nname = \"p\"\nbackoff = {{ steps = [\"1s\"] }}\nfallback = {fallback}\n\
         default_result = {{ order = \"unknown\" }}\ncache_max_age = \"1h\"\n{more}",
        party.route("10s")
    )
}

/// Publishes a task and waits for its end.
async fn end_of(rig: &Rig, id: &str, payload: &str) -> Value {
    let arguments =
        ["-o", "json", "publish", "test.call", "--id", id, "--payload", payload, "--wait", "--timeout", "60s"];
    let said = rig.run(&arguments).await;
    let told = said.json();
    let succeeded = told["status"] == "succeeded";
    assert_eq!(said.code, Some(if succeeded { 0 } else { 1 }), "{said:?}");
    told
}

#[tokio::test]
async fn cache_answers_with_the_last_good_result_of_the_same_payload_until_it_is_too_old() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party, "[\"cache\"]", "")).await;
        let worker = rig.worker();
        let good = end_of(&rig, "good", "{\"sku\":1,\"shop\":\"a\"}").await;
        assert_eq!((&good["status"], &good["degraded"]), (&json!("succeeded"), &Value::Null));
        party.now(|_| crate::third_party::Reply::refusal());

        let spent = end_of(&rig, "spent", "{\"shop\":\"a\",\"sku\":1}").await;
        assert_eq!((&spent["status"], &spent["degraded"]), (&json!("succeeded"), &json!("cache")), "{spent}");
        assert_eq!(spent["result"], good["result"]);
        let shown = rig.json(&["task", "show", "spent"]).await;
        assert_eq!((&shown["degraded"], shown["attempts"].as_array().map(Vec::len)), (&json!("cache"), Some(2)));
        assert_eq!((&shown["attempts"][1]["outcome"], &shown["failure"]["http_status"]), (&json!("died"), &json!(503)));
        let listed = rig.run(&["-o", "table", "task", "list", "--id", "spent"]).await;
        assert!(listed.stdout.contains("cache)"), "{listed:?}");
        assert!(worker.log().contains("task ended degraded"), "{}", worker.log());

        rig.execute("UPDATE cached SET stored_at = stored_at - 3600000").await;
        let old = end_of(&rig, "too old", "{\"sku\":1,\"shop\":\"a\"}").await;
        assert_eq!((&old["status"], &old["dead_reason"]), (&json!("dead"), &json!("retries_exhausted")), "{old}");
    })
    .await;
}

#[tokio::test]
async fn default_answers_with_the_configured_value_and_leaves_nothing_in_the_dlq() {
    with_vhost(async |vhost| {
        let party = ThirdParty::broken().await;
        let rig = Rig::new(&vhost, &settings(&party, "[\"cache\", \"default\"]", "")).await;
        let _worker = rig.worker();
        let spent = end_of(&rig, "spent", "1").await;
        assert_eq!((&spent["status"], &spent["degraded"]), (&json!("succeeded"), &json!("default")), "{spent}");
        assert_eq!(spent["result"]["body"], json!({ "order": "unknown" }));
        assert_eq!(party.calls(), 2, "all its attempts came first");
        assert_eq!(rig.number("SELECT count(*) FROM cached").await, 0, "a default is no good result");
        let again = end_of(&rig, "spent", "1").await;
        assert_eq!((&again["already_done"], &again["degraded"]), (&json!(true), &json!("default")), "{again}");
        assert_eq!(rig.number("SELECT count(*) FROM tasks WHERE dlq_copy <> 'none'").await, 0);
        assert_eq!(rig.ready(DEAD_QUEUE).await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn queue_leaves_the_task_to_the_dlq_although_a_good_result_of_another_payload_is_there() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party, "[\"cache\", \"queue\"]", "")).await;
        let _worker = rig.worker();
        end_of(&rig, "good", "1").await;
        party.now(|_| crate::third_party::Reply::refusal());
        let cached = end_of(&rig, "cached", "1").await;
        assert_eq!(cached["degraded"], "cache");
        let dead = end_of(&rig, "spent", "2").await;
        assert_eq!((&dead["status"], &dead["dead_reason"]), (&json!("dead"), &json!("retries_exhausted")), "{dead}");
        rig.until_ready(LIMIT, DEAD_QUEUE, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_critical_type_ends_in_the_dlq_whatever_its_fallbacks_say() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party, "[\"cache\", \"default\"]", "critical = true\n")).await;
        let _worker = rig.worker();
        end_of(&rig, "good", "1").await;
        party.now(|_| crate::third_party::Reply::refusal());
        let dead = end_of(&rig, "spent", "1").await;
        assert_eq!((&dead["status"], &dead["degraded"]), (&json!("dead"), &Value::Null), "{dead}");
        rig.until_ready(LIMIT, DEAD_QUEUE, 1).await;
        assert_eq!(rig.number("SELECT count(*) FROM cached").await, 0);
    })
    .await;
}
