//! Judges what RabbitMQ's management API told. Pure: what was told is an argument.
//!
//! What is not there is not judged: a user may be allowed to see one thing and not another, and older versions tell less.

use std::collections::BTreeMap;

use redeliver::broker::{About, QueueRole, QueueSpec, Topology};
use serde_json::Value;

use super::{Findings, Verdict};

/// Answers of the management API, null where there was none.
#[derive(Debug, Default, Clone)]
pub(super) struct Told {
    pub(super) nodes: Value,
    pub(super) queues: Value,
    pub(super) exchanges: Value,
    /// From the exchange for submissions.
    pub(super) bindings: Value,
    /// From the exchange for those that match no queue.
    pub(super) rest_bindings: Value,
    pub(super) consumers: Value,
    pub(super) flags: Value,
    pub(super) shovels: Value,
}

/// No delivery is held for longer than ten minutes; this leaves the ack a minute.
const SHORTEST_CONSUMER_TIMEOUT_MS: i64 = 11 * 60 * 1000;
/// A quorum of two survives nothing; more than three is a choice.
const MEMBERS: usize = 3;
/// What a parked wake-up costs on disk at most: its body and headers, Raft's index and a segment that is not full yet. A million cost
/// roughly 50 MB of memory and less than 1 GB here.
const BYTES_PER_PARKED: i64 = 1024;

/// Looks at everything.
pub(super) fn judge(told: &Told, about: &About, topology: &Topology, findings: &mut Findings) {
    let before = findings.0.len();
    flags(told, about, findings);
    let nodes = nodes(told, findings);
    queues(told, topology, nodes, findings);
    room(told, topology, findings);
    bindings(told, topology, findings);
    consumers(told, topology, findings);
    shovels(told, topology, findings);
    if findings.0.len() == before {
        findings.ok("broker state", "no policy, alarm, binding or member is out of place");
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn number(value: &Value, name: &str) -> i64 {
    value[name].as_i64().unwrap_or(0)
}

/// Before 3.12 at-least-once dead-lettering needs a flag that a node upgraded from 3.9 does not have on by itself.
fn flags(told: &Told, about: &About, findings: &mut Findings) {
    let disabled: Vec<&str> = items(&told.flags)
        .filter(|flag| text(flag, "state") == "disabled" && text(flag, "stability") != "experimental")
        .map(|flag| text(flag, "name"))
        .collect();
    let todo = "rabbitmqctl enable_feature_flag all";
    if disabled.contains(&"stream_queue") && about.is_before(3, 12) {
        let found =
            "the feature flag stream_queue is off: delay queues dead-letter at most once, and retries can get lost";
        findings.push("feature flags", Verdict::Wrong, found, todo);
    } else if !disabled.is_empty() {
        let found = format!("off: {}; a later version may refuse to start", disabled.join(", "));
        findings.push("feature flags", Verdict::Warning, found, todo);
    }
}

/// How many nodes there are.
fn nodes(told: &Told, findings: &mut Findings) -> usize {
    let mut count = 0;
    for node in items(&told.nodes) {
        count += 1;
        let name = text(node, "name");
        if node["running"] == false {
            let found = format!("{name} is down");
            let todo = "start it; until then do not stop another one: two of three nodes are a majority, one is none";
            findings.push("nodes", Verdict::Warning, found, todo);
            continue;
        }
        let apart: Vec<&str> = items(&node["partitions"]).filter_map(Value::as_str).collect();
        if !apart.is_empty() {
            let found = format!("{name} has lost {}: a network partition", apart.join(", "));
            let todo = "restart the nodes of the smaller side; set cluster_partition_handling = pause_minority";
            findings.push("nodes", Verdict::Wrong, found, todo);
        }
        for (alarm, what, todo) in [
            (
                "mem_alarm",
                "memory",
                "give it more memory, or find what fills it: `rabbitmq-diagnostics memory_breakdown`",
            ),
            ("disk_free_alarm", "disk", "free disk space, or raise disk_free_limit's room"),
        ] {
            if node[alarm] == true {
                let found = format!("{name} is low on {what}: publishers are blocked, so retries wait in the store");
                findings.push("alarms", Verdict::Wrong, found, todo);
            }
        }
        if items(&node["enabled_plugins"]).any(|plugin| plugin == "rabbitmq_delayed_message_exchange") {
            let found = format!("{name} has the plugin rabbitmq_delayed_message_exchange, which does not run on 4.3");
            let todo = "nothing of ours uses it: move others off it before that upgrade";
            findings.push("plugins", Verdict::Warning, found, todo);
        }
    }
    count
}

fn queues(told: &Told, topology: &Topology, nodes: usize, findings: &mut Findings) {
    let ours: BTreeMap<&str, &QueueSpec> = topology.queues.iter().map(|spec| (spec.name.as_str(), spec)).collect();
    let (mut thin, mut short) = (Vec::new(), Vec::new());
    for queue in items(&told.queues) {
        let name = text(queue, "name");
        let Some(spec) = ours.get(name) else {
            stray(queue, name, topology, findings);
            continue;
        };
        policies(queue, spec, findings);
        let count = |field: &str| queue[field].as_array().map(Vec::len);
        let (Some(members), Some(online)) = (count("members"), count("online")) else { continue };
        if online <= members / 2 {
            let found = format!("{name} has no majority: {online} of {members} members are there");
            let todo =
                "start the missing nodes; one that is gone for good: `rabbitmq-queues delete_member` on the others";
            findings.push("queues", Verdict::Wrong, found, todo);
        } else if text(queue, "leader").is_empty() {
            let found = format!("{name} has no leader");
            findings.push("queues", Verdict::Wrong, found, "wait for the election; then restart one of its nodes");
        } else if online < members {
            short.push(name);
        }
        if members < MEMBERS.min(nodes) {
            thin.push(name);
        }
        lost(queue, spec, told, findings);
    }
    if !short.is_empty() {
        let found = format!("a member is missing from {}", several(&short));
        findings.push(
            "members",
            Verdict::Warning,
            found,
            "start the missing node; the queues go on until one more is lost",
        );
    }
    if !thin.is_empty() {
        let found = format!("the cluster has {nodes} nodes, and fewer than {MEMBERS} hold {}", several(&thin));
        let todo = format!(
            "on each node that joined later: `rabbitmq-queues grow NODE all --queue-pattern '^{}\\.'`; then `rabbitmq-queues rebalance quorum`",
            topology.namespace.replace('.', "\\.")
        );
        findings.push("members", Verdict::Warning, found, todo);
    }
}

/// The first of them, and how many more.
fn several(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// A queue under our names that is in no configuration: a rung of an older one, or of a `[[queue]]` that is gone.
fn stray(queue: &Value, name: &str, topology: &Topology, findings: &mut Findings) {
    let in_namespace = name.strip_prefix(&topology.namespace).is_some_and(|rest| rest.starts_with('.'));
    let parts: Vec<&str> = name.rsplitn(3, '.').collect();
    let role = matches!(parts.as_slice(), ["tasks" | "retries" | "rejected" | "dead", ..])
        || matches!(parts.as_slice(), [ms, "delay", _] if ms.parse::<i64>().is_ok());
    if !in_namespace || !role {
        return;
    }
    match number(queue, "messages") {
        0 => {
            let found = format!("{name} is in no configuration and empty");
            findings.push(
                "queues",
                Verdict::Warning,
                found,
                "delete it, once no worker with an older configuration runs",
            );
        }
        messages => {
            let found = format!("{name} is in no configuration and holds {messages} messages");
            findings.push("queues", Verdict::Warning, found, "let it drain, then delete it");
        }
    }
}

/// A policy of the broker that changes what the queue does: where both an argument and a policy give a number the smaller one holds.
fn policies(queue: &Value, spec: &QueueSpec, findings: &mut Findings) {
    let Some(definition) = queue["effective_policy_definition"].as_object() else { return };
    let names: Vec<&str> =
        ["policy", "operator_policy"].iter().map(|kind| text(queue, kind)).filter(|name| !name.is_empty()).collect();
    let argument = |key: &str| {
        let key = format!("x-{key}");
        spec.arguments.iter().find(|(name, _)| *name == key).map(|(_, argument)| argument)
    };
    for (key, value) in definition {
        let own = argument(key).and_then(redeliver::broker::Argument::as_number);
        let smaller = own.is_none_or(|own| value.as_i64().is_some_and(|value| value < own));
        let consequence = match key.as_str() {
            "expires" => "the broker deletes the queue with its messages when nobody uses it",
            "message-ttl" if smaller => match spec.role {
                QueueRole::Rung(_) => "waits end too early",
                QueueRole::Lane(_) | QueueRole::Rejected | QueueRole::Dead => "messages vanish from it",
            },
            "max-length" | "max-length-bytes" => "messages beyond it are dropped or refused",
            "delivery-limit" if smaller => "messages that are read a few times leave the queue",
            "overflow" | "dead-letter-strategy" | "dead-letter-exchange" | "dead-letter-routing-key"
                if argument(key).is_none() =>
            {
                "messages go elsewhere"
            }
            "consumer-timeout" if value.as_i64().is_some_and(|ms| ms < SHORTEST_CONSUMER_TIMEOUT_MS) => {
                "consumers are cut off while attempts run"
            }
            key if key.starts_with("federation-upstream") => "messages come from other brokers, changed on the way",
            key if key.starts_with("delayed-retry") => "a crashed worker's whole buffer waits",
            _ => continue,
        };
        let found = format!("policy {} sets {key} = {value} on {}: {consequence}", names.join(" + "), spec.name);
        let todo = "give the policy a pattern that leaves our queues out, or delete it: `rabbitmqctl clear_policy`";
        findings.push("policies", Verdict::Wrong, found, todo);
    }
}

/// Messages that have expired and have not arrived: neither ready nor with a consumer.
fn lost(queue: &Value, spec: &QueueSpec, told: &Told, findings: &mut Findings) {
    let on_the_way =
        number(queue, "messages") - number(queue, "messages_ready") - number(queue, "messages_unacknowledged");
    if on_the_way <= 0 {
        return;
    }
    let target = spec.arguments.iter().find(|(name, _)| *name == "x-dead-letter-routing-key");
    let target = target.and_then(|(_, target)| target.as_text()).unwrap_or_default();
    let there = items(&told.queues).any(|queue| text(queue, "name") == target);
    let found = format!("{} has {on_the_way} messages on their way to {target:?}", spec.name);
    if there {
        let todo =
            "look again: in a few seconds they should be there; if not, look at the members and alarms of that queue";
        findings.push("dead-lettering", Verdict::Warning, found, todo);
    } else {
        let todo = "`redeliver topology apply`: that queue is missing; they arrive within minutes";
        findings.push("dead-lettering", Verdict::Wrong, found, todo);
    }
}

/// What waits in the rungs against the room on the fullest disk.
fn room(told: &Told, topology: &Topology, findings: &mut Findings) {
    let is_rung =
        |name: &str| topology.queues.iter().any(|spec| spec.name == name && matches!(spec.role, QueueRole::Rung(_)));
    let parked: i64 =
        items(&told.queues).filter(|queue| is_rung(text(queue, "name"))).map(|queue| number(queue, "messages")).sum();
    let room = items(&told.nodes)
        .filter(|node| node["disk_free"].is_number())
        .map(|node| number(node, "disk_free") - number(node, "disk_free_limit"))
        .min();
    let need = parked.saturating_mul(BYTES_PER_PARKED);
    if let Some(room) = room
        && room < need
    {
        let found =
            format!("{parked} parked wake-ups may need {} MB more, and {} MB are free", need >> 20, room.max(0) >> 20);
        findings.push("room", Verdict::Warning, found, "give the broker more disk before the waits end");
    }
}

fn bindings(told: &Told, topology: &Topology, findings: &mut Findings) {
    let submit = format!("{}.submit", topology.namespace);
    for (answer, exchange) in [(&told.bindings, submit.clone()), (&told.rest_bindings, format!("{submit}.rest"))] {
        let Some(found) = answer.as_array() else { continue };
        let bound =
            |binding: &Value| (text(binding, "destination").to_owned(), text(binding, "routing_key").to_owned());
        let found: Vec<(String, String)> = found.iter().map(bound).collect();
        let wanted: Vec<(String, String)> = topology
            .bindings
            .iter()
            .filter(|binding| binding.exchange == exchange)
            .map(|binding| (binding.queue.clone(), binding.key.clone()))
            .collect();
        for (queue, key) in wanted.iter().filter(|binding| !found.contains(binding)) {
            let found = format!("{exchange} is not bound to {queue} for {key:?}");
            findings.push("bindings", Verdict::Wrong, found, "`redeliver topology apply`, or start a worker");
        }
        for (queue, key) in found.iter().filter(|binding| !wanted.contains(binding)) {
            let found = format!("{exchange} is bound to {queue} for {key:?}, which no configuration asks for");
            let todo = "unbind it, unless another service of yours listens there: types in it run in a queue that no longer names them";
            findings.push("bindings", Verdict::Warning, found, todo);
        }
    }
    for exchange in items(&told.exchanges).filter(|exchange| text(exchange, "name") == submit) {
        let federated = exchange["policy"].as_str().filter(|_| {
            exchange["effective_policy_definition"]
                .as_object()
                .is_some_and(|definition| definition.keys().any(|key| key.starts_with("federation-upstream")))
        });
        if let Some(policy) = federated {
            let found =
                format!("policy {policy} federates {submit}: every submission of the other broker runs here too");
            findings.push(
                "policies",
                Verdict::Warning,
                found,
                "be sure that it is meant; ids keep it from running twice here",
            );
        }
    }
}

/// Consumers without a prefetch take a whole lane.
fn consumers(told: &Told, topology: &Topology, findings: &mut Findings) {
    for consumer in items(&told.consumers) {
        let queue = text(&consumer["queue"], "name");
        let is_ours = topology.queues.iter().any(|spec| spec.name == queue);
        if is_ours && consumer["prefetch_count"] == 0 {
            let who = text(&consumer["channel_details"], "connection_name");
            let found = format!("{who} consumes {queue} without a prefetch limit: no worker of ours");
            findings.push("consumers", Verdict::Wrong, found, "stop it: what it takes runs late or not at all");
        }
    }
}

/// Shovels that speak AMQP 1.0 drop array headers and change integers.
fn shovels(told: &Told, topology: &Topology, findings: &mut Findings) {
    for shovel in items(&told.shovels) {
        let value = &shovel["value"];
        let touches = ["src-queue", "dest-queue", "src-exchange", "dest-exchange", "src-address", "dest-address"]
            .iter()
            .map(|end| text(value, end))
            .find(|end| topology.queues.iter().any(|spec| spec.name == *end) || end.starts_with(&topology.namespace));
        if let Some(touched) = touches {
            let found = format!("the shovel {:?} moves messages from or to {touched}", text(shovel, "name"));
            let todo = "move submissions only, over AMQP 0.9.1: wake-ups and copies of dead letters mean nothing to another store";
            findings.push("shovels", Verdict::Warning, found, todo);
        }
    }
}

#[cfg(test)]
mod tests;
