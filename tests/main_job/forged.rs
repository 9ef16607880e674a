//! Messages carry no authority: whatever a wake-up claims, only the row decides.

use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::Rig;
use crate::support::{until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

fn wake(task: &str, generation: i64, retry_count: i64) -> Value {
    json!({"task_id": task, "generation": generation, "retry_count": retry_count})
}

#[tokio::test]
async fn forged_wake_ups_start_no_attempt() {
    with_vhost(async |vhost| {
        let party = ThirdParty::start(
            |arrival| {
                if arrival.task.starts_with("done") { Reply::good() } else { Reply::refusal() }
            },
        )
        .await;
        let settings = format!(
            "{}[[policy]]\nname = \"long\"\nmax_retries = 9\nbackoff = {{ fixed = \"1h\" }}\n",
            party.route("10s")
        );
        let rig = Rig::new(&vhost, &settings).await;
        let _worker = rig.worker();
        rig.publish(["done", "due", "early"].map(|id| json!({"id": id, "type": "test.call"}))).await;
        let settled = "SELECT count(*) FROM attempts";
        rig.until_number(Duration::from_secs(30), settled, 3).await;
        // Due for a while, and its alarm is far: only a message with the right stamp may start it now.
        rig.execute("UPDATE tasks SET due_at = due_at - 7200000, wake_at = wake_at + 3600000 WHERE id = 'due'").await;

        let mut forged = vec![wake("early", 0, 1), wake("unknown", 0, 0), wake("unknown", 0, 1)];
        for (generation, retry_count) in [(0, 0), (0, 2), (1, 1), (1, 0), (0, i64::MAX)] {
            forged.push(wake("due", generation, retry_count));
        }
        forged.extend([wake("done", 0, 0), wake("done", 0, 1), wake("done", 1, 0)]);
        let mut unreadable = Vec::new();
        for odd in [json!("1"), json!(1.0), json!(1.5), json!(null), json!([1]), json!(true), json!(-1)] {
            unreadable.push(json!({"task_id": "due", "generation": 0, "retry_count": odd}));
            unreadable.push(json!({"task_id": "due", "generation": odd, "retry_count": 1}));
        }
        unreadable.extend([json!({"task_id": "due", "generation": 0}), json!({"generation": 0, "retry_count": 1})]);
        unreadable.extend([json!({"task_id": 7, "generation": 0, "retry_count": 1}), json!([]), json!("due")]);
        for body in forged.iter().chain(&unreadable) {
            for lane in ["tasks", "retries"] {
                rig.send_wake_up(lane, body).await;
            }
        }
        for lane in ["tasks", "retries"] {
            let queue = format!("redeliver.default.{lane}");
            until_within(Duration::from_secs(30), "the forgeries are acked", async || {
                rig.vhost.queue(&queue).await["messages"] == 0
            })
            .await;
        }
        let malformed = "SELECT count(*) FROM tasks WHERE status = 'dead' AND dead_reason = 'malformed'
                         AND raw_length = length(raw_bytes) AND failure_message LIKE 'a wake-up that cannot be read%'";
        let rows = i64::try_from(2 * unreadable.len()).expect("small");
        rig.until_number(Duration::from_secs(30), malformed, rows).await;
        assert_eq!(rig.number(settled).await, 3, "a forged wake-up started an attempt");
        assert_eq!(party.calls(), 3);
        assert_eq!(
            rig.number("SELECT count(*) FROM tasks WHERE raw_length IS NULL").await,
            3,
            "no row was made of one"
        );

        // The very task that no forgery could start is started by the right stamp, once, however often it comes.
        for _ in 0..5 {
            rig.send_wake_up("retries", &wake("due", 0, 1)).await;
        }
        rig.until_number(Duration::from_secs(30), settled, 4).await;
        until_within(Duration::from_secs(30), "the wake-ups are acked", async || {
            rig.vhost.queue("redeliver.default.retries").await["messages"] == 0
        })
        .await;
        assert_eq!(rig.number(settled).await, 4);
        assert_eq!(party.arrivals_of("due").len(), 2);
    })
    .await;
}
