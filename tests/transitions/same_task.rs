//! I3: the same id, key or remembered submission makes one task.

use redeliver::task::{Answer, Command, DeadReason, Decision, NewTask, Stamp, Status};

use crate::desk::{Desk, ID, MINUTE, submission};

fn submit(desk: &mut Desk, new: NewTask) -> Answer {
    desk.apply(Command::Submit(Box::new(new)))
}

fn duplicate(status: Status) -> Answer {
    Answer::Duplicate { id: ID.into(), status }
}

#[test]
fn the_same_id_and_payload_again_is_the_same_task_in_whatever_state_it_is() {
    let mut desk = Desk::new();
    assert!(matches!(submit(&mut desk, submission(ID, ID, "1")), Answer::Run(_)));
    assert_eq!(submit(&mut desk, submission(ID, ID, "1")), duplicate(Status::Running));
    let _: Answer = desk.settle(1, Decision::Succeed);
    assert_eq!(submit(&mut desk, submission(ID, ID, "1")), duplicate(Status::Succeeded));
    assert_eq!(desk.attempts.len(), 1);
}

#[test]
fn the_same_key_under_another_id_is_the_same_task() {
    let mut desk = Desk::new();
    let _: Answer = submit(&mut desk, submission(ID, "key", "1"));
    assert_eq!(submit(&mut desk, submission("other", "key", "1")), duplicate(Status::Running));
    assert!(desk.rows.get("other").is_none());
}

#[test]
fn another_payload_under_the_same_id_or_key_is_kept_as_a_conflict_and_the_first_is_untouched() {
    for (id, key) in [(ID, "other key"), ("other id", "key")] {
        let mut desk = Desk::new();
        let _: Answer = submit(&mut desk, submission(ID, "key", "1"));
        let before = desk.row().clone();
        let Answer::Refused(refused) = submit(&mut desk, submission(id, key, "2")) else { panic!("not refused") };
        assert_eq!(refused.state.dead_reason, Some(DeadReason::DuplicateConflict));
        assert_eq!(refused.spec.conflicts_with.as_deref(), Some(ID));
        assert_eq!(refused.spec.idempotency_key, None, "a conflict owns no key");
        assert_eq!(*desk.row(), before);
        assert!(matches!(submit(&mut desk, submission(id, key, "2")), Answer::Refused(_)), "and again the same row");
        assert_eq!(desk.rows.tasks().count(), 2);
    }
}

#[test]
fn a_redelivered_submission_without_an_id_is_the_task_that_its_hash_names() {
    let nameless = |id: &str, redelivered| {
        let mut new = submission(id, id, "1");
        new.spec_mut().submission_hash = Some("hash of the bytes".into());
        new.redelivered = redelivered;
        new
    };
    let mut desk = Desk::new();
    assert!(matches!(submit(&mut desk, nameless(ID, false)), Answer::Run(_)));
    assert_eq!(submit(&mut desk, nameless("made up again", true)), duplicate(Status::Running));
    assert!(matches!(submit(&mut desk, nameless("the same bytes once more", false)), Answer::Run(_)));
}

#[test]
fn a_redelivered_submission_that_was_never_committed_is_a_new_task() {
    let mut desk = Desk::new();
    let new = NewTask { redelivered: true, ..submission(ID, ID, "1") };
    assert!(matches!(submit(&mut desk, new), Answer::Run(_)));
}

#[test]
fn a_submission_whose_row_waits_acts_as_its_first_wake_up() {
    let mut desk = Desk::new();
    let put_down = NewTask { claimant: None, ..submission(ID, ID, "1") };
    assert!(matches!(submit(&mut desk, put_down), Answer::Waiting(_)));
    assert!(matches!(submit(&mut desk, submission(ID, ID, "1")), Answer::Run(_)));
}

#[test]
fn a_submission_whose_row_has_spent_a_retry_starts_nothing() {
    let mut desk = Desk::new();
    let _: Answer = submit(&mut desk, submission(ID, ID, "1"));
    let _: Answer = desk.settle(1, crate::desk::retry_on_rung(0));
    assert_eq!(submit(&mut desk, submission(ID, ID, "1")), duplicate(Status::RetryWaiting));
}

#[test]
fn a_submission_is_not_run_before_its_time() {
    let mut desk = Desk::new();
    let not_before = desk.now + MINUTE;
    let new = NewTask { not_before: Some(not_before), ..submission(ID, ID, "1") };
    assert!(matches!(submit(&mut desk, new.clone()), Answer::Waiting(_)));
    assert_eq!(desk.row().wake_at, Some(not_before));
    assert_eq!(submit(&mut desk, new), Answer::Early, "nor is its redelivery");
    desk.now = not_before;
    assert!(matches!(desk.ring(), Answer::Publish(_)));
}

#[test]
fn a_submission_that_the_broker_gave_up_is_dead_if_it_is_new_and_a_wake_up_if_it_is_known() {
    let rejected = || NewTask { rejected: true, redelivered: true, ..submission(ID, ID, "1") };
    let mut desk = Desk::new();
    assert!(matches!(submit(&mut desk, rejected()), Answer::Dead(_)));
    assert_eq!(desk.row().dead_reason, Some(DeadReason::Poison));
    assert_eq!(submit(&mut desk, rejected()), duplicate(Status::Dead));

    let mut desk = Desk::new();
    let _: Answer = submit(&mut desk, NewTask { claimant: None, ..submission(ID, ID, "1") });
    assert!(matches!(submit(&mut desk, rejected()), Answer::Run(_)));
}

#[test]
fn a_published_row_is_claimed_by_its_wake_up_and_not_by_the_door_that_made_it() {
    let mut desk = Desk::new();
    let new = NewTask { publish: true, claimant: None, ..submission(ID, ID, "1") };
    let Answer::Publish(wake_up) = submit(&mut desk, new.clone()) else { panic!("not published") };
    assert_eq!(wake_up.stamp, Stamp::FIRST);
    assert_eq!(submit(&mut desk, new), duplicate(Status::Pending), "a second submit publishes nothing");
}

#[test]
fn a_refused_message_that_comes_again_is_the_same_row() {
    let mut desk = Desk::new();
    let new = submission(ID, ID, "1");
    let refusal = new.refusal.refusal(&new.spec, &new.queue);
    for _ in 0..2 {
        assert!(matches!(desk.apply(Command::Refuse(Box::new(refusal.clone()))), Answer::Refused(_)));
    }
    assert_eq!(desk.rows.tasks().count(), 1);
}
