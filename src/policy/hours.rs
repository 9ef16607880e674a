//! Hours of the day during which a rule holds.

use std::fmt;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::task::Millis;

const DAY_MINUTES: u16 = 24 * 60;

/// A range of hours on the clocks of a place, perhaps across midnight.
///
/// What counts is what the clock on the wall shows. So a day on which clocks go forward may have a shorter range or none, and an hour
/// that comes twice is inside both times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hours {
    from: u16,
    to: u16,
    zone: TimeZone,
}

impl Hours {
    /// From minute `from` of the day (included) to minute `to` (not included); across midnight when `to` is before `from`.
    /// `None` when they are equal, or not minutes of a day: 0 to 1439 for `from`, 1 to 1440 (24:00) or 0 (midnight) for `to`.
    pub fn new(from: u16, to: u16, zone: TimeZone) -> Option<Hours> {
        (from < DAY_MINUTES && to <= DAY_MINUTES && from != to).then_some(Hours { from, to, zone })
    }

    /// Whether `now` is inside.
    pub fn contain(&self, now: Millis) -> bool {
        let minute = self.minute_of(now);
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }

    /// The time of day that the clocks of the place show at `now`, as `HH:MM`.
    pub fn clock(&self, now: Millis) -> String {
        show(self.minute_of(now))
    }

    fn minute_of(&self, now: Millis) -> u16 {
        let end = if now < 0 { Timestamp::MIN } else { Timestamp::MAX };
        let local = self.zone.to_datetime(Timestamp::from_millisecond(now).unwrap_or(end));
        u16::from(local.hour().unsigned_abs()) * 60 + u16::from(local.minute().unsigned_abs())
    }
}

impl fmt::Display for Hours {
    /// `22:00–06:00 Asia/Shanghai`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.zone.iana_name().unwrap_or("UTC");
        write!(f, "{}–{} {zone}", show(self.from), show(self.to))
    }
}

/// Reads `HH:MM` from `00:00` to `24:00` as minutes of the day.
pub fn parse_time_of_day(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number =
        |text: &str| (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u16>());
    let (hour, minute) = (number(hour)?.ok()?, number(minute)?.ok()?);
    (minute < 60 && (hour < 24 || (hour == 24 && minute == 0))).then_some(hour * 60 + minute)
}

/// The zone with this IANA name, from the database inside the program: with the system's, nodes with different (or no) tzdata would
/// run different rules.
pub fn find_zone(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok()
}

fn show(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hours(from: &str, to: &str, zone: &str) -> Hours {
        let minute = |text| parse_time_of_day(text).unwrap();
        Hours::new(minute(from), minute(to), find_zone(zone).unwrap()).unwrap()
    }

    fn at(text: &str) -> Millis {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    #[test]
    fn times_of_day_are_read_strictly() {
        let good = [("00:00", 0), ("02:30", 150), ("23:59", 1439), ("24:00", 1440)];
        assert!(good.into_iter().all(|(text, minute)| parse_time_of_day(text) == Some(minute)));
        for bad in ["25:00", "24:01", "12:60", "2:00", "02", "", "-1:00", "02:00:00", "+2:00", "02.00"] {
            assert_eq!(parse_time_of_day(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_first_minute_is_inside_and_the_last_is_not() {
        let night = hours("02:00", "06:00", "Asia/Shanghai");
        // Shanghai is eight hours ahead of UTC all year.
        let inside = |time: &str| night.contain(at(&format!("2026-07-01T{time}Z")));
        assert_eq!(["17:59:59", "18:00:00", "21:59:59", "22:00:00"].map(inside), [false, true, true, false]);
        assert_eq!(night.clock(at("2026-07-01T18:05:00Z")), "02:05");
        assert_eq!(night.to_string(), "02:00–06:00 Asia/Shanghai");
    }

    #[test]
    fn a_range_may_go_across_midnight_or_be_the_whole_day() {
        let night = hours("22:00", "06:00", "UTC");
        let inside = |hours: &Hours, time: &str| hours.contain(at(&format!("2026-07-01T{time}Z")));
        assert_eq!(
            ["21:59:59", "22:00:00", "00:00:00", "05:59:59", "06:00:00"].map(|t| inside(&night, t)),
            [false, true, true, true, false]
        );
        let day = hours("00:00", "24:00", "Asia/Shanghai");
        assert!((0..24).all(|hour| inside(&day, &format!("{hour:02}:30:00"))));
        let evening = hours("22:00", "24:00", "UTC");
        assert_eq!(["23:59:59", "00:00:00"].map(|t| inside(&evening, t)), [true, false]);
        assert_eq!(["23:59:59", "00:00:00"].map(|t| inside(&hours("22:00", "00:00", "UTC"), t)), [true, false]);
        assert!(Hours::new(60, 60, TimeZone::UTC).is_none());
        assert!(Hours::new(1440, 60, TimeZone::UTC).is_none());
    }

    #[test]
    fn clocks_that_go_forward_skip_the_hour_and_clocks_that_go_back_repeat_it() {
        // Berlin: on 29 March 2026 the clock jumps from 02:00 to 03:00 (01:00 UTC), on 25 October from 03:00 back to 02:00 (01:00 UTC).
        let hour = hours("02:00", "03:00", "Europe/Berlin");
        let inside_minutes = |from: &str| (0..6 * 60).filter(|minute| hour.contain(at(from) + minute * 60_000)).count();
        assert_eq!(inside_minutes("2026-03-28T22:00:00Z"), 0, "the hour does not exist");
        assert_eq!(inside_minutes("2026-03-29T22:00:00Z"), 60);
        assert_eq!(inside_minutes("2026-10-24T22:00:00Z"), 120, "the hour comes twice");
        // Summer time moves the range by an hour of UTC.
        let morning = hours("08:00", "09:00", "America/New_York");
        assert!(morning.contain(at("2026-01-15T13:00:00Z")) && !morning.contain(at("2026-07-15T13:00:00Z")));
        assert!(morning.contain(at("2026-07-15T12:00:00Z")));
    }

    #[test]
    fn zones_come_with_the_program_and_unknown_ones_are_unknown() {
        assert!(
            ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/New_York"].into_iter().all(|n| find_zone(n).is_some())
        );
        assert!(["Mars/Phobos", "", "+08:00"].into_iter().all(|name| find_zone(name).is_none()));
    }

    proptest! {
        #[test]
        fn a_time_is_in_a_range_or_in_the_range_that_completes_the_day(
            from in 0_u16..1440, to in 0_u16..1440, now in any::<i64>()
        ) {
            prop_assume!(from != to);
            let zone = find_zone("Europe/Berlin").unwrap();
            let range = Hours::new(from, to, zone.clone()).unwrap();
            let rest = Hours::new(to, from, zone).unwrap();
            prop_assert!(range.contain(now) != rest.contain(now));
        }
    }
}
