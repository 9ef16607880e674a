//! The rows that this process runs, as the file has them.
//!
//! A task that succeeds is claimed, maybe renewed, and settled by the same process within moments. Reading its row again each
//! time would cost as much as writing it. What is remembered here holds as long as nobody else has committed to the file,
//! which SQLite's data version tells exactly, inside the transaction; when somebody has, all of it is forgotten and read
//! again. Only running rows are remembered: a task that waits is always read.

use std::collections::HashMap;

use crate::task::{Status, Task};

#[derive(Default)]
pub(super) struct Running {
    rows: HashMap<String, Task>,
}

impl Running {
    pub(super) fn get(&self, id: &str) -> Option<&Task> {
        self.rows.get(id)
    }

    /// Takes in a row as it was just written. If that is not committed in the end, [`Running::forget_all`] has to follow.
    pub(super) fn written(&mut self, task: Task) {
        if task.state.status == Status::Running {
            self.rows.insert(task.spec.id.clone(), task);
        } else {
            self.rows.remove(task.id());
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.rows.clear();
    }
}
