//! What a `Retry-After` header asks for, and what a policy makes of it.

use crate::task::Millis;

/// How a policy treats what the other side asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryAfterRule {
    /// Replace, bound below, or ignore.
    pub mode: RetryAfterMode,
    /// The longest wait that is accepted as asked.
    pub cap_ms: Millis,
    /// What happens beyond the cap.
    pub over_cap: OverCap,
}

impl Default for RetryAfterRule {
    /// `exact`, capped at 120 s.
    fn default() -> Self {
        RetryAfterRule { mode: RetryAfterMode::Exact, cap_ms: 120_000, over_cap: OverCap::Cap }
    }
}

/// What the asked-for wait does to the computed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfterMode {
    /// Replaces it.
    Exact,
    /// Never earlier than asked, never earlier than computed.
    Floor,
    /// Nothing.
    Ignore,
}

/// What happens when more than the cap is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverCap {
    /// Wait the cap.
    Cap,
    /// Wait as long as asked.
    Honour,
    /// Die at once.
    DeadLetter,
}

/// The wait that a `Retry-After` value asks for, in milliseconds: whole or fractional seconds, or an HTTP date measured against
/// the response's own `Date` (`date`), or against `now` when there is none. A date in the past asks for 0. `None` for a negative number, a
/// number that is not finite and for anything else that is neither.
///
/// Source: RFC 9110 §10.2.3; fractions are not in it but are sent by real services.
pub fn parse_retry_after(value: &str, date: Option<&str>, now: Millis) -> Option<Millis> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        // `inf` and `nan` parse as floats; a sign or exponent of any size is still a number.
        if !seconds.is_finite() || seconds < 0.0 {
            return None;
        }
        let ms = (seconds * 1000.0).ceil();
        #[expect(clippy::cast_possible_truncation, reason = "float-to-int casts saturate, which is what is wanted")]
        return Some(ms as Millis);
    }
    let until = parse_http_date(value)?;
    let from = date.and_then(|d| parse_http_date(d.trim())).unwrap_or(now);
    Some(until.saturating_sub(from).max(0))
}

/// An RFC 9110 §5.6.7 date as epoch milliseconds: the preferred form, and the two obsolete ones.
fn parse_http_date(text: &str) -> Option<Millis> {
    let time = httpdate::parse_http_date(text).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    Millis::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests;
