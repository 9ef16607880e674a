//! Each check is made to fail by the smallest change to the answers of a sound cluster.

use std::collections::BTreeSet;

use redeliver::policy::TopicPattern;
use serde_json::{Value, json};

use super::*;

fn topology() -> Topology {
    let queues =
        [("default".to_owned(), vec![]), ("ship".to_owned(), vec![TopicPattern::new("order.#").expect("good")])];
    Topology::new("redeliver", &queues, &BTreeSet::from([900_000]))
}

fn about(version: &str) -> About {
    About { product: "RabbitMQ".into(), version: version.into(), frame_max: Some(131_072) }
}

/// Three nodes with nothing wrong.
fn sound() -> Told {
    let topology = topology();
    let nodes = ["rabbit@a", "rabbit@b", "rabbit@c"];
    let node = |name: &&str| {
        json!({ "name": name, "running": true, "partitions": [], "mem_alarm": false, "disk_free_alarm": false,
            "disk_free": 50_000_000_000_i64, "disk_free_limit": 50_000_000, "enabled_plugins": ["rabbitmq_management"] })
    };
    let queue = |spec: &QueueSpec| {
        json!({ "name": spec.name, "leader": "rabbit@a", "members": nodes, "online": nodes, "messages": 0,
            "messages_ready": 0, "messages_unacknowledged": 0, "effective_policy_definition": {} })
    };
    let bound = |exchange: &str| -> Value {
        let of = topology.bindings.iter().filter(|binding| binding.exchange == exchange);
        of.map(|binding| json!({ "destination": binding.queue, "routing_key": binding.key })).collect()
    };
    Told {
        nodes: nodes.iter().map(node).collect(),
        queues: topology.queues.iter().map(queue).collect(),
        exchanges: json!([{ "name": "redeliver.submit" }]),
        bindings: bound("redeliver.submit"),
        rest_bindings: bound("redeliver.submit.rest"),
        consumers: json!([{ "queue": { "name": "redeliver.default.tasks" }, "prefetch_count": 256 }]),
        flags: json!([{ "name": "stream_queue", "state": "enabled", "stability": "stable" }]),
        shovels: Value::Null,
    }
}

/// What is told of `change` to a sound cluster: result and text of each finding.
fn findings(version: &str, change: impl FnOnce(&mut Told)) -> Vec<(Verdict, String)> {
    let mut told = sound();
    change(&mut told);
    let mut findings = Findings(Vec::new());
    judge(&told, &about(version), &topology(), &mut findings);
    for finding in &findings.0 {
        assert!(finding.verdict == Verdict::Ok || !finding.todo.is_empty(), "no way out: {}", finding.found);
    }
    findings.0.into_iter().map(|finding| (finding.verdict, finding.found)).collect()
}

/// Asserts that the change alone makes one finding, which says `text`.
#[track_caller]
fn assert_found(verdict: Verdict, text: &str, change: impl FnOnce(&mut Told)) {
    let found = findings("4.0.5", change);
    assert!(matches!(found.as_slice(), [(told, said)] if *told == verdict && said.contains(text)), "{text}: {found:?}");
}

/// The answer about one queue.
fn queue<'t>(told: &'t mut Told, name: &str) -> &'t mut Value {
    let queues = told.queues.as_array_mut().expect("a list");
    queues.iter_mut().find(|queue| queue["name"] == name).expect("one of ours")
}

const LANE: &str = "redeliver.default.tasks";
const DEAD: &str = "redeliver.ship.dead";
const RUNG: &str = "redeliver.default.delay.900000";

#[test]
fn a_sound_cluster_and_one_that_tells_nothing_are_not_accused() {
    assert!(matches!(findings("4.0.5", |_| {}).as_slice(), [(Verdict::Ok, _)]));
    assert!(matches!(findings("3.10.8", |told| *told = Told::default()).as_slice(), [(Verdict::Ok, _)]));
}

#[test]
fn a_feature_flag_without_which_retries_get_lost_is_wrong_where_it_matters() {
    let off = |told: &mut Told| told.flags[0]["state"] = json!("disabled");
    assert!(matches!(findings("3.11.28", off).as_slice(), [(Verdict::Wrong, said)] if said.contains("at most once")));
    assert!(matches!(findings("3.12.2", off).as_slice(), [(Verdict::Warning, said)] if said.contains("stream_queue")));
    let experimental = |told: &mut Told| {
        told.flags = json!([{ "name": "khepri_db", "state": "disabled", "stability": "experimental" }]);
    };
    assert!(matches!(findings("4.0.5", experimental).as_slice(), [(Verdict::Ok, _)]));
}

#[test]
fn nodes_are_judged_by_what_they_say_of_themselves() {
    assert_found(Verdict::Warning, "rabbit@b is down", |told| {
        told.nodes[1] = json!({"name": "rabbit@b", "running": false})
    });
    assert_found(Verdict::Wrong, "rabbit@a has lost rabbit@c", |told| {
        told.nodes[0]["partitions"] = json!(["rabbit@c"])
    });
    assert_found(Verdict::Wrong, "low on memory", |told| told.nodes[2]["mem_alarm"] = json!(true));
    assert_found(Verdict::Wrong, "low on disk", |told| told.nodes[2]["disk_free_alarm"] = json!(true));
    assert_found(Verdict::Warning, "rabbitmq_delayed_message_exchange", |told| {
        told.nodes[0]["enabled_plugins"] = json!(["rabbitmq_delayed_message_exchange"]);
    });
}

#[test]
fn members_of_quorum_queues_are_counted() {
    assert_found(Verdict::Wrong, "has no majority: 1 of 3", |told| queue(told, LANE)["online"] = json!(["rabbit@a"]));
    assert_found(Verdict::Wrong, "has no leader", |told| queue(told, LANE)["leader"] = json!(""));
    assert_found(Verdict::Warning, "missing from redeliver.ship.dead", |told| {
        queue(told, DEAD)["online"] = json!(["rabbit@a", "rabbit@b"]);
    });
    let on_one = |queue: &mut Value| {
        queue["members"] = json!(["rabbit@a"]);
        queue["online"] = json!(["rabbit@a"]);
    };
    assert_found(Verdict::Warning, "the cluster has 3 nodes, and fewer than 3 hold", |told| {
        told.queues.as_array_mut().expect("a list").iter_mut().for_each(on_one);
    });
    let alone = findings("4.0.5", |told| {
        told.nodes.as_array_mut().expect("a list").truncate(1);
        told.queues.as_array_mut().expect("a list").iter_mut().for_each(on_one);
    });
    assert!(matches!(alone.as_slice(), [(Verdict::Ok, _)]), "one node holds what there is: {alone:?}");
}

#[test]
fn a_policy_that_changes_what_our_queues_do_is_wrong() {
    for (name, definition, text) in [
        (RUNG, json!({"expires": 1}), "deletes the queue with its messages"),
        (RUNG, json!({"message-ttl": 1_000}), "waits end too early"),
        (LANE, json!({"message-ttl": 1_000}), "messages vanish"),
        (DEAD, json!({"max-length-bytes": 1}), "dropped or refused"),
        (DEAD, json!({"delivery-limit": 20}), "read a few times"),
        (LANE, json!({"delivery-limit": 5}), "read a few times"),
        (DEAD, json!({"dead-letter-exchange": "x"}), "messages go elsewhere"),
        (LANE, json!({"consumer-timeout": 60_000}), "cut off"),
        (LANE, json!({"federation-upstream-set": "all"}), "other brokers"),
        (LANE, json!({"delayed-retry-type": "all"}), "whole buffer waits"),
    ] {
        assert_found(Verdict::Wrong, text, |told| {
            queue(told, name)["effective_policy_definition"] = definition.clone();
            queue(told, name)["policy"] = json!("theirs");
        });
    }
    // An argument that is smaller, or that a policy cannot replace, holds.
    for (name, definition) in [
        (RUNG, json!({"message-ttl": 3_600_000, "dead-letter-exchange": "x", "overflow": "drop-head"})),
        (LANE, json!({"delivery-limit": 50, "consumer-timeout": 3_600_000, "queue-leader-locator": "balanced"})),
    ] {
        let found = findings("4.0.5", |told| queue(told, name)["effective_policy_definition"] = definition.clone());
        assert!(matches!(found.as_slice(), [(Verdict::Ok, _)]), "{definition}: {found:?}");
    }
    assert_found(Verdict::Warning, "federates redeliver.submit", |told| {
        told.exchanges[0]["policy"] = json!("theirs");
        told.exchanges[0]["effective_policy_definition"] = json!({"federation-upstream": "east"});
    });
}

#[test]
fn messages_that_have_expired_and_not_arrived_are_named_with_where_they_should_be() {
    let parked = |told: &mut Told| queue(told, RUNG)["messages"] = json!(7);
    assert_found(Verdict::Warning, "7 messages on their way to \"redeliver.default.retries\"", parked);
    let found = findings("4.0.5", |told| {
        parked(told);
        told.queues.as_array_mut().expect("a list").retain(|queue| queue["name"] != "redeliver.default.retries");
    });
    assert!(matches!(found.as_slice(), [(Verdict::Wrong, _)]), "{found:?}");
}

#[test]
fn parked_wake_ups_need_room_on_the_fullest_disk() {
    let million = |told: &mut Told| {
        queue(told, RUNG)["messages"] = json!(1_000_000);
        queue(told, RUNG)["messages_ready"] = json!(1_000_000);
    };
    assert!(matches!(findings("4.0.5", million).as_slice(), [(Verdict::Ok, _)]));
    assert_found(Verdict::Warning, "1000000 parked wake-ups", |told| {
        million(told);
        told.nodes[1]["disk_free"] = json!(500_000_000);
    });
}

#[test]
fn bindings_strays_consumers_and_shovels_are_named() {
    assert_found(Verdict::Wrong, "not bound to redeliver.ship.tasks for \"order.#\"", |told| told.bindings = json!([]));
    assert_found(Verdict::Wrong, "redeliver.submit.rest is not bound", |told| told.rest_bindings = json!([]));
    assert_found(Verdict::Warning, "which no configuration asks for", |told| {
        let stale = json!({"destination": "redeliver.default.tasks", "routing_key": "old.#"});
        told.bindings.as_array_mut().expect("a list").push(stale);
    });
    let with = |name: &str, messages: i64| {
        let queue = json!({"name": name, "messages": messages});
        move |told: &mut Told| told.queues.as_array_mut().expect("a list").push(queue)
    };
    assert_found(
        Verdict::Warning,
        "delay.77000 is in no configuration and empty",
        with("redeliver.default.delay.77000", 0),
    );
    assert_found(Verdict::Warning, "holds 3 messages", with("redeliver.gone.tasks", 3));
    for theirs in ["redelivery.default.tasks", "redeliver.reports", "other.tasks"] {
        let found = findings("4.0.5", with(theirs, 3));
        assert!(matches!(found.as_slice(), [(Verdict::Ok, _)]), "{theirs}: {found:?}");
    }
    assert_found(Verdict::Wrong, "without a prefetch limit", |told| told.consumers[0]["prefetch_count"] = json!(0));
    assert_found(Verdict::Warning, "the shovel \"east\"", |told| {
        told.shovels = json!([{"name": "east", "value": {"src-queue": LANE, "dest-queue": "x"}}]);
    });
}
