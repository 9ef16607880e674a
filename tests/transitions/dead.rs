//! Replay, discard, and the ledger of the DLQ's mirror.

use redeliver::task::{Answer, Command, DEFAULT_QUEUE, DeadReason, DlqCopy, Lane, Stamp, Status};

use crate::desk::{Desk, ID, MINUTE, SECOND, die, stamp};

const EVERY: i64 = MINUTE;

fn replay(generation: i64) -> Command {
    Command::Replay { id: ID.into(), generation, note: None }
}

fn confirmed(generation: i64) -> Command {
    Command::CopyConfirmed { id: ID.into(), generation }
}

fn begin(force: bool) -> Command {
    Command::BeginPass { queue: DEFAULT_QUEUE.into(), hold_ms: 2 * MINUTE, every_ms: EVERY, force }
}

fn end(pass: i64, dirty: i64) -> Command {
    Command::EndPass { queue: DEFAULT_QUEUE.into(), pass, dirty, strangers: 0 }
}

fn begun(answer: Answer) -> (i64, i64) {
    match answer {
        Answer::PassBegun { pass, dirty, .. } => (pass, dirty),
        other => panic!("no pass: {other:?}"),
    }
}

#[test]
fn a_replay_begins_a_generation_on_the_retries_lane_with_its_budget_whole() {
    let mut desk = Desk::with_dead(DeadReason::RetriesExhausted);
    let Answer::Publish(wake_up) = desk.apply(replay(0)) else { panic!("not published") };
    assert_eq!((wake_up.stamp, wake_up.route.lane), (stamp(1, 0), Lane::Retries));
    let row = desk.row();
    assert_eq!((row.status, row.stamp, row.dlq_copy), (Status::Pending, stamp(1, 0), DlqCopy::None));
    assert_eq!(row.wake_at, Some(desk.now + 10 * SECOND));
    assert!(row.failure.is_some(), "people still see why it died");
    assert_eq!(desk.dirty(), 1);
}

#[test]
fn two_replays_of_one_generation_are_one() {
    let mut desk = Desk::with_dead(DeadReason::RetriesExhausted);
    let _: Answer = desk.apply(replay(0));
    assert_eq!(desk.apply(replay(0)), Answer::NotNow { status: Status::Pending });
    let fence = desk.run(stamp(1, 0));
    let _: Answer = desk.settle(fence, die(DeadReason::RetriesExhausted));
    assert_eq!(desk.apply(replay(0)), Answer::Stale { stamp: stamp(1, 0) });
}

#[test]
fn what_could_not_be_read_or_contradicts_is_not_replayed_and_everything_else_is() {
    for reason in DeadReason::ALL {
        let mut desk = Desk::with_dead(reason);
        let refused = matches!(desk.apply(replay(0)), Answer::NotReplayable { .. });
        assert_eq!(refused, matches!(reason, DeadReason::Malformed | DeadReason::DuplicateConflict), "{reason}");
    }
}

#[test]
fn a_replay_clears_a_deadline_that_has_passed_and_keeps_one_that_has_not() {
    for (deadline, kept) in [(-1, false), (0, false), (1, true)] {
        let mut desk = Desk::with_dead(DeadReason::DeadlineExceeded);
        let deadline = desk.now + deadline;
        desk.change(|row| row.deadline = Some(deadline));
        let _: Answer = desk.apply(replay(0));
        assert_eq!(desk.row().deadline.is_some(), kept);
    }
}

#[test]
fn wake_ups_of_the_old_generation_start_nothing_after_a_replay() {
    let mut desk = Desk::with_dead(DeadReason::RetriesExhausted);
    let _: Answer = desk.apply(replay(0));
    assert_eq!(desk.claim(Stamp::FIRST), Answer::Stale { stamp: stamp(1, 0) });
}

#[test]
fn a_discarded_task_is_final_and_its_copy_is_swept_out() {
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    assert_eq!(
        desk.apply(Command::Discard { id: ID.into(), generation: 1, note: None }),
        Answer::Stale { stamp: Stamp::FIRST }
    );
    assert_eq!(desk.apply(Command::Discard { id: ID.into(), generation: 0, note: None }), Answer::Done);
    assert_eq!((desk.row().status, desk.row().dlq_copy, desk.dirty()), (Status::Discarded, DlqCopy::None, 1));
    assert_eq!(desk.apply(replay(0)), Answer::NotNow { status: Status::Discarded });
}

#[test]
fn a_confirmed_copy_is_present_and_a_second_confirm_makes_dirty() {
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    assert_eq!(desk.row().dlq_at, Some(desk.now + 10 * SECOND), "nobody repeats what the settling worker is doing");
    assert_eq!(desk.apply(confirmed(0)), Answer::Done);
    assert_eq!((desk.row().dlq_copy, desk.row().dlq_at, desk.dirty()), (DlqCopy::Present, None, 0));
    assert_eq!(desk.apply(confirmed(0)), Answer::Changed);
    assert_eq!(desk.dirty(), 1);
}

/// Found by the simulation: a DLQ that lost one copy and got another one twice is as deep as it should be, so nobody looked through it.
#[test]
fn a_confirmed_copy_that_was_sent_again_makes_dirty() {
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    desk.pass_time(10 * SECOND);
    assert!(matches!(desk.apply(Command::SendCopy { id: ID.into(), generation: 0 }), Answer::Dead(_)));
    assert_eq!(desk.dirty(), 0, "it may be the only one");
    assert_eq!(desk.apply(confirmed(0)), Answer::Done);
    assert_eq!((desk.row().dlq_copy, desk.dirty()), (DlqCopy::Present, 1));
}

#[test]
fn a_confirm_that_comes_after_a_replay_erases_no_alarm_and_makes_dirty() {
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    let _: Answer = desk.apply(replay(0));
    let before = desk.row().clone();
    assert_eq!(desk.apply(confirmed(0)), Answer::NotNow { status: Status::Pending });
    assert_eq!((desk.row(), desk.dirty()), (&before, 2));
}

#[test]
fn a_confirm_of_an_old_generations_copy_does_not_count_for_the_new_one() {
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    let _: Answer = desk.apply(replay(0));
    let fence = desk.run(stamp(1, 0));
    let _: Answer = desk.settle(fence, die(DeadReason::PermanentError));
    assert_eq!(desk.apply(confirmed(0)), Answer::Stale { stamp: stamp(1, 0) });
    assert_eq!(desk.row().dlq_copy, DlqCopy::Wanted);
}

#[test]
fn a_missing_copy_is_wanted_at_once_and_only_if_it_was_present() {
    let missing = || Command::CopyMissing { id: ID.into(), generation: 0 };
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    assert_eq!(desk.apply(missing()), Answer::Changed);
    let _: Answer = desk.apply(confirmed(0));
    assert_eq!(desk.apply(missing()), Answer::Done);
    assert_eq!((desk.row().dlq_copy, desk.row().dlq_at), (DlqCopy::Wanted, Some(desk.now)));
}

/// Found here: the sweeper sent a copy every confirm time-out for as long as the DLQ confirmed nothing, and a quorum queue without a
/// leader keeps them all.
#[test]
fn a_dlq_that_confirms_nothing_for_5_minutes_gets_at_most_6_copies_of_a_task() {
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    let mut copies = 1;
    for _ in 0..300 {
        desk.pass_time(SECOND);
        copies += i32::from(matches!(desk.apply(Command::SendCopy { id: ID.into(), generation: 0 }), Answer::Dead(_)));
    }
    assert_eq!(copies, 6);
}

#[test]
fn a_copy_is_sent_again_only_when_its_time_has_come() {
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    let send = || Command::SendCopy { id: ID.into(), generation: 0 };
    assert_eq!(desk.apply(send()), Answer::Changed);
    desk.pass_time(10 * SECOND);
    assert!(matches!(desk.apply(send()), Answer::Dead(_)));
    assert_eq!(desk.apply(send()), Answer::Changed, "two sweepers send one");
}

#[test]
fn a_pass_begins_only_over_a_dirty_dlq_one_at_a_time_and_at_most_once_a_minute() {
    let mut desk = Desk::new();
    assert_eq!(desk.apply(begin(false)), Answer::PassRefused, "clean");
    let dirty = || Command::DirtyDlq { queue: DEFAULT_QUEUE.into() };
    let _: Answer = desk.apply(dirty());
    let (first, seen) = begun(desk.apply(begin(false)));
    assert_eq!(desk.apply(begin(true)), Answer::PassRefused, "held, even for a person");
    assert_eq!(desk.apply(end(first, seen)), Answer::Done);
    assert_eq!(desk.apply(begin(false)), Answer::PassRefused, "clean again");
    let _: Answer = desk.apply(dirty());
    assert_eq!(desk.apply(begin(false)), Answer::PassRefused, "too soon");
    desk.pass_time(EVERY);
    let _ = begun(desk.apply(begin(false)));
}

#[test]
fn a_pass_does_not_clean_what_became_dirty_after_it_began() {
    let mut desk = Desk::with_dead(DeadReason::PermanentError);
    let _: Answer = desk.apply(replay(0));
    let (pass, seen) = begun(desk.apply(begin(false)));
    let _: Answer = desk.apply(Command::DirtyDlq { queue: DEFAULT_QUEUE.into() });
    let _: Answer = desk.apply(end(pass, seen));
    desk.pass_time(EVERY);
    let _ = begun(desk.apply(begin(false)));
}

#[test]
fn a_pass_that_was_overtaken_cleans_nothing() {
    let mut desk = Desk::new();
    let _: Answer = desk.apply(Command::DirtyDlq { queue: DEFAULT_QUEUE.into() });
    let (first, seen) = begun(desk.apply(begin(false)));
    desk.pass_time(2 * MINUTE);
    let (second, _) = begun(desk.apply(begin(false)));
    assert_eq!(desk.apply(end(first, seen)), Answer::Changed);
    assert_eq!(desk.apply(end(second, seen)), Answer::Done);
}

#[test]
fn a_clock_set_back_does_not_keep_the_dlq_from_its_pass() {
    let mut desk = Desk::new();
    let _: Answer = desk.apply(Command::DirtyDlq { queue: DEFAULT_QUEUE.into() });
    let _ = begun(desk.apply(begin(false)));
    desk.pass_time(-60 * MINUTE);
    let _ = begun(desk.apply(begin(false)));
}
