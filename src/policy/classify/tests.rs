use super::Disposition::{Permanent, Retry};
use super::*;

struct Case {
    class: &'static str,
    code: Option<&'static str>,
    status: Option<u16>,
    stderr: Option<&'static str>,
    verdict: Verdict,
}

const PLAIN: Case = Case { class: class::FAILED, code: None, status: None, stderr: None, verdict: Verdict::ByPolicy };

fn rule(policy: &Policy, case: &Case) -> Ruling {
    let failure = Failure {
        code: case.code.map(str::to_owned),
        http_status: case.status,
        stack: case.stderr.map(str::to_owned),
        ..Failure::new(case.class, "m")
    };
    classify(policy, &failure, case.verdict)
}

#[test]
fn the_defaults_are_those_of_the_requirements() {
    let table = [
        // C1
        (class::TIMEOUT, Retry),
        (class::NETWORK, Retry),
        (class::RATE_LIMITED, Retry),
        (class::SERVER_ERROR, Retry),
        (class::TRANSIENT, Retry),
        // C2
        (class::HTTP_STATUS, Permanent),
        (class::INVALID_RESPONSE, Permanent),
        (class::BAD_PAYLOAD, Permanent),
        (class::NOT_RUNNABLE, Permanent),
        (class::NO_ROUTE, Permanent),
        // C3: a code no list knows
        (class::PLATFORM_CODE, Permanent),
        // C5 and beyond
        (class::FAILED, Retry),
        (class::PANIC, Retry),
        (class::WORKER_LOST, Retry),
        ("a_word_of_the_handlers", Retry),
        ("", Retry),
    ];
    for (name, disposition) in table {
        let ruling = rule(&Policy::built_in(), &Case { class: name, ..PLAIN });
        assert_eq!((ruling.disposition, ruling.class.as_str()), (disposition, name));
        assert!(ruling.because.contains("by default"), "{}", ruling.because);
    }
}

#[test]
fn lists_and_words_override_the_defaults() {
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let policy = Policy {
        retryable: Lists {
            codes: text(&["system_error", "1000001", "both"]),
            http_status: vec![404, 409],
            classes: text(&["invalid_response"]),
            ..Lists::default()
        },
        permanent: Lists {
            codes: text(&["locked", "both"]),
            http_status: vec![503, 409],
            classes: text(&["timeout"]),
            stderr: vec![Regex::new("SyntaxError|command not found").unwrap()],
        },
        rate_limited: Lists { codes: text(&["rate_limit"]), http_status: vec![420], ..Lists::default() },
        ..Policy::built_in()
    };
    let table = [
        // C3: codes, also on 200, numbers as their text.
        (
            Case { class: class::PLATFORM_CODE, code: Some("system_error"), status: Some(200), ..PLAIN },
            Retry,
            "platform_code",
        ),
        (
            Case { class: class::PLATFORM_CODE, code: Some("1000001"), status: Some(200), ..PLAIN },
            Retry,
            "platform_code",
        ),
        (
            Case { class: class::PLATFORM_CODE, code: Some("rate_limit"), status: Some(200), ..PLAIN },
            Retry,
            "rate_limited",
        ),
        (
            Case { class: class::PLATFORM_CODE, code: Some("locked"), status: Some(200), ..PLAIN },
            Permanent,
            "platform_code",
        ),
        (Case { class: class::PLATFORM_CODE, code: Some("other"), ..PLAIN }, Permanent, "platform_code"),
        (Case { class: class::PLATFORM_CODE, code: Some("LOCKED"), ..PLAIN }, Permanent, "platform_code"),
        // Within one kind permanent comes first.
        (Case { class: class::PLATFORM_CODE, code: Some("both"), ..PLAIN }, Permanent, "platform_code"),
        (Case { class: class::HTTP_STATUS, status: Some(409), ..PLAIN }, Permanent, "http_status"),
        // The more specific kind comes first.
        (
            Case { class: class::SERVER_ERROR, code: Some("system_error"), status: Some(503), ..PLAIN },
            Retry,
            "server_error",
        ),
        (Case { class: class::SERVER_ERROR, status: Some(503), ..PLAIN }, Permanent, "server_error"),
        (Case { class: class::TIMEOUT, status: Some(404), ..PLAIN }, Retry, "timeout"),
        (Case { class: class::TIMEOUT, ..PLAIN }, Permanent, "timeout"),
        (Case { class: class::HTTP_STATUS, status: Some(404), ..PLAIN }, Retry, "http_status"),
        (Case { class: class::HTTP_STATUS, status: Some(420), ..PLAIN }, Retry, "rate_limited"),
        (Case { class: class::INVALID_RESPONSE, status: Some(200), ..PLAIN }, Retry, "invalid_response"),
        // C5: stderr, for a script that exits with 1 for everything.
        (Case { stderr: Some("line 3: SyntaxError: x"), ..PLAIN }, Permanent, "failed"),
        (Case { stderr: Some("no luck"), ..PLAIN }, Retry, "failed"),
        // C5: the handler's word.
        (Case { class: class::HTTP_STATUS, verdict: Verdict::Retry, status: Some(503), ..PLAIN }, Retry, "http_status"),
        (Case { code: Some("locked"), verdict: Verdict::Retry, ..PLAIN }, Retry, "failed"),
        (Case { code: Some("rate_limit"), verdict: Verdict::Retry, ..PLAIN }, Retry, "rate_limited"),
        (Case { code: Some("system_error"), verdict: Verdict::Dead, ..PLAIN }, Permanent, "failed"),
        (Case { class: class::TRANSIENT, verdict: Verdict::Dead, ..PLAIN }, Permanent, "transient"),
    ];
    for (i, (case, disposition, class_name)) in table.into_iter().enumerate() {
        let ruling = rule(&policy, &case);
        let found = (ruling.disposition, ruling.class.as_str());
        assert_eq!(found, (disposition, class_name), "case {i}: {}", ruling.because);
    }
}

#[test]
fn a_ruling_says_which_rule_it_was() {
    let policy = Policy {
        permanent: Lists {
            http_status: vec![500],
            stderr: vec![Regex::new("a+").unwrap()],
            codes: vec!["x".into()],
            ..Lists::default()
        },
        ..Policy::built_in()
    };
    let because = |case: Case| rule(&policy, &case).because;
    assert_eq!(because(Case { status: Some(500), ..PLAIN }), "HTTP 500 is listed as permanent");
    assert_eq!(because(Case { code: Some("x"), ..PLAIN }), "code x is listed as permanent");
    assert_eq!(because(Case { stderr: Some("baa"), ..PLAIN }), "stderr matches a+, listed as permanent");
    assert_eq!(because(Case { verdict: Verdict::Dead, ..PLAIN }), "the handler said dead");
    assert_eq!(because(PLAIN), "failed is retryable by default");
}
