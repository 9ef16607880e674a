//! What the routes do.

use redeliver::store::access::{AccessStore, AuditFilter, Role};
use redeliver::task::DeadReason;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json as value};

use crate::desk::{Desk, WithJson, json};

/// What an attacker, an editor and a broken robot put into texts.
const NASTY: &str = "<script>alert(1)</script>\u{0}\u{202e}evil\u{2066}\"'\n\t\u{1b}[2J&amp;订单";

#[tokio::test]
async fn a_task_is_submitted_once_however_often_and_a_key_with_another_payload_is_refused() {
    let desk = Desk::new().await;
    let submit = |body: Value, key: Option<&str>| {
        let request = desk.by(Role::Operator, Method::POST, "/v1/tasks").json(&body);
        key.map_or(request.try_clone().unwrap(), |key| request.header("idempotency-key", key))
    };
    let body = value!({"type": "order.ship", "payload": {"order": 7}, "labels": {"shop": "s-1"}});
    let first = submit(body.clone(), Some("order-7")).send().await.unwrap();
    assert_eq!(first.status(), StatusCode::CREATED);
    let first = json(first).await;
    assert_eq!((&first["status"], &first["already_done"]), (&value!("pending"), &value!(false)));
    let again = submit(body.clone(), Some("order-7")).send().await.unwrap();
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(json(again).await["id"], first["id"]);
    let other = submit(value!({"type": "order.ship", "payload": {"order": 8}}), Some("order-7")).send().await.unwrap();
    assert_eq!(other.status(), StatusCode::CONFLICT);
    assert_eq!(json(other).await["state"], "duplicate_conflict");
    let both = value!({"type": "a", "idempotency_key": "x"});
    assert_eq!(submit(both, Some("y")).send().await.unwrap().status(), StatusCode::BAD_REQUEST);
    let page = desk.store.audit(&AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1, "one task, one entry");
}

#[tokio::test]
async fn who_waits_gets_the_stored_result_marked_already_done() {
    let desk = Desk::new().await;
    desk.succeeded("t1", r#"{"shipped": true}"#).await;
    let body = value!({"id": "t1", "type": "order.ship", "payload": {"order": 7}});
    let response = desk.by(Role::Operator, Method::POST, "/v1/tasks?wait=1s").json(&body).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let document = json(response).await;
    assert_eq!((&document["already_done"], &document["status"]), (&value!(true), &value!("succeeded")));
    assert_eq!(document["result"]["body"], value!({"shipped": true}));
    // One that does not end in time is no error.
    let body = value!({"id": "t2", "type": "order.ship"});
    let response = desk.by(Role::Operator, Method::POST, "/v1/tasks?wait=50ms").json(&body).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(json(response).await["status"], "pending");
}

#[tokio::test]
async fn a_conflict_says_what_the_task_is_now() {
    let desk = Desk::new().await;
    desk.succeeded("done", "{}").await;
    desk.dead("dead", "down", DeadReason::RetriesExhausted).await;
    desk.submit("waits", "order.ship", "{}").await;
    for (path, status, state) in [
        ("/v1/tasks/done/cancel", 409, "succeeded"),
        ("/v1/tasks/done/retry", 409, "succeeded"),
        ("/v1/tasks/dead/cancel", 409, "dead"),
        ("/v1/dead-letters/waits/replay", 409, "pending"),
        ("/v1/tasks/nobody/cancel", 404, ""),
        ("/v1/dead-letters/nobody/replay", 404, ""),
        ("/v1/tasks/waits/retry", 200, ""),
        ("/v1/tasks/waits/cancel", 200, ""),
        ("/v1/tasks/waits/cancel", 409, "cancelled"),
        ("/v1/dead-letters/dead/replay", 200, ""),
        ("/v1/dead-letters/dead/replay", 409, "pending"),
    ] {
        let response = desk.by(Role::Operator, Method::POST, path).send().await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        let document = json(response).await;
        assert_eq!(document["state"].as_str().unwrap_or_default(), state, "{path}");
    }
    let shown = desk.by(Role::Viewer, Method::GET, "/v1/dead-letters/done").send().await.unwrap();
    assert_eq!((shown.status(), json(shown).await["state"].clone()), (StatusCode::CONFLICT, value!("succeeded")));
}

#[tokio::test]
async fn two_operators_replay_the_same_letter_once_and_both_are_told_the_truth() {
    let desk = Desk::new().await;
    desk.dead("d", "down", DeadReason::RetriesExhausted).await;
    let press = || desk.by(Role::Operator, Method::POST, "/v1/dead-letters/d/replay").send();
    let (a, b) = tokio::join!(press(), press());
    let mut statuses = [a.unwrap().status(), b.unwrap().status()];
    statuses.sort();
    assert_eq!(statuses, [StatusCode::OK, StatusCode::CONFLICT]);
    let page = desk.store.audit(&AuditFilter::default(), None, 10).await.unwrap();
    let entry = &page.items[0].entry;
    assert_eq!(page.items.len(), 1);
    assert_eq!((entry.action.as_str(), entry.target.as_str(), entry.count), ("dlq.replay", "d", Some(1)));
}

#[tokio::test]
async fn discarding_by_filter_needs_a_reason_and_a_choice_and_is_told_to_the_audit() {
    let desk = Desk::new().await;
    for id in ["a", "b", "c"] {
        desk.dead(id, "down", DeadReason::RetriesExhausted).await;
    }
    let discard = async |body: Value| {
        let response = desk.by(Role::Operator, Method::POST, "/v1/discards").json(&body).send().await.unwrap();
        (response.status().as_u16(), json(response).await)
    };
    let (status, problem) = discard(value!({"all": true})).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (422, &value!("reason")));
    let (status, problem) = discard(value!({"reason": "x"})).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (422, &value!("filter")));
    let (_, dry) = discard(value!({"reason": "x", "all": true, "dry_run": true})).await;
    assert_eq!((&dry["discarded"], &dry["dry_run"]), (&value!(3), &value!(true)));
    let (status, tally) = discard(value!({"reason": "old", "filter": {"id": ["a", "b", "nobody"]}})).await;
    assert_eq!((status, tally), (200, value!({"matched": 3, "discarded": 2, "skipped": {"not_found": 1}})));
    let page = desk.store.audit(&AuditFilter::default(), None, 10).await.unwrap();
    let entry = &page.items[0].entry;
    assert_eq!((entry.who.as_str(), entry.reason.as_deref(), entry.count), ("operator", Some("old"), Some(2)));
}

#[tokio::test]
async fn nasty_texts_and_long_lines_come_back_as_they_are() {
    let desk = Desk::new().await;
    let long = "x<b>".repeat(250_000);
    let payload = value!({"a": NASTY, "b": long});
    // A label has no control characters; everything else of it may be a label.
    let label: String = NASTY.chars().filter(|c| !c.is_control()).collect();
    let body = value!({"id": "n", "type": "order.ship", "payload": payload, "labels": {"<i>": label}});
    let response = desk.by(Role::Operator, Method::POST, "/v1/tasks").json(&body).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED, "{}", response.text().await.unwrap());
    desk.run_to_death("n", NASTY, DeadReason::PermanentError).await;
    let shown = json(desk.by(Role::Viewer, Method::GET, "/v1/tasks/n").send().await.unwrap()).await;
    assert_eq!(shown["payload"], payload);
    assert_eq!(shown["labels"]["<i>"], label);
    assert_eq!(shown["failure"]["message"], NASTY);
    assert_eq!(shown["attempts"][0]["message"], NASTY);
    let found =
        json(desk.by(Role::Viewer, Method::GET, "/v1/dead-letters?text=%3Cscript%3E").send().await.unwrap()).await;
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn masked_fields_are_for_editors_only() {
    let desk = Desk::with(|config| {
        let task_type = redeliver::policy::TopicPattern::new("order.#").unwrap();
        config.console.masked =
            vec![redeliver::config::MaskedFields { task_type, fields: vec!["/card/number".into(), "/none".into()] }];
    })
    .await;
    desk.submit("m", "order.ship", r#"{"card": {"number": "4111"}, "order": 7}"#).await;
    for (role, number) in
        [(Role::Viewer, "•••"), (Role::Operator, "•••"), (Role::Editor, "4111"), (Role::Admin, "4111")]
    {
        for path in ["/v1/tasks/m", "/v1/tasks"] {
            let shown = json(desk.by(role, Method::GET, path).send().await.unwrap()).await;
            let task = if path.ends_with('m') { &shown } else { &shown["items"][0] };
            assert_eq!(task["payload"], value!({"card": {"number": number}, "order": 7}), "{role} {path}");
            assert_eq!(task["masked"].is_null(), number == "4111", "{role} {path}");
        }
    }
}

#[tokio::test]
async fn an_attachment_never_runs_as_a_page_of_ours() {
    let desk = Desk::new().await;
    desk.submit("s", "order.ship", "{}").await;
    let page = b"<script>fetch('/v1/tokens')</script>".to_vec();
    desk.fail_with_attachments("s", vec![("a.html", "text/html", page.clone()), ("b.png", "image/png", vec![1, 2])])
        .await;
    let look = async |position: usize| {
        let path = format!("/v1/tasks/s/attempts/0/1/attachments/{position}");
        desk.by(Role::Viewer, Method::GET, &path).send().await.unwrap()
    };
    let (html, picture) = (look(0).await, look(1).await);
    for (response, media) in [(&html, "application/octet-stream"), (&picture, "image/png")] {
        assert_eq!(response.headers()["content-type"], media);
        assert_eq!(response.headers()["content-security-policy"], "sandbox; default-src 'none'");
        assert_eq!(response.headers()["content-disposition"], "attachment");
    }
    assert_eq!((html.bytes().await.unwrap().to_vec(), picture.bytes().await.unwrap().to_vec()), (page, vec![1, 2]));
    assert_eq!(look(2).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn lists_go_on_where_the_page_before_ended() {
    let desk = Desk::new().await;
    for n in 0..5 {
        desk.submit(&format!("t{n}"), "order.ship", "{}").await;
    }
    let page = async |query: &str| {
        json(desk.by(Role::Viewer, Method::GET, &format!("/v1/tasks?{query}")).send().await.unwrap()).await
    };
    let ids = |page: &Value| {
        page["items"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = page("limit=2").await;
    assert_eq!(ids(&first), ["t4", "t3"]);
    let next = page(&format!("limit=9&cursor={}", first["next"].as_str().unwrap())).await;
    assert_eq!((ids(&next), &next["next"]), (vec!["t2".into(), "t1".into(), "t0".into()], &Value::Null));
    assert_eq!(ids(&page("type=order.%23&id=t1&id=t3&status=pending").await), ["t3", "t1"]);
}

#[tokio::test]
async fn tokens_are_made_shown_once_used_and_revoked() {
    let desk = Desk::new().await;
    let make = async |body: Value| desk.by(Role::Admin, Method::POST, "/v1/tokens").json(&body).send().await.unwrap();
    let made = make(value!({"name": "night", "role": "operator", "expires": "1h", "reason": "on call"})).await;
    assert_eq!(made.status(), StatusCode::CREATED);
    let secret = json(made).await["token"].as_str().unwrap().to_owned();
    let me = || desk.request(Method::GET, "/v1/me").bearer_auth(&secret).send();
    assert_eq!(json(me().await.unwrap()).await, value!({"who": "night", "role": "operator", "read_only": false}));
    assert_eq!(make(value!({"name": "night", "role": "viewer"})).await.status(), StatusCode::CONFLICT);
    let list = json(desk.by(Role::Admin, Method::GET, "/v1/tokens").send().await.unwrap()).await;
    assert!(!list.to_string().contains(&secret) && list.to_string().contains("night"));
    let revoke = || desk.by(Role::Admin, Method::DELETE, "/v1/tokens/night").send();
    assert_eq!(revoke().await.unwrap().status(), StatusCode::OK);
    assert_eq!(me().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(revoke().await.unwrap().status(), StatusCode::CONFLICT);
    let audit = json(desk.by(Role::Admin, Method::GET, "/v1/audit?limit=1").send().await.unwrap()).await;
    assert_eq!((&audit["items"][0]["action"], &audit["items"][0]["who"]), (&value!("token.revoke"), &value!("admin")));
    assert!(audit["next"].is_string());
}

#[tokio::test]
async fn queues_are_paused_and_rules_are_explained() {
    let desk = Desk::new().await;
    let post = async |role: Role, path: &str, body: Value| {
        let response = desk.by(role, Method::POST, path).json(&body).send().await.unwrap();
        (response.status().as_u16(), json(response).await)
    };
    let get = async |path: &str| json(desk.by(Role::Viewer, Method::GET, path).send().await.unwrap()).await;
    let (status, _) =
        post(Role::Operator, "/v1/queues/pause", value!({"queue": "default", "reason": "maintenance"})).await;
    assert_eq!(status, 200);
    let queues = get("/v1/queues").await;
    let lane = queues["items"].as_array().unwrap().iter().find(|queue| queue["role"] == "tasks").unwrap().clone();
    assert_eq!((&lane["paused"], &lane["pause_reason"]), (&value!(true), &value!("maintenance")));
    assert_eq!(post(Role::Operator, "/v1/queues/resume", value!({"queue": "default"})).await.0, 200);
    assert_eq!(post(Role::Operator, "/v1/queues/resume", value!({"queue": "default"})).await.0, 404);
    for body in
        [value!({}), value!({"queue": "nobody"}), value!({"queue": "default", "type": "a"}), value!({"type": "a..b"})]
    {
        assert_eq!(post(Role::Operator, "/v1/queues/pause", body.clone()).await.0, 422, "{body}");
    }
    let explained = get("/v1/policies/explain?type=order.ship&label=shop%3Da").await;
    assert_eq!(explained["schedules"][0]["retries"][0]["delay_least_ms"], 900_000);
    let text = "[[policy]]\nname = 'x'\nbackoff = { fixed = '1m' }\nmax_retry = 3\n";
    let (status, problem) = post(Role::Operator, "/v1/policies/check", value!({ "text": text })).await;
    assert_eq!(status, 422);
    assert!(problem["errors"][0]["message"].as_str().unwrap().starts_with("text:4:"), "{problem}");
    let text = "[[policy]]\nname = 'x'\ntype = '#'\nbackoff = { fixed = '1m' }\n";
    let (status, applied) = post(Role::Editor, "/v1/policies/apply", value!({"text": text, "reason": "slower"})).await;
    assert_eq!((status, &applied["version"], &applied["changed"]), (200, &value!(1), &value!(true)));
    let history = get("/v1/policies/history").await;
    assert_eq!(
        (&history["items"][0]["applied_by"], &history["items"][0]["reason"]),
        (&value!("editor"), &value!("slower"))
    );
    assert_eq!(get("/v1/stats").await["by"], "type");
    assert_eq!(get("/v1/workers").await["items"], value!([]));
}
