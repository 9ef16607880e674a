//! Several processes on one database: the rules hold across them.

use std::collections::BTreeSet;
use std::sync::Arc;

use redeliver::gate::{Gates, LimitKind, LimitRule, Per, Rate};
use redeliver::store::postgres::PostgresStore;
use redeliver::store::{Alarm, Pause, Store, Urgency};
use redeliver::task::{Answer, Claimant, Command, NewTask, Stamp};

use super::open;
use crate::fixture::{claim, claimant, new_task, submit};
use crate::server::Schema;

async fn three(schema: &Schema) -> Vec<Arc<PostgresStore>> {
    // At once, on an empty schema: one makes the tables, the others find them.
    let opened = tokio::join!(open(schema), open(schema), open(schema));
    vec![Arc::new(opened.0), Arc::new(opened.1), Arc::new(opened.2)]
}

/// Applies commands in every store at the same time, one call each, and returns all answers.
async fn everywhere(stores: &[Arc<PostgresStore>], commands: &[Command]) -> Vec<Answer> {
    let calls = stores
        .iter()
        .flat_map(|store| commands.iter().map(move |command| store.apply(Urgency::Normal, vec![command.clone()])));
    let answers = futures_util::future::join_all(calls).await;
    answers.into_iter().flat_map(|answers| answers.unwrap()).collect()
}

#[tokio::test]
async fn a_submission_that_arrives_everywhere_at_once_makes_one_task() {
    let Some(schema) = Schema::new().await else { return };
    let stores = three(&schema).await;
    let commands: Vec<Command> = (0..40).map(|n| submit(new_task(&format!("t-{n}")))).collect();
    let answers = everywhere(&stores, &commands).await;
    let runs = answers.iter().filter(|answer| matches!(answer, Answer::Run(_))).count();
    let doubles = answers.iter().filter(|answer| matches!(answer, Answer::Duplicate { .. })).count();
    assert_eq!((runs, doubles), (40, 80), "{answers:?}");
}

#[tokio::test]
async fn an_id_less_submission_that_comes_again_while_the_first_is_committed_is_that_task() {
    let Some(schema) = Schema::new().await else { return };
    let stores = three(&schema).await;
    for round in 0..10 {
        let submission = |id: &str, redelivered| {
            let mut new = NewTask { redelivered, ..new_task(&format!("{id}-{round}")) };
            new.spec_mut().submission_hash = Some(format!("hash {round}"));
            submit(new)
        };
        let (first, again) = tokio::join!(
            stores[0].apply(Urgency::Normal, vec![submission("first", false)]),
            stores[1].apply(Urgency::Normal, vec![submission("again", true)]),
        );
        let (first, again) = (first.unwrap().remove(0), again.unwrap().remove(0));
        // Either the second saw the first, or it came first itself; then the unflagged one is a new task, as it would be anyway.
        let seen = matches!(&again, Answer::Duplicate { id, .. } if *id == format!("first-{round}"));
        assert!(seen || matches!(again, Answer::Run(_)), "{again:?}");
        assert!(matches!(first, Answer::Run(_)), "{first:?}");
    }
}

#[tokio::test]
async fn a_wake_up_that_arrives_everywhere_at_once_starts_one_attempt() {
    let Some(schema) = Schema::new().await else { return };
    let stores = three(&schema).await;
    let news: Vec<Command> =
        (0..30).map(|n| submit(NewTask { claimant: None, ..new_task(&format!("t-{n}")) })).collect();
    let _ = stores[0].apply(Urgency::Normal, news).await.unwrap();
    let claims: Vec<Command> = (0..30).map(|n| claim(&format!("t-{n}"), Stamp::FIRST)).collect();
    let answers = everywhere(&stores, &claims).await;
    let runs: Vec<&str> = answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Run(task) => Some(task.id()),
            _ => None,
        })
        .collect();
    assert_eq!((runs.len(), runs.iter().collect::<BTreeSet<_>>().len()), (30, 30), "{answers:?}");
}

#[tokio::test]
async fn a_global_limit_is_never_exceeded_by_workers_that_start_at_the_same_moment() {
    let Some(schema) = Schema::new().await else { return };
    let stores = three(&schema).await;
    let kind = LimitKind::Rate { rate: Rate { count: 1, per_ms: 3_600_000 }, burst: 20 };
    let rule = LimitRule { name: "all".into(), per: Per(Vec::new()), calls: true, kind };
    let gates = Arc::new(Gates { limits: vec![rule], ..Gates::default() });
    let commands: Vec<Vec<Command>> = (0..3)
        .map(|store| {
            let by = || Claimant { gates: Arc::clone(&gates), ..claimant() };
            (0..30).map(|n| submit(NewTask { claimant: Some(by()), ..new_task(&format!("{store}-{n}")) })).collect()
        })
        .collect();
    let calls = stores.iter().zip(&commands).flat_map(|(store, commands)| {
        commands.iter().map(move |command| store.apply(Urgency::Normal, vec![command.clone()]))
    });
    let answers: Vec<Answer> =
        futures_util::future::join_all(calls).await.into_iter().flat_map(|answers| answers.unwrap()).collect();
    let runs = answers.iter().filter(|answer| matches!(answer, Answer::Run(_))).count();
    let held = answers.iter().filter(|answer| matches!(answer, Answer::Held { .. })).count();
    assert_eq!((runs, held), (20, 70), "the burst, and not one more");
}

#[tokio::test]
async fn an_alarm_that_every_scheduler_sees_is_published_by_one() {
    let Some(schema) = Schema::new().await else { return };
    let stores = three(&schema).await;
    let news: Vec<Command> =
        (0..50).map(|n| submit(NewTask { claimant: None, ..new_task(&format!("t-{n}")) })).collect();
    let _ = stores[0].apply(Urgency::Normal, news).await.unwrap();
    let far = stores[0].now() + 3_600_000;
    let due = stores[0].feed("default", far, 100).await.unwrap();
    assert_eq!(due.len(), 50);
    let wakes: Vec<Command> = due
        .iter()
        .map(|task| Command::Wake { id: task.id().into(), stamp: task.stamp(), wake_at: task.state.wake_at.unwrap() })
        .collect();
    let answers =
        futures_util::future::join_all(stores.iter().map(|store| store.apply(Urgency::Normal, wakes.clone()))).await;
    let answers: Vec<Answer> = answers.into_iter().flat_map(|answers| answers.unwrap()).collect();
    let published = answers.iter().filter(|answer| matches!(answer, Answer::Publish(_))).count();
    let left = answers.iter().filter(|answer| matches!(answer, Answer::Changed)).count();
    assert_eq!((published, left), (50, 100), "{answers:?}");
    assert!(stores[1].alarms(Alarm::Sent, far, 100).await.unwrap().len() == 50);
}

#[tokio::test]
async fn a_pause_set_by_one_process_holds_in_all() {
    let Some(schema) = Schema::new().await else { return };
    let stores = three(&schema).await;
    let key = "pause queue default".to_owned();
    stores[0].pause(Pause { key: key.clone(), since: 0, reason: None }).await.unwrap();
    let answer = stores[1].apply(Urgency::Normal, vec![submit(new_task("a"))]).await.unwrap().remove(0);
    assert_eq!(answer, Answer::Held { by: key });
}
