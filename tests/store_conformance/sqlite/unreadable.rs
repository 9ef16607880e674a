//! Rows that cannot be read, and commands that cannot be carried out: each alone pays for it.

use redeliver::store::{Alarm, Filter, Store, Urgency};
use redeliver::task::{Answer, Command, DeadReason, Decision, DlqCopy, NewTask, Stamp, Status, Task};
use sqlx::Executor;
use tempfile::TempDir;

use super::{open, stranger};
use crate::fixture::{claim, new_task, settle, submit};

/// Text that is no UTF-8 passes every check that SQL has.
const BAD: &str = "CAST(x'22ff22' AS TEXT)";

async fn insert(folder: &TempDir, columns: &str, values: &str) {
    let sql = format!("INSERT INTO tasks ({columns}) VALUES ({values})");
    stranger(folder).await.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
}

fn assert_poisoned(task: &Task) {
    assert_eq!((task.state.status, task.state.dead_reason), (Status::Dead, Some(DeadReason::Poison)));
    assert_eq!(task.state.dlq_copy, DlqCopy::Wanted);
    let failure = task.state.failure.as_ref().unwrap();
    assert!(failure.message.contains("cannot be read"), "{failure:?}");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_dead_and_the_batch_that_meets_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    insert(&folder, "id, type, payload", &format!("'bad', 'a', {BAD}")).await;
    insert(&folder, "id, type, payload", "'good', 'a', '{}'").await;
    let batch = vec![claim("good", Stamp::FIRST), claim("bad", Stamp::FIRST), submit(new_task("new"))];
    let answers = store.apply(Urgency::Normal, batch).await.unwrap();
    assert!(matches!(answers[0], Answer::Run(_)), "{:?}", answers[0]);
    assert_eq!(answers[1], Answer::NotNow { status: Status::Dead });
    assert!(matches!(answers[2], Answer::Run(_)), "{:?}", answers[2]);
    let bad = store.get(&["bad".into()]).await.unwrap().remove(0).unwrap();
    assert_poisoned(&bad);
    assert_eq!(bad.spec.raw.as_ref().unwrap().bytes, b"\"\xff\"", "what it held is kept");
    assert_eq!(bad.spec.payload, "null");
}

#[tokio::test]
async fn a_row_that_a_reader_cannot_read_is_handed_out_once_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    for (id, task_type) in [("'bad type'", BAD), (BAD, "'a'"), ("'good'", "'a'")] {
        insert(&folder, "id, type, payload", &format!("{id}, {task_type}, '{{}}'")).await;
    }
    let good = [("good".to_owned(), "a".to_owned())];
    assert_eq!(store.unrouted(10).await.unwrap(), good);
    // The writer sets them aside before the next batch.
    let _ = store.apply(Urgency::Normal, vec![submit(new_task("after"))]).await.unwrap();
    let dead = store.list(&Filter { statuses: vec![Status::Dead], ..Filter::default() }, None, 10).await.unwrap().items;
    assert_eq!(dead.len(), 2);
    dead.iter().for_each(assert_poisoned);
    assert_eq!(store.unrouted(1).await.unwrap(), good, "they are not in its way any more");
    assert_eq!(store.alarms(Alarm::Copy, i64::MAX, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_running_row_that_became_unreadable_does_not_keep_its_neighbours_from_their_heartbeats() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let _ = store.apply(Urgency::Normal, vec![submit(new_task("a")), submit(new_task("b"))]).await.unwrap();
    stranger(&folder).await.execute("UPDATE tasks SET worker = CAST(x'ff' AS TEXT) WHERE id = 'a'").await.unwrap();
    let beat = |id: &str| Command::Heartbeat { id: id.into(), fence: 1 };
    let answers = store.apply(Urgency::First, vec![beat("a"), beat("b")]).await.unwrap();
    assert_eq!(answers, [Answer::NotNow { status: Status::Dead }, Answer::Done]);
}

#[tokio::test]
async fn a_command_that_the_schema_refuses_is_answered_alone_and_the_rest_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let with = |id: &str, change: fn(&mut NewTask)| {
        let mut new = new_task(id);
        change(&mut new);
        submit(new)
    };
    let mut batch: Vec<Command> = (0..20).map(|n| submit(new_task(&format!("t{n}")))).collect();
    batch[3] = with("bad payload", |new| new.spec_mut().payload = "{".into());
    batch[4] = with("bad priority", |new| new.spec_mut().priority = 11);
    batch[17] = with(&"long".repeat(51), |_| ());
    let answers = store.apply(Urgency::Normal, batch).await.unwrap();
    for (n, answer) in answers.iter().enumerate() {
        match (n, answer) {
            (3, Answer::Unprocessable { message }) => assert!(message.contains("payload_is_json"), "{message}"),
            (4, Answer::Unprocessable { message }) => assert!(message.contains("priority"), "{message}"),
            (17, Answer::Unprocessable { message }) => assert!(message.contains("id_has"), "{message}"),
            (_, Answer::Run(task)) => assert_eq!(task.id(), format!("t{n}")),
            other => panic!("{other:?}"),
        }
    }
    let counts = store.count(&Filter::default()).await.unwrap();
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(Status::Running, 17)]);
}

#[tokio::test]
async fn a_guilty_command_does_not_spoil_the_batch_of_another_caller() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let mut bad = new_task("bad");
    bad.spec_mut().payload = "{".into();
    let (guilty, innocent) = tokio::join!(
        store.apply(Urgency::Normal, vec![submit(bad)]),
        store.apply(Urgency::Normal, vec![submit(new_task("good"))]),
    );
    assert!(matches!(guilty.unwrap()[0], Answer::Unprocessable { .. }));
    assert!(matches!(innocent.unwrap()[0], Answer::Run(_)));
}

#[tokio::test]
async fn a_run_settled_beside_a_guilty_command_is_settled_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let _ = store.apply(Urgency::Normal, vec![submit(new_task("a"))]).await.unwrap();
    let mut bad = new_task("bad");
    bad.spec_mut().payload = "{".into();
    let done = || settle("a", 1, Decision::Succeed);
    let answers = store.apply(Urgency::Normal, vec![done(), submit(bad), done()]).await.unwrap();
    assert!(matches!(answers[0], Answer::Settled(_)), "{:?}", answers[0]);
    assert!(matches!(answers[1], Answer::Unprocessable { .. }), "{:?}", answers[1]);
    assert_eq!(answers[2], Answer::NotNow { status: Status::Succeeded });
    assert_eq!(store.attempts("a").await.unwrap().len(), 1);
}

#[tokio::test]
async fn nul_in_text_for_people_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let mut new = new_task("a");
    new.spec_mut().labels.insert("shop".into(), "a\0b".into());
    let _ = store.apply(Urgency::Normal, vec![submit(new)]).await.unwrap();
    let poison = Command::Poison { id: "a".into(), message: "x\0y".into() };
    let _ = store.apply(Urgency::Normal, vec![poison]).await.unwrap();
    let task = store.get(&["a".into()]).await.unwrap().remove(0).unwrap();
    assert_eq!(task.spec.labels["shop"], "a\u{fffd}b");
    assert_eq!(task.state.failure.unwrap().message, "x\u{fffd}y");
}

#[tokio::test]
async fn nul_in_an_id_is_refused_because_replacing_it_would_make_two_ids_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let answers = store.apply(Urgency::Normal, vec![submit(new_task("a\0b"))]).await.unwrap();
    assert!(matches!(answers[0], Answer::Unprocessable { .. }), "{answers:?}");
}
