use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::task::class;

fn of(message: &str) -> String {
    fingerprint("order.ship", &Failure::new(class::SERVER_ERROR, message))
}

#[test]
fn what_differs_from_case_to_case_is_taken_out() {
    let table = [
        ("order 4711 not found", "order <n> not found"),
        ("took 1.5ms of 30s, -3 left", "took <n>ms of <n>s, <n> left"),
        ("shop 550e8400-e29b-41d4-a716-446655440000 is locked", "shop <id> is locked"),
        ("commit e3b0c44298fc1c14 at 0xDEADbeef", "commit <id> at <id>"),
        ("request V1StGXR8Z5jdHi6B failed", "request <id> failed"),
        ("ORD20240102 over http2", "ORD<n> over http<n>"),
        (r#"field "email" of 'Jo' is `bad`"#, "field <text> of <text> is <text>"),
        ("店铺「甲」的订单12345不存在", "店铺<text>的订单<n>不存在"),
        ("can't reach the shop's host, don't ask", "can't reach the shop's host, don't ask"),
        ("GET https://a.example/x?y=1&z=2: refused (http://b/).", "GET <url>: refused (<url>)."),
        ("mail to jo.do+x@example.co.uk bounced", "mail to <email> bounced"),
        ("at 2026-01-02T03:04:05.678Z on 2026/01/02", "at <n> on <n>"),
        ("at 2026-01-02 03:04:05+08:00 from 10.0.0.1:5672", "at <n> from <n>"),
        ("a   b\r\n\tc\0d ", "a b c d"),
        ("an open \" quote and \"another\" one", "an open <text>another\" one"),
        ("an open “ quote", "an open “ quote"),
        ("", ""),
    ];
    for (message, expected) in table {
        assert_eq!(normalise(message), expected, "{message:?}");
    }
}

#[test]
fn every_part_but_the_stack_counts() {
    let base = Failure { code: Some("a".into()), http_status: Some(500), ..Failure::new("network", "m") };
    let with = |change: &dyn Fn(&mut Failure)| {
        let mut failure = base.clone();
        change(&mut failure);
        fingerprint("t", &failure)
    };
    let all = [
        with(&|_| {}),
        with(&|f| f.class = "timeout".into()),
        with(&|f| f.code = Some("b".into())),
        with(&|f| f.code = None),
        with(&|f| f.code = Some(String::new())),
        with(&|f| f.http_status = Some(501)),
        with(&|f| f.http_status = None),
        with(&|f| f.message = "n".into()),
        fingerprint("u", &base),
    ];
    let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(with(&|f| f.stack = Some("at line 5".into())), all[0]);
    assert_eq!(with(&|f| f.fingerprint = "old".into()), all[0]);
}

/// Stored rows carry it: a recipe that changes must change its prefix.
#[test]
fn the_recipe_v1_does_not_change() {
    assert_eq!(of("HTTP 503: order 4711 of \"shop\" at https://a.example/b"), "v1-18bbc6271ce94b54");
}

/// The bound is far over what a linear pass takes and far under what a quadratic one would.
#[test]
fn a_message_of_a_megabyte_costs_little() {
    let hostile = [
        "1.".repeat(500_000),
        "a1".repeat(500_000),
        "x".repeat(1_000_000),
        "\"".repeat(999_999),
        "'a".repeat(500_000),
        "“".repeat(300_000),
        "a@".repeat(500_000),
        "a.b-c_".repeat(160_000),
        "a://".repeat(250_000),
        "2026-01-02".repeat(100_000),
        " \n".repeat(500_000),
        "\u{1F980}".repeat(250_000),
    ];
    for message in hostile {
        let began = Instant::now();
        let found = of(&message);
        assert_eq!(found.len(), 19);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?} took {:?}", &message[..12], began.elapsed());
    }
}

#[test]
fn a_short_prefix_before_a_number_of_any_length_is_a_word_with_a_number() {
    assert_eq!(of("code E0 of shop A7"), of("code E1000000 of shop A70000000"));
}

proptest! {
    #[test]
    fn no_text_panics(message in "\\PC{0,200}", noise in any::<String>()) {
        let found = of(&message);
        prop_assert!(found.starts_with("v1-") && found.len() == 19);
        prop_assert!(normalise(&noise).len() <= LONGEST);
    }

    #[test]
    fn text_made_of_awkward_pieces_does_not_panic(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just("\""), Just("'"), Just("“"), Just("”"), Just("://"), Just("@"), Just("-"), Just("."), Just("9"),
                Just("f"), Just("é"), Just("订"), Just("\n"), Just(" "), Just("0x"), Just("2026-01-02T03:04:05."), Just("９"),
            ],
            0..60,
        )
    ) {
        of(&pieces.concat());
    }

    #[test]
    fn the_same_message_with_other_numbers_is_the_same(a in any::<u32>(), b in any::<u32>(), c in any::<f32>(), d in any::<f32>()) {
        let message = |n: u32, f: f32| format!("shop {n}: job-{n} waited {n}ms, {f:.3} s of {n}/{n} (E{n})");
        prop_assert_eq!(of(&message(a, c)), of(&message(b, d)));
    }

    #[test]
    fn the_same_message_with_other_ids_is_the_same(a in any::<u128>(), b in any::<u128>()) {
        let message = |n: u128| format!("task {} is gone", uuid::Uuid::from_u128(n));
        prop_assert_eq!(of(&message(a)), of(&message(b)));
    }

    #[test]
    fn another_class_is_another_failure(message in "\\PC{0,80}", a in "[a-z_]{1,20}", b in "[a-z_]{1,20}") {
        prop_assume!(a != b);
        let of = |class: &str| fingerprint("t", &Failure::new(class, message.clone()));
        prop_assert_ne!(of(&a), of(&b));
    }
}
