//! When the handler was called, kept for a program that compares us with others by the same records. Measures nothing itself.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;

/// The calls of one run, kept here until its end: a full disk must not look like a slow handler.
#[derive(Default)]
pub(super) struct Marks(Mutex<Vec<u8>>);

impl Marks {
    /// Notes a call for the task `bench-NUMBER`; others have no number.
    ///
    /// A record is 16 bytes, little-endian: u32 task, u32 attempt, f64 seconds of the machine's monotonic clock.
    pub(super) fn note(&self, id: &str, attempt: i64) {
        let number = id.strip_prefix("bench-").and_then(|number| number.parse::<u32>().ok());
        let (Some(task), Ok(attempt)) = (number, u32::try_from(attempt)) else { return };
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        records.extend(task.to_le_bytes());
        records.extend(attempt.to_le_bytes());
        records.extend(monotonic_s().to_le_bytes());
    }

    /// Writes the records to `path`.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::fs::write(path, &*records).with_context(|| format!("cannot write marks to {}", path.display()))
    }
}

/// The clock that all processes of a machine share; [`std::time::Instant`] has it too and does not show it.
fn monotonic_s() -> f64 {
    let mut now = std::mem::MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: clock_gettime writes a whole timespec to the pointer when it returns 0, and the value is read only then.
    let now = unsafe {
        if libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr()) != 0 {
            return 0.0;
        }
        now.assume_init()
    };
    #[expect(clippy::cast_precision_loss, reason = "seconds since a machine's start are far below 2^52")]
    let seconds = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_one_record_with_task_attempt_and_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("marks");
        let marks = Marks::default();
        marks.note("bench-00000007", 2);
        marks.note("late-1", 1);
        marks.save(&path).expect("saved");
        let bytes = std::fs::read(&path).expect("the file");
        assert_eq!((bytes.len(), &bytes[..8]), (16, &[7, 0, 0, 0, 2, 0, 0, 0][..]));
        let at = f64::from_le_bytes(bytes[8..].try_into().expect("eight bytes"));
        assert!(at > 0.0 && at <= monotonic_s(), "{at}");
    }
}
