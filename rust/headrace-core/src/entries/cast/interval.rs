//! Durations and intervals from text, in the form that the writer has adopted from Spark (`rows/interval.rs`).

use arrow_array::types::{IntervalDayTime, IntervalMonthDayNano};
use arrow_schema::TimeUnit;

use super::number::{integer, split_sign};
use super::time::{clock, fraction, whole};
use crate::calendar::{NANOS_PER_SECOND, SECONDS_PER_DAY, per_second};
use crate::decimal;

/// Parses `INTERVAL '1 02:03:04.5' DAY TO SECOND`, counted in `unit`.
pub(super) fn duration(text: &[u8], unit: TimeUnit) -> Option<i64> {
    let (is_negative, text) = split_sign(quoted(text, b"' DAY TO SECOND")?);
    let end = text.iter().position(|byte| *byte == b' ')?;
    let days = i128::from(decimal::parse(&text[..end])?);
    let clock = whole(clock(&text[end + 1..], unit)?)?;
    let seconds = days * i128::from(SECONDS_PER_DAY) + i128::from(clock.seconds);
    let value = seconds * i128::from(per_second(unit)) + i128::from(clock.fraction);
    i64::try_from(if is_negative { -value } else { value }).ok()
}

/// Parses `INTERVAL '1-2' YEAR TO MONTH`, in months.
pub(super) fn months(text: &[u8]) -> Option<i32> {
    let (is_negative, text) = split_sign(quoted(text, b"' YEAR TO MONTH")?);
    let end = text.iter().position(|byte| *byte == b'-')?;
    let (years, months) = (decimal::parse(&text[..end])?, decimal::parse(&text[end + 1..])?);
    let value = i128::from(years) * 12 + i128::from(months);
    if months > 11 {
        return None;
    }
    i32::try_from(if is_negative { -value } else { value }).ok()
}

/// The text within `INTERVAL '` and `end`.
fn quoted<'a>(text: &'a [u8], end: &[u8]) -> Option<&'a [u8]> {
    text.strip_prefix(b"INTERVAL '")?.strip_suffix(end)
}

/// Parses `1 years 2 months 3 days 4 hours 5 minutes 6.5 seconds`.
pub(super) fn month_day_nano(text: &[u8]) -> Option<IntervalMonthDayNano> {
    let Calendar { months, days, nanos } = Calendar::parse(text)?;
    Some(IntervalMonthDayNano {
        months: months.try_into().ok()?,
        days: days.try_into().ok()?,
        nanoseconds: nanos.try_into().ok()?,
    })
}

/// Parses an interval of days and whole milliseconds, without months.
pub(super) fn day_time(text: &[u8]) -> Option<IntervalDayTime> {
    const NANOS_PER_MILLISECOND: i128 = 1_000_000;
    let Calendar { months, days, nanos } = Calendar::parse(text)?;
    if months != 0 || nanos % NANOS_PER_MILLISECOND != 0 {
        return None;
    }
    Some(IntervalDayTime {
        days: days.try_into().ok()?,
        milliseconds: (nanos / NANOS_PER_MILLISECOND).try_into().ok()?,
    })
}

/// The sums of the parts of an interval.
#[derive(Default)]
struct Calendar {
    months: i128,
    days: i128,
    nanos: i128,
}

impl Calendar {
    /// Parses the parts of an interval. Those that are zero are left out; the others follow each other in this order.
    fn parse(text: &[u8]) -> Option<Self> {
        const UNITS: [&[u8]; 6] = [b"years", b"months", b"days", b"hours", b"minutes", b"seconds"];
        let mut words = text.split(|byte| *byte == b' ');
        let mut units = UNITS.iter();
        let mut sums = Self::default();
        while let Some(word) = words.next() {
            let unit = words.next()?;
            let unit = *units.find(|known| **known == unit)?;
            let number = || integer::<i64>(word).map(i128::from);
            match unit {
                b"years" => sums.months += number()? * 12,
                b"months" => sums.months += number()?,
                b"days" => sums.days += number()?,
                b"hours" => sums.nanos += number()? * 3600 * i128::from(NANOS_PER_SECOND),
                b"minutes" => sums.nanos += number()? * 60 * i128::from(NANOS_PER_SECOND),
                _ => sums.nanos += nanos(word)?,
            }
        }
        Some(sums)
    }
}

/// The nanoseconds of `-6.5`.
fn nanos(word: &[u8]) -> Option<i128> {
    let (is_negative, word) = split_sign(word);
    let point = word.iter().position(|byte| *byte == b'.').unwrap_or(word.len());
    let seconds = i128::from(decimal::parse(&word[..point])?);
    let value =
        seconds * i128::from(NANOS_PER_SECOND) + i128::from(whole(fraction(&word[point..], TimeUnit::Nanosecond)?)?);
    Some(if is_negative { -value } else { value })
}
