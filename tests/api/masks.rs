//! What is masked is masked wherever it is shown: over HTTP and on the pages.

use redeliver::config::MaskedFields;
use redeliver::policy::TopicPattern;
use redeliver::store::access::Role;
use redeliver::task::DeadReason;
use reqwest::{Method, StatusCode};
use serde_json::json as value;

use crate::desk::{Desk, WithJson, json};

async fn masking() -> Desk {
    Desk::with(|config| {
        let task_type = TopicPattern::new("order.#").unwrap();
        config.console.masked = vec![MaskedFields { task_type, fields: vec!["/card/number".into()] }];
    })
    .await
}

async fn text(desk: &Desk, role: Role, path: &str) -> String {
    let response = desk.by(role, Method::GET, path).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{role} {path}");
    response.text().await.unwrap()
}

#[tokio::test]
async fn a_payload_that_no_value_can_hold_is_masked_whole() {
    let desk = masking().await;
    for (id, payload) in [
        ("surrogate", r#"{"card": {"number": "4111"}, "name": "\ud83d"}"#),
        ("huge", r#"{"card": {"number": "4111"}, "sum": 1e999}"#),
        ("twice", r#"{"card": {"number": "4111"}, "card": 1}"#),
    ] {
        desk.submit(id, "order.ship", payload).await;
        for path in [format!("/v1/tasks/{id}"), format!("/tasks/{id}"), format!("/tasks/{id}/payload")] {
            for role in [Role::Viewer, Role::Operator] {
                let shown = text(&desk, role, &path).await;
                assert!(!shown.contains("4111"), "{role} {path}: {shown}");
                assert!(id == "twice" || shown.contains("•••"), "{role} {path}: {shown}");
            }
        }
        let shown = text(&desk, Role::Editor, &format!("/tasks/{id}/payload")).await;
        assert_eq!(shown, payload, "an editor sees what was sent");
    }
    let shown = json(desk.by(Role::Viewer, Method::GET, "/v1/tasks/huge").send().await.unwrap()).await;
    assert_eq!((&shown["payload"], &shown["masked"]), (&value!("•••"), &value!([""])));
}

#[tokio::test]
async fn a_patch_is_shown_to_those_who_may_see_what_is_masked() {
    for (desk, hides) in [(masking().await, true), (Desk::new().await, false)] {
        desk.dead("d", "down", DeadReason::RetriesExhausted).await;
        let order = value!({
            "all": true,
            "reason": "mended",
            "edit_payload": [{"op": "add", "path": "/card", "value": {"number": "4222"}}],
        });
        let made = desk.by(Role::Editor, Method::POST, "/v1/replays").json(&order).send().await.unwrap();
        assert_eq!(made.status(), StatusCode::CREATED);
        let id = json(made).await["id"].as_i64().unwrap();
        for path in [format!("/replays/{id}"), format!("/v1/replays/{id}")] {
            for role in [Role::Viewer, Role::Operator, Role::Editor] {
                let is_shown = text(&desk, role, &path).await.contains("4222");
                assert_eq!(is_shown, !hides || role >= Role::Editor, "{role} {path}");
            }
        }
    }
}
