//! A row as JSON, byte for byte as Spark's `to_json` writes it: <https://spark.apache.org/docs/latest/api/sql/#to_json>.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::column::{Column, Values, write_integer};
use super::line::{self, Line, Piece};
use super::text::Style;
use super::time;
use crate::utf8;

/// `,"name":`, as it stands between two members of an object.
pub(super) fn key(name: &str) -> Vec<u8> {
    let (mut room, mut out) = ([0; line::SIZE], vec![b',']);
    let mut line = Line::new(&mut room, &mut out);
    write_string(&mut line, name.as_bytes());
    line.push(b":");
    line.flush();
    out
}

/// Appends an object. Members that are null are left out.
pub(super) fn write_object(members: &[(Piece<'_>, Column<'_>)], row: usize, out: &mut Line<'_>) {
    let mut is_empty = true;
    for (key, column) in members {
        let Some((values, place)) = column.locate(row) else { continue };
        out.make_room();
        if is_empty {
            // The bracket takes the place of the key's comma.
            out.push_piece_with(b'{', key);
            is_empty = false;
        } else {
            out.push_piece(key);
        }
        write_value(values, place, out);
    }
    if is_empty {
        out.push(b"{");
    }
    out.push(b"}");
}

#[inline(always)]
fn write_value(values: &Values<'_>, row: usize, out: &mut Line<'_>) {
    match values {
        Values::Text(text) => write_string(out, text.get(row)),
        Values::Binary(_) | Values::Unchecked(_) | Values::Struct(_) | Values::List(..) | Values::Map(..) => {
            write_large(values, row, out);
        }
        Values::Date32(_) | Values::Date64(_) | Values::Time32(..) | Values::Time64(..) | Values::Timestamp(_) => {
            out.push(b"\"");
            values.write_time(row, out, Style::Json);
            out.push(b"\"");
        }
        Values::Uuid(_) | Values::Interval(_) => {
            out.push(b"\"");
            values.write_text(row, out, Style::Json);
            out.push(b"\"");
        }
        values => values.write_text(row, out, Style::Json),
    }
}

/// The values that can be of any size. This is the part of [`write_value`] that calls itself.
fn write_large(values: &Values<'_>, row: usize, out: &mut Line<'_>) {
    match values {
        Values::Binary(bytes) => write_base64(out, bytes.get(row)),
        Values::Unchecked(bytes) => write_unchecked(out, bytes.get(row)),
        Values::Struct(members) => write_object(members, row, out),
        Values::List(spans, elements) => {
            out.push(b"[");
            for (index, place) in spans.get(row).enumerate() {
                out.push_start(b",", usize::from(index > 0));
                write_or_null(elements, place, out);
            }
            out.push(b"]");
        }
        Values::Map(spans, entries) => {
            out.push(b"{");
            for (index, place) in spans.get(row).enumerate() {
                out.push_start(b",", usize::from(index > 0));
                write_map_key(&entries.0, place, out);
                out.push(b":");
                write_or_null(&entries.1, place, out);
            }
            out.push(b"}");
        }
        _ => {}
    }
    // Many may end here, one in the other.
    out.make_room();
}

fn write_or_null(column: &Column<'_>, row: usize, out: &mut Line<'_>) {
    out.make_room();
    match column.locate(row) {
        Some((values, place)) => write_value(values, place, out),
        None => out.push(b"null"),
    }
}

/// Spark writes a key as its internal value prints: a date is its days since 1970, a timestamp its microseconds, a time
/// of day its nanoseconds, an interval its microseconds or months. Arrow has no null keys; should one come all the same, it is "null".
fn write_map_key(keys: &Column<'_>, row: usize, out: &mut Line<'_>) {
    out.make_room();
    let Some((values, place)) = keys.locate(row) else { return out.push(b"\"null\"") };
    match values {
        Values::Text(text) => return write_string(out, text.get(place)),
        Values::Unchecked(bytes) => return write_unchecked(out, bytes.get(place)),
        _ => {}
    }
    out.push(b"\"");
    match values {
        Values::Date32(days) => write_integer(out, days[place]),
        Values::Date64(millis) => write_integer(out, time::day_of_millis(millis[place])),
        Values::Timestamp(times) => write_integer(out, times.micros(place)),
        Values::Time32(times, unit) => write_integer(out, time::in_nanos(times[place].into(), *unit)),
        Values::Time64(times, unit) => write_integer(out, time::in_nanos(times[place], *unit)),
        Values::Interval(intervals) => intervals.write_map_key(place, out),
        // Without the quotes of NaN.
        Values::F16(_) | Values::F32(_) | Values::F64(_) => values.write_text(place, out, Style::Field),
        values => values.write_text(place, out, Style::Json),
    }
    out.push(b"\"");
}

fn write_base64(out: &mut Line<'_>, bytes: &[u8]) {
    // Groups of three bytes become four letters each, so that parts can stand one after the other.
    const PART: usize = 3 * 64;
    let mut letters = [0; PART / 3 * 4];
    out.push(b"\"");
    for part in bytes.chunks(PART) {
        // The room is exactly what it takes: this cannot fail.
        let length = STANDARD.encode_slice(part, &mut letters).unwrap_or_default();
        out.push_bytes(&letters[..length]);
    }
    out.push(b"\"");
}

/// Appends a string of bytes that may not be UTF-8, with U+FFFD for what is not.
fn write_unchecked(out: &mut Line<'_>, bytes: &[u8]) {
    out.push(b"\"");
    let mut rest = Some(bytes);
    while let Some(bytes) = rest {
        let (text, after) = utf8::split(bytes);
        write_characters(out, text);
        out.push_start(utf8::REPLACEMENT, if after.is_some() { utf8::REPLACEMENT.len() } else { 0 });
        out.make_room();
        rest = after;
    }
    out.push(b"\"");
}

/// Appends a string, escaped as Jackson does: what JSON demands and nothing else.
#[inline]
fn write_string(out: &mut Line<'_>, text: &[u8]) {
    out.push(b"\"");
    write_characters(out, text);
    out.push(b"\"");
}

#[inline(always)]
fn write_characters(out: &mut Line<'_>, text: &[u8]) {
    let mut rest = text;
    loop {
        let (plain, tail) = rest.split_at(plain_length(rest));
        out.push_bytes(plain);
        let Some((byte, after)) = tail.split_first() else { break };
        write_escaped(out, *byte);
        rest = after;
    }
}

/// How many bytes come before the first one that has to be escaped. Eight at a time, as most strings have none.
fn plain_length(text: &[u8]) -> usize {
    let mut plain = 0;
    for chunk in text.chunks_exact(8) {
        if !chunk.first_chunk().copied().is_some_and(is_plain) {
            break;
        }
        plain += 8;
    }
    let rest = &text[plain..];
    if rest.len() < 8 && text.last_chunk().copied().is_some_and(is_plain) {
        return text.len();
    }
    plain + rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\')).unwrap_or(rest.len())
}

/// Whether none of these has to be escaped.
#[inline]
fn is_plain(bytes: [u8; 8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let word = u64::from_ne_bytes(bytes);
    // A byte below `limit` borrows, which sets its high bit; those that had it before are not below.
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word;
    let equal = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (below(word, 0x20) | equal(b'"') | equal(b'\\')) & HIGHS == 0
}

#[cold]
fn write_escaped(out: &mut Line<'_>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let letter = match byte {
        b'\x08' => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        b'\x0c' => b'f',
        b'\r' => b'r',
        b'"' | b'\\' => byte,
        _ => {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            return out.push(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    };
    out.push(&[b'\\', letter]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn string(text: &str) -> String {
        String::from_utf8(Line::written(|out| write_string(out, text.as_bytes()))).unwrap()
    }

    #[test]
    fn only_what_json_demands_is_escaped() {
        assert_eq!(string(""), r#""""#);
        assert_eq!(string("a\"b\\c/"), r#""a\"b\\c/""#);
        assert_eq!(string("\u{8}\u{c}\n\r\t\0\u{1f}\u{7f}"), "\"\\b\\f\\n\\r\\t\\u0000\\u001F\u{7f}\"");
        assert_eq!(string("é😀\u{2028}<&>'"), "\"é😀\u{2028}<&>'\"");
    }

    #[test]
    fn a_byte_that_needs_an_escape_is_found_at_every_place() {
        for place in 0..24 {
            for bad in ['"', '\\', '\0', '\u{1f}'] {
                let mut text = "\u{e9}".repeat(4) + &"x".repeat(24);
                text.insert(8 + place, bad);
                assert_eq!(plain_length(text.as_bytes()), 8 + place, "{text:?}");
            }
        }
        assert_eq!(plain_length("!#[]\u{7f}\u{80}\u{a0}\u{dc}".as_bytes()), 11);
    }

    #[test]
    fn binary_is_padded_base64() {
        for (bytes, text) in
            [(&b""[..], "\"\""), (b"\x00", "\"AA==\""), (b"\x00\xff", "\"AP8=\""), (b"\xff\xfe\xfd", "\"//79\"")]
        {
            assert_eq!(Line::written(|out| write_base64(out, bytes)), text.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn strings_read_back_the_same(text in any::<String>()) {
            prop_assert_eq!(serde_json::from_str::<String>(&string(&text)).unwrap(), text);
        }
    }
}
