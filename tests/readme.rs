//! The README's promises to people who publish from other languages: each snippet is cut out of the page and run as it stands.

#[path = "support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use redeliver::broker::{Broker, RabbitBroker};
use redeliver::config::{Config, EventsConfig};
use redeliver::handler::{AttemptContext, Handler, Report, Route};
use redeliver::policy::TopicPattern;
use redeliver::store::Store;
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::task::{Happening, Outcome, Status};
use redeliver::telemetry::Observers;
use redeliver::worker::{Plan, Worker};

const README: &str = include_str!("../README.md");

/// The code block behind `<!-- snippet: NAME -->`.
fn snippet(name: &str) -> String {
    let marker = format!("<!-- snippet: {name} -->");
    let (_, rest) = README.split_once(&marker).unwrap_or_else(|| panic!("the README has no snippet {name:?}"));
    let mut lines = rest.trim_start().lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("```")), "a code block follows {marker}");
    lines.take_while(|line| !line.starts_with("```")).map(|line| format!("{line}\n")).collect()
}

/// Runs `program` with `input` on stdin and fails with what it said.
async fn run(program: &str, arguments: &[&str], input: &str, env: HashMap<&str, String>) {
    use tokio::io::AsyncWriteExt;
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).await.expect("the program reads its input");
    drop(stdin);
    let output = support::soon(program, child.wait_with_output()).await.expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} failed: {said}");
}

struct Done;

#[async_trait::async_trait]
impl Handler for Done {
    async fn run(&self, attempt: AttemptContext) -> Report {
        if attempt.task.task_type.ends_with("fail") {
            return Outcome::failure("bad_payload", "no such order").into();
        }
        let order = attempt.payload::<serde_json::Value>().expect("a payload")["order"].clone();
        Outcome::success_json(&serde_json::json!({ "order": order })).into()
    }
}

/// A worker over `url` and a store in `folder`.
async fn worker(url: &str, folder: &Path) -> (Arc<dyn Store>, Worker) {
    worker_of(Config::default(), url, folder).await
}

async fn worker_of(config: Config, url: &str, folder: &Path) -> (Arc<dyn Store>, Worker) {
    let path = folder.join("redeliver.db");
    let store = SqliteStore::open(&format!("sqlite://{}", path.display()), config.settings(), SqliteOptions::default())
        .await
        .expect("a store");
    let store: Arc<dyn Store> = Arc::new(store);
    let broker = RabbitBroker::new(
        vec![url.to_owned()],
        config.broker.namespace.clone(),
        Duration::from_secs(5),
        Duration::from_secs(5),
    );
    let broker: Arc<dyn Broker> = Arc::new(broker.expect("a URL"));
    let route = Route { task_type: TopicPattern::new("order.#").expect("a pattern"), handler: Arc::new(Done) };
    broker.declare(&config.topology()).await.expect("the topology");
    let plan = Plan::with_routes(&config, vec![route]);
    let worker = Worker::start(Arc::clone(&store), broker, plan, Observers::default()).await.expect("a worker");
    (store, worker)
}

async fn ends_well(store: &dyn Store, id: &str) {
    let ids = [id.to_owned()];
    support::until(&format!("{id} succeeds"), async || {
        let task = store.get(&ids).await.expect("the store").pop().flatten();
        task.is_some_and(|task| task.state.status == Status::Succeeded)
    })
    .await;
}

/// A program that `tests/run` names, or that the machine has.
fn tool(variable: &str, otherwise: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| otherwise.to_owned())
}

#[tokio::test]
async fn the_python_snippet_publishes_a_task_that_runs() {
    support::with_vhost(async |vhost| {
        let Ok(path) = std::env::var("REDELIVER_TEST_PYTHONPATH") else {
            return support::skip("REDELIVER_TEST_PYTHONPATH does not say where pika is");
        };
        let folder = tempfile::tempdir().expect("a folder");
        let (store, worker) = worker(&vhost.url(), folder.path()).await;
        let env = HashMap::from([("PYTHONPATH", path), ("AMQP_URL", vhost.url())]);
        run(&tool("REDELIVER_TEST_PYTHON", "python3"), &["-"], &snippet("python"), env).await;
        ends_well(store.as_ref(), "order-1001").await;
        worker.stop(Duration::from_secs(1)).await;
    })
    .await;
}

#[tokio::test]
async fn the_node_snippet_publishes_a_task_that_runs() {
    support::with_vhost(async |vhost| {
        let Ok(path) = std::env::var("REDELIVER_TEST_NODE_PATH") else {
            return support::skip("REDELIVER_TEST_NODE_PATH does not say where amqplib is");
        };
        let folder = tempfile::tempdir().expect("a folder");
        let (store, worker) = worker(&vhost.url(), folder.path()).await;
        let env = HashMap::from([("NODE_PATH", path), ("AMQP_URL", vhost.url())]);
        run("node", &["-"], &snippet("node"), env).await;
        ends_well(store.as_ref(), "order-1002").await;
        worker.stop(Duration::from_secs(1)).await;
    })
    .await;
}

#[tokio::test]
async fn the_sql_snippet_makes_a_task_that_runs() {
    support::with_vhost(async |vhost| {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, worker) = worker(&vhost.url(), folder.path()).await;
        let path = folder.path().join("redeliver.db").display().to_string();
        run("sqlite3", &["-cmd", ".timeout 5000", &path], &snippet("sql"), HashMap::new()).await;
        ends_well(store.as_ref(), "order-1003").await;
        worker.stop(Duration::from_secs(1)).await;
    })
    .await;
}

#[tokio::test]
async fn the_snippet_of_a_compensating_service_hears_of_a_death() {
    support::with_vhost(async |vhost| {
        let Ok(path) = std::env::var("REDELIVER_TEST_PYTHONPATH") else {
            return support::skip("REDELIVER_TEST_PYTHONPATH does not say where pika is");
        };
        let folder = tempfile::tempdir().expect("a folder");
        let events = EventsConfig { publish: [Happening::Dead].into_iter().collect(), payload: true, result: false };
        let config = Config { events, ..Config::default() };
        let (store, worker) = worker_of(config, &vhost.url(), folder.path()).await;
        let env = HashMap::from([("PYTHONPATH", path), ("AMQP_URL", vhost.url())]);
        let code = snippet("events");
        let python = tool("REDELIVER_TEST_PYTHON", "python3");
        let hears = run(&python, &["-"], &code, env);
        let dies = async {
            support::until("it listens", async || vhost.queue("compensation").await["consumers"] == 1).await;
            let new = "INSERT INTO tasks (id, type, payload) VALUES ('order-1', 'order.fail', '{\"order\": 1}');";
            let path = folder.path().join("redeliver.db").display().to_string();
            run("sqlite3", &["-cmd", ".timeout 5000", &path], new, HashMap::new()).await;
        };
        tokio::join!(hears, dies);
        let dead = store.get(&["order-1".to_owned()]).await.expect("the store").pop().flatten().expect("a task");
        assert_eq!(dead.state.status, Status::Dead);
        worker.stop(Duration::from_secs(1)).await;
    })
    .await;
}

#[test]
fn every_file_that_the_readme_links_to_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let links = README.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    for target in links.filter(|target| !target.starts_with("http") && !target.starts_with('#')) {
        let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
        assert!(root.join(file).exists(), "the README links to {file}, which is not there");
        let Some(heading) = heading else { continue };
        let text = std::fs::read_to_string(root.join(file)).expect("a page");
        let mut headings = text.lines().filter_map(|line| line.strip_prefix('#'));
        assert!(
            headings.any(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-") == heading),
            "the README links to {target}, a heading that is not there"
        );
    }
}

#[test]
fn the_tables_of_the_comparison_and_of_chaos_are_what_was_measured() {
    for arguments in [
        &["benches/compare/render", "--check"][..],
        &["tests/chaos/run", "--readme", "--check", "--report", "tests/chaos/report.jsonl"],
    ] {
        let mut python = std::process::Command::new("python3");
        let output = python.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("python3 runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
