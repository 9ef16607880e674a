//! The rows' side of the DLQ mirror: which copies are wanted, present, sent again, and who may pass over the DLQ (§4.4).

use super::{
    Answer::{self, *},
    DlqCopy, Millis, Rows, Settings,
};

impl Rows {
    pub(super) fn copy_confirmed(&mut self, id: &str, generation: i64) -> Answer {
        match self.dead(id, generation) {
            Ok(mut task) if task.state.dlq_copy == DlqCopy::Wanted => {
                task.state.dlq_copy = DlqCopy::Present;
                task.state.dlq_at = None;
                // Where it was sent more than once it may be there more than once, and one too many hides one that is missing: the queue
                // is as deep as it should be.
                let sent_again = task.state.wakes > 0;
                let queue = task.queue().to_owned();
                self.put(task);
                if sent_again {
                    self.dlq_mut(&queue).dirty += 1;
                }
                Done
            }
            refused => {
                // The copy is in the broker and the row does not want it: somebody must look.
                if let Some(queue) = self.get(id).map(|task| task.queue().to_owned()) {
                    self.dlq_mut(&queue).dirty += 1;
                }
                refused.err().unwrap_or(Changed)
            }
        }
    }

    pub(super) fn copy_missing(&mut self, id: &str, generation: i64, now: Millis) -> Answer {
        match self.dead(id, generation) {
            Ok(mut task) if task.state.dlq_copy == DlqCopy::Present => {
                task.state.dlq_copy = DlqCopy::Wanted;
                task.state.dlq_at = Some(now);
                task.state.wakes = 0;
                self.put(task);
                Done
            }
            Ok(_) => Changed,
            Err(answer) => answer,
        }
    }

    pub(super) fn send_copy(&mut self, id: &str, generation: i64, now: Millis, settings: &Settings) -> Answer {
        match self.dead(id, generation) {
            Ok(mut task) if task.state.dlq_copy == DlqCopy::Wanted && task.state.dlq_at.is_none_or(|at| at <= now) => {
                // A DLQ that confirms nothing keeps what it was sent all the same: it must not be sent more and more.
                task.state.dlq_at = Some(now.saturating_add(settings.copy_patience(task.state.wakes)));
                task.state.wakes += 1;
                self.put(task.clone());
                Dead(Box::new(task))
            }
            Ok(_) => Changed,
            Err(answer) => answer,
        }
    }

    pub(super) fn begin_pass(
        &mut self,
        queue: &str,
        hold_ms: Millis,
        every_ms: Millis,
        force: bool,
        now: Millis,
    ) -> Answer {
        let ledger = self.dlqs.get(queue).cloned().unwrap_or_default();
        let dirty = ledger.dirty > ledger.cleaned;
        let rested = now >= ledger.pass_began.saturating_add(every_ms) || now < ledger.pass_began;
        let free = now >= ledger.pass_until || now < ledger.pass_began;
        if !free || !(force || dirty && rested) {
            return PassRefused;
        }
        let ledger = self.dlq_mut(queue);
        ledger.pass += 1;
        ledger.pass_began = now;
        ledger.pass_until = now.saturating_add(hold_ms);
        PassBegun { pass: ledger.pass, dirty: ledger.dirty, began: now }
    }
}
