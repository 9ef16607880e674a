//! §4.2, "Late or lost" and "Early".

use redeliver::task::{Answer, Command, DEFAULT_QUEUE, Lane, Spot, Stamp};

use crate::desk::{Desk, ID, MINUTE, SECOND, lane_key, retry_in_store, retry_on_rung, stamp};

/// Uses up the one probe of the lane, so that what follows is judged without it.
fn probe_elsewhere(desk: &mut Desk, lane: Lane) {
    let mark = desk.rows.lanes.entry(lane_key(lane)).or_default();
    (mark.probed_at, mark.probe_gap_ms, mark.probe_mark) = (desk.now, 30 * MINUTE, i64::MAX);
}

#[test]
fn a_row_with_nothing_outstanding_is_published_when_its_alarm_rings() {
    let mut desk = Desk::with_pending();
    let wake_up = desk.ring_and_publish();
    assert_eq!((wake_up.route.lane, wake_up.route.rung_ms), (Lane::Tasks, 0));
    assert_eq!(desk.row().wake_at, Some(desk.now + 30 * SECOND));
}

#[test]
fn a_wake_up_is_late_while_the_mark_is_less_than_slack_past_its_arrival() {
    let mut desk = Desk::with_pending();
    let sent = desk.ring_and_publish().route;
    probe_elsewhere(&mut desk, Lane::Tasks);
    desk.pass_time(29_999);
    desk.mark(Lane::Tasks, sent.arrives_at + 29_999);
    assert_eq!(desk.ring(), Answer::Late);
    assert_eq!(desk.row().outstanding, Some(sent), "what is out is still out");
}

#[test]
fn a_wake_up_is_lost_once_the_mark_is_slack_past_its_arrival() {
    let mut desk = Desk::with_pending();
    let sent = desk.ring_and_publish().route;
    probe_elsewhere(&mut desk, Lane::Tasks);
    desk.pass_time(30 * SECOND);
    desk.mark(Lane::Tasks, sent.arrives_at + 30 * SECOND);
    assert!(matches!(desk.ring(), Answer::Publish(_)));
}

#[test]
fn the_mark_of_another_lane_says_nothing() {
    let mut desk = Desk::with_pending();
    let _ = desk.ring_and_publish();
    probe_elsewhere(&mut desk, Lane::Tasks);
    desk.pass_time(10 * MINUTE);
    desk.mark(Lane::Retries, desk.now);
    assert_eq!(desk.ring(), Answer::Late);
}

#[test]
fn a_wake_up_is_lost_when_its_rung_or_lane_was_found_missing_after_it_was_sent() {
    let rung = Spot::Rung { queue: DEFAULT_QUEUE.into(), delay_ms: MINUTE };
    for spot in [rung, Spot::Lane(lane_key(Lane::Retries))] {
        let mut desk = Desk::with_retry_on_rung(MINUTE);
        probe_elsewhere(&mut desk, Lane::Retries);
        desk.pass_time(SECOND);
        assert_eq!(desk.apply(Command::Missing { spot }), Answer::Done);
        assert_eq!(
            desk.row().wake_at,
            Some(desk.now - SECOND + 2 * MINUTE),
            "it is judged when its alarm rings, not before"
        );
        let again = desk.ring_and_publish();
        assert_eq!(again.route.rung_ms, 0, "what is due goes straight to its lane");
    }
}

#[test]
fn a_rung_found_missing_before_the_wake_up_was_sent_says_nothing() {
    let mut desk = Desk::with_running();
    for spot in [Spot::Rung { queue: DEFAULT_QUEUE.into(), delay_ms: MINUTE }, Spot::Lane(lane_key(Lane::Retries))] {
        assert_eq!(desk.apply(Command::Missing { spot }), Answer::Done);
    }
    desk.pass_time(1);
    let _: Answer = desk.settle(1, retry_on_rung(MINUTE));
    probe_elsewhere(&mut desk, Lane::Retries);
    assert_eq!(desk.ring(), Answer::Late);
}

#[test]
fn another_rung_or_queue_found_missing_says_nothing() {
    let mut desk = Desk::with_retry_on_rung(MINUTE);
    probe_elsewhere(&mut desk, Lane::Retries);
    for spot in [
        Spot::Rung { queue: DEFAULT_QUEUE.into(), delay_ms: MINUTE + 1 },
        Spot::Rung { queue: "other".into(), delay_ms: MINUTE },
        Spot::Lane(lane_key(Lane::Tasks)),
    ] {
        assert_eq!(desk.apply(Command::Missing { spot }), Answer::Done);
    }
    assert_eq!(desk.ring(), Answer::Late);
}

#[test]
fn looks_at_a_lane_that_stands_still_come_after_30_60_120_240_and_then_300_seconds() {
    let mut desk = Desk::with_pending();
    let _ = desk.ring_and_publish();
    probe_elsewhere(&mut desk, Lane::Tasks);
    desk.rows.lanes.entry(lane_key(Lane::Tasks)).or_default().probe_gap_ms = i64::MAX;
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let before = desk.now;
        assert_eq!(desk.ring(), Answer::Late);
        pauses.push((desk.now - before) / SECOND);
    }
    assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
}

#[test]
fn a_lane_that_has_delivered_since_is_looked_at_again_after_one_plain_patience() {
    let mut desk = Desk::with_pending();
    desk.change(|row| row.wakes = 5);
    let sent = desk.ring_and_publish().route;
    probe_elsewhere(&mut desk, Lane::Tasks);
    desk.pass_time(SECOND);
    desk.mark(Lane::Tasks, sent.sent_at + 1);
    assert_eq!(desk.ring(), Answer::Late);
    assert_eq!(desk.row().wake_at, Some(desk.now + 30 * SECOND));
}

#[test]
fn one_late_row_per_lane_and_patience_is_published_as_a_probe_and_less_often_while_the_mark_stands_still() {
    let mut desk = Desk::with_pending();
    let _ = desk.ring_and_publish();
    let mut probes = Vec::new();
    // Look every second for 20 minutes, whatever the alarm says: only the lane's own pause holds probes back.
    for second in 1..1200 {
        desk.pass_time(SECOND);
        let (now, stamp) = (desk.now, desk.row().stamp);
        desk.change(|row| row.wake_at = Some(now));
        if let Answer::Publish(_) = desk.apply(Command::Wake { id: ID.into(), stamp, wake_at: now }) {
            probes.push(second);
        }
    }
    let gaps: Vec<i64> = probes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [60, 120, 240, 300, 300]);
}

#[test]
fn a_mark_that_has_moved_brings_probes_back_to_one_per_patience() {
    let mut desk = Desk::with_pending();
    let _ = desk.ring_and_publish();
    let mut probes = 0;
    for _ in 0..300 {
        desk.pass_time(SECOND);
        // The lane is slow: what it delivers now was sent ten minutes ago.
        desk.mark(Lane::Tasks, desk.now - 10 * MINUTE);
        let (now, stamp) = (desk.now, desk.row().stamp);
        desk.change(|row| row.wake_at = Some(now));
        probes +=
            i32::from(matches!(desk.apply(Command::Wake { id: ID.into(), stamp, wake_at: now }), Answer::Publish(_)));
    }
    assert_eq!(probes, 10);
}

#[test]
fn a_mark_further_ahead_than_slack_is_ignored() {
    let mut desk = Desk::with_pending();
    let _ = desk.ring_and_publish();
    probe_elsewhere(&mut desk, Lane::Tasks);
    for arrives_at in [desk.now + 30 * SECOND + 1, i64::MAX, i64::MIN] {
        desk.mark(Lane::Tasks, arrives_at);
        assert_eq!(desk.rows.lanes.get(&lane_key(Lane::Tasks)).map(|ledger| ledger.mark), Some(0), "{arrives_at}");
    }
}

#[test]
fn a_mark_found_in_the_future_is_set_to_now_by_the_next_delivery() {
    let mut desk = Desk::new();
    desk.mark(Lane::Tasks, desk.now);
    desk.pass_time(-20 * MINUTE);
    desk.mark(Lane::Tasks, desk.now - SECOND);
    assert_eq!(desk.rows.lanes[&lane_key(Lane::Tasks)].mark, desk.now);
}

/// Found here: judged by the ledger alone, every late wake-up was lost until the clock had caught up with the mark.
#[test]
fn a_mark_found_in_the_future_calls_nothing_lost_even_if_the_lane_delivers_nothing_more() {
    let mut desk = Desk::new();
    desk.mark(Lane::Tasks, desk.now);
    desk.pass_time(-20 * MINUTE);
    desk.insert(ID, |_| {});
    let _ = desk.ring_and_publish();
    probe_elsewhere(&mut desk, Lane::Tasks);
    assert_eq!(desk.ring(), Answer::Late);
}

#[test]
fn an_early_wake_up_is_cleared_moves_no_due_time_and_publishes_nothing() {
    let mut desk = Desk::with_retry_on_rung(15 * MINUTE);
    let due_at = desk.row().due_at;
    desk.pass_time(MINUTE);
    assert_eq!(desk.claim(stamp(0, 1)), Answer::Early);
    let row = desk.row();
    assert_eq!((row.due_at, row.wake_at, row.outstanding), (due_at, Some(due_at), None));
    assert!(matches!(desk.ring(), Answer::Publish(_)), "its alarm brings it back when it is due");
}

#[test]
fn an_alarm_before_the_due_time_is_moved_there_and_publishes_nothing() {
    let mut desk = Desk::with_pending();
    let later = desk.now + MINUTE;
    desk.change(|row| row.due_at = later);
    assert_eq!(desk.ring(), Answer::Rearmed);
    assert_eq!(desk.row().wake_at, Some(later));
}

#[test]
fn a_rung_leaves_its_alarm_one_grace_behind_it_and_a_store_held_wait_on_the_due_time() {
    let desk = Desk::with_retry_on_rung(15 * MINUTE);
    assert_eq!(desk.row().wake_at, Some(desk.now + 16 * MINUTE));
    let mut desk = Desk::with_running();
    let _: Answer = desk.settle(1, retry_in_store(15 * MINUTE));
    assert_eq!((desk.row().wake_at, desk.row().outstanding), (Some(desk.now + 15 * MINUTE), None));
}

#[test]
fn a_returned_publish_to_a_rung_leaves_the_wait_to_the_store() {
    let mut desk = Desk::with_retry_on_rung(15 * MINUTE);
    let (sent_at, due_at) = (desk.now, desk.row().due_at);
    desk.pass_time(SECOND);
    assert_eq!(desk.apply(Command::PublishFailed { id: ID.into(), stamp: stamp(0, 1), sent_at }), Answer::Done);
    assert_eq!((desk.row().wake_at, desk.row().outstanding), (Some(due_at), None));
}

#[test]
fn a_returned_publish_brings_a_due_rows_alarm_no_nearer() {
    let mut desk = Desk::with_pending();
    let sent_at = desk.ring_and_publish().route.sent_at;
    let wake_at = desk.row().wake_at;
    assert_eq!(desk.apply(Command::PublishFailed { id: ID.into(), stamp: Stamp::FIRST, sent_at }), Answer::Done);
    assert_eq!((desk.row().wake_at, desk.row().outstanding), (wake_at, None));
}

#[test]
fn the_return_of_an_older_publish_does_not_clear_the_newer_one() {
    let mut desk = Desk::with_pending();
    let first = desk.ring_and_publish().route.sent_at;
    let second = desk.ring_and_publish().route;
    assert_eq!(
        desk.apply(Command::PublishFailed { id: ID.into(), stamp: Stamp::FIRST, sent_at: first }),
        Answer::Changed
    );
    assert_eq!(desk.row().outstanding, Some(second));
}

#[test]
fn two_schedulers_that_read_the_same_alarm_publish_once() {
    let mut desk = Desk::with_pending();
    let wake = Command::Wake { id: ID.into(), stamp: Stamp::FIRST, wake_at: desk.now };
    assert!(matches!(desk.apply(wake.clone()), Answer::Publish(_)));
    assert_eq!(desk.apply(wake), Answer::Changed);
}
