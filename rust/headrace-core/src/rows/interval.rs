//! Durations and intervals as text, in the notation of Spark's `to_json`.
//!
//! | Arrow | Spark | text |
//! |---|---|---|
//! | duration | `INTERVAL DAY TO SECOND` | `INTERVAL '1 02:03:04.5' DAY TO SECOND` |
//! | interval of months | `INTERVAL YEAR TO MONTH` | `INTERVAL '1-2' YEAR TO MONTH` |
//! | interval of months, days and nanoseconds, or of days and milliseconds | `CalendarInterval` | `1 years 2 months 3 days 4 hours 5 minutes 6.5 seconds` |
//!
//! An Arrow type does not determine which fields Spark's interval type has, so all are written: `INTERVAL '1' DAY` becomes
//! `INTERVAL '1 00:00:00' DAY TO SECOND`. The fraction has up to nine digits; Spark's has up to six.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    IntervalDayTime, IntervalDayTimeType, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalYearMonthType,
};
use arrow_schema::{DataType, IntervalUnit, TimeUnit};

use super::digits;
use super::line::Line;
use super::text::write_integer;
use super::time;
use crate::calendar::SECONDS_PER_DAY;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A column of durations or intervals.
pub(super) enum Intervals<'a> {
    /// Numbers counted in the unit.
    Duration(&'a [i64], TimeUnit),
    /// Numbers of months.
    YearMonth(&'a [i32]),
    DayTime(&'a [IntervalDayTime]),
    MonthDayNano(&'a [IntervalMonthDayNano]),
}

impl<'a> Intervals<'a> {
    /// Resolves an array; `None` for another type.
    pub(super) fn new(array: &'a dyn Array) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Duration(unit) => {
                let values = match unit {
                    TimeUnit::Second => natives::<DurationSecondType>(array)?,
                    TimeUnit::Millisecond => natives::<DurationMillisecondType>(array)?,
                    TimeUnit::Microsecond => natives::<DurationMicrosecondType>(array)?,
                    TimeUnit::Nanosecond => natives::<DurationNanosecondType>(array)?,
                };
                Self::Duration(values, *unit)
            }
            DataType::Interval(IntervalUnit::YearMonth) => Self::YearMonth(natives::<IntervalYearMonthType>(array)?),
            DataType::Interval(IntervalUnit::DayTime) => Self::DayTime(natives::<IntervalDayTimeType>(array)?),
            DataType::Interval(IntervalUnit::MonthDayNano) => {
                Self::MonthDayNano(natives::<IntervalMonthDayNanoType>(array)?)
            }
            _ => return None,
        })
    }

    /// Appends the value, which is shorter than the [free margin](Line::make_room).
    pub(super) fn write(&self, row: usize, out: &mut Line<'_>) {
        match self {
            Self::Duration(values, unit) => write_day_to_second(out, time::in_nanos(values[row], *unit)),
            Self::YearMonth(months) => write_year_to_month(out, months[row]),
            Self::DayTime(values) => {
                let IntervalDayTime { days, milliseconds } = values[row];
                write_calendar(out, 0, days, i128::from(milliseconds) * 1_000_000);
            }
            Self::MonthDayNano(values) => {
                let IntervalMonthDayNano { months, days, nanoseconds } = values[row];
                write_calendar(out, months, days, nanoseconds.into());
            }
        }
    }

    /// Appends the value as a map key: Spark prints its internal value, which is microseconds or months.
    pub(super) fn write_map_key(&self, row: usize, out: &mut Line<'_>) {
        match self {
            Self::Duration(values, unit) => write_integer(out, time::in_nanos(values[row], *unit).div_euclid(1000)),
            Self::YearMonth(months) => write_integer(out, months[row]),
            Self::DayTime(_) | Self::MonthDayNano(_) => self.write(row, out),
        }
    }
}

fn natives<T: ArrowPrimitiveType>(array: &dyn Array) -> Option<&[T::Native]> {
    array.as_primitive_opt::<T>().map(|array| &**array.values())
}

/// `INTERVAL '1 02:03:04.5' DAY TO SECOND`
pub(super) fn write_day_to_second(out: &mut Line<'_>, nanos: i128) {
    out.push(b"INTERVAL '");
    write_sign(out, nanos < 0);
    let (seconds, nanos) = (nanos.unsigned_abs() / NANOS_PER_SECOND, nanos.unsigned_abs() % NANOS_PER_SECOND);
    let per_day = u128::from(SECONDS_PER_DAY.unsigned_abs());
    write_integer(out, seconds / per_day);
    let second = (seconds % per_day) as u32;
    let [[h1, h2], [m1, m2], [s1, s2]] = [second / 3600, second / 60 % 60, second % 60].map(digits::two);
    out.push(&[b' ', h1, h2, b':', m1, m2, b':', s1, s2]);
    write_fraction(out, nanos as u32);
    out.push(b"' DAY TO SECOND");
}

/// `INTERVAL '1-2' YEAR TO MONTH`
fn write_year_to_month(out: &mut Line<'_>, months: i32) {
    out.push(b"INTERVAL '");
    write_sign(out, months < 0);
    write_integer(out, months.unsigned_abs() / 12);
    out.push(b"-");
    write_integer(out, months.unsigned_abs() % 12);
    out.push(b"' YEAR TO MONTH");
}

/// Appends the parts that are not zero, each with its sign: `1 years -2 days 0.5 seconds`.
fn write_calendar(out: &mut Line<'_>, months: i32, days: i32, nanos: i128) {
    if (months, days, nanos) == (0, 0, 0) {
        return out.push(b"0 seconds");
    }
    let seconds = nanos / NANOS_PER_SECOND.cast_signed();
    let mut separator = 0;
    for (number, unit) in [
        (i128::from(months / 12), b" years\0\0"),
        (i128::from(months % 12), b" months\0"),
        (i128::from(days), b" days\0\0\0"),
        (seconds / 3600, b" hours\0\0"),
        (seconds / 60 % 60, b" minutes"),
    ] {
        if number == 0 {
            continue;
        }
        out.push_start(b" ", separator);
        separator = 1;
        write_integer(out, number);
        out.push_start(unit, unit.iter().position(|byte| *byte == 0).unwrap_or(unit.len()));
    }
    let rest = nanos % (60 * NANOS_PER_SECOND.cast_signed());
    if rest != 0 {
        out.push_start(b" ", separator);
        write_sign(out, rest < 0);
        write_integer(out, rest.unsigned_abs() / NANOS_PER_SECOND);
        write_fraction(out, (rest.unsigned_abs() % NANOS_PER_SECOND) as u32);
        out.push(b" seconds");
    }
}

fn write_sign(out: &mut Line<'_>, is_negative: bool) {
    out.push_start(b"-", usize::from(is_negative));
}

/// Appends the fraction of a second with its point, without trailing zeros; nothing if it is zero.
fn write_fraction(out: &mut Line<'_>, nanos: u32) {
    if nanos == 0 {
        return;
    }
    let mut digits = *b".000000000";
    let mut rest = nanos;
    for digit in digits[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.push(&digits);
    out.trim_zeros();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn written(intervals: &Intervals<'_>) -> String {
        Line::written_text(|out| intervals.write(0, out))
    }

    fn key(intervals: &Intervals<'_>) -> String {
        Line::written_text(|out| intervals.write_map_key(0, out))
    }

    fn duration(value: i64, unit: TimeUnit) -> String {
        written(&Intervals::Duration(&[value], unit))
    }

    fn calendar(months: i32, days: i32, nanoseconds: i64) -> String {
        written(&Intervals::MonthDayNano(&[IntervalMonthDayNano { months, days, nanoseconds }]))
    }

    // The texts for microseconds, and all texts for months, are from Spark 4.3.
    #[test]
    fn durations_are_written_from_day_to_second() {
        for (micros, text) in [
            (93_784_500_000, "1 02:03:04.5"),
            (-93_784_000_001, "-1 02:03:04.000001"),
            (0, "0 00:00:00"),
            (10_120_000, "0 00:00:10.12"),
            (-500_000, "-0 00:00:00.5"),
            (i64::MAX, "106751991 04:00:54.775807"),
            (i64::MIN, "-106751991 04:00:54.775808"),
        ] {
            let text = format!("INTERVAL '{text}' DAY TO SECOND");
            assert_eq!(duration(micros, TimeUnit::Microsecond), text);
        }
        for (value, unit, text) in [
            (1, TimeUnit::Nanosecond, "0 00:00:00.000000001"),
            (-1, TimeUnit::Millisecond, "-0 00:00:00.001"),
            (90_061, TimeUnit::Second, "1 01:01:01"),
            (i64::MIN, TimeUnit::Second, "-106751991167300 15:30:08"),
        ] {
            assert_eq!(duration(value, unit), format!("INTERVAL '{text}' DAY TO SECOND"));
        }
    }

    #[test]
    fn intervals_of_months_are_written_from_year_to_month() {
        for (months, text) in [
            (14, "1-2"),
            (-14, "-1-2"),
            (0, "0-0"),
            (-5, "-0-5"),
            (i32::MAX, "178956970-7"),
            (i32::MIN, "-178956970-8"),
        ] {
            assert_eq!(written(&Intervals::YearMonth(&[months])), format!("INTERVAL '{text}' YEAR TO MONTH"));
        }
    }

    #[test]
    fn calendar_intervals_omit_zero_parts() {
        for (months, days, nanos, text) in [
            (14, 25, 18_367_500_000_000, "1 years 2 months 25 days 5 hours 6 minutes 7.5 seconds"),
            (-14, -25, -18_367_000_001_000, "-1 years -2 months -25 days -5 hours -6 minutes -7.000001 seconds"),
            (0, 0, 0, "0 seconds"),
            (0, 1, 0, "1 days"),
            (0, 0, 500_000_000, "0.5 seconds"),
            (0, 0, 93_721_000_000_000, "26 hours 2 minutes 1 seconds"),
            (13, 0, -500_000_000, "1 years 1 months -0.5 seconds"),
            (0, 0, 60_000_000_001, "1 minutes 0.000000001 seconds"),
        ] {
            assert_eq!(calendar(months, days, nanos), text);
        }
        let of_days = Intervals::DayTime(&[IntervalDayTime { days: -1, milliseconds: 3_600_500 }]);
        assert_eq!(written(&of_days), "-1 days 1 hours 0.5 seconds");
    }

    #[test]
    fn map_keys_are_microseconds_or_months() {
        assert_eq!(key(&Intervals::Duration(&[86_400], TimeUnit::Second)), "86400000000");
        assert_eq!(key(&Intervals::Duration(&[-1], TimeUnit::Nanosecond)), "-1");
        assert_eq!(key(&Intervals::YearMonth(&[14])), "14");
        let calendar = IntervalMonthDayNano { months: 0, days: 1, nanoseconds: 0 };
        assert_eq!(key(&Intervals::MonthDayNano(&[calendar])), "1 days");
    }

    proptest! {
        #[test]
        fn a_duration_parses_to_the_same_value(value in any::<i64>(), unit in prop::sample::select(vec![
            TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond,
        ])) {
            let text = duration(value, unit);
            let text = text.strip_prefix("INTERVAL '").unwrap().strip_suffix("' DAY TO SECOND").unwrap();
            let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
            let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
            let (days, clock) = whole.split_once(' ').unwrap();
            let clock: Vec<i128> = clock.split(':').map(|part| part.parse().unwrap()).collect();
            prop_assert!(clock[0] < 24 && clock[1] < 60 && clock[2] < 60);
            let seconds = days.parse::<i128>().unwrap() * 86_400 + clock[0] * 3600 + clock[1] * 60 + clock[2];
            let nanos = format!("{fraction:0<9}").parse::<i128>().unwrap();
            prop_assert_eq!(sign * (seconds * 1_000_000_000 + nanos), time::in_nanos(value, unit));
        }

        #[test]
        fn the_parts_of_a_calendar_interval_add_up(months: i32, days: i32, nanos: i64) {
            let text = calendar(months, days, nanos);
            let words: Vec<&str> = text.split(' ').collect();
            let mut sums = (0_i64, 0_i64, 0_i128);
            for part in words.chunks(2) {
                let number = || part[0].parse::<i64>().unwrap();
                match part[1] {
                    "years" => sums.0 += number() * 12,
                    "months" => sums.0 += number(),
                    "days" => sums.1 += number(),
                    "hours" => sums.2 += i128::from(number()) * 3_600_000_000_000,
                    "minutes" => sums.2 += i128::from(number()) * 60_000_000_000,
                    "seconds" => {
                        let (whole, fraction) = part[0].split_once('.').unwrap_or((part[0], ""));
                        sums.2 += format!("{whole}{fraction:0<9}").parse::<i128>().unwrap();
                    }
                    unit => prop_assert!(false, "{}", unit),
                }
            }
            prop_assert_eq!(sums, (months.into(), days.into(), nanos.into()));
        }
    }
}
