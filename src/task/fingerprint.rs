//! One name for equal failures.

use super::Failure;

/// Placeholder until the normalisation lands.
pub fn fingerprint(task_type: &str, failure: &Failure) -> String {
    format!("{task_type}/{}", failure.class)
}
