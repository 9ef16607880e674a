//! The topology as RabbitMQ's definitions, for people who declare it themselves, and the least rights of those who use it.
//!
//! The same objects with the same arguments as `topology apply` declares: what is imported is found without a difference.

use serde_json::{Map, Value, json};

use super::topology::{Argument, Topology};

/// What one kind of user may do, as RabbitMQ's three patterns over names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The name that the shipped file gives the user.
    pub user: &'static str,
    /// Declare and delete.
    pub configure: String,
    /// Publish; the default exchange is `amq.default`.
    pub write: String,
    /// Consume.
    pub read: String,
}

impl Rights {
    /// The least that works, for a worker, a producer and the console.
    ///
    /// Worker and console may declare what is ours: from 4.3 on RabbitMQ asks for that even of those who only look whether a queue is
    /// there. A worker publishes to lanes, delay queues and the DLQ by the default exchange, which cannot be granted queue by queue.
    pub fn least(namespace: &str) -> [Rights; 3] {
        let ns = namespace.replace('.', "\\.");
        let none = || "^$".to_owned();
        [
            Rights {
                user: "redeliver-worker",
                configure: format!("^{ns}\\."),
                write: format!("^(amq\\.default|{ns}\\..+)$"),
                read: format!("^{ns}\\."),
            },
            Rights { user: "redeliver-producer", configure: none(), write: format!("^{ns}\\.submit$"), read: none() },
            Rights {
                user: "redeliver-console",
                configure: format!("^{ns}\\."),
                write: format!("^(amq\\.default|{ns}\\.submit)$"),
                read: format!("^{ns}\\..+\\.dead$"),
            },
        ]
    }
}

/// A definitions file for `rabbitmqctl import_definitions` or the management API. With `users` also one user for each of
/// [`Rights::least`], without a password: none can log in before one is set.
pub fn definitions(topology: &Topology, vhost: &str, users: bool) -> Value {
    let arguments = |arguments: &[(&'static str, Argument)]| -> Map<String, Value> {
        let value = |argument: &Argument| match argument {
            Argument::Text(text) => json!(text),
            Argument::Number(number) => json!(number),
        };
        arguments.iter().map(|(name, argument)| ((*name).to_owned(), value(argument))).collect()
    };
    let queues: Vec<Value> = topology
        .queues
        .iter()
        .map(|queue| {
            json!({ "name": queue.name, "vhost": vhost, "type": "quorum", "durable": true, "auto_delete": false,
                "arguments": arguments(&queue.arguments) })
        })
        .collect();
    let exchanges: Vec<Value> = topology
        .exchanges
        .iter()
        .map(|exchange| {
            json!({ "name": exchange.name, "vhost": vhost, "type": exchange.kind, "durable": true, "auto_delete": false,
                "internal": false, "arguments": arguments(&exchange.arguments) })
        })
        .collect();
    let bindings: Vec<Value> = topology
        .bindings
        .iter()
        .map(|binding| {
            json!({ "source": binding.exchange, "vhost": vhost, "destination": binding.queue,
                "destination_type": "queue", "routing_key": binding.key, "arguments": {} })
        })
        .collect();
    let mut all = json!({ "queues": queues, "exchanges": exchanges, "bindings": bindings });
    if users {
        let rights = Rights::least(&topology.namespace);
        all["users"] = rights
            .iter()
            // An empty hash matches no password.
            .map(|of| json!({ "name": of.user, "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": [] }))
            .collect();
        all["permissions"] = rights
            .iter()
            .map(|of| json!({ "user": of.user, "vhost": vhost, "configure": of.configure, "write": of.write, "read": of.read }))
            .collect();
        all["vhosts"] = json!([{ "name": vhost }]);
    }
    all
}
