//! Durations, sizes and rates as people write them: `1h30m`, `500ms`, `1MiB`, `5/min`. Reads and prints them; knows nothing of the
//! config's keys.

use std::time::Duration;

use crate::gate::Rate;
use crate::task::Millis;

const DURATION_UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const RATE_UNITS: [(&str, Millis); 4] = [("s", 1_000), ("min", 60_000), ("h", 3_600_000), ("day", 86_400_000)];
const SIZE_UNITS: [(&str, u64); 8] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// What a duration looks like, for error texts.
pub const DURATION_FORM: &str = r#"a duration such as "10s", "1h30m" or "500ms" (units ms, s, m, h, d)"#;
/// What a size looks like, for error texts.
pub const SIZE_FORM: &str = r#"a size such as "1MiB", "512KiB" or a number of bytes"#;

/// What a rate looks like, for error texts.
pub const RATE_FORM: &str = r#"a rate such as "5/min", at least 1 (units s, min, h, day, or a duration as in "5/10s")"#;

/// Reads `15m`, `1h30m`, `1.5s`, `0s`. A number without a unit is refused: seconds and milliseconds are too easily mixed up. Fractions
/// of a millisecond are cut off.
///
/// # Errors
/// Says what was expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let refused = || format!("expected {DURATION_FORM}, found {text:?}");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(refused());
    }
    let mut total_ms: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refused)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let (_, factor) = DURATION_UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
        let part_ms = scaled(number, factor).ok_or_else(refused)?;
        total_ms = total_ms.checked_add(part_ms).ok_or_else(refused)?;
        rest = tail.trim_start();
    }
    Ok(Duration::from_millis(total_ms))
}

/// Reads `1MiB`, `512 KiB`, `4096`. Binary (KiB, MiB, GiB) and decimal (kB, MB, GB) units.
///
/// # Errors
/// Says what was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let refused = || format!("expected {SIZE_FORM}, found {text:?}");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let factor =
        if unit.is_empty() { 1 } else { SIZE_UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(refused)?.1 };
    scaled(number, factor).ok_or_else(refused)
}

/// Reads `5/min`, `50/s`, `300/h`, `1000/day` and `5/10s`. At least one and at most a billion, in at least a millisecond and at most 366
/// days.
///
/// # Errors
/// Says what was expected.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let refused = || format!("expected {RATE_FORM}, found {text:?}");
    let (count, unit) = text.split_once('/').ok_or_else(refused)?;
    let (count, unit) = (count.trim(), unit.trim());
    if !count.bytes().all(|b| b.is_ascii_digit()) {
        return Err(refused());
    }
    let count: i64 = count.parse().map_err(|_| refused())?;
    let per_ms = match RATE_UNITS.into_iter().find(|(name, _)| *name == unit) {
        Some((_, per_ms)) => per_ms,
        None => {
            let per = parse_duration(unit).map_err(|_| refused())?;
            Millis::try_from(per.as_millis()).map_err(|_| refused())?
        }
    };
    let (most, longest) = (1_000_000_000, 366 * 86_400_000);
    if (1..=most).contains(&count) && (1..=longest).contains(&per_ms) {
        Ok(Rate { count, per_ms })
    } else {
        Err(refused())
    }
}

/// The shortest text that reads back to the same rate: `5/min`, `5/10s`.
pub fn show_rate(rate: Rate) -> String {
    match RATE_UNITS.into_iter().find(|(_, per_ms)| *per_ms == rate.per_ms) {
        Some((unit, _)) => format!("{}/{unit}", rate.count),
        None => format!("{}/{}", rate.count, show_duration(Duration::from_millis(rate.per_ms.unsigned_abs()))),
    }
}

/// The shortest text that reads back to the same duration: `1h30m`, `0s`.
pub fn show_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    for (unit, factor) in DURATION_UNITS.into_iter().rev() {
        if rest >= factor {
            text.push_str(&format!("{}{unit}", rest / factor));
            rest %= factor;
        }
    }
    text
}

/// The shortest text that reads back to the same size: `1MiB`, `1000B`.
pub fn show_size(bytes: u64) -> String {
    let (unit, factor) = SIZE_UNITS[..4]
        .iter()
        .rev()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .unwrap_or(&SIZE_UNITS[0]);
    format!("{}{unit}", bytes / factor)
}

/// A decimal number, perhaps with a fraction, times a factor, without going through floats for the whole part.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || (number.contains('.') && !digits(fraction)) || fraction.len() > 9 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let mut part: u64 = 0;
    if !fraction.is_empty() {
        let numerator = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor);
        part = u64::try_from(numerator / 10u128.pow(u32::try_from(fraction.len()).ok()?)).ok()?;
    }
    whole.checked_mul(factor)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print() {
        for (text, ms, shown) in [
            ("15m", 900_000, "15m"),
            ("1h30m", 5_400_000, "1h30m"),
            ("500ms", 500, "500ms"),
            ("1.5s", 1_500, "1s500ms"),
            ("0s", 0, "0s"),
            ("24h", 86_400_000, "1d"),
            ("90 s", 0, ""),
        ] {
            if shown.is_empty() {
                assert!(parse_duration(text).is_err(), "{text}");
                continue;
            }
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(ms), "{text}");
            assert_eq!(show_duration(duration), shown);
        }
        for bad in ["", "15", "m", "-1s", "1x", "1..5s", "1.s", ".5s", "99999999999999999999h", "1e3s", "ten"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_read_and_print() {
        for (text, count, per_ms, shown) in [
            ("5/min", 5, 60_000, "5/min"),
            ("50/s", 50, 1_000, "50/s"),
            (" 300 / h ", 300, 3_600_000, "300/h"),
            ("1000/day", 1000, 86_400_000, "1000/day"),
            ("5/10s", 5, 10_000, "5/10s"),
            ("5/60s", 5, 60_000, "5/min"),
        ] {
            assert_eq!(parse_rate(text), Ok(Rate { count, per_ms }), "{text}");
            assert_eq!(show_rate(Rate { count, per_ms }), shown);
        }
        let bad =
            ["", "5", "0/min", "-1/min", "+1/min", "1.5/min", "5/fortnight", "5/", "/min", "5/0s", "5/min/s", "5/400d"];
        for bad in bad {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        assert!(parse_rate("99999999999999999999/s").is_err());
    }

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes, shown) in [
            ("1MiB", 1 << 20, "1MiB"),
            ("512 KiB", 512 << 10, "512KiB"),
            ("4096", 4096, "4KiB"),
            ("1kB", 1000, "1000B"),
            ("1.5MiB", 3 << 19, "1536KiB"),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(show_size(bytes), shown);
        }
        for bad in ["", "MiB", "-1", "1mib", "1 parsec"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
