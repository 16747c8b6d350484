//! Timestamps as ISO 8601 text.

use std::cell::Cell;

use arrow_schema::TimeUnit;

use super::digits;
use super::line::Line;
use super::text::Style;
use super::time;
use super::zone::Zone;
use crate::calendar::{SECONDS_PER_DAY, per_day, per_second};

/// A column of timestamps, counted in `unit` since 1970.
pub(super) struct Timestamps<'a> {
    values: &'a [i64],
    unit: TimeUnit,
    zone: Option<Zone>,
    /// The day of the last timestamp, because the next one is often on the same day.
    day: Cell<Day>,
}

/// A period within which the local date and the offset from UTC are constant. Times are counted in the column's unit.
#[derive(Clone, Copy)]
struct Day {
    start: i64,
    length: u64,
    /// The local time since midnight, at `start`.
    clock: u64,
    /// `2026-04-14T`
    date: Part,
    /// `+02:00`, `Z`, or nothing without a zone.
    offset: Part,
}

/// A part of a timestamp's text. The longest is a date from seconds: `+292277026596-12-04T`.
#[derive(Clone, Copy, PartialEq)]
struct Part {
    bytes: [u8; 24],
    length: usize,
}

impl<'a> Timestamps<'a> {
    pub(super) fn new(values: &'a [i64], unit: TimeUnit, zone: Option<Zone>) -> Self {
        let nothing = Part { bytes: [0; 24], length: 0 };
        let none = Day { start: 0, length: 0, clock: 0, date: nothing, offset: nothing };
        Self { values, unit, zone, day: Cell::new(none) }
    }

    /// The row's value, in microseconds.
    pub(super) fn micros(&self, row: usize) -> i128 {
        time::in_nanos(self.values[row], self.unit).div_euclid(1000)
    }

    /// Appends `2026-04-14T12:00:00.5+02:00`; without a zone there is no offset.
    #[inline(always)]
    pub(super) fn write(&self, row: usize, out: &mut Line<'_>, style: Style) {
        let value = self.values[row];
        if value.wrapping_sub(self.day.get().start).cast_unsigned() >= self.day.get().length {
            self.day.set(self.day_of(value, out));
        }
        let day = self.day.get();
        let clock = day.clock + value.wrapping_sub(day.start).cast_unsigned();
        out.push_start(&day.date.bytes, day.date.length);
        time::write_time_of_day(out, clock, self.unit, style);
        // Read only now: a copy taken earlier would have to be kept on the stack.
        let offset = self.day.get().offset;
        out.push_start(&offset.bytes, offset.length);
    }

    /// The local day of `value`.
    #[cold]
    fn day_of(&self, value: i64, scratch: &mut Line<'_>) -> Day {
        let per_second = per_second(self.unit).cast_signed();
        let offset_at = |value: i64| self.zone.as_ref().map_or(0, |zone| zone.offset(value.div_euclid(per_second)));
        let (second, offset) = (value.div_euclid(per_second), offset_at(value));
        // The offset is added to the second of the day, because `second + offset` could overflow.
        let local = second.rem_euclid(SECONDS_PER_DAY) + i64::from(offset);
        let clock = local.rem_euclid(SECONDS_PER_DAY) * per_second + value.rem_euclid(per_second);

        let date = Part::new(scratch, |out| {
            time::write_date(out, second.div_euclid(SECONDS_PER_DAY) + local.div_euclid(SECONDS_PER_DAY));
            out.push(b"T");
        });
        let offset_text = Part::new(scratch, |out| {
            if self.zone.is_some() {
                write_offset(out, offset);
            }
        });
        let (mut start, mut last) = (value, value);
        // A zone with daylight saving time requires a search for the ends of the day. It is skipped for a new date, because the
        // next row may be on another day again.
        if !self.zone.as_ref().is_some_and(Zone::changes) || date == self.day.get().date {
            start = value.saturating_sub(clock);
            last = value.saturating_add(SECONDS_PER_DAY * per_second - 1 - clock);
            // Two changes of a zone's offset are at least four days apart (Africa/Freetown, 1939): if both ends of a day have the
            // same offset, so does all the time between them.
            while offset_at(start) != offset {
                start += (value - start + 1) / 2;
            }
            while offset_at(last) != offset {
                last -= (last - value + 1) / 2;
            }
        }
        Day {
            start,
            length: (last - start).cast_unsigned() + 1,
            clock: (clock - (value - start)).cast_unsigned(),
            date,
            offset: offset_text,
        }
    }
}

impl Part {
    /// Captures what `write` appends to the line, and removes it from the line.
    fn new(line: &mut Line<'_>, write: impl FnOnce(&mut Line<'_>)) -> Self {
        let (bytes, length) = line.take_back(write);
        Self { bytes, length }
    }
}

/// Appends `2026-04-14T12:00:00.5+02:00` from microseconds of local time; without an offset from UTC, in seconds, there is none.
pub(super) fn write_local(out: &mut Line<'_>, micros: i64, offset: Option<i32>) {
    let per_day = per_day(TimeUnit::Microsecond);
    time::write_date(out, micros.div_euclid(per_day));
    out.push(b"T");
    time::write_time(out, micros.rem_euclid(per_day), TimeUnit::Microsecond);
    if let Some(offset) = offset {
        write_offset(out, offset);
    }
}

/// Appends `+02:00`, or `Z` for zero.
fn write_offset(out: &mut Line<'_>, offset: i32) {
    if offset == 0 {
        return out.push(b"Z");
    }
    let magnitude = offset.unsigned_abs();
    let [hours, minutes, seconds] = [magnitude / 3600, magnitude / 60 % 60, magnitude % 60].map(digits::two);
    out.push(if offset < 0 { b"-" } else { b"+" });
    out.push(&hours);
    out.push(b":");
    out.push(&minutes);
    // Local mean time, before zones were introduced. Java writes the seconds too.
    if !magnitude.is_multiple_of(60) {
        out.push(b":");
        out.push(&seconds);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use chrono::{DateTime, FixedOffset, SecondsFormat};
    use proptest::prelude::*;

    use super::*;

    const UNITS: [TimeUnit; 4] = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
    const NAMED: [&str; 6] = [
        "Europe/Berlin",
        "America/New_York",
        "America/St_Johns",
        "Africa/Casablanca",
        "Australia/Lord_Howe",
        "Pacific/Apia", // 2011-12-30 did not exist there
    ];

    fn zone(name: &str) -> Zone {
        Zone::parse(name).unwrap()
    }

    /// The texts of a column.
    fn texts(values: &[i64], unit: TimeUnit, zone: Option<&Zone>, style: Style) -> Vec<String> {
        let timestamps = Timestamps::new(values, unit, zone.cloned());
        let text = |row| String::from_utf8(Line::written(|out| timestamps.write(row, out, style))).unwrap();
        (0..values.len()).map(text).collect()
    }

    fn timestamp(value: i64, unit: TimeUnit, zone: Option<&Zone>, style: Style) -> String {
        texts(&[value], unit, zone, style).remove(0)
    }

    /// The text according to chrono, with the zone's offset at this second.
    fn expected(seconds: i64, zone: &str) -> String {
        let utc = DateTime::from_timestamp(seconds, 0).unwrap();
        let offset = FixedOffset::east_opt(Zone::parse(zone).unwrap().offset(seconds)).unwrap();
        let local = utc.with_timezone(&offset).format("%Y-%m-%dT%H:%M:%S");
        match offset.local_minus_utc() {
            0 => format!("{local}Z"),
            // `+02:00`, or `-04:56:02`.
            _ => format!("{local}{offset}"),
        }
    }

    #[test]
    fn a_fraction_has_as_many_digits_as_needed() {
        for (value, unit, text) in [
            (0, TimeUnit::Second, "1970-01-01T00:00:00"),
            (1_500, TimeUnit::Millisecond, "1970-01-01T00:00:01.5"),
            (-1, TimeUnit::Microsecond, "1969-12-31T23:59:59.999999"),
            (100, TimeUnit::Microsecond, "1970-01-01T00:00:00.0001"),
            (1_000_000_010, TimeUnit::Nanosecond, "1970-01-01T00:00:01.00000001"),
            (1_000_000_100, TimeUnit::Nanosecond, "1970-01-01T00:00:01.0000001"),
            (1_000_001_000, TimeUnit::Nanosecond, "1970-01-01T00:00:01.000001"),
            (1_000_000_000, TimeUnit::Nanosecond, "1970-01-01T00:00:01"),
            (i64::MIN, TimeUnit::Nanosecond, "1677-09-21T00:12:43.145224192"),
        ] {
            assert_eq!(timestamp(value, unit, None, Style::Field), text);
        }
        assert_eq!(timestamp(-1, TimeUnit::Microsecond, None, Style::Json), "1969-12-31T23:59:59.999");
        assert_eq!(timestamp(7, TimeUnit::Second, None, Style::Json), "1970-01-01T00:00:07.000");
    }

    #[test]
    fn the_offset_follows_the_local_time() {
        for (value, name, text) in [
            (1_776_168_000, "UTC", "2026-04-14T12:00:00Z"),
            (1_776_168_000, "Europe/Berlin", "2026-04-14T14:00:00+02:00"),
            (1_776_168_000, "America/St_Johns", "2026-04-14T09:30:00-02:30"),
            (253_402_300_799, "Asia/Kolkata", "+10000-01-01T05:29:59+05:30"),
            (-5_000_000_000, "America/New_York", "1811-07-23T10:10:38-04:56:02"),
        ] {
            assert_eq!(timestamp(value, TimeUnit::Second, Some(&zone(name)), Style::Field), text);
        }
    }

    #[test]
    fn extreme_values_are_written() {
        let extremes = [i64::MIN, i64::MAX, i64::MIN + 1, i64::MAX - 1, i64::MIN, i64::MAX];
        for unit in UNITS {
            for zone in [None, Some(&zone("+18:00")), Some(&zone("-18:00")), Some(&zone("Europe/Berlin"))] {
                let alone = extremes.map(|value| timestamp(value, unit, zone, Style::Field));
                assert_eq!(texts(&extremes, unit, zone, Style::Field), alone);
            }
            let east = timestamp(i64::MAX, unit, Some(&zone("+18:00")), Style::Field);
            assert!(east.ends_with("+18:00"), "{east}");
        }
    }

    #[test]
    fn offsets_change_within_a_day() {
        // Every quarter of an hour around a change: Berlin's in 2026, New York's change to standard time in 1883, and the day
        // that Apia skipped.
        for (name, change) in
            [("Europe/Berlin", 1_774_746_000), ("America/New_York", -2_717_650_800), ("Pacific/Apia", 1_325_239_200)]
        {
            let seconds: Vec<i64> = (-300..300).flat_map(|step| [0, -1].map(|by| change + step * 900 + by)).collect();
            let expected: Vec<String> = seconds.iter().map(|second| expected(*second, name)).collect();
            assert_eq!(texts(&seconds, TimeUnit::Second, Some(&zone(name)), Style::Field), expected);
        }
    }

    proptest! {
        #[test]
        fn timestamps_equal_those_of_chrono(micros in -62_135_596_800_000_000_i64..253_402_300_800_000_000) {
            let expected = DateTime::from_timestamp_micros(micros).unwrap();
            prop_assert_eq!(
                timestamp(micros, TimeUnit::Microsecond, Some(&zone("UTC")), Style::Json),
                expected.to_rfc3339_opts(SecondsFormat::Millis, true)
            );
        }

        /// Adjacent values, so that they share days.
        #[test]
        fn a_cached_day_is_used_only_within_that_day(
            first in -3_700_000_000_i64..6_000_000_000,
            steps in proptest::collection::vec(prop_oneof![-4000_i64..4000, -90_000_i64..90_000, -20_000_000_i64..20_000_000], 40),
            name in proptest::sample::select(&NAMED[..]),
        ) {
            let seconds: Vec<i64> = steps.iter().scan(first, |at, step| { *at += step; Some(*at) }).collect();
            let expected: Vec<String> = seconds.iter().map(|second| expected(*second, name)).collect();
            prop_assert_eq!(texts(&seconds, TimeUnit::Second, Some(&zone(name)), Style::Field), expected);
        }

        #[test]
        fn a_value_is_written_the_same_in_a_column_and_alone(
            first in any::<i64>(),
            steps in proptest::collection::vec(prop_oneof![-100_000_i64..100_000, any::<i64>()], 20),
            unit in proptest::sample::select(&UNITS[..]),
            name in proptest::option::of(proptest::sample::select(vec!["Europe/Berlin", "+05:30", "-00:00:01", "UTC"])),
        ) {
            let values: Vec<i64> =
                steps.iter().scan(first, |at, step| { *at = at.wrapping_add(*step); Some(*at) }).collect();
            let zone = name.map(zone);
            let zone = zone.as_ref();
            let alone: Vec<String> = values.iter().map(|value| timestamp(*value, unit, zone, Style::Field)).collect();
            prop_assert_eq!(texts(&values, unit, zone, Style::Field), alone);
        }
    }
}
