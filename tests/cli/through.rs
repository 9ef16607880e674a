//! The same verbs on the store and through a server: the same documents, and exit codes by what the server says.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::folder::{Folder, Ran};

const CONFIG: &str = r#"
[broker]
url = "embedded"

[store]
url = "sqlite://redeliver.db"

[scheduler]
patience = "1s"

[[route]]
type = "bad.#"
command = { program = "sh", args = ["-c", "echo broken >&2; exit 64"] }

[[route]]
type = "ok.#"
command = { program = "sh", args = ["-c", "echo '{\"verdict\": \"success\", \"result\": {\"ok\": true}}'"] }

[[breaker]]
name = "shop"
per = ["label.shop"]
consecutive = 50
"#;

/// A worker with a server, on a free port.
struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killed if it is still there; nobody minds if not.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn serve(folder: &Folder, arguments: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redeliver"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.args(arguments).current_dir(folder.path()).env_clear().env("PATH", path).env("HOME", folder.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = loop {
        let line = lines.next().expect("the server says where it listens").unwrap();
        if let Some((_, url)) = line.split_once("API and console: ") {
            break url.to_owned();
        }
    };
    // What it says later must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Server { child, url }
}

/// The command line on `folder`'s store, and through a server.
struct Both<'f> {
    folder: &'f Folder,
    url: String,
    token: String,
}

impl Both<'_> {
    fn through(&self, arguments: &[&str]) -> Ran {
        let variables = [("REDELIVER_API", self.url.as_str()), ("REDELIVER_TOKEN", self.token.as_str())];
        self.folder.run_with(arguments, &variables)
    }

    fn same(&self, arguments: &[&str]) -> Value {
        let on_store = self.folder.run(arguments).expect_exit(0).json();
        let through = self.through(arguments).expect_exit(0).json();
        assert_eq!(on_store, through, "{arguments:?}");
        through
    }
}

#[test]
fn verbs_print_the_same_through_a_server_as_on_the_store() {
    let folder = Folder::with_config(CONFIG);
    let made = folder.run(&["token", "create", "night", "--role", "editor", "-o", "json"]).expect_exit(0).json();
    let token = made["token"].as_str().unwrap().to_owned();
    let server = serve(&folder, &["work", "--console", "127.0.0.1:0"]);
    let both = Both { folder: &folder, url: server.url.clone(), token };

    let published = both.through(&["publish", "ok.a", "--id", "t1", "--wait", "--timeout", "30s", "-o", "json"]);
    let published = published.expect_exit(0).json();
    assert_eq!((&published["status"], &published["result"]["body"]), (&json!("succeeded"), &json!({"ok": true})));
    let again = both.through(&["publish", "ok.a", "--id", "t1", "--wait", "-o", "json"]).expect_exit(0).json();
    assert_eq!(again["already_done"], true);
    for id in ["d1", "d2", "d3"] {
        both.through(&["publish", "bad.b", "--id", id, "--label", "shop=a"]).expect_exit(0);
    }
    both.through(&["task", "wait", "d1", "d2", "d3", "--timeout", "30s"]).expect_exit(0);

    for arguments in [
        &["task", "list", "-o", "json"][..],
        &["task", "list", "--label", "shop=a", "--type", "bad.#", "--limit", "2", "-o", "json"],
        &["task", "list", "--all", "--since", "2000-01-01", "-o", "json"],
        &["task", "show", "d1", "-o", "json"],
        &["dlq", "list", "--class", "exit_code", "-o", "json"],
        &["dlq", "list", "--attempts", ">=1", "--text", "broken", "-o", "json"],
        &["dlq", "show", "d1", "-o", "json"],
        &["dlq", "groups", "--by", "type", "-o", "json"],
        &["stats", "--since", "2000-01-01", "-o", "json"],
        &["stats", "--by", "attempt", "--type", "bad.#", "--since", "2000-01-01", "-o", "json"],
        &["policy", "report", "-o", "json"],
        &["breaker", "list", "-o", "json"],
        &["limit", "list", "-o", "json"],
        &["replay", "list", "-o", "json"],
    ] {
        both.same(arguments);
    }
    let explained = both.through(&["policy", "explain", "--type", "ok.a", "-o", "json"]).expect_exit(0).json();
    assert_eq!(explained["schedules"][0]["retries"][0]["delay_least_ms"], 900_000);
    both.through(&["queue", "list", "-o", "json"]).expect_exit(0);
    both.through(&["policy", "history", "-o", "json"]).expect_exit(0);

    // Replays, discards, words and pauses, each once.
    let dry = both.through(&["dlq", "replay", "--all", "--dry-run", "-o", "json"]).expect_exit(0).json();
    assert_eq!((&dry["replayed"], &dry["dry_run"]), (&json!(3), &json!(true)));
    let replayed = both.through(&["dlq", "replay", "d1", "d2", "--yes", "--reason", "mended", "-o", "json"]);
    let replayed = replayed.expect_exit(0).json();
    assert_eq!((&replayed["matched"], &replayed["replayed"]), (&json!(2), &json!(2)), "{replayed}");
    both.through(&["task", "wait", "d1", "d2", "--timeout", "30s"]).expect_exit(0);
    let job = both.through(&["replay", "show", "1", "-o", "json"]).expect_exit(0).json();
    assert_eq!((&job["matched"], &job["created_by"]), (&json!(2), &json!("night")));
    let gone = both.through(&["dlq", "discard", "d3", "--reason", "test", "--yes", "-o", "json"]).expect_exit(0).json();
    assert_eq!((&gone["matched"], &gone["discarded"]), (&json!(1), &json!(1)));
    both.through(&["breaker", "open", "shop/label.shop=a", "--reason", "locked", "--yes"]).expect_exit(0);
    both.through(&["breaker", "close", "shop/label.shop=a"]).expect_exit(0);
    both.through(&["queue", "pause", "default"]).expect_exit(0);
    both.through(&["queue", "resume", "default"]).expect_exit(0);

    // What the server says, as exit codes.
    both.through(&["queue", "resume", "default"]).expect_exit(5);
    both.through(&["breaker", "close", "shop/label.shop=a"]).expect_exit(6);
    both.through(&["task", "show", "nobody"]).expect_exit(5);
    both.through(&["dlq", "show", "t1"]).expect_exit(6);
    both.through(&["task", "cancel", "t1", "--yes"]).expect_exit(6);
    both.through(&["task", "cancel", "nobody", "--yes"]).expect_exit(5);
    both.through(&["audit", "list"]).expect_exit(4);
    both.through(&["dlq", "sync"]).expect_exit(2);
    let wrong = [("REDELIVER_API", server.url.as_str()), ("REDELIVER_TOKEN", "wrong")];
    folder.run_with(&["task", "list"], &wrong).expect_exit(4);
    folder.run_with(&["task", "list"], &wrong[..1]).expect_exit(4);
    folder.run(&["task", "list", "--api", "http://127.0.0.1:1", "--token", "x"]).expect_exit(7);
    folder.run(&["task", "list", "--api", "nonsense", "--token", "x"]).expect_exit(2);
    // It must not work on another store than was meant.
    both.through(&["dispatch"]).expect_exit(2);

    // Whoever changed something stands in the audit, whichever door they came through.
    folder.run(&["dlq", "discard", "d1", "--reason", "on the store", "--yes"]).expect_exit(0);
    folder.run(&["token", "revoke", "night", "--yes"]).expect_exit(0);
    both.through(&["task", "list"]).expect_exit(4);
    let audit = folder.run(&["audit", "list", "-o", "json"]).expect_exit(0).json();
    let told: Vec<(String, String, String)> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| ["who", "door", "action"].map(|key| item[key].as_str().unwrap().to_owned()).into())
        .collect();
    let told: Vec<(&str, &str)> = told.iter().rev().map(|(_, door, action)| (door.as_str(), action.as_str())).collect();
    assert_eq!(
        told,
        [
            ("cli", "token.create"),
            ("api", "task.submit"),
            ("api", "task.submit"),
            ("api", "task.submit"),
            ("api", "task.submit"),
            ("api", "replay.create"),
            ("api", "dlq.discard"),
            ("api", "breaker.open"),
            ("api", "breaker.close"),
            ("api", "queue.pause"),
            ("api", "queue.resume"),
            ("cli", "dlq.discard"),
            ("cli", "token.revoke"),
        ]
    );
}
