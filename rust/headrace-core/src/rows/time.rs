//! Dates and times of day as ISO 8601 text.

use arrow_schema::TimeUnit;

use super::digits;
use super::line::Line;
use super::text::Style;

pub(super) const SECONDS_PER_DAY: i64 = 86_400;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The number of `unit` in a second.
pub(super) fn per_second(unit: TimeUnit) -> u64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => NANOS_PER_SECOND,
    }
}

/// The number of `unit` in a day.
pub(super) fn per_day(unit: TimeUnit) -> i64 {
    SECONDS_PER_DAY * per_second(unit).cast_signed()
}

/// Converts a duration to nanoseconds.
pub(super) fn in_nanos(value: i64, unit: TimeUnit) -> i128 {
    i128::from(value) * i128::from(NANOS_PER_SECOND / per_second(unit))
}

/// The day of a millisecond, both counted from 1970.
pub(super) fn day_of_millis(millis: i64) -> i64 {
    millis.div_euclid(SECONDS_PER_DAY * 1000)
}

/// `2026-04-14`, from days since 1970-01-01.
pub(super) fn write_date(out: &mut Line<'_>, days: i64) {
    let (year, month, day) = civil(days);
    write_year(out, year);
    let ([m1, m2], [d1, d2]) = (digits::two(month), digits::two(day));
    out.push(&[b'-', m1, m2, b'-', d1, d2]);
}

/// Appends a year with four digits, or more with a sign: ISO 8601 requires the sign after 9999 and before the year 0.
fn write_year(out: &mut Line<'_>, year: i64) {
    let number = year.unsigned_abs();
    if !(0..=9999).contains(&year) {
        out.push(if year < 0 { b"-" } else { b"+" });
        if number > 9999 {
            return out.push_text(itoa::Buffer::new().format(number).as_bytes());
        }
    }
    out.push(&digits::two((number / 100) as u32));
    out.push(&digits::two((number % 100) as u32));
}

/// `12:34:56.5`, from the time since midnight.
///
/// Rows with values outside a day have failed before ([`super::range`]). Here they wrap around after 24 hours, so that no
/// number has more digits than there is room for.
pub(super) fn write_time(out: &mut Line<'_>, value: i64, unit: TimeUnit) {
    write_time_of_day(out, value.rem_euclid(per_day(unit)).cast_unsigned(), unit, Style::Field);
}

/// [`write_time`] for a value within a day.
#[inline(always)]
pub(super) fn write_time_of_day(out: &mut Line<'_>, value: u64, unit: TimeUnit, style: Style) {
    // A branch per unit: the compiler turns a division by a constant into a multiplication.
    let (second, micros, nanos) = match unit {
        TimeUnit::Microsecond => (value / 1_000_000, value % 1_000_000, 0),
        TimeUnit::Nanosecond => (value / NANOS_PER_SECOND, value / 1000 % 1_000_000, value % 1000),
        TimeUnit::Millisecond => (value / 1000, value % 1000 * 1000, 0),
        TimeUnit::Second => (value, 0, 0),
    };
    let (second, micros) = (second as u32, micros as u32);
    let (hour, rest) = (second / 3600, second % 3600);
    let (minute, second) = (rest / 60, rest % 60);
    let (first, rest) = (micros / 10_000, micros % 10_000);
    let (middle, last) = (rest / 100, rest % 100);
    let mut clock = *b"00:00:00.000000";
    clock[..2].copy_from_slice(&digits::two(hour));
    clock[3..5].copy_from_slice(&digits::two(minute));
    clock[6..8].copy_from_slice(&digits::two(second));
    clock[9..11].copy_from_slice(&digits::two(first));
    clock[11..13].copy_from_slice(&digits::two(middle));
    clock[13..].copy_from_slice(&digits::two(last));
    out.push(&clock);
    if style == Style::Json {
        out.remove(3);
    } else if nanos > 0 {
        let [hundreds, tens, ones] = [nanos / 100, nanos / 10 % 10, nanos % 10].map(|digit| b'0' + digit as u8);
        out.push(&[hundreds, tens, ones]);
        out.trim_zeros();
    } else if micros == 0 {
        out.remove(7);
    } else {
        out.trim_zeros();
    }
}

/// Year, month and day of the proleptic Gregorian calendar, from days since 1970-01-01.
///
/// Years begin in March here, so that the leap day is the last of its year; the derivation is
/// Howard Hinnant's: <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>.
fn civil(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let day_of_year = day_of_year.unsigned_abs() as u32;
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
    use chrono::{Datelike, NaiveDate};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn years_outside_four_digits_have_a_sign() {
        for (days, text) in [
            (3_789_592, "+12345-07-21"),
            (-719_528, "0000-01-01"),
            (-719_529, "-0001-12-31"),
            (-735_525, "-0044-03-15"),
            (-5_228_191, "-12345-09-13"),
        ] {
            assert_eq!(Line::written_text(|out| write_date(out, days)), text);
        }
    }

    #[test]
    fn times_of_day_are_written() {
        assert_eq!(Line::written_text(|out| write_time(out, 45_296, TimeUnit::Second)), "12:34:56");
        assert_eq!(
            Line::written_text(|out| write_time(out, 45_296_123_456_000, TimeUnit::Nanosecond)),
            "12:34:56.123456"
        );
        assert_eq!(in_nanos(1, TimeUnit::Millisecond), 1_000_000);
    }

    proptest! {
        #[test]
        fn dates_equal_those_of_chrono(days in -90_000_000_i32..90_000_000) {
            let expected = NaiveDate::from_epoch_days(days).unwrap();
            prop_assert_eq!(civil(days.into()), (expected.year().into(), expected.month(), expected.day()));
            prop_assert_eq!(year_of(days_from_year(expected.year().into())), i64::from(expected.year()));
            prop_assert_ne!(year_of(days_from_year(expected.year().into()) - 1), i64::from(expected.year()));
        }
    }
}
