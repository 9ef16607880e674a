//! What a broker tells of itself, and what its version means to us.

use std::fmt;

/// What a broker tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// `RabbitMQ`, `embedded`.
    pub product: String,
    /// As it writes it.
    pub version: String,
    /// The most bytes that a frame may have, 0 being no limit; `None` without frames.
    pub frame_max: Option<u32>,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.product, self.version)
    }
}

impl About {
    /// Why an update is advised, if it is. A version that must not be used is refused when we connect.
    pub fn aging(&self) -> Option<&'static str> {
        match Verdict::of(&self.version) {
            Verdict::Aging(reason) if self.product == "RabbitMQ" => Some(reason),
            _ => None,
        }
    }

    /// Whether the version is known and lower.
    pub fn is_before(&self, major: u32, minor: u32) -> bool {
        numbers(&self.version).is_some_and(|(own_major, own_minor, _)| (own_major, own_minor) < (major, minor))
    }
}

/// Major, minor and patch of "3.10.8", "3.13.0-rc.1", "4.1.0+17.gabc".
fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    Some((next()?, next()?, next().unwrap_or(0)))
}

/// What a version of RabbitMQ means to us.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Works, with a known fault that an update mends.
    Aging(&'static str),
    Refused(&'static str),
}

impl Verdict {
    pub(super) fn of(version: &str) -> Verdict {
        let Some(numbers) = numbers(version) else {
            return Verdict::Aging("its version cannot be read and is not checked");
        };
        match numbers {
            (..=2, ..) | (3, ..=9, _) => Verdict::Refused(
                "quorum queues dead-letter at least once only from 3.10 on; update it, best to 3.13.3 or newer",
            ),
            (3, 13, 0..=2) => {
                Verdict::Refused("it drops valid retries (rabbitmq-server #11159); update it to 3.13.3 or newer")
            }
            (3, 10, 0..=4) | (3, 11, 0..=19) | (3, 12, 0..=1) => Verdict::Aging(
                "this version has faults in at-least-once dead-lettering that its later patches mend; update it",
            ),
            _ => Verdict::Fine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_lose_retries_are_refused() {
        for version in ["2.8.7", "3.8.35", "3.9.0", "3.9.29", "3.13.0", "3.13.0-rc.3", "3.13.2"] {
            assert!(matches!(Verdict::of(version), Verdict::Refused(_)), "{version}");
        }
        for version in ["3.10.0", "3.10.4", "3.11.19", "3.12.1", "unknown", "", "3"] {
            assert!(matches!(Verdict::of(version), Verdict::Aging(_)), "{version}");
        }
        for version in ["3.10.5", "3.10.8", "3.11.20", "3.12.2", "3.13.3", "4.0.5", "4.3.6", "4.1.0+17.gabc", "5.0.0"] {
            assert_eq!(Verdict::of(version), Verdict::Fine, "{version}");
        }
    }
}
