//! What only the SQLite store promises: the public door, several processes on one file, and a name for every fault.

mod audit;
mod door;
mod faults;
mod processes;
mod unreadable;

use std::path::Path;
use std::process::{Command, Output};

use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::task::Settings;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqliteConnection};
use tempfile::TempDir;

use crate::fixture::{file_in, url_in};

async fn open(folder: &TempDir) -> SqliteStore {
    open_with(folder, SqliteOptions::default()).await
}

async fn open_with(folder: &TempDir, options: SqliteOptions) -> SqliteStore {
    SqliteStore::open(&url_in(folder), Settings::default(), options).await.unwrap()
}

/// A connection past the store, as another program has.
async fn stranger(folder: &TempDir) -> SqliteConnection {
    connect(&file_in(folder)).await
}

async fn connect(file: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(file).create_if_missing(true).connect().await.unwrap()
}

/// Runs a program that a test needs. `None`, said on stderr, when it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("SKIPPED: {program} cannot be run: {error}");
            None
        }
    }
}
