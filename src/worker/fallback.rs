//! What ends a task that cannot be done now (F1): the policy's fallbacks, in its order.
//!
//! They are for a task whose retries are spent, and for one that is due while a breaker with `when_open = "fallback"` is open. Not for
//! a permanent failure, which says that the task itself is wrong, nor for a deadline, after which nobody asks any more. The cache is read
//! before the end is committed: a better result that is stored meanwhile comes too late for this task, which does no harm.

use std::time::Duration;

use crate::policy::{Fallback, Policy};
use crate::store::StoreError;
use crate::task::{Command, DeadReason, Decision, Degraded, Ending, Failure, Spec, Task, TaskResult};

use super::Shared;
use super::attempt::after_buried;

/// What ends a task of that policy instead of its death; `None`: nothing does.
///
/// # Errors
/// When the store does not tell what is cached.
async fn find(shared: &Shared, spec: &Spec, policy: &Policy) -> Result<Option<Degraded>, StoreError> {
    for fallback in policy.fallbacks() {
        let result = match fallback {
            Fallback::Queue => return Ok(None),
            Fallback::Default => policy.default_result.as_ref().map(|value| TaskResult {
                media_type: "application/json".into(),
                body: value.to_string().into_bytes(),
                truncated: false,
            }),
            Fallback::Cache => {
                let cached = shared.store.cached(&spec.task_type, &spec.cached_as()).await?;
                let oldest = shared.store.now().saturating_sub(policy.cache_max_age_ms);
                cached.filter(|(_, stored_at)| *stored_at >= oldest).map(|(result, _)| result)
            }
        };
        if let Some(result) = result {
            return Ok(Some(Degraded { by: fallback.as_str().to_owned(), result }));
        }
    }
    Ok(None)
}

/// What ends a task instead of a death that was decided.
///
/// # Errors
/// When the store does not tell what is cached.
pub(super) async fn for_decision(
    shared: &Shared,
    spec: &Spec,
    policy: &Policy,
    decision: &Decision,
) -> Result<Option<Degraded>, StoreError> {
    match decision {
        Decision::Die { reason: DeadReason::RetriesExhausted, .. } => find(shared, spec, policy).await,
        _ => Ok(None),
    }
}

/// Waits for a store that did not answer.
pub(super) struct Patience(Duration);

impl Patience {
    pub(super) fn new() -> Patience {
        Patience(Duration::from_millis(50))
    }

    /// Whether to ask again; not when the worker ends.
    pub(super) async fn again(&mut self, shared: &Shared, error: &StoreError) -> bool {
        shared.store_is_down(error);
        let pause = self.0;
        self.0 = (pause * 2).min(Duration::from_secs(2));
        tokio::select! {
            biased;
            () = shared.stop_all.cancelled() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }
}

/// A breaker that falls back is open, and the task is due.
pub(super) async fn tripped(shared: &Shared, task: &Task, by: &str) {
    let failure = task.state.failure.clone().unwrap_or_else(|| Failure::new("circuit_open", format!("{by} is open")));
    end(shared, task, DeadReason::CircuitOpen, failure).await;
}

/// Ends a waiting task by its policy's fallbacks, or else as dead.
pub(super) async fn end(shared: &Shared, task: &Task, reason: DeadReason, failure: Failure) {
    let policy = shared.rules().policy_of(&task.spec, shared.store.now());
    let ending = match find(shared, &task.spec, &policy).await {
        Ok(Some(degraded)) => Ending::Degraded { degraded, failure },
        Ok(None) => Ending::Dead { reason, failure },
        // The row's alarm brings it back here, as below.
        Err(error) => return shared.store_is_down(&error),
    };
    let command = Command::Intercept { id: task.id().to_owned(), stamp: task.stamp(), ending };
    // When the store does not answer, the row's alarm brings it back here.
    if let Some(answers) = shared.try_apply(vec![command]).await {
        after_buried(shared, answers);
    }
}
