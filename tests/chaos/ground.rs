//! The installation that is hurt: workers, each behind a proxy of its own, a broker, and a store on a file system that
//! can be filled.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::Mutex;

use crate::party::Party;
use crate::plan::{LEASE_MS, Queues, WORKERS};
use crate::rig::{Rig, WorkerProcess};
use crate::support::proxy::Proxy;
use crate::support::{Vhost, until_within};

/// Attempts of one shop at once, by the route's cap.
pub const AT_ONCE: usize = 2;
/// Retries of one shop, by the limit.
pub const RETRIES_PER_S: f64 = 6.0;
/// How many of them may start together.
pub const RETRY_BURST: f64 = 3.0;
/// The queues of the config: with lanes, rungs and a DLQ each.
pub const QUEUES: [&str; 2] = ["default", "bulk"];

const BROKER: &str = "confirm_timeout = \"3s\"\nheartbeat = \"3s\"";
/// How long a worker that was told to stop may take: its grace, handlers that wind up, and a store that is locked
/// meanwhile.
const STOPS_WITHIN: Duration = Duration::from_secs(60);

/// Policies and what each is for; with how many retries, which the checks need to know.
const POLICIES: [(&str, i64, &str); 7] = [
    // The broker holds the waits: rungs.
    (
        "steady",
        3,
        r#"type = "chaos.steady"
backoff = { steps = ["1s", "2s", "3s"] }"#,
    ),
    // The store holds the waits.
    (
        "jitter",
        4,
        r#"type = "chaos.jitter"
backoff = { exponential = { base = "400ms", max = "2s", multiplier = 1.7 } }"#,
    ),
    // Gates: a cap, a limit and both breakers.
    (
        "shop",
        5,
        r#"type = "chaos.shop"
backoff = { fixed = "1s" }"#,
    ),
    // A success by fallback when the retries are spent.
    (
        "quote",
        1,
        r#"type = "chaos.quote"
backoff = { fixed = "1s" }
fallback = ["default"]
default_result = { quote = 0 }"#,
    ),
    // A bulkhead: a queue, lanes and a DLQ of its own.
    (
        "bulk",
        2,
        r#"type = "chaos.bulk.#"
backoff = { steps = ["1s", "2s"] }"#,
    ),
    // Dead letters that replay themselves.
    (
        "again",
        1,
        r#"type = "chaos.again"
backoff = { fixed = "500ms" }
replay_after = ["3s", "6s"]"#,
    ),
    // Dies of its deadline when it waits for too long.
    (
        "brief",
        5,
        r#"type = "chaos.brief"
backoff = { fixed = "2s" }
deadline = "7s""#,
    ),
];

/// Retries that a policy allows; `None`: no policy of ours.
pub fn max_retries(policy: &str) -> Option<i64> {
    POLICIES.iter().find(|(name, ..)| *name == policy).map(|(_, retries, _)| *retries)
}

fn settings(party: &Party) -> String {
    let route = |topic: &str, more: &str| {
        format!("[[route]]\ntype = \"{topic}\"\nhttp = {{ url = \"{}\", timeout = \"1500ms\" }}\n{more}", party.url())
    };
    let mut text = format!(
        "[worker]\nlease = \"{LEASE_MS}ms\"\nconcurrency = 8\nprefetch = 24\nshutdown_grace = \"2s\"\n\
         [scheduler]\ngrace = \"2s\"\npatience = \"2s\"\nmax_patience = \"8s\"\nslack = \"2s\"\n\
         [[queue]]\nname = \"bulk\"\ntypes = [\"chaos.bulk.#\"]\nconcurrency = 4\n"
    );
    let cap = format!("concurrency = {{ per = \"label.shop\", max = {AT_ONCE} }}\n");
    text += &route("chaos.shop", &cap);
    text += &route("chaos.#", "");
    for (name, retries, rest) in POLICIES {
        text += &format!("[[policy]]\nname = \"{name}\"\nmax_retries = {retries}\n{rest}\n");
    }
    text += &format!(
        "[[limit]]\nname = \"shop\"\nper = [\"label.shop\"]\nrate = \"{RETRIES_PER_S}/s\"\nburst = {RETRY_BURST}\n\
         [[breaker]]\nname = \"shop\"\nper = [\"type\", \"label.shop\"]\nconsecutive = 6\nopen_for = \"1s\"\nopen_for_max = \"3s\"\n\
         [[breaker]]\nname = \"type\"\nper = [\"type\"]\nconsecutive = 14\nopen_for = \"1s\"\nopen_for_max = \"2s\"\n\
         when_open = \"dead_letter\"\n"
    );
    text
}

/// See the module.
pub struct Ground {
    pub rig: Rig,
    pub disk: Disk,
    pub proxies: Vec<Proxy>,
    crew: Mutex<Crew>,
    /// Only reads.
    pub rows: SqlitePool,
}

#[derive(Default)]
struct Crew {
    workers: Vec<WorkerProcess>,
    /// What those said that are gone.
    logs: Vec<String>,
    /// Ends that nobody asked for.
    ended: Vec<String>,
    /// Starts that came to nothing, because store or broker was away just then: a worker tells whoever starts it what
    /// is wrong, and is started again.
    failed_starts: usize,
}

impl Ground {
    /// Makes it, with all workers running.
    pub async fn new(vhost: &Vhost, party: &Party) -> Ground {
        let disk = Disk::new();
        let mut proxies = Vec::new();
        for _ in 0..WORKERS {
            proxies.push(Proxy::start(vhost.address()).await);
        }
        let store = format!("sqlite://{}", disk.store().display());
        let settings = settings(party);
        let rig = Rig::at(vhost, &vhost.url(), Some(&store), &settings).await;
        rig.rewrite_broker_with(&vhost.url(), BROKER, &settings);
        let options = SqliteConnectOptions::new().filename(disk.store()).read_only(true).busy_timeout(STOPS_WITHIN);
        let rows = SqlitePoolOptions::new().max_connections(2).connect_lazy_with(options);
        let ground = Ground { rig, disk, proxies, crew: Mutex::default(), rows };
        ground.start_workers().await;
        ground
    }

    /// Starts a worker in each place.
    pub async fn start_workers(&self) {
        let mut crew = self.crew.lock().await;
        assert!(crew.workers.is_empty(), "they run");
        crew.workers = (0..WORKERS).map(|place| self.worker(place)).collect();
    }

    fn worker(&self, place: usize) -> WorkerProcess {
        let url = self.rig.vhost.url_at(&self.proxies[place].address);
        self.rig.worker_with(&[("REDELIVER_BROKER_URL", &url)])
    }

    /// Does something to the worker in a place.
    pub async fn with_worker<T>(&self, place: usize, act: impl AsyncFnOnce(&mut WorkerProcess) -> T) -> T {
        act(&mut self.crew.lock().await.workers[place]).await
    }

    /// SIGKILL, and another one in its place.
    pub async fn kill(&self, place: usize) {
        let mut crew = self.crew.lock().await;
        crew.look(place);
        let killed = std::mem::replace(&mut crew.workers[place], self.worker(place));
        crew.logs.push(killed.log());
        killed.kill();
    }

    /// SIGTERM, and another one in its place when it has stopped.
    pub async fn restart(&self, place: usize) {
        let mut crew = self.crew.lock().await;
        crew.look(place);
        crew.stop(place).await;
        crew.workers[place] = self.worker(place);
    }

    /// As a supervisor would: whoever has ended without being asked runs again.
    pub async fn revive(&self) {
        let mut crew = self.crew.lock().await;
        for place in 0..crew.workers.len() {
            if !crew.workers[place].is_running() {
                crew.look(place);
                crew.workers[place] = self.worker(place);
            }
        }
    }

    /// SIGTERM to all; returns when they have stopped.
    pub async fn stop_workers(&self) {
        let mut crew = self.crew.lock().await;
        for place in 0..crew.workers.len() {
            crew.look(place);
            crew.stop(place).await;
        }
        crew.workers.clear();
    }

    /// Which workers have ended without being asked, and what they said last.
    pub async fn ended_by_themselves(&self) -> Vec<String> {
        self.crew.lock().await.ended.clone()
    }

    /// How many starts came to nothing.
    pub async fn failed_starts(&self) -> usize {
        self.crew.lock().await.failed_starts
    }

    /// How many lines of all workers' logs have `text` in them.
    pub async fn said(&self, text: &str) -> usize {
        let crew = self.crew.lock().await;
        let logs = crew.logs.iter().cloned().chain(crew.workers.iter().map(WorkerProcess::log));
        logs.map(|log| log.lines().filter(|line| line.contains(text)).count()).sum()
    }

    /// What RabbitMQ says of the queues, for whoever looks for the cause of something.
    pub async fn queues(&self) -> String {
        let mut said = String::from("queue, ready, unacked, consumers, leader:");
        for name in Ground::names(Queues::All) {
            let queue = self.rig.vhost.queue(&name).await;
            let of = |what: &str| queue[what].to_string();
            let [ready, unacked, consumers] = ["messages_ready", "messages_unacknowledged", "consumers"].map(of);
            said += &format!("\n  {name} {ready} {unacked} {consumers} {}", queue["leader"]);
        }
        said
    }

    /// The full names of queues.
    pub fn names(which: Queues) -> Vec<String> {
        let lanes = ["tasks", "retries"];
        let rungs = ["delay.1000", "delay.2000", "delay.3000", "delay.500"];
        let parts: Vec<&str> = match which {
            Queues::Lanes => lanes.to_vec(),
            Queues::Rungs => rungs.to_vec(),
            Queues::Dead => vec!["dead"],
            Queues::All => lanes.into_iter().chain(rungs).chain(["dead", "rejected"]).collect(),
        };
        QUEUES.iter().flat_map(|queue| parts.iter().map(move |part| format!("redeliver.{queue}.{part}"))).collect()
    }
}

impl Crew {
    /// Notes it when the worker has ended by itself.
    fn look(&mut self, place: usize) {
        if !self.workers[place].is_running() {
            let log = self.workers[place].log();
            if !log.contains("redeliver::cli::work: working") && !log.contains("panicked at") {
                self.failed_starts += 1;
                return;
            }
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            self.ended.push(format!("process {} in place {place}: {last:?}", self.workers[place].id()));
        }
    }

    async fn stop(&mut self, place: usize) {
        let worker = &mut self.workers[place];
        if worker.is_running() {
            let pid = worker.id();
            let status = worker.stop(STOPS_WITHIN).await;
            if !status.success() {
                self.ended.push(format!("process {pid} in place {place}: told to stop, it ended with {status}"));
            }
        }
        self.logs.push(self.workers[place].log());
    }
}

/// A file system for the store alone, small enough to be filled. It takes a mount, and so root or sudo; without either
/// the store lies in an ordinary folder and is never short of room.
pub struct Disk {
    folder: tempfile::TempDir,
    mounted: bool,
}

impl Disk {
    fn new() -> Disk {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // SAFETY: neither takes nor changes anything.
        let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
        let options = format!("size=128m,mode=700,uid={user},gid={group}");
        let mounted = as_root(&["mount", "-t", "tmpfs", "-o", &options, "redeliver-chaos"], folder.path());
        Disk { folder, mounted }
    }

    /// Whether it can be filled.
    pub fn can_be_filled(&self) -> bool {
        self.mounted
    }

    /// The store's file.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    /// Takes all the room that is left; returns how much, in bytes.
    pub async fn fill(&self) -> u64 {
        // Room in the log that is already there would do for a while.
        let checkpoint = async {
            let options = SqliteConnectOptions::new().filename(self.store()).busy_timeout(Duration::from_secs(2));
            let mut conn = SqliteConnection::connect_with(&options).await?;
            sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut conn).await?;
            conn.close().await
        };
        if let Err(error) = checkpoint.await {
            println!("no checkpoint before the disk is filled: {error}");
        }
        let mut ballast = std::fs::File::create(self.ballast()).expect("a file of ballast");
        let mut taken = 0;
        for size in [1 << 20, 4096] {
            let piece = vec![0; size];
            while let Ok(written @ 1..) = ballast.write(&piece) {
                taken += written as u64;
            }
        }
        taken
    }

    /// Gives the room back.
    pub fn clear(&self) {
        std::fs::remove_file(self.ballast()).expect("the ballast goes");
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }

    /// Keeps a copy of the store for whoever looks for the cause of something.
    pub fn keep(&self, folder: &Path) {
        for file in ["store.db", "store.db-wal"] {
            let from = self.folder.path().join(file);
            if from.exists() {
                std::fs::copy(from, folder.join(file)).expect("the store is copied");
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: somebody may have a file open still.
        if self.mounted && !as_root(&["umount", "--lazy"], self.folder.path()) {
            eprintln!("{} stays mounted", self.folder.path().display());
        }
    }
}

/// Runs a command on a path as root; `false` when it may not or cannot.
fn as_root(command: &[&str], path: &Path) -> bool {
    let plain = Command::new(command[0]).args(&command[1..]).arg(path).output();
    if plain.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let sudo = Command::new("sudo").arg("-n").args(command).arg(path).output();
    sudo.is_ok_and(|output| output.status.success())
}

/// Holds the store's write lock as another program until `release` ends.
pub async fn lock_store(disk: &Disk, release: impl Future<Output = ()>) {
    let mut conn = None;
    until_within(STOPS_WITHIN, "the lock is had", async || {
        conn = try_lock(disk).await.ok();
        conn.is_some()
    })
    .await;
    release.await;
    let mut conn = conn.expect("it was had");
    sqlx::query("ROLLBACK").execute(&mut conn).await.expect("unlocked");
    conn.close().await.expect("closed");
}

async fn try_lock(disk: &Disk) -> sqlx::Result<SqliteConnection> {
    let options = SqliteConnectOptions::new().filename(disk.store()).busy_timeout(Duration::from_secs(2));
    let mut conn = SqliteConnection::connect_with(&options).await?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut conn).await?;
    Ok(conn)
}
