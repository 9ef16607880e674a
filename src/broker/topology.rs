//! Every broker object, as data (§5): what `topology apply` declares, what `plan` compares, what `queue list` shows.
//!
//! The arguments are the same on RabbitMQ 3.10 to 4.3, so an upgrade of the broker raises no 406.

use std::collections::BTreeSet;

use crate::policy::TopicPattern;
use crate::task::{Lane, LaneKey, Millis, Spot};

/// What a queue is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueRole {
    /// A lane.
    Lane(Lane),
    /// A rung, by its delay.
    Rung(Millis),
    /// What the broker gave up delivering.
    Rejected,
    /// The DLQ.
    Dead,
}

/// The value of a queue or exchange argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// A long string.
    Text(String),
    /// A number.
    Number(i64),
}

impl Argument {
    /// The number, if it is one.
    pub fn as_number(&self) -> Option<i64> {
        match self {
            Argument::Number(number) => Some(*number),
            Argument::Text(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Argument::Text(text) => Some(text),
            Argument::Number(_) => None,
        }
    }
}

/// A queue as it is declared: durable, quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSpec {
    /// Its full name.
    pub name: String,
    /// The `[[queue]]` it belongs to.
    pub queue: String,
    /// What it is for.
    pub role: QueueRole,
    /// Its arguments.
    pub arguments: Vec<(&'static str, Argument)>,
}

impl QueueSpec {
    /// The spot that this queue is, if a wake-up can wait in it.
    pub fn spot(&self) -> Option<Spot> {
        let queue = self.queue.clone();
        match self.role {
            QueueRole::Lane(lane) => Some(Spot::Lane(LaneKey { queue, lane })),
            QueueRole::Rung(delay_ms) => Some(Spot::Rung { queue, delay_ms }),
            QueueRole::Rejected | QueueRole::Dead => None,
        }
    }
}

/// An exchange as it is declared: durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeSpec {
    /// Its name.
    pub name: String,
    /// `topic` or `fanout`.
    pub kind: &'static str,
    /// Its arguments.
    pub arguments: Vec<(&'static str, Argument)>,
}

/// A binding.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Binding {
    /// From.
    pub exchange: String,
    /// To this queue.
    pub queue: String,
    /// For this key pattern.
    pub key: String,
}

/// Every object of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The prefix of every name.
    pub namespace: String,
    /// In the order in which they must be declared: what others dead-letter into comes first.
    pub queues: Vec<QueueSpec>,
    /// In the order in which they must be declared.
    pub exchanges: Vec<ExchangeSpec>,
    /// Declared last.
    pub bindings: Vec<Binding>,
}

/// Redeliveries after which the broker gives up on a lane's message: 4.x's own default, made explicit because 3.x has none.
const LANE_DELIVERY_LIMIT: i64 = 20;
/// For queues that are read again and again; -1 would lose messages on 3.x.
const BROWSED_DELIVERY_LIMIT: i64 = 1_000_000;

impl Topology {
    /// The objects for these queues (name and type patterns) and rungs under a namespace.
    pub fn new(namespace: &str, queues: &[(String, Vec<TopicPattern>)], rungs: &BTreeSet<Millis>) -> Topology {
        let mut topology =
            Topology { namespace: namespace.into(), queues: Vec::new(), exchanges: Vec::new(), bindings: Vec::new() };
        for (queue, patterns) in queues {
            topology.add_queue(queue, rungs);
            for pattern in patterns {
                topology.bindings.push(Binding {
                    exchange: submit_exchange(namespace),
                    queue: topology.lane_name(queue, Lane::Tasks),
                    key: pattern.as_str().into(),
                });
            }
        }
        let rest = format!("{}.rest", submit_exchange(namespace));
        topology.bindings.push(Binding {
            exchange: rest.clone(),
            queue: topology.lane_name(crate::task::DEFAULT_QUEUE, Lane::Tasks),
            key: String::new(),
        });
        topology.exchanges = vec![
            ExchangeSpec { name: rest.clone(), kind: "fanout", arguments: Vec::new() },
            ExchangeSpec {
                name: submit_exchange(namespace),
                kind: "topic",
                arguments: vec![("alternate-exchange", Argument::Text(rest))],
            },
        ];
        topology
    }

    /// These objects and the exchange to which events are published. What listens there is not ours.
    #[must_use]
    pub fn with_events(mut self) -> Topology {
        let name = events_exchange(&self.namespace);
        self.exchanges.push(ExchangeSpec { name, kind: "topic", arguments: Vec::new() });
        self
    }

    /// Whether events are published.
    pub fn has_events(&self) -> bool {
        let name = events_exchange(&self.namespace);
        self.exchanges.iter().any(|exchange| exchange.name == name)
    }

    fn add_queue(&mut self, queue: &str, rungs: &BTreeSet<Millis>) {
        let quorum = || ("x-queue-type", Argument::Text("quorum".into()));
        // At-least-once dead-lettering needs all three: quorum, this strategy, and reject-publish; without the last it silently
        // falls back to at-most-once.
        let dead_letter_to = |target: String| {
            vec![
                ("x-dead-letter-exchange", Argument::Text(String::new())),
                ("x-dead-letter-routing-key", Argument::Text(target)),
                ("x-dead-letter-strategy", Argument::Text("at-least-once".into())),
                ("x-overflow", Argument::Text("reject-publish".into())),
            ]
        };
        let limit = |n| ("x-delivery-limit", Argument::Number(n));
        let rejected = self.rejected_name(queue);
        let dead = self.dead_name(queue);
        let retries = self.lane_name(queue, Lane::Retries);
        self.push(&rejected, queue, QueueRole::Rejected, vec![quorum(), limit(BROWSED_DELIVERY_LIMIT)]);
        self.push(&dead, queue, QueueRole::Dead, vec![quorum(), limit(BROWSED_DELIVERY_LIMIT)]);
        for lane in [Lane::Tasks, Lane::Retries] {
            let mut arguments = vec![quorum(), limit(LANE_DELIVERY_LIMIT)];
            arguments.extend(dead_letter_to(rejected.clone()));
            self.push(&self.lane_name(queue, lane), queue, QueueRole::Lane(lane), arguments);
        }
        for &delay_ms in rungs {
            let mut arguments = vec![quorum(), ("x-message-ttl", Argument::Number(delay_ms))];
            arguments.extend(dead_letter_to(retries.clone()));
            self.push(&self.rung_name(queue, delay_ms), queue, QueueRole::Rung(delay_ms), arguments);
        }
    }

    fn push(&mut self, name: &str, queue: &str, role: QueueRole, arguments: Vec<(&'static str, Argument)>) {
        self.queues.push(QueueSpec { name: name.into(), queue: queue.into(), role, arguments });
    }

    /// The objects of one queue, which need not be among this topology's, under the same namespace; no rungs.
    pub fn of_one_queue(&self, queue: &str) -> Topology {
        Topology::new(&self.namespace, &[(queue.to_owned(), Vec::new())], &BTreeSet::new())
    }

    /// `redeliver.<queue>.tasks` or `.retries`
    pub fn lane_name(&self, queue: &str, lane: Lane) -> String {
        format!("{}.{queue}.{}", self.namespace, lane.as_str())
    }

    /// `redeliver.<queue>.delay.<ms>`
    pub fn rung_name(&self, queue: &str, delay_ms: Millis) -> String {
        format!("{}.{queue}.delay.{delay_ms}", self.namespace)
    }

    /// `redeliver.<queue>.rejected`
    pub fn rejected_name(&self, queue: &str) -> String {
        format!("{}.{queue}.rejected", self.namespace)
    }

    /// `redeliver.<queue>.dead`
    pub fn dead_name(&self, queue: &str) -> String {
        format!("{}.{queue}.dead", self.namespace)
    }

    /// `redeliver.submit`
    pub fn submit_exchange(&self) -> String {
        submit_exchange(&self.namespace)
    }

    /// The broker queue behind a spot, whether it is part of this topology or not.
    pub fn spot_name(&self, spot: &Spot) -> String {
        match spot {
            Spot::Lane(key) => self.lane_name(&key.queue, key.lane),
            Spot::Rung { queue, delay_ms } => self.rung_name(queue, *delay_ms),
        }
    }

    /// Every lane and rung of this topology.
    pub fn spots(&self) -> Vec<Spot> {
        self.queues.iter().filter_map(QueueSpec::spot).collect()
    }
}

fn events_exchange(namespace: &str) -> String {
    format!("{namespace}.events")
}

fn submit_exchange(namespace: &str) -> String {
    format!("{namespace}.submit")
}
