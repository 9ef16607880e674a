//! A worker's process: it can die or stand still at every call it makes.
//!
//! A dead process is one whose calls never return and reach nothing. Its parts stay in memory until the run ends, as a frozen picture;
//! since all that a worker does goes through its ports, nobody can tell the difference.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use redeliver::broker::{Broker, DeadPass, EmbeddedBroker};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::world::{World, locked};

/// See the module.
pub struct Process {
    pub name: String,
    pub world: Arc<World>,
    /// Its own connection to the broker.
    pub client: EmbeddedBroker,
    dead: AtomicBool,
    frozen_until: Mutex<Option<Instant>>,
    /// Told when its session ends.
    pub cut: Notify,
    pub session_up: AtomicBool,
    /// Its passes over DLQs: what they hold goes back when it dies.
    passes: Mutex<Vec<PassSlot>>,
}

pub type PassSlot = Arc<Mutex<Option<Box<dyn DeadPass>>>>;

impl Process {
    pub fn new(name: String, world: Arc<World>, client: EmbeddedBroker) -> Process {
        Process {
            name,
            world,
            client,
            dead: AtomicBool::new(false),
            frozen_until: Mutex::new(None),
            cut: Notify::new(),
            session_up: AtomicBool::new(false),
            passes: Mutex::default(),
        }
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// A moment before or after a call.
    pub async fn step(&self, call: &'static str) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
        if self.world.is_stuck_in_time() {
            self.world.wrong(format!("{} calls {call} again and again", self.name));
            self.die();
            std::future::pending::<()>().await;
        }
        let faults = &self.world.faults;
        if self.world.goes_wrong(faults.death) {
            self.world.tell(&self.name, "dies at", call, 0);
            self.die();
            std::future::pending::<()>().await;
        }
        if self.world.goes_wrong(faults.stall) {
            let length = self.world.length(500, 15_000);
            self.world.tell(&self.name, "stands still at", call, i64::try_from(length.as_millis()).unwrap_or(0));
            *locked(&self.frozen_until) = Some(Instant::now() + length);
        }
        loop {
            let until = *locked(&self.frozen_until);
            match until {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                _ => break,
            }
        }
        if self.world.goes_wrong(faults.slow) {
            tokio::time::sleep(self.world.length(1, 400)).await;
        }
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends it: its connections break, and it does nothing any more.
    pub fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
        for pass in locked(&self.passes).drain(..) {
            locked(&pass).take();
        }
        // The embedded broker has nothing to wait for.
        let _closed: Option<()> = self.client.close().now_or_never();
    }

    /// Lets it go on at once.
    pub fn thaw(&self) {
        *locked(&self.frozen_until) = None;
    }

    /// Breaks its session.
    pub fn cut_session(&self) {
        self.session_up.store(false, Ordering::Relaxed);
        for pass in locked(&self.passes).iter() {
            locked(pass).take();
        }
        self.client.break_session();
        self.cut.notify_one();
    }

    pub fn keep_pass(&self, pass: Box<dyn DeadPass>) -> PassSlot {
        let slot = Arc::new(Mutex::new(Some(pass)));
        let mut passes = locked(&self.passes);
        passes.retain(|pass| locked(pass).is_some());
        passes.push(Arc::clone(&slot));
        slot
    }
}

/// How long a session takes to come back.
pub const COMES_BACK: Duration = Duration::from_millis(300);
