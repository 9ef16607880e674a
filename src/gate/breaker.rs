//! The circuit breaker of one key: `(state, event, now) → state`.
//!
//! Every change of phase begins a new epoch, and a claim takes the epoch along: what began before the breaker tripped says
//! nothing about what came after, so only outcomes of the present epoch count. Places for probes belong to claims, by task and
//! fence, and every way out of a claim gives its place back; nothing has to remember to.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::task::Millis;

use super::limit::Window;
use super::{BreakerRule, Look, Place};

/// What a breaker remembers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Breaker {
    /// Grows with every change of phase.
    pub epoch: i64,
    /// Where it stands.
    pub phase: Phase,
    /// Probes that failed since it was last closed: how often the cool-down has doubled.
    pub failed_probes: u32,
    /// Failures in a row.
    pub in_a_row: i64,
    /// How many of the last ones had the same fingerprint.
    pub same: i64,
    /// That fingerprint.
    pub fingerprint: Option<String>,
    /// Attempts and failures, for a rule that asks for a rate: the first kind is successes, the second failures.
    pub window: Window,
    /// Who holds the places for probes.
    pub probes: BTreeSet<Place>,
    /// The return of what waited, from the moment it closes until nobody waits any more.
    pub back: Option<Return>,
    /// Why it tripped, for people.
    pub because: Option<String>,
    /// A person's word.
    pub word: Option<PersonsWord>,
}

/// The return of what waited for a breaker: how many may run at once.
///
/// The first probe proves that the other side answers, not how much it can take. So the number grows with every success, is
/// halved by a failure, and then grows slowly: the way in which TCP finds the capacity of a path that it knows nothing about
/// (slow start and congestion avoidance, RFC 5681), and for the same reason. A fixed pace would be too slow for one third
/// party and would knock over another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Return {
    /// How many may run at once.
    pub window: i64,
    /// Below it every success lets one more run; from there on a whole window of successes does.
    threshold: i64,
    /// Successes since the window last grew.
    successes: i64,
    /// How many failures in a row are a whole window.
    round: i64,
    /// Starts so far, and how many there were at the last halving: what started before says nothing new.
    starts: i64,
    halved_at: i64,
    /// Who runs: task, fence and number of the start.
    running: BTreeSet<(String, i64, i64)>,
}

/// So many times the failures that open a breaker otherwise open it while work returns, at most.
const MOST_ROUNDS: i64 = 4;
/// A window as large as this bounds nothing.
const WIDE: i64 = 1_024;

impl Return {
    fn new(window: i64) -> Return {
        let window = window.max(1);
        let running = BTreeSet::new();
        Return { window, threshold: WIDE, successes: 0, round: window, starts: 0, halved_at: 0, running }
    }

    fn room(&self) -> i64 {
        (self.window - i64::try_from(self.running.len()).unwrap_or(i64::MAX)).max(0)
    }

    fn start(&mut self, place: Place) {
        self.starts += 1;
        self.running.insert((place.0, place.1, self.starts));
    }

    /// Takes a claim out; its number, if it was in.
    fn end(&mut self, place: &Place) -> Option<i64> {
        let entry = self.running.iter().find(|(task, fence, _)| *task == place.0 && *fence == place.1)?.clone();
        self.running.remove(&entry);
        Some(entry.2)
    }

    fn succeeded(&mut self) {
        self.successes += 1;
        if self.window < self.threshold || self.successes >= self.window {
            self.window = (self.window + 1).min(WIDE);
            self.successes = 0;
        }
        self.round = self.window;
    }

    fn failed(&mut self, start: i64) {
        if start > self.halved_at {
            self.round = self.window;
            self.window = (self.window / 2).max(1);
            self.threshold = self.window;
            self.successes = 0;
            self.halved_at = self.starts;
        }
    }
}

/// Where a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Phase {
    /// Attempts run.
    #[default]
    Closed,
    /// None runs before `until`; from then on it counts as half open.
    Open {
        /// When it tripped.
        since: Millis,
        /// The end of the cool-down.
        until: Millis,
    },
    /// As many as there are places for probes run.
    HalfOpen,
}

/// Who last opened or closed a breaker by hand.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PersonsWord {
    /// Opened by hand: it stays open until a person closes it.
    pub open: bool,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// When.
    pub at: Millis,
}

/// What an attempt says about the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence<'a> {
    /// It works.
    Success,
    /// It does not.
    Failure {
        /// How it failed.
        fingerprint: &'a str,
    },
    /// Nothing: rate-limited, lost, given back, or a class that the rule ignores.
    Nothing,
}

/// A change of phase, for people and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// Attempts stop.
    Opened,
    /// A probe failed; the cool-down is longer now.
    Reopened,
    /// Attempts run again.
    Closed,
}

impl Breaker {
    /// Whether an attempt may start.
    pub fn look(&self, rule: &BreakerRule, now: Millis) -> Look {
        if self.is_forced_open() {
            return Look::Tripped { when_open: rule.when_open, opens_at: None };
        }
        match self.phase {
            Phase::Closed => match self.back.as_ref().map(Return::room) {
                Some(0) => Look::Shut { opens_at: None },
                room => Look::Open { room },
            },
            Phase::Open { since, until } if now < until && since <= now => {
                Look::Tripped { when_open: rule.when_open, opens_at: Some(until) }
            }
            Phase::Open { .. } | Phase::HalfOpen => {
                let room = rule.probes.saturating_sub(i64::try_from(self.probes.len()).unwrap_or(i64::MAX));
                if room > 0 {
                    Look::Open { room: Some(room) }
                } else {
                    Look::Tripped { when_open: rule.when_open, opens_at: None }
                }
            }
        }
    }

    /// An attempt starts; only after [`Breaker::look`] said that it may. `waited`: it was held. Whether it is a probe.
    pub fn take(&mut self, place: Place, waited: bool) -> bool {
        match self.phase {
            Phase::Closed => {
                // Who has not waited passes only when nobody waits: all are back.
                if !waited {
                    self.back = None;
                }
                if let Some(back) = &mut self.back {
                    back.start(place);
                }
                false
            }
            Phase::Open { .. } => {
                self.turn_to(Phase::HalfOpen);
                self.probes.insert(place);
                true
            }
            Phase::HalfOpen => {
                self.probes.insert(place);
                true
            }
        }
    }

    /// A claim of `epoch` has ended, with this evidence.
    pub fn settle(
        &mut self,
        rule: &BreakerRule,
        epoch: i64,
        place: &Place,
        evidence: Evidence<'_>,
        now: Millis,
    ) -> Option<Turn> {
        let start = self.back.as_mut().and_then(|back| back.end(place));
        self.leave(place);
        if epoch != self.epoch {
            return None;
        }
        match (self.phase, evidence) {
            (_, Evidence::Nothing) | (Phase::Open { .. }, _) => None,
            (Phase::Closed, Evidence::Success) => {
                (self.in_a_row, self.same, self.fingerprint) = (0, 0, None);
                if let Some(back) = self.back.as_mut().filter(|_| start.is_some()) {
                    back.succeeded();
                }
                if let Some(rate) = rule.failure_rate {
                    self.window.add(false, rate.window_ms, now);
                }
                None
            }
            (Phase::Closed, Evidence::Failure { fingerprint }) => {
                if let (Some(back), Some(start)) = (&mut self.back, start) {
                    back.failed(start);
                }
                let because = self.count_failure(rule, fingerprint, now)?;
                // While work returns, some failures only tell that too much ran at once; a whole window of them tells more.
                // But not more than some times what would open it otherwise: the window may have grown far beyond what runs.
                let usual = [rule.consecutive_same, rule.consecutive, rule.failure_rate.map(|rate| rate.min)];
                let most = usual.into_iter().flatten().min().unwrap_or(1).saturating_mul(MOST_ROUNDS);
                if self.back.as_ref().is_some_and(|back| self.in_a_row < back.round.min(most)) {
                    return None;
                }
                self.because = Some(because);
                self.open(rule, now);
                Some(Turn::Opened)
            }
            (Phase::HalfOpen, Evidence::Success) => {
                self.close(rule.probes);
                Some(Turn::Closed)
            }
            (Phase::HalfOpen, Evidence::Failure { .. }) => {
                self.failed_probes = self.failed_probes.saturating_add(1);
                self.open(rule, now);
                Some(Turn::Reopened)
            }
        }
    }

    /// A claim is over without evidence: its place is free.
    pub fn leave(&mut self, place: &Place) {
        self.probes.remove(place);
        if let Some(back) = &mut self.back {
            back.end(place);
        }
    }

    /// Whether a claim holds a place here.
    pub fn holds(&self, place: &Place) -> bool {
        let returns = |back: &Return| back.running.iter().any(|(task, fence, _)| (task, fence) == (&place.0, &place.1));
        self.probes.contains(place) || self.back.as_ref().is_some_and(returns)
    }

    /// A person opens or closes it.
    pub fn obey(&mut self, word: PersonsWord) {
        let at = word.at;
        if word.open {
            self.turn_to(Phase::Open { since: at, until: Millis::MAX });
        } else {
            self.close(1);
        }
        self.word = Some(word);
    }

    /// Whether a person opened it and nobody has closed it.
    pub fn is_forced_open(&self) -> bool {
        self.word.as_ref().is_some_and(|word| word.open)
    }

    /// Whether a success would change anything.
    pub fn minds_success(&self, rule: &BreakerRule) -> bool {
        self.phase != Phase::Closed || self.back.is_some() || self.in_a_row > 0 || rule.failure_rate.is_some()
    }

    /// Counts a failure while closed; the reason when it is one too many.
    fn count_failure(&mut self, rule: &BreakerRule, fingerprint: &str, now: Millis) -> Option<String> {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.same = if self.fingerprint.as_deref() == Some(fingerprint) { self.same.saturating_add(1) } else { 1 };
        self.fingerprint = Some(fingerprint.to_owned());
        if let Some(most) = rule.consecutive_same
            && self.same >= most
        {
            return Some(format!("{} equal failures in a row", self.same));
        }
        if let Some(most) = rule.consecutive
            && self.in_a_row >= most
        {
            return Some(format!("{} failures in a row", self.in_a_row));
        }
        let rate = rule.failure_rate?;
        self.window.add(true, rate.window_ms, now);
        let (successes, failures) = self.window.counts(rate.window_ms, now);
        let all = successes + failures;
        (all >= rate.min && failures.saturating_mul(1000) >= all.saturating_mul(rate.permille))
            .then(|| format!("{failures} of the last {all} attempts failed"))
    }

    fn open(&mut self, rule: &BreakerRule, now: Millis) {
        let doublings = self.failed_probes.min(40);
        let cool_down =
            rule.open_for_ms.saturating_mul(1_i64 << doublings).min(rule.open_for_max_ms.max(rule.open_for_ms));
        self.turn_to(Phase::Open { since: now, until: now.saturating_add(cool_down) });
    }

    fn close(&mut self, window: i64) {
        self.turn_to(Phase::Closed);
        self.failed_probes = 0;
        self.because = None;
        self.back = Some(Return::new(window));
    }

    /// Whatever ran or was counted before belongs to another epoch.
    fn turn_to(&mut self, phase: Phase) {
        self.epoch += 1;
        self.phase = phase;
        (self.in_a_row, self.same, self.fingerprint) = (0, 0, None);
        self.window = Window::default();
        self.probes.clear();
        self.back = None;
    }
}
