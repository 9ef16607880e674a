//! A process group and its end.
//!
//! The leader of a group is waited for without being reaped: as long as it is a zombie its number cannot be given to another
//! process, so a signal to the group can hit nobody else.

use std::io;
use std::time::Duration;

use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

/// How often a group that was told to end is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long a group may take to vanish after SIGKILL; a process in the middle of a disk access does not listen.
const AFTER_KILL: Duration = Duration::from_secs(1);

/// News of ended children.
pub(super) struct ChildSignals(Signal);

impl ChildSignals {
    /// Listens from now on.
    pub fn new() -> io::Result<ChildSignals> {
        signal(SignalKind::child()).map(ChildSignals)
    }

    async fn next(&mut self) {
        // Signals merge; looking now and then costs nothing and misses none.
        if timeout(Duration::from_secs(1), self.0.recv()).await.is_err() {
            tracing::trace!("no child has ended for a second");
        }
    }
}

/// The group of a child that was started as its leader. Dropping it kills what is left.
pub(super) struct Group {
    id: libc::pid_t,
    gone: bool,
}

impl Group {
    /// The group that `child` leads.
    pub fn of(child: &Child) -> Option<Group> {
        let id = libc::pid_t::try_from(child.id()?).ok()?;
        Some(Group { id, gone: false })
    }

    /// Waits until the leader has ended, and leaves it unreaped.
    pub async fn leader_ended(&self, signals: &mut ChildSignals) {
        while !has_ended(self.id) {
            signals.next().await;
        }
    }

    /// Asks every process of the group to end.
    pub fn terminate(&mut self) {
        self.send(libc::SIGTERM);
    }

    /// Ends every process of the group.
    pub fn kill(&mut self) {
        self.send(libc::SIGKILL);
    }

    /// Waits for the last process of the group, `grace` long, then kills. The leader must have been reaped.
    pub async fn all_ended(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace;
        let give_up_at = kill_at + AFTER_KILL;
        let mut killed = false;
        // Signal 0 only asks whether somebody is there.
        while self.send(0) {
            let now = Instant::now();
            if now >= give_up_at {
                tracing::warn!(process_group = self.id, "a command's process group does not end after SIGKILL");
                break;
            }
            if now >= kill_at && !killed {
                self.kill();
                killed = true;
            }
            sleep(LOOK).await;
        }
        self.gone = true;
    }

    /// Sends a signal to the group. Whether anybody was there.
    fn send(&self, signal: libc::c_int) -> bool {
        // SAFETY: kill() takes two integers and touches no memory of ours. The group is one we made: it has a member (the unreaped
        // leader) or had one at the last look, so its number has not been given away.
        unsafe { libc::kill(-self.id, signal) == 0 }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.gone {
            self.kill();
        }
    }
}

/// Whether our child `id` has ended; it stays unreaped.
fn has_ended(id: libc::pid_t) -> bool {
    let Ok(child) = libc::id_t::try_from(id) else { return true };
    // SAFETY: siginfo_t is plain data for which all zeros is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` lives through the call and is of the type that waitid writes.
    let result =
        unsafe { libc::waitid(libc::P_PID, child, &raw mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) };
    // An error means that there is no such child (any more); without one, no signal number means that it still runs.
    result != 0 || info.si_signo != 0
}
