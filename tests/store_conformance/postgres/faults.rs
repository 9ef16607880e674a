//! What goes wrong has a name, and the error says what to do.

use redeliver::store::postgres::{PostgresOptions, PostgresStore};
use redeliver::store::{Store, StoreError, Urgency};
use redeliver::task::{Answer, Settings, Status};
use sqlx::Executor;

use super::open;
use crate::fixture::{new_task, spec, submit};
use crate::server::Schema;

async fn refused(url: &str, options: PostgresOptions) -> StoreError {
    PostgresStore::open(url, Settings::default(), options).await.unwrap_err()
}

#[tokio::test]
async fn what_a_person_has_to_put_right_is_named_and_no_password_is_told() {
    let Some(schema) = Schema::new().await else { return };
    let mut theirs = schema.connect().await;
    theirs.execute("CREATE TABLE tasks (id int)").await.unwrap();
    let error = refused(&schema.url(), PostgresOptions::default()).await;
    assert!(matches!(&error, StoreError::Unusable { reason, .. } if reason.contains("search_path")), "{error}");
    theirs.execute("DROP TABLE tasks").await.unwrap();

    let nothing = PostgresOptions { create: false, ..PostgresOptions::default() };
    let error = refused(&schema.url(), nothing).await;
    assert!(matches!(&error, StoreError::Unusable { reason, .. } if reason.contains("store migrate")), "{error}");

    open(&schema).await.close().await;
    theirs.execute("UPDATE redeliver_schema SET version = 99").await.unwrap();
    let error = refused(&schema.url(), PostgresOptions::default()).await;
    assert!(matches!(&error, StoreError::Unusable { reason, .. } if reason.contains("newer redeliver")), "{error}");

    let elsewhere = |from: &str, to: &str| schema.url().replacen(from, to, 1);
    let no_database = elsewhere("/postgres", "/nowhere");
    let error = refused(&no_database, PostgresOptions::default()).await;
    assert!(matches!(&error, StoreError::Unusable { reason, .. } if reason.contains("nowhere")), "{error}");
    let no_user = elsewhere("redeliver@", "nobody-there:hunter2@");
    let error = refused(&no_user, PostgresOptions::default()).await;
    assert!(matches!(error, StoreError::Unusable { .. }) && !error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_within_its_time() {
    let Some(_schema) = Schema::new().await else { return };
    let closed = "postgres://redeliver:hunter2@127.0.0.1:9/postgres";
    let error = refused(closed, PostgresOptions::default()).await;
    assert!(matches!(error, StoreError::Unavailable { .. }) && !error.to_string().contains("hunter2"), "{error}");
    // It takes the connection and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://redeliver@{}/postgres?sslmode=disable", silent.local_addr().unwrap());
    let quick =
        PostgresOptions { connect_timeout: std::time::Duration::from_millis(300), ..PostgresOptions::default() };
    let error = refused(&url, quick).await;
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn one_row_that_the_database_refuses_does_not_take_its_batch_along() {
    let Some(schema) = Schema::new().await else { return };
    let store = open(&schema).await;
    let mut commands = Vec::new();
    for n in 0..20 {
        let mut new = new_task(&format!("t-{n}"));
        if n == 7 {
            new.spec_mut().id = "with\0nul".into();
        }
        commands.push(submit(new));
    }
    let answers = store.apply(Urgency::Normal, commands).await.unwrap();
    for (n, answer) in answers.iter().enumerate() {
        match n {
            7 => assert!(matches!(answer, Answer::Unprocessable { .. }), "{answer:?}"),
            _ => assert!(matches!(answer, Answer::Run(_)), "{n}: {answer:?}"),
        }
    }
    store.close().await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_becomes_a_dead_one_and_stops_nobody() {
    let Some(schema) = Schema::new().await else { return };
    let store = open(&schema).await;
    let new = |id: &str| submit(redeliver::task::NewTask { claimant: None, ..new_task(id) });
    let _ = store.apply(Urgency::Normal, vec![new("good"), new("bad")]).await.unwrap();
    let mut theirs = schema.connect().await;
    theirs.execute("UPDATE tasks SET passes = 'no JSON' WHERE id = 'bad'").await.unwrap();
    let claims = ["bad", "good"].map(|id| crate::fixture::claim(id, redeliver::task::Stamp::FIRST)).to_vec();
    let answers = store.apply(Urgency::Normal, claims).await.unwrap();
    assert!(matches!(answers[1], Answer::Run(_)), "{answers:?}");
    let task = store.get(&["bad".into()]).await.unwrap().remove(0).unwrap();
    assert_eq!(task.state.status, Status::Dead);
    assert_eq!(task.spec.raw.as_ref().map(|raw| raw.bytes.clone()), Some(spec("bad").payload.into_bytes()));
    store.close().await;
}
