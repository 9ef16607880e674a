//! Worker processes, watched from outside.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use super::ground::Ground;
use super::tally::Tally;

/// How often the workers are looked at. What is measured has their own times, not those of the looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long a worker may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a line says how far it has come.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// See the module. Dropped, they are killed.
pub(super) struct Crew<'a> {
    ground: &'a Ground<'a>,
    members: Vec<Member>,
}

struct Member {
    child: Child,
    stdin: ChildStdin,
    reader: JoinHandle<anyhow::Result<()>>,
    latest: Arc<Mutex<Tally>>,
}

impl Crew<'_> {
    /// Starts so many, all at once, and waits until each works.
    pub async fn start<'a>(ground: &'a Ground<'a>, size: usize) -> anyhow::Result<Crew<'a>> {
        let mut members = Vec::with_capacity(size);
        for _ in 0..size {
            members.push(Member::spawn(ground).await?);
        }
        let mut started = Vec::with_capacity(size);
        for member in members {
            started.push(member.started().await?);
        }
        Ok(Crew { ground, members: started })
    }

    /// How each stands.
    pub fn tallies(&self) -> Vec<Tally> {
        self.members.iter().map(|member| *member.latest.lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// How they stand together.
    pub fn tally(&self) -> Tally {
        Tally::together(&self.tallies())
    }

    /// Waits until `done` holds of how they stand together.
    ///
    /// # Errors
    /// When one of them ends, or when nothing moves for `standstill`.
    pub async fn until(
        &mut self,
        what: &str,
        standstill: Duration,
        done: impl Fn(&Tally) -> bool,
    ) -> anyhow::Result<Tally> {
        let mut moved = (self.tally().movement(), Instant::now());
        let mut told = Instant::now();
        loop {
            let tally = self.tally();
            if done(&tally) {
                return Ok(tally);
            }
            if let Some(ended) = self.members.iter_mut().find(|member| member.reader.is_finished()) {
                let status = ended.ended().await?;
                bail!("a worker has ended ({status}) before {what}");
            }
            if tally.movement() != moved.0 {
                moved = (tally.movement(), Instant::now());
            } else if moved.1.elapsed() > standstill {
                bail!("stood still for {} s before {what}: {tally:?}", standstill.as_secs());
            }
            if told.elapsed() > TOLD_EVERY {
                told = Instant::now();
                let (attempts, ended) = (tally.attempts(), tally.ended());
                (self.ground.site.progress)(&format!("until {what}: {attempts} attempts, {ended} tasks ended"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stops them and takes what each told last.
    pub async fn stop(self) -> anyhow::Result<Vec<Tally>> {
        let mut last = Vec::with_capacity(self.members.len());
        for mut member in self.members {
            drop(member.stdin);
            tokio::time::timeout(PATIENCE, &mut member.reader).await.context("a worker does not stop")???;
            let status =
                tokio::time::timeout(PATIENCE, member.child.wait()).await.context("a worker does not end")??;
            if !status.success() {
                bail!("a worker ended with {status}");
            }
            last.push(*member.latest.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(last)
    }
}

/// A worker that was not heard of yet.
struct Spawned {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Member {
    async fn spawn(ground: &Ground<'_>) -> anyhow::Result<Spawned> {
        let mut command = (ground.site.worker)();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start a worker process")?;
        let mut stdin = child.stdin.take().context("a worker process without stdin")?;
        let stdout = child.stdout.take().context("a worker process without stdout")?;
        let setup = serde_json::to_string(&ground.setup)? + "\n";
        stdin.write_all(setup.as_bytes()).await.context("a worker process did not read what to do")?;
        Ok(Spawned { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        Ok(tokio::time::timeout(PATIENCE, self.child.wait()).await.context("a worker does not end")??)
    }
}

impl Spawned {
    /// Waits for the first line: it works.
    async fn started(self) -> anyhow::Result<Member> {
        let Spawned { mut child, stdin, mut lines } = self;
        let first = tokio::time::timeout(PATIENCE, lines.next_line()).await.context("a worker does not start")??;
        let Some(first) = first else {
            bail!("a worker did not start ({})", child.wait().await?);
        };
        let latest = Arc::new(Mutex::new(serde_json::from_str(&first).context("not what a worker tells")?));
        let told = Arc::clone(&latest);
        let reader = tokio::spawn(async move {
            while let Some(line) = lines.next_line().await? {
                let tally = serde_json::from_str(&line).context("not what a worker tells")?;
                *told.lock().unwrap_or_else(PoisonError::into_inner) = tally;
            }
            Ok(())
        });
        Ok(Member { child, stdin, reader, latest })
    }
}
