//! The command line keeps its contract with scripts: exit codes, formats, consent, and no password anywhere.

mod support;

#[cfg(feature = "postgres")]
#[path = "cli/copying.rs"]
mod copying;
#[path = "cli/dead_letters.rs"]
mod dead_letters;
#[path = "cli/folder.rs"]
#[expect(dead_code, reason = "SIGHUP is for the tests of reloading")]
mod folder;
#[path = "cli/gates.rs"]
mod gates;
#[cfg(feature = "postgres")]
#[path = "support/postgres.rs"]
mod server;
#[path = "cli/stats.rs"]
mod stats;
#[path = "cli/through.rs"]
mod through;

use folder::{Folder, Ran};
use serde_json::Value;

#[test]
fn exit_codes_are_those_of_the_contract() {
    let folder = Folder::with_config("[broker]\nurl = 'embedded'\n");
    folder.run(&["store", "migrate"]).expect_exit(0);
    let cases: &[(&[&str], i32)] = &[
        (&["--version"], 0),
        (&["--help"], 0),
        (&["task", "list"], 0),
        (&["task", "list", "-o", "json", "--all"], 0),
        (&["dlq", "list"], 0),
        (&["queue", "list"], 0),
        (&["breaker", "list"], 0),
        (&["stats"], 0),
        (&["policy", "report"], 0),
        (&["limit", "list", "-o", "json"], 0),
        (&["topology", "plan"], 0),
        (&["config", "show"], 0),
        (&["doctor"], 0),
        (&["dlq", "replay", "--all", "--dry-run"], 0),
        (&["dlq", "replay", "--all", "--yes"], 0),
        // Usage.
        (&[], 2),
        (&["nonsense"], 2),
        (&["task", "list", "--nonsense"], 2),
        (&["task", "list", "--status", "nonsense"], 2),
        (&["task", "list", "--since", "yesterday"], 2),
        (&["task", "list", "--attempts", "many"], 2),
        (&["task", "list", "--label", "shop"], 2),
        (&["task", "list", "--type", "a..b"], 2),
        (&["task", "list", "--http-status", "42"], 2),
        (&["task", "list", "--limit", "0"], 2),
        (&["task", "list", "--cursor", "nonsense"], 2),
        (&["task", "wait", "x", "--status", "running"], 2),
        (&["dlq", "list", "--status", "succeeded"], 2),
        (&["dlq", "replay", "--yes"], 2),
        (&["dlq", "replay", "--all", "--rate", "fast", "--yes"], 2),
        (&["dlq", "discard", "--all", "--yes"], 2),
        (&["queue", "pause"], 2),
        (&["breaker", "open"], 2),
        (&["stats", "--by", "shop"], 2),
        (&["stats", "--since", "yesterday"], 2),
        (&["queue", "pause", "default", "--type", "#"], 2),
        (&["publish"], 2),
        (&["publish", "a..b"], 2),
        (&["publish", "a", "--payload", "{"], 2),
        (&["publish", "a", "--payload", "@nowhere.json"], 2),
        (&["publish", "a", "--priority", "10"], 2),
        (&["publish", "a", "--batch", "x"], 2),
        (&["publish", "--batch", "nowhere.jsonl"], 2),
        (&["work", "--concurrency", "0"], 2),
        (&["task", "list", "--timeout", "0s"], 2),
        (&["task", "list", "--timeout", "soon"], 2),
        (&["config", "check", "nowhere.toml"], 2),
        (&["--config", "nowhere.toml", "task", "list"], 2),
        // Not found.
        (&["task", "show", "nowhere"], 5),
        (&["task", "cancel", "nowhere", "--yes"], 5),
        (&["task", "retry", "nowhere"], 5),
        (&["dlq", "show", "nowhere"], 5),
        (&["dlq", "replay", "nowhere", "--yes"], 5),
        (&["queue", "pause", "nowhere"], 5),
        (&["breaker", "open", "nowhere/label.shop=a"], 5),
        (&["breaker", "close", "nowhere"], 5),
        (&["policy", "report", "nowhere"], 5),
        (&["queue", "resume", "default"], 5),
        (&["work", "--queue", "nowhere"], 5),
        // Failed.
        (&["task", "wait", "nowhere", "--timeout", "100ms"], 1),
    ];
    for (arguments, exit) in cases {
        folder.run(arguments).expect_exit(*exit);
    }
}

#[test]
fn commands_and_flags_are_never_completed_from_a_prefix() {
    let folder = Folder::with_config("");
    for arguments in [&["conf", "show"][..], &["config", "sho"], &["config", "show", "--out", "json"]] {
        folder.run(arguments).expect_exit(2);
    }
}

#[test]
fn what_cannot_be_taken_back_is_refused_without_a_terminal_and_without_yes() {
    // Refused at once: before the broker is asked, before a store is looked for.
    let folder = Folder::with_config("[broker]\nurl = 'amqp://u:geheim@127.0.0.1:1/'\n");
    for arguments in [
        &["dlq", "replay", "--all"][..],
        &["dlq", "replay", "x"],
        &["dlq", "discard", "--all", "--reason", "x"],
        &["task", "cancel", "x"],
        &["topology", "delete"],
        &["topology", "delete", "--force"],
    ] {
        let ran = folder.run(arguments).expect_exit(8);
        assert!(ran.stderr.contains("--yes"), "{ran:?}");
        assert_eq!(ran.stdout, "", "{ran:?}");
    }
}

#[test]
fn an_unreachable_broker_is_exit_7_and_no_password_is_printed() {
    let folder = Folder::with_config("[broker]\nurl = 'amqp://me:geheim@127.0.0.1:1/%2f'\nconfirm_timeout = '2s'\n");
    folder.run(&["store", "migrate"]).expect_exit(0);
    for (arguments, exit) in [
        (&["publish", "a"][..], 7),
        (&["publish", "a", "-vv"], 7),
        (&["dispatch"], 7),
        (&["topology", "plan"], 7),
        (&["topology", "apply"], 7),
        (&["queue", "list"], 7),
        (&["dlq", "sync"], 7),
        (&["task", "retry", "x"], 7),
        (&["doctor"], 1),
        (&["config", "show", "-o", "json"], 0),
        (&["bench", "--tasks", "100"], 7),
        (&["demo", "--exit", "--broker", "amqp://me:geheim@127.0.0.1:1/%2f"], 7),
    ] {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--timeout", "5s"]).collect();
        let ran = folder.run(&arguments).expect_exit(exit);
        assert!(!ran.all().contains("geheim"), "{ran:?}");
    }
    let depths = folder.run(&["queue", "list", "-o", "json"]).expect_exit(7).json();
    assert_eq!(depths["items"][0]["ready"], Value::Null, "what the store knows is shown all the same");
}

#[test]
fn urls_that_cannot_be_meant_are_refused_without_being_quoted() {
    let folder = Folder::with_config("");
    for url in ["amqp://me:geheim@", "amqp://me:geh/eim@host:x/", "http://me:geheim@host/", "me:geheim@host"] {
        let ran = folder.run_with(&["task", "list"], &[("REDELIVER_BROKER_URL", url)]).expect_exit(2);
        assert!(!ran.all().contains("geh"), "{ran:?}");
        assert!(ran.stderr.contains("REDELIVER_BROKER_URL: expected amqp://"), "{ran:?}");
    }
}

#[test]
fn a_config_with_mistakes_is_exit_2_for_every_command_with_all_of_them() {
    let folder = Folder::with_config("[worker]\nprefetch = 0\nlease = 'x'\n");
    for arguments in [&["task", "list"][..], &["config", "check"], &["config", "show"], &["work"]] {
        let ran = folder.run(arguments).expect_exit(2);
        assert!(ran.stderr.contains("redeliver.toml:2: [worker]: prefetch"), "{ran:?}");
        assert!(ran.stderr.contains("redeliver.toml:3: [worker]: lease"), "{ran:?}");
    }
    let checked = folder.run(&["config", "check", "-o", "json"]).expect_exit(2).json();
    assert_eq!(checked["problems"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_store_that_is_not_there_or_no_store_is_named() {
    let folder = Folder::with_config("[broker]\nurl = 'embedded'\n");
    for empty in [false, true] {
        if empty {
            folder.write("redeliver.db", "");
        }
        let ran = folder.run(&["task", "list"]).expect_exit(5);
        assert!(ran.stderr.contains("sqlite://redeliver.db") && ran.stderr.contains("store migrate"), "{ran:?}");
    }
    folder.write("redeliver.db", "this is no database, it is a letter to a person who looks into it");
    let ran = folder.run(&["task", "list"]).expect_exit(1);
    assert!(ran.stderr.contains("redeliver.db"), "{ran:?}");
}

#[test]
fn flags_win_over_the_environment_and_config_show_says_so() {
    let folder = Folder::with_config("[worker]\nconcurrency = 3\nprefetch = 5\n");
    let variables = [("REDELIVER_WORKER_CONCURRENCY", "4"), ("REDELIVER_STORE_URL", "sqlite://env.db")];
    let shown = folder.run_with(&["config", "show", "-o", "json", "--store-url", "sqlite://flag.db"], &variables);
    let shown = shown.expect_exit(0).json();
    let find = |key: &str| {
        let items = shown["items"].as_array().unwrap();
        items
            .iter()
            .find(|item| item["key"] == key)
            .map(|item| (item["value"].clone(), item["source"].clone()))
            .unwrap()
    };
    assert_eq!(find("store.url"), ("sqlite://flag.db".into(), "flag".into()));
    assert_eq!(find("worker.concurrency"), ("4".into(), "env".into()));
    assert_eq!(find("worker.prefetch"), ("5".into(), "file".into()));
    assert_eq!(find("worker.lease"), ("1m".into(), "default".into()));
}

#[test]
fn help_completions_man_and_schema_come_out() {
    let folder = Folder::with_config("");
    let help = folder.run(&["--help"]).expect_exit(0).stdout;
    let nouns = "demo work publish dispatch task dlq queue breaker limit topology policy stats config store doctor bench completions man";
    for noun in nouns.split(' ') {
        assert!(help.lines().any(|line| line.trim_start().starts_with(noun)), "{noun} is not in:\n{help}");
    }
    assert!(help.contains("8 refused without --yes"), "exit codes are documented:\n{help}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(folder.run(&["completions", shell]).expect_exit(0).stdout.contains("redeliver"));
    }
    assert!(folder.run(&["man"]).expect_exit(0).stdout.contains(".TH redeliver 1"));
    folder.run(&["man", "--dir", "pages"]).expect_exit(0);
    for page in ["redeliver.1", "redeliver-dlq-replay.1", "redeliver-queue-list.1"] {
        assert!(folder.path().join("pages").join(page).exists(), "{page}");
    }
    let schema = folder.run(&["config", "schema"]).expect_exit(0).json();
    assert!(schema["properties"]["broker"].is_object());
}

/// One route that succeeds, one that fails for good reasons, fast retries.
const TWO_ROUTES: &str = r##"
[broker]
url = "embedded"
[[route]]
type = "ok.#"
command = { program = "sh", args = ["-c", "cat >/dev/null; echo '{\"verdict\":\"success\",\"result\":{\"n\":1}}'"] }
[[route]]
type = "bad.#"
command = { program = "sh", args = ["-c", "echo broken >&2; exit 1"] }
[[policy]]
name = "fast"
backoff = { steps = ["100ms"] }
"##;

#[test]
fn a_task_is_published_waited_for_shown_replayed_and_discarded() {
    let folder = Folder::with_config(TWO_ROUTES);
    let worker = folder.work();
    let published =
        folder.run(&["publish", "bad.a", "--id", "b1", "--label", "shop=s1", "--payload", "[1]", "-o", "json"]);
    let published = published.expect_exit(0).json();
    assert_eq!((&published["id"], &published["accepted"]), (&"b1".into(), &true.into()));

    let done = folder
        .run(&["publish", "ok.a", "--id", "a1", "--wait", "--timeout", "30s", "-o", "json"])
        .expect_exit(0)
        .json();
    assert_eq!((&done["status"], &done["already_done"]), (&"succeeded".into(), &false.into()));
    assert_eq!(done["result"]["body"]["n"], 1);
    let again = folder
        .run(&["publish", "ok.a", "--id", "a1", "--wait", "--timeout", "30s", "-o", "json"])
        .expect_exit(0)
        .json();
    assert_eq!((&again["already_done"], &again["result"]), (&true.into(), &done["result"]));
    folder.run(&["publish", "ok.a", "--id", "a1", "--payload", "2", "--timeout", "30s"]).expect_exit(6);

    folder.run(&["task", "wait", "b1", "--timeout", "30s"]).expect_exit(0);
    folder.run(&["task", "wait", "b1", "--status", "succeeded", "--timeout", "30s"]).expect_exit(1);
    let shown = folder.run(&["task", "show", "b1", "-o", "json"]).expect_exit(0).json();
    for key in "id type labels payload status degraded dead_reason retry_count generation due_at held_by dlq_copy result attempts".split(' ') {
        assert!(shown.get(key).is_some(), "{key} is missing in {shown}");
    }
    let attempt = &shown["attempts"][1];
    for key in "number generation outcome class code http_status message stack started_at ended_at duration_ms worker policy variant \
                delay_before_ms delay_reason cost attachments"
        .split_whitespace()
    {
        assert!(attempt.get(key).is_some(), "{key} is missing in {attempt}");
    }
    assert_eq!((&shown["dead_reason"], &shown["payload"]), (&"retries_exhausted".into(), &serde_json::json!([1])));

    // Formats.
    assert_eq!(folder.run(&["dlq", "list", "-o", "name", "--type", "bad.#"]).expect_exit(0).stdout, "b1\n");
    let tsv = folder.run(&["dlq", "list", "--type", "bad.#"]).expect_exit(0).stdout;
    assert!(tsv.starts_with("b1\tbad.a\tretries_exhausted\t1\t"), "no header in a pipe: {tsv}");
    let csv = folder.run(&["dlq", "list", "--type", "bad.#", "-o", "csv"]).expect_exit(0).stdout;
    assert!(csv.starts_with("id,type,reason,"), "{csv}");
    let page = folder.run(&["task", "list", "-o", "json", "--limit", "1"]).expect_exit(0).json();
    let cursor = page["next"].as_str().expect("there is more than one task").to_owned();
    let next = folder.run(&["task", "list", "-o", "json", "--limit", "1", "--cursor", &cursor]).expect_exit(0).json();
    assert_ne!(page["items"][0]["id"], next["items"][0]["id"]);
    let all = folder.run(&["task", "list", "-o", "json", "--all"]).expect_exit(0).json();
    assert_eq!((all["items"].as_array().map(Vec::len), &all["next"]), (Some(3), &Value::Null));
    let lines = folder.run(&["task", "list", "-o", "jsonl", "--all"]).expect_exit(0).stdout;
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");

    // Replay: b1 can, the refused double of a1 cannot.
    let replayed = folder.run(&["dlq", "replay", "--all", "--dry-run", "-o", "json"]).expect_exit(3).json();
    let expected =
        serde_json::json!({ "matched": 2, "replayed": 1, "skipped": { "not_replayable": 1 }, "dry_run": true });
    assert_eq!(replayed, expected);
    let replayed =
        folder.run_stdin(&["dlq", "replay", "-", "--yes", "--reason", "x", "-o", "json"], "b1\n").expect_exit(0);
    assert_eq!(replayed.json(), serde_json::json!({ "matched": 1, "replayed": 1, "skipped": {} }));
    folder.run(&["task", "wait", "b1", "--timeout", "40s"]).expect_exit(0);
    let shown = folder.run(&["dlq", "show", "b1", "-o", "json"]).expect_exit(0).json();
    assert_eq!((&shown["generation"], shown["attempts"].as_array().map(Vec::len)), (&1.into(), Some(4)));
    folder.run(&["dlq", "discard", "b1", "--yes", "--reason", "seen"]).expect_exit(0);
    folder.run(&["dlq", "show", "b1"]).expect_exit(6);
    folder.run(&["task", "cancel", "b1", "--yes"]).expect_exit(6);
    folder.run(&["task", "cancel", "b1", "nowhere", "--yes"]).expect_exit(6);

    // A pause holds, a resume lets go.
    folder.run(&["queue", "pause", "--type", "ok.#", "--reason", "lunch"]).expect_exit(0);
    folder.run(&["publish", "ok.b", "--id", "held"]).expect_exit(0);
    folder.run(&["task", "wait", "held", "--timeout", "1s"]).expect_exit(1);
    folder.run(&["queue", "resume", "--type", "ok.#"]).expect_exit(0);
    folder.run(&["task", "wait", "held", "--status", "succeeded", "--timeout", "30s"]).expect_exit(0);
    worker.stop();
}

#[test]
fn a_batch_says_what_became_of_each_line() {
    let folder = Folder::with_config("[broker]\nurl = 'embedded'\n");
    let lines =
        "{\"type\":\"a\",\"id\":\"x\"}\n\n{\"payload\":1}\nnonsense\n{\"type\":\"a\",\"idempotency_key\":\"k\"}\n";
    let report = folder.run_stdin(&["publish", "--batch", "-", "-o", "json"], lines).expect_exit(3).json();
    let told: Vec<(u64, bool)> = report["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["line"].as_u64().unwrap(), item["accepted"].as_bool().unwrap()))
        .collect();
    assert_eq!(told, [(1, true), (3, false), (4, false), (5, true)]);
    // The same file again: the same tasks, also the one that only has a key.
    folder.run_stdin(&["publish", "--batch", "-"], lines).expect_exit(3);
    assert_eq!(folder.run(&["task", "list", "-o", "name"]).expect_exit(0).stdout.lines().count(), 2);
    folder.run_stdin(&["publish", "--batch", "-"], "nonsense\n").expect_exit(1);
    folder.run_stdin(&["publish", "--batch", "-"], "").expect_exit(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_commands_do_their_work_on_a_real_broker() {
    support::with_vhost(|vhost| async move {
        tokio::task::spawn_blocking(move || on_a_real_broker(&vhost)).await.unwrap();
    })
    .await;
}

fn on_a_real_broker(vhost: &support::Vhost) {
    let folder = Folder::with_config(&TWO_ROUTES.replace("\"embedded\"", &format!("{:?}", vhost.url())));
    let unroutable = folder.run(&["publish", "ok.a", "--id", "early", "-o", "json"]).expect_exit(1).json();
    assert_eq!(unroutable["accepted"], false);
    let wrong = vhost.url_with_password("geheim");
    let ran = folder.run(&["publish", "ok.a", "--broker-url", &wrong]).expect_exit(7);
    assert!(!ran.all().contains("geheim"), "{ran:?}");

    let missing = |ran: Ran| ran.expect_exit(0).json()["items"].as_array().unwrap().len();
    assert!(missing(folder.run(&["topology", "plan", "-o", "json"])) > 5);
    folder.run(&["topology", "apply"]).expect_exit(0);
    assert_eq!(missing(folder.run(&["topology", "plan", "-o", "json"])), 0);
    folder.run(&["publish", "bad.a", "--id", "b1"]).expect_exit(0);
    folder.run(&["topology", "delete", "--yes"]).expect_exit(6);
    let listed = folder.run(&["queue", "list", "-o", "json"]).expect_exit(0).json();
    let tasks = listed["items"].as_array().unwrap().iter().find(|item| item["role"] == "tasks").unwrap().clone();
    assert_eq!((&tasks["ready"], &tasks["consumers"]), (&1.into(), &0.into()));

    let worker = folder.work();
    folder.run(&["task", "wait", "b1", "--status", "dead", "--timeout", "30s"]).expect_exit(0);
    folder.run(&["dlq", "sync"]).expect_exit(0);
    folder.run(&["dlq", "replay", "--all", "--yes"]).expect_exit(0);
    folder.run(&["task", "wait", "b1", "--status", "dead", "--timeout", "30s"]).expect_exit(0);
    worker.stop();
    folder.run(&["topology", "delete", "--yes", "--force"]).expect_exit(0);
}
