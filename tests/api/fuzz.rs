//! No request that the description allows, and none that it forbids, is answered by a 500 or by something that the description does not
//! have: schemathesis makes thousands of both from the served document.
//!
//! `tests/run` installs it and names it in `REDELIVER_TEST_SCHEMATHESIS`.

use std::process::Command;
use std::sync::Arc;

use arc_swap::ArcSwap;
use redeliver::api::{App, Server, secret};
use redeliver::config::{self, Environment, Request, Secrets};
use redeliver::store::access::{AccessStore, NewToken, Role};
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{Store, Urgency};
use redeliver::task::{
    Answer, Claimant, Command as Do, DeadReason, Decision, Envelope, Failure, Settings, Settlement, TaskResult,
};

use crate::support;

const CONFIG: &str = r##"
[broker]
url = "embedded"

[console]
masked = [{ type = "#", fields = ["/card"] }]

[[limit]]
name = "all"
rate = "5/min"

[[breaker]]
name = "shop"
per = ["label.shop"]
consecutive = 5
"##;

/// How long it may go on; the coverage of the document alone takes a part of it.
const SECONDS: &str = "45";

/// What the fuzzer finds there to work on.
async fn tasks(store: &Arc<SqliteStore>, config: &Arc<config::Config>) {
    for n in 0..40 {
        let id = format!("t{n}");
        let envelope = Envelope::new("order.ship").id(&id).label("shop", "a").payload_text(r#"{"card": 1}"#).unwrap();
        let door = Arc::clone(store) as Arc<dyn Store>;
        redeliver::desk::submit::submit(door, None, Arc::clone(config), envelope).await.unwrap();
        if n % 4 == 0 {
            continue;
        }
        let claimant = Claimant { worker: "w".into(), serves: None, gates: Arc::default(), policies: None };
        let stamp = store.get(std::slice::from_ref(&id)).await.unwrap().remove(0).unwrap().stamp();
        let claim = Do::Claim { id: id.clone(), stamp, claimant: Some(claimant) };
        let fence = match store.apply(Urgency::Normal, vec![claim]).await.unwrap().remove(0) {
            Answer::Run(task) => task.state.fence,
            other => panic!("{other:?}"),
        };
        let failure = Failure { fingerprint: "v1-print".into(), ..Failure::new("timeout", "no answer <b>") };
        let mut settlement = match n % 2 {
            0 => Settlement::new("w", Decision::Succeed),
            _ => Settlement::new("w", Decision::Die { reason: DeadReason::RetriesExhausted, failure }),
        };
        let result = TaskResult { media_type: "application/json".into(), body: "null".into(), truncated: false };
        settlement.result = Some(result).filter(|_| n % 2 == 0);
        let settle = Do::Settle { id, fence, settlement: Box::new(settlement) };
        let answer = store.apply(Urgency::Normal, vec![settle]).await.unwrap().remove(0);
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_answered_by_a_500_or_by_what_the_description_does_not_have() {
    let Ok(fuzzer) = std::env::var("REDELIVER_TEST_SCHEMATHESIS") else {
        support::skip("REDELIVER_TEST_SCHEMATHESIS names no schemathesis; tests/run installs one");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let environment: Environment<'_> = &|_| None;
    let request = Request { file: None, environment, flags: Vec::new(), secrets: Secrets::Optional };
    let config = config::load_text(&request, "fuzz.toml".into(), CONFIG.into()).unwrap().config;
    let config = Arc::new(config);
    let url = format!("sqlite://{}", folder.path().join("fuzz.db").display());
    let store = SqliteStore::open(&url, Settings::default(), SqliteOptions::default()).await.unwrap();
    let store = Arc::new(store);
    tasks(&store, &config).await;
    let token = secret::new_token();
    let hash = secret::hash(&token);
    let new = NewToken { name: "fuzz".into(), hash, role: Role::Admin, created_by: "test".into(), expires_at: None };
    assert!(store.create_token(new).await.unwrap());
    let live = Arc::new(ArcSwap::new(Arc::clone(&config)));
    let app = App::new(Arc::clone(&store) as Arc<dyn Store>, None, live, config.console.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pages = redeliver::console::pages(&app);
    let server = Server::start(listener, app, pages).unwrap();
    let document = format!("http://{}/v1/openapi.json", server.address());
    // Nobody works here: who waits for a task waits for as long as it has asked to, and the fuzzer takes that for a dead server. What
    // `wait` may be is in `input`.
    std::fs::write(folder.path().join("schemathesis.toml"), "[parameters]\n\"query.wait\" = \"10ms\"\n").unwrap();
    let fuzzed = tokio::task::spawn_blocking(move || {
        Command::new(fuzzer)
            .args(["run", &document, "--header", &format!("Authorization: Bearer {token}")])
            .args(["--phases", "coverage,fuzzing", "--max-time", SECONDS, "--seed", "1", "--continue-on-failure"])
            // A document cannot say everything about a value: that two fields exclude each other, or what a JSON Patch is. What it
            // allows and a handler refuses is covered by the table in `input`.
            .args(["--exclude-checks", "positive_data_acceptance"])
            // It would revoke its own token.
            .args(["--exclude-operation-id", "revokeToken", "--warnings", "off", "--no-color"])
            .current_dir(folder.path())
            .output()
            .unwrap()
    });
    let output = fuzzed.await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Test cases:"), "it has asked nothing: {text}");
}
