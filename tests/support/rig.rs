//! A whole installation for one test: a config file and an SQLite file in a temporary folder, a vhost on a real RabbitMQ, and
//! the real `redeliver` binary, as workers that can be hurt and as commands.
//!
//! Tests act as users do, through commands, messages and SQL, and look into the SQLite file themselves: what a command prints is
//! not believed when the question is whether a command works.

#![allow(dead_code, reason = "every test program uses another part of this, so none could `expect` it")]

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, QueueDeclareOptions, QueuePurgeOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, FromRow};

use crate::support::{Vhost, until_within};

/// The longest that one command may take on a busy machine.
const COMMAND: Duration = Duration::from_secs(120);

/// See the module.
pub struct Rig {
    folder: tempfile::TempDir,
    store: String,
    pub vhost: Vhost,
    pub pool: SqlitePool,
    amqp: tokio::sync::Mutex<Connection>,
    started: AtomicUsize,
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Its one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }
}

impl Rig {
    /// Makes the folder, the store and the topology. `settings` is the config file below `[broker]` and `[store]`.
    pub async fn new(vhost: &Vhost, settings: &str) -> Rig {
        Rig::at(vhost, &vhost.url(), None, settings).await
    }

    /// The same with another way to the vhost, a URL or a list of them as TOML, and perhaps another store, into which `pool` does
    /// not look.
    pub async fn at(vhost: &Vhost, url: &str, store: Option<&str>, settings: &str) -> Rig {
        let rig = Rig::undeclared(vhost, url, store, settings).await;
        let applied = rig.run(&["topology", "apply", "--yes"]).await;
        assert_eq!(applied.code, Some(0), "{applied:?}");
        rig
    }

    /// The same with nothing declared in the broker.
    pub async fn undeclared(vhost: &Vhost, url: &str, store: Option<&str>, settings: &str) -> Rig {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = store.unwrap_or("sqlite://store.db").to_owned();
        write_config(folder.path(), url, "", &store, settings);
        let migrated = command(folder.path(), &["store", "migrate", "--yes"]).await;
        assert_eq!(migrated.code, Some(0), "{migrated:?}");
        let pool = open(folder.path());
        let amqp = tokio::sync::Mutex::new(connect(&vhost.url()).await);
        Rig { folder, store, vhost: vhost.clone(), pool, amqp, started: AtomicUsize::new(0) }
    }

    /// Does to the store's file whatever `replace` does, while nobody of the test has it open.
    pub async fn replace_store(&mut self, replace: impl AsyncFnOnce(&Path)) {
        self.pool.close().await;
        replace(self.folder()).await;
        self.pool = open(self.folder());
    }

    /// Where everything of it lies.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Puts another config file in the place of the first. Running workers follow as far as rules go; the rest is for the next start.
    pub fn rewrite_config(&self, settings: &str) {
        write_config(self.folder(), &self.vhost.url(), "", &self.store, settings);
    }

    /// The same, with another broker.
    pub fn rewrite_broker(&self, url: &str, settings: &str) {
        write_config(self.folder(), url, "", &self.store, settings);
    }

    /// The same, with more lines in `[broker]`.
    pub fn rewrite_broker_with(&self, url: &str, broker_lines: &str, settings: &str) {
        write_config(self.folder(), url, broker_lines, &self.store, settings);
    }

    /// Starts a worker.
    pub fn worker(&self) -> WorkerProcess {
        self.worker_with(&[])
    }

    /// Starts a worker with more in its environment.
    pub fn worker_with(&self, variables: &[(&str, &str)]) -> WorkerProcess {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let log = self.folder().join(format!("worker-{number}.log"));
        let stderr = std::fs::File::create(&log).expect("a log file");
        let child = std::process::Command::new(program())
            .args(["--config", "redeliver.toml", "work"])
            .current_dir(self.folder())
            .env("NO_COLOR", "1")
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("the worker starts");
        WorkerProcess { child, log, ended: false }
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> Said {
        command(self.folder(), arguments).await
    }

    /// Runs a command that must do everything it was asked, and returns its JSON.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["-o", "json"];
        all.extend(arguments);
        let said = self.run(&all).await;
        assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}");
        said.json()
    }

    /// Publishes envelopes with `publish --batch`.
    pub async fn publish(&self, envelopes: impl IntoIterator<Item = Value>) {
        let lines: String = envelopes.into_iter().map(|envelope| format!("{envelope}\n")).collect();
        let file = self.folder().join("batch.jsonl");
        std::fs::write(&file, lines).expect("a file");
        let said = self.run(&["publish", "--batch", "batch.jsonl"]).await;
        assert_eq!(said.code, Some(0), "{}", said.stderr);
    }

    /// Publishes `n` tasks of one type with the ids `<name>-0` and so on.
    pub async fn publish_many(&self, name: &str, n: usize) {
        self.publish((0..n).map(|i| json!({"id": format!("{name}-{i}"), "type": "test.call", "payload": {"n": i}})))
            .await;
    }

    /// Inserts `n` pending rows as another program would: with nothing but an id, a type and a payload.
    pub async fn insert_many(&self, name: &str, n: usize) {
        self.execute(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {} )
             INSERT INTO tasks (id, type, payload) SELECT '{name}-' || i, 'test.call', json_object('n', i) FROM n",
            n - 1
        ))
        .await;
    }

    /// Changes rows behind everybody's back.
    pub async fn execute(&self, sql: &str) {
        sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    /// One number.
    pub async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// Rows as tuples.
    pub async fn rows<T>(&self, sql: &str) -> Vec<T>
    where
        T: for<'r> FromRow<'r, sqlx::sqlite::SqliteRow> + Send + Unpin,
    {
        sqlx::query_as(AssertSqlSafe(sql.to_owned()))
            .fetch_all(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// Waits until the query yields `wanted`; says how far it got when it does not.
    pub async fn until_number(&self, limit: Duration, sql: &str, wanted: i64) {
        let seen = AtomicUsize::new(0);
        let what = format!("{sql} = {wanted}");
        let reached = until_within(limit, &what, async || {
            tokio::time::sleep(Duration::from_millis(40)).await;
            let now = self.number(sql).await;
            seen.store(usize::try_from(now).unwrap_or(0), Ordering::Relaxed);
            now == wanted
        });
        if futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(reached)).await.is_err() {
            let statuses: Vec<(String, i64)> = self.rows("SELECT status, count(*) FROM tasks GROUP BY 1").await;
            panic!("not within {limit:?}: {what}, found {}; tasks by status: {statuses:?}", seen.into_inner());
        }
    }

    /// Waits until `n` tasks have rows and all of them have ended.
    pub async fn until_all_ended(&self, limit: Duration, n: usize) {
        let sql = "SELECT count(*) FROM tasks WHERE status NOT IN ('pending', 'running', 'retry_waiting')";
        self.until_number(limit, sql, as_i64(n)).await;
        assert_eq!(self.number("SELECT count(*) FROM tasks").await, as_i64(n), "more rows than tasks were published");
    }

    /// A channel of its own on the test's connection, which is made again when the broker has ended it.
    pub async fn channel(&self) -> Channel {
        let mut connection = self.amqp.lock().await;
        if !connection.status().connected() {
            *connection = connect(&self.vhost.url()).await;
        }
        connection.create_channel().await.expect("a channel")
    }

    /// How many messages are ready in a queue, by the broker itself; `None` when there is no such queue.
    pub async fn ready(&self, queue: &str) -> Option<u32> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = self.channel().await.queue_declare(queue.into(), options, FieldTable::default()).await;
        declared.ok().map(|queue| queue.message_count())
    }

    /// Waits until that many messages are ready in a queue.
    pub async fn until_ready(&self, limit: Duration, queue: &str, wanted: u32) {
        let mut seen = None;
        let end = std::time::Instant::now() + limit;
        while seen != Some(wanted) {
            assert!(
                std::time::Instant::now() < end,
                "{queue}: wanted {wanted} messages, found {seen:?} after {limit:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
            seen = self.ready(queue).await;
        }
    }

    /// Takes every ready message out of a queue, as an operator would; returns how many.
    pub async fn purge(&self, queue: &str) -> u32 {
        self.channel().await.queue_purge(queue.into(), QueuePurgeOptions::default()).await.expect("a purge")
    }

    /// Publishes bytes as another service would.
    pub async fn send(&self, exchange: &str, key: &str, body: &[u8], properties: BasicProperties) {
        let channel = self.channel().await;
        channel.confirm_select(lapin::options::ConfirmSelectOptions::default()).await.expect("confirms");
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = properties.with_delivery_mode(2);
        let sent = channel.basic_publish(exchange.into(), key.into(), options, body, properties).await.expect("sent");
        let confirmation = sent.await.expect("a confirm");
        assert!(confirmation.is_ack(), "{key}: {confirmation:?}");
    }

    /// Publishes a task past the config's broker, which may be one that is being hurt.
    pub async fn send_task(&self, id: &str) {
        let body = json!({"id": id, "type": "test.call"}).to_string();
        self.send("redeliver.submit", "test.call", body.as_bytes(), BasicProperties::default()).await;
    }

    /// Publishes a forged wake-up straight to a lane.
    pub async fn send_wake_up(&self, lane: &str, body: &Value) {
        let properties = BasicProperties::default().with_type("redeliver.wake-up".into());
        self.send("", &format!("redeliver.default.{lane}"), body.to_string().as_bytes(), properties).await;
    }
}

/// Connects when it is first asked, so that a rig on another store makes no file.
fn open(folder: &Path) -> SqlitePool {
    let file = SqliteConnectOptions::new().filename(folder.join("store.db")).busy_timeout(Duration::from_secs(60));
    SqlitePoolOptions::new().max_connections(2).connect_lazy_with(file)
}

async fn connect(url: &str) -> Connection {
    Connection::connect(url, ConnectionProperties::default()).await.expect("the test broker takes a connection")
}

fn write_config(folder: &Path, broker: &str, broker_lines: &str, store: &str, settings: &str) {
    let url = if broker.starts_with('[') { broker.to_owned() } else { format!("\"{broker}\"") };
    let text = format!("[broker]\nurl = {url}\n{broker_lines}\n[store]\nurl = \"{store}\"\n{settings}");
    std::fs::write(folder.join("redeliver.toml"), text).expect("a config file");
}

/// Runs the program in a folder that has a config file.
pub async fn command(folder: &Path, arguments: &[&str]) -> Said {
    let run = tokio::process::Command::new(program())
        .args(["--config", "redeliver.toml"])
        .args(arguments)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(COMMAND, run).await.unwrap_or_else(|_| panic!("{arguments:?} hangs"));
    let output = output.expect("the command runs");
    Said {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The program under test: the one that was built with the tests, or, for measurements, the one that `REDELIVER_TEST_BINARY` names.
fn program() -> std::ffi::OsString {
    std::env::var_os("REDELIVER_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_redeliver").into())
}

/// A `redeliver work` of its own. Killed when dropped.
pub struct WorkerProcess {
    child: Child,
    log: PathBuf,
    ended: bool,
}

impl WorkerProcess {
    /// Its process id, which is part of its name in the attempts it makes.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// `STOP`, `CONT`, `TERM`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = std::process::Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill runs");
        assert!(status.success(), "kill -{name} {pid}");
    }

    /// `kill -9`, and gone when this returns.
    pub fn kill(mut self) {
        self.end();
    }

    /// SIGTERM; returns how it ended.
    pub async fn stop(&mut self, limit: Duration) -> ExitStatus {
        self.signal("TERM");
        let mut status = None;
        until_within(limit, "the worker stops", async || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        })
        .await;
        self.ended = true;
        status.expect("it has stopped")
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        !self.ended && self.child.try_wait().expect("a child").is_none()
    }

    /// What it has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has said `text`.
    pub async fn until_says(&self, limit: Duration, text: &str) {
        until_within(limit, &format!("the worker says {text:?}"), async || self.log().contains(text)).await;
    }

    /// The most memory it has had, in MiB.
    pub fn peak_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) / 1024
    }

    fn end(&mut self) {
        if !self.ended {
            drop(self.child.kill());
            drop(self.child.wait());
            self.ended = true;
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(25)..];
            eprintln!(
                "--- {} (the last {} of {} lines)\n{}",
                self.log.display(),
                tail.len(),
                lines.len(),
                tail.join("\n")
            );
        }
    }
}

/// Counts are small.
pub fn as_i64(n: usize) -> i64 {
    i64::try_from(n).expect("a small number")
}

/// Milliseconds since the epoch.
pub fn epoch_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292,000,000")
}

/// Whether the full sizes are asked for, instead of those that a test run can afford.
pub fn full() -> bool {
    std::env::var("REDELIVER_TEST_FULL").as_deref() == Ok("1")
}

/// The full size, or the one for every day.
pub fn sized(full_size: usize, everyday: usize) -> usize {
    if full() { full_size } else { everyday }
}

/// A line about what was measured, which `--nocapture` and a full run show.
pub fn report(line: &str) {
    println!("MEASURED {line}");
}
