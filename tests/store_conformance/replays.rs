//! Replay jobs: their frozen selection, their driver's lease, what becomes of each letter; automatic ones; retention.

use std::collections::BTreeMap;

use redeliver::store::{
    Filter, ItemCounts, ItemOutcome, NewReplay, Pace, Prunable, ReplayJob, ReplayLease, ReplayOrigin, ReplayState,
    ReplayStep, Selection, Steer, Steered,
};
use redeliver::task::{Answer, Command, DeadReason, Decision, Stamp, Status};

use crate::fixture::{Fixture, die, refusal, retry_after, settle};

const HOLD_MS: i64 = 15_000;

fn new_replay(filter: Filter) -> NewReplay {
    NewReplay {
        selection: Selection { filter, limit: None },
        about: serde_json::json!({"all": true}),
        created_by: Some("ana".into()),
        reason: Some("carrier is back".into()),
        pace: Pace::default(),
        edit: None,
        driver: None,
    }
}

async fn make(f: &Fixture, filter: Filter) -> ReplayJob {
    f.store.create_replay(new_replay(filter)).await.unwrap()
}

async fn take(f: &Fixture, worker: &str) -> Option<(ReplayJob, ReplayLease)> {
    let job = f.store.lease_replay(None, worker, HOLD_MS).await.unwrap()?;
    let lease = ReplayLease { job: job.id, fence: job.fence, hold_ms: HOLD_MS };
    Some((job, lease))
}

async fn counts(f: &Fixture, id: i64) -> ItemCounts {
    f.store.replay(id).await.unwrap().unwrap().counts
}

/// Runs a task that waits and ends it so.
async fn run(f: &Fixture, id: &str, decision: Decision) {
    let stamp = f.task(id).await.stamp();
    let Answer::Run(task) = f.one(crate::fixture::claim(id, stamp)).await else { panic!("{id} does not run") };
    let answer = f.one(settle(id, task.state.fence, decision)).await;
    assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
}

fn ids_of(items: &[redeliver::store::ReplayItem]) -> Vec<&str> {
    items.iter().map(|item| item.task_id.as_str()).collect()
}

conformance! {
    async fn a_job_holds_the_letters_of_one_moment_and_never_more(f) {
        for id in ["a", "b", "c"] {
            f.dead(id).await;
        }
        let job = make(&f, Filter::default()).await;
        f.clock.advance(1);
        f.dead("later").await;
        assert_eq!((job.state, job.counts.waiting, job.counts.matched()), (ReplayState::Running, 3, 3));
        assert_eq!((job.created_by.as_deref(), job.reason.as_deref()), (Some("ana"), Some("carrier is back")));
        assert_eq!((job.origin, job.about.clone()), (ReplayOrigin::Person, serde_json::json!({"all": true})));
        let items = f.store.replay_items(job.id, &[], 0, 10).await.unwrap();
        assert_eq!(ids_of(&items), ["c", "b", "a"], "newest first");
        let (_, lease) = take(&f, "w").await.unwrap();
        let released = f.store.release_items(&lease, 10, 7).await.unwrap().unwrap();
        assert_eq!((released.answers.len(), released.counts.replayed), (3, 3));
        assert!(released.answers.iter().all(|answer| matches!(answer, Answer::Publish(_))));
        assert_eq!(f.task("later").await.state.status, Status::Dead);
        let a = f.task("a").await;
        assert_eq!((a.state.status, a.stamp()), (Status::Pending, Stamp { generation: 1, retry_count: 0 }));
        assert_eq!(a.state.note.as_deref(), Some("carrier is back"));
        assert_eq!(f.store.replay(job.id).await.unwrap().unwrap().paced_to_us, 7);
    }

    async fn a_preview_counts_what_a_job_would_find(f) {
        f.dead("a").await;
        f.pending("p").await;
        let refusal = refusal("x");
        let refused = refusal.spec.id.clone();
        let _: Answer = f.one(Command::Refuse(Box::new(refusal))).await;
        let ids = vec!["a".to_owned(), "p".into(), "nowhere".into(), refused];
        let filter = Filter { ids, ..Filter::default() };
        let selection = Selection { filter: filter.clone(), limit: None };
        let skipped = |words: &[&str]| words.iter().map(|word| ((*word).to_owned(), 1)).collect::<BTreeMap<_, _>>();
        let expected = ItemCounts { waiting: 1, skipped: skipped(&["not_dead", "not_found", "not_replayable"]), ..ItemCounts::default() };
        assert_eq!(f.store.preview_replay(&selection).await.unwrap(), expected);
        assert!(f.store.replays(&[], None, 10).await.unwrap().is_empty(), "nothing was made");
        let job = make(&f, filter).await;
        assert_eq!(job.counts, expected, "the job finds the same");
        let unmatched = Filter { ids: vec!["a".into()], classes: vec!["other".into()], ..Filter::default() };
        let found = f.store.preview_replay(&Selection { filter: unmatched.clone(), limit: None }).await.unwrap();
        assert_eq!(found.skipped, skipped(&["not_matched"]));
        assert_eq!(make(&f, unmatched).await.counts, found);
    }

    async fn a_limit_takes_the_newest(f) {
        for id in ["a", "b", "c"] {
            f.dead(id).await;
        }
        let selection = Selection { filter: Filter::default(), limit: Some(2) };
        assert_eq!(f.store.preview_replay(&selection).await.unwrap().waiting, 2);
        let job = f.store.create_replay(NewReplay { selection, ..new_replay(Filter::default()) }).await.unwrap();
        assert_eq!(ids_of(&f.store.replay_items(job.id, &[], 0, 10).await.unwrap()), ["c", "b"]);
    }

    async fn a_job_without_anything_to_replay_is_done_at_once(f) {
        let job = make(&f, Filter::default()).await;
        assert_eq!((job.state, job.ended_at, job.counts.matched()), (ReplayState::Done, Some(f.now()), 0));
        assert!(take(&f, "w").await.is_none());
    }

    async fn one_driver_has_a_job_until_it_shows_no_sign_of_life(f) {
        f.dead("a").await;
        f.dead("b").await;
        let made = make(&f, Filter::default()).await;
        let (job, lease) = take(&f, "w1").await.unwrap();
        assert_eq!((job.id, job.worker.as_deref()), (made.id, Some("w1")));
        assert!(take(&f, "w2").await.is_none());
        f.clock.advance(HOLD_MS - 1);
        assert!(f.store.step_replay(&lease, ReplayStep::Alive).await.unwrap());
        f.clock.advance(HOLD_MS - 1);
        assert!(take(&f, "w2").await.is_none(), "it was alive");
        f.clock.advance(1);
        let (_, newer) = take(&f, "w2").await.unwrap();
        // The old driver comes back: nothing it does counts.
        assert_eq!(f.store.release_items(&lease, 1, 0).await.unwrap(), None);
        assert!(!f.store.step_replay(&lease, ReplayStep::Finish).await.unwrap());
        assert!(f.store.release_items(&newer, 1, 0).await.unwrap().is_some());
        assert!(f.store.step_replay(&newer, ReplayStep::LeaveToOthers).await.unwrap());
        let (job, _) = take(&f, "w3").await.unwrap();
        assert_eq!((job.counts.waiting, job.counts.replayed), (1, 1), "it goes on where the other was");
    }

    async fn whoever_makes_a_job_may_drive_it_from_the_start(f) {
        f.dead("a").await;
        let driver = Some(("cli".to_owned(), HOLD_MS));
        let job = f.store.create_replay(NewReplay { driver, ..new_replay(Filter::default()) }).await.unwrap();
        assert!(take(&f, "w").await.is_none());
        let lease = ReplayLease { job: job.id, fence: job.fence, hold_ms: HOLD_MS };
        assert!(f.store.release_items(&lease, 5, 0).await.unwrap().is_some());
    }

    async fn two_jobs_about_the_same_letters_replay_each_once_and_tell_the_truth(f) {
        for id in ["a", "b", "c"] {
            f.dead(id).await;
        }
        let (first, second) = (make(&f, Filter::default()).await, make(&f, Filter::default()).await);
        let (_, mine) = take(&f, "w1").await.unwrap();
        let (_, yours) = take(&f, "w2").await.unwrap();
        assert_eq!((mine.job, yours.job), (first.id, second.id));
        let _ = f.store.release_items(&mine, 2, 0).await.unwrap().unwrap();
        let _ = f.store.release_items(&yours, 3, 0).await.unwrap().unwrap();
        let _ = f.store.release_items(&mine, 3, 0).await.unwrap().unwrap();
        assert_eq!((counts(&f, first.id).await.replayed, counts(&f, second.id).await.replayed), (2, 1));
        assert_eq!(counts(&f, first.id).await.skipped, BTreeMap::from([("not_dead".to_owned(), 1)]));
        assert_eq!(counts(&f, second.id).await.skipped, BTreeMap::from([("not_dead".to_owned(), 2)]));
        for id in ["a", "b", "c"] {
            assert_eq!(f.task(id).await.stamp().generation, 1);
        }
    }

    async fn a_letter_that_died_anew_since_the_job_was_made_is_not_taken_along(f) {
        f.dead("a").await;
        let job = make(&f, Filter::default()).await;
        let _: Answer = f.one(Command::Replay { id: "a".into(), generation: 0, note: None }).await;
        run(&f, "a", die(DeadReason::RetriesExhausted)).await;
        let (_, lease) = take(&f, "w").await.unwrap();
        let _ = f.store.release_items(&lease, 5, 0).await.unwrap().unwrap();
        assert_eq!(counts(&f, job.id).await.skipped, BTreeMap::from([("changed".to_owned(), 1)]));
    }

    async fn what_becomes_of_each_letter_is_told_at_once_and_written_down_by_the_driver(f) {
        for id in ["a", "b", "c", "d", "e"] {
            f.dead(id).await;
        }
        let job = make(&f, Filter::default()).await;
        let (_, lease) = take(&f, "w").await.unwrap();
        let _ = f.store.release_items(&lease, 5, 0).await.unwrap().unwrap();
        run(&f, "a", Decision::Succeed).await;
        run(&f, "b", die(DeadReason::RetriesExhausted)).await;
        run(&f, "c", retry_after(60_000, false)).await;
        let _: Answer = f.one(Command::Cancel { id: "d".into(), note: None }).await;
        let expected = ItemCounts { replayed: 2, succeeded: 1, failed_again: 1, cancelled: 1, ..ItemCounts::default() };
        assert_eq!(counts(&f, job.id).await, expected, "before anybody wrote it down");

        let (ended, more) = f.store.judge_items(&lease, 0, 2).await.unwrap();
        let after = more.expect("there is more to look at");
        let (rest, none) = f.store.judge_items(&lease, after, 100).await.unwrap();
        assert_eq!(none, None);
        assert_eq!((ended.succeeded + rest.succeeded, ended.failed_again + rest.failed_again), (1, 1));
        assert_eq!(counts(&f, job.id).await, expected);
        // It stays so, whatever comes after.
        let _: Answer = f.one(Command::Discard { id: "b".into(), generation: 1, note: None }).await;
        let failed = f.store.replay_items(job.id, &[ItemOutcome::FailedAgain], 0, 10).await.unwrap();
        assert_eq!(ids_of(&failed), ["b"]);
        let waiting = f.store.replay_items(job.id, &[ItemOutcome::Replayed], 0, 10).await.unwrap();
        assert_eq!(ids_of(&waiting), ["e", "c"]);
        let of_b = f.store.replays_of("b", 10).await.unwrap();
        assert_eq!((of_b.len(), of_b[0].job, of_b[0].outcome), (1, job.id, ItemOutcome::FailedAgain));
    }

    async fn a_letter_that_somebody_replayed_again_had_failed_again(f) {
        f.dead("a").await;
        let job = make(&f, Filter::default()).await;
        let (_, lease) = take(&f, "w").await.unwrap();
        let _ = f.store.release_items(&lease, 5, 0).await.unwrap().unwrap();
        run(&f, "a", die(DeadReason::RetriesExhausted)).await;
        let _: Answer = f.one(Command::Replay { id: "a".into(), generation: 1, note: None }).await;
        run(&f, "a", Decision::Succeed).await;
        assert_eq!(counts(&f, job.id).await.failed_again, 1);
    }

    async fn a_person_halts_resumes_and_ends_a_job(f) {
        f.dead("a").await;
        let job = make(&f, Filter::default()).await;
        let (_, lease) = take(&f, "w").await.unwrap();
        let paused = f.store.steer_replay(job.id, Steer::Pause, Some("bo"), Some("lunch")).await.unwrap();
        let Steered::Done(paused) = paused else { panic!("{paused:?}") };
        assert_eq!((paused.state, paused.why.as_deref(), paused.changed_by.as_deref()), (ReplayState::Paused, Some("lunch"), Some("bo")));
        assert_eq!(f.store.release_items(&lease, 1, 0).await.unwrap(), None, "it is halted");
        assert!(take(&f, "w").await.is_none());
        assert!(matches!(f.store.steer_replay(job.id, Steer::Pause, None, None).await.unwrap(), Steered::Conflict(_)));
        assert!(matches!(f.store.steer_replay(job.id, Steer::Resume, None, None).await.unwrap(), Steered::Done(_)));
        assert!(take(&f, "w2").await.is_some(), "any worker may go on at once");
        assert!(matches!(f.store.steer_replay(job.id, Steer::Cancel, None, None).await.unwrap(), Steered::Done(_)));
        assert!(matches!(f.store.steer_replay(job.id, Steer::Resume, None, None).await.unwrap(), Steered::Conflict(_)));
        assert_eq!(f.store.steer_replay(99, Steer::Cancel, None, None).await.unwrap(), Steered::Unknown);
        assert_eq!(f.task("a").await.state.status, Status::Dead, "what waits in it stays dead");
        let cancelled = f.store.replays(&[ReplayState::Cancelled], None, 10).await.unwrap();
        assert_eq!((cancelled.len(), cancelled[0].counts.waiting), (1, 1));
    }

    async fn stages_stops_and_ends_are_kept(f) {
        for id in ["a", "b"] {
            f.dead(id).await;
        }
        let one = make(&f, Filter { ids: vec!["a".into()], ..Filter::default() }).await;
        let two = make(&f, Filter { ids: vec!["b".into()], ..Filter::default() }).await;
        let (_, lease) = take(&f, "w").await.unwrap();
        assert!(f.store.step_replay(&lease, ReplayStep::Stage(2)).await.unwrap());
        assert_eq!(f.store.replay(one.id).await.unwrap().unwrap().stage, 2);
        assert!(f.store.step_replay(&lease, ReplayStep::Stop("too many".into())).await.unwrap());
        let stopped = f.store.replay(one.id).await.unwrap().unwrap();
        assert_eq!((stopped.state, stopped.why.as_deref(), stopped.ended_at), (ReplayState::Stopped, Some("too many"), Some(f.now())));
        assert!(!f.store.step_replay(&lease, ReplayStep::Alive).await.unwrap());
        let (_, lease) = take(&f, "w").await.unwrap();
        assert!(f.store.step_replay(&lease, ReplayStep::Finish).await.unwrap());
        assert_eq!(f.store.replay(two.id).await.unwrap().unwrap().state, ReplayState::Done);
        let newest_first: Vec<i64> = f.store.replays(&[], None, 10).await.unwrap().iter().map(|job| job.id).collect();
        assert_eq!(newest_first, [two.id, one.id]);
        assert_eq!(f.store.replays(&[], Some(two.id), 10).await.unwrap().len(), 1);
    }

    async fn a_job_with_an_edit_runs_what_the_letters_should_have_been(f) {
        f.dead("a").await;
        let edit = Some(r#"[{"op":"replace","path":"/order","value":9}]"#.to_owned());
        let job = f.store.create_replay(NewReplay { edit, ..new_replay(Filter::default()) }).await.unwrap();
        let (_, lease) = take(&f, "w").await.unwrap();
        let _ = f.store.release_items(&lease, 5, 0).await.unwrap().unwrap();
        let items = f.store.replay_items(job.id, &[], 0, 5).await.unwrap();
        assert_eq!((items[0].task_id.as_str(), items[0].runs_as.as_deref()), ("a", Some("a~1")));
        assert_eq!(f.store.edits_of("a~1").await.unwrap()[0].edited_by.as_deref(), Some("ana"));
        run(&f, "a~1", Decision::Succeed).await;
        assert_eq!(counts(&f, job.id).await.succeeded, 1);
    }

    async fn letters_replay_themselves_when_their_time_has_come_until_a_person_acts(f) {
        // Those that died before anybody looked are for people.
        f.dead("before").await;
        assert!(f.store.unappointed(10).await.unwrap().is_empty());
        f.clock.advance(1);
        f.store.appoint(Some(f.now()), &[]).await.unwrap();
        f.clock.advance(1);
        f.dead("a").await;
        let found = f.store.unappointed(10).await.unwrap();
        assert_eq!(found.iter().map(|(task, n, person)| (task.id(), *n, *person)).collect::<Vec<_>>(), [("a", 0, false)]);
        let at = f.now() + 3_600_000;
        f.store.appoint(Some(f.now()), &[("a".into(), 0, at), ("before".into(), 5, at)]).await.unwrap();
        assert_eq!((f.task("a").await.state.wake_at, f.task("before").await.state.wake_at), (Some(at), None));
        let group = f.store.letter_groups(&redeliver::store::LetterGroupBy::Class, &Filter::default(), 1).await.unwrap();
        assert_eq!(group[0].next_replay_at, Some(at));
        assert!(f.store.create_automatic_replay(Pace::default(), 10).await.unwrap().is_none(), "not yet");

        f.clock.set(at);
        let job = f.store.create_automatic_replay(Pace::default(), 10).await.unwrap().unwrap();
        assert_eq!((job.origin, job.state, job.counts.waiting), (ReplayOrigin::Automatic, ReplayState::Running, 1));
        assert!(f.store.create_automatic_replay(Pace::default(), 10).await.unwrap().is_none(), "once");
        let (_, lease) = take(&f, "w").await.unwrap();
        let _ = f.store.release_items(&lease, 5, 0).await.unwrap().unwrap();
        run(&f, "a", die(DeadReason::RetriesExhausted)).await;
        let found = f.store.unappointed(10).await.unwrap();
        assert_eq!(found.iter().map(|(task, n, person)| (task.id(), *n, *person)).collect::<Vec<_>>(), [("a", 1, false)]);

        f.clock.advance(1);
        let by_hand = make(&f, Filter { ids: vec!["a".into()], ..Filter::default() }).await;
        let lease = f.store.lease_replay(Some(by_hand.id), "w", HOLD_MS).await.unwrap().unwrap();
        let lease = ReplayLease { job: lease.id, fence: lease.fence, hold_ms: HOLD_MS };
        let _ = f.store.release_items(&lease, 5, 0).await.unwrap().unwrap();
        run(&f, "a", die(DeadReason::RetriesExhausted)).await;
        let found = f.store.unappointed(10).await.unwrap();
        assert_eq!(found.iter().map(|(task, n, person)| (task.id(), *n, *person)).collect::<Vec<_>>(), [("a", 1, true)]);
        f.store.appoint(None, &[]).await.unwrap();
        assert!(f.store.unappointed(10).await.unwrap().is_empty(), "nobody looks any more");
    }

    async fn retention_removes_what_ended_long_ago_and_never_a_dead_letter(f) {
        f.dead("dead").await;
        f.succeeded("done").await;
        f.dead("thrown").await;
        let _: Answer = f.one(Command::Discard { id: "thrown".into(), generation: 0, note: None }).await;
        f.dead("again").await;
        let job = make(&f, Filter { ids: vec!["again".into()], ..Filter::default() }).await;
        let (_, lease) = take(&f, "w").await.unwrap();
        let _ = f.store.release_items(&lease, 5, 0).await.unwrap().unwrap();
        run(&f, "again", Decision::Succeed).await;
        f.pending("waits").await;
        f.clock.advance(1_000);
        let before = f.now();
        f.succeeded("young").await;

        let prune = async |what, dry_run| f.store.prune(what, before, 100, dry_run).await.unwrap();
        assert_eq!(prune(Prunable::Tasks, true).await, 2, "a job waits to hear of the third");
        assert_eq!(prune(Prunable::Tasks, false).await, 2);
        assert_eq!(prune(Prunable::Tasks, false).await, 0);
        let left = ["dead", "done", "thrown", "again", "waits", "young"].map(str::to_owned);
        let found = f.store.get(&left).await.unwrap();
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, true, true, true]);
        assert!(f.store.attempts("done").await.unwrap().is_empty());
        assert!(!f.store.attempts("dead").await.unwrap().is_empty());

        let _ = f.store.judge_items(&lease, 0, 10).await.unwrap();
        assert_eq!(prune(Prunable::Tasks, false).await, 1);
        assert_eq!(prune(Prunable::Replays, false).await, 0, "it has not ended");
        assert!(f.store.step_replay(&lease, ReplayStep::Finish).await.unwrap());
        assert_eq!(prune(Prunable::Replays, false).await, 0, "it ended just now");
        f.clock.advance(1_000);
        assert_eq!(f.store.prune(Prunable::Replays, f.now(), 100, false).await.unwrap(), 1);
        assert_eq!(f.store.replay(job.id).await.unwrap(), None);
        assert_eq!(prune(Prunable::Gates, false).await + prune(Prunable::Cached, false).await + prune(Prunable::Attachments, false).await, 0);
    }
}
