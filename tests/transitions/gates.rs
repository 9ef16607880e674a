//! Gates at claim, hold and admit; breakers, caps and holds at settle (§4.3).

use std::sync::Arc;

use redeliver::gate::{Breaker, GateState};
use redeliver::gate::{
    BreakerRule, CapRule, Gates, LimitKind, LimitRule, Per, PersonsWord, Phase, Rate, Turn, WhenOpen, Word,
};
use redeliver::policy::TopicPattern;
use redeliver::task::{
    Answer, Claimant, Command, DeadReason, Decision, Degraded, Ending, Failure, Millis, Settlement, Stamp, State,
    Status, Task, TaskResult, class,
};

use crate::desk::{Desk, MINUTE, SECOND, spec, stamp};

const RETRY: Stamp = Stamp { generation: 0, retry_count: 1 };

fn per(words: &[&str]) -> Per {
    Per(words.iter().map(|word| Word::parse(word).expect("a word")).collect())
}

/// One retry a second, for each shop or for all.
fn limit(name: &str, words: &[&str]) -> LimitRule {
    let kind = LimitKind::Rate { rate: Rate { count: 1, per_ms: SECOND }, burst: 1 };
    LimitRule { name: name.into(), per: per(words), calls: false, kind }
}

fn breaker(when_open: WhenOpen) -> BreakerRule {
    BreakerRule {
        name: "b".into(),
        per: per(&["label.shop"]),
        consecutive_same: Some(3),
        consecutive: None,
        failure_rate: None,
        ignore: vec!["bad_payload".into()],
        open_for_ms: MINUTE,
        open_for_max_ms: 10 * MINUTE,
        probes: 1,
        when_open,
        park_max_ms: 60 * MINUTE,
    }
}

/// A desk with gates, and tasks by id whose shop is the part before the dash.
struct Yard {
    desk: Desk,
    gates: Arc<Gates>,
}

impl Yard {
    fn new(gates: Gates) -> Yard {
        Yard { desk: Desk::new(), gates: Arc::new(gates) }
    }

    fn with_breaker(when_open: WhenOpen) -> Yard {
        Yard::new(Gates { breakers: vec![breaker(when_open)], ..Gates::default() })
    }

    fn add(&mut self, id: &str, stamp: Stamp) {
        let mut state = State::pending(self.desk.now);
        state.queue = Some("default".into());
        state.stamp = stamp;
        if stamp.retry_count > 0 {
            state.status = Status::RetryWaiting;
        }
        let mut spec = spec(id, id, "1");
        let shop = id.split('-').next().unwrap_or_default();
        spec.labels.insert("shop".into(), shop.into());
        self.desk.rows.load(Task { spec: Arc::new(spec), state });
    }

    fn claimant(&self) -> Claimant {
        Claimant { worker: "w".into(), serves: None, gates: Arc::clone(&self.gates), policies: None }
    }

    fn claim(&mut self, id: &str) -> Answer {
        let (stamp, claimant) = (self.desk.row_of(id).stamp, Some(self.claimant()));
        self.desk.apply(Command::Claim { id: id.into(), stamp, claimant })
    }

    /// Adds and claims.
    fn come(&mut self, id: &str, stamp: Stamp) -> Answer {
        self.add(id, stamp);
        self.claim(id)
    }

    fn admit(&mut self, id: &str) -> Answer {
        let (stamp, claimant) = (self.desk.row_of(id).stamp, self.claimant());
        self.desk.apply(Command::Admit { id: id.into(), stamp, claimant })
    }

    fn settle_with(&mut self, id: &str, change: impl FnOnce(&mut Settlement)) -> Vec<(String, Turn)> {
        let mut settlement = Settlement::new("w", Decision::Succeed);
        settlement.gates = Arc::clone(&self.gates);
        change(&mut settlement);
        let fence = self.desk.row_of(id).fence;
        match self.desk.apply(Command::Settle { id: id.into(), fence, settlement: Box::new(settlement) }) {
            Answer::Settled(change) => change.turns,
            other => panic!("not settled: {other:?}"),
        }
    }

    fn succeed(&mut self, id: &str) -> Vec<(String, Turn)> {
        self.settle_with(id, |_| {})
    }

    fn fail(&mut self, id: &str, class: &str) -> Vec<(String, Turn)> {
        let mut failure = Failure::new(class, "no");
        failure.fingerprint = "print".into();
        let decision = Decision::Die { reason: DeadReason::RetriesExhausted, failure };
        self.settle_with(id, |settlement| settlement.decision = decision)
    }

    /// Trips the breaker of shop `a`.
    fn trip(&mut self) {
        for id in ["a-1", "a-2", "a-3"] {
            assert!(runs(&self.come(id, Stamp::FIRST)));
            self.fail(id, class::TIMEOUT);
        }
    }

    fn breaker(&self) -> &Breaker {
        match self.desk.rows.gates.get("breaker/b/label.shop=a") {
            Some(GateState::Breaker(breaker)) => breaker,
            other => panic!("no breaker: {other:?}"),
        }
    }

    fn pass(&mut self, length: Millis) {
        self.desk.pass_time(length);
    }
}

fn runs(answer: &Answer) -> bool {
    matches!(answer, Answer::Run(_))
}

fn held_by(answer: &Answer) -> &str {
    match answer {
        Answer::Held { by } => by,
        other => panic!("not held: {other:?}"),
    }
}

#[test]
fn a_limited_retry_waits_as_it_is_and_first_attempts_and_replays_are_not_counted() {
    let mut yard = Yard::new(Gates { limits: vec![limit("all", &[])], ..Gates::default() });
    assert!(runs(&yard.come("a-1", RETRY)));
    let answer = yard.come("a-2", RETRY);
    assert_eq!(held_by(&answer), "limit/all");
    let row = yard.desk.row_of("a-2");
    assert_eq!((row.status, row.stamp, row.outstanding), (Status::RetryWaiting, RETRY, None));
    assert!(row.wake_at.is_some_and(|at| at > yard.desk.now + MINUTE), "its gate wakes it, not its alarm");
    assert!(runs(&yard.come("a-3", Stamp::FIRST)));
    assert!(runs(&yard.come("a-4", stamp(1, 0))), "a replay is not a retry");
    assert_eq!(yard.admit("a-2"), Answer::Held { by: "limit/all".into() }, "not yet");
    yard.pass(SECOND);
    assert!(runs(&yard.admit("a-2")));
    assert!(yard.desk.attempts.is_empty(), "waiting is no attempt");
}

#[test]
fn whoever_comes_later_stands_behind_those_who_wait_for_the_same_gate() {
    let mut yard = Yard::new(Gates { limits: vec![limit("shop", &["label.shop"])], ..Gates::default() });
    assert!(runs(&yard.come("a-1", RETRY)));
    assert_eq!(held_by(&yard.come("a-2", RETRY)), "limit/shop/label.shop=a");
    yard.pass(10 * SECOND);
    assert_eq!(held_by(&yard.come("a-3", RETRY)), "limit/shop/label.shop=a", "there is room, but a-2 was first");
    assert!(runs(&yard.come("b-1", RETRY)), "another shop is another line");
    assert_eq!(held_by(&yard.claim("a-2")), "limit/shop/label.shop=a", "a second wake-up is no way past the line");
    assert!(runs(&yard.admit("a-2")));
}

#[test]
fn the_gate_whose_chance_is_latest_holds_and_nothing_is_taken_from_the_others() {
    let slow = LimitKind::Rate { rate: Rate { count: 1, per_ms: MINUTE }, burst: 1 };
    let limits = vec![limit("all", &[]), LimitRule { kind: slow, ..limit("shop", &["label.shop"]) }];
    let mut yard = Yard::new(Gates { limits, ..Gates::default() });
    assert!(runs(&yard.come("a-1", RETRY)));
    assert_eq!(held_by(&yard.come("a-2", RETRY)), "limit/shop/label.shop=a");
    assert_eq!(yard.desk.row_of("a-2").held_turn, "label.shop=a");
    assert_eq!(held_by(&yard.come("b-1", RETRY)), "limit/all");
    yard.pass(SECOND);
    assert_eq!(yard.admit("a-2"), Answer::Held { by: "limit/shop/label.shop=a".into() });
    assert!(runs(&yard.admit("b-1")), "the token of all was not spent on a-2");
    yard.pass(MINUTE);
    assert!(runs(&yard.admit("a-2")));
}

#[test]
fn a_gate_that_the_configuration_no_longer_knows_is_open() {
    let mut yard = Yard::new(Gates { limits: vec![limit("all", &[])], ..Gates::default() });
    assert!(runs(&yard.come("a-1", RETRY)));
    held_by(&yard.come("a-2", RETRY));
    held_by(&yard.come("a-3", RETRY));
    yard.gates = Arc::default();
    assert!(runs(&yard.admit("a-2")));
    assert!(runs(&yard.claim("a-3")), "a wake-up finds it open too");
}

#[test]
fn places_of_a_cap_come_back_by_every_way_out() {
    let orders = TopicPattern::new("#").expect("a pattern");
    let caps = vec![CapRule { route: orders.clone(), per: per(&["label.shop"]), max: 1 }];
    let mut yard = Yard::new(Gates { caps, routes: vec![orders], ..Gates::default() });
    assert!(runs(&yard.come("a-1", Stamp::FIRST)));
    let key = "cap/#/label.shop=a";
    assert_eq!(held_by(&yard.come("a-2", Stamp::FIRST)), key);
    assert!(runs(&yard.come("b-1", Stamp::FIRST)));
    yard.succeed("a-1");
    assert!(runs(&yard.admit("a-2")));
    yard.add("a-3", Stamp::FIRST);
    assert_eq!(held_by(&yard.claim("a-3")), key);
    let _: Answer = yard.desk.apply(Command::Release { id: "a-2".into(), fence: 1, nack: false });
    assert!(runs(&yard.admit("a-3")), "released");
    let wake_at = yard.desk.row_of("a-3").wake_at.expect("a lease");
    yard.desk.now = wake_at;
    let lost = Settlement::new(
        "w",
        Decision::Retry {
            delay_ms: SECOND,
            reason: "lost".into(),
            on_rung: false,
            by_handler: false,
            failure: Failure::new(class::WORKER_LOST, "gone"),
        },
    );
    let lost = Command::Lost { id: "a-3".into(), fence: 1, wake_at, settlement: Box::new(lost) };
    assert!(matches!(yard.desk.apply(lost), Answer::Settled(_)));
    assert!(runs(&yard.claim("a-2")), "lost");
    let _: Answer = yard.desk.apply(Command::Poison { id: "a-2".into(), message: "bad".into() });
    assert!(runs(&yard.come("a-4", Stamp::FIRST)), "poisoned");
}

#[test]
fn three_equal_failures_open_a_breaker_for_its_key_only_and_one_probe_closes_it() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    yard.trip();
    assert!(matches!(yard.breaker().phase, Phase::Open { .. }));
    assert_eq!(held_by(&yard.come("a-4", Stamp::FIRST)), "breaker/b/label.shop=a", "first attempts too");
    assert_eq!(held_by(&yard.come("a-5", RETRY)), "breaker/b/label.shop=a");
    assert!(runs(&yard.come("b-1", Stamp::FIRST)));
    yard.pass(MINUTE);
    assert!(runs(&yard.admit("a-4")));
    held_by(&yard.admit("a-5"));
    assert_eq!(yard.succeed("a-4"), [("breaker/b/label.shop=a".to_owned(), Turn::Closed)]);
    assert!(runs(&yard.admit("a-5")), "one at first");
    for id in ["a-6", "a-7", "a-8"] {
        held_by(&yard.come(id, RETRY));
    }
    held_by(&yard.admit("a-6"));
    yard.succeed("a-5");
    assert!(runs(&yard.admit("a-6")) && runs(&yard.admit("a-7")), "a success lets one more run");
    held_by(&yard.admit("a-8"));
    yard.fail("a-6", class::TIMEOUT);
    held_by(&yard.admit("a-8"));
    yard.succeed("a-7");
    assert!(runs(&yard.admit("a-8")), "a failure halved it");
    assert!(runs(&yard.come("a-9", Stamp::FIRST)), "nobody waits any more: it is over");
    assert_eq!(yard.breaker().back, None);
}

#[test]
fn while_work_returns_a_whole_window_of_failures_opens_a_breaker_again_and_fewer_only_slow_it_down() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    yard.trip();
    let ids: Vec<String> = (0..60).map(|n| format!("a-x{n}")).collect();
    for id in &ids {
        held_by(&yard.come(id, Stamp::FIRST));
    }
    yard.pass(MINUTE);
    let mut waiting = ids.iter();
    let mut next = || waiting.next().expect("enough of them").as_str();
    assert!(runs(&yard.admit(next())));
    yard.succeed(&ids[0]);
    // Eight at once, all of which succeed but the last four.
    let mut running = Vec::new();
    for _ in 0..20 {
        let id = next();
        if runs(&yard.admit(id)) {
            running.push(id);
        }
        if running.len() >= 8 {
            break;
        }
        if yard.breaker().back.as_ref().is_some_and(|back| back.window <= running.len() as i64) {
            yard.succeed(running.remove(0));
        }
    }
    assert_eq!(running.len(), 8);
    let window = yard.breaker().back.as_ref().expect("returning").window;
    for id in &running[..4] {
        assert_eq!(yard.fail(id, class::TIMEOUT), []);
    }
    assert_eq!(
        yard.breaker().back.as_ref().expect("returning").window,
        window / 2,
        "halved once for all of one window"
    );
    let turns: Vec<_> = running[4..].iter().flat_map(|id| yard.fail(id, class::TIMEOUT)).collect();
    assert_eq!(turns, [("breaker/b/label.shop=a".to_owned(), Turn::Opened)], "a whole window in a row");
}

#[test]
fn a_failed_probe_opens_for_longer_and_a_lost_or_rate_limited_one_only_frees_its_place() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    yard.trip();
    yard.pass(MINUTE);
    assert!(runs(&yard.come("a-4", Stamp::FIRST)));
    held_by(&yard.come("a-5", Stamp::FIRST));
    assert_eq!(yard.fail("a-4", class::RATE_LIMITED), []);
    assert!(runs(&yard.admit("a-5")), "the place is free again");
    assert_eq!(yard.fail("a-5", class::WORKER_LOST), []);
    assert!(runs(&yard.come("a-6", Stamp::FIRST)));
    assert_eq!(yard.fail("a-6", class::NETWORK), [("breaker/b/label.shop=a".to_owned(), Turn::Reopened)]);
    let Phase::Open { since, until } = yard.breaker().phase else { panic!("not open") };
    assert_eq!(until - since, 2 * MINUTE);
}

#[test]
fn rate_limits_lost_workers_and_ignored_classes_neither_trip_nor_reset_a_breaker() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    for n in 0..200 {
        let id = format!("a-{n}");
        assert!(runs(&yard.come(&id, Stamp::FIRST)));
        yard.fail(&id, [class::RATE_LIMITED, class::WORKER_LOST, class::BAD_PAYLOAD][n % 3]);
    }
    assert!(yard.desk.rows.gates.is_empty(), "not even a state");
    for (n, class) in [class::TIMEOUT, class::TIMEOUT, class::RATE_LIMITED, class::TIMEOUT].into_iter().enumerate() {
        let id = format!("a-more-{n}");
        assert!(runs(&yard.come(&id, Stamp::FIRST)));
        yard.fail(&id, class);
    }
    assert!(matches!(yard.breaker().phase, Phase::Open { .. }), "the 429 between them reset nothing");
}

#[test]
fn what_began_before_a_breaker_tripped_says_nothing_afterwards() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    assert!(runs(&yard.come("a-slow", Stamp::FIRST)));
    yard.trip();
    yard.pass(MINUTE);
    assert!(runs(&yard.come("a-probe", Stamp::FIRST)));
    assert_eq!(yard.succeed("a-slow"), [], "an old success closes nothing");
    assert_eq!(yard.breaker().phase, Phase::HalfOpen);
    assert_eq!(yard.fail("a-probe", class::TIMEOUT).len(), 1);
}

#[test]
fn a_success_without_failures_before_it_touches_no_state() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    assert!(runs(&yard.come("a-1", Stamp::FIRST)));
    yard.succeed("a-1");
    assert!(yard.desk.rows.gates.is_empty() && yard.desk.row_of("a-1").passes.is_empty());
}

#[test]
fn an_open_breaker_sends_to_the_people_or_to_a_fallback_where_it_is_told_to() {
    let mut yard = Yard::with_breaker(WhenOpen::DeadLetter);
    yard.trip();
    let Answer::Dead(task) = yard.come("a-4", RETRY) else { panic!("alive") };
    assert_eq!(task.state.dead_reason, Some(DeadReason::CircuitOpen));
    let mut yard = Yard::with_breaker(WhenOpen::Fallback);
    yard.trip();
    let attempts = yard.desk.attempts.len();
    let Answer::Tripped { task, by } = yard.come("a-4", RETRY) else { panic!("not told") };
    assert_eq!((by.as_str(), task.state.status), ("breaker/b/label.shop=a", Status::RetryWaiting));
    assert!(task.state.wake_at.is_some_and(|at| at > yard.desk.now), "an alarm, should the worker die now");
    let result = TaskResult { media_type: "application/json".into(), body: b"1".to_vec(), truncated: false };
    let degraded = Degraded { by: "default".into(), result };
    let ending = Ending::Degraded { degraded, failure: Failure::new("circuit_open", "b is open") };
    let answer = yard.desk.apply(Command::Intercept { id: "a-4".into(), stamp: RETRY, ending });
    assert!(matches!(answer, Answer::Degraded(_)));
    let row = yard.desk.row_of("a-4");
    assert_eq!((row.status, row.degraded.as_deref()), (Status::Succeeded, Some("default")));
    assert_eq!(yard.desk.attempts.len(), attempts, "no attempt");
}

#[test]
fn waiting_for_a_breaker_ends_at_park_max_and_counts_from_the_first_time() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    yard.trip();
    held_by(&yard.come("a-4", Stamp::FIRST));
    held_by(&yard.come("a-5", Stamp::FIRST));
    let end = yard.desk.now + 60 * MINUTE;
    assert_eq!(yard.desk.row_of("a-4").wake_at, Some(end));
    yard.pass(30 * MINUTE);
    assert!(runs(&yard.admit("a-5")), "the probe");
    held_by(&yard.admit("a-4"));
    assert_eq!(yard.desk.row_of("a-4").wake_at, Some(end));
    yard.desk.now = end;
    let answer = yard.desk.apply(Command::Wake { id: "a-4".into(), stamp: Stamp::FIRST, wake_at: end });
    assert!(matches!(answer, Answer::Dead(_)), "{answer:?}");
    assert_eq!(yard.desk.row_of("a-4").dead_reason, Some(DeadReason::CircuitOpen));
}

#[test]
fn a_retry_after_holds_its_siblings_and_lets_them_back_in_groups() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    assert!(runs(&yard.come("a-1", Stamp::FIRST)));
    yard.settle_with("a-1", |settlement| {
        settlement.hold_ms = Some(30 * SECOND);
        settlement.decision = Decision::Retry {
            delay_ms: 30 * SECOND,
            reason: "Retry-After".into(),
            on_rung: false,
            by_handler: false,
            failure: Failure::new(class::RATE_LIMITED, "slow down"),
        };
    });
    for id in ["a-2", "a-3", "a-4", "a-5"] {
        assert_eq!(held_by(&yard.come(id, Stamp::FIRST)), "hold/retry-after/label.shop=a");
    }
    assert!(runs(&yard.come("b-1", Stamp::FIRST)));
    yard.pass(30 * SECOND);
    assert!(runs(&yard.admit("a-2")));
    held_by(&yard.admit("a-3"));
    yard.pass(2 * SECOND);
    assert!(runs(&yard.admit("a-3")) && runs(&yard.admit("a-4")));
}

#[test]
fn a_persons_word_holds_until_a_person_takes_it_back() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    let key = "breaker/b/label.shop=a";
    let word =
        |yard: &Yard, open| PersonsWord { open, by: "mei".into(), reason: Some("locked".into()), at: yard.desk.now };
    let open = Command::Breaker { key: key.into(), word: word(&yard, true) };
    assert_eq!(yard.desk.apply(open), Answer::Done);
    held_by(&yard.come("a-1", Stamp::FIRST));
    yard.pass(24 * 60 * MINUTE);
    held_by(&yard.come("a-2", Stamp::FIRST));
    let close = Command::Breaker { key: key.into(), word: word(&yard, false) };
    assert_eq!(yard.desk.apply(close), Answer::Done);
    assert!(runs(&yard.admit("a-1")));
    assert_eq!(yard.breaker().word.as_ref().and_then(|word| word.reason.as_deref()), Some("locked"));
}

#[test]
fn retries_are_at_most_a_share_of_first_attempts_but_never_fewer_than_the_floor() {
    let kind = LimitKind::Ratio { permille: 200, window_ms: MINUTE, floor: Rate { count: 2, per_ms: MINUTE } };
    let limits = vec![LimitRule { name: "ratio".into(), per: per(&[]), calls: false, kind }];
    let mut yard = Yard::new(Gates { limits, ..Gates::default() });
    assert!(runs(&yard.come("a-1", RETRY)) && runs(&yard.come("a-2", RETRY)), "the floor");
    assert_eq!(held_by(&yard.come("a-3", RETRY)), "limit/ratio");
    for n in 0..20 {
        assert!(runs(&yard.come(&format!("a-first-{n}"), Stamp::FIRST)), "first attempts are never stopped by it");
    }
    assert!(runs(&yard.admit("a-3")), "a fifth of twenty is four");
}

#[test]
fn an_attempt_says_which_gate_held_it_and_for_how_long() {
    let mut yard = Yard::new(Gates { limits: vec![limit("all", &[])], ..Gates::default() });
    assert!(runs(&yard.come("a-1", RETRY)));
    held_by(&yard.come("a-2", RETRY));
    yard.pass(5 * SECOND);
    assert!(runs(&yard.admit("a-2")));
    yard.succeed("a-2");
    let attempt = yard.desk.attempts.iter().find(|attempt| attempt.task_id == "a-2").expect("recorded");
    assert_eq!(attempt.delay_reason.as_deref(), Some("held by limit/all until 5000 ms after due"));
}

#[test]
fn a_breaker_whose_dimensions_have_changed_is_another_gate_and_lets_go_of_what_it_held() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    yard.trip();
    held_by(&yard.come("a-4", Stamp::FIRST));
    let changed = BreakerRule { per: per(&["type", "label.shop"]), ..breaker(WhenOpen::Park) };
    yard.gates = Arc::new(Gates { breakers: vec![changed], ..Gates::default() });
    assert!(runs(&yard.admit("a-4")));
}

#[test]
fn a_retry_after_holds_others_for_a_day_at_most_and_one_from_the_future_holds_nobody() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    assert!(runs(&yard.come("a-1", Stamp::FIRST)));
    yard.settle_with("a-1", |settlement| settlement.hold_ms = Some(3650 * 24 * 60 * MINUTE));
    held_by(&yard.come("a-2", Stamp::FIRST));
    yard.pass(24 * 60 * MINUTE);
    assert!(runs(&yard.admit("a-2")));
    yard.settle_with("a-2", |settlement| settlement.hold_ms = Some(MINUTE));
    yard.desk.now -= 60 * MINUTE;
    assert!(runs(&yard.come("a-3", Stamp::FIRST)), "the clock was set back");
}

#[test]
fn whoever_waits_behind_others_for_a_breaker_waits_no_longer_than_its_park_max() {
    let mut yard = Yard::with_breaker(WhenOpen::Park);
    yard.trip();
    held_by(&yard.come("a-4", Stamp::FIRST));
    yard.pass(MINUTE);
    held_by(&yard.come("a-5", Stamp::FIRST));
    assert_eq!(
        yard.desk.row_of("a-5").park_until,
        Some(yard.desk.now + 60 * MINUTE),
        "a probe place is free, but a-4 is first"
    );
}

#[test]
fn a_held_row_that_is_not_due_any_more_is_let_go_until_it_is() {
    let mut yard = Yard::new(Gates { limits: vec![limit("all", &[])], ..Gates::default() });
    assert!(runs(&yard.come("a-1", RETRY)));
    held_by(&yard.come("a-2", RETRY));
    let due = yard.desk.row_of("a-2").due_at;
    yard.desk.now -= MINUTE;
    assert_eq!(yard.admit("a-2"), Answer::Early);
    assert_eq!((yard.desk.row_of("a-2").held_by.clone(), yard.desk.row_of("a-2").wake_at), (None, Some(due)));
}

#[test]
fn a_worker_that_does_not_run_a_type_leaves_what_a_gate_holds_of_it_to_others() {
    let mut yard = Yard::new(Gates { limits: vec![limit("all", &[])], ..Gates::default() });
    assert!(runs(&yard.come("a-1", RETRY)));
    held_by(&yard.come("a-2", RETRY));
    yard.pass(SECOND);
    let serves = Some([TopicPattern::new("something.else").expect("a pattern")].into());
    let claimant = Claimant { serves, ..yard.claimant() };
    let before = yard.desk.row_of("a-2").clone();
    let admit = Command::Admit { id: "a-2".into(), stamp: RETRY, claimant };
    assert_eq!(yard.desk.apply(admit), Answer::Held { by: "limit/all".into() });
    assert_eq!(*yard.desk.row_of("a-2"), before);
}
