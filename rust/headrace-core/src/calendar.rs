//! The proleptic Gregorian calendar: days since 1970-01-01 as year, month and day, for every day that an Arrow type can hold.
//! (chrono ends with the year 262142.)

use arrow_schema::TimeUnit;

pub(crate) const SECONDS_PER_DAY: i64 = 86_400;
pub(crate) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The number of units in a second.
pub(crate) fn per_second(unit: TimeUnit) -> u64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => NANOS_PER_SECOND,
    }
}

/// The number of units in a day.
pub(crate) fn per_day(unit: TimeUnit) -> i64 {
    SECONDS_PER_DAY * per_second(unit).cast_signed()
}

/// Year, month and day of the proleptic Gregorian calendar, from days since 1970-01-01.
///
/// Years begin in March here, so that the leap day is the last of its year; the derivation is
/// Howard Hinnant's: <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>.
pub fn civil(days: i64) -> (i64, u32, u32) {
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

/// The first day of `year`, counted from 1970-01-01.
fn days_from_year(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

/// The day of a date, counted from 1970-01-01; `None` if the date does not exist.
pub(crate) fn days_from_date(year: i64, month: u32, day: u32) -> Option<i64> {
    const DAYS_BEFORE: [u32; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];
    let index = month.checked_sub(1)? as usize;
    let (before, next) = (DAYS_BEFORE.get(index)?, DAYS_BEFORE.get(index + 1)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = next - before + u32::from(is_leap && month == 2);
    let day_of_year = before + u32::from(is_leap && month > 2) + day.checked_sub(1)?;
    (day <= last).then(|| days_from_year(year) + i64::from(day_of_year))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use chrono::{Datelike, NaiveDate};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn dates_equal_those_of_chrono(days in -90_000_000_i32..90_000_000) {
            let expected = NaiveDate::from_epoch_days(days).unwrap();
            prop_assert_eq!(civil(days.into()), (expected.year().into(), expected.month(), expected.day()));
            prop_assert_eq!(days_from_date(expected.year().into(), expected.month(), expected.day()), Some(days.into()));
        }
    }

    #[test]
    fn invalid_dates_are_rejected() {
        for year in [-400_i64, -4, -1, 0, 1800, 1899, 1900, 2000, 2023, 2024, 999_999_999_999] {
            for month in 0..15 {
                for day in 0..34 {
                    // chrono does not hold every year: the year at the same place in the 400-year cycle of the calendar replaces
                    // it.
                    let expected = NaiveDate::from_ymd_opt(year.rem_euclid(400) as i32, month, day);
                    assert_eq!(days_from_date(year, month, day).is_some(), expected.is_some(), "{year}-{month}-{day}");
                }
            }
        }
        assert_eq!(days_from_date(2024, u32::MAX, u32::MAX), None);
    }
}
