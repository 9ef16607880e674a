//! A disk that is full for a while: nothing is lost, nothing is acked before it is on the disk, nobody is called dead.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::rig::{Rig, as_i64, full, report, sized};
use crate::support::{until_within, with_vhost};
use crate::third_party::{Reply, ThirdParty};

const SUCCEEDED: &str = "SELECT count(*) FROM tasks WHERE status = 'succeeded'";

/// A small file system of its own, in memory; gone when this is dropped. Mounting is root's, here or by sudo.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(path: PathBuf, size: &str) -> SmallDisk {
        std::fs::create_dir(&path).expect("a folder");
        as_root(&["mount", "-t", "tmpfs", "-o", &format!("size={size},mode=1777"), "redeliver-test"], &path);
        SmallDisk(path)
    }

    /// Takes every byte that is left, until the returned file is removed.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path).expect("a file");
        // The last bytes one by one: whatever room is left, somebody's page fits in.
        for size in [65_536, 1] {
            let block = vec![0_u8; size];
            let refusal = loop {
                if let Err(error) = file.write_all(&block) {
                    break error;
                }
            };
            assert_eq!(refusal.kind(), ErrorKind::StorageFull, "{refusal}");
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a worker that a failing test leaves behind has the store open still.
        as_root(&["umount", "--lazy"], &self.0);
    }
}

fn as_root(words: &[&str], path: &Path) {
    // SAFETY: it only reads who this process is.
    let root = unsafe { libc::geteuid() } == 0;
    let mut words = words.to_vec();
    if !root {
        words.splice(0..0, ["sudo", "-n"]);
    }
    let status = std::process::Command::new(words[0]).args(&words[1..]).arg(path).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{words:?}: {status:?}");
}

#[tokio::test]
async fn a_disk_that_is_full_for_a_while_under_load_loses_no_task_and_calls_none_twice() {
    with_vhost(async |vhost| {
        let (n, away) = (sized(4_000, 300), Duration::from_secs(if full() { 20 } else { 4 }));
        let party = ThirdParty::start(|_| Reply::good().after(Duration::from_millis(20))).await;
        let settings = format!("[worker]\nlease = \"6s\"\nconcurrency = 8\n{}", party.route("30s"));
        let mut rig = Rig::new(&vhost, &settings).await;
        let disk = SmallDisk::at(rig.folder().join("small"), "48m");
        let small = disk.0.clone();
        rig.replace_store(async |folder: &Path| {
            std::fs::copy(folder.join("store.db"), small.join("store.db")).expect("copied");
            for name in ["store.db", "store.db-wal", "store.db-shm"] {
                let gone = std::fs::remove_file(folder.join(name));
                assert!(gone.is_ok() || gone.is_err_and(|error| error.kind() == ErrorKind::NotFound), "{name}");
            }
            std::os::unix::fs::symlink(small.join("store.db"), folder.join("store.db")).expect("linked");
        })
        .await;

        let workers = [rig.worker(), rig.worker()];
        rig.publish_many("full", n).await;
        until_within(Duration::from_secs(60), "the load is on", async || party.calls() > n / 4).await;
        let filler = disk.fill();
        let filled = Instant::now();
        let named = async || workers.iter().all(|worker| worker.log().contains("full"));
        until_within(Duration::from_secs(30), "both workers name the full disk", named).await;
        tokio::time::sleep(away.saturating_sub(filled.elapsed())).await;
        let during = rig.number(SUCCEEDED).await;
        std::fs::remove_file(filler).expect("room again");
        assert!(during < as_i64(n), "all was done before the disk was full");
        let began = Instant::now();
        rig.until_number(Duration::from_secs(120), SUCCEEDED, as_i64(n)).await;
        let attempts = rig.number("SELECT count(*) FROM attempts").await;
        report(&format!(
            "disk full for {:?}: {during} of {n} before, the rest {:?} after; {attempts} attempts, {} calls",
            began.duration_since(filled),
            began.elapsed(),
            party.calls()
        ));
        assert_eq!((attempts, party.calls()), (as_i64(n), n), "a full disk cost an attempt");
    })
    .await;
}
