//! What the broker says to everybody who connects: its version, its queues and who consumes them.

use redeliver::broker::{About, Broker, Difference, QueueRole, Topology};

use super::{Context, Findings, Verdict, management};
use crate::cli::context::open_broker;

/// The smallest frame that carries our headers (16 KiB at most) beside the other properties: headers do not span frames.
const SMALLEST_FRAME: u32 = 32 * 1024;

/// Asks the broker, then its management API.
pub(super) async fn check(context: &Context, topology: &Topology, findings: &mut Findings) {
    if context.config().broker.is_embedded() {
        return findings.ok("broker", "embedded in the worker");
    }
    let broker = match open_broker(context.config()) {
        Ok(broker) => broker,
        Err(error) => return findings.push("broker", Verdict::Wrong, format!("{error:#}"), "check broker.url"),
    };
    let about = match context.bound("the broker", broker.about()).await {
        Ok(Ok(about)) => about,
        Ok(Err(error)) => {
            let todo = "check that RabbitMQ runs, and host, port, vhost and credentials of broker.url";
            return findings.push("broker", Verdict::Wrong, error.to_string(), todo);
        }
        Err(error) => {
            let todo = "check the network between here and it";
            return findings.push("broker", Verdict::Wrong, format!("{error:#}"), todo);
        }
    };
    check_about(&about, findings);
    match context.bound("the broker", broker.plan(topology)).await {
        Ok(Ok(differences)) => check_topology(&differences, findings),
        Ok(Err(error)) => findings.push("topology", Verdict::Wrong, error.to_string(), "see `redeliver topology plan`"),
        Err(error) => findings.push("topology", Verdict::Wrong, format!("{error:#}"), "try again with --timeout"),
    }
    match context.bound("the broker", check_consumers(&*broker, topology, findings)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => findings.push("consumers", Verdict::Wrong, error.to_string(), "see `redeliver queue list`"),
        Err(error) => findings.push("consumers", Verdict::Wrong, format!("{error:#}"), "try again with --timeout"),
    }
    broker.close().await;
    let asked = context.bound("the management API", management::check(context, &about, topology, findings)).await;
    if let Err(error) = asked {
        findings.push("management", Verdict::Warning, format!("{error:#}"), "try again with --timeout");
    }
}

fn check_about(about: &About, findings: &mut Findings) {
    match about.aging() {
        Some(reason) => findings.push("broker", Verdict::Warning, about.to_string(), reason),
        None => findings.ok("broker", about.to_string()),
    }
    // 0 is no limit.
    if let Some(frame_max @ 1..SMALLEST_FRAME) = about.frame_max {
        let found = format!("a frame may have {frame_max} bytes");
        let todo = format!(
            "set frame_max to {SMALLEST_FRAME} or more in rabbitmq.conf, best to its default 131072: a message whose headers do not \
             fit into one frame ends the connection"
        );
        findings.push("frame", Verdict::Wrong, found, todo);
    }
}

/// Lanes and `.rejected` are consumed by workers, the DLQ now and then by a pass over it, rungs by nobody.
async fn check_consumers(
    broker: &dyn Broker,
    topology: &Topology,
    findings: &mut Findings,
) -> Result<(), redeliver::broker::BrokerError> {
    for (depth, spec) in broker.depths(topology).await?.into_iter().zip(&topology.queues) {
        let (ready, consumers) = (depth.ready.unwrap_or(0), depth.consumers.unwrap_or(0));
        match spec.role {
            QueueRole::Rung(_) if consumers > 0 => {
                let found =
                    format!("{} has {consumers} consumers, who take its messages before their time", depth.name);
                findings.push("consumers", Verdict::Wrong, found, "stop them: nobody may consume a delay queue");
            }
            QueueRole::Lane(_) if ready > 0 && consumers == 0 => {
                let found = format!("{} holds {ready} messages and nobody takes them", depth.name);
                findings.push("consumers", Verdict::Warning, found, "start a worker for this queue: `redeliver work`");
            }
            QueueRole::Rejected if ready > 0 && consumers == 0 => {
                let found = format!("{} holds {ready} messages that the broker gave up delivering", depth.name);
                findings.push("consumers", Verdict::Warning, found, "start a worker for this queue: it takes them up");
            }
            _ => {}
        }
    }
    Ok(())
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
        let found = format!("{missing} queues or exchanges are missing");
        findings.push("topology", Verdict::Warning, found, "`redeliver topology apply`, or start a worker");
    } else {
        findings.ok("topology", "every queue is there");
    }
}
