//! `kill -9`, again and again: every task ends, at most one success each, and no attempt beyond the allowed ones.

use std::collections::HashMap;
use std::time::Duration;

use crate::rig::{Rig, as_i64, epoch_ms, full, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

const LEASE_MS: i64 = 5_000;

fn settings(party: &ThirdParty, concurrency: usize) -> String {
    format!(
        "[worker]\nlease = \"5s\"\nconcurrency = {concurrency}\n[scheduler]\ngrace = \"2s\"\npatience = \"3s\"\nslack = \"3s\"\n{}\
         [[policy]]\nname = \"p\"\nmax_retries = 5\nbackoff = {{ fixed = \"1s\" }}\n",
        party.route("60s")
    )
}

/// What no number of kills may break.
async fn assert_bounds(rig: &Rig, n: usize) {
    let too_many = "SELECT count(*) FROM (SELECT 1 FROM attempts WHERE outcome <> 'released' GROUP BY task_id, generation HAVING count(*) > 6)";
    assert_eq!(rig.number(too_many).await, 0, "more attempts than allowed");
    let twice = "SELECT count(*) FROM (SELECT 1 FROM attempts WHERE outcome = 'succeeded' GROUP BY task_id HAVING count(*) > 1)";
    assert_eq!(rig.number(twice).await, 0, "settled as a success twice");
    let succeeded = rig.number("SELECT count(*) FROM tasks WHERE status = 'succeeded'").await;
    let exhausted =
        rig.number("SELECT count(*) FROM tasks WHERE status = 'dead' AND dead_reason = 'retries_exhausted'").await;
    assert_eq!(succeeded + exhausted, as_i64(n), "a task ended some other way");
}

#[tokio::test]
async fn workers_killed_again_and_again_lose_no_task_and_settle_none_twice() {
    with_vhost(async |vhost| {
        let (n, kills) = (sized(2_000, 250), sized(25, 6));
        // A worker that has just started calls nobody's lease over for a heartbeat interval (a third of the lease): it may be the one
        // that stood still. So the full number of kills is spread over longer than that; workers that all die sooner, again and
        // again, leave what they lost to the first one that lives.
        let takes = Duration::from_millis(if full() { 400 } else { 150 });
        let party = ThirdParty::start(move |arrival| {
            let fails = arrival.retry_count == 0 && arrival.task.ends_with('3');
            let reply = if fails { Reply::refusal() } else { Reply::good() };
            reply.after(takes)
        })
        .await;
        let rig = Rig::new(&vhost, &settings(&party, 8)).await;
        let mut workers = std::collections::VecDeque::from([rig.worker(), rig.worker()]);
        rig.publish_many("killed", n).await;
        let mut killed: HashMap<u32, i64> = HashMap::new();
        let share = n * 3 / 4 / kills;
        for kill in 1..=kills {
            until_within(Duration::from_secs(120), "work goes on", async || party.calls() >= kill * share).await;
            let victim = workers.pop_front().expect("two workers");
            let pid = victim.id();
            victim.kill();
            killed.insert(pid, epoch_ms());
            workers.push_back(rig.worker());
        }
        rig.until_all_ended(Duration::from_secs(240), n).await;
        assert_bounds(&rig, n).await;
        let lost: Vec<(String, i64)> =
            rig.rows("SELECT worker, ended_at FROM attempts WHERE class = 'worker_lost'").await;
        let mut slowest = 0;
        for (worker, ended_at) in &lost {
            let pid: u32 = worker.rsplit('-').nth(1).and_then(|pid| pid.parse().ok()).expect("host-pid-random");
            let at = killed.get(&pid).unwrap_or_else(|| panic!("{worker} lives and its attempt was called lost"));
            slowest = slowest.max(ended_at - at);
        }
        report(&format!(
            "killed: {n} tasks, {kills} kills, {} attempts lost, the last {slowest} ms after its kill",
            lost.len()
        ));
        assert!(!lost.is_empty(), "no kill hit a running attempt");
        assert!(slowest <= LEASE_MS + 5_000, "{slowest} ms after the kill");
    })
    .await;
}

#[tokio::test]
async fn workers_that_all_die_young_still_notice_what_the_dead_have_lost() {
    with_vhost(async |vhost| {
        let party = ThirdParty::start(|arrival| match arrival.retry_count {
            0 => Reply::silence(),
            _ => Reply::good(),
        })
        .await;
        let lease = Duration::from_secs(12);
        let settings = format!(
            "[worker]\nlease = \"{}s\"\n{}[[policy]]\nname = \"p\"\nbackoff = {{ fixed = \"1s\" }}\n",
            lease.as_secs(),
            party.route("60s")
        );
        let rig = Rig::new(&vhost, &settings).await;
        let first = rig.worker();
        rig.publish_many("lost", 1).await;
        until_within(Duration::from_secs(60), "it is called", async || party.calls() == 1).await;
        first.kill();
        // None of these lives for a heartbeat interval, which is what a new one waits for when it knows nothing of others.
        let lost = "SELECT count(*) FROM attempts WHERE class = 'worker_lost'";
        let mut deaths = 0;
        while rig.number(lost).await == 0 {
            assert!(deaths < 40, "{deaths} workers have died and none has noticed");
            let began = std::time::Instant::now();
            let worker = rig.worker();
            while began.elapsed() < lease / 4 && rig.number(lost).await == 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            worker.kill();
            deaths += 1;
        }
        report(&format!(
            "killed young: noticed by the {deaths}th worker, none of which lived for a heartbeat interval"
        ));
    })
    .await;
}

#[tokio::test]
async fn submissions_that_only_ever_sat_in_the_buffer_of_killed_workers_all_run() {
    with_vhost(async |vhost| {
        // More kills than the broker's delivery limit allows deliveries.
        let (n, kills) = (60, 25);
        let party = ThirdParty::start(|_| Reply::silence()).await;
        let rig = Rig::new(&vhost, &settings(&party, 1)).await;
        rig.publish_many("buffered", n).await;
        for _ in 0..kills {
            let calls = party.calls();
            let worker = rig.worker();
            until_within(Duration::from_secs(60), "one runs", async || party.calls() > calls).await;
            rig.until_ready(Duration::from_secs(30), "redeliver.default.tasks", 0).await;
            worker.kill();
        }
        let unseen = n - party.arrivals().iter().map(|a| &a.task).collect::<std::collections::HashSet<_>>().len();
        assert!(unseen > 0, "every task has run: nothing only sat in a buffer");
        party.heal();
        let _last = rig.worker();
        rig.until_all_ended(Duration::from_secs(120), n).await;
        report(&format!("buffered: {unseen} of {n} submissions were delivered and not started {kills} times"));
        assert_bounds(&rig, n).await;
    })
    .await;
}
