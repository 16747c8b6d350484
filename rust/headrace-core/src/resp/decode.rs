//! The RESP2 parts that replies to messages consist of: lines, numbers and short bulk strings.
//!
//! Each function takes the bytes that have arrived so far and returns `None` while the part is incomplete. All lengths are
//! bounded, so an incomplete part never waits for more than its bound. For replies of any shape, see
//! [`framing`](super::framing).

use crate::decimal;

/// The longest error line that is accepted, in bytes.
pub(crate) const MAX_LINE: usize = 64 * 1024;
/// The longest line that holds a number: 64 bits have 20 digits.
const MAX_HEADER: usize = 32;
/// The longest bulk string that is accepted, in bytes. An entry ID has at most 41.
pub(crate) const MAX_BULK: usize = 1024;

/// Why the bytes are not the expected reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// The first line of `bytes` without its end. An error reply is one line.
pub(crate) fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Violation> {
    line_within(bytes, MAX_LINE, Violation("a line of more than 64 KiB"))
}

/// The first line of `bytes` without its end, if it holds a number: an integer, or the length of a bulk string or array.
pub(crate) fn header(bytes: &[u8]) -> Result<Option<&[u8]>, Violation> {
    line_within(bytes, MAX_HEADER, Violation("a number of more than 20 digits"))
}

fn line_within(bytes: &[u8], longest: usize, too_long: Violation) -> Result<Option<&[u8]>, Violation> {
    match memchr::memchr(b'\r', &bytes[..bytes.len().min(longest)]) {
        None if bytes.len() >= longest => Err(too_long),
        None => Ok(None),
        Some(at) => match bytes.get(at + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(&bytes[..at])),
            Some(_) => Err(Violation("a line end without a line feed")),
        },
    }
}

/// The integer in a [`header`] line.
pub(crate) fn integer(line: &[u8]) -> Option<u64> {
    line.strip_prefix(b":").and_then(decimal::parse)
}

/// The bulk string at the start of `bytes` (`None` for nil), and the length of the whole reply.
#[allow(clippy::type_complexity)] // incomplete, nil, or bytes
pub(crate) fn bulk(bytes: &[u8]) -> Result<Option<(Option<&[u8]>, usize)>, Violation> {
    let Some(first) = header(bytes)? else { return Ok(None) };
    if first == b"$-1" {
        return Ok(Some((None, first.len() + 2)));
    }
    let length = first.strip_prefix(b"$").and_then(decimal::parse).and_then(|length| usize::try_from(length).ok());
    let length = length.filter(|length| *length <= MAX_BULK).ok_or(Violation("a bulk string without a length"))?;
    let start = first.len() + 2;
    let Some(whole) = bytes.get(start..start + length + 2) else { return Ok(None) };
    match whole.strip_suffix(b"\r\n") {
        Some(body) => Ok(Some((Some(body), start + length + 2))),
        None => Err(Violation("a bulk string without an end")),
    }
}
