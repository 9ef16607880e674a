//! The program run as a user would, in a folder of its own with an environment of its own.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A working directory with a config file.
pub struct Folder(tempfile::TempDir);

/// What a run came to.
#[derive(Debug)]
pub struct Ran {
    pub arguments: Vec<String>,
    pub exit: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Fails the test unless it ended with this code.
    pub fn expect_exit(self, exit: i32) -> Ran {
        assert_eq!(self.exit, Some(exit), "redeliver {}: {self:#?}", self.arguments.join(" "));
        self
    }

    /// Everything it printed.
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// stdout as one JSON document.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self:#?}"))
    }
}

impl Folder {
    /// A new folder with this `redeliver.toml`.
    pub fn with_config(text: &str) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("redeliver.toml", text);
        folder
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// Runs to the end, with nothing on stdin.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[])
    }

    pub fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = self.command(arguments);
        command.envs(variables.iter().copied()).stdin(Stdio::null());
        ran(arguments, command.output().unwrap())
    }

    pub fn run_stdin(&self, arguments: &[&str], stdin: &str) -> Ran {
        let mut command = self.command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        ran(arguments, child.wait_with_output().unwrap())
    }

    /// Starts a worker and waits until its store is there.
    pub fn work(&self) -> Worker {
        self.work_with(&[], &[])
    }

    /// The same, with more arguments and variables.
    pub fn work_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Worker {
        let log = std::fs::File::create(self.path().join("work.log")).unwrap();
        let mut command = self.command(&[&["work"], arguments].concat());
        let child = command
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let worker = Worker(Some(child));
        let began = Instant::now();
        while !std::fs::read_to_string(self.path().join("work.log")).unwrap().contains("working") {
            assert!(began.elapsed() < Duration::from_secs(30), "the worker does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        worker
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redeliver"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.args(arguments).current_dir(self.path()).env_clear().env("PATH", path).env("HOME", self.path());
        command
    }
}

fn ran(arguments: &[&str], output: Output) -> Ran {
    Ran {
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        exit: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A running worker; killed if the test fails.
pub struct Worker(Option<Child>);

impl Worker {
    /// SIGHUP.
    pub fn hang_up(&self) {
        let id = self.0.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    }

    /// SIGTERM; it must end in order.
    pub fn stop(mut self) {
        let mut child = self.0.take().unwrap();
        let told = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(told.success());
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "the worker ended with {status}");
                return;
            }
            if began.elapsed() > Duration::from_secs(30) {
                child.kill().unwrap();
                panic!("the worker does not stop");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take()
            && let Err(error) = child.kill()
        {
            eprintln!("the worker is still running: {error}");
        }
    }
}
