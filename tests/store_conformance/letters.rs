//! Dead letters by group, notes, histories, edits and adoption.

use std::collections::BTreeMap;
use std::sync::Arc;

use redeliver::policy::TopicPattern;
use redeliver::store::{Filter, GroupNote, LetterGroup, LetterGroupBy, LetterHistory};
use redeliver::task::{Answer, Command, DeadReason, Decision, Failure, NewTask, PayloadEdit, Spec, Status};

use crate::fixture::{Fixture, die, new_task, refusal, retry_after, settle, spec, submit};

const HOUR: i64 = 3_600_000;

/// A task of that type and shop that has died of that class and fingerprint.
async fn letter(f: &Fixture, id: &str, task_type: &str, shop: Option<&str>, class: &str, print: &str) {
    let labels: BTreeMap<String, String> = shop.map(|shop| ("shop".to_owned(), shop.to_owned())).into_iter().collect();
    let new = NewTask { spec: Spec { task_type: task_type.into(), labels, ..spec(id) }.into(), ..new_task(id) };
    let Answer::Run(task) = f.one(submit(new)).await else { panic!("{id} does not run") };
    let failure = Failure {
        code: Some(format!("code of {class}")),
        fingerprint: print.into(),
        ..Failure::new(class, format!("{class} at {id}"))
    };
    let decision = Decision::Die { reason: DeadReason::RetriesExhausted, failure };
    let answer = f.one(settle(id, task.state.fence, decision)).await;
    assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
    f.clock.advance(1);
}

async fn groups(f: &Fixture, by: &str, filter: &Filter) -> Vec<LetterGroup> {
    f.store.letter_groups(&LetterGroupBy::parse(by).unwrap(), filter, 100).await.unwrap()
}

fn keys(groups: &[LetterGroup]) -> Vec<(Option<&str>, i64)> {
    groups.iter().map(|group| (group.key.as_deref(), group.count)).collect()
}

async fn six(f: &Fixture) {
    letter(f, "a1", "order.ship", Some("x"), "timeout", "p1").await;
    letter(f, "a2", "order.ship", Some("y"), "timeout", "p1").await;
    letter(f, "a3", "order.ship", Some("x"), "timeout", "p1").await;
    letter(f, "b1", "order.list", Some("x"), "timeout", "p2").await;
    letter(f, "b2", "order.list", None, "timeout", "p2").await;
    letter(f, "c1", "report.render", None, "server_error", "p3").await;
    // What is not dead is in no group.
    f.succeeded("done").await;
    f.retrying("waits", 60_000).await;
}

conformance! {
    async fn letters_are_grouped_by_fingerprint_class_type_reason_and_label_largest_group_first(f) {
        six(&f).await;
        let all = Filter::default();
        assert_eq!(keys(&groups(&f, "fingerprint", &all).await), [(Some("p1"), 3), (Some("p2"), 2), (Some("p3"), 1)]);
        assert_eq!(keys(&groups(&f, "class", &all).await), [(Some("timeout"), 5), (Some("server_error"), 1)]);
        assert_eq!(
            keys(&groups(&f, "type", &all).await),
            [(Some("order.ship"), 3), (Some("order.list"), 2), (Some("report.render"), 1)]
        );
        assert_eq!(keys(&groups(&f, "reason", &all).await), [(Some("retries_exhausted"), 6)]);
        assert_eq!(keys(&groups(&f, "label.shop", &all).await), [(Some("x"), 3), (None, 2), (Some("y"), 1)]);
        assert_eq!(keys(&groups(&f, "label.nothing of \"that\" $.name", &all).await), [(None, 6)]);
        assert_eq!(f.store.letter_groups(&LetterGroupBy::Class, &all, 1).await.unwrap().len(), 1);
    }

    async fn a_group_tells_its_times_its_hours_its_parts_and_its_newest_letters(f) {
        // The hour has just begun, so that nothing below crosses into the next one.
        f.clock.set(f.now().div_euclid(HOUR) * HOUR + HOUR);
        letter(&f, "old", "order.ship", None, "timeout", "p").await;
        let first = f.task("old").await.state.ended_at.unwrap();
        f.clock.advance(30 * HOUR);
        for id in ["n1", "n2", "n3"] {
            letter(&f, id, "order.list", None, "server_error", "p").await;
        }
        f.clock.advance(2 * HOUR);
        letter(&f, "n4", "order.list", None, "timeout", "p").await;
        let last = f.task("n4").await.state.ended_at.unwrap();

        let found = groups(&f, "fingerprint", &Filter::default()).await;
        let [group] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((group.count, group.first_died_at, group.last_died_at), (5, first, last));
        let mut hourly = [0; 24];
        (hourly[21], hourly[23]) = (3, 1);
        assert_eq!(group.hourly, hourly, "older ones are in no hour");
        assert_eq!(group.types, BTreeMap::from([("order.list".to_owned(), 4), ("order.ship".to_owned(), 1)]));
        assert_eq!(group.classes, BTreeMap::from([("server_error".to_owned(), 3), ("timeout".to_owned(), 2)]));
        assert_eq!(group.reasons, BTreeMap::from([(DeadReason::RetriesExhausted, 5)]));
        assert_eq!(group.codes.len(), 2);
        let samples: Vec<&str> = group.samples.iter().map(|sample| sample.id.as_str()).collect();
        assert_eq!(samples, ["n4", "n3", "n2"]);
        assert_eq!(group.samples[0].message.as_deref(), Some("timeout at n4"));
        assert_eq!(group.next_replay_at, None);
    }

    async fn groups_obey_every_filter(f) {
        six(&f).await;
        let count = async |filter: Filter| -> i64 {
            groups(&f, "fingerprint", &filter).await.iter().map(|group| group.count).sum()
        };
        let pattern = |text: &str| TopicPattern::new(text).unwrap();
        assert_eq!(count(Filter { types: vec![pattern("order.#")], ..Filter::default() }).await, 5);
        assert_eq!(count(Filter { types: vec![pattern("nothing.#")], ..Filter::default() }).await, 0);
        assert_eq!(count(Filter { types: vec![pattern("order.list")], ..Filter::default() }).await, 2);
        let labels = BTreeMap::from([("shop".to_owned(), "x".to_owned())]);
        assert_eq!(count(Filter { labels, ..Filter::default() }).await, 3);
        assert_eq!(count(Filter { classes: vec!["timeout".into()], ..Filter::default() }).await, 5);
        assert_eq!(count(Filter { text: Some("AT B".into()), ..Filter::default() }).await, 2);
        assert_eq!(count(Filter { ids: vec!["a1".into(), "done".into()], ..Filter::default() }).await, 1);
        assert_eq!(count(Filter { statuses: vec![Status::Succeeded], ..Filter::default() }).await, 0);
        assert_eq!(count(Filter { fingerprints: vec!["p3".into()], ..Filter::default() }).await, 1);
        assert_eq!(count(Filter { queues: vec!["other".into()], ..Filter::default() }).await, 0);
        let attempts = Some((redeliver::store::Comparison::AtLeast, 2));
        assert_eq!(count(Filter { attempts, ..Filter::default() }).await, 0);
        // Samples are of the letters that match.
        let found = groups(&f, "class", &Filter { text: Some("at a1".into()), ..Filter::default() }).await;
        assert_eq!((found.len(), found[0].samples.len(), found[0].samples[0].id.as_str()), (1, 1, "a1"));
    }

    async fn what_is_replayed_or_discarded_leaves_its_group(f) {
        six(&f).await;
        let replay = Command::Replay { id: "a1".into(), generation: 0, note: None };
        let _: Answer = f.one(replay).await;
        let _: Answer = f.one(Command::Discard { id: "c1".into(), generation: 0, note: None }).await;
        assert_eq!(
            keys(&groups(&f, "fingerprint", &Filter::default()).await).len(), 2
        );
    }

    async fn letters_that_never_failed_are_a_group_of_their_own(f) {
        let _: Answer = f.one(Command::Refuse(Box::new(refusal("x")))).await;
        let found = groups(&f, "fingerprint", &Filter::default()).await;
        assert_eq!(keys(&found), [(None, 1)], "a refusal of the fixture has no fingerprint");
        assert_eq!(found[0].reasons, BTreeMap::from([(DeadReason::Malformed, 1)]));
        assert_eq!(found[0].samples.len(), 1);
    }

    async fn a_note_at_a_group_is_kept_until_it_is_emptied(f) {
        let by = LetterGroupBy::Fingerprint;
        let note = GroupNote {
            key: "p1".into(),
            owner: Some("ana".into()),
            note: Some("carrier is down\0".into()),
            noted_by: Some("ana".into()),
            noted_at: 0,
        };
        f.store.note_group(&by, note.clone()).await.unwrap();
        let kept = f.store.group_notes(&by).await.unwrap();
        assert_eq!((kept.len(), kept[0].owner.as_deref(), kept[0].noted_at), (1, Some("ana"), f.now()));
        assert!(f.store.group_notes(&LetterGroupBy::Class).await.unwrap().is_empty());
        f.store.note_group(&by, GroupNote { owner: None, note: None, ..note }).await.unwrap();
        assert!(f.store.group_notes(&by).await.unwrap().is_empty());
    }

    async fn a_letters_history_counts_attempts_and_tells_the_first_and_the_last_failure(f) {
        let fence = f.running("a").await.state.fence;
        let _: Answer = f.one(settle("a", fence, retry_after(1_000, false))).await;
        let first = f.now();
        f.clock.advance(5_000);
        let Answer::Run(task) = f.one(crate::fixture::claim("a", crate::fixture::RETRY_1)).await else { panic!() };
        let _: Answer = f.one(settle("a", task.state.fence, die(DeadReason::RetriesExhausted))).await;
        let found = f.store.letter_histories(&["none".into(), "a".into()]).await.unwrap();
        let history = LetterHistory { attempts: 2, first_failed_at: Some(first), last_failed_at: Some(f.now()) };
        assert_eq!(found, [LetterHistory::default(), history]);
    }

    async fn an_edit_makes_another_task_and_leaves_the_letter_as_it_was(f) {
        let dead = f.dead("a").await;
        let edit = PayloadEdit::parse(r#"[{"op":"replace","path":"/order","value":8}]"#, Some("ana".into())).unwrap();
        let edit = Arc::new(edit);
        let command = Command::Edit { id: "a".into(), generation: 0, edit: Arc::clone(&edit), note: Some("typo".into()) };
        let Answer::Publish(wake_up) = f.one(command.clone()).await else { panic!("not edited") };
        assert_eq!(wake_up.id, "a~1");
        let made = f.task("a~1").await;
        assert_eq!((made.spec.payload.as_str(), made.state.status), (r#"{"order":8}"#, Status::Pending));
        assert_eq!(made.spec.idempotency_key.as_deref(), Some("a~1"), "another payload needs another key");
        assert_ne!(made.spec.payload_hash, dead.spec.payload_hash);
        let left = f.task("a").await;
        assert_eq!((left.state.status, &left.spec.payload), (Status::Discarded, &dead.spec.payload));
        assert_eq!(left.state.note.as_deref(), Some("edited into a~1: typo"));
        for id in ["a", "a~1"] {
            let edits = f.store.edits_of(id).await.unwrap();
            assert_eq!(edits.len(), 1);
            let known = &edits[0];
            assert_eq!((known.task_id.as_str(), known.edited_from.as_str()), ("a~1", "a"));
            assert_eq!((known.edited_by.as_deref(), known.reason.as_deref()), (Some("ana"), Some("typo")));
            assert_eq!(known.patch, edit.to_json());
        }
        // Once more: the letter is none any more.
        assert_eq!(f.one(command).await, Answer::NotNow { status: Status::Discarded });
    }

    async fn an_edit_never_takes_the_id_or_the_key_of_another_task(f) {
        f.dead("a").await;
        f.pending("a~1").await;
        let edit = Arc::new(PayloadEdit::parse(r#"[{"op":"add","path":"/x","value":1}]"#, None).unwrap());
        let answer = f.one(Command::Edit { id: "a".into(), generation: 0, edit, note: None }).await;
        assert!(matches!(&answer, Answer::NotEditable { reason } if reason.contains("a~1")), "{answer:?}");
        assert_eq!(f.task("a").await.state.status, Status::Dead);
        let misfit = Arc::new(PayloadEdit::parse(r#"[{"op":"remove","path":"/nothing"}]"#, None).unwrap());
        let answer = f.one(Command::Edit { id: "a".into(), generation: 0, edit: misfit, note: None }).await;
        assert!(matches!(answer, Answer::NotEditable { .. }), "{answer:?}");
    }

    async fn a_submission_that_could_not_be_read_is_edited_into_the_task_it_should_have_been(f) {
        let refusal = refusal("x");
        let id = refusal.spec.id.clone();
        let _: Answer = f.one(Command::Refuse(Box::new(refusal))).await;
        let whole = r#"[{"op":"replace","path":"","value":{"id":"order-7","type":"order.ship","payload":{"order":7},"idempotency_key":"k7"}}]"#;
        let edit = Arc::new(PayloadEdit::parse(whole, None).unwrap());
        let command = Command::Edit { id: id.clone(), generation: 0, edit, note: None };
        let answer = f.one(command).await;
        assert!(matches!(&answer, Answer::Publish(wake_up) if wake_up.id == "order-7"), "{answer:?}");
        let made = f.task("order-7").await;
        assert_eq!(made.spec.idempotency_key.as_deref(), Some("k7"), "the producer may send it again");
        assert!(made.spec.raw.is_none());
        let left = f.task(&id).await;
        assert!(left.spec.raw.is_some() && left.state.status == Status::Discarded);
    }

    async fn a_letter_of_another_installation_is_taken_in_once_with_its_attempts(f) {
        let task = f.dead("a").await;
        let attempts = f.store.attempts("a").await.unwrap();
        let g = if f.store.report(false).await.unwrap().place == "memory" { crate::fixture::memory() } else { crate::fixture::sqlite().await };
        let adopt = Command::Adopt { task: Box::new(task.clone()), attempts: attempts.clone() };
        assert!(matches!(g.one(adopt.clone()).await, Answer::Dead(_)));
        let taken = g.task("a").await;
        assert_eq!((taken.spec.payload.as_str(), taken.state.dead_reason), (task.spec.payload.as_str(), task.state.dead_reason));
        assert_eq!(taken.state.dlq_copy, redeliver::task::DlqCopy::Wanted);
        assert_eq!(taken.state.ended_at, task.state.ended_at);
        assert_eq!(g.store.attempts("a").await.unwrap(), attempts);
        assert_eq!(g.one(adopt).await, Answer::Duplicate { id: "a".into(), status: Status::Dead });
        // Its key counts too, and what is not dead is not taken.
        let mut other = task.clone();
        other.spec = Arc::new(Spec { id: "b".into(), ..(*task.spec).clone() });
        let answer = g.one(Command::Adopt { task: Box::new(other), attempts: Vec::new() }).await;
        assert_eq!(answer, Answer::Duplicate { id: "a".into(), status: Status::Dead });
        let alive = f.pending("p").await;
        let answer = g.one(Command::Adopt { task: Box::new(alive), attempts: Vec::new() }).await;
        assert_eq!(answer, Answer::NotNow { status: Status::Pending });
        let replay = Command::Replay { id: "a".into(), generation: 0, note: None };
        assert!(matches!(g.one(replay).await, Answer::Publish(_)));
    }
}
