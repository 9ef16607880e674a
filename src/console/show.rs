//! Times, lengths, counts and shares as people read them, in both languages.
//!
//! Every time is rendered as what it is relative to now, with the absolute one in its title; where scripts run they keep ticking.

use maud::{Markup, html};

use super::i18n::Lang;
use crate::task::Millis;

/// RFC 3339 in UTC, to the second: `2026-11-30T09:15:07Z`.
pub(crate) fn absolute(at: Millis) -> String {
    jiff::Timestamp::from_millisecond(at).map_or_else(|_| at.to_string(), |timestamp| format!("{timestamp:.0}"))
}

/// For people: `2026-11-30 09:15:07 UTC`.
pub(crate) fn moment(at: Millis) -> String {
    absolute(at).replacen('T', " ", 1).replacen('Z', " UTC", 1)
}

/// How long ago or ahead, with the absolute time on hover.
pub(crate) fn time(at: Millis, now: Millis, lang: Lang) -> Markup {
    html! {
        time datetime=(absolute(at)) title=(moment(at)) data-at=(at) { (relative(at, now, lang)) }
    }
}

/// The same, or a dash.
pub(crate) fn time_or_dash(at: Option<Millis>, now: Millis, lang: Lang) -> Markup {
    at.map_or_else(|| html! { span.muted { "–" } }, |at| time(at, now, lang))
}

/// `3m ago`, `in 12s`; the script writes the same.
pub(crate) fn relative(at: Millis, now: Millis, lang: Lang) -> String {
    let ms = now.saturating_sub(at);
    if ms.abs() < 1_000 {
        return lang.just_now().to_owned();
    }
    let (number, unit) = coarse(ms.saturating_abs());
    match (lang, ms > 0) {
        (Lang::En, true) => format!("{number}{unit} ago"),
        (Lang::En, false) => format!("in {number}{unit}"),
        (Lang::Zh, true) => format!("{number}{}前", zh_unit(unit)),
        (Lang::Zh, false) => format!("{number}{}后", zh_unit(unit)),
    }
}

/// The largest unit of which there is at least one: `(3, "m")`.
fn coarse(ms: Millis) -> (Millis, &'static str) {
    match ms / 1_000 {
        s if s < 60 => (s, "s"),
        s if s < 3_600 => (s / 60, "m"),
        s if s < 48 * 3_600 => (s / 3_600, "h"),
        s => (s / 86_400, "d"),
    }
}

fn zh_unit(unit: &str) -> &'static str {
    match unit {
        "s" => "秒",
        "m" => "分钟",
        "h" => "小时",
        _ => "天",
    }
}

/// A length of time, two units at most: `950ms`, `12.3s`, `4m10s`, `2h05m`, `3d04h`.
pub(crate) fn length(ms: Millis) -> String {
    let ms = ms.max(0);
    let s = ms / 1_000;
    let whole = ms % 1_000 == 0;
    match s {
        0 => format!("{ms}ms"),
        1..10 if !whole => format!("{s}.{}s", ms % 1_000 / 100),
        1..60 => format!("{s}s"),
        60..3_600 if s % 60 == 0 => format!("{}m", s / 60),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        3_600..172_800 if s % 3_600 < 60 => format!("{}h", s / 3_600),
        3_600..172_800 => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// `1,234,567`
pub(crate) fn count(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if n < 0 {
        grouped.push('−');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A count for narrow places: `950`, `12k`, `1.2M`.
pub(crate) fn brief(n: i64) -> String {
    match n {
        ..1_000 => n.to_string(),
        1_000..10_000 => format!("{}.{}k", n / 1_000, n % 1_000 / 100),
        10_000..1_000_000 => format!("{}k", n / 1_000),
        _ => format!("{}.{}M", n / 1_000_000, n % 1_000_000 / 100_000),
    }
}

/// `98.5 %`, `100 %`, `>99.9 %`; a dash where there is nothing to divide by.
pub(crate) fn percent(share: Option<f64>) -> String {
    match share {
        None => "–".into(),
        // Rounding must not turn nearly all into all, nor a few into none.
        Some(share) if (0.9995..1.0).contains(&share) => ">99.9 %".into(),
        Some(share) if share > 0.0 && share < 0.0005 => "<0.1 %".into(),
        Some(share) if share >= 1.0 || share <= 0.0 => format!("{:.0} %", share * 100.0),
        Some(share) => format!("{:.1} %", share * 100.0),
    }
}

/// `a / b`; `None` where there is nothing of `b`.
#[expect(clippy::cast_precision_loss, reason = "counts of tasks stay far below 2^53")]
pub(crate) fn ratio(a: i64, b: i64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

/// Bytes for people: `812 B`, `4.2 KB`, `1.0 MB`.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{}.{} KB", n / 1_000, n % 1_000 / 100),
        _ => format!("{}.{} MB", n / 1_000_000, n % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_largest_unit() {
        let told = |ms: Millis| relative(1_000_000_000, 1_000_000_000 + ms, Lang::En);
        assert_eq!(
            [told(200), told(5_000), told(-12_400), told(3_600_000)],
            ["just now", "5s ago", "in 12s", "1h ago"]
        );
        assert_eq!(told(47 * 3_600_000), "47h ago");
        assert_eq!(relative(0, 3 * 86_400_000, Lang::Zh), "3天前");
        assert_eq!(relative(90_000, 0, Lang::Zh), "1分钟后");
        assert_eq!(moment(0), "1970-01-01 00:00:00 UTC");
        drop((moment(Millis::MAX), relative(Millis::MIN, Millis::MAX, Lang::En), length(Millis::MIN)));
    }

    #[test]
    fn lengths_have_two_units_at_most() {
        let shown = [950, 1_000, 1_250, 12_345, 60_000, 250_000, 3_600_000, 7_500_000, 273_600_000].map(length);
        assert_eq!(shown, ["950ms", "1s", "1.2s", "12s", "1m", "4m10s", "1h", "2h05m", "3d04h"]);
    }

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_234_567, -4_000].map(count), ["0", "999", "1,000", "1,234,567", "−4,000"]);
        assert_eq!([999, 1_234, 45_678, 1_260_000].map(brief), ["999", "1.2k", "45k", "1.2M"]);
        let shares = [Some(0.985), Some(1.0), Some(0.9999), Some(0.0), Some(0.0001), None].map(percent);
        assert_eq!(shares, ["98.5 %", "100 %", ">99.9 %", "0 %", "<0.1 %", "–"]);
        assert_eq!([812, 4_200, 1_048_576].map(bytes), ["812 B", "4.2 KB", "1.0 MB"]);
    }
}
