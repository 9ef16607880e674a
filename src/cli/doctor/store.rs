//! What the store says: whole, known, on time, and what waits in it for a person.

use redeliver::store::{Store, is_postgres};
use redeliver::task::Millis;
use redeliver::worker::unknown_queues;

use super::{Context, Findings, Verdict};

/// Events and replies are out within moments; later than this somebody should know.
const LONGEST_TELLING_MS: Millis = 60_000;

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
    let workers = store.nodes().await?.len();
    if workers == 0 {
        findings.push(
            "workers",
            Verdict::Warning,
            "none has been seen lately",
            "start one: `redeliver work`; until then nothing runs and no retry falls due",
        );
    } else {
        findings.ok("workers", format!("{workers} seen lately"));
    }
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
