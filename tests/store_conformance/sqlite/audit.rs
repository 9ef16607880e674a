//! The audit cannot be rewritten, not even by a program that has the file.

use redeliver::store::access::AuditFilter;
use sqlx::{ConnectOptions, Connection};

use crate::access::entry;
use crate::fixture::{self, file_in};

#[tokio::test]
async fn the_audit_is_append_only_for_whoever_has_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = redeliver::store::sqlite::SqliteStore::open(
        &fixture::url_in(&folder),
        redeliver::task::Settings::default(),
        redeliver::store::sqlite::SqliteOptions::default(),
    )
    .await
    .unwrap();
    use redeliver::store::access::AccessStore;
    store.record(entry("li", "task.cancel", "t1")).await.unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file_in(&folder));
    let mut conn = options.connect().await.unwrap();
    for sql in
        ["UPDATE audit SET who = 'nobody'", "DELETE FROM audit", "INSERT OR REPLACE INTO audit SELECT * FROM audit"]
    {
        let refused = sqlx::query(sql).execute(&mut conn).await;
        assert!(refused.unwrap_err().to_string().contains("append-only"), "{sql}");
    }
    conn.close().await.unwrap();
    let page = store.audit(&AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].entry.who, "li");
}
