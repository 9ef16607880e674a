//! From a URL to a connection to a database of the right schema, or to the reason why there is none.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Executor, Row};

use super::PostgresOptions;
use crate::store::sql::fault::Fault;
use crate::store::{Clock, StoreError};

/// The migrations, oldest first. A database at version n has had the first n.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../migrations/postgres/0001_tasks.sql"),
    include_str!("../../../migrations/postgres/0002_triage.sql"),
    include_str!("../../../migrations/postgres/0003_access.sql"),
    include_str!("../../../migrations/postgres/0004_notices.sql"),
];

/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 200;
/// `pg_current_snapshot` and what else is used has been there since.
const OLDEST_SERVER: i32 = 130_000;

/// The shortest wait for a server.
const SHORTEST: Duration = Duration::from_millis(500);

fn part(lease: Duration, parts: u32) -> Duration {
    (lease / parts).max(SHORTEST)
}

/// The schema version this program writes.
pub(super) fn known_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Questions,
    Writing,
}

/// How connections are made.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) connect: PgConnectOptions,
    pub(super) timeout: Duration,
    pub(super) statement_timeout: Duration,
    /// How long the answer to a COMMIT is waited for: the leases of what it claimed run on meanwhile.
    pub(super) commit_timeout: Duration,
    /// How long a transaction may stand still before the server ends it, with the locks it has on rows whose leases run on.
    pub(super) idle_timeout: Duration,
    /// Host and database, without password.
    pub(super) place: String,
}

impl Server {
    /// # Errors
    /// When it is no such URL.
    pub(super) fn of(url: &str, options: &PostgresOptions, lease: Duration) -> Result<Server, StoreError> {
        let connect = PgConnectOptions::from_str(url).map_err(|error| StoreError::Unusable {
            place: crate::config::mask(url),
            reason: format!("its URL cannot be read ({error}); write postgres://user:password@host:5432/database"),
        })?;
        let host = connect.get_socket().map_or_else(
            || format!("{}:{}", connect.get_host(), connect.get_port()),
            |socket| socket.display().to_string(),
        );
        let database = connect.get_database().unwrap_or_else(|| connect.get_username());
        let place = format!("postgres://{}@{host}/{database}", connect.get_username());
        let connect =
            connect.application_name("redeliver").statement_cache_capacity(STATEMENTS).disable_statement_logging();
        let (timeout, statement_timeout) = (options.connect_timeout, options.statement_timeout);
        Ok(Server {
            connect,
            timeout,
            statement_timeout,
            commit_timeout: (statement_timeout + timeout).min(part(lease, 3)),
            idle_timeout: statement_timeout.min(part(lease, 3)),
            place,
        })
    }

    /// The same for heartbeats. Over a connection that has died without a word one try after the other has to fail, and a new
    /// connection has to be made, before others may end the leases; so no step may take longer than a small part of a lease.
    pub(super) fn hurried(&self, lease: Duration) -> Server {
        let part = part(lease, 8);
        Server {
            timeout: self.timeout.min(part),
            statement_timeout: self.statement_timeout.min(part),
            commit_timeout: self.commit_timeout.min(part),
            idle_timeout: self.idle_timeout.min(part),
            ..self.clone()
        }
    }

    /// How long the answer to a statement is waited for: as long as the server itself would let it run, and a moment more.
    pub(super) fn patience(&self) -> Duration {
        self.statement_timeout + self.timeout
    }

    /// Settings of a connection, as one text. Plans go by indexes, whatever statistics say of a table that was empty a moment ago;
    /// what a vanished process has locked is free again soon; and a commit is on the disk.
    pub(super) fn settings(&self, purpose: Use) -> String {
        let (ms, idle_ms) = (self.statement_timeout.as_millis(), self.idle_timeout.as_millis());
        let mut text = format!(
            "SET jit = off; SET enable_seqscan = off; SET statement_timeout = {ms}; SET lock_timeout = {ms}; \
             SET idle_in_transaction_session_timeout = {idle_ms}; SET client_min_messages = warning; \
             SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';"
        );
        text.push_str(match purpose {
            Use::Questions => "SET plan_cache_mode = force_custom_plan;",
            Use::Writing => "SET enable_hashjoin = off; SET enable_mergejoin = off;",
        });
        text
    }

    /// A connection of its own.
    pub(super) async fn connect(&self, purpose: Use) -> Result<PgConnection, Fault> {
        let connected = async {
            let mut conn = self.connect.connect().await?;
            conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(self.settings(purpose)))).await?;
            Ok::<_, sqlx::Error>(conn)
        };
        match tokio::time::timeout(self.timeout, connected).await {
            Ok(connected) => connected.map_err(|error| match Fault::from(error) {
                // There is no row to blame.
                Fault::Row(reason) => Fault::Unusable(reason),
                fault => fault,
            }),
            Err(_) => Err(Fault::Transient(format!("it does not answer within {:?}", self.timeout))),
        }
    }

    /// Brings the schema up to date, or finds that there is none. Returns the connection, for what is next.
    ///
    /// # Errors
    /// Everything that a person has to put right, each by its name.
    pub(super) async fn prepare(&self, create: bool) -> Result<PgConnection, Fault> {
        let mut conn = self.connect(Use::Questions).await?;
        let row = sqlx::query(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'), \
                               current_setting('server_encoding'), current_schema()",
        )
        .fetch_one(&mut conn)
        .await?;
        let (number, version): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        if number < OLDEST_SERVER {
            return Err(Fault::Unusable(format!("it is PostgreSQL {version}; 13 or later is needed")));
        }
        let encoding: String = row.try_get(2)?;
        if encoding != "UTF8" {
            let text = format!("its encoding is {encoding}; create the database with `createdb -E UTF8 -T template0`");
            return Err(Fault::Unusable(text));
        }
        let schema: Option<String> = row.try_get(3)?;
        if schema.is_none() {
            let text =
                "no schema of its search_path exists; create it with CREATE SCHEMA, or mend options= in store.url";
            return Err(Fault::Unusable(text.into()));
        }
        match check_schema(&mut conn).await? {
            Some(found) if found == known_version() => {}
            None if !create => return Err(Fault::Unusable(super::NO_STORE.into())),
            _ => migrate(&mut conn).await?,
        }
        Ok(conn)
    }
}

/// The schema version found; `None` where there is no store yet. Refuses a newer one, and tables that are not ours.
async fn check_schema(conn: &mut PgConnection) -> Result<Option<i64>, Fault> {
    let ours: bool =
        sqlx::query_scalar("SELECT to_regclass('redeliver_schema') IS NOT NULL").fetch_one(&mut *conn).await?;
    if ours {
        let found: i64 = sqlx::query_scalar("SELECT version FROM redeliver_schema").fetch_one(&mut *conn).await?;
        let known = known_version();
        if found > known {
            return Err(Fault::Unusable(format!(
                "its schema has version {found} and this program knows versions up to {known}; use a newer redeliver"
            )));
        }
        return Ok(Some(found));
    }
    let taken: Vec<String> = sqlx::query_scalar(
        "SELECT relname::text FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relname = ANY($1) ORDER BY 1",
    )
    .bind(["tasks", "attempts", "attachments", "results", "tokens", "sessions", "audit", "policies", "nodes", "edits"].map(String::from))
    .fetch_all(&mut *conn)
    .await?;
    if !taken.is_empty() {
        return Err(Fault::Unusable(format!(
            "its schema has tables of another program with names that redeliver uses ({}); give it a schema of its own: \
             CREATE SCHEMA redeliver, and ?options=-csearch_path%3Dredeliver at the end of store.url",
            taken.join(", ")
        )));
    }
    Ok(None)
}

/// Runs the missing migrations in one transaction. A lock lets one program do it; the others then find it done.
async fn migrate(conn: &mut PgConnection) -> Result<(), Fault> {
    let mut tx = conn.begin().await?;
    tx.execute("SELECT pg_advisory_xact_lock(hashtext(current_schema()), 0)").await?;
    let found = check_schema(&mut tx).await?;
    if found.is_none() {
        tx.execute("CREATE TABLE redeliver_schema (version BIGINT NOT NULL); INSERT INTO redeliver_schema VALUES (0)")
            .await?;
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(found.unwrap_or(0)).unwrap_or(0)) {
        tx.execute(sqlx::raw_sql(*migration)).await?;
    }
    sqlx::query("UPDATE redeliver_schema SET version = $1").bind(known_version()).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

/// Reads the server's clock and teaches it to ours.
pub(super) async fn read_clock(conn: &mut PgConnection, clock: &Clock) -> Result<(), Fault> {
    let Clock::Server(clock) = clock else { return Ok(()) };
    let asked = std::time::Instant::now();
    let sql = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";
    let told: i64 = sqlx::query_scalar(sql).fetch_one(conn).await?;
    clock.learn(told, asked);
    Ok(())
}
