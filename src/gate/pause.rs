//! The pause of a queue or of a task type: a person's word, in force until a person takes it back.

use crate::policy::TopicPattern;

/// The key under which the pause of a queue is stored.
pub fn queue_pause(queue: &str) -> String {
    format!("pause queue {queue}")
}

/// The key under which the pause of a type pattern is stored.
pub fn type_pause(pattern: &TopicPattern) -> String {
    format!("pause type {pattern}")
}

/// Whether a `held_by` names a pause.
pub fn is_pause(key: &str) -> bool {
    key.starts_with("pause ")
}

/// Whether the pause with this key stops a task of that queue and type. A key of another form stops nothing.
pub fn pause_stops(key: &str, queue: &str, task_type: &str) -> bool {
    match key.strip_prefix("pause ").and_then(|rest| rest.split_once(' ')) {
        Some(("queue", name)) => name == queue,
        Some(("type", pattern)) => TopicPattern::new(pattern).is_ok_and(|pattern| pattern.matches(task_type)),
        _ => false,
    }
}
