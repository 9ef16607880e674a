//! What every broker does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redeliver::broker::{
    Argument, Broker, BrokerError, Difference, HeaderValue, Message, Parsed, Published, QueueRole, Source, Target,
    Topology, parse, submission, wake_up,
};
use redeliver::task::{Lane, Outstanding, Spot, Stamp, WakeUp};

use crate::ground::{Ground, Watch, consume, consumption, next, next_usable, topology};
use crate::support::{soon, until};

/// A wake-up for `id` straight to a lane.
pub fn wake(queue: &str, lane: Lane, id: &str) -> Message {
    let stamp = if lane == Lane::Tasks { Stamp::FIRST } else { Stamp { generation: 0, retry_count: 1 } };
    wake_up(&WakeUp {
        id: id.into(),
        stamp,
        priority: 4,
        queue: queue.into(),
        route: Outstanding { lane, rung_ms: 0, sent_at: 1, arrives_at: 1_700_000_000_123 },
    })
}

/// A copy of a dead task.
pub fn dead(queue: &str, id: &str) -> Message {
    Message {
        target: Target::Dead { queue: queue.into() },
        message_id: format!("{id}:0"),
        message_type: Some(redeliver::broker::DEAD_LETTER_TYPE),
        correlation_id: None,
        content_type: "application/json",
        body: Bytes::from_static(b"null"),
        headers: Vec::new(),
    }
}

pub async fn publish(broker: &Arc<impl Broker + ?Sized>, messages: Vec<Message>) {
    let expected = vec![Published::Confirmed; messages.len()];
    assert_eq!(soon("publishing", broker.publish(messages)).await, expected);
}

async fn declared(ground: &Ground, rungs: &[i64]) -> Topology {
    let topology = topology(rungs);
    soon("declaring", ground.broker.declare(&topology)).await.expect("declared");
    topology
}

async fn ready(broker: &Arc<dyn Broker>, topology: &Topology, role: &QueueRole) -> Option<u64> {
    let depths = soon("asking for depths", broker.depths(topology)).await.expect("depths");
    let at = topology.queues.iter().position(|spec| spec.queue == "default" && spec.role == *role).expect("the queue");
    depths[at].ready
}

pub async fn a_message_arrives_with_everything_it_carries(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    let mut deliveries = ground.consume(&topology, &["default"], 10).await;
    publish(&ground.broker, vec![wake("default", Lane::Retries, "task:7")]).await;

    let delivery = next(&mut deliveries).await;
    assert_eq!((delivery.queue.as_str(), delivery.source), ("default", Source::Retries));
    assert_eq!(delivery.message_id.as_deref(), Some("task:7:0:1"));
    assert_eq!((delivery.arrives_at, delivery.priority), (Some(1_700_000_000_123), Some(4)));
    assert!(!delivery.redelivered);
    let stamp = Stamp { generation: 0, retry_count: 1 };
    assert_eq!(parse(&delivery), Parsed::WakeUp { id: "task:7".into(), stamp });
    assert!(delivery.token.usable());
    assert!(delivery.token.ack().await);
}

pub async fn a_submission_goes_to_the_queue_that_names_its_type_and_any_other_to_default(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    let mut deliveries = ground.consume(&topology, &["default", "shipping"], 10).await;
    let body = Bytes::from_static(b"{}");
    for (task_type, queue) in [("order.ship.vip", "shipping"), ("order.ship", "shipping"), ("order.list", "default")] {
        publish(&ground.broker, vec![submission(task_type, task_type, body.clone())]).await;
        let delivery = next(&mut deliveries).await;
        assert_eq!((delivery.queue.as_str(), delivery.source), (queue, Source::Tasks));
        assert_eq!(delivery.routing_key, task_type);
        assert_eq!(delivery.body, body);
        assert_eq!(parse(&delivery), Parsed::Submission);
        assert!(delivery.token.ack().await);
    }
}

pub async fn a_message_for_a_queue_that_does_not_exist_is_returned(ground: Ground) {
    declared(&ground, &[]).await;
    let results = soon("publishing", ground.broker.publish(vec![wake("nowhere", Lane::Tasks, "a")])).await;
    assert_eq!(results, [Published::Returned]);
}

pub async fn each_result_stands_at_the_index_of_its_message(ground: Ground) {
    declared(&ground, &[]).await;
    for round in 0..20 {
        let lost = |index: usize| (index * 7 + round).is_multiple_of(5);
        let messages = (0..200).map(|index| {
            wake(if lost(index) { "nowhere" } else { "default" }, Lane::Tasks, &format!("{round}-{index}"))
        });
        let results = soon("publishing", ground.broker.publish(messages.collect())).await;
        for (index, result) in results.iter().enumerate() {
            let expected = if lost(index) { Published::Returned } else { Published::Confirmed };
            assert_eq!(*result, expected, "message {index} of round {round}");
        }
    }
}

pub async fn an_acked_message_does_not_come_again(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    let mut deliveries = ground.consume(&topology, &["default"], 10).await;
    publish(&ground.broker, vec![wake("default", Lane::Tasks, "done")]).await;
    assert!(next(&mut deliveries).await.token.ack().await);
    // The next one goes the same way, so once it is out the ack was read too.
    publish(&ground.broker, vec![wake("default", Lane::Tasks, "marker")]).await;
    let marker = next(&mut deliveries).await;
    assert!(marker.token.ack().await);
    let all_gone = async || {
        ground.break_session();
        let broker = ground.client();
        let mut others = consume(&broker, &topology, &["default"], 10).await;
        publish(&broker, vec![wake("default", Lane::Tasks, "last")]).await;
        let delivery = next_usable(&mut others).await;
        assert_eq!(delivery.message_id.as_deref(), Some("last:0:0"));
        assert!(delivery.token.ack().await);
        broker.close().await;
    };
    ground.broker.stop_consuming().await;
    all_gone().await;
}

pub async fn a_nacked_message_comes_again_and_says_so(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    let mut deliveries = ground.consume(&topology, &["default"], 10).await;
    publish(&ground.broker, vec![wake("default", Lane::Tasks, "a")]).await;
    let first = next(&mut deliveries).await;
    assert!(!first.redelivered);
    assert!(first.token.nack().await);
    let second = next(&mut deliveries).await;
    assert_eq!(second.message_id, first.message_id);
    assert!(second.redelivered);
    assert!(second.token.ack().await);
}

pub async fn what_was_not_answered_comes_again_after_a_lost_session(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    let mut deliveries = ground.consume(&topology, &["default"], 10).await;
    publish(&ground.broker, vec![wake("default", Lane::Tasks, "a"), wake("default", Lane::Retries, "b")]).await;
    let held = [next(&mut deliveries).await, next(&mut deliveries).await];

    ground.break_session();
    until("the tokens say that their session is gone", async || held.iter().all(|held| !held.token.usable())).await;
    let [ack, nack] = held;
    assert!(!ack.token.ack().await);
    assert!(!nack.token.nack().await);

    let mut again = BTreeSet::new();
    while again.len() < 2 {
        let delivery = next_usable(&mut deliveries).await;
        assert!(delivery.redelivered);
        again.insert(delivery.message_id.clone().expect("an id"));
        assert!(delivery.token.ack().await);
    }
    assert_eq!(again, BTreeSet::from(["a:0:0".to_owned(), "b:0:1".to_owned()]));
}

pub async fn no_more_than_prefetch_messages_of_a_lane_are_out(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    publish(&ground.broker, (0..7).map(|n| wake("default", Lane::Tasks, &format!("t{n}"))).collect()).await;
    publish(&ground.broker, (0..7).map(|n| wake("default", Lane::Retries, &format!("r{n}"))).collect()).await;
    let mut deliveries = ground.consume(&topology, &["default"], 3).await;
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(next(&mut deliveries).await);
    }
    for lane in [Lane::Tasks, Lane::Retries] {
        until("four of seven are left in each lane", async || {
            ready(&ground.broker, &topology, &QueueRole::Lane(lane)).await == Some(4)
        })
        .await;
    }
    assert!(deliveries.try_recv().is_err(), "a seventh delivery with a prefetch of three in two lanes");
    let source = held[0].source;
    assert!(held.remove(0).token.ack().await);
    assert_eq!(next(&mut deliveries).await.source, source);
}

pub async fn a_message_that_keeps_coming_back_ends_on_rejected_with_its_first_routing_key(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    let mut deliveries = ground.consume(&topology, &["default"], 10).await;
    publish(&ground.broker, vec![submission("order.list", "poison", Bytes::from_static(b"\xff"))]).await;
    let mut times = 0;
    let mut client = ground.client();
    let rejected = loop {
        let delivery = next(&mut deliveries).await;
        if delivery.source == Source::Rejected {
            break delivery;
        }
        times += 1;
        if times <= 21 {
            assert!(delivery.token.nack().await);
            continue;
        }
        // RabbitMQ 4.3 counts what was lost with its consumer, as every version does, and not what was given back.
        assert!(times <= 2 * 21, "delivered more often than the limit of 20 returns allows");
        ground.broker.close().await;
        client.close().await;
        client = ground.client();
        deliveries = crate::ground::consume(&client, &topology, &["default"], 10).await;
    };
    assert!(times >= 21, "given up after {times} deliveries");
    assert_eq!(rejected.routing_key, "order.list");
    assert_eq!(rejected.message_id.as_deref(), Some("poison"));
    assert_eq!(rejected.body.as_ref(), b"\xff");
    assert!(rejected.token.ack().await);
}

pub async fn missing_spots_are_told_before_they_are_declared(ground: Ground) {
    let topology = topology(&[60_000]);
    let watch = Arc::new(Watch::default());
    let deliveries = ground
        .broker
        .consume(Arc::new(topology.clone()), consumption(&["default"], 10), watch.clone())
        .await
        .expect("a session");
    assert_eq!(watch.told(), [topology.spots()]);
    assert_eq!(watch.told_dead(), [["default", "shipping"].map(str::to_owned)]);
    let missing = ground.broker.missing(&topology, &topology.spots()).await.expect("an answer");
    assert_eq!(missing, ground.expected_missing(&topology));
    drop(deliveries);
}

pub async fn a_second_start_finds_nothing_missing(ground: Ground) {
    let topology = declared(&ground, &[60_000]).await;
    let watch = Arc::new(Watch::default());
    let deliveries = ground
        .broker
        .consume(Arc::new(topology.clone()), consumption(&["default"], 10), watch.clone())
        .await
        .expect("a session");
    let told: Vec<Spot> = watch.told().concat();
    assert_eq!(told, ground.expected_missing(&topology));
    assert!(watch.told_dead().is_empty());
    drop(deliveries);
}

pub async fn stopping_ends_the_receiver_and_what_is_out_can_still_be_answered(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    publish(&ground.broker, (0..200).map(|n| wake("default", Lane::Tasks, &format!("t{n}"))).collect()).await;
    let mut deliveries = ground.consume(&topology, &["default"], 150).await;
    let first = next(&mut deliveries).await;

    let mut rest = Vec::new();
    let drain = async {
        while let Some(delivery) = deliveries.recv().await {
            rest.push(delivery);
        }
    };
    soon("the receiver ends", async { tokio::join!(ground.broker.stop_consuming(), drain) }).await;
    assert!(first.token.ack().await, "a delivery that was out when consuming stopped");
    for delivery in rest {
        assert!(delivery.token.nack().await);
    }
    until("all but the acked one are back", async || {
        ready(&ground.broker, &topology, &QueueRole::Lane(Lane::Tasks)).await == Some(199)
    })
    .await;
    // Stopping ends consuming and nothing else.
    publish(&ground.broker, vec![wake("default", Lane::Tasks, "more")]).await;
}

pub async fn two_clients_share_a_lane(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    let other = ground.client();
    let mut ours = ground.consume(&topology, &["default"], 5).await;
    let mut theirs = consume(&other, &topology, &["default"], 5).await;
    publish(&ground.broker, (0..40).map(|n| wake("default", Lane::Tasks, &format!("t{n}"))).collect()).await;
    let mut seen = BTreeSet::new();
    let mut shares = [0, 0];
    while seen.len() < 40 {
        let (share, delivery) = tokio::select! {
            delivery = next(&mut ours) => (0, delivery),
            delivery = next(&mut theirs) => (1, delivery),
        };
        shares[share] += 1;
        assert!(seen.insert(delivery.message_id.clone()), "{:?} came twice", delivery.message_id);
        assert!(delivery.token.ack().await);
    }
    assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
    other.close().await;
}

pub async fn declaring_twice_changes_nothing(ground: Ground) {
    let topology = declared(&ground, &[1_000, 900_000]).await;
    publish(&ground.broker, vec![wake("default", Lane::Tasks, "stays")]).await;
    ground.broker.declare(&topology).await.expect("no conflict with itself");
    assert_eq!(ready(&ground.broker, &topology, &QueueRole::Lane(Lane::Tasks)).await, Some(1));
    assert_eq!(ground.broker.plan(&topology).await.expect("a plan"), []);
}

pub async fn another_argument_is_a_conflict_that_names_queue_argument_and_both_values(ground: Ground) {
    let mut topology = declared(&ground, &[]).await;
    let lane = topology.queues.iter_mut().find(|spec| spec.role == QueueRole::Lane(Lane::Tasks)).expect("a lane");
    let limit = lane.arguments.iter_mut().find(|(name, _)| *name == "x-delivery-limit").expect("a limit");
    limit.1 = Argument::Number(7);

    let declared = ground.broker.declare(&topology).await;
    let Err(BrokerError::Conflict { queue, argument, found, wanted }) = declared else { panic!("{declared:?}") };
    assert_eq!(
        [queue.as_str(), argument.as_str(), found.as_str(), wanted.as_str()],
        ["redeliver.default.tasks", "x-delivery-limit", "20", "7"]
    );
    let plan = ground.broker.plan(&topology).await.expect("a plan");
    assert!(matches!(&plan[..], [Difference::Conflict(conflict)] if conflict.queue == queue), "{plan:?}");

    let watch = Arc::new(Watch::default());
    let consumed = ground.broker.consume(Arc::new(topology), consumption(&["default"], 1), watch).await;
    assert!(matches!(consumed, Err(BrokerError::Conflict { .. })), "{consumed:?}");
}

pub async fn a_plan_names_what_is_missing_and_changes_nothing(ground: Ground) {
    let topology = topology(&[]);
    for _ in 0..2 {
        let plan = ground.broker.plan(&topology).await.expect("a plan");
        let missing: Vec<&str> = plan
            .iter()
            .map(|difference| match difference {
                Difference::Missing(name) => name.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        for spec in &topology.queues {
            assert!(missing.contains(&spec.name.as_str()), "{} is not in {missing:?}", spec.name);
        }
    }
}

pub async fn deleting_refuses_while_messages_are_held_unless_forced(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    publish(&ground.broker, vec![dead("default", "a")]).await;
    until("the copy is counted", async || ready(&ground.broker, &topology, &QueueRole::Dead).await == Some(1)).await;
    match ground.broker.delete(&topology, false).await {
        Err(BrokerError::NotEmpty { queue, ready: 1 }) => assert_eq!(queue, "redeliver.default.dead"),
        other => panic!("{other:?}"),
    }
    assert_eq!(ground.broker.missing(&topology, &topology.spots()).await.expect("an answer"), []);
    ground.broker.delete(&topology, true).await.expect("deleted");
    assert_eq!(ground.broker.missing(&topology, &topology.spots()).await.expect("an answer"), topology.spots());
}

pub async fn depths_are_in_the_order_of_the_topology(ground: Ground) {
    let topology = topology(&[]);
    let before = ground.broker.depths(&topology).await.expect("depths");
    let names: Vec<&str> = before.iter().map(|depth| depth.name.as_str()).collect();
    assert_eq!(names, topology.queues.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>());
    assert!(before.iter().all(|depth| depth.ready.is_none() && depth.consumers.is_none()));

    declared(&ground, &[]).await;
    publish(&ground.broker, vec![dead("default", "a"), dead("default", "b")]).await;
    until("both are counted", async || ready(&ground.broker, &topology, &QueueRole::Dead).await == Some(2)).await;
    let deliveries = ground.consume(&topology, &["default"], 1).await;
    until("the consumers are counted", async || {
        let depths = ground.broker.depths(&topology).await.expect("depths");
        let consumed = depths.iter().filter(|depth| depth.consumers == Some(1)).count();
        consumed == 3 && depths.iter().filter(|depth| depth.consumers == Some(0)).count() == depths.len() - 3
    })
    .await;
    drop(deliveries);
}

pub async fn a_dead_pass_sees_every_copy_once_and_removes_only_what_it_is_told(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    let mut stranger = dead("default", "stranger");
    stranger.message_type = None;
    let mut messages: Vec<Message> = (0..300).map(|n| dead("default", &format!("t:{n}"))).collect();
    messages.push(dead("default", "t:7"));
    messages.push(stranger);
    publish(&ground.broker, messages).await;

    let mut pass = ground.broker.dead_pass("default").await.expect("a pass");
    let copies = pass.take_all(Duration::from_secs(20)).await.expect("all copies");
    assert_eq!(copies.len(), 302);
    assert!(copies.iter().enumerate().all(|(at, copy)| copy.index == at));
    assert_eq!(copies.iter().filter(|copy| copy.of == Some(("t:7".into(), 0))).count(), 2);
    let strangers: Vec<_> = copies.iter().filter(|copy| copy.of.is_none()).collect();
    assert!(matches!(&strangers[..], [stranger] if stranger.message_id.as_deref() == Some("stranger:0")));
    let keep: BTreeSet<usize> = [0, 7, strangers[0].index].into();
    let remove: Vec<usize> = (0..copies.len()).filter(|index| !keep.contains(index)).collect();
    pass.remove(&remove).await.expect("removed");
    pass.finish().await.expect("finished");

    until("three are left", async || ready(&ground.broker, &topology, &QueueRole::Dead).await == Some(3)).await;
    let mut pass = ground.broker.dead_pass("default").await.expect("a pass");
    let left = pass.take_all(Duration::from_secs(20)).await.expect("all copies");
    let ids = |copies: &[redeliver::broker::DeadCopy], of: &dyn Fn(usize) -> bool| -> BTreeSet<Option<String>> {
        copies.iter().filter(|copy| of(copy.index)).map(|copy| copy.message_id.clone()).collect()
    };
    assert_eq!(ids(&left, &|_| true), ids(&copies, &|index| keep.contains(&index)));
    pass.finish().await.expect("finished");
}

pub async fn a_dropped_dead_pass_returns_everything(ground: Ground) {
    let topology = declared(&ground, &[]).await;
    publish(&ground.broker, (0..20).map(|n| dead("default", &format!("t{n}"))).collect()).await;
    let mut pass = ground.broker.dead_pass("default").await.expect("a pass");
    assert_eq!(pass.take_all(Duration::from_secs(20)).await.expect("all copies").len(), 20);
    assert_eq!(ready(&ground.broker, &topology, &QueueRole::Dead).await, Some(0));
    drop(pass);
    until("all are back", async || ready(&ground.broker, &topology, &QueueRole::Dead).await == Some(20)).await;

    let empty = ground.broker.dead_pass("shipping").await.expect("a pass").take_all(Duration::from_secs(20)).await;
    assert_eq!(empty.expect("no copies"), []);
}

pub async fn a_dead_pass_keeps_what_is_in_the_copies_when_it_is_asked_to(ground: Ground) {
    declared(&ground, &[]).await;
    let mut copy = dead("default", "t1");
    copy.headers =
        vec![("redeliver-reason", HeaderValue::Text("poison".into())), ("redeliver-attempts", HeaderValue::Number(4))];
    publish(&ground.broker, vec![copy.clone()]).await;
    let mut pass = ground.broker.dead_pass("default").await.expect("a pass");
    pass.keep_content(1_000_000);
    assert_eq!(pass.take_all(Duration::from_secs(20)).await.expect("all copies").len(), 1);
    let content = pass.content(0).expect("kept");
    assert_eq!((content.body, content.message_type.as_deref()), (copy.body, copy.message_type));
    let known: Vec<_> = content.headers.into_iter().filter(|(name, _)| name.starts_with("redeliver-")).collect();
    let expected = copy.headers.into_iter().map(|(name, value)| (name.to_owned(), value));
    assert_eq!(known, expected.collect::<std::collections::BTreeMap<_, _>>().into_iter().collect::<Vec<_>>());
    assert_eq!(pass.content(1), None);
    pass.finish().await.expect("finished");
}

pub async fn a_closed_client_sends_nothing(ground: Ground) {
    declared(&ground, &[]).await;
    ground.broker.connect().await.expect("a session");
    assert!(ground.broker.is_up());
    ground.broker.close().await;
    assert!(!ground.broker.is_up());
    let results = soon("publishing", ground.broker.publish(vec![wake("default", Lane::Tasks, "a")])).await;
    assert!(matches!(&results[..], [Published::NotSent { .. }]), "{results:?}");
}
