//! Copies in the DLQ and its ledger (design §4.4).

use redeliver::store::{Alarm, DeadRow};
use redeliver::task::{Answer, Command, DlqCopy, DlqLedger, NewTask, Stamp, Status};

use crate::fixture::{Fixture, claim, die, ids, new_task, settle, submit};

fn confirmed(id: &str, generation: i64) -> Command {
    Command::CopyConfirmed { id: id.into(), generation }
}

fn missing(id: &str, generation: i64) -> Command {
    Command::CopyMissing { id: id.into(), generation }
}

fn send(id: &str, generation: i64) -> Command {
    Command::SendCopy { id: id.into(), generation }
}

fn dirty() -> Command {
    Command::DirtyDlq { queue: "default".into() }
}

fn begin(force: bool) -> Command {
    Command::BeginPass { queue: "default".into(), hold_ms: 30_000, every_ms: 60_000, force }
}

fn end(pass: i64, dirty: i64) -> Command {
    Command::EndPass { queue: "default".into(), pass, dirty, strangers: 2 }
}

async fn ledger(f: &Fixture) -> DlqLedger {
    let ledgers = f.store.dlqs().await.unwrap();
    ledgers.into_iter().find(|(queue, _)| queue == "default").map(|(_, ledger)| ledger).unwrap_or_default()
}

conformance! {
    async fn a_wanted_copy_is_present_once_it_is_confirmed(f) {
        f.dead("a").await;
        assert_eq!(f.one(confirmed("a", 0)).await, Answer::Done);
        let state = f.task("a").await.state;
        assert_eq!((state.dlq_copy, state.dlq_at), (DlqCopy::Present, None));
        assert!(f.store.alarms(Alarm::Copy, i64::MAX, 10).await.unwrap().is_empty());
        assert_eq!(ledger(&f).await.dirty, 0);
    }

    async fn a_confirmed_copy_that_no_row_wants_makes_the_queue_dirty(f) {
        f.dead("a").await;
        assert_eq!(f.one(confirmed("a", 0)).await, Answer::Done);
        assert_eq!(f.one(confirmed("a", 0)).await, Answer::Changed);
        assert_eq!(ledger(&f).await.dirty, 1, "a double");
        assert_eq!(f.one(confirmed("a", 1)).await, Answer::Stale { stamp: Stamp::FIRST });
        assert_eq!(ledger(&f).await.dirty, 2);
        let Answer::Publish(_) = f.one(Command::Replay { id: "a".into(), generation: 0, note: None }).await else { panic!() };
        assert_eq!(f.one(confirmed("a", 0)).await, Answer::NotNow { status: Status::Pending });
        assert_eq!(ledger(&f).await.dirty, 4, "the replay and the late confirm");
        assert!(f.task("a").await.state.wake_at.is_some(), "a late confirm erases no alarm");
        assert_eq!(f.one(confirmed("nobody", 0)).await, Answer::Unknown);
    }

    async fn a_present_copy_that_was_not_seen_is_wanted_again(f) {
        f.dead("a").await;
        assert_eq!(f.one(missing("a", 0)).await, Answer::Changed, "it is not known to be there");
        let _ = f.one(confirmed("a", 0)).await;
        assert_eq!(f.one(missing("a", 0)).await, Answer::Done);
        let state = f.task("a").await.state;
        assert_eq!((state.dlq_copy, state.dlq_at), (DlqCopy::Wanted, Some(f.now())));
    }

    async fn the_sweeper_publishes_a_wanted_copy_only_when_its_time_has_come(f) {
        let task = f.dead("a").await;
        assert_eq!(f.one(send("a", 0)).await, Answer::Changed, "the committing worker is on it");
        assert!(f.store.alarms(Alarm::Copy, f.now(), 10).await.unwrap().is_empty());
        f.clock.set(task.state.dlq_at.unwrap());
        assert_eq!(ids(&f.store.alarms(Alarm::Copy, f.now(), 10).await.unwrap()), ["a"]);
        let answers = f.all(vec![send("a", 0), send("a", 0)]).await;
        assert!(matches!(answers[0], Answer::Dead(_)), "{:?}", answers[0]);
        assert_eq!(answers[1], Answer::Changed, "two sweepers publish once");
        assert_eq!(f.task("a").await.state.dlq_at, Some(f.now() + f.settings.confirm_timeout_ms));
        assert_eq!(f.one(send("a", 1)).await, Answer::Stale { stamp: Stamp::FIRST });
        assert_eq!(f.one(confirmed("a", 0)).await, Answer::Done);
        assert_eq!(ledger(&f).await.dirty, 1, "there may be two of it");
    }

    async fn dead_rows_come_by_id_after_a_given_one(f) {
        for id in ["c", "a", "b"] {
            f.dead(id).await;
        }
        let elsewhere = NewTask { queue: "shipping".into(), ..new_task("aa") };
        let Answer::Run(_) = f.one(submit(elsewhere)).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("aa", 1, die(redeliver::task::DeadReason::PermanentError))).await else {
            panic!()
        };
        f.running("ab").await;
        let _ = f.one(confirmed("b", 0)).await;
        let row = |id: &str, dlq_copy| DeadRow { id: id.into(), stamp: Stamp::FIRST, dlq_copy, died_at: f.now() };
        let all = [row("a", DlqCopy::Wanted), row("b", DlqCopy::Present), row("c", DlqCopy::Wanted)];
        assert_eq!(f.store.dead_rows("default", "", 10).await.unwrap(), all);
        assert_eq!(f.store.dead_rows("default", "", 2).await.unwrap(), all[..2]);
        assert_eq!(f.store.dead_rows("default", "b", 10).await.unwrap(), all[2..]);
        assert_eq!(f.store.dead_rows("shipping", "", 10).await.unwrap(), [row("aa", DlqCopy::Wanted)]);
        assert_eq!(f.store.dead_copies("default").await.unwrap(), (1, 2));
        assert_eq!(f.store.dead_copies("nowhere").await.unwrap(), (0, 0));
    }

    async fn a_dead_row_of_another_program_belongs_to_the_default_queue(f) {
        f.insert_row("a", "order.ship", "{}").await;
        let Answer::Run(_) = f.one(claim("a", Stamp::FIRST)).await else { panic!() };
        let Answer::Settled(_) = f.one(settle("a", 1, die(redeliver::task::DeadReason::PermanentError))).await else {
            panic!()
        };
        assert_eq!(f.store.dead_rows("default", "", 10).await.unwrap().len(), 1);
        assert_eq!(f.store.dead_copies("default").await.unwrap(), (0, 1));
    }

    async fn a_pass_begins_only_when_the_queue_is_dirty(f) {
        assert_eq!(f.one(begin(false)).await, Answer::PassRefused);
        assert_eq!(f.one(dirty()).await, Answer::Done);
        let answers = f.all(vec![begin(false), begin(false)]).await;
        assert_eq!(answers[0], Answer::PassBegun { pass: 1, dirty: 1, began: f.now() });
        assert_eq!(answers[1], Answer::PassRefused, "one at a time");
        assert_eq!(f.one(end(1, 1)).await, Answer::Done);
        let expected = DlqLedger { dirty: 1, cleaned: 1, pass: 1, pass_until: 0, pass_began: f.now(), strangers: 2 };
        assert_eq!(ledger(&f).await, expected);
        f.clock.advance(60_000);
        assert_eq!(f.one(begin(false)).await, Answer::PassRefused, "clean");
    }

    async fn what_made_the_queue_dirty_during_a_pass_starts_another(f) {
        let _ = f.one(dirty()).await;
        let Answer::PassBegun { pass, dirty: seen, .. } = f.one(begin(false)).await else { panic!() };
        let _ = f.one(dirty()).await;
        assert_eq!(f.one(end(pass, seen)).await, Answer::Done);
        assert_eq!(f.one(begin(false)).await, Answer::PassRefused, "at most one a minute");
        f.clock.advance(60_000);
        assert!(matches!(f.one(begin(false)).await, Answer::PassBegun { pass: 2, dirty: 2, .. }));
    }

    async fn a_pass_whose_worker_is_gone_makes_room_and_cannot_clean_any_more(f) {
        let _ = f.one(dirty()).await;
        let Answer::PassBegun { pass: 1, .. } = f.one(begin(false)).await else { panic!() };
        f.clock.advance(60_000);
        let Answer::PassBegun { pass: 2, .. } = f.one(begin(false)).await else { panic!() };
        assert_eq!(f.one(end(1, 1)).await, Answer::Changed);
        assert_eq!(ledger(&f).await.cleaned, 0);
    }

    async fn a_person_s_pass_begins_although_nothing_is_dirty_but_never_beside_another(f) {
        let Answer::PassBegun { pass: 1, .. } = f.one(begin(true)).await else { panic!() };
        assert_eq!(f.one(begin(true)).await, Answer::PassRefused);
        let _ = f.one(end(1, 0)).await;
        assert!(matches!(f.one(begin(true)).await, Answer::PassBegun { pass: 2, .. }));
    }
}
