//! From a URL to a database file of the right schema, or to the reason why there is none.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::OpenFlags;
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::store::StoreError;
use crate::store::sql::fault::Fault;

/// The migrations, oldest first. A database at version n has had the first n.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../migrations/sqlite/0001_tasks.sql"),
    include_str!("../../../migrations/sqlite/0002_triage.sql"),
    include_str!("../../../migrations/sqlite/0003_access.sql"),
    include_str!("../../../migrations/sqlite/0004_notices.sql"),
];

/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 128;
/// The pages that the log may grow to before a commit moves them into the file (4 KiB each).
const CHECKPOINT_PAGES: i64 = 4000;
/// What stays of the log file after that.
const LOG_BYTES: i64 = 64 << 20;
/// The page caches of the writer and of each reader, in KiB. They fill as the file grows and are never given back; what they do not
/// hold comes from the system's own cache.
const CACHE_KIB: i64 = -2048;
const READER_CACHE_KIB: &str = "-1024";

/// Marks a file as ours: "rdlv".
const APPLICATION_ID: i64 = 0x7264_6c76;

/// Versions before this can corrupt a database when a log is reset while another process writes.
const OLDEST_SQLITE: [u32; 3] = [3, 51, 3];

/// The schema version this program writes.
pub(super) fn known_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// The file that a store URL names: `sqlite://relative.db`, `sqlite:///absolute.db`, or the same without the slashes.
///
/// # Errors
/// When it is no such URL.
pub(super) fn path_of(url: &str) -> Result<PathBuf, StoreError> {
    let unusable = |reason: &str| StoreError::Unusable { place: url.to_owned(), reason: reason.to_owned() };
    let rest = url.strip_prefix("sqlite:").ok_or_else(|| unusable("its URL does not begin with sqlite:"))?;
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() || path.ends_with('/') {
        return Err(unusable("its URL names no file; write sqlite://redeliver.db or sqlite:///var/lib/redeliver.db"));
    }
    if path.contains(":memory:") {
        return Err(unusable("a database in memory is lost with the process; name a file"));
    }
    if path.contains('?') {
        return Err(unusable("options after ? are not supported"));
    }
    Ok(PathBuf::from(path))
}

/// How every connection is opened.
pub(super) fn connect_options(path: &Path, busy_timeout: Duration) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(busy_timeout)
        // An acknowledged task must survive a power cut; grouped commits make it cheap.
        .synchronous(SqliteSynchronous::Full)
        // On macOS a plain fsync leaves the drive's own cache behind; elsewhere these change nothing.
        .pragma("fullfsync", "on")
        .pragma("checkpoint_fullfsync", "on")
        .foreign_keys(false)
        .pragma("temp_store", "memory")
        .pragma("cache_size", READER_CACHE_KIB)
        .statement_cache_capacity(STATEMENTS)
        .disable_statement_logging()
}

/// How the writer opens its connection: as all others, and the log is its business.
pub(super) fn writer(path: &Path, busy_timeout: Duration) -> Result<rusqlite::Connection, Fault> {
    // One thread uses it, so SQLite needs no locks of its own.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = rusqlite::Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(busy_timeout)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.execute_batch(&format!(
        "PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON; PRAGMA foreign_keys = OFF; \
         PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}; \
         PRAGMA journal_size_limit = {LOG_BYTES}; PRAGMA cache_size = {CACHE_KIB}"
    ))?;
    Ok(conn)
}

/// Creates the file if it may, switches it to a write-ahead log, and brings its schema up to date.
///
/// # Errors
/// Everything that a person has to put right, each by its name.
pub(super) async fn prepare(path: &Path, create: bool, busy_timeout: Duration) -> Result<(), StoreError> {
    let nothing = match std::fs::metadata(path) {
        Ok(file) if file.len() > 0 => None,
        // Such as a copy leaves that was broken off.
        Ok(_) => Some("it is an empty file"),
        Err(_) => Some("there is no such file"),
    };
    if let Some(reason) = nothing.filter(|_| !create) {
        return Err(Fault::Unusable(reason.into()).at(path.display().to_string()));
    }
    let options = connect_options(path, busy_timeout).create_if_missing(create);
    let mut conn = options.connect().await.map_err(|error| Fault::from(error).at(path.display().to_string()))?;
    let prepared = prepare_connection(&mut conn, busy_timeout).await;
    if let Err(error) = conn.close().await {
        tracing::debug!(%error, "closing the bootstrap connection");
    }
    prepared.map_err(|fault| match fault {
        // There is no row to blame yet.
        Fault::Row(reason) => Fault::Unusable(reason).at(path.display().to_string()),
        fault => fault.at(path.display().to_string()),
    })
}

async fn prepare_connection(conn: &mut SqliteConnection, busy_timeout: Duration) -> Result<(), Fault> {
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut *conn).await?;
    check_sqlite_version(&version)?;
    check_schema(conn).await?;
    write_ahead_log(conn, busy_timeout).await?;
    migrate(conn).await
}

fn check_sqlite_version(version: &str) -> Result<(), Fault> {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let found: [u32; 3] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    if found < OLDEST_SQLITE {
        let [major, minor, patch] = OLDEST_SQLITE;
        return Err(Fault::Unusable(format!(
            "this program was linked to SQLite {version}, which can damage a database that several processes write; \
             {major}.{minor}.{patch} or later is needed"
        )));
    }
    Ok(())
}

/// The schema version found. Refuses a newer one, and files that are not ours.
async fn check_schema(conn: &mut SqliteConnection) -> Result<i64, Fault> {
    // In one statement, which sees one state of the file: between two, another process may have made the schema.
    let (found, application, tables): (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT user_version FROM pragma_user_version), (SELECT application_id FROM pragma_application_id), \
         (SELECT count(*) FROM sqlite_schema)",
    )
    .fetch_one(&mut *conn)
    .await?;
    if application != APPLICATION_ID && (tables > 0 || found > 0) {
        return Err(Fault::Unusable("it is a database of another program".into()));
    }
    let known = known_version();
    if found > known {
        return Err(Fault::Unusable(format!(
            "its schema has version {found} and this program knows versions up to {known}; use a newer redeliver"
        )));
    }
    Ok(found)
}

/// The switch needs the file for itself and does not wait for it, so several programs that start at once take turns here.
async fn write_ahead_log(conn: &mut SqliteConnection, busy_timeout: Duration) -> Result<(), Fault> {
    let begun = Instant::now();
    loop {
        let switched = sqlx::query_scalar::<_, String>("PRAGMA journal_mode = WAL").fetch_one(&mut *conn).await;
        match switched.map_err(Fault::from) {
            Ok(mode) if mode.eq_ignore_ascii_case("wal") => return Ok(()),
            Ok(mode) => {
                return Err(Fault::Unusable(format!("its journal cannot be a write-ahead log, it stays {mode:?}")));
            }
            Err(Fault::Transient(reason)) if begun.elapsed() > busy_timeout => return Err(Fault::Transient(reason)),
            Err(Fault::Transient(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(fault) => return Err(fault),
        }
    }
}

/// Runs the missing migrations in one transaction. SQLite's own write lock lets one program do it; the others then find it done.
async fn migrate(conn: &mut SqliteConnection) -> Result<(), Fault> {
    if check_schema(conn).await? == known_version() {
        return Ok(());
    }
    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
    let found = check_schema(&mut tx).await?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        sqlx::raw_sql(*migration).execute(&mut *tx).await?;
    }
    let mark = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {}", known_version());
    sqlx::raw_sql(sqlx::AssertSqlSafe(mark)).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}
