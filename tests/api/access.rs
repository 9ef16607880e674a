//! Nobody gets past the door unrecognised.

use std::time::{Duration, Instant};

use redeliver::api::secret;
use redeliver::store::Store as _;
use redeliver::store::access::{AccessStore, AuditFilter, Role};
use reqwest::{Method, StatusCode};
use tokio::io::AsyncWriteExt as _;

use crate::desk::{Desk, cookie_of, json};

#[tokio::test]
async fn access_is_on_by_default_and_probes_need_none() {
    let desk = Desk::new().await;
    for (path, status) in
        [("/livez", 200), ("/readyz", 200), ("/v1/tasks", 401), ("/v1/no-such-thing", 401), ("/tasks", 303)]
    {
        let response = desk.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        let headers = response.headers();
        assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'self';"), "{path}");
        assert_eq!(
            (&headers["x-content-type-options"], &headers["x-frame-options"]),
            (&"nosniff".parse().unwrap(), &"DENY".parse().unwrap())
        );
    }
    let refused = desk.request(Method::GET, "/v1/tasks").send().await.unwrap();
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(refused.headers()["www-authenticate"], "Bearer");
    let problem = json(refused).await;
    assert_eq!((problem["status"].as_u64(), problem["type"].as_str()), (Some(401), Some("urn:redeliver:unauthorized")));
}

#[tokio::test]
async fn a_wrong_or_revoked_or_expired_token_opens_nothing() {
    let desk = Desk::new().await;
    let look = async |value: &str| {
        let request = desk.request(Method::GET, "/v1/nothing").header("authorization", value);
        request.send().await.unwrap().status()
    };
    let good = format!("Bearer {}", crate::desk::token_of(Role::Viewer));
    assert_eq!(look(&good).await, StatusCode::NOT_FOUND, "recognised, and there is nothing");
    for wrong in ["Bearer x", "Bearer ", "Basic dmlld2Vy", "viewer"] {
        assert_eq!(look(wrong).await, StatusCode::UNAUTHORIZED, "{wrong}");
    }
    let by_role = desk.by(Role::Viewer, Method::GET, "/v1/nothing").send().await.unwrap();
    assert_eq!(by_role.status(), StatusCode::NOT_FOUND);
    desk.store.revoke_token("viewer").await.unwrap();
    assert_eq!(look(&good).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_session_needs_its_cookie_and_for_changes_its_csrf_token_and_ends() {
    let desk = Desk::new().await;
    let cookie = desk.sign_in(Role::Operator).await;
    let with = |method: Method, path: &str| desk.request(method, path).header("cookie", &cookie);
    assert_eq!(with(Method::GET, "/nothing").send().await.unwrap().status(), StatusCode::NOT_FOUND);
    let csrf = secret::csrf_of(cookie.split_once('=').unwrap().1);
    // A change without the token, with a wrong one, from another page.
    for (name, value, status) in [
        ("x-nothing", "", StatusCode::FORBIDDEN),
        ("x-csrf-token", "wrong", StatusCode::FORBIDDEN),
        ("x-csrf-token", csrf.as_str(), StatusCode::NOT_FOUND),
    ] {
        let response = with(Method::POST, "/nothing").header(name, value).send().await.unwrap();
        assert_eq!(response.status(), status, "{name}: {value}");
    }
    let elsewhere =
        with(Method::POST, "/nothing").header("x-csrf-token", &csrf).header("origin", "http://evil.example");
    assert_eq!(elsewhere.send().await.unwrap().status(), StatusCode::FORBIDDEN);
    let form = |body: String| desk.form("/nothing", body).header("cookie", &cookie);
    assert_eq!(form("a=b".into()).send().await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(form(format!("a=b&csrf={csrf}")).send().await.unwrap().status(), StatusCode::NOT_FOUND);
    // Signing out ends it, and so does time.
    let out = with(Method::POST, "/sign-out").header("x-csrf-token", &csrf).send().await.unwrap();
    assert_eq!(out.status(), StatusCode::SEE_OTHER);
    assert_eq!(with(Method::GET, "/nothing").send().await.unwrap().status(), StatusCode::SEE_OTHER);
    let cookie = desk.sign_in(Role::Viewer).await;
    desk.clock.advance(12 * 3_600_000);
    let over = desk.request(Method::GET, "/v1/tasks").header("cookie", &cookie).send().await.unwrap();
    assert_eq!(over.status(), StatusCode::UNAUTHORIZED);
    let page = desk.store.audit(&AuditFilter::default(), None, 10).await.unwrap();
    let actions: Vec<&str> = page.items.iter().map(|record| record.entry.action.as_str()).collect();
    assert_eq!(actions, ["sign_in", "sign_out", "sign_in"]);
}

#[tokio::test]
async fn a_page_of_the_console_is_changed_by_operators_only_and_not_read_only() {
    let desk = Desk::new().await;
    let post = async |desk: &Desk, role: Role| {
        let cookie = desk.sign_in(role).await;
        let csrf = secret::csrf_of(cookie.split_once('=').unwrap().1);
        let request = desk.request(Method::POST, "/nothing").header("cookie", cookie).header("x-csrf-token", csrf);
        request.send().await.unwrap().status()
    };
    assert_eq!(post(&desk, Role::Viewer).await, StatusCode::FORBIDDEN);
    assert_eq!(post(&desk, Role::Operator).await, StatusCode::NOT_FOUND);
    let desk = Desk::with(|config| config.console.read_only = true).await;
    assert_eq!(post(&desk, Role::Admin).await, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn the_first_link_signs_an_admin_in_once() {
    let desk = Desk::new().await;
    assert_eq!(desk.server.first_link().await.unwrap(), None, "there are tokens");
    let link = desk.server.link("first sign-in").await.unwrap();
    let path = link.strip_prefix(&format!("http://{}", desk.address)).unwrap();
    let response = desk.request(Method::GET, path).send().await.unwrap();
    let cookie = cookie_of(&response).unwrap();
    let line = response.headers()["set-cookie"].to_str().unwrap();
    assert!(line.contains("HttpOnly") && line.contains("SameSite=Strict") && !line.contains("Secure"), "{line}");
    let inside = desk.request(Method::GET, "/nothing").header("cookie", cookie).send().await.unwrap();
    assert_eq!(inside.status(), StatusCode::NOT_FOUND);
    let again = desk.request(Method::GET, path).send().await.unwrap();
    assert_eq!((again.status(), cookie_of(&again)), (StatusCode::SEE_OTHER, None), "used up");
    // Behind a proxy that speaks TLS the cookie goes over TLS only.
    let form = format!("token={}&next=//evil.example", crate::desk::token_of(Role::Viewer));
    let behind = desk.form("/sign-in", form).header("x-forwarded-proto", "https").send().await.unwrap();
    assert_eq!(behind.headers()["location"], "/", "and leads nowhere else");
    assert!(behind.headers()["set-cookie"].to_str().unwrap().ends_with("; Secure"));
}

#[tokio::test]
async fn who_guesses_tokens_waits() {
    let desk = Desk::new().await;
    for _ in 0..10 {
        let response = desk.form("/sign-in", "token=guess".into()).send().await.unwrap();
        assert_eq!(response.headers()["location"], "/sign-in?failed=1");
    }
    for _ in 0..2 {
        let response = desk.form("/sign-in", "token=guess".into()).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(response.headers().contains_key("retry-after"));
    }
    let guessed = desk.request(Method::GET, "/sign-in/guess").send().await.unwrap();
    assert_eq!(guessed.status(), StatusCode::TOO_MANY_REQUESTS, "a link is a guess like a token");
    // Others come from the same address where a proxy stands before the server.
    desk.sign_in(Role::Admin).await;
    let link = desk.server.link("li").await.unwrap();
    let path = link.strip_prefix(&format!("http://{}", desk.address)).unwrap();
    assert!(cookie_of(&desk.request(Method::GET, path).send().await.unwrap()).is_some());
    desk.clock.advance(60_000);
    let response = desk.form("/sign-in", "token=guess".into()).send().await.unwrap();
    assert_eq!(response.headers()["location"], "/sign-in?failed=1");
}

#[tokio::test]
async fn asking_for_the_head_of_a_link_does_not_use_it_up() {
    let desk = Desk::new().await;
    let link = desk.server.link("li").await.unwrap();
    let path = link.strip_prefix(&format!("http://{}", desk.address)).unwrap();
    let head = desk.request(Method::HEAD, path).send().await.unwrap();
    assert_eq!((head.status(), cookie_of(&head)), (StatusCode::METHOD_NOT_ALLOWED, None));
    assert!(cookie_of(&desk.request(Method::GET, path).send().await.unwrap()).is_some());
}

#[tokio::test]
async fn a_change_whose_client_hangs_up_is_in_the_audit() {
    let desk = Desk::new().await;
    let token = crate::desk::token_of(Role::Operator);
    for n in 0..20 {
        let body = format!(r#"{{"id": "t{n}", "type": "order.ship"}}"#);
        let head = format!("POST /v1/tasks HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}", desk.address);
        let kind = format!("content-type: application/json\r\ncontent-length: {}", body.len());
        let mut stream = tokio::net::TcpStream::connect(desk.address).await.unwrap();
        stream.write_all(format!("{head}\r\n{kind}\r\n\r\n{body}").as_bytes()).await.unwrap();
    }
    // Whether a request whose client is gone is looked at at all is the server's affair; what it does is told.
    let ids: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let made = desk.store.get(&ids).await.unwrap().into_iter().flatten().count();
        let told = desk.store.audit(&AuditFilter::default(), None, 100).await.unwrap().items.len();
        if made > 0 && made == told {
            break;
        }
        assert!(Instant::now() < until, "{made} tasks, {told} entries");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_name_that_was_pointed_here_is_not_ours() {
    let desk = Desk::with(|config| config.console.hosts = vec!["redeliver.example".into()]).await;
    for (host, status) in [
        ("evil.example", StatusCode::MISDIRECTED_REQUEST),
        ("redeliver.example", StatusCode::OK),
        ("REDELIVER.example:443", StatusCode::OK),
        ("localhost:8780", StatusCode::OK),
        ("[::1]:8780", StatusCode::OK),
    ] {
        let response = desk.request(Method::GET, "/livez").header("host", host).send().await.unwrap();
        assert_eq!(response.status(), status, "{host}");
    }
}
