//! Several processes on one file, and processes that die.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command as Process, Stdio};
use std::sync::Arc;

use redeliver::gate::{Gates, LimitKind, LimitRule, Per, Rate};
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{Filter, Pause, Store, Urgency};
use redeliver::task::{Answer, Claimant, Command, Decision, NewTask, Settings, Stamp, Status};
use sqlx::{Connection, Executor};

use super::{open, open_with, stranger};
use crate::fixture::{claim, claimant, file_in, new_task, settle, submit, url_in};

const PART: &str = "REDELIVER_TEST_PART";
const STORE: &str = "REDELIVER_TEST_STORE";

/// This test's binary again, as another process that plays a part.
fn another_process(part: &str, folder: &Path) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = Process::new(std::env::current_exe().unwrap())
        .args(["sqlite::processes::another_process_plays_its_part", "--exact", "--nocapture"])
        .env(PART, part)
        .env(STORE, folder.join("store.db"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = said(child.stdout.take().unwrap());
    (child, lines)
}

/// What the other process says, without the test runner's own lines.
fn said(stdout: ChildStdout) -> impl Iterator<Item = String> {
    BufReader::new(stdout).lines().map_while(Result::ok).filter_map(|line| line.strip_prefix("> ").map(str::to_owned))
}

#[tokio::test]
async fn another_process_plays_its_part() {
    let Ok(part) = std::env::var(PART) else { return };
    let url = format!("sqlite://{}", std::env::var(STORE).unwrap());
    let store = SqliteStore::open(&url, Settings::default(), SqliteOptions::default()).await.unwrap();
    match part.as_str() {
        "claim everything" => claim_everything(&store).await,
        "submit for ever" => {
            println!();
            for n in 0.. {
                let ids: Vec<String> = (0..10).map(|k| format!("t{n}-{k}")).collect();
                let commands = ids.iter().map(|id| submit(new_task(id))).collect();
                let answers = store.apply(Urgency::Normal, commands).await.unwrap();
                for (id, answer) in ids.iter().zip(answers) {
                    assert!(matches!(answer, Answer::Run(_)));
                    println!("> {id}");
                }
            }
        }
        other => panic!("{other}"),
    }
}

async fn claim_everything(store: &SqliteStore) {
    println!();
    println!("> ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    for n in 0..300 {
        let id = format!("t{n}");
        if let Answer::Run(task) = store.apply(Urgency::Normal, vec![claim(&id, Stamp::FIRST)]).await.unwrap().remove(0)
        {
            println!("> {id}");
            let done = store.apply(Urgency::Normal, vec![settle(&id, task.state.fence, Decision::Succeed)]).await;
            assert!(matches!(done.unwrap()[0], Answer::Settled(_)));
        }
    }
    store.close().await;
}

#[tokio::test]
async fn of_two_processes_that_claim_a_task_exactly_one_runs_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let pending = (0..300).map(|n| submit(NewTask { claimant: None, ..new_task(&format!("t{n}")) })).collect();
    let answers = store.apply(Urgency::Normal, pending).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Waiting(_))));

    let start = || {
        let mut child = Process::new(std::env::current_exe().unwrap())
            .args(["sqlite::processes::another_process_plays_its_part", "--exact", "--nocapture"])
            .env(PART, "claim everything")
            .env(STORE, file_in(&folder))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = said(child.stdout.take().unwrap());
        assert_eq!(lines.next().as_deref(), Some("ready"));
        (child, lines)
    };
    let (mut first, first_lines) = start();
    let (mut second, second_lines) = start();
    // Closing their standard input lets both begin.
    drop(first.stdin.take());
    drop(second.stdin.take());
    let second_ran = std::thread::spawn(move || second_lines.collect::<Vec<_>>());
    let first_ran: Vec<String> = first_lines.collect();
    let second_ran = second_ran.join().unwrap();
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());

    let all: BTreeSet<&String> = first_ran.iter().chain(&second_ran).collect();
    assert_eq!(all.len(), 300, "every task ran");
    assert_eq!(first_ran.len() + second_ran.len(), 300, "none ran twice");
    let counts = store.count(&Filter::default()).await.unwrap();
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(Status::Succeeded, 300)]);
}

#[tokio::test]
async fn what_a_killed_process_committed_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, lines) = another_process("submit for ever", folder.path());
    let committed: Vec<String> = lines.take(500).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let store = open(&folder).await;
    let tasks = store.get(&committed).await.unwrap();
    assert!(tasks.iter().all(Option::is_some), "every answered submission survived");
    assert_eq!(store.report(true).await.unwrap().integrity.as_deref(), Some("ok"));
}

#[tokio::test]
async fn what_was_committed_is_there_after_a_drop_without_close() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let answers = store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await.unwrap();
    assert!(matches!(answers[0], Answer::Run(_)));
    drop(store);
    let again = open(&folder).await;
    assert!(again.get(&["a".into()]).await.unwrap()[0].is_some());
}

#[tokio::test]
async fn programs_that_start_at_once_on_a_new_file_all_get_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let opened = futures_util::future::join_all((0..8).map(|_| open(&folder))).await;
    for (n, store) in opened.iter().enumerate() {
        let answer = store.apply(Urgency::Normal, vec![submit(new_task(&format!("t{n}")))]).await.unwrap().remove(0);
        assert!(matches!(answer, Answer::Run(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn only_the_commits_of_others_count_as_changes_from_outside() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let at_first = store.outside_changes().await.unwrap();
    let _ = store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await.unwrap();
    assert_eq!(store.outside_changes().await.unwrap(), at_first, "our own commit is none");
    let mut other = stranger(&folder).await;
    other.execute("INSERT INTO tasks (id, type, payload) VALUES ('b', 'c', '{}')").await.unwrap();
    let after = store.outside_changes().await.unwrap();
    assert_ne!(after, at_first);
    assert_eq!(store.outside_changes().await.unwrap(), after, "nothing new");
    let another = open(&folder).await;
    let _ = another.apply(Urgency::Normal, vec![submit(new_task("d"))]).await.unwrap();
    assert_ne!(store.outside_changes().await.unwrap(), after);
    other.close().await.unwrap();
}

#[tokio::test]
async fn a_pause_set_by_one_process_holds_in_all() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (open(&folder).await, open(&folder).await);
    let _ = here.apply(Urgency::Normal, vec![submit(new_task("before"))]).await.unwrap();
    let key = "pause queue default".to_owned();
    there.pause(Pause { key: key.clone(), since: 0, reason: None }).await.unwrap();
    let answer = here.apply(Urgency::Normal, vec![submit(new_task("a"))]).await.unwrap().remove(0);
    assert_eq!(answer, Answer::Held { by: key.clone() });
    assert!(there.resume(&key).await.unwrap());
    let answer = here.apply(Urgency::Normal, vec![submit(new_task("b"))]).await.unwrap().remove(0);
    assert!(matches!(answer, Answer::Run(_)), "{answer:?}");
}

#[tokio::test]
async fn a_task_settled_elsewhere_is_seen_here() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (open(&folder).await, open(&folder).await);
    let Answer::Run(task) = here.apply(Urgency::Normal, vec![submit(new_task("a"))]).await.unwrap().remove(0) else {
        panic!()
    };
    let done = there.apply(Urgency::Normal, vec![settle("a", task.state.fence, Decision::Succeed)]).await.unwrap();
    let Answer::Settled(change) = &done[0] else { panic!("{done:?}") };
    assert_eq!(change.task.spec, task.spec, "also where it was not claimed");
    let late = here.apply(Urgency::Normal, vec![Command::Heartbeat { id: "a".into(), fence: 1 }]).await.unwrap();
    assert_eq!(late, [Answer::NotNow { status: Status::Succeeded }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_at_once_each_get_their_own_answers() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open_with(&folder, SqliteOptions::default()).await);
    let callers = (0..50).map(|n| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let urgency = if n % 5 == 0 { Urgency::First } else { Urgency::Normal };
            let ids: Vec<String> = (0..7).map(|k| format!("t{n}-{k}")).collect();
            let answers = store.apply(urgency, ids.iter().map(|id| submit(new_task(id))).collect()).await.unwrap();
            for (id, answer) in ids.iter().zip(&answers) {
                let Answer::Run(task) = answer else { panic!("{answer:?}") };
                assert_eq!(task.id(), id);
            }
            let settles = ids.iter().map(|id| settle(id, 1, Decision::Succeed)).collect();
            let answers = store.apply(urgency, settles).await.unwrap();
            assert!(answers.iter().all(|answer| matches!(answer, Answer::Settled(_))));
        })
    });
    for caller in futures_util::future::join_all(callers).await {
        caller.unwrap();
    }
    let counts = store.count(&Filter::default()).await.unwrap();
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(Status::Succeeded, 350)]);
    assert!(url_in(&folder).starts_with("sqlite:///"));
}

#[tokio::test]
async fn a_limit_that_two_processes_use_in_turn_counts_the_starts_of_both() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (open(&folder).await, open(&folder).await);
    let kind = LimitKind::Rate { rate: Rate { count: 1, per_ms: 3_600_000 }, burst: 4 };
    let all = LimitRule { name: "all".into(), per: Per(Vec::new()), calls: true, kind };
    let gates = Arc::new(Gates { limits: vec![all], ..Gates::default() });
    let come = |id: &str| {
        let claimant = Claimant { gates: Arc::clone(&gates), ..claimant() };
        vec![submit(NewTask { claimant: Some(claimant), ..new_task(id) })]
    };
    let mut started = 0;
    // Each has seen the gate, and that it holds nobody, before the other uses it and fills it.
    for n in 0..4 {
        for (store, name) in [(&one, "one"), (&two, "two")] {
            let answer = store.apply(Urgency::Normal, come(&format!("{name}-{n}"))).await.unwrap().remove(0);
            match answer {
                Answer::Run(_) => started += 1,
                Answer::Held { by } => assert_eq!(by, "limit/all"),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(started, 4);
    assert_eq!(one.held_counts().await.unwrap(), BTreeMap::from([("limit/all".to_owned(), 4)]));
}
