//! The circuit breaker of one key: `(state, event, now) → state`.
//!
//! Every change of phase begins a new epoch, and a claim takes the epoch along: what began before the breaker tripped says
//! nothing about what came after, so only outcomes of the present epoch count. Places for probes belong to claims, by task and
//! fence, and every way out of a claim gives its place back; nothing has to remember to.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::task::Millis;

use super::limit::Window;
use super::ramp::{Ramp, seed};
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
    /// The return of what waited.
    pub ramp: Option<Ramp>,
    /// Why it tripped, for people.
    pub because: Option<String>,
    /// A person's word.
    pub word: Option<PersonsWord>,
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
    pub fn look(&self, rule: &BreakerRule, key: &str, now: Millis) -> Look {
        if self.is_forced_open() {
            return Look::Tripped { when_open: rule.when_open, opens_at: None };
        }
        match self.phase {
            Phase::Closed => match self.ramp.map(|ramp| (ramp, ramp.room(rule.return_step_ms, seed(key), now))) {
                Some((ramp, Some(0))) => {
                    Look::Shut { opens_at: Some(ramp.opens_at(rule.return_step_ms, seed(key), now)) }
                }
                Some((_, Some(room))) => Look::Open { room: Some(room) },
                _ => Look::Open { room: None },
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

    /// An attempt starts; only after [`Breaker::look`] said that it may. Whether it is a probe.
    pub fn take(&mut self, rule: &BreakerRule, key: &str, place: Place, now: Millis) -> bool {
        match self.phase {
            Phase::Closed => {
                if let Some(ramp) = &mut self.ramp {
                    ramp.started += 1;
                    if ramp.room(rule.return_step_ms, seed(key), now).is_none() {
                        self.ramp = None;
                    }
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
        self.leave(place);
        if epoch != self.epoch {
            return None;
        }
        match (self.phase, evidence) {
            (_, Evidence::Nothing) | (Phase::Open { .. }, _) => None,
            (Phase::Closed, Evidence::Success) => {
                (self.in_a_row, self.same, self.fingerprint) = (0, 0, None);
                if let Some(rate) = rule.failure_rate {
                    self.window.add(false, rate.window_ms, now);
                }
                None
            }
            (Phase::Closed, Evidence::Failure { fingerprint }) => {
                let because = self.count_failure(rule, fingerprint, now)?;
                self.because = Some(because);
                self.open(rule, now);
                Some(Turn::Opened)
            }
            (Phase::HalfOpen, Evidence::Success) => {
                self.close(now);
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
    }

    /// A person opens or closes it.
    pub fn obey(&mut self, word: PersonsWord) {
        let at = word.at;
        if word.open {
            self.turn_to(Phase::Open { since: at, until: Millis::MAX });
            self.ramp = None;
        } else {
            self.close(at);
        }
        self.word = Some(word);
    }

    /// Whether a person opened it and nobody has closed it.
    pub fn is_forced_open(&self) -> bool {
        self.word.as_ref().is_some_and(|word| word.open)
    }

    /// Whether a success would change anything.
    pub fn minds_success(&self, rule: &BreakerRule) -> bool {
        self.phase != Phase::Closed || self.in_a_row > 0 || rule.failure_rate.is_some()
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
        self.ramp = None;
    }

    fn close(&mut self, now: Millis) {
        self.turn_to(Phase::Closed);
        self.failed_probes = 0;
        self.because = None;
        self.ramp = Some(Ramp::new(now));
    }

    /// Whatever ran or was counted before belongs to another epoch.
    fn turn_to(&mut self, phase: Phase) {
        self.epoch += 1;
        self.phase = phase;
        (self.in_a_row, self.same, self.fingerprint) = (0, 0, None);
        self.window = Window::default();
        self.probes.clear();
    }
}
