//! The store as a process sees it: slow, away, or silent about what it did.

use std::sync::Arc;

use async_trait::async_trait;
use redeliver::store::{Store, StoreError, Urgency};
use redeliver::task::{Answer, Command};

use crate::process::Process;
use crate::store_double::Interference;

/// See the module.
pub struct Between(pub Arc<Process>);

impl Between {
    fn away(why: &str) -> StoreError {
        StoreError::Unavailable { place: "simulated".into(), reason: why.into() }
    }

    fn silent() -> StoreError {
        StoreError::Unknown { place: "simulated".into() }
    }
}

#[async_trait]
impl Interference for Between {
    async fn apply(
        &self,
        store: &dyn Store,
        urgency: Urgency,
        commands: Vec<Command>,
    ) -> Result<Vec<Answer>, StoreError> {
        let (process, world) = (&self.0, &self.0.world);
        process.step("apply").await;
        if world.ledger().store_is_away(world.elapsed()) {
            tokio::time::sleep(world.length(1, 300)).await;
            return Err(Between::away("an outage"));
        }
        if world.goes_wrong(world.faults.refused) {
            return Err(Between::away("refused"));
        }
        let silent = world.goes_wrong(world.faults.untold);
        if silent && world.happens(0.3) {
            return Err(Between::silent());
        }
        let now = world.now();
        let answers = store.apply(urgency, commands.clone()).await?;
        world.ledger().committed(world, &process.name, &commands, &answers, now);
        process.step("applied").await;
        if silent { Err(Between::silent()) } else { Ok(answers) }
    }

    async fn before(&self, call: &'static str) -> Result<(), StoreError> {
        let (process, world) = (&self.0, &self.0.world);
        if call == "outside_changes" {
            // Five times a second in every worker, and all it may do is to wake somebody early.
            return if process.is_dead() { std::future::pending().await } else { Ok(()) };
        }
        process.step(call).await;
        if world.ledger().store_is_away(world.elapsed()) || world.goes_wrong(world.faults.unanswered) {
            return Err(Between::away("an outage"));
        }
        world.now();
        Ok(())
    }

    async fn after(&self, call: &'static str) -> Result<(), StoreError> {
        let (process, world) = (&self.0, &self.0.world);
        if call == "outside_changes" {
            return Ok(());
        }
        process.step(call).await;
        if world.goes_wrong(world.faults.untold) { Err(Between::silent()) } else { Ok(()) }
    }

    fn reading_clock(&self) {
        self.0.world.now();
    }
}
