//! The DLQ and its mirror in the model: `dead_letter` on a multiset instead of a broker.

use redeliver::task::{Answer, Command, DEFAULT_QUEUE, DlqCopy, Status, Task};

use crate::action::Action;
use crate::model::Redeliver;
use crate::parts::Sight;
use crate::step::Witness;
use crate::world::{CopyOf, Message, PASS_EVERY, PASS_HOLD, Pass, World};

impl Redeliver {
    /// `dead_letter::pass`, step by step.
    pub fn pass(&self, w: &mut World, action: Action, witness: &Witness) -> Option<()> {
        let queue = DEFAULT_QUEUE.to_owned();
        match action {
            Action::LookAtDepth => {
                let _: Answer = self.apply(w, Command::DirtyDlq { queue });
            }
            Action::PassBegins => {
                let begin = Command::BeginPass { queue, hold_ms: PASS_HOLD, every_ms: PASS_EVERY, force: false };
                let Answer::PassBegun { pass, dirty, .. } = self.apply(w, begin) else { return None };
                w.pass = Some(Pass { number: pass, dirty, before: self.copies_of(w, DlqCopy::Present), taken: None });
            }
            Action::PassTakes => w.pass.as_mut()?.taken = Some(std::mem::take(&mut w.dlq)),
            _ => {
                let pass = w.pass.take()?;
                let taken = pass.taken?;
                let dead = [self.copies_of(w, DlqCopy::Present), self.copies_of(w, DlqCopy::Wanted)];
                let mut kept: Vec<CopyOf> = taken.clone();
                kept.sort_unstable();
                kept.dedup();
                kept.retain(|copy| dead.concat().contains(copy));
                let missing = pass.before.iter().filter(|copy| dead[0].contains(copy) && !kept.contains(copy));
                for copy in missing {
                    let id = self.specs[copy.task].id.clone();
                    witness.saw(Sight::CopyMissing);
                    let _: Answer = self.apply(w, Command::CopyMissing { id, generation: copy.generation });
                }
                for copy in kept.iter().filter(|copy| dead[1].contains(copy)) {
                    let id = self.specs[copy.task].id.clone();
                    witness.saw(Sight::CopyFound);
                    let _: Answer = self.apply(w, Command::CopyConfirmed { id, generation: copy.generation });
                }
                if action == Action::PassDies {
                    w.faults -= 1;
                    w.dlq.extend(taken);
                } else {
                    witness.saw_if(taken.len() > kept.len(), Sight::CopyRemoved);
                    w.dlq.extend(kept);
                    let end = Command::EndPass { queue, pass: pass.number, dirty: pass.dirty, strangers: 0 };
                    let _: Answer = self.apply(w, end);
                }
            }
        }
        Some(())
    }

    fn copies_of(&self, w: &World, state: DlqCopy) -> Vec<CopyOf> {
        let rows = w.rows.iter().enumerate();
        rows.filter_map(|(task, row)| {
            let row = row.as_ref().filter(|row| row.status == Status::Dead && row.dlq_copy == state)?;
            Some(CopyOf { task, generation: row.stamp.generation })
        })
        .collect()
    }

    /// Whether the DLQ's depth does not fit the rows, as `dead_letter::odd_dlqs` sees it.
    pub fn depth_is_odd(&self, w: &World) -> bool {
        let (present, wanted) = (self.copies_of(w, DlqCopy::Present).len(), self.copies_of(w, DlqCopy::Wanted).len());
        w.pass.is_none() && !(present..=present + wanted).contains(&w.dlq.len())
    }

    /// Sends the copy that an answer asks for.
    pub fn publish_copy(&self, w: &mut World, answer: &Answer) {
        if let Answer::Dead(task) | Answer::Refused(task) = answer {
            self.publish_copy_of(w, task);
        }
    }

    /// Sends the copy of a dead task.
    pub fn publish_copy_of(&self, w: &mut World, task: &Task) {
        if task.state.dlq_copy != DlqCopy::Wanted || !self.mirror {
            return;
        }
        if let Some(number) = self.task_no(task.id()) {
            w.send(Message::Copy(CopyOf { task: number, generation: task.stamp().generation }));
        }
    }
}
