//! A rolling restart under load: workers are stopped and started in turn while tasks keep coming, and no task notices.

use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use serde_json::json;

use crate::rig::{Rig, as_i64, epoch_ms, full, report, sized};
use crate::support::with_vhost;
use crate::third_party::{Reply, ThirdParty};

/// How many tasks go out together, every 20 ms.
fn at_once() -> usize {
    sized(6, 2)
}

/// Publishes until told to stop, each with the time in its payload. Returns how many.
async fn publish_steadily(channel: lapin::Channel, mut stop: tokio::sync::oneshot::Receiver<()>) -> usize {
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let (mut published, mut confirms) = (0, Vec::new());
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = &mut stop => break,
        }
        for _ in 0..at_once() {
            let body = json!({"id": format!("r-{published}"), "payload": {"at": epoch_ms()}}).to_string();
            let properties = BasicProperties::default().with_delivery_mode(2);
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let sent = channel.basic_publish(
                "redeliver.submit".into(),
                "test.call".into(),
                options,
                body.as_bytes(),
                properties,
            );
            confirms.push(sent.await.expect("sent"));
            published += 1;
        }
    }
    for confirm in confirms {
        assert!(confirm.await.expect("a confirm").is_ack());
    }
    published
}

#[tokio::test]
async fn a_rolling_restart_of_workers_under_load_fails_no_attempt() {
    with_vhost(async |vhost| {
        let rounds = sized(6, 2);
        let party = ThirdParty::start(|_| Reply::good().after(Duration::from_millis(30))).await;
        let rig = Rig::new(&vhost, &format!("[worker]\nlease = \"10s\"\n{}", party.route("10s"))).await;
        let mut workers = [rig.worker(), rig.worker()];
        for worker in &workers {
            worker.until_says(Duration::from_secs(20), "working").await;
        }
        let (stop, told) = tokio::sync::oneshot::channel();
        let began = Instant::now();
        let publishing = tokio::spawn(publish_steadily(rig.channel().await, told));
        for round in 0..rounds {
            let worker = &mut workers[round % 2];
            let before = party.calls();
            crate::support::until("the load is on", async || party.calls() > before + 50).await;
            assert!(worker.stop(Duration::from_secs(30)).await.success(), "{}", worker.log());
            *worker = rig.worker();
            worker.until_says(Duration::from_secs(20), "working").await;
        }
        stop.send(()).expect("somebody publishes");
        let n = publishing.await.expect("it publishes");
        let seconds = began.elapsed().as_secs_f64();
        rig.until_all_ended(Duration::from_secs(60), n).await;

        let not_good = rig.number("SELECT count(*) FROM attempts WHERE outcome <> 'succeeded'").await;
        assert_eq!(not_good, 0, "a restart cost attempts");
        assert_eq!(rig.number("SELECT count(*) FROM attempts").await, as_i64(n), "one attempt each");
        assert_eq!(party.calls(), n, "one call each");
        let delays: Vec<(i64,)> =
            rig.rows("SELECT a.started_at - json_extract(t.payload, '$.at') AS late FROM attempts AS a JOIN tasks AS t ON t.id = a.task_id ORDER BY late").await;
        let at = |share: usize| delays[(delays.len() * share / 1000).min(delays.len() - 1)].0;
        let (p50, p99, most) = (at(500), at(990), delays[delays.len() - 1].0);
        let rate = f64::from(u32::try_from(n).expect("a small number")) / seconds;
        report(&format!(
            "rolling: {rounds} restarts under {rate:.0} tasks/s for {seconds:.0} s: {n} tasks, no failed attempt; from publish to start \
             p50 {p50} ms, p99 {p99} ms, at most {most} ms"
        ));
        // Only as the promise is made, on a machine that does nothing else.
        assert!(!full() || p99 < 2_000, "p99 {p99} ms");
    })
    .await;
}
