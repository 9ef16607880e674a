//! What a seed came to: a line of JSON for `tests/chaos/run`, which sums them up, and words for whoever reads along.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::checks::{Kind, Verdict};
use crate::evidence::{AttemptRow, Evidence};
use crate::faults::Caused;
use crate::plan::Plan;
use crate::work::{Book, Deeds};

/// See the module.
#[derive(Debug)]
pub struct Report {
    pub plan: Plan,
    pub caused: Vec<Caused>,
    pub book: Book,
    pub deeds: Deeds,
    pub evidence: Evidence,
    pub verdict: Verdict,
    /// From the end of the faults until everything was at rest.
    pub rested_after: Duration,
    /// How often a worker said that the store's disk is full.
    pub full_disks: usize,
    /// How often a worker could not start because store or broker was away.
    pub failed_starts: usize,
    pub took: Duration,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn passed(&self) -> bool {
        self.verdict.violations.is_empty()
    }

    /// Its line.
    pub fn json(&self) -> Value {
        let faults: Vec<Value> = self
            .caused
            .iter()
            .map(|fault| {
                json!({
                    "kind": fault.kind,
                    "caused": fault.caused,
                    "lasted_ms": fault.ended_at - fault.began_at,
                    "recovered_ms": recovered_ms(fault, &self.evidence.attempts),
                })
            })
            .collect();
        let count = |kind: Kind| self.verdict.count(kind);
        let violations: Vec<String> =
            self.verdict.violations.iter().map(|found| format!("{:?}: {}", found.kind, found.what)).collect();
        json!({
            "seed": self.plan.seed,
            "length_ms": self.plan.length,
            "passed": self.passed(),
            "tasks": self.evidence.tasks.len(),
            "attempts": self.evidence.attempts.len(),
            "calls": self.evidence.calls.len(),
            "ended": self.ended(),
            "lost": count(Kind::Lost),
            "stuck": count(Kind::Stuck),
            "over": count(Kind::Over),
            "duplicates": self.verdict.duplicates,
            "published": self.book.published,
            "unconfirmed": self.book.unconfirmed,
            "sent_again": self.book.sent_again,
            "replayed": self.deeds.replayed,
            "forged": self.deeds.forged,
            "full_disks": self.full_disks,
            "failed_starts": self.failed_starts,
            "faults": faults,
            "rested_ms": u64::try_from(self.rested_after.as_millis()).unwrap_or(u64::MAX),
            "took_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
            "violations": violations,
        })
    }

    /// Tasks by how they ended.
    fn ended(&self) -> BTreeMap<String, usize> {
        let mut ended = BTreeMap::new();
        for task in &self.evidence.tasks {
            let how = match (&task.degraded, &task.dead_reason) {
                (Some(_), _) => "degraded".to_owned(),
                (None, Some(reason)) => format!("dead, {reason}"),
                (None, None) => task.status.clone(),
            };
            *ended.entry(how).or_default() += 1;
        }
        ended
    }
}

/// How long after the end of a fault the first attempt was settled that began after it, by the worker it was about if
/// it was about one; `None` when none was.
pub fn recovered_ms(fault: &Caused, attempts: &[AttemptRow]) -> Option<i64> {
    let by_it = |attempt: &&AttemptRow| match fault.process {
        Some(process) => attempt.worker.contains(&format!("-{process}-")),
        None => true,
    };
    let settled = attempts
        .iter()
        .filter(|attempt| attempt.started_at >= fault.ended_at && attempt.class.as_deref() != Some("worker_lost"))
        .filter(by_it);
    settled.map(|attempt| attempt.ended_at).min().map(|at| at - fault.ended_at)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caused = self.caused.iter().filter(|fault| fault.caused).count();
        writeln!(
            f,
            "seed {}: {} tasks, {} attempts, {} calls; {caused} faults; at rest {:.1?} after the last; {:?}; effects twice: {:?}; \
             {} published, {} tries unconfirmed, {} sent again; {} replayed",
            self.plan.seed,
            self.evidence.tasks.len(),
            self.evidence.attempts.len(),
            self.evidence.calls.len(),
            self.rested_after,
            self.ended(),
            self.verdict.duplicates,
            self.book.published,
            self.book.unconfirmed,
            self.book.sent_again,
            self.deeds.replayed,
        )?;
        if !self.passed() {
            writeln!(f, "{} VIOLATIONS", self.verdict.violations.len())?;
            for found in self.verdict.violations.iter().take(40) {
                writeln!(f, "  {:?}: {}", found.kind, found.what)?;
            }
        }
        Ok(())
    }
}
