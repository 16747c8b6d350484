//! Dates and times of day as ISO 8601 text.

use arrow_schema::TimeUnit;

use super::digits;
use super::line::Line;
use super::text::Style;
use crate::calendar::{NANOS_PER_SECOND, civil, per_day, per_second};

/// Converts a duration to nanoseconds.
pub(super) fn in_nanos(value: i64, unit: TimeUnit) -> i128 {
    i128::from(value) * i128::from(NANOS_PER_SECOND / per_second(unit))
}

/// The day of a millisecond, both counted from 1970.
pub(super) fn day_of_millis(millis: i64) -> i64 {
    millis.div_euclid(per_day(TimeUnit::Millisecond))
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
/// Rows with values outside a day have failed before ([`super::range`]). Here such values wrap around after 24 hours, so that no
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

#[cfg(test)]
mod tests {
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
}
