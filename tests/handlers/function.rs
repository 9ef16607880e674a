//! Handlers that are functions, and what holds for the report of every handler.

use std::sync::Arc;

use async_trait::async_trait;
use redeliver::handler::{AttemptContext, Caps, Handler, Report, handler_fn, run_caught};
use redeliver::task::{Attachment, AttachmentBody, Failure, Outcome, RetryAfter, TaskResult, Verdict};

use super::support::{attempt, failed, succeeded};

#[derive(serde::Deserialize)]
struct Order {
    order: u64,
}

#[tokio::test]
async fn a_function_gets_its_payload_typed() {
    let handler = handler_fn(|attempt: AttemptContext, order: Order| async move {
        assert_eq!(attempt.number(), 3);
        Outcome::success_json(&serde_json::json!(order.order))
    });
    let report = handler.run(attempt(r#"{"order":5}"#)).await;
    assert_eq!(succeeded(&report.outcome).unwrap().body, b"5");
}

#[tokio::test]
async fn a_payload_that_does_not_fit_is_dead_and_the_function_is_not_called() {
    let handler = handler_fn(|_: AttemptContext, _: Order| async move {
        panic!("called without its payload");
        #[expect(unreachable_code, reason = "says what the function returns")]
        Outcome::success()
    });
    for payload in ["null", r#"{"order":-1}"#, r#"{"order":"5"}"#, "{}"] {
        let (failure, verdict, _) = failed(&handler.run(attempt(payload)).await.outcome);
        assert_eq!((failure.class.as_str(), verdict), ("bad_payload", Verdict::Dead));
        assert!(failure.message.starts_with("the payload does not fit: "), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_function_may_return_what_suits_it() {
    async fn run(handler: impl Handler) -> Report {
        handler.run(attempt("null")).await
    }
    succeeded(&run(handler_fn(|_, (): ()| async {})).await.outcome);
    let report = run(handler_fn(|_, (): ()| async {
        Report::from(Outcome::retry("not yet")).attach("shot.png", "image/png", *b"png").attach_link(
            "log",
            "text/plain",
            "http://l",
        )
    }))
    .await;
    assert_eq!(report.attachments.len(), 2);
    let broken = handler_fn(|_, (): ()| async { Err::<Outcome, _>("broken") });
    let (failure, verdict, _) = failed(&run(broken).await.outcome);
    assert_eq!((failure.class.as_str(), failure.message.as_str(), verdict), ("failed", "broken", Verdict::ByPolicy));
    let (failure, ..) = failed(
        &run(handler_fn(|_, (): ()| async {
            Err::<(), _>(anyhow::anyhow!("the root").context("the middle").context("the top"))
        }))
        .await
        .outcome,
    );
    assert_eq!(failure.message, "the top");
    assert_eq!(failure.stack.as_deref(), Some("caused by: the middle\ncaused by: the root\n"));
}

#[tokio::test]
async fn a_panic_is_a_retryable_failure() {
    struct Panics(fn());
    #[async_trait]
    impl Handler for Panics {
        async fn run(&self, _: AttemptContext) -> Report {
            (self.0)();
            Outcome::success().into()
        }
    }
    let table: [(fn(), &str); 3] = [
        (|| panic!("boom"), "the handler panicked: boom"),
        (|| panic!("boom {}", 5), "the handler panicked: boom 5"),
        (|| std::panic::panic_any(5), "the handler panicked: no message"),
    ];
    for (panics, message) in table {
        let report = run_caught(&Panics(panics), attempt("null"), Caps::default()).await;
        let (failure, verdict, _) = failed(&report.outcome);
        assert_eq!((failure.class.as_str(), failure.message.as_str(), verdict), ("panic", message, Verdict::ByPolicy));
    }
}

#[tokio::test]
async fn whatever_a_handler_returns_is_bounded_before_it_reaches_the_store() {
    struct Returns(Report);
    #[async_trait]
    impl Handler for Returns {
        async fn run(&self, _: AttemptContext) -> Report {
            self.0.clone()
        }
    }
    let caps = Caps { body: 10, attachment: 4, attachments: 5 };
    let bounded = |report: Report| async move { run_caught(&Returns(report), attempt("null"), caps).await };

    let failure = Failure {
        class: String::new(),
        code: Some("é".repeat(1000)),
        http_status: None,
        message: format!("a\0b{}", "é".repeat(5000)),
        stack: Some("s\0".repeat(100_000)),
        fingerprint: String::new(),
    };
    let attachment = |name: &str, body: &[u8]| Attachment {
        name: name.into(),
        media_type: "x/\0".into(),
        body: AttachmentBody::Bytes(Arc::from(body)),
    };
    let report = Report {
        outcome: Outcome::Failure {
            failure,
            verdict: Verdict::ByPolicy,
            retry_after: Some(RetryAfter { delay_ms: -5 }),
            cost: Some(f64::NAN),
        },
        attachments: vec![
            attachment("../../etc/passwd", b"1234"),
            attachment("passwd", b"12345"),
            attachment("a\\b\n.txt", b""),
            attachment("..", b""),
            attachment("", b""),
            attachment("one too many", b""),
        ],
        degraded: None,
    };
    let report = bounded(report).await;
    let Outcome::Failure { cost, .. } = report.outcome else { panic!("a failure stays one") };
    assert_eq!(cost, None);
    let (failure, _, asked) = failed(&report.outcome);
    assert_eq!((failure.class.as_str(), asked.unwrap().delay_ms), ("failed", 0));
    assert_eq!(failure.code.unwrap().len(), 200);
    assert!(failure.message.len() <= 4100 && failure.message.starts_with("a\u{FFFD}bé"));
    assert!(!failure.stack.unwrap().contains('\0'));
    let names: Vec<&str> = report.attachments.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["passwd", "2-passwd", "b\u{FFFD}.txt", "attachment", "2-attachment"]);
    assert_eq!(report.attachments[1].body, AttachmentBody::TooLarge { size: 5 });
    assert_eq!(report.attachments[0].media_type, "x/\u{FFFD}");

    let result = TaskResult { media_type: "t".into(), body: vec![1; 11], truncated: false };
    let report = bounded(Outcome::Success { result: Some(result), cost: Some(f64::INFINITY) }.into()).await;
    let result = succeeded(&report.outcome).unwrap();
    assert_eq!((result.body.len(), result.truncated), (10, true));
    assert!(matches!(report.outcome, Outcome::Success { cost: None, .. }));
}
