//! A lane whose queue has no leader takes nothing and answers nothing, while its broker is well. The outbox must not fill it up with
//! wake-ups that all arrive once it is back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::rig::{Rig, as_i64, full, report};
use crate::support::{PrivateBroker, Vhost, until_within};
use crate::third_party::{Reply, ThirdParty};

/// Stops or restarts the Raft server of `.retries`, which is the whole of its cluster.
async fn leader(broker: &PrivateBroker, vhost: &Vhost, call: &str) {
    let name = format!("rabbit_misc:r(<<\"{}\">>, queue, <<\"redeliver.default.retries\">>)", vhost.name);
    let call =
        format!("{{ok, Q}} = rabbit_amqqueue:lookup({name}), ok = ra:{call}(quorum_queues, amqqueue:get_pid(Q)).");
    broker.ctl(&["rabbitmqctl", "-q", "eval", &call]).await;
}

#[tokio::test]
async fn a_lane_without_a_leader_gets_few_wake_ups_per_task_and_all_run_once_it_is_back() {
    let Some(private) = PrivateBroker::start() else { return };
    private
        .broker
        .with_vhost(async |vhost| {
            let (n, away) = (20, Duration::from_secs(if full() { 300 } else { 20 }));
            let party =
                ThirdParty::start(|arrival| if arrival.retry_count == 0 { Reply::refusal() } else { Reply::good() }).await;
            // Scaled, so is the patience: 30 s and 5 min by default.
            let patience = if full() { 30 } else { 2 };
            let scheduler = if full() {
                String::new()
            } else {
                "[scheduler]\ngrace = \"1s\"\npatience = \"2s\"\nmax_patience = \"20s\"\nslack = \"2s\"\n".to_owned()
            };
            let steps = "[[policy]]\nname = \"p\"\nbackoff = { steps = [\"3s\"] }\n";
            let rig = Rig::new(&vhost, &format!("{scheduler}{}{steps}", party.route("10s"))).await;
            let worker = rig.worker_with(&[("REDELIVER_LOG", "warn,redeliver=debug,lapin=off")]);
            worker.until_says(Duration::from_secs(30), "broker session up").await;
            leader(&private, &vhost, "stop_server").await;
            let gone = Instant::now();
            rig.publish_many("led", n).await;
            until_within(Duration::from_secs(30), "all have failed once", async || party.calls() >= n).await;
            tokio::time::sleep(away).await;
            assert_eq!(party.calls(), n, "a lane without a leader delivered");
            leader(&private, &vhost, "restart_server").await;
            let back = Instant::now();
            let succeeded = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";
            rig.until_number(Duration::from_secs(180), succeeded, as_i64(n)).await;
            let took = back.elapsed();
            assert_eq!(party.calls(), 2 * n);

            let mut sent: BTreeMap<String, usize> = BTreeMap::new();
            for line in worker.log().lines().filter(|line| line.contains("wake-up sent") || line.contains("wake-up not confirmed")) {
                let id = line.split("task=").nth(1).and_then(|rest| rest.split(' ').next()).expect("its task").to_owned();
                *sent.entry(id).or_default() += 1;
            }
            let most = sent.values().copied().max().unwrap_or_default();
            report(&format!("no leader for {away:?}: at most {most} wake-ups for one task; {n} of {n} succeeded {took:?} after it came back"));
            assert_eq!(sent.len(), n, "{sent:?}");
            // The first, and the lane's probe after one patience, two more, four more.
            let patiences = (gone.elapsed().as_secs() / patience).max(1);
            assert!(most <= 2 + patiences.ilog2() as usize, "{sent:?}");
            assert!(!full() || most <= 5, "{sent:?}");
        })
        .await;
}
