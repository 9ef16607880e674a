//! The third party: it fails in every way, and heals when the run comes to its end.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redeliver::handler::{AttemptContext, Handler, Report};
use redeliver::task::{Failure, Outcome, RetryAfter, Verdict, class};

use crate::process::Process;

/// What a simulated panic says; the hook keeps it off the screen.
pub const PANIC: &str = "a simulated panic";

pub struct ThirdParty(pub Arc<Process>);

#[async_trait]
impl Handler for ThirdParty {
    async fn run(&self, attempt: AttemptContext) -> Report {
        let (process, world) = (&self.0, &self.0.world);
        process.step("handler").await;
        world.ledger().called(world, &process.name, &attempt);
        let wild = world.goes_wrong(world.faults.wild_handlers);
        let takes = match (wild, world.pick(0, 10)) {
            // Beyond the lease, which heartbeats keep.
            (true, 0..4) => world.length(5_000, 20_000),
            (_, 9) => world.length(1_000, 5_000),
            _ => world.length(1, 800),
        };
        if wild && world.happens(0.3) {
            // Does not hear that it is cancelled.
            tokio::time::sleep(takes).await;
        } else {
            tokio::select! {
                biased;
                () = attempt.cancel.cancelled() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return Outcome::failure(class::FAILED, "cancelled").into();
                }
                () = tokio::time::sleep(takes) => {}
            }
        }
        process.step("handler ends").await;
        assert!(!(wild && world.happens(0.2)), "{PANIC}");
        let heals = if world.at_peace.load(std::sync::atomic::Ordering::Relaxed) { 0.85 } else { 0.45 };
        if world.happens(heals) {
            return Outcome::success_json(&serde_json::json!({ "by": attempt.fence })).into();
        }
        failure(world).into()
    }
}

fn failure(world: &crate::world::World) -> Outcome {
    let classes = [class::TIMEOUT, class::NETWORK, class::SERVER_ERROR, class::RATE_LIMITED, class::HTTP_STATUS, "odd"];
    let class = world.one_of(&classes).copied().unwrap_or("odd");
    let failure = Failure::new(class, format!("failed in way {}", world.pick(0, 3)));
    let asks = class == class::RATE_LIMITED || world.happens(0.05);
    let retry_after = asks.then(|| RetryAfter { delay_ms: world.pick(0, 9_000) });
    let verdict = match world.pick(0, 20) {
        0 => Verdict::Dead,
        1 => Verdict::Retry,
        _ => Verdict::ByPolicy,
    };
    Outcome::Failure { failure, verdict, retry_after, cost: None }
}
