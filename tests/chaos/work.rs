//! What producers, people and strangers do. The producer is the safe one of docs/publishing.md: confirms, `mandatory`,
//! ids of its own, and what nobody has confirmed is sent again; after the broker has lost queues it sends again what
//! has no row.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use serde_json::json;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection, SqlitePool};

use crate::evidence::texts;
use crate::ground::Ground;
use crate::plan::{Act, Door, Plan, Random, Work};

/// How long one publish may take before it counts as failed.
const CONFIRM: Duration = Duration::from_secs(3);
/// How long a producer goes on trying before the run itself is called broken.
const GIVES_UP: Duration = Duration::from_secs(120);
/// Between two looks for something to do.
const LOOK: Duration = Duration::from_millis(50);

/// Asks the producer to send again what was lost, and to end.
#[derive(Default)]
pub struct Orders {
    audits: AtomicU64,
    over: AtomicBool,
}

impl Orders {
    /// The broker has lost queues: what is without a row has to be sent again.
    pub fn audit(&self) {
        self.audits.fetch_add(1, Ordering::SeqCst);
    }

    /// Nothing will be lost any more.
    pub fn over(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// What the producer has done.
#[derive(Debug, Default)]
pub struct Book {
    pub published: usize,
    /// Publishes that were not confirmed and so were tried again.
    pub unconfirmed: usize,
    /// Confirmed ones that had no row after the broker lost queues.
    pub sent_again: usize,
}

/// Sends the plan's messages, each until it is confirmed. Ends when all are, and orders are over.
pub async fn produce(ground: &Ground, plan: &Plan, began: Instant, orders: &Orders) -> Book {
    let mut line = Line::new(ground.rig.vhost.url());
    let mut book = Book::default();
    let mut waiting = plan.work.iter().filter(|work| work.door != Door::Row).peekable();
    let mut conflicts: Vec<&Work> = Vec::new();
    let mut confirmed: Vec<&Work> = Vec::new();
    let mut audited = 0;
    loop {
        let over = orders.over.load(Ordering::SeqCst);
        let audits = orders.audits.load(Ordering::SeqCst);
        while let Some(work) = waiting.next_if(|work| began.elapsed() >= Duration::from_millis(work.at)) {
            if work.door == Door::Conflict {
                conflicts.push(work);
                continue;
            }
            for _ in 0..work.times {
                line.publish(ground, work, &mut book).await;
            }
            confirmed.push(work);
        }
        if !conflicts.is_empty() {
            // A claim that came before the task itself would be the task.
            let known = known(&ground.rows).await;
            let (ripe, unripe) =
                conflicts.into_iter().partition(|work| work.claims.as_ref().is_some_and(|id| known.contains(id)));
            conflicts = unripe;
            for work in ripe {
                line.publish(ground, work, &mut book).await;
                confirmed.push(work);
            }
        }
        if audits > audited {
            audited = audits;
            let known = known(&ground.rows).await;
            for work in confirmed.iter().filter(|work| !known.contains(&work.name)) {
                line.publish(ground, work, &mut book).await;
                book.sent_again += 1;
            }
        }
        if over && waiting.peek().is_none() && conflicts.is_empty() && audited == orders.audits.load(Ordering::SeqCst) {
            line.close().await;
            return book;
        }
        if began.elapsed() > Duration::from_millis(plan.length) + 2 * GIVES_UP {
            let claimed: Vec<_> = conflicts.iter().map(|work| &work.claims).collect();
            panic!("rows that conflicts claim do not come: {claimed:?}; {}", ground.queues().await);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The names of all that has a row: the ids of tasks, the message ids of what was refused.
pub async fn known(rows: &SqlitePool) -> HashSet<String> {
    texts(rows, "SELECT coalesce(raw_message_id, id) FROM tasks").await.into_iter().collect()
}

/// A connection to the broker past all proxies, made again whenever it breaks.
struct Line {
    url: String,
    open: Option<(Connection, Channel)>,
}

impl Line {
    fn new(url: String) -> Line {
        Line { url, open: None }
    }

    async fn publish(&mut self, ground: &Ground, work: &Work, book: &mut Book) {
        let body = match work.door {
            Door::Malformed => format!("{{\"id\": \"{}\", ", work.name),
            _ => work.envelope().to_string(),
        };
        let properties = BasicProperties::default().with_message_id(work.name.as_str().into());
        let trying = Instant::now();
        while !self.send("redeliver.submit", work.topic, body.as_bytes(), properties.clone()).await {
            book.unconfirmed += 1;
            if trying.elapsed() > GIVES_UP {
                panic!("no confirm within {GIVES_UP:?} for {}; {}", work.name, ground.queues().await);
            }
            tokio::time::sleep(2 * LOOK).await;
        }
        book.published += 1;
    }

    /// Whether it was confirmed and did not come back.
    async fn send(&mut self, exchange: &str, key: &str, body: &[u8], properties: BasicProperties) -> bool {
        let sent = tokio::time::timeout(CONFIRM, self.try_send(exchange, key, body, properties)).await;
        let confirmed = matches!(sent, Ok(Ok(Confirmation::Ack(None))));
        if !matches!(sent, Ok(Ok(_))) {
            self.open = None;
        }
        confirmed
    }

    async fn try_send(
        &mut self,
        exchange: &str,
        key: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> lapin::Result<Confirmation> {
        if self.open.is_none() {
            let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            self.open = Some((connection, channel));
        }
        let (_, channel) = self.open.as_ref().expect("just opened");
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = properties.with_delivery_mode(2);
        channel.basic_publish(exchange.into(), key.into(), options, body, properties).await?.await
    }

    async fn close(&mut self) {
        if let Some((connection, _)) = self.open.take() {
            drop(tokio::time::timeout(CONFIRM, connection.close(200, "done".into())).await);
        }
    }
}

/// Inserts the plan's rows as another program does, each until its commit succeeds.
pub async fn insert(ground: &Ground, plan: &Plan, began: Instant) {
    for work in plan.work.iter().filter(|work| work.door == Door::Row) {
        tokio::time::sleep_until((began + Duration::from_millis(work.at)).into()).await;
        let trying = Instant::now();
        while let Err(error) = try_insert(ground, work).await {
            assert!(trying.elapsed() < GIVES_UP, "{} cannot be inserted: {error}", work.name);
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn try_insert(ground: &Ground, work: &Work) -> sqlx::Result<()> {
    let options = SqliteConnectOptions::new().filename(ground.disk.store()).busy_timeout(Duration::from_secs(2));
    let mut conn = SqliteConnection::connect_with(&options).await?;
    let envelope = work.envelope();
    // A commit that failed may have been one all the same.
    sqlx::query("INSERT INTO tasks (id, type, payload, labels) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING")
        .bind(&work.name)
        .bind(work.topic)
        .bind(envelope["payload"].to_string())
        .bind(envelope["labels"].to_string())
        .execute(&mut conn)
        .await?;
    conn.close().await
}

/// What people and strangers have done.
#[derive(Debug, Default)]
pub struct Deeds {
    pub replayed: u64,
    pub forged: usize,
    /// Commands that broke off in a way no command may.
    pub crashed: Vec<String>,
}

/// Does the plan's acts. A command that finds store or broker away may fail; it may not crash.
pub async fn act(ground: &Ground, plan: &Plan, began: Instant) -> Deeds {
    let mut deeds = Deeds::default();
    let mut random = Random::of(plan.seed, 5);
    let mut line = Line::new(ground.rig.vhost.url());
    for (at, act) in &plan.acts {
        tokio::time::sleep_until((began + Duration::from_millis(*at)).into()).await;
        match act {
            Act::Replay => {
                let said = command(ground, &mut deeds, &["dlq", "replay", "--all", "--yes", "--reason", "chaos"]).await;
                deeds.replayed += said["replayed"].as_u64().unwrap_or(0);
            }
            Act::Discard => {
                let oldest = "SELECT id FROM tasks WHERE status = 'dead' ORDER BY seq LIMIT 2";
                for id in texts(&ground.rows, oldest).await {
                    command(ground, &mut deeds, &["dlq", "discard", &id, "--yes", "--reason", "chaos"]).await;
                }
            }
            Act::RunNow => {
                let latest = "SELECT id FROM tasks WHERE status = 'retry_waiting' ORDER BY due_at DESC LIMIT 1";
                for id in texts(&ground.rows, latest).await {
                    command(ground, &mut deeds, &["task", "retry", &id, "--yes", "--reason", "chaos"]).await;
                }
            }
            Act::Forge => {
                for (lane, body, name) in forgeries(plan, &mut random, began) {
                    let wake_up =
                        BasicProperties::default().with_type("redeliver.wake-up".into()).with_message_id(name.into());
                    deeds.forged += usize::from(line.send("", &lane, body.as_bytes(), wake_up).await);
                }
            }
        }
    }
    line.close().await;
    deeds
}

async fn command(ground: &Ground, deeds: &mut Deeds, arguments: &[&str]) -> serde_json::Value {
    let mut all = vec!["-o", "json", "--timeout", "20s"];
    all.extend(arguments);
    let said = ground.rig.run(&all).await;
    // 0 done, 1 failed, 3 partly, 5 not found, 6 state changed meanwhile, 7 store or broker away.
    if !matches!(said.code, Some(0 | 1 | 3 | 5 | 6 | 7)) {
        deeds.crashed.push(format!("{arguments:?}: {said:?}"));
    }
    serde_json::from_str(&said.stdout).unwrap_or_default()
}

/// Wake-ups that nobody has sent: right and wrong stamps of tasks there are, one of a task that never was, and one that
/// cannot be read.
fn forgeries(plan: &Plan, random: &mut Random, began: Instant) -> Vec<(String, String, String)> {
    let so_far = plan.work.iter().take_while(|work| Duration::from_millis(work.at) < began.elapsed());
    let ids: Vec<&str> = so_far.filter(|work| work.door != Door::Malformed).map(|work| work.name.as_str()).collect();
    let mut all = Vec::new();
    for number in 0..6 {
        let lane =
            format!("redeliver.{}.{}", ["default", "bulk"][random.index(2)], ["tasks", "retries"][random.index(2)]);
        let id = if number == 0 || ids.is_empty() { "chaos-never" } else { ids[random.index(ids.len())] };
        let stamp = |number: u64| if number == 1 { json!("1") } else { json!(number % 3) };
        let generation = random.below(2) * 2;
        let retry_count = stamp(if number == 1 { 1 } else { 2 + random.below(6) });
        let body = json!({"task_id": id, "generation": generation, "retry_count": retry_count});
        all.push((lane, body.to_string(), format!("forged-{}-{}", began.elapsed().as_millis(), number)));
    }
    all
}
