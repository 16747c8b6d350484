//! Dates, times of day and timestamps from ISO 8601 text.

use std::cell::Cell;

use arrow_schema::TimeUnit;

use crate::calendar::{SECONDS_PER_DAY, days_from_date, per_day, per_second};
use crate::decimal::{self, POWERS};

/// A time of day.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    /// Whole seconds since midnight.
    pub(super) seconds: i64,
    /// The rest of the second, in the unit of the column.
    pub(super) fraction: i64,
}

/// A time of day, counted in `unit` from midnight.
pub(super) fn time<T: TryFrom<i64>>(text: &[u8], unit: TimeUnit) -> Option<T> {
    let clock = whole(clock(text, unit)?)?;
    T::try_from(clock.seconds * per_second(unit).cast_signed() + clock.fraction).ok()
}

/// Parses the dates and timestamps of a column. The last date is kept, because the next one is often the same.
pub(super) struct Dates {
    last: Cell<([u8; 10], i64)>,
}

impl Dates {
    pub(super) fn new() -> Self {
        Self { last: Cell::new((*b"1970-01-01", 0)) }
    }

    /// The day of a date, counted from 1970-01-01.
    pub(super) fn date32(&self, text: &[u8]) -> Option<i32> {
        whole(self.date(text)?)?.try_into().ok()
    }

    /// The first millisecond of a date.
    pub(super) fn date64(&self, text: &[u8]) -> Option<i64> {
        whole(self.date(text)?)?.checked_mul(per_day(TimeUnit::Millisecond))
    }

    /// A timestamp, counted in `unit` from 1970. Its text has an offset from UTC if the column has a zone, otherwise none.
    #[inline]
    pub(super) fn timestamp(&self, text: &[u8], unit: TimeUnit, has_zone: bool) -> Option<i64> {
        let (days, rest) = self.date(text)?;
        let [b'T' | b' ', rest @ ..] = rest else { return None };
        let (clock, rest) = clock(rest, unit)?;
        let offset = if has_zone { offset(rest)? } else { whole((0, rest))? };
        // In 128 bits, because the first day of a unit begins before the first representable value.
        let seconds = i128::from(days) * i128::from(SECONDS_PER_DAY) + i128::from(clock.seconds - offset);
        i64::try_from(seconds * i128::from(per_second(unit)) + i128::from(clock.fraction)).ok()
    }

    /// The day of a date, and the text after it.
    #[inline]
    fn date<'a>(&self, text: &'a [u8]) -> Option<(i64, &'a [u8])> {
        let (last, day) = self.last.get();
        match text.split_first_chunk() {
            Some((start, rest)) if *start == last => Some((day, rest)),
            _ => self.other_date(text),
        }
    }

    #[inline(never)]
    fn other_date<'a>(&self, text: &'a [u8]) -> Option<(i64, &'a [u8])> {
        let (day, rest) = date(text)?;
        // A signed year may have more digits, and is not kept.
        if let Some(start) = text.first_chunk().filter(|start| start[0].is_ascii_digit()) {
            self.last.set((*start, day));
        }
        Some((day, rest))
    }
}

/// Parses `2026-04-14`, or a date with a signed year of 4 to 12 digits: returns its day, and the text after it.
fn date(text: &[u8]) -> Option<(i64, &[u8])> {
    let (year, rest) = match text {
        [sign @ (b'+' | b'-'), rest @ ..] => {
            let digits =
                rest.iter().position(|byte| !byte.is_ascii_digit()).filter(|digits| (4..=12).contains(digits))?;
            let year = decimal::parse(&rest[..digits])?.cast_signed();
            (if *sign == b'-' { -year } else { year }, &rest[digits..])
        }
        [a, b, c, d, rest @ ..] => (i64::from(two(*a, *b)?) * 100 + i64::from(two(*c, *d)?), rest),
        _ => return None,
    };
    let ([b'-', m1, m2, b'-', d1, d2], rest) = rest.split_first_chunk()? else { return None };
    Some((days_from_date(year, two(*m1, *m2)?, two(*d1, *d2)?)?, rest))
}

/// Parses `12:34:56.5`: returns the time, and the text after it.
#[inline]
pub(super) fn clock(text: &[u8], unit: TimeUnit) -> Option<(Clock, &[u8])> {
    const ZEROS: u64 = u64::from_le_bytes(*b"00:00:00");
    // Added to a byte, sets its highest bit if it is too large: above 9 for a digit, above 0 for a colon.
    const LIMITS: u64 = u64::from_le_bytes([0x76, 0x76, 0x7f, 0x76, 0x76, 0x7f, 0x76, 0x76]);
    let (start, rest) = text.split_first_chunk()?;
    let digits = u64::from_le_bytes(*start) ^ ZEROS;
    if (digits | digits.wrapping_add(LIMITS)) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    let [hour, _, _, minute, _, _, second, _] = (digits * 10 + (digits >> 8)).to_le_bytes();
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let (fraction, rest) = fraction(rest, unit)?;
    let seconds = i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second);
    Some((Clock { seconds, fraction }, rest))
}

/// The fraction of a second with its point, if any, in `unit`, and the text after it. Digits beyond the unit must be zeros.
#[inline]
pub(super) fn fraction(text: &[u8], unit: TimeUnit) -> Option<(i64, &[u8])> {
    let [b'.', digits @ ..] = text else { return Some((0, text)) };
    let places = per_second(unit).ilog10() as usize;
    let (mut value, mut length) = (0, 0);
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        if length < places {
            value = value * 10 + i64::from(digit);
        } else if digit > 0 {
            return None;
        }
        length += 1;
    }
    let missing = POWERS[places.saturating_sub(length)].cast_signed();
    (length > 0).then(|| (value * missing, &digits[length..]))
}

/// Parses `Z`, `+02:00` or `-04:56:02`, in seconds east of UTC.
#[inline]
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, hours, minutes, seconds) = match text {
        b"Z" => return Some(0),
        [sign, h1, h2, b':', m1, m2] => (sign, two(*h1, *h2)?, two(*m1, *m2)?, 0),
        [sign, h1, h2, b':', m1, m2, b':', s1, s2] => (sign, two(*h1, *h2)?, two(*m1, *m2)?, two(*s1, *s2)?),
        _ => return None,
    };
    let offset = i64::from(hours * 3600 + minutes * 60 + seconds);
    match sign {
        // 18 hours is Java's limit, which no zone has ever exceeded.
        _ if minutes > 59 || seconds > 59 || offset > 18 * 3600 => None,
        b'+' => Some(offset),
        b'-' => Some(-offset),
        _ => None,
    }
}

/// The number of two digits.
#[inline]
fn two(tens: u8, ones: u8) -> Option<u32> {
    let (tens, ones) = (tens.wrapping_sub(b'0'), ones.wrapping_sub(b'0'));
    (tens <= 9 && ones <= 9).then(|| u32::from(tens) * 10 + u32::from(ones))
}

/// The parsed value, if the whole text was consumed.
#[inline]
pub(super) fn whole<T>((value, rest): (T, &[u8])) -> Option<T> {
    rest.is_empty().then_some(value)
}
