//! A third party that fails: how often it is asked, when, what is left behind, and what a replay does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Rig, as_i64, epoch_ms, full, report, sized};
use crate::support::with_vhost;
use crate::third_party::{Reply, ThirdParty};

const DEAD_QUEUE: &str = "redeliver.default.dead";
const EXHAUSTED: &str = "SELECT count(*) FROM tasks WHERE status = 'dead' AND dead_reason = 'retries_exhausted'";

/// The three delays, in seconds.
fn steps() -> [i64; 3] {
    if full() { [2, 4, 6] } else { [1, 2, 3] }
}

/// What may pass besides the waits. The promise is 5 s; a debug build among other tests on two busy cores may need more.
fn overhead() -> Duration {
    Duration::from_secs(if full() { 5 } else { 15 })
}

fn settings(party: &ThirdParty, timeout: &str) -> String {
    let steps = steps().map(|s| format!("\"{s}s\"")).join(", ");
    format!("{}[[policy]]\nname = \"short\"\nbackoff = {{ steps = [{steps}] }}\n", party.route(timeout))
}

/// What must hold of every task after all its attempts failed, by the store and by the third party's own notes.
async fn assert_four_attempts_each_and_none_early(rig: &Rig, party: &ThirdParty, n: usize) {
    assert_eq!(rig.number(EXHAUSTED).await, as_i64(n));
    let attempts = "SELECT count(*) FROM (SELECT task_id FROM attempts WHERE outcome IN ('retried', 'died')
                    GROUP BY task_id HAVING count(*) = 4 AND min(number) = 1 AND max(number) = 4)";
    assert_eq!(rig.number(attempts).await, as_i64(n));
    let early = "SELECT count(*) FROM attempts a JOIN attempts b USING (task_id, generation)
                 WHERE b.number = a.number + 1 AND b.started_at < a.ended_at + b.delay_before_ms";
    assert_eq!(rig.number(early).await, 0, "attempts before their due time");
    let mut calls: HashMap<String, Vec<(i64, i64)>> = HashMap::new();
    for arrival in party.arrivals() {
        calls.entry(arrival.task).or_default().push((arrival.retry_count, arrival.at));
    }
    assert_eq!(calls.len(), n);
    for (task, calls) in calls {
        let counts: Vec<i64> = calls.iter().map(|call| call.0).collect();
        assert_eq!(counts, [0, 1, 2, 3], "{task}");
        for (pair, step) in calls.windows(2).zip(steps()) {
            assert!(pair[1].1 - pair[0].1 >= step * 1000, "{task} came again after {} ms", pair[1].1 - pair[0].1);
        }
    }
}

#[tokio::test]
async fn a_third_party_that_refuses_everything_is_asked_four_times_per_task_and_a_replay_after_it_healed_succeeds() {
    with_vhost(async |vhost| {
        let n = sized(500, 100);
        let party = ThirdParty::broken().await;
        let rig = Rig::new(&vhost, &settings(&party, "10s")).await;
        rig.publish_many("refused", n).await;
        let began = Instant::now();
        let mut worker = rig.worker();
        rig.until_number(Duration::from_secs(90), EXHAUSTED, as_i64(n)).await;
        let took = began.elapsed();
        let waits: i64 = steps().iter().sum();
        report(&format!("refused: {n} tasks dead after {took:?} (steps {waits} s), peak {} MiB", worker.peak_mib()));
        assert_four_attempts_each_and_none_early(&rig, &party, n).await;
        rig.until_ready(Duration::from_secs(20), DEAD_QUEUE, u32::try_from(n).expect("small")).await;
        assert!(took < Duration::from_secs(waits.unsigned_abs()) + overhead(), "{took:?}");
        // A debug build's code alone is larger by that much.
        let most = if cfg!(debug_assertions) { 90 } else { 60 };
        assert!(worker.peak_mib() < most, "{} MiB", worker.peak_mib());

        party.heal();
        let replay = rig.json(&["dlq", "replay", "--all", "--yes", "--reason", "the third party is back"]).await;
        assert_eq!(replay, json!({"matched": n, "replayed": n, "skipped": {}}));
        let succeeded = "SELECT count(*) FROM tasks WHERE status = 'succeeded' AND generation = 1";
        rig.until_number(Duration::from_secs(30), succeeded, as_i64(n)).await;
        let histories = "SELECT count(*) FROM (SELECT task_id FROM attempts GROUP BY task_id HAVING count(*) = 5
                         AND sum(generation = 0) = 4 AND sum(generation = 1 AND outcome = 'succeeded') = 1)";
        assert_eq!(rig.number(histories).await, as_i64(n), "both generations are kept");
        let began = Instant::now();
        rig.until_ready(Duration::from_secs(90), DEAD_QUEUE, 0).await;
        report(&format!("refused: DLQ queue empty {:?} after the last success", began.elapsed()));
        let shown = rig.json(&["task", "show", "refused-7"]).await;
        assert_eq!(shown["status"], "succeeded", "{shown}");
        assert_eq!(shown["attempts"].as_array().map(Vec::len), Some(5), "{shown}");
        assert!(worker.stop(Duration::from_secs(20)).await.success());
    })
    .await;
}

#[tokio::test]
async fn a_replay_against_a_third_party_that_is_still_broken_leaves_exactly_one_copy_per_dead_task() {
    with_vhost(async |vhost| {
        let n = sized(500, 60);
        let party = ThirdParty::broken().await;
        let rig = Rig::new(&vhost, &settings(&party, "10s")).await;
        rig.publish_many("again", n).await;
        let _worker = rig.worker();
        rig.until_number(Duration::from_secs(90), EXHAUSTED, as_i64(n)).await;
        rig.until_ready(Duration::from_secs(20), DEAD_QUEUE, u32::try_from(n).expect("small")).await;
        let replay = rig.json(&["dlq", "replay", "--all", "--yes", "--reason", "is it back?"]).await;
        assert_eq!(replay["replayed"], n);
        let dead_again = format!("{EXHAUSTED} AND generation = 1 AND dlq_copy = 'present'");
        rig.until_number(Duration::from_secs(90), &dead_again, as_i64(n)).await;
        let clean = "SELECT count(*) FROM dlqs WHERE dirty > cleaned";
        rig.until_number(Duration::from_secs(90), clean, 0).await;
        rig.until_ready(Duration::from_secs(5), DEAD_QUEUE, u32::try_from(n).expect("small")).await;
        // One copy of each, not two of one and none of another.
        let mut copies = Vec::new();
        let channel = rig.channel().await;
        for _ in 0..n {
            let got = channel.basic_get(DEAD_QUEUE.into(), lapin::options::BasicGetOptions::default()).await;
            let message = got.expect("the broker answers").expect("a copy");
            copies.push(message.delivery.properties.message_id().as_ref().map(ToString::to_string));
        }
        copies.sort_unstable();
        copies.dedup();
        assert_eq!(copies.len(), n, "copies are doubled");
        assert_eq!(rig.number("SELECT count(*) FROM attempts").await, as_i64(8 * n));
    })
    .await;
}

#[tokio::test]
async fn a_third_party_that_never_answers_costs_no_more_than_its_time_outs() {
    with_vhost(async |vhost| {
        let (n, timeout) = if full() { (500, 2) } else { (96, 1) };
        let party = ThirdParty::start(|_| Reply::silence()).await;
        let rig = Rig::new(&vhost, &settings(&party, &format!("{timeout}s"))).await;
        rig.publish_many("silent", n).await;
        let began = Instant::now();
        let worker = rig.worker();
        rig.until_number(Duration::from_secs(180), EXHAUSTED, as_i64(n)).await;
        let took = began.elapsed();
        let waits = steps().iter().sum::<i64>().unsigned_abs();
        let bound =
            Duration::from_secs(waits + 4 * u64::try_from(n.div_ceil(64)).expect("small") * timeout) + overhead();
        report(&format!("silent: {n} tasks dead after {took:?}, bound {bound:?}, peak {} MiB", worker.peak_mib()));
        assert_four_attempts_each_and_none_early(&rig, &party, n).await;
        let timed_out = "SELECT count(*) FROM attempts WHERE class = 'timeout'";
        assert_eq!(rig.number(timed_out).await, as_i64(4 * n));
        assert!(took < bound, "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn without_a_policy_a_failed_task_waits_fifteen_minutes_on_the_first_of_three_rungs() {
    with_vhost(async |vhost| {
        let party = ThirdParty::broken().await;
        let rig = Rig::new(&vhost, &party.route("10s")).await;
        let _worker = rig.worker();
        rig.publish_many("patient", 1).await;
        let waiting = "SELECT count(*) FROM tasks WHERE status = 'retry_waiting'";
        rig.until_number(Duration::from_secs(30), waiting, 1).await;
        rig.until_ready(Duration::from_secs(10), "redeliver.default.delay.900000", 1).await;
        let list = rig.json(&["queue", "list"]).await;
        let items = list["items"].as_array().expect("items");
        let rungs: Vec<(i64, i64)> = items
            .iter()
            .filter(|item| item["role"] == "delay")
            .map(|item| (item["delay_ms"].as_i64().unwrap_or(0) / 60_000, item["ready"].as_i64().unwrap_or(-1)))
            .collect();
        assert_eq!(rungs, [(15, 1), (30, 0), (45, 0)], "{list}");
        let (due_at, delay): (i64, i64) = rig.rows("SELECT due_at, delay_ms FROM tasks").await.remove(0);
        assert_eq!(delay, 900_000);
        assert!((890_000..=900_000).contains(&(due_at - epoch_ms())), "due in {} ms", due_at - epoch_ms());
    })
    .await;
}

#[tokio::test]
async fn time_that_earlier_attempts_used_is_not_taken_from_the_last_one() {
    with_vhost(async |vhost| {
        let party = ThirdParty::start(|arrival| {
            let slow = if arrival.retry_count < 2 { Reply::refusal() } else { Reply::good() };
            slow.after(Duration::from_millis(if arrival.retry_count < 2 { 1600 } else { 1800 }))
        })
        .await;
        let settings = format!(
            "{}[[policy]]\nname = \"short\"\nmax_retries = 2\nbackoff = {{ fixed = \"1s\" }}\n",
            party.route("2s")
        );
        let rig = Rig::new(&vhost, &settings).await;
        let _worker = rig.worker();
        let result = rig
            .json(&["publish", "test.call", "--id", "slow-1", "--payload", "{\"n\":1}", "--wait", "--timeout", "60s"])
            .await;
        assert_eq!((&result["status"], &result["already_done"]), (&json!("succeeded"), &json!(false)), "{result}");
        let durations: Vec<(i64,)> = rig.rows("SELECT ended_at - started_at FROM attempts ORDER BY number").await;
        report(&format!("own time-outs: attempts took {durations:?} ms"));
        assert!(durations.len() == 3 && durations[2].0 >= 1800, "{durations:?}");

        // The same once more: nothing runs, the stored answer comes back.
        let calls = party.calls();
        let again = rig
            .json(&["publish", "test.call", "--id", "slow-1", "--payload", "{\"n\":1}", "--wait", "--timeout", "60s"])
            .await;
        assert_eq!((&again["status"], &again["already_done"]), (&json!("succeeded"), &json!(true)), "{again}");
        assert_eq!(again["result"], result["result"]);
        assert!(!again["result"].is_null(), "{again}");
        rig.until_ready(Duration::from_secs(10), "redeliver.default.tasks", 0).await;
        assert_eq!(party.calls(), calls);
        let keys: Vec<String> = party.arrivals().into_iter().map(|arrival| arrival.key).collect();
        assert_eq!(keys, ["slow-1", "slow-1", "slow-1"], "the idempotency key is the same on every attempt");
    })
    .await;
}
