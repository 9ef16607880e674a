//! Claim, heartbeat, settle, lost, release, hold, postpone, route, run-now, cancel, poison.

use std::sync::Arc;

use redeliver::gate::queue_pause;
use redeliver::policy::{Lists, Policies, Policy, TopicPattern};
use redeliver::task::{
    Answer, AttemptOutcome, Claimant, Command, DEFAULT_QUEUE, DeadReason, Decision, Ending, Lane, Stamp, Status,
};

use crate::desk::{
    Desk, ID, MINUTE, SECOND, anybody, die, failure, retry_in_store, retry_on_rung, settlement, stamp, submission,
};

const DAY: i64 = 24 * 60 * MINUTE;

#[test]
fn forged_wake_ups_start_nothing_and_change_nothing() {
    let mut desk = Desk::with_retry_on_rung(MINUTE);
    desk.pass_time(MINUTE);
    let before = desk.row().clone();
    for forged in [stamp(0, 0), stamp(0, 2), stamp(1, 0), stamp(1, 1), stamp(-1, 1), stamp(i64::MAX, i64::MIN)] {
        assert_eq!(desk.claim(forged), Answer::Stale { stamp: stamp(0, 1) });
    }
    let unknown = Command::Claim { id: "nobody".into(), stamp: Stamp::FIRST, claimant: None };
    assert_eq!(desk.apply(unknown), Answer::Unknown);
    assert_eq!(*desk.row(), before);
}

#[test]
fn the_second_copy_of_a_wake_up_finds_the_task_running() {
    let mut desk = Desk::with_running();
    assert_eq!(desk.claim(Stamp::FIRST), Answer::NotNow { status: Status::Running });
}

#[test]
fn an_old_fence_neither_beats_nor_settles_nor_releases() {
    let mut desk = Desk::with_running();
    let wake_at = desk.row().wake_at.expect("a lease");
    desk.now = wake_at;
    let lost = Command::Lost { id: ID.into(), fence: 1, wake_at, settlement: settlement(retry_in_store(0)) };
    assert!(matches!(desk.apply(lost), Answer::Settled(_)));
    let second = desk.run(stamp(0, 1));
    assert_eq!(second, 2);
    let before = desk.row().clone();
    desk.pass_time(SECOND);
    assert_eq!(desk.settle(1, Decision::Succeed), Answer::Changed);
    assert_eq!(desk.apply(Command::Heartbeat { id: ID.into(), fence: 1 }), Answer::Changed);
    assert_eq!(desk.apply(Command::Release { id: ID.into(), fence: 1, nack: true }), Answer::Changed);
    assert_eq!(*desk.row(), before);
    assert_eq!(desk.attempts.len(), 1);
}

#[test]
fn a_lease_that_was_renewed_after_it_was_read_is_not_lost() {
    let mut desk = Desk::with_running();
    let wake_at = desk.row().wake_at.expect("a lease");
    desk.pass_time(SECOND);
    assert_eq!(desk.apply(Command::Heartbeat { id: ID.into(), fence: 1 }), Answer::Done);
    desk.now = wake_at;
    let lost = Command::Lost { id: ID.into(), fence: 1, wake_at, settlement: settlement(retry_in_store(0)) };
    assert_eq!(desk.apply(lost), Answer::Changed);
}

#[test]
fn a_claim_whose_answer_was_lost_is_found_by_its_worker_alone_and_its_lease_begins_anew() {
    let mut desk = Desk::with_running();
    let wake_at = desk.row().wake_at.expect("a lease");
    let reclaim = |worker: &str| Command::Reclaim { id: ID.into(), worker: worker.into() };
    // Its end may be over already, as long as nobody has said so.
    desk.now = wake_at + SECOND;
    assert_eq!(desk.apply(reclaim("another")), Answer::Changed);
    let Answer::Run(task) = desk.apply(reclaim("w")) else { panic!("it is the worker's own") };
    assert_eq!(task.state.fence, 1, "no other claim");
    let renewed = desk.row().wake_at.expect("a lease");
    assert!(renewed > desk.now);
    let lost = |wake_at| Command::Lost { id: ID.into(), fence: 1, wake_at, settlement: settlement(retry_in_store(0)) };
    assert_eq!(desk.apply(lost(wake_at)), Answer::Changed, "who read the old alarm comes too late");
    desk.now = renewed;
    assert!(matches!(desk.apply(lost(renewed)), Answer::Settled(_)));
    assert_eq!(desk.apply(reclaim("w")), Answer::NotNow { status: Status::RetryWaiting });
}

#[test]
fn a_lease_is_not_lost_before_its_end_even_if_the_clock_was_set_back() {
    let mut desk = Desk::with_running();
    let wake_at = desk.row().wake_at.expect("a lease");
    desk.now = wake_at - 1;
    let lost = Command::Lost { id: ID.into(), fence: 1, wake_at, settlement: settlement(retry_in_store(0)) };
    assert_eq!(desk.apply(lost), Answer::Changed);
}

#[test]
fn an_attempt_that_ends_after_its_lease_and_before_anybody_noticed_still_counts() {
    let mut desk = Desk::with_running();
    desk.pass_time(60 * MINUTE);
    assert!(matches!(desk.settle(1, Decision::Succeed), Answer::Settled(_)));
}

#[test]
fn a_release_with_nack_leaves_the_returned_delivery_outstanding_and_without_one_is_due_at_once() {
    let mut desk = Desk::with_running();
    assert!(matches!(desk.apply(Command::Release { id: ID.into(), fence: 1, nack: true }), Answer::Settled(_)));
    assert_eq!(desk.row().status, Status::Pending);
    assert_eq!(desk.row().outstanding.map(|outstanding| outstanding.lane), Some(Lane::Tasks));
    assert_eq!(desk.row().wake_at, Some(desk.now + 30 * SECOND));

    let mut desk = Desk::with_running();
    assert!(matches!(desk.apply(Command::Release { id: ID.into(), fence: 1, nack: false }), Answer::Settled(_)));
    assert_eq!((desk.row().wake_at, desk.row().outstanding), (Some(desk.now), None));
    assert!(matches!(desk.ring(), Answer::Publish(_)));
}

#[test]
fn a_release_spends_no_retry_and_is_recorded_as_released() {
    let mut desk = Desk::with_retry_on_rung(MINUTE);
    desk.pass_time(MINUTE);
    let fence = desk.run(stamp(0, 1));
    let _: Answer = desk.apply(Command::Release { id: ID.into(), fence, nack: false });
    let row = desk.row();
    assert_eq!((row.status, row.stamp, row.releases), (Status::RetryWaiting, stamp(0, 1), 1));
    let outcomes: Vec<_> = desk.attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [AttemptOutcome::Retried, AttemptOutcome::Released]);
}

#[test]
fn no_attempt_starts_after_the_deadline_neither_by_message_nor_by_alarm() {
    for by_alarm in [false, true] {
        let mut desk = Desk::with_pending();
        let deadline = desk.now + MINUTE;
        desk.change(|row| row.deadline = Some(deadline));
        desk.now = deadline + 1;
        let answer = if by_alarm { desk.ring() } else { desk.claim(Stamp::FIRST) };
        assert!(matches!(answer, Answer::Dead(_)));
        assert_eq!(desk.row().dead_reason, Some(DeadReason::DeadlineExceeded));
    }
}

#[test]
fn an_attempt_that_runs_when_its_deadline_passes_may_finish() {
    let mut desk = Desk::with_running();
    let deadline = desk.now + 1;
    desk.change(|row| row.deadline = Some(deadline));
    desk.pass_time(MINUTE);
    assert!(matches!(desk.settle(1, Decision::Succeed), Answer::Settled(_)));
}

#[test]
fn a_task_not_to_start_before_its_deadline_is_dead_at_once() {
    let mut desk = Desk::new();
    let mut new = submission(ID, ID, "1");
    (new.not_before, new.deadline) = (Some(desk.now + MINUTE), Some(desk.now + SECOND));
    assert!(matches!(desk.apply(Command::Submit(Box::new(new))), Answer::Dead(_)));
}

#[test]
fn a_paused_task_is_held_without_a_message_and_runs_when_the_pause_is_over() {
    let mut desk = Desk::with_pending();
    desk.rows.pauses.insert(queue_pause(DEFAULT_QUEUE));
    assert!(matches!(desk.claim(Stamp::FIRST), Answer::Held { .. }));
    assert_eq!(desk.row().wake_at, Some(desk.now + DAY));
    assert_eq!(desk.ring(), Answer::Rearmed, "a look at a held row publishes nothing");
    desk.rows.pauses.clear();
    assert_eq!(desk.run(Stamp::FIRST), 1);
    assert_eq!(desk.row().held_by, None);
}

/// Found here: at the deadline itself the look set the alarm to the deadline again, and so was due at once.
#[test]
fn a_held_row_is_looked_at_once_on_its_deadline_and_dies() {
    let mut desk = Desk::with_pending();
    let deadline = desk.now + MINUTE;
    desk.change(|row| row.deadline = Some(deadline));
    desk.rows.pauses.insert(queue_pause(DEFAULT_QUEUE));
    assert!(matches!(desk.claim(Stamp::FIRST), Answer::Held { .. }));
    assert_eq!(desk.row().wake_at, Some(deadline));
    assert!(matches!(desk.ring(), Answer::Dead(_)));
}

#[test]
fn a_held_row_whose_deadline_is_the_end_of_time_is_looked_at_every_day() {
    let mut desk = Desk::with_pending();
    desk.change(|row| row.deadline = Some(i64::MAX));
    desk.rows.pauses.insert(queue_pause(DEFAULT_QUEUE));
    let _: Answer = desk.claim(Stamp::FIRST);
    assert_eq!(desk.row().wake_at, Some(desk.now + DAY));
}

#[test]
fn a_task_of_a_type_that_the_worker_does_not_serve_goes_on_waiting() {
    let mut desk = Desk::with_pending();
    let serves: Arc<[TopicPattern]> = [TopicPattern::new("mail.#").expect("a pattern")].into();
    let claimant = Some(Claimant { worker: "w".into(), serves: Some(serves), gates: Arc::default(), policies: None });
    let answer = desk.apply(Command::Claim { id: ID.into(), stamp: Stamp::FIRST, claimant });
    assert!(matches!(answer, Answer::Waiting(_)));
    assert_eq!((desk.row().status, desk.row().wake_at), (Status::Pending, Some(desk.now + 30 * SECOND)));
}

#[test]
fn a_retry_that_the_policies_in_force_forbid_dies_as_it_waits_and_is_no_attempt() {
    let class = failure().class;
    let with = |policy: Policy| {
        let mut desk = Desk::with_retry_on_rung(MINUTE);
        desk.pass_time(MINUTE);
        let claimant = Some(Claimant { policies: Some(Arc::new(Policies::new(vec![policy]))), ..anybody() });
        let answer = desk.apply(Command::Claim { id: ID.into(), stamp: stamp(0, 1), claimant });
        (desk, answer)
    };
    let permanent = Lists { classes: vec![class], ..Lists::default() };
    let named = Policy { name: "p".into(), ..Policy::built_in() };
    for (policy, reason) in [
        (Policy { permanent, ..named.clone() }, DeadReason::PermanentError),
        (Policy { max_retries: 0, ..named.clone() }, DeadReason::RetriesExhausted),
    ] {
        let (desk, answer) = with(policy);
        assert!(matches!(answer, Answer::Dead(_)), "{answer:?}");
        assert_eq!((desk.row().dead_reason, desk.row().stamp), (Some(reason), stamp(0, 1)));
        assert_eq!(desk.attempts.len(), 1, "only the attempt that failed");
    }
    let (_, answer) = with(named);
    assert!(matches!(answer, Answer::Run(_)), "{answer:?}");
}

#[test]
fn a_postponed_task_is_looked_at_then_and_not_after_its_deadline() {
    let mut desk = Desk::with_pending();
    let (until, deadline) = (desk.now + 10 * MINUTE, desk.now + MINUTE);
    let postpone = Command::Postpone { id: ID.into(), stamp: Stamp::FIRST, until };
    assert_eq!(desk.apply(postpone.clone()), Answer::Rearmed);
    assert_eq!(desk.row().wake_at, Some(until));
    desk.change(|row| row.deadline = Some(deadline));
    let _: Answer = desk.apply(postpone);
    assert_eq!(desk.row().wake_at, Some(deadline + 1));
    assert!(matches!(desk.ring(), Answer::Dead(_)));
}

#[test]
fn a_waiting_row_whose_queue_is_gone_gets_another_and_what_was_sent_there_is_not_waited_for() {
    let mut desk = Desk::with_retry_on_rung(MINUTE);
    let move_to =
        |from: &str, queue: &str| Command::Route { id: ID.into(), from: Some(from.into()), queue: queue.into() };
    assert_eq!(desk.apply(move_to("elsewhere", "orders")), Answer::Changed);
    assert_eq!(desk.apply(move_to(DEFAULT_QUEUE, "orders")), Answer::Done);
    assert_eq!((desk.row().queue.as_deref(), desk.row().outstanding), (Some("orders"), None));
    assert_eq!(desk.row().wake_at, Some(desk.row().due_at));
    let wake_up = desk.ring_and_publish();
    assert_eq!((wake_up.queue.as_str(), wake_up.route.rung_ms), ("orders", 0));
}

#[test]
fn a_row_that_others_inserted_is_routed_once() {
    let mut desk = Desk::with_pending();
    desk.change(|row| row.queue = None);
    assert_eq!(desk.apply(Command::Route { id: ID.into(), from: None, queue: "orders".into() }), Answer::Done);
    assert_eq!(desk.apply(Command::Route { id: ID.into(), from: None, queue: "mail".into() }), Answer::Changed);
    assert_eq!(desk.row().queue.as_deref(), Some("orders"));
    assert_eq!(desk.ring_and_publish().queue, "orders");
}

#[test]
fn run_now_brings_the_due_time_forward_and_never_back() {
    let mut desk = Desk::with_retry_on_rung(15 * MINUTE);
    desk.pass_time(SECOND);
    let Answer::Publish(wake_up) = desk.apply(Command::RunNow { id: ID.into() }) else { panic!("not published") };
    assert_eq!((wake_up.stamp, wake_up.route.rung_ms), (stamp(0, 1), 0));
    assert_eq!((desk.row().due_at, desk.row().wake_at), (desk.now, Some(desk.now + 10 * SECOND)));
    let due_at = desk.now;
    desk.pass_time(MINUTE);
    let _: Answer = desk.apply(Command::RunNow { id: ID.into() });
    assert_eq!(desk.row().due_at, due_at);
}

#[test]
fn a_running_task_is_neither_cancelled_nor_hurried() {
    let mut desk = Desk::with_running();
    for command in [Command::Cancel { id: ID.into(), note: None }, Command::RunNow { id: ID.into() }] {
        assert_eq!(desk.apply(command), Answer::NotNow { status: Status::Running });
    }
}

#[test]
fn a_cancelled_task_ends_and_its_wake_up_starts_nothing() {
    let mut desk = Desk::with_retry_on_rung(MINUTE);
    assert_eq!(desk.apply(Command::Cancel { id: ID.into(), note: None }), Answer::Done);
    desk.pass_time(MINUTE);
    assert_eq!(desk.claim(stamp(0, 1)), Answer::NotNow { status: Status::Cancelled });
}

#[test]
fn an_interception_needs_the_stamp_and_spends_no_attempt() {
    let mut desk = Desk::with_retry_on_rung(MINUTE);
    let intercept = |stamp| Command::Intercept {
        id: ID.into(),
        stamp,
        ending: Ending::Dead { reason: DeadReason::PermanentError, failure: failure() },
    };
    assert_eq!(desk.apply(intercept(Stamp::FIRST)), Answer::Stale { stamp: stamp(0, 1) });
    assert!(matches!(desk.apply(intercept(stamp(0, 1))), Answer::Dead(_)));
    assert_eq!(desk.attempts.len(), 1);
}

#[test]
fn poison_sets_any_unfinished_row_aside_and_the_running_attempts_settle_is_refused() {
    let mut desk = Desk::with_running();
    let poison = Command::Poison { id: ID.into(), message: "too big".into() };
    assert!(matches!(desk.apply(poison.clone()), Answer::Dead(_)));
    assert_eq!(desk.row().dead_reason, Some(DeadReason::Poison));
    assert_eq!(desk.settle(1, Decision::Succeed), Answer::NotNow { status: Status::Dead });
    assert_eq!(desk.apply(poison), Answer::NotNow { status: Status::Dead });
}

#[test]
fn after_poison_and_replay_the_old_attempt_still_cannot_settle() {
    let mut desk = Desk::with_running();
    let _: Answer = desk.apply(Command::Poison { id: ID.into(), message: "too big".into() });
    let _: Answer = desk.apply(Command::Replay { id: ID.into(), generation: 0, note: None });
    assert_eq!(desk.run(stamp(1, 0)), 2);
    assert_eq!(desk.settle(1, Decision::Succeed), Answer::Changed);
}

#[test]
fn attempts_carry_their_number_generation_and_fence() {
    let mut desk = Desk::with_retry_on_rung(0);
    let second = desk.run(stamp(0, 1));
    let _: Answer = desk.settle(second, die(DeadReason::RetriesExhausted));
    let _: Answer = desk.apply(Command::Replay { id: ID.into(), generation: 0, note: None });
    let third = desk.run(stamp(1, 0));
    let _: Answer = desk.settle(third, Decision::Succeed);
    let numbers: Vec<_> =
        desk.attempts.iter().map(|attempt| (attempt.generation, attempt.number, attempt.fence)).collect();
    assert_eq!(numbers, [(0, 1, 1), (0, 2, 2), (1, 1, 3)]);
}

#[test]
fn times_at_the_edge_of_the_calendar_neither_overflow_nor_storm() {
    let mut desk = Desk::with_running();
    let _: Answer = desk.settle(1, retry_on_rung(i64::MAX));
    assert_eq!((desk.row().due_at, desk.row().wake_at), (i64::MAX, Some(i64::MAX)));

    let mut desk = Desk::with_pending();
    desk.change(|row| (row.due_at, row.wake_at) = (i64::MIN, Some(i64::MIN)));
    assert!(matches!(desk.ring(), Answer::Publish(_)));
    assert_eq!(desk.run(Stamp::FIRST), 1);

    let mut desk = Desk::with_pending();
    desk.settings.lease_ms = i64::MAX;
    assert_eq!(desk.run(Stamp::FIRST), 1);
    assert_eq!(desk.row().wake_at, Some(i64::MAX));
}
