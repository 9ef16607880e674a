//! Waiting for tasks to end, by looking at the store again and again.
//!
//! Looks are 20 ms apart at first and at most [`LONGEST_PAUSE`] later: nobody is told of a task's end but the store.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redeliver::desk::task::{TaskDetail, TaskDocument};
use redeliver::desk::{List, Mask};
use redeliver::store::Store;
use redeliver::task::Task;
use serde_json::json;

use super::context::{Context, Door};
use super::exit::{self, Exit};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// After this long an id that the store does not know is worth a word: it may be mistyped, or a worker may be missing.
const UNKNOWN_FOR: Duration = Duration::from_secs(5);

/// How the waiting ended.
pub struct Waited {
    /// The last look at each, by input index; `None`: the store never knew it.
    pub tasks: Vec<Option<TaskDocument>>,
    /// Whether all have ended.
    pub all_ended: bool,
}

/// Waits until every task has ended or `--timeout` is over. An id that the store does not know yet is waited for too: a submission
/// becomes a row only when a worker has taken it.
///
/// # Errors
/// When the store does not answer.
pub async fn until_ended(context: &Context, door: &Door<'_>, ids: &[String]) -> anyhow::Result<Waited> {
    let began = Instant::now();
    let mut known: HashMap<String, TaskDocument> = HashMap::new();
    let mut open: Vec<String> = ids.to_vec();
    let mut pause = FIRST_PAUSE;
    let mut told = false;
    loop {
        let found = context.bound_last("the store", look(door, &open)).await??;
        known.extend(found.into_iter().map(|task| (task.id.clone(), task)));
        open.retain(|id| known.get(id).is_none_or(|task| !task.status.is_ended()));
        let over = context.deadline().is_some_and(|deadline| Instant::now() >= deadline);
        if open.is_empty() || over {
            let tasks = ids.iter().map(|id| known.get(id).cloned()).collect();
            return Ok(Waited { tasks, all_ended: open.is_empty() });
        }
        if !told && began.elapsed() >= UNKNOWN_FOR {
            told = true;
            for id in open.iter().filter(|id| !known.contains_key(*id)) {
                context.say(format!("the store does not know {id:?} yet: is the id right, and is a worker running?"));
            }
        }
        let left = context.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
        tokio::time::sleep(left.map_or(pause, |left| pause.min(left))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The tasks with these ids that are known.
async fn look(door: &Door<'_>, ids: &[String]) -> anyhow::Result<Vec<TaskDocument>> {
    match door {
        Door::Store(store) => {
            let found = store.get(ids).await?;
            Ok(found.into_iter().flatten().map(|task| TaskDocument::of(&task, Mask::none())).collect())
        }
        Door::Api(remote) => {
            let mut found = Vec::new();
            for chunk in ids.chunks(AT_ONCE) {
                let query: Vec<(&str, &str)> = chunk.iter().map(|id| ("id", id.as_str())).collect();
                let page: List<TaskDocument> = remote.get(&["tasks"], &query).await?;
                found.extend(page.items);
            }
            Ok(found)
        }
    }
}

/// Ids in one question to a server: their length is the URL's.
const AT_ONCE: usize = 25;

/// Everything about the one task with that id.
///
/// # Errors
/// [`Exit::NotFound`] when there is none.
pub async fn detail(context: &Context, door: &Door<'_>, id: &str) -> anyhow::Result<TaskDetail> {
    match door {
        Door::Store(store) => {
            let task = one(context, &**store, id).await?;
            let attempts = store.attempts(id).await?;
            let result = store.result(id).await?;
            Ok(TaskDetail::of(&task, &attempts, result.as_ref(), Mask::none()))
        }
        Door::Api(remote) => context.bound("the server", remote.get(&["tasks", id], &json!({}))).await?,
    }
}

/// The one task with that id.
///
/// # Errors
/// [`Exit::NotFound`] when there is none.
pub async fn one(context: &Context, store: &dyn Store, id: &str) -> anyhow::Result<Task> {
    let found = context.bound("the store", store.get(std::slice::from_ref(&id.to_owned()))).await??;
    found.into_iter().next().flatten().ok_or_else(|| exit::error(Exit::NotFound, format!("there is no task {id:?}")))
}
