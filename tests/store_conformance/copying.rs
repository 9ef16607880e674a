//! `store copy`: a whole installation moves, and what arrived is what was there.

use redeliver::store::copy::{CopiedTable, CopyError, CopyOptions, copy};
use redeliver::store::{
    Filter, GroupNote, LetterGroupBy, NewPolicies, NewReplay, Pace, Pause, Selection, Urgency, open,
};
use redeliver::task::{Answer, Attachment, AttachmentBody, Decision, Settings, Settlement, Status};

use crate::fixture::{Fixture, claim, new_task, result, settle, sqlite_at, submit};

/// A store with something in most tables.
async fn filled(url: &str) -> Fixture {
    let f = sqlite_at(url).await;
    f.dead("dead").await;
    f.retrying("retrying", 60_000).await;
    f.pending("pending").await;
    let task = f.running("succeeded").await;
    let attachment = Attachment {
        name: "screen.png".into(),
        media_type: "image/png".into(),
        body: AttachmentBody::Bytes(vec![0, 159, 146, 150].into()),
    };
    let settlement = Settlement {
        result: Some(result("größe\n\"quoted\"")),
        attachments: vec![attachment],
        cost: Some(0.25),
        remember: Some("key".into()),
        ..Settlement::new("worker 1", Decision::Succeed)
    };
    let settled = redeliver::task::Command::Settle {
        id: "succeeded".into(),
        fence: task.state.fence,
        settlement: Box::new(settlement),
    };
    assert!(matches!(f.one(settled).await, Answer::Settled(_)));
    f.store.pause(Pause { key: "pause queue other".into(), since: 5, reason: Some("night".into()) }).await.unwrap();
    let rules = NewPolicies { applied_by: "li".into(), reason: None, text: Some("x".into()), hash: "h".into() };
    f.store.apply_policies(rules).await.unwrap();
    let note = GroupNote { key: "print".into(), owner: Some("li".into()), note: None, noted_by: None, noted_at: 0 };
    f.store.note_group(&LetterGroupBy::Fingerprint, note).await.unwrap();
    f.store.record(crate::access::entry("li", "task.cancel", "t1")).await.unwrap();
    let replay = NewReplay {
        selection: Selection { filter: Filter::default(), limit: None },
        about: serde_json::json!({"all": true}),
        created_by: None,
        reason: None,
        pace: Pace { rate_per_s: Some(0.1), ..Pace::default() },
        edit: None,
        driver: None,
    };
    f.store.create_replay(replay).await.unwrap();
    f
}

async fn copied(from: &str, to: &str, force: bool) -> Result<Vec<CopiedTable>, CopyError> {
    copy(from, to, Settings::default(), CopyOptions { force, dry_run: false }, &|_, _, _| {}).await
}

fn rows(tables: &[CopiedTable], name: &str) -> i64 {
    tables.iter().find(|table| table.table == name).unwrap().rows
}

/// What was copied is there, and work goes on behind it.
async fn goes_on(url: &str) {
    let store = open(url, Settings::default(), false).await.unwrap();
    let counts = store.count(&Filter::default()).await.unwrap();
    assert_eq!(counts.values().sum::<i64>(), 4);
    assert_eq!(store.result("succeeded").await.unwrap().unwrap().body, "größe\n\"quoted\"".as_bytes());
    let attempts = store.attempts("succeeded").await.unwrap();
    assert_eq!((attempts[0].cost, attempts[0].attachments.len()), (Some(0.25), 1));
    let answers = store
        .apply(Urgency::Normal, vec![submit(new_task("new")), claim("pending", redeliver::task::Stamp::FIRST)])
        .await
        .unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Run(_))), "{answers:?}");
    let fence = store.get(&["new".into()]).await.unwrap()[0].as_ref().unwrap().state.fence;
    let settled = store.apply(Urgency::Normal, vec![settle("new", fence, Decision::Succeed)]).await.unwrap();
    assert!(matches!(settled[0], Answer::Settled(_)));
    let newest = store.list(&Filter::default(), None, 1).await.unwrap();
    assert_eq!(newest.items[0].id(), "new", "its number comes after those that were copied");
    let audit = store.record(crate::access::entry("li", "task.cancel", "t2")).await.unwrap();
    assert_eq!(audit, 2);
    store.close().await;
}

#[tokio::test]
async fn a_copy_holds_every_row_and_is_refused_where_it_would_mix_or_miss_something() {
    let folder = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("sqlite://{}", folder.path().join(name).display());
    let f = filled(&url("from.db")).await;
    f.store.report_node("worker 1", "hash", None).await.unwrap();
    f.store.close().await;

    let busy = copied(&url("from.db"), &url("to.db"), false).await;
    assert!(matches!(&busy, Err(CopyError::Busy { workers, .. }) if workers == "worker 1"), "{busy:?}");
    let tables = copied(&url("from.db"), &url("to.db"), true).await.unwrap();
    for (table, wanted) in [
        ("tasks", 4),
        ("attempts", 3),
        ("attachments", 1),
        ("results", 1),
        ("cached", 1),
        ("pauses", 1),
        ("policies", 1),
        ("group_notes", 1),
        ("replay_jobs", 1),
        ("replay_items", 1),
        ("audit", 1),
        ("tokens", 0),
    ] {
        assert_eq!(rows(&tables, table), wanted, "{table}");
    }
    let again = copied(&url("from.db"), &url("to.db"), true).await;
    assert!(matches!(&again, Err(CopyError::NotEmpty { .. })), "{again:?}");
    let none = copied(&url("nowhere.db"), &url("other.db"), true).await;
    assert!(matches!(none, Err(CopyError::Store(_))), "{none:?}");
    goes_on(&url("to.db")).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn an_installation_moves_from_sqlite_to_postgresql_and_back_without_a_difference() {
    let Some(schema) = crate::server::Schema::new().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("sqlite://{}", folder.path().join(name).display());
    let f = filled(&url("from.db")).await;
    assert_eq!(f.task("dead").await.state.status, Status::Dead);
    f.store.close().await;
    let there = copied(&url("from.db"), &schema.url(), false).await.unwrap();
    let back = copied(&schema.url(), &url("back.db"), false).await.unwrap();
    assert_eq!(there, back, "the same rows with the same content");
    goes_on(&schema.url()).await;
    goes_on(&url("back.db")).await;
}
