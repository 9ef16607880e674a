//! What is worth an alert.

use std::collections::BTreeMap;

use super::{ALERT_TYPE, Alert, AlertKind};
use crate::dead_letter::replay::ReplayNews;
use crate::gate::Turn;
use crate::store::LetterGroup;
use crate::task::{DeadReason, Millis, Task};
use crate::telemetry::Event;

/// Letters of the running and the last hour together that are too few for a surge.
const FEW: i64 = 20;
/// A surge is so many times the pace of the hours before.
const TIMES: i64 = 5;
/// Alarms later than this are late for people.
const LATE_MS: Millis = 60_000;
/// A copy that was wanted for so long and is not confirmed.
pub const COPY_PATIENCE_MS: Millis = 10 * 60_000;

/// The alert that an event is worth.
pub fn of_event(event: &Event<'_>, now: Millis) -> Option<Alert> {
    let alert = |kind, subject: &str, summary: String, look: String| {
        Some(Alert { kind, subject: subject.to_owned(), summary, look, at: now })
    };
    match event {
        Event::BreakerTurned { breaker, turn: Turn::Opened } => alert(
            AlertKind::BreakerOpened,
            breaker,
            format!("{breaker} opened: no attempt of its key runs until a probe succeeds"),
            "redeliver breaker list".into(),
        ),
        Event::ConfigRefused { problems } => alert(
            AlertKind::ConfigRefused,
            problems,
            format!(
                "a changed configuration was refused, the old one stays: {}",
                problems.lines().next().unwrap_or("")
            ),
            "redeliver config check".into(),
        ),
        Event::Replay { job, what: ReplayNews::Stopped(why) } => alert(
            AlertKind::ReplayStopped,
            &job.to_string(),
            format!("replay job {job} stopped itself: {why}"),
            format!("redeliver replay show {job}"),
        ),
        Event::Settled { task, .. } | Event::Died { task, .. } => of_death(task, now),
        _ => None,
    }
}

fn of_death(task: &Task, now: Millis) -> Option<Alert> {
    let reason = task.state.dead_reason?;
    if task.spec.task_type == ALERT_TYPE {
        return given_up(task, now);
    }
    if reason != DeadReason::PermanentError {
        return None;
    }
    let failure = task.state.failure.as_ref()?;
    Some(Alert {
        kind: AlertKind::PermanentError,
        subject: failure.fingerprint.clone(),
        summary: format!(
            "{} fails with {}{} and no retry will cure it",
            task.spec.task_type,
            failure.class,
            failure.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default()
        ),
        look: format!("redeliver dlq groups --fingerprint {}", failure.fingerprint),
        at: now,
    })
}

/// An alert that reached nobody is told to the others; one about that is not, or two broken webhooks would never come to rest.
fn given_up(task: &Task, now: Millis) -> Option<Alert> {
    let sent: super::Sent = serde_json::from_str(&task.spec.payload).ok()?;
    if sent.alert.kind == AlertKind::WebhookGivenUp {
        return None;
    }
    Some(Alert {
        kind: AlertKind::WebhookGivenUp,
        subject: sent.webhook.clone(),
        summary: format!("alerts do not reach the webhook {:?} any more", sent.webhook),
        look: format!("redeliver dlq list --type {ALERT_TYPE}"),
        at: now,
    })
}

/// What a look at the store found.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// The dead letters by type.
    pub types: Vec<LetterGroup>,
    /// How late the earliest alarm is.
    pub lag_ms: Millis,
    /// Workers by the digest of their rules.
    pub digests: BTreeMap<String, usize>,
    /// Queues with a copy that has been wanted for longer than [`COPY_PATIENCE_MS`].
    pub stuck_copies: Vec<String>,
}

/// The alerts that a look is worth.
pub fn judge(found: &Findings, now: Millis) -> Vec<Alert> {
    let mut alerts = Vec::new();
    for group in &found.types {
        let Some(task_type) = group.key.as_deref().filter(|task_type| *task_type != ALERT_TYPE) else { continue };
        if let Some((recent, before)) = surge(&group.hourly) {
            alerts.push(Alert {
                kind: AlertKind::DeadLetterSurge,
                subject: task_type.to_owned(),
                summary: format!(
                    "{recent} tasks of {task_type} died within two hours; the day before it was {before} in two hours"
                ),
                look: format!("redeliver dlq groups --type {task_type}"),
                at: now,
            });
        }
    }
    if found.lag_ms > LATE_MS {
        alerts.push(Alert {
            kind: AlertKind::SchedulerLate,
            subject: String::new(),
            summary: format!("alarms are {} s late: retries are not running", found.lag_ms / 1000),
            look: "redeliver doctor".into(),
            at: now,
        });
    }
    if found.digests.len() > 1 {
        let counts: Vec<String> = found
            .digests
            .iter()
            .map(|(digest, count)| format!("{count} × {}", &digest[..digest.len().min(12)]))
            .collect();
        alerts.push(Alert {
            kind: AlertKind::RulesDiffer,
            subject: String::new(),
            summary: format!("workers run different rules: {}", counts.join(", ")),
            look: "redeliver policy history".into(),
            at: now,
        });
    }
    for queue in &found.stuck_copies {
        alerts.push(Alert {
            kind: AlertKind::CopiesFailing,
            subject: queue.clone(),
            summary: format!(
                "copies of dead letters do not get into the DLQ of {queue}; the letters are safe in the store"
            ),
            look: "redeliver doctor".into(),
            at: now,
        });
    }
    alerts
}

/// Letters of the running and the last hour, and the average of two hours before, when that is a surge: at least [`FEW`] and more than
/// [`TIMES`] the usual pace. A type that never died is compared with none. Two hours, because the running one has only begun.
fn surge(hourly: &[i64]) -> Option<(i64, i64)> {
    let (before, recent) = hourly.split_at(hourly.len().checked_sub(2)?);
    let recent: i64 = recent.iter().sum();
    let hours = i64::try_from(before.len()).unwrap_or(i64::MAX).max(1);
    let usual = before.iter().sum::<i64>() * 2 / hours;
    (recent >= FEW && recent > TIMES * usual).then_some((recent, usual))
}
