//! `policy explain` answers for this type, these labels, at this hour: which rule, which schedule, why. `policy check` refuses what
//! cannot be meant.

#[path = "cli/folder.rs"]
#[expect(dead_code, reason = "the other commands' tests use the rest of it")]
mod folder;

use folder::Folder;
use serde_json::{Value, json};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/policies.sample.toml");

fn explain(folder: &Folder, config: &str, arguments: &[&str]) -> Value {
    let all: Vec<&str> =
        ["policy", "explain", "--config", config, "-o", "json"].into_iter().chain(arguments.iter().copied()).collect();
    folder.run(&all).expect_exit(0).json()
}

/// Policy, retries, and base, maximum and multiplier of its delays.
fn rule(answer: &Value) -> (&str, i64, i64, i64, f64) {
    let table = &answer["schedules"][0];
    let shape = &table["backoff"]["exponential"];
    let number = |value: &Value| value.as_i64().unwrap();
    (
        answer["policy"].as_str().unwrap(),
        number(&table["max_retries"]),
        number(&shape["base_ms"]),
        number(&shape["max_ms"]),
        shape["multiplier"].as_f64().unwrap(),
    )
}

#[test]
fn the_reference_rules_of_the_sample_file_are_what_explain_says() {
    let folder = Folder::with_config("");
    folder.run(&["policy", "check", SAMPLE]).expect_exit(0);
    let ask = |arguments: &[&str]| explain(&folder, SAMPLE, arguments);
    let vip = ask(&["--type", "order.ship", "--label", "shop_tier=vip"]);
    assert_eq!(rule(&vip), ("vip shipping", 5, 1_000, 30_000, 1.5));
    let normal = ask(&["--type", "order.ship", "--label", "shop_tier=normal"]);
    assert_eq!(rule(&normal), ("normal shipping", 3, 2_000, 60_000, 2.0));
    assert_eq!(rule(&ask(&["--type", "order.ship"])), ("order shipping", 3, 2_000, 30_000, 1.5));
    assert_eq!(rule(&ask(&["--type", "item.list"])), ("listing", 3, 5_000, 120_000, 2.0));
    assert_eq!(rule(&ask(&["--type", "report.render.pdf"])), ("reports", 3, 10_000, 300_000, 2.5));
    // Bulk uploads from 02 to 06 in Shanghai, which is 18 to 22 UTC.
    let upload = |at: &str| ask(&["--type", "item.bulk_upload", "--at", at]);
    let night = ("bulk upload at night", 1, 10_000, 120_000, 1.0);
    for at in ["2026-07-01T18:00:00Z", "2026-07-01T21:59:00Z", "2026-07-02T03:00[Asia/Shanghai]"] {
        assert_eq!(rule(&upload(at)), night, "{at}");
    }
    let day = upload("2026-07-01T22:00:00Z");
    assert_eq!(rule(&day).0, "listing");
    let why = |n: usize| day["passed_over"][n]["why"].as_str().unwrap();
    assert_eq!(why(0), "is for type order.ship");
    assert_eq!(why(3), "holds 02:00–06:00 Asia/Shanghai, where it is 06:00");
    // Whatever no rule is for has the built-in one.
    let other = ask(&["--type", "other"]);
    assert_eq!(other["policy"], "default");
    assert_eq!(other["schedules"][0]["backoff"]["steps_ms"], json!([900_000, 1_800_000, 2_700_000]));
}

#[test]
fn explain_shows_the_whole_schedule_with_jitter_bounds_and_clock_times() {
    let folder = Folder::with_config("");
    let arguments = ["--type", "order.ship", "--label", "shop_tier=vip", "--at", "2026-07-01T00:00:00Z"];
    let answer = explain(&folder, SAMPLE, &arguments);
    let retries = answer["schedules"][0]["retries"].as_array().unwrap();
    let delays: Vec<_> =
        retries.iter().map(|retry| (retry["delay_least_ms"].as_i64(), retry["delay_most_ms"].as_i64())).collect();
    // 1 s · 1.5^(n−1), ± 20 %.
    assert_eq!(
        delays,
        [
            (Some(800), Some(1_200)),
            (Some(1_200), Some(1_800)),
            (Some(1_800), Some(2_700)),
            (Some(2_700), Some(4_050)),
            (Some(4_050), Some(6_076)),
        ]
    );
    assert_eq!(retries[0]["earliest_at"], "2026-07-01T00:00:00.800Z");
    assert_eq!(retries[1]["latest_at"], "2026-07-01T00:00:03.000Z");
    assert_eq!(answer["schedules"][0]["ends"], json!({ "reason": "retries_exhausted" }));
    let people = folder.run(&[&["policy", "explain", "--config", SAMPLE, "-o", "table"][..], &arguments].concat());
    let shown = people.expect_exit(0).stdout;
    for text in
        ["vip shipping", "shop_tier = \"vip\"", "exponential 1s ×1.5, at most 30s, jitter ± 20 %", "800ms – 1s200ms"]
    {
        assert!(shown.contains(text), "{text} is missing in\n{shown}");
    }
}

const EVERYTHING: &str = r##"
[[queue]]
name = "shipping"
types = ["order.#"]
[[route]]
type = "order.#"
command = { program = "true" }
concurrency = { per = "label.shop", max = 2 }
[[policy]]
name = "split"
retry_after = { mode = "floor", cap = "1m", over_cap = "dead_letter" }
deadline = "2h"
fallback = ["cache", "default", "queue"]
default_result = { answer = "" }
critical = true
replay_after = ["1h", "2h"]
on = [{ class = "rate_limited", backoff = { fixed = "1m" }, max_retries = 9 }]
variants = [{ name = "fast", weight = 3, backoff = { fixed = "1s" } }, { name = "slow", backoff = { steps = ["1h", "2h"] } }]
[[limit]]
name = "per shop"
per = ["label.shop"]
rate = "5/min"
[[limit]]
name = "all"
rate = "300/min"
burst = 10
calls = true
[[breaker]]
name = "shop"
per = ["type", "label.shop", "route"]
consecutive_same = 3
"##;

#[test]
fn explain_names_gates_with_their_keys_fallbacks_and_what_a_retry_after_does() {
    let folder = Folder::with_config(EVERYTHING);
    let answer = explain(&folder, "redeliver.toml", &["--type", "order.ship", "--label", "shop=s-17"]);
    let gates: Vec<(&str, &str, Option<&str>)> = answer["gates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gate| (gate["kind"].as_str().unwrap(), gate["name"].as_str().unwrap(), gate["key"].as_str()))
        .collect();
    assert_eq!(
        gates,
        [
            ("limit", "per shop", Some("limit/per shop/label.shop=s-17")),
            ("limit", "all", Some("limit/all")),
            ("breaker", "shop", Some("breaker/shop/type=order.ship,label.shop=s-17,route=order.#")),
            ("concurrency", "order.#", Some("cap/order.#/label.shop=s-17")),
            ("hold", "retry_after", Some("hold/retry-after/type=order.ship,label.shop=s-17,route=order.#")),
        ]
    );
    let without = explain(&folder, "redeliver.toml", &["--type", "order.ship"]);
    assert_eq!(without["gates"][0]["applies"], false);
    assert_eq!(without["gates"][0]["why_not"], "no label shop");
    assert_eq!(answer["queue"], "shipping");
    assert_eq!(answer["fallback"], json!(["queue"]), "critical: never cache or default");
    assert_eq!(answer["retry_after"], json!({ "mode": "floor", "cap_ms": 60_000, "over_cap": "dead_letter" }));
    let sources: Vec<&str> =
        answer["schedules"].as_array().unwrap().iter().map(|table| table["source"].as_str().unwrap()).collect();
    assert_eq!(
        sources,
        [
            "policy \"split\", variant \"fast\"",
            "policy \"split\", variant \"slow\"",
            "policy \"split\", variant \"fast\", on class rate_limited",
            "policy \"split\", variant \"slow\", on class rate_limited",
        ]
    );
    assert_eq!(answer["schedules"][1]["ends"]["reason"], "deadline_exceeded", "1h + 2h are more than 2h");
}

#[test]
fn bad_questions_and_bad_files_are_exit_2() {
    let folder = Folder::with_config("[[policy]]\nname = 'a'\nhours = { from = '25:00', to = '26:00' }\n");
    let checked = folder.run(&["policy", "check"]).expect_exit(2);
    assert!(
        checked.stderr.contains("redeliver.toml:3: policy \"a\": hours.from") && checked.stderr.contains("hours.to")
    );
    let as_json = folder.run(&["policy", "check", "-o", "json"]).expect_exit(2).json();
    assert_eq!(as_json["problems"].as_array().unwrap().len(), 2);
    folder.run(&["policy", "explain", "--type", "a"]).expect_exit(2);
    let folder = Folder::with_config("");
    folder.run(&["policy", "explain"]).expect_exit(2);
    folder.run(&["policy", "explain", "--type", "a..b"]).expect_exit(2);
    folder.run(&["policy", "explain", "--type", "a", "--at", "noon"]).expect_exit(2);
    folder.run(&["policy", "explain", "--type", "a", "--label", "k=1", "--label", "k=2"]).expect_exit(2);
    folder.run(&["policy", "check", "nowhere.toml"]).expect_exit(2);
}
