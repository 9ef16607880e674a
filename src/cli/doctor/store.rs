//! What the store says: whole, known, on time, and what waits in it for a person.

use redeliver::store::{Store, is_postgres};
use redeliver::task::Millis;
use redeliver::worker::unknown_queues;

use super::{Context, Findings, Verdict};

/// Events and replies are out within moments; later than this somebody should know.
const LONGEST_TELLING_MS: Millis = 60_000;

/// A worker says every two minutes that it is at work, and when it stops. One that has said nothing for longer is not.
const WORKER_SILENT_MS: Millis = redeliver::store::copy::FRESH_MS + 30_000;

/// Asks the store.
pub(super) async fn check(context: &Context, store: &dyn Store, findings: &mut Findings) -> anyhow::Result<()> {
    // The integrity check reads the whole file: it may take longer than a question usually does.
    let report = store.report(true).await?;
    let place = format!("{}, {}, {} bytes", report.place, report.engine, report.bytes);
    match report.integrity.as_deref() {
        None | Some("ok") => findings.ok("store", place),
        Some(damage) => findings.push(
            "store",
            Verdict::Wrong,
            format!("{place}: {damage}"),
            if is_postgres(&context.config().store.url) {
                "mend what it names, or restore a backup"
            } else {
                "stop the workers, copy the file away, and restore a backup or run sqlite3 .recover on the copy"
            },
        ),
    }
    check_writing(store, findings).await;
    check_workers(store, findings).await?;
    if report.schema_version == report.schema_known {
        findings.ok("schema", format!("version {}", report.schema_version));
    } else {
        let found = format!("version {}, this program knows {}", report.schema_version, report.schema_known);
        findings.push("schema", Verdict::Wrong, found, "`redeliver store migrate`, or a program of the same version");
    }
    check_clock(context, store, findings).await?;
    for (queue, tasks) in unknown_queues(store, &context.config().queues).await? {
        findings.push(
            "queues",
            Verdict::Warning,
            format!("{tasks} waiting tasks belong to queue {queue:?}, which is not configured"),
            "put its [[queue]] back; or leave them: a running worker routes them anew within two minutes, once nobody consumes it",
        );
    }
    for (queue, ledger) in store.dlqs().await? {
        if ledger.dirty > ledger.cleaned {
            let found = format!("the DLQ of {queue} may differ from the dead letters");
            findings.push(
                "dlq",
                Verdict::Warning,
                found,
                "workers compare them within a minute; or `redeliver dlq sync`",
            );
        }
    }
    let backlog = store.notice_backlog().await?;
    let waited_ms = backlog.oldest_at.map_or(0, |at| store.now().saturating_sub(at));
    if waited_ms > LONGEST_TELLING_MS {
        let found = format!(
            "{} events and replies wait to be published, the oldest for {} s",
            backlog.waiting,
            waited_ms / 1000
        );
        let todo = "they go out when a worker has a session with the broker; if one has: a queue that is bound to them refuses";
        findings.push("notices", Verdict::Warning, found, todo);
    }
    for pause in store.pauses().await? {
        let why = pause.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let found = format!("{} since {}{why}", pause.key, crate::cli::output::time(pause.since));
        findings.push("pause", Verdict::Warning, found, "`redeliver queue resume …` when it is over");
    }
    Ok(())
}

/// Reads go on while another program holds the lock, so the end of a pause that nobody has set is written: it changes nothing.
async fn check_writing(store: &dyn Store, findings: &mut Findings) {
    if let Err(error) = store.resume("a pause that nobody has set").await {
        let todo = "find the program that holds its lock and end it (SQLite: `fuser FILE`), or free the disk; until then tasks wait";
        findings.push("store", Verdict::Wrong, format!("nothing can be written: {error}"), todo);
    }
}

async fn check_workers(store: &dyn Store, findings: &mut Findings) -> anyhow::Result<()> {
    let now = store.now();
    let seen: Vec<Millis> = store.nodes().await?.iter().map(|node| now.saturating_sub(node.seen_at)).collect();
    let lately = seen.iter().filter(|ago| **ago <= WORKER_SILENT_MS).count();
    match seen.iter().min() {
        Some(ago) if lately > 0 => findings.ok("workers", format!("{lately}, the last seen {} s ago", ago / 1000)),
        ago => findings.push(
            "workers",
            Verdict::Warning,
            ago.map_or_else(
                || "none is at work".to_owned(),
                |ago| format!("none is at work, the last was seen {} s ago", ago / 1000),
            ),
            "start one: `redeliver work`; until then nothing runs and no retry falls due",
        ),
    }
    Ok(())
}

async fn check_clock(context: &Context, store: &dyn Store, findings: &mut Findings) -> anyhow::Result<()> {
    /// 2024-01-01: a clock before it was never set.
    const LONG_AGO: Millis = 1_704_067_200_000;
    const MOST_APART: Millis = 2_000;
    let (ours, theirs) = (jiff::Timestamp::now().as_millisecond(), store.now());
    let apart = (ours - theirs).abs();
    if ours < LONG_AGO {
        findings.push("clock", Verdict::Wrong, format!("it is {}", crate::cli::output::time(ours)), "set the clock");
    } else if apart > MOST_APART {
        let found = format!("this machine and the store are {apart} ms apart");
        findings.push("clock", Verdict::Wrong, found, "run NTP on both; all times are the store's");
    } else {
        findings.ok("clock", crate::cli::output::time(ours));
    }
    let slack = context.config().settings().slack_ms;
    for (lane, ledger) in store.lanes().await? {
        if ledger.mark > theirs.saturating_add(slack) {
            let found = format!("a mark of {} {} lies in the future", lane.queue, lane.lane.as_str());
            findings.push(
                "clock",
                Verdict::Warning,
                found,
                "some clock was ahead; the next delivery corrects the mark",
            );
        }
    }
    Ok(())
}
