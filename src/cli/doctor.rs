//! `redeliver doctor`: what is wrong and what to do about it. Looks only, changes nothing.

use redeliver::broker::Difference;
use redeliver::store::{Store, is_postgres};
use redeliver::task::Millis;
use redeliver::worker::unknown_queues;
use serde_json::json;

use super::context::{Context, open_broker};
use super::exit::Exit;
use super::output::{Entry, Listing};

/// Check broker, queues, store, clock and limits, and say what to do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver doctor
  redeliver doctor -o json | jq '.items[] | select(.result != \"ok\")'

Exits 1 if something is wrong; warnings do not count.")]
pub struct Args {}

/// Events and replies are out within moments; later than this somebody should know.
const LONGEST_TELLING_MS: Millis = 60_000;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// Works, and may surprise.
    Warning,
    /// Does not work.
    Wrong,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Wrong => "wrong",
        }
    }
}

struct Findings(Vec<Finding>);

struct Finding {
    subject: &'static str,
    verdict: Verdict,
    found: String,
    todo: String,
}

impl Findings {
    fn ok(&mut self, subject: &'static str, found: impl Into<String>) {
        self.push(subject, Verdict::Ok, found, "");
    }

    fn push(&mut self, subject: &'static str, verdict: Verdict, found: impl Into<String>, todo: impl Into<String>) {
        self.0.push(Finding { subject, verdict, found: found.into(), todo: todo.into() });
    }
}

/// Checks everything; one failed check never hides the next.
///
/// # Errors
/// Only when stdout cannot be written.
pub async fn run(_args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let mut findings = Findings(Vec::new());
    check_config(context, &mut findings);
    match context.store().await {
        Ok(store) => {
            if let Err(error) = check_store(context, &*store, &mut findings).await {
                findings.push("store", Verdict::Wrong, format!("{error:#}"), "mend the store, then look again");
            }
            store.close().await;
        }
        Err(error) => findings.push(
            "store",
            Verdict::Wrong,
            format!("{error:#}"),
            "if it is new: `redeliver store migrate`; else check store.url, and the rights on the file and its folder or of the database's user",
        ),
    }
    check_broker(context, &mut findings).await;
    check_limits(context, &mut findings);
    let mut listing = Listing::new(&["check", "subject", "found", "to_do"]);
    for finding in &findings.0 {
        listing.push(Entry {
            name: finding.subject.into(),
            cells: vec![
                finding.verdict.as_str().into(),
                finding.subject.into(),
                finding.found.clone(),
                finding.todo.clone(),
            ],
            json: json!({ "subject": finding.subject, "result": finding.verdict.as_str(), "found": finding.found,
                "to_do": if finding.todo.is_empty() { None } else { Some(&finding.todo) } }),
        });
    }
    context.printer.list(&listing)?;
    let wrong = findings.0.iter().any(|finding| finding.verdict == Verdict::Wrong);
    Ok(if wrong { Exit::Failed } else { Exit::Done })
}

fn check_config(context: &Context, findings: &mut Findings) {
    let config = context.config();
    match &context.loaded.file {
        Some(file) => findings.ok("config", file.display().to_string()),
        None => findings.push(
            "config",
            Verdict::Warning,
            "no file, defaults hold",
            "write redeliver.toml; deploy/redeliver.sample.toml shows every key",
        ),
    }
    if config.routes.is_empty() {
        findings.push(
            "routes",
            Verdict::Warning,
            "no [[route]]: a worker started by `redeliver work` would let every task die of no_route",
            "add a [[route]], unless your own program runs the workers",
        );
    } else {
        findings.ok("routes", format!("{} routes", config.routes.len()));
    }
    let rungs = config.policies.rungs().len();
    findings.ok("policies", format!("{} policies, {rungs} rungs", config.policies.rules().len()));
}

async fn check_store(context: &Context, store: &dyn Store, findings: &mut Findings) -> anyhow::Result<()> {
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
        let found = format!("{} since {}{why}", pause.key, super::output::time(pause.since));
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
        findings.push("clock", Verdict::Wrong, format!("it is {}", super::output::time(ours)), "set the clock");
    } else if apart > MOST_APART {
        let found = format!("this machine and the store are {apart} ms apart");
        findings.push("clock", Verdict::Wrong, found, "run NTP on both; all times are the store's");
    } else {
        findings.ok("clock", super::output::time(ours));
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

async fn check_broker(context: &Context, findings: &mut Findings) {
    if context.config().broker.is_embedded() {
        return findings.ok("broker", "embedded in the worker");
    }
    let broker = match open_broker(context.config()) {
        Ok(broker) => broker,
        Err(error) => return findings.push("broker", Verdict::Wrong, format!("{error:#}"), "check broker.url"),
    };
    match context.bound("the broker", broker.version()).await {
        Ok(Ok(version)) => findings.ok("broker", version),
        Ok(Err(error)) => {
            let todo = "check that RabbitMQ runs, and host, port, vhost and credentials of broker.url";
            return findings.push("broker", Verdict::Wrong, error.to_string(), todo);
        }
        Err(error) => {
            return findings.push(
                "broker",
                Verdict::Wrong,
                format!("{error:#}"),
                "check the network between here and it",
            );
        }
    }
    match context.bound("the broker", broker.plan(&context.config().topology())).await {
        Ok(Ok(differences)) => check_topology(&differences, findings),
        Ok(Err(error)) => findings.push("topology", Verdict::Wrong, error.to_string(), "see `redeliver topology plan`"),
        Err(error) => findings.push("topology", Verdict::Wrong, format!("{error:#}"), "try again with --timeout"),
    }
    broker.close().await;
}

fn check_topology(differences: &[Difference], findings: &mut Findings) {
    let mut missing = 0;
    for difference in differences {
        match difference {
            Difference::Missing(_) => missing += 1,
            Difference::Conflict(conflict) => {
                let found = format!(
                    "{} has {} = {}, wanted {}",
                    conflict.queue, conflict.argument, conflict.found, conflict.wanted
                );
                let todo =
                    "drain and delete the queue, then `redeliver topology apply`; or remove the broker policy on it";
                findings.push("topology", Verdict::Wrong, found, todo);
            }
            Difference::Extra { name, ready } => {
                let found = format!("{name} is in no configuration and holds {ready} messages");
                findings.push("topology", Verdict::Warning, found, "let it drain, then delete it");
            }
        }
    }
    if missing > 0 {
        let found = format!("{missing} queues, exchanges or bindings are missing");
        findings.push("topology", Verdict::Warning, found, "`redeliver topology apply`, or start a worker");
    } else {
        findings.ok("topology", "every queue is there");
    }
}

/// Open files: an attempt needs one or two, the store and the broker a few.
fn check_limits(context: &Context, findings: &mut Findings) {
    const OTHERS: u64 = 128;
    let needed = u64::try_from(context.config().worker.concurrency).unwrap_or(u64::MAX).saturating_mul(2) + OTHERS;
    match open_files_limit() {
        Some(limit) if limit < needed => {
            let found = format!("{limit} open files are allowed, worker.concurrency may need {needed}");
            findings.push("limits", Verdict::Warning, found, "raise `ulimit -n` (LimitNOFILE= in systemd)");
        }
        Some(limit) => findings.ok("limits", format!("{limit} open files")),
        None => {}
    }
}

/// The soft limit, where the system tells it in a file (Linux).
fn open_files_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    let soft = line.split_whitespace().nth(3)?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}
