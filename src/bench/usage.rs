//! What this process has used.

/// Processor time and memory of this process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// User and system time.
    pub cpu_ms: f64,
    /// Resident memory now; 0 where the system does not tell.
    pub rss_mb: f64,
    /// The most resident memory that this program has had; 0 where the system does not tell.
    pub peak_mb: f64,
}

impl Usage {
    /// A reading.
    pub fn now() -> Usage {
        Usage { cpu_ms: cpu_ms(), rss_mb: status_mb("VmRSS:"), peak_mb: status_mb("VmHWM:") }
    }

    /// The time used since `before`, and the memory of this reading.
    #[must_use]
    pub fn since(self, before: Usage) -> Usage {
        Usage { cpu_ms: self.cpu_ms - before.cpu_ms, ..self }
    }
}

fn cpu_ms() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: getrusage writes a whole rusage to the pointer when it returns 0, and the value is read only then.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return 0.0;
        }
        usage.assume_init()
    };
    #[expect(clippy::cast_precision_loss, reason = "seconds and microseconds of a process are far below 2^52")]
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1000.0 + time.tv_usec as f64 / 1000.0;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

/// A line of what the kernel tells of this process. Not from `getrusage`, whose peak is that of whoever started us if that was larger.
fn status_mb(line: &str) -> f64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0.0 };
    let kib = status
        .lines()
        .find_map(|found| found.strip_prefix(line))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
