//! What running tasks asked for, remembered from their claim.
//!
//! A heartbeat or a settle changes only a task's state; reading its payload again each time would cost more than the
//! change itself. Only rows that this process runs are remembered, and a task that waits is always read afresh. A miss
//! costs one read and nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use crate::task::{Answer, Millis, Spec};

/// More than one process runs at once with small payloads; large ones are read again.
const LONGEST_PAYLOAD: usize = 16 * 1024;
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// A rough cost of a spec besides its payload.
const OVERHEAD: usize = 512;

#[derive(Default)]
pub(super) struct SpecCache {
    specs: HashMap<String, Arc<Spec>>,
    bytes: usize,
}

impl SpecCache {
    /// The spec of the row with this id, if it is the one created at that moment.
    pub(super) fn get(&self, id: &str, created_at: Millis) -> Option<&Arc<Spec>> {
        self.specs.get(id).filter(|spec| spec.created_at == created_at)
    }

    /// Learns from a committed answer.
    pub(super) fn note(&mut self, answer: &Answer) {
        match answer {
            Answer::Run(task) => self.remember(&task.spec),
            Answer::Settled(change) => self.forget(change.task.id()),
            _ => {}
        }
    }

    fn remember(&mut self, spec: &Arc<Spec>) {
        if spec.payload.len() > LONGEST_PAYLOAD {
            return;
        }
        if self.bytes > MOST_BYTES {
            // What is left of tasks that others settled piles up here; the running ones are read once more.
            self.specs.clear();
            self.bytes = 0;
        }
        if self.specs.insert(spec.id.clone(), Arc::clone(spec)).is_none() {
            self.bytes += spec.payload.len() + OVERHEAD;
        }
    }

    fn forget(&mut self, id: &str) {
        if let Some(spec) = self.specs.remove(id) {
            self.bytes = self.bytes.saturating_sub(spec.payload.len() + OVERHEAD);
        }
    }
}
