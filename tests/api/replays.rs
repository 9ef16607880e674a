//! Groups and replay jobs over HTTP. What a job does is tested where it is driven.

use redeliver::store::access::{AccessStore, AuditFilter, Role};
use redeliver::task::DeadReason;
use reqwest::Method;
use serde_json::{Value, json as value};

use crate::desk::{Desk, WithJson, json};

async fn post(desk: &Desk, role: Role, path: &str, body: Value) -> (u16, Value) {
    let response = desk.by(role, Method::POST, path).json(&body).send().await.unwrap();
    (response.status().as_u16(), json(response).await)
}

async fn get(desk: &Desk, path: &str) -> Value {
    json(desk.by(Role::Viewer, Method::GET, path).send().await.unwrap()).await
}

async fn with_letters() -> Desk {
    let desk = Desk::new().await;
    for id in ["a", "b", "c"] {
        desk.dead(id, "down", DeadReason::RetriesExhausted).await;
    }
    desk
}

#[tokio::test]
async fn a_job_is_looked_at_first_made_steered_and_told_to_the_audit() {
    let desk = with_letters().await;
    let order = value!({"filter": {"class": ["timeout"]}, "rate": "5/s", "reason": "mended", "dry_run": true});
    let (status, preview) = post(&desk, Role::Operator, "/v1/replays", order.clone()).await;
    assert_eq!((status, &preview["replayed"], &preview["dry_run"]), (200, &value!(3), &value!(true)));
    assert_eq!(get(&desk, "/v1/replays").await["items"], value!([]), "a look makes nothing");
    let order = value!({"filter": {"class": ["timeout"]}, "rate": "5/s", "reason": "mended"});
    let (status, job) = post(&desk, Role::Operator, "/v1/replays", order).await;
    assert_eq!((status, &job["waiting"], &job["created_by"]), (201, &value!(3), &value!("operator")));
    let id = job["id"].as_i64().unwrap();
    // Those that die later are not taken along.
    desk.dead("late", "down", DeadReason::RetriesExhausted).await;
    let items = get(&desk, &format!("/v1/replays/{id}/items?limit=2&outcome=waiting")).await;
    assert_eq!(items["items"].as_array().unwrap().len(), 2);
    let rest = get(&desk, &format!("/v1/replays/{id}/items?cursor={}", items["next"].as_str().unwrap())).await;
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    for (verb, status, state) in [
        ("pause", 200, "paused"),
        ("pause", 409, "paused"),
        ("resume", 200, "running"),
        ("cancel", 200, "cancelled"),
        ("resume", 409, "cancelled"),
    ] {
        let (found, answer) =
            post(&desk, Role::Operator, &format!("/v1/replays/{id}/{verb}"), value!({"reason": "x"})).await;
        assert_eq!((found, &answer["state"]), (status, &value!(state)), "{verb}");
    }
    assert_eq!(get(&desk, "/v1/replays?state=cancelled").await["items"][0]["id"], value!(id));
    let page = desk.store.audit(&AuditFilter::default(), None, 10).await.unwrap();
    let told: Vec<(&str, Option<i64>)> =
        page.items.iter().rev().map(|record| (record.entry.action.as_str(), record.entry.count)).collect();
    let expected = ["replay.create", "replay.pause", "replay.resume", "replay.cancel"].map(|action| (action, Some(3)));
    assert_eq!(told, expected);
}

#[tokio::test]
async fn orders_that_cannot_be_meant_name_the_field_and_editing_is_for_editors() {
    let desk = with_letters().await;
    let patch = value!([{"op": "add", "path": "/zip", "value": "8001"}]);
    for (role, body, status, field) in [
        (Role::Operator, value!({}), 422, "filter"),
        (Role::Operator, value!({"all": true, "limit": 0}), 422, "limit"),
        (Role::Operator, value!({"all": true, "rate": "fast"}), 422, "rate"),
        (Role::Operator, value!({"all": true, "max_failure_ratio": 2}), 422, "max_failure_ratio"),
        (Role::Operator, value!({"filter": {"status": ["pending"]}}), 422, "filter.status"),
        (Role::Operator, value!({"all": true, "edit_payload": patch, "dry_run": true}), 403, ""),
        (Role::Editor, value!({"all": true, "edit_payload": [{"op": "fly"}], "dry_run": true}), 422, "edit_payload"),
        (Role::Editor, value!({"all": true, "edit_payload": "x"}), 422, "edit_payload"),
        (Role::Editor, value!({"all": true, "edit_payload": patch, "dry_run": true}), 200, ""),
    ] {
        let (found, answer) = post(&desk, role, "/v1/replays", body.clone()).await;
        assert_eq!(found, status, "{body}: {answer}");
        assert_eq!(answer["errors"][0]["field"].as_str().unwrap_or_default(), field, "{body}: {answer}");
    }
    for (path, status) in
        [("/v1/replays/x", 400), ("/v1/replays/99", 404), ("/v1/replays/0", 400), ("/v1/replays?state=odd", 400)]
    {
        let found = desk.by(Role::Viewer, Method::GET, path).send().await.unwrap();
        assert_eq!(found.status(), status, "{path}");
    }
}

#[tokio::test]
async fn groups_are_counted_and_carry_an_owner_and_a_note() {
    let desk = with_letters().await;
    let groups = get(&desk, "/v1/groups?by=class").await;
    assert_eq!((&groups["items"][0]["key"], &groups["items"][0]["count"]), (&value!("timeout"), &value!(3)));
    let note = value!({"by": "class", "key": "timeout", "owner": "ana", "note": "the carrier mends it"});
    assert_eq!(post(&desk, Role::Viewer, "/v1/groups/note", note.clone()).await.0, 403);
    assert_eq!(post(&desk, Role::Operator, "/v1/groups/note", note).await.0, 200);
    let kept = value!({"by": "class", "key": "timeout", "note": "mended"});
    let (_, kept) = post(&desk, Role::Operator, "/v1/groups/note", kept).await;
    assert_eq!(kept, value!({"owner": "ana", "note": "mended"}), "what is not given stays");
    let group = get(&desk, "/v1/groups?by=class&type=order.%23").await["items"][0].clone();
    assert_eq!(
        (&group["owner"], &group["note"], &group["noted_by"]),
        (&value!("ana"), &value!("mended"), &value!("operator"))
    );
    let bad = desk.by(Role::Viewer, Method::GET, "/v1/groups?by=shop").send().await.unwrap();
    assert_eq!((bad.status().as_u16(), json(bad).await["errors"][0]["field"].clone()), (400, value!("by")));
}
