//! What a service manager is told: `sd_notify` of systemd and of those that speak like it. Without `NOTIFY_SOCKET` nothing is said.
//!
//! Ready means that the process supervises its work, not that broker and store answer: a worker waits for a broker that is down, and
//! whoever is started after it should not wait with it. Which of them answer is in the status line.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use redeliver::broker::Broker;
use redeliver::store::Store;
use redeliver::telemetry::{Vitals, unready};
use sd_notify::NotifyState;

/// How often the status line is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Started, and again after a reload.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The file is read again because somebody asked.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "the service manager is not told of the reload"),
    }
}

/// No new work is taken.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Says that this process lives and what it waits for, for ever. The watchdog hears nothing while a part of it is stuck.
pub async fn supervise(
    vitals: Option<Arc<Vitals>>,
    store: Arc<dyn Store>,
    broker: Option<Arc<dyn Broker>>,
) -> Infallible {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return std::future::pending().await;
    }
    // Half of what it waits at most, as systemd advises.
    let watchdog = sd_notify::watchdog_enabled().map(|patience| patience / 2);
    let mut looks = tokio::time::interval(watchdog.unwrap_or(LOOK).min(LOOK));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut told = String::new();
    loop {
        looks.tick().await;
        let stuck = vitals.as_ref().and_then(|vitals| vitals.stuck());
        match &stuck {
            Some(stuck) => tracing::error!(stuck, "the watchdog is not fed"),
            None if watchdog.is_some() => tell(&[NotifyState::Watchdog]),
            None => {}
        }
        let mut waits_for = unready(store.as_ref(), broker.as_deref()).await;
        waits_for.extend(stuck);
        let status = if waits_for.is_empty() { "working".to_owned() } else { waits_for.join("; ") };
        if status != told {
            tell(&[NotifyState::Status(&status)]);
            told = status;
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager cannot be told anything");
    }
}
