//! Runs a command.
//!
//! The payload is the command's standard input; what it says about the outcome comes back as `result.json` in its attempt
//! folder, as the last line of its standard output, or as its exit code (see `said`). It runs in a process group of its
//! own, and at the end of an attempt nothing of that group is left: a browser that a robot started must not outlive it. A
//! process that leaves the group (`setsid`) is out of our reach and keeps nothing waiting.
//!
//! Its environment is empty but for `PATH` (without it hardly a script runs), what the route names, the `REDELIVER_` variables, and `TRACEPARENT`
//! (`TRACESTATE`) where the task is part of a trace.

mod folder;
mod group;
mod said;

use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::task::{Outcome, class};

use super::{AttemptContext, Caps, CommandRoute, Handler, Report};
use folder::Folder;
use group::{ChildSignals, Group};
use said::{Ending, Leavings};

/// Bytes of standard error that are kept: its tail says what went wrong.
const STDERR_TAIL: usize = 8 * 1024;
/// How long the group of a command may take to end after SIGTERM before SIGKILL follows.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long output is waited for once the leader has ended, before its stragglers are told to end.
const OUTPUT_GRACE: Duration = Duration::from_millis(250);
/// How long the leader may take to vanish after it has ended or was killed.
const REAP: Duration = Duration::from_secs(5);
/// How long output is read on after the whole group has ended: what a process outside the group holds open does not count.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// Why a `command` table cannot be used. The texts follow the name of the table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandRouteError {
    /// No program.
    #[error("program is empty")]
    NoProgram,
    /// A NUL in a text that C must read.
    #[error("{field} has a NUL character")]
    Nul {
        /// `program`, `args` or `env`.
        field: &'static str,
    },
    /// An entry without a name.
    #[error("env: {0:?} has no name, wanted NAME or NAME=value")]
    Env(String),
}

/// Runs attempts as commands.
#[derive(Debug)]
pub struct CommandHandler {
    route: CommandRoute,
    caps: Caps,
}

impl CommandHandler {
    /// A handler for one route. Whether the program exists is seen at each attempt: it may be deployed later.
    ///
    /// # Errors
    /// What in the route can never be used.
    pub fn new(route: CommandRoute, caps: Caps) -> Result<CommandHandler, CommandRouteError> {
        if route.program.is_empty() {
            return Err(CommandRouteError::NoProgram);
        }
        let has_nul = |texts: &[String]| texts.iter().any(|text| text.contains('\0'));
        for (field, texts) in
            [("program", std::slice::from_ref(&route.program)), ("args", &route.args), ("env", &route.env)]
        {
            if has_nul(texts) {
                return Err(CommandRouteError::Nul { field });
            }
        }
        if let Some(entry) = route.env.iter().find(|entry| entry.is_empty() || entry.starts_with('=')) {
            return Err(CommandRouteError::Env(entry.clone()));
        }
        Ok(CommandHandler { route, caps })
    }

    fn command(&self, attempt: &AttemptContext, folder: &Folder) -> Command {
        let mut command = Command::new(&self.route.program);
        command.args(&self.route.args).env_clear();
        let mut inherit = |name: &str| {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        };
        inherit("PATH");
        let mut given: Vec<(&str, OsString)> = Vec::new();
        for entry in &self.route.env {
            match entry.split_once('=') {
                Some((name, value)) => given.push((name, value.into())),
                None => inherit(entry),
            }
        }
        if let Some(trace) = &attempt.trace {
            given.push(("TRACEPARENT", trace.traceparent().into()));
            given.extend(trace.tracestate().map(|state| ("TRACESTATE", state.into())));
        }
        command
            .envs(given)
            .env("REDELIVER_TASK_ID", &attempt.task.id)
            .env("REDELIVER_TASK_TYPE", &attempt.task.task_type)
            .env("REDELIVER_RETRY_COUNT", attempt.retry_count.to_string())
            .env("REDELIVER_IDEMPOTENCY_KEY", attempt.idempotency_key())
            .env("REDELIVER_ATTEMPT_DIR", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            // Should this future be dropped: the group's own guard ends the others.
            .kill_on_drop(true);
        command
    }

    async fn attempt(&self, attempt: &AttemptContext, folder: Folder) -> Report {
        // Before the start, so that no end is missed.
        let signals = match ChildSignals::new() {
            Ok(signals) => signals,
            Err(error) => return not_now("no signal handler", &error),
        };
        let mut child = match self.command(attempt, &folder).spawn() {
            Ok(child) => child,
            Err(error) => return self.not_started(&error),
        };
        let Some(group) = Group::of(&child) else {
            return not_now("no process id", &io::ErrorKind::NotFound.into());
        };
        let mut pipes = Pipes::connect(&mut child, &attempt.task.payload, self.caps.body);
        let ending = self.until_the_end(attempt, child, group, signals, &mut pipes).await;
        let Some(ending) = ending else {
            return super::cancelled();
        };
        let leavings = Leavings { ending, stdout: pipes.stdout.take(), stderr: pipes.stderr.take() };
        let caps = self.caps;
        // Reading files blocks. The folder goes when this ends, whoever still waits for it.
        let judged = tokio::task::spawn_blocking(move || said::judge(&leavings, &folder, caps)).await;
        judged
            .unwrap_or_else(|error| Outcome::failure(class::FAILED, format!("its files were not read: {error}")).into())
    }

    /// Waits for the leader, the time-out or the cancellation, then ends the whole group. `None` when it was cancelled.
    async fn until_the_end(
        &self,
        attempt: &AttemptContext,
        mut child: Child,
        mut group: Group,
        mut signals: ChildSignals,
        pipes: &mut Pipes,
    ) -> Option<Ending> {
        let mut timed_out = false;
        let mut cancelled = false;
        tokio::select! {
            biased;
            () = attempt.cancel.cancelled() => cancelled = true,
            () = group.leader_ended(&mut signals) => pipes.drained(OUTPUT_GRACE).await,
            () = tokio::time::sleep(self.route.timeout) => timed_out = true,
        }
        group.terminate();
        if timed_out || cancelled {
            // The leader may want to close its browser; it is not reaped before, so its number stays its own.
            if timeout(TERM_GRACE, group.leader_ended(&mut signals)).await.is_err() {
                group.kill();
            }
        }
        // A process in the middle of a disk access does not die; the runtime reaps it when it does.
        let status = timeout(REAP, child.wait()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        group.all_ended(TERM_GRACE).await;
        pipes.drained(LAST_OUTPUT).await;
        if cancelled {
            return None;
        }
        if timed_out {
            return Some(Ending::TimedOut(self.route.timeout));
        }
        Some(match status {
            Ok(status) => ending_of(status),
            Err(error) => Ending::Unknown(error.to_string()),
        })
    }

    fn not_started(&self, error: &io::Error) -> Report {
        let what = format!("{:?} cannot be started", self.route.program);
        match error.kind() {
            // Not the program's fault, and over when the machine has room again.
            io::ErrorKind::WouldBlock
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::ResourceBusy
            | io::ErrorKind::ExecutableFileBusy
            | io::ErrorKind::Interrupted => not_now(&what, error),
            _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => not_now(&what, error),
            // Our own texts hold no NUL: it is in the task's id, type or key.
            io::ErrorKind::InvalidInput => {
                Outcome::failure(class::BAD_PAYLOAD, "the task's id, type or key has a NUL character").into()
            }
            _ => Outcome::failure(class::NOT_RUNNABLE, format!("{what}: {error}")).into(),
        }
    }
}

#[async_trait]
impl Handler for CommandHandler {
    async fn run(&self, attempt: AttemptContext) -> Report {
        if attempt.cancel.is_cancelled() {
            return super::cancelled();
        }
        match Folder::new() {
            Ok(folder) => self.attempt(&attempt, folder).await,
            Err(error) => not_now("no attempt folder", &error),
        }
    }
}

/// A failure of this machine, not of the task.
fn not_now(what: &str, error: &io::Error) -> Report {
    Outcome::failure(class::FAILED, format!("{what}: {error}")).into()
}

fn ending_of(status: ExitStatus) -> Ending {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exit(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Unknown(status.to_string()),
    }
}

/// The pipes of a child, served by tasks that end with this value.
struct Pipes {
    tasks: JoinSet<()>,
    stdout: Tail,
    stderr: Tail,
}

impl Pipes {
    fn connect(child: &mut Child, payload: &str, cap: usize) -> Pipes {
        let mut tasks = JoinSet::new();
        let (stdout, stderr) = (Tail::new(cap), Tail::new(STDERR_TAIL));
        if let Some(pipe) = child.stdout.take() {
            tasks.spawn(stdout.clone().read(pipe));
        }
        if let Some(pipe) = child.stderr.take() {
            tasks.spawn(stderr.clone().read(pipe));
        }
        if let Some(mut pipe) = child.stdin.take() {
            let payload = payload.to_owned();
            tasks.spawn(async move {
                // A command need not read its payload; it has ended or closed the pipe then.
                if let Err(error) = pipe.write_all(payload.as_bytes()).await {
                    tracing::trace!(%error, "a command did not read its payload to the end");
                }
            });
        }
        Pipes { tasks, stdout, stderr }
    }

    /// Waits until every pipe is at its end, at most `longest`.
    async fn drained(&mut self, longest: Duration) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(longest, all).await.is_err() {
            tracing::trace!("a command's output is still held open");
        }
    }
}

/// The last bytes of an output that may be endless.
#[derive(Clone)]
struct Tail {
    kept: Arc<Mutex<Kept>>,
    cap: usize,
}

/// What is kept of an output.
#[derive(Debug, Default, Clone)]
struct Kept {
    bytes: Vec<u8>,
    /// Whether something before it was thrown away.
    cut: bool,
}

impl Tail {
    fn new(cap: usize) -> Tail {
        Tail { kept: Arc::default(), cap }
    }

    async fn read(self, mut pipe: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; 16 * 1024];
        // An error is an end: there is nothing more to be had.
        while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.bytes.extend_from_slice(&buffer[..length]);
            // In large steps, so that an endless output is not moved about byte by byte.
            if kept.bytes.len() > 2 * self.cap + buffer.len() {
                kept.cut_to(self.cap);
            }
        }
    }

    fn take(&self) -> Kept {
        let mut kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        kept.cut_to(self.cap);
        kept
    }
}

impl Kept {
    fn cut_to(&mut self, cap: usize) {
        let surplus = self.bytes.len().saturating_sub(cap);
        if surplus > 0 {
            self.bytes.drain(..surplus);
            self.cut = true;
        }
    }
}
