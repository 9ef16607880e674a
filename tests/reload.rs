//! A rule change in the file is in force for the next claim and decision in under two seconds, without a restart; a broken file changes
//! nothing and is named with line and field.

#[path = "cli/folder.rs"]
#[expect(dead_code, reason = "the other commands' tests use the rest of it")]
mod folder;

use std::time::{Duration, Instant};

use folder::Folder;
use serde_json::Value;

/// From the change of a file to its being in force.
const SOON: Duration = Duration::from_secs(2);

/// A folder whose worker fails every task but those of the type `slow`, which take two seconds, and notes each call.
struct Scene(Folder);

impl Scene {
    fn new(policy: &str) -> Scene {
        let scene = Scene(Folder::with_config(""));
        scene.says(policy);
        // Commands refuse a broken file, so they have one of their own.
        scene.0.write("commands.toml", &scene.text(""));
        scene
    }

    fn text(&self, policy: &str) -> String {
        let calls = self.0.path().join("calls");
        format!(
            "[broker]\nurl = 'embedded'\n[store]\nurl = 'sqlite://store.db'\n[[route]]\ntype = 'slow'\ncommand = {{ program = 'sleep', args = \
             ['2'] }}\n[[route]]\ntype = '#'\ncommand = {{ program = 'sh', args = ['-c', 'echo x >> {}; exit 1'] }}\n{policy}",
            calls.display()
        )
    }

    /// Changes the rules in the file.
    fn says(&self, policy: &str) {
        self.0.write("redeliver.toml", &self.text(policy));
    }

    fn calls(&self) -> usize {
        std::fs::read_to_string(self.0.path().join("calls")).map_or(0, |text| text.lines().count())
    }

    fn publish(&self, id: &str, task_type: &str) {
        self.0.run(&["--config", "commands.toml", "publish", task_type, "--id", id]).expect_exit(0);
    }

    fn task(&self, id: &str) -> Value {
        self.0.run(&["--config", "commands.toml", "task", "show", id, "-o", "json"]).expect_exit(0).json()
    }

    /// Waits until the task has this status, and shows it.
    fn until_task(&self, id: &str, status: &str) -> Value {
        let began = Instant::now();
        loop {
            let task = self.task(id);
            if task["status"] == status {
                return task;
            }
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "{id} does not become {status}: {task:#}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.0.path().join("work.log")).unwrap()
    }

    /// Waits until the worker has written a line with `text` for the `times`th time.
    fn until_log(&self, text: &str, times: usize) {
        let began = Instant::now();
        while self.log().matches(text).count() < times {
            assert!(began.elapsed() < SOON, "no {text:?} within {SOON:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn fixed(delay: &str, more: &str) -> String {
    format!("[[policy]]\nname = 'p'\nbackoff = {{ fixed = '{delay}' }}\n{more}\n")
}

#[test]
fn a_rule_change_holds_for_the_next_decision_in_under_two_seconds_and_running_tasks_go_on() {
    let scene = Scene::new(&fixed("1h", ""));
    let worker = scene.0.work();
    scene.publish("before", "a");
    assert_eq!(scene.until_task("before", "retry_waiting")["attempts"][0]["policy"], "p");
    scene.publish("running", "slow");
    scene.until_task("running", "running");
    scene.says(&fixed("1s", "max_retries = 1").replace("'p'", "'q'"));
    scene.until_log("rules in force", 1);
    scene.publish("after", "a");
    let after = scene.until_task("after", "dead");
    assert_eq!((&after["dead_reason"], &after["attempts"][0]["policy"]), (&"retries_exhausted".into(), &"q".into()));
    let running = scene.until_task("running", "succeeded");
    assert_eq!(running["attempts"].as_array().unwrap().len(), 1, "{running:#}");
    // What waits already goes on waiting: only what is decided anew has the new delay.
    assert_eq!(scene.task("before")["status"], "retry_waiting");
    worker.stop();
}

#[test]
fn a_waiting_task_whose_failure_is_permanent_now_or_whose_budget_is_spent_now_is_not_called_again() {
    for (change, reason) in
        [("permanent = { classes = ['failed'] }", "permanent_error"), ("max_retries = 0", "retries_exhausted")]
    {
        let scene = Scene::new(&fixed("4s", ""));
        let worker = scene.0.work();
        scene.publish("t", "a");
        scene.until_task("t", "retry_waiting");
        scene.says(&fixed("4s", change));
        scene.until_log("rules in force", 1);
        let dead = scene.until_task("t", "dead");
        assert_eq!((dead["dead_reason"].as_str(), scene.calls()), (Some(reason), 1), "{dead:#}");
        assert_eq!(dead["attempts"].as_array().unwrap().len(), 1, "a task that was not called has no attempt");
        worker.stop();
    }
}

#[test]
fn a_broken_file_changes_nothing_and_is_named_with_line_and_field_once() {
    let scene = Scene::new(&fixed("1h", ""));
    let worker = scene.0.work();
    scene.says(&fixed("0s", "max_retries = -1\nhours = { from = '25:00', to = '06:00' }"));
    let line = scene.text("").lines().count();
    scene.until_log(&format!("redeliver.toml:{}: policy \\\"p\\\": backoff.fixed", line + 3), 1);
    scene.until_log("hours.from: expected a time", 1);
    // No second time while nothing changes.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(scene.log().matches("hours.from: expected a time").count(), 1, "{}", scene.log());
    scene.publish("t", "a");
    let task = scene.until_task("t", "retry_waiting");
    assert_eq!(task["attempts"][0]["policy"], "p");
    assert_eq!(scene.log().matches("rules in force").count(), 0);
    // Mended, it holds.
    scene.says(&fixed("1s", "max_retries = 0"));
    scene.until_log("rules in force", 1);
    scene.publish("u", "a");
    scene.until_task("u", "dead");
    worker.stop();
}

#[test]
fn a_swapped_symlink_and_a_hangup_are_seen_and_what_needs_a_restart_is_said() {
    let scene = Scene::new("");
    let at = |name: &str| scene.0.path().join(name);
    for (version, policy) in [("v1", fixed("1h", "")), ("v2", fixed("1s", "max_retries = 0"))] {
        std::fs::create_dir(at(version)).unwrap();
        scene.0.write(&format!("{version}/redeliver.toml"), &scene.text(&policy));
    }
    std::os::unix::fs::symlink("v1", at("..data")).unwrap();
    std::fs::remove_file(at("redeliver.toml")).unwrap();
    std::os::unix::fs::symlink("..data/redeliver.toml", at("redeliver.toml")).unwrap();
    let worker = scene.0.work();
    std::os::unix::fs::symlink("v2", at("..data_tmp")).unwrap();
    std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    scene.until_log("rules in force", 1);
    scene.publish("t", "a");
    scene.until_task("t", "dead");
    worker.hang_up();
    scene.until_log("rules in force", 2);
    let more = format!("{}[worker]\nconcurrency = 3\n[[queue]]\nname = 'q'\ntypes = ['q']\n", scene.text(""));
    scene.0.write("v2/redeliver.toml", &more);
    scene.until_log("from the next start on only", 1);
    assert!(scene.log().contains("[worker], [[queue]]"), "{}", scene.log());
    worker.stop();
}
