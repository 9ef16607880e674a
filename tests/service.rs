//! What a service manager is told over its socket, by the real program with the broker inside: the socket here is the test's.

#[allow(dead_code, reason = "the command line's tests use all of it")]
#[path = "cli/folder.rs"]
mod folder;

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use folder::Folder;

const CONFIG: &str = "[broker]\nurl = 'embedded'\n[store]\nurl = 'sqlite://store.db'\n";

/// A service manager that listens.
struct Manager(UnixDatagram);

impl Manager {
    fn listen(folder: &Folder) -> (Manager, String) {
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (Manager(socket), path.display().to_string())
    }

    /// Waits for a message with this line, and returns all of its lines.
    fn hears(&self, line: &str) -> Vec<String> {
        let mut buffer = [0; 4096];
        loop {
            let length = self.0.recv(&mut buffer).unwrap_or_else(|error| panic!("nobody says {line:?}: {error}"));
            let text = std::str::from_utf8(&buffer[..length]).unwrap();
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            if lines.iter().any(|found| found == line) {
                return lines;
            }
        }
    }
}

#[test]
fn a_service_manager_is_told_of_readiness_life_reloads_and_the_end() {
    let folder = Folder::with_config(CONFIG);
    let (manager, socket) = Manager::listen(&folder);
    let worker = folder.work_with(&[], &[("NOTIFY_SOCKET", &socket), ("WATCHDOG_USEC", "1000000")]);
    manager.hears("READY=1");
    manager.hears("STATUS=working");
    manager.hears("WATCHDOG=1");
    manager.hears("WATCHDOG=1");
    worker.hang_up();
    let reloading = manager.hears("RELOADING=1");
    let stamp = reloading.iter().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("when it began");
    assert!(stamp.parse::<u64>().is_ok_and(|stamp| stamp > 0), "{reloading:?}");
    manager.hears("READY=1");
    worker.stop();
    manager.hears("STOPPING=1");
}

#[test]
fn a_worker_whose_broker_is_away_is_ready_and_says_what_it_waits_for() {
    let folder = Folder::with_config("[broker]\nurl = 'amqp://127.0.0.1:1/%2f'\n[store]\nurl = 'sqlite://store.db'\n");
    let (manager, socket) = Manager::listen(&folder);
    let worker = folder.work_with(&[], &[("NOTIFY_SOCKET", &socket)]);
    manager.hears("READY=1");
    manager.hears("STATUS=no session with the broker");
    worker.stop();
}

#[test]
fn without_a_service_manager_nothing_is_said_and_nothing_fails() {
    let folder = Folder::with_config(CONFIG);
    folder.work().stop();
    let worker = folder.work_with(&[], &[("NOTIFY_SOCKET", "/nobody/listens/here")]);
    worker.stop();
}
