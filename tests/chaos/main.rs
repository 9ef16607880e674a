//! Chaos: with a seed, faults of many kinds while mixed work runs through real workers, a real RabbitMQ and a real
//! store, against a third party that fails. At the end, with nothing broken any more, every task has ended and the
//! store, the DLQs and the third party's log agree.
//!
//! What is done when hangs on the seed alone (`plan`); what comes of it hangs on the machine too, so a seed that failed
//! once may pass the next time, and its number of repetitions is part of what a report says. Here a few short seeds
//! run; `tests/chaos/run` runs many long ones.

#[path = "../support/rig.rs"]
mod rig;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/third_party.rs"]
mod third_party;

mod checks;
mod checks_fail;
mod evidence;
mod faults;
mod ground;
mod party;
mod plan;
mod report;
mod work;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use checks::Kind;
use evidence::unrest;
use ground::Ground;
use party::Party;
use plan::{Fault, Plan, Weather};
use report::Report;
use support::{PrivateBroker, TestBroker};

/// The seeds of an ordinary test run: all kinds of faults are among them, and one of them stops its broker.
const SHORT: [u64; 3] = [22, 36, 78];
const SHORT_LENGTH: Duration = Duration::from_secs(12);
/// How long everything may take to come to rest once nothing is broken. A DLQ that lost its copies waits for a pass, of
/// which there is one a minute, and the look that finds it out comes every half minute.
const REST: Duration = Duration::from_secs(300);

/// What a run is asked for besides its plan.
struct Way {
    /// A person who does not wait for the next pass over a DLQ asks for one.
    helps_dead_letters: bool,
}

#[test]
fn a_seed_has_one_plan_and_another_seed_another() {
    let length = 120_000;
    assert_eq!(Plan::of(7, length), Plan::of(7, length));
    assert_ne!(Plan::of(7, length).hands, Plan::of(8, length).hands);
    assert!(Plan::of(7, length).to_string().contains("WipeVhost"));
}

#[test]
fn every_kind_of_fault_is_in_every_long_plan_and_among_the_short_ones() {
    for seed in 0..50 {
        assert_eq!(kinds(&[Plan::of(seed, 120_000)]), BTreeSet::from(Fault::KINDS), "seed {seed}");
    }
    let short = SHORT.map(short_plan);
    assert_eq!(kinds(&short), BTreeSet::from(Fault::KINDS), "{}", short.map(|plan| plan.to_string()).concat());
}

fn kinds(plans: &[Plan]) -> BTreeSet<&'static str> {
    plans.iter().flat_map(Plan::faults).map(|planned| planned.fault.kind()).collect()
}

fn short_plan(seed: u64) -> Plan {
    Plan::of(seed, u64::try_from(SHORT_LENGTH.as_millis()).expect("short"))
}

/// The seeds run side by side: most of each is waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_seeds_of_chaos_lose_no_task_leave_none_behind_and_call_none_too_often() {
    let way = Way { helps_dead_letters: true };
    let plans = SHORT.map(short_plan);
    let reports = futures_util::future::join_all(plans.into_iter().map(|plan| run(plan, &way))).await;
    for report in reports.into_iter().flatten() {
        println!("{report}");
        assert!(report.passed(), "{report}\n{}", again(&report.plan));
    }
}

/// The seed that `tests/chaos/run` asks for: `REDELIVER_CHAOS_SEED`, for `REDELIVER_CHAOS_SECONDS`; its line goes to
/// the end of the file that `REDELIVER_CHAOS_REPORT` names. Without them there is nothing to do, and the test above has
/// done it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_seed_that_was_asked_for_loses_no_task_leaves_none_behind_and_calls_none_too_often() {
    let Ok(seed) = std::env::var("REDELIVER_CHAOS_SEED") else { return };
    let seed = seed.parse().expect("REDELIVER_CHAOS_SEED is a number");
    let seconds = std::env::var("REDELIVER_CHAOS_SECONDS").unwrap_or_else(|_| "120".into());
    let seconds: u64 = seconds.parse().expect("REDELIVER_CHAOS_SECONDS is a number");
    let plan = Plan::of(seed, seconds * 1_000);
    println!("{plan}");
    let report = run(plan, &Way { helps_dead_letters: false }).await.expect("asked for, and there is no broker");
    println!("{report}");
    if let Some(file) = std::env::var_os("REDELIVER_CHAOS_REPORT") {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).expect("the report opens");
        // In one piece: others write to the same file.
        file.write_all(format!("{}\n", report.json()).as_bytes()).expect("the report takes a line");
    }
    assert!(report.passed(), "{}", again(&report.plan));
}

fn again(plan: &Plan) -> String {
    let minutes = plan.length as f64 / 60_000.0;
    format!("to repeat it: tests/chaos/run --from {} --seeds 1 --minutes {minutes:.3} --again", plan.seed)
}

/// Runs a plan; `None` after saying that it is skipped.
async fn run(plan: Plan, way: &Way) -> Option<Report> {
    let mut report = None;
    if plan.stops_the_broker() {
        let private = tokio::task::spawn_blocking(PrivateBroker::start).await.expect("it starts")?;
        let broker = private.broker.clone();
        broker.with_vhost(async |vhost| report = Some(run_in(plan, way, &vhost, Some(&private)).await)).await;
    } else {
        TestBroker::from_env()?.with_vhost(async |vhost| report = Some(run_in(plan, way, &vhost, None).await)).await;
    }
    report
}

async fn run_in(plan: Plan, way: &Way, vhost: &support::Vhost, private: Option<&PrivateBroker>) -> Report {
    let started = Instant::now();
    let party = Party::start(&plan).await;
    let ground = Ground::new(vhost, &party).await;
    let began = Instant::now();
    let orders = work::Orders::default();
    let weather = async {
        for (at, weather) in &plan.weather {
            tokio::time::sleep_until((began + Duration::from_millis(*at)).into()).await;
            party.turns(*weather);
        }
        tokio::time::sleep_until((began + Duration::from_millis(plan.length)).into()).await;
        party.turns(Weather::Fair);
    };
    let hurt = async {
        let [broker, workers] = &plan.hands;
        let broker = faults::cause(&ground, private, broker, began, &orders);
        let workers = faults::cause(&ground, private, workers, began, &orders);
        let (mut caused, of_workers) = tokio::join!(broker, workers);
        caused.extend(of_workers);
        orders.over();
        (caused, Instant::now())
    };
    let ((), (caused, healed), book, (), deeds) = tokio::join!(
        weather,
        hurt,
        work::produce(&ground, &plan, began, &orders),
        work::insert(&ground, &plan, began),
        work::act(&ground, &plan, began)
    );
    let unrest = rest(&ground, &plan, way, healed).await;
    let rested_after = healed.elapsed();
    let evidence = evidence::gather(&ground, &plan.work, party.log()).await;
    let mut verdict = checks::judge(&evidence);
    if let Some(unrest) = unrest {
        verdict.violates(Kind::Stuck, format!("after {REST:?} {unrest}"));
    }
    for what in ground.ended_by_themselves().await.into_iter().chain(deeds.crashed.clone()) {
        verdict.violates(Kind::Process, what);
    }
    let panics = ground.said("panicked at").await;
    if panics > 0 {
        verdict.violates(Kind::Process, format!("{panics} panics in the workers' logs"));
    }
    let full_disks = ground.said("the disk is full").await;
    let failed_starts = ground.failed_starts().await;
    let report = Report {
        plan,
        caused,
        book,
        deeds,
        evidence,
        verdict,
        rested_after,
        full_disks,
        failed_starts,
        took: started.elapsed(),
    };
    if !report.passed() {
        keep(&ground, &report);
    }
    report
}

/// Waits until everything has come to rest and stops the workers; returns what has not.
async fn rest(ground: &Ground, plan: &Plan, way: &Way, healed: Instant) -> Option<String> {
    loop {
        ground.revive().await;
        let mut asked = Instant::now();
        while let Some(unrest) = unrest(ground, &plan.work).await {
            if healed.elapsed() > REST {
                ground.stop_workers().await;
                return Some(unrest);
            }
            if way.helps_dead_letters && unrest.starts_with("the DLQ") && asked.elapsed() > Duration::from_secs(5) {
                asked = Instant::now();
                // It may find a pass at work, which is as good.
                ground.rig.run(&["dlq", "sync", "--yes", "--reason", "chaos"]).await;
            }
            ground.revive().await;
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        ground.stop_workers().await;
        // At rest still, or a letter has replayed itself in between.
        unrest(ground, &plan.work).await?;
        ground.start_workers().await;
    }
}

/// Leaves everything where whoever looks for the cause finds it.
fn keep(ground: &Ground, report: &Report) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{}", report.plan.seed));
    std::fs::create_dir_all(&folder).expect("a folder");
    ground.disk.keep(&folder);
    for entry in std::fs::read_dir(ground.rig.folder()).expect("the rig's folder").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("a copy");
        }
    }
    let calls: String = report.evidence.calls.iter().map(|call| format!("{call:?}\n")).collect();
    std::fs::write(folder.join("calls"), calls).expect("a file");
    let caused: String = report.caused.iter().map(|fault| format!("{fault:?}\n")).collect();
    std::fs::write(folder.join("plan"), format!("{}\n{caused}\n{report}", report.plan)).expect("a file");
    println!("store, logs and calls are kept in {}", folder.display());
}
