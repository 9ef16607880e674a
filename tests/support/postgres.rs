//! A real PostgreSQL to test against, with a schema for each test.
//!
//! The server is the one that `REDELIVER_TEST_POSTGRES` names (`tests/run` starts one). Without it a test that needs one is skipped, says so on
//! stderr, and writes a line to the file that `REDELIVER_TEST_SKIP_LOG` names; with `REDELIVER_TEST_REQUIRE_POSTGRES=1` it fails instead.

#![allow(dead_code, reason = "every test program uses another part of this, so none could `expect` it")]

use std::io::Write as _;
use std::str::FromStr as _;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

/// A schema of its own, dropped with this.
pub struct Schema {
    server: String,
    pub name: String,
}

impl Schema {
    /// A new one on the server that the environment names; `None` after saying that the test is skipped.
    pub async fn new() -> Option<Schema> {
        let Ok(server) = std::env::var("REDELIVER_TEST_POSTGRES") else {
            skip("REDELIVER_TEST_POSTGRES is not set");
            return None;
        };
        let name = format!("test_{}", uuid::Uuid::now_v7().simple());
        let mut conn = connect(&server).await;
        conn.execute(AssertSqlSafe(format!("CREATE SCHEMA {name}"))).await.expect("a schema is made");
        conn.close().await.expect("the connection closes");
        Some(Schema { server, name })
    }

    /// The URL of a store in it.
    pub fn url(&self) -> String {
        self.url_with(&self.server)
    }

    /// The same, by way of another address.
    pub fn url_with(&self, server: &str) -> String {
        let sign = if server.contains('?') { '&' } else { '?' };
        format!("{server}{sign}options=-csearch_path%3D{}", self.name)
    }

    /// A connection of another program.
    pub async fn connect(&self) -> PgConnection {
        connect(&self.url()).await
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (server, sql) = (self.server.clone(), format!("DROP SCHEMA {} CASCADE", self.name));
        // A test's own runtime may be on its way out.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let mut conn = PgConnectOptions::from_str(&server).expect("a URL").connect().await?;
                conn.execute("SET lock_timeout = 5000").await?;
                conn.execute(AssertSqlSafe(sql)).await.map(drop)
            })
        });
        // A server that the test has stopped keeps its schema; it is the test's own.
        if let Ok(Err(error)) = dropping.join() {
            eprintln!("a schema stays behind: {error}");
        }
    }
}

/// A server of a test's own, to be stopped and started.
pub struct PrivateServer {
    pub url: String,
    ctl: String,
}

impl PrivateServer {
    /// Starts one; `None` after saying that the test is skipped.
    pub fn start() -> Option<PrivateServer> {
        if std::env::var("REDELIVER_TEST_POSTGRES").is_err() {
            skip("REDELIVER_TEST_POSTGRES is not set");
            return None;
        }
        let start = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/postgres/start");
        let output = std::process::Command::new("bash")
            .arg(start)
            .args(["--owner", &std::process::id().to_string()])
            .stderr(std::process::Stdio::inherit())
            .output()
            .expect("bash runs");
        assert!(output.status.success(), "{start} failed");
        let text = String::from_utf8(output.stdout).expect("its output is text");
        let value = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
        };
        Some(PrivateServer { url: value("REDELIVER_TEST_POSTGRES"), ctl: value("REDELIVER_TEST_POSTGRES_CTL") })
    }

    /// Host and port.
    pub fn address(&self) -> String {
        let options = PgConnectOptions::from_str(&self.url).expect("a URL");
        format!("{}:{}", options.get_host(), options.get_port())
    }

    /// The URL by way of another address.
    pub fn url_at(&self, address: &str) -> String {
        self.url.replace(&self.address(), address)
    }

    /// Runs one verb of `tests/postgres/ctl`.
    pub async fn ctl(&self, verb: &str) {
        let status = tokio::process::Command::new(&self.ctl).arg(verb).status().await.expect("ctl runs");
        assert!(status.success(), "ctl {verb} failed");
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        if let Err(error) = std::process::Command::new(&self.ctl).arg("destroy").status() {
            eprintln!("a private server could not be destroyed: {error}");
        }
    }
}

async fn connect(url: &str) -> PgConnection {
    let options = PgConnectOptions::from_str(url).expect("a URL");
    options.disable_statement_logging().connect().await.expect("the test server takes a connection")
}

/// Like `support::skip`, for what needs a PostgreSQL.
pub fn skip(reason: &str) {
    let required = std::env::var("REDELIVER_TEST_REQUIRE_POSTGRES").as_deref() == Ok("1");
    assert!(!required, "may not be skipped: {reason}");
    let line = format!("SKIPPED: {}: {reason}\n", std::thread::current().name().unwrap_or("a test"));
    // Past the test harness, which swallows what a passing test prints.
    std::io::stderr().write_all(line.as_bytes()).expect("stderr takes a line");
    if let Ok(path) = std::env::var("REDELIVER_TEST_SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).expect("the skip log opens");
        file.write_all(line.as_bytes()).expect("the skip log takes a line");
    }
}
