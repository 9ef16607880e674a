//! For people who declare the topology themselves: the definitions are the topology, and the rights that they give are enough.

use std::time::Duration;

use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use serde_json::{Value, json};

use crate::rig::Rig;
use crate::support::{Vhost, with_vhost};
use crate::third_party::ThirdParty;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/rabbitmq/definitions.json");

fn settings(party: &ThirdParty) -> String {
    format!("[[queue]]\nname = \"ship\"\ntypes = [\"order.ship.#\"]\n{}", party.route("10s"))
}

/// A user of our own with the rights that the definitions give `like`.
async fn user_like(vhost: &Vhost, definitions: &Value, like: &str) -> String {
    let rights = definitions["permissions"].as_array().expect("a list").iter().find(|of| of["user"] == like);
    let rights = rights.unwrap_or_else(|| panic!("no rights of {like} in {definitions}"));
    let name = format!("{like}-{}", vhost.name);
    vhost.user(&name, "geheim", "").await;
    let rights = json!({"configure": rights["configure"], "write": rights["write"], "read": rights["read"]});
    vhost.put("permissions", &name, rights).await;
    name
}

#[tokio::test]
async fn the_shipped_definitions_are_what_the_defaults_declare() {
    let shipped = std::fs::read_to_string(SHIPPED).expect("the shipped file");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("redeliver.toml"), "").expect("a file");
    let said = crate::rig::command(folder.path(), &["topology", "export", "--users"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let why = "deploy/rabbitmq/definitions.json is `redeliver topology export --users` without a configuration";
    assert_eq!(said.stdout, shipped, "{why}");
}

#[tokio::test]
async fn imported_definitions_leave_no_difference_and_a_worker_runs_with_the_least_rights() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::undeclared(&vhost, &vhost.url(), None, &settings(&party)).await;
        let said = rig.run(&["topology", "export", "--users"]).await;
        assert_eq!(said.code, Some(0), "{said:?}");
        let mut definitions = said.json();
        let worker = user_like(&vhost, &definitions, "redeliver-worker").await;
        let producer = user_like(&vhost, &definitions, "redeliver-producer").await;
        // Users belong to the whole broker, which other tests share.
        for of_all in ["users", "permissions", "vhosts"] {
            definitions.as_object_mut().expect("an object").remove(of_all);
        }
        vhost.import(definitions).await;
        let plan = rig.json(&["topology", "plan"]).await;
        assert_eq!(plan["items"], json!([]), "what was imported differs from what we would declare");

        rig.rewrite_broker(&vhost.url_of(&worker, "geheim"), &settings(&party));
        let running = rig.worker();
        running.until_says(Duration::from_secs(60), "broker session up").await;
        rig.rewrite_broker(&vhost.url_of(&producer, "geheim"), &settings(&party));
        for (id, task_type) in [("one", "test.call"), ("two", "order.ship.parcel")] {
            let said = rig.run(&["publish", task_type, "--id", id]).await;
            assert_eq!(said.code, Some(0), "{said:?}");
        }
        rig.until_all_ended(Duration::from_secs(60), 2).await;
        // `test.#` has a route, the other type dies of having none: its copy goes to the DLQ with the worker's rights.
        rig.until_ready(Duration::from_secs(60), "redeliver.ship.dead", 1).await;

        may_publish_and_nothing_else(&vhost.url_of(&producer, "geheim")).await;
        drop(running);
        for user in [&worker, &producer] {
            vhost.forget_user(user).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_may_not_declare_names_what_is_missing_and_goes_on_when_it_is_there() {
    with_vhost(async |vhost| {
        let party = ThirdParty::healthy().await;
        let rig = Rig::new(&vhost, &settings(&party)).await;
        let definitions = rig.run(&["topology", "export", "--users"]).await.json();
        let user = user_like(&vhost, &definitions, "redeliver-worker").await;
        let rights = json!({"configure": "^$", "write": ".*", "read": ".*"});
        vhost.put("permissions", &user, rights).await;
        vhost.delete_queue("redeliver.default.delay.900000").await;
        rig.rewrite_broker(&vhost.url_of(&user, "geheim"), &settings(&party));
        let mut worker = rig.worker();
        if vhost.broker_version().await >= (4, 3) {
            // It may not even look.
            worker.until_says(Duration::from_secs(60), "ACCESS_REFUSED - configure access to queue").await;
            vhost.forget_user(&user).await;
            return;
        }
        worker.until_says(Duration::from_secs(60), "redeliver.default.delay.900000 is missing").await;
        assert!(worker.is_running(), "{}", worker.log());
        rig.rewrite_broker(&vhost.url(), &settings(&party));
        let applied = rig.run(&["topology", "apply", "--yes"]).await;
        assert_eq!(applied.code, Some(0), "{applied:?}");
        worker.until_says(Duration::from_secs(90), "broker session up").await;
        rig.publish_many("after", 3).await;
        rig.until_all_ended(Duration::from_secs(60), 3).await;
        vhost.forget_user(&user).await;
    })
    .await;
}

/// A producer can submit; it can neither read what others submit, nor reach a lane past the exchange, nor change anything.
async fn may_publish_and_nothing_else(url: &str) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("a connection");
    let consuming = connection.create_channel().await.expect("a channel");
    let consumed = consuming
        .basic_consume(
            "redeliver.default.tasks".into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await;
    assert!(consumed.expect_err("it may not consume").to_string().contains("ACCESS_REFUSED"));
    let publishing = connection.create_channel().await.expect("a channel");
    publishing.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let sent = publishing
        .basic_publish(
            "".into(),
            "redeliver.default.dead".into(),
            BasicPublishOptions::default(),
            b"{}",
            BasicProperties::default(),
        )
        .await;
    let confirmed = match sent {
        Ok(confirm) => confirm.await.map(drop),
        Err(error) => Err(error),
    };
    assert!(confirmed.expect_err("it may not reach the DLQ").to_string().contains("ACCESS_REFUSED"));
    let purging = connection.create_channel().await.expect("a channel");
    let purged =
        purging.queue_purge("redeliver.default.tasks".into(), lapin::options::QueuePurgeOptions::default()).await;
    assert!(purged.expect_err("it may not purge").to_string().contains("ACCESS_REFUSED"));
}
