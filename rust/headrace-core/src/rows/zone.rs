//! The time zones of timestamp columns: a zone's offset from UTC at an instant.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::calendar::SECONDS_PER_DAY;
use crate::time_zones;

/// The zone that a timestamp column names.
#[derive(Debug, Clone)]
pub(super) enum Zone {
    /// A constant offset, in seconds east of UTC.
    Fixed(i32),
    /// A zone of the IANA database: its offset depends on the instant.
    Named(TimeZone),
}

/// Whether a timestamp column may name this zone.
pub(crate) fn is_zone(name: &str) -> bool {
    Zone::parse(name).is_some()
}

/// The calendar repeats after 400 years, including the weekdays.
const CYCLE: i64 = 146_097 * SECONDS_PER_DAY;

impl Zone {
    /// Parses the forms that Arrow allows (`Europe/Berlin`, `+05:30`), and the other forms that Spark accepts as a session time
    /// zone and passes on unchanged: `Z`, `GMT+5`, `UTC+05:30:15`, `-0500`.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let offset = ["UTC", "GMT", "UT"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        if offset.is_empty() && !name.is_empty() || matches!(name, "Z" | "Etc/UTC" | "Etc/GMT") {
            return Some(Self::Fixed(0));
        }
        if offset.starts_with(['+', '-']) {
            return parse_offset(offset).map(Self::Fixed);
        }
        time_zones::find(name).map(Self::Named)
    }

    /// Whether the offset depends on the instant.
    pub(super) fn changes(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// Seconds east of UTC, `second` seconds after 1970-01-01T00:00:00Z.
    pub(super) fn offset(&self, second: i64) -> i32 {
        match self {
            Self::Fixed(offset) => *offset,
            Self::Named(zone) => zone.to_offset(equivalent(second)).seconds(),
        }
    }
}

/// An instant with the same offset that [`Timestamp`] can hold. Its range ends with the year 9999; the rules of daylight saving
/// time go by month and weekday, and continue. Before the year -9999, zones have only local mean time.
fn equivalent(second: i64) -> Timestamp {
    let last = Timestamp::MAX.as_second();
    let beyond = second.saturating_sub(last);
    let within = if beyond > 0 { last - CYCLE + 1 + (beyond - 1) % CYCLE } else { second };
    Timestamp::from_second(within).unwrap_or(Timestamp::MIN)
}

/// `+5`, `+05`, `+05:30`, `+0530`, `+05:30:15`, `+053015`; east is positive.
fn parse_offset(text: &str) -> Option<i32> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let parts: Vec<&str> = if digits.contains(':') {
        digits.split(':').collect()
    } else if digits.len() <= 2 {
        vec![digits]
    } else {
        digits.as_bytes().chunks(2).map(std::str::from_utf8).collect::<Result<_, _>>().ok()?
    };
    if parts.len() > 3 || parts.iter().skip(1).any(|part| part.len() != 2) {
        return None;
    }
    let mut numbers = [0; 3];
    for (number, part) in numbers.iter_mut().zip(&parts) {
        let plain = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = if plain { part.parse().ok()? } else { return None };
    }
    let [hours, minutes, seconds]: [i32; 3] = numbers;
    // Java's limit, which no zone has ever exceeded.
    (hours <= 18 && minutes < 60 && seconds < 60).then_some(sign * (hours * 3600 + minutes * 60 + seconds))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use chrono::{NaiveDate, Weekday};

    use super::*;

    #[test]
    fn every_form_that_spark_passes_on_is_parsed() {
        let forms = [
            ("UTC", 0),
            ("Z", 0),
            ("GMT", 0),
            ("UT", 0),
            ("Etc/UTC", 0),
            ("+00:00", 0),
            ("+05:30", 19_800),
            ("-0500", -18_000),
            ("GMT+5", 18_000),
            ("UTC+05:30:15", 19_815),
            ("UT-8", -28_800),
            ("+01:02:03", 3723),
            ("Etc/GMT+3", -10_800),
            ("Asia/Kolkata", 19_800),
            ("GMT0", 0),
            ("Zulu", 0),
        ];
        for (name, offset) in forms {
            assert_eq!(Zone::parse(name).unwrap().offset(1_776_168_000), offset, "{name}");
        }
        for bad in [
            "",
            "+",
            "Mars/Base",
            "+5:3",
            "+19:00",
            "+05:60",
            "+05:30:15:00",
            "+123",
            "GMT+",
            "+é",
            "++5",
            "+-5",
            "PST",
        ] {
            assert!(Zone::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn daylight_saving_time_continues_after_the_table() {
        let sydney = Zone::parse("Australia/Sydney").unwrap();
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        // Offsets of Java 17's ZoneRules: 9999-12-31T12:00Z, 2131-09-10, 2104-07-01, the last second of a microsecond timestamp.
        for (second, south, north) in [
            (253_402_257_600, 39_600, 3600),
            (5_102_444_800, 36_000, 7200),
            (4_244_832_000, 36_000, 7200),
            (i64::MAX / 1_000_000, 39_600, 3600),
        ] {
            assert_eq!((sydney.offset(second), berlin.offset(second)), (south, north), "{second}");
        }
        assert_eq!(berlin.offset(-5_000_000_000), 3208, "local mean time");
    }

    #[test]
    fn clocks_change_on_the_last_sunday_of_march_of_every_later_year() {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        for year in (2100..2180).chain(9970..=9999) {
            let sunday = NaiveDate::from_ymd_opt(year, 3, 31).unwrap().week(Weekday::Sun).first_day();
            let change = sunday.and_hms_opt(1, 0, 0).unwrap().and_utc().timestamp();
            assert_eq!((berlin.offset(change - 1), berlin.offset(change)), (3600, 7200), "{year}");
        }
    }

    #[test]
    fn a_zone_that_ended_daylight_saving_time_keeps_its_offset() {
        let kolkata = Zone::parse("Asia/Kolkata").unwrap();
        for month in 0..2000 {
            assert_eq!(kolkata.offset(4_102_444_800 + month * 30 * SECONDS_PER_DAY), 19_800, "{month}");
        }
    }

    #[test]
    fn extreme_instants_have_an_offset() {
        for second in [i64::MIN, i64::MAX] {
            Zone::parse("Europe/Berlin").unwrap().offset(second);
        }
    }
}
