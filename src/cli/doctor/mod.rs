//! `redeliver doctor`: what is wrong and what to do about it. Looks only, changes nothing.
//!
//! `store` and `broker` ask as a worker would; `management` asks RabbitMQ's management API what AMQP does not tell, and `rabbitmq`
//! judges its answers.

mod broker;
mod management;
mod rabbitmq;
mod store;

use redeliver::broker::Topology;
use redeliver::config::Config;
use serde_json::json;

use super::context::Context;
use super::exit::{self, Exit};
use super::output::{Entry, Listing};

/// Check broker, queues, store, clock and limits, and say what to do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver doctor
  redeliver doctor -o json | jq '.items[] | select(.result != \"ok\")'

RabbitMQ's management API tells what AMQP does not: broker policies that touch our queues, members of quorum queues, alarms,
bindings. It is looked for on the broker's host; [broker] management_url names another place.

Exits 1 if something is wrong; warnings do not count.")]
pub struct Args {}

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
    // What the server of --api sees of its store and broker is not what this machine sees.
    if context.remote().is_some() {
        let text = "doctor looks at the store and the broker from where it runs: run it on the worker's machine, without --api";
        return Err(exit::error(Exit::Usage, text));
    }
    let mut findings = Findings(Vec::new());
    check_config(context, &mut findings);
    let mut rules = Ok((context.config().clone(), context.own_source()));
    match context.store().await {
        Ok(store) => {
            if let Err(error) = store::check(context, &*store, &mut findings).await {
                findings.push("store", Verdict::Wrong, format!("{error:#}"), "mend the store, then look again");
            }
            rules = context.in_force_in(&*store).await;
            store.close().await;
        }
        Err(error) => findings.push(
            "store",
            Verdict::Wrong,
            format!("{error:#}"),
            "if it is new: `redeliver store migrate`; if it is damaged: restore a backup; else check store.url, and the rights on the file and \
             its folder or of the database's user",
        ),
    }
    let topology = check_rules(context, rules, &mut findings);
    broker::check(context, &topology, &mut findings).await;
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
}

/// The rules in force, and the broker's objects as they need them; those of the file where the store's cannot be used, as with workers.
fn check_rules(context: &Context, rules: anyhow::Result<(Config, String)>, findings: &mut Findings) -> Topology {
    match rules {
        Ok((config, source)) => {
            let (policies, rungs) = (config.policies.rules().len(), config.policies.rungs().len());
            findings.ok("policies", format!("{policies} policies, {rungs} rungs: {source}"));
            config.topology()
        }
        Err(error) => {
            let todo = "`redeliver policy history` shows them, `redeliver policy apply` puts others in force";
            findings.push("policies", Verdict::Wrong, format!("{error:#}"), todo);
            context.config().topology()
        }
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
