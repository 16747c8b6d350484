//! Headers and bulk strings at any place in the bytes. Those of up to 999 elements or bytes are read without a call.

use crate::decimal;
use crate::resp::decode::{self, Violation};

/// The minimum size of a bulk string: `$0\r\n\r\n`.
pub(super) const LEAST_BULK: usize = 6;
pub(super) const TOO_LARGE: Violation = Violation("a bulk string that is larger than allowed");

/// What is at the start of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The whole part, in this many bytes.
    Whole(usize),
    /// An incomplete part: this many bytes are needed before another look is worth it.
    Missing(usize),
}

/// What a header declares, and where the bytes after it start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    Number(u64, usize),
    Nil(usize),
    /// The line end is missing.
    Missing,
}

/// Where a bulk string starts and ends, without its line end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bulk {
    Whole(usize, usize),
    /// This many bytes are needed.
    Missing(usize),
}

/// The header of an array (`*`) or a bulk string (`$`) at the place `at`.
#[inline(always)]
#[allow(clippy::inline_always)] // see `short`
pub(super) fn header(bytes: &[u8], at: usize, marker: u8) -> Result<Header, Violation> {
    match short(bytes.get(at..).unwrap_or_default(), marker) {
        Some((number, length)) => Ok(Header::Number(number as u64, at + length)),
        None => any(bytes, at, marker),
    }
}

/// The bulk string at the place `at`, which must end before the place `most`. The caller must check that too: a complete bulk
/// string is not compared with it.
#[inline]
pub(super) fn bulk(bytes: &[u8], at: usize, most: usize) -> Result<Bulk, Violation> {
    match short_bulk(bytes.get(at..).unwrap_or_default()) {
        Some((start, end, _)) => Ok(Bulk::Whole(at + start, at + end)),
        None => any_bulk(bytes, at, most),
    }
}

/// A bulk string of up to 999 bytes at the start, and the bytes after it. `None` also for one of the last parts of a reply.
#[inline(always)]
#[allow(clippy::inline_always)] // see `short`
pub(super) fn short_bulk(bytes: &[u8]) -> Option<(usize, usize, &[u8])> {
    let (length, start) = short(bytes, b'$')?;
    let end = start + length;
    match bytes.get(end..)?.split_first_chunk()? {
        (b"\r\n", after) => Some((start, end, after)),
        _ => None,
    }
}

/// The header of one to three digits at the start, and where it ends. It is read from eight bytes: `None` if there are fewer.
#[inline(always)]
#[allow(clippy::inline_always)] // it is most of the work of a scan
fn short(bytes: &[u8], marker: u8) -> Option<(usize, usize)> {
    /// The marker and the line end after one, two and three digits.
    const AROUND: [u64; 3] = [0xffff_00ff, 0xff_ff00_00ff, 0xffff_0000_00ff];
    const LINE_END: u64 = u16::from_le_bytes(*b"\r\n") as u64;
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    let has = |digits: usize| word & AROUND[digits - 1] == u64::from(marker) | LINE_END << (8 + 8 * digits);
    let digit = |place: u32| usize::from(((word >> (8 * place)) as u8).wrapping_sub(b'0'));
    if has(1) {
        return (digit(1) <= 9).then_some((digit(1), 4));
    }
    let tens = digit(1) * 10 + digit(2);
    if digit(1) > 9 || digit(2) > 9 {
        None
    } else if has(2) {
        Some((tens, 5))
    } else if has(3) && digit(3) <= 9 {
        Some((tens * 10 + digit(3), 6))
    } else {
        None
    }
}

#[cold]
#[inline(never)]
fn any(bytes: &[u8], at: usize, marker: u8) -> Result<Header, Violation> {
    let bytes = bytes.get(at..).unwrap_or_default();
    match bytes.first() {
        None => return Ok(Header::Missing),
        Some(first) if *first == marker => {}
        Some(_) if marker == b'*' => return Err(Violation("something else where an array belongs")),
        Some(_) => return Err(Violation("something else where a bulk string belongs")),
    }
    let Some(line) = decode::header(bytes)? else { return Ok(Header::Missing) };
    let end = at + line.len() + 2;
    match &line[1..] {
        b"-1" => Ok(Header::Nil(end)),
        digits => {
            let number = decimal::parse(digits).ok_or(Violation("a length that is not a 64-bit number"))?;
            Ok(Header::Number(number, end))
        }
    }
}

#[inline(never)]
fn any_bulk(bytes: &[u8], at: usize, most: usize) -> Result<Bulk, Violation> {
    let (length, start) = match any(bytes, at, b'$')? {
        Header::Number(length, start) => (length, start),
        Header::Nil(_) => return Err(Violation("nil where a bulk string belongs")),
        Header::Missing => return Ok(Bulk::Missing((bytes.len() + 1).max(at + LEAST_BULK))),
    };
    let end = usize::try_from(length).ok().and_then(|length| length.checked_add(start)).unwrap_or(usize::MAX);
    if end > most.saturating_sub(2) {
        return Err(TOO_LARGE);
    }
    match bytes.get(end..end + 2) {
        Some(b"\r\n") => Ok(Bulk::Whole(start, end)),
        Some(_) => Err(Violation("a bulk string without an end")),
        None => Ok(Bulk::Missing(end + 2)),
    }
}
