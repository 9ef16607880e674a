//! Whole lanes in virtual time: the scheduler's rounds, a broker that misbehaves, and how many wake-ups that costs.

use std::collections::BTreeMap;

use redeliver::task::{Answer, Command, Decision, Lane, Millis, Spot, Stamp, State, Status, Task, WakeUp};

use crate::desk::{Desk, MINUTE, MORNING, SECOND, anybody, lane_key, retry_on_rung, settlement};

/// What the broker does with what is published.
#[derive(Clone, Copy, PartialEq)]
enum Broker {
    /// Delivers it before the next round.
    Delivers,
    /// Keeps it for later and confirms nothing.
    StandsStill,
    /// Refuses it.
    Nacks,
}

/// A desk, a broker and a scheduler that looks every second.
struct Hall {
    desk: Desk,
    broker: Broker,
    /// What it will deliver.
    underway: Vec<WakeUp>,
    /// Wake-ups per task.
    published: BTreeMap<String, usize>,
    /// When each task first ran.
    ran: BTreeMap<String, Millis>,
}

impl Hall {
    fn new(broker: Broker) -> Hall {
        Hall { desk: Desk::new(), broker, underway: Vec::new(), published: BTreeMap::new(), ran: BTreeMap::new() }
    }

    fn insert(&mut self, count: usize, change: impl Fn(usize, &mut State)) {
        for number in 0..count {
            self.desk.insert(&format!("task-{number:04}"), |row| change(number, row));
        }
    }

    /// Looks every second for `length`.
    fn pass_time(&mut self, length: Millis) {
        for _ in 0..length / SECOND {
            self.desk.pass_time(SECOND);
            if self.broker == Broker::Delivers {
                for wake_up in std::mem::take(&mut self.underway) {
                    self.deliver(wake_up);
                }
            }
            self.round();
        }
    }

    /// One round of the scheduler: every waiting row whose alarm has rung, in the order that the worker uses.
    fn round(&mut self) {
        let now = self.desk.now;
        let ringing = |task: &&Task| task.state.status.is_waiting() && task.state.wake_at.is_some_and(|at| at <= now);
        let mut rows: Vec<Task> = self.desk.rows.tasks().filter(ringing).cloned().collect();
        rows.sort_by_key(|task| task.state.outstanding.map(|outstanding| outstanding.arrives_at));
        for task in rows {
            let Some(wake_at) = task.state.wake_at else { continue };
            let (id, stamp) = (task.id().to_owned(), task.stamp());
            if let Answer::Publish(wake_up) = self.desk.apply(Command::Wake { id, stamp, wake_at }) {
                self.publish(wake_up);
            }
        }
        let again = self.desk.rows.tasks().filter(ringing).count();
        assert_eq!(again, 0, "alarms that rang must not ring in the same round again");
    }

    fn publish(&mut self, wake_up: WakeUp) {
        *self.published.entry(wake_up.id.clone()).or_default() += 1;
        match self.broker {
            Broker::Nacks => {
                let WakeUp { id, stamp, route, .. } = wake_up;
                let _: Answer = self.desk.apply(Command::PublishFailed { id, stamp, sent_at: route.sent_at });
            }
            Broker::Delivers | Broker::StandsStill => self.underway.push(wake_up),
        }
    }

    /// The message arrives, moves the mark, and its task runs and succeeds.
    fn deliver(&mut self, wake_up: WakeUp) {
        self.desk.mark(wake_up.route.lane, wake_up.route.arrives_at);
        let WakeUp { id, stamp, .. } = wake_up;
        if let Answer::Run(task) = self.desk.apply(Command::Claim { id: id.clone(), stamp, claimant: Some(anybody()) })
        {
            self.ran.entry(id.clone()).or_insert(self.desk.now);
            let settlement = settlement(Decision::Succeed);
            let _: Answer = self.desk.apply(Command::Settle { id, fence: task.state.fence, settlement });
        }
    }

    fn unfinished(&self) -> usize {
        self.desk.rows.tasks().filter(|task| !task.state.status.is_ended()).count()
    }

    fn most_published(&self) -> usize {
        self.published.values().copied().max().unwrap_or(0)
    }
}

#[test]
fn a_lane_without_a_leader_for_5_minutes_gets_at_most_5_wake_ups_per_task() {
    for broker in [Broker::StandsStill, Broker::Nacks] {
        for count in [1, 2, 500] {
            let mut hall = Hall::new(broker);
            hall.insert(count, |_, _| {});
            hall.pass_time(5 * MINUTE);
            assert!(hall.most_published() <= 5, "{count} tasks: {}", hall.most_published());
            hall.broker = Broker::Delivers;
            hall.pass_time(6 * MINUTE);
            assert_eq!(hall.unfinished(), 0, "and when it is back everything runs");
        }
    }
}

#[test]
fn a_lane_without_a_leader_gets_no_more_for_tasks_that_were_hurried_or_replayed() {
    for broker in [Broker::StandsStill, Broker::Nacks] {
        let mut hall = Hall::new(broker);
        hall.insert(20, |_, _| {});
        for number in 0..20 {
            let Answer::Publish(wake_up) = hall.desk.apply(Command::RunNow { id: format!("task-{number:04}") }) else {
                panic!("not published")
            };
            hall.publish(wake_up);
        }
        hall.pass_time(5 * MINUTE);
        assert!(hall.most_published() <= 5, "{}", hall.most_published());
    }
}

#[test]
fn a_lane_that_stands_still_gets_one_probe_a_patience_however_many_rows_wait() {
    let mut hall = Hall::new(Broker::StandsStill);
    hall.insert(500, |_, _| {});
    hall.pass_time(5 * MINUTE);
    let probes = hall.published.values().sum::<usize>() - 500;
    assert!((1..=5).contains(&probes), "{probes}");
}

#[test]
fn wake_ups_purged_from_a_lane_kept_busy_with_nothing_but_submissions_run_within_2_minutes() {
    // Submissions carry no arrival, so only probes move the mark. Published all at once, and over a minute.
    for spread in [0, 120] {
        let mut hall = Hall::new(Broker::StandsStill);
        hall.insert(500, |number, row| {
            let due_at = MORNING + i64::try_from(number).expect("small") * spread;
            (row.due_at, row.wake_at) = (due_at, Some(due_at));
        });
        hall.pass_time(500 * spread + SECOND);
        assert_eq!(hall.published.len(), 500);
        // Purged; from now on the broker is well.
        hall.underway.clear();
        hall.broker = Broker::Delivers;
        let purged_at = hall.desk.now;
        hall.pass_time(2 * MINUTE);
        assert_eq!(hall.unfinished(), 0, "spread {spread}");
        let last = hall.ran.values().copied().max().expect("all ran") - purged_at;
        assert!(last <= 2 * MINUTE, "{last}");
        assert!(hall.most_published() <= 4, "{}", hall.most_published());
    }
}

#[test]
fn wake_ups_on_a_rung_that_was_deleted_run_within_2_minutes_of_their_time() {
    for noticed in [false, true] {
        let mut hall = Hall::new(Broker::StandsStill);
        hall.insert(100, |_, row| row.wake_at = Some(row.due_at));
        for number in 0..100 {
            let id = format!("task-{number:04}");
            let claim = Command::Claim { id: id.clone(), stamp: Stamp::FIRST, claimant: Some(anybody()) };
            assert!(matches!(hall.desk.apply(claim), Answer::Run(_)));
            let settlement = settlement(retry_on_rung(15 * MINUTE));
            let _: Answer = hall.desk.apply(Command::Settle { id, fence: 1, settlement });
        }
        hall.desk.pass_time(15 * MINUTE);
        if noticed {
            let rung = Spot::Rung { queue: lane_key(Lane::Retries).queue, delay_ms: 15 * MINUTE };
            let _: Answer = hall.desk.apply(Command::Missing { spot: rung });
        }
        hall.underway.clear();
        hall.broker = Broker::Delivers;
        let due_at = hall.desk.now;
        hall.pass_time(2 * MINUTE);
        assert_eq!(hall.unfinished(), 0);
        let last = hall.ran.values().copied().max().expect("all ran") - due_at;
        // Grace, then at once if the rung was seen to be missing, after one probe and one patience if it was not.
        assert_eq!(last / (30 * SECOND), if noticed { 2 } else { 3 }, "{last}");
    }
}

#[test]
fn a_deep_lane_that_delivers_slowly_gets_few_wake_ups_twice() {
    let mut hall = Hall::new(Broker::StandsStill);
    hall.insert(500, |_, _| {});
    hall.round();
    // The lane delivers in order, one a second: the last is eight minutes late, and nothing of it is lost.
    let queue: Vec<String> = hall.published.keys().cloned().collect();
    for id in queue {
        hall.pass_time(SECOND);
        hall.desk.mark(Lane::Tasks, MORNING);
        let claim = Command::Claim { id: id.clone(), stamp: Stamp::FIRST, claimant: Some(anybody()) };
        assert!(matches!(hall.desk.apply(claim), Answer::Run(_)));
        let settlement = settlement(Decision::Succeed);
        let _: Answer = hall.desk.apply(Command::Settle { id, fence: 1, settlement });
    }
    let twice = hall.published.values().sum::<usize>() - 500;
    assert!(twice <= 17, "at most one probe a patience: {twice}");
    assert!(hall.desk.rows.tasks().all(|task| task.state.status == Status::Succeeded));
}

#[test]
fn a_clock_set_back_by_an_hour_publishes_nothing_twice_and_loses_nothing() {
    let mut hall = Hall::new(Broker::StandsStill);
    hall.insert(50, |_, _| {});
    hall.round();
    hall.desk.pass_time(-60 * MINUTE);
    hall.broker = Broker::Delivers;
    hall.pass_time(59 * MINUTE);
    assert_eq!(hall.most_published(), 1, "alarms wait for the time that they name");
    hall.pass_time(5 * MINUTE);
    assert_eq!(hall.unfinished(), 0);
}
