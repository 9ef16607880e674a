//! Every question that is asked all the time is answered from an index, whatever the size of the table.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, ConnectOptions, Executor, Row, SqliteConnection};

use super::batch::LOAD;
use super::open;
use super::write::{ROW, SHAPES, SUBMITTED, Unset, Writes, default_of};
use crate::store::sql::columns;
use crate::store::sql::dialect::Dialect;
use crate::store::sql::read::sql;
use crate::store::sql::{drive, look, notices, replays, triage};

async fn database() -> (tempfile::TempDir, SqliteConnection) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    open::prepare(&file, true, std::time::Duration::from_secs(5)).await.unwrap();
    let conn = open::connect_options(&file, std::time::Duration::from_secs(5)).connect().await.unwrap();
    (folder, conn)
}

/// The steps of a query's plan.
async fn plan(conn: &mut SqliteConnection, query: &str) -> Vec<String> {
    let query = Dialect::Sqlite.render(query);
    let rows = conn.fetch_all(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {query}"))).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>("detail")).collect()
}

#[tokio::test]
async fn no_question_of_the_scheduler_or_the_writer_reads_the_whole_table_or_sorts() {
    let (_folder, mut conn) = database().await;
    for query in [
        sql::LEASE,
        sql::SENT,
        sql::RETRY,
        sql::HELD,
        sql::COPY,
        sql::FEED,
        sql::UNROUTED,
        sql::OUTSTANDING,
        sql::HELD_HEADS,
        sql::GET,
        sql::ATTEMPTS,
        sql::ATTACHMENTS,
        sql::RESULT,
        sql::CACHED,
        sql::DEAD_ROWS,
        sql::DEAD_COPIES,
        look::NEWEST_ENDED,
        look::ATTACHMENT_HEADS,
        look::ATTACHMENT,
        replays::ITEMS_OF,
        replays::RUNNING,
        notices::NEXT,
        notices::TAKE,
        drive::NEXT_ITEMS,
        drive::UNDRIVEN,
        drive::APPOINTED,
        drive::DIED_AFTER,
        LOAD,
    ] {
        let steps = plan(&mut conn, query).await;
        assert!(!steps.is_empty());
        for step in &steps {
            assert!(!step.starts_with("SCAN tasks"), "{query}\n{steps:#?}");
            assert!(!step.contains("TEMP B-TREE"), "{query}\n{steps:#?}");
        }
    }
}

#[tokio::test]
async fn smallest_alarms_and_shut_gates_come_from_the_ends_of_indexes() {
    let (_folder, mut conn) = database().await;
    for query in [sql::NEXT_ALARM, sql::HELD_GATES] {
        let steps = plan(&mut conn, query).await;
        let from_tasks: Vec<_> = steps.iter().filter(|step| step.contains("tasks")).collect();
        assert!(from_tasks.len() >= 2, "{steps:#?}");
        // A lone min() over an index reads one entry of it, which the plan calls a search.
        assert!(from_tasks.iter().all(|step| step.starts_with("SEARCH tasks USING")), "{steps:#?}");
        assert!(!steps.iter().any(|step| step.contains("tasks_status")), "{steps:#?}");
    }
}

#[tokio::test]
async fn each_alarm_uses_the_index_of_its_own_kind() {
    let (_folder, mut conn) = database().await;
    for (query, index) in [
        (sql::LEASE, "tasks_lease"),
        (sql::SENT, "tasks_sent"),
        (sql::RETRY, "tasks_retry"),
        (sql::HELD, "tasks_held_alarm"),
        (sql::COPY, "tasks_copy"),
        (sql::FEED, "tasks_feed"),
        (sql::UNROUTED, "tasks_unrouted"),
        (sql::OUTSTANDING, "tasks_outstanding"),
        (sql::HELD_HEADS, "tasks_held"),
        (sql::DEAD_ROWS, "tasks_dead"),
        (sql::DEAD_COPIES, "tasks_dead"),
    ] {
        let steps = plan(&mut conn, query).await;
        assert!(steps.iter().any(|step| step.contains(index)), "{query}\n{steps:#?}");
    }
}

#[tokio::test]
async fn states_are_written_by_id_and_never_touch_what_was_asked_for() {
    let (_folder, mut conn) = database().await;
    let writes = Writes::new();
    for update in writes.update_states() {
        let steps = plan(&mut conn, update).await;
        assert_eq!(steps, ["SCAN 64-ROW VALUES CLAUSE", "SEARCH tasks USING COVERING INDEX tasks_id (id=?)"]);
        for immutable in ["payload", "labels", " type", "idempotency_key", "created_at"] {
            assert!(!update.contains(immutable), "{immutable} in {update}");
        }
    }
}

#[tokio::test]
async fn what_the_smallest_statement_for_a_new_row_leaves_out_has_the_default_that_the_schema_gives_it() {
    let (_folder, mut conn) = database().await;
    let rows = conn.fetch_all("SELECT name, dflt_value FROM pragma_table_info('tasks')").await.unwrap();
    let defaults: BTreeMap<String, Option<String>> =
        rows.iter().map(|row| (row.get("name"), row.get("dflt_value"))).collect();
    for names in SHAPES {
        for name in names.split(',').map(str::trim) {
            assert!(defaults.contains_key(name), "{name} is no column");
        }
    }
    assert!(columns::count(ROW) <= 64, "a mask has no bit for each column");
    let submitted: Vec<&str> = SUBMITTED.split(',').map(str::trim).collect();
    for column in ROW.split(',').map(str::trim).filter(|column| !submitted.contains(column)) {
        let expected = match default_of(column) {
            Unset::Null => None,
            Unset::Zero => Some("0".to_owned()),
            Unset::Word(word) => Some(format!("'{word}'")),
        };
        assert_eq!(defaults[column], expected, "{column}");
    }
}

#[tokio::test]
async fn no_question_about_letters_or_jobs_reads_the_rows_of_tasks_that_are_not_concerned() {
    let (_folder, mut conn) = database().await;
    for query in [replays::COUNTS, replays::ITEMS, triage::EDITS_OF, triage::HISTORIES] {
        let steps = plan(&mut conn, query).await;
        assert!(!steps.iter().any(|step| step.contains("SCAN task") || step.contains("SCAN item")), "{steps:#?}");
    }
    let grouped = "SELECT failure_fingerprint, count(*), min(ended_at), min(wake_at) FROM tasks INDEXED BY tasks_letters \
                   WHERE status = 'dead' AND instr(lower(failure_message), 'x') > 0 AND labels <> '' \
                   GROUP BY failure_fingerprint, type, failure_class, failure_code, failure_http_status, dead_reason, ended_at / 3600000";
    let steps = plan(&mut conn, grouped).await;
    assert_eq!(
        steps,
        ["SCAN tasks USING COVERING INDEX tasks_letters"],
        "in the order of the index, and out of it alone"
    );
}
