//! What the history says, as a person and a script read it.

use serde_json::{Value, json};

use crate::folder::{Folder, Ran};

/// `second.#` fails its first attempts, `bad.#` all of them, `wrong.#` for good; one in two tasks has two retries, the other none.
const CONFIG: &str = r##"
[broker]
url = "embedded"
[[route]]
type = "ok.#"
command = { program = "sh", args = ["-c", "cat >/dev/null; echo '{\"verdict\":\"success\",\"cost\":0.25}'"] }
[[route]]
type = "second.#"
command = { program = "sh", args = ["-c", "cat >/dev/null; test \"$REDELIVER_RETRY_COUNT\" -gt 0 || exit 75"] }
[[route]]
type = "bad.#"
command = { program = "sh", args = ["-c", "cat >/dev/null; exit 75"] }
[[route]]
type = "wrong.#"
command = { program = "sh", args = ["-c", "cat >/dev/null; exit 64"] }
[[policy]]
name = "compared"
type = "second.compared"
backoff = { fixed = "50ms" }
variants = [
    { name = "one", weight = 1, backoff = { fixed = "50ms" }, max_retries = 1 },
    { name = "none", weight = 1, backoff = { fixed = "50ms" }, max_retries = 0 },
]
[[policy]]
name = "fast"
backoff = { fixed = "50ms" }
max_retries = 1
"##;

fn history() -> Folder {
    let folder = Folder::with_config(CONFIG);
    let worker = folder.work();
    let mut lines = String::new();
    for (task_type, shop, n) in [
        ("ok.a", "s1", 4),
        ("second.a", "s2", 3),
        ("bad.a", "s2", 1),
        ("wrong.a", "s3", 1),
        ("second.compared", "s4", 8),
    ] {
        for i in 0..n {
            let id = format!("{task_type}-{i}");
            lines.push_str(&format!("{}\n", json!({ "type": task_type, "id": id, "labels": { "shop": shop } })));
        }
    }
    folder.run_stdin(&["publish", "--batch", "-"], &lines).expect_exit(0);
    let ids = folder.run(&["task", "list", "--all", "-o", "name"]).expect_exit(0).stdout;
    folder.run_stdin(&["task", "wait", "-", "--timeout", "60s"], &ids).expect_exit(0);
    worker.stop();
    folder
}

fn json_of(folder: &Folder, arguments: &[&str]) -> Value {
    let all: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
    folder.run(&all).expect_exit(0).json()
}

fn group<'v>(stats: &'v Value, name: &str) -> &'v Value {
    let items = stats["items"].as_array().expect("a list");
    items.iter().find(|item| item["group"] == name).unwrap_or_else(|| panic!("no {name} in {stats:#}"))
}

#[test]
fn stats_say_on_which_attempt_tasks_succeed_what_it_cost_and_why_they_fail() {
    let folder = history();
    let by_type = json_of(&folder, &["stats"]);
    let second = group(&by_type, "second.a");
    assert_eq!(second["succeeded_on_attempt"], json!({ "1": 0, "2": 3, "3": 0, "4+": 0 }));
    assert_eq!((&second["success_rate"], &second["attempts_per_success"]), (&json!(1.0), &json!(2.0)));
    let ok = group(&by_type, "ok.a");
    assert_eq!((&ok["extra_request_rate"], &ok["least_attempts_per_task"]), (&json!(0.0), &json!(1.0)));
    assert_eq!((&ok["cost"], &ok["first_try_rate"]), (&json!(1.0), &json!(1.0)));
    let wrong = group(&by_type, "wrong.a");
    assert_eq!(
        (&wrong["dead"], &wrong["permanent"], &wrong["least_attempts_per_task"]),
        (&json!(1), &json!(1), &json!(1.0))
    );
    assert_eq!((&by_type["total"]["tasks"], &by_type["next"]), (&json!(17), &Value::Null));
    assert!(by_type["since"].as_str().is_some_and(|since| since.ends_with('Z')), "the last day: {by_type}");
    let failures = by_type["failures"].as_array().expect("a list");
    let attempts: i64 = failures.iter().filter_map(|failure| failure["attempts"].as_i64()).sum();
    assert_eq!(attempts, 3 + 2 + 1 + 8, "{failures:?}");

    let shops = json_of(&folder, &["stats", "--by", "label.shop", "--type", "second.#"]);
    assert_eq!(shops["items"].as_array().map(Vec::len), Some(2), "{shops}");
    let by_attempt = json_of(&folder, &["stats", "--by", "attempt", "--type", "second.a"]);
    let rates: Vec<&Value> =
        by_attempt["items"].as_array().expect("a list").iter().map(|n| &n["success_rate"]).collect();
    assert_eq!(rates, [&json!(0.0), &json!(1.0)]);
    let old = json_of(&folder, &["stats", "--until", "1h"]);
    assert_eq!((&old["items"], &old["total"]["success_rate"]), (&json!([]), &Value::Null));
}

#[test]
fn a_table_of_stats_fits_eighty_columns_and_a_pipe_gets_one_line_per_group() {
    let folder = history();
    let table = folder.run_with(&["stats", "-o", "table"], &[("COLUMNS", "80")]).expect_exit(0).stdout;
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.lines().any(|line| line.trim_start().starts_with("second.a ")), "{table}");
    assert!(table.contains("FAILURES") && table.contains("is the least at"), "{table}");
    let piped = folder.run(&["stats", "--by", "label.shop"]).expect_exit(0).stdout;
    assert_eq!(piped.lines().count(), 4, "{piped}");
    assert!(piped.lines().any(|line| line.starts_with("s1\t4\t100\t0.0\t0.0\t0.0\t100\t1.00\t0.0\t0")), "{piped}");
    let limited: Ran = folder.run(&["stats", "--by", "label.shop", "--limit", "1", "-o", "name"]).expect_exit(0);
    assert_eq!((limited.stdout.as_str(), limited.stderr.contains("3 more groups")), ("s4\n", true));
}

#[test]
fn a_report_compares_variants_and_says_when_there_are_too_few_tasks() {
    let folder = history();
    let report = json_of(&folder, &["policy", "report"]);
    let items = report["items"].as_array().expect("a list");
    let names: Vec<&Value> = items.iter().map(|item| &item["variant"]).collect();
    assert_eq!(names, ["none", "one"], "both have tasks of these ids: {report:#}");
    assert_eq!((&items[0]["success_rate"], &items[1]["success_rate"]), (&json!(0.0), &json!(1.0)));
    assert_eq!((&items[0]["attempts_per_task"], &items[1]["attempts_per_task"]), (&json!(1.0), &json!(2.0)));
    assert!(items[1]["time_to_success_p50_ms"].as_i64().is_some_and(|ms| ms >= 50), "{report:#}");
    assert_eq!(items[0]["time_to_success_p50_ms"], Value::Null);
    let verdict = &report["verdicts"][0];
    let sentence = verdict["sentence"].as_str().expect("a sentence");
    assert!(sentence.starts_with("one is better by 100.0 points") && sentence.contains("too few"), "{sentence}");
    assert_eq!((&verdict["too_few"], &verdict["differences"][0]["better"]), (&json!(true), &json!("one")));
    assert!(verdict["differences"][0]["p_value"].as_f64().is_some_and(|p| p < 0.05), "{verdict}");
    let table = folder.run_with(&["policy", "report", "compared", "-o", "table"], &[("COLUMNS", "80")]);
    let table = table.expect_exit(0).stdout;
    assert!(table.contains("compared: one is better") && table.contains("VARIANT"), "{table}");
    let none = folder.run(&["policy", "report", "fast", "-o", "table"]).expect_exit(0).stdout;
    assert!(none.contains("nothing to compare"), "{none}");
}
