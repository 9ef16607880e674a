//! Bad input is normal input: a clear answer that names the field, and nothing lost.

use redeliver::store::access::Role;
use reqwest::Method;

use crate::desk::{Desk, json};

#[tokio::test]
async fn bad_input_is_a_problem_that_names_the_field() {
    let desk = Desk::with(|config| config.worker.max_body = 2_000).await;
    desk.submit("t1", "order.ship", "{}").await;
    let long = "x".repeat(300);
    let big = format!(r#"{{"type": "a", "payload": "{}"}}"#, "x".repeat(3_000));
    let deep = format!(r#"{{"type": "a", "payload": {}{}}}"#, "[".repeat(300), "]".repeat(300));
    let get = |path: &str| (Method::GET, path.to_owned(), None::<String>);
    let post = |path: &str, body: &str| (Method::POST, path.to_owned(), Some(body.to_owned()));
    for ((method, path, body), status, field) in [
        (get("/v1/tasks?limit=0"), 400, "limit"),
        (get("/v1/tasks?limit=x"), 400, "limit"),
        (get("/v1/tasks?limit=1&limit=2"), 400, "limit"),
        (get("/v1/tasks?cursor=abc"), 400, "cursor"),
        (get("/v1/tasks?cursor="), 400, "cursor"),
        (get("/v1/tasks?cursor=99999999999999999999"), 400, "cursor"),
        (get("/v1/audit?cursor=abc"), 400, "cursor"),
        (get("/v1/tasks?status=lost"), 400, "status"),
        (get("/v1/tasks?type=a..b"), 400, "type"),
        (get("/v1/tasks?label=x"), 400, "label"),
        (get("/v1/tasks?since=yesterday"), 400, "since"),
        (get("/v1/tasks?attempts=many"), 400, "attempts"),
        (get("/v1/tasks?http_status=x"), 400, "http_status"),
        (get("/v1/tasks?no_such=1"), 400, "no_such"),
        (get("/v1/dead-letters?status=pending"), 400, "status"),
        (get("/v1/stats?by=shop"), 400, "by"),
        (get("/v1/stats?limit=0"), 400, "limit"),
        (get("/v1/tasks/t1?wait=soon"), 400, "wait"),
        (get("/v1/policies/explain"), 400, "type"),
        (get("/v1/policies/explain?type=a..b"), 400, "type"),
        (get("/v1/policies/explain?type=a&at=never"), 400, "at"),
        (get(&format!("/v1/tasks/{long}")), 400, "id"),
        (get("/v1/tasks/%00"), 400, "id"),
        (get("/v1/tasks/%ff"), 400, "id"),
        (get("/v1/tasks/t1/attempts/x/1/attachments/0"), 400, "generation"),
        (get("/v1/tasks/t1/attempts/0/1/attachments/-1"), 400, "position"),
        (post("/v1/tasks", ""), 400, ""),
        (post("/v1/tasks", "{"), 400, ""),
        (post("/v1/tasks", "[]"), 400, ""),
        (post("/v1/tasks", "{}"), 422, "type"),
        (post("/v1/tasks", r#"{"type": 5}"#), 422, "type"),
        (post("/v1/tasks", r#"{"type": "a", "priority": 10}"#), 422, "priority"),
        (post("/v1/tasks", r#"{"type": "a", "labels": {"x": 1}}"#), 422, "labels"),
        (post("/v1/tasks", r#"{"type": "a", "no_such": 1}"#), 422, "no_such"),
        (post("/v1/tasks", r#"{"type": "a", "type": "b"}"#), 422, "type"),
        (post("/v1/tasks", r#"{"type": "a", "not_before": "soon"}"#), 422, "not_before"),
        (post("/v1/tasks", &big), 413, ""),
        (post("/v1/tasks", &deep), 422, "payload"),
        (post("/v1/tasks/t1/cancel", r#"{"reasons": "x"}"#), 422, "reasons"),
        (post("/v1/tasks/t1/cancel", r#"{"reason": 5}"#), 422, "reason"),
        (post("/v1/tasks/t1/cancel", "nothing"), 400, ""),
        // Left out is left out; white space is a body, and no JSON.
        (post("/v1/tasks/t1/cancel", "\t"), 400, ""),
        (post("/v1/discards", r#"{"reason": "x", "filter": {"status": ["lost"]}}"#), 422, "filter.status"),
        (post("/v1/discards", r#"{"reason": "x", "filter": {"nos": 1}}"#), 422, "filter.nos"),
        (post("/v1/discards", r#"{"reason": "x", "all": true, "limit": 0}"#), 422, "limit"),
        (post("/v1/discards", r#"{"reason": "  ", "all": true}"#), 422, "reason"),
        (post("/v1/breakers/open", r#"{"key": "nobody"}"#), 404, ""),
        (post("/v1/tokens", r#"{"name": "", "role": "viewer"}"#), 422, "name"),
        (post("/v1/tokens", r#"{"name": "a b", "role": "viewer"}"#), 422, "name"),
        (post("/v1/tokens", r#"{"name": "a", "role": "king"}"#), 422, "role"),
        (post("/v1/tokens", r#"{"name": "a", "role": "viewer", "expires": "soon"}"#), 422, "expires"),
        (post("/v1/tokens", r#"{"name": "a", "role": "viewer", "expires": "2001-01-01"}"#), 422, "expires"),
        (post("/v1/policies/apply", "{}"), 422, "text"),
    ] {
        let request = desk.by(Role::Admin, method, &path);
        let request = match &body {
            Some(body) => request.header("content-type", "application/json").body(body.clone()),
            None => request,
        };
        let response = request.send().await.unwrap();
        let shown = format!("{path} {}", body.as_deref().map_or("", |body| &body[..body.len().min(80)]));
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{shown}");
        let found = response.status();
        let problem = json(response).await;
        assert_eq!(found, status, "{shown}: {problem}");
        assert_eq!(problem["status"], status, "{shown}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{shown}");
        let named = problem["errors"][0]["field"].as_str().unwrap_or_default();
        assert_eq!(named, field, "{shown}: {problem}");
    }
}

#[tokio::test]
async fn a_body_of_another_kind_is_refused_as_such() {
    let desk = Desk::new().await;
    for path in ["/v1/tasks", "/v1/discards", "/v1/tokens", "/v1/tasks/t1/cancel"] {
        for media in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            let request = desk.by(Role::Admin, Method::POST, path).header("content-type", media).body("{}");
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 415, "{path} {media}");
            assert_eq!(json(response).await["errors"][0]["field"], "content-type");
        }
        let bare = desk.by(Role::Admin, Method::POST, path).body("{}").send().await.unwrap();
        assert_eq!(bare.status(), 415, "{path}");
    }
    let other = desk.by(Role::Admin, Method::PUT, "/v1/tasks").send().await.unwrap();
    assert_eq!((other.status().as_u16(), other.headers().get("allow").is_some()), (405, true));
    assert_eq!(json(other).await["type"], "urn:redeliver:method_not_allowed");
}
