use proptest::prelude::*;

use super::*;

const NOW: Millis = 784_111_777_000;
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const A_MINUTE_LATER: &str = "Sun, 06 Nov 1994 08:50:37 GMT";

#[test]
fn what_services_send_is_read_as_they_mean_it() {
    let table = [
        ("0", Some(0)),
        ("-0", Some(0)),
        ("120", Some(120_000)),
        (" 120 ", Some(120_000)),
        ("+5", Some(5000)),
        ("1.5", Some(1500)),
        ("0.0001", Some(1)),
        (".5", Some(500)),
        ("1e9", Some(1_000_000_000_000)),
        ("99999999999999999999999999", Some(Millis::MAX)),
        ("1e300", Some(Millis::MAX)),
        ("-1", None),
        ("-0.5", None),
        ("1e400", None),
        ("inf", None),
        ("infinity", None),
        ("-inf", None),
        ("nan", None),
        ("", None),
        ("soon", None),
        ("1,5", None),
        ("120s", None),
        ("120; 5", None),
        ("0x10", None),
        ("1994-11-06T08:50:37Z", None),
        ("\u{FF11}", None),
        (A_MINUTE_LATER, Some(60_000)),
        ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60_000)),
        ("Sun Nov  6 08:50:37 1994", Some(60_000)),
        ("Sun, 06 Nov 1994 08:48:37 GMT", Some(0)),
        ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
        ("Sun, 31 Feb 1994 08:49:37 GMT", None),
    ];
    for (value, expected) in table {
        assert_eq!(parse_retry_after(value, None, NOW), expected, "{value:?}");
    }
}

#[test]
fn a_date_is_measured_against_the_answers_own_clock() {
    // Our clock is an hour ahead; the answer's is not.
    let ahead = NOW + 3_600_000;
    assert_eq!(parse_retry_after(A_MINUTE_LATER, Some(DATE), ahead), Some(60_000));
    assert_eq!(parse_retry_after(A_MINUTE_LATER, None, ahead), Some(0));
    assert_eq!(parse_retry_after(A_MINUTE_LATER, Some("nonsense"), NOW), Some(60_000));
    // Seconds need no clock.
    assert_eq!(parse_retry_after("5", Some(DATE), ahead), Some(5000));
}

proptest! {
    #[test]
    fn whatever_is_sent_nothing_panics_and_nothing_is_negative(
        value in any::<String>(), date in proptest::option::of(any::<String>()), now in any::<i64>()
    ) {
        prop_assert!(parse_retry_after(&value, date.as_deref(), now).is_none_or(|ms| ms >= 0));
        prop_assert!(parse_retry_after(DATE, date.as_deref(), now).is_none_or(|ms| ms >= 0));
    }

    #[test]
    fn never_earlier_than_asked(seconds in 0.0_f64..1e9) {
        let ms = parse_retry_after(&seconds.to_string(), None, NOW);
        prop_assert!(ms.is_some_and(|ms| ms as f64 >= seconds * 1000.0 && ms as f64 <= seconds * 1000.0 + 1.0));
    }
}
