//! Tells the demo's story: what happened, and the first time each thing happens, what it teaches.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::task::{Attempt, AttemptOutcome, Millis, Task};
use crate::telemetry::{Event, Observer};

/// How many successes at first try are told one by one.
const TOLD_SUCCESSES: usize = 3;

/// Writes live lines to stderr and counts for the summary.
#[derive(Debug)]
pub struct Narrator {
    started: Instant,
    minute_ms: Millis,
    colour: bool,
    quiet: bool,
    told: Mutex<Told>,
}

/// What the summary needs.
#[derive(Debug, Default, Clone)]
pub struct Told {
    /// Attempts that were recorded.
    pub attempts: u64,
    /// Attempts that were followed by another.
    pub retries: u64,
    /// Messages that started nothing.
    pub stale_dropped: u64,
    /// Tasks that succeeded, by the attempt that did it.
    pub succeeded_on: BTreeMap<i64, u64>,
    /// Dead tasks by reason.
    pub dead: BTreeMap<&'static str, u64>,
    lessons: BTreeSet<&'static str>,
    first_try_told: usize,
}

#[derive(Clone, Copy)]
enum Ink {
    Good,
    Wait,
    Bad,
    Note,
}

impl Narrator {
    /// A narrator for a demo in which a minute lasts `minute_ms`.
    pub fn new(minute_ms: Millis, colour: bool, quiet: bool) -> Narrator {
        Narrator { started: Instant::now(), minute_ms, colour, quiet, told: Mutex::default() }
    }

    /// What was counted so far.
    pub fn told(&self) -> Told {
        self.lock().clone()
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// A line of its own, outside the events.
    pub fn say(&self, text: &str) {
        self.line(Ink::Note, "·", text);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, ink: Ink, sign: &str, text: &str) {
        if self.quiet {
            return;
        }
        let code = match ink {
            Ink::Good => "32",
            Ink::Wait => "33",
            Ink::Bad => "31",
            Ink::Note => "36",
        };
        let seconds = self.seconds();
        let line = if self.colour {
            format!("\x1b[2m{seconds:6.1}s\x1b[0m \x1b[{code}m{sign} {text}\x1b[0m\n")
        } else {
            format!("{seconds:6.1}s {sign} {text}\n")
        };
        // A reader who has gone away does not stop the demo.
        if std::io::stderr().lock().write_all(line.as_bytes()).is_err() {
            tracing::trace!("stderr is closed");
        }
    }

    fn teach(&self, told: &mut Told, lesson: &'static str) {
        if told.lessons.insert(lesson) {
            self.line(Ink::Note, " ", &format!("  └ {lesson}"));
        }
    }

    /// `15 min` for 15 of the demo's minutes, seconds below one.
    fn length(&self, ms: Millis) -> String {
        if ms % self.minute_ms == 0 && ms >= self.minute_ms * 5 {
            format!("{} min (here {:.1} s)", ms / self.minute_ms, seconds(ms))
        } else {
            format!("{:.1} s", seconds(ms))
        }
    }

    fn settled(&self, task: &Task, attempt: &Attempt) {
        let mut told = self.lock();
        if attempt.outcome != AttemptOutcome::Released {
            told.attempts += 1;
        }
        let who = format!("{:<15} {:<5}", task.spec.task_type, task.id());
        match attempt.outcome {
            AttemptOutcome::Succeeded => {
                *told.succeeded_on.entry(attempt.number).or_default() += 1;
                if attempt.number == 1 {
                    told.first_try_told += 1;
                    if told.first_try_told <= TOLD_SUCCESSES {
                        self.line(Ink::Good, "✓", &format!("{who} succeeded at first try"));
                    } else if told.first_try_told == TOLD_SUCCESSES + 1 {
                        self.line(Ink::Good, "✓", "… and more like it; from here only the interesting ones");
                    }
                } else {
                    self.line(Ink::Good, "✓", &format!("{who} succeeded on attempt {}", attempt.number));
                    self.teach(&mut told, "the store knew it was waiting; the message only woke the worker");
                }
            }
            AttemptOutcome::Retried => {
                told.retries += 1;
                let what = describe(attempt);
                let delay = self.length(task.state.delay_ms.unwrap_or(0));
                self.line(Ink::Wait, "↻", &format!("{who} {what}; retry {} in {delay}", task.stamp().retry_count));
                self.teach_retry(&mut told, attempt, task);
            }
            AttemptOutcome::Died if task.state.degraded.is_some() => {
                let by = task.state.degraded.as_deref().unwrap_or_default();
                self.line(Ink::Good, "✓", &format!("{who} {}; ended by its fallback: {by}", describe(attempt)));
            }
            AttemptOutcome::Died => {
                let reason = task.state.dead_reason.map_or("dead", |reason| reason.as_str());
                *told.dead.entry(reason).or_default() += 1;
                self.line(Ink::Bad, "✗", &format!("{who} {}; dead letter: {reason}", describe(attempt)));
                let lesson = if reason == "permanent_error" {
                    "no retry would mend this one, so none is spent: straight to the DLQ, for a person"
                } else {
                    "its retries are spent: it waits in the DLQ with its whole history, and can be replayed"
                };
                self.teach(&mut told, lesson);
            }
            AttemptOutcome::Released => {
                self.line(Ink::Note, "·", &format!("{who} given back unfinished; no retry spent"));
            }
        }
    }

    fn teach_retry(&self, told: &mut Told, attempt: &Attempt, task: &Task) {
        let class = attempt.failure.as_ref().map_or("", |failure| failure.class.as_str());
        let by_retry_after = task.state.delay_reason.as_deref().is_some_and(|why| why.starts_with("Retry-After"));
        let lesson = if by_retry_after {
            "it said Retry-After, and that is exactly how long the task waits"
        } else if class == "platform_code" {
            "HTTP 200, but the body says system_error: a rule names that code as worth a retry"
        } else if class == "timeout" {
            "a time-out costs one attempt and no thread: the task waits in a delay queue or the store, nobody sleeps"
        } else {
            "a server error heals on its own time: the schedule is 15, 30, 45 minutes, then the DLQ"
        };
        self.teach(told, lesson);
    }
}

impl Observer for Narrator {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Settled { task, attempt } => self.settled(task, attempt),
            Event::StaleDropped { id, stamp, why } => {
                let mut told = self.lock();
                told.stale_dropped += 1;
                self.line(Ink::Note, "⊘", &format!("wake-up for {id} with stamp {stamp} dropped: {why}"));
                self.teach(&mut told, "a message carries no authority: what does not match the store starts nothing");
            }
            Event::Duplicate { id, status } => {
                self.line(Ink::Note, "=", &format!("{id} was published again: one task, {status}"));
            }
            Event::Died { task, reason } => {
                *self.lock().dead.entry(reason.as_str()).or_default() += 1;
                let why = task.state.failure.as_ref().map_or("", |failure| failure.message.as_str());
                self.line(
                    Ink::Bad,
                    "✗",
                    &format!("{:<15} {:<5} {why}; dead letter: {reason}", task.spec.task_type, task.id()),
                );
            }
            _ => {}
        }
    }
}

fn describe(attempt: &Attempt) -> String {
    let Some(failure) = &attempt.failure else { return "failed".into() };
    match (failure.http_status, &failure.code) {
        (Some(status), Some(code)) => format!("HTTP {status}, code {code}"),
        (Some(status), None) => format!("HTTP {status} [{}]", failure.class),
        (None, _) => format!("[{}]", failure.class),
    }
}

fn seconds(ms: Millis) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for people, and demo delays are small")]
    let seconds = ms as f64 / 1000.0;
    seconds
}
