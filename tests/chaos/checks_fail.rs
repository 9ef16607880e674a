//! Each check finds what it is there for: from evidence that is in order, one thing is made wrong at a time.

use crate::checks::{Kind, Verdict, judge};
use crate::evidence::{AttemptRow, Copy, Evidence, TaskRow};
use crate::faults::Caused;
use crate::party::{Answer, Call};
use crate::plan::{Door, Work};
use crate::report::recovered_ms;

fn work(name: &str, door: Door) -> Work {
    Work { at: 0, name: name.into(), claims: None, door, topic: "chaos.shop", shop: "amber", times: 1 }
}

fn attempt(task: &str, number: i64, outcome: &str, class: Option<&str>, http_status: Option<i64>) -> AttemptRow {
    let started_at = 1_000 * number;
    AttemptRow {
        task: task.into(),
        fence: number,
        number,
        outcome: outcome.into(),
        class: class.map(str::to_owned),
        http_status,
        policy: Some("shop".into()),
        started_at,
        ended_at: started_at + 500,
        worker: "host-42-a".into(),
        ..AttemptRow::default()
    }
}

fn call(task: &str, retry_count: i64, answer: Answer) -> Call {
    Call { at: 1_000 * (retry_count + 1) + 10, task: task.into(), retry_count, key: task.into(), answer }
}

fn row(id: &str, status: &str) -> TaskRow {
    TaskRow {
        id: id.into(),
        topic: "chaos.shop".into(),
        shop: "amber".into(),
        queue: "default".into(),
        status: status.into(),
        dlq_copy: "none".into(),
        ..TaskRow::default()
    }
}

/// `good` failed once and succeeded, `bad` died of a 400, `odd` was no task.
fn in_order() -> Evidence {
    let dead = |id: &str, reason: &str| TaskRow {
        dead_reason: Some(reason.into()),
        dlq_copy: "present".into(),
        ..row(id, "dead")
    };
    let copy = |id: &str| Copy { queue: "default".into(), message_id: format!("{id}:0") };
    Evidence {
        sent: vec![work("good", Door::Message), work("bad", Door::Row), work("odd", Door::Malformed)],
        tasks: vec![
            TaskRow { has_result: true, ..row("good", "succeeded") },
            dead("bad", "permanent_error"),
            TaskRow { refused: Some("odd".into()), ..dead("some-uuid", "malformed") },
        ],
        attempts: vec![
            attempt("good", 1, "retried", Some("server_error"), Some(503)),
            attempt("good", 2, "succeeded", None, None),
            attempt("bad", 1, "died", Some("http_status"), Some(400)),
        ],
        calls: vec![
            call("good", 0, Answer::Status(503)),
            call("good", 1, Answer::Done),
            call("bad", 0, Answer::Status(400)),
        ],
        copies: vec![copy("bad"), copy("some-uuid")],
    }
}

fn found(change: impl FnOnce(&mut Evidence)) -> Verdict {
    let mut evidence = in_order();
    change(&mut evidence);
    judge(&evidence)
}

fn finds(kind: Kind, change: impl FnOnce(&mut Evidence)) {
    let verdict = found(change);
    assert!(verdict.count(kind) > 0, "no {kind:?} among {:?}", verdict.violations);
}

#[test]
fn what_is_in_order_is_found_in_order() {
    assert_eq!(judge(&in_order()), Verdict::default());
}

#[test]
fn a_task_without_a_row_is_lost_and_one_that_has_not_ended_is_stuck() {
    finds(Kind::Lost, |evidence| evidence.sent.push(work("gone", Door::Message)));
    finds(Kind::Lost, |evidence| evidence.tasks.truncate(2));
    finds(Kind::Stuck, |evidence| evidence.tasks[0].status = "retry_waiting".into());
}

#[test]
fn more_attempts_than_a_policy_allows_are_over() {
    finds(Kind::Over, |evidence| evidence.attempts[1].number = 7);
    finds(Kind::Over, |evidence| {
        let twice = AttemptRow { fence: 3, ..evidence.attempts[0].clone() };
        evidence.attempts.push(twice);
    });
    finds(Kind::Over, |evidence| {
        let released = |fence| AttemptRow { fence, outcome: "released".into(), ..evidence.attempts[0].clone() };
        let six: Vec<AttemptRow> = (10..16).map(released).collect();
        evidence.attempts.extend(six);
    });
}

#[test]
fn a_second_call_needs_an_attempt_of_its_own_and_a_second_effect_a_cause() {
    finds(Kind::Twice, |evidence| evidence.calls.push(call("good", 1, Answer::Done)));
    let lost = found(|evidence| {
        evidence.calls[0].answer = Answer::Done;
        evidence.attempts[0].class = Some("worker_lost".into());
    });
    assert_eq!((lost.violations.len(), lost.duplicates.get("worker_lost")), (0, Some(&1)), "{lost:?}");
    let released = found(|evidence| {
        let again = AttemptRow {
            fence: 0,
            started_at: 900,
            ended_at: 950,
            outcome: "released".into(),
            ..evidence.attempts[1].clone()
        };
        evidence.attempts.push(again);
        evidence.calls.push(Call { at: 910, ..call("good", 1, Answer::Done) });
    });
    assert_eq!((released.violations.len(), released.duplicates.get("released")), (0, Some(&1)), "{released:?}");
}

#[test]
fn a_call_that_came_after_its_attempt_was_called_lost_is_laid_to_that_one() {
    let late = found(|evidence| {
        evidence.attempts[0].class = Some("worker_lost".into());
        evidence.calls[0].at = 9_000;
    });
    assert_eq!(late.violations, [], "{late:?}");
}

#[test]
fn what_store_and_third_party_say_differently_is_a_disagreement() {
    finds(Kind::Disagreement, |evidence| evidence.calls[1].answer = Answer::Status(503));
    finds(Kind::Disagreement, |evidence| evidence.calls[0].answer = Answer::Done);
    finds(Kind::Disagreement, |evidence| drop(evidence.calls.remove(1)));
    finds(Kind::Disagreement, |evidence| drop(evidence.attempts.remove(1)));
    finds(Kind::Disagreement, |evidence| evidence.calls[0].key = "another".into());
    finds(Kind::Disagreement, |evidence| evidence.tasks[0].has_result = false);
    finds(Kind::Disagreement, |evidence| evidence.tasks.push(row("nobody", "succeeded")));
    finds(Kind::Disagreement, |evidence| evidence.tasks[1].dead_reason = Some("retries_exhausted".into()));
    finds(Kind::Disagreement, |evidence| evidence.tasks[2].dead_reason = Some("poison".into()));
    finds(Kind::Disagreement, |evidence| evidence.attempts[0].policy = Some("built-in".into()));
}

#[test]
fn a_dead_task_has_one_copy_in_its_own_dlq_and_nothing_else_lies_there() {
    finds(Kind::DeadLetters, |evidence| drop(evidence.copies.pop()));
    finds(Kind::DeadLetters, |evidence| evidence.copies.push(evidence.copies[0].clone()));
    finds(Kind::DeadLetters, |evidence| evidence.copies[0].queue = "bulk".into());
    finds(Kind::DeadLetters, |evidence| evidence.copies[0].message_id = "bad:1".into());
    finds(Kind::DeadLetters, |evidence| evidence.tasks[1].dlq_copy = "wanted".into());
}

#[test]
fn more_at_once_than_a_cap_and_more_retries_than_a_limit_are_found() {
    finds(Kind::Gate, |evidence| {
        for id in ["a", "b", "c"] {
            evidence.tasks.push(row(id, "succeeded"));
            evidence.attempts.push(attempt(id, 1, "succeeded", None, None));
        }
    });
    finds(Kind::Gate, |evidence| {
        for id in ["a", "b", "c", "d"] {
            evidence.tasks.push(TaskRow { topic: "chaos.steady".into(), ..row(id, "succeeded") });
            evidence.attempts.push(attempt(id, 2, "succeeded", None, None));
        }
    });
}

#[test]
fn a_fault_is_survived_when_the_worker_it_was_about_has_settled_what_it_began_after_it() {
    let attempts = in_order().attempts;
    let fault = |process| Caused { kind: "cut", began_at: 0, ended_at: 1_200, process, caused: true };
    assert_eq!(recovered_ms(&fault(None), &attempts), Some(1_300));
    assert_eq!(recovered_ms(&fault(Some(42)), &attempts), Some(1_300));
    assert_eq!(recovered_ms(&fault(Some(4)), &attempts), None);
}
