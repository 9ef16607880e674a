//! Limits and breakers with several workers, measured where it matters: at the third party.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use crate::rig::{Rig, WorkerProcess, as_i64, full, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::{Arrival, Reply, ThirdParty, worst_excess};

const LIMIT: Duration = Duration::from_secs(180);
const HELD: &str = "SELECT count(*) FROM tasks WHERE held_by IS NOT NULL";
const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";
const RETRIED: &str = "SELECT count(*) FROM tasks WHERE retry_count > 0";

/// A task whose shop and type can be told from its id.
fn task(shop: &str, kind: usize, number: usize) -> serde_json::Value {
    json!({"id": format!("{shop}.t{kind}.{number}"), "type": format!("test.t{kind}"), "labels": {"shop": shop}})
}

fn part(arrival: &Arrival, index: usize) -> String {
    arrival.task.split('.').nth(index).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn no_window_at_the_third_party_exceeds_a_limit_and_a_single_failure_does_not_wait_for_a_thousand() {
    with_vhost(async |vhost| {
        let (shops, each) = if full() { (100, 100) } else { (20, 30) };
        let n = shops * each;
        let party =
            ThirdParty::start(|call| if call.retry_count == 0 { Reply::refusal() } else { Reply::good() }).await;
        let settings = format!(
            "{}{}",
            party.route("30s"),
            r#"
[[policy]]
name = "p"
backoff = { fixed = "3s" }
[[limit]]
name = "shop"
per = ["label.shop"]
rate = "5/s"
[[limit]]
name = "type"
per = ["type"]
rate = "50/s"
[[limit]]
name = "all"
per = []
rate = "300/s"
"#
        );
        let rig = Rig::new(&vhost, &settings).await;
        let mut workers = vec![rig.worker(), rig.worker()];
        let tasks = (0..n).map(|i| task(&format!("shop{}", i % shops), (i / shops) % 10, i));
        // And one shop with more than all its limit can do in the time of this test.
        let big = (0..sized(1_000, 60)).map(|i| task("big", i % 10, i));
        let all = as_i64(n + sized(1_000, 60) + 1);
        rig.publish(tasks.chain(big)).await;
        rig.until_number(LIMIT, RETRIED, all - 1).await;
        rig.publish([task("lone", 0, 0)]).await;
        until_within(LIMIT, "the lone one is retried", async || {
            party.arrivals().iter().any(|call| call.retry_count > 0 && part(call, 0) == "lone")
        })
        .await;
        let due = rig.number("SELECT max(ended_at) + 3000 FROM attempts WHERE task_id LIKE 'lone.%' AND number = 1").await;

        // A while without workers: what was not started meanwhile is not made up for.
        for worker in &mut workers {
            worker.stop(LIMIT).await;
        }
        tokio::time::sleep(Duration::from_secs(if full() { 600 } else { 3 })).await;
        let held = rig.number(HELD).await;
        assert!(held > 0, "nothing was left to come back");
        let _workers = [rig.worker(), rig.worker()];
        // A thousand of one shop take 200 s at 5/s.
        rig.until_number(2 * LIMIT, SUCCEEDED, all).await;
        assert_eq!(rig.number("SELECT count(*) FROM attempts WHERE outcome <> 'released'").await, 2 * all);
        assert_eq!(rig.number("SELECT max(retry_count) FROM tasks").await, 1, "waiting spends no retry");

        let retries: Vec<Arrival> = party.arrivals().into_iter().filter(|call| call.retry_count > 0).collect();
        let lone = retries.iter().find(|call| part(call, 0) == "lone").expect("it was called").at;
        let before_it =
            retries.iter().filter(|call| part(call, 0) == "big" && (due..lone).contains(&call.at)).count();
        let started: BTreeMap<String, i64> =
            rig.rows("SELECT task_id, started_at FROM attempts WHERE number = 2 AND outcome = 'succeeded'").await.into_iter().collect();
        let mut worst = Vec::new();
        for (index, per_s) in [(Some(0), 5.0), (Some(1), 50.0), (None, 300.0)] {
            let mut by_key: BTreeMap<String, (Vec<i64>, Vec<i64>)> = BTreeMap::new();
            for call in &retries {
                let (arrived, claimed) = by_key.entry(index.map_or(String::new(), |index| part(call, index))).or_default();
                arrived.push(call.at);
                claimed.push(started[&call.task]);
            }
            let excess = |times: &mut Vec<i64>| {
                times.sort_unstable();
                worst_excess(times, per_s)
            };
            let arrived = by_key.values_mut().map(|(arrived, _)| excess(arrived)).fold(0.0, f64::max);
            let claimed = by_key.values_mut().map(|(_, claimed)| excess(claimed)).fold(0.0, f64::max);
            worst.push(format!("{claimed:.2} claimed and {arrived:.2} arrived at {per_s}/s"));
            // The burst of 1 and a look that comes 50 ms late.
            assert!(claimed <= 1.0 + per_s * 0.05 + 0.01, "{claimed} claims over {per_s}/s");
            // What the way from the claim to the third party adds is this machine's load.
            assert!(arrived <= 1.0 + per_s * 0.5, "{arrived} calls over {per_s}/s");
        }
        report(&format!(
            "limits: {all} tasks, {held} held over the stop; most starts over the rate in any window: {}; a lone shop's retry \
             began {} ms after due, {before_it} of the big shop's before it",
            worst.join(", "),
            lone - due
        ));
        assert!(before_it <= 3, "{before_it} of the big shop's went first");
    })
    .await;
}

const BREAKER: &str = r#"
[[policy]]
name = "p"
max_retries = 20
backoff = { fixed = "500ms" }
[[breaker]]
name = "shop"
per = ["label.shop"]
consecutive_same = 3
open_for = "3s"
open_for_max = "3s"
[[limit]]
name = "calls"
per = ["label.shop"]
rate = "40/s"
calls = true
"#;

fn workers(rig: &Rig, n: usize) -> Vec<WorkerProcess> {
    (0..n).map(|_| rig.worker()).collect()
}

#[tokio::test]
async fn an_open_breaker_lets_only_its_probes_through_and_the_backlog_returns_at_the_limit() {
    with_vhost(async |vhost| {
        let n = sized(1_000, 240);
        let party = ThirdParty::broken().await;
        let rig = Rig::new(&vhost, &format!("[worker]\nlease = \"3s\"\n{}{BREAKER}", party.route("30s"))).await;
        let racing = sized(10, 3);
        let mut crew = workers(&rig, racing);
        rig.publish((0..n).map(|i| task("a", 0, i))).await;
        rig.until_number(LIMIT, HELD, as_i64(n)).await;
        let tripped_by = party.calls();
        // Three cool-downs pass, each with one probe that fails.
        until_within(LIMIT, "three probes", async || party.calls() >= tripped_by + 3).await;
        let arrivals = party.arrivals();
        let probes: Vec<i64> = arrivals[tripped_by..].iter().map(|call| call.at).collect();
        let gaps: Vec<i64> = probes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap >= 2_950), "a call in the cool-down: {gaps:?}");

        // A worker that dies with the probe in its hands does not keep its place.
        party.now(|_| Reply::silence());
        let before = party.calls();
        until_within(LIMIT, "a probe that hangs", async || party.calls() > before).await;
        let holder: Vec<(String,)> = rig.rows("SELECT worker FROM tasks WHERE status = 'running'").await;
        assert_eq!(holder.len(), 1, "{racing} workers, one probe: {holder:?}");
        let index = crew.iter().position(|worker| holder[0].0.contains(&format!("-{}-", worker.id()))).expect("ours");
        crew.swap_remove(index).kill();
        party.heal();
        let _replacement = rig.worker();
        until_within(LIMIT, "the next probe", async || party.calls() > before + 1).await;
        let healed = party.arrivals()[before + 1].at;
        rig.until_number(LIMIT, SUCCEEDED, as_i64(n)).await;
        let last = party.arrivals().last().expect("calls").at;
        // A fifth more than the limit needs; in the everyday size a hiccup of a busy machine is as long as that fifth.
        let (took, bound) = (last - healed, as_i64(n) * 1_000 / 40 * if full() { 12 } else { 20 } / 10);
        let arrivals = party.arrivals();
        let half = arrivals.len() - n / 2;
        let steady = (n / 2) as f64 * 1_000.0 / (last - arrivals[half].at) as f64;
        report(&format!(
            "breaker: {racing} workers, tripped after {tripped_by} calls, probes {gaps:?} ms apart; {n} tasks back in {took} ms \
             at 40/s (bound {bound} ms), the second half at {steady:.1}/s"
        ));
        assert!(took <= bound, "{took} ms, the bound is {bound}");
        assert_eq!(rig.number("SELECT max(retry_count) FROM tasks").await, 1.max(rig.number(
            "SELECT max(number) - 1 FROM (SELECT count(*) AS number FROM attempts GROUP BY task_id)").await));
    })
    .await;
}

#[tokio::test]
async fn rate_limited_answers_never_open_a_breaker_and_hold_the_siblings_of_their_key() {
    with_vhost(async |vhost| {
        let n = sized(200, 200);
        let party = ThirdParty::start(|_| Reply::slow_down("2")).await;
        let rig = Rig::new(&vhost, &format!("{}{BREAKER}", party.route("30s"))).await;
        let _crew = workers(&rig, 2);
        // One shop each: everyone is told to slow down.
        rig.publish((0..n).map(|i| task(&format!("s{i}"), 0, 0))).await;
        rig.until_number(LIMIT, RETRIED, as_i64(n)).await;
        let open = "SELECT count(*) FROM gates WHERE key LIKE 'breaker/%'";
        assert_eq!(rig.number(open).await, 0, "not even a state");
        // And in one shop, the first answer holds the others.
        rig.publish((0..50).map(|i| task("one", 0, i))).await;
        until_within(LIMIT, "most are held", async || {
            let held = "SELECT count(*) FROM tasks WHERE held_by = 'hold/retry-after/label.shop=one'";
            rig.number(held).await >= 25
        })
        .await;
        party.heal();
        rig.until_number(LIMIT, SUCCEEDED, as_i64(n + 50)).await;
        let calls = party.arrivals().iter().filter(|call| part(call, 0) == "one").count();
        report(&format!("holds: 50 siblings of a rate-limited key cost {calls} calls"));
        assert!(calls < 50 + 25, "{calls} calls");
    })
    .await;
}
