//! Dates, times of day and timestamps as ISO 8601 text.

use arrow_schema::TimeUnit;

use super::text::Style;
use super::zone::Zone;

pub(super) const SECONDS_PER_DAY: i64 = 86_400;
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// How many of `unit` a second has.
fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => NANOS_PER_SECOND,
    }
}

/// `2026-04-14`, from days since 1970-01-01.
pub(super) fn write_date(out: &mut Vec<u8>, days: i64) {
    let (year, month, day) = civil(days);
    write_year(out, year);
    out.extend_from_slice(&[b'-', tens(month), ones(month), b'-', tens(day), ones(day)]);
}

/// `12:34:56.5`, from the time since midnight.
///
/// Arrow demands values within the day. Others are taken modulo 24 hours.
pub(super) fn write_time(out: &mut Vec<u8>, value: i64, unit: TimeUnit) {
    let (seconds, nanos) = split(value, unit);
    write_clock(out, seconds.rem_euclid(SECONDS_PER_DAY));
    write_fraction(out, nanos, Style::Field);
}

/// The same duration in nanoseconds.
pub(super) fn in_nanos(value: i64, unit: TimeUnit) -> i128 {
    i128::from(value) * i128::from(NANOS_PER_SECOND / per_second(unit))
}

/// The day that holds a millisecond, both counted from 1970.
pub(super) fn day_of_millis(millis: i64) -> i64 {
    millis.div_euclid(SECONDS_PER_DAY * 1000)
}

/// `2026-04-14T12:00:00.5+02:00`; without a zone there is no offset.
pub(super) fn write_timestamp(out: &mut Vec<u8>, value: i64, unit: TimeUnit, zone: Option<Zone>, style: Style) {
    let (second, nanos) = split(value, unit);
    let offset = zone.map(|zone| zone.offset(second));
    // The offset is added to the second of the day: `second + offset` could overflow.
    let local = second.rem_euclid(SECONDS_PER_DAY) + i64::from(offset.unwrap_or(0));
    write_date(out, second.div_euclid(SECONDS_PER_DAY) + local.div_euclid(SECONDS_PER_DAY));
    out.push(b'T');
    write_clock(out, local.rem_euclid(SECONDS_PER_DAY));
    write_fraction(out, nanos, style);
    match offset {
        None => {}
        Some(0) => out.push(b'Z'),
        Some(offset) => {
            let magnitude = i64::from(offset.abs());
            let (hours, minutes, seconds) = (magnitude / 3600, magnitude / 60 % 60, magnitude % 60);
            let sign = if offset < 0 { b'-' } else { b'+' };
            out.extend_from_slice(&[sign, tens(hours), ones(hours), b':', tens(minutes), ones(minutes)]);
            // Local mean time before zones were introduced. Java writes it too.
            if seconds != 0 {
                out.extend_from_slice(&[b':', tens(seconds), ones(seconds)]);
            }
        }
    }
}

/// Seconds, and the nanoseconds after them (never negative).
fn split(value: i64, unit: TimeUnit) -> (i64, i64) {
    let per_second = per_second(unit);
    (value.div_euclid(per_second), value.rem_euclid(per_second) * (NANOS_PER_SECOND / per_second))
}

fn write_clock(out: &mut Vec<u8>, second: i64) {
    let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
    let colon = b':';
    out.extend_from_slice(&[
        tens(hours),
        ones(hours),
        colon,
        tens(minutes),
        ones(minutes),
        colon,
        tens(seconds),
        ones(seconds),
    ]);
}

fn write_fraction(out: &mut Vec<u8>, nanos: i64, style: Style) {
    if nanos == 0 && style == Style::Field {
        return;
    }
    let mut digits = *b".000000000";
    let mut rest = nanos;
    for digit in digits[1..].iter_mut().rev() {
        *digit = ones(rest);
        rest /= 10;
    }
    let length = match style {
        Style::Json => 4,
        Style::Field => digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1),
    };
    out.extend_from_slice(&digits[..length]);
}

/// Four digits, or as many as it takes with a sign in front: ISO 8601 wants the sign past 9999, and before the year 0.
fn write_year(out: &mut Vec<u8>, year: i64) {
    if let 0..=9999 = year {
        out.extend_from_slice(&[tens(year / 100), ones(year / 100), tens(year % 100), ones(year % 100)]);
        return;
    }
    out.push(if year < 0 { b'-' } else { b'+' });
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(year.unsigned_abs());
    out.extend_from_slice(&b"0000"[digits.len().min(4)..]);
    out.extend_from_slice(digits.as_bytes());
}

fn tens(number: i64) -> u8 {
    ones(number / 10)
}

#[allow(clippy::cast_sign_loss)] // no caller has a negative number
fn ones(number: i64) -> u8 {
    b'0' + (number % 10) as u8
}

/// Year, month and day of the proleptic Gregorian calendar, from days since 1970-01-01.
///
/// Years begin in March here, so that the leap day is the last of its year; the derivation is
/// Howard Hinnant's: <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + next, month, day)
}

/// The year of a day, counted from 1970-01-01.
pub(super) fn year_of(days: i64) -> i64 {
    civil(days).0
}

/// The first day of `year`, counted from 1970-01-01.
pub(super) fn days_from_year(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use chrono::{DateTime, Datelike, NaiveDate, SecondsFormat};
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn timestamp(value: i64, unit: TimeUnit, zone: Option<&str>, style: Style) -> String {
        let zone = zone.map(|name| Zone::parse(name).unwrap());
        written(|out| write_timestamp(out, value, unit, zone, style))
    }

    #[test]
    fn a_fraction_has_the_digits_it_needs() {
        for (value, unit, text) in [
            (0, TimeUnit::Second, "1970-01-01T00:00:00"),
            (1_500, TimeUnit::Millisecond, "1970-01-01T00:00:01.5"),
            (-1, TimeUnit::Microsecond, "1969-12-31T23:59:59.999999"),
            (1_000_000_010, TimeUnit::Nanosecond, "1970-01-01T00:00:01.00000001"),
            (i64::MIN, TimeUnit::Nanosecond, "1677-09-21T00:12:43.145224192"),
        ] {
            assert_eq!(timestamp(value, unit, None, Style::Field), text);
        }
        assert_eq!(timestamp(-1, TimeUnit::Microsecond, None, Style::Json), "1969-12-31T23:59:59.999");
        assert_eq!(timestamp(7, TimeUnit::Second, None, Style::Json), "1970-01-01T00:00:07.000");
    }

    #[test]
    fn the_offset_follows_the_local_time() {
        for (value, zone, text) in [
            (1_776_168_000, "UTC", "2026-04-14T12:00:00Z"),
            (1_776_168_000, "Europe/Berlin", "2026-04-14T14:00:00+02:00"),
            (1_776_168_000, "America/St_Johns", "2026-04-14T09:30:00-02:30"),
            (253_402_300_799, "Asia/Kolkata", "+10000-01-01T05:29:59+05:30"),
            (-5_000_000_000, "America/New_York", "1811-07-23T10:10:38-04:56:02"),
        ] {
            assert_eq!(timestamp(value, TimeUnit::Second, Some(zone), Style::Field), text);
        }
    }

    #[test]
    fn years_that_do_not_fit_four_digits_have_a_sign() {
        for (days, text) in [
            (3_789_592, "+12345-07-21"),
            (-719_528, "0000-01-01"),
            (-719_529, "-0001-12-31"),
            (-735_525, "-0044-03-15"),
            (-5_228_191, "-12345-09-13"),
        ] {
            assert_eq!(written(|out| write_date(out, days)), text);
        }
    }

    #[test]
    fn no_value_is_too_large() {
        for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
            for value in [i64::MIN, i64::MAX] {
                assert!(timestamp(value, unit, Some("+18:00"), Style::Field).ends_with("+18:00"));
                written(|out| write_time(out, value, unit));
            }
        }
    }

    #[test]
    fn times_of_day() {
        assert_eq!(written(|out| write_time(out, 45_296, TimeUnit::Second)), "12:34:56");
        assert_eq!(written(|out| write_time(out, 45_296_123_456_000, TimeUnit::Nanosecond)), "12:34:56.123456");
        assert_eq!(in_nanos(1, TimeUnit::Millisecond), 1_000_000);
    }

    proptest! {
        #[test]
        fn dates_are_those_of_chrono(days in -90_000_000_i32..90_000_000) {
            let expected = NaiveDate::from_epoch_days(days).unwrap();
            prop_assert_eq!(civil(days.into()), (expected.year().into(), expected.month().into(), expected.day().into()));
            prop_assert_eq!(year_of(days_from_year(expected.year().into())), i64::from(expected.year()));
            prop_assert_ne!(year_of(days_from_year(expected.year().into()) - 1), i64::from(expected.year()));
        }

        #[test]
        fn timestamps_are_those_of_chrono(micros in -62_135_596_800_000_000_i64..253_402_300_800_000_000) {
            let expected = DateTime::from_timestamp_micros(micros).unwrap();
            prop_assert_eq!(
                timestamp(micros, TimeUnit::Microsecond, Some("UTC"), Style::Json),
                expected.to_rfc3339_opts(SecondsFormat::Millis, true)
            );
        }
    }
}
