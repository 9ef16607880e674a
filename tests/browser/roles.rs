//! Who may do what: a viewer sees no button, and every action refuses him; nobody comes in without a session.

use std::time::{Duration, Instant};

use redeliver::store::access::Role;
use reqwest::{Client, Response, StatusCode, redirect};

use crate::desk::{Desk, token};

/// Every address that changes something, with the least role that may.
const ACTIONS: [(&str, Role); 13] = [
    ("/tasks/wait-15-13-0/run-now", Role::Operator),
    ("/tasks/wait-15-13-1/cancel", Role::Operator),
    ("/tasks/report-0-0/discard", Role::Operator),
    ("/tasks/report-0-1/edit", Role::Editor),
    ("/dead/replay", Role::Operator),
    ("/dead/discard", Role::Operator),
    ("/dead/note", Role::Operator),
    ("/gates/open", Role::Operator),
    ("/gates/close", Role::Operator),
    ("/gates/pause", Role::Operator),
    ("/gates/resume", Role::Operator),
    ("/replays/1/pause", Role::Operator),
    ("/replays/1/cancel", Role::Operator),
];

fn client() -> Client {
    redeliver::handler::http::install_crypto();
    Client::builder().redirect(redirect::Policy::none()).build().unwrap()
}

/// Signs in; returns the cookie and the token that forms must bring.
async fn sign_in(client: &Client, desk: &Desk, role: Role) -> (String, String) {
    let form = format!("token={}", token(role));
    let response = client
        .post(desk.at("/sign-in"))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(form)
        .send()
        .await
        .unwrap();
    let cookie = response.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let page =
        client.get(desk.at("/tasks/report-0-1")).header("cookie", &cookie).send().await.unwrap().text().await.unwrap();
    let csrf = page.split("name=\"csrf\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    (cookie, csrf.to_owned())
}

async fn post(client: &Client, desk: &Desk, path: &str, cookie: &str, form: String) -> Response {
    let request =
        client.post(desk.at(path)).header("cookie", cookie).header("content-type", "application/x-www-form-urlencoded");
    request.header("accept", "text/html").body(form).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_no_action_and_every_action_refuses_him() {
    let desk = Desk::after(24, false).await;
    let client = client();
    for role in [Role::Viewer, Role::Operator] {
        let (cookie, csrf) = sign_in(&client, &desk, role).await;
        for (path, least) in ACTIONS {
            let answer = post(&client, &desk, path, &cookie, format!("csrf={csrf}")).await;
            if role < least {
                assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{role} at {path}");
                let page = answer.text().await.unwrap();
                assert!(page.contains("<!DOCTYPE html>"), "a refusal is a page too: {page}");
            } else {
                assert_ne!(answer.status(), StatusCode::FORBIDDEN, "{role} at {path}");
            }
        }
    }
    let (cookie, _) = sign_in(&client, &desk, Role::Viewer).await;
    for page in [
        "/",
        "/dead",
        "/dead/list",
        "/dead/group?by=class&key=transient",
        "/dead/replay?class=transient",
        "/gates",
        "/replays",
        "/tasks/report-1-0",
        "/tasks/wait-15-13-2",
    ] {
        let answer = client.get(desk.at(page)).header("cookie", &cookie).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{page}");
        let text = answer.text().await.unwrap();
        let forms: Vec<&str> =
            text.match_indices("method=\"post\"").map(|(at, _)| &text[at..(at + 80).min(text.len())]).collect();
        assert!(forms.iter().all(|form| form.contains("/sign-out")), "{page}: {forms:?}");
        assert!(!text.contains("href=\"/dead/replay?") && !text.contains("/edit\""), "{page}");
    }
    for (page, role) in [("/audit", Role::Editor), ("/tasks/report-0-1/edit", Role::Operator)] {
        let (cookie, _) = sign_in(&client, &desk, role).await;
        let answer = client.get(desk.at(page)).header("cookie", cookie).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{page}");
    }
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_without_the_pages_own_token_changes_nothing() {
    let desk = Desk::after(24, false).await;
    let client = client();
    let (cookie, csrf) = sign_in(&client, &desk, Role::Operator).await;
    for form in
        ["reason=x".to_owned(), "csrf=&reason=x".to_owned(), format!("csrf={}&reason=x", csrf.replace('a', "b"))]
    {
        let answer = post(&client, &desk, "/tasks/report-0-0/discard", &cookie, form).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    }
    let answer = client.get(desk.at("/dead")).send().await.unwrap();
    assert_eq!(answer.headers()["location"], "/sign-in?next=/dead");
    let status = |id: &str| {
        let id = id.to_owned();
        let store = desk.store.clone();
        async move { store.get(&[id]).await.unwrap().remove(0).unwrap().state.status }
    };
    assert_eq!(status("report-0-0").await, redeliver::task::Status::Dead);
    let answer = post(&client, &desk, "/tasks/report-0-0/discard", &cookie, format!("csrf={csrf}&reason=a+test")).await;
    assert_eq!(answer.headers()["location"], "/tasks/report-0-0?done=discarded&n=1");
    assert_eq!(status("report-0-0").await, redeliver::task::Status::Discarded);
    let again = post(&client, &desk, "/tasks/report-0-0/discard", &cookie, format!("csrf={csrf}&reason=a+test")).await;
    assert_eq!(again.status(), StatusCode::CONFLICT);
    assert!(again.text().await.unwrap().contains("discarded"), "what it is now");
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_addresses_are_answered_by_a_page_that_names_the_field() {
    let desk = Desk::after(24, false).await;
    let client = client();
    let (cookie, csrf) = sign_in(&client, &desk, Role::Operator).await;
    for (page, status, names) in [
        ("/tasks/nobody", 404, "no such task"),
        ("/nothing", 404, "nothing here"),
        ("/replays/999", 404, "no such replay job"),
        ("/replays/x", 400, ""),
        ("/replays?before=x", 400, "before"),
        ("/replays/1?outcome=x", 404, ""),
        ("/dead?by=colour", 400, "by"),
        ("/dead?attempts=many", 400, "attempts"),
        ("/dead/group?by=class&key=none", 404, "group"),
        ("/tasks?since=soon&status=gone", 200, "since"),
        ("/tasks?cursor=x", 200, "cursor"),
        ("/stats?by=colour", 200, "by"),
        ("/policies?type=a..b", 200, "type"),
        ("/dead/replay?chosen=1", 200, "nothing is selected"),
        ("/dead/replay?http-status=9999", 200, "http-status"),
        ("/tasks/report-0-1/attempts/99/attachments/0", 404, "attachment"),
        ("/tasks/report-0-1/attempts/x/attachments/0", 400, ""),
        ("/set?back=//evil.example&lang=zh", 303, ""),
        ("/assets/0/console.css", 404, ""),
    ] {
        let answer =
            client.get(desk.at(page)).header("cookie", &cookie).header("accept", "text/html").send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{page}");
        if let Some(location) = answer.headers().get("location") {
            assert_eq!(location, "/", "{page}");
        }
        let text = answer.text().await.unwrap();
        assert!(text.contains(names), "{page}: {text}");
    }
    for (path, form, names) in [
        ("/dead/replay", "rate=fast&fingerprint=x", "rate"),
        ("/dead/replay", "max_failure_ratio=7&fingerprint=x", "max_failure_ratio"),
        ("/dead/replay", "rate=1/s", "filter"),
        ("/dead/discard", "reason=x", "filter"),
        ("/dead/discard", "class=transient", "reason"),
        ("/gates/pause", "queue=none&reason=x", "queue"),
        ("/gates/open", "key=none&reason=x", "key"),
    ] {
        let answer = post(&client, &desk, path, &cookie, format!("csrf={csrf}&{form}")).await;
        assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY, "{path} {form}");
        let text = answer.text().await.unwrap();
        assert!(text.contains(names), "{path} {form}: {text}");
    }
    // A filter by a name that nobody knows must not mean everything.
    let dead = redeliver::store::Filter { statuses: vec![redeliver::task::Status::Dead], ..Default::default() };
    let before = desk.store.list(&dead, None, 100).await.unwrap().items.len();
    for path in ["/dead/discard", "/dead/replay"] {
        let form = format!("csrf={csrf}&reason=x&reason_is=poison");
        let answer = post(&client, &desk, path, &cookie, form).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{path}");
        let text = answer.text().await.unwrap();
        assert!(text.contains("reason_is"), "{path}: {text}");
    }
    assert_eq!(desk.store.list(&dead, None, 100).await.unwrap().items.len(), before);
    assert!(desk.store.replays(&[], None, 10).await.unwrap().is_empty());
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_pages_are_told_of_changes_and_a_server_that_stops_lets_them_go() {
    let desk = Desk::after(24, false).await;
    let client = client();
    let (cookie, csrf) = sign_in(&client, &desk, Role::Operator).await;
    let mut stream = client.get(desk.at("/events")).header("cookie", &cookie).send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let noted =
        post(&client, &desk, "/dead/note", &cookie, format!("csrf={csrf}&by=class&key=transient&owner=li")).await;
    assert_eq!(noted.status(), StatusCode::SEE_OTHER);
    let mut told = String::new();
    while !told.contains("event: changed") {
        let part = tokio::time::timeout(Duration::from_secs(20), stream.chunk()).await.expect("an event").unwrap();
        told.push_str(&String::from_utf8_lossy(&part.expect("the stream goes on")));
    }
    let began = Instant::now();
    let ended = tokio::spawn(async move { while let Ok(Some(_)) = stream.chunk().await {} });
    desk.stop().await;
    ended.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "an open page held it up for {:?}", began.elapsed());
}
