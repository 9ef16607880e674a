//! The broker loses queues, rungs and messages. The store does not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{Rig, as_i64, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";
const WAITING: &str = "SELECT count(*) FROM tasks WHERE status = 'retry_waiting'";
/// How long after its due time the slowest second attempt began, in milliseconds.
const SLOWEST: &str =
    "SELECT max(b.started_at - a.ended_at - b.delay_before_ms) FROM attempts a JOIN attempts b USING (task_id)
                       WHERE a.number = 1 AND b.number = 2";

const SCHEDULER: &str = "[scheduler]\ngrace = \"2s\"\npatience = \"2s\"\nmax_patience = \"20s\"\nslack = \"2s\"\n";

fn settings(party: &ThirdParty, step: &str) -> String {
    format!("{SCHEDULER}{}[[policy]]\nname = \"p\"\nbackoff = {{ steps = [\"{step}\"] }}\n", party.route("10s"))
}

async fn fails_once() -> ThirdParty {
    ThirdParty::start(|arrival| if arrival.retry_count == 0 { Reply::refusal() } else { Reply::good() }).await
}

#[tokio::test]
async fn tasks_run_in_time_although_all_queues_were_deleted_while_they_waited() {
    with_vhost(async |vhost| {
        let n = sized(500, 80);
        let party = fails_once().await;
        let rig = Rig::new(&vhost, &settings(&party, "6s")).await;
        let _worker = rig.worker();
        rig.publish_many("parked", n).await;
        until_within(Duration::from_secs(60), "all have failed once", async || party.calls() >= n).await;
        let names = ["tasks", "retries", "delay.6000", "rejected", "dead"];
        for name in names {
            rig.vhost.delete_queue(&format!("redeliver.default.{name}")).await;
        }
        rig.until_number(Duration::from_secs(60), SUCCEEDED, as_i64(n)).await;
        let slowest = rig.number(SLOWEST).await;
        report(&format!("deleted queues: the slowest of {n} began {slowest} ms after due"));
        assert!(slowest <= 2_000 + 10_000, "{slowest} ms after due");
        assert_eq!(rig.number("SELECT count(*) FROM attempts").await, as_i64(2 * n));
        // Nobody needs the DLQ while no task dies, so it may be the last one to be found missing.
        for name in names {
            let queue = format!("redeliver.default.{name}");
            let declared = async || rig.ready(&queue).await.is_some();
            until_within(Duration::from_secs(60), &format!("{name} is declared again"), declared).await;
        }
    })
    .await;
}

#[tokio::test]
async fn wake_ups_purged_from_a_lane_that_carries_nothing_but_submissions_are_found_lost() {
    with_vhost(async |vhost| {
        let n = sized(500, 100);
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party, "1s")).await;
        rig.insert_many("purged", n).await;
        let said = rig.run(&["dispatch"]).await;
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(rig.purge("redeliver.default.tasks").await, u32::try_from(n).expect("small"));
        let began = std::time::Instant::now();
        let _worker = rig.worker();

        // Submissions have no arrival time: however many come, they say nothing about the wake-ups before them.
        let done = AtomicBool::new(false);
        let chatter = async {
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                rig.send_task(&format!("chatter-{round}")).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                round += 1;
            }
        };
        let run = async {
            let purged = format!("{SUCCEEDED} AND id LIKE 'purged-%'");
            rig.until_number(Duration::from_secs(60), &purged, as_i64(n)).await;
            done.store(true, Ordering::Relaxed);
        };
        tokio::join!(chatter, run);
        let took = began.elapsed();
        report(&format!("purged: {n} wake-ups found lost and run after {took:?} with patience and slack of 2 s"));
        // Two minutes with the default times, which are fifteen times as long.
        assert!(took < Duration::from_secs(20), "{took:?}");
        let once = "SELECT count(*) FROM attempts WHERE task_id LIKE 'purged-%'";
        assert_eq!(rig.number(once).await, as_i64(n));
    })
    .await;
}

#[tokio::test]
async fn wake_ups_on_a_rung_that_left_the_config_and_the_broker_are_found_lost() {
    with_vhost(async |vhost| {
        let n = sized(500, 60);
        let party = fails_once().await;
        let rig = Rig::new(&vhost, &settings(&party, "7s")).await;
        let mut worker = rig.worker();
        rig.publish_many("orphan", n).await;
        rig.until_number(Duration::from_secs(60), WAITING, as_i64(n)).await;
        rig.until_ready(Duration::from_secs(10), "redeliver.default.delay.7000", u32::try_from(n).expect("small"))
            .await;
        assert!(worker.stop(Duration::from_secs(20)).await.success());
        rig.rewrite_config(&settings(&party, "1s"));
        rig.vhost.delete_queue("redeliver.default.delay.7000").await;
        let _worker = rig.worker();
        rig.until_number(Duration::from_secs(60), SUCCEEDED, as_i64(n)).await;
        let slowest = rig.number(SLOWEST).await;
        report(&format!("removed rung: the slowest of {n} began {slowest} ms after due"));
        assert!(slowest <= 2_000 + 10_000, "{slowest} ms after due");
        assert_eq!(rig.ready("redeliver.default.delay.7000").await, None);
        let plan: Value = rig.json(&["topology", "plan"]).await;
        assert_eq!(plan["items"], json!([]), "{plan}");
    })
    .await;
}
