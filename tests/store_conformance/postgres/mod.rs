//! What only the PostgreSQL store promises.

mod door;
mod faults;
mod parallel;

use redeliver::store::postgres::{PostgresOptions, PostgresStore};
use redeliver::task::Settings;

use crate::server::Schema;

async fn open(schema: &Schema) -> PostgresStore {
    PostgresStore::open(&schema.url(), Settings::default(), PostgresOptions::default()).await.unwrap()
}
