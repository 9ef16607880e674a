//! Logs never hold payloads or secrets, at no level and in neither form: the real program runs tasks that succeed, fail and cannot be
//! read, with a word in every place that is nobody's business, and then the logs are searched for it.

#[allow(dead_code, reason = "the command line's tests use all of it")]
#[path = "cli/folder.rs"]
mod folder;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;

use folder::Folder;

/// Part of everything that must not be seen.
const SECRET: &str = "hunter2";

async fn third_party() -> SocketAddr {
    let router = Router::new()
        .route("/hunter2-path/good", post(async || r#"{"answer":"hunter2-result"}"#))
        .route("/hunter2-path/bad", post(async || (StatusCode::SERVICE_UNAVAILABLE, "hunter2-body")));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn config(address: SocketAddr) -> String {
    let route = |word: &str| {
        format!(
            "[[route]]\ntype = 'test.{word}'\nhttp = {{ url = 'http://user:hunter2-user@{address}/hunter2-path/{word}?key=hunter2-query', \
             headers = {{ authorization = 'env:TOKEN' }} }}\n"
        )
    };
    format!(
        "[broker]\nurl = 'embedded'\n[store]\nurl = 'sqlite://store.db'\n[events]\npublish = ['task.#']\npayload = true\nresult = true\n{}{}\
         [[route]]\ntype = 'test.command'\ncommand = {{ program = 'sh', args = ['-c', 'echo hunter2-output >&2; exit 1'], env = ['PASSWORD=hunter2-env'] }}\n\
         [[policy]]\nname = 'quick'\nmax_retries = 1\nbackoff = {{ fixed = '10ms' }}\n",
        route("good"),
        route("bad"),
    )
}

fn until_ended(folder: &Folder, n: usize) {
    let began = Instant::now();
    loop {
        let listed = folder.run(&["-o", "json", "task", "list"]).expect_exit(0).json();
        let tasks = listed["items"].as_array().unwrap();
        let ended = |task: &&serde_json::Value| ["succeeded", "dead"].contains(&task["status"].as_str().unwrap());
        if tasks.iter().filter(ended).count() == n {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{listed}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_level_and_no_form_of_the_log_holds_a_payload_or_a_secret() {
    for form in ["text", "json"] {
        let folder = Folder::with_config(&config(third_party().await));
        let variables = [("REDELIVER_LOG", "trace"), ("TOKEN", "Bearer hunter2-token")];
        let worker = folder.work_with(&["--log-format", form], &variables);
        for word in ["good", "bad", "command"] {
            let payload = r#"{"card":"hunter2-payload"}"#;
            let task_type = format!("test.{word}");
            folder.run(&["publish", &task_type, "--id", word, "--payload", payload]).expect_exit(0);
        }
        until_ended(&folder, 3);
        worker.stop();
        let log = std::fs::read_to_string(folder.path().join("work.log")).unwrap();
        assert!(log.contains("attempt settled") && log.contains("task died"), "{log}");
        let found: Vec<&str> = log.lines().filter(|line| line.contains(SECRET)).collect();
        assert!(found.is_empty(), "{form}: {found:#?}");
        if form == "json" {
            for line in log.lines() {
                let document: serde_json::Value =
                    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
                assert!(document["level"].is_string() && document["timestamp"].is_string(), "{line}");
            }
        }
    }
}
