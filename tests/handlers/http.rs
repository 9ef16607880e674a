//! What the HTTP handler sends, and what it makes of well-formed answers (C1–C5).

use std::path::PathBuf;
use std::time::Duration;

use redeliver::handler::http::{HttpHandler, HttpRouteError};
use redeliver::handler::{Caps, Handler, HttpRoute, Report};
use redeliver::task::{AttachmentBody, Outcome, Verdict};
use serde_json::json;

use super::support::{Server, TRACEPARENT, TRACESTATE, attempt, failed, response, succeeded, traced_attempt};

pub fn route(url: &str) -> HttpRoute {
    HttpRoute {
        url: url.parse().unwrap(),
        method: reqwest::Method::POST,
        timeout: Duration::from_secs(20),
        headers: Vec::new(),
        proxy: None,
        ca_file: None,
        code: None,
        expect: Vec::new(),
        defaults: Vec::new(),
    }
}

/// A route that looks for a code and an order id.
fn asking_route(url: &str) -> HttpRoute {
    HttpRoute { code: Some("/error_code".into()), expect: vec!["/order_id".into()], ..route(url) }
}

pub async fn run(route: HttpRoute) -> Report {
    HttpHandler::new(route, Caps::default()).unwrap().run(attempt(r#"{"order": 5}"#)).await
}

async fn answered(bytes: Vec<u8>) -> Outcome {
    run(route(&Server::saying(bytes).await.url())).await.outcome
}

async fn answered_asking(bytes: Vec<u8>) -> Outcome {
    run(asking_route(&Server::saying(bytes).await.url())).await.outcome
}

#[tokio::test]
async fn the_trace_of_an_attempt_is_sent_on_and_none_is_made_up() {
    let server = Server::saying(response("200 OK", "", "")).await;
    let handler = HttpHandler::new(route(&server.url()), Caps::default()).unwrap();
    handler.run(traced_attempt("{}")).await;
    handler.run(attempt("{}")).await;
    let requests = server.requests();
    assert!(requests[0].head.contains(&format!("traceparent: {TRACEPARENT}\r\n")), "{}", requests[0].head);
    assert!(requests[0].head.contains(&format!("tracestate: {TRACESTATE}\r\n")), "{}", requests[0].head);
    assert!(!requests[1].head.contains("trace"), "{}", requests[1].head);
}

#[tokio::test]
async fn the_payload_and_the_names_of_the_attempt_are_sent() {
    let server = Server::saying(response("200 OK", "", "")).await;
    let mut wanted = route(&server.url());
    wanted.headers = vec![("Authorization".into(), "Bearer s3cret".into()), ("X-Retry-Count".into(), "99".into())];
    assert_eq!(succeeded(&run(wanted).await.outcome), None);
    let request = server.requests().pop().unwrap();
    assert!(request.head.starts_with("POST /call HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.body, br#"{"order": 5}"#);
    let expected = [
        ("content-type", "application/json"),
        ("authorization", "Bearer s3cret"),
        ("idempotency-key", "key-1"),
        ("x-retry-count", "2"),
        ("redeliver-task-id", "task-1"),
        ("redeliver-task-type", "order.ship"),
        ("redeliver-attempt", "3"),
    ];
    for (name, value) in expected {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    assert_eq!(request.header("traceparent"), None);
}

#[tokio::test]
async fn a_content_type_of_the_route_stands() {
    let server = Server::saying(response("200 OK", "", "")).await;
    let mut wanted = route(&server.url());
    wanted.headers = vec![("content-type".into(), "application/cloudevents+json".into())];
    succeeded(&run(wanted).await.outcome);
    assert_eq!(server.requests()[0].header("content-type"), Some("application/cloudevents+json"));
}

#[tokio::test]
async fn methods_without_a_body_send_none() {
    for method in ["GET", "HEAD", "DELETE"] {
        let server = Server::saying(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
        let wanted = HttpRoute { method: method.parse().unwrap(), ..route(&server.url()) };
        succeeded(&run(wanted).await.outcome);
        let request = server.requests().pop().unwrap();
        assert!(request.head.starts_with(method) && request.body.is_empty());
        assert_eq!((request.header("content-type"), request.header("transfer-encoding")), (None, None));
    }
}

#[tokio::test]
async fn an_id_that_no_header_can_carry_is_a_bad_payload_and_nothing_is_sent() {
    let server = Server::saying(response("200 OK", "", "")).await;
    let mut attempt = attempt("null");
    let mut spec = (*attempt.task).clone();
    spec.id = "a\nb".into();
    attempt.task = spec.into();
    let report = HttpHandler::new(route(&server.url()), Caps::default()).unwrap().run(attempt).await;
    let (failure, ..) = failed(&report.outcome);
    assert_eq!(failure.class, "bad_payload");
    assert!(failure.message.contains("redeliver-task-id"), "{}", failure.message);
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn the_response_is_the_result() {
    let result =
        succeeded(&answered(response("201 Created", "content-type: text/csv; header=present\r\n", "a,b")).await);
    let result = result.unwrap();
    assert_eq!((result.media_type.as_str(), result.body.as_slice()), ("text/csv; header=present", &b"a,b"[..]));
    assert!(!result.truncated);
    let untyped = succeeded(&answered(response("200 OK", "", [0xff, 0])).await).unwrap();
    assert_eq!((untyped.media_type.as_str(), untyped.body), ("application/octet-stream", vec![0xff, 0]));
}

#[tokio::test]
async fn every_status_has_the_class_of_the_requirements() {
    let table = [
        (429, "rate_limited"),
        (408, "server_error"),
        (425, "server_error"),
        (500, "server_error"),
        (502, "server_error"),
        (503, "server_error"),
        (504, "server_error"),
        (300, "http_status"),
        (301, "http_status"),
        (304, "http_status"),
        (307, "http_status"),
        (400, "http_status"),
        (401, "http_status"),
        (403, "http_status"),
        (404, "http_status"),
        (409, "http_status"),
        (418, "http_status"),
        (422, "http_status"),
        (499, "http_status"),
        (501, "http_status"),
        (505, "http_status"),
        (599, "http_status"),
        (999, "http_status"),
    ];
    for (status, class) in table {
        let (failure, verdict, _) = failed(&answered(response(&format!("{status} Odd"), "", "")).await);
        assert_eq!((failure.class.as_str(), failure.http_status), (class, Some(status)));
        assert!(failure.message.starts_with(&format!("HTTP {status}")), "{}", failure.message);
        assert_eq!(verdict, Verdict::ByPolicy);
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let server = Server::saying(response("302 Found", "location: /elsewhere\r\n", "")).await;
    let (failure, ..) = failed(&run(route(&server.url())).await.outcome);
    assert_eq!(failure.message, "HTTP 302 Found: redirects are not followed");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn the_message_shows_the_body_on_one_line_and_the_rest_is_attached() {
    let body = format!("<h1>\r\n  Down\0 for\tnow</h1>{}", "x".repeat(100_000));
    let bytes = response("503 Service Unavailable", "content-type: text/html\r\n", &body);
    let report = run(route(&Server::saying(bytes).await.url())).await;
    let (failure, ..) = failed(&report.outcome);
    assert!(
        failure.message.starts_with("HTTP 503 Service Unavailable: <h1> Down for now</h1>xxx"),
        "{}",
        failure.message
    );
    assert!(failure.message.len() < 400 && failure.message.ends_with('…'));
    let attachment = &report.attachments[0];
    assert_eq!((attachment.name.as_str(), attachment.media_type.as_str()), ("response.html", "text/html"));
    let AttachmentBody::Bytes(bytes) = &attachment.body else { panic!("no bytes") };
    assert_eq!(bytes.len(), 16 * 1024);
}

#[tokio::test]
async fn screenshots_that_the_other_side_keeps_are_linked() {
    let headers = "redeliver-attachment: https://robot.example/shots/1.png?sig=x\r\nredeliver-attachment: https://robot.example\r\n";
    let report = run(route(&Server::saying(response("500 Oops", headers, "")).await.url())).await;
    let names: Vec<_> = report.attachments.iter().map(|a| (a.name.as_str(), a.media_type.as_str())).collect();
    assert_eq!(names, [("1.png", "image/png"), ("robot.example", "application/octet-stream")]);
    assert_eq!(report.attachments[0].body, AttachmentBody::Link("https://robot.example/shots/1.png?sig=x".into()));
}

#[tokio::test]
async fn a_platform_code_is_a_failure_also_on_200() {
    let table: [(serde_json::Value, Option<&str>); 22] = [
        (json!(null), None),
        (json!(0), None),
        (json!(0.0), None),
        (json!("0"), None),
        (json!(""), None),
        (json!(" "), None),
        (json!(false), None),
        (json!("ok"), None),
        (json!("OK"), None),
        (json!("success"), None),
        (json!("Success"), None),
        (json!(200), None),
        (json!([]), None),
        (json!({}), None),
        (json!(1000001), Some("1000001")),
        (json!("1000001"), Some("1000001")),
        (json!(1000001.0), Some("1000001")),
        (json!(-1), Some("-1")),
        (json!(18446744073709551615_u64), Some("18446744073709551615")),
        (json!("rate_limit"), Some("rate_limit")),
        (json!(true), Some("true")),
        (json!({"reason": "x"}), Some(r#"{"reason":"x"}"#)),
    ];
    for (value, code) in table {
        let body = json!({ "error_code": value, "order_id": 1 }).to_string();
        let outcome = answered_asking(response("200 OK", "", &body)).await;
        match code {
            None => assert!(succeeded(&outcome).is_some(), "{value}"),
            Some(code) => {
                let (failure, verdict, _) = failed(&outcome);
                assert_eq!((failure.class.as_str(), failure.code.as_deref()), ("platform_code", Some(code)));
                assert_eq!((failure.http_status, verdict), (Some(200), Verdict::ByPolicy));
                assert!(
                    failure.message.starts_with(&format!("HTTP 200 OK: platform code {code}: {{")),
                    "{}",
                    failure.message
                );
            }
        }
    }
    // Absent, and beside an expectation that fails: the code is the better answer.
    assert!(succeeded(&answered_asking(response("200 OK", "", r#"{"order_id":1}"#)).await).is_some());
    let (failure, ..) = failed(&answered_asking(response("200 OK", "", r#"{"error_code":"system_error"}"#)).await);
    assert_eq!(failure.code.as_deref(), Some("system_error"));
}

#[tokio::test]
async fn a_platform_code_is_recorded_on_an_error_status_too() {
    let table = [("400 Bad", "http_status"), ("429 Slow", "rate_limited"), ("500 Oops", "server_error")];
    for (status, class) in table {
        let (failure, ..) = failed(&answered_asking(response(status, "", r#"{"error_code":1000001}"#)).await);
        assert_eq!((failure.class.as_str(), failure.code.as_deref()), (class, Some("1000001")));
    }
    let (failure, ..) = failed(&answered_asking(response("500 Oops", "", "<html>")).await);
    assert_eq!((failure.class.as_str(), failure.code), ("server_error", None));
}

#[tokio::test]
async fn a_response_that_is_not_what_was_asked_for_is_invalid() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let table: Vec<(Vec<u8>, &str)> = vec![
        (b"<html>".to_vec(), "body is not JSON: expected value at line 1 column 1: <html>"),
        (b"".to_vec(), "body is not JSON: EOF"),
        (b"{\"order_id\": \"a".to_vec(), "body is not JSON: EOF while parsing a string"),
        (b"{\"order_id\":\"\xff\"}".to_vec(), "body is not JSON: invalid unicode"),
        (deep.into_bytes(), "body is not JSON: recursion limit exceeded"),
        (b"{}".to_vec(), r#""/order_id" is missing: {}"#),
        (b"[]".to_vec(), r#""/order_id" is missing"#),
        (b"5".to_vec(), r#""/order_id" is missing"#),
        (b"null".to_vec(), r#""/order_id" is missing"#),
        (br#"{"order_id":null}"#.to_vec(), r#""/order_id" is null"#),
        (br#"{"order_id":""}"#.to_vec(), r#""/order_id" is empty"#),
        (br#"{"order_id":[]}"#.to_vec(), r#""/order_id" is empty"#),
        (br#"{"order_id":{}}"#.to_vec(), r#""/order_id" is empty"#),
    ];
    for (body, problem) in table {
        let (failure, verdict, _) = failed(&answered_asking(response("200 OK", "", &body)).await);
        assert!(failure.message.starts_with("HTTP 200 OK: "), "{}", failure.message);
        assert!(failure.message.contains(problem), "{:?} lacks {problem:?}", failure.message);
        assert_eq!((failure.class.as_str(), verdict), ("invalid_response", Verdict::ByPolicy));
    }
    for body in [&br#"{"order_id":0}"#[..], br#"{"order_id":false}"#, b"\xef\xbb\xbf{\"order_id\":1}"] {
        assert!(succeeded(&answered_asking(response("200 OK", "", body)).await).is_some());
    }
}

#[tokio::test]
async fn an_empty_204_is_a_success_unless_expect_asks_for_something() {
    let empty = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec();
    assert_eq!(succeeded(&answered(empty.clone()).await), None);
    let (failure, ..) = failed(&answered_asking(empty.clone()).await);
    assert_eq!(failure.message, r#"HTTP 204 No Content: no body, wanted "/order_id""#);
    let only_code = HttpRoute { expect: Vec::new(), ..asking_route(&Server::saying(empty).await.url()) };
    assert_eq!(succeeded(&run(only_code).await.outcome), None);
}

#[tokio::test]
async fn missing_fields_are_filled_from_the_configuration_before_expect_looks() {
    let filled = |body: &'static str| async move {
        let server = Server::saying(response("200 OK", "content-type: text/plain\r\n", body)).await;
        let mut wanted = route(&server.url());
        wanted.expect = vec!["/order_id".into(), "/note".into()];
        wanted.defaults =
            vec![("/note".into(), json!("none")), ("/a~1b/0".into(), json!(7)), ("/list/5".into(), json!(1))];
        run(wanted).await
    };
    let report = filled(r#"{"order_id":9007199254740993,"list":[],"note":null}"#).await;
    assert_eq!(report.degraded.as_deref(), Some("defaults"), "F1: what was filled is not the real thing");
    let result = succeeded(&report.outcome).unwrap();
    assert_eq!(result.media_type, "application/json");
    let document: serde_json::Value = serde_json::from_slice(&result.body).unwrap();
    let expected = json!({"order_id": 9007199254740993_u64, "list": [], "note": "none", "a/b": {"0": 7}});
    assert_eq!(document, expected);
    let (failure, ..) = failed(&filled(r#"{"note":"x"}"#).await.outcome);
    assert!(failure.message.contains(r#""/order_id" is missing"#));
    // Nothing to fill: the body stays as it came.
    let untouched = r#"{ "order_id": 1, "note": "n", "a/b": {"0": 1}, "list": 3 }"#;
    let report = filled(untouched).await;
    assert_eq!(report.degraded, None);
    let result = succeeded(&report.outcome).unwrap();
    assert_eq!((result.body, result.media_type), (untouched.as_bytes().to_vec(), "text/plain".to_owned()));
}

#[tokio::test]
async fn the_verdict_header_wins() {
    let with = |status: &'static str, word: &'static str, body: &'static str| async move {
        answered_asking(response(status, &format!("redeliver-verdict: {word}\r\n"), body)).await
    };
    let result = succeeded(&with("500 Oops", "success", "done all the same").await).unwrap();
    assert_eq!(result.body, b"done all the same");
    assert!(succeeded(&with("200 OK", " SUCCESS ", "not json").await).is_some());
    let (failure, verdict, _) = failed(&with("400 Bad", "retry", "{}").await);
    assert_eq!((failure.class.as_str(), verdict), ("http_status", Verdict::Retry));
    let (failure, verdict, _) = failed(&with("503 Busy", "dead", "{}").await);
    assert_eq!((failure.class.as_str(), verdict), ("server_error", Verdict::Dead));
    let (failure, verdict, _) = failed(&with("200 OK", "dead", r#"{"order_id":1}"#).await);
    assert_eq!((failure.class.as_str(), verdict), ("failed", Verdict::Dead));
    assert_eq!(failure.message, r#"HTTP 200 OK: Redeliver-Verdict: dead: {"order_id":1}"#);
    let (failure, verdict, _) = failed(&with("200 OK", "maybe", r#"{"order_id":1}"#).await);
    assert_eq!((failure.class.as_str(), verdict), ("invalid_response", Verdict::ByPolicy));
    assert!(failure.message.contains(r#"Redeliver-Verdict is "maybe""#), "{}", failure.message);
}

#[tokio::test]
async fn retry_after_is_read_on_every_failure() {
    let date = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let table = [
        ("503 Busy", "retry-after: 1.5\r\n".to_owned(), Some(1500)),
        ("429 Slow", "retry-after: 1e9\r\n".to_owned(), Some(1_000_000_000_000)),
        ("400 Bad", "retry-after: 0\r\n".to_owned(), Some(0)),
        ("503 Busy", "retry-after: -1\r\n".to_owned(), None),
        ("503 Busy", "retry-after: soon\r\n".to_owned(), None),
        ("503 Busy", format!("{date}retry-after: Sun, 06 Nov 1994 08:50:37 GMT\r\n"), Some(60_000)),
        ("503 Busy", format!("{date}retry-after: Sun, 06 Nov 1994 08:48:37 GMT\r\n"), Some(0)),
        ("503 Busy", "date: nonsense\r\nretry-after: Sun, 06 Nov 1994 08:50:37 GMT\r\n".to_owned(), Some(0)),
        ("503 Busy", String::new(), None),
    ];
    for (status, headers, delay_ms) in table {
        let (_, _, asked) = failed(&answered(response(status, &headers, "")).await);
        assert_eq!(asked.map(|asked| asked.delay_ms), delay_ms, "{headers}");
    }
    let body = r#"{"error_code":"rate_limit"}"#;
    let (_, _, asked) = failed(&answered_asking(response("200 OK", "retry-after: 3\r\n", body)).await);
    assert_eq!(asked.map(|asked| asked.delay_ms), Some(3000));
}

#[tokio::test]
async fn a_proxy_is_used_when_the_route_names_one_and_never_otherwise() {
    let proxy = Server::saying(response("200 OK", "", "by proxy")).await;
    let mut wanted = route("http://no-such-host.invalid/call");
    wanted.proxy = Some(format!("http://user:pass@{}", proxy.address));
    assert_eq!(succeeded(&run(wanted).await.outcome).unwrap().body, b"by proxy");
    let request = proxy.requests().pop().unwrap();
    assert!(request.head.starts_with("POST http://no-such-host.invalid/call HTTP/1.1"), "{}", request.head);
    assert!(request.header("proxy-authorization").is_some());
}

#[test]
fn a_route_that_cannot_be_used_says_what_is_wrong() {
    type Change = fn(&mut HttpRoute);
    let refused = |change: Change| {
        let mut wanted = route("http://a.example/");
        change(&mut wanted);
        HttpHandler::new(wanted, Caps::default()).map(|_| ()).unwrap_err().to_string()
    };
    let table: [(Change, &str); 10] = [
        (|r| r.url = "ftp://a.example/".parse().unwrap(), "url has the scheme \"ftp\", wanted http or https"),
        (|r| r.code = Some("error".into()), "code: \"error\" is no JSON pointer, wanted one like \"/error/code\""),
        (|r| r.code = Some("/a~2".into()), "code: \"/a~2\" is no JSON pointer, wanted one like \"/error/code\""),
        (
            |r| r.expect = vec!["/a".into(), "b".into()],
            "expect: \"b\" is no JSON pointer, wanted one like \"/error/code\"",
        ),
        (
            |r| r.defaults = vec![("x".into(), json!(1))],
            "defaults: \"x\" is no JSON pointer, wanted one like \"/error/code\"",
        ),
        (|r| r.headers = vec![("a b".into(), "s3cret".into())], "headers: \"a b\" is no header name"),
        (|r| r.headers = vec![("a".into(), "s3cret\n".into())], "headers: \"a\" has a value that no header can carry"),
        (
            |r| r.headers = vec![("Content-Length".into(), "5".into())],
            "headers: \"Content-Length\" is set by the client itself",
        ),
        (|r| r.proxy = Some("http://user:s3cret@".into()), "proxy is no usable proxy URL"),
        (
            |r| r.ca_file = Some(PathBuf::from("/nowhere/ca.pem")),
            "ca_file /nowhere/ca.pem: No such file or directory (os error 2)",
        ),
    ];
    for (change, expected) in table {
        assert_eq!(refused(change), expected);
    }
    let empty = tempfile::NamedTempFile::new().unwrap();
    let error = HttpHandler::new(
        HttpRoute { ca_file: Some(empty.path().into()), ..route("http://a.example/") },
        Caps::default(),
    );
    assert!(matches!(error, Err(HttpRouteError::CaFile { .. })));
}
