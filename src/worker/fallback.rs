//! What ends a task that cannot be done now (F1).

use crate::task::{Command, DeadReason, Ending, Failure, Task};

use super::Shared;
use super::attempt::after_buried;

/// A breaker that falls back is open, and the task is due.
pub(super) async fn tripped(shared: &Shared, task: &Task, by: &str) {
    let failure = task.state.failure.clone().unwrap_or_else(|| Failure::new("circuit_open", format!("{by} is open")));
    let ending = Ending::Dead { reason: DeadReason::CircuitOpen, failure };
    let command = Command::Intercept { id: task.id().to_owned(), stamp: task.stamp(), ending };
    // When the store does not answer, the row's alarm brings it back here.
    if let Some(answers) = shared.try_apply(vec![command]).await {
        after_buried(shared, answers);
    }
}
