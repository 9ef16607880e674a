//! `store copy` as a person runs it: there and back, and everything that is refused, in both directions.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::folder::Folder;
use crate::server::Schema;

const SECRET: &str = "s3cret-in-a-url";

/// The URL of the schema's store, with a password.
fn url(schema: &Schema) -> String {
    let url = schema.url();
    let (user, rest) = url.split_once('@').expect("a user");
    match user.matches(':').count() {
        1 => format!("{user}:{SECRET}@{rest}"),
        _ => url,
    }
}

/// A folder whose store has tasks in several states.
fn filled() -> Folder {
    let folder = Folder::with_config("[broker]\nurl = 'embedded'\n[store]\nurl = 'sqlite://redeliver.db'\n");
    folder.run(&["store", "migrate", "--yes"]).expect_exit(0);
    for id in ["waits", "over", "größe"] {
        let payload = format!("{{\"id\": \"{id}\", \"n\": 1.50}}");
        folder.run(&["publish", "order.ship", "--id", id, "--payload", &payload, "--label", "shop=a"]).expect_exit(0);
    }
    folder.run(&["task", "cancel", "over", "--yes", "--reason", "test"]).expect_exit(0);
    folder.run(&["queue", "pause", "default", "--yes", "--reason", "night"]).expect_exit(0);
    folder
}

fn copy(folder: &Folder, from: &str, to: &str, exit: i32) -> String {
    let ran = folder.run(&["-o", "json", "store", "copy", "--from", from, "--to", to]).expect_exit(exit);
    assert!(!ran.all().contains(SECRET), "a password was shown: {ran:?}");
    if exit == 0 { ran.stdout } else { ran.stderr }
}

/// What tasks and pauses look like from outside.
fn seen(folder: &Folder, store: &str) -> Vec<Value> {
    let shown = |id: &str| {
        let arguments = ["-o", "json", "task", "show", id];
        folder.run_with(&arguments, &[("REDELIVER_STORE_URL", store)]).expect_exit(0).json()
    };
    ["waits", "over", "größe"].map(shown).to_vec()
}

#[tokio::test]
async fn store_copy_moves_an_installation_to_postgresql_and_back_and_nothing_is_changed_by_it() {
    let Some(schema) = Schema::new().await else { return };
    let (folder, postgres) = (filled(), url(&schema));
    let there = copy(&folder, "sqlite://redeliver.db", &postgres, 0);
    let tables: Value = serde_json::from_str(&there).expect("JSON");
    let of = |name: &str| tables["items"].as_array().and_then(|all| all.iter().find(|table| table["table"] == name));
    assert_eq!(of("tasks").expect("tasks")["rows"], 3, "{tables}");
    assert_eq!(of("pauses").expect("pauses")["rows"], 1, "{tables}");
    let back = copy(&folder, &postgres, "sqlite://back.db", 0);
    assert_eq!(there, back, "every table has the same rows and the same content");
    let here = seen(&folder, "sqlite://redeliver.db");
    assert_eq!(here[1]["status"], "cancelled", "{here:?}");
    assert_eq!(seen(&folder, &postgres), here);
    assert_eq!(seen(&folder, "sqlite://back.db"), here);
    // What the copy numbers next comes behind what was copied.
    let more = ["publish", "order.ship", "--id", "more"];
    folder.run_with(&more, &[("REDELIVER_STORE_URL", &postgres)]).expect_exit(0);
    let listed = ["-o", "json", "task", "list", "--all"];
    let listed = folder.run_with(&listed, &[("REDELIVER_STORE_URL", &postgres)]).expect_exit(0).json();
    assert_eq!(listed["items"][0]["id"], "more", "newest first: {listed}");
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(4));
}

#[tokio::test]
async fn store_copy_refuses_a_target_that_holds_something_whichever_kind_it_is() {
    let Some(schema) = Schema::new().await else { return };
    let (folder, postgres) = (filled(), url(&schema));
    copy(&folder, "sqlite://redeliver.db", &postgres, 0);
    for (from, to) in [("sqlite://redeliver.db", postgres.as_str()), (&postgres, "sqlite://redeliver.db")] {
        let said = copy(&folder, from, to, 6);
        assert!(said.contains("is not empty") && said.contains("rows"), "{said}");
    }
    assert_eq!(seen(&folder, &postgres), seen(&folder, "sqlite://redeliver.db"));
}

#[tokio::test]
async fn store_copy_refuses_one_store_as_both_and_urls_of_no_store() {
    let Some(schema) = Schema::new().await else { return };
    let (folder, postgres) = (filled(), url(&schema));
    for same in ["sqlite://redeliver.db", &postgres] {
        let said = copy(&folder, same, same, 2);
        assert!(said.contains("the same store"), "{said}");
    }
    let unknown = format!("mysql://root:{SECRET}@localhost/db");
    for known in ["sqlite://redeliver.db", &postgres] {
        for (from, to) in [(unknown.as_str(), known), (known, &unknown)] {
            let said = copy(&folder, from, to, 2);
            assert!(said.contains("sqlite://") && said.contains("postgres://"), "says what it takes: {said}");
        }
    }
}

#[tokio::test]
async fn store_copy_says_what_is_missing_a_schema_a_store_in_it_or_a_file() {
    let Some(schema) = Schema::new().await else { return };
    let (folder, postgres) = (filled(), url(&schema));
    let nowhere = postgres.replace(&schema.name, "no_such_schema");
    for (from, to) in [("sqlite://redeliver.db", nowhere.as_str()), (&nowhere, "sqlite://new.db")] {
        let said = copy(&folder, from, to, 1);
        assert!(said.contains("CREATE SCHEMA"), "{said}");
    }
    let said = copy(&folder, &postgres, "sqlite://new.db", 1);
    assert!(said.contains("store migrate"), "an empty schema is no store: {said}");
    let said = copy(&folder, "sqlite://absent.db", &postgres, 5);
    assert!(said.contains("absent.db"), "{said}");
    assert!(!folder.path().join("new.db").exists() && !folder.path().join("absent.db").exists(), "nothing was made");
}

#[tokio::test]
async fn store_copy_waits_for_workers_to_end_longer_for_a_killed_one_and_only_looks_when_it_is_a_dry_run() {
    let Some(schema) = Schema::new().await else { return };
    let (folder, postgres) = (filled(), url(&schema));
    let dry = ["-o", "json", "store", "copy", "--from", "sqlite://redeliver.db", "--to", &postgres, "--dry-run"];
    let counted = folder.run(&dry).expect_exit(0).json();
    assert!(counted.to_string().contains("tasks"), "{counted}");
    let work = || {
        let worker = folder.work();
        let began = Instant::now();
        while folder.run(&["-o", "json", "policy", "history"]).expect_exit(0).json()["nodes"]
            .as_array()
            .is_none_or(Vec::is_empty)
        {
            assert!(began.elapsed() < Duration::from_secs(30), "the worker does not say that it is there");
            std::thread::sleep(Duration::from_millis(50));
        }
        worker
    };
    let worker = work();
    let said = copy(&folder, "sqlite://redeliver.db", &postgres, 6);
    assert!(said.contains("workers run on"), "{said}");
    worker.stop();
    folder.run(&dry).expect_exit(0);
    // A worker that is dropped is killed, and signs off nowhere.
    drop(work());
    let said = copy(&folder, "sqlite://redeliver.db", &postgres, 6);
    assert!(said.contains("workers run on"), "{said}");
    let forced = ["store", "copy", "--force", "--from", "sqlite://redeliver.db", "--to", &postgres];
    folder.run(&forced).expect_exit(0);
}
