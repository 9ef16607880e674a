//! What a person sees and says of breakers and limits.

use serde_json::{Value, json};

use crate::folder::Folder;

/// A shop's breaker trips at the second equal failure; `bad.#` fails, `ok.#` succeeds.
const CONFIG: &str = r##"
[broker]
url = "embedded"
[[route]]
type = "ok.#"
command = { program = "sh", args = ["-c", "cat >/dev/null"] }
[[route]]
type = "bad.#"
concurrency = 2
command = { program = "sh", args = ["-c", "echo broken >&2; exit 1"] }
[[policy]]
name = "one try"
max_retries = 0
backoff = { fixed = "1s" }
[[breaker]]
name = "shop"
per = ["label.shop"]
consecutive_same = 2
open_for = "10m"
[[breaker]]
name = "locked"
per = ["type", "label.account"]
consecutive = 100
when_open = "dead_letter"
[[limit]]
name = "all"
rate = "5/min"
"##;

fn row<'v>(list: &'v Value, key: &str) -> &'v Value {
    let items = list["items"].as_array().expect("a list");
    items.iter().find(|item| item["key"] == key).unwrap_or_else(|| panic!("no {key} in {list:#}"))
}

#[test]
fn a_person_opens_a_breaker_sees_who_waits_and_closes_it_again() {
    let folder = Folder::with_config(CONFIG);
    folder.run(&["store", "migrate"]).expect_exit(0);
    let key = "breaker/shop/label.shop=a";
    let would = folder.run(&["breaker", "open", "shop/label.shop=a", "--dry-run"]).expect_exit(0);
    assert!(would.stderr.contains("would open breaker/shop/label.shop=a"), "{would:?}");
    let none = folder.run(&["breaker", "list", "-o", "json"]).expect_exit(0);
    assert_eq!(none.json(), json!({ "items": [], "next": null }), "a dry run changes nothing");
    folder.run(&["breaker", "close", key]).expect_exit(5);

    let variables = [("USER", "mei"), ("HOSTNAME", "laptop")];
    let arguments = ["breaker", "open", "shop/label.shop=a", "--reason", "locked out"];
    folder.run_with(&arguments, &variables).expect_exit(0);
    let worker = folder.work();
    folder.run(&["publish", "ok.a", "--id", "t1", "--label", "shop=a"]).expect_exit(0);
    folder.run(&["publish", "ok.a", "--id", "t2", "--label", "shop=b"]).expect_exit(0);
    folder.run(&["task", "wait", "t2", "--timeout", "30s"]).expect_exit(0);
    folder.run(&["task", "wait", "t1", "--timeout", "1s"]).expect_exit(1);
    let list = folder.run(&["breaker", "list", "-o", "json"]).expect_exit(0).json();
    let open = row(&list, key);
    assert_eq!((&open["phase"], &open["forced_open"], &open["waiting"]), (&json!("open"), &json!(true), &json!(1)));
    assert_eq!((&open["until"], &open["next_probe_at"]), (&Value::Null, &Value::Null));
    assert_eq!((&open["word"]["by"], &open["word"]["reason"]), (&json!("mei@laptop"), &json!("locked out")));
    assert!(open["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{open}");
    let shown = folder.run(&["task", "show", "t1", "-o", "json"]).expect_exit(0).json();
    assert_eq!((&shown["held_by"], &shown["held_turn"]), (&json!(key), &json!("label.shop=a")));
    assert!(shown["park_until"].is_string(), "{shown}");
    let table = folder.run(&["breaker", "list", "-o", "table"]).expect_exit(0).stdout;
    assert!(table.contains("mei") && table.contains("never"), "{table}");
    assert_eq!(folder.run(&["breaker", "list", "-o", "name"]).expect_exit(0).stdout, format!("{key}\n"));

    folder.run(&["breaker", "close", key, "--reason", "they called"]).expect_exit(0);
    folder.run(&["task", "wait", "t1", "--status", "succeeded", "--timeout", "30s"]).expect_exit(0);
    folder.run(&["breaker", "close", key]).expect_exit(6);
    worker.stop();
}

#[test]
fn a_breaker_that_has_tripped_says_why_and_when_it_is_tried_again() {
    let folder = Folder::with_config(CONFIG);
    let worker = folder.work();
    for id in ["b1", "b2"] {
        folder.run(&["publish", "bad.a", "--id", id, "--label", "shop=a"]).expect_exit(0);
        folder.run(&["task", "wait", id, "--timeout", "30s"]).expect_exit(0);
    }
    let list = folder.run(&["breaker", "list", "-o", "json"]).expect_exit(0).json();
    let open = row(&list, "breaker/shop/label.shop=a");
    assert_eq!((&open["phase"], &open["because"]), (&json!("open"), &json!("2 equal failures in a row")));
    assert_eq!((&open["next_probe_at"], &open["forced_open"]), (&open["until"], &json!(false)));
    assert_eq!((&open["probes_in_use"], &open["probes"], &open["word"]), (&json!(0), &json!(1), &Value::Null));
    let limits = folder.run(&["limit", "list", "-o", "json"]).expect_exit(0).json();
    let all = row(&limits, "limit/all");
    assert_eq!(
        (&all["state"], &all["room"], &all["rule"]),
        (&json!("open"), &json!(1), &json!("5 retries/min, burst 1"))
    );
    let cap = row(&limits, "cap/bad.#");
    assert_eq!((&cap["room"], &cap["in_use"], &cap["rule"]), (&json!(2), &json!(0), &json!("2 at a time")));
    worker.stop();
}

#[test]
fn a_key_must_name_a_breaker_and_all_its_dimensions() {
    let folder = Folder::with_config(CONFIG);
    folder.run(&["store", "migrate"]).expect_exit(0);
    let unknown = folder.run(&["breaker", "open", "shops/label.shop=a"]).expect_exit(5);
    assert!(unknown.stderr.contains("there are: shop, locked"), "{unknown:?}");
    for key in ["shop", "shop/", "shop/a", "shop/type=a", "shop/label.shop=a,type=b", "breaker/locked/type=a"] {
        let bad = folder.run(&["breaker", "open", key]).expect_exit(2);
        assert!(bad.stderr.contains("its keys are breaker/"), "{bad:?}");
    }
    folder.run(&["breaker", "open", "shop/label.shop=a/b"]).expect_exit(0);
    assert_eq!(folder.run(&["breaker", "list", "-o", "name"]).expect_exit(0).stdout, "breaker/shop/label.shop=a%2Fb\n");
}

#[test]
fn opening_a_breaker_that_ends_tasks_needs_consent() {
    let folder = Folder::with_config(CONFIG);
    folder.run(&["store", "migrate"]).expect_exit(0);
    let key = "locked/type=ok.a,label.account=7";
    let refused = folder.run(&["breaker", "open", key]).expect_exit(8);
    assert!(refused.stderr.contains("--yes"), "{refused:?}");
    folder.run(&["breaker", "open", key, "--dry-run"]).expect_exit(0);
    folder.run(&["breaker", "open", key, "--yes"]).expect_exit(0);
    let list = folder.run(&["breaker", "list", "-o", "json"]).expect_exit(0).json();
    assert_eq!(row(&list, "breaker/locked/type=ok.a,label.account=7")["when_open"], "dead_letter");
}
