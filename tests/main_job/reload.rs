//! Rules change while the worker runs: new delay queues are declared before they are used, and kept.

use std::time::{Duration, Instant};

use crate::rig::{Rig, as_i64, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

const SCHEDULER: &str = "[scheduler]\ngrace = \"2s\"\npatience = \"2s\"\nmax_patience = \"20s\"\nslack = \"2s\"\n";

#[tokio::test]
async fn a_new_step_is_a_new_delay_queue_in_two_seconds_and_survives_its_loss() {
    with_vhost(async |vhost| {
        let n = sized(500, 60);
        let party =
            ThirdParty::start(|arrival| if arrival.retry_count == 0 { Reply::refusal() } else { Reply::good() }).await;
        let settings = |step: &str| {
            format!("{SCHEDULER}{}[[policy]]\nname = \"p\"\nbackoff = {{ steps = [\"{step}\"] }}\n", party.route("10s"))
        };
        let rig = Rig::new(&vhost, &settings("1h")).await;
        let worker = rig.worker();
        worker.until_says(Duration::from_secs(20), "working").await;
        rig.publish_many("early", n).await;
        rig.until_number(
            Duration::from_secs(60),
            "SELECT count(*) FROM tasks WHERE status = 'retry_waiting'",
            as_i64(n),
        )
        .await;

        let began = Instant::now();
        rig.rewrite_config(&settings("6s"));
        worker.until_says(Duration::from_secs(5), "new rules in force").await;
        let in_force = began.elapsed();
        report(&format!("new rules in force after {in_force:?}"));
        assert!(in_force < Duration::from_secs(2), "{in_force:?}");
        let rung = "redeliver.default.delay.6000";
        until_within(Duration::from_secs(10), "the new rung is declared", async || rig.ready(rung).await.is_some())
            .await;

        rig.publish_many("late", n).await;
        let waiting = "SELECT count(*) FROM tasks WHERE id LIKE 'late-%' AND sent_rung_ms = 6000";
        rig.until_number(Duration::from_secs(60), waiting, as_i64(n)).await;
        rig.vhost.delete_queue(rung).await;
        let done = "SELECT count(*) FROM tasks WHERE id LIKE 'late-%' AND status = 'succeeded'";
        rig.until_number(Duration::from_secs(60), done, as_i64(n)).await;
        assert_eq!(rig.number("SELECT count(*) FROM attempts WHERE task_id LIKE 'late-%'").await, as_i64(2 * n));
        until_within(Duration::from_secs(60), "the new rung is declared again", async || {
            rig.ready(rung).await.is_some()
        })
        .await;
        // What waited on the old rung still does.
        assert_eq!(rig.ready("redeliver.default.delay.3600000").await, Some(u32::try_from(n).expect("small")));
    })
    .await;
}
