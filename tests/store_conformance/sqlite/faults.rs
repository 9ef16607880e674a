//! Every fault of the file has a name, and none loses or doubles a commit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{Filter, Store, StoreError, Urgency};
use redeliver::task::{Answer, Command, Settings, Status};
use sqlx::{Connection, Executor};

use super::{open, open_with, run, stranger};
use crate::fixture::{file_in, new_task, submit, url_in};

fn impatient() -> SqliteOptions {
    SqliteOptions { busy_timeout: Duration::from_millis(200), ..SqliteOptions::default() }
}

async fn open_url(url: &str) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(url, Settings::default(), impatient()).await
}

/// The reason why a person has to act.
fn unusable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Unusable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

async fn statuses(store: &SqliteStore) -> Vec<(Status, i64)> {
    store.count(&Filter::default()).await.unwrap().into_iter().collect()
}

#[tokio::test]
async fn a_locked_file_is_unavailable_and_nothing_is_lost_or_doubled() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_with(&folder, impatient()).await;
    let mut other = stranger(&folder).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();

    let locked = store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await;
    assert!(unavailable(locked).contains("another program holds its lock"));
    assert!(statuses(&store).await.is_empty(), "reading goes on and nothing was committed");
    let pause = redeliver::store::Pause { key: "pause queue default".into(), since: 0, reason: None };
    assert!(matches!(store.pause(pause).await, Err(StoreError::Unavailable { .. })));

    other.execute("ROLLBACK").await.unwrap();
    let answers = store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await.unwrap();
    assert!(matches!(answers[0], Answer::Run(_)), "{answers:?}");
    assert_eq!(statuses(&store).await, [(Status::Running, 1)]);
}

#[tokio::test]
async fn a_caller_waits_for_a_short_lock() {
    let folder = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(open(&folder).await);
    let mut other = stranger(&folder).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let waiting = tokio::spawn({
        let store = std::sync::Arc::clone(&store);
        async move { store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await }
    });
    other.execute("COMMIT").await.unwrap();
    let answers = waiting.await.unwrap().unwrap();
    assert!(matches!(answers[0], Answer::Run(_)), "{answers:?}");
}

/// Tasks of one commit that takes longer than a look.
const LARGE: i64 = 200;

#[tokio::test]
async fn a_commit_that_does_not_answer_in_time_is_unknown_and_happens_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { commit_timeout: Duration::ZERO, ..SqliteOptions::default() };
    let store = open_with(&folder, options).await;
    // Even with no time at all a commit may have answered before anybody looks, which is once a millisecond; one in many that has
    // not is enough, and large ones take their time.
    let payload = format!("\"{}\"", "x".repeat(16 * 1024));
    let (mut asked, mut unknown) = (0, false);
    while !unknown && asked < 200 * LARGE {
        let large = |n| {
            let mut new = new_task(&format!("a{n}"));
            new.spec_mut().payload.clone_from(&payload);
            submit(new)
        };
        let answer = store.apply(Urgency::Normal, (asked..asked + LARGE).map(large).collect()).await;
        asked += LARGE;
        match answer {
            Err(StoreError::Unknown { .. }) => unknown = true,
            answer => assert!(answer.unwrap().iter().all(|answer| matches!(answer, Answer::Run(_)))),
        }
    }
    assert!(unknown, "{asked} commits all answered within no time");
    store.close().await;
    assert_eq!(statuses(&open(&folder).await).await, [(Status::Running, asked)]);
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_undo_its_commands() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let mut other = stranger(&folder).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    {
        let mut call = store.apply(Urgency::Normal, vec![submit(new_task("a"))]);
        assert!(futures_util::poll!(&mut call).is_pending());
    }
    other.execute("ROLLBACK").await.unwrap();
    // Behind the abandoned call in the queue.
    let answer = store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await.unwrap().remove(0);
    assert_eq!(answer, Answer::Duplicate { id: "a".into(), status: Status::Running });
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    store.close().await;
    store.close().await;
    let refused = store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await;
    assert!(unavailable(refused).contains("closed"));
    assert!(store.count(&Filter::default()).await.is_err());
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(file_in(&folder), "not a database, but long enough to have a header of a hundred bytes. ".repeat(9))
        .unwrap();
    assert!(unusable(open_url(&url_in(&folder)).await).contains("no SQLite database"));
}

#[tokio::test]
async fn a_database_of_another_program_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = stranger(&folder).await;
    other.execute("CREATE TABLE tasks (id)").await.unwrap();
    other.close().await.unwrap();
    assert!(unusable(open_url(&url_in(&folder)).await).contains("another program"));
}

#[tokio::test]
async fn a_damaged_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let many = || (0..2_000).map(|n| submit(new_task(&format!("t{n}")))).collect::<Vec<Command>>();
    let _ = store.apply(Urgency::Normal, many()).await.unwrap();
    store.close().await;
    assert!(!folder.path().join("store.db-wal").exists(), "one file is left");
    let mut bytes = std::fs::read(file_in(&folder)).unwrap();
    // Past the header and the schema, where the rows are.
    let rows = bytes.len() / 2..bytes.len();
    bytes[rows].fill(0xa5);
    std::fs::write(file_in(&folder), bytes).unwrap();

    let store = open(&folder).await;
    assert!(unusable(store.apply(Urgency::Normal, many()).await).contains("damaged"));
    assert!(unusable(store.list(&Filter::default(), None, 500).await).contains("damaged"));
    assert_ne!(store.report(true).await.unwrap().integrity.as_deref(), Some("ok"));
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let known = store.report(false).await.unwrap().schema_known;
    store.close().await;
    stranger(&folder).await.execute("PRAGMA user_version = 4711").await.unwrap();
    let reason = unusable(open_url(&url_in(&folder)).await);
    assert!(reason.contains("4711") && reason.contains(&format!("up to {known}")), "{reason}");
}

#[tokio::test]
async fn what_is_no_place_for_a_store_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = format!("sqlite://{}", folder.path().join("nowhere/store.db").display());
    assert!(unusable(open_url(&missing).await).contains("folder exists"));
    for (url, reason) in [
        ("postgres://db", "sqlite:"),
        ("sqlite://", "names no file"),
        ("sqlite://:memory:", "in memory"),
        ("sqlite://a.db?mode=ro", "after ?"),
    ] {
        assert!(unusable(open_url(url).await).contains(reason), "{url}");
    }
    let only = SqliteOptions { create: false, ..impatient() };
    let absent = SqliteStore::open(&url_in(&folder), Settings::default(), only.clone()).await;
    assert!(unusable(absent).contains("no such file"));
    assert!(!file_in(&folder).exists());
    std::fs::write(file_in(&folder), "").unwrap();
    let empty = SqliteStore::open(&url_in(&folder), Settings::default(), only).await;
    assert!(unusable(empty).contains("empty file"));
    assert_eq!(std::fs::metadata(file_in(&folder)).unwrap().len(), 0);
}

#[tokio::test]
async fn the_report_tells_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let report = store.report(true).await.unwrap();
    assert_eq!(report.place, file_in(&folder).display().to_string());
    assert!(report.engine.starts_with("SQLite 3."), "{}", report.engine);
    assert_eq!(report.schema_version, report.schema_known);
    assert!(report.bytes > 4096);
    assert_eq!(report.integrity.as_deref(), Some("ok"));
    assert_eq!(store.report(false).await.unwrap().integrity, None);
}

/// A small file system of its own; gone with the value.
struct Volume(PathBuf);

impl Volume {
    /// `None`, said on stderr, where this user may not mount one.
    fn mount(at: &Path) -> Option<Volume> {
        let output = run("mount", &["-t", "tmpfs", "-o", "size=2m", "tmpfs", at.to_str()?])?;
        if !output.status.success() {
            eprintln!("SKIPPED: no volume: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(Volume(at.to_owned()))
    }

    fn remount(&self, how: &str) {
        let output = run("mount", &["-o", &format!("remount,{how}"), self.0.to_str().unwrap()]).unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", self.0.to_str().unwrap_or_default()]);
    }
}

#[tokio::test]
async fn a_full_disk_is_unavailable_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(volume) = Volume::mount(folder.path()) else { return };
    let store = open_with(&folder, impatient()).await;
    let mut accepted = 0;
    let full = loop {
        let mut new = new_task(&format!("t{accepted}"));
        new.spec_mut().payload = format!("{:?}", "x".repeat(50_000));
        match store.apply(Urgency::Normal, vec![submit(new)]).await {
            Ok(answers) => assert!(matches!(answers[0], Answer::Run(_))),
            failed => break unavailable(failed),
        }
        accepted += 1;
    };
    assert!(full.contains("disk is full"), "{full}");
    assert_eq!(statuses(&store).await, [(Status::Running, accepted)], "what was accepted is there, and nothing else");
    volume.remount("size=16m");
    let answers = store.apply(Urgency::Normal, vec![submit(new_task(&format!("t{accepted}")))]).await.unwrap();
    assert!(matches!(answers[0], Answer::Run(_)));
    assert_eq!(statuses(&store).await, [(Status::Running, accepted + 1)]);
    store.close().await;
}

#[tokio::test]
async fn a_read_only_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let Some(volume) = Volume::mount(folder.path()) else { return };
    open(&folder).await.close().await;
    volume.remount("ro");
    let refused = match open_url(&url_in(&folder)).await {
        Ok(store) => unusable(store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await),
        failed => unusable(failed),
    };
    assert!(refused.contains("read-only") || refused.contains("writable"), "{refused}");
}
