//! The table `tasks` is a public door: any program may insert a task, inside its own transaction and beside its own tables.

use redeliver::store::{Store, Urgency};
use redeliver::task::{Answer, Stamp, Status};
use sqlx::{AssertSqlSafe, Connection, Executor};

use super::open;
use crate::fixture::claim;
use crate::server::Schema;

#[tokio::test]
async fn a_task_in_the_users_own_transaction_runs_if_that_commits_and_never_was_if_it_does_not() {
    let Some(schema) = Schema::new().await else { return };
    let store = open(&schema).await;
    let mut theirs = schema.connect().await;
    theirs.execute("CREATE TABLE orders (id bigint primary key)").await.unwrap();
    for (order, commits) in [(1, false), (2, true)] {
        let mut tx = theirs.begin().await.unwrap();
        sqlx::query("INSERT INTO orders VALUES ($1)").bind(i64::from(order)).execute(&mut *tx).await.unwrap();
        let sql = "INSERT INTO tasks (id, type, payload) VALUES ($1, 'order.ship', $2)";
        let (id, payload) = (format!("order-{order}"), format!(r#"{{"order": {order}}}"#));
        sqlx::query(sql).bind(&id).bind(payload).execute(&mut *tx).await.unwrap();
        assert_eq!(store.unrouted(10).await.unwrap(), [], "nobody sees it before the commit");
        if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    assert_eq!(store.unrouted(10).await.unwrap(), [("order-2".to_owned(), "order.ship".to_owned())]);
    let found = store.get(&["order-1".into(), "order-2".into()]).await.unwrap();
    assert!(found[0].is_none());
    let task = found[1].as_ref().unwrap();
    assert_eq!((task.state.status, task.state.stamp), (Status::Pending, Stamp::FIRST));
    assert_eq!(task.spec.idempotency_key.as_deref(), Some("order-2"));
    assert_eq!(task.spec.payload, r#"{"order": 2}"#, "as it was written");
    assert!((store.now() - task.spec.created_at).abs() < 60_000, "by the server's clock");
    let answer = store.apply(Urgency::Normal, vec![claim("order-2", Stamp::FIRST)]).await.unwrap().remove(0);
    assert!(matches!(answer, Answer::Run(_)), "{answer:?}");
    store.close().await;
}

#[tokio::test]
async fn workers_are_called_when_another_program_has_put_a_row_in_and_not_by_their_own() {
    let Some(schema) = Schema::new().await else { return };
    let store = open(&schema).await;
    // The first call says that from now on it is told.
    store.called().await;
    let own = crate::fixture::submit(crate::fixture::new_task("own"));
    let _ = store.apply(Urgency::Normal, vec![own]).await.unwrap();
    let before = store.outside_changes().await.unwrap();
    let mut theirs = schema.connect().await;
    let call = store.called();
    let inserting = theirs.execute("INSERT INTO tasks (id, type, payload) VALUES ('a', 'b', '{}')");
    let (called, inserted) = tokio::join!(tokio::time::timeout(std::time::Duration::from_secs(20), call), inserting);
    inserted.unwrap();
    called.unwrap();
    assert_ne!(store.outside_changes().await.unwrap(), before);
    store.close().await;
}

#[tokio::test]
async fn what_could_not_be_run_is_refused_at_the_door_with_the_reason() {
    let Some(schema) = Schema::new().await else { return };
    let store = open(&schema).await;
    let mut theirs = schema.connect().await;
    let long = format!("('{}', 'a', '{{}}')", "x".repeat(201));
    for (row, reason) in [
        ("('', 'a', '{}')", "id_has_1_to_200_bytes"),
        (long.as_str(), "id_has_1_to_200_bytes"),
        ("('a', 'order..ship', '{}')", "type_is_a_topic"),
        ("('a', '.ship', '{}')", "type_is_a_topic"),
        ("('a', 'order.', '{}')", "type_is_a_topic"),
        ("('a', 'order ship', '{}')", "type_is_a_topic"),
        ("('a', 'order.*', '{}')", "type_is_a_topic"),
        ("('a', '#', '{}')", "type_is_a_topic"),
        ("('a', 'a' || chr(12288), '{}')", "type_is_a_topic"),
        ("('a', '', '{}')", "type_is_a_topic"),
        ("('a', 'a', '{')", "invalid input syntax for type json"),
        ("('a', 'a', NULL)", "payload"),
    ] {
        let sql = format!("INSERT INTO tasks (id, type, payload) VALUES {row}");
        let refused = theirs.execute(AssertSqlSafe(sql)).await.unwrap_err().to_string();
        assert!(refused.contains(reason), "{row}: {refused}");
    }
    for row in ["('a', 'a', '{}', '[]', 0)", "('a', 'a', '{}', '{}', 10)"] {
        let sql = format!("INSERT INTO tasks (id, type, payload, labels, priority) VALUES {row}");
        theirs.execute(AssertSqlSafe(sql)).await.unwrap_err();
    }
    let sql = "INSERT INTO tasks (id, type, payload, labels, priority, due_at, idempotency_key) \
               VALUES ('ok', 'ordnung.größe', '[1, 2]', '{\"shop\": \"s1\"}', 7, 4000000000000, 'k')";
    theirs.execute(sql).await.unwrap();
    let again = "INSERT INTO tasks (id, type, payload) VALUES ('k', 'a', '{}')";
    assert!(theirs.execute(again).await.unwrap_err().to_string().contains("tasks_key"), "its key is taken");
    let task = store.get(&["ok".into()]).await.unwrap().remove(0).unwrap();
    assert_eq!(task.spec.labels.get("shop").map(String::as_str), Some("s1"));
    assert_eq!((task.state.due_at, task.state.wake_at), (4_000_000_000_000, Some(4_000_000_000_000)));
    store.close().await;
}

#[tokio::test]
async fn the_audit_is_append_only_for_whoever_has_the_database() {
    use redeliver::store::access::AccessStore;
    let Some(schema) = Schema::new().await else { return };
    let store = open(&schema).await;
    store.record(crate::access::entry("li", "task.cancel", "t1")).await.unwrap();
    let mut theirs = schema.connect().await;
    for sql in ["UPDATE audit SET who = 'nobody'", "DELETE FROM audit", "TRUNCATE audit"] {
        assert!(theirs.execute(sql).await.unwrap_err().to_string().contains("append-only"), "{sql}");
    }
    store.close().await;
}
