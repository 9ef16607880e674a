//! Third parties that break the rules: what is endless ends at a cap, what is slow ends at the time-out, what breaks is a network
//! failure, and nothing hangs.

use std::time::{Duration, Instant};

use redeliver::handler::http::HttpHandler;
use redeliver::handler::{Caps, Handler, HttpRoute};
use redeliver::task::Verdict;
use tokio::net::TcpListener;

use super::http::{route, run};
use super::support::{Server, Step, attempt, failed, response, succeeded};

/// The timeout of attempts that are meant to run into it.
const SHORT: Duration = Duration::from_millis(300);

async fn doing(steps: Vec<Step>, change: impl Fn(&mut HttpRoute)) -> redeliver::task::Outcome {
    let mut wanted = route(&Server::doing(steps).await.url());
    change(&mut wanted);
    run(wanted).await.outcome
}

fn send(text: &str) -> Step {
    Step::Send(text.as_bytes().to_vec())
}

#[tokio::test]
async fn nobody_listening_is_a_network_failure() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (failure, verdict, asked) = failed(&run(route(&format!("http://{closed}/a?key=s3cret"))).await.outcome);
    assert_eq!((failure.class.as_str(), failure.http_status), ("network", None));
    assert!(failure.message.contains("refused") && !failure.message.contains("s3cret"), "{}", failure.message);
    assert_eq!((verdict, asked), (Verdict::ByPolicy, None));
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_a_network_failure() {
    // Longer than a label may be: no name server need be asked, so this is fast on a machine without one.
    let name = "x".repeat(64);
    let (failure, ..) = failed(&run(route(&format!("http://{name}.invalid/"))).await.outcome);
    assert_eq!(failure.class, "network");
    assert!(failure.message.contains("dns"), "{}", failure.message);
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_a_network_failure() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut wanted = route("http://a.example/");
    wanted.proxy = Some(format!("http://user:s3cret@{closed}"));
    let (failure, ..) = failed(&run(wanted).await.outcome);
    assert_eq!(failure.class, "network");
    assert!(!failure.message.contains("s3cret"), "{}", failure.message);
}

#[tokio::test]
async fn no_answer_in_time_is_a_timeout() {
    let (failure, ..) = failed(&doing(vec![Step::Hang], |r| r.timeout = SHORT).await);
    assert_eq!((failure.class.as_str(), failure.message.as_str()), ("timeout", "no answer within 300 ms"));
}

#[tokio::test]
async fn half_a_head_in_time_is_a_timeout() {
    let (failure, ..) =
        failed(&doing(vec![send("HTTP/1.1 200 OK\r\ncontent-"), Step::Hang], |r| r.timeout = SHORT).await);
    assert_eq!(failure.class, "timeout");
}

#[tokio::test]
async fn a_body_that_does_not_come_in_time_is_a_timeout() {
    let steps = vec![send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345"), Step::Hang];
    let (failure, ..) = failed(&doing(steps, |r| r.timeout = SHORT).await);
    assert_eq!((failure.class.as_str(), failure.http_status), ("timeout", Some(200)));
    assert_eq!(failure.message, "HTTP 200 OK, body not complete within 300 ms (5 bytes)");
}

#[tokio::test]
async fn a_body_cut_short_is_a_network_failure_and_no_format_error() {
    let cut = [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"order_id\":",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"ord",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n12345\r\n",
    ];
    for text in cut {
        let (failure, ..) = failed(&doing(vec![send(text)], |r| r.expect = vec!["/order_id".into()]).await);
        assert_eq!((failure.class.as_str(), failure.http_status), ("network", Some(200)), "{text}");
        assert!(failure.message.contains("body cut short after"), "{}", failure.message);
    }
    let reset = vec![send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"), Step::Reset];
    assert_eq!(failed(&doing(reset, |_| {}).await).0.class, "network");
}

#[tokio::test]
async fn an_error_status_says_enough_without_its_body_unless_a_code_is_looked_for() {
    let cut = "HTTP/1.1 404 Not Found\r\ncontent-length: 100\r\n\r\n{\"order_id\":";
    let (failure, ..) = failed(&doing(vec![send(cut)], |_| {}).await);
    assert_eq!((failure.class.as_str(), failure.http_status), ("http_status", Some(404)));
    let (failure, ..) = failed(&doing(vec![send(cut)], |r| r.code = Some("/code".into())).await);
    assert_eq!((failure.class.as_str(), failure.http_status), ("network", Some(404)));
    let steps = vec![send("HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 9\r\n\r\n"), Step::Hang];
    let (failure, _, asked) = failed(&doing(steps, |r| r.timeout = SHORT).await);
    assert_eq!((failure.class.as_str(), asked.map(|a| a.delay_ms)), ("server_error", Some(7000)));
}

#[tokio::test]
async fn a_verdict_of_success_holds_for_a_body_cut_short() {
    let cut = "HTTP/1.1 200 OK\r\nredeliver-verdict: success\r\ncontent-length: 100\r\n\r\nhalf";
    let result = succeeded(&doing(vec![send(cut)], |_| {}).await).unwrap();
    assert_eq!((result.body.as_slice(), result.truncated), (&b"half"[..], true));
}

#[tokio::test]
async fn an_endless_body_ends_at_the_cap() {
    let endless = || vec![send("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"), Step::Flood(vec![b'x'; 65_536])];
    let result = succeeded(&doing(endless(), |_| {}).await).unwrap();
    assert_eq!((result.body.len(), result.truncated), (1 << 20, true));
    let (failure, ..) = failed(&doing(endless(), |r| r.expect = vec!["/a".into()]).await);
    assert_eq!(failure.class, "invalid_response");
    assert!(failure.message.starts_with("HTTP 200 OK: body over 1048576 bytes: xxx"), "{}", failure.message);
    let chunked = vec![
        send("HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n"),
        Step::Flood([b"1000\r\n".as_slice(), &[b'y'; 4096], b"\r\n"].concat()),
    ];
    let (failure, ..) = failed(&doing(chunked, |_| {}).await);
    assert_eq!((failure.class.as_str(), failure.http_status), ("server_error", Some(500)));
}

#[tokio::test]
async fn the_connection_of_an_endless_body_is_closed_at_the_cap() {
    let server = Server::doing(vec![send("HTTP/1.1 200 OK\r\n\r\n"), Step::Flood(vec![b'x'; 65_536])]).await;
    succeeded(&run(route(&server.url())).await.outcome);
    server.left.notified().await;
}

#[tokio::test]
async fn a_body_of_5_mb_is_stored_up_to_the_cap() {
    let server = Server::saying(response("200 OK", "", vec![b'z'; 5 << 20])).await;
    let handler = HttpHandler::new(route(&server.url()), Caps { body: 1000, ..Caps::default() }).unwrap();
    let result = succeeded(&handler.run(attempt("null")).await.outcome).unwrap();
    assert_eq!((result.body.len(), result.truncated), (1000, true));
    let exact = Server::saying(response("200 OK", "", vec![b'z'; 1000])).await;
    let handler = HttpHandler::new(route(&exact.url()), Caps { body: 1000, ..Caps::default() }).unwrap();
    let result = succeeded(&handler.run(attempt("null")).await.outcome).unwrap();
    assert_eq!((result.body.len(), result.truncated), (1000, false));
}

#[tokio::test]
async fn headers_of_200_kb_are_read() {
    let one = format!("x-long: {}\r\n", "h".repeat(200 * 1024));
    let many: String = (0..200).map(|i| format!("x-{i}: {}\r\n", "h".repeat(1000))).collect();
    for headers in [one, many] {
        let result = succeeded(&doing(vec![Step::Send(response("200 OK", &headers, "body"))], |_| {}).await).unwrap();
        assert_eq!(result.body, b"body");
    }
}

#[tokio::test]
async fn endless_headers_are_a_network_failure() {
    let steps = vec![send("HTTP/1.1 200 OK\r\n"), Step::Flood(b"x-more: and more\r\n".repeat(1000))];
    let (failure, ..) = failed(&doing(steps, |_| {}).await);
    assert_eq!(failure.class, "network");
    assert!(failure.message.contains("too large"), "{}", failure.message);
}

#[tokio::test]
async fn bytes_that_are_no_text_are_no_trouble() {
    let headers = b"HTTP/1.1 503 \xff\xfe\r\nretry-after: \xff\r\ncontent-type: \xff\r\nredeliver-attachment: \xff\r\n\
        connection: close\r\n\r\n\xff\xfe\x00body";
    let (failure, _, asked) = failed(&doing(vec![Step::Send(headers.to_vec())], |_| {}).await);
    assert_eq!((failure.class.as_str(), asked), ("server_error", None));
    assert!(failure.message.contains("\u{FFFD}\u{FFFD} body"), "{:?}", failure.message);
    let verdict = b"HTTP/1.1 200 OK\r\nredeliver-verdict: \xff\r\nconnection: close\r\n\r\n";
    assert_eq!(failed(&doing(vec![Step::Send(verdict.to_vec())], |_| {}).await).0.class, "invalid_response");
}

#[tokio::test]
async fn what_is_no_http_is_a_network_failure() {
    for garbage in ["SSH-2.0-OpenSSH_9.2\r\n", "\0\0\0\0\0\0\0\0\0\0\r\n\r\n", "HTTP/9.9 hello\r\n\r\n", "{}\r\n\r\n"] {
        let (failure, ..) = failed(&doing(vec![send(garbage)], |_| {}).await);
        assert_eq!(failure.class, "network", "{garbage:?}");
        assert!(
            !failure.message.is_empty() && !failure.message.contains("error sending request"),
            "{}",
            failure.message
        );
    }
    for steps in [vec![], vec![Step::Reset]] {
        assert_eq!(failed(&doing(steps, |_| {}).await).0.class, "network");
    }
}

#[tokio::test]
async fn a_call_is_never_repeated_behind_the_tasks_back() {
    let server = Server::doing(vec![Step::Reset]).await;
    failed(&run(route(&server.url())).await.outcome);
    assert_eq!(server.requests().len(), 1);
}

/// The server closes a connection that the pool holds; the next call must not fail for it when the close has been seen, and is a
/// network failure at worst.
#[tokio::test]
async fn a_connection_closed_while_idle_costs_at_most_a_network_failure() {
    let server = Server::saying(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let handler = HttpHandler::new(route(&server.url()), Caps::default()).unwrap();
    for _ in 0..50 {
        match handler.run(attempt("null")).await.outcome {
            redeliver::task::Outcome::Success { .. } => {}
            redeliver::task::Outcome::Failure { failure, .. } => assert_eq!(failure.class, "network", "{failure:?}"),
        }
    }
}

#[tokio::test]
async fn every_attempt_has_its_full_time() {
    let slow = vec![Step::Hang];
    let server = Server::doing(slow).await;
    let handler = HttpHandler::new(HttpRoute { timeout: SHORT, ..route(&server.url()) }, Caps::default()).unwrap();
    for _ in 0..3 {
        let began = Instant::now();
        assert_eq!(failed(&handler.run(attempt("null")).await.outcome).0.class, "timeout");
        assert!(began.elapsed() >= SHORT);
    }
}

#[tokio::test]
async fn cancelling_ends_the_call_at_once() {
    let server = Server::doing(vec![Step::Hang]).await;
    let handler = HttpHandler::new(route(&server.url()), Caps::default()).unwrap();
    let attempt = attempt("null");
    let cancel = attempt.cancel.clone();
    let running = tokio::spawn(async move { handler.run(attempt).await });
    server.asked.notified().await;
    cancel.cancel();
    running.await.unwrap();
    // The connection goes with it.
    server.left.notified().await;
}
