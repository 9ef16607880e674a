//! A fresh store with a clock that stands still, and the commands that tests repeat.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use redeliver::store::memory::MemoryStore;
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{Clock, Store, Urgency};
use redeliver::task::{
    Answer, Claimant, Command, DeadReason, Decision, Failure, Happening, Millis, NewTask, RawSubmission, Refusal,
    Settings, Settlement, Spec, Stamp, Task, TaskResult,
};
use tempfile::TempDir;

pub struct Fixture {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub settings: Settings,
    door: Door,
}

/// How a row gets in past the commands.
enum Door {
    Shut,
    Memory(Arc<MemoryStore>),
    Sqlite(TempDir),
    #[cfg(feature = "postgres")]
    Postgres(crate::server::Schema),
}

/// The stamp of a task's first retry.
pub const RETRY_1: Stamp = Stamp { generation: 0, retry_count: 1 };

fn clock() -> Clock {
    // Rows that other programs insert take their time from the machine, so the clock starts there.
    Clock::manual(Clock::System.now())
}

/// Everything is announced, so that every test writes notices too.
fn settings() -> Settings {
    Settings { announced: Happening::ALL.into_iter().collect(), ..Settings::default() }
}

pub fn memory() -> Fixture {
    let (clock, settings) = (clock(), settings());
    let store = Arc::new(MemoryStore::new(clock.clone(), settings.clone()));
    Fixture { store: Arc::clone(&store) as _, clock, settings, door: Door::Memory(store) }
}

pub async fn sqlite() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let fixture = sqlite_at(&url_in(&folder)).await;
    Fixture { door: Door::Sqlite(folder), ..fixture }
}

/// A store in a file of the caller's, who puts no rows in past the commands.
pub async fn sqlite_at(url: &str) -> Fixture {
    let (clock, settings) = (clock(), settings());
    let options = SqliteOptions { clock: clock.clone(), ..SqliteOptions::default() };
    let store = SqliteStore::open(url, settings.clone(), options).await.unwrap();
    Fixture { store: Arc::new(store), clock, settings, door: Door::Shut }
}

/// `None` where there is no server to test against.
#[cfg(feature = "postgres")]
pub async fn postgres() -> Option<Fixture> {
    use redeliver::store::postgres::{PostgresOptions, PostgresStore};
    let schema = crate::server::Schema::new().await?;
    let (clock, settings) = (clock(), settings());
    let options = PostgresOptions { clock: Some(clock.clone()), ..PostgresOptions::default() };
    let store = PostgresStore::open(&schema.url(), settings.clone(), options).await.unwrap();
    Some(Fixture { store: Arc::new(store), clock, settings, door: Door::Postgres(schema) })
}

pub fn url_in(folder: &TempDir) -> String {
    format!("sqlite://{}", file_in(folder).display())
}

pub fn file_in(folder: &TempDir) -> PathBuf {
    folder.path().join("store.db")
}

pub fn spec(id: &str) -> Spec {
    Spec {
        id: id.into(),
        task_type: "order.ship".into(),
        payload: r#"{"order":7}"#.into(),
        labels: BTreeMap::new(),
        idempotency_key: Some(id.into()),
        priority: 0,
        cache_key: None,
        reply_to: None,
        trace: None,
        payload_hash: "hash of order 7".into(),
        submission_hash: None,
        created_at: 1_700_000_000_000,
        raw: None,
        conflicts_with: None,
    }
}

/// The refusal that stands by for a submission of `id`.
pub fn refusal(id: &str) -> Refusal {
    let raw = RawSubmission {
        bytes: br#"{"order":7"#.to_vec(),
        length: 10,
        routing_key: "order.ship".into(),
        message_id: Some(id.into()),
    };
    let spec = Spec {
        payload: "null".into(),
        payload_hash: String::new(),
        idempotency_key: None,
        raw: Some(Arc::new(raw)),
        ..spec(&format!("refused {id}"))
    };
    let failure = Failure::new("malformed", "not JSON");
    Refusal { spec, queue: "default".into(), reason: DeadReason::Malformed, failure }
}

pub fn claimant() -> Claimant {
    Claimant { worker: "worker 1".into(), serves: None, gates: Arc::default(), policies: None }
}

/// A submission of `id` that a worker would run at once.
pub fn new_task(id: &str) -> NewTask {
    NewTask {
        spec: Arc::new(spec(id)),
        queue: "default".into(),
        not_before: None,
        deadline: None,
        redelivered: false,
        refusal: refusal(id).into(),
        claimant: Some(claimant()),
        publish: false,
        rejected: false,
    }
}

pub fn submit(new: NewTask) -> Command {
    Command::Submit(Box::new(new))
}

pub fn claim(id: &str, stamp: Stamp) -> Command {
    Command::Claim { id: id.into(), stamp, claimant: Some(claimant()) }
}

pub fn settlement(decision: Decision) -> Box<Settlement> {
    Box::new(Settlement { policy: Some("default".into()), ..Settlement::new("worker 1", decision) })
}

pub fn settle(id: &str, fence: i64, decision: Decision) -> Command {
    Command::Settle { id: id.into(), fence, settlement: settlement(decision) }
}

/// A failure as a decision records it.
pub fn failure(message: &str) -> Failure {
    Failure {
        fingerprint: "print".into(),
        code: Some("E7".into()),
        http_status: Some(503),
        ..Failure::new("server_error", message)
    }
}

pub fn retry_after(delay_ms: Millis, on_rung: bool) -> Decision {
    Decision::Retry {
        delay_ms,
        reason: "policy \"default\"".into(),
        on_rung,
        by_handler: false,
        failure: failure("down"),
    }
}

pub fn die(reason: DeadReason) -> Decision {
    Decision::Die { reason, failure: failure("down for good") }
}

pub fn result(text: &str) -> TaskResult {
    TaskResult { media_type: "text/plain".into(), body: text.into(), truncated: false }
}

impl Fixture {
    pub async fn all(&self, commands: Vec<Command>) -> Vec<Answer> {
        let count = commands.len();
        let answers = self.store.apply(Urgency::Normal, commands).await.unwrap();
        assert_eq!(answers.len(), count, "one answer per command");
        answers
    }

    pub async fn one(&self, command: Command) -> Answer {
        self.all(vec![command]).await.remove(0)
    }

    pub async fn task(&self, id: &str) -> Task {
        let found = self.store.get(&[id.into()]).await.unwrap().remove(0);
        found.unwrap_or_else(|| panic!("there is no task {id:?}"))
    }

    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// A new task that a worker runs.
    pub async fn running(&self, id: &str) -> Task {
        match self.one(submit(new_task(id))).await {
            Answer::Run(task) => *task,
            other => panic!("{other:?}"),
        }
    }

    /// A new task that nobody runs yet.
    pub async fn pending(&self, id: &str) -> Task {
        let answer = self.one(submit(NewTask { claimant: None, ..new_task(id) })).await;
        assert!(matches!(answer, Answer::Waiting(_)), "{answer:?}");
        self.task(id).await
    }

    /// A task that failed once and waits `delay_ms`, held by the store.
    pub async fn retrying(&self, id: &str, delay_ms: Millis) -> Task {
        let fence = self.running(id).await.state.fence;
        let answer = self.one(settle(id, fence, retry_after(delay_ms, false))).await;
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
        self.task(id).await
    }

    pub async fn dead(&self, id: &str) -> Task {
        let fence = self.running(id).await.state.fence;
        let answer = self.one(settle(id, fence, die(DeadReason::RetriesExhausted))).await;
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
        self.task(id).await
    }

    pub async fn succeeded(&self, id: &str) -> Task {
        let fence = self.running(id).await.state.fence;
        let answer = self.one(settle(id, fence, Decision::Succeed)).await;
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
        self.task(id).await
    }

    /// Inserts a row as another program does: id, type and payload, nothing else.
    pub async fn insert_row(&self, id: &str, task_type: &str, payload: &str) {
        match &self.door {
            Door::Shut => panic!("this store has no door for other programs"),
            Door::Memory(store) => store.insert_row(id, task_type, payload),
            Door::Sqlite(folder) => {
                use sqlx::{ConnectOptions, Connection};
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file_in(folder));
                let mut conn = options.connect().await.unwrap();
                let sql = "INSERT INTO tasks (id, type, payload) VALUES (?, ?, ?)";
                sqlx::query(sql).bind(id).bind(task_type).bind(payload).execute(&mut conn).await.unwrap();
                conn.close().await.unwrap();
            }
            #[cfg(feature = "postgres")]
            Door::Postgres(schema) => {
                use sqlx::Connection;
                let mut conn = schema.connect().await;
                let sql = "INSERT INTO tasks (id, type, payload) VALUES ($1, $2, $3)";
                sqlx::query(sql).bind(id).bind(task_type).bind(payload).execute(&mut conn).await.unwrap();
                conn.close().await.unwrap();
            }
        }
        // The row's times are the machine's; a moment later it is due by the clock that tests move.
        let machine = Clock::System.now();
        self.clock.set(self.now().max(machine) + 1_000);
    }
}

pub fn ids(tasks: &[Task]) -> Vec<&str> {
    tasks.iter().map(Task::id).collect()
}
