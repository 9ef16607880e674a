//! Groups, replay jobs, edits, transfer and retention as commands.

use serde_json::{Value, json};

use crate::folder::Folder;

const CONFIG: &str = "[broker]\nurl = 'embedded'\n[store]\nurl = 'sqlite://store.db'\n";

/// A folder whose store holds `n` dead letters of one kind and as many of another.
fn with_letters(n: i64) -> Folder {
    let folder = Folder::with_config(CONFIG);
    folder.run(&["store", "migrate"]).expect_exit(0);
    let conn = rusqlite::Connection::open(folder.path().join("store.db")).unwrap();
    conn.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2 * ?1)
         INSERT INTO tasks (id, type, payload, labels, status, dead_reason, queue, wake_at, failure_class, failure_code,
                            failure_message, failure_fingerprint, ended_at)
         SELECT 'letter-' || i, CASE WHEN i <= ?1 THEN 'order.ship' ELSE 'order.list' END, json_object('zip', i),
                json_object('shop', 's' || (i % 2)), 'dead', 'retries_exhausted', 'default', NULL, 'timeout', 'E1',
                'order ' || i || ' could not be shipped in time because the carrier does not answer at all',
                CASE WHEN i <= ?1 THEN 'v1-00000000000000aa' ELSE 'v1-00000000000000bb' END, due_at
         FROM (SELECT i, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) - i AS due_at FROM n)",
        [n],
    )
    .unwrap();
    folder
}

#[test]
fn groups_fit_a_hundred_columns_and_are_a_list_as_json() {
    let folder = with_letters(30);
    let table = folder.run_with(&["dlq", "groups", "-o", "table"], &[("COLUMNS", "100")]).expect_exit(0).stdout;
    let widest = table.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest}\n{table}");
    let spark = table.lines().nth(1).unwrap().chars().filter(|c| "▁▂▃▄▅▆▇█·".contains(*c)).count();
    assert_eq!(spark, 24, "a sparkline is one word\n{table}");
    let groups = folder.run(&["dlq", "groups", "-o", "json"]).expect_exit(0).json();
    assert_eq!(groups["next"], Value::Null);
    let items = groups["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    assert_eq!((&items[0]["count"], &items[0]["trend"]), (&json!(30), &json!("new")));
    let by_shop = folder.run(&["dlq", "groups", "--by", "label.shop", "--type", "order.ship", "-o", "name"]);
    assert_eq!(by_shop.expect_exit(0).stdout, "s1\ns0\n", "the one whose newest letter is newer comes first");
    folder.run(&["dlq", "groups", "--by", "shop"]).expect_exit(2);
    folder.run(&["dlq", "groups", "--status", "succeeded"]).expect_exit(2);
    folder.run(&["dlq", "note", "v1-00000000000000aa"]).expect_exit(2);
    folder.run(&["dlq", "note", "v1-00000000000000aa", "--owner", "ana"]).expect_exit(0);
    folder.run(&["dlq", "note", "v1-00000000000000aa", "--note", "ticket 7"]).expect_exit(0);
    let groups = folder.run(&["dlq", "groups", "-o", "json"]).expect_exit(0).json();
    let noted: Vec<_> = groups["items"].as_array().unwrap().iter().filter(|group| group["owner"] == "ana").collect();
    assert_eq!((noted.len(), &noted[0]["note"]), (1, &json!("ticket 7")));
}

#[test]
fn a_replay_is_a_job_that_can_be_looked_at_and_steered_afterwards() {
    let folder = with_letters(5);
    let replayed = folder.run(&["dlq", "replay", "--type", "order.ship", "--yes", "-o", "json"]).expect_exit(0).json();
    assert_eq!(replayed, json!({"matched": 5, "replayed": 5, "skipped": {}}));
    let detached =
        folder.run(&["dlq", "replay", "--all", "--rate", "5/s", "--ramp", "--detach", "--yes", "-o", "json"]);
    let detached = detached.expect_exit(0).json();
    assert_eq!((&detached["matched"], &detached["replayed"]), (&json!(5), &json!(0)));
    let jobs = folder.run(&["replay", "list", "-o", "json"]).expect_exit(0).json();
    let ids: Vec<i64> = jobs["items"].as_array().unwrap().iter().filter_map(|job| job["id"].as_i64()).collect();
    assert_eq!(ids, [2, 1]);
    let second = &jobs["items"][0];
    assert_eq!(
        (&second["ramp"], &second["max_failure_ratio"], &second["state"]),
        (&json!(true), &json!(0.1), &json!("running"))
    );
    assert_eq!(folder.run(&["replay", "list", "--limit", "1", "-o", "json"]).expect_exit(0).json()["next"], "2");
    let items = folder.run(&["replay", "show", "1", "--items", "--outcome", "replayed", "-o", "name"]).expect_exit(0);
    assert_eq!(items.stdout.lines().count(), 5);
    folder.run(&["replay", "pause", "2", "--reason", "lunch"]).expect_exit(0);
    folder.run(&["replay", "pause", "2"]).expect_exit(6);
    folder.run(&["replay", "resume", "2"]).expect_exit(0);
    folder.run(&["replay", "cancel", "2", "--dry-run"]).expect_exit(0);
    folder.run(&["replay", "cancel", "2"]).expect_exit(0);
    folder.run(&["replay", "resume", "2"]).expect_exit(6);
    assert_eq!(folder.run(&["replay", "show", "2", "-o", "json"]).expect_exit(0).json()["state"], "cancelled");
    folder.run(&["replay", "show", "99"]).expect_exit(5);
    folder.run(&["replay", "cancel", "99"]).expect_exit(5);
    for bad in [
        &["replay", "show", "x"][..],
        &["replay", "list", "--state", "bored"],
        &["replay", "show", "1", "--items", "--outcome", "bored"],
        &["dlq", "replay", "--all", "--max-failure-ratio", "2", "--yes"],
        &["dlq", "replay", "--all", "--edit-payload", "{}", "--yes"],
        &["dlq", "replay", "--all", "--edit-payload", "@nowhere.json", "--yes"],
        &["dlq", "replay", "--all", "--edit-payload", "[{\"op\":\"jump\",\"path\":\"/a\"}]", "--yes"],
    ] {
        folder.run(bad).expect_exit(2);
    }
}

#[test]
fn when_the_time_is_over_the_rest_is_not_replayed_and_the_job_says_so() {
    let folder = with_letters(50);
    let ran = folder.run(&["dlq", "replay", "--all", "--rate", "20/s", "--timeout", "2s", "--yes", "-o", "json"]);
    let ran = ran.expect_exit(3);
    let replayed = ran.json()["replayed"].as_i64().unwrap();
    assert!(replayed > 0 && replayed < 100, "{ran:?}");
    assert_eq!(ran.json()["matched"], 100);
    let job = folder.run(&["replay", "show", "1", "-o", "json"]).expect_exit(0).json();
    assert_eq!((&job["state"], &job["waiting"]), (&json!("cancelled"), &json!(100 - replayed)));
}

#[test]
fn an_edited_letter_runs_as_another_task_after_a_look_at_the_difference() {
    let folder = with_letters(1);
    let patch = r#"[{"op":"replace","path":"/zip","value":"8001"}]"#;
    let look = folder.run(&["dlq", "replay", "letter-1", "--edit-payload", patch, "--dry-run", "-o", "json"]);
    let look = look.expect_exit(0).json();
    let difference = json!({"path": "/zip", "before": 1, "after": "8001"});
    assert_eq!(
        look["edits"],
        json!([{"id": "letter-1", "becomes": "letter-1~1", "refused": null, "differences": [difference]}])
    );
    folder.write("patch.json", patch);
    let done = folder.run(&["dlq", "replay", "letter-1", "--edit-payload", "@patch.json", "--yes", "-o", "json"]);
    assert_eq!(done.expect_exit(0).json(), json!({"matched": 1, "replayed": 1, "skipped": {}}));
    let made = folder.run(&["task", "show", "letter-1~1", "-o", "json"]).expect_exit(0).json();
    assert_eq!((&made["payload"], &made["status"]), (&json!({"zip": "8001"}), &json!("pending")));
    let left = folder.run(&["task", "show", "letter-1", "-o", "json"]).expect_exit(0).json();
    assert_eq!((&left["payload"], &left["status"]), (&json!({"zip": 1}), &json!("discarded")));
    let misfit = r#"[{"op":"remove","path":"/nothing"}]"#;
    let look = folder.run(&["dlq", "replay", "letter-2", "--edit-payload", misfit, "--dry-run", "-o", "json"]);
    let look = look.expect_exit(6).json();
    assert_eq!((&look["replayed"], &look["skipped"]), (&json!(0), &json!({"not_editable": 1})), "as it will be");
    let skipped =
        folder.run(&["dlq", "replay", "letter-2", "--edit-payload", misfit, "--yes", "-o", "json"]).expect_exit(6);
    assert_eq!(skipped.json()["skipped"], json!({"not_editable": 1}));
}

#[test]
fn letters_move_to_another_installation_with_their_attempts_and_strange_lines_are_named() {
    let folder = with_letters(2);
    let lines = folder.run(&["dlq", "export", "--all"]).expect_exit(0).stdout;
    assert_eq!(lines.lines().count(), 4);
    folder.run(&["dlq", "export"]).expect_exit(2);
    let other = Folder::with_config(CONFIG);
    other.run(&["store", "migrate"]).expect_exit(0);
    let strange = format!("{lines}\nnonsense\n{{\"format\":\"redeliver.letter/1\"}}\n");
    other.run_stdin(&["dlq", "import", "-"], &strange).expect_exit(8);
    other.write("letters.jsonl", &strange);
    let look = other.run(&["dlq", "import", "letters.jsonl", "--dry-run", "-o", "json"]).expect_exit(3).json();
    assert_eq!((&look["imported"], &look["dry_run"]), (&json!(4), &json!(true)));
    let ran = other.run(&["dlq", "import", "letters.jsonl", "--yes", "-o", "json"]).expect_exit(3);
    assert!(ran.stderr.contains("line 6: ") && ran.stderr.contains("line 7: "), "{ran:?}");
    let done = ran.json();
    assert_eq!(
        (&done["matched"], &done["imported"], &done["skipped"]),
        (&json!(6), &json!(4), &json!({"unreadable": 2}))
    );
    let again = other.run_stdin(&["dlq", "import", "-", "--yes", "-o", "json"], &lines).expect_exit(3).json();
    assert_eq!(again["skipped"], json!({"known": 4}));
    let here = folder.run(&["dlq", "show", "letter-3", "-o", "json"]).expect_exit(0).json();
    let there = other.run(&["dlq", "show", "letter-3", "-o", "json"]).expect_exit(0).json();
    for field in ["type", "payload", "labels", "failure", "ended_at", "dead_reason", "idempotency_key", "attempts"] {
        assert_eq!(here[field], there[field], "{field}");
    }
    other.run(&["dlq", "import", "nowhere.jsonl", "--yes"]).expect_exit(2);
}

#[test]
fn only_what_is_named_is_pruned_and_never_a_dead_letter() {
    let folder = with_letters(3);
    folder.run(&["dlq", "discard", "letter-1", "--reason", "test", "--yes"]).expect_exit(0);
    folder.run(&["store", "prune", "--yes"]).expect_exit(2);
    folder.run(&["store", "prune", "--tasks", "soon", "--yes"]).expect_exit(2);
    folder.run(&["store", "prune", "--tasks", "1d"]).expect_exit(8);
    let old = folder.run(&["store", "prune", "--tasks", "1d", "--yes", "-o", "json"]).expect_exit(0).json();
    assert_eq!(old, json!({"tasks": 0}));
    let look = folder.run(&["store", "prune", "--tasks", "0s", "--replays", "0s", "--dry-run", "-o", "json"]);
    assert_eq!(look.expect_exit(0).json(), json!({"tasks": 1, "replays": 0, "dry_run": true}));
    let done = folder.run(&["store", "prune", "--tasks", "0s", "--yes", "-o", "json"]).expect_exit(0).json();
    assert_eq!(done, json!({"tasks": 1}));
    folder.run(&["task", "show", "letter-1"]).expect_exit(5);
    assert_eq!(folder.run(&["dlq", "list", "--all", "-o", "name"]).expect_exit(0).stdout.lines().count(), 5);
}
