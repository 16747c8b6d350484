//! A row as JSON, byte for byte as Spark's `to_json` writes it: <https://spark.apache.org/docs/latest/api/sql/#to_json>.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::column::{Column, Values, span, write_integer};
use super::text::{Style, name_of_non_finite};
use super::time;

/// `,"name":`, as it stands between two members of an object.
pub(super) fn key(name: &str) -> Vec<u8> {
    let mut out = vec![b','];
    write_string(&mut out, name.as_bytes());
    out.push(b':');
    out
}

/// Appends an object. Members that are null are left out.
pub(super) fn write_object(members: &[(&[u8], Column<'_>)], row: usize, out: &mut Vec<u8>) {
    let start = out.len();
    for (key, column) in members {
        if let Some((values, place)) = column.locate(row) {
            out.extend_from_slice(key);
            write_value(values, place, out);
        }
    }
    open(out, start, b'{');
    out.push(b'}');
}

/// Puts the opening bracket where the first element has its comma.
fn open(out: &mut Vec<u8>, start: usize, bracket: u8) {
    match out.get_mut(start) {
        Some(comma) => *comma = bracket,
        None => out.push(bracket),
    }
}

fn write_value(values: &Values<'_>, row: usize, out: &mut Vec<u8>) {
    match values {
        Values::Text(text) => write_string(out, text.get(row)),
        Values::Binary(bytes) => write_base64(out, bytes.get(row)),
        Values::F16(floats) => write_float(values, row, floats[row].to_f64(), out),
        Values::F32(floats) => write_float(values, row, floats[row].into(), out),
        Values::F64(floats) => write_float(values, row, floats[row], out),
        Values::Date32(_) | Values::Date64(_) | Values::Time32(..) | Values::Time64(..) | Values::Timestamp(..) => {
            write_quoted(values, row, out);
        }
        Values::Struct(members) => write_object(members, row, out),
        Values::List(spans, elements) => {
            let start = out.len();
            for place in spans.get(row) {
                out.push(b',');
                write_or_null(elements, place, out);
            }
            open(out, start, b'[');
            out.push(b']');
        }
        Values::Map(offsets, entries) => {
            let start = out.len();
            for place in span(offsets, row) {
                out.push(b',');
                write_map_key(&entries.0, place, out);
                out.push(b':');
                write_or_null(&entries.1, place, out);
            }
            open(out, start, b'{');
            out.push(b'}');
        }
        Values::Null
        | Values::Bool(_)
        | Values::I8(_)
        | Values::I16(_)
        | Values::I32(_)
        | Values::I64(_)
        | Values::U8(_)
        | Values::U16(_)
        | Values::U32(_)
        | Values::U64(_)
        | Values::Decimal32(..)
        | Values::Decimal64(..)
        | Values::Decimal128(..)
        | Values::Decimal256(..)
        | Values::Dictionary(_) => values.write_text(row, out, Style::Json),
    }
}

fn write_or_null(column: &Column<'_>, row: usize, out: &mut Vec<u8>) {
    match column.locate(row) {
        Some((values, place)) => write_value(values, place, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// Spark writes a key as its internal value prints: a date is its days since 1970, a timestamp its microseconds, a time
/// of day its nanoseconds. Arrow has no null keys; should one come all the same, it is "null".
fn write_map_key(keys: &Column<'_>, row: usize, out: &mut Vec<u8>) {
    let Some((values, place)) = keys.locate(row) else { return out.extend_from_slice(b"\"null\"") };
    if let Values::Text(text) = values {
        return write_string(out, text.get(place));
    }
    out.push(b'"');
    match values {
        Values::Date32(days) => write_integer(out, days[place]),
        Values::Date64(millis) => write_integer(out, time::day_of_millis(millis[place])),
        Values::Timestamp(times, unit, _) => write_integer(out, time::in_nanos(times[place], *unit).div_euclid(1000)),
        Values::Time32(times, unit) => write_integer(out, time::in_nanos(times[place].into(), *unit)),
        Values::Time64(times, unit) => write_integer(out, time::in_nanos(times[place], *unit)),
        values => values.write_text(place, out, Style::Json),
    }
    out.push(b'"');
}

fn write_quoted(values: &Values<'_>, row: usize, out: &mut Vec<u8>) {
    out.push(b'"');
    values.write_text(row, out, Style::Json);
    out.push(b'"');
}

/// JSON has no numbers for NaN and the infinities.
fn write_float(values: &Values<'_>, row: usize, value: f64, out: &mut Vec<u8>) {
    if name_of_non_finite(value).is_some() {
        write_quoted(values, row, out);
    } else {
        values.write_text(row, out, Style::Json);
    }
}

fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The room is exactly what it takes: this cannot fail.
    let written = STANDARD.encode_slice(bytes, &mut out[start..]).unwrap_or_default();
    out.truncate(start + written);
    out.push(b'"');
}

/// Appends a string, escaped as Jackson does: what JSON demands and nothing else.
fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut rest = text;
    loop {
        let (plain, tail) = rest.split_at(plain_length(rest));
        out.extend_from_slice(plain);
        let Some((byte, after)) = tail.split_first() else { break };
        write_escaped(out, *byte);
        rest = after;
    }
    out.push(b'"');
}

/// How many bytes come before the first one that has to be escaped. Eight at a time, as most strings have none.
fn plain_length(text: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    // A byte below `limit` borrows, which sets its high bit; those that had it before are not below.
    let any_below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGHS != 0;
    let mut plain = 0;
    for chunk in text.chunks_exact(8) {
        let word = chunk.try_into().map(u64::from_ne_bytes).unwrap_or_default();
        let is_any = |byte: u8| any_below(word ^ (ONES * u64::from(byte)), 1);
        if any_below(word, 0x20) || is_any(b'"') || is_any(b'\\') {
            break;
        }
        plain += 8;
    }
    let rest = &text[plain..];
    plain + rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\')).unwrap_or(rest.len())
}

#[cold]
fn write_escaped(out: &mut Vec<u8>, byte: u8) {
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
            return out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    };
    out.extend_from_slice(&[b'\\', letter]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn string(text: &str) -> String {
        let mut out = Vec::new();
        write_string(&mut out, text.as_bytes());
        String::from_utf8(out).unwrap()
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
            let mut out = Vec::new();
            write_base64(&mut out, bytes);
            assert_eq!(out, text.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn strings_read_back_the_same(text in any::<String>()) {
            prop_assert_eq!(serde_json::from_str::<String>(&string(&text)).unwrap(), text);
        }
    }
}
