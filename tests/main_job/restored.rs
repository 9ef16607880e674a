//! One of the two is lost: the store comes back from an older copy and the broker is empty, or the store is gone and the broker is not.
//!
//! The steps are those of docs/operations.md, cut out of the page and run as they stand, but for where the files lie.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{Rig, as_i64, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::{Arrival, Reply, ThirdParty};

const GUIDE: &str = include_str!("../../docs/operations.md");
const DEAD_QUEUE: &str = "redeliver.default.dead";
const UNENDED: &str = "SELECT count(*) FROM tasks WHERE status IN ('pending', 'running', 'retry_waiting')";
const WAITING: &str = "SELECT count(*) FROM tasks WHERE status = 'retry_waiting'";
const MIRRORED: &str = "SELECT count(*) FROM tasks WHERE status = 'dead' AND dlq_copy = 'present'";

/// Runs the block behind `<!-- snippet: NAME -->` in the rig's folder, without the lines that need systemd.
async fn run_guide(name: &str, folder: &Path) {
    let (_, rest) = GUIDE.split_once(&format!("<!-- snippet: {name} -->")).expect("the guide has the snippet");
    let block: String = rest
        .trim_start()
        .lines()
        .skip(1)
        .take_while(|line| !line.starts_with("```"))
        .filter(|line| !line.starts_with("systemctl"))
        .map(|line| format!("{line}\n"))
        .collect();
    let here = folder.display().to_string();
    let script = block
        .replace("/var/lib/redeliver/redeliver.db", &format!("{here}/store.db"))
        .replace("/var/backups", &here)
        .replace("redeliver ", &format!("{} --config {here}/redeliver.toml ", env!("CARGO_BIN_EXE_redeliver")));
    let run = tokio::process::Command::new("bash").args(["-euc", &script]).current_dir(folder).output();
    let output =
        tokio::time::timeout(Duration::from_secs(60), run).await.expect("the snippet ends").expect("bash runs");
    assert!(output.status.success(), "{script}{}", String::from_utf8_lossy(&output.stderr));
}

/// `wrong` tasks are unwelcome, the others get `reply`.
fn rule(reply: fn() -> Reply) -> impl Fn(&Arrival) -> Reply + Send + Sync + 'static {
    move |arrival| if arrival.task.starts_with("wrong") { Reply::unwelcome() } else { reply() }
}

fn settings(party: &ThirdParty, step: &str, retries: usize) -> String {
    format!(
        "[worker]\nlease = \"10s\"\n\n[scheduler]\ngrace = \"2s\"\npatience = \"2s\"\nmax_patience = \"20s\"\nslack = \"2s\"\n{}[[policy]]\nname = \"p\"\n\
         max_retries = {retries}\nbackoff = {{ steps = [\"{step}\"] }}\n",
        party.route("10s")
    )
}

#[tokio::test]
async fn every_task_of_an_older_copy_ends_after_the_store_was_restored_and_the_broker_emptied() {
    with_vhost(async |vhost| {
        let n = sized(2_000, 60);
        let party = ThirdParty::start(rule(Reply::refusal)).await;
        // Nobody ends before the copy is taken, however long that takes.
        let mut rig = Rig::new(&vhost, &settings(&party, "4s", 1_000)).await;
        let mut worker = rig.worker();
        rig.publish_many("wrong", 5).await;
        rig.publish_many("task", n).await;
        let tried = "SELECT count(DISTINCT task_id) FROM attempts";
        rig.until_number(Duration::from_secs(120), tried, as_i64(n) + 5).await;
        rig.until_number(Duration::from_secs(60), MIRRORED, 5).await;
        rig.insert_many("inserted", 10).await;
        // While the worker works, as the page promises.
        run_guide("backup", rig.folder()).await;
        let later = rig.number("SELECT count(*) FROM tasks").await;
        rig.publish_many("after", 20).await;
        rig.until_number(Duration::from_secs(60), "SELECT count(*) FROM tasks", later + 20).await;
        assert!(worker.stop(Duration::from_secs(30)).await.success());

        rig.replace_store(async |folder| run_guide("restore", folder).await).await;
        for name in ["tasks", "retries", "delay.4000", "rejected", "dead"] {
            rig.vhost.delete_queue(&format!("redeliver.default.{name}")).await;
        }
        let held = rig.number("SELECT count(*) FROM tasks").await;
        let unended = rig.number(UNENDED).await;
        assert_eq!((unended, held), (as_i64(n) + 10, as_i64(n) + 15), "the copy knows nothing of what came after it");
        party.now(rule(Reply::good));
        let began = std::time::Instant::now();
        let _worker = rig.worker();
        rig.until_number(Duration::from_secs(120), UNENDED, 0).await;
        report(&format!("restored: {unended} unfinished of {held} tasks ended {:?} after the start", began.elapsed()));
        assert_eq!(rig.number("SELECT count(*) FROM tasks").await, held);
        assert_eq!(rig.number("SELECT count(*) FROM tasks WHERE status = 'succeeded'").await, held - 5);
        // Workers fill it by themselves within a minute or two; the page says how not to wait.
        rig.json(&["dlq", "sync", "--yes", "--reason", "restored"]).await;
        rig.until_ready(Duration::from_secs(120), DEAD_QUEUE, 5).await;
    })
    .await;
}

#[tokio::test]
async fn what_the_broker_still_has_is_taken_in_again_after_the_store_was_lost() {
    with_vhost(async |vhost| {
        let party = ThirdParty::start(rule(Reply::refusal)).await;
        let mut rig = Rig::new(&vhost, &settings(&party, "12s", 1)).await;
        let mut worker = rig.worker();
        rig.publish_many("wrong", 7).await;
        rig.until_number(Duration::from_secs(60), MIRRORED, 7).await;
        rig.publish_many("waits", 3).await;
        rig.until_number(Duration::from_secs(60), WAITING, 3).await;
        rig.until_ready(Duration::from_secs(10), "redeliver.default.delay.12000", 3).await;
        assert!(worker.stop(Duration::from_secs(30)).await.success());
        // Nobody has taken these: they are whole in the broker.
        rig.publish_many("fresh", 4).await;

        rig.replace_store(async |folder| {
            for file in ["store.db", "store.db-wal", "store.db-shm"] {
                let gone = tokio::fs::remove_file(folder.join(file)).await;
                assert!(gone.is_ok() || file != "store.db", "{gone:?}");
            }
            run_guide("store lost", folder).await;
        })
        .await;
        assert_eq!(rig.number("SELECT count(*) FROM tasks WHERE status = 'dead'").await, 7);
        let letter: Value = rig.json(&["dlq", "show", "wrong-3"]).await;
        assert_eq!(
            (&letter["payload"], &letter["dead_reason"]),
            (&json!({"n": 3}), &json!("permanent_error")),
            "{letter}"
        );

        let _worker = rig.worker();
        // Fresh submissions run, fail, wait and die like any; wake-ups without a row start nothing and are gone.
        let fresh = "SELECT count(*) FROM tasks WHERE id LIKE 'fresh-%' AND status = 'dead' AND retry_count = 1";
        rig.until_number(Duration::from_secs(60), fresh, 4).await;
        rig.until_number(Duration::from_secs(60), MIRRORED, 11).await;
        rig.until_ready(Duration::from_secs(60), DEAD_QUEUE, 11).await;
        let drained = async || rig.ready("redeliver.default.retries").await == Some(0);
        until_within(Duration::from_secs(30), "wake-ups without a row are acked", drained).await;
        assert_eq!(rig.number("SELECT count(*) FROM tasks WHERE id LIKE 'waits-%'").await, 0);
        assert_eq!(rig.ready("redeliver.default.rejected").await, Some(0));
    })
    .await;
}
