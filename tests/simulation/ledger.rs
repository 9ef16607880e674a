//! What was committed, as it was committed: each promise that speaks of a single transition is held against it at once.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;
use redeliver::gate::{Breaker, GateState, LimitKind, Phase, RuleOf, Subject, pause_stops};
use redeliver::handler::AttemptContext;
use redeliver::store::Store;
use redeliver::task::{Answer, AttemptOutcome, Claimant, Command, Millis, Stamp, Task};

use crate::setting::LEASE_MS;
use crate::world::World;

/// A limit's late look still takes what fell due in so many milliseconds.
const LATE_MS: f64 = 50.0;

type Run = (String, Stamp);

/// A claim that is not settled.
struct Live {
    fence: i64,
    /// The caps it went through.
    caps: Vec<String>,
    /// Nobody may call it lost before.
    lease_ends: Millis,
}

#[derive(Default)]
pub struct Ledger {
    /// The store answers nobody until then.
    away_until: Millis,
    live: BTreeMap<String, Live>,
    fences: BTreeMap<String, i64>,
    /// How often a handler was called with a stamp, and with a fence.
    calls: BTreeMap<Run, i64>,
    called_fences: BTreeSet<(String, i64)>,
    released: BTreeMap<Run, i64>,
    settled: BTreeMap<Run, AttemptOutcome>,
    succeeded: BTreeSet<String>,
    /// Claims that a rate limit has counted, by its key: when, and the limit's interval and burst.
    limited: BTreeMap<String, Vec<(Millis, f64, i64)>>,
    /// The largest budget that each policy ever had.
    pub budgets: BTreeMap<String, i64>,
    /// As the last commit left them.
    breakers: BTreeMap<String, Breaker>,
    /// Whether wall and monotonic clock ever went apart.
    pub clock_jumped: bool,
    /// The message ids of copies that the broker has taken.
    pub copies: BTreeSet<String>,
}

impl Ledger {
    pub fn store_is_away(&self, elapsed: Millis) -> bool {
        elapsed < self.away_until
    }

    pub fn set_store_away(&mut self, until: Millis) {
        self.away_until = until;
    }

    /// A transaction.
    pub fn committed(&mut self, world: &World, who: &str, commands: &[Command], answers: &[Answer], now: Millis) {
        for (command, answer) in commands.iter().zip(answers) {
            match (command, answer) {
                (
                    Command::Settle { id, fence, .. }
                    | Command::Lost { id, fence, .. }
                    | Command::Release { id, fence, .. },
                    Answer::Settled(change),
                ) => {
                    let attempt = &change.attempt;
                    world.tell(who, attempt.outcome.as_str(), id, *fence);
                    if attempt.fence != *fence {
                        world.wrong(format!("{id}: fence {fence} has settled the claim {}", attempt.fence));
                    }
                    let live = self.live.remove(id);
                    if live.as_ref().map(|live| live.fence) != Some(attempt.fence) {
                        world.wrong(format!("{id}: claim {} was settled and was not live", attempt.fence));
                    }
                    let in_time = live.is_some_and(|live| live.lease_ends > now);
                    if in_time && matches!(command, Command::Lost { .. }) {
                        world.wrong(format!("{id}: claim {} was called lost within its lease", attempt.fence));
                    }
                    let budget = attempt.policy.as_ref().and_then(|policy| self.budgets.get(policy)).copied();
                    if attempt.outcome == AttemptOutcome::Retried && budget.is_none_or(|most| attempt.number > most) {
                        world.wrong(format!("{id}: retry {} of {budget:?} allowed ones", attempt.number));
                    }
                    let stamp = Stamp { generation: attempt.generation, retry_count: attempt.number - 1 };
                    self.ended(world, (id.clone(), stamp), attempt.outcome);
                }
                (Command::Poison { id, .. }, Answer::Dead(_)) => _ = self.live.remove(id),
                (Command::Submit(new), Answer::Run(task)) => {
                    self.claimed(world, who, task, (Stamp::FIRST, new.claimant.as_ref()), now);
                }
                (Command::Claim { stamp, claimant, .. }, Answer::Run(task)) => {
                    self.claimed(world, who, task, (*stamp, claimant.as_ref()), now);
                }
                (Command::Admit { stamp, claimant, .. }, Answer::Run(task)) => {
                    self.claimed(world, who, task, (*stamp, Some(claimant)), now);
                }
                (Command::Heartbeat { id, fence }, Answer::Done) => match self.live.get_mut(id) {
                    Some(live) if live.fence == *fence => live.lease_ends = now + LEASE_MS,
                    _ => world.wrong(format!("{id}: fence {fence} has renewed a lease and was not live")),
                },
                (Command::CopyConfirmed { id, generation }, Answer::Done) => {
                    let copy = format!("{id}:{generation}");
                    if !self.copies.contains(&copy) {
                        world.wrong(format!("the copy {copy} is taken for present and was never taken by the DLQ"));
                    }
                }
                (Command::Heartbeat { .. } | Command::Mark { .. }, _) => {}
                (command, answer) => {
                    world.tell_more(who, "commits", || format!("{} -> {}", short(command), short(answer)));
                }
            }
        }
        let gates = world.store.gates().now_or_never().and_then(Result::ok).unwrap_or_default().into_iter();
        self.breakers = gates
            .filter_map(
                |(key, state)| if let GateState::Breaker(breaker) = state { Some((key, breaker)) } else { None },
            )
            .collect();
    }

    fn ended(&mut self, world: &World, run: Run, outcome: AttemptOutcome) {
        if outcome == AttemptOutcome::Released {
            *self.released.entry(run).or_insert(0) += 1;
            return;
        }
        if self.budgets.values().all(|most| run.1.retry_count > *most) {
            world.wrong(format!("{} {}: more attempts than any policy allows", run.0, run.1));
        }
        if outcome == AttemptOutcome::Succeeded && !self.succeeded.insert(run.0.clone()) {
            world.wrong(format!("{} has succeeded twice", run.0));
        }
        if let Some(before) = self.settled.insert(run.clone(), outcome) {
            world.wrong(format!("{} {}: settled as {outcome:?} after {before:?}", run.0, run.1));
        }
    }

    fn claimed(
        &mut self,
        world: &World,
        who: &str,
        task: &Task,
        (asked, claimant): (Stamp, Option<&Claimant>),
        now: Millis,
    ) {
        let (id, state) = (task.id(), &task.state);
        world.tell(who, "claims", &format!("{id} {}", state.stamp), state.fence);
        if asked != state.stamp {
            world.wrong(format!("{id} {} was started by a message with {asked}", state.stamp));
        }
        if self.fences.insert(id.to_owned(), state.fence).is_some_and(|before| before >= state.fence) {
            world.wrong(format!("{id}: fence {} is not newer than the one before", state.fence));
        }
        if self.succeeded.contains(id) {
            world.wrong(format!("{id} was claimed after it had succeeded"));
        }
        if state.due_at > now || state.deadline.is_some_and(|deadline| deadline < now) {
            world.wrong(format!("{id} was claimed before its time or after its deadline"));
        }
        let pauses = world.store.pauses().now_or_never().and_then(Result::ok).unwrap_or_default();
        if pauses.iter().any(|pause| pause_stops(&pause.key, task.queue(), &task.spec.task_type)) {
            world.wrong(format!("{id} was claimed through a pause"));
        }
        let Some(claimant) = claimant else { return world.wrong(format!("{id} was claimed by nobody")) };
        let subject = Subject { task_type: &task.spec.task_type, queue: task.queue(), labels: &task.spec.labels };
        let mut caps = Vec::new();
        for gate in claimant.gates.way(subject, state.stamp.retry_count > 0).gates {
            match gate.rule {
                RuleOf::Cap(rule) => {
                    let inside = self.live.values().filter(|live| live.caps.contains(&gate.key)).count();
                    if i64::try_from(inside).unwrap_or(i64::MAX) >= rule.max {
                        world.wrong(format!("{id} is one too many in {}", gate.key));
                    }
                    caps.push(gate.key);
                }
                RuleOf::Limit(rule) => {
                    if let LimitKind::Rate { rate, burst } = rule.kind {
                        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                        let interval = rate.per_ms as f64 / rate.count as f64;
                        self.limited.entry(gate.key).or_default().push((world.elapsed(), interval, burst));
                    }
                }
                RuleOf::Breaker(rule) => {
                    let before = self.breakers.get(&gate.key);
                    if before.is_some_and(|breaker| is_shut(breaker, now)) {
                        world.wrong(format!("{id} was claimed through {}, which is {before:?}", gate.key));
                    }
                    if let Some(GateState::Breaker(breaker)) = world.gate(&gate.key)
                        && i64::try_from(breaker.probes.len()).unwrap_or(i64::MAX) > rule.probes
                    {
                        world.wrong(format!("{id} is one probe too many: {breaker:?}"));
                    }
                }
                RuleOf::Hold => {
                    if let Some(GateState::Hold { since, until, .. }) = world.gate(&gate.key)
                        && (since..until).contains(&now)
                    {
                        world.wrong(format!("{id} was claimed through {}, which holds until {until}", gate.key));
                    }
                }
            }
        }
        let live = Live { fence: state.fence, caps, lease_ends: now + LEASE_MS };
        if self.live.insert(id.to_owned(), live).is_some() {
            world.wrong(format!("{id}: claimed while another claim was live"));
        }
    }

    /// A handler is called.
    pub fn called(&mut self, world: &World, who: &str, attempt: &AttemptContext) {
        let stamp = Stamp { generation: attempt.generation, retry_count: attempt.retry_count };
        let run = (attempt.task.id.clone(), stamp);
        world.tell(who, "runs", &format!("{} {stamp}", run.0), attempt.fence);
        if !self.called_fences.insert((run.0.clone(), attempt.fence)) {
            world.wrong(format!("{}: called twice for one claim", run.0));
        }
        let calls = self.calls.entry(run.clone()).or_insert(0);
        *calls += 1;
        // A run that was given back may be repeated; whatever else stops one spends its stamp.
        if *calls > 1 + self.released.get(&run).copied().unwrap_or(0) {
            world.wrong(format!("{} {stamp}: run {calls} times", run.0));
        }
    }

    /// Whether some stretch of time saw more claims than a limit lets through. By the monotonic clock, so only where the wall clock was
    /// not set.
    pub fn check_limits(&self, world: &World) {
        if self.clock_jumped {
            return;
        }
        for (key, claims) in &self.limited {
            for (first, (began, interval, burst)) in claims.iter().enumerate() {
                let mut largest = *burst;
                for (last, (ended, other, burst)) in claims.iter().enumerate().skip(first) {
                    if (other - interval).abs() > f64::EPSILON {
                        break;
                    }
                    largest = largest.max(*burst);
                    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                    let (number, length) = ((last - first + 1) as f64, (ended - began) as f64);
                    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                    let allowed = largest as f64 + (length + LATE_MS) / interval + 1e-9;
                    if number > allowed {
                        world.wrong(format!("{key}: {number} claims in {length} ms, {allowed:.2} are allowed"));
                        return;
                    }
                }
            }
        }
    }

    /// Claims that are not settled.
    pub fn still_live(&self) -> Vec<String> {
        self.live.keys().cloned().collect()
    }
}

/// Whether a breaker lets nobody through, by its words alone. One from the future was opened before the clock was set back.
fn is_shut(breaker: &Breaker, now: Millis) -> bool {
    breaker.is_forced_open() || matches!(breaker.phase, Phase::Open { since, until } if (since..until).contains(&now))
}

/// The beginning of what something looks like.
fn short(what: &impl std::fmt::Debug) -> String {
    let text = format!("{what:?}");
    let mut end = text.len().min(260);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
